package blob

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"

	bolt "go.etcd.io/bbolt"
)

// Limits of one collecting transaction.
const (
	collectBlobs  = 256
	collectChunks = 256
)

// Collected says what Collect deleted, or with dryRun would delete.
type Collected struct {
	Blobs int   // complete blobs without references
	Parts int   // unfinished uploads that nobody continued, and debris of failed writes
	Bytes int64 // content bytes of both
}

// Collect deletes, in small transactions, the blobs that no record refers to and
// nobody holds, and uploads untouched for longer than Options.PartialAge. Their
// pages are used again by later writes; the file itself shrinks only by compaction.
func (s *Store) Collect(ctx context.Context, dryRun bool) (Collected, error) {
	if !s.pin.TryLock() {
		return Collected{}, fmt.Errorf("collect blobs: %w while a copy or another collection runs; try again later", ErrPinned)
	}
	defer s.pin.Unlock()
	total, err := s.collect(ctx, dryRun)
	if err != nil {
		return total, fmt.Errorf("collect blobs: %w", err)
	}
	return total, nil
}

func (s *Store) collect(ctx context.Context, dryRun bool) (total Collected, err error) {
	candidates, err := s.candidates()
	if err != nil {
		return total, err
	}
	for len(candidates) > 0 {
		if err := ctx.Err(); err != nil {
			return total, err
		}
		batch := candidates[:min(len(candidates), collectBlobs)]
		candidates = candidates[len(batch):]
		batch = s.condemn(batch)
		gone, part, err := s.bury(batch, dryRun)
		s.spare(batch)
		if err != nil {
			return total, err
		}
		total.Blobs += part.Blobs
		total.Parts += part.Parts
		total.Bytes += part.Bytes
		if err := s.purge(gone); err != nil {
			return total, err
		}
	}
	return total, nil
}

// candidates lists blobs that may be collectable.
func (s *Store) candidates() (ids []ID, err error) {
	err = s.file.View(func(tx *bolt.Tx) error {
		kept, err := partials(tx)
		if err != nil {
			return err
		}
		return tx.Bucket(metaBucket).ForEach(func(k, v []byte) error {
			id, m, err := decodeEntry(k, v)
			if err == nil && s.collectable(m, kept[id]) {
				ids = append(ids, id)
			}
			return err
		})
	})
	return ids, err
}

// collectable says whether a blob that nobody holds may go.
func (s *Store) collectable(m meta, upload bool) bool {
	switch {
	case m.state == stateComplete:
		return m.refs == 0
	case m.state == stateWriting && upload:
		return s.opt.Now().UnixNano()-m.touched > int64(s.opt.PartialAge)
	default:
		return true
	}
}

// condemn returns those of ids that nobody holds, and lets nobody hold them until spare.
func (s *Store) condemn(ids []ID) (free []ID) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, id := range ids {
		if s.holds[id] == 0 {
			s.dying[id] = true
			free = append(free, id)
		}
	}
	return free
}

func (s *Store) spare(ids []ID) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, id := range ids {
		delete(s.dying, id)
	}
}

// bury makes the condemned blobs invisible in one transaction, unless a record
// came to refer to one meanwhile, and returns those whose chunks may go.
func (s *Store) bury(ids []ID, dryRun bool) (gone []ID, c Collected, err error) {
	look := func(tx *bolt.Tx) error {
		kept, err := partials(tx)
		if err != nil {
			return err
		}
		for _, id := range ids {
			m, err := readMeta(tx.Bucket(metaBucket), id)
			if errors.Is(err, ErrNotFound) || err == nil && !s.collectable(m, kept[id]) {
				continue
			}
			if err != nil {
				return fmt.Errorf("blob %d: %w", id, err)
			}
			if m.state == stateComplete {
				c.Blobs++
			} else {
				c.Parts++
			}
			c.Bytes += int64(m.have)
			if dryRun {
				continue
			}
			gone = append(gone, id)
			if err := markDeleting(tx, id, m); err != nil {
				return err
			}
		}
		return nil
	}
	if dryRun {
		err = s.file.View(look)
	} else {
		err = s.file.Update(look)
	}
	if err != nil {
		return nil, Collected{}, err
	}
	return gone, c, nil
}

// markDeleting makes a blob invisible.
func markDeleting(tx *bolt.Tx, id ID, m meta) error {
	for _, name := range [][]byte{sumBucket, partialBucket} {
		b := tx.Bucket(name)
		if v := b.Get(m.sum[:]); len(v) == 8 && ID(binary.BigEndian.Uint64(v)) == id {
			if err := b.Delete(m.sum[:]); err != nil {
				return err
			}
		}
	}
	m.state, m.refs, m.hash = stateDeleting, 0, nil
	return putMeta(tx, id, m)
}

// purge deletes blobs that are nobody's any more: first from sight, then chunk by
// chunk, the description last, so that a crash leaves only what Open finishes.
func (s *Store) purge(ids []ID) error {
	for len(ids) > 0 {
		batch := ids[:min(len(ids), collectBlobs)]
		ids = ids[len(batch):]
		err := s.file.Update(func(tx *bolt.Tx) error {
			for _, id := range batch {
				m, err := readMeta(tx.Bucket(metaBucket), id)
				if errors.Is(err, ErrNotFound) || err == nil && m.state == stateDeleting {
					continue
				}
				if err != nil {
					return fmt.Errorf("delete blob %d: %w", id, err)
				}
				if err := markDeleting(tx, id, m); err != nil {
					return err
				}
			}
			return nil
		})
		if err != nil {
			return err
		}
		for len(batch) > 0 {
			if batch, err = s.purgeSome(batch); err != nil {
				return err
			}
		}
	}
	return nil
}

// purgeSome deletes up to collectChunks chunks in one transaction and returns the
// blobs that still have some.
func (s *Store) purgeSome(ids []ID) (rest []ID, err error) {
	err = s.file.Update(func(tx *bolt.Tx) error {
		rest = ids
		left := collectChunks
		for len(rest) > 0 {
			keys := chunkKeys(tx, rest[0], left+1)
			for _, k := range keys[:min(len(keys), left)] {
				if err := tx.Bucket(chunkBucket).Delete(k); err != nil {
					return err
				}
			}
			if len(keys) > left {
				return nil
			}
			left -= len(keys)
			if err := tx.Bucket(metaBucket).Delete(idKey(rest[0])); err != nil {
				return err
			}
			rest = rest[1:]
		}
		return nil
	})
	return rest, err
}

// chunkKeys lists at most limit keys of a blob; deleting under a cursor would skip some.
func chunkKeys(tx *bolt.Tx, id ID, limit int) (keys [][]byte) {
	prefix := idKey(id)
	c := tx.Bucket(chunkBucket).Cursor()
	for k, _ := c.Seek(prefix); k != nil && len(keys) < limit; k, _ = c.Next() {
		if len(k) < len(prefix) || string(k[:len(prefix)]) != string(prefix) {
			break
		}
		keys = append(keys, append([]byte(nil), k...))
	}
	return keys
}
