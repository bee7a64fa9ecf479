package safetensors

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"math"
	"runtime"
	"slices"
	"strings"
	"testing"
)

// file puts a header and a data section together.
func file(header string, data []byte) []byte {
	b := binary.LittleEndian.AppendUint64(nil, uint64(len(header)))
	return append(append(b, header...), data...)
}

func parse(b []byte) (*File, error) { return Parse(bytes.NewReader(b), int64(len(b))) }

// allocated gives the bytes that f allocates in all, garbage included: an upper bound on how far memory can grow.
func allocated(f func()) uint64 {
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	f()
	runtime.ReadMemStats(&after)
	return after.TotalAlloc - before.TotalAlloc
}

const memoryLimit = 50 << 20

func prefix(n uint64, rest ...byte) []byte {
	return append(binary.LittleEndian.AppendUint64(nil, n), rest...)
}

func entry(fields string) string { return `{"the.tensor":{` + fields + `}}` }

func f32(shape, offsets string) string {
	return entry(`"dtype":"F32","shape":` + shape + `,"data_offsets":` + offsets)
}

const firstTensor = `"first":{"dtype":"F32","shape":[2],"data_offsets":[0,8]},`

var hostileFiles = []struct {
	name  string
	file  []byte
	is    error
	names string // what the message must contain
}{
	{"empty file", nil, ErrHeader, "0 bytes"},
	{"seven bytes", make([]byte, 7), ErrHeader, "7 bytes"},
	{"length 0", prefix(0, '{', '}'), ErrHeader, "length is 0"},
	{"length 2^63", prefix(1<<63, '{', '}'), ErrLimit, "9223372036854775808"},
	{"length 2^64-1", prefix(math.MaxUint64, '{', '}'), ErrLimit, "18446744073709551615"},
	{"length beyond the file", prefix(3, '{', '}'), ErrHeader, "only 2 bytes"},
	{"length above 100 MB", prefix(MaxHeaderBytes+1, '{', '}'), ErrLimit, "100000001"},
	{"length of 100 MB in a small file", prefix(MaxHeaderBytes, '{', '}'), ErrHeader, "only 2 bytes"},
	{"not JSON", file("hello world!", nil), ErrHeader, "not with an object"},
	{"a list", file("[]", nil), ErrHeader, "not with an object"},
	{"a number", file("12", nil), ErrHeader, "not with an object"},
	{"blanks first", file(" {}", nil), ErrHeader, "not with an object"},
	{"cut", file(`{"the.tensor":{"dtype":"F32",`, nil), ErrHeader, "the.tensor"},
	{"text after", file(`{}x`, nil), ErrHeader, "after the end"},
	{"NUL padding", file("{}\x00\x00", nil), ErrHeader, "after the end"},
	{"comma at the end", file(`{"a":{"dtype":"F32","shape":[],"data_offsets":[0,4]},}`, make([]byte, 4)), ErrHeader, "tensor's name"},
	{"name not UTF-8", file("{\"\xff\":{}}", nil), ErrHeader, "UTF-8"},
	{"half surrogate", file(`{"\ud800":{}}`, nil), ErrHeader, "surrogate"},
	{"entry is a number", file(`{"the.tensor":7}`, nil), ErrHeader, "the.tensor"},
	{"entry is null", file(`{"the.tensor":null}`, nil), ErrHeader, "the.tensor"},
	{"entry is empty", file(entry(""), nil), ErrTensor, "the.tensor"},
	{"no dtype", file(entry(`"shape":[1],"data_offsets":[0,4]`), make([]byte, 4)), ErrTensor, "the.tensor"},
	{"no shape", file(entry(`"dtype":"F32","data_offsets":[0,4]`), make([]byte, 4)), ErrTensor, "the.tensor"},
	{"dtype is a number", file(entry(`"dtype":4`), nil), ErrHeader, "the.tensor"},
	{"shape is a number", file(f32("1", "[0,4]"), make([]byte, 4)), ErrTensor, "the.tensor"},
	{"shape twice", file(entry(`"dtype":"F32","shape":[1],"shape":[1],"data_offsets":[0,4]`), make([]byte, 4)), ErrTensor, "the.tensor"},
	{"unknown field", file(entry(`"dtype":"F32","strides":[1],"shape":[1],"data_offsets":[0,4]`), make([]byte, 4)), ErrTensor, "strides"},
	{"offsets []", file(f32("[1]", "[]"), make([]byte, 4)), ErrTensor, "the.tensor"},
	{"offsets [5]", file(f32("[1]", "[5]"), make([]byte, 9)), ErrTensor, "the.tensor"},
	{"three offsets", file(f32("[1]", "[0,4,8]"), make([]byte, 8)), ErrTensor, "the.tensor"},
	{"offsets [-4,8]", file(f32("[3]", "[-4,8]"), make([]byte, 8)), ErrTensor, "the.tensor"},
	{"offsets [8,4]", file(f32("[1]", "[8,4]"), make([]byte, 8)), ErrTensor, "the.tensor"},
	{"offsets with fraction", file(f32("[1]", "[0,4.0]"), make([]byte, 4)), ErrTensor, "the.tensor"},
	{"offsets with exponent", file(f32("[1]", "[0,4e0]"), make([]byte, 4)), ErrTensor, "the.tensor"},
	{"offsets beyond int64", file(f32("[1]", "[0,9223372036854775808]"), make([]byte, 4)), ErrTensor, "the.tensor"},
	{"past the end", file(f32("[2]", "[0,8]"), make([]byte, 7)), ErrTensor, "the.tensor"},
	{"far past the end", file(f32("[1]", "[9223372036854775803,9223372036854775807]"), make([]byte, 4)), ErrTensor, "the.tensor"},
	{"overlapping", file(`{`+firstTensor+f32("[2]", "[4,12]")[1:], make([]byte, 12)), ErrTensor, "the.tensor"},
	{"twice the same bytes", file(`{`+firstTensor+f32("[2]", "[0,8]")[1:], make([]byte, 8)), ErrTensor, "the.tensor"},
	{"hole", file(`{`+firstTensor+f32("[1]", "[12,16]")[1:], make([]byte, 16)), ErrTensor, "the.tensor"},
	{"hole at the start", file(f32("[1]", "[4,8]"), make([]byte, 8)), ErrTensor, "the.tensor"},
	{"trailing bytes", file(f32("[1]", "[0,4]"), make([]byte, 5)), ErrTensor, "the.tensor"},
	{"data without tensors", file(`{}`, make([]byte, 5)), ErrHeader, "5 bytes"},
	{"too few bytes for the shape", file(f32("[2]", "[0,4]"), make([]byte, 4)), ErrTensor, "the.tensor"},
	{"product wraps to 0", file(f32("[1099511627776,1099511627776]", "[0,0]"), nil), ErrTensor, "the.tensor"},
	{"product wraps beside a 0", file(f32("[0,1099511627776,1099511627776]", "[0,0]"), nil), ErrTensor, "the.tensor"},
	{"product passes int64", file(f32("[3037000500,3037000500]", "[0,4]"), make([]byte, 4)), ErrTensor, "the.tensor"},
	{"negative dimension", file(f32("[-1]", "[0,4]"), make([]byte, 4)), ErrTensor, "the.tensor"},
	{"33 dimensions", file(f32("["+strings.Repeat("1,", 32)+"1]", "[0,4]"), make([]byte, 4)), ErrTensor, "the.tensor"},
	{"name twice", file(`{"the.tensor":{"dtype":"F32","shape":[1],"data_offsets":[0,4]},`+f32("[1]", "[4,8]")[1:], make([]byte, 8)), ErrTensor, "the.tensor"},
	{"metadata is a list", file(`{"__metadata__":[]}`, nil), ErrHeader, "__metadata__"},
	{"metadata holds a number", file(`{"__metadata__":{"a":1}}`, nil), ErrHeader, "__metadata__"},
	{"metadata twice", file(`{"__metadata__":{},"__metadata__":{}}`, nil), ErrHeader, "__metadata__"},
	{"name of 5000 bytes", file(`{"`+strings.Repeat("n", 5000)+`":{}}`, nil), ErrLimit, "longer than"},
}

