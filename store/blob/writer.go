package blob

import (
	"crypto/sha256"
	"encoding"
	"errors"
	"fmt"
	"hash"
	"io"
	"sync"

	bolt "go.etcd.io/bbolt"
)

// chunkPool keeps chunk buffers: bbolt borrows the bytes until commit, so a
// transaction's worth of them is needed at once.
var chunkPool = sync.Pool{New: func() any { return new([ChunkSize]byte) }}

func recycle(chunks [][]byte) {
	for _, c := range chunks {
		chunkPool.Put((*[ChunkSize]byte)(c[:ChunkSize]))
	}
}

// Writer takes the content of one blob. It isn't safe for concurrent use. The
// deferred Close of a Writer is right in every case. While one transaction's worth
// of chunks is being committed it takes and hashes the next.
type Writer struct {
	s       *Store
	id      ID
	hash    hash.Hash
	size    int64      // bytes taken
	first   uint32     // number of the first pending chunk; all before are in the file or on their way
	stored  bool       // the file knows the id, or will
	pending [][]byte   // chunks, all full but the last, each backed by a pooled array
	flight  chan error // of the commit that is under way; nil if none is
	err     error      // first failure or ErrClosed, returned from then on

	announced *announced // non-nil for a resumable upload
	known     *Info      // the content was there before the first byte
}

// announced is what the client said about a resumable upload.
type announced struct {
	sum  Sum
	size int64
}

// NewWriter begins a blob. It stores chunks as they fill up a transaction.
func (s *Store) NewWriter() *Writer {
	return &Writer{s: s, id: s.newID(), hash: sha256.New()}
}

// Size is the number of bytes taken so far.
func (w *Writer) Size() int64 { return w.size }

// Write takes the next bytes. On error the writer is done for.
func (w *Writer) Write(p []byte) (n int, err error) {
	if w.err != nil {
		return 0, fmt.Errorf("write blob: %w", w.err)
	}
	if limit := w.limit(); int64(len(p)) > limit-w.size {
		return 0, fmt.Errorf("write blob: %d bytes after %d of %d: %w", len(p), w.size, limit, ErrTooLong)
	}
	for len(p) > 0 {
		c := w.room()
		k := copy(c[len(c):ChunkSize], p)
		n += k
		p = p[k:]
		if err := w.take(k); err != nil {
			return n, fmt.Errorf("write blob: %w", err)
		}
	}
	return n, nil
}

// ReadFrom takes everything from r, which reads straight into the chunks. What was
// read before an error is taken.
func (w *Writer) ReadFrom(r io.Reader) (n int64, err error) {
	if w.err != nil {
		return 0, fmt.Errorf("write blob: %w", w.err)
	}
	limit := w.limit()
	for {
		var k int
		if left := limit - w.size; left == 0 {
			if k, err = r.Read(make([]byte, 1)); k > 0 {
				return n, fmt.Errorf("write blob: more than %d bytes: %w", limit, ErrTooLong)
			}
		} else {
			c := w.room()
			k, err = r.Read(c[len(c):min(ChunkSize, int64(len(c))+left)])
		}
		if k > 0 {
			n += int64(k)
			if failed := w.take(k); failed != nil {
				return n, fmt.Errorf("write blob: %w", failed)
			}
		}
		if errors.Is(err, io.EOF) {
			return n, nil
		}
		if err != nil {
			return n, err
		}
	}
}

func (w *Writer) limit() int64 {
	if w.announced != nil {
		return w.announced.size
	}
	return maxSize
}

// room returns the last pending chunk, which has room for at least one byte.
func (w *Writer) room() []byte {
	if n := len(w.pending); n > 0 && len(w.pending[n-1]) < ChunkSize {
		return w.pending[n-1]
	}
	c := chunkPool.Get().(*[ChunkSize]byte)[:0]
	w.pending = append(w.pending, c)
	return c
}

