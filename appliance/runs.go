package appliance

import (
	"crypto/rand"
	"encoding/binary"
	"errors"
	"fmt"
	"sync"
	"time"

	"smolgym/appliance/engine"
	"smolgym/store"
)

// alpha is the LoRA alpha of every run: the wire has no field for it.
const alpha = 32

// maxRank bounds what a client may ask for before memory is looked at.
const maxRank = 4096

// run is a training run with what it needs to go on. Its order runs its requests.
type run struct {
	*order
	session string

	state  sync.Mutex // guards what follows
	rec    store.Run
	stored bool // the record is in the store
	dirty  bool // the record in the store is older
	base   *base
	ended  bool

	trainer *engine.Trainer // the owner's; nil before creation and after unload
	pending *pending        // the owner's; where the trainer will start, nil if it has
}

// LoRAConfig is the adapter a client asks for.
type LoRAConfig struct {
	Rank      int
	Seed      *int64 // nil: random
	Attention bool
	MLP       bool
	Unembed   bool
}

// CreateModelRequest asks for a run. A nil LoRA, or rank 0, is a full update.
type CreateModelRequest struct {
	SessionID    string
	ModelSeq     int64
	BaseModel    string
	LoRA         *LoRAConfig
	Optimizer    string // adamw, or empty
	UserMetadata map[string]string
}

// RunID is the id of a session's n-th run: clients predict it.
func RunID(sessionID string, n int64) string { return fmt.Sprintf("%s:train:%d", sessionID, n) }

// CreateModel asks for a new run.
func (a *Appliance) CreateModel(req CreateModelRequest) (Ticket, error) {
	h := hashOf(KindCreateModel)
	h.text(req.BaseModel)
	optional(h, req.LoRA, func(l LoRAConfig) {
		h.int(int64(l.Rank))
		optional(h, l.Seed, h.int)
		h.bool(l.Attention)
		h.bool(l.MLP)
		h.bool(l.Unembed)
	})
	h.text(req.Optimizer)
	h.textMap(req.UserMetadata)

	r, err := a.newRun(req.SessionID, req.ModelSeq)
	if err != nil {
		return Ticket{}, err
	}
	check := func() error {
		if err := checkOptimizer(req.Optimizer); err != nil {
			return err
		}
		if err := req.LoRA.check(); err != nil {
			return err
		}
		_, err := a.model(req.BaseModel)
		return err
	}
	return r.submit(KindCreateModel, creation, h.sum(), r.brokenBy(check), func() (any, error) {
		adapter, err := req.LoRA.adapter()
		if err != nil {
			return nil, err
		}
		return r.create(req.BaseModel, adapter, req.UserMetadata, "")
	})
}

func checkOptimizer(name string) error {
	if name == "" || name == "adamw" {
		return nil
	}
	return Problemf(CodeUnsupported, "optimizer %q is not served", clip(name)).WithHint("use adamw")
}

// check refuses adapters that can't be made.
func (l *LoRAConfig) check() error {
	if l == nil {
		return nil
	}
	switch {
	case l.Rank < 0 || l.Rank > maxRank:
		return Problemf(CodeUser, "lora_config.rank %d: out of range", l.Rank).WithHint("use 1 to %d, or 0 for a full update", maxRank)
	case l.Rank == 0:
		for _, f := range []struct {
			name string
			on   bool
		}{{"train_attn", l.Attention}, {"train_mlp", l.MLP}, {"train_unembed", l.Unembed}} {
			if !f.on {
				return Problemf(CodeUser, "lora_config.%s is off: with rank 0 (full update) every parameter is trained", f.name).
					WithHint("leave the train_* flags on, or give a rank above 0")
			}
		}
	case !l.Attention && !l.MLP && !l.Unembed:
		return Problemf(CodeUser, "lora_config: train_attn, train_mlp and train_unembed are all off: nothing would be trained").
			WithHint("leave at least one on")
	}
	return nil
}

// adapter is the record of a checked configuration, with a seed drawn if none is given.
func (l *LoRAConfig) adapter() (store.Adapter, error) {
	if l == nil || l.Rank == 0 {
		return store.Adapter{Full: true, TrainAttn: true, TrainMLP: true, TrainUnembed: true}, nil
	}
	ad := store.Adapter{Rank: l.Rank, Alpha: alpha, TrainAttn: l.Attention, TrainMLP: l.MLP, TrainUnembed: l.Unembed}
	if l.Seed != nil {
		ad.Seed = *l.Seed
		return ad, nil
	}
	seed, err := randomSeed()
	ad.Seed = int64(seed >> 1)
	return ad, err
}

