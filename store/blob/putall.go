package blob

import (
	"context"
	"crypto/sha256"
	"fmt"

	bolt "go.etcd.io/bbolt"
)

// PutAll stores the n contents that get returns, many small ones to a
// transaction, and returns their blobs in order, each held by the caller once per
// entry. The bytes are borrowed until the next call of get. On error nothing stays
// held; what was stored is left to Collect.
func (s *Store) PutAll(ctx context.Context, n int, get func(i int) ([]byte, error)) ([]Info, error) {
	p := packer{s: s, fresh: map[Sum]*packed{}}
	err := func() error {
		for i := range n {
			if err := ctx.Err(); err != nil {
				return fmt.Errorf("put blob %d of %d: %w", i+1, n, err)
			}
			data, err := get(i)
			if err == nil {
				err = p.add(data)
			}
			if err != nil {
				return fmt.Errorf("put blob %d of %d: %w", i+1, n, err)
			}
		}
		if err := p.flush(); err != nil {
			return fmt.Errorf("put %d blobs: %w", n, err)
		}
		return nil
	}()
	if err != nil {
		for _, e := range p.queue {
			recycle(e.chunks)
		}
		for _, info := range p.infos {
			s.Release(info.ID)
		}
		return nil, err
	}
	return p.infos, nil
}

// packer gathers small contents into one transaction.
type packer struct {
	s     *Store
	infos []Info          // one per content, in order; ids are final after flush
	queue []*packed       // not yet in the file
	fresh map[Sum]*packed // the queue by content
	bytes int             // of chunk buffers in the queue
}

// packed is one content waiting for the transaction.
type packed struct {
	sum    Sum
	chunks [][]byte
	users  []int // indices into infos
}

func (p *packer) add(data []byte) error {
	sum := Sum(sha256.Sum256(data))
	if e := p.fresh[sum]; e != nil {
		info := p.infos[e.users[0]]
		p.s.hold(info.ID)
		e.users = append(e.users, len(p.infos))
		p.infos = append(p.infos, info)
		return nil
	}
	info, ok, err := p.s.Known(sum)
	if err != nil {
		return err
	}
	if ok {
		p.infos = append(p.infos, info)
		return nil
	}
	if len(data) > p.s.opt.TxBytes {
		return p.stream(data)
	}
	e := &packed{sum: sum, users: []int{len(p.infos)}}
	p.infos = append(p.infos, Info{ID: p.s.newID(), Size: int64(len(data)), Sum: sum})
	for len(data) > 0 {
		c := chunkPool.Get().(*[ChunkSize]byte)
		k := copy(c[:], data)
		e.chunks = append(e.chunks, c[:k])
		data = data[k:]
		p.bytes += ChunkSize
	}
	p.queue = append(p.queue, e)
	p.fresh[sum] = e
	if p.bytes >= p.s.opt.TxBytes {
		return p.flush()
	}
	return nil
}

// stream stores content that is more than a transaction's worth.
func (p *packer) stream(data []byte) error {
	w := p.s.NewWriter()
	defer w.Close()
	if _, err := w.Write(data); err != nil {
		return err
	}
	info, err := w.Commit()
	if err != nil {
		return err
	}
	p.infos = append(p.infos, info)
	return nil
}

// flush commits the queue.
func (p *packer) flush() error {
	if len(p.queue) == 0 {
		return nil
	}
	now := p.s.opt.Now().UnixNano()
	twins := map[*packed]ID{}
	err := p.s.file.Update(func(tx *bolt.Tx) error {
		b := tx.Bucket(chunkBucket)
		b.FillPercent = 1.0
		for _, e := range p.queue {
			info := p.infos[e.users[0]]
			id, twin, err := p.s.twin(tx, e.sum, info.ID)
			if err != nil {
				return err
			}
			if twin {
				twins[e] = id
				continue
			}
			for n, c := range e.chunks {
				if err := b.Put(chunkKey(info.ID, uint32(n)), c); err != nil {
					return err
				}
			}
			if err := finish(tx, info, now); err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		for _, id := range twins {
			p.s.Release(id)
		}
		return err
	}
	for _, e := range p.queue {
		recycle(e.chunks)
		if id, ok := twins[e]; ok {
			p.adopt(e, id)
		}
	}
	p.queue, p.bytes = nil, 0
	clear(p.fresh)
	return nil
}

// adopt moves the users of e to the blob that someone else stored meanwhile and
// that is held once.
func (p *packer) adopt(e *packed, id ID) {
	for i, user := range e.users {
		if i > 0 {
			p.s.hold(id)
		}
		p.s.Release(p.infos[user].ID)
		p.infos[user].ID = id
	}
}
