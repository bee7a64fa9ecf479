package gguf

import (
	"fmt"
	"io"
	"math"
	"strconv"
	"unicode/utf8"
)

// File is a checked header over the bytes it describes. It is safe for several goroutines if its reader is.
type File struct {
	Version int

	r       io.ReaderAt
	size    int64
	entries []entry
	keys    map[string]int
	tensors []Tensor
	byName  map[string]int
	kept    int
}

// entry is a metadata value: a number's bits, or where a text or an array lies.
type entry struct {
	key    string
	kind   ValueType
	item   ValueType // of an array
	bits   uint64
	offset int64 // of a text's or an array's first byte
	bytes  int64 // of a text or an array of texts
	count  int64 // elements of an array
}

// Keys lists the metadata keys in the file's order.
func (f *File) Keys() []string {
	keys := make([]string, len(f.entries))
	for i, e := range f.entries {
		keys[i] = e.key
	}
	return keys
}

// Has says whether the file has a key.
func (f *File) Has(key string) bool {
	_, ok := f.keys[key]
	return ok
}

// Kind gives the type of a value, and for an array that of its elements and their number.
func (f *File) Kind(key string) (kind, item ValueType, count int64, ok bool) {
	i, ok := f.keys[key]
	if !ok {
		return 0, 0, 0, false
	}
	e := f.entries[i]
	return e.kind, e.item, e.count, true
}

// Tensors lists the tensors in the file's order. The slice is the file's own: don't change it.
func (f *File) Tensors() []Tensor { return f.tensors }

// Tensor finds a tensor by name.
func (f *File) Tensor(name string) (Tensor, bool) {
	i, ok := f.byName[name]
	if !ok {
		return Tensor{}, false
	}
	return f.tensors[i], true
}

func (f *File) find(key string) (entry, error) {
	i, ok := f.keys[key]
	if !ok {
		return entry{}, fmt.Errorf("metadata %q: %w", key, ErrAbsent)
	}
	return f.entries[i], nil
}

func (e entry) wrong(want string) error {
	kind := e.kind.String()
	if e.kind == Array {
		kind = "array of " + e.item.String()
	}
	return fmt.Errorf("metadata %q: %w: it is %s, %s is needed", shorten(e.key), ErrKind, kind, want)
}

// Uint gives a number that is whole and not negative, of whatever integer type.
func (f *File) Uint(key string) (uint64, error) {
	e, err := f.find(key)
	if err != nil {
		return 0, err
	}
	n, ok := whole(e.kind, e.bits)
	if !ok || n < 0 {
		return 0, e.wrong("a whole number from 0")
	}
	return uint64(n), nil
}

// whole reads the bits of an integer that int64 holds.
func whole(kind ValueType, bits uint64) (int64, bool) {
	switch kind {
	case Uint8, Uint16, Uint32:
		return int64(bits), true
	case Int8:
		return int64(int8(bits)), true
	case Int16:
		return int64(int16(bits)), true
	case Int32:
		return int64(int32(bits)), true
	case Int64:
		return int64(bits), true
	case Uint64:
		return int64(bits), bits <= math.MaxInt64
	}
	return 0, false
}

// Float gives a finite number of any type. A float32 becomes the number that its shortest decimal text says, so that a
// setting such as 1e-6 is again what its author wrote.
func (f *File) Float(key string) (float64, error) {
	e, err := f.find(key)
	if err != nil {
		return 0, err
	}
	var v float64
	switch e.kind {
	case Float32:
		v, _ = strconv.ParseFloat(strconv.FormatFloat(float64(math.Float32frombits(uint32(e.bits))), 'g', -1, 32), 64)
	case Float64:
		v = math.Float64frombits(e.bits)
	default:
		n, ok := whole(e.kind, e.bits)
		if !ok {
			return 0, e.wrong("a number")
		}
		v = float64(n)
	}
	if math.IsNaN(v) || math.IsInf(v, 0) {
		return 0, fmt.Errorf("metadata %q: %w: %v is not finite", shorten(key), ErrHeader, v)
	}
	return v, nil
}

// Bool gives a truth value.
func (f *File) Bool(key string) (bool, error) {
	e, err := f.find(key)
	if err != nil {
		return false, err
	}
	if e.kind != Bool {
		return false, e.wrong("bool")
	}
	return e.bits == 1, nil
}

// Text reads a text of at most limit bytes.
func (f *File) Text(key string, limit int64) (string, error) {
	e, err := f.find(key)
	if err != nil {
		return "", err
	}
	if e.kind != String {
		return "", e.wrong("text")
	}
	if e.bytes > limit {
		return "", fmt.Errorf("metadata %q: %w: a text of %d bytes, at most %d are read", shorten(key), ErrLimit, e.bytes, limit)
	}
	b := make([]byte, e.bytes)
	if err := readFull(f.r, b, e.offset); err != nil {
		return "", fmt.Errorf("read metadata %q: %w", shorten(key), err)
	}
	if !utf8.Valid(b) {
		return "", fmt.Errorf("metadata %q: %w: it is not UTF-8", shorten(key), ErrHeader)
	}
	return string(b), nil
}

// EachText calls do with the elements of an array of texts, in order, until it fails.
func (f *File) EachText(key string, do func(i int, text string) error) error {
	e, err := f.find(key)
	if err != nil {
		return err
	}
	if e.kind != Array || e.item != String {
		return e.wrong("array of text")
	}
	c := newCursor(f.r, e.offset, e.offset+e.bytes)
	for i := range int(e.count) {
		b, err := c.text(MaxItemBytes)
		if err != nil {
			return fmt.Errorf("read metadata %q: element %d: %w", shorten(key), i, err)
		}
		if !utf8.Valid(b) {
			return fmt.Errorf("metadata %q: %w: element %d is not UTF-8", shorten(key), ErrHeader, i)
		}
		if err := do(i, string(b)); err != nil {
			return err
		}
	}
	return nil
}

// EachNumber calls do with the elements of an array of numbers or bools, in order, until it fails.
func (f *File) EachNumber(key string, do func(i int, v float64) error) error {
	e, err := f.find(key)
	if err != nil {
		return err
	}
	if e.kind != Array || e.item == String {
		return e.wrong("array of numbers")
	}
	size := int(valueTypes[e.item].size)
	c := newCursor(f.r, e.offset, e.offset+e.count*int64(size))
	for i := range int(e.count) {
		b, err := c.take(size)
		if err != nil {
			return fmt.Errorf("read metadata %q: element %d: %w", shorten(key), i, err)
		}
		var bits uint64
		for j, v := range b {
			bits |= uint64(v) << (8 * j)
		}
		if err := do(i, number(e.item, bits)); err != nil {
			return err
		}
	}
	return nil
}

// number is the value of bits, as near as float64 has it.
func number(kind ValueType, bits uint64) float64 {
	switch kind {
	case Float32:
		return float64(math.Float32frombits(uint32(bits)))
	case Float64:
		return math.Float64frombits(bits)
	case Uint64, Bool:
		return float64(bits)
	}
	n, _ := whole(kind, bits)
	return float64(n)
}
