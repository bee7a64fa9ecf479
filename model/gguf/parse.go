package gguf

import (
	"cmp"
	"encoding/binary"
	"fmt"
	"io"
	"math/bits"
	"slices"
	"strings"
	"unicode/utf8"
)

const (
	magic            = "GGUF"
	defaultAlignment = 32
	alignmentKey     = "general.alignment"
)

// Parse reads and checks a header. The file keeps r, from which arrays, texts and values are read later.
func Parse(r io.ReaderAt, size int64) (*File, error) {
	f := &File{r: r, size: size, keys: map[string]int{}, byName: map[string]int{}}
	if err := f.parse(newCursor(r, 0, size)); err != nil {
		return nil, fmt.Errorf("parse gguf: %w", err)
	}
	return f, nil
}

func (f *File) parse(c *cursor) error {
	head, err := c.take(8)
	if err != nil {
		return fmt.Errorf("%w: %d bytes are no GGUF file", ErrHeader, f.size)
	}
	if string(head[:4]) != magic {
		return fmt.Errorf("%w: it begins with %q, not with %q", ErrHeader, head[:4], magic)
	}
	version := binary.LittleEndian.Uint32(head[4:])
	switch {
	case version == 2 || version == 3:
	case version&0xffff == 0 && version != 0:
		return fmt.Errorf("%w: it is big-endian; convert it to little-endian with gguf-convert-endian", ErrUnsupported)
	default:
		return fmt.Errorf("%w: version %d; versions 2 and 3 are read: convert the model again", ErrUnsupported, version)
	}
	f.Version = int(version)
	tensors, err := c.u64()
	if err != nil {
		return err
	}
	keys, err := c.u64()
	if err != nil {
		return err
	}
	if tensors > MaxTensors {
		return fmt.Errorf("%w: %d tensors, at most %d are allowed", ErrLimit, tensors, MaxTensors)
	}
	if keys > MaxKeys {
		return fmt.Errorf("%w: %d metadata entries, at most %d are allowed", ErrLimit, keys, MaxKeys)
	}
	// A key takes 12 bytes and its value 1; a tensor's description takes 24.
	if need := 13*keys + 24*tensors; need > uint64(c.left()) {
		return fmt.Errorf("%w: %d metadata entries and %d tensors take %d bytes, the file has %d", ErrHeader, keys, tensors, need, c.left())
	}
	for range keys {
		if err := f.parseEntry(c); err != nil {
			return err
		}
	}
	alignment, err := f.alignment()
	if err != nil {
		return err
	}
	for range tensors {
		if err := f.parseTensor(c, alignment); err != nil {
			return err
		}
	}
	return f.layout(c.pos, alignment)
}

// keep counts bytes that the file holds on to.
func (f *File) keep(n int) error {
	if f.kept += n; f.kept > maxKeptBytes {
		return fmt.Errorf("%w: its names take more than %d bytes", ErrLimit, maxKeptBytes)
	}
	return nil
}

func (f *File) parseEntry(c *cursor) error {
	text, err := c.text(MaxKeyBytes)
	if err != nil {
		return fmt.Errorf("metadata key %d: %w", len(f.entries), err)
	}
	if !utf8.Valid(text) || len(text) == 0 {
		return fmt.Errorf("metadata key %d: %w: %q is no text", len(f.entries), ErrHeader, shorten(string(text)))
	}
	e := entry{key: string(text)}
	if _, twice := f.keys[e.key]; twice {
		return fmt.Errorf("metadata %q: %w: the key appears twice", shorten(e.key), ErrHeader)
	}
	const mapCost = 64 // bytes a map spends on an entry, about
	if err := f.keep(len(e.key) + mapCost); err != nil {
		return err
	}
	if err := e.parseValue(c); err != nil {
		return fmt.Errorf("metadata %q: %w", shorten(e.key), err)
	}
	if c.pos > MaxHeaderBytes {
		return fmt.Errorf("metadata %q: %w: the header has more than %d bytes", shorten(e.key), ErrLimit, MaxHeaderBytes)
	}
	f.keys[e.key] = len(f.entries)
	f.entries = append(f.entries, e)
	return nil
}

func (e *entry) parseValue(c *cursor) error {
	kind, err := c.u32()
	if err != nil {
		return err
	}
	e.kind = ValueType(kind)
	switch {
	case !e.kind.known():
		return fmt.Errorf("%w: a value of %s", ErrHeader, e.kind)
	case e.kind == String:
		if e.bytes, err = c.length(MaxTextBytes); err != nil {
			return err
		}
		e.offset = c.pos
		return c.skip(e.bytes)
	case e.kind == Array:
		return e.parseArray(c)
	}
	b, err := c.take(int(valueTypes[e.kind].size))
	if err != nil {
		return err
	}
	if e.kind == Bool && b[0] > 1 {
		return fmt.Errorf("%w: a bool of %d", ErrHeader, b[0])
	}
	for i, v := range b {
		e.bits |= uint64(v) << (8 * i)
	}
	return nil
}

