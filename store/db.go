package store

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	bolt "go.etcd.io/bbolt"
)

// PutModel stores or replaces a model and the references to its files.
func (db *DB) PutModel(m Model) error { return putRow(db, modelTable, &m, false) }

// AddModel is PutModel, but ErrExists if the name is taken.
func (db *DB) AddModel(m Model) error { return putRow(db, modelTable, &m, true) }

// Model returns the model of that name or alias.
func (db *DB) Model(name string) (m Model, err error) {
	err = db.view(func(tx *bolt.Tx) error {
		p, err := modelTable.get(tx, name, true)
		if errors.Is(err, ErrNotFound) {
			if real := aliasOf(tx, name); real != "" {
				p, err = modelTable.get(tx, real, true)
			}
		}
		if err != nil {
			return err
		}
		m = *p
		return nil
	})
	return m, err
}

// Models lists all models, newest first.
func (db *DB) Models() ([]Model, error) {
	ms, _, err := listRows(db, modelTable, 0, "", Page{}, nil)
	return ms, err
}

// UpdateModel edits a model by its name; see UpdateRun.
func (db *DB) UpdateModel(name string, change func(*Model) error) error {
	return updateRow(db, modelTable, name, change)
}

// DeleteModel removes a model by its name; its bytes go with the next collection.
func (db *DB) DeleteModel(name string) error { return deleteRows(db, modelTable, name) }

// PutSession stores or replaces a session.
func (db *DB) PutSession(s Session) error { return putRow(db, sessionTable, &s, false) }

// AddSession is PutSession, but ErrExists if the id is taken.
func (db *DB) AddSession(s Session) error { return putRow(db, sessionTable, &s, true) }

// Session returns a session.
func (db *DB) Session(id string) (Session, error) { return getRow(db, sessionTable, id) }

// Sessions lists sessions, newest first, and counts them.
func (db *DB) Sessions(page Page) ([]Session, int, error) {
	return listRows(db, sessionTable, 0, "", page, nil)
}

// UpdateSession edits a session; see UpdateRun.
func (db *DB) UpdateSession(id string, change func(*Session) error) error {
	return updateRow(db, sessionTable, id, change)
}

