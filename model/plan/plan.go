package plan

import (
	"errors"
	"fmt"
	"sort"

	"smolgym/model/ir"
)

// Alignment of every arena offset, in bytes: a cache line, and the widest vector.
const Alignment = 64

// ErrPlan is wrapped by every error of Build and Verify that is not the graph's.
var ErrPlan = errors.New("invalid plan")

// Build plans a verified graph for batches up to capacity.
func Build(g *ir.Graph, capacity ir.Dims) (*ir.Program, error) {
	if err := ir.Verify(g); err != nil {
		return nil, fmt.Errorf("plan: %w", err)
	}
	if err := capacityOK(g, capacity); err != nil {
		return nil, fmt.Errorf("plan graph %s: %w", g.Name, err)
	}
	b := &builder{g: g, p: &ir.Program{Graph: g, Capacity: capacity}, refs: make([]ir.Ref, len(g.Values)), slotOf: map[ir.ID]int{}}
	b.order()
	if err := b.slots(); err != nil {
		return nil, fmt.Errorf("plan graph %s: %w", g.Name, err)
	}
	b.arena()
	b.steps()
	b.p.Index()
	return b.p, nil
}

// capacityOK refuses sizes whose byte counts would not fit a 64-bit integer or
// that are negative, so that no later sum can wrap.
func capacityOK(g *ir.Graph, d ir.Dims) error {
	for _, n := range []int{d.T, d.S, d.R, d.C, d.P, d.B, d.L} {
		if n < 0 {
			return fmt.Errorf("%w: capacity %+v has a negative size", ErrPlan, d)
		}
	}
	const limit = float64(1 << 50) // bytes; far beyond any device, far below overflow of a sum
	total := 0.0
	for i := 1; i < len(g.Values); i++ {
		n := float64(g.Values[i].Type.DType.Size())
		for _, dim := range g.Values[i].Type.Shape {
			n *= float64(dim.N) * float64(d.Of(dim.Sym))
		}
		if total += n; total > limit {
			return fmt.Errorf("%w: values up to %s need more than 2^50 bytes at capacity %+v; lower the capacity", ErrPlan, g.Values[i].Type, d)
		}
	}
	return nil
}

type builder struct {
	g      *ir.Graph
	p      *ir.Program
	kept   []int    // graph nodes in execution order
	refs   []ir.Ref // by value
	slotOf map[ir.ID]int
}

// order keeps the nodes that an output or a state depends on.
func (b *builder) order() {
	g := b.g
	needed := make([]bool, len(g.Values))
	for _, o := range g.Outputs {
		needed[o.Value] = true
	}
	for i := len(g.Nodes) - 1; i >= 0; i-- {
		n := &g.Nodes[i]
		keep := n.Op.Spec().InPlace > 0
		for _, id := range n.Out {
			keep = keep || needed[id]
		}
		if !keep {
			continue
		}
		b.kept = append(b.kept, i)
		for _, id := range n.In {
			needed[id] = true
		}
	}
	for l, r := 0, len(b.kept)-1; l < r; l, r = l+1, r-1 {
		b.kept[l], b.kept[r] = b.kept[r], b.kept[l]
	}
}

// slots gives every named value that is used, and every output, a buffer that
// the caller binds. An output that is a named value or an update of one in
// place has that value's slot.
func (b *builder) slots() error {
	g := b.g
	used := make([]bool, len(g.Values))
	for _, n := range b.kept {
		for _, id := range g.Nodes[n].In {
			used[id] = true
		}
	}
	for _, o := range g.Outputs {
		used[ir.Root(g, o.Value)] = true
	}
	names := map[string]bool{}
	add := func(id ir.ID, name string, output bool) error {
		if names[name] {
			return fmt.Errorf("%w: two slots named %q; rename the output", ErrPlan, name)
		}
		names[name] = true
		v := g.Value(id)
		b.slotOf[id] = len(b.p.Slots)
		b.p.Slots = append(b.p.Slots, ir.Slot{Value: id, Name: name, Class: v.Class, Type: v.Type, Output: output})
		return nil
	}
	for i := 1; i < len(g.Values); i++ {
		if v := &g.Values[i]; v.Class != ir.ClassNode && used[i] {
			if err := add(v.ID, v.Name, false); err != nil {
				return err
			}
		}
	}
	for _, o := range g.Outputs {
		root := ir.Root(g, o.Value)
		if g.Value(root).Class != ir.ClassNode {
			continue
		}
		if s, dup := b.slotOf[root]; dup {
			return fmt.Errorf("%w: outputs %q and %q are one value; name it once", ErrPlan, b.p.Slots[s].Name, o.Name)
		}
		if err := add(root, o.Name, true); err != nil {
			return err
		}
	}
	return nil
}

// buffer is a stretch of the arena: one value, or several that hand it on.
type buffer struct {
	size       int64
	start, end int // first and last step that touches it
	values     []ir.ID
	offset     int64
}