// take counts k bytes that were put into the room, and begins a commit when it is
// time for one.
func (w *Writer) take(k int) error {
	last := &w.pending[len(w.pending)-1]
	end := len(*last)
	*last = (*last)[:end+k]
	w.hash.Write((*last)[end:])
	w.size += int64(k)
	if end+k < ChunkSize {
		return nil
	}
	n := len(w.pending) * ChunkSize
	switch {
	case n >= w.s.opt.TxBytes/2:
		if w.err = w.land(); w.err != nil {
			return w.err
		}
	case n < w.s.opt.TxBytes/4 || !w.landed():
		return nil
	}
	w.err = w.start()
	return w.err
}

// landed reports whether no commit is under way.
func (w *Writer) landed() bool {
	if w.flight == nil {
		return true
	}
	select {
	case err := <-w.flight:
		w.flight <- err // for land: the channel holds one
		return true
	default:
		return false
	}
}

// land waits for the commit that is under way.
func (w *Writer) land() error {
	if w.flight == nil {
		return nil
	}
	err := <-w.flight
	w.flight = nil
	return err
}

// flush commits the pending chunks of a blob that isn't finished, the last one short or not.
func (w *Writer) flush() error {
	if err := w.start(); err != nil {
		return err
	}
	return w.land()
}

// start begins to commit the pending chunks, after the commit before. They are the
// whole of what was taken, so the saved hash goes with them.
func (w *Writer) start() error {
	if err := w.land(); err != nil || len(w.pending) == 0 {
		return err
	}
	m := meta{state: stateWriting, size: uint64(w.size), have: uint64(w.size), touched: w.s.opt.Now().UnixNano()}
	if w.announced != nil {
		m.size, m.sum = uint64(w.announced.size), w.announced.sum
		state, err := w.hash.(encoding.BinaryMarshaler).MarshalBinary()
		if err != nil {
			return fmt.Errorf("save hash state: %w", err)
		}
		m.hash = state
	}
	id, first, chunks := w.id, w.first, w.pending
	var sum []byte // of an upload
	if w.announced != nil {
		sum = m.sum[:]
	}
	w.stored = true
	w.first += uint32(len(chunks))
	w.pending = nil
	flight := make(chan error, 1)
	w.flight = flight
	go func() {
		err := w.s.file.Update(func(tx *bolt.Tx) error {
			if sum != nil {
				if err := tx.Bucket(partialBucket).Put(sum, idKey(id)); err != nil {
					return err
				}
			}
			if err := putMeta(tx, id, m); err != nil {
				return err
			}
			return putChunks(tx, id, first, chunks)
		})
		recycle(chunks)
		flight <- err
	}()
	return nil
}

func putChunks(tx *bolt.Tx, id ID, first uint32, chunks [][]byte) error {
	b := tx.Bucket(chunkBucket)
	b.FillPercent = 1.0 // keys only ever append
	for i, c := range chunks {
		if err := b.Put(chunkKey(id, first+uint32(i)), c); err != nil {
			return err
		}
	}
	return nil
}

// Commit ends the content and makes the blob visible; the caller holds it and
// must Release it once a record refers to it. If the same content was there
// already, that blob is returned and this copy is discarded.
func (w *Writer) Commit() (Info, error) {
	info, err := w.commit()
	if err != nil {
		return Info{}, fmt.Errorf("commit blob: %w", err)
	}
	return info, nil
}

