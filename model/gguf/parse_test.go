package gguf

import (
	"encoding/binary"
	"errors"
	"math"
	"runtime"
	"strings"
	"testing"
)

// build puts a header together from parts: numbers of fixed width, texts with their length, and raw bytes.
func build(parts ...any) []byte {
	le := binary.LittleEndian
	var b []byte
	for _, p := range parts {
		switch p := p.(type) {
		case uint32:
			b = le.AppendUint32(b, p)
		case ValueType:
			b = le.AppendUint32(b, uint32(p))
		case Type:
			b = le.AppendUint32(b, uint32(p))
		case int: // a count
			b = le.AppendUint64(b, uint64(p))
		case uint64:
			b = le.AppendUint64(b, p)
		case string:
			b = append(le.AppendUint64(b, uint64(len(p))), p...)
		case []byte:
			b = append(b, p...)
		}
	}
	return b
}

var v3 = []byte("GGUF\x03\x00\x00\x00")

// oneKey is a file with one metadata entry.
func oneKey(parts ...any) []byte {
	return build(append([]any{v3, 0, 1, "the.key"}, parts...)...)
}

// oneTensor is a file with a tensor description and data after it.
func oneTensor(data int, parts ...any) []byte {
	b := build(append([]any{v3, 1, 0}, parts...)...)
	for len(b)%32 != 0 {
		b = append(b, 0)
	}
	return append(b, make([]byte, data)...)
}

const two63 = uint64(1) << 63

var hostileFiles = []struct {
	name  string
	file  []byte
	is    error
	names string // what the message must contain
}{
	{"empty", nil, ErrHeader, "0 bytes"},
	{"seven bytes", v3[:7], ErrHeader, "7 bytes"},
	{"other magic", []byte("GGML\x03\x00\x00\x00"), ErrHeader, "GGML"},
	{"safetensors", build(2, []byte("{}")), ErrHeader, "begins with"},
	{"version 1", []byte("GGUF\x01\x00\x00\x00"), ErrUnsupported, "version 1"},
	{"version 4", []byte("GGUF\x04\x00\x00\x00"), ErrUnsupported, "version 4"},
	{"big-endian", []byte("GGUF\x00\x00\x00\x03\x00\x00\x00\x00"), ErrUnsupported, "big-endian"},
	{"cut after version", v3, ErrHeader, "cut"},
	{"2^63 tensors", build(v3, two63, 0), ErrLimit, "9223372036854775808"},
	{"2^63 keys", build(v3, 0, two63), ErrLimit, "9223372036854775808"},
	{"2^64-1 of both", build(v3, uint64(math.MaxUint64), uint64(math.MaxUint64)), ErrLimit, "18446744073709551615"},
	{"more tensors than bytes", build(v3, 60000, 0), ErrHeader, "60000"},
	{"more keys than bytes", build(v3, 0, 16000), ErrHeader, "16000"},
	{"key of 2^63 bytes", build(v3, 0, 1, two63, 0, 0), ErrLimit, "key 0"},
	{"key past the end", build(v3, 0, 1, 100, 0, 0), ErrHeader, "key 0"},
	{"empty key", build(v3, 0, 1, "", Uint32, uint32(1), 0), ErrHeader, "key 0"},
	{"key not UTF-8", build(v3, 0, 1, "\xff\xfe", Uint32, uint32(1)), ErrHeader, "key 0"},
	{"key twice", build(v3, 0, 2, "the.key", Uint32, uint32(1), "the.key", Uint32, uint32(1)), ErrHeader, "the.key"},
	{"value type 13", oneKey(uint32(13), 0), ErrHeader, "the.key"},
	{"value type 2^32-1", oneKey(uint32(math.MaxUint32), 0), ErrHeader, "the.key"},
	{"value cut", oneKey(Uint64, uint32(0)), ErrHeader, "the.key"},
	{"bool of 2", oneKey(Bool, []byte{2, 0}), ErrHeader, "the.key"},
	{"text of 2^63 bytes", oneKey(String, two63), ErrLimit, "the.key"},
	{"text of 50 MB in a small file", oneKey(String, 50<<20), ErrHeader, "the.key"},
	{"array of 2^63", oneKey(Array, Uint8, two63), ErrLimit, "the.key"},
	{"array of 2^24 in a small file", oneKey(Array, Uint32, 1<<24), ErrHeader, "the.key"},
	{"array of 2^24 texts in a small file", oneKey(Array, String, 1<<24), ErrHeader, "the.key"},
	{"array of arrays", oneKey(Array, Array, 1, Uint8, 1, []byte{1}), ErrUnsupported, "the.key"},
	{"array of type 99", oneKey(Array, uint32(99), 1), ErrHeader, "the.key"},
	{"array text of 2^63 bytes", oneKey(Array, String, 1, two63), ErrLimit, "the.key"},
	{"array text past the end", oneKey(Array, String, 2, "a", 60), ErrHeader, "the.key"},
	{"alignment 0", build(v3, 0, 1, "general.alignment", Uint32, uint32(0)), ErrHeader, "general.alignment"},
	{"alignment 48", build(v3, 0, 1, "general.alignment", Uint32, uint32(48)), ErrHeader, "general.alignment"},
	{"alignment 2^31", build(v3, 0, 1, "general.alignment", Uint32, uint32(1<<31)), ErrHeader, "general.alignment"},
	{"alignment a text", build(v3, 0, 1, "general.alignment", String, "32"), ErrKind, "general.alignment"},
	{"alignment a float", build(v3, 0, 1, "general.alignment", Float32, uint32(0x42000000)), ErrKind, "general.alignment"},
	{"tensor name of 2^63 bytes", oneTensor(0, two63, 0, 0), ErrLimit, "tensor 0"},
	{"tensor name empty", oneTensor(4, "", uint32(1), 1, F32, 0), ErrTensor, "tensor 0"},
	{"5 dimensions", oneTensor(4, "the.tensor", uint32(5), 1, 1, 1, 1, 1, F32, 0), ErrTensor, "the.tensor"},
	{"2^32-1 dimensions", oneTensor(4, "the.tensor", uint32(math.MaxUint32)), ErrTensor, "the.tensor"},
	{"dimension 0", oneTensor(4, "the.tensor", uint32(1), 0, F32, 0), ErrTensor, "the.tensor"},
	{"dimension 2^63", oneTensor(4, "the.tensor", uint32(1), two63, F32, 0), ErrTensor, "the.tensor"},
	{"product wraps to 0", oneTensor(4, "the.tensor", uint32(2), 1<<32, 1<<32, F32, 0), ErrTensor, "the.tensor"},
	{"product wraps to 1", oneTensor(4, "the.tensor", uint32(2), uint64(math.MaxUint64), uint64(math.MaxUint64), F32, 0), ErrTensor, "the.tensor"},
	{"encoding 4", oneTensor(4, "the.tensor", uint32(1), 1, uint32(4), 0), ErrUnsupported, "the.tensor"},
	{"encoding 2^32-1", oneTensor(4, "the.tensor", uint32(1), 1, uint32(math.MaxUint32), 0), ErrUnsupported, "the.tensor"},
	{"rows that are no blocks", oneTensor(36, "the.tensor", uint32(1), 33, Q4_0, 0), ErrTensor, "the.tensor"},
	{"rows of half a block", oneTensor(18, "the.tensor", uint32(2), 16, 2, Q4_0, 0), ErrTensor, "the.tensor"},
	{"offset 2^63", oneTensor(4, "the.tensor", uint32(1), 1, F32, two63), ErrTensor, "the.tensor"},
	{"offset that is not aligned", oneTensor(44, "the.tensor", uint32(1), 1, F32, 4), ErrTensor, "the.tensor"},
	{"past the end", oneTensor(4, "the.tensor", uint32(1), 2, F32, 0), ErrTensor, "the.tensor"},
	{"begins at the end", oneTensor(32, "the.tensor", uint32(1), 1, F32, 32), ErrTensor, "the.tensor"},
	{"name twice", build(v3, 2, 0, "the.tensor", uint32(1), 1, F32, 0, "the.tensor", uint32(1), 1, F32, 32, make([]byte, 128)), ErrTensor, "the.tensor"},
	{"overlap", build(v3, 2, 0, "first", uint32(1), 9, F32, 0, "the.tensor", uint32(1), 1, F32, 32, make([]byte, 128)), ErrTensor, "the.tensor"},
	{"the same bytes", build(v3, 2, 0, "a", uint32(1), 1, F32, 0, "the.tensor", uint32(1), 1, F32, 0, make([]byte, 128)), ErrTensor, "the.tensor"},
}

