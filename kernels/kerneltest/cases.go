package kerneltest

import (
	"fmt"
	"math"
	"math/rand/v2"
	"slices"

	"smolgym/kernels"
	"smolgym/model/ir"
)

// maker draws the data of cases. The oracle gives what a gradient's inputs
// take from the forward pass.
type maker struct {
	r      *rand.Rand
	oracle kernels.Device
}

// tested lists the ops that have cases.
func tested() []ir.Op {
	return slices.DeleteFunc(ir.Ops(), func(op ir.Op) bool { return Pending[op] != "" })
}

// Cases are the cases of an op, small and ragged first, the last one large
// enough to be shared out among threads.
func Cases(oracle kernels.Device, op ir.Op) ([]Case, error) {
	make := table[op]
	if make == nil {
		return nil, fmt.Errorf("%s: no case", op)
	}
	cases, err := make(&maker{rand.New(rand.NewPCG(uint64(op), 7)), oracle})
	cases = append(cases, inBF16(op, cases)...)
	for i := range cases {
		cases[i].Op = op
		if cases[i].Name == "" {
			cases[i].Name = fmt.Sprint(i)
		}
	}
	return cases, err
}

type cases = []Case

var table = map[ir.Op]func(m *maker) (cases, error){
	ir.OpEmbed: embed, ir.OpGatherRows: gather, ir.OpEmbedGrad: embedGrad,
	ir.OpLinear: linear, ir.OpLinearGradX: linearGradX, ir.OpLinearGradW: linearGradW, ir.OpBiasGrad: biasGrad,
	ir.OpRMSNorm: norm, ir.OpRMSNormGrad: normGrad, ir.OpRMSNormGradW: normGradW, ir.OpRope: rope,
	ir.OpAttention: attention, ir.OpAttentionGrad: attentionGrad, ir.OpKVWrite: kvWrite, ir.OpPagedAttention: paged,
	ir.OpSiLUMul: elementwise(2, false), ir.OpSiLUMulGrad: elementwise(3, false),
	ir.OpLSE: logSumExp, ir.OpLogProb: logProb, ir.OpLogProbGrad: logProbGrad,
	ir.OpAdd: elementwise(2, true), ir.OpSub: elementwise(2, true), ir.OpMul: elementwise(2, true), ir.OpDiv: elementwise(2, true),
	ir.OpNeg: elementwise(1, true), ir.OpExp: elementwise(1, true), ir.OpMin: elementwise(2, true), ir.OpMax: elementwise(2, true),
	ir.OpClamp: elementwise(3, true), ir.OpGreater: elementwise(2, true), ir.OpNonZero: elementwise(1, true), ir.OpWhere: elementwise(3, true),
	ir.OpDetach: elementwise(1, true), ir.OpFill: scaled(1), ir.OpScale: scaled(1), ir.OpScaleAdd: scaled(2),
	ir.OpSegmentSum: segmentSum, ir.OpSegmentExpand: segmentExpand,
	ir.OpSumSquares: sumSquares, ir.OpAdamW: adamW,
}

func (m *maker) floats(dims ir.Dims, shape ...ir.Dim) Operand {
	o := Operand{Type: ir.Type{DType: ir.F32, Shape: shape}}
	o.F = make([]float32, o.Type.Shape.Elements(dims))
	for i := range o.F {
		o.F[i] = float32(m.r.NormFloat64())
	}
	return o
}

func (m *maker) ids(dims ir.Dims, below int, shape ...ir.Dim) Operand {
	o := Operand{Type: ir.Type{DType: ir.I32, Shape: shape}}
	o.I = make([]int32, o.Type.Shape.Elements(dims))
	for i := range o.I {
		o.I[i] = int32(m.r.IntN(below))
	}
	return o
}

func constants(f []float32, shape ...ir.Dim) Operand {
	return Operand{Type: ir.Type{DType: ir.F32, Shape: shape}, F: f}
}

func integers(v []int32, shape ...ir.Dim) Operand {
	return Operand{Type: ir.Type{DType: ir.I32, Shape: shape}, I: v}
}

