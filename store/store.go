package store

import (
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"runtime/debug"
	"time"

	"smolgym/store/blob"

	bolt "go.etcd.io/bbolt"
	berrors "go.etcd.io/bbolt/errors"
)

// Errors of this package; those of blobs are in package blob.
var (
	// ErrNotFound is returned when no record has the name, or it has expired.
	ErrNotFound = errors.New("not found")
	// ErrExists is returned when a name is taken.
	ErrExists = errors.New("already exists")
	// ErrInvalid is returned when a record may not be stored as it is.
	ErrInvalid = errors.New("invalid record")
	// ErrLocked is returned when another process has the file open.
	ErrLocked = errors.New("store is in use")
	// ErrNewer is returned when a newer program wrote the file or record.
	ErrNewer = errors.New("store is of a newer version")
	// ErrDamaged is returned when the file can't be what was written.
	ErrDamaged = errors.New("store is damaged")
)

// Schema is the version of the file's layout that this program writes.
const Schema = 1

const (
	// pageSize trades the weight of a small commit against the number of pages of
	// a large file: the free list is written with each commit.
	pageSize = 16 << 10
	// mapSize is virtual memory only. Growth beyond it waits for open readers.
	mapSize = 1 << 30
	// growBytes is the least step in which the file grows; a large file grows by a
	// quarter, up to growMost: each step costs a sync. What isn't used yet is a hole.
	growBytes = 4 << 20
	growMost  = 128 << 20
	// lockWait is how long Open tries for a file that another process may be closing.
	lockWait = 500 * time.Millisecond
)

var (
	metaBucket = []byte("meta")
	schemaKey  = []byte("schema")
)

// Options are the settings of a DB; the zero value is right for production.
type Options struct {
	Now  func() time.Time // time.Now if nil
	Blob blob.Options     // Now is taken from here

	maxSize int // bytes of the file, as if the disk were that small; for tests
}

// DB is an open store. It is safe for concurrent use.
type DB struct {
	path  string
	now   func() time.Time
	bolt  *bolt.DB
	blobs *blob.Store
}

// Open opens or creates the store at path and takes it exclusively. Beside it, a
// file named lock says which process has it.
func Open(path string, opt Options) (*DB, error) {
	if opt.Now == nil {
		opt.Now = time.Now
	}
	opt.Blob.Now = opt.Now
	db := &DB{path: path, now: opt.Now}
	if err := db.open(opt); err != nil {
		return nil, fmt.Errorf("open store %s: %w", path, err)
	}
	return db, nil
}

func (db *DB) open(opt Options) error {
	_, statErr := os.Stat(db.path)
	err := guard(func() (err error) {
		db.bolt, err = bolt.Open(db.path, 0o600, &bolt.Options{
			Timeout:         lockWait,
			PageSize:        pageSize,
			InitialMmapSize: mapSize,
			FreelistType:    bolt.FreelistMapType,
			MaxSize:         opt.maxSize,
		})
		return err
	})
	switch {
	case errors.Is(err, berrors.ErrTimeout):
		return fmt.Errorf("%w by %s; stop it or use another data folder", ErrLocked, lockHolder(db.path))
	case errors.Is(err, berrors.ErrInvalid), errors.Is(err, berrors.ErrChecksum), errors.Is(err, berrors.ErrVersionMismatch),
		errors.Is(err, berrors.ErrInvalidMapping):
		return damaged(err)
	case err != nil:
		return err
	}
	err = db.prepare(opt)
	if err == nil && errors.Is(statErr, os.ErrNotExist) {
		err = syncDir(filepath.Dir(db.path))
	}
	if err == nil {
		err = writeLock(db.path, opt.Now())
	}
	if errors.Is(err, ErrDamaged) {
		db.abandon()
		return err
	}
	if err != nil {
		return errors.Join(err, guard(db.bolt.Close))
	}
	return nil
}

// abandon closes a damaged file if that can be done: a panic within bbolt may have
// left a lock taken that closing waits for.
func (db *DB) abandon() {
	done := make(chan struct{})
	go func() {
		defer close(done)
		_ = guard(db.bolt.Close)
	}()
	select {
	case <-done:
	case <-time.After(lockWait):
	}
}

// prepare looks before it writes: a file of a newer program, of another program or
// a damaged one is left as it is.
func (db *DB) prepare(opt Options) error {
	schema, err := db.inspect()
	if err != nil {
		return err
	}
	if schema == 0 {
		err = db.create()
	} else {
		err = db.addBuckets()
	}
	if err != nil {
		return err
	}
	db.blobs, err = blob.Open(guarded{db.bolt}, opt.Blob)
	return err
}

// inspect returns the file's schema, 0 if the file is empty, after a look at every
// page header and the small buckets: damage there should stop the start, not a
// later request.
func (db *DB) inspect() (schema uint32, err error) {
	info, err := os.Stat(db.path)
	if err != nil {
		return 0, err
	}
	err = db.view(func(tx *bolt.Tx) error {
		if tx.Size() > info.Size() {
			return damaged(fmt.Errorf("file has %d bytes, its header says %d", info.Size(), tx.Size()))
		}
		b := tx.Bucket(metaBucket)
		if b == nil {
			if k, _ := tx.Cursor().First(); k != nil {
				return fmt.Errorf("%w: the file is a bbolt database of another program; choose another path", ErrInvalid)
			}
			return nil
		}
		v := b.Get(schemaKey)
		if len(v) != 4 {
			return damaged(errors.New("no schema version in it"))
		}
		schema = binary.BigEndian.Uint32(v)
		if schema > Schema {
			return fmt.Errorf("%w: it has schema %d, this program knows up to %d; use a newer smolgym (the file was not changed)", ErrNewer, schema, Schema)
		}
		if schema == 0 {
			return damaged(errors.New("schema version 0"))
		}
		return nil
	})
	if err != nil || schema == 0 {
		return schema, err
	}
	return schema, db.lookOnly(func(tx *bolt.Tx) error {
		if err := tile(tx, db.path); err != nil {
			return err
		}
		return walk(tx, blob.ChunkBucket)
	})
}

