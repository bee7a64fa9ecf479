package store

import (
	"bytes"
	"errors"
	"fmt"
	"path/filepath"
	"testing"
	"time"

	bolt "go.etcd.io/bbolt"
)

func TestEvents(t *testing.T) {
	db, c := open(t)
	begin := c.Now()
	for i := range 10 {
		if err := db.AddEvents([]Event{{ID: fmt.Sprint("e", i), Time: c.Now(), Name: "checkpoint_create", Details: map[string]string{"n": fmt.Sprint(i)}}}); err != nil {
			t.Fatal(err)
		}
		c.pass(time.Hour)
	}
	list, err := db.Events(begin.Add(2*time.Hour), begin.Add(5*time.Hour))
	if err != nil || len(list) != 3 || list[0].Details["n"] != "4" || list[2].Details["n"] != "2" {
		t.Fatalf("events %+v, %v", list, err)
	}
	if n, err := db.TrimEvents(4); err != nil || n != 6 {
		t.Fatalf("trimmed %d, %v", n, err)
	}
	if list, err = db.Events(begin, c.Now()); err != nil || len(list) != 4 || list[3].Details["n"] != "6" {
		t.Fatalf("events %+v, %v", list, err)
	}
	if err := db.AddEvents([]Event{{ID: "x"}}); !errors.Is(err, ErrInvalid) {
		t.Errorf("nameless event: %v", err)
	}
}

func TestMeters(t *testing.T) {
	db, c := open(t)
	hour := c.Now().Truncate(time.Hour)
	for range 3 {
		if err := db.AddMeters([]Meter{
			{Hour: hour, Kind: "training", BaseModel: "a/b", SessionID: "s", Amount: 5},
			{Hour: hour.Add(time.Hour), Kind: "training", BaseModel: "a/b", SessionID: "s", Amount: 1},
			{Hour: hour, Kind: "sampling", BaseModel: "a/b", SessionID: "s", Amount: 7}}); err != nil {
			t.Fatal(err)
		}
	}
	list, err := db.Metered(hour, hour.Add(time.Hour))
	if err != nil || len(list) != 2 || list[0].Amount+list[1].Amount != 36 {
		t.Fatalf("usage %+v, %v", list, err)
	}
	if err := db.AddMeters([]Meter{{Hour: hour.Add(time.Minute), Kind: "training", Amount: 5}}); !errors.Is(err, ErrInvalid) {
		t.Errorf("a part of an hour: %v", err)
	}
}

func TestSecretStays(t *testing.T) {
	path := filepath.Join(t.TempDir(), "smolgym.db")
	var first []byte
	for range 2 {
		db, err := Open(path, Options{})
		if err != nil {
			t.Fatal(err)
		}
		secret, err := db.Secret()
		if err != nil || len(secret) != SecretBytes || first != nil && !bytes.Equal(first, secret) {
			t.Fatalf("secret %x, first %x, %v", secret, first, err)
		}
		first = secret
		if err := db.Close(); err != nil {
			t.Fatal(err)
		}
	}
}

// A file of a program that did not know events opens and gets their buckets.
func TestAddBuckets(t *testing.T) {
	path := filepath.Join(t.TempDir(), "smolgym.db")
	db, err := Open(path, Options{})
	if err != nil {
		t.Fatal(err)
	}
	err = db.update(func(tx *bolt.Tx) error {
		return errors.Join(tx.DeleteBucket([]byte("event")), tx.DeleteBucket([]byte("event.time")), tx.DeleteBucket([]byte("meter")), tx.DeleteBucket([]byte("meter.hour")))
	})
	if err := errors.Join(err, db.Close()); err != nil {
		t.Fatal(err)
	}
	if db, err = Open(path, Options{}); err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(db.AddEvents([]Event{{ID: "e", Time: time.Now(), Name: "x_y"}}), db.Close()); err != nil {
		t.Fatal(err)
	}
	recheck(t, path)
}

func TestPassingRuns(t *testing.T) {
	db, c := open(t)
	for _, id := range []string{"a", "b"} {
		if err := db.AddRun(Run{ID: id, SessionID: "s", Created: c.Now(), Passing: id == "b"}); err != nil {
			t.Fatal(err)
		}
	}
	runs, total, err := db.Runs(Page{})
	if err != nil || total != 1 || runs[0].ID != "a" {
		t.Fatalf("runs %+v, %d, %v", runs, total, err)
	}
	if runs, err = db.PassingRuns(); err != nil || len(runs) != 1 || runs[0].ID != "b" {
		t.Fatalf("passing %+v, %v", runs, err)
	}
	if err := db.UpdateRun("b", func(r *Run) error { r.Passing = false; return nil }); err != nil {
		t.Fatal(err)
	}
	if _, total, err = db.Runs(Page{}); err != nil || total != 2 {
		t.Fatalf("%d runs, %v", total, err)
	}
}
