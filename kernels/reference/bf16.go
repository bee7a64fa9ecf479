package reference

import (
	"math"
	"slices"

	"smolgym/model/ir"
)

// products are the ops that round their first operand to bfloat16 when the
// weights are, as the instructions that multiply bfloat16 need it.
var products = map[ir.Op]bool{ir.OpLinear: true, ir.OpLinearT: true, ir.OpLinearGradX: true, ir.OpExpertLinear: true, ir.OpExpertGradX: true}

// toBF16 rounds to the nearest, ties to even; denormals become zeros.
func toBF16(x float32) uint16 {
	b := math.Float32bits(x)
	switch {
	case x != x:
		return uint16(b>>16) | 0x40
	case b&0x7f800000 == 0:
		return uint16(b>>16) & 0x8000
	}
	return uint16((b + 0x7fff + b>>16&1) >> 16)
}

func fromBF16(h uint16) float32 { return math.Float32frombits(uint32(h) << 16) }

func (c *call[F]) halves() bool {
	return slices.ContainsFunc(c.in, func(t tensor[F]) bool { return t.half != nil })
}

// widen makes the copies of bfloat16 operands, and rounds what they multiply.
func (c *call[F]) widen() {
	for _, t := range c.in {
		for i, h := range t.half {
			t.f[i] = F(fromBF16(h))
		}
	}
	if c.halves() && products[c.op] {
		c.in[0].f = slices.Clone(c.in[0].f)
		for i, v := range c.in[0].f {
			c.in[0].f[i] = F(fromBF16(toBF16(float32(v))))
		}
	}
}

// narrow brings bfloat16 results to memory.
func (c *call[F]) narrow() {
	for _, t := range c.out {
		for i := range t.half {
			t.half[i] = toBF16(float32(t.f[i]))
		}
	}
}

// narrow: w, x -> x; the device rounds it.
func narrow[F real](c *call[F]) { copy(c.out[0].f, c.in[1].f) }