func TestFR17HostileFiles(t *testing.T) {
	for _, tt := range hostileFiles {
		t.Run(tt.name, func(t *testing.T) {
			var err error
			grown := allocated(func() { _, err = parse(tt.file) })
			if err == nil {
				t.Fatal("accepted")
			}
			if !errors.Is(err, tt.is) || !strings.Contains(err.Error(), tt.names) {
				t.Errorf("error %q: want kind %q and the text %q", err, tt.is, tt.names)
			}
			if grown > 1<<20 {
				t.Errorf("allocated %d bytes for a small file", grown)
			}
		})
	}
}

// endless gives a header of MaxHeaderBytes made on the fly: head, then body as often as it fits.
type endless struct{ head, body string }

func (e endless) ReadAt(p []byte, off int64) (int, error) {
	for i := range p {
		switch o := off + int64(i); {
		case o < 8:
			p[i] = byte(uint64(MaxHeaderBytes) >> (8 * o))
		case o < 8+int64(len(e.head)):
			p[i] = e.head[o-8]
		default:
			p[i] = e.body[(o-8-int64(len(e.head)))%int64(len(e.body))]
		}
	}
	return len(p), nil
}

// Headers that are as long as they say cost no more than short ones do: what is kept is bounded, not what is read.
func TestFR17MemoryStaysSmall(t *testing.T) {
	manyTensors := &numbered{format: `"%07d":{"dtype":"F32","shape":[],"data_offsets":[%10d,%10d]},`}
	long := &numbered{format: `"` + strings.Repeat("n", 3000) + `%07d":{"dtype":"F32","shape":[],"data_offsets":[%10d,%10d]},`}
	ranks := &numbered{format: `"%07d":{"dtype":"F32","shape":[` + strings.Repeat("1,", MaxRank-1) + `1],"data_offsets":[%10d,%10d]},`}
	metadata := &numbered{format: `"%07d%010d%010d":"",`, open: `{"__metadata__":{`}
	both := &numbered{format: manyTensors.format, open: `{"__metadata__":{"a":"` + strings.Repeat("v", 2<<20) + `","b":"` + strings.Repeat("v", 2<<20) + `"},`}
	tests := []struct {
		name string
		r    io.ReaderAt
	}{
		{"much metadata and many tensors", both},
		{"blanks", endless{"{", strings.Repeat(" ", 64)}},
		{"one name", endless{`{"`, "n"}},
		{"one escaped name", endless{`{"`, `\u0041`}},
		{"one metadata value", endless{`{"__metadata__":{"k":"`, "v"}},
		{"one shape", endless{`{"the.tensor":{"shape":[`, "1,"}},
		{"one number of zeros", endless{`{"the.tensor":{"shape":[`, "0"}},
		{"one number of ones", endless{`{"the.tensor":{"shape":[`, "1"}},
		{"nested lists", endless{`{"the.tensor":{"shape":`, "["}},
		{"nested objects", endless{`{"a":`, `{"a":`}},
		{"many tensors", manyTensors},
		{"many tensors with long names", long},
		{"many tensors of high rank", ranks},
		{"many metadata keys", metadata},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			var err error
			grown := allocated(func() { _, err = Parse(tt.r, 1<<40) })
			if err == nil {
				t.Fatal("accepted")
			}
			if len(err.Error()) > 1000 {
				t.Errorf("the message has %d bytes", len(err.Error()))
			}
			if grown > memoryLimit {
				t.Errorf("allocated %d MB, want less than 50 MB (%v)", grown>>20, err)
			}
			t.Logf("%.1f MB allocated: %v", float64(grown)/(1<<20), err)
		})
	}
}

