package store

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"slices"

	"smolgym/store/blob"

	bolt "go.etcd.io/bbolt"
)

// table is how one noun is stored: records under their primary key in a bucket
// named after the noun, what lists leave out under the same key in <noun>.body,
// and ordered indexes. A key is text without control characters, its parts
// separated by NUL.
type table[T any] struct {
	noun    string
	key     func(*T) string
	check   func(*T) error // refuses what may not be stored
	indexes []index[T]
	// stamp is 8 bytes beside each index entry, by which lists choose and count
	// without reading records. nil: zero.
	stamp func(*T) uint64
	// body and setBody split off and restore what lists leave out. nil: nothing.
	body    func(*T) ([]byte, error)
	setBody func(*T, []byte) error
	// refs are the blobs the record needs, one entry a reference. nil: none.
	refs func(*T) []blob.ID
	// attach runs in the transaction that replaces old by new (either may be nil).
	attach func(tx *bolt.Tx, db *DB, old, new *T) error
}

// index orders records within groups: keys are group, NUL, order, primary key.
type index[T any] struct {
	name  string                  // of the bucket
	group func(*T) (string, bool) // false: the record isn't in this index; nil: one nameless group
	order func(*T) uint64
}

func (t *table[T]) bodyName() []byte { return []byte(t.noun + ".body") }

// buckets names what the table owns.
func (t *table[T]) buckets() []string {
	names := []string{t.noun}
	if t.body != nil {
		names = append(names, string(t.bodyName()))
	}
	for _, x := range t.indexes {
		names = append(names, x.name)
	}
	return names
}

// entry is the index key of a record, nil if it isn't in the index.
func (x *index[T]) entry(rec *T, key string) []byte {
	prefix, ok := []byte(nil), true
	if x.group != nil {
		var g string
		if g, ok = x.group(rec); ok {
			prefix = groupPrefix(g)
		}
	}
	if !ok {
		return nil
	}
	return append(binary.BigEndian.AppendUint64(prefix, x.order(rec)), key...)
}

func groupPrefix(group string) []byte { return append([]byte(group), 0) }

func (t *table[T]) stampOf(rec *T) uint64 {
	if t.stamp == nil {
		return 0
	}
	return t.stamp(rec)
}

// row is a record made ready before the lock is taken.
type row[T any] struct {
	rec  *T
	key  string
	head []byte
	body []byte
}

func (t *table[T]) prepare(rec *T) (row[T], error) {
	if err := t.check(rec); err != nil {
		return row[T]{}, err
	}
	r := row[T]{rec: rec, key: t.key(rec)}
	var err error
	if r.head, err = encode(rec); err == nil && t.body != nil {
		r.body, err = t.body(rec)
	}
	if err != nil {
		return r, fmt.Errorf("%s %s: encode: %w", t.noun, show(r.key), err)
	}
	return r, nil
}

// show makes a primary key readable.
func show(key string) string {
	return quote(string(bytes.ReplaceAll([]byte(key), []byte{0}, []byte("/"))))
}

// get reads a record, with its body if whole. Absent is ErrNotFound.
func (t *table[T]) get(tx *bolt.Tx, key string, whole bool) (*T, error) {
	head := tx.Bucket([]byte(t.noun)).Get([]byte(key))
	if head == nil {
		return nil, fmt.Errorf("%s %s: %w", t.noun, show(key), ErrNotFound)
	}
	var body []byte
	if whole && t.body != nil {
		body = tx.Bucket(t.bodyName()).Get([]byte(key))
	}
	rec, err := t.decode(head, body)
	if err != nil {
		return nil, fmt.Errorf("%s %s: %w", t.noun, show(key), err)
	}
	return rec, nil
}

func (t *table[T]) decode(head, body []byte) (*T, error) {
	rec := new(T)
	if err := decode(head, rec); err != nil {
		return nil, err
	}
	if len(body) > 0 {
		if err := t.setBody(rec, body); err != nil {
			return nil, err
		}
	}
	return rec, nil
}

