package appliance

import (
	"errors"
	"time"

	"smolgym/store"
)

// Page is the part of a list that is asked for; Limit 0 is all.
type Page struct{ Limit, Offset int }

func (p Page) store() store.Page { return store.Page{Limit: p.Limit, Offset: p.Offset} }

// RunView is a run with its latest checkpoints.
type RunView struct {
	store.Run
	Live        bool
	LastWeights *store.Checkpoint
	LastSampler *store.Checkpoint
}

// Runs lists training runs, newest first, and counts them all.
func (a *Appliance) Runs(p Page) ([]RunView, int, error) {
	recs, total, err := a.db.Runs(p.store())
	if err != nil {
		return nil, 0, problemOf("list runs", err)
	}
	views := make([]RunView, len(recs))
	for i, rec := range recs {
		if views[i], err = a.view(rec); err != nil {
			return nil, 0, err
		}
	}
	return views, total, nil
}

// Run describes one run.
func (a *Appliance) Run(id string) (RunView, error) {
	rec, err := a.db.Run(id)
	if errors.Is(err, store.ErrNotFound) || errors.Is(err, store.ErrInvalid) {
		return RunView{}, Problemf(CodeNotFound, "no training run %q", clip(id))
	}
	if err != nil {
		return RunView{}, problemOf("find run", err)
	}
	return a.view(rec)
}

func (a *Appliance) view(rec store.Run) (RunView, error) {
	v := RunView{Run: rec}
	a.mu.Lock()
	r := a.runs[rec.ID]
	a.mu.Unlock()
	if r != nil {
		now := r.record()
		v.LastRequest, v.LastSeq, v.Live = now.LastRequest, now.LastSeq, r.live()
	}
	for _, last := range []struct {
		kind store.Kind
		dst  **store.Checkpoint
	}{{store.KindWeights, &v.LastWeights}, {store.KindSampler, &v.LastSampler}} {
		cp, err := a.db.LatestCheckpoint(rec.ID, last.kind)
		switch {
		case err == nil:
			*last.dst = &cp
		case !errors.Is(err, store.ErrNotFound):
			return v, problemOf("find run", err)
		}
	}
	return v, nil
}

// Checkpoints lists all checkpoints, newest first, and counts them.
func (a *Appliance) Checkpoints(p Page) ([]store.Checkpoint, int, error) {
	list, total, err := a.db.Checkpoints(p.store())
	if err != nil {
		return nil, 0, problemOf("list checkpoints", err)
	}
	return list, total, nil
}

// CheckpointsOf lists the checkpoints of one run, newest first.
func (a *Appliance) CheckpointsOf(runID string, p Page) ([]store.Checkpoint, int, error) {
	list, total, err := a.db.CheckpointsOf(runID, p.store())
	if err != nil {
		return nil, 0, problemOf("list checkpoints", err)
	}
	if total == 0 {
		if _, err := a.Run(runID); err != nil {
			return nil, 0, err
		}
	}
	return list, total, nil
}

// Checkpoint describes the checkpoint at a path.
func (a *Appliance) Checkpoint(path string) (store.Checkpoint, error) {
	key, err := parsePath(path)
	if err != nil {
		return store.Checkpoint{}, err
	}
	return a.checkpoint(key)
}

// DeleteCheckpoint removes a checkpoint. Doing it again is fine: a client repeats
// what it got no answer to.
func (a *Appliance) DeleteCheckpoint(path string) error {
	key, err := parsePath(path)
	if err != nil {
		return err
	}
	err = a.db.DeleteCheckpoint(key)
	if errors.Is(err, store.ErrNotFound) {
		if _, err := a.db.Run(key.RunID); err == nil {
			return nil
		}
		return Problemf(CodeNotFound, "no checkpoint %s", key.Path())
	}
	if err != nil {
		return problemOf("delete checkpoint", err)
	}
	a.garbage.Store(true)
	a.note("checkpoint_delete", map[string]string{"tinker_path": key.Path()})
	return nil
}

// PublishCheckpoint sets the flag that lists show.
func (a *Appliance) PublishCheckpoint(path string, public bool) error {
	event := "checkpoint_unpublish"
	if public {
		event = "checkpoint_publish"
	}
	return a.editCheckpoint(event, path, func(c *store.Checkpoint) { c.Public = public })
}

// SetTTL makes a checkpoint expire after a time from now; 0 keeps it.
func (a *Appliance) SetTTL(path string, ttl time.Duration) error {
	if ttl < 0 {
		return Problemf(CodeUser, "ttl_seconds is negative")
	}
	return a.editCheckpoint("checkpoint_set_ttl", path, func(c *store.Checkpoint) {
		c.Expires = nil
		if ttl > 0 {
			at := a.now().Add(ttl)
			c.Expires = &at
		}
	})
}

func (a *Appliance) editCheckpoint(event, path string, change func(*store.Checkpoint)) error {
	key, err := parsePath(path)
	if err != nil {
		return err
	}
	err = a.db.UpdateCheckpoint(key, func(c *store.Checkpoint) error {
		change(c)
		return nil
	})
	if errors.Is(err, store.ErrNotFound) {
		return Problemf(CodeNotFound, "no checkpoint %s", key.Path()).WithHint("it was never saved, was deleted, or has expired")
	}
	if err != nil {
		return problemOf("change checkpoint", err)
	}
	a.note(event, map[string]string{"tinker_path": key.Path()})
	return nil
}

// Sessions lists session ids, newest first.
func (a *Appliance) Sessions(p Page) ([]store.Session, int, error) {
	list, total, err := a.db.Sessions(p.store())
	if err != nil {
		return nil, 0, problemOf("list sessions", err)
	}
	return list, total, nil
}

// SessionView is a session with what belongs to it.
type SessionView struct {
	store.Session
	Runs     []string
	Samplers []string
}

// Session describes a session.
func (a *Appliance) Session(id string) (SessionView, error) {
	rec, err := a.db.Session(id)
	if errors.Is(err, store.ErrNotFound) || errors.Is(err, store.ErrInvalid) {
		return SessionView{}, Problemf(CodeNotFound, "no session %q", clip(id))
	}
	if err != nil {
		return SessionView{}, problemOf("find session", err)
	}
	a.record.flush() // samplers may be on their way to the store
	v := SessionView{Session: rec}
	runs, err := a.db.RunsOf(id)
	if err != nil {
		return v, problemOf("find session", err)
	}
	for _, r := range runs {
		v.Runs = append(v.Runs, r.ID)
	}
	samplers, err := a.db.SamplersOf(id)
	if err != nil {
		return v, problemOf("find session", err)
	}
	for _, s := range samplers {
		v.Samplers = append(v.Samplers, s.ID)
	}
	return v, nil
}

// AssignProject stores a session's project.
func (a *Appliance) AssignProject(id, project string) error {
	err := a.db.UpdateSession(id, func(s *store.Session) error {
		s.ProjectID = project
		return nil
	})
	if errors.Is(err, store.ErrNotFound) || errors.Is(err, store.ErrInvalid) {
		return Problemf(CodeNotFound, "no session %q", clip(id))
	}
	if err != nil {
		return problemOf("assign project", err)
	}
	a.note("project_assign_session", map[string]string{"session_id": id, "project_id": project})
	return nil
}