// offsets of sequences of the given lengths, and the dims that go with them.
func offsets(lengths []int) (Operand, ir.Dims) {
	at := []int32{0}
	for _, n := range lengths {
		at = append(at, at[len(at)-1]+int32(n))
	}
	return integers(at, ir.Of(ir.S1)), ir.Dims{T: int(at[len(at)-1]), S: len(lengths)}
}

// ragged lists batches of sequences: one token, an empty sequence, several, and a large batch.
var ragged = [][]int{{1}, {3, 1, 0, 7}, {33, 2, 64, 5}, {130, 31, 200}}

var tokens = ir.Of(ir.T)

// shapes are [M, N, K]: one row, ragged edges, K below, at and beyond a vector, many rows.
var shapes = [][3]int{{1, 1, 1}, {1, 37, 40}, {3, 5, 16}, {7, 19, 33}, {13, 70, 129}, {4, 300, 515}, {131, 170, 96}}

func linear(m *maker) (cs cases, err error) {
	for i, s := range shapes {
		d := ir.Dims{T: s[0]}
		c := Case{Dims: d, In: []Operand{m.floats(d, tokens, ir.Const(s[2])), m.floats(d, ir.Const(s[1]), ir.Const(s[2]))}}
		if i%2 == 1 {
			c.In = append(c.In, m.floats(d, ir.Const(s[1])))
		}
		cs = append(cs, c)
	}
	return cs, nil
}

func linearGradX(m *maker) (cs cases, err error) {
	for _, s := range append(shapes, [3]int{40, 600, 300}) {
		d := ir.Dims{T: s[0]}
		dy := m.floats(d, tokens, ir.Const(s[1]))
		for t := range d.T { // rows of zeros: single ones, a few, many
			if t%11 == 5 || t%29 > 12 && t%29 < 17 || t%40 > 20 && t%40 < 38 {
				clear(dy.F[t*s[1] : (t+1)*s[1]])
			}
		}
		cs = append(cs, Case{Dims: d, In: []Operand{dy, m.floats(d, ir.Const(s[1]), ir.Const(s[2]))}})
	}
	return cs, nil
}

func linearGradW(m *maker) (cs cases, err error) {
	for i, lengths := range append(ragged, []int{300, 1}) {
		for _, s := range [][2]int{{1, 1}, {5 + i, 37}, {64, 16 * (i + 3)}, {100 + 60*i, 130}} {
			o, d := offsets(lengths)
			n, k := ir.Const(s[0]), ir.Const(s[1])
			cs = append(cs, Case{Dims: d, In: []Operand{m.floats(d, n, k), m.floats(d, tokens, n), m.floats(d, tokens, k), o}})
		}
	}
	return cs, nil
}

func biasGrad(m *maker) (cs cases, err error) {
	for _, lengths := range ragged {
		for _, n := range []int{1, 16, 53, 300} {
			o, d := offsets(lengths)
			cs = append(cs, Case{Dims: d, In: []Operand{m.floats(d, ir.Const(n)), m.floats(d, tokens, ir.Const(n)), o}})
		}
	}
	return cs, nil
}

var groups = [][2]int{{1, 1}, {1, 64}, {3, 20}, {4, 32}, {1, 515}} // groups in a row, elements in a group

func norm(m *maker) (cs cases, err error) {
	for i, g := range groups {
		d := ir.Dims{T: 1 + 30*i}
		cs = append(cs, Case{Attr: ir.Attrs{Heads: g[0], Eps: 1e-6, Unit: i%2 == 1}, Dims: d, In: []Operand{m.floats(d, tokens, ir.Const(g[0]*g[1])), m.floats(d, ir.Const(g[1]))}})
	}
	return cs, nil
}

func normGrad(m *maker) (cases, error) {
	cs, err := norm(m)
	for i := range cs {
		cs[i].In = append(cs[i].In, m.floats(cs[i].Dims, cs[i].In[0].Type.Shape...))
	}
	return cs, err
}

