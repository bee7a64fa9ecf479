package appliance

import (
	"context"
	"slices"

	"smolgym/appliance/engine"
	"smolgym/tokenizer"
)

// base is a model in device memory, shared by runs and samplers.
type base struct {
	name  string
	eng   *engine.Base
	tok   *tokenizer.Tokenizer // nil if the model has none
	users int                  // trainers and samplers' weights; the owner's
}

// loadBase finds a model in device memory or brings it there. Owner.
func (a *Appliance) loadBase(name string) (*base, error) {
	m, err := a.model(name)
	if err != nil {
		return nil, err
	}
	a.mu.Lock()
	b := a.bases[m.Name]
	a.mu.Unlock()
	if a.wanted = b; b != nil {
		return b, nil
	}
	src, err := a.folder(m.Files)
	if err != nil {
		return nil, refusal(m.Name, err)
	}
	x, err := examine(m.Name, src)
	if err != nil {
		return nil, err
	}
	began := a.now()
	e, err := a.eng.LoadBase(m.Name, x.Checkpoint, src, x.Tokenizer)
	if err != nil {
		return nil, err
	}
	a.log.Info("model loaded", "model", m.Name, "bytes", e.Info().Bytes, "seconds", a.now().Sub(began).Seconds())
	b = &base{name: m.Name, eng: e, tok: x.Tokenizer}
	a.wanted = b
	a.mu.Lock()
	defer a.mu.Unlock()
	a.bases[m.Name] = b
	return b, nil
}

// forgetBase gives a removed model's memory up.
func (a *Appliance) forgetBase(name string) {
	a.mu.Lock()
	b := a.bases[name]
	delete(a.bases, name)
	a.mu.Unlock()
	if b != nil {
		// An engine that is closed has freed everything already.
		_ = a.eng.NewLane().Submit(b.eng.Release)
	}
}

// makeRoom frees the least regretted memory and reports whether there was any:
// weights of idle samplers that can be read again, then idle models, then idle
// unnamed samplers that newer ones of their run have followed. Owner.
func (a *Appliance) makeRoom() bool {
	a.mu.Lock()
	var idle []*sampler
	for _, s := range a.samplers {
		if s.idle() {
			idle = append(idle, s)
		}
	}
	bases := make([]*base, 0, len(a.bases))
	for _, b := range a.bases {
		bases = append(bases, b)
	}
	a.mu.Unlock()
	slices.SortFunc(idle, func(x, y *sampler) int { return x.lastUse().Compare(y.lastUse()) })
	for _, s := range idle {
		if !s.rec.Ephemeral && s.rec.ModelPath != "" && a.releaseWeights(s, nil) {
			return true
		}
	}
	for _, b := range bases {
		if b != a.wanted && b.users == a.baseSamplers(b) && a.dropBase(b) {
			return true
		}
	}
	for _, s := range idle {
		if s.rec.Ephemeral && a.followed(s) && a.releaseWeights(s, endedSampler(s.rec.ID, "its memory was needed and newer samplers of its run exist")) {
			return true
		}
	}
	return false
}

// baseSamplers is how many idle samplers of the bare model hold it; they can be
// made again at any time. Owner.
func (a *Appliance) baseSamplers(b *base) (n int) {
	a.mu.Lock()
	defer a.mu.Unlock()
	for _, s := range a.samplers {
		if s.rec.BaseModel == b.name && s.rec.ModelPath == "" && !s.rec.Ephemeral && s.idle() {
			n++
		}
	}
	return n
}

// dropBase takes an idle model and the samplers of the bare model out. Owner.
func (a *Appliance) dropBase(b *base) bool {
	a.mu.Lock()
	var holders []*sampler
	for _, s := range a.samplers {
		if s.rec.BaseModel == b.name && s.loaded() {
			holders = append(holders, s)
		}
	}
	a.mu.Unlock()
	for _, s := range holders {
		a.releaseWeights(s, nil)
	}
	if b.users > 0 {
		return false // a sampler became busy meanwhile
	}
	a.mu.Lock()
	delete(a.bases, b.name)
	a.mu.Unlock()
	b.eng.Release()
	a.log.Info("model unloaded to make room", "model", b.name)
	return true
}

// onOwner runs fn on the owner, again after room was made if it didn't fit.
func (a *Appliance) onOwner(ctx context.Context, fn func() error) error {
	for {
		var err error
		again := false
		if e := a.eng.Do(ctx, func() {
			if err = fn(); noFit(err) {
				again = a.makeRoom()
			}
		}); e != nil {
			return e
		}
		if !again {
			return err
		}
	}
}
