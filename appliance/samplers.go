package appliance

import (
	"errors"
	"fmt"
	"sync"
	"time"

	"smolgym/appliance/engine"
	"smolgym/store"
)

// sampler is a set of weights that clients sample from.
type sampler struct {
	rec store.Sampler // doesn't change

	load sync.Mutex // held while the weights are being brought in

	mu      sync.Mutex // guards what follows
	seen    map[int64]entry
	clones  map[int64]*clone
	weights *engine.Weights // nil: not in device memory
	base    *base
	busy    int // requests that use the weights
	used    time.Time
	ended   *Problem // why the weights are never coming back
}

// SamplerID is the id of a session's n-th sampler.
func SamplerID(sessionID string, n int64) string { return fmt.Sprintf("%s:sample:%d", sessionID, n) }

func (a *Appliance) newSampler(rec store.Sampler) *sampler {
	return &sampler{rec: rec, seen: map[int64]entry{}, clones: map[int64]*clone{}, used: a.now()}
}

// SamplerRequest asks for a sampler of a base model, or of a checkpoint.
type SamplerRequest struct {
	SessionID string
	Seq       int64
	BaseModel string
	ModelPath string // tinker://…; wins over BaseModel
}

// CreateSampler makes a sampler. Its weights are brought to the device at the
// first request.
func (a *Appliance) CreateSampler(req SamplerRequest) (string, error) {
	if req.Seq < 0 {
		return "", Problemf(CodeUser, "sampling_session_seq_id %d is negative", req.Seq)
	}
	if err := a.liveSession(req.SessionID); err != nil {
		return "", err
	}
	rec := store.Sampler{ID: SamplerID(req.SessionID, req.Seq), SessionID: req.SessionID, Seq: req.Seq, ModelPath: req.ModelPath, Created: a.now()}
	if req.ModelPath != "" {
		key, err := parsePath(req.ModelPath)
		if err != nil {
			return "", err
		}
		if key.Kind == store.KindExternal {
			return "", Problemf(CodeUser, "checkpoint %s is an export and can't be sampled from", req.ModelPath).WithHint("use one of kind sampler_weights or weights")
		}
		cp, err := a.checkpoint(key)
		if err != nil {
			return "", err
		}
		if req.BaseModel != "" {
			if full, err := ModelName(req.BaseModel); err != nil || full != cp.BaseModel {
				return "", Problemf(CodeUser, "checkpoint %s is of base model %s, not %q", req.ModelPath, cp.BaseModel, clip(req.BaseModel))
			}
		}
		rec.BaseModel, rec.RunID = cp.BaseModel, key.RunID
	} else {
		rec.BaseModel = req.BaseModel
	}
	m, err := a.model(rec.BaseModel)
	if err != nil {
		return "", err
	}
	rec.BaseModel = m.Name
	return a.addSampler(rec)
}

// addSampler stores a sampler, or recognises a repeat.
func (a *Appliance) addSampler(rec store.Sampler) (string, error) {
	old, err := a.sampler(rec.ID)
	if err == nil {
		if old.rec.BaseModel != rec.BaseModel || old.rec.ModelPath != rec.ModelPath || old.rec.Ephemeral {
			return "", Problemf(CodeConflict, "create_sampling_session: number %d of this session was used by another request", rec.Seq).
				WithHint("a repeat must have the same content, a new request a higher number")
		}
		return rec.ID, nil
	}
	if problemOf("", err).Code != CodeNotFound {
		return "", err
	}
	if err := a.db.AddSampler(rec); err != nil && !errors.Is(err, store.ErrExists) {
		return "", problemOf("create sampler", err)
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.samplers[rec.ID] == nil {
		a.samplers[rec.ID] = a.newSampler(rec)
	}
	return rec.ID, nil
}

// sampler finds a sampler in memory or in the store.
func (a *Appliance) sampler(id string) (*sampler, error) {
	a.mu.Lock()
	s := a.samplers[id]
	a.mu.Unlock()
	if s != nil {
		return s, nil
	}
	rec, err := a.db.Sampler(id)
	if errors.Is(err, store.ErrNotFound) || errors.Is(err, store.ErrInvalid) {
		return nil, Problemf(CodeNotFound, "no sampler %q", clip(id)).WithHint("it was never made, or its session has ended")
	}
	if err != nil {
		return nil, problemOf("find sampler", err)
	}
	s = a.newSampler(rec)
	if rec.Ephemeral {
		s.ended = endedSampler(id, "the server was restarted")
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	if first := a.samplers[id]; first != nil {
		return first, nil
	}
	a.samplers[id] = s
	return s, nil
}

// Sampler describes a sampler.
func (a *Appliance) Sampler(id string) (store.Sampler, error) {
	s, err := a.sampler(id)
	if err != nil {
		return store.Sampler{}, err
	}
	return s.rec, nil
}

// endedSampler says that an unnamed sampler's weights are gone.
func endedSampler(id, why string) *Problem {
	return Problemf(CodeUser, "sampler %s: its weights were not saved and are no longer in memory: %s", id, why).
		WithHint("make a new one from the run, or save with save_weights_for_sampler(name)")
}

// SnapshotRequest asks for an unnamed sampler of a run as of its number.
type SnapshotRequest struct {
	RunID      string
	Seq        int64
	SamplerSeq int64 // the sampler's number in the session
}

// Snapshot asks for a sampler that sees the run's weights as they are when the
// request's turn comes.
func (a *Appliance) Snapshot(req SnapshotRequest) (Ticket, error) {
	if req.SamplerSeq < 0 {
		return Ticket{}, Problemf(CodeUser, "sampling_session_seq_id %d is negative", req.SamplerSeq)
	}
	r, err := a.run(req.RunID)
	if err != nil {
		return Ticket{}, err
	}
	r.touch(req.Seq)
	h := hashOf(KindSaveSampler)
	h.text("snapshot")
	h.int(req.SamplerSeq)
	return r.submit(KindSaveSampler, req.Seq, h.sum(), nil, func() (any, error) {
		t, err := r.training()
		if err != nil {
			return nil, err
		}
		id := SamplerID(r.session, req.SamplerSeq)
		if _, err := a.sampler(id); err == nil {
			return nil, Problemf(CodeConflict, "save_weights_for_sampler: sampler number %d of this session exists", req.SamplerSeq).WithHint("use a higher sampling_session_seq_id")
		}
		w, err := t.Snapshot()
		if err != nil {
			return nil, err
		}
		s := a.newSampler(store.Sampler{ID: id, SessionID: r.session, Seq: req.SamplerSeq, BaseModel: r.record().BaseModel,
			RunID: r.name, Ephemeral: true, Created: a.now()})
		s.weights, s.base = w, r.base
		r.base.users++
		a.mu.Lock()
		a.samplers[id] = s
		a.mu.Unlock()
		a.record.sampler(s.rec)
		return &SaveSamplerResult{SamplerID: id}, nil
	})
}

// loaded says whether the weights are in device memory.
func (s *sampler) loaded() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.weights != nil
}

// idle says whether the weights are in device memory and nobody uses them.
func (s *sampler) idle() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.weights != nil && s.busy == 0
}

