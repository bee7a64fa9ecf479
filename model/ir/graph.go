package ir

import (
	"errors"
	"fmt"
)

// ID names a value of one graph. The zero ID is no value, for optional inputs.
type ID int32

// Class says where a value's bytes come from.
type Class uint8

// The classes of values.
const (
	ClassNode    Class = iota // computed by a node
	ClassInput                // given at each run: token ids, offsets, targets
	ClassWeight               // a parameter of the base model, by tensor name
	ClassAdapter              // a parameter of a LoRA adapter, by PEFT tensor name
	ClassConst                // a table made when the model is loaded (rotary cosines)
	ClassState                // memory that outlives a run and is changed by it: gradients, moments, caches
	ClassGroup                // several buffers bound as one, chosen among by index when a program runs: adapters
)

var classNames = [...]string{"node", "input", "weight", "adapter", "const", "state", "group"}

func (c Class) String() string { return classNames[c] }

// Value is one tensor of the graph.
type Value struct {
	ID    ID
	Name  string // unique for every class but ClassNode, where it is a hint and may be empty
	Class Class
	Type  Type
	Node  int // index of the producing node, -1 unless ClassNode
}

// Attrs are a node's static parameters. Which of them an op reads is in its
// table row; the verifier refuses any other that is set.
type Attrs struct {
	Eps     float64 // RMSNorm: added to the mean square
	Scale   float64 // Attention, Scale, ScaleAdd, Fill: factor or value
	Heads   int     // query heads (Attention), heads (Rope), groups of the last axis (RMSNorm)
	KVHeads int     // key-value heads
	HeadDim int     // size of one head
	Rotary  int     // Rope: leading elements of a head that rotate
	Window  int     // Attention: keys a query sees, itself included; 0 = all before it
	Page    int     // PagedAttention: tokens in a cache page
	Inverse bool    // Rope: rotate backwards (the gradient)

	Softcap   float64 // Attention: bound of the scores; 0 = none
	Unit      bool    // RMSNorm: the weight is stored as its difference from one
	Offset    int     // Slice: first column taken of each group; Adapt: the module
	Of        int     // Slice: columns of one group; Adapt: modules of an adapter
	Pick      int     // TopK, SumRows, RepeatRows, RowDot: experts of one token
	Normalise bool    // TopK: the chosen weights are divided by their sum

	Layer  int    // transformer layer, for yield points; -1 outside the layers
	Module string // module path as in the checkpoint ("model.layers.0.self_attn.q_proj"), for LoRA and names
	Part   Part   // which train_* switch the module answers to
}

// Part groups Linear modules by the SDK's LoRA switches.
type Part uint8

// The parts. PartNone never gets an adapter.
const (
	PartNone Part = iota
	PartAttention
	PartMLP
	PartUnembed
)

// Node is one application of an op.
type Node struct {
	Op   Op
	In   []ID
	Out  []ID
	Attr Attrs
}

// Output is a named result of a graph.
type Output struct {
	Name  string
	Value ID
}

// Graph is nodes in topological order over values. Values[0] is a placeholder
// for the zero ID.
type Graph struct {
	Name    string
	Values  []Value
	Nodes   []Node
	Outputs []Output

	byName map[string]ID
	err    error
}

// New is an empty graph.
func New(name string) *Graph {
	return &Graph{Name: name, Values: []Value{{Node: -1}}, byName: map[string]ID{}}
}

// Clone is a deep copy; passes that rewrite a graph start from one.
func (g *Graph) Clone() *Graph {
	c := &Graph{Name: g.Name, err: g.err, byName: make(map[string]ID, len(g.byName))}
	c.Values = append([]Value(nil), g.Values...)
	c.Outputs = append([]Output(nil), g.Outputs...)
	c.Nodes = make([]Node, len(g.Nodes))
	for i, n := range g.Nodes {
		n.In = append([]ID(nil), n.In...)
		n.Out = append([]ID(nil), n.Out...)
		c.Nodes[i] = n
	}
	for k, v := range g.byName {
		c.byName[k] = v
	}
	return c
}

// Err is the first error of any builder call.
func (g *Graph) Err() error { return g.err }

func (g *Graph) fail(err error) {
	if g.err == nil {
		g.err = err
	}
}

