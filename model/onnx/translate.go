package onnx

import (
	"errors"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"

	"smolgym/model/ir"
)

// ErrUnsupported is wrapped by the error of Translate for a graph with ops that have no rule.
var ErrUnsupported = errors.New("graph has no ONNX form here")

// The names of a model's input and output.
const (
	Input  = "input_ids" // int64 [batch,sequence]
	Output = "logits"    // float32 [batch,sequence,vocab]
)

// Forward is a graph that scores tokens, with what belongs to it.
type Forward struct {
	Family string
	Graph  *ir.Graph
	Logits ir.ID // [T,V]
	// Values gives what writes a weight's or constant's values, as little-endian float32s.
	Values   func(class ir.Class, name string) func(w io.Writer) error
	Metadata map[string]string
}

// Model is a translated graph.
type Model struct {
	name, doc    string
	nodes        []node
	initializers []initializer
	declared     message // inputs, outputs and types of values, as fields of the graph
	metadata     map[string]string
}

// translator makes the nodes of one graph.
type translator struct {
	f        Forward
	m        *Model
	values   map[ir.ID]string  // the counterparts of our values
	shared   map[string]string // values that several nodes use, by what they are
	taken    map[string]bool   // names
	at       string            // beginning of the next nodes' names
	declared message           // types of our values
	err      error
}

// Translate gives the standard form of a graph. What its outputs other than the logits need is left out.
func Translate(f Forward) (*Model, error) {
	live, err := forward(f.Graph, f.Logits)
	if err != nil {
		return nil, fmt.Errorf("translate %s: %w", f.Family, err)
	}
	t := &translator{f: f, m: &Model{name: f.Family, metadata: f.Metadata}, values: map[ir.ID]string{}, shared: map[string]string{}, taken: map[string]bool{Input: true, Output: true}}
	t.m.doc = "Logits of token ids. Rows of " + Input + " are sequences from position 0, padded on the right if at all."
	for _, class := range []ir.Class{ir.ClassWeight, ir.ClassConst} {
		for _, id := range f.Graph.Named(class) {
			t.taken[f.Graph.Value(id).Name] = true
		}
	}
	for _, i := range live {
		n := &f.Graph.Nodes[i]
		t.at = place(n)
		name := rules[n.Op](t, n)
		if t.err != nil {
			return nil, fmt.Errorf("translate %s: node %d %s %s: %w", f.Family, i, n.Op, n.Attr.Module, t.err)
		}
		t.values[n.Out[0]] = name
		t.declared.sub(graphValue, value(name, float32s, axes(f.Graph.Value(n.Out[0]).Type.Shape)...))
	}
	vocab := int64(f.Graph.Value(f.Logits).Type.Shape[1].N)
	t.named(Output, "Reshape", t.values[f.Logits], t.byRow(vocab))
	t.m.declared.sub(graphInput, value(Input, int64s, dim{name: "batch"}, dim{name: "sequence"}))
	t.m.declared.sub(graphOutput, value(Output, float32s, dim{name: "batch"}, dim{name: "sequence"}, dim{size: vocab}))
	t.m.declared = append(t.m.declared, t.declared...)
	return t.m, nil
}

// forward lists the nodes that a value needs, in their order. Its error names every op that has no rule.
func forward(g *ir.Graph, of ir.ID) ([]int, error) {
	needed := map[ir.ID]bool{of: true}
	var live []int
	lacking := map[string]bool{}
	for i, n := range slices.Backward(g.Nodes) {
		if !slices.ContainsFunc(n.Out, func(id ir.ID) bool { return needed[id] }) {
			continue
		}
		live = append(live, i)
		for _, id := range n.In {
			needed[id] = true
		}
		if rules[n.Op] == nil {
			lacking[n.Op.String()] = true
		}
	}
	if len(lacking) > 0 {
		var names []string
		for name := range lacking {
			names = append(names, name)
		}
		slices.Sort(names)
		return nil, fmt.Errorf("%w: nothing stands for %s; use another form of export", ErrUnsupported, strings.Join(names, ", "))
	}
	if len(live) == 0 {
		return nil, fmt.Errorf("%w: value %d is computed by no node", ErrUnsupported, of)
	}
	slices.Reverse(live)
	return live, nil
}

// place is where a node stands: its module, or its layer and what it does.
func place(n *ir.Node) string {
	switch {
	case n.Attr.Module != "":
		return n.Attr.Module
	case n.Attr.Layer >= 0:
		return fmt.Sprintf("layers.%d/%s", n.Attr.Layer, n.Op)
	}
	return n.Op.String()
}

// axes are those of a value over packed tokens.
func axes(s ir.Shape) []dim {
	var list []dim
	for _, d := range s {
		if d.Sym == ir.T && d.N == 1 {
			list = append(list, dim{name: "tokens"})
		} else {
			list = append(list, dim{size: int64(d.N)})
		}
	}
	return list
}

func (t *translator) fail(format string, args ...any) string {
	if t.err == nil {
		t.err = fmt.Errorf(format, args...)
	}
	return ""
}

// free makes a name that nothing has yet.
func (t *translator) free(name string) string {
	unique := name
	for i := 1; t.taken[unique]; i++ {
		unique = fmt.Sprintf("%s_%d", name, i)
	}
	t.taken[unique] = true
	return unique
}

