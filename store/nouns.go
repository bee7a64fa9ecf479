package store

import (
	"fmt"
	"io/fs"
	"strings"

	"smolgym/store/blob"

	bolt "go.etcd.io/bbolt"
)

// The tables. The first index of each orders its list.
var (
	modelTable = &table[Model]{
		noun:    string(modelBucket),
		key:     func(m *Model) string { return m.Name },
		check:   (*Model).check,
		indexes: []index[Model]{{name: "model.created", order: func(m *Model) uint64 { return nanos(m.Created) }}},
		refs: func(m *Model) (ids []blob.ID) {
			for _, f := range m.Files {
				ids = append(ids, f.Blob)
			}
			return ids
		},
		attach: attachModel,
	}
	sessionTable = &table[Session]{
		noun:    "session",
		key:     func(s *Session) string { return s.ID },
		check:   func(s *Session) error { return checkID("session", s.ID) },
		indexes: []index[Session]{{name: "session.created", order: func(s *Session) uint64 { return nanos(s.Created) }}},
	}
	runTable = &table[Run]{
		noun:  "run",
		key:   func(r *Run) string { return r.ID },
		check: (*Run).check,
		indexes: []index[Run]{
			{name: "run.created", order: func(r *Run) uint64 { return nanos(r.Created) }},
			{name: "run.session", group: func(r *Run) (string, bool) { return r.SessionID, r.SessionID != "" },
				order: func(r *Run) uint64 { return uint64(max(r.ModelSeq, 0)) }},
		},
		stamp: hiddenStamp,
	}
	checkpointTable = &table[Checkpoint]{
		noun:  "checkpoint",
		key:   func(c *Checkpoint) string { return c.key() },
		check: (*Checkpoint).check,
		indexes: []index[Checkpoint]{
			{name: "checkpoint.created", order: func(c *Checkpoint) uint64 { return nanos(c.Created) }},
			{name: "checkpoint.run", group: func(c *Checkpoint) (string, bool) { return c.RunID, true },
				order: func(c *Checkpoint) uint64 { return nanos(c.Created) }},
		},
		stamp:   expiryStamp,
		body:    checkpointBody,
		setBody: setCheckpointBody,
		refs: func(c *Checkpoint) (ids []blob.ID) {
			for _, t := range c.all() {
				ids = append(ids, t.Blob)
			}
			return ids
		},
		attach: attachCheckpoint,
	}
	samplerTable = &table[Sampler]{
		noun:  "sampler",
		key:   func(s *Sampler) string { return s.ID },
		check: (*Sampler).check,
		indexes: []index[Sampler]{
			{name: "sampler.created", order: func(s *Sampler) uint64 { return nanos(s.Created) }},
			{name: "sampler.session", group: func(s *Sampler) (string, bool) { return s.SessionID, s.SessionID != "" },
				order: func(s *Sampler) uint64 { return nanos(s.Created) }},
		},
	}
	futureTable = &table[Future]{
		noun:  "future",
		key:   func(f *Future) string { return f.ID },
		check: (*Future).check,
		indexes: []index[Future]{
			{name: "future.created", order: func(f *Future) uint64 { return nanos(f.Created) }},
			{name: "future.owner", group: func(f *Future) (string, bool) { return f.Owner(), f.Owner() != "" },
				order: func(f *Future) uint64 { return uint64(max(f.Seq, 0)) }},
		},
		stamp:   func(f *Future) uint64 { return nanos(f.Done) }, // 0 while pending
		body:    futureBody,
		setBody: setFutureBody,
	}
)

var (
	modelBucket = []byte("model")
	aliasBucket = []byte("model.alias") // alias -> name of the model that answers to it
)

// tables is every table, as far as creating and checking need to know it.
func tables() []interface {
	buckets() []string
	audit(tx *bolt.Tx, a *audit) error
} {
	return []interface {
		buckets() []string
		audit(tx *bolt.Tx, a *audit) error
	}{modelTable, sessionTable, runTable, checkpointTable, samplerTable, futureTable, eventTable, meterTable, keyTable}
}

// bucketNames lists the buckets of records.
func bucketNames() []string {
	names := []string{string(aliasBucket)}
	for _, t := range tables() {
		names = append(names, t.buckets()...)
	}
	return names
}

