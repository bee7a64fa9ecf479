package kerneltest

import (
	"math"

	"smolgym/model/ir"
)

func init() {
	for op, c := range map[ir.Op]func(m *maker) (cases, error){
		ir.OpTopK: topK, ir.OpTopKGrad: topKGrad, ir.OpExpertLinear: expertLinear, ir.OpExpertGradX: expertGradX, ir.OpExpertGradW: expertGradW,
		ir.OpConv: conv, ir.OpConvState: convState, ir.OpConvGrad: conv, ir.OpConvGradW: convGradW,
		ir.OpAdapt: adapt,
		ir.OpDelta: delta, ir.OpDeltaState: deltaState, ir.OpDeltaGrad: deltaGrad,
	} {
		table[op] = c
	}
	const whyRule = "errors of a token's state are carried on by the decay"
	for op, tol := range map[ir.Op]Tolerance{
		ir.OpTopK:         {Rel: 1e-6, Why: whyExp + ", a sum of positive terms and a division"},
		ir.OpTopKGrad:     {Rel: 1e-6, Abs: 6e-7, Why: "the weights' errors; dw - mean cancels"},
		ir.OpExpertLinear: {Rel: 1e-6, Abs: 1e-6, Why: whySum},
		ir.OpExpertGradX:  {Rel: 1e-6, Abs: 1e-6, Why: whySum},
		ir.OpExpertGradW:  {Rel: 1e-6, Abs: 1e-6, Why: whySum},
		ir.OpConv:         {Rel: 1e-6, Abs: 3e-7, Why: whySum},
		ir.OpConvState:    {Rel: 1e-6, Abs: 3e-7, Why: whySum},
		ir.OpConvGrad:     {Rel: 1e-6, Abs: 3e-7, Why: whySum},
		ir.OpConvGradW:    {Rel: 1e-6, Abs: 1e-6, Why: whySum},
		ir.OpAdapt:        {Rel: 2e-6, Abs: 4e-6, Why: "two sums, one of the other's results"},
		ir.OpDelta:        {Rel: 1e-5, Abs: 1e-6, Why: whySum + "; " + whyRule},
		ir.OpDeltaState:   {Rel: 1e-5, Abs: 1e-6, Why: whySum + "; " + whyRule},
		ir.OpDeltaGrad:    {Rel: 1e-5, Abs: 3e-6, Why: whySum + "; " + whyRule + ", and back"},
	} {
		tolerances[op] = tol
	}
}

// choices of [T, E, k]: one expert, ties, more tokens than fit a run.
var routers = [][3]int{{1, 1, 1}, {9, 5, 3}, {40, 20, 20}, {300, 64, 8}}

func topK(m *maker) (cs cases, err error) {
	for i, s := range routers {
		for _, normalise := range []bool{false, true} {
			d := ir.Dims{T: s[0]}
			c := Case{Attr: ir.Attrs{Pick: s[2], Normalise: normalise}, Dims: d, In: []Operand{m.floats(d, tokens, ir.Const(s[1]))}}
			for j := range c.In[0].F {
				c.In[0].F[j] *= 3
				if i == 1 {
					c.In[0].F[j] = float32(math.Round(float64(c.In[0].F[j]))) // equal ones
				}
			}
			cs = append(cs, c)
		}
	}
	return cs, nil
}

func topKGrad(m *maker) (cases, error) {
	cs, err := topK(m)
	for i, c := range cs {
		k := ir.Const(c.Attr.Pick)
		cs[i].Attr.Pick = 0
		cs[i].In = append(c.In, m.distinct(c.Dims.T, c.In[0].Type.Shape[1].N, k.N), m.floats(c.Dims, tokens, k))
	}
	return cs, err
}

// distinct gives each token k different experts.
func (m *maker) distinct(rows, experts, k int) Operand {
	var v []int32
	for range rows {
		for _, e := range m.r.Perm(experts)[:k] {
			v = append(v, int32(e))
		}
	}
	return integers(v, tokens, ir.Const(k))
}

