package ir

import (
	"errors"
	"strings"
	"testing"
)

// TestTable: every op has a full row.
func TestTable(t *testing.T) {
	names := map[string]Op{}
	for _, op := range Ops() {
		s := op.Spec()
		if s.Name == "" || s.Infer == nil || s.Outputs < 1 || s.MinIn < 1 || s.MaxIn < s.MinIn {
			t.Errorf("op %d has holes in its row: %+v", op, s)
		}
		if other, dup := names[s.Name]; dup {
			t.Errorf("ops %d and %d are both %s", op, other, s.Name)
		}
		names[s.Name] = op
		if (s.Grad == GradRule) != (s.Why == "") {
			t.Errorf("%s: an op without a gradient rule says why, and only such an op", s.Name)
		}
		if s.InPlace > s.Outputs || s.InPlace > s.MinIn {
			t.Errorf("%s: %d outputs in place of %d", s.Name, s.InPlace, s.Outputs)
		}
		if s.InPlace > 0 && s.Reuse {
			t.Errorf("%s: in place and reusing", s.Name)
		}
	}
	if s := Op(200).Spec(); s.Infer != nil || !strings.Contains(s.Name, "200") {
		t.Errorf("an op outside the table has the row %+v", s)
	}
}

// mlp is a small valid graph.
func mlp() *Graph {
	g := New("mlp")
	ids := g.Input("ids", I32, Of(T))
	table := g.Weight("embed", F32, Const(10), Const(4))
	w := g.Weight("w", F32, Const(6), Const(4))
	x := g.Op1(OpEmbed, Attrs{Layer: -1}, ids, table)
	g.Output("y", g.SetName(g.Op1(OpLinear, Attrs{Module: "m"}, x, w), "y"))
	return g
}

func TestShapes(t *testing.T) {
	g, err := mlp().Finish()
	if err != nil {
		t.Fatal(err)
	}
	id, _ := g.OutputByName("y")
	v := g.Value(id)
	if v.Type.String() != "f32[T,6]" || v.Type.Bytes(Dims{T: 5}) != 5*6*4 {
		t.Fatalf("output is %s of %d bytes", v.Type, v.Type.Bytes(Dims{T: 5}))
	}
	n := g.Nodes[v.Node]
	flops := n.Op.Spec().FLOPs([]Type{g.Value(n.In[0]).Type, g.Value(n.In[1]).Type}, []Type{v.Type}, n.Attr, Dims{T: 5})
	if flops != 2*5*6*4 {
		t.Fatalf("%d operations", flops)
	}
	if !(Dims{T: 3}).Within(Dims{T: 4}) || (Dims{T: 3, S: 2}).Within(Dims{T: 4, S: 1}) {
		t.Fatal("Within is wrong")
	}
}

// TestBuilderErrors: the first wrong call is kept and Finish tells it.
func TestBuilderErrors(t *testing.T) {
	for want, build := range map[string]func(*Graph){
		"columns":             func(g *Graph) { g.Op1(OpLinear, Attrs{}, first(g, "ids2", 7), g.Weight("w", F32, Const(6), Const(4))) },
		"takes 2 to 3":        func(g *Graph) { g.Op1(OpLinear, Attrs{}, g.Weight("w", F32, Const(6), Const(4))) },
		"already declared":    func(g *Graph) { g.Weight("w", F32, Const(1)) },
		"no value":            func(g *Graph) { g.Op1(OpNeg, Attrs{}, 99) },
		"does not read":       func(g *Graph) { g.Op1(OpNeg, Attrs{Scale: 2}, g.Weight("w", F32, Const(6), Const(4))) },
		"named twice":         func(g *Graph) { id, _ := g.ByName("w"); g.Output("y", id) },
		"offsets are":         func(g *Graph) { g.Op1(OpSegmentSum, Attrs{}, first(g, "x", 3), g.Input("o", I32, Of(T))) },
		"heads 3, kv heads 2": func(g *Graph) { badAttention(g) },
	} {
		g := mlp()
		build(g)
		if _, err := g.Finish(); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("got %v, want %q", err, want)
		}
	}
}

