package appliance

import (
	"container/heap"
	"errors"
	"fmt"
	"runtime/debug"
	"sync"
	"time"

	"smolgym/appliance/engine"
)

// rememberedNumbers is how many of a run's latest requests are known as repeats.
// Clients repeat within minutes.
const rememberedNumbers = 4096

// entry is an accepted request: a repeat gets its ticket.
type entry struct {
	sum digest
	id  string
}

// order runs the requests of one run in rising number, each once.
type order struct {
	a    *Appliance
	name string // the run
	lane *engine.Lane

	mu       sync.Mutex // guards what follows
	waiting  queue
	running  bool
	bringing string // the model that the next request needs and waits for, empty for none
	parked   int    // calls of next that came meanwhile
	gaps     gaps
	pace     pace  // of what was executed
	executed int64 // the highest number begun
	seen     map[int64]entry
	numbers  []int64  // keys of seen, in order of arrival
	refusal  *Problem // new requests get it
	broken   *Problem // waiting requests get it
}

// task is the work of a request; it runs on the owner of the device.
type task func() (any, error)

type waiter struct {
	seq  int64
	f    *future
	task task

	release func() // gives its hold on a model that was brought in for it up; may be nil
	err     error  // why that model couldn't be
}

// newOrder is an empty order for a run.
func (a *Appliance) newOrder(name string) *order {
	return &order{a: a, name: name, lane: a.eng.NewLane(), executed: creation - 1, seen: map[int64]entry{}, gaps: gaps{on: a.opt.ParallelChunks}}
}

// creation is the number of the request that makes a run: before all others.
const creation = -1

// submit accepts a request or recognises a repeat. check runs only for a new one;
// its error becomes the future's failure.
func (o *order) submit(kind Kind, seq int64, sum digest, check func() error, t task) (Ticket, error) {
	return o.submitBatch(0, kind, seq, sum, check, t)
}

// submitBatch is submit for a request that holds bytes of training data until it is
// done. While too much waits a new request is refused without using its number.
func (o *order) submitBatch(bytes int64, kind Kind, seq int64, sum digest, check func() error, t task) (Ticket, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if e, ok := o.seen[seq]; ok {
		if e.sum != sum {
			return Ticket{}, Problemf(CodeConflict, "%s of %s: number %d was used by another request", kind, o.name, seq).
				WithHint("a repeat must have the same content, a new request a higher number")
		}
		return Ticket{RequestID: e.id, ModelID: o.name}, nil
	}
	if seq <= o.executed {
		return Ticket{}, Problemf(CodeConflict, "%s of %s: number %d comes after number %d was executed", kind, o.name, seq, o.executed).
			WithHint("numbers of a run must rise")
	}
	if err := o.full(kind, seq, bytes); err != nil {
		return Ticket{}, err
	}
	f := o.a.newFuture(kind, o.name, seq, sum, func() string { return o.reason(seq) })
	o.a.holdBatch(f, bytes)
	o.remember(seq, entry{sum, f.id})
	ticket := Ticket{RequestID: f.id, ModelID: o.name}
	defer o.goOn()
	if o.refusal != nil {
		o.gaps.account(seq)
		o.a.settle(f, nil, o.refusal)
		return ticket, nil
	}
	if check != nil {
		if err := check(); err != nil {
			o.gaps.account(seq)
			o.a.settle(f, nil, err)
			return ticket, nil
		}
	}
	heap.Push(&o.waiting, waiter{seq: seq, f: f, task: t})
	o.gaps.turns++
	if err := o.lane.Submit(o.next); err != nil {
		o.gaps.turns--
		o.withdraw(seq)
		o.a.settle(f, nil, err)
	}
	return ticket, nil
}

// Limits of what waits to be trained on; over one of them a client is told to slow
// down. The SDK's clients send as fast as their scripts make requests.
const (
	openRequests = 1000      // requests of one run
	openBatches  = 512 << 20 // bytes of the data of all runs' requests
)

