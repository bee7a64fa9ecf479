package store

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"

	"smolgym/store/blob"

	bolt "go.etcd.io/bbolt"
)

// Report is what Check found.
type Report struct {
	Problems []string       // empty if the store is sound
	Records  map[string]int // by noun
	Blobs    int
	Hashed   int64 // bytes whose hash was recomputed
}

// maxProblems bounds the report: a broken page makes thousands.
const maxProblems = 1000

// audit is one check under way.
type audit struct {
	report *Report
	refs   map[blob.ID]uint64 // references that records hold
}

func (a *audit) problem(format string, args ...any) {
	if len(a.report.Problems) < maxProblems {
		a.report.Problems = append(a.report.Problems, fmt.Sprintf(format, args...))
	}
}

// Check walks the pages, every record, index and blob and compares references and
// counts; with hashes set it also recomputes the hash of every blob. What is wrong
// is in the report; the error says that the check itself could not go on.
func (db *DB) Check(ctx context.Context, hashes bool) (Report, error) {
	report := Report{Records: map[string]int{}}
	a := &audit{report: &report, refs: map[blob.ID]uint64{}}
	var complete []blob.ID
	err := db.checkPages(a)
	if err == nil {
		complete, err = db.checkRecords(ctx, a)
	}
	report.Blobs = len(complete)
	if errors.Is(err, ErrDamaged) {
		a.problem("%v", err)
		err = nil
	}
	if err == nil && hashes {
		err = db.checkHashes(ctx, a, complete)
	}
	if err != nil {
		return report, fmt.Errorf("check store %s: %w", db.path, err)
	}
	return report, nil
}

// checkPages walks the tree of pages. Our own walks come first: bbolt's checker
// runs in a goroutine that can't be guarded.
func (db *DB) checkPages(a *audit) error {
	return db.lookOnly(func(tx *bolt.Tx) error {
		if err := tile(tx, db.path); err != nil {
			return err
		}
		if err := walk(tx, ""); err != nil {
			return err
		}
		for err := range tx.Check(bolt.WithKVStringer(shortKeys{})) {
			a.problem("file: %v", err)
		}
		return nil
	})
}

// shortKeys prints keys and values of bbolt's findings without reading far.
type shortKeys struct{}

func (shortKeys) KeyToString(k []byte) string   { return fmt.Sprintf("%x", k[:min(len(k), 16)]) }
func (shortKeys) ValueToString(v []byte) string { return fmt.Sprintf("%d bytes", len(v)) }

// checkRecords compares records, indexes and blobs, and returns the complete blobs.
func (db *DB) checkRecords(ctx context.Context, a *audit) (complete []blob.ID, err error) {
	err = db.view(func(tx *bolt.Tx) error {
		for _, t := range tables() {
			if err := ctx.Err(); err != nil {
				return err
			}
			if err := t.audit(tx, a); err != nil {
				return err
			}
		}
		auditAliases(tx, a)
		complete, err = db.blobs.Audit(tx, a.refs, a.problem)
		return err
	})
	return complete, err
}

func (db *DB) checkHashes(ctx context.Context, a *audit, ids []blob.ID) error {
	for _, id := range ids {
		info, err := db.blobs.Stat(id)
		if err == nil {
			err = db.blobs.Verify(ctx, id)
		}
		switch {
		case err == nil:
			a.report.Hashed += info.Size
		case errors.Is(err, blob.ErrNotFound): // collected since the walk
		case errors.Is(err, blob.ErrCorrupt), errors.Is(err, ErrDamaged):
			a.problem("%v", err)
		default:
			return err
		}
	}
	return nil
}

// audit checks the table's records, bodies and indexes against each other and
// adds up the references.
func (t *table[T]) audit(tx *bolt.Tx, a *audit) error {
	records, entries := tx.Bucket([]byte(t.noun)), make([]int, len(t.indexes))
	err := records.ForEach(func(k, _ []byte) error {
		rec, err := t.get(tx, string(k), true)
		if err != nil {
			a.problem("%v", err)
			return nil
		}
		a.report.Records[t.noun]++
		if err := t.check(rec); err != nil {
			a.problem("%v", err)
		}
		if t.key(rec) != string(k) {
			a.problem("%s %s: stored under the key of %s", t.noun, show(t.key(rec)), show(string(k)))
		}
		if t.refs != nil {
			for _, id := range t.refs(rec) {
				a.refs[id]++
			}
		}
		for i := range t.indexes {
			x := &t.indexes[i]
			e := x.entry(rec, string(k))
			if e == nil {
				continue
			}
			entries[i]++
			v := tx.Bucket([]byte(x.name)).Get(e)
			if len(v) != 8 || binary.BigEndian.Uint64(v) != t.stampOf(rec) {
				a.problem("%s %s: index %s doesn't have it as it is", t.noun, show(string(k)), x.name)
			}
		}
		return nil
	})
	if err != nil {
		return err
	}
	for i, x := range t.indexes {
		n := tx.Bucket([]byte(x.name)).Stats().KeyN
		if n != entries[i] {
			a.problem("index %s: %d entries for %d records", x.name, n, entries[i])
		}
	}
	if t.body == nil {
		return nil
	}
	return tx.Bucket(t.bodyName()).ForEach(func(k, _ []byte) error {
		if records.Get(k) == nil {
			a.problem("%s %s: body without record", t.noun, show(string(k)))
		}
		return nil
	})
}

// auditAliases checks that aliases and models name each other.
func auditAliases(tx *bolt.Tx, a *audit) {
	aliases := map[string]string{}
	_ = tx.Bucket(aliasBucket).ForEach(func(k, v []byte) error {
		aliases[string(k)] = string(v)
		m, err := modelTable.get(tx, string(v), true)
		if err != nil {
			a.problem("alias %s: %v", show(string(k)), err)
			return nil
		}
		for _, alias := range m.Aliases {
			if alias == string(k) {
				return nil
			}
		}
		a.problem("alias %s: model %s doesn't have it", show(string(k)), quote(m.Name))
		return nil
	})
	_ = tx.Bucket([]byte(modelTable.noun)).ForEach(func(k, _ []byte) error {
		if m, err := modelTable.get(tx, string(k), true); err == nil {
			for _, alias := range m.Aliases {
				if aliases[alias] != m.Name {
					a.problem("model %s: alias %s isn't indexed", quote(m.Name), quote(alias))
				}
			}
		}
		return nil
	})
}
