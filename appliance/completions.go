package appliance

import (
	"context"
	"errors"
	"fmt"
	"math"
	"sync"
	"time"

	"smolgym/store"
)

// cloneStride is the distance between the first numbers of two clones of a
// sampler: copies of a client in several processes, each with a poll of its own.
const cloneStride = 1_000_000_000

// maxClone is the highest clone whose numbers are all int64.
const maxClone = math.MaxInt64/cloneStride - 1

// reserveStep is how many numbers of a clone are written down as accepted at once.
const reserveStep = 1000

// gather is how long a poll that waited goes on collecting after the first
// completion: what one decoding step ended comes in one answer.
const gather = 2 * time.Millisecond

// Completion says that a sample request is done.
type Completion struct {
	RequestID string
	Failed    bool
	Size      int64 // of the result, about, in bytes; 0 = not known
}

// clone is one client of a sampler.
type clone struct {
	n int64 // its numbers begin at n*cloneStride

	reserving sync.Mutex // held while numbers are written down

	mu       sync.Mutex // guards what follows
	reserved int64      // numbers below this are written down as accepted
	open     map[int64]struct{}
	first    int64 // cursor of list[0]
	list     []Completion
	news     chan struct{} // closed when the list grows
}

// clone finds or makes a clone. One that an earlier process knew begins with what
// that process accepted and didn't see fetched: those results are lost, and only
// a client that hears of them asks again.
func (s *sampler) clone(n int64, now time.Time) *clone {
	s.mu.Lock()
	defer s.mu.Unlock()
	if c := s.clones[n]; c != nil {
		return c
	}
	// Cursors begin at the time, so that they rise over restarts too.
	c := &clone{n: n, open: map[int64]struct{}{}, first: now.UnixMicro(), news: make(chan struct{})}
	for _, span := range s.rec.Accepted {
		if span.Clone != n {
			continue
		}
		c.reserved = span.High
		for seq := span.Low; seq < span.High; seq++ {
			c.list = append(c.list, Completion{RequestID: sampleID(s.rec.ID, seq)})
		}
	}
	s.clones[n] = c
	return c
}

// sampleID is the id of a sample request. It can be told from the sampler's record
// alone which ones an earlier process may have given out.
func sampleID(sampler string, seq int64) string { return fmt.Sprintf("%s:%d", sampler, seq) }

// accept notes that a number is about to be accepted. Numbers are written down in
// steps, before the first of a step is answered.
func (a *Appliance) accept(s *sampler, seq int64) error {
	c := s.clone(seq/cloneStride, a.now())
	c.reserving.Lock()
	defer c.reserving.Unlock()
	c.mu.Lock()
	c.open[seq] = struct{}{}
	enough := seq < c.reserved || s.rec.Ephemeral // one that doesn't outlive the process
	c.mu.Unlock()
	if enough {
		return nil
	}
	high := min(seq+reserveStep, (c.n+1)*cloneStride)
	if err := a.putSpan(s, c, high); err != nil {
		c.close(seq)
		return problemOf("asample", err)
	}
	c.mu.Lock()
	c.reserved = high
	c.mu.Unlock()
	return nil
}

// putSpan writes down that numbers below high may have been accepted.
func (a *Appliance) putSpan(s *sampler, c *clone, high int64) error {
	span := store.Span{Clone: c.n, Low: c.lowest(high), High: high}
	return a.db.UpdateSampler(s.rec.ID, func(rec *store.Sampler) error {
		for i := range rec.Accepted {
			if rec.Accepted[i].Clone == c.n {
				rec.Accepted[i] = span
				return nil
			}
		}
		rec.Accepted = append(rec.Accepted, span)
		return nil
	})
}

// lowest is the lowest open number, high if there is none.
func (c *clone) lowest(high int64) int64 {
	c.mu.Lock()
	defer c.mu.Unlock()
	for seq := range c.open {
		high = min(high, seq)
	}
	return high
}

// close notes that a number's result was fetched or is forgotten.
func (c *clone) close(seq int64) {
	c.mu.Lock()
	defer c.mu.Unlock()
	delete(c.open, seq)
}

// add tells of a completion. It doesn't block.
func (c *clone) add(done Completion) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.list = append(c.list, done)
	close(c.news)
	c.news = make(chan struct{})
}

