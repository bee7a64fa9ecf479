package blob

import (
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"sync"
	"time"

	bolt "go.etcd.io/bbolt"
)

// ChunkSize is the number of bytes in every chunk of a blob but its last.
const ChunkSize = 1 << 20

// Errors of this package; every returned error wraps one of them or comes from the file.
var (
	// ErrNotFound is returned when no complete blob has the id.
	ErrNotFound = errors.New("blob not found")
	// ErrCorrupt is returned when stored bytes or counts contradict their description.
	ErrCorrupt = errors.New("blob is corrupt")
	// ErrMismatch is returned when the content's hash is not the announced one.
	ErrMismatch = errors.New("content hash mismatch")
	// ErrTooLong is returned when more bytes are written than were announced.
	ErrTooLong = errors.New("content is longer than announced")
	// ErrShort is returned when content is committed before all announced bytes came.
	ErrShort = errors.New("content is shorter than announced")
	// ErrBusy is returned when another writer is filling the same partial upload.
	ErrBusy = errors.New("upload is in progress elsewhere")
	// ErrPinned is returned when collection is stopped by a copy being made.
	ErrPinned = errors.New("collection is paused")
	// ErrClosed is returned when a writer or reader is used after its end.
	ErrClosed = errors.New("blob handle is closed")
)

// ID names a blob within one store. IDs rise and are not used twice.
type ID uint64

// Sum is a SHA-256 of whole content.
type Sum [sha256.Size]byte

func (s Sum) String() string { return hex.EncodeToString(s[:]) }

// IsZero reports whether no hash is set.
func (s Sum) IsZero() bool { return s == Sum{} }

// MarshalText writes the hash as 64 hexadecimal digits.
func (s Sum) MarshalText() ([]byte, error) { return []byte(s.String()), nil }

// UnmarshalText reads 64 hexadecimal digits.
func (s *Sum) UnmarshalText(text []byte) error {
	if len(text) != 2*len(s) {
		return fmt.Errorf("parse sha256: %d characters, not %d", len(text), 2*len(s))
	}
	if _, err := hex.Decode(s[:], text); err != nil {
		return fmt.Errorf("parse sha256: %w", err)
	}
	return nil
}

// ParseSum reads 64 hexadecimal digits.
func ParseSum(text string) (sum Sum, err error) {
	err = sum.UnmarshalText([]byte(text))
	return sum, err
}

// Info describes a complete blob.
type Info struct {
	ID   ID
	Size int64 // bytes
	Sum  Sum
}

// File runs short transactions on a bbolt file: a [bolt.DB], or the store's
// wrapper that turns the panics of a damaged file into errors.
type File interface {
	View(func(*bolt.Tx) error) error
	Update(func(*bolt.Tx) error) error
}

// Options are the settings of a Store; the zero value is right for production.
type Options struct {
	TxBytes    int              // bytes of chunks per write transaction, of which a Writer uses up to half; 64 MiB if 0
	PartialAge time.Duration    // an upload untouched for longer is collected; 7 days if 0
	Now        func() time.Time // time.Now if nil
}

// Store keeps blobs in a bbolt file that others may use for other buckets.
// It is safe for concurrent use.
type Store struct {
	file File
	opt  Options

	// pin is read-locked by copies of the store and write-locked by Collect.
	pin sync.RWMutex

	mu    sync.Mutex // guards the fields below
	next  ID
	holds map[ID]int
	dying map[ID]bool // being condemned by Collect: may not be held any more
	busy  map[Sum]bool
}

// ChunkBucket is the bucket with the content, for walks that leave it out.
const ChunkBucket = "blob.chunk"

var (
	metaBucket    = []byte("blob")         // id -> meta
	chunkBucket   = []byte(ChunkBucket)    // id, chunk number -> bytes
	sumBucket     = []byte("blob.sum")     // sha256 -> id of the complete blob
	partialBucket = []byte("blob.partial") // sha256 -> id of the unfinished upload
)

// Buckets names the top-level buckets this package owns.
func Buckets() []string {
	return []string{string(metaBucket), string(chunkBucket), string(sumBucket), string(partialBucket)}
}

// Open prepares the buckets and deletes what a crash left half written or half deleted.
func Open(file File, opt Options) (*Store, error) {
	if opt.TxBytes <= 0 {
		opt.TxBytes = 64 << 20
	}
	opt.TxBytes = max(opt.TxBytes, ChunkSize)
	if opt.PartialAge <= 0 {
		opt.PartialAge = 7 * 24 * time.Hour
	}
	if opt.Now == nil {
		opt.Now = time.Now
	}
	s := &Store{file: file, opt: opt, holds: map[ID]int{}, dying: map[ID]bool{}, busy: map[Sum]bool{}}
	if err := s.prepare(); err != nil {
		return nil, fmt.Errorf("open blobs: %w", err)
	}
	return s, nil
}