func randomSeed() (uint64, error) {
	var b [8]byte
	if _, err := rand.Read(b[:]); err != nil {
		return 0, fmt.Errorf("draw a seed: %w", err)
	}
	return binary.LittleEndian.Uint64(b[:]), nil
}

// trainerConfig is an adapter in the engine's words.
func trainerConfig(ad store.Adapter) engine.TrainerConfig {
	if ad.Full {
		return engine.TrainerConfig{}
	}
	return engine.TrainerConfig{LoRA: &engine.LoRA{Rank: ad.Rank, Alpha: ad.Alpha, Seed: uint64(ad.Seed)},
		Attention: ad.TrainAttn, MLP: ad.TrainMLP, Unembed: ad.TrainUnembed}
}

// newRun finds or makes the run of a session's number; nothing is created yet.
func (a *Appliance) newRun(sessionID string, n int64) (*run, error) {
	if n < 0 {
		return nil, Problemf(CodeUser, "model_seq_id %d is negative", n)
	}
	if err := a.liveSession(sessionID); err != nil {
		return nil, err
	}
	id := RunID(sessionID, n)
	if r, err := a.run(id); err == nil {
		return r, nil
	} else if p := problemOf("", err); p.Code != CodeNotFound {
		return nil, err
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	if r := a.runs[id]; r != nil {
		return r, nil
	}
	now := a.now()
	r := &run{order: a.newOrder(id), session: sessionID,
		rec: store.Run{ID: id, SessionID: sessionID, ModelSeq: n, Created: now, LastRequest: now}}
	a.runs[id] = r
	return r, nil
}

// run finds a run in memory or, as one whose training state is lost, in the store.
func (a *Appliance) run(id string) (*run, error) {
	a.mu.Lock()
	r := a.runs[id]
	a.mu.Unlock()
	if r != nil {
		return r, nil
	}
	rec, err := a.db.Run(id)
	if errors.Is(err, store.ErrNotFound) || errors.Is(err, store.ErrInvalid) {
		return nil, Problemf(CodeNotFound, "no run %q", clip(id))
	}
	if err != nil {
		return nil, problemOf("find run", err)
	}
	r = &run{order: a.newOrder(id), session: rec.SessionID, rec: rec, stored: true, ended: true}
	done, err := a.db.FuturesOf(id)
	if err != nil {
		return nil, problemOf("find run", err)
	}
	for _, f := range done {
		r.remember(f.Seq, entry{parseDigest(f.BodyHash), f.ID})
	}
	r.fail(a.endedRun(rec.ID, "the server was restarted or its session ended"))
	a.mu.Lock()
	defer a.mu.Unlock()
	if first := a.runs[id]; first != nil {
		return first, nil
	}
	a.runs[id] = r
	return r, nil
}

// endedRun says that a run's training state is gone and how to go on.
func (a *Appliance) endedRun(id, why string) *Problem {
	p := Problemf(CodeUser, "run %s: its training state is no longer in memory: %s", id, why)
	cp, err := a.db.LatestCheckpoint(id, store.KindWeights)
	if err != nil {
		return p.WithHint("it has no saved state; create a new training client")
	}
	return p.WithHint("go on from its latest checkpoint with create_training_client_from_state_with_optimizer(%q)", cp.Path())
}

// brokenBy is check, but its error also ends the run that was to be created; it
// is called with the order's lock held.
func (r *run) brokenBy(check func() error) func() error {
	return func() error {
		err := check()
		if err != nil {
			r.fail(Problemf(CodeUser, "run %s was not created: %s", r.name, problemOf("create", err).Error()))
		}
		return err
	}
}

// create makes the trainer and, once all went well, the record. Owner.
func (r *run) create(baseModel string, adapter store.Adapter, meta map[string]string, from string) (any, error) {
	if err := r.makeTrainer(baseModel, adapter); err != nil {
		return nil, err
	}
	if err := r.keep(meta, from); err != nil {
		r.drop()
		return nil, err
	}
	return &CreateModelResult{ModelID: r.name}, nil
}

// makeTrainer loads the base if need be and starts a trainer. Owner.
func (r *run) makeTrainer(baseModel string, adapter store.Adapter) error {
	b, err := r.a.loadedBase(baseModel)
	if err != nil {
		return err
	}
	t, err := b.eng.NewTrainer(trainerConfig(adapter))
	if err != nil {
		return err
	}
	r.trainer = t
	b.users++
	r.state.Lock()
	defer r.state.Unlock()
	r.base = b
	r.rec.BaseModel, r.rec.Adapter, r.rec.Numerics = b.name, adapter, r.a.numerics(b.name)
	return nil
}

// keep stores the record of a new run. Owner.
func (r *run) keep(meta map[string]string, from string) error {
	r.state.Lock()
	defer r.state.Unlock()
	r.rec.UserMetadata, r.rec.FromPath = meta, from
	if err := r.a.db.AddRun(r.rec); err != nil {
		return err
	}
	r.stored = true
	return nil
}

// release frees the trainer. Owner.
func (r *run) release() {
	if r.trainer != nil {
		r.trainer.Release()
		r.trainer = nil
		r.base.users--
	}
}

// drop frees what the run holds. Owner.
func (r *run) drop() {
	r.release()
	if r.pending != nil {
		r.a.letGo(r.pending)
		r.pending = nil
	}
	r.state.Lock()
	defer r.state.Unlock()
	r.ended = true
}

// unload ends the run after what it was asked is done, and then calls done.
// Calling it twice is fine.
func (r *run) unload(why string, done func()) {
	problem := r.a.endedRun(r.name, why)
	r.close(problem, func() {
		r.drop()
		r.mu.Lock()
		r.fail(problem)
		r.mu.Unlock()
		done()
	})
}

// UnloadModel asks to end a run and free its memory once its requests are done.
func (a *Appliance) UnloadModel(id string) (Ticket, error) {
	r, err := a.run(id)
	if err != nil {
		return Ticket{}, err
	}
	f := a.newFuture(KindUnload, id, 0, digest{}, func() string { return "the run's requests come first" })
	r.unload("it was unloaded", func() { a.settle(f, &UnloadResult{ModelID: id}, nil) })
	return Ticket{RequestID: f.id, ModelID: id}, nil
}

// live says whether the run can train.
func (r *run) live() bool {
	r.state.Lock()
	defer r.state.Unlock()
	return r.stored && !r.ended
}

// touch notes a request.
func (r *run) touch(seq int64) {
	r.a.touchSession(r.session)
	r.state.Lock()
	defer r.state.Unlock()
	r.rec.LastRequest = r.a.now()
	r.rec.LastSeq = max(r.rec.LastSeq, seq)
	r.dirty = true
}

// loaded is the run's base, nil before it is created.
func (r *run) loaded() *base {
	r.state.Lock()
	defer r.state.Unlock()
	return r.base
}

// record is a copy of the run's record.
func (r *run) record() store.Run {
	r.state.Lock()
	defer r.state.Unlock()
	return r.rec
}

// flushRuns writes down when runs were last asked for anything.
func (a *Appliance) flushRuns() {
	a.mu.Lock()
	runs := make([]*run, 0, len(a.runs))
	for _, r := range a.runs {
		runs = append(runs, r)
	}
	a.mu.Unlock()
	for _, r := range runs {
		r.state.Lock()
		rec, dirty := r.rec, r.dirty && r.stored
		r.dirty = false
		r.state.Unlock()
		if !dirty {
			continue
		}
		err := a.db.UpdateRun(rec.ID, func(s *store.Run) error {
			s.LastRequest, s.LastSeq = rec.LastRequest, rec.LastSeq
			return nil
		})
		if err != nil {
			a.log.Error("record run", "run", rec.ID, "error", err)
		}
	}
}

// sweepRuns forgets runs that ended a while ago; the store still has them.
func (a *Appliance) sweepRuns(now time.Time) {
	a.mu.Lock()
	defer a.mu.Unlock()
	for id, r := range a.runs {
		r.state.Lock()
		old := now.Sub(r.rec.LastRequest) > 2*keepResults && (r.ended || !r.stored)
		r.state.Unlock()
		if old && r.idle() {
			delete(a.runs, id)
		}
	}
}

// RunInfo is what a client asks once after creation.
type RunInfo struct {
	ID        string
	BaseModel string
	Family    string
	IsLoRA    bool
	Rank      int
}

// RunInfo describes a run.
func (a *Appliance) RunInfo(id string) (RunInfo, error) {
	r, err := a.run(id)
	if err != nil {
		return RunInfo{}, err
	}
	r.state.Lock()
	rec, stored := r.rec, r.stored
	r.state.Unlock()
	if !stored {
		return RunInfo{}, Problemf(CodeNotFound, "run %q has not been created", clip(id)).WithHint("wait for its create_model, or see why it failed")
	}
	r.touch(0)
	info := RunInfo{ID: rec.ID, BaseModel: rec.BaseModel, IsLoRA: !rec.Full, Rank: rec.Rank}
	if m, err := a.db.Model(rec.BaseModel); err == nil {
		info.Family = m.Family
	}
	return info, nil
}
