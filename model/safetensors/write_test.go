package safetensors

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"

	"smolgym/model/growth"
)

func raw(b []byte) func(io.Writer) error {
	return func(w io.Writer) error { _, err := w.Write(b); return err }
}

func TestWriteIsDeterministicAndAligned(t *testing.T) {
	entries := []Entry{
		{"b.half", BF16, []int64{3}, raw([]byte("abcdef"))},
		{"z", F32, []int64{1, 2}, raw([]byte("01234567"))},
		{"a \"quoted\" <κ>", F16, []int64{1}, raw([]byte("gh"))},
		{"scalar", F32, nil, raw([]byte("89ab"))},
		{"empty", F32, []int64{0, 64}, raw(nil)},
		{"ids", I64, []int64{1}, raw([]byte("8 bytes!"))},
		{"mask", Bool, []int64{1}, raw([]byte{1})},
	}
	metadata := map[string]string{"format": "pt", "b": "<&>\n", "a": ""}
	var first bytes.Buffer
	if err := Write(&first, entries, metadata); err != nil {
		t.Fatal(err)
	}
	if n, err := Size(entries, metadata); err != nil || n != int64(first.Len()) {
		t.Errorf("size %d, %v; wrote %d", n, err, first.Len())
	}
	slices.Reverse(entries)
	var second bytes.Buffer
	if err := Write(&second, entries, metadata); err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(first.Bytes(), second.Bytes()) {
		t.Error("another order of the entries gave another file")
	}
	f, err := parse(first.Bytes())
	if err != nil {
		t.Fatal(err)
	}
	if !reflect.DeepEqual(f.Metadata, metadata) {
		t.Errorf("metadata %q, want %q", f.Metadata, metadata)
	}
	for _, e := range entries {
		tensor, ok := f.Tensor(e.Name)
		if !ok || tensor.DType != e.DType || !slices.Equal(tensor.Shape, e.Shape) {
			t.Errorf("%s came back as %+v", e.Name, tensor)
			continue
		}
		if tensor.Offset%e.DType.Size() != 0 {
			t.Errorf("%s is not aligned: offset %d", e.Name, tensor.Offset)
		}
		var want bytes.Buffer
		_ = e.Data(&want)
		got := make([]byte, tensor.Bytes)
		if err := f.ReadInto(got, e.Name); err != nil || !bytes.Equal(got, want.Bytes()) {
			t.Errorf("%s = %q, %v; want %q", e.Name, got, err, want.Bytes())
		}
	}
}

func TestWriteExactBytes(t *testing.T) {
	var b bytes.Buffer
	err := Write(&b, []Entry{{"w", F32, []int64{1}, raw([]byte("data"))}}, map[string]string{"format": "pt"})
	want := "\x58\x00\x00\x00\x00\x00\x00\x00" + `{"__metadata__":{"format":"pt"},"w":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}}` + "   data"
	if err != nil || b.String() != want {
		t.Errorf("%q, %v\nwant %q", b.String(), err, want)
	}
	b.Reset()
	if err := Write(&b, nil, nil); err != nil || b.String() != "\x08\x00\x00\x00\x00\x00\x00\x00{}      " {
		t.Errorf("empty file %q, %v", b.String(), err)
	}
}

func TestWriteRefuses(t *testing.T) {
	good := raw(make([]byte, 4))
	broken := errors.New("disk is full")
	tests := map[string]struct {
		entries []Entry
		is      error
	}{
		"too few bytes":  {[]Entry{{"the.tensor", F32, []int64{2}, good}}, ErrLength},
		"too many bytes": {[]Entry{{"the.tensor", F32, []int64{0}, good}}, ErrLength},
		"unknown type":   {[]Entry{{"the.tensor", "F4", []int64{1}, good}}, ErrTensor},
		"negative":       {[]Entry{{"the.tensor", F32, []int64{-1}, good}}, ErrTensor},
		"overflow":       {[]Entry{{"the.tensor", F32, []int64{1 << 40, 1 << 40}, good}}, ErrTensor},
		"sum overflows":  {[]Entry{{"a", U8, []int64{1<<63 - 1}, good}, {"the.tensor", U8, []int64{1}, good}}, ErrTensor},
		"twice":          {[]Entry{{"the.tensor", F32, []int64{1}, good}, {"the.tensor", F32, []int64{1}, good}}, ErrTensor},
		"long":           {[]Entry{{"the.tensor" + strings.Repeat("n", MaxNameBytes), F32, []int64{1}, good}}, ErrLimit},
		"source fails":   {[]Entry{{"the.tensor", F32, []int64{1}, func(io.Writer) error { return broken }}}, broken},
	}
	for name, tt := range tests {
		err := Write(io.Discard, tt.entries, nil)
		if !errors.Is(err, tt.is) || !strings.Contains(err.Error(), "the.tensor") {
			t.Errorf("%s: error %v, want %v with the tensor named", name, err, tt.is)
		}
	}
	if err := Write(io.Discard, []Entry{{"__metadata__", F32, []int64{1}, good}}, nil); !errors.Is(err, ErrTensor) {
		t.Errorf("reserved name: %v", err)
	}
}

