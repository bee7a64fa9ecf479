package plan

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"testing"

	"smolgym/model/ir"
)

// randomGraph mixes elementwise ops that may reuse memory, ops that may not,
// in-place accumulators and several outputs.
func randomGraph(t *testing.T, seed uint64, nodes int) *ir.Graph {
	t.Helper()
	r := rand.New(rand.NewPCG(seed, 1))
	g := ir.New(fmt.Sprintf("random %d", seed))
	offsets := g.Input("offsets", ir.I32, ir.Of(ir.S1))
	widths := []int{8, 24, 40}
	pool := map[int][]ir.ID{}
	for _, w := range widths {
		pool[w] = append(pool[w], g.Input(fmt.Sprintf("x%d", w), ir.F32, ir.Of(ir.T), ir.Const(w)))
	}
	pick := func(w int) ir.ID { p := pool[w]; return p[len(p)-1-r.IntN(min(len(p), 6))] }
	for i := range nodes {
		w := widths[r.IntN(len(widths))]
		attr := ir.Attrs{Layer: i / 10}
		switch r.IntN(7) {
		case 0, 1:
			pool[w] = append(pool[w], g.Op1(ir.OpMul, attr, pick(w), pick(w)))
		case 2:
			pool[w] = append(pool[w], g.Op1(ir.OpExp, attr, pick(w)))
		case 3:
			pool[w] = append(pool[w], g.Add(ir.OpSiLUMulGrad, attr, pick(w), pick(w), pick(w))...)
		case 4, 5:
			to := widths[r.IntN(len(widths))]
			weight := g.Weight(fmt.Sprintf("w%d", i), ir.F32, ir.Const(to), ir.Const(w))
			pool[to] = append(pool[to], g.Op1(ir.OpLinear, attr, pick(w), weight))
		case 6:
			acc := g.Declare(ir.ClassState, fmt.Sprintf("acc%d", i), ir.F32, ir.Const(w))
			g.Op1(ir.OpBiasGrad, attr, acc, pick(w), offsets)
		}
	}
	for _, w := range widths {
		if id := pool[w][len(pool[w])-1]; g.Value(id).Class == ir.ClassNode {
			g.Output(fmt.Sprintf("out%d", w), id)
		}
	}
	g, err := g.Finish()
	if err != nil {
		t.Fatal(err)
	}
	return g
}

// replay runs a program on marks instead of numbers: every write puts the
// value's id into each of its cells, every read must find it there. It knows
// nothing of lifetimes.
func replay(p *ir.Program) error {
	arena := make([]ir.ID, p.ArenaBytes/4)
	for i, s := range p.Steps {
		n := &p.Graph.Nodes[s.Node]
		for k, r := range s.In {
			if r.Space != ir.Arena {
				continue
			}
			cells := p.Graph.Value(n.In[k]).Type.Bytes(p.Capacity) / 4
			for c, got := range arena[r.Offset/4 : r.Offset/4+cells] {
				if got != n.In[k] {
					return fmt.Errorf("step %d input %d cell %d holds value %d, not %d", i, k, c, got, n.In[k])
				}
			}
		}
		for k, r := range s.Out {
			if r.Space != ir.Arena {
				continue
			}
			cells := p.Graph.Value(n.Out[k]).Type.Bytes(p.Capacity) / 4
			for c := range cells {
				arena[r.Offset/4+c] = n.Out[k]
			}
		}
	}
	return nil
}

func TestRandomGraphsNeverOverlap(t *testing.T) {
	var arena, sum int64
	for seed := range uint64(200) {
		g := randomGraph(t, seed, 60)
		p, err := Build(g, ir.Dims{T: 7, S: 2, R: 1, C: 1, P: 1, B: 1})
		if err != nil {
			t.Fatal(err)
		}
		if err := Verify(p); err != nil {
			t.Fatal(err)
		}
		if err := replay(p); err != nil {
			t.Fatalf("graph %d: %v", seed, err)
		}
		arena += p.ArenaBytes
		for _, s := range p.Steps {
			for k, r := range s.Out {
				if r.Space == ir.Arena {
					sum += align(g.Value(g.Nodes[s.Node].Out[k]).Type.Bytes(p.Capacity))
				}
			}
		}
	}
	if arena*2 > sum {
		t.Errorf("arenas of %d bytes for values of %d: memory is hardly reused", arena, sum)
	}
}

