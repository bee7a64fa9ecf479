package onnx

import (
	"math"

	"smolgym/model/ir"
)

// rule gives the nodes that stand for one of ours, and the name of its first output. rows is [tokens].
type rule func(t *translator, n *ir.Node) string

// rules has a row for every op that the forward graph of a dense model can hold.
var rules map[ir.Op]rule

func init() { // not a literal: forward looks into the table
	rules = map[ir.Op]rule{
		ir.OpEmbed:     func(t *translator, n *ir.Node) string { return t.do("Gather", t.in(n, 1), t.in(n, 0)) },
		ir.OpLinear:    linear,
		ir.OpLinearT:   func(t *translator, n *ir.Node) string { return t.do("Gemm", t.in(n, 0), t.in(n, 1)) },
		ir.OpRMSNorm:   rmsNorm,
		ir.OpCenter:    center,
		ir.OpRope:      rope,
		ir.OpAttention: attention,
		ir.OpSlice:     slice,
		ir.OpSiLUMul:   siluMul,
		ir.OpGELU:      gelu,
		ir.OpGELUTanh:  geluTanh,
		ir.OpAdd:       both("Add"),
		ir.OpAddRow:    both("Add"),
		ir.OpMul:       both("Mul"),
		ir.OpSigmoid:   func(t *translator, n *ir.Node) string { return t.do("Sigmoid", t.in(n, 0)) },
		ir.OpTanh:      func(t *translator, n *ir.Node) string { return t.do("Tanh", t.in(n, 0)) },
		ir.OpScale:     func(t *translator, n *ir.Node) string { return t.do("Mul", t.in(n, 0), t.float(n.Attr.Scale)) },
		ir.OpScaleAdd: func(t *translator, n *ir.Node) string {
			return t.do("Add", t.in(n, 0), t.do("Mul", t.in(n, 1), t.float(n.Attr.Scale)))
		},
	}
}

func both(op string) rule {
	return func(t *translator, n *ir.Node) string { return t.do(op, t.in(n, 0), t.in(n, 1)) }
}

// linear: x[rows,K], w[N,K], (bias[N]) -> x·wᵀ + bias. The weight stays as it is stored, and a tied one is there once.
func linear(t *translator, n *ir.Node) string {
	in := []string{t.in(n, 0), t.in(n, 1)}
	if len(n.In) == 3 {
		in = append(in, t.in(n, 2))
	}
	return t.add("Gemm", in, integer("transB", 1))
}

// mean is that over the last axis, which stays.
func (t *translator) mean(x string) string {
	return t.add("ReduceMean", []string{x}, integers("axes", -1))
}

// groups is x[rows,heads*size] as [rows,heads,size].
func (t *translator) groups(x string, heads, size int) string {
	return t.do("Reshape", x, t.list(-1, int64(heads), int64(size)))
}

// flat is the way back: [rows,width].
func (t *translator) flat(x string, width int) string {
	return t.do("Reshape", x, t.list(-1, int64(width)))
}

// rmsNorm: x[rows,G*D], w[D] -> x/sqrt(mean of x² + eps)*w over each group of D; Unit: *(w+1).
func rmsNorm(t *translator, n *ir.Node) string {
	x, w := t.in(n, 0), t.in(n, 1)
	heads, size := n.Attr.Heads, t.f.Graph.Value(n.In[1]).Type.Shape[0].N
	if n.Attr.Unit {
		w = t.do("Add", w, t.float(1))
	}
	if heads > 1 {
		x = t.groups(x, heads, size)
	}
	root := t.do("Sqrt", t.do("Add", t.mean(t.do("Mul", x, x)), t.float(n.Attr.Eps)))
	y := t.do("Mul", t.do("Div", x, root), w)
	if heads > 1 {
		y = t.flat(y, heads*size)
	}
	return y
}

// center: x[rows,D] -> x - mean over D.
func center(t *translator, n *ir.Node) string {
	x := t.in(n, 0)
	return t.do("Sub", x, t.mean(x))
}

// part is [from,to) of an axis.
func (t *translator) part(x string, axis, from, to int) string {
	return t.do("Slice", x, t.list(int64(from)), t.list(int64(to)), t.list(int64(axis)))
}

