package gguf

import (
	"bytes"
	"cmp"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"io"
	"slices"
	"strings"

	"smolgym/model/hf"
	"smolgym/model/safetensors"
)

// virtual is a safetensors file that is computed where it is read.
type virtual struct {
	header  []byte
	tensors []mapped // by offset, without gaps
	size    int64
}

// mapped is one tensor of the virtual file.
type mapped struct {
	name   string
	dtype  safetensors.DType
	offset int64 // in the virtual file
	bytes  int64
	src    Tensor
	head   int64   // rows of a head whose rows are interleaved in src, 0 if they are in order
	shift  float32 // added to every value
	raw    bool    // the bytes are those of src
}

// newVirtual maps every tensor, and notes those that can't be.
func newVirtual(s *settings, as safetensors.DType) *virtual {
	v := &virtual{}
	for _, t := range s.f.Tensors() {
		if slices.Contains(ropeTensors, t.Name) {
			continue // config.json has what they say
		}
		name := s.fam.toHF(t.Name, int(s.layers))
		switch {
		case name == "":
			s.gaps.add("tensor %q is none of the family %s", shorten(t.Name), s.fam.arch)
			continue
		case !t.Type.Readable():
			s.gaps.add("tensor %q: encoding %s; F32, F16, BF16, Q8_0, Q4_0, Q4_K and Q6_K are read: convert it with llama-quantize", shorten(t.Name), t.Type)
			continue
		}
		m := mapped{name: name, src: t, dtype: as}
		if d := safetensors.DType(t.Type.String()); d.IsWeight() {
			m.dtype, m.raw = d, true
		}
		if s.fam.shifted && isNorm(t.Name) {
			m.dtype, m.shift, m.raw = safetensors.F32, -1, false
		}
		if heads := s.fam.permutedHeads(t.Name, s.heads, s.kvHeads); heads > 0 {
			rows := t.Elements()
			if len(t.Shape) > 1 {
				rows = t.Shape[0]
			}
			if m.head = rows / heads; rows%heads != 0 || m.head%2 != 0 || m.head == 0 || len(t.Shape) > 2 {
				s.gaps.add("tensor %q: its %d rows are no %d heads of pairs", shorten(t.Name), rows, heads)
				continue
			}
		}
		m.bytes = t.Elements() * m.dtype.Size()
		v.tensors = append(v.tensors, m)
	}
	v.layout()
	return v
}

// layout orders the tensors and writes the header that describes them.
func (v *virtual) layout() {
	slices.SortFunc(v.tensors, func(a, b mapped) int {
		return cmp.Or(cmp.Compare(b.dtype.Size(), a.dtype.Size()), strings.Compare(a.name, b.name))
	})
	h := bytes.NewBuffer(make([]byte, 8))
	h.WriteString(`{"__metadata__":{"format":"pt"}`)
	for i := range v.tensors {
		m := &v.tensors[i]
		name, _ := json.Marshal(m.name) // letters, digits and dots: they can't fail
		fmt.Fprintf(h, `,%s:{"dtype":"%s","shape":[`, name, m.dtype)
		for j, d := range m.src.Shape {
			if j > 0 {
				h.WriteByte(',')
			}
			fmt.Fprint(h, d)
		}
		fmt.Fprintf(h, `],"data_offsets":[%d,%d]}`, v.size, v.size+m.bytes)
		m.offset = v.size
		v.size += m.bytes
	}
	h.WriteByte('}')
	for h.Len()%8 != 0 {
		h.WriteByte(' ')
	}
	v.header = h.Bytes()
	binary.LittleEndian.PutUint64(v.header, uint64(len(v.header)-8))
	for i := range v.tensors {
		v.tensors[i].offset += int64(len(v.header))
	}
	v.size += int64(len(v.header))
}

// virtualFile is an opened virtual file.
type virtualFile struct {
	*virtual
	r hf.ReaderAtSized
}

func (f *virtualFile) Size() int64  { return f.size }
func (f *virtualFile) Close() error { return f.r.Close() }

// ReadAt computes bytes. It holds a fixed amount of memory, whatever the sizes of p and of the tensors.
func (f *virtualFile) ReadAt(p []byte, off int64) (n int, err error) {
	if off < 0 {
		return 0, fmt.Errorf("read %s: negative offset %d", weightsName, off)
	}
	if off < int64(len(f.header)) {
		n = copy(p, f.header[off:])
	}
	i, exact := slices.BinarySearchFunc(f.tensors, off+int64(n), func(m mapped, at int64) int { return cmp.Compare(m.offset, at) })
	if !exact {
		i--
	}
	var room *scratch
	for ; n < len(p); i++ {
		at := off + int64(n)
		if at >= f.size || i < 0 {
			return n, io.EOF
		}
		m := f.tensors[i]
		part := p[n:min(int64(len(p)), int64(n)+m.offset+m.bytes-at)]
		if room == nil && !m.raw {
			room = &scratch{}
		}
		if err := m.read(f.r, part, at-m.offset, room); err != nil {
			return n, err
		}
		n += len(part)
	}
	return n, nil
}

// scratch is what converting needs.
type scratch struct {
	values [chunkElements]float32
	bytes  [4 * chunkElements]byte
}

// read fills p with the tensor's bytes from at on, row by row where the rows have to be put in order.
func (m *mapped) read(r io.ReaderAt, p []byte, at int64, room *scratch) error {
	if m.head == 0 {
		return m.span(r, p, at, at, room)
	}
	row := m.dtype.Size()
	if len(m.src.Shape) > 1 {
		row *= m.src.columns()
	}
	for len(p) > 0 {
		n := min(int64(len(p)), row-at%row)
		from := interleaved(at/row, m.head)*row + at%row
		if err := m.span(r, p[:n], at, from, room); err != nil {
			return err
		}
		p, at = p[n:], at+n
	}
	return nil
}

// span fills p with bytes that lie together, from byte from of the stored order on, if that were of this element type.
func (m *mapped) span(r io.ReaderAt, p []byte, at, from int64, room *scratch) error {
	if m.raw {
		if err := readFull(r, p, m.src.Offset+from); err != nil {
			return fmt.Errorf("read tensor %q from byte %d: %w", m.src.Name, at, err)
		}
		return nil
	}
	size := m.dtype.Size()
	for len(p) > 0 {
		first, skip := from/size, from%size
		count := min((skip+int64(len(p))+size-1)/size, chunkElements)
		values := room.values[:count]
		if err := readFloat32s(r, values, m.src, first); err != nil {
			return err
		}
		if m.shift != 0 {
			for i := range values {
				values[i] += m.shift
			}
		}
		if err := safetensors.PutFloat32s(room.bytes[:count*size], m.dtype, values); err != nil {
			return fmt.Errorf("read tensor %q: %w", m.src.Name, err)
		}
		if m.dtype == safetensors.F16 {
			if err := overflow(room.bytes[:count*size], 0x7c00, values, F16); err != nil {
				return fmt.Errorf("read tensor %q from element %d: %w", m.src.Name, first, err)
			}
		}
		n := copy(p, room.bytes[skip:count*size])
		p, from = p[n:], from+int64(n)
	}
	return nil
}