func (s *sampler) lastUse() time.Time {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.used
}

// take returns the weights for one request, if they are there.
func (s *sampler) take(now time.Time) (*engine.Weights, *Problem) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.ended != nil {
		return nil, s.ended
	}
	if s.weights == nil {
		return nil, nil
	}
	s.busy++
	s.used = now
	return s.weights.Retain(), nil
}

// put gives back what take returned.
func (s *sampler) put(w *engine.Weights) {
	w.Release()
	s.mu.Lock()
	defer s.mu.Unlock()
	s.busy--
}

// releaseWeights frees an idle sampler's device memory, for good if ended says
// why. Owner.
func (a *Appliance) releaseWeights(s *sampler, ended *Problem) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.weights == nil || s.busy > 0 {
		return false
	}
	s.weights.Release()
	s.weights = nil
	s.base.users--
	s.base = nil
	s.ended = ended
	return true
}

// followed says whether the run of an unnamed sampler has made a newer one.
func (a *Appliance) followed(s *sampler) bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	for _, o := range a.samplers {
		if o.rec.RunID == s.rec.RunID && o.rec.Ephemeral && o.rec.Seq > s.rec.Seq {
			return true
		}
	}
	return false
}

// endSampler frees what a finished session's sampler holds. A named one is read
// again if another process still samples from it.
func (a *Appliance) endSampler(s *sampler) {
	var ended *Problem
	if s.rec.Ephemeral {
		ended = endedSampler(s.rec.ID, "its session has ended")
		s.mu.Lock()
		s.ended = ended
		s.mu.Unlock()
	}
	a.releaseLater(s, ended)
}

// forgetUnnamed deletes the records of a session's unnamed samplers.
func (a *Appliance) forgetUnnamed(sessionID string) {
	a.record.flush() // some may still be on their way
	all, err := a.db.SamplersOf(sessionID)
	if err != nil {
		a.log.Error("forget samplers", "session", sessionID, "error", err)
	}
	for _, s := range all {
		if !s.Ephemeral {
			continue
		}
		if err := a.db.DeleteSampler(s.ID); err != nil && !errors.Is(err, store.ErrNotFound) {
			a.log.Error("forget sampler", "sampler", s.ID, "error", err)
		}
	}
}

// releaseLater frees the weights on the owner; requests that use them keep their
// own hold.
func (a *Appliance) releaseLater(s *sampler, ended *Problem) {
	// An engine that is closed has freed everything already.
	_ = a.eng.NewLane().Submit(func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		if s.weights != nil {
			s.weights.Release()
			s.weights = nil
			s.base.users--
			s.base = nil
		}
		s.ended = ended
	})
}

// bringIn reads a sampler's weights to the device. Owner.
func (a *Appliance) bringIn(s *sampler) error {
	s.mu.Lock()
	done := s.weights != nil || s.ended != nil
	s.mu.Unlock()
	if done {
		return nil
	}
	b, err := a.loadedBase(s.rec.BaseModel)
	if err != nil {
		return err
	}
	var w *engine.Weights
	if s.rec.ModelPath == "" {
		w = b.eng.Weights()
	} else if w, err = a.readWeights(b, s); err != nil {
		return err
	}
	b.users++
	s.mu.Lock()
	defer s.mu.Unlock()
	s.weights, s.base = w, b
	return nil
}

// readWeights reads those of a checkpoint. Owner.
func (a *Appliance) readWeights(b *base, s *sampler) (*engine.Weights, error) {
	key, err := parsePath(s.rec.ModelPath)
	if err != nil {
		return nil, err
	}
	cp, err := a.checkpoint(key)
	if err != nil {
		return nil, err
	}
	// A sampler sees what it was made from and nothing newer.
	if cp.Created.After(s.rec.Created) {
		return nil, Problemf(CodeUser, "sampler %s: checkpoint %s was replaced after the sampler was made", s.rec.ID, s.rec.ModelPath).WithHint("make a new sampler")
	}
	o := a.opener(cp)
	defer o.close()
	return b.eng.LoadWeights(trainerConfig(cp.Adapter), o.tensor)
}