func (m *Model) check() error {
	if err := checkModelName("model", m.Name); err != nil {
		return err
	}
	seen := map[string]bool{}
	for _, f := range m.Files {
		if len(f.Path) > maxName || !fs.ValidPath(f.Path) || f.Path == "." ||
			strings.ContainsFunc(f.Path, isControl) || strings.Contains(f.Path, `\`) {
			return fmt.Errorf("model %s: file %s: %w; use a relative path with slashes, of at most %d bytes, without \"..\"", quote(m.Name), quote(f.Path), ErrInvalid, maxName)
		}
		if seen[f.Path] {
			return fmt.Errorf("model %s: file %s is there twice: %w", quote(m.Name), quote(f.Path), ErrInvalid)
		}
		seen[f.Path] = true
	}
	for _, a := range m.Aliases {
		if err := checkModelName("model "+quote(m.Name)+": alias", a); err != nil {
			return err
		}
		if a == m.Name {
			return fmt.Errorf("model %s: alias equals the name: %w", quote(m.Name), ErrInvalid)
		}
	}
	return nil
}

// attachModel keeps the aliases, and refuses a file that isn't what its blob is.
func attachModel(tx *bolt.Tx, db *DB, old, new *Model) error {
	b := tx.Bucket(aliasBucket)
	if old != nil {
		for _, a := range old.Aliases {
			if err := b.Delete([]byte(a)); err != nil {
				return err
			}
		}
	}
	if new == nil {
		return nil
	}
	if owner := b.Get([]byte(new.Name)); owner != nil {
		return fmt.Errorf("the name is an alias of model %s: %w", quote(string(owner)), ErrExists)
	}
	models := tx.Bucket(modelBucket)
	for _, a := range new.Aliases {
		if owner := b.Get([]byte(a)); owner != nil && string(owner) != new.Name {
			return fmt.Errorf("alias %s belongs to model %s: %w", quote(a), quote(string(owner)), ErrExists)
		}
		if models.Get([]byte(a)) != nil {
			return fmt.Errorf("alias %s is the name of a model: %w", quote(a), ErrExists)
		}
		if err := b.Put([]byte(a), []byte(new.Name)); err != nil {
			return err
		}
	}
	for _, f := range new.Files {
		info, err := db.blobs.StatTx(tx, f.Blob)
		if err != nil {
			return fmt.Errorf("file %s: %w", quote(f.Path), err)
		}
		if info.Size != f.Size || info.Sum != f.SHA256 {
			return fmt.Errorf("file %s: stored are %d bytes with sha256 %s, the record says %d and %s: %w",
				quote(f.Path), info.Size, info.Sum, f.Size, f.SHA256, ErrInvalid)
		}
	}
	return nil
}

func (r *Run) check() error {
	if err := checkID("run", r.ID); err != nil {
		return err
	}
	if strings.Contains(r.ID, "/") {
		return fmt.Errorf("run %s: %w; a slash would break its checkpoints' paths", quote(r.ID), ErrInvalid)
	}
	return checkGroup("run", r.ID, r.SessionID)
}

func (s *Sampler) check() error {
	if err := checkID("sampler", s.ID); err != nil {
		return err
	}
	return checkGroup("sampler", s.ID, s.SessionID)
}

// checkGroup refuses an owner that can't be part of an index key.
func checkGroup(noun, id, owner string) error {
	if owner == "" {
		return nil
	}
	return checkID(noun+" "+quote(id)+": owner", owner)
}

func (k CheckpointKey) key() string { return k.RunID + "\x00" + string(k.Kind) + "\x00" + k.Name }

// all is every tensor.
func (c *Checkpoint) all() []Tensor {
	return append(c.Tensors[:len(c.Tensors):len(c.Tensors)], c.Optimizer...)
}

func (c *Checkpoint) check() error {
	if err := c.CheckpointKey.check(); err != nil {
		return err
	}
	for _, t := range c.all() {
		if t.Offset < 0 || t.Bytes < 0 {
			return fmt.Errorf("checkpoint %s: tensor %s: negative range: %w", c.Path(), quote(t.Name), ErrInvalid)
		}
	}
	return nil
}

// expiryStamp is when the checkpoint expires; 0 means never.
func expiryStamp(c *Checkpoint) uint64 {
	if c.Expires == nil {
		return 0
	}
	return max(nanos(*c.Expires), 1)
}

func checkpointBody(c *Checkpoint) ([]byte, error) {
	if len(c.Tensors) == 0 && len(c.Optimizer) == 0 {
		return nil, nil
	}
	return encode(tensors{c.Tensors, c.Optimizer})
}

func setCheckpointBody(c *Checkpoint, body []byte) error {
	var t tensors
	if err := decode(body, &t); err != nil {
		return err
	}
	c.Tensors, c.Optimizer = t.Tensors, t.Optimizer
	return nil
}

// attachCheckpoint refuses a tensor that reaches beyond its blob.
func attachCheckpoint(tx *bolt.Tx, db *DB, _, new *Checkpoint) error {
	if new == nil {
		return nil
	}
	for _, t := range new.all() {
		info, err := db.blobs.StatTx(tx, t.Blob)
		if err != nil {
			return fmt.Errorf("tensor %s: %w", quote(t.Name), err)
		}
		if t.Bytes > info.Size-t.Offset {
			return fmt.Errorf("tensor %s: bytes %d to %d of a blob of %d: %w", quote(t.Name), t.Offset, t.Offset+t.Bytes, info.Size, ErrInvalid)
		}
	}
	return nil
}

func (f *Future) check() error {
	if err := checkID("future", f.ID); err != nil {
		return err
	}
	switch f.State {
	case FuturePending:
		if !f.Done.IsZero() {
			return fmt.Errorf("future %s: pending with a time of completion: %w", quote(f.ID), ErrInvalid)
		}
	case FutureDone, FutureFailed:
		if nanos(f.Done) == 0 {
			return fmt.Errorf("future %s: %s without a time of completion: %w; set Done", quote(f.ID), f.State, ErrInvalid)
		}
	default:
		return fmt.Errorf("future %s: state %s: %w", quote(f.ID), quote(string(f.State)), ErrInvalid)
	}
	return checkGroup("future", f.ID, f.Owner())
}

func futureBody(f *Future) ([]byte, error) {
	if len(f.Result) == 0 {
		return nil, nil
	}
	return append([]byte{recordVersion}, f.Result...), nil
}

func setFutureBody(f *Future, body []byte) error {
	raw, err := unwrap(body)
	if err != nil {
		return err
	}
	f.Result = append([]byte(nil), raw...)
	return nil
}

// aliasOf resolves an alias, "" if there is none.
func aliasOf(tx *bolt.Tx, name string) string {
	return string(tx.Bucket(aliasBucket).Get([]byte(name)))
}
