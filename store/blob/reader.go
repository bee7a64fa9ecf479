package blob

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"sync/atomic"

	bolt "go.etcd.io/bbolt"
)

// windowChunks bounds how much one read transaction copies, so that none lasts.
const windowChunks = 16

// Reader reads one blob and holds it until Close. It is safe for concurrent use;
// every call copies out in short transactions.
type Reader struct {
	s      *Store
	info   Info
	closed atomic.Bool
}

// Open returns a reader of a complete blob.
func (s *Store) Open(id ID) (*Reader, error) {
	if !s.hold(id) {
		return nil, fmt.Errorf("open blob %d: %w", id, ErrNotFound)
	}
	info, err := s.Stat(id)
	if err != nil {
		s.Release(id)
		return nil, fmt.Errorf("open: %w", err)
	}
	return &Reader{s: s, info: info}, nil
}

// Info describes the blob.
func (r *Reader) Info() Info { return r.info }

// Size is the blob's length in bytes.
func (r *Reader) Size() int64 { return r.info.Size }

// Close ends the hold on the blob.
func (r *Reader) Close() error {
	if !r.closed.Swap(true) {
		r.s.Release(r.info.ID)
	}
	return nil
}

// ReadAt copies len(p) bytes at offset off straight from the file's mapping into p.
func (r *Reader) ReadAt(p []byte, off int64) (n int, err error) {
	if r.closed.Load() {
		return 0, fmt.Errorf("read blob %d: %w", r.info.ID, ErrClosed)
	}
	if off < 0 {
		return 0, fmt.Errorf("read blob %d: negative offset %d", r.info.ID, off)
	}
	if off >= r.info.Size {
		return 0, io.EOF
	}
	want := p
	if int64(len(p)) > r.info.Size-off {
		want = p[:r.info.Size-off]
	}
	for n < len(want) {
		k, err := r.window(want[n:], off+int64(n))
		n += k
		if err != nil {
			return n, fmt.Errorf("read blob %d: %w", r.info.ID, err)
		}
	}
	if n < len(p) {
		return n, io.EOF
	}
	return n, nil
}

// window copies at most windowChunks chunks' bytes in one transaction.
func (r *Reader) window(p []byte, off int64) (n int, err error) {
	err = r.s.file.View(func(tx *bolt.Tx) error {
		b := tx.Bucket(chunkBucket)
		for i := 0; i < windowChunks && n < len(p); i++ {
			at := off + int64(n)
			v, err := getChunk(b, r.info, uint32(at/ChunkSize))
			if err != nil {
				return err
			}
			n += copy(p[n:], v[at%ChunkSize:])
		}
		return nil
	})
	return n, err
}

// getChunk returns chunk n; the bytes die with the transaction.
func getChunk(b *bolt.Bucket, info Info, n uint32) ([]byte, error) {
	v := b.Get(chunkKey(info.ID, n))
	if want := chunkLen(uint64(info.Size), n); len(v) != want {
		return nil, fmt.Errorf("chunk %d has %d bytes, not %d: %w", n, len(v), want, ErrCorrupt)
	}
	return v, nil
}

// WriteTo writes the whole blob chunk by chunk; no transaction is open while w writes.
func (r *Reader) WriteTo(w io.Writer) (n int64, err error) {
	buf := chunkPool.Get().(*[ChunkSize]byte)
	defer chunkPool.Put(buf)
	for n < r.info.Size {
		k, err := r.ReadAt(buf[:min(r.info.Size-n, ChunkSize)], n)
		if err != nil {
			return n, err
		}
		m, err := w.Write(buf[:k])
		n += int64(m)
		if err != nil {
			return n, fmt.Errorf("write blob %d out: %w", r.info.ID, err)
		}
	}
	return n, nil
}

// Verify recomputes the hash of a blob.
func (s *Store) Verify(ctx context.Context, id ID) error {
	r, err := s.Open(id)
	if err != nil {
		return fmt.Errorf("verify: %w", err)
	}
	defer r.Close()
	h := sha256.New()
	if _, err := r.WriteTo(writerFunc(func(p []byte) (int, error) {
		if err := ctx.Err(); err != nil {
			return 0, err
		}
		return h.Write(p)
	})); err != nil {
		return fmt.Errorf("verify: %w", err)
	}
	if sum := Sum(h.Sum(nil)); sum != r.info.Sum {
		return fmt.Errorf("verify blob %d: content is %s, recorded was %s: %w", id, sum, r.info.Sum, errors.Join(ErrMismatch, ErrCorrupt))
	}
	return nil
}

type writerFunc func([]byte) (int, error)

func (f writerFunc) Write(p []byte) (int, error) { return f(p) }