// mixtures are [E, k, N, K] for a list of sequence lengths.
var mixtures = []struct {
	lengths    []int
	e, k, n, d int
}{
	{[]int{1}, 1, 1, 1, 1},
	{[]int{3, 1, 0, 7}, 5, 2, 37, 19},
	{[]int{33, 2, 64, 5}, 4, 3, 300, 33},
	{[]int{200, 31, 130}, 16, 4, 130, 300},
}

func expertLinear(m *maker) (cs cases, err error) {
	for i, x := range mixtures {
		_, d := offsets(x.lengths)
		rows := tokens
		if i%2 == 1 {
			rows = rowsOf(x.k) // behind another ExpertLinear
		}
		w := m.floats(d, ir.Const(x.e), ir.Const(x.n), ir.Const(x.d))
		cs = append(cs, Case{Dims: d, In: []Operand{m.floats(d, rows, ir.Const(x.d)), w, m.distinct(d.T, x.e, x.k)}})
	}
	return cs, nil
}

func expertGradX(m *maker) (cs cases, err error) {
	for _, x := range mixtures {
		_, d := offsets(x.lengths)
		w := m.floats(d, ir.Const(x.e), ir.Const(x.n), ir.Const(x.d))
		cs = append(cs, Case{Dims: d, In: []Operand{m.floats(d, rowsOf(x.k), ir.Const(x.n)), w, m.distinct(d.T, x.e, x.k)}})
	}
	return cs, nil
}

func expertGradW(m *maker) (cs cases, err error) {
	for i, x := range mixtures {
		o, d := offsets(x.lengths)
		rows := tokens
		if i%2 == 0 {
			rows = rowsOf(x.k)
		}
		acc := m.floats(d, ir.Const(x.e), ir.Const(x.n), ir.Const(x.d))
		cs = append(cs, Case{Dims: d, In: []Operand{acc, m.floats(d, rowsOf(x.k), ir.Const(x.n)), m.floats(d, rows, ir.Const(x.d)), m.distinct(d.T, x.e, x.k), o}})
	}
	return cs, nil
}

var kernelSizes = [][2]int{{1, 2}, {37, 4}, {300, 3}} // columns, tokens of the kernel

func conv(m *maker) (cs cases, err error) {
	for _, lengths := range ragged {
		for _, s := range kernelSizes {
			o, d := offsets(lengths)
			cs = append(cs, Case{Dims: d, In: []Operand{m.floats(d, tokens, ir.Const(s[0])), m.floats(d, ir.Const(s[0]), ir.Const(1), ir.Const(s[1])), o}})
		}
	}
	return cs, nil
}

func convGradW(m *maker) (cases, error) {
	cs, err := conv(m)
	for i, c := range cs {
		cs[i].In = []Operand{c.In[1], c.In[0], m.floats(c.Dims, c.In[0].Type.Shape...), c.In[2]}
	}
	return cs, err
}

// adapters are the ranks in a group of adapters of two modules, 0 for none, with
// the sizes [rows,N,K] of the module that is run.
var adapters = []struct {
	ranks   [][2]int
	module  int
	n, k    int
	repeats []int // neighbouring rows of one place
}{
	{[][2]int{{1, 1}}, 0, 1, 1, []int{1}},
	{[][2]int{{3, 0}, {0, 5}, {16, 16}}, 1, 37, 19, []int{2, 1, 1, 4, 1, 1, 3}},
	{[][2]int{{8, 2}, {33, 1}, {0, 0}, {4, 4}}, 0, 19, 40, []int{1, 7, 2, 5, 11}},
	{[][2]int{{32, 0}, {8, 8}, {129, 3}}, 0, 300, 515, []int{120, 33, 7, 1, 100, 1}},
}

