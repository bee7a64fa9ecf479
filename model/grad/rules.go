package grad

import (
	"errors"

	"smolgym/model/ir"
)

// rule appends what a node's inputs need, given the gradients dys of its
// outputs (zero where none came). dy below is dys[0].
type rule func(b *backward, n *ir.Node, dys []ir.ID) error

var rules map[ir.Op]rule

func init() { // not a literal: the rules' own code refers to the table
	rules = map[ir.Op]rule{
		ir.OpEmbed:         ruleEmbed,
		ir.OpLinear:        ruleLinear,
		ir.OpRMSNorm:       ruleRMSNorm,
		ir.OpRope:          ruleRope,
		ir.OpAttention:     ruleAttention,
		ir.OpSiLUMul:       ruleSiLUMul,
		ir.OpAdd:           ruleAdd,
		ir.OpScaleAdd:      ruleScaleAdd,
		ir.OpScale:         ruleScale,
		ir.OpLogProb:       ruleLogProb,
		ir.OpSub:           ruleSub,
		ir.OpMul:           ruleMul,
		ir.OpDiv:           ruleDiv,
		ir.OpNeg:           ruleNeg,
		ir.OpExp:           ruleExp,
		ir.OpMin:           ruleMin,
		ir.OpMax:           ruleMax,
		ir.OpClamp:         ruleClamp,
		ir.OpWhere:         ruleWhere,
		ir.OpSegmentSum:    ruleSegmentSum,
		ir.OpSegmentExpand: ruleSegmentExpand,
	}
}

var errLSE = errors.New("the gradient of the log-sum-exp output is not supported")

func ruleEmbed(b *backward, n *ir.Node, dys []ir.ID) error {
	return b.param(n, 1, ir.OpEmbedGrad, ir.Attrs{}, n.In[0], dys[0])
}

func ruleLinear(b *backward, n *ir.Node, dys []ir.ID) error {
	x, w, dy := n.In[0], n.In[1], dys[0]
	if err := b.param(n, 1, ir.OpLinearGradW, ir.Attrs{}, dy, x); err != nil {
		return err
	}
	if len(n.In) == 3 {
		if err := b.param(n, 2, ir.OpBiasGrad, ir.Attrs{}, dy); err != nil {
			return err
		}
	}
	if !b.needs[x] {
		return nil
	}
	return b.add(n, 0, b.op1(ir.OpLinearGradX, dy, w))
}

func ruleRMSNorm(b *backward, n *ir.Node, dys []ir.ID) error {
	a := ir.Attrs{Eps: n.Attr.Eps, Heads: n.Attr.Heads}
	if err := b.param(n, 1, ir.OpRMSNormGradW, a, n.In[0], dys[0]); err != nil {
		return err
	}
	a.Unit = n.Attr.Unit
	if !b.needs[n.In[0]] {
		return nil
	}
	return b.add(n, 0, b.op(ir.OpRMSNormGrad, a, n.In[0], n.In[1], dys[0])[0])
}

func ruleRope(b *backward, n *ir.Node, dys []ir.ID) error {
	a := n.Attr
	a.Inverse, a.Part = !a.Inverse, ir.PartNone
	return b.add(n, 0, b.op(ir.OpRope, a, dys[0], n.In[1], n.In[2], n.In[3])[0])
}

func ruleAttention(b *backward, n *ir.Node, dys []ir.ID) error {
	if dys[1] != 0 {
		return errLSE
	}
	a := n.Attr
	a.Part = ir.PartNone
	grads := b.op(ir.OpAttentionGrad, a, n.In[0], n.In[1], n.In[2], n.Out[0], n.Out[1], dys[0], n.In[3])
	for k, d := range grads {
		if err := b.add(n, k, d); err != nil {
			return err
		}
	}
	return nil
}

func ruleSiLUMul(b *backward, n *ir.Node, dys []ir.ID) error {
	grads := b.op(ir.OpSiLUMulGrad, ir.Attrs{}, n.In[0], n.In[1], dys[0])
	return errors.Join(b.add(n, 0, grads[0]), b.add(n, 1, grads[1]))
}

func ruleAdd(b *backward, n *ir.Node, dys []ir.ID) error {
	return errors.Join(b.add(n, 0, dys[0]), b.add(n, 1, dys[0]))
}

func ruleScaleAdd(b *backward, n *ir.Node, dys []ir.ID) error {
	if err := b.add(n, 0, dys[0]); err != nil || !b.needs[n.In[1]] {
		return err
	}
	return b.add(n, 1, b.scale(n.Attr.Scale, dys[0]))
}

func (b *backward) scale(by float64, dy ir.ID) ir.ID {
	return b.op(ir.OpScale, ir.Attrs{Scale: by}, dy)[0]
}

