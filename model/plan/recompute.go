package plan

import (
	"fmt"

	"smolgym/model/ir"
)

// Recompute returns a copy of a graph with gradients in which the backward pass
// of every chosen layer starts by computing that layer's forward pass again from
// the layer's inputs, instead of keeping its intermediate values alive since.
// The same ops run on the same bits, so no number changes; a step costs about
// one more forward pass and the arena keeps one layer's values instead of all.
//
// A layer's forward pass is the first stretch of nodes with its number; its
// backward pass is every later one. Values that other layers read stay as they
// are.
func Recompute(g *ir.Graph, choose func(layer int) bool) (*ir.Graph, error) {
	if err := ir.Verify(g); err != nil {
		return nil, fmt.Errorf("recompute: %w", err)
	}
	r := &recompute{from: g, to: ir.New(g.Name), ids: make([]ir.ID, len(g.Values)), layers: passes(g, choose)}
	r.findBoundary()
	for i := 1; i < len(g.Values); i++ {
		if v := &g.Values[i]; v.Class != ir.ClassNode {
			r.ids[i] = r.to.Declare(v.Class, v.Name, v.Type.DType, v.Type.Shape...)
		}
	}
	for i := range g.Nodes {
		r.node(i)
	}
	for _, o := range g.Outputs {
		r.to.Output(o.Name, r.ids[o.Value])
	}
	out, err := r.to.Finish()
	if err != nil {
		return nil, fmt.Errorf("recompute: %w", err)
	}
	return out, nil
}

// pass is one layer's nodes: forward is [first,last], backward all later ones.
type pass struct {
	first, last int
	again       map[ir.ID]ir.ID // recomputed values by the forward ones, once made
}

func passes(g *ir.Graph, choose func(layer int) bool) map[int]*pass {
	layers := map[int]*pass{}
	for i := range g.Nodes {
		l := g.Nodes[i].Attr.Layer
		if l < 0 || !choose(l) {
			continue
		}
		p := layers[l]
		switch {
		case p == nil:
			layers[l] = &pass{first: i, last: i}
		case p.last == i-1:
			p.last = i
		}
	}
	return layers
}

type recompute struct {
	from, to *ir.Graph
	ids      []ir.ID // new value of an old one
	layers   map[int]*pass
	boundary []bool // values that are kept: read by other layers, or outputs
}

// forward gives the layer whose forward pass makes a value, nil if none does.
func (r *recompute) forward(id ir.ID) *pass {
	n := r.from.Value(id).Node
	if n < 0 {
		return nil
	}
	p := r.layers[r.from.Nodes[n].Attr.Layer]
	if p == nil || n < p.first || n > p.last {
		return nil
	}
	return p
}

func (r *recompute) findBoundary() {
	r.boundary = make([]bool, len(r.from.Values))
	for i := range r.from.Nodes {
		n := &r.from.Nodes[i]
		for _, id := range n.In {
			if p := r.forward(id); p != nil && p != r.layers[n.Attr.Layer] {
				r.boundary[id] = true
			}
		}
		for k, id := range n.Out {
			if k < n.Op.Spec().InPlace {
				r.boundary[id] = true // running it twice would update twice
			}
		}
	}
	for _, o := range r.from.Outputs {
		r.boundary[o.Value] = true
	}
}

func (r *recompute) node(i int) {
	n := &r.from.Nodes[i]
	p := r.layers[n.Attr.Layer]
	var again map[ir.ID]ir.ID
	if p != nil && i > p.last {
		if p.again == nil {
			r.replay(n.Attr.Layer, p)
		}
		again = p.again
	}
	out := r.add(n, again)
	for k, id := range n.Out {
		r.ids[id] = r.to.SetName(out[k], r.from.Value(id).Name)
	}
}

// add appends a copy of a node that reads recomputed values where there are any.
func (r *recompute) add(n *ir.Node, again map[ir.ID]ir.ID) []ir.ID {
	in := make([]ir.ID, len(n.In))
	for k, id := range n.In {
		in[k] = r.ids[id]
		if dup, ok := again[id]; ok {
			in[k] = dup
		}
	}
	return r.to.Add(n.Op, n.Attr, in...)
}

// replay appends the forward nodes whose values the layer's backward nodes read
// and nobody keeps.
func (r *recompute) replay(layer int, p *pass) {
	needed := map[ir.ID]bool{}
	want := func(ids []ir.ID) {
		for _, id := range ids {
			if r.forward(id) == p && !r.boundary[id] {
				needed[id] = true
			}
		}
	}
	for i := p.last + 1; i < len(r.from.Nodes); i++ {
		if r.from.Nodes[i].Attr.Layer == layer {
			want(r.from.Nodes[i].In)
		}
	}
	run := make([]bool, p.last+1)
	for i := p.last; i >= p.first; i-- {
		for _, id := range r.from.Nodes[i].Out {
			run[i] = run[i] || needed[id]
		}
		if run[i] {
			want(r.from.Nodes[i].In)
		}
	}
	p.again = map[ir.ID]ir.ID{}
	for i := p.first; i <= p.last; i++ {
		if !run[i] {
			continue
		}
		n := &r.from.Nodes[i]
		for k, id := range r.add(n, p.again) {
			if old := n.Out[k]; !r.boundary[old] {
				p.again[old] = id
			}
		}
	}
}