// replace puts the row in place of old (nil: nothing), with its references and
// index entries.
func (t *table[T]) replace(tx *bolt.Tx, db *DB, old *T, r row[T]) error {
	if err := t.shift(tx, db, old, r.rec); err != nil {
		return fmt.Errorf("%s %s: %w", t.noun, show(r.key), err)
	}
	key := []byte(r.key)
	if err := tx.Bucket([]byte(t.noun)).Put(key, r.head); err != nil {
		return fmt.Errorf("%s %s: %w", t.noun, show(r.key), err)
	}
	if t.body == nil {
		return nil
	}
	b := tx.Bucket(t.bodyName())
	if r.body == nil {
		return b.Delete(key)
	}
	return b.Put(key, r.body)
}

// remove deletes a record that is there.
func (t *table[T]) remove(tx *bolt.Tx, db *DB, old *T) error {
	key := []byte(t.key(old))
	if err := t.shift(tx, db, old, nil); err != nil {
		return fmt.Errorf("%s %s: %w", t.noun, show(string(key)), err)
	}
	if t.body != nil {
		if err := tx.Bucket(t.bodyName()).Delete(key); err != nil {
			return err
		}
	}
	return tx.Bucket([]byte(t.noun)).Delete(key)
}

// shift moves references and index entries from old to new; either may be nil.
func (t *table[T]) shift(tx *bolt.Tx, db *DB, old, new *T) error {
	if t.attach != nil {
		if err := t.attach(tx, db, old, new); err != nil {
			return err
		}
	}
	if t.refs != nil {
		delta := map[blob.ID]int{}
		if new != nil {
			for _, id := range t.refs(new) {
				delta[id]++
			}
		}
		if old != nil {
			for _, id := range t.refs(old) {
				delta[id]--
			}
		}
		if err := db.addRefs(tx, delta); err != nil {
			return err
		}
	}
	for i := range t.indexes {
		x := &t.indexes[i]
		b := tx.Bucket([]byte(x.name))
		if old != nil {
			if e := x.entry(old, t.key(old)); e != nil {
				if err := b.Delete(e); err != nil {
					return err
				}
			}
		}
		if new != nil {
			if e := x.entry(new, t.key(new)); e != nil {
				if err := b.Put(e, binary.BigEndian.AppendUint64(nil, t.stampOf(new))); err != nil {
					return err
				}
			}
		}
	}
	return nil
}

func (db *DB) addRefs(tx *bolt.Tx, delta map[blob.ID]int) error {
	ids := make([]blob.ID, 0, len(delta))
	for id, d := range delta {
		if d != 0 {
			ids = append(ids, id)
		}
	}
	slices.Sort(ids)
	for _, id := range ids {
		if err := db.blobs.AddRef(tx, id, delta[id]); err != nil {
			return err
		}
	}
	return nil
}

// Page selects part of a list. Limit 0 means all.
type Page struct{ Offset, Limit int }

// keep chooses list entries by their stamp and primary key; nil chooses all.
type keep func(stamp uint64, key string) bool

// list reads the records of one group newest first, or oldest first, and counts
// all that keep chooses.
func (t *table[T]) list(tx *bolt.Tx, x *index[T], group string, page Page, oldest bool, keep keep) (recs []T, total int, err error) {
	keys, total, err := x.keys(tx, group, page, oldest, keep)
	if err != nil {
		return nil, 0, fmt.Errorf("list %ss: %w", t.noun, err)
	}
	recs = make([]T, 0, len(keys))
	for _, key := range keys {
		rec, err := t.get(tx, key, false)
		if errors.Is(err, ErrNotFound) {
			err = fmt.Errorf("index %s names it: %w", x.name, ErrDamaged)
		}
		if err != nil {
			return nil, 0, fmt.Errorf("list %ss: %w", t.noun, err)
		}
		recs = append(recs, *rec)
	}
	return recs, total, nil
}