// numbered gives an endless header of distinct entries of one length, each with a range of four bytes of its own.
type numbered struct {
	format, open string
	buf          []byte // reused: the test counts what is allocated
}

func (n *numbered) ReadAt(p []byte, off int64) (int, error) {
	open := n.open
	if open == "" {
		open = "{"
	}
	width := int64(len(fmt.Sprintf(n.format, 0, 0, 0)))
	for i := 0; i < len(p); {
		o := off + int64(i)
		if o < 8+int64(len(open)) {
			if o < 8 {
				p[i] = byte(uint64(MaxHeaderBytes) >> (8 * o))
			} else {
				p[i] = open[o-8]
			}
			i++
			continue
		}
		o -= 8 + int64(len(open))
		k := o / width
		n.buf = fmt.Appendf(n.buf[:0], n.format, k, 4*k, 4*k+4)
		i += copy(p[i:], n.buf[o%width:])
	}
	return len(p), nil
}

func TestFR18OddButLegal(t *testing.T) {
	data := make([]byte, 0, 64)
	data = binary.LittleEndian.AppendUint32(data, math.Float32bits(1.5))    // f32 at 0
	data = binary.LittleEndian.AppendUint16(data, 0x3555)                   // f16 at 4: 0.333251953125
	data = binary.LittleEndian.AppendUint16(data, 0x0001)                   // f16 at 6: the smallest subnormal, 2^-24
	data = binary.LittleEndian.AppendUint16(data, 0x4049)                   // bf16 at 8: 3.140625
	data = binary.LittleEndian.AppendUint32(data, math.Float32bits(-0.125)) // scalar at 10, not aligned
	header := `{"scalar":{"data_offsets":[10,14],"shape":[],"dtype":"F32"},
	 "\u0062f16":{"dtype":"BF16","shape":[1],"data_offsets":[8,10]} , "f16":{"dtype":"F16","shape":[1,2],"data_offsets":[4,8]},
	 "empty.a":{"dtype":"F32","shape":[0,64],"data_offsets":[4,4]},"empty.b":{"dtype":"BF16","shape":[0,64],"data_offsets":[14,14]},
	 "__metadata__":{},"f32":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}}     `
	f, err := parse(file(header, data))
	if err != nil {
		t.Fatal(err)
	}
	if f.Metadata == nil || len(f.Metadata) != 0 {
		t.Errorf("metadata %v, want an empty object", f.Metadata)
	}
	want := map[string][]float32{
		"bf16": {3.140625}, "empty.a": {}, "empty.b": {}, "f16": {0.333251953125, 1.0 / (1 << 24)}, "f32": {1.5}, "scalar": {-0.125},
	}
	var names []string
	for _, tensor := range f.Tensors() {
		names = append(names, tensor.Name)
		got := make([]float32, tensor.Elements())
		if err := f.ReadFloat32s(got, tensor.Name); err != nil {
			t.Error(err)
		}
		if !slices.Equal(got, want[tensor.Name]) {
			t.Errorf("%s = %v, want %v", tensor.Name, got, want[tensor.Name])
		}
	}
	if len(names) != len(want) || !slices.IsSorted(names) {
		t.Errorf("names %q, want six in order", names)
	}
	if e, _ := f.Tensor("empty.b"); !slices.Equal(e.Shape, []int64{0, 64}) || e.Bytes != 0 {
		t.Errorf("empty.b is %+v", e)
	}
}

