package grad

import (
	"errors"
	"fmt"

	"smolgym/model/ir"
)

// ErrGradient is wrapped by every error of Backward.
var ErrGradient = errors.New("no gradient")

// Offsets is the name of the graph input with the sequences' offsets, which
// parameter gradients need to keep datums apart.
const Offsets = "offsets"

// Accumulators maps a parameter's name to the states that its gradient is added
// into, in the order of its uses in the forward graph: one a use, since the sum
// of a parameter used twice would otherwise depend on how datums are batched.
type Accumulators map[string][]string

// OfInput is the name of the output with the gradient by an input.
func OfInput(name string) string { return name + ".grad" }

// Backward returns g with the gradient of output, summed over its elements,
// with respect to every weight and adapter that wrt selects, and with respect
// to the named inputs, whose gradients are outputs (see [OfInput]). g is not
// changed. A selected parameter that the output does not depend on has no
// accumulator; an input of that kind is an error.
func Backward(g *ir.Graph, output string, wrt func(v *ir.Value) bool, inputs ...string) (*ir.Graph, Accumulators, error) {
	if err := ir.Verify(g); err != nil {
		return nil, nil, fmt.Errorf("differentiate %q: %w", output, err)
	}
	loss, ok := g.OutputByName(output)
	if !ok {
		return nil, nil, fmt.Errorf("differentiate graph %s: %w: it has no output %q", g.Name, ErrGradient, output)
	}
	b := &backward{g: g.Clone(), nodes: len(g.Nodes), grads: map[ir.ID]ir.ID{}, acc: map[use]ir.ID{}}
	err := b.inputs(inputs)
	b.mark(loss, wrt)
	names, accErr := b.accumulators()
	if err = errors.Join(err, accErr); err == nil {
		err = b.run(loss)
	}
	if err == nil {
		err = b.give(inputs)
	}
	if err != nil {
		return nil, nil, fmt.Errorf("differentiate graph %s by %q: %w", g.Name, output, err)
	}
	out, err := b.g.Finish()
	if err != nil {
		return nil, nil, fmt.Errorf("differentiate %q: %w", output, err)
	}
	return out, names, nil
}

// use is one input place of one forward node.
type use struct{ node, in int }

type backward struct {
	g       *ir.Graph
	nodes   int     // forward nodes; those behind them are ours
	by      []ir.ID // inputs whose gradient is wanted
	params  map[ir.ID]bool
	needs   map[ir.ID]bool  // a selected parameter lies behind the value
	reached map[ir.ID]bool  // the loss depends on the value, through ops with a gradient
	grads   map[ir.ID]ir.ID // gradient so far, by forward value
	acc     map[use]ir.ID   // accumulator of a parameter's use
	offsets ir.ID

	node int // forward node whose rule is running
}

// mark finds the values a gradient has to flow through.
func (b *backward) mark(loss ir.ID, wrt func(v *ir.Value) bool) {
	g := b.g
	b.params, b.needs, b.reached = map[ir.ID]bool{}, map[ir.ID]bool{}, map[ir.ID]bool{loss: true}
	for i := 1; i < len(g.Values); i++ {
		v := &g.Values[i]
		if (v.Class == ir.ClassWeight || v.Class == ir.ClassAdapter) && wrt(v) {
			b.params[v.ID], b.needs[v.ID] = true, true
		}
	}
	for _, id := range b.by {
		b.needs[id] = true
	}
	for i := range b.nodes {
		n := &g.Nodes[i]
		if n.Op.Spec().Grad == ir.GradZero {
			continue
		}
		for _, in := range n.In {
			if b.needs[in] {
				for _, out := range n.Out {
					b.needs[out] = true
				}
			}
		}
	}
	for i := b.nodes - 1; i >= 0; i-- {
		n := &g.Nodes[i]
		if n.Op.Spec().Grad == ir.GradZero {
			continue
		}
		for _, out := range n.Out {
			if b.reached[out] && b.needs[out] {
				for _, in := range n.In {
					b.reached[in] = true
				}
			}
		}
	}
}

// inputs finds the inputs whose gradients are wanted.
func (b *backward) inputs(names []string) error {
	for _, name := range names {
		id, ok := b.g.ByName(name)
		if !ok || b.g.Value(id).Class != ir.ClassInput || b.g.Value(id).Type.DType != ir.F32 {
			return fmt.Errorf("%w: the graph has no float32 input %q", ErrGradient, name)
		}
		b.by = append(b.by, id)
	}
	return nil
}

// give names the inputs' gradients.
func (b *backward) give(names []string) error {
	for i, name := range names {
		id, ok := b.grads[b.by[i]]
		if !ok {
			return fmt.Errorf("%w: the output does not depend on the input %q", ErrGradient, name)
		}
		b.g.Output(OfInput(name), id)
	}
	return nil
}

