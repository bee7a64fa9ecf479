package safetensors

import (
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
)

// Limits on what a header may ask for. They are far above any published model (the largest single files hold some
// 20,000 tensors) and keep the memory for one header below 50 MB.
const (
	MaxHeaderBytes = 100_000_000 // the format's own limit
	MaxTensors     = 1 << 16     // tensors in one file
	MaxNameBytes   = 4096        // bytes in a tensor's name
	MaxRank        = 32          // dimensions of a tensor

	maxKeptBytes    = 8 << 20 // names, shapes and metadata that a parsed header holds on to, all together
	maxMetadataText = 2 << 20 // one key or value of the metadata
)

// Reasons for a refusal, to be told apart with errors.Is.
var (
	ErrHeader = errors.New("safetensors header is malformed")          // the length prefix or the JSON is broken
	ErrTensor = errors.New("safetensors tensor is malformed")          // an entry contradicts itself, the file or another entry
	ErrDType  = errors.New("element type is not supported")            // the entry is sound but its values cannot be used
	ErrLimit  = errors.New("safetensors header is beyond the limits")  // sound so far, but larger than this package allows
	ErrAbsent = errors.New("no such tensor")                           // the file has no tensor of that name
	ErrLength = errors.New("buffer does not have the tensor's length") // the caller's buffer does not fit
)

// Tensor is one entry of a file, already checked: the byte range lies in the file and equals shape times element size.
type Tensor struct {
	Name   string
	DType  DType
	Shape  []int64 // row-major; empty for a scalar; a dimension may be 0
	Offset int64   // first byte, counted from the start of the file
	Bytes  int64   // length in bytes
}

// Elements is the product of the shape, 1 for a scalar.
func (t Tensor) Elements() int64 {
	n := int64(1)
	for _, d := range t.Shape {
		n *= d // cannot overflow: the product was bounded by the file's size when the header was checked
	}
	return n
}

// File is a checked header over the bytes it describes.
type File struct {
	// Metadata is the header's free-form text, nil when the header has none and empty when it has an empty object.
	Metadata map[string]string

	r       io.ReaderAt
	tensors []Tensor // by name
}

// Tensors lists the tensors sorted by name. The slice is the file's own: don't change it.
func (f *File) Tensors() []Tensor { return f.tensors }

// Tensor finds a tensor by name.
func (f *File) Tensor(name string) (Tensor, bool) {
	i, ok := slices.BinarySearchFunc(f.tensors, name, func(t Tensor, name string) int { return strings.Compare(t.Name, name) })
	if !ok {
		return Tensor{}, false
	}
	return f.tensors[i], true
}

// ReaderAt gives the tensor's bytes.
func (f *File) ReaderAt(name string) (*io.SectionReader, error) {
	t, ok := f.Tensor(name)
	if !ok {
		return nil, fmt.Errorf("read tensor %q: %w", name, ErrAbsent)
	}
	return io.NewSectionReader(f.r, t.Offset, t.Bytes), nil
}

// ReadInto fills dst, which must be as long as the tensor, with the tensor's bytes.
func (f *File) ReadInto(dst []byte, name string) error {
	t, ok := f.Tensor(name)
	if !ok {
		return fmt.Errorf("read tensor %q: %w", name, ErrAbsent)
	}
	return ReadInto(dst, f.r, t)
}

// ReadFloat32s fills dst, one value per element, converting as [Float32s] does.
func (f *File) ReadFloat32s(dst []float32, name string) error {
	t, ok := f.Tensor(name)
	if !ok {
		return fmt.Errorf("read tensor %q: %w", name, ErrAbsent)
	}
	return ReadFloat32s(dst, f.r, t)
}

// ReadInto fills dst with the bytes of t, which r holds at the tensor's offset.
func ReadInto(dst []byte, r io.ReaderAt, t Tensor) error {
	if int64(len(dst)) != t.Bytes {
		return fmt.Errorf("read tensor %q: %w: buffer of %d bytes, tensor of %d", t.Name, ErrLength, len(dst), t.Bytes)
	}
	if err := readFull(r, dst, t.Offset); err != nil {
		return fmt.Errorf("read tensor %q: %w", t.Name, err)
	}
	return nil
}

// ReadFloat32s fills dst with the values of t, a chunk at a time, so that no second copy of the tensor is made.
func ReadFloat32s(dst []float32, r io.ReaderAt, t Tensor) error {
	if int64(len(dst)) != t.Elements() {
		return fmt.Errorf("read tensor %q: %w: buffer of %d elements, tensor of %d", t.Name, ErrLength, len(dst), t.Elements())
	}
	const chunk = 1 << 15 // elements
	size := t.DType.Size()
	buf := make([]byte, min(int64(len(dst)), chunk)*size)
	for done := 0; done < len(dst); {
		n := min(len(dst)-done, chunk)
		part := buf[:int64(n)*size]
		if err := readFull(r, part, t.Offset+int64(done)*size); err != nil {
			return fmt.Errorf("read tensor %q: %w", t.Name, err)
		}
		if err := Float32s(dst[done:done+n], t.DType, part); err != nil {
			return fmt.Errorf("read tensor %q from element %d: %w", t.Name, done, err)
		}
		done += n
	}
	return nil
}

// readFull is ReadAt with its one licence taken away: an io.EOF on a complete read is no error, a short read always is.
func readFull(r io.ReaderAt, p []byte, off int64) error {
	n, err := r.ReadAt(p, off)
	if n == len(p) {
		return nil
	}
	if err == nil || errors.Is(err, io.EOF) {
		return io.ErrUnexpectedEOF
	}
	return err
}
