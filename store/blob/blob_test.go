package blob

import (
	"bytes"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"path/filepath"
	"sync/atomic"
	"testing"
	"time"

	bolt "go.etcd.io/bbolt"
)

// small makes transactions of two chunks, so that tests cross them.
var small = Options{TxBytes: 2 * ChunkSize}

// file is a bbolt file that counts its commits and can be watched before each.
type file struct {
	*bolt.DB
	updates atomic.Int64
	before  func()
}

func (f *file) Update(fn func(*bolt.Tx) error) error {
	if f.before != nil {
		f.before()
	}
	f.updates.Add(1)
	return f.DB.Update(fn)
}

func openBolt(t testing.TB, path string, opt bolt.Options) *file {
	t.Helper()
	opt.PageSize, opt.InitialMmapSize, opt.FreelistType = 16<<10, 1<<30, bolt.FreelistMapType
	db, err := bolt.Open(path, 0o600, &opt)
	if err != nil {
		t.Fatal(err)
	}
	db.AllocSize = 1 << 20
	return &file{DB: db}
}

// open opens a store whose file is reopened and audited in cleanup against refs,
// the references the test expects to stand at its end.
func open(t testing.TB, opt Options, refs map[ID]uint64) (*Store, *file) {
	t.Helper()
	path := filepath.Join(t.TempDir(), "blobs.db")
	f := openBolt(t, path, bolt.Options{})
	s, err := Open(f, opt)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := f.Close(); err != nil {
			t.Error(err)
		}
		g := openBolt(t, path, bolt.Options{})
		defer g.Close()
		s, err := Open(g, opt)
		if err != nil {
			t.Fatal(err)
		}
		audit(t, s, g, refs)
	})
	return s, f
}

