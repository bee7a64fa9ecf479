package safetensors

import (
	"bufio"
	"cmp"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"math/bits"
	"slices"
	"strings"
)

const prefixBytes = 8 // little-endian length of the header

// Parse reads and checks the header of the file of size bytes behind r. The file is refused as a whole, with the tensor
// named, if any entry is wrong; the bytes of the tensors are not read. The result reads through r.
func Parse(r io.ReaderAt, size int64) (*File, error) {
	if size < prefixBytes {
		return nil, fmt.Errorf("parse safetensors: %w: the file has %d bytes, a header length alone takes %d; "+
			"the file is empty or its transfer was cut", ErrHeader, size, prefixBytes)
	}
	var prefix [prefixBytes]byte
	if err := readFull(r, prefix[:], 0); err != nil {
		return nil, fmt.Errorf("parse safetensors: read header length: %w", err)
	}
	n := binary.LittleEndian.Uint64(prefix[:])
	switch {
	case n == 0:
		return nil, fmt.Errorf("parse safetensors: %w: the header length is 0", ErrHeader)
	case n > MaxHeaderBytes:
		return nil, fmt.Errorf("parse safetensors: %w: the header length is %d, at most %d is allowed", ErrLimit, n, MaxHeaderBytes)
	case n > uint64(size-prefixBytes):
		return nil, fmt.Errorf("parse safetensors: %w: the header length is %d but only %d bytes follow it; "+
			"the file's transfer was cut, or it is not a safetensors file", ErrHeader, n, size-prefixBytes)
	}
	s := &scanner{r: bufio.NewReaderSize(io.NewSectionReader(r, prefixBytes, int64(n)), 1<<16)}
	f := &File{r: r}
	if err := f.scan(s); err != nil {
		return nil, fmt.Errorf("parse safetensors: %w", err)
	}
	if err := f.checkLayout(prefixBytes+int64(n), size); err != nil {
		return nil, fmt.Errorf("parse safetensors: %w", err)
	}
	return f, nil
}

// scan reads the header object; offsets stay relative to the data section until checkLayout.
func (f *File) scan(s *scanner) error {
	// The format wants the object at once: no blanks before it, so that a file's type can be told from one byte.
	if c, err := s.next(); err != nil {
		return err
	} else if c != '{' {
		return fmt.Errorf("%w: the header begins with %q, not with an object", ErrHeader, c)
	}
	for first := true; ; first = false {
		more, err := s.more(first, '}', "the header")
		if err != nil {
			return err
		}
		if !more {
			break
		}
		text, err := s.text(MaxNameBytes, "a tensor's name")
		if err != nil {
			return err
		}
		name := string(text)
		if err := s.expect(':', "the header"); err != nil {
			return err
		}
		if name == "__metadata__" {
			err = f.scanMetadata(s)
		} else {
			err = f.scanTensor(s, name)
		}
		if err != nil {
			return err
		}
	}
	if c, err := s.token(); err == nil {
		return fmt.Errorf("%w: %q after the end of the object, at byte %d: only blanks may pad it", ErrHeader, c, s.pos-1)
	} else if !errors.Is(err, errEOF) {
		return err
	}
	return nil
}

func (f *File) scanMetadata(s *scanner) error {
	const what = "__metadata__"
	if f.Metadata != nil {
		return fmt.Errorf("%w: %s appears twice", ErrHeader, what)
	}
	f.Metadata = map[string]string{}
	if err := s.expect('{', what); err != nil {
		return err
	}
	for first := true; ; first = false {
		more, err := s.more(first, '}', what)
		if err != nil || !more {
			return err
		}
		text, err := s.text(maxMetadataText, "a key of "+what)
		if err != nil {
			return err
		}
		key := string(text)
		if err := s.expect(':', what); err != nil {
			return err
		}
		text, err = s.text(maxMetadataText, "a value of "+what)
		if err != nil {
			return err
		}
		if _, twice := f.Metadata[key]; twice {
			return fmt.Errorf("%w: key %q of %s appears twice", ErrHeader, shorten(key), what)
		}
		const mapCost = 64 // bytes a map spends on an entry, about
		if err := s.keep(len(key) + len(text) + mapCost); err != nil {
			return err
		}
		f.Metadata[key] = string(text)
	}
}

func (f *File) scanTensor(s *scanner, name string) error {
	if len(f.tensors) == MaxTensors {
		return fmt.Errorf("%w: more than %d tensors", ErrLimit, MaxTensors)
	}
	t, err := s.entry(name)
	if err != nil {
		return fmt.Errorf("tensor %q: %w", shorten(name), err)
	}
	if err := s.keep(len(name) + 8*len(t.Shape)); err != nil {
		return err
	}
	f.tensors = append(doubled(f.tensors), t)
	return nil
}