// full refuses a request while too much waits, but never the one that its run
// would execute next: so what waits always gets less. mu is held.
func (o *order) full(kind Kind, seq, bytes int64) error {
	if len(o.waiting) == 0 || o.blocked() && seq == o.gaps.through+1 {
		return nil
	}
	if len(o.waiting) >= o.a.opt.OpenRequests {
		return Problemf(CodeBusy, "%s of %s: %d requests of the run wait, as many as this server takes", kind, o.name, len(o.waiting)).WithHint("wait for some to finish")
	}
	t := o.a.futures
	t.mu.Lock()
	defer t.mu.Unlock()
	if bytes > 0 && t.batches+bytes > o.a.opt.OpenBatches {
		return Problemf(CodeBusy, "%s of %s: the requests that wait hold %d bytes of training data, and this server takes %d", kind, o.name, t.batches, o.a.opt.OpenBatches).
			WithHint("wait for some to finish")
	}
	return nil
}

// holdBatch counts a request's training data until the request is done.
func (a *Appliance) holdBatch(f *future, bytes int64) {
	a.futures.mu.Lock()
	defer a.futures.mu.Unlock()
	f.batch = bytes
	a.futures.batches += bytes
}

// batchBytes is what a batch holds in memory, about.
func batchBytes(b engine.Batch) int64 {
	n := int64(0)
	for _, d := range b.Data {
		n += 128 + 4*int64(len(d.Tokens))
		for _, t := range d.Inputs {
			n += 128 + 4*int64(len(t.F32)) + 8*int64(len(t.I64))
		}
	}
	return n
}

// remember is called with mu held.
func (o *order) remember(seq int64, e entry) {
	o.seen[seq] = e
	o.numbers = append(o.numbers, seq)
	if len(o.numbers) > rememberedNumbers {
		delete(o.seen, o.numbers[0])
		o.numbers = o.numbers[1:]
	}
}

// withdraw takes a request that was never queued out again; mu is held.
func (o *order) withdraw(seq int64) {
	for i, w := range o.waiting {
		if w.seq == seq {
			heap.Remove(&o.waiting, i)
			return
		}
	}
}

// next executes the waiting request with the lowest number. Owner.
func (o *order) next() {
	o.mu.Lock()
	if o.bringing != "" {
		o.parked++
		o.mu.Unlock()
		return
	}
	o.gaps.turns--
	if len(o.waiting) == 0 || o.blocked() {
		o.goOn()
		o.mu.Unlock()
		return
	}
	w := heap.Pop(&o.waiting).(waiter)
	o.executed = max(o.executed, w.seq)
	o.gaps.account(w.seq)
	began := o.a.now()
	o.running = true
	broken := o.broken
	o.mu.Unlock()

	var result any
	var err error
	switch {
	case broken != nil:
		err = broken
	case w.err != nil:
		err = w.err
	default:
		result, err = o.run(w.task)
	}
	if w.release != nil {
		w.release()
	}
	var missing *absent
	if errors.As(err, &missing) {
		o.bring(w, missing.name)
		return
	}
	// Memory that was made free comes back between closures, so the request goes
	// to the end of the lane; it is still the lowest number of its run.
	again := w.err == nil && noFit(err) && o.a.makeRoom()
	o.mu.Lock()
	o.running = false
	o.pace.add(o.a.now().Sub(began))
	defer o.goOnLater() // after the answer
	if again {
		heap.Push(&o.waiting, w)
		o.gaps.turns++
		if o.lane.Submit(o.next) == nil {
			o.mu.Unlock()
			return
		}
		o.gaps.turns--
		o.withdraw(w.seq)
	}
	if err != nil && w.seq == creation {
		o.fail(Problemf(CodeUser, "run %s was not created: %s", o.name, problemOf("create", err).Error()))
	}
	o.mu.Unlock()
	o.a.traceTask(o.name, w.f, began)
	if rest, ok := result.(later); ok && err == nil {
		o.a.wg.Go(func() {
			began := o.a.now()
			result, err := o.run(task(rest))
			o.a.traceRest(o.name, w.f, began)
			o.a.settle(w.f, result, err)
		})
		return
	}
	o.a.settle(w.f, result, err)
}