func first(g *Graph, name string, columns int) ID { return g.Input(name, F32, Of(T), Const(columns)) }

func badAttention(g *Graph) {
	q, k := first(g, "q", 12), first(g, "k", 8)
	g.Op1(OpAttention, Attrs{Heads: 3, KVHeads: 2, HeadDim: 4, Scale: 1}, q, k, k, g.Input("offsets", I32, Of(S1)))
}

// TestVerify: each broken invariant is found.
func TestVerify(t *testing.T) {
	for name, breakIt := range map[string]func(*Graph){
		"order":         func(g *Graph) { g.Nodes[0], g.Nodes[1] = g.Nodes[1], g.Nodes[0] },
		"type":          func(g *Graph) { g.Values[len(g.Values)-1].Type.DType = BF16 },
		"shape":         func(g *Graph) { g.Values[len(g.Values)-1].Type.Shape = Shape{Of(T), Const(5)} },
		"unknown op":    func(g *Graph) { g.Nodes[0].Op = 250 },
		"lost output":   func(g *Graph) { g.Outputs[0].Value = 77 },
		"double":        func(g *Graph) { g.Nodes[1].Out[0] = g.Nodes[0].Out[0] },
		"missing input": func(g *Graph) { g.Nodes[0].In = g.Nodes[0].In[:1] },
		"name":          func(g *Graph) { g.Values[1].Name = "" },
		"id":            func(g *Graph) { g.Values[1].ID = 3 },
	} {
		g := mlp()
		breakIt(g)
		if err := Verify(g); !errors.Is(err, ErrInvalid) {
			t.Errorf("%s: Verify says %v", name, err)
		}
	}
}

// TestInPlace: what was overwritten may not be read again, and only state may be overwritten.
func TestInPlace(t *testing.T) {
	build := func(class Class) (*Graph, ID, ID) {
		g := New("acc")
		acc := g.Declare(class, "acc", F32, Const(3))
		dy := first(g, "dy", 3)
		off := g.Input("offsets", I32, Of(S1))
		once := g.Op1(OpBiasGrad, Attrs{}, acc, dy, off)
		return g, acc, g.Op1(OpBiasGrad, Attrs{}, once, dy, off)
	}
	g, acc, twice := build(ClassState)
	if err := Verify(g); err != nil {
		t.Fatal(err)
	}
	if Root(g, twice) != acc {
		t.Fatalf("root of the second sum is %d, want %d", Root(g, twice), acc)
	}
	g.Op1(OpNeg, Attrs{}, acc)
	if err := Verify(g); err == nil || !strings.Contains(err.Error(), "overwritten") {
		t.Fatalf("reading an overwritten value: %v", err)
	}
	if g, _, _ := build(ClassInput); Verify(g) == nil {
		t.Fatal("an input was overwritten and Verify is content")
	}
}

func TestDump(t *testing.T) {
	var b strings.Builder
	if err := Dump(&b, mlp()); err != nil {
		t.Fatal(err)
	}
	want := `graph mlp (op table 1)
input   %1    i32[T]             ids
weight  %2    f32[10,4]          embed
weight  %3    f32[6,4]           w
%4:f32[T,4] = Embed(ids, embed)
%5:f32[T,6] = Linear(%4, w)  # m
output  %5    f32[T,6]           y
`
	if b.String() != want {
		t.Fatalf("got\n%s\nwant\n%s", b.String(), want)
	}
}

func TestClone(t *testing.T) {
	g := mlp()
	c := g.Clone()
	c.Op1(OpNeg, Attrs{}, c.Outputs[0].Value)
	c.Nodes[0].In[0] = 3
	c.Weight("more", F32, Const(2))
	if _, err := g.Finish(); err != nil || len(g.Nodes) != 2 {
		t.Fatalf("a change of the clone reached the original: %v", err)
	}
}
