package reference

import (
	"math"
	"math/rand/v2"
	"testing"

	"smolgym/model/ir"
)

// A gradient kernel is checked against central differences of its forward
// kernel, both in float64 storage: f = sum(coef * forward(x)), so that
// backward(coef) must give df/dx.
type pair struct {
	name     string
	forward  ir.Op
	attr     ir.Attrs
	in       []tensor[float64]
	outs     [][]int                                                   // shapes of the forward's outputs
	backward func(in, out []tensor[float64], dy []float64) [][]float64 // gradient for each input, nil for none
}

func fresh(r *rand.Rand, shape ...int) tensor[float64] {
	t := tensor[float64]{shape: shape, f: make([]float64, count(shape))}
	for i := range t.f {
		t.f[i] = r.NormFloat64()
	}
	return t
}

func zeros(shape ...int) tensor[float64] {
	return tensor[float64]{shape: shape, f: make([]float64, count(shape))}
}

func ints(shape []int, v ...int32) tensor[float64] { return tensor[float64]{shape: shape, i: v} }

func count(shape []int) int {
	n := 1
	for _, d := range shape {
		n *= d
	}
	return n
}

func apply(op ir.Op, attr ir.Attrs, in []tensor[float64], outs ...tensor[float64]) {
	table[float64]()[op](&call[float64]{op: op, attr: attr, in: in, out: outs})
}

func (p pair) run() []tensor[float64] {
	outs := make([]tensor[float64], len(p.outs))
	for i, s := range p.outs {
		outs[i] = zeros(s...)
	}
	apply(p.forward, p.attr, p.in, outs...)
	return outs
}

func pairs(r *rand.Rand) []pair {
	type tensors = []tensor[float64]
	offsets := ints([]int{3}, 0, 2, 7)
	none := func(rows int) tensor[float64] { return ints([]int{2}, 0, int32(rows)) }
	shaped := func(like tensor[float64], dy []float64) tensor[float64] {
		return tensor[float64]{shape: like.shape, f: dy}
	}
	attn := ir.Attrs{Heads: 4, KVHeads: 2, HeadDim: 3, Scale: 0.6}
	window := attn
	window.Window = 3
	norm := ir.Attrs{Heads: 2, Eps: 1e-5}
	turn := ir.Attrs{Heads: 2, HeadDim: 5, Rotary: 4}
	back := turn
	back.Inverse = true
	attentionPair := func(name string, a ir.Attrs) pair {
		return pair{name: name, forward: ir.OpAttention, attr: a, in: tensors{fresh(r, 7, 12), fresh(r, 7, 6), fresh(r, 7, 6), offsets},
			outs: [][]int{{7, 12}, {7, 4}}, backward: func(in, out tensors, dy []float64) [][]float64 {
				g := tensors{zeros(7, 12), zeros(7, 6), zeros(7, 6)}
				apply(ir.OpAttentionGrad, a, tensors{in[0], in[1], in[2], out[0], out[1], shaped(out[0], dy), offsets}, g...)
				return [][]float64{g[0].f, g[1].f, g[2].f}
			}}
	}
	return []pair{
		{name: "Linear", forward: ir.OpLinear, in: tensors{fresh(r, 7, 5), fresh(r, 3, 5), fresh(r, 3)}, outs: [][]int{{7, 3}},
			backward: func(in, out tensors, dy []float64) [][]float64 {
				dx, dw, db := zeros(7, 5), zeros(3, 5), zeros(3)
				g := shaped(out[0], dy)
				apply(ir.OpLinearGradX, ir.Attrs{}, tensors{g, in[1]}, dx)
				apply(ir.OpLinearGradW, ir.Attrs{}, tensors{dw, g, in[0], offsets}, dw)
				apply(ir.OpBiasGrad, ir.Attrs{}, tensors{db, g, offsets}, db)
				return [][]float64{dx.f, dw.f, db.f}
			}},
		{name: "RMSNorm", forward: ir.OpRMSNorm, attr: norm, in: tensors{fresh(r, 7, 8), fresh(r, 4)}, outs: [][]int{{7, 8}},
			backward: func(in, out tensors, dy []float64) [][]float64 {
				dx, dw := zeros(7, 8), zeros(4)
				g := shaped(out[0], dy)
				apply(ir.OpRMSNormGrad, norm, tensors{in[0], in[1], g}, dx)
				apply(ir.OpRMSNormGradW, norm, tensors{dw, in[0], g, offsets}, dw)
				return [][]float64{dx.f, dw.f}
			}},
		{name: "Rope", forward: ir.OpRope, attr: turn, in: tensors{fresh(r, 4, 10), ints([]int{4}, 2, 0, 1, 2), angles(math.Cos), angles(math.Sin)}, outs: [][]int{{4, 10}},
			backward: func(in, out tensors, dy []float64) [][]float64 {
				dx := zeros(4, 10)
				apply(ir.OpRope, back, tensors{shaped(out[0], dy), in[1], in[2], in[3]}, dx)
				return [][]float64{dx.f}
			}},
		attentionPair("Attention", attn), attentionPair("Attention, window", window),
		{name: "SiLUMul", forward: ir.OpSiLUMul, in: tensors{fresh(r, 3, 4), fresh(r, 3, 4)}, outs: [][]int{{3, 4}},
			backward: func(in, out tensors, dy []float64) [][]float64 {
				dg, du := zeros(3, 4), zeros(3, 4)
				apply(ir.OpSiLUMulGrad, ir.Attrs{}, tensors{in[0], in[1], shaped(out[0], dy)}, dg, du)
				return [][]float64{dg.f, du.f}
			}},
		{name: "LogProb", forward: ir.OpLogProb, in: tensors{fresh(r, 3, 9), ints([]int{3, 2}, 1, 1, 0, 8, 4, 2)}, outs: [][]int{{3, 2}, {3}},
			backward: func(in, out tensors, dy []float64) [][]float64 {
				dl := zeros(3, 9)
				apply(ir.OpLogProbGrad, ir.Attrs{}, tensors{in[0], out[1], in[1], shaped(out[0], dy)}, dl)
				return [][]float64{dl.f}
			}},
		{name: "Embed", forward: ir.OpEmbed, in: tensors{ints([]int{4}, 2, 0, 2, 1), fresh(r, 3, 5)}, outs: [][]int{{4, 5}},
			backward: func(in, out tensors, dy []float64) [][]float64 {
				acc := zeros(3, 5)
				apply(ir.OpEmbedGrad, ir.Attrs{}, tensors{acc, in[0], shaped(out[0], dy), none(4)}, acc)
				return [][]float64{nil, acc.f}
			}},
	}
}

