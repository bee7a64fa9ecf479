package blob

import (
	"context"
	"fmt"

	bolt "go.etcd.io/bbolt"
)

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
	var batch []span
	left := c.src.opt.TxBytes
	flush := func() error {
		err := c.copyBatch(batch)
		batch, left = batch[:0], c.src.opt.TxBytes
		return err
	}
	for _, info := range todo {
		for n, end := uint32(0), chunks(uint64(info.Size)); n < end; {
			if err := ctx.Err(); err != nil {
				return 0, err
			}
			k := min(end-n, windowChunks)
			batch = append(batch, span{info, n, n + k})
			n += k
			if left -= int(k) * ChunkSize; left <= 0 {
				if err := flush(); err != nil {
					return 0, err
				}
			}
		}
	}
	if err := flush(); err != nil {
		return 0, err
	}
	for _, info := range todo {
		c.done[info.ID] = true
	}
	return len(todo), nil
}

// span is some chunks of a blob, few enough for one read transaction.
type span struct {
	info     Info
	from, to uint32
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

// copyBatch reads each span in a transaction of its own and writes all in one:
// many small commits would each rewrite the last leaf of chunks.
func (c *Copier) copyBatch(batch []span) error {
	if len(batch) == 0 {
		return nil
	}
	var window [][]byte
	defer func() { recycle(window) }()
	for _, s := range batch {
		err := c.src.file.View(func(tx *bolt.Tx) error {
			for n := s.from; n < s.to; n++ {
				v, err := getChunk(tx.Bucket(chunkBucket), s.info, n)
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
			return fmt.Errorf("copy blob %d: %w", s.info.ID, err)
		}
	}
	err := c.dst.Update(func(tx *bolt.Tx) error {
		b := tx.Bucket(chunkBucket)
		b.FillPercent = 1.0
		next := window
		for _, s := range batch {
			for n := s.from; n < s.to; n++ {
				if err := b.Put(chunkKey(s.info.ID, n), next[0]); err != nil {
					return err
				}
				next = next[1:]
			}
		}
		return nil
	})
	if err != nil {
		return fmt.Errorf("copy blobs: %w", err)
	}
	return nil
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
