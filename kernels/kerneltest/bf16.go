package kerneltest

import (
	"encoding/binary"
	"fmt"
	"math"
	"slices"

	"smolgym/model/ir"
)

// weightsOf is the operand that holds an op's weights, of those that take them
// in bfloat16.
var weightsOf = map[ir.Op]int{ir.OpEmbed: 1, ir.OpLinear: 1, ir.OpLinearT: 1, ir.OpLinearGradX: 1, ir.OpExpertLinear: 1, ir.OpExpertGradX: 1}

func init() {
	table[ir.OpNarrow] = narrow
	tolerances[ir.OpNarrow] = Tolerance{Why: "rounding to the nearest, or to zero below the normal numbers"}
}

// narrow has numbers of every exponent, ties and specials among them.
func narrow(m *maker) (cs cases, err error) {
	for _, n := range []int{1, 37, 4096, 20011} {
		x := m.floats(ir.Dims{}, ir.Const(n))
		for i := range x.F {
			x.F[i] = math.Float32frombits(m.r.Uint32())
			if i%5 == 2 {
				x.F[i] = math.Float32frombits(m.r.Uint32()&0xffff0000 | 0x8000)
			}
			if i%17 == 3 {
				x.F[i] = special[i/17%len(special)]
			}
		}
		w := constants(make([]float32, n), ir.Const(n))
		w.Type.DType = ir.BF16
		cs = append(cs, Case{In: []Operand{w, x}})
	}
	return cs, nil
}

// inBF16 is every case again with its weights in bfloat16, and one whose numbers
// are so small that sums and products fall below the normal ones.
func inBF16(op ir.Op, cs cases) cases {
	at, ok := weightsOf[op]
	if !ok {
		return nil
	}
	var halves cases
	for i, c := range append(slices.Clone(cs), cs[len(cs)-1]) {
		c.Name = fmt.Sprintf("bf16 %d", i)
		c.In = slices.Clone(c.In)
		w := c.In[at]
		w.Type.DType = ir.BF16
		w.F = slices.Clone(w.F)
		if i == len(cs) && op != ir.OpEmbed {
			c.Name = "bf16 tiny"
			for k, v := range w.F {
				w.F[k] = v * float32(math.Pow(2, float64(-40-k%80)))
			}
			x := c.In[0]
			x.F = slices.Clone(x.F)
			for k, v := range x.F {
				x.F[k] = v * float32(math.Pow(2, float64(-60-k%40)))
			}
			c.In[0] = x
		}
		w.F = values(ir.BF16, narrowed(w.F))
		c.In[at] = w
		halves = append(halves, c)
	}
	return halves
}

// narrowed is x in bfloat16, ties to even; no denormals, no NaNs.
func narrowed(x []float32) []byte {
	var out []byte
	for _, v := range x {
		b := math.Float32bits(v)
		if b&0x7f800000 == 0 {
			b &= 0x80000000
		}
		out = binary.LittleEndian.AppendUint16(out, uint16((b+0x7fff+b>>16&1)>>16))
	}
	return out
}

// values are the elements of a tensor in memory; integers by their bits.
func values(t ir.DType, data []byte) []float32 {
	v := make([]float32, len(data)/t.Size())
	for i := range v {
		if t == ir.BF16 {
			v[i] = math.Float32frombits(uint32(binary.LittleEndian.Uint16(data[2*i:])) << 16)
		} else {
			v[i] = math.Float32frombits(binary.LittleEndian.Uint32(data[4*i:]))
		}
	}
	return v
}
