package lora

import (
	"errors"
	"fmt"
	"slices"
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
	// Of, if not nil, gives a module of a selected part its own rank and alpha;
	// rank 0 leaves it without an adapter.
	Of func(module string) (rank int, alpha float64)
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

// Adapter is one adapted module, or the same module of every expert.
type Adapter struct {
	Module     string // "model.layers.0.self_attn.q_proj"
	Weight     string // the base tensor under it
	A, B       string // PEFT tensor names; of experts, see Tensors
	In, Out    int    // A is [Rank,In], B is [Out,Rank]
	Rank       int
	Experts    int     // 0 for one module; else A is [Experts,Rank,In], B is [Experts,Out,Rank]
	Transposed bool    // the base tensor is [In,Out]
	Scale      float64 // factor of the adapter's output
	Part       ir.Part
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
	return new(rewrite).apply(g, c)
}

func (r *rewrite) apply(g *ir.Graph, c Config) (*ir.Graph, []Adapter, error) {
	if err := c.Check(); err != nil {
		return nil, nil, err
	}
	if err := ir.Verify(g); err != nil {
		return nil, nil, fmt.Errorf("adapt: %w", err)
	}
	r.from, r.to, r.ids, r.config = g, ir.New(g.Name), make([]ir.ID, len(g.Values)), c
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
	mix      map[string]int // index of each module in a group; nil: adapters of their own
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
	if !adaptable(n.Op) || !r.config.selects(n.Attr.Part) || r.to.Err() != nil {
		return nil
	}
	if n.Attr.Module == "" {
		return fmt.Errorf("%w: a linear node of a selected part has no module name", ErrConfig)
	}
	rank, alpha := r.config.Rank, r.config.Alpha
	if r.config.Of != nil {
		if rank, alpha = r.config.Of(n.Attr.Module); rank == 0 {
			return nil
		}
		if rank < 0 || rank > MaxRank || !(alpha > 0) {
			return fmt.Errorf("%w: rank %d, alpha %g for module %s; the rank is 1 to %d, alpha above 0", ErrConfig, rank, alpha, n.Attr.Module, MaxRank)
		}
	}
	a := r.describe(n, in[1])
	a.Rank, a.Scale = rank, alpha/float64(rank)
	if r.mix != nil {
		if r.mix[a.Module] == len(r.adapters) {
			r.adapters = append(r.adapters, a)
		}
		r.ids[n.Out[0]] = r.mixed(n, in, out[0])
		return nil
	}
	if _, again := r.to.ByName(a.A); !again {
		r.adapters = append(r.adapters, a)
	}
	r.ids[n.Out[0]] = r.adapt(n, a, in, out[0])
	return nil
}

func adaptable(op ir.Op) bool {
	return op == ir.OpLinear || op == ir.OpLinearT || op == ir.OpExpertLinear
}

// describe reads the sizes of a module off its weight.
func (r *rewrite) describe(n *ir.Node, w ir.ID) Adapter {
	v := r.to.Value(w)
	shape := v.Type.Shape // [out,in]
	a := Adapter{Module: n.Attr.Module, Weight: v.Name, Part: n.Attr.Part}
	switch n.Op {
	case ir.OpLinearT:
		a.In, a.Out, a.Transposed = shape[0].N, shape[1].N, true
	case ir.OpExpertLinear:
		a.Experts, a.Out, a.In = shape[0].N, shape[1].N, shape[2].N
	default:
		a.Out, a.In = shape[0].N, shape[1].N
	}
	a.A, a.B = Names(a.Module)
	return a
}

// adapt appends the adapter of y, the module's output, and returns their sum
// [rows,out]. Experts' adapters go by the same choice of experts.
func (r *rewrite) adapt(n *ir.Node, a Adapter, in []ir.ID, y ir.ID) ir.ID {
	op, choice, lead := ir.OpLinear, []ir.ID(nil), []ir.Dim(nil)
	if a.Experts > 0 {
		op, choice, lead = n.Op, in[2:3], []ir.Dim{ir.Const(a.Experts)}
	}
	declare := func(name string, rows, columns int) ir.ID {
		return r.to.Declare(ir.ClassAdapter, name, ir.F32, append(slices.Clone(lead), ir.Const(rows), ir.Const(columns))...)
	}
	down, up := declare(a.A, a.Rank, a.In), declare(a.B, a.Out, a.Rank)
	at := func(suffix string) ir.Attrs { return ir.Attrs{Layer: n.Attr.Layer, Module: a.Module + suffix} }
	h := r.to.Op1(op, at(".lora_A"), append([]ir.ID{in[0], down}, choice...)...) // [rows,rank]
	d := r.to.Op1(op, at(".lora_B"), append([]ir.ID{h, up}, choice...)...)       // [rows,out]
	sum := at(".lora")
	sum.Scale = a.Scale
	return r.to.Op1(ir.OpScaleAdd, sum, y, d)
}

// Tensor is one tensor of an adapter file: rows x columns elements of A or B.
type Tensor struct {
	Name          string
	Rows, Columns int
	B             bool // out of B; else out of A
	Offset        int  // its first element there
}

// Tensors lists an adapter as PEFT stores it. Experts are modules of their own
// there, and a projection that holds two of them, gate and up, is two modules
// with equal A. parts names the experts' stored weights as the base model's files
// do, expert by expert; without it they are called as in Qwen's files.
func (a Adapter) Tensors(parts []string) []Tensor {
	if a.Experts == 0 {
		return []Tensor{{a.A, a.Rank, a.In, false, 0}, {a.B, a.Out, a.Rank, true, 0}}
	}
	if len(parts) < a.Experts {
		parts = defaultParts(a)
	}
	each := len(parts) / a.Experts // modules of one expert
	var list []Tensor
	for i, weight := range parts[:each*a.Experts] {
		e, rows := i/each, a.Out/each
		nameA, nameB := Names(strings.TrimSuffix(weight, ".weight"))
		list = append(list, Tensor{nameA, a.Rank, a.In, false, e * a.Rank * a.In},
			Tensor{nameB, rows, a.Rank, true, (e*a.Out + i%each*rows) * a.Rank})
	}
	return list
}

func defaultParts(a Adapter) []string {
	block, leaf := strings.TrimSuffix(a.Module, Leaf(a.Module)), Leaf(a.Module)
	leaves := []string{leaf}
	if leaf == "gate_up_proj" {
		leaves = []string{"gate_proj", "up_proj"}
	}
	var parts []string
	for e := range a.Experts {
		for _, l := range leaves {
			parts = append(parts, fmt.Sprintf("%s%d.%s.weight", block, e, l))
		}
	}
	return parts
}

// Leaf is the last part of a module path, as PEFT's target_modules has it.
func Leaf(module string) string { return module[strings.LastIndexByte(module, '.')+1:] }