// audit fails the test on any problem and verifies every hash.
func audit(t testing.TB, s *Store, f *file, refs map[ID]uint64) []ID {
	t.Helper()
	var ids []ID
	err := f.View(func(tx *bolt.Tx) (err error) {
		for err := range tx.Check() {
			t.Error(err)
		}
		ids, err = s.Audit(tx, refs, func(format string, args ...any) { t.Errorf(format, args...) })
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	for _, id := range ids {
		if err := s.Verify(context.Background(), id); err != nil {
			t.Error(err)
		}
	}
	return ids
}

// content is size bytes that depend on the seed.
func content(seed uint64, size int) []byte {
	b := make([]byte, size)
	r := rand.NewChaCha8([32]byte{byte(seed), byte(seed >> 8), 1})
	_, _ = r.Read(b)
	return b
}

func put(t testing.TB, s *Store, data []byte) Info {
	t.Helper()
	info, err := s.Put(bytes.NewReader(data))
	if err != nil {
		t.Fatal(err)
	}
	return info
}

func get(t testing.TB, s *Store, id ID) []byte {
	t.Helper()
	r, err := s.Open(id)
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	var b bytes.Buffer
	if _, err := r.WriteTo(&b); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

func (s *Store) addRefs(t testing.TB, f *file, id ID, delta int) {
	t.Helper()
	if err := f.Update(func(tx *bolt.Tx) error { return s.AddRef(tx, id, delta) }); err != nil {
		t.Fatal(err)
	}
}

func TestRoundTrip(t *testing.T) {
	s, _ := open(t, small, nil)
	for i, size := range []int{0, 1, ChunkSize - 1, ChunkSize, ChunkSize + 1, 2 * ChunkSize, 5*ChunkSize + 77, 40*ChunkSize + 3} {
		t.Run(fmt.Sprint(size), func(t *testing.T) {
			data := content(uint64(i), size)
			info := put(t, s, data)
			if info.Size != int64(size) || info.Sum != sha256.Sum256(data) {
				t.Fatalf("info %+v", info)
			}
			if got := get(t, s, info.ID); !bytes.Equal(got, data) {
				t.Fatal("WriteTo returned other bytes")
			}
			r, err := s.Open(info.ID)
			if err != nil {
				t.Fatal(err)
			}
			defer r.Close()
			whole, err := io.ReadAll(io.NewSectionReader(r, 0, r.Size()))
			if err != nil || !bytes.Equal(whole, data) {
				t.Fatalf("reading by section: %v", err)
			}
			rng := rand.New(rand.NewPCG(1, uint64(size)))
			for range 20 {
				off, n := rng.Int64N(int64(size)+2), rng.IntN(size+2)
				p := make([]byte, n)
				want, err := bytes.NewReader(data).ReadAt(p, off)
				wantBytes := bytes.Clone(p[:want])
				clear(p)
				got, gotErr := r.ReadAt(p, off)
				if got != want || !errors.Is(gotErr, err) || !bytes.Equal(p[:got], wantBytes) {
					t.Fatalf("ReadAt(%d, %d) = %d, %v; want %d, %v", n, off, got, gotErr, want, err)
				}
			}
			if _, err := r.ReadAt(make([]byte, 1), -1); err == nil {
				t.Fatal("negative offset accepted")
			}
		})
	}
}

func TestKnownContentIsNotWritten(t *testing.T) {
	s, f := open(t, small, nil)
	data := content(1, 5*ChunkSize+5)
	first := put(t, s, data)
	before := f.updates.Load()
	infos, err := s.PutAll(t.Context(), 2, func(int) ([]byte, error) { return data, nil })
	if err != nil || infos[0] != first || infos[1] != first {
		t.Fatalf("PutAll = %v, %v; want %v twice", infos, err, first)
	}
	w, have, err := s.OpenPartial(first.Sum, first.Size)
	if err != nil || have != first.Size {
		t.Fatalf("OpenPartial: have %d, %v", have, err)
	}
	if info, err := w.Commit(); err != nil || info != first {
		t.Fatalf("Commit = %v, %v", info, err)
	}
	if f.updates.Load() != before {
		t.Errorf("known content took %d commits", f.updates.Load()-before)
	}
	small := content(2, 100)
	one := put(t, s, small)
	before = f.updates.Load()
	if two := put(t, s, small); two != one || f.updates.Load() != before {
		t.Errorf("small known content: blob %d then %d, %d commits", one.ID, two.ID, f.updates.Load()-before)
	}
	// Longer than a transaction, the hash is known only at the end: the copy goes.
	if again := put(t, s, data); again != first {
		t.Errorf("second copy is blob %d, not %d", again.ID, first.ID)
	}
	u, err := s.Usage()
	if err != nil || u.Blobs != 2 || u.Uploads != 0 {
		t.Errorf("usage %+v, %v", u, err)
	}
}

func TestPutAll(t *testing.T) {
	s, f := open(t, small, nil)
	sizes := []int{10, 0, 10, 3 * ChunkSize, ChunkSize + 1, 7, 2 * ChunkSize, 10}
	data := make([][]byte, len(sizes))
	for i, n := range sizes {
		data[i] = content(uint64(n), n) // equal sizes are equal contents
	}
	infos, err := s.PutAll(t.Context(), len(data), func(i int) ([]byte, error) { return data[i], nil })
	if err != nil {
		t.Fatal(err)
	}
	for i, info := range infos {
		if !bytes.Equal(get(t, s, info.ID), data[i]) {
			t.Errorf("content %d differs", i)
		}
	}
	if infos[0].ID != infos[2].ID || infos[0].ID != infos[7].ID {
		t.Error("equal contents are different blobs")
	}
	before := f.updates.Load()
	many, err := s.PutAll(t.Context(), 100, func(i int) ([]byte, error) { return content(uint64(1000+i), 100), nil })
	if err != nil || len(many) != 100 {
		t.Fatal(err)
	}
	// Each small blob takes a chunk buffer, two of which fill a transaction here.
	if got := f.updates.Load() - before; got > 50 {
		t.Errorf("100 small blobs took %d commits", got)
	}
	bad := errors.New("device lost")
	if _, err := s.PutAll(t.Context(), 3, func(i int) ([]byte, error) { return []byte{byte(i)}, bad }); !errors.Is(err, bad) {
		t.Errorf("error lost: %v", err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := s.PutAll(ctx, 1, func(i int) ([]byte, error) { return nil, nil }); !errors.Is(err, context.Canceled) {
		t.Errorf("cancelled PutAll: %v", err)
	}
	for _, info := range append(infos, many...) {
		s.Release(info.ID)
	}
	c, err := s.Collect(t.Context(), false)
	if err != nil || c.Blobs != 106 {
		t.Errorf("collected %+v, %v; every hold was released, so 106 blobs should go", c, err)
	}
}

func TestCollect(t *testing.T) {
	refs := map[ID]uint64{}
	s, f := open(t, small, refs)
	kept, held, open, loose := put(t, s, content(1, 3*ChunkSize)), put(t, s, content(2, 10)), put(t, s, content(3, 10)), put(t, s, make([]byte, 300*ChunkSize))
	s.addRefs(t, f, kept.ID, 2)
	r, err := s.Open(open.ID)
	if err != nil {
		t.Fatal(err)
	}
	s.Release(kept.ID, open.ID, loose.ID)

	dry, err := s.Collect(t.Context(), true)
	if err != nil || dry.Blobs != 1 || dry.Bytes != loose.Size {
		t.Fatalf("dry run %+v, %v", dry, err)
	}
	if err := s.Verify(t.Context(), loose.ID); err != nil {
		t.Fatalf("dry run deleted: %v", err)
	}
	unpin := s.Pin()
	if _, err := s.Collect(t.Context(), false); !errors.Is(err, ErrPinned) {
		t.Fatalf("collect while pinned: %v", err)
	}
	unpin()
	wet, err := s.Collect(t.Context(), false)
	if err != nil || wet != dry {
		t.Fatalf("collected %+v, %v; dry run said %+v", wet, err, dry)
	}
	if _, err := s.Open(loose.ID); !errors.Is(err, ErrNotFound) {
		t.Errorf("collected blob opens: %v", err)
	}
	if again := put(t, s, make([]byte, 300*ChunkSize)); again.ID == loose.ID {
		t.Error("id used twice")
	} else {
		s.Release(again.ID)
	}
	for _, id := range []ID{kept.ID, held.ID, open.ID} {
		if err := s.Verify(t.Context(), id); err != nil {
			t.Error(err)
		}
	}
	r.Close()
	if _, err := r.ReadAt(make([]byte, 1), 0); !errors.Is(err, ErrClosed) {
		t.Errorf("read after close: %v", err)
	}
	s.Release(held.ID)
	s.addRefs(t, f, kept.ID, -1)
	if c, err := s.Collect(t.Context(), false); err != nil || c.Blobs != 3 {
		t.Errorf("collected %+v, %v", c, err)
	}
	refs[kept.ID] = 1
	err = f.Update(func(tx *bolt.Tx) error { return s.AddRef(tx, kept.ID, -2) })
	if !errors.Is(err, ErrCorrupt) {
		t.Errorf("count below zero: %v", err)
	}
	err = f.Update(func(tx *bolt.Tx) error { return s.AddRef(tx, loose.ID, 1) })
	if !errors.Is(err, ErrNotFound) {
		t.Errorf("reference to a collected blob: %v", err)
	}
}

func TestUploadResumes(t *testing.T) {
	path := filepath.Join(t.TempDir(), "blobs.db")
	data := content(9, 7*ChunkSize+1234)
	sum := Sum(sha256.Sum256(data))
	var at int64
	for round := 0; ; round++ { // a restart for each part of the upload
		f := openBolt(t, path, bolt.Options{})
		s, err := Open(f, small)
		if err != nil {
			t.Fatal(err)
		}
		if c, err := s.Collect(t.Context(), false); err != nil || c.Parts != 0 {
			t.Fatalf("collected %+v, %v", c, err)
		}
		if have, size, err := s.Partial(sum); round > 0 && (err != nil || have != at || size != int64(len(data))) {
			t.Fatalf("round %d: Partial = %d, %d, %v", round, have, size, err)
		}
		w, have, err := s.OpenPartial(sum, int64(len(data)))
		if err != nil || have != at {
			t.Fatalf("round %d: have %d, want %d, %v", round, have, at, err)
		}
		if _, _, err := s.OpenPartial(sum, int64(len(data))); !errors.Is(err, ErrBusy) {
			t.Fatalf("second writer: %v", err)
		}
		part := data[at:min(at+1_700_001, int64(len(data)))]
		if n, err := w.Write(part); err != nil || n != len(part) {
			t.Fatal(n, err)
		}
		at += int64(len(part))
		if at < int64(len(data)) {
			if _, err := w.Commit(); !errors.Is(err, ErrShort) {
				t.Fatalf("commit of a part: %v", err)
			}
			if err := w.Close(); err != nil {
				t.Fatal(err)
			}
			f.Close()
			continue
		}
		if _, err := w.Write([]byte{0}); !errors.Is(err, ErrTooLong) {
			t.Fatalf("one byte more: %v", err)
		}
		info, err := w.Commit()
		if err != nil || info.Sum != sum || !bytes.Equal(get(t, s, info.ID), data) {
			t.Fatalf("commit: %v, %v", info, err)
		}
		audit(t, s, f, nil)
		f.Close()
		return
	}
}

func TestUploadRefused(t *testing.T) {
	now := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	opt := small
	opt.Now = func() time.Time { return now }
	s, _ := open(t, opt, nil)
	data := content(1, 3*ChunkSize)
	sum := Sum(sha256.Sum256(data))
	w, _, err := s.OpenPartial(Sum{1}, int64(len(data)))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := w.Write(data); err != nil {
		t.Fatal(err)
	}
	if _, err := w.Commit(); !errors.Is(err, ErrMismatch) {
		t.Fatalf("other content accepted: %v", err)
	}
	if _, _, err := s.Partial(Sum{1}); !errors.Is(err, ErrNotFound) {
		t.Errorf("refused content is kept: %v", err)
	}
	if _, _, err := s.OpenPartial(sum, -1); err == nil {
		t.Error("negative size accepted")
	}
	w, _, err = s.OpenPartial(sum, 1<<40) // nothing is allocated for what is announced
	if err != nil {
		t.Fatal(err)
	}
	if _, err := w.Write(data[:ChunkSize+1]); err != nil {
		t.Fatal(err)
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	w, have, err := s.OpenPartial(sum, int64(len(data)))
	if err != nil || have != 0 {
		t.Errorf("another size resumed at %d, %v", have, err)
	}
	if _, err := w.Write(data[:10]); err != nil {
		t.Fatal(err)
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	now = now.Add(8 * 24 * time.Hour)
	if c, err := s.Collect(t.Context(), false); err != nil || c.Parts != 1 || c.Bytes != 10 {
		t.Errorf("old upload: collected %+v, %v", c, err)
	}
	if _, _, err := s.Partial(sum); !errors.Is(err, ErrNotFound) {
		t.Errorf("old upload is kept: %v", err)
	}
}

// TestCrash takes the file as it is before each commit of a series of operations,
// as a crash would leave it, and opens the copy.
func TestCrash(t *testing.T) {
	refs := map[ID]uint64{}
	s, f := open(t, small, refs)
	dir := t.TempDir()
	contents := map[Sum][]byte{}
	known := func(data []byte) []byte { contents[sha256.Sum256(data)] = data; return data }
	cuts, committed := 0, map[ID]bool{}
	f.before = func() {
		cuts++
		path := filepath.Join(dir, fmt.Sprint(cuts))
		copyFile(t, f.Path(), path)
		g := openBolt(t, path, bolt.Options{})
		defer os.Remove(path)
		defer g.Close()
		c, err := Open(g, small)
		if err != nil {
			t.Fatalf("cut %d: %v", cuts, err)
		}
		there := map[ID]bool{}
		for _, id := range audit(t, c, g, refs) {
			there[id] = true
			info, err := c.Stat(id)
			if err != nil || !bytes.Equal(get(t, c, id), contents[info.Sum]) {
				t.Errorf("cut %d: blob %d isn't what was written: %v", cuts, id, err)
			}
		}
		for id := range committed {
			if !there[id] {
				t.Errorf("cut %d: committed blob %d is gone", cuts, id)
			}
		}
		u, err := c.Usage()
		if err != nil || u.Uploads > 1 {
			t.Errorf("cut %d: debris after open: %+v, %v", cuts, u, err)
		}
	}
	a := put(t, s, known(content(1, 9*ChunkSize+1)))
	committed[a.ID] = true
	b := put(t, s, known(content(2, 5*ChunkSize)))
	put(t, s, contents[b.Sum])
	s.Release(b.ID, b.ID)
	if _, err := s.Collect(t.Context(), false); err != nil {
		t.Fatal(err)
	}
	up := known(content(3, 6*ChunkSize+9))
	w, _, err := s.OpenPartial(sha256.Sum256(up), int64(len(up)))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := w.Write(up); err != nil {
		t.Fatal(err)
	}
	if _, err := w.Commit(); err != nil {
		t.Fatal(err)
	}
	w = s.NewWriter()
	if _, err := w.Write(content(4, 5*ChunkSize)); err != nil {
		t.Fatal(err)
	}
	if err := w.Abort(); err != nil {
		t.Fatal(err)
	}
	if cuts < 20 {
		t.Errorf("only %d cuts", cuts)
	}
	f.before = nil
}

func copyFile(t testing.TB, from, to string) {
	t.Helper()
	src, err := os.Open(from)
	if err != nil {
		t.Fatal(err)
	}
	defer src.Close()
	dst, err := os.Create(to)
	if err != nil {
		t.Fatal(err)
	}
	defer dst.Close()
	if _, err := io.Copy(dst, src); err != nil {
		t.Fatal(err)
	}
}

func TestDiskFull(t *testing.T) {
	path := filepath.Join(t.TempDir(), "blobs.db")
	// Chunks lie in pages of two or three, one piece each. What is left free
	// around the older blob's must hold such a piece, however they came to lie.
	f := openBolt(t, path, bolt.Options{MaxSize: 48 << 20})
	defer f.Close()
	s, err := Open(f, small)
	if err != nil {
		t.Fatal(err)
	}
	old := content(1, 4*ChunkSize)
	info := put(t, s, old)
	if _, err := s.Put(bytes.NewReader(content(2, 60*ChunkSize))); err == nil {
		t.Fatal("60 MiB fit into 48")
	}
	if !bytes.Equal(get(t, s, info.ID), old) {
		t.Error("older blob changed")
	}
	u, err := s.Usage()
	if err != nil || u.Blobs != 1 || u.Uploads != 0 {
		t.Errorf("usage %+v, %v: the failed write should be gone", u, err)
	}
	put(t, s, content(3, 3*ChunkSize)) // there is room again
	audit(t, s, f, nil)
}

func TestVerifyFindsDamage(t *testing.T) {
	path := filepath.Join(t.TempDir(), "blobs.db")
	f := openBolt(t, path, bolt.Options{})
	s, err := Open(f, small)
	if err != nil {
		t.Fatal(err)
	}
	data := content(1, 3*ChunkSize)
	info := put(t, s, data)
	f.Close()
	raw, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	some := data[ChunkSize+500 : ChunkSize+600]
	if !bytes.Contains(raw, some) {
		t.Fatal("content isn't in the file as it is")
	}
	raw = bytes.ReplaceAll(raw, some, append([]byte{some[0] ^ 1}, some[1:]...)) // free pages may have copies
	if err := os.WriteFile(path, raw, 0o600); err != nil {
		t.Fatal(err)
	}
	f = openBolt(t, path, bolt.Options{})
	defer f.Close()
	if s, err = Open(f, small); err != nil {
		t.Fatal(err)
	}
	if err := s.Verify(t.Context(), info.ID); !errors.Is(err, ErrCorrupt) || !errors.Is(err, ErrMismatch) {
		t.Errorf("one flipped bit: %v", err)
	}
}
