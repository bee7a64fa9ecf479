package appliance

import (
	"crypto/hmac"
	"crypto/sha256"
	"errors"
	"time"

	"github.com/google/uuid"

	"smolgym/store"
)

// CopyRequest asks for a copy of a checkpoint in a new run that can't be trained:
// of a new session in a project, or of a session's number.
type CopyRequest struct {
	Path      string
	ProjectID string
	SessionID string
	ModelSeq  int64
	TTL       time.Duration // 0: kept until deleted
	// Key is the same for all repeats of a request for a project; empty: no repeats
	// are recognised.
	Key string
}

// CopyCheckpoint copies a checkpoint's record; the bytes are shared. It gives the
// copy's path.
func (a *Appliance) CopyCheckpoint(req CopyRequest) (string, error) {
	if req.TTL < 0 {
		return "", Problemf(CodeUser, "copy_weights: ttl_seconds is negative")
	}
	key, err := parsePath(req.Path)
	if err != nil {
		return "", err
	}
	cp, err := a.checkpoint(key)
	if err != nil {
		return "", err
	}
	session, n := req.SessionID, req.ModelSeq
	if session == "" {
		session, n, err = a.copySession(req)
	} else {
		err = a.liveSession(session)
	}
	if err != nil {
		return "", err
	}
	now := a.now()
	run := store.Run{ID: RunID(session, n), SessionID: session, ModelSeq: n, BaseModel: cp.BaseModel, Adapter: cp.Adapter,
		Created: now, LastRequest: now, UserMetadata: cp.UserMetadata, FromPath: req.Path, Numerics: cp.Numerics}
	switch old, err := a.db.Run(run.ID); {
	case err == nil && old.FromPath != req.Path:
		return "", Problemf(CodeConflict, "copy_weights: run %s exists", run.ID).WithHint("use a higher model_seq_id")
	case err != nil && !errors.Is(err, store.ErrNotFound):
		return "", problemOf("copy checkpoint "+req.Path, err)
	case err != nil:
		if err := a.db.AddRun(run); err != nil {
			return "", problemOf("copy checkpoint "+req.Path, err)
		}
	}
	cp.RunID, cp.Created, cp.Public, cp.Expires = run.ID, now, false, nil
	if req.TTL > 0 {
		at := now.Add(req.TTL)
		cp.Expires = &at
	}
	if err := a.db.AddCheckpoint(cp); errors.Is(err, store.ErrExists) {
		return cp.Path(), nil // a repeat
	} else if err != nil {
		return "", problemOf("copy checkpoint "+req.Path, err)
	}
	a.note("checkpoint_copy", map[string]string{"tinker_path": cp.Path(), "source_path": req.Path})
	return cp.Path(), nil
}

// copySession makes the finished session that a copy in a project belongs to, or
// finds that of an earlier try.
func (a *Appliance) copySession(req CopyRequest) (string, int64, error) {
	id := uuid.NewString()
	if req.Key != "" {
		id = uuid.NewSHA1(uuid.NameSpaceOID, []byte("copy_weights "+req.Key)).String()
	}
	now := a.now()
	err := a.db.AddSession(store.Session{ID: id, Created: now, LastSeen: now, ProjectID: req.ProjectID, DisplayName: "copy of " + req.Path,
		Finished: &store.Finish{Reason: "success", Detail: "copy_weights", Time: now}})
	if err != nil && !errors.Is(err, store.ErrExists) {
		return "", 0, problemOf("copy checkpoint "+req.Path, err)
	}
	return id, 0, nil
}

// SigningKey is a key for one purpose. It outlives restarts.
func (a *Appliance) SigningKey(purpose string) ([]byte, error) {
	secret, err := a.db.Secret()
	if err != nil {
		return nil, problemOf("sign", err)
	}
	m := hmac.New(sha256.New, secret)
	m.Write([]byte(purpose))
	return m.Sum(nil), nil
}