// rope: x[rows,Heads*HeadDim], pos[rows], cos[X,Rotary/2], sin[X,Rotary/2] -> the first Rotary elements of each head rotated,
// the lower half of them against the upper.
func rope(t *translator, n *ir.Node) string {
	a := n.Attr
	half := a.Rotary / 2
	x := t.groups(t.in(n, 0), a.Heads, a.HeadDim)
	cos, sin := t.rows(n, 2), t.rows(n, 3)
	low, high := t.part(x, 2, 0, half), t.part(x, 2, half, a.Rotary)
	minus, plus := "Sub", "Add"
	if a.Inverse {
		minus, plus = plus, minus
	}
	parts := []string{
		t.do(minus, t.do("Mul", low, cos), t.do("Mul", high, sin)),
		t.do(plus, t.do("Mul", high, cos), t.do("Mul", low, sin)),
	}
	if a.Rotary < a.HeadDim {
		parts = append(parts, t.part(x, 2, a.Rotary, a.HeadDim))
	}
	return t.flat(t.add("Concat", parts, integer("axis", 2)), a.Heads*a.HeadDim)
}

// rows are those of a table [X,half] at the tokens' positions, for every head: [rows,1,half]. All layers share them.
func (t *translator) rows(n *ir.Node, table int) string {
	from, positions := t.in(n, table), t.in(n, 1)
	return t.once(from+"/rows", func(name string) string {
		return t.named(name, "Unsqueeze", t.do("Gather", from, positions), t.list(1))
	})
}

// attention: q[rows,Heads*D], k[rows,KVHeads*D], v[rows,KVHeads*D] -> [rows,Heads*D], causal inside each row of the batch. The
// heads that share keys and values stand on an axis of their own, over which these repeat.
func attention(t *translator, n *ir.Node) string {
	a := n.Attr
	kv, group, d := int64(a.KVHeads), int64(a.Heads/a.KVHeads), int64(a.HeadDim)
	apart := func(k int, group int64, order ...int64) string {
		x := t.do("Reshape", t.in(n, k), t.byRow(kv, group, d))
		return t.add("Transpose", []string{x}, integers("perm", order...))
	}
	q := apart(0, group, 0, 2, 3, 1, 4) // [batch,kv,group,sequence,d]
	k := apart(1, 1, 0, 2, 3, 4, 1)     // [batch,kv,1,d,sequence]
	v := apart(2, 1, 0, 2, 3, 1, 4)     // [batch,kv,1,sequence,d]
	scores := t.do("Mul", t.do("MatMul", q, k), t.float(a.Scale))
	if a.Softcap != 0 {
		bound := t.float(a.Softcap)
		scores = t.do("Mul", t.do("Tanh", t.do("Div", scores, bound)), bound)
	}
	// Every query sees itself, so that the least finite number vanishes beside its score.
	scores = t.do("Where", t.mask(a.Window), scores, t.float(-math.MaxFloat32))
	y := t.do("MatMul", t.add("Softmax", []string{scores}, integer("axis", -1)), v)
	y = t.add("Transpose", []string{y}, integers("perm", 0, 3, 1, 2, 4))
	return t.flat(y, a.Heads*a.HeadDim)
}

// slice: x[rows,Heads*Of] -> columns [Offset,Offset+HeadDim) of each group of Of.
func slice(t *translator, n *ir.Node) string {
	a := n.Attr
	if a.Heads == 1 {
		return t.part(t.in(n, 0), 1, a.Offset, a.Offset+a.HeadDim)
	}
	x := t.part(t.groups(t.in(n, 0), a.Heads, a.Of), 2, a.Offset, a.Offset+a.HeadDim)
	return t.flat(x, a.Heads*a.HeadDim)
}

// siluMul: gate, up -> gate*sigmoid(gate)*up.
func siluMul(t *translator, n *ir.Node) string {
	gate := t.in(n, 0)
	return t.do("Mul", t.do("Mul", gate, t.do("Sigmoid", gate)), t.in(n, 1))
}

// gelu: x/2*(1+erf(x/sqrt(2))).
func gelu(t *translator, n *ir.Node) string {
	x := t.in(n, 0)
	return t.half(x, t.do("Erf", t.do("Div", x, t.float(math.Sqrt2))))
}

// geluTanh: x/2*(1+tanh(sqrt(2/pi)*(x+0.044715*x³))).
func geluTanh(t *translator, n *ir.Node) string {
	x := t.in(n, 0)
	cube := t.do("Mul", t.do("Mul", x, x), x)
	inner := t.do("Add", x, t.do("Mul", cube, t.float(0.044715)))
	return t.half(x, t.do("Tanh", t.do("Mul", inner, t.float(math.Sqrt(2/math.Pi)))))
}

// half is x*(1+y)/2.
func (t *translator) half(x, y string) string {
	return t.do("Mul", t.do("Mul", x, t.do("Add", y, t.float(1))), t.float(0.5))
}
