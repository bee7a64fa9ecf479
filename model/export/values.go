package export

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"math"

	"smolgym/model/hf"
	"smolgym/model/safetensors"
)

// block is how many elements are read, computed and written at a time.
const block = 1 << 18

// elements are values that can be read from any element on.
type elements interface {
	read(dst []float32, first int64) error
	io.Closer
}

// raw are little-endian float32s.
type raw struct {
	hf.ReaderAtSized
	buf []byte
}

func (r *raw) read(dst []float32, first int64) error {
	if cap(r.buf) < 4*len(dst) {
		r.buf = make([]byte, 4*len(dst))
	}
	b := r.buf[:4*len(dst)]
	if err := readFull(r, b, 4*first); err != nil {
		return err
	}
	return safetensors.Float32s(dst, safetensors.F32, b)
}

func (t Tensor) values() (elements, error) {
	r, err := t.open()
	if err != nil {
		return nil, err
	}
	return &raw{ReaderAtSized: r}, nil
}

// typed are the values of a stored tensor.
type typed struct {
	hf.ReaderAtSized
	t safetensors.Tensor
}

func (r *typed) read(dst []float32, first int64) error {
	size, n := r.t.DType.Size(), int64(len(dst))
	if first < 0 || n > r.t.Elements()-first {
		return io.ErrUnexpectedEOF
	}
	part := safetensors.Tensor{Name: r.t.Name, DType: r.t.DType, Shape: []int64{n}, Offset: r.t.Offset + first*size, Bytes: n * size}
	return safetensors.ReadFloat32s(dst, r, part)
}

func openStored(src hf.Source, t hf.Tensor) (elements, error) {
	f, err := src.Open(t.File)
	if err != nil {
		return nil, fmt.Errorf("open %s: %w", t.File, err)
	}
	if t.Offset+t.Bytes > f.Size() {
		return nil, errors.Join(fmt.Errorf("read tensor %q: %s: %w", t.Name, t.File, ErrChanged), f.Close())
	}
	return &typed{f, safetensors.Tensor{Name: t.Name, DType: t.DType, Shape: t.Shape, Offset: t.Offset, Bytes: t.Bytes}}, nil
}

// copyBytes writes a stored tensor as it is.
func copyBytes(w io.Writer, src hf.Source, t hf.Tensor) error {
	f, err := src.Open(t.File)
	if err != nil {
		return fmt.Errorf("open %s: %w", t.File, err)
	}
	defer f.Close() // only read from: closing cannot lose anything
	return copyRange(w, f, t.Offset, t.Bytes)
}

// copyRange copies n bytes in large pieces.
func copyRange(w io.Writer, r io.ReaderAt, off, n int64) error {
	buf := make([]byte, min(n, 1<<20))
	for n > 0 {
		part := buf[:min(n, int64(len(buf)))]
		if err := readFull(r, part, off); err != nil {
			return err
		}
		if _, err := w.Write(part); err != nil {
			return err
		}
		off, n = off+int64(len(part)), n-int64(len(part))
	}
	return nil
}

// convert writes n values in another element type.
func convert(w io.Writer, v elements, n int64, dtype safetensors.DType) error {
	values := make([]float32, min(n, block))
	out := make([]byte, int64(len(values))*dtype.Size())
	for at := int64(0); at < n; at += int64(len(values)) {
		part := values[:min(int64(len(values)), n-at)]
		if err := v.read(part, at); err != nil {
			return err
		}
		b := out[:int64(len(part))*dtype.Size()]
		if err := put(b, dtype, part); err != nil {
			return fmt.Errorf("from element %d: %w", at, err)
		}
		if _, err := w.Write(b); err != nil {
			return err
		}
	}
	return nil
}

// put rounds values, and refuses what is not finite afterwards: a model with one infinity answers nonsense.
func put(dst []byte, dtype safetensors.DType, src []float32) error {
	if err := safetensors.PutFloat32s(dst, dtype, src); err != nil {
		return err
	}
	le := binary.LittleEndian
	bad := func(i int) error {
		if v := float64(src[i]); math.IsNaN(v) || math.IsInf(v, 0) {
			return fmt.Errorf("%w: element %d is %v", ErrValue, i, v)
		}
		return fmt.Errorf("%w: element %d is %v, too large for %s; export as F32", ErrValue, i, src[i], dtype)
	}
	switch dtype {
	case safetensors.F32:
		for i := range src {
			if le.Uint32(dst[4*i:])&0x7f800000 == 0x7f800000 {
				return bad(i)
			}
		}
	default:
		exponent := uint16(0x7f80)
		if dtype == safetensors.F16 {
			exponent = 0x7c00
		}
		for i := range src {
			if le.Uint16(dst[2*i:])&exponent == exponent {
				return bad(i)
			}
		}
	}
	return nil
}

// computed shows values as a file of little-endian float32s.
type computed struct {
	elements
	n int64 // elements
}

func (c *computed) Size() int64 { return 4 * c.n }

// ReadAt computes bytes in pieces of a fixed size.
func (c *computed) ReadAt(p []byte, off int64) (n int, err error) {
	if off < 0 {
		return 0, fmt.Errorf("read: negative offset %d", off)
	}
	const piece = 1 << 14 // elements
	values := make([]float32, min(piece, int64(len(p))/4+2))
	bytes := make([]byte, 4*len(values))
	for n < len(p) {
		at := off + int64(n)
		first, skip := at/4, at%4
		if first >= c.n {
			return n, io.EOF
		}
		count := min(int64(len(values)), c.n-first, (skip+int64(len(p)-n)+3)/4)
		if err := c.read(values[:count], first); err != nil {
			return n, err
		}
		if err := safetensors.PutFloat32s(bytes[:4*count], safetensors.F32, values[:count]); err != nil {
			return n, err
		}
		n += copy(p[n:], bytes[skip:4*count])
	}
	return n, nil
}
