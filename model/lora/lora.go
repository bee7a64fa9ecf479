package lora

import (
	"errors"
	"fmt"
	"strings"

	"smolgym/model/ir"
)

// The errors of this package.
var (
	// ErrConfig is wrapped when a configuration can't be honoured.
	ErrConfig = errors.New("unusable adapter configuration")
	// ErrTensor is wrapped when tensors do not fit each other.
	ErrTensor = errors.New("adapter tensors do not fit")
)

// MaxRank bounds the rank of a configuration.
const MaxRank = 4096

// Config says what gets an adapter.
type Config struct {
	Rank      int
	Alpha     float64 // the factor of the adapter's output is Alpha/Rank
	Attention bool    // query, key, value and output projections
	MLP       bool    // gate, up and down projections
	Unembed   bool    // the output head
}

// Scale is the factor of the adapter's output.
func (c Config) Scale() float64 { return c.Alpha / float64(c.Rank) }

func (c Config) selects(p ir.Part) bool {
	switch p {
	case ir.PartAttention:
		return c.Attention
	case ir.PartMLP:
		return c.MLP
	case ir.PartUnembed:
		return c.Unembed
	}
	return false
}

// Check refuses what Apply could not do.
func (c Config) Check() error {
	switch {
	case c.Rank < 1 || c.Rank > MaxRank:
		return fmt.Errorf("adapter of rank %d: %w; the rank is 1 to %d", c.Rank, ErrConfig, MaxRank)
	case !(c.Alpha > 0) || c.Alpha > 1e6:
		return fmt.Errorf("adapter with alpha %g: %w; alpha is above 0 and at most 1e6", c.Alpha, ErrConfig)
	case !c.Attention && !c.MLP && !c.Unembed:
		return fmt.Errorf("adapter for no part of the model: %w; switch on attention, mlp or unembed", ErrConfig)
	}
	return nil
}

// Adapter is one adapted module.
type Adapter struct {
	Module  string // "model.layers.0.self_attn.q_proj"
	Weight  string // the base tensor under it
	A, B    string // PEFT tensor names
	In, Out int    // A is [Rank,In], B is [Out,Rank]
	Rank    int
	Part    ir.Part
}

// Prefix stands before the module path in PEFT's tensor names.
const Prefix = "base_model.model."

// Names gives PEFT's tensor names of a module's adapter.
func Names(module string) (a, b string) {
	return Prefix + module + ".lora_A.weight", Prefix + module + ".lora_B.weight"
}

// Apply returns a copy of g in which every Linear of a selected part has an
// adapter, and those adapters in the order of the graph. Since B starts at zero
// a fresh adapter adds +0 to each output: the base's numbers bit for bit, but
// for a -0, which becomes +0 and no later op tells apart.
func Apply(g *ir.Graph, c Config) (*ir.Graph, []Adapter, error) {
	if err := c.Check(); err != nil {
		return nil, nil, err
	}
	if err := ir.Verify(g); err != nil {
		return nil, nil, fmt.Errorf("adapt: %w", err)
	}
	r := &rewrite{from: g, to: ir.New(g.Name), ids: make([]ir.ID, len(g.Values)), config: c}
	for i := 1; i < len(g.Values); i++ {
		if v := &g.Values[i]; v.Class != ir.ClassNode {
			r.ids[i] = r.to.Declare(v.Class, v.Name, v.Type.DType, v.Type.Shape...)
		}
	}
	for i := range g.Nodes {
		if err := r.node(&g.Nodes[i]); err != nil {
			return nil, nil, fmt.Errorf("adapt graph %s: %w", g.Name, err)
		}
	}
	for _, o := range g.Outputs {
		r.to.Output(o.Name, r.ids[o.Value])
	}
	out, err := r.to.Finish()
	if err != nil {
		return nil, nil, fmt.Errorf("adapt: %w", err)
	}
	if len(r.adapters) == 0 {
		return nil, nil, fmt.Errorf("adapt graph %s: %w: it has no linear module of the selected parts", g.Name, ErrConfig)
	}
	return out, r.adapters, nil
}

type rewrite struct {
	from, to *ir.Graph
	ids      []ir.ID // new value of an old one
	config   Config
	adapters []Adapter
}

func (r *rewrite) node(n *ir.Node) error {
	in := make([]ir.ID, len(n.In))
	for k, id := range n.In {
		in[k] = r.ids[id]
	}
	out := r.to.Add(n.Op, n.Attr, in...)
	for k, id := range n.Out {
		r.ids[id] = r.to.SetName(out[k], r.from.Value(id).Name)
	}
	if n.Op != ir.OpLinear || !r.config.selects(n.Attr.Part) || r.to.Err() != nil {
		return nil
	}
	if n.Attr.Module == "" {
		return fmt.Errorf("%w: a linear node of a selected part has no module name", ErrConfig)
	}
	r.ids[n.Out[0]] = r.adapt(n, in[0], in[1], out[0])
	return nil
}

// adapt appends the adapter of y = x·wᵀ and returns their sum [rows,out].
func (r *rewrite) adapt(n *ir.Node, x, w, y ir.ID) ir.ID {
	shape := r.to.Value(w).Type.Shape // [out,in]
	a := Adapter{Module: n.Attr.Module, Weight: r.to.Value(w).Name, In: shape[1].N, Out: shape[0].N, Rank: r.config.Rank, Part: n.Attr.Part}
	a.A, a.B = Names(a.Module)
	if _, again := r.to.ByName(a.A); !again {
		r.adapters = append(r.adapters, a)
	}
	down := r.to.Declare(ir.ClassAdapter, a.A, ir.F32, ir.Const(a.Rank), ir.Const(a.In))
	up := r.to.Declare(ir.ClassAdapter, a.B, ir.F32, ir.Const(a.Out), ir.Const(a.Rank))
	at := func(suffix string) ir.Attrs { return ir.Attrs{Layer: n.Attr.Layer, Module: a.Module + suffix} }
	h := r.to.Op1(ir.OpLinear, at(".lora_A"), x, down) // [rows,rank]
	d := r.to.Op1(ir.OpLinear, at(".lora_B"), h, up)   // [rows,out]
	sum := at(".lora")
	sum.Scale = r.config.Scale()
	return r.to.Op1(ir.OpScaleAdd, sum, y, d)
}

// Leaf is the last part of a module path, as PEFT's target_modules has it.
func Leaf(module string) string { return module[strings.LastIndexByte(module, '.')+1:] }
