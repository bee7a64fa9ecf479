package appliance

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"smolgym/appliance/engine"
	"smolgym/model/hf"
	"smolgym/tokenizer"
)

// base is a model in device memory, shared by runs and samplers.
type base struct {
	name  string
	eng   *engine.Base
	tok   *tokenizer.Tokenizer // nil if the model has none
	users int                  // trainers and samplers' weights; the owner's

	claims int // of those that are about to use it; guarded by the appliance's mu
}

// absent is the error of work that needs a model which is not in device memory.
type absent struct{ name string }

func (e *absent) Error() string { return fmt.Sprintf("model %s is not in device memory", e.name) }

// loadedBase finds a model in device memory; its error is an absent when bring has
// to bring it there. Owner.
func (a *Appliance) loadedBase(name string) (*base, error) {
	m, err := a.model(name)
	if err != nil {
		return nil, err
	}
	a.mu.Lock()
	b := a.bases[m.Name]
	a.mu.Unlock()
	if a.wanted = b; b == nil {
		return nil, &absent{m.Name}
	}
	return b, nil
}

// bring loads a model into device memory, unless it is there, and keeps it there
// until release is called. The owner must not call it: it goes on with other work
// meanwhile.
func (a *Appliance) bring(ctx context.Context, name string) (release func(), err error) {
	a.loading.Lock() // one at a time: two would take each other's room
	defer a.loading.Unlock()
	a.mu.Lock()
	b := a.bases[name]
	if b == nil {
		a.arriving = name
	} else {
		b.claims++
	}
	a.mu.Unlock()
	if b == nil {
		if b, err = a.loadBase(ctx, name); b == nil {
			b = &base{}
		}
		b.claims++
		a.mu.Lock()
		if a.arriving = ""; err == nil {
			a.bases[name] = b
		}
		a.mu.Unlock()
	}
	return func() {
		a.mu.Lock()
		defer a.mu.Unlock()
		b.claims--
	}, err
}

// loadBase reads a model's weights, again after room was made if they don't fit.
func (a *Appliance) loadBase(ctx context.Context, name string) (*base, error) {
	m, src, err := a.modelFolder(name)
	if err != nil {
		return nil, err
	}
	x, err := examine(m.Name, src)
	if err != nil {
		return nil, err
	}
	began := a.now()
	for {
		e, err := a.eng.LoadBase(m.Name, x.Checkpoint, untilDone{src, ctx}, x.Tokenizer, a.matrices(m))
		if err == nil {
			a.log.Info("model loaded", "model", m.Name, "precision", precisionOf(e.Info().DType), "bytes", e.Info().Bytes, "seconds", a.now().Sub(began).Seconds())
			return &base{name: m.Name, eng: e, tok: x.Tokenizer}, nil
		}
		again := false
		if noFit(err) {
			if e := a.eng.Do(ctx, func() { again = a.makeRoom() }); e != nil {
				return nil, e
			}
		}
		if !again {
			return nil, err
		}
		// What was made free comes back before the owner's next closure.
		if err := a.eng.Do(ctx, func() {}); err != nil {
			return nil, err
		}
	}
}

// untilDone is a source that ends with its context.
type untilDone struct {
	hf.Source
	ctx context.Context
}

func (s untilDone) Open(name string) (hf.ReaderAtSized, error) {
	if err := s.ctx.Err(); err != nil {
		return nil, err
	}
	return s.Source.Open(name)
}

// arrival says which model is being loaded, if any.
func (a *Appliance) arrival() string {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.arriving == "" {
		return ""
	}
	return "model " + a.arriving + " is being loaded"
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
		if b != a.wanted && !a.claimed(b) && b.users == a.baseSamplers(b) && a.dropBase(b) {
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

// claimed says whether somebody is about to use a model.
func (a *Appliance) claimed(b *base) bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	return b.claims > 0
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

// onOwner runs fn on the owner, again after room was made if it didn't fit, and
// after the model that it needs has been brought in.
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
		var missing *absent
		if errors.As(err, &missing) {
			release, e := a.bring(ctx, missing.name)
			defer release()
			if err, again = e, e == nil; e != nil {
				return err
			}
		}
		if !again {
			return err
		}
	}
}