// lookOnly runs fn in a transaction that excludes writers, since fn reads the free
// list, and that changes nothing.
func (db *DB) lookOnly(fn func(*bolt.Tx) error) error {
	undo := errors.New("undo")
	err := db.update(func(tx *bolt.Tx) error {
		if err := fn(tx); err != nil {
			return err
		}
		return undo
	})
	if err == undo {
		return nil
	}
	return err
}

func (db *DB) create() error {
	return db.update(func(tx *bolt.Tx) error {
		b, err := tx.CreateBucketIfNotExists(metaBucket)
		if err != nil {
			return err
		}
		for _, name := range bucketNames() {
			if _, err := tx.CreateBucketIfNotExists([]byte(name)); err != nil {
				return err
			}
		}
		return b.Put(schemaKey, binary.BigEndian.AppendUint32(nil, Schema))
	})
}

// walk visits every key of every bucket but one, so that a broken page shows.
func walk(tx *bolt.Tx, except string) error {
	touched := 0
	defer runtime.KeepAlive(&touched)
	return tx.ForEach(func(name []byte, b *bolt.Bucket) error {
		if string(name) == except {
			return nil
		}
		var last []byte
		return b.ForEach(func(k, v []byte) error {
			if v == nil || len(k) == 0 || len(k) > bolt.MaxKeySize || last != nil && string(last) >= string(k) {
				return damaged(fmt.Errorf("bucket %q: bad key", name))
			}
			touched += int(k[0]) + int(k[len(k)-1]) // faults if they aren't in the file
			if len(v) > 0 {
				touched += int(v[len(v)-1])
			}
			last = k
			return nil
		})
	})
}

// Close gives the file up. Readers and writers of blobs must be done.
func (db *DB) Close() error {
	removeLock(db.path)
	if err := guard(db.bolt.Close); err != nil {
		return fmt.Errorf("close store %s: %w", db.path, err)
	}
	return nil
}

// Path is where the store is.
func (db *DB) Path() string { return db.path }

// Blobs is the store's bytes.
func (db *DB) Blobs() *blob.Store { return db.blobs }

func (db *DB) view(fn func(*bolt.Tx) error) error   { return guarded{db.bolt}.View(fn) }
func (db *DB) update(fn func(*bolt.Tx) error) error { return guarded{db.bolt}.Update(fn) }

// guarded runs transactions so that a damaged file yields an error: bbolt panics
// on pages that contradict themselves, and reading beyond the end of the mapped
// file faults.
type guarded struct{ bolt *bolt.DB }

func (g guarded) View(fn func(*bolt.Tx) error) error {
	return guard(func() error { return g.bolt.View(fn) })
}

func (g guarded) Update(fn func(*bolt.Tx) error) error {
	return guard(func() error {
		return g.bolt.Update(func(tx *bolt.Tx) error {
			g.bolt.AllocSize = int(min(max(tx.Size()/4, growBytes), growMost)) // only writers read it, and this is the one
			return fn(tx)
		})
	})
}

func guard(fn func() error) (err error) {
	defer debug.SetPanicOnFault(debug.SetPanicOnFault(true))
	defer func() {
		switch r := recover().(type) {
		case nil:
		case callerPanic:
			panic(r.value)
		default:
			err = damaged(fmt.Errorf("%v", r))
		}
	}()
	return fn()
}

// callerPanic carries a panic of a caller's function through guard.
type callerPanic struct{ value any }

// callerFunc runs a function that isn't ours within a transaction.
func callerFunc[T any](fn func(*T) error, v *T) error {
	defer func() {
		if r := recover(); r != nil {
			panic(callerPanic{r})
		}
	}()
	return fn(v)
}

func damaged(cause error) error {
	return fmt.Errorf("%w: %w; keep a copy of the file, then run \"smolgym check\" or restore a backup with \"smolgym backup restore\"", ErrDamaged, cause)
}

// holder is the content of the lock file.
type holder struct {
	PID     int       `json:"pid"`
	Started time.Time `json:"started"`
}

func lockPath(path string) string { return filepath.Join(filepath.Dir(path), "lock") }

// writeLock says who has the store. The exclusion itself is bbolt's file lock,
// which ends with the process; this file may outlive it.
func writeLock(path string, now time.Time) error {
	b, err := json.Marshal(holder{PID: os.Getpid(), Started: now.UTC()})
	if err != nil {
		return err
	}
	tmp := lockPath(path) + ".new"
	if err := os.WriteFile(tmp, append(b, '\n'), 0o600); err != nil {
		return err
	}
	return os.Rename(tmp, lockPath(path))
}

// removeLock is best effort: a stale file misleads nobody while bbolt's lock is free.
func removeLock(path string) { _ = os.Remove(lockPath(path)) }

func lockHolder(path string) string {
	var h holder
	b, err := os.ReadFile(lockPath(path))
	if err != nil || json.Unmarshal(b, &h) != nil || h.PID == 0 {
		return "another process"
	}
	return fmt.Sprintf("process %d, started %s", h.PID, h.Started.UTC().Format(time.RFC3339))
}

func syncDir(dir string) error {
	d, err := os.Open(dir)
	if err != nil {
		return err
	}
	return errors.Join(d.Sync(), d.Close())
}