func TestFR18MetadataOnly(t *testing.T) {
	for header, want := range map[string]map[string]string{
		`{}`: nil, `{"__metadata__":{}}`: {}, `{"__metadata__":{"format":"pt","κ":"\ud83d\ude00\n\""}}   `: {"format": "pt", "κ": "😀\n\""},
	} {
		f, err := parse(file(header, nil))
		if err != nil {
			t.Errorf("%s: %v", header, err)
			continue
		}
		if len(f.Tensors()) != 0 || (f.Metadata == nil) != (want == nil) || fmt.Sprint(f.Metadata) != fmt.Sprint(want) {
			t.Errorf("%s: metadata %v, want %v", header, f.Metadata, want)
		}
	}
}

func TestFR18UnsupportedTypesAreNamed(t *testing.T) {
	for _, dtype := range []string{"F4", "F6_E2M3", "C64", "Q4_0", "f32", ""} {
		header := fmt.Sprintf(`{"the.tensor":{"dtype":%q,"shape":[8],"data_offsets":[0,8]}}`, dtype)
		_, err := parse(file(header, make([]byte, 8)))
		if !errors.Is(err, ErrDType) || !strings.Contains(err.Error(), "the.tensor") || !strings.Contains(err.Error(), fmt.Sprintf("%q", dtype)) {
			t.Errorf("%q: error %v, want tensor and type named", dtype, err)
		}
	}
	for _, dtype := range []string{"F8_E4M3", "F8_E5M2", "F8_E8M0"} {
		header := fmt.Sprintf(`{"the.tensor":{"dtype":%q,"shape":[8],"data_offsets":[0,8]}}`, dtype)
		f, err := parse(file(header, make([]byte, 8)))
		if err != nil {
			t.Errorf("%s: %v: the file itself is sound", dtype, err)
			continue
		}
		err = f.ReadFloat32s(make([]float32, 8), "the.tensor")
		if !errors.Is(err, ErrDType) || !strings.Contains(err.Error(), "the.tensor") || !strings.Contains(err.Error(), dtype) {
			t.Errorf("%s: error %v, want tensor and type named", dtype, err)
		}
	}
}

func TestReadErrorsNameTheTensor(t *testing.T) {
	whole := file(`{"the.tensor":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}}`, make([]byte, 8))
	f, err := Parse(bytes.NewReader(whole[:len(whole)-3]), int64(len(whole))) // cut after the header was checked
	if err != nil {
		t.Fatal(err)
	}
	for name, err := range map[string]error{
		"cut bytes":     f.ReadInto(make([]byte, 8), "the.tensor"),
		"cut values":    f.ReadFloat32s(make([]float32, 2), "the.tensor"),
		"short buffer":  f.ReadInto(make([]byte, 7), "the.tensor"),
		"short values":  f.ReadFloat32s(make([]float32, 1), "the.tensor"),
		"absent":        f.ReadInto(nil, "the.tensor2"),
		"absent values": f.ReadFloat32s(nil, "the.tensor2"),
	} {
		if err == nil || !strings.Contains(err.Error(), "the.tensor") {
			t.Errorf("%s: error %v does not name the tensor", name, err)
		}
	}
	if err := f.ReadInto(make([]byte, 8), "the.tensor"); !errors.Is(err, io.ErrUnexpectedEOF) {
		t.Errorf("cut file: %v", err)
	}
	r, err := f.ReaderAt("the.tensor")
	if err != nil || r.Size() != 8 {
		t.Errorf("ReaderAt: %v, size %d", err, r.Size())
	}
	if _, err := f.ReaderAt("gone"); !errors.Is(err, ErrAbsent) {
		t.Errorf("absent: %v", err)
	}
}
