package store

import (
	"encoding/binary"
	"fmt"
	"io"
	"maps"
	"os"
	"slices"

	bolt "go.etcd.io/bbolt"
)

// The layout of bbolt's pages, in the machine's byte order.
const (
	pageHeader  = 16 // id uint64, flags uint16, count uint16, overflow uint32
	pageElement = 16 // branch: pos, ksize uint32, child uint64; leaf: flags, pos, ksize, vsize uint32
	bucketValue = 16 // root uint64, sequence uint64; then, if the root is 0, a page of its own

	flagBranch   = 0x01
	flagLeaf     = 0x02
	flagMeta     = 0x04
	flagFreelist = 0x10

	leafIsBucket = 1
)

// tile steps over all pages by their headers: used and free ones must cover the
// file exactly, and what an element points to must be inside its page, or a tree
// page that nothing else points to. bbolt trusts all of that: a wrong length sends
// it through billions of pages, a wrong position makes it fault where no recover
// helps. Of each page tile reads the headers only. It needs a transaction that
// excludes writers.
func tile(tx *bolt.Tx, path string) error {
	f, err := os.Open(path)
	if err != nil {
		return err
	}
	defer f.Close()
	size := int64(tx.DB().Info().PageSize)
	t := tiler{file: f, pageSize: size, pages: tx.Size() / size, trees: map[uint64]bool{}, children: map[uint64]bool{}}
	for id := int64(0); id < t.pages; {
		info, err := tx.Page(int(id))
		if err != nil {
			return err
		}
		n := int64(1)
		if info == nil || info.Type != "free" {
			if n, err = t.page(id); err != nil {
				return damaged(fmt.Errorf("page %d of %d: %w", id, t.pages, err))
			}
		}
		id += n
	}
	for _, child := range slices.Sorted(maps.Keys(t.children)) {
		if !t.trees[child] {
			return damaged(fmt.Errorf("page %d: it is in use but isn't a tree page", child))
		}
	}
	return nil
}

type tiler struct {
	file     io.ReaderAt
	pageSize int64
	pages    int64
	trees    map[uint64]bool // pages that begin a branch or leaf
	children map[uint64]bool // pages that something points to
}

// page checks the page at id and returns how many pages it covers.
func (t *tiler) page(id int64) (n int64, err error) {
	head := make([]byte, pageHeader)
	at := id * t.pageSize
	if _, err := t.file.ReadAt(head, at); err != nil {
		return 0, err
	}
	flags, count := binary.NativeEndian.Uint16(head[8:]), int64(binary.NativeEndian.Uint16(head[10:]))
	n = 1 + int64(binary.NativeEndian.Uint32(head[12:]))
	switch {
	case (flags == flagMeta) != (id < 2):
		return 0, fmt.Errorf("a page of type %#x there", flags)
	case flags == flagMeta:
		return 1, nil
	case binary.NativeEndian.Uint64(head) != uint64(id) || id+n > t.pages:
		return 0, fmt.Errorf("says it is page %d with %d more", binary.NativeEndian.Uint64(head), n-1)
	case flags == flagFreelist:
		return n, nil
	case flags != flagBranch && flags != flagLeaf:
		return 0, fmt.Errorf("unknown type %#x", flags)
	}
	t.trees[uint64(id)] = true
	return n, t.elements(at, n*t.pageSize, flags, count)
}

// elements checks those of the page of length size at offset at.
func (t *tiler) elements(at, size int64, flags uint16, count int64) error {
	if pageHeader+count*pageElement > size {
		return fmt.Errorf("%d entries don't fit", count)
	}
	if flags == flagBranch && count == 0 {
		return fmt.Errorf("a branch without entries")
	}
	b := make([]byte, count*pageElement)
	if _, err := t.file.ReadAt(b, at+pageHeader); err != nil {
		return err
	}
	word := func(e []byte, i int) int64 { return int64(binary.NativeEndian.Uint32(e[4*i:])) }
	for i := range count {
		e := b[i*pageElement:][:pageElement]
		start := pageHeader + i*pageElement // positions count from the element
		if flags == flagBranch {
			if start+word(e, 0)+word(e, 1) > size {
				return fmt.Errorf("entry %d reaches beyond it", i)
			}
			if err := t.child(binary.NativeEndian.Uint64(e[8:])); err != nil {
				return fmt.Errorf("entry %d: %w", i, err)
			}
			continue
		}
		value := start + word(e, 1) + word(e, 2)
		if value+word(e, 3) > size {
			return fmt.Errorf("entry %d reaches beyond it", i)
		}
		switch word(e, 0) {
		case 0:
		case leafIsBucket:
			if err := t.bucket(at+value, word(e, 3)); err != nil {
				return fmt.Errorf("bucket %d: %w", i, err)
			}
		default:
			return fmt.Errorf("entry %d has unknown flags %#x", i, word(e, 0))
		}
	}
	return nil
}

// bucket checks the value of a bucket's entry.
func (t *tiler) bucket(at, size int64) error {
	b := make([]byte, bucketValue+pageHeader)
	if size < bucketValue {
		return fmt.Errorf("description of %d bytes", size)
	}
	if _, err := t.file.ReadAt(b[:min(size, int64(len(b)))], at); err != nil {
		return err
	}
	if root := binary.NativeEndian.Uint64(b); root != 0 {
		return t.child(root)
	}
	if size < int64(len(b)) {
		return fmt.Errorf("inline page of %d bytes", size-bucketValue)
	}
	head := b[bucketValue:]
	if flags := binary.NativeEndian.Uint16(head[8:]); flags != flagLeaf {
		return fmt.Errorf("inline page of type %#x", flags)
	}
	return t.elements(at+bucketValue, size-bucketValue, flagLeaf, int64(binary.NativeEndian.Uint16(head[10:])))
}

// child notes that something points to the page.
func (t *tiler) child(id uint64) error {
	if t.children[id] {
		return fmt.Errorf("page %d is in use twice", id)
	}
	t.children[id] = true
	return nil
}
