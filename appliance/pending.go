package appliance

import (
	"errors"
	"io"

	"smolgym/store"
)

// pending is a checkpoint that a run starts from once its first request needs the
// weights in device memory: a run that is only made to export it never does. The
// checkpoint's bytes are held.
type pending struct {
	cp        store.Checkpoint
	optimizer bool
	held      []io.Closer
	users     int // the run, and exports under way; guarded by the appliance's mu
}

// hold keeps a checkpoint's bytes, whatever happens to its record.
func (a *Appliance) hold(cp store.Checkpoint, optimizer bool) (*pending, error) {
	p := &pending{cp: cp, optimizer: optimizer, users: 1}
	for _, t := range append(cp.Tensors[:len(cp.Tensors):len(cp.Tensors)], cp.Optimizer...) {
		r, err := a.db.Blobs().Open(t.Blob)
		if err != nil {
			return nil, errors.Join(err, p.close())
		}
		p.held = append(p.held, r)
	}
	return p, nil
}

func (p *pending) close() error {
	var all error
	for _, c := range p.held {
		all = errors.Join(all, c.Close())
	}
	p.held = nil
	return all
}

// letGo gives one user's hold up.
func (a *Appliance) letGo(p *pending) {
	a.mu.Lock()
	p.users--
	last := p.users == 0
	a.mu.Unlock()
	if !last {
		return
	}
	if err := p.close(); err != nil {
		a.log.Error("let go of checkpoint", "checkpoint", p.cp.Path(), "error", err)
	}
	a.garbage.Store(true)
}

// startLater makes the run start from a checkpoint when it has to. Owner.
func (r *run) startLater(cp store.Checkpoint, optimizer bool) error {
	p, err := r.a.hold(cp, optimizer)
	if err != nil {
		return err
	}
	r.pending = p
	r.state.Lock()
	defer r.state.Unlock()
	r.rec.BaseModel, r.rec.Adapter, r.rec.Numerics = cp.BaseModel, cp.Adapter, r.a.numerics(cp.BaseModel)
	return nil
}

// start brings the checkpoint that the run stands for into device memory. Owner.
func (r *run) start() error {
	p := r.pending
	if err := r.makeTrainer(p.cp.BaseModel, p.cp.Adapter); err != nil {
		return err
	}
	if err := r.a.load(r.trainer, p.cp, p.optimizer); err != nil {
		r.release()
		return err
	}
	r.pending = nil
	r.a.letGo(p)
	r.setPassing(false)
	return nil
}

// unused says whether the run has saved nothing that lasts.
func (r *run) unused() bool {
	_, weights := r.a.db.LatestCheckpoint(r.name, store.KindWeights)
	_, sampler := r.a.db.LatestCheckpoint(r.name, store.KindSampler)
	return errors.Is(weights, store.ErrNotFound) && errors.Is(sampler, store.ErrNotFound)
}

// setPassing says whether lists leave the run out.
func (r *run) setPassing(passing bool) {
	r.state.Lock()
	change := r.rec.Passing != passing && r.stored
	if change {
		r.rec.Passing = passing
	}
	r.state.Unlock()
	if !change {
		return
	}
	err := r.a.db.UpdateRun(r.name, func(s *store.Run) error {
		s.Passing = passing
		return nil
	})
	if err != nil {
		r.a.log.Error("record run", "run", r.name, "error", err)
	}
}