// Verify must find what a planner could do wrong: each mutation breaks a plan.
func TestVerifyFindsBrokenPlans(t *testing.T) {
	dims := ir.Dims{T: 7, S: 2, R: 1, C: 1, P: 1, B: 1}
	broken := 0
	for seed := range uint64(40) {
		r := rand.New(rand.NewPCG(seed, 2))
		p, err := Build(randomGraph(t, seed, 40), dims)
		if err != nil {
			t.Fatal(err)
		}
		// Move one value somewhere else, consistently at its writer and readers.
		var arenaOut []ir.ID
		for _, s := range p.Steps {
			for k, ref := range s.Out {
				if ref.Space == ir.Arena {
					arenaOut = append(arenaOut, p.Graph.Nodes[s.Node].Out[k])
				}
			}
		}
		id := arenaOut[r.IntN(len(arenaOut))]
		size := p.Graph.Value(id).Type.Bytes(dims)
		to := r.Int64N((p.ArenaBytes-size)/Alignment+1) * Alignment
		for i := range p.Steps {
			n := &p.Graph.Nodes[p.Steps[i].Node]
			for k := range n.In {
				if n.In[k] == id {
					p.Steps[i].In[k].Offset = to
				}
			}
			for k := range n.Out {
				if n.Out[k] == id {
					p.Steps[i].Out[k].Offset = to
				}
			}
		}
		clobbers := replay(p) != nil
		if err := Verify(p); clobbers && !errors.Is(err, ErrPlan) {
			t.Errorf("graph %d: value %d at %d clobbers another, Verify says %v", seed, id, to, err)
		}
		if clobbers {
			broken++
		}
	}
	if broken < 10 {
		t.Errorf("only %d of 40 mutations broke a plan; the test shows too little", broken)
	}
	for name, mutate := range map[string]func(p *ir.Program){
		"misaligned":    func(p *ir.Program) { p.Steps[0].Out[0].Offset += 4 },
		"outside":       func(p *ir.Program) { p.ArenaBytes = 64 },
		"order":         func(p *ir.Program) { p.Steps[0], p.Steps[1] = p.Steps[1], p.Steps[0] },
		"missing step":  func(p *ir.Program) { p.Steps = p.Steps[1:] },
		"foreign slot":  func(p *ir.Program) { p.Steps[0].In[0].Slot++ },
		"lost output":   func(p *ir.Program) { p.Steps = p.Steps[:len(p.Steps)-1] },
		"in place away": func(p *ir.Program) { p.Steps[3].Out[0].Slot-- },
	} {
		p := small(t)
		mutate(p)
		if err := Verify(p); !errors.Is(err, ErrPlan) {
			t.Errorf("%s: Verify says %v", name, err)
		}
	}
}

// small is x -> exp -> linear -> mul -> out, with an accumulator.
func small(t *testing.T) *ir.Program {
	t.Helper()
	g := ir.New("small")
	x := g.Input("x", ir.F32, ir.Of(ir.T), ir.Const(16))
	offsets := g.Input("offsets", ir.I32, ir.Of(ir.S1))
	g.Input("unused", ir.F32, ir.Const(1))
	w := g.Weight("w", ir.BF16, ir.Const(16), ir.Const(16))
	acc := g.Declare(ir.ClassState, "acc", ir.F32, ir.Const(16))
	e := g.Op1(ir.OpExp, ir.Attrs{Layer: 0}, x)
	l := g.Op1(ir.OpLinear, ir.Attrs{Layer: 0}, e, w)
	g.Op1(ir.OpNeg, ir.Attrs{Layer: 1}, e) // dead
	m := g.Op1(ir.OpMul, ir.Attrs{Layer: 1}, e, l)
	a := g.Op1(ir.OpBiasGrad, ir.Attrs{Layer: 1}, acc, m, offsets)
	o := g.Op1(ir.OpScale, ir.Attrs{Layer: 2, Scale: 2}, m)
	g.Output("out", o)
	g.Output("sum", a)
	if _, err := g.Finish(); err != nil {
		t.Fatal(err)
	}
	p, err := Build(g, ir.Dims{T: 3, S: 1})
	if err != nil {
		t.Fatal(err)
	}
	return p
}

