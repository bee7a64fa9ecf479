package gguf

import (
	"errors"
	"fmt"
	"strings"
)

// Limits on what a header may ask for, far above any published file.
const (
	MaxKeys        = 1 << 14   // metadata entries
	MaxTensors     = 1 << 16   // tensors in one file
	MaxKeyBytes    = 1 << 12   // bytes in a key or a tensor's name
	MaxRank        = 4         // dimensions of a tensor, as in ggml
	MaxElements    = 1 << 24   // elements of a metadata array
	MaxTextBytes   = 64 << 20  // one text value
	MaxItemBytes   = 1 << 16   // one text of an array
	MaxHeaderBytes = 512 << 20 // everything before the tensors' bytes

	maxAlignment = 1 << 20
	maxKeptBytes = 8 << 20 // keys, names and shapes that a parsed header holds on to, all together
)

// Reasons for a refusal, to be told apart with errors.Is.
var (
	ErrHeader      = errors.New("gguf header is malformed")                 // it contradicts itself or the file
	ErrTensor      = errors.New("gguf tensor is malformed")                 // a description contradicts itself, the file or another one
	ErrLimit       = errors.New("gguf header is beyond the limits")         // sound so far, but larger than this package allows
	ErrUnsupported = errors.New("gguf file is not supported")               // sound, but of a kind that can't be taken
	ErrAbsent      = errors.New("no such entry")                            // the file has no key or tensor of that name
	ErrKind        = errors.New("metadata value is of another type")        // the key is there with another type
	ErrLength      = errors.New("data does not have the tensor's length")   // the caller's buffer, or what a writer was given
	ErrValue       = errors.New("value cannot be written in this encoding") // an overflow, an infinity or a NaN
)

// ValueType is the type of a metadata value.
type ValueType uint32

// The types of metadata values.
const (
	Uint8 ValueType = iota
	Int8
	Uint16
	Int16
	Uint32
	Int32
	Float32
	Bool
	String
	Array
	Uint64
	Int64
	Float64
)

var valueTypes = [...]struct {
	name string
	size int64 // bytes; 0 for those of variable length
}{
	Uint8: {"u8", 1}, Int8: {"i8", 1}, Uint16: {"u16", 2}, Int16: {"i16", 2}, Uint32: {"u32", 4}, Int32: {"i32", 4},
	Float32: {"f32", 4}, Bool: {"bool", 1}, String: {"text", 0}, Array: {"array", 0},
	Uint64: {"u64", 8}, Int64: {"i64", 8}, Float64: {"f64", 8},
}

func (v ValueType) known() bool { return int(v) < len(valueTypes) }

func (v ValueType) String() string {
	if v.known() {
		return valueTypes[v].name
	}
	return fmt.Sprintf("type %d", uint32(v))
}

// Type is a tensor's encoding, numbered as in ggml.
type Type uint32

// The encodings that can be read; the first four and Q8_0 can be written.
const (
	F32  Type = 0
	F16  Type = 1
	Q4_0 Type = 2
	Q8_0 Type = 8
	Q4_K Type = 12
	Q6_K Type = 14
	BF16 Type = 30
)

// encodings holds what ggml defines. Those without a decoder are known by name and size, so that a refusal can say what it
// is and the layout is checked all the same.
var encodings = map[Type]struct {
	name  string
	block int64 // elements in a block
	bytes int64 // bytes of a block
}{
	F32: {"F32", 1, 4}, F16: {"F16", 1, 2}, BF16: {"BF16", 1, 2},
	Q4_0: {"Q4_0", 32, 18}, 3: {"Q4_1", 32, 20}, 6: {"Q5_0", 32, 22}, 7: {"Q5_1", 32, 24}, Q8_0: {"Q8_0", 32, 34}, 9: {"Q8_1", 32, 40},
	10: {"Q2_K", 256, 84}, 11: {"Q3_K", 256, 110}, Q4_K: {"Q4_K", 256, 144}, 13: {"Q5_K", 256, 176}, Q6_K: {"Q6_K", 256, 210},
	15: {"Q8_K", 256, 292}, 16: {"IQ2_XXS", 256, 66}, 17: {"IQ2_XS", 256, 74}, 18: {"IQ3_XXS", 256, 98}, 19: {"IQ1_S", 256, 50},
	20: {"IQ4_NL", 32, 18}, 21: {"IQ3_S", 256, 110}, 22: {"IQ2_S", 256, 82}, 23: {"IQ4_XS", 256, 136}, 24: {"I8", 1, 1},
	25: {"I16", 1, 2}, 26: {"I32", 1, 4}, 27: {"I64", 1, 8}, 28: {"F64", 1, 8}, 29: {"IQ1_M", 256, 56}, 34: {"TQ1_0", 256, 54},
	35: {"TQ2_0", 256, 66}, 39: {"MXFP4", 32, 17}, 40: {"NVFP4", 64, 36}, 41: {"Q1_0", 128, 18},
}

func (t Type) String() string {
	if e, ok := encodings[t]; ok {
		return e.name
	}
	return fmt.Sprintf("type %d", uint32(t))
}

// Block gives the elements and the bytes of one block, 1 element for the plain types.
func (t Type) Block() (elements, bytes int64) {
	e := encodings[t]
	return e.block, e.bytes
}

// Readable says whether the values can be had as float32.
func (t Type) Readable() bool { return decoders[t] != nil }

// ParseType finds an encoding that can be written by its name, in either case.
func ParseType(name string) (Type, error) {
	for _, t := range writable {
		if strings.EqualFold(name, t.String()) {
			return t, nil
		}
	}
	return 0, fmt.Errorf("gguf encoding %q: %w: f16, bf16, f32 and q8_0 can be written", shorten(name), ErrUnsupported)
}

var writable = []Type{F16, BF16, F32, Q8_0}

// Tensor describes one tensor, already checked.
type Tensor struct {
	Name   string
	Type   Type
	Shape  []int64 // row-major: the file's order turned around
	Offset int64   // first byte, counted from the start of the file
	Bytes  int64
}

// Elements is the product of the shape, 1 for a scalar.
func (t Tensor) Elements() int64 {
	n := int64(1)
	for _, d := range t.Shape {
		n *= d // cannot overflow: the product was bounded by the file's size when the header was checked
	}
	return n
}

// columns is the length of a row, 1 for a scalar.
func (t Tensor) columns() int64 {
	if len(t.Shape) == 0 {
		return 1
	}
	return t.Shape[len(t.Shape)-1]
}

// shorten keeps a hostile name from filling an error message.
func shorten(s string) string {
	const most = 120
	if len(s) > most {
		s = s[:most] + "…"
	}
	return strings.ToValidUTF8(s, "\ufffd")
}
