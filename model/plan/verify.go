package plan

import (
	"fmt"

	"smolgym/model/ir"
)

// Verify checks a program against its graph from scratch: steps in an order
// that the graph allows, every value read where it was written, nothing outside
// the arena or misaligned, and no step that writes over a value which is still
// to be read (except where a Reuse op may write over a same-typed input that
// dies there). Its errors wrap ErrPlan.
func Verify(p *ir.Program) error {
	v := &verifier{p: p, g: p.Graph, at: map[ir.ID]ir.Ref{}}
	order := make([]int, len(p.Steps))
	for i := range p.Steps {
		if n := p.Steps[i].Node; n < 0 || n >= len(p.Graph.Nodes) || (i > 0 && n <= p.Steps[i-1].Node) {
			return fmt.Errorf("verify plan: %w: step %d runs node %d out of order", ErrPlan, i, n)
		}
		order[i] = p.Steps[i].Node
	}
	v.last = lastUses(p.Graph, order)
	for i := range p.Slots {
		if err := v.slot(i); err != nil {
			return fmt.Errorf("verify plan: slot %d %q: %w", i, p.Slots[i].Name, err)
		}
	}
	for i := range p.Steps {
		if err := v.step(i); err != nil {
			return fmt.Errorf("verify plan: step %d, %s %s: %w", i, v.g.Nodes[p.Steps[i].Node].Op, v.g.Nodes[p.Steps[i].Node].Attr.Module, err)
		}
	}
	for _, o := range v.g.Outputs {
		r, ok := v.at[o.Value]
		if !ok || r.Space != ir.External {
			return fmt.Errorf("verify plan: %w: output %q is in no slot", ErrPlan, o.Name)
		}
	}
	return nil
}

type verifier struct {
	p    *ir.Program
	g    *ir.Graph
	last []int            // step of a value's last use
	at   map[ir.ID]ir.Ref // where a value was written or bound
	live []ir.ID          // arena values still to be read
}

func (v *verifier) slot(i int) error {
	s := v.p.Slots[i]
	val := v.g.Value(s.Value)
	if val.ID == 0 || val.Class != s.Class || val.Type.DType != s.Type.DType || !val.Type.Shape.Equal(s.Type.Shape) {
		return fmt.Errorf("%w: does not describe value %d", ErrPlan, s.Value)
	}
	if v.p.Slot(s.Name) != i {
		return fmt.Errorf("%w: its name finds slot %d", ErrPlan, v.p.Slot(s.Name))
	}
	if (s.Class == ir.ClassNode) != s.Output {
		return fmt.Errorf("%w: class %s with output %v", ErrPlan, s.Class, s.Output)
	}
	if s.Class != ir.ClassNode {
		v.at[s.Value] = ir.Ref{Space: ir.External, Slot: i}
	}
	return nil
}

func (v *verifier) bytes(id ir.ID) int64 { return v.g.Value(id).Type.Bytes(v.p.Capacity) }

func (v *verifier) step(i int) error {
	s := &v.p.Steps[i]
	n := &v.g.Nodes[s.Node]
	if len(s.In) != len(n.In) || len(s.Out) != len(n.Out) {
		return fmt.Errorf("%w: %d inputs and %d outputs, the node has %d and %d", ErrPlan, len(s.In), len(s.Out), len(n.In), len(n.Out))
	}
	for k, id := range n.In {
		if r, ok := v.at[id]; !ok || r != s.In[k] {
			return fmt.Errorf("%w: input %d is read at %+v, written at %+v", ErrPlan, k, s.In[k], r)
		}
	}
	for k, id := range n.Out {
		if err := v.write(i, n, k, id, s.Out[k]); err != nil {
			return fmt.Errorf("output %d: %w", k, err)
		}
	}
	v.live = append(v.live, n.Out...)
	kept := v.live[:0]
	for _, id := range v.live {
		if v.last[id] > i && v.at[id].Space == ir.Arena {
			kept = append(kept, id)
		}
	}
	v.live = kept
	return nil
}

func (v *verifier) write(step int, n *ir.Node, k int, id ir.ID, r ir.Ref) error {
	v.at[id] = r
	if k < n.Op.Spec().InPlace {
		if r != v.at[n.In[k]] || r.Space != ir.External {
			return fmt.Errorf("%w: in place, but not in its input's slot", ErrPlan)
		}
		return nil
	}
	if r.Space == ir.External {
		if r.Slot < 0 || r.Slot >= len(v.p.Slots) || v.p.Slots[r.Slot].Value != id {
			return fmt.Errorf("%w: slot %d belongs to another value", ErrPlan, r.Slot)
		}
		return nil
	}
	if r.Offset < 0 || r.Offset%Alignment != 0 || r.Offset+v.bytes(id) > v.p.ArenaBytes {
		return fmt.Errorf("%w: offset %d, %d bytes, arena %d", ErrPlan, r.Offset, v.bytes(id), v.p.ArenaBytes)
	}
	for _, other := range n.Out[:k] {
		if v.overlap(id, other) {
			return fmt.Errorf("%w: overlaps output value %d", ErrPlan, other)
		}
	}
	for _, other := range v.live {
		if v.overlap(id, other) && !v.mayReuse(step, n, id, other) {
			return fmt.Errorf("%w: overlaps value %d, which is read at step %d", ErrPlan, other, v.last[other])
		}
	}
	return nil
}

func (v *verifier) overlap(a, b ir.ID) bool {
	ra, rb := v.at[a], v.at[b]
	return ra.Space == ir.Arena && rb.Space == ir.Arena && ra.Offset < rb.Offset+v.bytes(b) && rb.Offset < ra.Offset+v.bytes(a)
}

func (v *verifier) mayReuse(step int, n *ir.Node, out, in ir.ID) bool {
	a, b := v.g.Value(out).Type, v.g.Value(in).Type
	return n.Op.Spec().Reuse && v.last[in] == step && v.at[out] == v.at[in] && a.DType == b.DType && a.Shape.Equal(b.Shape)
}