// since drops what a cursor acknowledges and returns the rest with its cursor,
// and a channel that is closed when there is more.
func (c *clone) since(cursor int64) ([]Completion, int64, <-chan struct{}) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if cursor >= c.first+int64(len(c.list)) { // given out by an earlier process with a clock that was ahead
		c.first = cursor + 1
	}
	if cursor >= c.first {
		n := cursor - c.first + 1
		c.list = append([]Completion(nil), c.list[n:]...)
		c.first = cursor + 1
	}
	if len(c.list) > 0 {
		cursor = c.first + int64(len(c.list)) - 1
	}
	return append([]Completion(nil), c.list...), cursor, c.news
}

// saveSpans writes down exactly what is still open, for a stop in good order.
func (a *Appliance) saveSpans() {
	a.mu.Lock()
	all := make([]*sampler, 0, len(a.samplers))
	for _, s := range a.samplers {
		all = append(all, s)
	}
	a.mu.Unlock()
	for _, s := range all {
		s.mu.Lock()
		clones := make([]*clone, 0, len(s.clones))
		for _, c := range s.clones {
			clones = append(clones, c)
		}
		s.mu.Unlock()
		for _, c := range clones {
			c.mu.Lock()
			high := c.n * cloneStride
			for seq := range c.open {
				high = max(high, seq+1)
			}
			written := c.reserved > 0
			c.mu.Unlock()
			if s.rec.Ephemeral || !written {
				continue
			}
			if err := a.putSpan(s, c, high); err != nil && !errors.Is(err, store.ErrNotFound) {
				a.log.Error("record open samples", "sampler", s.rec.ID, "error", err)
			}
		}
	}
}

// CompletionsRequest polls a clone of a sampler.
type CompletionsRequest struct {
	SamplerID string
	Clone     int64
	Cursor    int64    // of the last answer; acknowledges what came up to it; 0 = from the beginning
	Retrieved []string // requests whose results were fetched and may be freed
}

// Completions returns what is done since a cursor, with the new cursor. Without
// any it waits until there are some or ctx ends.
func (a *Appliance) Completions(ctx context.Context, req CompletionsRequest) ([]Completion, int64, error) {
	if req.Clone < 0 || req.Clone > maxClone || req.Cursor < 0 || req.Cursor > 1<<62 {
		return nil, 0, Problemf(CodeUser, "retrieve_futures: clone %d or cursor %d is out of range", req.Clone, req.Cursor)
	}
	s, err := a.sampler(req.SamplerID)
	if err != nil {
		return nil, 0, err
	}
	s.mu.Lock()
	gone := s.ended != nil && s.clones[req.Clone] == nil
	why := s.ended
	s.mu.Unlock()
	if gone { // nothing that this process knows of, and never will be
		return nil, 0, Problemf(CodeGone, "%s", why.Message).WithHint("%s", why.Hint)
	}
	a.touchSession(s.rec.SessionID)
	a.freeResults(s, req.Retrieved)
	c := s.clone(req.Clone, a.now())
	done, cursor, news := c.since(req.Cursor)
	for len(done) == 0 {
		select {
		case <-news:
			late := time.NewTimer(gather)
			select {
			case <-late.C:
			case <-ctx.Done():
			}
			late.Stop()
		case <-ctx.Done():
			return nil, cursor, nil
		case <-a.closing:
			return nil, cursor, nil
		}
		done, cursor, news = c.since(req.Cursor)
	}
	return done, cursor, nil
}

// freeResults forgets results of a sampler that their client has.
func (a *Appliance) freeResults(s *sampler, ids []string) {
	var freed []*future
	t := a.futures
	t.mu.Lock()
	for _, id := range ids {
		f := t.byID[id]
		if f == nil || f.kind != KindSample || f.owner != s.rec.ID || !f.settled {
			continue
		}
		f.result = nil
		delete(t.byID, id)
		freed = append(freed, f)
	}
	t.mu.Unlock()
	for _, f := range freed {
		s.clone(f.seq/cloneStride, a.now()).close(f.seq)
	}
}

// JoinSampler gives a new client of a sampler a number that no other has: from 1,
// and never again, also after a restart.
func (a *Appliance) JoinSampler(id string) (int64, error) {
	s, err := a.sampler(id)
	if err != nil {
		return 0, err
	}
	if s.rec.Ephemeral { // its record may still be on its way to the disk
		a.record.flush()
	}
	var n int64
	err = a.db.UpdateSampler(id, func(rec *store.Sampler) error {
		if rec.Clients >= maxClone {
			return fmt.Errorf("sampler %s has no client numbers left; make a new one: %w", id, store.ErrInvalid)
		}
		rec.Clients++
		n = rec.Clients
		return nil
	})
	if err != nil {
		return 0, problemOf("join sampler "+clip(id), err)
	}
	return n, nil
}