func (s *Store) prepare() error {
	missing := false
	err := s.file.View(func(tx *bolt.Tx) error {
		for _, name := range Buckets() {
			missing = missing || tx.Bucket([]byte(name)) == nil
		}
		return nil
	})
	if err != nil {
		return err
	}
	if missing {
		err := s.file.Update(func(tx *bolt.Tx) error {
			for _, name := range Buckets() {
				if _, err := tx.CreateBucketIfNotExists([]byte(name)); err != nil {
					return err
				}
			}
			return nil
		})
		if err != nil {
			return err
		}
	}
	var debris []ID
	err = s.file.View(func(tx *bolt.Tx) error {
		kept, err := partials(tx)
		if err != nil {
			return err
		}
		b := tx.Bucket(metaBucket)
		s.next = ID(b.Sequence())
		return b.ForEach(func(k, v []byte) error {
			id, m, err := decodeEntry(k, v)
			if err != nil {
				return err
			}
			s.next = max(s.next, id)
			if m.state == stateDeleting || m.state == stateWriting && !kept[id] {
				debris = append(debris, id)
			}
			return nil
		})
	})
	if err != nil {
		return err
	}
	return s.purge(debris)
}

// partials returns the ids of unfinished uploads.
func partials(tx *bolt.Tx) (map[ID]bool, error) {
	ids := map[ID]bool{}
	err := tx.Bucket(partialBucket).ForEach(func(k, v []byte) error {
		if len(k) != sha256.Size || len(v) != 8 {
			return fmt.Errorf("partial upload %x: bad entry: %w", k, ErrCorrupt)
		}
		ids[ID(binary.BigEndian.Uint64(v))] = true
		return nil
	})
	return ids, err
}

// newID returns an unused id, held by the caller. IDs are counted in memory: one
// process owns the file, and an id that was never written names nothing.
func (s *Store) newID() ID {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.next++
	s.holds[s.next]++
	return s.next
}

// hold keeps the blob from collection, or reports false if collection has begun.
func (s *Store) hold(id ID) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.dying[id] {
		return false
	}
	s.holds[id]++
	return true
}

// Release ends one hold on each of the blobs, taken by writing them.
func (s *Store) Release(ids ...ID) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, id := range ids {
		if s.holds[id]--; s.holds[id] <= 0 {
			delete(s.holds, id)
		}
	}
}

// Pin stops collection until the returned function is called.
func (s *Store) Pin() (unpin func()) {
	s.pin.RLock()
	return sync.OnceFunc(s.pin.RUnlock)
}

// AddRef changes the reference count of a complete blob by delta, within the
// transaction that stores or removes the record which names it.
func (s *Store) AddRef(tx *bolt.Tx, id ID, delta int) error {
	b := tx.Bucket(metaBucket)
	m, err := readMeta(b, id)
	if err != nil {
		return fmt.Errorf("reference blob %d: %w", id, err)
	}
	if m.state != stateComplete {
		return fmt.Errorf("reference blob %d: not complete: %w", id, ErrNotFound)
	}
	if delta < 0 && m.refs < uint64(-delta) {
		return fmt.Errorf("reference blob %d: count %d can't change by %d: %w", id, m.refs, delta, ErrCorrupt)
	}
	m.refs += uint64(delta) // two's complement: a negative delta subtracts
	return b.Put(idKey(id), m.encode())
}

// StatTx describes a complete blob within a transaction.
func (s *Store) StatTx(tx *bolt.Tx, id ID) (Info, error) {
	m, err := readMeta(tx.Bucket(metaBucket), id)
	if err == nil && m.state != stateComplete {
		err = ErrNotFound
	}
	if err != nil {
		return Info{}, fmt.Errorf("blob %d: %w", id, err)
	}
	return Info{ID: id, Size: int64(m.size), Sum: m.sum}, nil
}

// Stat describes a complete blob.
func (s *Store) Stat(id ID) (info Info, err error) {
	err = s.file.View(func(tx *bolt.Tx) error {
		info, err = s.StatTx(tx, id)
		return err
	})
	return info, err
}

// Known looks content up by its hash. If it is there, the caller holds it.
func (s *Store) Known(sum Sum) (info Info, ok bool, err error) {
	var id ID
	find := func(tx *bolt.Tx) error {
		id, err = lookup(tx, sum)
		return err
	}
	if err := s.file.View(find); err != nil || id == 0 {
		return Info{}, false, err
	}
	// The first look may be stale by the time the hold stands; the second isn't.
	if !s.hold(id) {
		return Info{}, false, nil
	}
	info, err = s.Stat(id)
	if err != nil {
		s.Release(id)
		if errors.Is(err, ErrNotFound) {
			err = nil
		}
		return Info{}, false, err
	}
	return info, true, nil
}

// lookup returns the complete blob with this content, 0 if there is none.
func lookup(tx *bolt.Tx, sum Sum) (ID, error) {
	v := tx.Bucket(sumBucket).Get(sum[:])
	if v == nil {
		return 0, nil
	}
	if len(v) != 8 {
		return 0, fmt.Errorf("hash index %s: bad entry: %w", sum, ErrCorrupt)
	}
	return ID(binary.BigEndian.Uint64(v)), nil
}
