package store

import (
	"fmt"
	"time"

	"smolgym/store/blob"
)

// Key lets a client in. The key itself is shown once, when it is made; here is its hash.
type Key struct {
	ID      string    `json:"id"`
	Name    string    `json:"name,omitempty"` // for people
	Created time.Time `json:"created"`
	Hash    blob.Sum  `json:"hash"` // SHA-256 of the key
}

var keyTable = &table[Key]{
	noun:    "key",
	key:     func(k *Key) string { return k.ID },
	check:   (*Key).check,
	indexes: []index[Key]{{name: "key.created", order: func(k *Key) uint64 { return nanos(k.Created) }}},
}

func (k *Key) check() error {
	if err := checkID("key", k.ID); err != nil {
		return err
	}
	if k.Name != "" {
		if err := checkID("key "+quote(k.ID)+": name", k.Name); err != nil {
			return err
		}
	}
	if k.Hash.IsZero() {
		return fmt.Errorf("key %s: no hash: %w", quote(k.ID), ErrInvalid)
	}
	return nil
}

// AddKey stores a key; ErrExists if the id is taken.
func (db *DB) AddKey(k Key) error { return putRow(db, keyTable, &k, true) }

// Keys lists all keys, newest first.
func (db *DB) Keys() ([]Key, error) {
	list, _, err := listRows(db, keyTable, 0, "", Page{}, nil)
	return list, err
}

// DeleteKey removes a key.
func (db *DB) DeleteKey(id string) error { return deleteRows(db, keyTable, id) }
