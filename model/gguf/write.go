package gguf

import (
	"encoding/binary"
	"fmt"
	"io"
	"math"
)

// KV is a metadata entry to be written. Value is one of bool, uint32, int32, uint64, int64, float32, float64, string, and
// slices of int32, uint32, float32 and string.
type KV struct {
	Key   string
	Value any
}

// Entry is a tensor to be written.
type Entry struct {
	Name  string
	Type  Type
	Shape []int64 // row-major

	// Data writes the tensor's bytes, exactly as many as type and shape take. It is called once, when their turn comes.
	Data func(w io.Writer) error
}

// Write streams a file of version 3: the metadata and the tensors in the given order. The same content gives the same bytes.
func Write(w io.Writer, metadata []KV, entries []Entry) error {
	header, sizes, err := headerOf(metadata, entries)
	if err != nil {
		return fmt.Errorf("write gguf: %w", err)
	}
	if _, err := w.Write(header); err != nil {
		return fmt.Errorf("write gguf: header: %w", err)
	}
	for i, e := range entries {
		exact := &exactWriter{w: w, left: sizes[i]}
		if err := e.Data(exact); err != nil {
			return fmt.Errorf("write gguf: tensor %q: %w", e.Name, err)
		}
		if exact.left != 0 {
			return fmt.Errorf("write gguf: tensor %q: %w: %d bytes of %d were not written", e.Name, ErrLength, exact.left, sizes[i])
		}
		if _, err := w.Write(make([]byte, padding(sizes[i]))); err != nil {
			return fmt.Errorf("write gguf: tensor %q: %w", e.Name, err)
		}
	}
	return nil
}

// Size gives the number of bytes that [Write] will write for the same arguments.
func Size(metadata []KV, entries []Entry) (int64, error) {
	header, sizes, err := headerOf(metadata, entries)
	if err != nil {
		return 0, fmt.Errorf("size gguf: %w", err)
	}
	total := int64(len(header))
	for _, n := range sizes {
		total += n + padding(n)
	}
	return total, nil
}

func padding(n int64) int64 { return -n & (defaultAlignment - 1) }

// headerOf makes everything before the first tensor's bytes, and gives the tensors' lengths.
func headerOf(metadata []KV, entries []Entry) (header []byte, sizes []int64, err error) {
	if len(metadata) > MaxKeys || len(entries) > MaxTensors {
		return nil, nil, fmt.Errorf("%w: %d metadata entries and %d tensors", ErrLimit, len(metadata), len(entries))
	}
	le := binary.LittleEndian
	b := append([]byte(magic), 3, 0, 0, 0)
	b = le.AppendUint64(b, uint64(len(entries)))
	b = le.AppendUint64(b, uint64(len(metadata)))
	seen := map[string]bool{}
	for _, kv := range metadata {
		if seen[kv.Key] || kv.Key == "" || len(kv.Key) > MaxKeyBytes || kv.Key == alignmentKey {
			return nil, nil, fmt.Errorf("metadata %q: %w: the key can't be written, or not twice", shorten(kv.Key), ErrHeader)
		}
		seen[kv.Key] = true
		b = appendText(b, kv.Key)
		if b, err = appendValue(b, kv.Value); err != nil {
			return nil, nil, fmt.Errorf("metadata %q: %w", shorten(kv.Key), err)
		}
	}
	clear(seen)
	var offset int64
	for _, e := range entries {
		block, bytes := e.Type.Block()
		n := Tensor{Shape: e.Shape}
		elements, ok := checkedElements(e.Shape)
		switch {
		case seen[e.Name] || e.Name == "" || len(e.Name) > MaxKeyBytes:
			return nil, nil, fmt.Errorf("tensor %q: %w: the name can't be written, or not twice", shorten(e.Name), ErrTensor)
		case block == 0 || !ok || n.columns()%block != 0 || len(e.Shape) > MaxRank:
			return nil, nil, fmt.Errorf("tensor %q: %w: shape %v can't be laid out as %s", shorten(e.Name), ErrTensor, e.Shape, e.Type)
		}
		seen[e.Name] = true
		b = appendText(b, e.Name)
		b = le.AppendUint32(b, uint32(len(e.Shape)))
		for i := len(e.Shape) - 1; i >= 0; i-- {
			b = le.AppendUint64(b, uint64(e.Shape[i]))
		}
		b = le.AppendUint32(b, uint32(e.Type))
		b = le.AppendUint64(b, uint64(offset))
		size := elements / block * bytes
		sizes = append(sizes, size)
		offset += size + padding(size)
	}
	return append(b, make([]byte, padding(int64(len(b))))...), sizes, nil
}

func checkedElements(shape []int64) (int64, bool) {
	n := int64(1)
	for _, d := range shape {
		if d < 1 || d > 1<<48/n {
			return 0, false
		}
		n *= d
	}
	return n, true
}

func appendText(b []byte, s string) []byte {
	return append(binary.LittleEndian.AppendUint64(b, uint64(len(s))), s...)
}

// appendValue appends a value's type and the value.
func appendValue(b []byte, value any) ([]byte, error) {
	le := binary.LittleEndian
	kind := func(k ValueType) { b = le.AppendUint32(b, uint32(k)) }
	list := func(k ValueType, n int) {
		kind(Array)
		kind(k)
		b = le.AppendUint64(b, uint64(n))
	}
	switch v := value.(type) {
	case bool:
		kind(Bool)
		if v {
			return append(b, 1), nil
		}
		return append(b, 0), nil
	case uint32:
		kind(Uint32)
		return le.AppendUint32(b, v), nil
	case int32:
		kind(Int32)
		return le.AppendUint32(b, uint32(v)), nil
	case uint64:
		kind(Uint64)
		return le.AppendUint64(b, v), nil
	case int64:
		kind(Int64)
		return le.AppendUint64(b, uint64(v)), nil
	case float32:
		kind(Float32)
		return le.AppendUint32(b, math.Float32bits(v)), nil
	case float64:
		kind(Float64)
		return le.AppendUint64(b, math.Float64bits(v)), nil
	case string:
		kind(String)
		return appendText(b, v), nil
	case []string:
		list(String, len(v))
		for _, s := range v {
			if len(s) > MaxItemBytes {
				return nil, fmt.Errorf("%w: an element of %d bytes", ErrLimit, len(s))
			}
			b = appendText(b, s)
		}
		return b, nil
	case []int32:
		list(Int32, len(v))
		return binary.Append(b, le, v)
	case []uint32:
		list(Uint32, len(v))
		return binary.Append(b, le, v)
	case []float32:
		list(Float32, len(v))
		return binary.Append(b, le, v)
	}
	return nil, fmt.Errorf("%w: a value of %T", ErrKind, value)
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
