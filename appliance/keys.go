package appliance

import (
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"strings"
	"time"

	"smolgym/store"
	"smolgym/store/blob"
)

// KeyRecord is a key that lets clients in; it has the key's hash.
type KeyRecord = store.Key

// maxKeys bounds the keys of one box: every request is compared with all of them.
const maxKeys = 1000

// NewKey draws a key. The text is nowhere but in what is returned.
func NewKey(name string, now time.Time) (rec KeyRecord, text string, err error) {
	if len(name) > 100 || strings.ContainsFunc(name, func(r rune) bool { return r < 0x20 || r == 0x7f || r == 0xfffd }) {
		return rec, "", Problemf(CodeUser, "key name %q: give at most 100 bytes without control characters", clip(name))
	}
	var b [36]byte
	if _, err := rand.Read(b[:]); err != nil {
		return rec, "", fmt.Errorf("draw a key: %w", err)
	}
	text = "tml-" + hex.EncodeToString(b[4:])
	return KeyRecord{ID: hex.EncodeToString(b[:4]), Name: name, Created: now, Hash: blob.Sum(sha256.Sum256([]byte(text)))}, text, nil
}

// CreateKey makes a key and gives its text, which can't be had again. From the
// first one on, nobody is let in without.
func (a *Appliance) CreateKey(name string) (KeyRecord, string, error) {
	all, err := a.Keys()
	if err != nil {
		return KeyRecord{}, "", err
	}
	if len(all) >= maxKeys {
		return KeyRecord{}, "", Problemf(CodeTooLarge, "there are %d keys; at most %d are kept", len(all), maxKeys).WithHint("revoke some with \"smolgym key revoke ID\"")
	}
	rec, text, err := NewKey(name, a.now())
	if err == nil {
		err = a.changeKeys(func() error { return a.db.AddKey(rec) })
	}
	if err != nil {
		return rec, "", problemOf("make a key", err)
	}
	a.note("key_create", map[string]string{"key_id": rec.ID})
	return rec, text, nil
}

// Keys lists the keys, newest first.
func (a *Appliance) Keys() ([]KeyRecord, error) {
	list, err := a.db.Keys()
	if err != nil {
		return nil, problemOf("list keys", err)
	}
	return list, nil
}

// RevokeKey removes a key: from now on it lets nobody in.
func (a *Appliance) RevokeKey(id string) error {
	err := a.changeKeys(func() error { return a.db.DeleteKey(id) })
	if errors.Is(err, store.ErrNotFound) || errors.Is(err, store.ErrInvalid) {
		return Problemf(CodeNotFound, "no key %q", clip(id)).WithHint("see \"smolgym key list\"")
	}
	if err != nil {
		return problemOf("revoke key", err)
	}
	a.note("key_revoke", map[string]string{"key_id": id})
	return nil
}

// changeKeys changes the stored keys and forgets the list of them: one that was
// read before the change is never kept after it.
func (a *Appliance) changeKeys(change func() error) error {
	a.keysMu.Lock()
	defer a.keysMu.Unlock()
	defer a.keys.Store(nil)
	return change()
}

// KeyHashes are the SHA-256 of the keys that let clients in; none means that no
// key was made.
func (a *Appliance) KeyHashes() ([][sha256.Size]byte, error) {
	if known := a.keys.Load(); known != nil {
		return *known, nil
	}
	a.keysMu.Lock()
	defer a.keysMu.Unlock()
	all, err := a.Keys()
	if err != nil {
		return nil, err
	}
	hashes := make([][sha256.Size]byte, len(all))
	for i, k := range all {
		hashes[i] = k.Hash
	}
	a.keys.Store(&hashes)
	return hashes, nil
}
