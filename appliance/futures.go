package appliance

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/google/uuid"

	"smolgym/store"
)

// Kind is what a future was asked to do.
type Kind string

// The kinds, by the names of the wire's routes.
const (
	KindCreateModel     Kind = "create_model"
	KindForward         Kind = "forward"
	KindForwardBackward Kind = "forward_backward"
	KindOptimStep       Kind = "optim_step"
	KindSaveWeights     Kind = "save_weights"
	KindSaveSampler     Kind = "save_weights_for_sampler"
	KindLoadWeights     Kind = "load_weights"
	KindExport          Kind = "save_weights_external"
	KindCustomLoss      Kind = "create_custom_loss"
	KindUnload          Kind = "unload_model"
	KindSample          Kind = "asample"
)

// Ticket is the receipt for accepted work.
type Ticket struct {
	RequestID string
	ModelID   string   // the run, for training requests
	Sequences []string // one id per sample, for sample requests
}

// Answer is what Retrieve found. Either Result or Failure is set, or neither
// while the work still waits; then QueueState and Reason say why.
type Answer struct {
	Kind       Kind
	Result     any // a pointer to one of the …Result types
	Failure    *Failure
	QueueState string // active or paused_capacity
	Reason     string
}

// The results of accepted work.
type (
	// ForwardBackwardResult is that of forward and forward_backward.
	ForwardBackwardResult struct {
		Logprobs [][]float32 // per datum, row-major in its shape
		Shapes   [][]int     // per datum: [N] or [N,K]
		Metrics  map[string]float64
	}
	// OptimResult has finite numbers only.
	OptimResult struct {
		Metrics map[string]float64 `json:"metrics"`
	}
	// CreateModelResult names the new run.
	CreateModelResult struct {
		ModelID string `json:"model_id"`
	}
	// SaveResult names the new checkpoint, tinker://….
	SaveResult struct {
		Path string `json:"path"`
	}
	// SaveSamplerResult names a new sampler checkpoint or, for unnamed ones, the sampler.
	SaveSamplerResult struct {
		Path      string `json:"path,omitempty"`
		SamplerID string `json:"sampler_id,omitempty"`
	}
	// UnloadResult names the run that was unloaded.
	UnloadResult struct {
		ModelID string `json:"model_id"`
	}
	// LoadResult says what was loaded into which run.
	LoadResult struct {
		Path    string `json:"path"`
		ModelID string `json:"model_id"`
	}
)

// keepResults is how long an answer may be fetched again after the work is done.
const keepResults = 15 * time.Minute

// future is accepted work. The fields below done are written before it is closed
// and not changed after.
type future struct {
	id      string
	kind    Kind
	owner   string // run or sampler
	seq     int64
	sum     digest
	created time.Time
	waiting func() string // why it isn't done yet, in words; samples have their own
	expire  func()        // called when the result is forgotten; may be nil
	told    func()        // called when the result is there; may be nil; must not block
	sample  sampleState
	batch   int64 // bytes of its training data; guarded by futures.mu

	done     chan struct{}
	settled  bool // guarded by futures.mu
	result   any  // nil again once the client has it; then guarded by futures.mu
	failure  *Failure
	finished time.Time
}

// States of the queue, as the wire has them.
const (
	queueActive = "active"
	queuePaused = "paused_capacity" // waits for others to end
)

// futures are those of this process.
type futures struct {
	mu       sync.Mutex
	byID     map[string]*future
	finished []*future            // in order of finishing
	samples  map[*future]struct{} // not done
	accepted uint64               // sample requests so far
	prompts  int64                // bytes of the prompts of those that aren't done
	pace     pace                 // of samples
	batches  int64                // bytes of training data of requests that aren't done
}

func newFutures() *futures {
	return &futures{byID: map[string]*future{}, samples: map[*future]struct{}{}}
}

// add accepts work.
func (a *Appliance) newFuture(kind Kind, owner string, seq int64, sum digest, waiting func() string) *future {
	f := &future{id: uuid.NewString(), kind: kind, owner: owner, seq: seq, sum: sum, created: a.now(), waiting: waiting, done: make(chan struct{})}
	t := a.futures
	t.mu.Lock()
	defer t.mu.Unlock()
	t.byID[f.id] = f
	return f
}

// settle ends the work. Small results are recorded, so that a client may ask for
// them after a restart too; what the work left on disk, such as a checkpoint, is
// told of only when the result is there as well.
func (a *Appliance) settle(f *future, result any, err error) {
	f.finished = a.now()
	if err != nil {
		p := problemOf(string(f.kind)+" of "+f.owner, err)
		f.failure = failureOf(p)
		if p.Code == CodeServer {
			f.failure.Message += " under request " + f.id
			a.log.Error("request failed", "request", f.id, "kind", f.kind, "owner", f.owner, "seq", f.seq, "error", errors.Join(err, p.cause))
		} else {
			a.log.Info("request refused", "request", f.id, "kind", f.kind, "owner", f.owner, "seq", f.seq, "error", p.Error())
		}
	} else {
		f.result = result
	}
	switch f.kind {
	case KindForward, KindForwardBackward, KindSample:
		a.finish(f)
	case KindOptimStep:
		// Its effect is in memory: nothing is gained by waiting for the disk.
		a.record.future(f, nil)
		a.finish(f)
	default:
		a.record.future(f, func() { a.finish(f) })
	}
}