// angles is a table [3, 2] of f(position * frequency).
func angles(f func(float64) float64) tensor[float64] {
	t := zeros(3, 2)
	for i := range t.f {
		t.f[i] = f(float64(i/2) * (1 + 0.3*float64(i%2)))
	}
	return t
}

func TestGradientsAgainstDifferences(t *testing.T) {
	covered := map[ir.Op]bool{}
	for _, p := range pairs(rand.New(rand.NewPCG(1, 2))) {
		covered[p.forward] = true
		r := rand.New(rand.NewPCG(3, 4))
		out := p.run()
		dy := fresh(r, p.outs[0]...).f
		got := p.backward(p.in, out, dy)
		objective := func() float64 {
			sum := 0.0
			for i, v := range p.run()[0].f {
				sum += dy[i] * v
			}
			return sum
		}
		for k, g := range got {
			for i := range g {
				const h = 1e-5
				x := p.in[k].f[i]
				p.in[k].f[i] = x + h
				up := objective()
				p.in[k].f[i] = x - h
				down := objective()
				p.in[k].f[i] = x
				// Truncation is h² and cancellation 1e-16/h: both near 1e-10.
				if want := (up - down) / (2 * h); math.Abs(g[i]-want) > 1e-7*(1+math.Abs(want)) {
					t.Errorf("%s: input %d element %d: gradient %.9g, difference %.9g", p.name, k, i, g[i], want)
				}
			}
		}
	}
	// Every forward op with a gradient kernel of its own has a pair above.
	for _, op := range []ir.Op{ir.OpLinear, ir.OpRMSNorm, ir.OpRope, ir.OpAttention, ir.OpSiLUMul, ir.OpLogProb, ir.OpEmbed} {
		if !covered[op] {
			t.Errorf("%s: no pair", op)
		}
	}
}

func TestTableIsFull(t *testing.T) {
	for _, op := range ir.Ops() {
		if table[float32]()[op] == nil {
			t.Errorf("%s: no reference kernel", op)
		}
	}
}
