package safetensors

import (
	"bytes"
	"cmp"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
)

// Entry is a tensor to be written.
type Entry struct {
	Name  string
	DType DType
	Shape []int64 // row-major

	// Data writes the tensor's bytes, exactly shape times element size. It is called once, when their turn comes.
	Data func(w io.Writer) error
}

// Write streams a file to w. The order of entries does not matter: larger element types come first and names are sorted
// within a type, so that every tensor is aligned to its elements and the same content gives the same bytes. Metadata may
// be nil.
func Write(w io.Writer, entries []Entry, metadata map[string]string) error {
	header, sorted, _, err := layout(entries, metadata)
	if err != nil {
		return fmt.Errorf("write safetensors: %w", err)
	}
	if _, err := w.Write(header); err != nil {
		return fmt.Errorf("write safetensors: header: %w", err)
	}
	for _, e := range sorted {
		want, _ := product(e.Shape, e.DType.Size())
		exact := &exactWriter{w: w, left: want}
		if err := e.Data(exact); err != nil {
			return fmt.Errorf("write safetensors: tensor %q: %w", e.Name, err)
		}
		if exact.left != 0 {
			return fmt.Errorf("write safetensors: tensor %q: %w: %d bytes of %d were not written", e.Name, ErrLength, exact.left, want)
		}
	}
	return nil
}

// Size gives the number of bytes that [Write] will write for the same arguments.
func Size(entries []Entry, metadata map[string]string) (int64, error) {
	header, _, data, err := layout(entries, metadata)
	if err != nil {
		return 0, fmt.Errorf("size safetensors: %w", err)
	}
	return int64(len(header)) + data, nil
}

// layout makes the header, prefix included, and puts the entries in file order; data is the length of what follows.
func layout(entries []Entry, metadata map[string]string) (header []byte, sorted []Entry, data int64, err error) {
	sorted = slices.SortedFunc(slices.Values(entries), func(a, b Entry) int {
		return cmp.Or(cmp.Compare(b.DType.rank(), a.DType.rank()), strings.Compare(a.Name, b.Name))
	})
	if err := checkNames(entries); err != nil {
		return nil, nil, 0, err
	}
	var h bytes.Buffer
	h.Write(make([]byte, prefixBytes))
	h.WriteByte('{')
	if metadata != nil {
		h.WriteString(`"__metadata__":{`)
		for i, key := range slices.Sorted(maps.Keys(metadata)) {
			comma(&h, i)
			quote(&h, key)
			h.WriteByte(':')
			quote(&h, metadata[key])
		}
		h.WriteByte('}')
	}
	for i, e := range sorted {
		n, ok := product(e.Shape, e.DType.Size())
		if e.DType.Size() == 0 || !ok || data+n < data || slices.ContainsFunc(e.Shape, func(d int64) bool { return d < 0 }) {
			return nil, nil, 0, fmt.Errorf("tensor %q: %w: shape %v of %q cannot be laid out", e.Name, ErrTensor, e.Shape, e.DType)
		}
		if metadata != nil {
			i++
		}
		comma(&h, i)
		quote(&h, e.Name)
		fmt.Fprintf(&h, `:{"dtype":"%s","shape":[`, e.DType)
		for j, d := range e.Shape {
			comma(&h, j)
			fmt.Fprint(&h, d)
		}
		fmt.Fprintf(&h, `],"data_offsets":[%d,%d]}`, data, data+n)
		data += n
	}
	h.WriteByte('}')
	for h.Len()%8 != 0 {
		h.WriteByte(' ') // the data section starts at a multiple of the largest element
	}
	header = h.Bytes()
	if len(header)-prefixBytes > MaxHeaderBytes {
		return nil, nil, 0, fmt.Errorf("%w: the header would take %d bytes", ErrLimit, len(header)-prefixBytes)
	}
	binary.LittleEndian.PutUint64(header, uint64(len(header)-prefixBytes))
	return header, sorted, data, nil
}

// checkNames refuses what Parse would refuse to read back.
func checkNames(entries []Entry) error {
	if len(entries) > MaxTensors {
		return fmt.Errorf("%w: more than %d tensors", ErrLimit, MaxTensors)
	}
	names := make(map[string]bool, len(entries))
	for _, e := range entries {
		switch {
		case names[e.Name]:
			return fmt.Errorf("tensor %q: %w: the name appears twice", e.Name, ErrTensor)
		case e.Name == "__metadata__":
			return fmt.Errorf("tensor %q: %w: the name is reserved", e.Name, ErrTensor)
		case len(e.Name) > MaxNameBytes || len(e.Shape) > MaxRank:
			return fmt.Errorf("tensor %q: %w: its name or rank is too long", shorten(e.Name), ErrLimit)
		}
		names[e.Name] = true
	}
	return nil
}

func comma(h *bytes.Buffer, i int) {
	if i > 0 {
		h.WriteByte(',')
	}
}

func quote(h *bytes.Buffer, s string) {
	enc := json.NewEncoder(h)
	enc.SetEscapeHTML(false)
	// A string and a buffer: neither can fail. Invalid UTF-8 is replaced, as JSON requires.
	_ = enc.Encode(s)
	h.Truncate(h.Len() - 1) // the newline that Encode adds
}

// exactWriter passes on at most left bytes.
type exactWriter struct {
	w    io.Writer
	left int64
}

func (e *exactWriter) Write(p []byte) (int, error) {
	if int64(len(p)) > e.left {
		return 0, fmt.Errorf("%w: %d bytes more than its shape takes", ErrLength, int64(len(p))-e.left)
	}
	n, err := e.w.Write(p)
	e.left -= int64(n)
	return n, err
}
