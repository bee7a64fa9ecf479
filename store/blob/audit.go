package blob

import (
	"encoding/binary"
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
