package engine

import (
	"context"
	"sync"
	"time"

	"smolgym/kernels"
)

// Options are the engine's limits; a zero takes the default.
type Options struct {
	Context         int     // tokens: cap on every model's context; 0 = the model's own
	DecodeTokens    int     // tokens of one decoding batch, prompts in pieces included (256)
	DecodeSequences int     // sequences of one decoding batch (64)
	TrainTokens     int     // tokens of one training micro-batch; one datum is never cut (2048)
	CacheTokens     int     // tokens of key-value cache per base model; 0 = 16384, and never less than one full context
	DecodeShare     float64 // share of the device's time that decoding gets while training waits too (0.5)

	keepActivations int64 // bytes, 0 for the rule of Base.keepActivations; tests change it
	headTokens      int   // tokens, 0 for the rule of Base.headTokens; tests change it
}

func (o *Options) defaults() {
	set := func(p *int, v int) {
		if *p <= 0 {
			*p = v
		}
	}
	set(&o.DecodeTokens, 256)
	set(&o.DecodeSequences, 64)
	set(&o.TrainTokens, 2048)
	set(&o.CacheTokens, 16384)
	if o.DecodeShare <= 0 || o.DecodeShare >= 1 {
		o.DecodeShare = 0.5
	}
}

// Engine owns one device. See the package comment for who may call what.
type Engine struct {
	dev kernels.Device
	opt Options

	wake chan struct{} // one token: something to do

	mu       sync.Mutex // guards what follows
	lanes    []*Lane    // lanes with closures waiting, in turn order
	incoming []*job     // samples not yet seen by the owner
	canceled []*job     // samples that nobody waits for any more
	garbage  []func()   // releases for the owner to run
	closed   bool
	inLane   bool
	stats    Stats
	active   int // samples being decoded
	queued   int // samples admitted to no batch yet

	// The owner's own.
	dec        *decoder
	train      *workspace
	threads    int        // for what is done with results
	head       *workspace // of the output head, which runs while a training program yields
	decode     *workspace
	lastDecode time.Duration // length of the last decoding step
	idleSince  time.Time     // end of the last decoding step
	free       time.Time     // when decoding could last have had the device
	longest    time.Duration // that it could not
}

// New is an engine on dev. Run makes it work.
func New(dev kernels.Device, opt Options) *Engine {
	opt.defaults()
	e := &Engine{dev: dev, opt: opt, wake: make(chan struct{}, 1), threads: max(dev.Info().Threads, 1)}
	e.train, e.head, e.decode = newWorkspace(dev), newWorkspace(dev), newWorkspace(dev)
	e.dec = &decoder{e: e}
	return e
}

// Device describes the device.
func (e *Engine) Device() kernels.Info { return e.dev.Info() }

// Stats are the counters so far.
func (e *Engine) Stats() Stats {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.stats
}

func (e *Engine) count(fn func(*Stats)) {
	e.mu.Lock()
	defer e.mu.Unlock()
	fn(&e.stats)
}

// QueueInfo says what waits for the device.
type QueueInfo struct {
	Training       bool // a lane's closure is running
	LanesWaiting   int
	SamplesActive  int
	SamplesWaiting int
}

// Queue is a snapshot of what waits.
func (e *Engine) Queue() QueueInfo {
	e.mu.Lock()
	defer e.mu.Unlock()
	return QueueInfo{e.inLane, len(e.lanes), e.active, e.queued + len(e.incoming)}
}

// Lane is an ordered queue of closures for the owner.
type Lane struct {
	e       *Engine
	waiting []func() // guarded by e.mu
}

// NewLane is an empty lane. Lanes take turns, a closure each.
func (e *Engine) NewLane() *Lane { return &Lane{e: e} }

// Submit queues fn behind the lane's others.
func (l *Lane) Submit(fn func()) error {
	e := l.e
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.closed {
		return ErrClosed
	}
	l.waiting = append(l.waiting, fn)
	if len(l.waiting) == 1 {
		e.lanes = append(e.lanes, l)
	}
	e.signal()
	return nil
}

// Waiting is how many closures have not started.
func (l *Lane) Waiting() int {
	l.e.mu.Lock()
	defer l.e.mu.Unlock()
	return len(l.waiting)
}

// Do runs fn on the owner and waits for it, or for ctx. When ctx ends first, fn
// may still run.
func (e *Engine) Do(ctx context.Context, fn func()) error {
	done := make(chan struct{})
	if err := e.NewLane().Submit(func() { defer close(done); fn() }); err != nil {
		return err
	}
	select {
	case <-done:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// signal wakes the owner; it never blocks.
func (e *Engine) signal() {
	select {
	case e.wake <- struct{}{}:
	default:
	}
}

// later hands the owner a release to run between two pieces of work.
func (e *Engine) later(fn func()) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.garbage = append(e.garbage, fn)
	e.signal()
}

// next takes the oldest closure of the lane whose turn it is.
func (e *Engine) next() func() {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.inLane = false
	if len(e.lanes) == 0 {
		return nil
	}
	l := e.lanes[0]
	e.lanes = e.lanes[1:]
	fn := l.waiting[0]
	l.waiting = l.waiting[1:]
	if len(l.waiting) > 0 {
		e.lanes = append(e.lanes, l)
	}
	e.inLane = true
	return fn
}

func (e *Engine) collect() {
	e.mu.Lock()
	garbage := e.garbage
	e.garbage = nil
	e.mu.Unlock()
	for _, fn := range garbage {
		fn()
	}
}

// Run is the owner: it works until ctx ends, then fails what still waits.
func (e *Engine) Run(ctx context.Context) error {
	defer e.shutdown()
	for ctx.Err() == nil {
		e.collect()
		fn := e.next()
		if fn != nil {
			e.free = time.Now()
			fn()
			e.held()
		}
		if e.dec.due() {
			e.dec.step()
			continue
		}
		if fn == nil {
			select {
			case <-e.wake:
			case <-ctx.Done():
			}
		}
	}
	return ctx.Err()
}

func (e *Engine) shutdown() {
	e.mu.Lock()
	e.closed = true
	e.lanes = nil
	e.mu.Unlock()
	e.dec.abort(ErrClosed)
	e.collect()
	e.train.free()
	e.head.free()
	e.decode.free()
}

// yield is called by the device between layers of a training program and inside
// long ones: it takes a decoding step when samples wait and decoding's share of
// the time is due.
func (e *Engine) yield(bool) error {
	e.held()
	if !e.dec.due() {
		return nil
	}
	pause := time.Duration(float64(e.lastDecode) * (1 - e.opt.DecodeShare) / e.opt.DecodeShare)
	if time.Since(e.idleSince) >= pause {
		e.dec.step()
		e.free = time.Now()
	}
	return nil
}

// held notes how long other work has kept decoding from the device.
func (e *Engine) held() {
	now := time.Now()
	if d := now.Sub(e.free); d > e.longest {
		e.longest = d
		e.count(func(s *Stats) { s.LongestHold = d })
	}
	e.free = now
}