func (w *Writer) commit() (Info, error) {
	if w.err != nil {
		return Info{}, w.err
	}
	if w.known != nil {
		w.end()
		return *w.known, nil
	}
	if w.err = w.land(); w.err != nil {
		return Info{}, w.err
	}
	sum := Sum(w.hash.Sum(nil))
	if a := w.announced; a != nil {
		if w.size < a.size {
			return Info{}, fmt.Errorf("%d of %d bytes: %w", w.size, a.size, ErrShort)
		}
		if sum != a.sum {
			return Info{}, errors.Join(fmt.Errorf("content is %s, announced was %s: %w; send it again", sum, a.sum, ErrMismatch), w.Abort())
		}
	}
	if !w.stored {
		if info, ok, err := w.s.Known(sum); err != nil || ok {
			if err == nil {
				w.discard()
			}
			return info, err
		}
	}
	info := Info{ID: w.id, Size: w.size, Sum: sum}
	twin := false
	err := w.s.file.Update(func(tx *bolt.Tx) (err error) {
		if info.ID, twin, err = w.s.twin(tx, sum, w.id); err != nil || twin {
			return err
		}
		if w.announced != nil {
			if err := tx.Bucket(partialBucket).Delete(sum[:]); err != nil {
				return err
			}
		}
		if err := putChunks(tx, w.id, w.first, w.pending); err != nil {
			return err
		}
		return finish(tx, info, w.s.opt.Now().UnixNano())
	})
	if err != nil {
		if twin {
			w.s.Release(info.ID)
		}
		w.err = err
		return Info{}, err
	}
	if twin {
		w.discard()
		return info, nil
	}
	w.end()
	return info, nil
}

// twin returns the complete blob with this content, now held, or own if there is
// none or collection has begun to take it away. It needs a write transaction.
func (s *Store) twin(tx *bolt.Tx, sum Sum, own ID) (id ID, found bool, err error) {
	id, err = lookup(tx, sum)
	if err != nil || id == 0 || !s.hold(id) {
		return own, false, err
	}
	return id, true, nil
}

// finish makes the blob visible in the transaction that stores its last chunk.
func finish(tx *bolt.Tx, info Info, now int64) error {
	m := meta{state: stateComplete, size: uint64(info.Size), have: uint64(info.Size), sum: info.Sum, touched: now}
	if err := putMeta(tx, info.ID, m); err != nil {
		return err
	}
	return tx.Bucket(sumBucket).Put(info.Sum[:], idKey(info.ID))
}

// end makes the writer unusable and gives its buffers back. No commit is under way.
func (w *Writer) end() {
	recycle(w.pending)
	w.pending = nil
	w.err = ErrClosed
	if w.announced != nil {
		w.s.mu.Lock()
		delete(w.s.busy, w.announced.sum)
		w.s.mu.Unlock()
	}
}

// discard ends the writer and drops what it stored. A failure to delete leaves
// invisible chunks that Collect or the next Open deletes.
func (w *Writer) discard() {
	if w.known == nil && (w.stored || w.announced != nil) {
		_ = w.s.purge([]ID{w.id})
	}
	w.end()
	w.s.Release(w.id)
}

// Abort drops the content, also of a resumable upload.
func (w *Writer) Abort() error {
	if errors.Is(w.err, ErrClosed) {
		return nil
	}
	_ = w.land() // what it stored goes, and if it failed nothing was stored
	var err error
	if w.known == nil && (w.stored || w.announced != nil) {
		err = w.s.purge([]ID{w.id})
	}
	w.end()
	w.s.Release(w.id)
	if err != nil {
		return fmt.Errorf("abort blob: %w", err)
	}
	return nil
}

// Close ends a writer that was not committed: a resumable upload keeps what it
// has, any other content is dropped. After Commit or Abort it does nothing.
func (w *Writer) Close() error {
	if errors.Is(w.err, ErrClosed) {
		return nil
	}
	if w.announced == nil || w.known != nil {
		return w.Abort()
	}
	err := w.land()
	if err == nil && w.err == nil {
		err = w.flush()
	}
	w.end()
	w.s.Release(w.id)
	if err != nil {
		return fmt.Errorf("suspend upload: %w", err)
	}
	return nil
}

// Put stores everything from r as a blob, held by the caller.
func (s *Store) Put(r io.Reader) (Info, error) {
	w := s.NewWriter()
	defer w.Close()
	if _, err := io.Copy(w, r); err != nil {
		return Info{}, fmt.Errorf("put blob: %w", err)
	}
	return w.Commit()
}