// arena places every value without slot.
func (b *builder) arena() {
	last := lastUses(b.g, b.kept)
	bufs := b.buffers(last)
	b.p.ArenaBytes = place(bufs)
	for _, buf := range bufs {
		for _, id := range buf.values {
			b.refs[id] = ir.Ref{Space: ir.Arena, Offset: buf.offset}
		}
	}
}

// lastUses is the index into order of the last node that reads a value, or that
// makes it if nobody reads it; -1 for values that order does not touch.
func lastUses(g *ir.Graph, order []int) []int {
	last := make([]int, len(g.Values))
	for i := range last {
		last[i] = -1
	}
	for i, n := range order {
		for _, id := range g.Nodes[n].Out {
			last[id] = i
		}
		for _, id := range g.Nodes[n].In {
			last[id] = i
		}
	}
	return last
}

// buffers makes one buffer a value, except that an output of a Reuse op
// continues the buffer of a same-typed input that dies at that node.
func (b *builder) buffers(last []int) []*buffer {
	g := b.g
	of := make([]*buffer, len(g.Values))
	var all []*buffer
	for i, ni := range b.kept {
		n := &g.Nodes[ni]
		taken := map[*buffer]bool{}
		for _, out := range n.Out {
			if _, external := b.slotOf[ir.Root(g, out)]; external {
				continue
			}
			buf := b.inherit(n, out, i, last, of, taken)
			if buf == nil {
				buf = &buffer{size: align(g.Value(out).Type.Bytes(b.p.Capacity)), start: i}
				all = append(all, buf)
			}
			taken[buf] = true
			buf.values = append(buf.values, out)
			buf.end = last[out]
			of[out] = buf
		}
	}
	return all
}

func (b *builder) inherit(n *ir.Node, out ir.ID, step int, last []int, of []*buffer, taken map[*buffer]bool) *buffer {
	if !n.Op.Spec().Reuse {
		return nil
	}
	want := b.g.Value(out).Type
	for _, in := range n.In {
		buf, t := of[in], b.g.Value(in).Type
		if buf != nil && last[in] == step && !taken[buf] && t.DType == want.DType && t.Shape.Equal(want.Shape) {
			return buf
		}
	}
	return nil
}

func align(n int64) int64 { return (n + Alignment - 1) / Alignment * Alignment }

// place gives offsets, the largest buffers first, each into the tightest gap
// between the buffers already placed that live at the same time. It returns
// the peak.
func place(bufs []*buffer) int64 {
	order := append([]*buffer(nil), bufs...)
	sort.SliceStable(order, func(i, j int) bool { return order[i].size > order[j].size })
	var placed []*buffer // by offset
	var peak int64
	for _, buf := range order {
		if buf.size == 0 {
			continue
		}
		best, bestGap, top := int64(-1), int64(0), int64(0)
		for _, o := range placed {
			if o.end < buf.start || buf.end < o.start {
				continue
			}
			if gap := o.offset - top; gap >= buf.size && (best < 0 || gap < bestGap) {
				best, bestGap = top, gap
			}
			top = max(top, o.offset+o.size)
		}
		if best < 0 {
			best = top
		}
		buf.offset = best
		peak = max(peak, best+buf.size)
		at := sort.Search(len(placed), func(i int) bool { return placed[i].offset > best })
		placed = append(placed, nil)
		copy(placed[at+1:], placed[at:])
		placed[at] = buf
	}
	return peak
}

func (b *builder) steps() {
	g := b.g
	for i, ni := range b.kept {
		n := &g.Nodes[ni]
		s := ir.Step{Node: ni, In: b.places(n.In), Out: b.places(n.Out)}
		s.Yield = i+1 < len(b.kept) && g.Nodes[b.kept[i+1]].Attr.Layer != n.Attr.Layer
		b.p.Steps = append(b.p.Steps, s)
		b.p.FLOPs += flops(g, n, b.p.Capacity)
	}
}

func (b *builder) places(ids []ir.ID) []ir.Ref {
	refs := make([]ir.Ref, len(ids))
	for i, id := range ids {
		if s, external := b.slotOf[ir.Root(b.g, id)]; external {
			refs[i] = ir.Ref{Space: ir.External, Slot: s}
		} else {
			refs[i] = b.refs[id]
		}
	}
	return refs
}

func flops(g *ir.Graph, n *ir.Node, d ir.Dims) int64 {
	types := func(ids []ir.ID) []ir.Type {
		ts := make([]ir.Type, len(ids))
		for i, id := range ids {
			ts[i] = g.Value(id).Type
		}
		return ts
	}
	out := types(n.Out)
	if f := n.Op.Spec().FLOPs; f != nil {
		return f(types(n.In), out, n.Attr, d)
	}
	var sum int64
	for _, t := range out {
		sum += t.Shape.Elements(d)
	}
	return sum
}