func normGradW(m *maker) (cs cases, err error) {
	for _, lengths := range ragged {
		for _, g := range groups {
			o, d := offsets(lengths)
			row := ir.Const(g[0] * g[1])
			cs = append(cs, Case{Attr: ir.Attrs{Heads: g[0], Eps: 1e-6}, Dims: d, In: []Operand{m.floats(d, ir.Const(g[1])), m.floats(d, tokens, row), m.floats(d, tokens, row), o}})
		}
	}
	return cs, nil
}

func rope(m *maker) (cs cases, err error) {
	for i, a := range []ir.Attrs{{Heads: 1, HeadDim: 2, Rotary: 2}, {Heads: 3, HeadDim: 20, Rotary: 16}, {Heads: 2, HeadDim: 36, Rotary: 36, Inverse: true}, {Heads: 4, HeadDim: 128, Rotary: 128}} {
		d := ir.Dims{T: 1 + 50*i}
		const positions = 40
		cos, sin := m.floats(d, ir.Const(positions), ir.Const(a.Rotary/2)), m.floats(d, ir.Const(positions), ir.Const(a.Rotary/2))
		for j, x := range cos.F {
			cos.F[j], sin.F[j] = float32(math.Cos(float64(x))), float32(math.Sin(float64(x)))
		}
		cs = append(cs, Case{Attr: a, Dims: d, In: []Operand{m.floats(d, tokens, ir.Const(a.Heads*a.HeadDim)), m.ids(d, positions, tokens), cos, sin}})
	}
	return cs, nil
}

// heads: grouped and not, head sizes below and beyond a vector, windows inside a block, across blocks and longer than a sequence.
var heads = []ir.Attrs{
	{Heads: 1, KVHeads: 1, HeadDim: 4, Scale: 0.5},
	{Heads: 6, KVHeads: 2, HeadDim: 20, Scale: 0.3, Window: 7},
	{Heads: 4, KVHeads: 4, HeadDim: 16, Scale: 0.25, Window: 45},
	{Heads: 8, KVHeads: 1, HeadDim: 64, Scale: 0.125},
	{Heads: 4, KVHeads: 2, HeadDim: 128, Scale: 0.09, Window: 1000},
	{Heads: 2, KVHeads: 1, HeadDim: 24, Scale: 0.5, Window: 40, Softcap: 1.5},
}

func attention(m *maker) (cs cases, err error) {
	for i, a := range heads {
		for j, lengths := range ragged {
			if j == 3 && i < 3 {
				continue // the large batch with the large heads is enough
			}
			o, d := offsets(lengths)
			q, kv := ir.Const(a.Heads*a.HeadDim), ir.Const(a.KVHeads*a.HeadDim)
			cs = append(cs, Case{Attr: a, Dims: d, In: []Operand{m.floats(d, tokens, q), m.floats(d, tokens, kv), m.floats(d, tokens, kv), o}})
		}
	}
	return cs, nil
}

func attentionGrad(m *maker) (cases, error) {
	cs, err := attention(m)
	for i, c := range cs {
		c.Op = ir.OpAttention
		outs, err := Exec(m.oracle, c)
		if err != nil {
			return nil, err
		}
		q := c.In[0].Type.Shape
		cs[i].In = []Operand{c.In[0], c.In[1], c.In[2], constants(outs[0], q...), constants(outs[1], tokens, ir.Const(c.Attr.Heads)), m.floats(c.Dims, q...), c.In[3]}
	}
	return cs, err
}

// cacheOf lays out a cache for sequences that have start tokens and get more:
// pages in shuffled order, table entries that are not used are -1.
func (m *maker) cacheOf(start, lengths []int, page int) (o, at, table Operand, d ir.Dims) {
	o, d = offsets(lengths)
	for s, n := range lengths {
		d.B = max(d.B, (start[s]+n+page-1)/page)
		d.P += (start[s] + n + page - 1) / page
	}
	d.P += 2 // two that nobody uses
	free := m.r.Perm(d.P)
	first, pages := []int32{}, []int32{}
	for s, n := range lengths {
		first = append(first, int32(start[s]))
		for b := range d.B {
			if b*page < start[s]+n {
				pages = append(pages, int32(free[0]))
				free = free[1:]
			} else {
				pages = append(pages, -1)
			}
		}
	}
	return o, integers(first, ir.Of(ir.S)), integers(pages, ir.Of(ir.S), ir.Of(ir.B)), d
}

