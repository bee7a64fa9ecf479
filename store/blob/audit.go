package blob

import (
	"context"
	"encoding/binary"
	"fmt"
	"slices"

	bolt "go.etcd.io/bbolt"
)

// Usage is what the blobs take up.
type Usage struct {
	Blobs        int   // complete blobs
	Bytes        int64 // their content
	Unreferenced int64 // bytes of those that no record refers to
	Uploads      int   // unfinished uploads
	UploadBytes  int64 // what they hold so far
}

// Usage counts what is stored.
func (s *Store) Usage() (u Usage, err error) {
	err = s.file.View(func(tx *bolt.Tx) error {
		return tx.Bucket(metaBucket).ForEach(func(k, v []byte) error {
			_, m, err := decodeEntry(k, v)
			switch {
			case err != nil:
				return err
			case m.state == stateComplete:
				u.Blobs++
				u.Bytes += int64(m.size)
				if m.refs == 0 {
					u.Unreferenced += int64(m.size)
				}
			default:
				u.Uploads++
				u.UploadBytes += int64(m.have)
			}
			return nil
		})
	})
	return u, err
}

// Audit checks within one transaction that every blob has its chunks and index
// entry, that nothing else has any, and that counts equal want, the references
// found in records. It reads keys and lengths, not content; see Verify for that.
// It returns the complete blobs, in order.
func (s *Store) Audit(tx *bolt.Tx, want map[ID]uint64, problem func(format string, args ...any)) ([]ID, error) {
	kept, err := partials(tx)
	if err != nil {
		problem("%v", err)
		kept = map[ID]bool{}
	}
	var complete []ID
	metas := map[ID]meta{}
	err = tx.Bucket(metaBucket).ForEach(func(k, v []byte) error {
		id, m, err := decodeEntry(k, v)
		if err != nil {
			problem("%v", err)
			return nil
		}
		metas[id] = m
		if m.state == stateComplete {
			complete = append(complete, id)
			s.auditComplete(tx, id, m, want[id], problem)
		}
		if m.state == stateWriting && !kept[id] && !s.held(id) {
			problem("blob %d: half written and nobody writes it", id)
		}
		return nil
	})
	if err != nil {
		return nil, err
	}
	for _, id := range sortedIDs(want) {
		if m, ok := metas[id]; !ok || m.state != stateComplete {
			problem("blob %d: %d records refer to it but it isn't there", id, want[id])
		}
	}
	for _, id := range sortedIDs(kept) {
		if metas[id].state != stateWriting {
			problem("upload of blob %d: no unfinished blob", id)
		}
	}
	if err := auditSums(tx, metas, problem); err != nil {
		return nil, err
	}
	return complete, auditChunks(tx, metas, problem)
}

func (s *Store) held(id ID) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.holds[id] > 0
}

func sortedIDs[V any](m map[ID]V) []ID {
	ids := make([]ID, 0, len(m))
	for id := range m {
		ids = append(ids, id)
	}
	slices.Sort(ids)
	return ids
}

func (s *Store) auditComplete(tx *bolt.Tx, id ID, m meta, refs uint64, problem func(string, ...any)) {
	if m.refs != refs {
		problem("blob %d: counts %d references, records have %d", id, m.refs, refs)
	}
	twin, err := lookup(tx, m.sum)
	if err != nil {
		problem("blob %d: %v", id, err)
	} else if twin != id && (twin == 0 || m.refs > 0) {
		// A twin of an unreferenced blob is legal: it was stored while this one was condemned.
		problem("blob %d: hash index names blob %d for its content", id, twin)
	}
}

func auditSums(tx *bolt.Tx, metas map[ID]meta, problem func(string, ...any)) error {
	return tx.Bucket(sumBucket).ForEach(func(k, v []byte) error {
		if len(k) != len(Sum{}) || len(v) != 8 {
			problem("hash index %x: bad entry", k)
			return nil
		}
		id := ID(binary.BigEndian.Uint64(v))
		if m := metas[id]; m.state != stateComplete || m.sum != Sum(k) {
			problem("hash index %x: blob %d isn't that content", k, id)
		}
		return nil
	})
}

