package gguf

import (
	"encoding/binary"
	"fmt"
	"io"
	"math"

	"github.com/x448/float16"
)

// decoders turn whole blocks into float32 exactly as ggml does: the same products in the same order, each rounded by
// itself (the conversions keep a compiler from fusing them).
var decoders map[Type]func(dst []float32, src []byte)

func init() {
	decoders = map[Type]func(dst []float32, src []byte){
		F32: decodeF32, F16: decodeF16, BF16: decodeBF16, Q8_0: decodeQ8_0, Q4_0: decodeQ4_0, Q4_K: decodeQ4K, Q6_K: decodeQ6K,
	}
}

func half(b []byte) float32 { return float16.Frombits(binary.LittleEndian.Uint16(b)).Float32() }

func decodeF32(dst []float32, src []byte) {
	for i := range dst {
		dst[i] = math.Float32frombits(binary.LittleEndian.Uint32(src[4*i:]))
	}
}

func decodeF16(dst []float32, src []byte) {
	for i := range dst {
		dst[i] = half(src[2*i:])
	}
}

func decodeBF16(dst []float32, src []byte) {
	for i := range dst {
		dst[i] = math.Float32frombits(uint32(binary.LittleEndian.Uint16(src[2*i:])) << 16)
	}
}

// decodeQ8_0 reads blocks of a scale (f16) and 32 signed bytes.
func decodeQ8_0(dst []float32, src []byte) {
	for ; len(dst) > 0; dst, src = dst[32:], src[34:] {
		d := half(src)
		for i, q := range src[2:34] {
			dst[i] = d * float32(int8(q))
		}
	}
}

// decodeQ4_0 reads blocks of a scale (f16) and 16 bytes: the low halves are the first 16 elements, the high halves the others.
func decodeQ4_0(dst []float32, src []byte) {
	for ; len(dst) > 0; dst, src = dst[32:], src[18:] {
		d := half(src)
		for i, q := range src[2:18] {
			dst[i] = d * float32(int(q&15)-8)
			dst[i+16] = d * float32(int(q>>4)-8)
		}
	}
}

// decodeQ4K reads blocks of 256: scale and minimum scale (f16), 8 scales and 8 minima of 6 bits in 12 bytes, 128 bytes of
// halves. Each 32 bytes hold two groups of 32 elements, the low halves first.
func decodeQ4K(dst []float32, src []byte) {
	for ; len(dst) > 0; dst, src = dst[256:], src[144:] {
		d, least := half(src), half(src[2:])
		packed, q := src[4:16], src[16:144]
		for group := range 8 {
			scale, minimum := sixBits(packed, group)
			a, b := d*float32(scale), least*float32(minimum)
			shift := 4 * (group & 1)
			for i, v := range q[group/2*32:][:32] {
				dst[32*group+i] = float32(a*float32(v>>shift&15)) - b
			}
		}
	}
}

// sixBits unpacks a scale and a minimum: the first four of each have their own bytes, whose top bits complete the others.
func sixBits(p []byte, i int) (scale, minimum byte) {
	if i < 4 {
		return p[i] & 63, p[i+4] & 63
	}
	return p[i+4]&15 | p[i-4]>>6<<4, p[i+4]>>4 | p[i]>>6<<4
}

// decodeQ6K reads blocks of 256: 128 bytes of low halves, 64 bytes of high pairs, 16 signed scales, a scale (f16).
func decodeQ6K(dst []float32, src []byte) {
	for ; len(dst) > 0; dst, src = dst[256:], src[210:] {
		d := half(src[208:])
		for part := range 2 { // of 128 elements
			low, high, scales := src[64*part:][:64], src[128+32*part:][:32], src[192+8*part:][:8]
			for quarter := range 4 {
				for i := range 32 {
					v := low[quarter&1*32+i] >> (4 * (quarter / 2)) & 15
					v |= high[i] >> (2 * quarter) & 3 << 4
					s := d * float32(int8(scales[2*quarter+i/16]))
					dst[128*part+32*quarter+i] = s * float32(int(v)-32)
				}
			}
		}
	}
}

// chunkElements is what is decoded at a time: whole blocks of every encoding.
const chunkElements = 1 << 13

// ReadFloat32s fills dst with the elements of t from first on, a chunk at a time: no copy of the tensor is made. To read
// rows r to r+n of a matrix, first is r times its columns.
func (f *File) ReadFloat32s(dst []float32, t Tensor, first int64) error {
	return readFloat32s(f.r, dst, t, first)
}

func readFloat32s(r io.ReaderAt, dst []float32, t Tensor, first int64) error {
	decode := decoders[t.Type]
	if decode == nil {
		return fmt.Errorf("read tensor %q: %w: encoding %s can't be decoded", shorten(t.Name), ErrUnsupported, t.Type)
	}
	if n := t.Elements(); first < 0 || first > n || int64(len(dst)) > n-first {
		return fmt.Errorf("read tensor %q: %w: elements %d to %d of %d", shorten(t.Name), ErrLength, first, first+int64(len(dst)), n)
	}
	block, bytes := t.Type.Block()
	var raw []byte
	var whole []float32 // of blocks that dst wants a part of
	for len(dst) > 0 {
		skip := first % block
		n := min(int64(len(dst)), chunkElements-skip)
		blocks := (skip + n + block - 1) / block
		if raw == nil {
			raw = make([]byte, blocks*bytes)
		}
		part := raw[:blocks*bytes]
		if err := readFull(r, part, t.Offset+first/block*bytes); err != nil {
			return fmt.Errorf("read tensor %q from element %d: %w", shorten(t.Name), first, err)
		}
		if n == blocks*block {
			decode(dst[:n], part)
		} else {
			if whole == nil {
				whole = make([]float32, chunkElements)
			}
			decode(whole[:blocks*block], part)
			copy(dst[:n], whole[skip:])
		}
		dst, first = dst[n:], first+n
	}
	return nil
}