// accumulators declares them in the order of use.
func (b *backward) accumulators() (Accumulators, error) {
	names := Accumulators{}
	for i := range b.nodes {
		n := &b.g.Nodes[i]
		if n.Op.Spec().Grad == ir.GradZero || !b.live(n) {
			continue
		}
		for k, in := range n.In {
			if !b.params[in] {
				continue
			}
			v := *b.g.Value(in)
			name := "grad:" + v.Name
			if used := len(names[v.Name]); used > 0 {
				name = fmt.Sprintf("%s#%d", name, used)
			}
			if _, taken := b.g.ByName(name); taken {
				return nil, fmt.Errorf("%w: the graph already has a %q", ErrGradient, name)
			}
			b.acc[use{i, k}] = b.g.Declare(ir.ClassState, name, ir.F32, v.Type.Shape...)
			names[v.Name] = append(names[v.Name], name)
		}
	}
	if len(b.acc) == 0 {
		return names, nil
	}
	id, ok := b.g.ByName(Offsets)
	if v := b.g.Value(id); !ok || v.Type.DType != ir.I32 || !v.Type.Shape.Equal(ir.Shape{ir.Of(ir.S1)}) {
		return nil, fmt.Errorf("%w: parameter gradients need the input %q, i32[S1]", ErrGradient, Offsets)
	}
	b.offsets = id
	return names, nil
}

func (b *backward) live(n *ir.Node) bool {
	for _, out := range n.Out {
		if b.reached[out] && b.needs[out] {
			return true
		}
	}
	return false
}

func (b *backward) run(loss ir.ID) error {
	if !b.needs[loss] {
		return nil
	}
	b.grads[loss] = b.g.Op1(ir.OpFill, ir.Attrs{Scale: 1, Layer: -1}, loss)
	for i := b.nodes - 1; i >= 0; i-- {
		n := b.g.Nodes[i]
		if !b.live(&n) {
			continue
		}
		dys := make([]ir.ID, len(n.Out))
		any := false
		for k, out := range n.Out {
			dys[k] = b.grads[out]
			any = any || dys[k] != 0
		}
		if !any {
			continue
		}
		spec := n.Op.Spec()
		rule := rules[n.Op]
		if rule == nil {
			return fmt.Errorf("%w: node %d %s %s: %s", ErrGradient, i, spec.Name, n.Attr.Module, why(spec))
		}
		b.node = i
		if err := rule(b, &n, dys); err != nil {
			return fmt.Errorf("%w: node %d %s %s: %w", ErrGradient, i, spec.Name, n.Attr.Module, err)
		}
		if err := b.g.Err(); err != nil {
			return err
		}
	}
	return nil
}

func why(s ir.Spec) string {
	if s.Why != "" {
		return s.Why
	}
	return "the op has no rule"
}

// op appends a backward node with the forward node's place in the model.
func (b *backward) op(op ir.Op, a ir.Attrs, in ...ir.ID) []ir.ID {
	from := b.g.Nodes[b.node].Attr
	a.Layer, a.Module = from.Layer, from.Module
	return b.g.Add(op, a, in...)
}

func (b *backward) op1(op ir.Op, in ...ir.ID) ir.ID { return b.op(op, ir.Attrs{}, in...)[0] }

// add gives input k of the node a gradient, on top of what other uses gave.
func (b *backward) add(n *ir.Node, k int, grad ir.ID) error {
	in := n.In[k]
	if b.params[in] {
		return fmt.Errorf("input %d is the parameter %s; only ops with a weight have parameter gradients", k, b.g.Value(in).Name)
	}
	if !b.needs[in] {
		return nil
	}
	if before, ok := b.grads[in]; ok {
		grad = b.op1(ir.OpAdd, before, grad)
	}
	b.grads[in] = grad
	return nil
}

// param adds into the accumulator of parameter input k, if it is selected.
// Inputs of the gradient op stand between the accumulator and the offsets.
func (b *backward) param(n *ir.Node, k int, op ir.Op, a ir.Attrs, in ...ir.ID) error {
	if !b.needs[n.In[k]] {
		return nil
	}
	acc, ok := b.acc[use{b.node, k}]
	if !ok {
		return fmt.Errorf("input %d is computed from parameters; only a parameter itself can stand there", k)
	}
	for _, id := range in {
		if s := b.g.Value(id).Type.Shape; s[0] != ir.Of(ir.T) {
			return fmt.Errorf("the gradient of %s needs rows of all tokens [T], has %s", b.g.Value(n.In[k]).Name, s)
		}
	}
	b.op(op, a, append(append([]ir.ID{acc}, in...), b.offsets)...)
	return nil
}
