package store

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"smolgym/store/blob"
)

// clock is a time that tests move.
type clock struct {
	mu  sync.Mutex // guards now
	now time.Time
}

func newClock() *clock { return &clock{now: time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)} }

func (c *clock) Now() time.Time {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.now
}

func (c *clock) pass(d time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.now = c.now.Add(d)
}

// smallBlobs makes transactions of two chunks, so that tests cross them.
var smallBlobs = blob.Options{TxBytes: 2 * blob.ChunkSize}

// open opens a store in a new folder; cleanup reopens and checks it.
func open(t testing.TB) (*DB, *clock) {
	t.Helper()
	c := newClock()
	path := filepath.Join(t.TempDir(), "smolgym.db")
	db, err := Open(path, Options{Now: c.Now, Blob: smallBlobs})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := db.Close(); err != nil {
			t.Error(err)
		}
		recheck(t, path)
	})
	return db, c
}

// recheck opens the file anew and fails the test on any problem.
func recheck(t testing.TB, path string) Report {
	t.Helper()
	db, err := Open(path, Options{Now: newClock().Now, Blob: smallBlobs})
	if err != nil {
		t.Fatal(err)
	}
	defer db.Close()
	return sound(t, db)
}

func sound(t testing.TB, db *DB) Report {
	t.Helper()
	report, err := db.Check(context.Background(), true)
	if err != nil {
		t.Fatal(err)
	}
	for _, p := range report.Problems {
		t.Errorf("check: %s", p)
	}
	return report
}

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func wantErr(t testing.TB, err, want error) {
	t.Helper()
	if !errors.Is(err, want) {
		t.Errorf("error %v, want %v", err, want)
	}
}

func content(seed uint64, size int) []byte {
	b := make([]byte, size)
	r := rand.NewChaCha8([32]byte{byte(seed), byte(seed >> 8), byte(seed >> 16), 1})
	_, _ = r.Read(b)
	return b
}

// putBlob stores bytes and leaves them held for the rest of the test.
func putBlob(t testing.TB, db *DB, data []byte) blob.Info {
	t.Helper()
	info, err := db.Blobs().Put(bytes.NewReader(data))
	must(t, err)
	return info
}

// checkpoint is one with two tensors of size bytes each and half of the first as
// optimizer state; its blobs aren't held any more once it is put.
func putCheckpoint(t testing.TB, db *DB, c Checkpoint, seed uint64, size int) {
	t.Helper()
	must(t, saveCheckpoint(db, c, seed, size))
}

func saveCheckpoint(db *DB, c Checkpoint, seed uint64, size int) error {
	infos, err := db.Blobs().PutAll(context.Background(), 2, func(i int) ([]byte, error) { return content(seed+uint64(i), size), nil })
	if err != nil {
		return err
	}
	for i, info := range infos {
		c.Tensors = append(c.Tensors, Tensor{Name: fmt.Sprint("w", i), DType: "f32", Shape: []int64{int64(size) / 4}, Blob: info.ID, Bytes: info.Size})
	}
	c.Optimizer = []Tensor{{Name: "m", DType: "f32", Shape: []int64{1}, Blob: infos[0].ID, Offset: 4, Bytes: int64(size) - 4}}
	if err := db.PutCheckpoint(c); err != nil {
		return err
	}
	db.Blobs().Release(infos[0].ID, infos[1].ID)
	return nil
}

func key(run string, kind Kind, name string) CheckpointKey { return CheckpointKey{run, kind, name} }