// keys walks one group of the index.
func (x *index[T]) keys(tx *bolt.Tx, group string, page Page, oldest bool, keep keep) (keys []string, total int, err error) {
	var prefix []byte
	if x.group != nil {
		prefix = groupPrefix(group)
	}
	c := tx.Bucket([]byte(x.name)).Cursor()
	first, step := c.Last, c.Prev
	switch {
	case oldest:
		first, step = func() ([]byte, []byte) { return c.Seek(prefix) }, c.Next
	case prefix != nil:
		first = func() ([]byte, []byte) {
			if k, _ := c.Seek(append([]byte(group), 1)); k == nil {
				return c.Last()
			}
			return c.Prev()
		}
	}
	for k, v := first(); bytes.HasPrefix(k, prefix) && k != nil; k, v = step() {
		if len(k) < len(prefix)+8 || len(v) != 8 {
			return nil, 0, fmt.Errorf("index %s: bad entry %x: %w", x.name, k, ErrDamaged)
		}
		key := string(k[len(prefix)+8:])
		if keep != nil && !keep(binary.BigEndian.Uint64(v), key) {
			continue
		}
		if total >= page.Offset && (page.Limit <= 0 || len(keys) < page.Limit) {
			keys = append(keys, key)
		}
		total++
	}
	return keys, total, nil
}

// The typed methods of DB are one line each over the functions below.

// putRow stores a record; with fresh set, a name already taken (and, for
// checkpoints, not expired) is ErrExists.
func putRow[T any](db *DB, t *table[T], rec *T, fresh bool) error {
	r, err := t.prepare(rec)
	if err != nil {
		return fmt.Errorf("put %w", err)
	}
	err = db.update(func(tx *bolt.Tx) error {
		old, err := t.get(tx, r.key, true)
		if err != nil && !errors.Is(err, ErrNotFound) {
			return err
		}
		if old != nil && fresh && !db.expired(old) {
			return fmt.Errorf("%s %s: %w", t.noun, show(r.key), ErrExists)
		}
		return t.replace(tx, db, old, r)
	})
	if err != nil {
		return fmt.Errorf("put %w", err)
	}
	return nil
}

func getRow[T any](db *DB, t *table[T], key string) (rec T, err error) {
	err = db.view(func(tx *bolt.Tx) error {
		p, err := t.get(tx, key, true)
		if err != nil {
			return err
		}
		if db.expired(p) {
			return fmt.Errorf("%s %s: expired: %w", t.noun, show(key), ErrNotFound)
		}
		rec = *p
		return nil
	})
	return rec, err
}

// updateRow lets change edit the record within the transaction; it must be quick
// and may not rename.
func updateRow[T any](db *DB, t *table[T], key string, change func(*T) error) error {
	err := db.update(func(tx *bolt.Tx) error {
		old, err := t.get(tx, key, true)
		if err != nil {
			return err
		}
		if db.expired(old) {
			return fmt.Errorf("%s %s: expired: %w", t.noun, show(key), ErrNotFound)
		}
		// A second decoding, since change may reach into shared slices and maps.
		rec, err := t.get(tx, key, true)
		if err != nil {
			return err
		}
		if err := callerFunc(change, rec); err != nil {
			return err
		}
		r, err := t.prepare(rec)
		if err != nil {
			return err
		}
		if r.key != key {
			return fmt.Errorf("%s %s: renamed to %s: %w", t.noun, show(key), show(r.key), ErrInvalid)
		}
		return t.replace(tx, db, old, r)
	})
	if err != nil {
		return fmt.Errorf("update %w", err)
	}
	return nil
}

func deleteRows[T any](db *DB, t *table[T], keys ...string) error {
	err := db.update(func(tx *bolt.Tx) error {
		for _, key := range keys {
			old, err := t.get(tx, key, true)
			if err != nil {
				return err
			}
			if err := t.remove(tx, db, old); err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		return fmt.Errorf("delete %w", err)
	}
	return nil
}

func listRows[T any](db *DB, t *table[T], x int, group string, page Page, keep keep) (recs []T, total int, err error) {
	err = db.view(func(tx *bolt.Tx) error {
		recs, total, err = t.list(tx, &t.indexes[x], group, page, false, keep)
		return err
	})
	return recs, total, err
}

// expired reports whether the record is a checkpoint past its time.
func (db *DB) expired(rec any) bool {
	c, ok := rec.(*Checkpoint)
	return ok && c.Expires != nil && !c.Expires.After(db.now())
}