// finish lets those who wait see the result.
func (a *Appliance) finish(f *future) {
	t := a.futures
	t.mu.Lock()
	t.finished = append(t.finished, f)
	f.settled = true
	t.batches -= f.batch
	if f.kind == KindSample {
		a.endSampleLocked(f)
	}
	t.mu.Unlock()
	close(f.done)
	if f.told != nil {
		f.told()
	}
}

// stored is the record of a finished future.
func (f *future) stored() (store.Future, error) {
	rec := store.Future{ID: f.id, Kind: string(f.kind), RunID: f.owner, Seq: f.seq, BodyHash: f.sum.String(),
		State: store.FutureDone, ContentType: "application/json", Created: f.created, Done: f.finished}
	if f.failure != nil {
		rec.State, rec.Error, rec.Category = store.FutureFailed, f.failure.Message, f.failure.Category
		return rec, nil
	}
	b, err := json.Marshal(f.result)
	if err != nil {
		return rec, fmt.Errorf("record future %s: %w", f.id, err)
	}
	rec.Result = b
	return rec, nil
}

// restored is the answer in a record.
func restored(rec store.Future) (*Answer, error) {
	ans := &Answer{Kind: Kind(rec.Kind)}
	switch rec.State {
	case store.FutureFailed:
		ans.Failure = &Failure{Message: rec.Error, Category: rec.Category}
		return ans, nil
	case store.FutureDone:
	default:
		return nil, lostResult(rec.ID)
	}
	switch ans.Kind {
	case KindCreateModel:
		ans.Result = new(CreateModelResult)
	case KindOptimStep:
		ans.Result = new(OptimResult)
	case KindSaveWeights:
		ans.Result = new(SaveResult)
	case KindSaveSampler:
		ans.Result = new(SaveSamplerResult)
	case KindLoadWeights:
		ans.Result = new(LoadResult)
	case KindUnload:
		ans.Result = new(UnloadResult)
	case KindExport:
		ans.Result = new(ExportResult)
	case KindCustomLoss:
		ans.Result = new(CustomLossResult)
	default:
		return nil, lostResult(rec.ID)
	}
	if err := json.Unmarshal(rec.Result, ans.Result); err != nil {
		return nil, fmt.Errorf("read future %s: %w", rec.ID, err)
	}
	return ans, nil
}

func lostResult(id string) *Problem {
	return Problemf(CodeGone, "the result of request %q is no longer here: results are kept for %v after the work is done, those of forward_backward and sampling not over a restart", clip(id), keepResults)
}

// Retrieve waits until the work is done or ctx ends, whichever is first. Many may
// wait for one result, and it may be fetched again for a while.
func (a *Appliance) Retrieve(ctx context.Context, id string) (*Answer, error) {
	a.futures.mu.Lock()
	f := a.futures.byID[id]
	a.futures.mu.Unlock()
	if f == nil {
		return a.retrieveStored(id)
	}
	select {
	case <-f.done:
	case <-ctx.Done():
	case <-a.closing:
	}
	select {
	case <-f.done: // also when it was done before the context
		return a.answer(f)
	default:
	}
	state, reason := queueActive, ""
	if f.kind == KindSample {
		state, reason = a.sampleWaits(f)
	} else {
		reason = f.waiting()
	}
	return &Answer{Kind: f.kind, QueueState: state, Reason: reason}, nil
}

// answer is what a finished future holds.
func (a *Appliance) answer(f *future) (*Answer, error) {
	a.futures.mu.Lock()
	defer a.futures.mu.Unlock()
	if f.result == nil && f.failure == nil {
		return nil, lostResult(f.id)
	}
	return &Answer{Kind: f.kind, Result: f.result, Failure: f.failure}, nil
}

func (a *Appliance) retrieveStored(id string) (*Answer, error) {
	if _, err := uuid.Parse(id); err != nil || len(id) != 36 {
		if a.wasSample(id) {
			return nil, lostResult(id)
		}
		return nil, Problemf(CodeNotFound, "request %q does not exist", clip(id))
	}
	rec, err := a.db.Future(id)
	if errors.Is(err, store.ErrNotFound) {
		return nil, lostResult(id)
	}
	if err != nil {
		return nil, problemOf("retrieve "+id, err)
	}
	ans, err := restored(rec)
	if err != nil {
		return nil, problemOf("retrieve "+id, err)
	}
	return ans, nil
}

// expireFutures forgets results done before a moment.
func (a *Appliance) expireFutures(before time.Time) {
	t := a.futures
	t.mu.Lock()
	n := 0
	for n < len(t.finished) && t.finished[n].finished.Before(before) {
		delete(t.byID, t.finished[n].id)
		n++
	}
	gone := t.finished[:n]
	t.finished = t.finished[n:]
	if n > 0 && len(t.finished) < cap(t.finished)/4 {
		t.finished = append([]*future(nil), t.finished...)
	}
	t.mu.Unlock()
	for _, f := range gone {
		if f.expire != nil {
			f.expire()
		}
	}
}

// clip shortens foreign text for a message.
func clip(s string) string {
	const most = 80
	if len(s) > most {
		return s[:most] + "…"
	}
	return s
}