func TestSmallPlan(t *testing.T) {
	p := small(t)
	if err := Verify(p); err != nil {
		t.Fatal(err)
	}
	if len(p.Steps) != 5 {
		t.Errorf("%d steps, want 5: the dead node goes", len(p.Steps))
	}
	// exp and linear live at once (2 x 192 bytes); mul takes the place of one.
	if p.ArenaBytes != 384 {
		t.Errorf("arena %d, want 384", p.ArenaBytes)
	}
	var names []string
	for _, s := range p.Slots {
		names = append(names, s.Name)
	}
	if got := fmt.Sprint(names); got != "[x offsets w acc out]" {
		t.Errorf("slots %s: unused inputs have none, an updated state is its own", got)
	}
	if p.Slot("sum") != -1 || p.Slot("out") != 4 || !p.Slots[4].Output {
		t.Errorf("slots %+v", p.Slots)
	}
	var yields []bool
	for _, s := range p.Steps {
		yields = append(yields, s.Yield)
	}
	if got := fmt.Sprint(yields); got != "[false true false true false]" {
		t.Errorf("yields %s", got)
	}
	// exp 48, linear 2*3*16*16, mul 48, biasgrad 16, scale 48
	if want := int64(48 + 2*3*16*16 + 48 + 16 + 48); p.FLOPs != want {
		t.Errorf("FLOPs %d, want %d", p.FLOPs, want)
	}
	m := Memory(p, ir.Dims{T: 1, S: 1})
	if want := (Bytes{Weights: 512, States: 64, Inputs: 64 + 64, Outputs: 64, Arena: 384}); m != want || m.Total() != 1152 {
		t.Errorf("memory %+v (total %d), want %+v", m, m.Total(), want)
	}
}

func TestRefusals(t *testing.T) {
	g := ir.New("g")
	x := g.Input("x", ir.F32, ir.Of(ir.T), ir.Const(1<<20))
	y := g.Op1(ir.OpNeg, ir.Attrs{}, x)
	g.Output("y", y)
	for name, d := range map[string]ir.Dims{"negative": {T: -1}, "overflow": {T: 1 << 62}} {
		if _, err := Build(g, d); !errors.Is(err, ErrPlan) {
			t.Errorf("%s: %v", name, err)
		}
	}
	if p, err := Build(g, ir.Dims{}); err != nil || p.ArenaBytes != 0 {
		t.Errorf("an empty batch plans: %v", err)
	}
	g.Output("z", y)
	if _, err := Build(g, ir.Dims{T: 1}); !errors.Is(err, ErrPlan) {
		t.Errorf("one value as two outputs: %v", err)
	}
	h := ir.New("h")
	x = h.Input("x", ir.F32, ir.Of(ir.T))
	h.Output("x", h.Op1(ir.OpNeg, ir.Attrs{}, x))
	if _, err := Build(h, ir.Dims{T: 1}); !errors.Is(err, ErrPlan) {
		t.Errorf("an output named as an input: %v", err)
	}
}

func TestRecompute(t *testing.T) {
	g := ir.New("two passes")
	x := g.Input("x", ir.F32, ir.Of(ir.T), ir.Const(16))
	acc := g.Declare(ir.ClassState, "acc", ir.F32, ir.Const(16))
	offsets := g.Input("offsets", ir.I32, ir.Of(ir.S1))
	e := g.Op1(ir.OpExp, ir.Attrs{Layer: 0}, x)
	n := g.Op1(ir.OpNeg, ir.Attrs{Layer: 0}, e)
	y := g.Op1(ir.OpMul, ir.Attrs{Layer: 0}, n, e) // read by layer 1: kept
	z := g.Op1(ir.OpExp, ir.Attrs{Layer: 1}, y)
	d := g.Op1(ir.OpMul, ir.Attrs{Layer: 1}, z, y)
	d = g.Op1(ir.OpMul, ir.Attrs{Layer: 0}, d, y)
	d = g.Op1(ir.OpMul, ir.Attrs{Layer: 0}, d, n)
	g.Op1(ir.OpBiasGrad, ir.Attrs{Layer: 0}, acc, d, offsets)
	g.Output("e", e) // so kept too
	if _, err := g.Finish(); err != nil {
		t.Fatal(err)
	}
	out, err := Recompute(g, func(l int) bool { return true })
	if err != nil {
		t.Fatal(err)
	}
	var ops []string
	for _, n := range out.Nodes {
		ops = append(ops, n.Op.String())
	}
	// Of the first layer only n is made again, from the kept e.
	if got := fmt.Sprint(ops); got != "[Exp Neg Mul Exp Mul Neg Mul Mul BiasGrad]" {
		t.Errorf("nodes %s", got)
	}
	if p, err := Build(out, ir.Dims{T: 3, S: 1}); err != nil || Verify(p) != nil {
		t.Errorf("%v, %v", err, Verify(p))
	}
	same, err := Recompute(g, func(l int) bool { return false })
	if err != nil || len(same.Nodes) != len(g.Nodes) {
		t.Errorf("no layer chosen: %d nodes, %v", len(same.Nodes), err)
	}
}
