package appliance

import (
	"container/heap"
	"time"
)

// parkFor is how long a request waits for the numbers before its own when the
// parts of a batch may arrive in any order.
const parkFor = 10 * time.Second

// gaps knows which numbers of a run are accounted for: executed, refused or given
// up. It is the order's, under its mutex, and used only where parts of a batch may
// arrive in any order; else arrival order is the order.
type gaps struct {
	on      bool
	through int64 // all numbers up to this one are accounted for
	beyond  map[int64]struct{}
	turns   int         // calls of next on their way
	timer   *time.Timer // of the gap in front; nil: none waits for one
}

// account notes that a number needs no more waiting for.
func (g *gaps) account(seq int64) {
	if !g.on || seq <= g.through {
		return
	}
	if g.beyond == nil {
		g.beyond = map[int64]struct{}{}
	}
	g.beyond[seq] = struct{}{}
	for g.known(g.through + 1) {
		g.through++
		delete(g.beyond, g.through)
	}
}

func (g *gaps) known(seq int64) bool {
	_, ok := g.beyond[seq]
	return ok
}

// blocked says whether the lowest waiting request waits for a number that hasn't
// come; mu is held.
func (o *order) blocked() bool {
	return o.gaps.on && len(o.waiting) > 0 && o.waiting[0].seq > o.gaps.through+1 && o.broken == nil
}

// goOn keeps a call of next on its way while there is something to execute, and a
// clock running while there is a gap in front; mu is held.
func (o *order) goOn() {
	g := &o.gaps
	if !g.on {
		return
	}
	if g.timer != nil && !o.blocked() {
		g.timer.Stop()
		g.timer = nil
	}
	switch {
	case len(o.waiting) == 0:
	case o.blocked():
		if g.timer == nil {
			through := g.through
			g.timer = time.AfterFunc(o.a.opt.ParkFor, func() { o.giveUp(through) })
		}
	case g.turns == 0:
		if o.lane.Submit(o.next) == nil {
			g.turns++
		}
	}
}

// goOnLater is goOn for one that doesn't hold mu.
func (o *order) goOnLater() {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.goOn()
}

// giveUp ends the wait for the number after through. The request that waited for
// it fails and, if it is a part of a batch, so do the parts that follow it
// directly: they may belong together. What comes after them goes on.
func (o *order) giveUp(through int64) {
	o.mu.Lock()
	g := &o.gaps
	g.timer = nil
	if g.through != through || !o.blocked() {
		o.goOn()
		o.mu.Unlock()
		return
	}
	var failed []waiter
	for len(o.waiting) > 0 {
		w := o.waiting[0]
		part := w.f.kind == KindForward || w.f.kind == KindForwardBackward
		if n := len(failed); n > 0 && (!part || w.seq != failed[n-1].seq+1 || failed[0].f.kind != w.f.kind) {
			break
		}
		failed = append(failed, heap.Pop(&o.waiting).(waiter))
		if !part {
			break
		}
	}
	last := failed[len(failed)-1].seq
	g.through, o.executed = last, max(o.executed, last)
	for seq := range g.beyond {
		if seq <= last {
			delete(g.beyond, seq)
		}
	}
	for g.known(g.through + 1) {
		g.through++
		delete(g.beyond, g.through)
	}
	o.goOn()
	o.mu.Unlock()
	missing := through + 1
	for _, w := range failed {
		o.a.settle(w.f, nil, Problemf(CodeUser, "%s of %s: number %d was not executed: number %d did not arrive within %v", w.f.kind, o.name, w.seq, missing, o.a.opt.ParkFor).
			WithHint("send the whole batch again; gradients of parts that were executed are still accumulated"))
	}
}

// SkipNumber notes that a request of a run was refused before it got a turn: its
// number never comes. One that came already, or is unknown, changes nothing.
func (a *Appliance) SkipNumber(runID string, seq int64) {
	a.mu.Lock()
	r := a.runs[runID]
	a.mu.Unlock()
	if r == nil {
		return
	}
	o := r.order
	o.mu.Lock()
	defer o.mu.Unlock()
	if _, ok := o.seen[seq]; !ok && seq > o.gaps.through {
		o.gaps.account(seq)
		o.goOn()
	}
}

// ParallelChunks says whether the parts of a batch may arrive in any order.
func (a *Appliance) ParallelChunks() bool { return a.opt.ParallelChunks }