func ruleScale(b *backward, n *ir.Node, dys []ir.ID) error {
	return b.add(n, 0, b.scale(n.Attr.Scale, dys[0]))
}

func ruleLogProb(b *backward, n *ir.Node, dys []ir.ID) error {
	if dys[1] != 0 {
		return errLSE
	}
	return b.add(n, 0, b.op1(ir.OpLogProbGrad, n.In[0], n.Out[1], n.In[1], dys[0]))
}

func ruleSub(b *backward, n *ir.Node, dys []ir.ID) error {
	if err := b.add(n, 0, dys[0]); err != nil || !b.needs[n.In[1]] {
		return err
	}
	return b.add(n, 1, b.op1(ir.OpNeg, dys[0]))
}

func ruleMul(b *backward, n *ir.Node, dys []ir.ID) error {
	for k := range n.In {
		if !b.needs[n.In[k]] {
			continue
		}
		if err := b.add(n, k, b.op1(ir.OpMul, dys[0], n.In[1-k])); err != nil {
			return err
		}
	}
	return nil
}

// y = a/c: da = dy/c, dc = -(dy*y)/c.
func ruleDiv(b *backward, n *ir.Node, dys []ir.ID) error {
	c := n.In[1]
	if b.needs[n.In[0]] {
		if err := b.add(n, 0, b.op1(ir.OpDiv, dys[0], c)); err != nil {
			return err
		}
	}
	if !b.needs[c] {
		return nil
	}
	return b.add(n, 1, b.op1(ir.OpNeg, b.op1(ir.OpDiv, b.op1(ir.OpMul, dys[0], n.Out[0]), c)))
}

func ruleNeg(b *backward, n *ir.Node, dys []ir.ID) error {
	return b.add(n, 0, b.op1(ir.OpNeg, dys[0]))
}

func ruleExp(b *backward, n *ir.Node, dys []ir.ID) error {
	return b.add(n, 0, b.op1(ir.OpMul, dys[0], n.Out[0]))
}

func ruleMin(b *backward, n *ir.Node, dys []ir.ID) error {
	return b.choose(n, dys[0], n.In[0], n.In[1])
}

func ruleMax(b *backward, n *ir.Node, dys []ir.ID) error {
	return b.choose(n, dys[0], n.In[1], n.In[0])
}

// choose is Min and Max: input 0 is not selected where first > second, input 1
// where second > first, and a tie gives half to each.
func (b *backward) choose(n *ir.Node, dy, first, second ir.ID) error {
	zero := b.zero(dy)
	half := b.scale(0.5, dy)
	over, under := b.op1(ir.OpGreater, first, second), b.op1(ir.OpGreater, second, first)
	if b.needs[n.In[0]] {
		if err := b.add(n, 0, b.op1(ir.OpWhere, over, zero, b.op1(ir.OpWhere, under, dy, half))); err != nil {
			return err
		}
	}
	if !b.needs[n.In[1]] {
		return nil
	}
	return b.add(n, 1, b.op1(ir.OpWhere, under, zero, b.op1(ir.OpWhere, over, dy, half)))
}

func (b *backward) zero(like ir.ID) ir.ID { return b.op1(ir.OpFill, like) }

func ruleClamp(b *backward, n *ir.Node, dys []ir.ID) error {
	if b.needs[n.In[1]] || b.needs[n.In[2]] {
		return errors.New("the bounds of Clamp get no gradient; detach them")
	}
	x, lo, hi, dy := n.In[0], n.In[1], n.In[2], dys[0]
	zero := b.zero(dy)
	dy = b.op1(ir.OpWhere, b.op1(ir.OpGreater, lo, x), zero, dy)
	return b.add(n, 0, b.op1(ir.OpWhere, b.op1(ir.OpGreater, x, hi), zero, dy))
}

func ruleWhere(b *backward, n *ir.Node, dys []ir.ID) error {
	mask, zero := n.In[0], b.zero(dys[0])
	if b.needs[n.In[1]] {
		if err := b.add(n, 1, b.op1(ir.OpWhere, mask, dys[0], zero)); err != nil {
			return err
		}
	}
	if !b.needs[n.In[2]] {
		return nil
	}
	return b.add(n, 2, b.op1(ir.OpWhere, mask, zero, dys[0]))
}

func ruleSegmentSum(b *backward, n *ir.Node, dys []ir.ID) error {
	return b.add(n, 0, b.op1(ir.OpSegmentExpand, dys[0], n.In[1], n.In[0]))
}

func ruleSegmentExpand(b *backward, n *ir.Node, dys []ir.ID) error {
	return b.add(n, 0, b.op1(ir.OpSegmentSum, dys[0], n.In[1]))
}
