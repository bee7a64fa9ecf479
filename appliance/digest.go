package appliance

import (
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"hash"
	"maps"
	"math"
	"slices"

	"smolgym/appliance/engine"
)

// digest tells a repeated request from another one with the same number. It is
// over what the request means, never over its bytes: the order of fields and map
// entries differs between retries.
type digest [sha256.Size]byte

func (d digest) String() string { return hex.EncodeToString(d[:]) }

func parseDigest(s string) (d digest) {
	if b, err := hex.DecodeString(s); err == nil && len(b) == len(d) {
		copy(d[:], b)
	}
	return d
}

// hasher writes values with their lengths, so that no two requests run together.
type hasher struct{ h hash.Hash }

func hashOf(kind Kind) hasher {
	h := hasher{sha256.New()}
	h.text(string(kind))
	return h
}

func (h hasher) sum() (d digest) {
	h.h.Sum(d[:0])
	return d
}

func (h hasher) uint(v uint64) {
	h.h.Write(binary.LittleEndian.AppendUint64(nil, v))
}

func (h hasher) int(v int64)     { h.uint(uint64(v)) }
func (h hasher) float(v float64) { h.uint(math.Float64bits(v)) }

func (h hasher) bool(v bool) {
	if v {
		h.uint(1)
	} else {
		h.uint(0)
	}
}

func (h hasher) text(s string) {
	h.int(int64(len(s)))
	h.h.Write([]byte(s))
}

func (h hasher) texts(v []string) {
	h.int(int64(len(v)))
	for _, s := range v {
		h.text(s)
	}
}

func (h hasher) textMap(m map[string]string) {
	h.int(int64(len(m)))
	for _, k := range slices.Sorted(maps.Keys(m)) {
		h.text(k)
		h.text(m[k])
	}
}

// optional writes whether a value is there, then the value.
func optional[T any](h hasher, v *T, write func(T)) {
	h.bool(v != nil)
	if v != nil {
		write(*v)
	}
}

func (h hasher) int32s(v []int32) {
	h.int(int64(len(v)))
	buf := make([]byte, 0, 4*len(v))
	for _, x := range v {
		buf = binary.LittleEndian.AppendUint32(buf, uint32(x))
	}
	h.h.Write(buf)
}

func (h hasher) tensor(t engine.Tensor) {
	h.int(int64(len(t.F32)))
	h.int(int64(len(t.I64)))
	shape := t.Shape
	if shape == nil {
		shape = []int{len(t.F32) + len(t.I64)}
	}
	h.int(int64(len(shape)))
	for _, d := range shape {
		h.int(int64(d))
	}
	buf := make([]byte, 0, 4*len(t.F32)+8*len(t.I64))
	for _, x := range t.F32 {
		buf = binary.LittleEndian.AppendUint32(buf, math.Float32bits(x))
	}
	for _, x := range t.I64 {
		buf = binary.LittleEndian.AppendUint64(buf, uint64(x))
	}
	h.h.Write(buf)
}

func (h hasher) batch(b engine.Batch) {
	h.text(b.Loss)
	h.bool(b.ForwardOnly)
	h.int(int64(len(b.Config)))
	for _, k := range slices.Sorted(maps.Keys(b.Config)) {
		h.text(k)
		h.float(b.Config[k])
	}
	h.int(int64(len(b.Data)))
	for _, d := range b.Data {
		h.int32s(d.Tokens)
		h.int(int64(len(d.Inputs)))
		for _, k := range slices.Sorted(maps.Keys(d.Inputs)) {
			h.text(k)
			h.tensor(d.Inputs[k])
		}
	}
}