func (e *entry) parseArray(c *cursor) error {
	kind, err := c.u32()
	if err != nil {
		return err
	}
	count, err := c.u64()
	if err != nil {
		return err
	}
	e.item = ValueType(kind)
	switch {
	case !e.item.known():
		return fmt.Errorf("%w: an array of %s", ErrHeader, e.item)
	case e.item == Array:
		return fmt.Errorf("%w: an array of arrays", ErrUnsupported)
	case count > MaxElements:
		return fmt.Errorf("%w: an array of %d elements, at most %d are allowed", ErrLimit, count, MaxElements)
	}
	e.count, e.offset = int64(count), c.pos
	size := valueTypes[e.item].size
	if e.item == String {
		size = 8 // at least
	}
	if need := size * e.count; need > c.left() {
		return fmt.Errorf("%w: an array of %d elements takes %d bytes or more, the file has %d", ErrHeader, count, need, c.left())
	}
	if e.item != String {
		return c.skip(size * e.count)
	}
	for i := range count {
		n, err := c.length(MaxItemBytes)
		if err == nil {
			err = c.skip(n)
		}
		if err != nil {
			return fmt.Errorf("element %d: %w", i, err)
		}
		if c.pos > MaxHeaderBytes {
			return fmt.Errorf("element %d: %w: the header has more than %d bytes", i, ErrLimit, MaxHeaderBytes)
		}
	}
	e.bytes = c.pos - e.offset
	return nil
}

func (f *File) alignment() (int64, error) {
	if !f.Has(alignmentKey) {
		return defaultAlignment, nil
	}
	n, err := f.Uint(alignmentKey)
	if err != nil {
		return 0, err
	}
	if n == 0 || n > maxAlignment || n&(n-1) != 0 {
		return 0, fmt.Errorf("metadata %q: %w: %d is no power of two up to %d", alignmentKey, ErrHeader, n, maxAlignment)
	}
	return int64(n), nil
}

func (f *File) parseTensor(c *cursor, alignment int64) error {
	text, err := c.text(MaxKeyBytes)
	if err != nil {
		return fmt.Errorf("name of tensor %d: %w", len(f.tensors), err)
	}
	if !utf8.Valid(text) || len(text) == 0 {
		return fmt.Errorf("name of tensor %d: %w: %q is no text", len(f.tensors), ErrTensor, shorten(string(text)))
	}
	t := Tensor{Name: string(text)}
	if _, twice := f.byName[t.Name]; twice {
		return fmt.Errorf("tensor %q: %w: the name appears twice", shorten(t.Name), ErrTensor)
	}
	const mapCost = 64
	if err := f.keep(len(t.Name) + 8*MaxRank + mapCost); err != nil {
		return err
	}
	if err := t.parse(c, alignment); err != nil {
		return fmt.Errorf("tensor %q: %w", shorten(t.Name), err)
	}
	f.byName[t.Name] = len(f.tensors)
	f.tensors = append(f.tensors, t)
	return nil
}

// parse reads a description; Offset is still that of the file, counted from the end of the header.
func (t *Tensor) parse(c *cursor, alignment int64) error {
	rank, err := c.u32()
	if err != nil {
		return err
	}
	if rank > MaxRank {
		return fmt.Errorf("%w: %d dimensions, at most %d are allowed", ErrTensor, rank, MaxRank)
	}
	t.Shape = make([]int64, rank)
	elements := uint64(1)
	for i := range t.Shape {
		d, err := c.u64()
		if err != nil {
			return err
		}
		hi, lo := bits.Mul64(elements, d)
		if d == 0 || hi != 0 || lo > 1<<56 { // 2^56 elements of the largest block are within int64
			return fmt.Errorf("%w: dimension %d is %d", ErrTensor, i, d)
		}
		elements = lo
		t.Shape[len(t.Shape)-1-i] = int64(d)
	}
	kind, err := c.u32()
	if err != nil {
		return err
	}
	offset, err := c.u64()
	if err != nil {
		return err
	}
	t.Type = Type(kind)
	block, bytes := t.Type.Block()
	switch {
	case block == 0:
		return fmt.Errorf("%w: encoding %d is unknown", ErrUnsupported, kind)
	case t.columns()%block != 0:
		return fmt.Errorf("%w: rows of %d elements are no blocks of %d, as %s has them", ErrTensor, t.columns(), block, t.Type)
	case offset > uint64(c.end):
		return fmt.Errorf("%w: it begins %d bytes after the header, the file has %d in all; its transfer was cut", ErrTensor, offset, c.end)
	case int64(offset)%alignment != 0:
		return fmt.Errorf("%w: its offset %d is no multiple of %d", ErrTensor, offset, alignment)
	}
	t.Offset, t.Bytes = int64(offset), int64(elements)/block*bytes
	return nil
}

// layout makes the offsets absolute and sees that the tensors lie in the file, apart from each other.
func (f *File) layout(header, alignment int64) error {
	start := (header + alignment - 1) / alignment * alignment
	order := make([]int, len(f.tensors))
	for i := range f.tensors {
		order[i] = i
		t := &f.tensors[i]
		t.Offset += start
		if t.Offset > f.size || t.Bytes > f.size-t.Offset {
			return fmt.Errorf("tensor %q: %w: it takes bytes %d to %d, the file has %d; its transfer was cut",
				shorten(t.Name), ErrTensor, t.Offset, t.Offset+t.Bytes, f.size)
		}
	}
	slices.SortFunc(order, func(a, b int) int {
		return cmp.Or(cmp.Compare(f.tensors[a].Offset, f.tensors[b].Offset), strings.Compare(f.tensors[a].Name, f.tensors[b].Name))
	})
	for i := 1; i < len(order); i++ {
		a, b := f.tensors[order[i-1]], f.tensors[order[i]]
		if a.Offset+a.Bytes > b.Offset {
			return fmt.Errorf("tensor %q: %w: it overlaps tensor %q by %d bytes", shorten(b.Name), ErrTensor, shorten(a.Name), a.Offset+a.Bytes-b.Offset)
		}
	}
	return nil
}
