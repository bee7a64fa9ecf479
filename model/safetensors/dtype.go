package safetensors

import (
	"encoding/binary"
	"fmt"
	"math"

	"github.com/x448/float16"
)

// DType is an element type, spelled as in the header.
type DType string

// The element types that a header may name.
const (
	Bool   DType = "BOOL"
	U8     DType = "U8"
	I8     DType = "I8"
	F8E5M2 DType = "F8_E5M2"
	F8E4M3 DType = "F8_E4M3"
	F8E8M0 DType = "F8_E8M0"
	I16    DType = "I16"
	U16    DType = "U16"
	F16    DType = "F16"
	BF16   DType = "BF16"
	I32    DType = "I32"
	U32    DType = "U32"
	F32    DType = "F32"
	F64    DType = "F64"
	I64    DType = "I64"
	U64    DType = "U64"
)

// dtypes holds each type with its size, in the order in which the format's reference implementation ranks them; a writer
// lays tensors out from the last rank to the first, so that each starts at a multiple of its size.
var dtypes = []struct {
	name DType
	size int64 // bytes per element
}{
	{Bool, 1}, {U8, 1}, {I8, 1}, {F8E5M2, 1}, {F8E4M3, 1}, {F8E8M0, 1},
	{I16, 2}, {U16, 2}, {F16, 2}, {BF16, 2},
	{I32, 4}, {U32, 4}, {F32, 4},
	{F64, 8}, {I64, 8}, {U64, 8},
}

// Size gives the bytes of one element, 0 for a type this package does not know.
func (d DType) Size() int64 {
	if r := d.rank(); r >= 0 {
		return dtypes[r].size
	}
	return 0
}

// IsWeight says whether a parameter may have this type: the three that a float32 holds exactly.
func (d DType) IsWeight() bool { return d == F32 || d == F16 || d == BF16 }

func (d DType) rank() int {
	for i := range dtypes {
		if dtypes[i].name == d {
			return i
		}
	}
	return -1
}

// intern returns the package's own copy of a type name, so that tensors don't pin header text.
func intern(b []byte) (DType, bool) {
	for i := range dtypes {
		if string(dtypes[i].name) == string(b) {
			return dtypes[i].name, true
		}
	}
	return "", false
}

// Float32s converts src, little-endian elements of dtype, into dst; len(src) must be len(dst) times the element size.
// Every result is exact: F32, F16 and BF16 always are (a signalling half-precision NaN comes out quiet); of the other
// types, a value that float32 cannot hold is an error that names its index, never rounded.
func Float32s(dst []float32, dtype DType, src []byte) error {
	size := dtype.Size()
	if size == 0 {
		return fmt.Errorf("convert %s to float32: %w: unknown element type", dtype, ErrDType)
	}
	if int64(len(src)) != int64(len(dst))*size {
		return fmt.Errorf("convert %s to float32: %w: %d bytes for %d elements of %d bytes", dtype, ErrLength, len(src), len(dst), size)
	}
	switch dtype {
	case F32:
		for i := range dst {
			dst[i] = math.Float32frombits(binary.LittleEndian.Uint32(src[4*i:]))
		}
	case BF16:
		for len(dst) >= 4 { // four to a word: half the time
			v := binary.LittleEndian.Uint64(src)
			four := (*[4]float32)(dst)
			four[0], four[1] = math.Float32frombits(uint32(v)<<16), math.Float32frombits(uint32(v)&0xffff0000)
			four[2], four[3] = math.Float32frombits(uint32(v>>32)<<16), math.Float32frombits(uint32(v>>32)&0xffff0000)
			dst, src = dst[4:], src[8:]
		}
		for i := range dst {
			dst[i] = math.Float32frombits(uint32(binary.LittleEndian.Uint16(src[2*i:])) << 16)
		}
	case F16:
		for i := range dst {
			dst[i] = float16.Frombits(binary.LittleEndian.Uint16(src[2*i:])).Float32()
		}
	default:
		return exactFloat32s(dst, dtype, src)
	}
	return nil
}