// bring puts a request back and has the model that it needs loaded beside the
// owner's work; until it is there the run's other requests wait, too. Owner.
func (o *order) bring(w waiter, name string) {
	o.mu.Lock()
	o.running, o.bringing, o.parked = false, name, 1
	o.gaps.turns++
	heap.Push(&o.waiting, w)
	o.mu.Unlock()
	go func() {
		ctx, cancel := o.a.untilClosing()
		defer cancel()
		release, err := o.a.bring(ctx, name)
		o.mu.Lock()
		defer o.mu.Unlock()
		o.bringing = ""
		for i := range o.waiting {
			if o.waiting[i].seq == w.seq {
				o.waiting[i].release, o.waiting[i].err = release, err
			}
		}
		for range o.parked {
			if err := o.lane.Submit(o.next); err != nil { // closed: nothing runs any more
				o.gaps.turns--
				o.withdraw(w.seq)
				o.a.settle(w.f, nil, err)
				release()
				return
			}
		}
	}()
}

// run keeps a panic of one request from ending the server.
func (o *order) run(t task) (result any, err error) {
	defer func() {
		if r := recover(); r != nil {
			result, err = nil, fmt.Errorf("panic: %v\n%s", r, debug.Stack())
		}
	}()
	return t()
}

// close refuses new requests and, after the waiting ones are done, runs last on the
// owner; last must bear being run again.
func (o *order) close(why *Problem, last func()) {
	o.mu.Lock()
	if o.refusal == nil {
		o.refusal = why
	}
	o.mu.Unlock()
	if err := o.lane.Submit(last); err != nil && !errors.Is(err, engine.ErrClosed) {
		o.a.log.Error("close run", "run", o.name, "error", err)
	}
}

// fail refuses new requests and those that wait; mu is held.
func (o *order) fail(why *Problem) {
	if o.broken == nil {
		o.broken = why
	}
	if o.refusal == nil {
		o.refusal = why
	}
}

// idle says whether nothing waits or runs.
func (o *order) idle() bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	return len(o.waiting) == 0 && !o.running
}

// reason says in words what request seq waits for.
func (o *order) reason(seq int64) string {
	o.mu.Lock()
	ahead := 0
	for _, w := range o.waiting {
		if w.seq < seq {
			ahead++
		}
	}
	started := o.running && seq <= o.executed
	each, missing := o.pace.each, int64(0)
	if o.blocked() {
		missing = o.gaps.through + 1
	}
	bringing := o.bringing
	if bringing != "" {
		started = false
	} else if o.running && !started {
		ahead++
	}
	o.mu.Unlock()
	q := o.a.eng.Queue()
	switch {
	case started:
		return fmt.Sprintf("this request is being executed; %s", sharing(q))
	case bringing != "":
		return fmt.Sprintf("model %s, which the run needs, is brought to the device; %s", bringing, sharing(q))
	case missing > 0:
		return fmt.Sprintf("number %d of this run has not arrived; it is waited for up to %v", missing, o.a.opt.ParkFor)
	case ahead > 0:
		turns := time.Duration(ahead * max(1, q.LanesWaiting)) // runs take turns
		return fmt.Sprintf("%s of this run %s first%s; %s", count(ahead, "request"), verb(ahead, "comes", "come"), about(turns*each), sharing(q))
	}
	return "this request is the run's next; " + sharing(q)
}

// sharing says who else uses the device.
func sharing(q engine.QueueInfo) string {
	return fmt.Sprintf("%s and %s wait for the device", count(q.LanesWaiting, "run"), count(q.SamplesActive+q.SamplesWaiting, "sample"))
}

func count(n int, noun string) string {
	if n == 1 {
		return "1 " + noun
	}
	return fmt.Sprintf("%d %ss", n, noun)
}

func verb(n int, one, many string) string {
	if n == 1 {
		return one
	}
	return many
}

// queue is a heap by number.
type queue []waiter

func (q queue) Len() int           { return len(q) }
func (q queue) Less(i, j int) bool { return q[i].seq < q[j].seq }
func (q queue) Swap(i, j int)      { q[i], q[j] = q[j], q[i] }
func (q *queue) Push(x any)        { *q = append(*q, x.(waiter)) }
func (q *queue) Pop() any {
	old := *q
	last := old[len(old)-1]
	old[len(old)-1] = waiter{}
	*q = old[:len(old)-1]
	return last
}
