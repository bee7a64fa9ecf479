package appliance

import (
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/google/uuid"

	"smolgym/store"
)

// session is a client that may still be there.
type session struct {
	id string

	mu       sync.Mutex // guards what follows
	lastSeen time.Time
}

// SessionRequest is what a client says about itself.
type SessionRequest struct {
	Tags         []string
	UserMetadata map[string]string
	ProjectID    string
	DisplayName  string
	SDKVersion   string
}

// CreateSession begins a session.
func (a *Appliance) CreateSession(req SessionRequest) (string, error) {
	now := a.now()
	rec := store.Session{ID: uuid.NewString(), Created: now, LastSeen: now, Tags: req.Tags, UserMetadata: req.UserMetadata,
		ProjectID: req.ProjectID, DisplayName: req.DisplayName, SDKVersion: req.SDKVersion}
	if err := a.db.AddSession(rec); err != nil {
		return "", problemOf("create session", err)
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	a.sessions[rec.ID] = &session{id: rec.ID, lastSeen: now}
	return rec.ID, nil
}

// loadSessions takes up the sessions that a restart interrupted: their clients
// have the full idle time to come back.
func (a *Appliance) loadSessions() error {
	all, _, err := a.db.Sessions(store.Page{})
	if err != nil {
		return fmt.Errorf("list sessions: %w", err)
	}
	for _, s := range all {
		if s.Finished == nil {
			a.sessions[s.ID] = &session{id: s.ID, lastSeen: a.now()}
		}
	}
	return nil
}

// Heartbeat keeps a session alive. A finished or unknown one is gone: the client
// stops its loop.
func (a *Appliance) Heartbeat(id string) error {
	if a.touchSession(id) {
		return nil
	}
	return Problemf(CodeGone, "session %q has ended or never was", clip(id)).WithHint("make a new ServiceClient")
}

// touchSession notes a sign of life.
func (a *Appliance) touchSession(id string) bool {
	a.mu.Lock()
	s := a.sessions[id]
	a.mu.Unlock()
	if s == nil {
		return false
	}
	now := a.now()
	s.mu.Lock()
	s.lastSeen = now
	s.mu.Unlock()
	a.record.session(id, now)
	return true
}

// liveSession is an error unless the session is there.
func (a *Appliance) liveSession(id string) error {
	if a.touchSession(id) {
		return nil
	}
	return Problemf(CodeNotFound, "session %q is not there: it never was, was finished, or was silent for %v", clip(id), a.opt.SessionIdle).
		WithHint("make a new ServiceClient")
}

// FinishSession ends a session for a reason; the first one wins. Its runs are
// unloaded once what they were asked is done.
func (a *Appliance) FinishSession(id, reason, detail string) error {
	switch reason {
	case "success", "errored", "interrupted":
	default:
		return Problemf(CodeUser, "finish session: reason %q is unknown", clip(reason)).WithHint("use success, errored or interrupted")
	}
	err := a.db.UpdateSession(id, func(s *store.Session) error {
		if s.Finished == nil {
			s.Finished = &store.Finish{Reason: reason, Detail: detail, Time: a.now()}
		}
		return nil
	})
	if errors.Is(err, store.ErrNotFound) {
		return Problemf(CodeNotFound, "finish session: no session %q", clip(id))
	}
	if err != nil {
		return problemOf("finish session", err)
	}
	a.endSession(id, "its session was finished")
	return nil
}

// endSession unloads what belongs to a session.
func (a *Appliance) endSession(id, why string) {
	a.mu.Lock()
	delete(a.sessions, id)
	var runs []*run
	var samplers []*sampler
	for _, r := range a.runs {
		if r.session == id {
			runs = append(runs, r)
		}
	}
	for _, s := range a.samplers {
		if s.rec.SessionID == id {
			samplers = append(samplers, s)
		}
	}
	a.mu.Unlock()
	for _, r := range runs {
		r.unload(why, func() {})
	}
	for _, s := range samplers {
		a.endSampler(s)
	}
	a.forgetUnnamed(id)
	a.forgetLosses(id)
}

// sweepSessions ends the sessions that were silent too long. One with unfinished
// requests isn't silent: someone waits for them.
func (a *Appliance) sweepSessions(now time.Time) {
	var silent []string
	busy := map[string]bool{}
	a.mu.Lock()
	for _, r := range a.runs {
		if !r.idle() {
			busy[r.session] = true
		}
	}
	for id, s := range a.sessions {
		s.mu.Lock()
		if now.Sub(s.lastSeen) > a.opt.SessionIdle && !busy[id] {
			silent = append(silent, id)
		}
		s.mu.Unlock()
	}
	a.mu.Unlock()
	for _, id := range silent {
		a.log.Info("session abandoned", "session", id, "silent_for", a.opt.SessionIdle)
		if err := a.FinishSession(id, "interrupted", fmt.Sprintf("no sign of life for %v", a.opt.SessionIdle)); err != nil {
			a.log.Error("end abandoned session", "session", id, "error", err)
			a.endSession(id, "its session was abandoned")
		}
	}
}