// exactFloat32s converts the types that float32 holds only in part, refusing what it would have to round.
func exactFloat32s(dst []float32, dtype DType, src []byte) error {
	le := binary.LittleEndian
	var at func(i int) (v float32, exact bool)
	switch dtype {
	case F64:
		at = func(i int) (float32, bool) {
			x := math.Float64frombits(le.Uint64(src[8*i:]))
			return float32(x), float64(float32(x)) == x || math.IsNaN(x)
		}
	case I64:
		at = func(i int) (float32, bool) { return exactInt(int64(le.Uint64(src[8*i:]))) }
	case U64:
		at = func(i int) (float32, bool) {
			u := le.Uint64(src[8*i:])
			v, ok := exactInt(int64(u))
			return v, ok && u <= math.MaxInt64
		}
	case I32:
		at = func(i int) (float32, bool) { return exactInt(int64(int32(le.Uint32(src[4*i:])))) }
	case U32:
		at = func(i int) (float32, bool) { return exactInt(int64(le.Uint32(src[4*i:]))) }
	case I16:
		at = func(i int) (float32, bool) { return float32(int16(le.Uint16(src[2*i:]))), true }
	case U16:
		at = func(i int) (float32, bool) { return float32(le.Uint16(src[2*i:])), true }
	case I8:
		at = func(i int) (float32, bool) { return float32(int8(src[i])), true }
	case U8:
		at = func(i int) (float32, bool) { return float32(src[i]), true }
	case Bool:
		at = func(i int) (float32, bool) { return float32(src[i]), src[i] <= 1 }
	default:
		return fmt.Errorf("convert %s to float32: %w: its values need scales that this type does not carry; "+
			"convert the checkpoint to BF16, F16 or F32", dtype, ErrDType)
	}
	for i := range dst {
		v, exact := at(i)
		if !exact {
			return fmt.Errorf("convert %s to float32: %w: element %d is not exactly a float32; store the tensor as F32", dtype, ErrDType, i)
		}
		dst[i] = v
	}
	return nil
}

// exactInt converts n, and says whether nothing was lost. Above 2^24 only some integers survive, and float64 (exact to
// 2^53) cannot be the judge, so n is bounded by the float32 range in which converting back is defined.
func exactInt(n int64) (float32, bool) {
	v := float32(n)
	if v >= 1<<63 {
		return v, false
	}
	return v, int64(v) == n
}

// PutFloat32s is the way back: it rounds src to dtype (to nearest, ties to even) and writes little-endian elements into
// dst. Only F32, F16 and BF16 can be written; a finite value that overflows becomes an infinity, as IEEE 754 rounds it.
func PutFloat32s(dst []byte, dtype DType, src []float32) error {
	if !dtype.IsWeight() {
		return fmt.Errorf("convert float32 to %s: %w: only F32, F16 and BF16 can be written", dtype, ErrDType)
	}
	if int64(len(dst)) != int64(len(src))*dtype.Size() {
		return fmt.Errorf("convert float32 to %s: %w: %d bytes for %d elements of %d bytes", dtype, ErrLength, len(dst), len(src), dtype.Size())
	}
	for i, v := range src {
		switch dtype {
		case F32:
			binary.LittleEndian.PutUint32(dst[4*i:], math.Float32bits(v))
		case F16:
			binary.LittleEndian.PutUint16(dst[2*i:], float16.Fromfloat32(v).Bits())
		case BF16:
			binary.LittleEndian.PutUint16(dst[2*i:], bfloat16Bits(v))
		}
	}
	return nil
}

func bfloat16Bits(v float32) uint16 {
	b := math.Float32bits(v)
	if v != v {
		return uint16(b>>16) | 0x40 // rounding could carry a NaN into infinity: keep it a quiet NaN
	}
	return uint16((b + 0x7fff + b>>16&1) >> 16)
}
