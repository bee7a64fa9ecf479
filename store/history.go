package store

import (
	"bytes"
	"crypto/rand"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	bolt "go.etcd.io/bbolt"
)

// Event is something that was done to what a user keeps.
type Event struct {
	ID      string            `json:"id"`
	Time    time.Time         `json:"time"`
	Name    string            `json:"name"` // <resource>_<action>
	Details map[string]string `json:"details,omitempty"`
}

// Meter is how much of one kind was used within one hour.
type Meter struct {
	Hour      time.Time `json:"hour"` // its start, UTC
	Kind      string    `json:"kind"`
	BaseModel string    `json:"base_model,omitempty"`
	SessionID string    `json:"session_id,omitempty"`
	Amount    int64     `json:"amount"` // tokens, checkpoints or byte-seconds, by kind
}

var (
	eventTable = &table[Event]{
		noun:    "event",
		key:     func(e *Event) string { return e.ID },
		check:   (*Event).check,
		indexes: []index[Event]{{name: "event.time", order: func(e *Event) uint64 { return nanos(e.Time) }}},
		stamp:   func(e *Event) uint64 { return nanos(e.Time) },
	}
	meterTable = &table[Meter]{
		noun:    "meter",
		key:     (*Meter).key,
		check:   (*Meter).check,
		indexes: []index[Meter]{{name: "meter.hour", order: func(u *Meter) uint64 { return nanos(u.Hour) }}},
		stamp:   func(u *Meter) uint64 { return nanos(u.Hour) },
	}
)

func (e *Event) check() error {
	if err := checkID("event", e.ID); err != nil {
		return err
	}
	return checkID("event "+quote(e.ID)+": name", e.Name)
}

func (u *Meter) key() string {
	return strings.Join([]string{strconv.FormatInt(u.Hour.Unix(), 10), u.Kind, u.BaseModel, u.SessionID}, "\x00")
}

func (u *Meter) check() error {
	if err := checkID("meter: kind", u.Kind); err != nil {
		return err
	}
	for _, part := range []string{u.BaseModel, u.SessionID} {
		if err := checkGroup("meter", u.Kind, part); err != nil {
			return err
		}
	}
	if u.Amount < 0 || !u.Hour.Equal(u.Hour.Truncate(time.Hour)) {
		return fmt.Errorf("meter %s: amount %d of %v: %w; amounts are 0 or more, hours are whole", quote(u.Kind), u.Amount, u.Hour, ErrInvalid)
	}
	return nil
}

// AddEvents records events in one transaction.
func (db *DB) AddEvents(events []Event) error {
	rows := make([]row[Event], len(events))
	for i := range events {
		var err error
		if rows[i], err = eventTable.prepare(&events[i]); err != nil {
			return fmt.Errorf("add %w", err)
		}
	}
	err := db.update(func(tx *bolt.Tx) error {
		for _, r := range rows {
			old, err := eventTable.get(tx, r.key, true)
			if err != nil && !errors.Is(err, ErrNotFound) {
				return err
			}
			if err := eventTable.replace(tx, db, old, r); err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		return fmt.Errorf("add %d events: %w", len(events), err)
	}
	return nil
}

// within chooses what happened from a moment on and before another.
func within(from, before time.Time) keep {
	return func(stamp uint64, _ string) bool { return stamp >= nanos(from) && stamp < nanos(before) }
}

// Events lists what happened from a moment on and before another, newest first.
func (db *DB) Events(from, before time.Time) ([]Event, error) {
	list, _, err := listRows(db, eventTable, 0, "", Page{}, within(from, before))
	return list, err
}

// TrimEvents deletes all events but the newest and returns how many.
func (db *DB) TrimEvents(most int) (int, error) {
	var old []string
	err := db.view(func(tx *bolt.Tx) error {
		_, total, err := eventTable.indexes[0].keys(tx, "", Page{Limit: 1}, true, nil)
		if err == nil && total > most {
			old, _, err = eventTable.indexes[0].keys(tx, "", Page{Limit: total - most}, true, nil)
		}
		return err
	})
	if err != nil || len(old) == 0 {
		return 0, err
	}
	return len(old), deleteRows(db, eventTable, old...)
}

// AddMeters adds amounts to those of their hours in one transaction.
func (db *DB) AddMeters(list []Meter) error {
	err := db.update(func(tx *bolt.Tx) error {
		for _, u := range list {
			old, err := meterTable.get(tx, u.key(), true)
			if err != nil && !errors.Is(err, ErrNotFound) {
				return err
			}
			if old != nil {
				u.Amount += old.Amount
			}
			r, err := meterTable.prepare(&u)
			if err == nil {
				err = meterTable.replace(tx, db, old, r)
			}
			if err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		return fmt.Errorf("add meters: %w", err)
	}
	return nil
}

// Metered lists the usage of the hours that begin from a moment on and before
// another, newest first.
func (db *DB) Metered(from, before time.Time) ([]Meter, error) {
	list, _, err := listRows(db, meterTable, 0, "", Page{}, within(from, before))
	return list, err
}

// SecretBytes is the length of the store's secret.
const SecretBytes = 32

var secretKey = []byte("secret")

// Secret is a random value that was drawn when it was first asked for: what is
// signed with it can be checked after a restart too.
func (db *DB) Secret() ([]byte, error) {
	var secret []byte
	err := db.view(func(tx *bolt.Tx) error {
		secret = bytes.Clone(tx.Bucket(metaBucket).Get(secretKey))
		return nil
	})
	if err == nil && len(secret) == 0 {
		err = db.update(func(tx *bolt.Tx) error {
			if secret = bytes.Clone(tx.Bucket(metaBucket).Get(secretKey)); len(secret) > 0 {
				return nil
			}
			secret = make([]byte, SecretBytes)
			if _, err := rand.Read(secret); err != nil {
				return err
			}
			return tx.Bucket(metaBucket).Put(secretKey, secret)
		})
	}
	if err != nil {
		return nil, fmt.Errorf("read the store's secret: %w", err)
	}
	if len(secret) != SecretBytes {
		return nil, damaged(fmt.Errorf("the store's secret has %d bytes", len(secret)))
	}
	return secret, nil
}

// addBuckets makes the buckets that a file of an older program lacks.
func (db *DB) addBuckets() error {
	missing := 0
	err := db.view(func(tx *bolt.Tx) error {
		for _, name := range bucketNames() {
			if tx.Bucket([]byte(name)) == nil {
				missing++
			}
		}
		return nil
	})
	if err != nil || missing == 0 {
		return err
	}
	return db.create()
}

// hiddenStamp marks runs that lists leave out.
func hiddenStamp(r *Run) uint64 {
	if r.Passing {
		return 1
	}
	return 0
}

// shown chooses runs that aren't passing.
func shown(stamp uint64, _ string) bool { return stamp == 0 }

// PassingRuns lists the runs that lists leave out, latest first.
func (db *DB) PassingRuns() ([]Run, error) {
	rs, _, err := listRows(db, runTable, 0, "", Page{}, func(stamp uint64, _ string) bool { return stamp != 0 })
	return rs, err
}
