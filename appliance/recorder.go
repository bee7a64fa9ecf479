package appliance

import (
	"context"
	"log/slog"
	"sync"
	"time"

	"smolgym/store"
)

// recorder writes what comes often in small pieces together, off the owner of the
// device: every commit waits for the disk.
type recorder struct {
	db   *store.DB
	log  *slog.Logger
	wake chan struct{}

	writing sync.Mutex // one flush at a time

	mu       sync.Mutex // guards what follows
	futures  []store.Future
	then     []func() // to be called when the futures are on disk
	samplers []store.Sampler
	seen     map[string]time.Time // sessions
	events   []store.Event
	meters   map[store.Meter]int64 // added to what is there; the keys have no amount
}

func newRecorder(db *store.DB, log *slog.Logger) *recorder {
	return &recorder{db: db, log: log, wake: make(chan struct{}, 1), seen: map[string]time.Time{}, meters: map[store.Meter]int64{}}
}

func (r *recorder) signal() {
	select {
	case r.wake <- struct{}{}:
	default:
	}
}

// future queues a finished future; then, if not nil, is called once it is on disk
// or, with a line in the log, can't be put there.
func (r *recorder) future(f *future, then func()) {
	rec, err := f.stored()
	r.mu.Lock()
	if err == nil {
		r.futures = append(r.futures, rec)
	}
	if then != nil {
		r.then = append(r.then, then)
	}
	r.mu.Unlock()
	if err != nil {
		r.log.Error("record result", "error", err)
	}
	r.signal()
}

// sampler queues a new sampler.
func (r *recorder) sampler(s store.Sampler) {
	r.mu.Lock()
	r.samplers = append(r.samplers, s)
	r.mu.Unlock()
	r.signal()
}

// session notes a sign of life; it is written with the next flush.
func (r *recorder) session(id string, at time.Time) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.seen[id] = at
}

// event queues an event; it is written with the next flush.
func (r *recorder) event(e store.Event) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.events = append(r.events, e)
}

// meter adds an amount; it is written with the next flush.
func (r *recorder) meter(m store.Meter, amount int64) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.meters[m] += amount
}

func (r *recorder) run(ctx context.Context) {
	for {
		select {
		case <-r.wake:
			r.flush()
		case <-ctx.Done():
			return
		}
	}
}

// flush writes all that is queued and returns when it is on disk.
func (r *recorder) flush() {
	r.writing.Lock()
	defer r.writing.Unlock()
	r.mu.Lock()
	fs, then, ss, seen := r.futures, r.then, r.samplers, r.seen
	events, meters := r.events, r.meters
	r.futures, r.then, r.samplers, r.seen = nil, nil, nil, map[string]time.Time{}
	r.events, r.meters = nil, map[store.Meter]int64{}
	r.mu.Unlock()
	if len(fs) > 0 {
		if err := r.db.PutFutures(fs); err != nil {
			r.log.Error("record results", "count", len(fs), "error", err)
		}
	}
	for _, fn := range then {
		fn()
	}
	for _, s := range ss {
		if err := r.db.PutSampler(s); err != nil {
			r.log.Error("record sampler", "sampler", s.ID, "error", err)
		}
	}
	if len(seen) > 0 {
		if err := r.db.TouchSessions(seen); err != nil {
			r.log.Error("record sessions", "count", len(seen), "error", err)
		}
	}
	r.history(events, meters)
}
