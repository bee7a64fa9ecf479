package grad

import (
	"errors"

	"smolgym/model/ir"
)

// Rules of the ops that single families need.

func init() {
	for op, r := range map[ir.Op]rule{
		ir.OpLinearT:      ruleLinearT,
		ir.OpAddRow:       ruleAddRow,
		ir.OpCenter:       ruleCenter,
		ir.OpDecay:        ruleDecay,
		ir.OpSlice:        ruleSlice,
		ir.OpJoin:         ruleJoin,
		ir.OpTanh:         ruleTanh,
		ir.OpSigmoid:      ruleSigmoid,
		ir.OpSoftplus:     ruleSoftplus,
		ir.OpGELU:         ruleUnary(ir.OpGELUGrad),
		ir.OpGELUTanh:     ruleUnary(ir.OpGELUTanhGrad),
		ir.OpTopK:         ruleTopK,
		ir.OpExpertLinear: ruleExpertLinear,
		ir.OpScaleRows:    ruleScaleRows,
		ir.OpSumRows:      ruleSumRows,
		ir.OpConv:         ruleConv,
		ir.OpDelta:        ruleDelta,
	} {
		rules[op] = r
	}
}

// y = x·w, so dx = dy·wᵀ, which is a Linear, and dw = xᵀ·dy.
func ruleLinearT(b *backward, n *ir.Node, dys []ir.ID) error {
	x, w, dy := n.In[0], n.In[1], dys[0]
	if err := b.param(n, 1, ir.OpLinearGradW, ir.Attrs{}, x, dy); err != nil || !b.needs[x] {
		return err
	}
	return b.add(n, 0, b.op1(ir.OpLinear, dy, w))
}

func ruleAddRow(b *backward, n *ir.Node, dys []ir.ID) error {
	if err := b.param(n, 1, ir.OpBiasGrad, ir.Attrs{}, dys[0]); err != nil {
		return err
	}
	return b.add(n, 0, dys[0])
}

// The matrix of Center is symmetric.
func ruleCenter(b *backward, n *ir.Node, dys []ir.ID) error {
	return b.add(n, 0, b.op1(ir.OpCenter, dys[0]))
}

// y = -exp(a)*x, so da = dy*y, summed over rows.
func ruleDecay(b *backward, n *ir.Node, dys []ir.ID) error {
	if b.needs[n.In[1]] {
		if err := b.param(n, 1, ir.OpBiasGrad, ir.Attrs{}, b.op1(ir.OpMul, dys[0], n.Out[0])); err != nil {
			return err
		}
	}
	if !b.needs[n.In[0]] {
		return nil
	}
	return b.add(n, 0, b.op1(ir.OpDecay, dys[0], n.In[1]))
}

func ruleSlice(b *backward, n *ir.Node, dys []ir.ID) error {
	a := ir.Attrs{Heads: n.Attr.Heads, HeadDim: n.Attr.HeadDim, Offset: n.Attr.Offset, Of: n.Attr.Of}
	return b.add(n, 0, b.op(ir.OpSliceGrad, a, dys[0])[0])
}

func ruleJoin(b *backward, n *ir.Node, dys []ir.ID) error {
	of, from := b.g.Value(dys[0]).Type.Shape[1].N, 0
	for k, in := range n.In {
		width := b.g.Value(in).Type.Shape[1].N
		if b.needs[in] {
			if err := b.add(n, k, b.op(ir.OpSlice, ir.Attrs{Heads: 1, Of: of, Offset: from, HeadDim: width}, dys[0])[0]); err != nil {
				return err
			}
		}
		from += width
	}
	return nil
}

// dx = dy - dy*y².
func ruleTanh(b *backward, n *ir.Node, dys []ir.ID) error {
	y := n.Out[0]
	return b.add(n, 0, b.op1(ir.OpSub, dys[0], b.op1(ir.OpMul, dys[0], b.op1(ir.OpMul, y, y))))
}

// dx = dy*(y - y²).
func ruleSigmoid(b *backward, n *ir.Node, dys []ir.ID) error {
	y := n.Out[0]
	return b.add(n, 0, b.op1(ir.OpMul, dys[0], b.op1(ir.OpSub, y, b.op1(ir.OpMul, y, y))))
}

func ruleSoftplus(b *backward, n *ir.Node, dys []ir.ID) error {
	return b.add(n, 0, b.op1(ir.OpMul, dys[0], b.op1(ir.OpSigmoid, n.In[0])))
}

func ruleUnary(op ir.Op) rule {
	return func(b *backward, n *ir.Node, dys []ir.ID) error { return b.add(n, 0, b.op1(op, n.In[0], dys[0])) }
}

func ruleTopK(b *backward, n *ir.Node, dys []ir.ID) error {
	a := ir.Attrs{Normalise: n.Attr.Normalise}
	return b.add(n, 0, b.op(ir.OpTopKGrad, a, n.In[0], n.Out[1], dys[0])[0])
}

func ruleExpertLinear(b *backward, n *ir.Node, dys []ir.ID) error {
	x, w, experts, dy := n.In[0], n.In[1], n.In[2], dys[0]
	if b.needs[w] {
		acc, ok := b.acc[use{b.node, 1}]
		if !ok {
			return errors.New("input 1 is computed from parameters; only a parameter itself can stand there")
		}
		b.op(ir.OpExpertGradW, ir.Attrs{}, acc, dy, x, experts, b.offsets)
	}
	if !b.needs[x] {
		return nil
	}
	dx := b.op1(ir.OpExpertGradX, dy, w, experts)
	have, want := b.g.Value(dx).Type.Shape[0], b.g.Value(x).Type.Shape[0]
	if have != want { // each token's row was read once for each of its experts
		dx = b.op(ir.OpSumRows, ir.Attrs{Pick: have.N / max(want.N, 1)}, dx)[0]
	}
	return b.add(n, 0, dx)
}

func ruleScaleRows(b *backward, n *ir.Node, dys []ir.ID) error {
	x, w := n.In[0], n.In[1]
	if b.needs[x] {
		if err := b.add(n, 0, b.op1(ir.OpScaleRows, dys[0], w)); err != nil {
			return err
		}
	}
	if !b.needs[w] {
		return nil
	}
	pick := b.g.Value(w).Type.Shape[1].N
	return b.add(n, 1, b.op(ir.OpRowDot, ir.Attrs{Pick: pick}, x, dys[0])[0])
}

func ruleSumRows(b *backward, n *ir.Node, dys []ir.ID) error {
	return b.add(n, 0, b.op(ir.OpRepeatRows, ir.Attrs{Pick: n.Attr.Pick}, dys[0])[0])
}

func ruleConv(b *backward, n *ir.Node, dys []ir.ID) error {
	x, w, offsets, dy := n.In[0], n.In[1], n.In[2], dys[0]
	if err := b.param(n, 1, ir.OpConvGradW, ir.Attrs{}, dy, x); err != nil || !b.needs[x] {
		return err
	}
	return b.add(n, 0, b.op1(ir.OpConvGrad, dy, w, offsets))
}

func ruleDelta(b *backward, n *ir.Node, dys []ir.ID) error {
	a := ir.Attrs{Heads: n.Attr.Heads, KVHeads: n.Attr.KVHeads, HeadDim: n.Attr.HeadDim}
	in := append(append([]ir.ID{}, n.In[:5]...), dys[0], n.In[5])
	for k, d := range b.op(ir.OpDeltaGrad, a, in...) {
		if err := b.add(n, k, d); err != nil {
			return err
		}
	}
	return nil
}