var starts = []int{0, 5, 64, 31}

func kvWrite(m *maker) (cs cases, err error) {
	for _, lengths := range ragged {
		for _, page := range []int{32, 64} {
			o, at, table, d := m.cacheOf(starts[:len(lengths)], lengths, page)
			cs = append(cs, Case{Attr: ir.Attrs{Page: page}, Dims: d, In: []Operand{m.floats(d, ir.Of(ir.P), ir.Const(page*12)), m.floats(d, tokens, ir.Const(12)), o, at, table}})
		}
	}
	return cs, nil
}

func paged(m *maker) (cs cases, err error) {
	for i, a := range heads {
		for j, lengths := range ragged {
			if j == 3 && i < 3 {
				continue
			}
			a.Page = 32 * (1 + (i+j)%2)
			o, at, table, d := m.cacheOf(starts[:len(lengths)], lengths, a.Page)
			row := ir.Const(a.Page * a.KVHeads * a.HeadDim)
			cs = append(cs, Case{Attr: a, Dims: d, In: []Operand{m.floats(d, tokens, ir.Const(a.Heads*a.HeadDim)), m.floats(d, ir.Of(ir.P), row), m.floats(d, ir.Of(ir.P), row), o, at, table}})
		}
	}
	return cs, nil
}

// special are the numbers that a loss may meet at its edges.
var special = []float32{0, float32(math.Copysign(0, -1)), 1, -1, 0.5, 88.7, 89, -103.9, -104.5, -87.5, 1e-30, 1e-42, float32(math.Inf(1)), float32(math.Inf(-1)), float32(math.NaN())}

// elementwise makes n operands; edges adds every pair of special numbers.
func elementwise(n int, edges bool) func(m *maker) (cases, error) {
	return func(m *maker) (cs cases, err error) {
		for _, d := range []ir.Dims{{T: 1, C: 1}, {T: 5, C: 7}, {T: 1000, C: 70}} {
			c := Case{Dims: d}
			for range n {
				c.In = append(c.In, m.floats(d, tokens, ir.Of(ir.C)))
			}
			cs = append(cs, c)
		}
		if edges {
			k := len(special)
			d := ir.Dims{T: k * k}
			c := Case{Name: "edges", Dims: d}
			for i := range n {
				o := m.floats(d, tokens)
				for j := range o.F {
					o.F[j] = [3]float32{special[j/k], special[j%k], special[(j/k+j)%k]}[i]
				}
				c.In = append(c.In, o)
			}
			cs = append(cases{c}, cs...)
		}
		return cs, nil
	}
}

func scaled(n int) func(m *maker) (cases, error) {
	return func(m *maker) (cases, error) {
		cs, err := elementwise(n, false)(m)
		for i := range cs {
			cs[i].Attr.Scale = 0.37 - float64(i)
		}
		return cs, err
	}
}

// logits have some words at -inf; row 1, if there is one, nothing else.
func (m *maker) logits(d ir.Dims, v int) Operand {
	o := m.floats(d, tokens, ir.Const(v))
	for i := range o.F {
		o.F[i] *= 4
		if i%7 == 3 || i/v == 1 {
			o.F[i] = float32(math.Inf(-1))
		}
	}
	return o
}

var vocabularies = []struct{ t, c, v int }{{1, 1, 1}, {3, 1, 40}, {5, 3, 1041}, {40, 2, 5000}}

func logSumExp(m *maker) (cs cases, err error) {
	for _, s := range vocabularies {
		d := ir.Dims{T: s.t}
		cs = append(cs, Case{Dims: d, In: []Operand{m.logits(d, s.v)}})
	}
	return cs, nil
}

func logProb(m *maker) (cs cases, err error) {
	for _, s := range vocabularies {
		d := ir.Dims{T: s.t, C: s.c}
		cs = append(cs, Case{Dims: d, In: []Operand{m.logits(d, s.v), m.ids(d, s.v, tokens, ir.Of(ir.C))}})
	}
	return cs, nil
}