// allocated gives the bytes that f allocates in all, garbage included: an upper bound on how far memory can grow.
func allocated(f func()) uint64 {
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	f()
	runtime.ReadMemStats(&after)
	return after.TotalAlloc - before.TotalAlloc
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

// The largest headers that are taken, and those just too large, stay within the promise.
func TestFR17LargeHeaders(t *testing.T) {
	const limit = 50 << 20
	keys := build(v3, 0, MaxKeys)
	for i := range MaxKeys {
		keys = append(keys, build(strings.Repeat("k", 300)+string(rune('a'+i%26))+strings.Repeat("x", i%97)+string(rune(0x4e00+i)), Uint8, []byte{1})...)
	}
	tensors := build(v3, MaxTensors, 0)
	for i := range MaxTensors {
		tensors = append(tensors, build(string(rune(0x10000+i)), uint32(1), 1, F32, 32*i)...)
	}
	tensors = append(tensors, make([]byte, 32*(MaxTensors+1))...)
	texts := build(v3, 0, 1, "the.key", Array, String, 1<<20)
	texts = append(texts, make([]byte, 8<<20)...)
	for name, b := range map[string][]byte{"keys": keys, "tensors": tensors, "texts": texts} {
		var f *File
		var err error
		if grown := allocated(func() { f, err = parse(b) }); grown > limit {
			t.Errorf("%s: %d bytes were allocated", name, grown)
		}
		if err != nil || f == nil {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func TestWrongKinds(t *testing.T) {
	f, _ := goldenFile(t)
	_, err1 := f.Uint("t.i8")
	_, err2 := f.Uint("t.text")
	_, err3 := f.Float("t.bool")
	_, err4 := f.Text("t.u8", 10)
	_, err5 := f.Bool("t.u8")
	err6 := f.EachText("t.ints", func(int, string) error { return nil })
	err7 := f.EachNumber("t.texts", func(int, float64) error { return nil })
	for i, err := range []error{err1, err2, err3, err4, err5, err6, err7} {
		if !errors.Is(err, ErrKind) || !strings.Contains(err.Error(), `"t.`) {
			t.Errorf("%d: %v", i+1, err)
		}
	}
	if _, err := f.Text("t.text", 3); !errors.Is(err, ErrLimit) {
		t.Errorf("long text: %v", err)
	}
	if _, err := f.Uint("absent"); !errors.Is(err, ErrAbsent) {
		t.Errorf("absent: %v", err)
	}
}