// Value looks a value up. The zero ID gives the placeholder.
func (g *Graph) Value(id ID) *Value {
	if id < 0 || int(id) >= len(g.Values) {
		return &g.Values[0]
	}
	return &g.Values[id]
}

// ByName finds an input, weight, adapter, constant or state by its name.
func (g *Graph) ByName(name string) (ID, bool) {
	id, ok := g.byName[name]
	return id, ok
}

// OutputByName finds an output.
func (g *Graph) OutputByName(name string) (ID, bool) {
	for _, o := range g.Outputs {
		if o.Name == name {
			return o.Value, true
		}
	}
	return 0, false
}

// Declare adds a named value of any class but ClassNode. Declaring the same
// name again with the same class and type answers the first; anything else is
// an error.
func (g *Graph) Declare(class Class, name string, dtype DType, shape ...Dim) ID {
	if id, ok := g.byName[name]; ok {
		v := g.Value(id)
		if v.Class != class || v.Type.DType != dtype || !v.Type.Shape.Equal(shape) {
			g.fail(fmt.Errorf("declare %s %q %s%s: already declared as %s %s", class, name, dtype, Shape(shape), v.Class, v.Type))
		}
		return id
	}
	if class == ClassNode || name == "" {
		g.fail(fmt.Errorf("declare %q: class %s needs a node or a name", name, class))
		return 0
	}
	id := ID(len(g.Values))
	g.Values = append(g.Values, Value{ID: id, Name: name, Class: class, Type: Type{dtype, append(Shape(nil), shape...)}, Node: -1})
	g.byName[name] = id
	return id
}

// Input declares a value given at each run.
func (g *Graph) Input(name string, dtype DType, shape ...Dim) ID {
	return g.Declare(ClassInput, name, dtype, shape...)
}

// Weight declares a parameter of the base model.
func (g *Graph) Weight(name string, dtype DType, shape ...Dim) ID {
	return g.Declare(ClassWeight, name, dtype, shape...)
}

// Add appends a node; types of the outputs come from the op table. It returns
// the outputs' ids. After an error it returns zero ids and Err tells.
func (g *Graph) Add(op Op, attr Attrs, in ...ID) []ID {
	spec := op.Spec()
	outs := make([]ID, max(spec.Outputs, 1))
	if g.err != nil {
		return outs
	}
	types, err := infer(g, op, attr, in)
	if err != nil {
		g.fail(fmt.Errorf("add %s %s: %w", spec.Name, attr.Module, err))
		return outs
	}
	n := Node{Op: op, In: append([]ID(nil), in...), Attr: attr}
	for i, t := range types {
		id := ID(len(g.Values))
		g.Values = append(g.Values, Value{ID: id, Class: ClassNode, Type: t, Node: len(g.Nodes)})
		outs[i] = id
	}
	n.Out = append([]ID(nil), outs...)
	g.Nodes = append(g.Nodes, n)
	return outs
}

// Op1 appends a node with one output.
func (g *Graph) Op1(op Op, attr Attrs, in ...ID) ID { return g.Add(op, attr, in...)[0] }

// SetName hints at what a node's value is, for the dump.
func (g *Graph) SetName(id ID, name string) ID {
	if v := g.Value(id); id != 0 && v.Class == ClassNode {
		v.Name = name
	}
	return id
}

// Output names a result.
func (g *Graph) Output(name string, id ID) {
	if _, dup := g.OutputByName(name); dup {
		g.fail(fmt.Errorf("output %q: named twice", name))
		return
	}
	g.Outputs = append(g.Outputs, Output{name, id})
}

// Finish verifies the graph and returns it.
func (g *Graph) Finish() (*Graph, error) {
	if g.err != nil {
		return nil, fmt.Errorf("graph %s: %w", g.Name, g.err)
	}
	if err := Verify(g); err != nil {
		return nil, err
	}
	return g, nil
}

// Named lists the values of a class in order of declaration.
func (g *Graph) Named(class Class) []ID {
	var ids []ID
	for i := range g.Values {
		if i > 0 && g.Values[i].Class == class {
			ids = append(ids, ID(i))
		}
	}
	return ids
}

// ErrInvalid is wrapped by every error of Verify.
var ErrInvalid = errors.New("invalid graph")