func logProbGrad(m *maker) (cases, error) {
	cs, err := logProb(m)
	for i, c := range cs {
		c.Op = ir.OpLogProb
		outs, err := Exec(m.oracle, c)
		if err != nil {
			return nil, err
		}
		g := m.floats(c.Dims, tokens, ir.Of(ir.C))
		for j := range g.F {
			if j/c.Dims.C%3 == 1 {
				g.F[j] = 0 // whole rows: among them the one of -inf
			}
		}
		cs[i].In = []Operand{c.In[0], constants(outs[1], tokens), c.In[1], g}
	}
	return cs, err
}

func embed(m *maker) (cs cases, err error) {
	for _, s := range [][3]int{{1, 1, 1}, {9, 5, 37}, {500, 40, 128}} {
		d := ir.Dims{T: s[0]}
		cs = append(cs, Case{Dims: d, In: []Operand{m.ids(d, s[1], tokens), m.floats(d, ir.Const(s[1]), ir.Const(s[2]))}})
	}
	return cs, nil
}

func gather(m *maker) (cs cases, err error) {
	for _, s := range [][3]int{{1, 1, 1}, {9, 5, 37}, {40, 500, 300}} {
		d := ir.Dims{T: s[0], R: s[1]}
		cs = append(cs, Case{Dims: d, In: []Operand{m.floats(d, tokens, ir.Const(s[2])), m.ids(d, s[0], ir.Of(ir.R))}})
	}
	return cs, nil
}

func embedGrad(m *maker) (cs cases, err error) {
	for _, lengths := range ragged {
		for _, s := range [][2]int{{1, 1}, {7, 37}, {50, 128}} {
			o, d := offsets(lengths)
			v, width := ir.Const(s[0]), ir.Const(s[1])
			cs = append(cs, Case{Dims: d, In: []Operand{m.floats(d, v, width), m.ids(d, s[0], tokens), m.floats(d, tokens, width), o}})
		}
	}
	return cs, nil
}

func segmentSum(m *maker) (cs cases, err error) {
	for i, lengths := range append(ragged, make([]int, 40)) {
		if i == len(ragged) {
			for j := range lengths {
				lengths[j] = 1000 + j
			}
		}
		o, d := offsets(lengths)
		d.C = 1 + i%3
		cs = append(cs, Case{Dims: d, In: []Operand{m.floats(d, tokens), o}}, Case{Dims: d, In: []Operand{m.floats(d, tokens, ir.Of(ir.C)), o}})
	}
	return cs, nil
}

func segmentExpand(m *maker) (cases, error) {
	cs, err := segmentSum(m)
	for i, c := range cs {
		cs[i].In = []Operand{m.floats(c.Dims, ir.Of(ir.S)), c.In[1], c.In[0]}
	}
	return cs, err
}

func sumSquares(m *maker) (cs cases, err error) {
	for _, n := range []int{1, 37, 4096, 100001} {
		cs = append(cs, Case{In: []Operand{m.floats(ir.Dims{}, ir.Const(n))}})
	}
	return cs, nil
}

func adamW(m *maker) (cs cases, err error) {
	for _, n := range []int{1, 37, 30000} {
		c := Case{}
		for range 4 {
			c.In = append(c.In, m.floats(ir.Dims{}, ir.Const(n)))
		}
		for i, v := range c.In[2].F {
			c.In[2].F[i] = v * v // the second moment is no less than 0
		}
		hyper := make([]float32, ir.HyperLen)
		for i, v := range map[int]float64{ir.HyperDecay: 1 - 1e-3*0.1, ir.HyperOneMinusBeta1: 0.1, ir.HyperBeta2: 0.95, ir.HyperOneMinusBeta2: 0.05,
			ir.HyperStepSize: 1e-3 / (1 - 0.9*0.9), ir.HyperSqrtBias2: math.Sqrt(1 - 0.95*0.95), ir.HyperEps: 1e-8, ir.HyperGradScale: 0.7} {
			hyper[i] = float32(v)
		}
		c.In = append(c.In, constants(hyper, ir.Const(ir.HyperLen)))
		cs = append(cs, c)
	}
	return cs, nil
}