// auditChunks checks that each visible blob has exactly its chunks.
func auditChunks(tx *bolt.Tx, metas map[ID]meta, problem func(string, ...any)) error {
	found := map[ID]uint32{} // chunks seen, in order from 0
	err := tx.Bucket(chunkBucket).ForEach(func(k, v []byte) error {
		if len(k) != 12 {
			problem("chunk key %x: not 12 bytes", k)
			return nil
		}
		id, n := ID(binary.BigEndian.Uint64(k)), binary.BigEndian.Uint32(k[8:])
		m, ok := metas[id]
		switch {
		case !ok:
			problem("blob %d: chunk %d without description", id, n)
		case m.state == stateDeleting:
		case n != found[id] || n >= chunks(m.have):
			problem("blob %d: chunk %d where %d was due of %d", id, n, found[id], chunks(m.have))
		case len(v) != chunkLen(m.have, n):
			problem("blob %d: chunk %d has %d bytes, not %d", id, n, len(v), chunkLen(m.have, n))
		}
		found[id]++
		return nil
	})
	for _, id := range sortedIDs(metas) {
		if m := metas[id]; m.state != stateDeleting && found[id] != chunks(m.have) {
			problem("blob %d: %d of %d chunks", id, found[id], chunks(m.have))
		}
	}
	return err
}

// Copier copies blobs into another file in short transactions, under a pin.
type Copier struct {
	src  *Store
	dst  File
	done map[ID]bool
}

// NewCopier prepares dst, which must not hold blobs yet. The caller pins src until
// the last call of the Copier.
func (s *Store) NewCopier(dst File) (*Copier, error) {
	if _, err := Open(dst, s.opt); err != nil {
		return nil, err
	}
	return &Copier{src: s, dst: dst, done: map[ID]bool{}}, nil
}

// Chunks copies the content of all referenced blobs that it has not copied yet and
// returns how many those were. Blobs are immutable, so calling it until few are
// left makes the final transaction short.
func (c *Copier) Chunks(ctx context.Context) (copied int, err error) {
	var todo []Info
	err = c.src.file.View(func(tx *bolt.Tx) error {
		todo, err = c.missing(tx)
		return err
	})
	if err != nil {
		return 0, err
	}
	for _, info := range todo {
		for n := uint32(0); n < chunks(uint64(info.Size)); n += windowChunks {
			if err := ctx.Err(); err != nil {
				return copied, err
			}
			if err := c.copyWindow(info, n); err != nil {
				return copied, fmt.Errorf("copy blob %d: %w", info.ID, err)
			}
		}
		c.done[info.ID] = true
		copied++
	}
	return copied, nil
}

func (c *Copier) missing(tx *bolt.Tx) (todo []Info, err error) {
	err = tx.Bucket(metaBucket).ForEach(func(k, v []byte) error {
		id, m, err := decodeEntry(k, v)
		if err == nil && m.state == stateComplete && m.refs > 0 && !c.done[id] {
			todo = append(todo, Info{ID: id, Size: int64(m.size), Sum: m.sum})
		}
		return err
	})
	return todo, err
}

func (c *Copier) copyWindow(info Info, first uint32) error {
	var window [][]byte
	defer func() { recycle(window) }()
	err := c.src.file.View(func(tx *bolt.Tx) error {
		for n := first; n < min(first+windowChunks, chunks(uint64(info.Size))); n++ {
			v, err := getChunk(tx.Bucket(chunkBucket), info, n)
			if err != nil {
				return err
			}
			buf := chunkPool.Get().(*[ChunkSize]byte)[:len(v)]
			copy(buf, v)
			window = append(window, buf)
		}
		return nil
	})
	if err != nil {
		return err
	}
	return c.dst.Update(func(tx *bolt.Tx) error {
		b := tx.Bucket(chunkBucket)
		b.FillPercent = 1.0
		for i, v := range window {
			if err := b.Put(chunkKey(info.ID, first+uint32(i)), v); err != nil {
				return err
			}
		}
		return nil
	})
}

// Finish copies, from the transaction that also yields the records, the chunks
// still missing and all descriptions. Uploads and half-written blobs stay behind.
func (c *Copier) Finish(src *bolt.Tx) error {
	todo, err := c.missing(src)
	if err != nil {
		return err
	}
	for _, info := range todo {
		for n := range chunks(uint64(info.Size)) {
			v, err := getChunk(src.Bucket(chunkBucket), info, n)
			if err != nil {
				return fmt.Errorf("copy blob %d: %w", info.ID, err)
			}
			err = c.dst.Update(func(tx *bolt.Tx) error { return tx.Bucket(chunkBucket).Put(chunkKey(info.ID, n), v) })
			if err != nil {
				return fmt.Errorf("copy blob %d: %w", info.ID, err)
			}
		}
		c.done[info.ID] = true
	}
	return c.dst.Update(func(dst *bolt.Tx) error {
		if err := dst.Bucket(metaBucket).SetSequence(src.Bucket(metaBucket).Sequence()); err != nil {
			return err
		}
		return src.Bucket(metaBucket).ForEach(func(k, v []byte) error {
			id, m, err := decodeEntry(k, v)
			if err != nil || !c.done[id] {
				return err
			}
			if err := dst.Bucket(metaBucket).Put(k, v); err != nil {
				return err
			}
			return dst.Bucket(sumBucket).Put(m.sum[:], idKey(id))
		})
	})
}
