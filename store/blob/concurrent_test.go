package blob

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"path/filepath"
	"sync"
	"testing"

	bolt "go.etcd.io/bbolt"
)

// TestConcurrent has writers of overlapping contents, readers and a collector at
// work together: no held or referenced blob may vanish or change.
func TestConcurrent(t *testing.T) {
	refs := map[ID]uint64{}
	s, f := open(t, Options{TxBytes: ChunkSize}, refs)
	var mu sync.Mutex // guards refs
	var writers, collector sync.WaitGroup
	stop := make(chan struct{})
	collector.Go(func() {
		for {
			select {
			case <-stop:
				return
			default:
				if _, err := s.Collect(t.Context(), false); err != nil && !errors.Is(err, ErrPinned) {
					t.Error(err)
					return
				}
			}
		}
	})
	work := func(rng *rand.Rand) error {
		data := content(rng.Uint64N(6), ChunkSize+rng.IntN(2)*ChunkSize+17)
		infos := make([]Info, 1)
		var err error
		if rng.IntN(2) == 0 {
			infos[0], err = s.Put(bytes.NewReader(data))
		} else {
			infos, err = s.PutAll(t.Context(), 2, func(int) ([]byte, error) { return data[:len(data)-5], nil })
			data = data[:len(data)-5]
		}
		if err != nil {
			return err
		}
		defer func() {
			for _, info := range infos {
				s.Release(info.ID)
			}
		}()
		r, err := s.Open(infos[0].ID)
		if err != nil {
			return err
		}
		defer r.Close()
		got, err := io.ReadAll(io.NewSectionReader(r, 0, r.Size()))
		if err != nil || !bytes.Equal(got, data) {
			return fmt.Errorf("read back other bytes: %w", err)
		}
		if rng.IntN(8) == 0 {
			mu.Lock()
			defer mu.Unlock()
			refs[infos[0].ID]++
			return f.DB.Update(func(tx *bolt.Tx) error { return s.AddRef(tx, infos[0].ID, 1) })
		}
		return nil
	}
	for i := range 4 {
		writers.Go(func() {
			rng := rand.New(rand.NewPCG(7, uint64(i)))
			for range 15 {
				if err := work(rng); err != nil {
					t.Error(err)
					return
				}
			}
		})
	}
	writers.Wait()
	close(stop)
	collector.Wait()
	if len(s.holds) != 0 || len(s.dying) != 0 {
		t.Errorf("holds %v and condemned %v are left", s.holds, s.dying)
	}
}

func FuzzDecodeMeta(f *testing.F) {
	m := meta{state: stateComplete, size: 5, have: 5, refs: 2, touched: 3, sum: Sum{1}}
	f.Add(m.encode())
	m.state, m.hash = stateWriting, []byte("state")
	f.Add(m.encode())
	f.Add([]byte{})
	f.Fuzz(func(t *testing.T, b []byte) {
		m, err := decodeMeta(b)
		if err != nil {
			if !errors.Is(err, ErrCorrupt) {
				t.Fatal(err)
			}
			return
		}
		if !bytes.Equal(m.encode(), b) {
			t.Fatalf("%x decodes to %+v and encodes to %x", b, m, m.encode())
		}
	})
}

func benchStore(b *testing.B) *Store {
	f := openBolt(b, filepath.Join(b.TempDir(), "blobs.db"), bolt.Options{})
	b.Cleanup(func() { f.Close() })
	s, err := Open(f, Options{})
	if err != nil {
		b.Fatal(err)
	}
	return s
}

const benchBytes = 256 << 20

func BenchmarkWrite256MiB(b *testing.B) {
	s := benchStore(b)
	data := content(1, benchBytes)
	b.SetBytes(benchBytes)
	for i := 0; b.Loop(); i++ {
		data[0], data[1] = byte(i), byte(i>>8)
		info, err := s.Put(bytes.NewReader(data))
		if err != nil {
			b.Fatal(err)
		}
		s.Release(info.ID)
		if _, err := s.Collect(b.Context(), false); err != nil {
			b.Fatal(err)
		}
	}
}

func BenchmarkRead256MiB(b *testing.B) {
	s := benchStore(b)
	r, err := s.Open(put(b, s, content(1, benchBytes)).ID)
	if err != nil {
		b.Fatal(err)
	}
	defer r.Close()
	dst := make([]byte, benchBytes)
	b.SetBytes(benchBytes)
	for b.Loop() {
		if _, err := r.ReadAt(dst, 0); err != nil {
			b.Fatal(err)
		}
	}
}