// TouchSessions records in one transaction when each session was last heard of.
// Sessions that aren't there are passed over; time never goes back.
func (db *DB) TouchSessions(seen map[string]time.Time) error {
	err := db.update(func(tx *bolt.Tx) error {
		for id, t := range seen {
			s, err := sessionTable.get(tx, id, true)
			if errors.Is(err, ErrNotFound) || err == nil && !t.After(s.LastSeen) {
				continue
			}
			if err != nil {
				return err
			}
			old := *s
			s.LastSeen = t
			r, err := sessionTable.prepare(s)
			if err == nil {
				err = sessionTable.replace(tx, db, &old, r)
			}
			if err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		return fmt.Errorf("touch %d sessions: %w", len(seen), err)
	}
	return nil
}

// DeleteSession removes a session; its runs and samplers stay.
func (db *DB) DeleteSession(id string) error { return deleteRows(db, sessionTable, id) }

// PutRun stores or replaces a run.
func (db *DB) PutRun(r Run) error { return putRow(db, runTable, &r, false) }

// AddRun is PutRun, but ErrExists if the id is taken.
func (db *DB) AddRun(r Run) error { return putRow(db, runTable, &r, true) }

// Run returns a run.
func (db *DB) Run(id string) (Run, error) { return getRow(db, runTable, id) }

// Runs lists runs that aren't passing, newest first, and counts them.
func (db *DB) Runs(page Page) ([]Run, int, error) { return listRows(db, runTable, 0, "", page, shown) }

// RunsOf lists a session's runs that aren't passing, latest first.
func (db *DB) RunsOf(sessionID string) ([]Run, error) {
	rs, _, err := listRows(db, runTable, 1, sessionID, Page{}, shown)
	return rs, err
}

// UpdateRun edits a run within a transaction: change must be quick, must not call
// the store and may not rename. If it fails, nothing changes.
func (db *DB) UpdateRun(id string, change func(*Run) error) error {
	return updateRow(db, runTable, id, change)
}

// DeleteRun removes a run; its checkpoints stay.
func (db *DB) DeleteRun(id string) error { return deleteRows(db, runTable, id) }

// PutCheckpoint stores or replaces a checkpoint and the references to its tensors.
func (db *DB) PutCheckpoint(c Checkpoint) error { return putRow(db, checkpointTable, &c, false) }

// AddCheckpoint is PutCheckpoint, but ErrExists if the name is taken and not expired.
func (db *DB) AddCheckpoint(c Checkpoint) error { return putRow(db, checkpointTable, &c, true) }

// Checkpoint returns a checkpoint with its tensors.
func (db *DB) Checkpoint(k CheckpointKey) (Checkpoint, error) {
	return getRow(db, checkpointTable, k.key())
}

// Checkpoints lists the checkpoints of all runs, newest first, without tensors,
// and counts them. Expired ones don't appear.
func (db *DB) Checkpoints(page Page) ([]Checkpoint, int, error) {
	return listRows(db, checkpointTable, 0, "", page, db.live)
}

// CheckpointsOf lists the checkpoints of one run, newest first, without tensors,
// and counts them.
func (db *DB) CheckpointsOf(runID string, page Page) ([]Checkpoint, int, error) {
	return listRows(db, checkpointTable, 1, runID, page, db.live)
}

// LatestCheckpoint returns the newest checkpoint of a kind of one run, without tensors.
func (db *DB) LatestCheckpoint(runID string, kind Kind) (Checkpoint, error) {
	infix := "\x00" + string(kind) + "\x00"
	cs, _, err := listRows(db, checkpointTable, 1, runID, Page{Limit: 1}, func(stamp uint64, key string) bool {
		return db.live(stamp, key) && strings.Contains(key, infix)
	})
	if err != nil {
		return Checkpoint{}, err
	}
	if len(cs) == 0 {
		return Checkpoint{}, fmt.Errorf("%s checkpoint of run %s: %w", kind, quote(runID), ErrNotFound)
	}
	return cs[0], nil
}

// live chooses checkpoints that haven't expired.
func (db *DB) live(expires uint64, _ string) bool { return expires == 0 || expires > nanos(db.now()) }

// UpdateCheckpoint edits a checkpoint; see UpdateRun.
func (db *DB) UpdateCheckpoint(k CheckpointKey, change func(*Checkpoint) error) error {
	return updateRow(db, checkpointTable, k.key(), change)
}

// DeleteCheckpoint removes a checkpoint; its bytes go with the next collection.
func (db *DB) DeleteCheckpoint(k CheckpointKey) error {
	return deleteRows(db, checkpointTable, k.key())
}

// sweepRows bounds one sweeping transaction.
const sweepRows = 64

// SweepExpired deletes the checkpoints that have expired by now and returns how many.
func (db *DB) SweepExpired(ctx context.Context, now time.Time) (int, error) {
	return sweep(ctx, db, checkpointTable, func(stamp uint64, _ string) bool {
		return stamp != 0 && stamp <= nanos(now)
	})
}

// sweep deletes the records that keep chooses, some in each transaction.
func sweep[T any](ctx context.Context, db *DB, t *table[T], keep keep) (n int, err error) {
	for {
		if err := ctx.Err(); err != nil {
			return n, fmt.Errorf("sweep %ss: %w", t.noun, err)
		}
		var keys []string
		look := func(tx *bolt.Tx) error {
			keys, _, err = t.indexes[0].keys(tx, "", Page{Limit: sweepRows}, true, keep)
			return err
		}
		if err := db.view(look); err != nil {
			return n, fmt.Errorf("sweep %ss: %w", t.noun, err)
		}
		if len(keys) == 0 {
			return n, nil
		}
		err := db.update(func(tx *bolt.Tx) error {
			if err := look(tx); err != nil { // again: a record may have changed in between
				return err
			}
			for _, key := range keys {
				old, err := t.get(tx, key, true)
				if err == nil {
					err = t.remove(tx, db, old)
				}
				if err != nil {
					return err
				}
			}
			return nil
		})
		if err != nil {
			return n, fmt.Errorf("sweep %ss: %w", t.noun, err)
		}
		n += len(keys)
	}
}

// PutSampler stores or replaces a sampler.
func (db *DB) PutSampler(s Sampler) error { return putRow(db, samplerTable, &s, false) }

// AddSampler is PutSampler, but ErrExists if the id is taken.
func (db *DB) AddSampler(s Sampler) error { return putRow(db, samplerTable, &s, true) }

// Sampler returns a sampler.
func (db *DB) Sampler(id string) (Sampler, error) { return getRow(db, samplerTable, id) }

// Samplers lists samplers, newest first, and counts them.
func (db *DB) Samplers(page Page) ([]Sampler, int, error) {
	return listRows(db, samplerTable, 0, "", page, nil)
}

// SamplersOf lists a session's samplers, newest first.
func (db *DB) SamplersOf(sessionID string) ([]Sampler, error) {
	ss, _, err := listRows(db, samplerTable, 1, sessionID, Page{}, nil)
	return ss, err
}

// UpdateSampler edits a sampler; see UpdateRun.
func (db *DB) UpdateSampler(id string, change func(*Sampler) error) error {
	return updateRow(db, samplerTable, id, change)
}

// DeleteSampler removes a sampler.
func (db *DB) DeleteSampler(id string) error { return deleteRows(db, samplerTable, id) }

// PutFuture stores or replaces one future; for many, PutFutures syncs once.
func (db *DB) PutFuture(f Future) error { return putRow(db, futureTable, &f, false) }

// PutFutures stores or replaces futures in one transaction: all or none.
func (db *DB) PutFutures(fs []Future) error {
	rows := make([]row[Future], len(fs))
	for i := range fs {
		r, err := futureTable.prepare(&fs[i])
		if err != nil {
			return fmt.Errorf("put %d futures: %w", len(fs), err)
		}
		rows[i] = r
	}
	err := db.update(func(tx *bolt.Tx) error {
		for _, r := range rows {
			old, err := futureTable.get(tx, r.key, false)
			if err != nil && !errors.Is(err, ErrNotFound) {
				return err
			}
			if err := futureTable.replace(tx, db, old, r); err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		return fmt.Errorf("put %d futures: %w", len(fs), err)
	}
	return nil
}

// Future returns a future with its result.
func (db *DB) Future(id string) (Future, error) { return getRow(db, futureTable, id) }

// FuturesOf lists the futures of a run or sampler by rising sequence number,
// without results.
func (db *DB) FuturesOf(owner string) (fs []Future, err error) {
	err = db.view(func(tx *bolt.Tx) error {
		fs, _, err = futureTable.list(tx, &futureTable.indexes[1], owner, Page{}, true, nil)
		return err
	})
	return fs, err
}

// PendingFutures lists the futures without an answer, oldest first.
func (db *DB) PendingFutures() (fs []Future, err error) {
	err = db.view(func(tx *bolt.Tx) error {
		fs, _, err = futureTable.list(tx, &futureTable.indexes[0], "", Page{}, true,
			func(done uint64, _ string) bool { return done == 0 })
		return err
	})
	return fs, err
}

// UpdateFuture edits a future; see UpdateRun.
func (db *DB) UpdateFuture(id string, change func(*Future) error) error {
	return updateRow(db, futureTable, id, change)
}

// DeleteFutures removes futures in one transaction: all or none.
func (db *DB) DeleteFutures(ids ...string) error { return deleteRows(db, futureTable, ids...) }

// SweepFutures deletes the futures that were answered before the given time and
// returns how many.
func (db *DB) SweepFutures(ctx context.Context, before time.Time) (int, error) {
	return sweep(ctx, db, futureTable, func(done uint64, _ string) bool {
		return done != 0 && done < nanos(before)
	})
}