// entry reads one tensor's description and checks what can be checked without the others.
func (s *scanner) entry(name string) (Tensor, error) {
	t := Tensor{Name: name}
	if err := s.expect('{', "its entry"); err != nil {
		return t, err
	}
	var ends []int64 // data_offsets: begin, end
	var hasDType, hasShape, hasOffsets bool
	for first := true; ; first = false {
		more, err := s.more(first, '}', "its entry")
		if err != nil {
			return t, err
		}
		if !more {
			break
		}
		text, err := s.text(64, "a field name")
		if err != nil {
			return t, err
		}
		var seen *bool
		switch string(text) {
		case "dtype":
			seen = &hasDType
		case "shape":
			seen = &hasShape
		case "data_offsets":
			seen = &hasOffsets
		default:
			return t, fmt.Errorf("%w: unknown field %q; dtype, shape and data_offsets are allowed", ErrTensor, text)
		}
		if *seen {
			return t, fmt.Errorf("%w: field %q appears twice", ErrTensor, text)
		}
		*seen = true
		if err := s.expect(':', "its entry"); err != nil {
			return t, err
		}
		switch seen {
		case &hasDType:
			t.DType, err = s.dtype()
		case &hasShape:
			t.Shape, err = s.sizes(s.shape[:0], MaxRank, "shape")
		case &hasOffsets:
			ends, err = s.sizes(s.ends[:0], 2, "data_offsets")
		}
		if err != nil {
			return t, err
		}
	}
	if !hasDType || !hasShape || !hasOffsets {
		return t, fmt.Errorf("%w: its entry needs dtype, shape and data_offsets", ErrTensor)
	}
	t.Shape = slices.Clone(t.Shape)
	return t, t.place(ends)
}

func (s *scanner) dtype() (DType, error) {
	text, err := s.text(64, "dtype")
	if err != nil {
		return "", err
	}
	d, ok := intern(text)
	if !ok {
		return "", fmt.Errorf("%w: dtype %q; convert the tensor to BF16, F16 or F32", ErrDType, text)
	}
	return d, nil
}

// place sets the byte range from data_offsets, if it is one and is as long as the shape says.
func (t *Tensor) place(ends []int64) error {
	if len(ends) != 2 {
		return fmt.Errorf("%w: data_offsets has %d numbers, needs a begin and an end", ErrTensor, len(ends))
	}
	if ends[0] > ends[1] {
		return fmt.Errorf("%w: data_offsets %v end before they begin", ErrTensor, ends)
	}
	t.Offset, t.Bytes = ends[0], ends[1]-ends[0]
	want, ok := product(t.Shape, t.DType.Size())
	if !ok {
		return fmt.Errorf("%w: shape %v of %s has more than 2^63-1 bytes", ErrTensor, t.Shape, t.DType)
	}
	if want != t.Bytes {
		return fmt.Errorf("%w: shape %v of %s takes %d bytes, data_offsets %v hold %d", ErrTensor, t.Shape, t.DType, want, ends, t.Bytes)
	}
	return nil
}

// product multiplies with every step checked: a shape such as [2^40, 2^40] would wrap to 0. All dimensions count, even
// beside a 0, so that no later product of some of them can wrap either.
func product(shape []int64, size int64) (int64, bool) {
	n, empty := uint64(size), false
	for _, d := range shape {
		if d == 0 {
			empty = true
			continue
		}
		hi, lo := bits.Mul64(n, uint64(d))
		if hi != 0 || lo > 1<<63-1 {
			return 0, false
		}
		n = lo
	}
	if empty {
		return 0, true
	}
	return int64(n), true
}

// checkLayout sees that the tensors tile the data section exactly, makes their offsets absolute and sorts them by name.
func (f *File) checkLayout(start, size int64) error {
	slices.SortFunc(f.tensors, func(a, b Tensor) int {
		return cmp.Or(cmp.Compare(a.Offset, b.Offset), cmp.Compare(a.Bytes, b.Bytes), strings.Compare(a.Name, b.Name))
	})
	data := size - start // bytes of the data section
	end, last := int64(0), ""
	for i := range f.tensors {
		t := &f.tensors[i]
		switch {
		case t.Offset > data || t.Bytes > data-t.Offset:
			return fmt.Errorf("tensor %q: %w: it ends at byte %d of the data section, which has %d; the file's transfer was cut",
				shorten(t.Name), ErrTensor, t.Offset+t.Bytes, data)
		case t.Offset < end:
			return fmt.Errorf("tensor %q: %w: it overlaps tensor %q by %d bytes", shorten(t.Name), ErrTensor, shorten(last), end-t.Offset)
		case t.Offset > end:
			return fmt.Errorf("tensor %q: %w: a hole of %d bytes lies before it", shorten(t.Name), ErrTensor, t.Offset-end)
		}
		end, last = t.Offset+t.Bytes, t.Name
		t.Offset += start
	}
	if end != data {
		if last == "" {
			return fmt.Errorf("%w: %d bytes follow a header without tensors", ErrHeader, data)
		}
		return fmt.Errorf("tensor %q: %w: %d bytes follow it, which no tensor describes", shorten(last), ErrTensor, data-end)
	}
	slices.SortFunc(f.tensors, func(a, b Tensor) int { return strings.Compare(a.Name, b.Name) })
	for i := 1; i < len(f.tensors); i++ {
		if f.tensors[i].Name == f.tensors[i-1].Name {
			return fmt.Errorf("tensor %q: %w: the name appears twice", shorten(f.tensors[i].Name), ErrTensor)
		}
	}
	return nil
}

// shorten keeps a hostile name from filling an error message.
func shorten(name string) string {
	const most = 120
	if len(name) <= most {
		return name
	}
	return name[:most] + "…"
}
