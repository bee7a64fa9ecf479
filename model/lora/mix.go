package lora

import (
	"fmt"

	"smolgym/model/ir"
)

// The names of what a graph from Mix takes beside the base model's inputs. A row
// of the batch with place p has adapter p-1 of the group, with that adapter's
// scale; place 0 is the bare base model.
const (
	GroupInput    = "adapters"      // group: A and B of each module, adapter by adapter
	PlaceInput    = "place"         // i32[T]
	ScaleInput    = "adapter_scale" // f32[T]
	RowPlaceInput = "row_place"     // i32[R], for modules behind the choice of rows
	RowScaleInput = "row_scale"     // f32[R]
)

// Mix returns a copy of g in which every Linear of the selected parts adds the
// adapter that each row of the batch has, of whatever rank, and those modules in
// the order of the group. Rank and Alpha of c are not read. A row has the bits
// that it has in the graph of Apply for its adapter. Experts can't be mixed:
// see Mixable.
func Mix(g *ir.Graph, c Config) (*ir.Graph, []Adapter, error) {
	c.Rank, c.Alpha, c.Of = 1, 1, nil
	if !Mixable(g, c) {
		return nil, nil, fmt.Errorf("mix adapters of graph %s: %w: experts among the selected parts", g.Name, ErrConfig)
	}
	r := &rewrite{mix: map[string]int{}}
	for i := range g.Nodes {
		n := &g.Nodes[i]
		if _, again := r.mix[n.Attr.Module]; adaptable(n.Op) && c.selects(n.Attr.Part) && !again {
			r.mix[n.Attr.Module] = len(r.mix)
		}
	}
	return r.apply(g, c)
}

// Mixable says whether adapters of c can be mixed in one batch: those of experts
// can't, whose rows are already divided.
func Mixable(g *ir.Graph, c Config) bool {
	for i := range g.Nodes {
		if n := &g.Nodes[i]; n.Op == ir.OpExpertLinear && c.selects(n.Attr.Part) {
			return false
		}
	}
	return true
}

// mixed appends the adapters of y, the module's output, row by row.
func (r *rewrite) mixed(n *ir.Node, in []ir.ID, y ir.ID) ir.ID {
	place, scale, rows := PlaceInput, ScaleInput, r.to.Value(y).Type.Shape[0]
	if rows != ir.Of(ir.T) {
		place, scale = RowPlaceInput, RowScaleInput
	}
	declare := func(class ir.Class, name string, dtype ir.DType, shape ...ir.Dim) ir.ID {
		if id, ok := r.to.ByName(name); ok {
			return id
		}
		return r.to.Declare(class, name, dtype, shape...)
	}
	at := ir.Attrs{Layer: n.Attr.Layer, Module: n.Attr.Module + ".lora", Offset: r.mix[n.Attr.Module], Of: len(r.mix)}
	return r.to.Op1(ir.OpAdapt, at, y, in[0], declare(ir.ClassGroup, GroupInput, ir.GroupType.DType, ir.GroupType.Shape...),
		declare(ir.ClassInput, place, ir.I32, rows), declare(ir.ClassInput, scale, ir.F32, rows))
}
