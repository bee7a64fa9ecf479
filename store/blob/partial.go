package blob

import (
	"crypto/sha256"
	"encoding"
	"encoding/binary"
	"errors"
	"fmt"

	bolt "go.etcd.io/bbolt"
)

// OpenPartial begins or resumes an upload whose whole hash and size in bytes are
// known beforehand, and returns how many bytes are there already: the caller goes
// on with the next one. Closing the writer keeps them for the next attempt, also
// over restarts; Commit refuses content with another hash and drops it; Abort
// drops it. If the content is known, all of it is there and Commit returns that blob.
func (s *Store) OpenPartial(sum Sum, size int64) (w *Writer, have int64, err error) {
	w, err = s.openPartial(sum, size)
	if err != nil {
		return nil, 0, fmt.Errorf("open upload %s: %w", sum, err)
	}
	return w, w.size, nil
}

func (s *Store) openPartial(sum Sum, size int64) (*Writer, error) {
	if size < 0 || size > maxSize {
		return nil, fmt.Errorf("size %d is not between 0 and %d", size, int64(maxSize))
	}
	s.mu.Lock()
	busy := s.busy[sum]
	s.busy[sum] = true
	s.mu.Unlock()
	if busy {
		return nil, fmt.Errorf("%w; wait until it ends", ErrBusy)
	}
	w, err := s.resume(sum, size)
	if err != nil {
		s.mu.Lock()
		delete(s.busy, sum)
		s.mu.Unlock()
		return nil, err
	}
	return w, nil
}

// resume builds the writer; the caller has marked the hash busy.
func (s *Store) resume(sum Sum, size int64) (*Writer, error) {
	w := &Writer{s: s, hash: sha256.New(), announced: &announced{sum: sum, size: size}}
	info, ok, err := s.Known(sum)
	if err != nil {
		return nil, err
	}
	if ok {
		if info.Size != size {
			s.Release(info.ID)
			return nil, fmt.Errorf("content has %d bytes, announced were %d: %w", info.Size, size, ErrMismatch)
		}
		w.id, w.size, w.known = info.ID, info.Size, &info
		return w, nil
	}
	id, m, err := s.holdPartial(sum)
	if err != nil {
		return nil, err
	}
	if id != 0 && m.size != uint64(size) {
		// One of the two announcements was wrong and the hash can't say which.
		err := s.purge([]ID{id})
		s.Release(id)
		if err != nil {
			return nil, err
		}
		id = 0
	}
	if id == 0 {
		w.id = s.newID()
		return w, nil
	}
	if err := w.hash.(encoding.BinaryUnmarshaler).UnmarshalBinary(m.hash); err != nil {
		s.Release(id)
		return nil, fmt.Errorf("restore hash state: %w: %w", err, ErrCorrupt)
	}
	w.id, w.size, w.stored, w.first = id, int64(m.have), true, uint32(m.have/ChunkSize)
	if err := w.takeTail(m.have); err != nil {
		s.Release(id)
		return nil, err
	}
	return w, nil
}

// takeTail brings the last, short chunk back into the writer, which will grow it.
func (w *Writer) takeTail(have uint64) error {
	if have%ChunkSize == 0 {
		return nil
	}
	return w.s.file.View(func(tx *bolt.Tx) error {
		v := tx.Bucket(chunkBucket).Get(chunkKey(w.id, w.first))
		if len(v) != chunkLen(have, w.first) {
			return fmt.Errorf("chunk %d has %d bytes, not %d: %w", w.first, len(v), chunkLen(have, w.first), ErrCorrupt)
		}
		c := chunkPool.Get().(*[ChunkSize]byte)[:len(v)]
		copy(c, v)
		w.pending = append(w.pending, c)
		return nil
	})
}

// findPartial returns the unfinished upload of this hash; id 0 if there is none.
func (s *Store) findPartial(sum Sum) (id ID, m meta, err error) {
	err = s.file.View(func(tx *bolt.Tx) error {
		v := tx.Bucket(partialBucket).Get(sum[:])
		if v == nil {
			return nil
		}
		if len(v) != 8 {
			return fmt.Errorf("partial upload %s: bad entry: %w", sum, ErrCorrupt)
		}
		id = ID(binary.BigEndian.Uint64(v))
		m, err = readMeta(tx.Bucket(metaBucket), id)
		if errors.Is(err, ErrNotFound) {
			return fmt.Errorf("partial upload %s: blob %d missing: %w", sum, id, ErrCorrupt)
		}
		return err
	})
	return id, m, err
}

// holdPartial is findPartial, with the blob held if there is one that collection
// isn't taking away.
func (s *Store) holdPartial(sum Sum) (ID, meta, error) {
	id, _, err := s.findPartial(sum)
	if err != nil || id == 0 || !s.hold(id) {
		return 0, meta{}, err
	}
	// The first look may be stale by the time the hold stands; the second isn't.
	again, m, err := s.findPartial(sum)
	if err != nil || again != id {
		s.Release(id)
		return 0, meta{}, err
	}
	return id, m, nil
}

// Partial reports how far an upload has come: the bytes stored and the bytes
// announced. Complete content counts as stored whole. Unknown content is ErrNotFound.
func (s *Store) Partial(sum Sum) (have, size int64, err error) {
	info, ok, err := s.Known(sum)
	if err == nil && ok {
		s.Release(info.ID)
		return info.Size, info.Size, nil
	}
	id, m, err := s.findPartial(sum)
	if err == nil && id == 0 {
		err = ErrNotFound
	}
	if err != nil {
		return 0, 0, fmt.Errorf("upload %s: %w", sum, err)
	}
	return int64(m.have), int64(m.size), nil
}