func adapt(m *maker) (cs cases, err error) {
	for _, a := range adapters {
		group := Operand{Type: ir.GroupType}
		for _, ranks := range a.ranks {
			for i, r := range ranks {
				n, k := ir.Const(a.n+i-a.module), ir.Const(a.k+i-a.module) // the other module has other sizes
				group.Parts = append(group.Parts, m.floats(ir.Dims{}, ir.Const(r), k).F, m.floats(ir.Dims{}, n, ir.Const(r)).F)
			}
		}
		var place []int32
		for i, rows := range a.repeats {
			for range rows {
				place = append(place, int32((i+1)%(len(a.ranks)+1)))
			}
		}
		d := ir.Dims{T: len(place)}
		y, x, scale := m.floats(d, tokens, ir.Const(a.n)), m.floats(d, tokens, ir.Const(a.k)), m.floats(d, tokens)
		for i := range x.F { // so that x·Aᵀ·Bᵀ is of order 1
			x.F[i] /= 16
		}
		cs = append(cs, Case{Attr: ir.Attrs{Offset: a.module, Of: 2}, Dims: d, In: []Operand{y, x, group, integers(place, tokens), scale}})
	}
	return cs, nil
}

// states gives sequences slots of a state tensor in no order; the second starts anew.
func (m *maker) states(d *ir.Dims, row int) (state, start, slot Operand) {
	d.L = d.S + 2
	var first, at []int32
	for s, p := range m.r.Perm(d.L)[:d.S] {
		first, at = append(first, int32([]int{5, 0, 64, 1}[s%4])), append(at, int32(p))
	}
	return m.floats(*d, ir.Of(ir.L), ir.Const(row)), integers(first, ir.Of(ir.S)), integers(at, ir.Of(ir.S))
}

func convState(m *maker) (cases, error) {
	cs, err := conv(m)
	for i, c := range cs {
		w := c.In[1].Type.Shape
		state, start, slot := m.states(&cs[i].Dims, w[0].N*(w[2].N-1))
		cs[i].In = []Operand{state, c.In[0], c.In[1], c.In[2], start, slot}
	}
	return cs, err
}

// ruleHeads: grouped and not, heads below and beyond a vector.
var ruleHeads = []struct {
	a ir.Attrs
	e int
}{
	{ir.Attrs{Heads: 1, KVHeads: 1, HeadDim: 1}, 1},
	{ir.Attrs{Heads: 4, KVHeads: 2, HeadDim: 20}, 37},
	{ir.Attrs{Heads: 2, KVHeads: 1, HeadDim: 64}, 64},
}

func delta(m *maker) (cs cases, err error) {
	for _, lengths := range ragged {
		for _, h := range ruleHeads {
			o, d := offsets(lengths)
			qk, v, each := ir.Const(h.a.KVHeads*h.a.HeadDim), ir.Const(h.a.Heads*h.e), ir.Const(h.a.Heads)
			c := Case{Attr: h.a, Dims: d, In: []Operand{m.floats(d, tokens, qk), m.floats(d, tokens, qk), m.floats(d, tokens, v), m.floats(d, tokens, each), m.floats(d, tokens, each), o}}
			// As in a model: queries and keys of about unit length, decays below
			// one, betas between none and all.
			for i := range c.In[0].F {
				c.In[0].F[i] /= float32(math.Sqrt(float64(h.a.HeadDim)))
				c.In[1].F[i] /= float32(math.Sqrt(float64(h.a.HeadDim)))
			}
			for i := range c.In[3].F {
				c.In[3].F[i] = -float32(math.Abs(float64(c.In[3].F[i])))
				c.In[4].F[i] = float32(1 / (1 + math.Exp(float64(c.In[4].F[i]))))
			}
			cs = append(cs, c)
		}
	}
	return cs, nil
}

func deltaState(m *maker) (cases, error) {
	cs, err := delta(m)
	for i, c := range cs {
		state, start, slot := m.states(&cs[i].Dims, c.Attr.HeadDim*c.In[2].Type.Shape[1].N)
		cs[i].In = append(append([]Operand{state}, c.In...), start, slot)
	}
	return cs, err
}

func deltaGrad(m *maker) (cases, error) {
	cs, err := delta(m)
	for i, c := range cs {
		in := append([]Operand{}, c.In[:5]...)
		cs[i].In = append(in, m.floats(c.Dims, c.In[2].Type.Shape...), c.In[5])
	}
	return cs, err
}
