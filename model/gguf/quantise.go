package gguf

import (
	"encoding/binary"
	"fmt"
	"math"

	"smolgym/model/safetensors"

	"github.com/x448/float16"
)

// encode writes src, whole blocks, into dst in the encoding t. What the encoding has no finite value for is refused.
func encode(dst []byte, t Type, src []float32) error {
	for i, v := range src {
		if v-v != 0 {
			return fmt.Errorf("element %d: %w: %v is not finite", i, ErrValue, v)
		}
	}
	switch t {
	case F32:
		return safetensors.PutFloat32s(dst, safetensors.F32, src)
	case BF16:
		if err := safetensors.PutFloat32s(dst, safetensors.BF16, src); err != nil {
			return err
		}
		return overflow(dst, 0x7f80, src, t)
	case F16:
		if err := safetensors.PutFloat32s(dst, safetensors.F16, src); err != nil {
			return err
		}
		return overflow(dst, 0x7c00, src, t)
	case Q8_0:
		return encodeQ8_0(dst, src)
	}
	return fmt.Errorf("%w: encoding %s can't be written", ErrUnsupported, t)
}

// overflow finds the infinities that rounding made.
func overflow(dst []byte, infinity uint16, src []float32, t Type) error {
	for i := range src {
		if binary.LittleEndian.Uint16(dst[2*i:])&0x7fff == infinity {
			return fmt.Errorf("element %d: %w: %v is too large for %s; use F32", i, ErrValue, src[i], t)
		}
	}
	return nil
}

// encodeQ8_0 is ggml's reference: the scale is the largest magnitude over 127 and is used unrounded, halves go away from 0.
func encodeQ8_0(dst []byte, src []float32) error {
	for n := 0; len(src) > 0; n, src, dst = n+32, src[32:], dst[34:] {
		var most float32
		for _, v := range src[:32] {
			most = max(most, float32(math.Abs(float64(v))))
		}
		d := most / 127
		scale := float16.Fromfloat32(d)
		if scale.IsInf(0) {
			return fmt.Errorf("element %d: %w: a block with %v is too large for Q8_0; use F32", n, ErrValue, most)
		}
		var inverse float32
		if d != 0 {
			inverse = 1 / d
		}
		binary.LittleEndian.PutUint16(dst, scale.Bits())
		for i, v := range src[:32] {
			q := math.Round(float64(v * inverse)) // the product is a float32, whose rounding float64 does not change
			if q != q || math.Abs(q) > 127 {
				q = 0 // of a scale so small that its inverse overflows; it is 0 as f16
			}
			dst[2+i] = byte(int8(q))
		}
	}
	return nil
}