// shared finds the material that tests share but the repository doesn't hold.
func shared(t *testing.T, parts ...string) string {
	t.Helper()
	root := os.Getenv("SMOLGYM_SHARED")
	if root == "" {
		root = filepath.Join("..", "..", "..", "shared")
	}
	path := filepath.Join(append([]string{root}, parts...)...)
	if _, err := os.Stat(path); err != nil {
		t.Skipf("shared material is absent: set SMOLGYM_SHARED (%v)", err)
	}
	return path
}

// A file that the format's reference implementation wrote comes out the same, byte for byte, when it is written again.
func TestRewriteReferenceFile(t *testing.T) {
	for _, name := range []string{"model.safetensors", "golden.safetensors"} {
		want, err := os.ReadFile(shared(t, "data", "models", "stories260k", name))
		if err != nil {
			t.Fatal(err)
		}
		f, err := parse(want)
		if err != nil {
			t.Fatal(err)
		}
		var entries []Entry
		for _, tensor := range f.Tensors() {
			entries = append(entries, Entry{tensor.Name, tensor.DType, tensor.Shape, func(w io.Writer) error {
				r, err := f.ReaderAt(tensor.Name)
				if err != nil {
					return err
				}
				_, err = io.Copy(w, r)
				return err
			}})
		}
		var got bytes.Buffer
		if err := Write(&got, entries, f.Metadata); err != nil {
			t.Fatal(err)
		}
		if !bytes.Equal(got.Bytes(), want) {
			t.Errorf("%s: %d bytes differ from the %d of the original", name, got.Len(), len(want))
		}
	}
}

func FuzzParse(f *testing.F) {
	var b bytes.Buffer
	for _, dtype := range []DType{F32, BF16, F8E4M3} {
		b.Reset()
		data := make([]byte, 6*dtype.Size())
		if err := Write(&b, []Entry{{"a", dtype, []int64{2, 3}, raw(data)}, {"b", dtype, []int64{0, 3}, raw(nil)}}, map[string]string{"k": "v"}); err != nil {
			f.Fatal(err)
		}
		f.Add(b.Bytes())
	}
	f.Add(file(`{"__metadata__":{"\ud83d\ude00":"\u00e9"},"x":{"shape":[1099511627776,1099511627776],"dtype":"F32","data_offsets":[0,0]}}  `, nil))
	f.Add(file(`{"a":{"dtype":"I64","shape":[],"data_offsets":[0,8]}}`, make([]byte, 8)))
	var live growth.Watch
	f.Fuzz(func(t *testing.T, b []byte) {
		live.Check(t)
		file, err := parse(b)
		if err != nil {
			return
		}
		// What was accepted must be true: in range, readable, tiling the data, and the same after writing it again.
		total := int64(0)
		var entries []Entry
		for _, tensor := range file.Tensors() {
			if tensor.Offset < prefixBytes || tensor.Offset+tensor.Bytes > int64(len(b)) || tensor.Elements()*tensor.DType.Size() != tensor.Bytes {
				t.Fatalf("accepted %+v in a file of %d bytes", tensor, len(b))
			}
			data := make([]byte, tensor.Bytes)
			if err := file.ReadInto(data, tensor.Name); err != nil {
				t.Fatal(err)
			}
			if err := file.ReadFloat32s(make([]float32, tensor.Elements()), tensor.Name); err != nil && !errors.Is(err, ErrDType) {
				t.Fatal(err)
			}
			total += tensor.Bytes
			entries = append(entries, Entry{tensor.Name, tensor.DType, tensor.Shape, raw(data)})
		}
		var again bytes.Buffer
		if err := Write(&again, entries, file.Metadata); err != nil {
			t.Fatal(err)
		}
		second, err := parse(again.Bytes())
		if err != nil {
			t.Fatal(err)
		}
		if fmt.Sprint(second.Metadata) != fmt.Sprint(file.Metadata) || len(second.Tensors()) != len(entries) {
			t.Fatal("the second file differs from the first")
		}
		for i, tensor := range second.Tensors() {
			was := file.Tensors()[i]
			if tensor.Name != was.Name || tensor.DType != was.DType || !slices.Equal(tensor.Shape, was.Shape) {
				t.Fatalf("%+v came back as %+v", was, tensor)
			}
			total -= tensor.Bytes
		}
		if total != 0 {
			t.Fatal("the second file has another length of data")
		}
	})
}