// add appends a node and gives its output.
func (t *translator) add(op string, in []string, attributes ...attribute) string {
	name := t.at + "/" + op
	if t.at == op || strings.HasSuffix(t.at, "/"+op) {
		name = t.at
	}
	name = t.free(name)
	t.m.nodes = append(t.m.nodes, node{op, name, in, attributes})
	return name
}

// do is add without attributes.
func (t *translator) do(op string, in ...string) string { return t.add(op, in) }

// named appends a node whose name is given.
func (t *translator) named(name, op string, in ...string) string {
	t.m.nodes = append(t.m.nodes, node{op: op, name: name, in: in})
	return name
}

// once gives a value that is made when it is first needed, under a name of its own.
func (t *translator) once(what string, make func(name string) string) string {
	if have, ok := t.shared[what]; ok {
		return have
	}
	before := t.at
	t.at = what
	made := make(t.free(what))
	t.at = before
	t.shared[what] = made
	return made
}

// constant is an initializer that is made when it is first needed.
func (t *translator) constant(what string, make func(name string) initializer) string {
	if have, ok := t.shared[what]; ok {
		return have
	}
	name := t.free(what)
	t.m.initializers = append(t.m.initializers, make(name))
	t.shared[what] = name
	return name
}

func (t *translator) float(v float64) string {
	f := float32(v)
	return t.constant("const/"+strconv.FormatFloat(float64(f), 'g', -1, 32), func(name string) initializer { return scalar(name, f) })
}

func (t *translator) integer(v int64) string {
	return t.constant(fmt.Sprintf("const/int/%d", v), func(name string) initializer { return integersOf(name, true, v) })
}

// list is a vector of integers: a shape, axes, bounds.
func (t *translator) list(v ...int64) string {
	return t.constant(fmt.Sprintf("const/%v", v), func(name string) initializer { return integersOf(name, false, v...) })
}

// in is the counterpart of a node's input.
func (t *translator) in(n *ir.Node, k int) string {
	id := n.In[k]
	if name, ok := t.values[id]; ok {
		return name
	}
	v := t.f.Graph.Value(id)
	switch {
	case v.Class == ir.ClassInput && v.Name == "ids":
		return t.is(id, t.ids())
	case v.Class == ir.ClassInput && v.Name == "positions":
		return t.is(id, t.positions())
	case v.Class == ir.ClassWeight || v.Class == ir.ClassConst:
		var dims []int64
		for _, d := range v.Type.Shape {
			dims = append(dims, int64(d.N))
		}
		t.m.initializers = append(t.m.initializers, floatInitializer(v.Name, dims, t.f.Values(v.Class, v.Name)))
		return t.is(id, v.Name)
	}
	return t.fail("%w: input %d is %s %q, which a scored text has not", ErrUnsupported, k, v.Class, v.Name)
}

func (t *translator) is(id ir.ID, name string) string {
	t.values[id] = name
	return name
}

// The values that every graph is made of.

// shape is [batch,sequence].
func (t *translator) shape() string {
	return t.once("shape", func(name string) string { return t.named(name, "Shape", Input) })
}

// ids are the tokens laid end to end [tokens].
func (t *translator) ids() string {
	return t.once("tokens", func(name string) string { return t.named(name, "Reshape", Input, t.list(-1)) })
}

// order counts the tokens of one sequence: 0 to sequence-1.
func (t *translator) order() string {
	length := t.once("sequence", func(name string) string { return t.named(name, "Gather", t.shape(), t.integer(1)) })
	return t.once("order", func(name string) string {
		return t.named(name, "Range", t.integer(0), length, t.integer(1))
	})
}

// positions is the place of each token in its sequence [tokens].
func (t *translator) positions() string {
	order := t.order()
	return t.once("positions", func(name string) string {
		return t.named(name, "Reshape", t.do("Expand", order, t.shape()), t.list(-1))
	})
}

// byRow is the shape [batch,sequence,rest...].
func (t *translator) byRow(rest ...int64) string {
	return t.once("shape/"+strings.Trim(fmt.Sprint(rest), "[]"), func(name string) string {
		t.m.nodes = append(t.m.nodes, node{"Concat", name, []string{t.shape(), t.list(rest...)}, []attribute{integer("axis", 0)}})
		return name
	})
}

// keys and queries are the order of a sequence's tokens as a row [1,sequence] and as a column [sequence,1].
func (t *translator) keys() string {
	order := t.order()
	return t.once("keys", func(name string) string { return t.named(name, "Unsqueeze", order, t.list(0)) })
}

func (t *translator) queries() string {
	order := t.order()
	return t.once("queries", func(name string) string { return t.named(name, "Unsqueeze", order, t.list(1)) })
}

// mask says which keys a query sees [sequence,sequence]: none after it, and of a window's only the last ones.
func (t *translator) mask(window int) string {
	keys, queries := t.keys(), t.queries()
	causal := t.once("mask", func(name string) string { return t.named(name, "LessOrEqual", keys, queries) })
	if window == 0 {
		return causal
	}
	return t.once(fmt.Sprintf("mask/window_%d", window), func(name string) string {
		return t.named(name, "And", causal, t.do("Greater", keys, t.do("Sub", queries, t.integer(int64(window)))))
	})
}
