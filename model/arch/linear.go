package arch

import (
	"fmt"
	"math"

	"smolgym/model/hf"
	"smolgym/model/ir"
)

// deltaSizes are those of the gated delta rule.
type deltaSizes struct {
	keyHeads, valueHeads int
	keyDim, valueDim     int // of one head
	kernel               int // tokens that the short convolution sees
}

func deltaOf(c *hf.Config) deltaSizes {
	return deltaSizes{or(c.LinearKeyHeads, 16), or(c.LinearValueHeads, 32), or(c.LinearKeyDim, 128), or(c.LinearValueDim, 128), or(c.LinearConvKernel, 4)}
}

func (s deltaSizes) keys() int   { return s.keyHeads * s.keyDim }
func (s deltaSizes) values() int { return s.valueHeads * s.valueDim }
func (s deltaSizes) mixed() int  { return 2*s.keys() + s.values() }

// state is the elements of one sequence's state in one layer: the convolution's
// last inputs, and each head's matrix.
func (s deltaSizes) state() int { return (s.kernel-1)*s.mixed() + s.values()*s.keyDim }

const (
	queryUnit = "delta.query_norm" // [keyDim]
	keyUnit   = "delta.key_norm"
	deltaEps  = 1e-6 // of the norms of queries and keys, beside their sum of squares
)

// linearTables are constants that make RMSNorm the division by the Euclidean
// norm: x/sqrt(sum+eps) is x/rms(x) with eps/D, over sqrt(D). The query's has
// the factor of the scores, 1/sqrt(D), too.
func (b *builder) linearTables(t map[string][]float32) {
	if b.recurrent == 0 {
		return
	}
	d := deltaOf(b.c).keyDim
	fill := func(v float64) []float32 {
		x := make([]float32, d)
		for i := range x {
			x[i] = float32(v)
		}
		return x
	}
	t[queryUnit], t[keyUnit] = fill(1/float64(d)), fill(1/math.Sqrt(float64(d)))
}

// stateBytes is one sequence's recurrent state.
func (b *builder) stateBytes() int64 {
	return int64(b.recurrent) * int64(deltaOf(b.c).state()) * int64(ir.F32.Size())
}

func (b *builder) unitVector(i int, name string, x ir.ID, s deltaSizes) ir.ID {
	w := b.g.Declare(ir.ClassConst, name, ir.F32, ir.Const(s.keyDim))
	return b.g.Op1(ir.OpRMSNorm, ir.Attrs{Layer: i, Eps: deltaEps / float64(s.keyDim), Heads: s.keyHeads}, x, w)
}

// deltaInputs are the projections of one layer: mixed [T,mixed] is query, key
// and value before the convolution, z [T,values] the output's gate.
type deltaInputs struct{ mixed, z, beta, a ir.ID }

// deltaRule is a linear attention block behind its projections: [T,D].
func (b *builder) deltaRule(i int, in deltaInputs) ir.ID {
	b.recurrent++
	s, module, at := deltaOf(b.c), fmt.Sprintf("model.layers.%d.linear_attn.", i), ir.Attrs{Layer: i}
	mixed := b.convolve(i, module, in.mixed, s)
	mixed = b.g.Op1(ir.OpMul, at, mixed, b.g.Op1(ir.OpSigmoid, at, mixed)) // SiLU
	q := b.unitVector(i, queryUnit, b.slice(i, mixed, 1, s.mixed(), 0, s.keys()), s)
	k := b.unitVector(i, keyUnit, b.slice(i, mixed, 1, s.mixed(), s.keys(), s.keys()), s)
	v := b.slice(i, mixed, 1, s.mixed(), 2*s.keys(), s.values())

	step := b.g.Op1(ir.OpAddRow, at, in.a, b.g.Weight(module+"dt_bias", ir.F32, ir.Const(s.valueHeads)))
	g := b.g.Op1(ir.OpDecay, at, b.g.Op1(ir.OpSoftplus, at, step), b.g.Weight(module+"A_log", ir.F32, ir.Const(s.valueHeads)))
	beta := b.g.Op1(ir.OpSigmoid, at, in.beta)

	a := ir.Attrs{Layer: i, Heads: s.valueHeads, KVHeads: s.keyHeads, HeadDim: s.keyDim}
	var y ir.ID
	if b.mode == Train {
		y = b.g.Op1(ir.OpDelta, a, q, k, v, g, beta, b.offsets)
	} else {
		state := b.g.Declare(ir.ClassState, fmt.Sprintf("delta.%d", i), ir.F32, ir.Of(ir.L), ir.Const(s.values()*s.keyDim))
		y = b.g.Add(ir.OpDeltaState, a, state, q, k, v, g, beta, b.offsets, b.start, b.slots())[1]
	}
	y = b.rms(i, module+"norm", y, s.valueHeads, s.valueDim, false)
	y = b.g.Op1(ir.OpSiLUMul, at, in.z, y)
	return b.linear(i, module+"out_proj", ir.PartAttention, y, s.values(), b.c.HiddenSize, false)
}

func (b *builder) convolve(i int, module string, x ir.ID, s deltaSizes) ir.ID {
	at := ir.Attrs{Layer: i, Module: module + "conv1d"}
	w := b.g.Weight(module+"conv1d.weight", ir.F32, ir.Const(s.mixed()), ir.Const(1), ir.Const(s.kernel))
	if b.mode == Train {
		return b.g.Op1(ir.OpConv, at, x, w, b.offsets)
	}
	state := b.g.Declare(ir.ClassState, fmt.Sprintf("conv.%d", i), ir.F32, ir.Of(ir.L), ir.Const((s.kernel-1)*s.mixed()))
	return b.g.Add(ir.OpConvState, at, state, x, w, b.offsets, b.start, b.slots())[1]
}

// slots is the input that says which row of each state a sequence has.
func (b *builder) slots() ir.ID {
	if b.slot == 0 {
		b.slot = b.g.Input("slot", ir.I32, ir.Of(ir.S))
	}
	return b.slot
}

// linearLayer says whether layer i has linear attention.
func (b *builder) linearLayer(i int) bool {
	if len(b.c.LayerTypes) > 0 {
		return b.c.LayerTypes[i] == linearAttention
	}
	return (i+1)%or(b.c.FullInterval, 4) != 0
}

func checkDelta(k *checker) {
	if v, ok := k.c.Raw["attn_output_gate"]; ok && string(v) != "true" {
		k.gap(GapConfig, "attn_output_gate", "is %s; true is supported", v)
	}
	s := deltaOf(k.c)
	if s.valueHeads%s.keyHeads != 0 {
		k.gap(GapConfig, "linear_num_key_heads", "is %d; it must divide linear_num_value_heads, %d", s.keyHeads, s.valueHeads)
	}
	if s.kernel < 2 {
		k.gap(GapConfig, "linear_conv_kernel_dim", "is %d; it takes at least 2", s.kernel)
	}
	if most := 1 << 20; s.mixed() > most || s.values()*s.keyDim > 16*most {
		k.gap(GapConfig, "linear_num_value_heads", "%d heads of %d by %d are more than the %d elements of state supported", s.valueHeads, s.keyDim, s.valueDim, 16*most)
	}
}

var linearFields = []string{"linear_conv_kernel_dim", "linear_key_head_dim", "linear_value_head_dim", "linear_num_key_heads", "linear_num_value_heads", "full_attention_interval", "attention_bias"}
