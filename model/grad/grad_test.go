package grad_test

import (
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"strings"
	"testing"

	"smolgym/kernels"
	"smolgym/kernels/reference"
	"smolgym/model/grad"
	"smolgym/model/ir"
	"smolgym/model/plan"
)

// machine keeps a graph's buffers between runs on the reference device.
type machine struct {
	t    *testing.T
	dev  kernels.Device
	dims ir.Dims
	bufs map[string]kernels.Buffer
}

func newMachine(t *testing.T, dims ir.Dims) *machine {
	return &machine{t, reference.Open(reference.Options{}), dims, map[string]kernels.Buffer{}}
}

func (m *machine) set(name string, v any) {
	m.t.Helper()
	raw, err := binary.Append(nil, binary.LittleEndian, v)
	if err == nil {
		if m.bufs[name] == nil {
			m.bufs[name], err = m.dev.Alloc(int64(len(raw)))
		}
	}
	if err == nil {
		err = m.dev.Write(m.bufs[name], 0, raw)
	}
	if err != nil {
		m.t.Fatal(err)
	}
}

func (m *machine) get(name string) []float32 {
	m.t.Helper()
	raw := make([]byte, m.bufs[name].Size())
	x := make([]float32, len(raw)/4)
	err := m.dev.Read(raw, m.bufs[name], 0)
	if err == nil {
		_, err = binary.Decode(raw, binary.LittleEndian, x)
	}
	if err != nil {
		m.t.Fatal(err)
	}
	return x
}

func (m *machine) run(g *ir.Graph) {
	m.t.Helper()
	p, err := plan.Build(g, m.dims)
	if err == nil {
		err = plan.Verify(p)
	}
	if err != nil {
		m.t.Fatal(err)
	}
	slots := make([]kernels.Buffer, len(p.Slots))
	for i, s := range p.Slots {
		if m.bufs[s.Name] == nil {
			if s.Class != ir.ClassState && !s.Output {
				m.t.Fatalf("nothing bound to %s", s.Name)
			}
			m.set(s.Name, make([]byte, s.Type.Bytes(m.dims)))
		}
		slots[i] = m.bufs[s.Name]
	}
	arena, err := m.dev.Alloc(p.ArenaBytes)
	if err == nil {
		err = m.dev.Run(p, m.dims, slots, arena, nil)
	}
	if err != nil {
		m.t.Fatal(err)
	}
}

// bench builds graphs over parameters and makes their inputs up.
type bench struct {
	*ir.Graph
	offsets ir.ID
}

const (
	tokens = 5
	width  = 6
)

func (b *bench) param(name string, shape ...int) ir.ID {
	dims := make([]ir.Dim, len(shape))
	for i, n := range shape {
		dims[i] = ir.Const(n)
	}
	return b.Weight(name, ir.F32, dims...)
}

// x is a differentiable [T,width] value with a parameter of its own behind it.
func (b *bench) x(name string) ir.ID {
	return b.Op1(ir.OpEmbed, ir.Attrs{}, b.Input("ids", ir.I32, ir.Of(ir.T)), b.param(name, tokens, width))
}

// data is an input [T,width], of no gradient.
func (b *bench) data(name string) ir.ID { return b.Input(name, ir.F32, ir.Of(ir.T), ir.Const(width)) }

func (b *bench) op(op ir.Op, in ...ir.ID) ir.ID { return b.Op1(op, ir.Attrs{}, in...) }

// positive keeps x away from 0.
func (b *bench) positive(x ir.ID) ir.ID { return b.op(ir.OpExp, x) }

// finish makes the loss: the sum of y times made-up factors, twice over so that
// the graph fans out.
func (b *bench) finish(t *testing.T, y ir.ID) *ir.Graph {
	t.Helper()
	c := b.Input("factors", ir.F32, b.Value(y).Type.Shape...)
	b.Output("loss", b.op(ir.OpSegmentSum, b.op(ir.OpAdd, b.op(ir.OpMul, y, c), b.op(ir.OpMul, y, y)), b.offsets))
	g, err := b.Graph.Finish()
	if err != nil {
		t.Fatal(err)
	}
	return g
}

// cases has one small graph for every op with a rule.
var cases = map[ir.Op]func(b *bench) ir.ID{
	ir.OpEmbed: func(b *bench) ir.ID { return b.x("a") },
	ir.OpLinear: func(b *bench) ir.ID {
		return b.op(ir.OpLinear, b.x("a"), b.param("w", width, width), b.param("bias", width))
	},
	ir.OpRMSNorm: func(b *bench) ir.ID {
		plain := b.Op1(ir.OpRMSNorm, ir.Attrs{Eps: 1e-3, Heads: 2}, b.x("a"), b.param("w", width/2))
		return b.op(ir.OpAdd, plain, b.Op1(ir.OpRMSNorm, ir.Attrs{Eps: 1e-3, Heads: 1, Unit: true}, b.x("a"), b.param("w2", width)))
	},
	ir.OpRope: func(b *bench) ir.ID {
		cos, sin := b.Declare(ir.ClassConst, "cos", ir.F32, ir.Const(tokens), ir.Const(1)), b.Declare(ir.ClassConst, "sin", ir.F32, ir.Const(tokens), ir.Const(1))
		return b.Op1(ir.OpRope, ir.Attrs{Heads: 2, HeadDim: 3, Rotary: 2}, b.x("a"), b.Input("ids", ir.I32, ir.Of(ir.T)), cos, sin)
	},
	ir.OpAttention: func(b *bench) ir.ID {
		a := ir.Attrs{Scale: 0.7, Heads: 2, KVHeads: 1, HeadDim: 3, Softcap: 1.5}
		k := b.op(ir.OpLinear, b.x("k"), b.param("wk", 3, width))
		v := b.op(ir.OpLinear, b.x("v"), b.param("wv", 3, width))
		return b.Add(ir.OpAttention, a, b.x("q"), k, v, b.offsets)[0]
	},
	ir.OpSiLUMul:  func(b *bench) ir.ID { return b.op(ir.OpSiLUMul, b.x("a"), b.x("b")) },
	ir.OpAdd:      func(b *bench) ir.ID { return b.op(ir.OpAdd, b.x("a"), b.x("b")) },
	ir.OpScaleAdd: func(b *bench) ir.ID { return b.Op1(ir.OpScaleAdd, ir.Attrs{Scale: -1.5}, b.x("a"), b.x("b")) },
	ir.OpScale:    func(b *bench) ir.ID { return b.Op1(ir.OpScale, ir.Attrs{Scale: 0.3}, b.x("a")) },
	ir.OpLogProb: func(b *bench) ir.ID {
		return b.Add(ir.OpLogProb, ir.Attrs{}, b.x("a"), b.Input("targets", ir.I32, ir.Of(ir.T), ir.Of(ir.C)))[0]
	},
	ir.OpSub: func(b *bench) ir.ID { return b.op(ir.OpSub, b.x("a"), b.x("b")) },
	ir.OpMul: func(b *bench) ir.ID { return b.op(ir.OpMul, b.x("a"), b.op(ir.OpMul, b.x("b"), b.x("b"))) },
	ir.OpDiv: func(b *bench) ir.ID { return b.op(ir.OpDiv, b.x("a"), b.positive(b.x("b"))) },
	ir.OpNeg: func(b *bench) ir.ID { return b.op(ir.OpNeg, b.x("a")) },
	ir.OpExp: func(b *bench) ir.ID { return b.op(ir.OpExp, b.x("a")) },
	ir.OpMin: func(b *bench) ir.ID { return b.op(ir.OpMin, b.x("a"), b.x("b")) },
	ir.OpMax: func(b *bench) ir.ID { return b.op(ir.OpMax, b.x("a"), b.x("b")) },
	ir.OpClamp: func(b *bench) ir.ID {
		x := b.x("a")
		return b.op(ir.OpClamp, x, b.Op1(ir.OpFill, ir.Attrs{Scale: -0.4}, x), b.Op1(ir.OpFill, ir.Attrs{Scale: 0.5}, x))
	},
	ir.OpWhere: func(b *bench) ir.ID {
		return b.op(ir.OpWhere, b.op(ir.OpGreater, b.data("m"), b.op(ir.OpDetach, b.x("c"))), b.x("a"), b.x("b"))
	},
	ir.OpSegmentSum: func(b *bench) ir.ID {
		x := b.x("a")
		return b.op(ir.OpMul, b.op(ir.OpSegmentExpand, b.op(ir.OpSegmentSum, b.op(ir.OpMul, x, x), b.offsets), b.offsets, x), x)
	},
	ir.OpLinearT:  func(b *bench) ir.ID { return b.op(ir.OpLinearT, b.x("a"), b.param("w", width, 4)) },
	ir.OpAddRow:   func(b *bench) ir.ID { return b.op(ir.OpAddRow, b.x("a"), b.param("w", width)) },
	ir.OpCenter:   func(b *bench) ir.ID { x := b.x("a"); return b.op(ir.OpMul, b.op(ir.OpCenter, b.op(ir.OpMul, x, x)), x) },
	ir.OpDecay:    func(b *bench) ir.ID { return b.op(ir.OpDecay, b.x("a"), b.param("w", width)) },
	ir.OpJoin:     func(b *bench) ir.ID { x := b.x("a"); return b.op(ir.OpJoin, x, b.op(ir.OpTanh, b.x("b")), x) },
	ir.OpTanh:     func(b *bench) ir.ID { return b.op(ir.OpTanh, b.x("a")) },
	ir.OpSigmoid:  func(b *bench) ir.ID { return b.op(ir.OpSigmoid, b.x("a")) },
	ir.OpSoftplus: func(b *bench) ir.ID { return b.op(ir.OpSoftplus, b.x("a")) },
	ir.OpGELU:     func(b *bench) ir.ID { return b.op(ir.OpGELU, b.x("a")) },
	ir.OpGELUTanh: func(b *bench) ir.ID { return b.op(ir.OpGELUTanh, b.x("a")) },
	ir.OpSlice: func(b *bench) ir.ID {
		x := b.x("a")
		take := func(offset int) ir.ID {
			return b.Op1(ir.OpSlice, ir.Attrs{Heads: 2, Of: 3, HeadDim: 2, Offset: offset}, x)
		}
		return b.op(ir.OpMul, take(0), take(1))
	},
	ir.OpTopK: func(b *bench) ir.ID {
		// Far apart, or a difference could change the choice.
		order := b.Op1(ir.OpScale, ir.Attrs{Scale: 20}, b.data("order"))
		pick := func(normalise bool) ir.ID {
			return b.Add(ir.OpTopK, ir.Attrs{Pick: 3, Normalise: normalise}, b.op(ir.OpAdd, b.op(ir.OpTanh, order), b.Op1(ir.OpScale, ir.Attrs{Scale: 0.2}, b.x("a"))))[0]
		}
		return b.op(ir.OpAdd, pick(true), pick(false))
	},
	ir.OpExpertLinear: func(b *bench) ir.ID {
		experts := b.Add(ir.OpTopK, ir.Attrs{Pick: 2}, b.data("router"))[1]
		h := b.op(ir.OpExpertLinear, b.x("a"), b.param("w1", width, 4, width), experts)
		return b.Op1(ir.OpSumRows, ir.Attrs{Pick: 2}, b.op(ir.OpExpertLinear, b.op(ir.OpTanh, h), b.param("w2", width, 3, 4), experts))
	},
	ir.OpScaleRows: func(b *bench) ir.ID {
		g := b.op(ir.OpSigmoid, b.op(ir.OpLinear, b.x("b"), b.param("w", 1, width)))
		return b.op(ir.OpScaleRows, b.x("a"), g)
	},
	ir.OpSumRows: func(b *bench) ir.ID {
		weights := b.Add(ir.OpTopK, ir.Attrs{Pick: 2}, b.data("router"))
		h := b.op(ir.OpExpertLinear, b.x("a"), b.param("w1", width, 4, width), weights[1])
		return b.Op1(ir.OpSumRows, ir.Attrs{Pick: 2}, b.op(ir.OpScaleRows, h, weights[0]))
	},
	ir.OpConv: func(b *bench) ir.ID { return b.op(ir.OpConv, b.x("a"), b.param("w", width, 1, 3), b.offsets) },
	ir.OpDelta: func(b *bench) ir.ID {
		a := ir.Attrs{Heads: 2, KVHeads: 1, HeadDim: 3}
		to := func(name string, n int) ir.ID { return b.op(ir.OpLinear, b.x(name), b.param("w"+name, n, width)) }
		return b.Op1(ir.OpDelta, a, to("q", 3), to("k", 3), b.x("v"), b.op(ir.OpNeg, b.op(ir.OpSoftplus, to("g", 2))), b.op(ir.OpSigmoid, to("beta", 2)), b.offsets)
	},
	ir.OpSegmentExpand: func(b *bench) ir.ID {
		x := b.x("a")
		return b.op(ir.OpSegmentExpand, b.op(ir.OpExp, b.op(ir.OpSegmentSum, x, b.offsets)), b.offsets, b.data("like"))
	},
}

// The table is full: an op that the op table says has a gradient has a case here,
// and its derivative is right.
func TestEveryRule(t *testing.T) {
	for _, op := range ir.Ops() {
		if op.Spec().Grad != ir.GradRule {
			if cases[op] != nil {
				t.Errorf("%s has a case but no rule", op)
			}
			continue
		}
		t.Run(op.String(), func(t *testing.T) {
			build := cases[op]
			if build == nil {
				t.Fatal("no case: every op with a gradient needs a rule and a test of it")
			}
			for seed := range uint64(3) {
				b := newBench()
				g := b.finish(t, build(b))
				compare(t, g, seed)
			}
		})
	}
}

func newBench() *bench {
	b := &bench{Graph: ir.New("bench")}
	b.offsets = b.Input(grad.Offsets, ir.I32, ir.Of(ir.S1))
	return b
}

// compare checks every element of every gradient against central differences.
// The device computes sums in float64 and stores float32, so a step of 1/128
// leaves an error of some 1e-4 of the loss's scale.
func compare(t *testing.T, g *ir.Graph, seed uint64) {
	t.Helper()
	bg, acc, err := grad.Backward(g, "loss", func(v *ir.Value) bool { return v.Class == ir.ClassWeight })
	if err != nil {
		t.Fatal(err)
	}
	r := rand.New(rand.NewPCG(seed, 3))
	m := newMachine(t, ir.Dims{T: tokens, S: 2, C: 2})
	m.set(grad.Offsets, []int32{0, 2, tokens})
	ids := []int32{0, 1, 2, 3, 4}
	m.set("ids", ids)
	m.set("targets", []int32{0, 1, 2, 2, 4, 3, 5, 0, 1, 5})
	params := map[string][]float32{}
	for _, class := range []ir.Class{ir.ClassWeight, ir.ClassConst, ir.ClassInput} {
		for _, id := range g.Named(class) {
			v := g.Value(id)
			if v.Type.DType != ir.F32 {
				continue
			}
			x := make([]float32, v.Type.Shape.Elements(m.dims))
			for i := range x {
				x[i] = float32(r.NormFloat64() * 0.7)
			}
			m.set(v.Name, x)
			if class == ir.ClassWeight {
				params[v.Name] = x
			}
		}
	}
	m.run(bg)
	loss := func() float64 {
		m.run(g)
		sum := 0.0
		for _, v := range m.get("loss") {
			sum += float64(v)
		}
		return sum
	}
	for _, id := range g.Named(ir.ClassWeight) {
		name := g.Value(id).Name
		x := params[name]
		got := make([]float32, len(x))
		for _, n := range acc[name] {
			for i, v := range m.get(n) {
				got[i] += v
			}
		}
		for i, old := range x {
			var wants []float64
			at := func(d float64) float64 {
				x[i] = old + float32(d)
				m.set(name, x)
				return loss()
			}
			near := func(want, tolerance float64) bool {
				wants = append(wants, want)
				return math.Abs(float64(got[i])-want) <= tolerance*math.Max(1, math.Abs(want))
			}
			// Where the loss bends within the step (Min, Max, Clamp) a shorter one
			// or one side must agree.
			ok := near((at(1.0/128)-at(-1.0/128))*64, 4e-3) || near((at(1.0/1024)-at(-1.0/1024))*512, 1e-2) ||
				near((at(1.0/1024)-at(0))*1024, 2e-2) || near((at(0)-at(-1.0/1024))*1024, 2e-2)
			x[i] = old
			if !ok {
				t.Errorf("seed %d: d loss/d %s[%d] = %g, differences say %g", seed, name, i, got[i], wants)
			}
		}
		m.set(name, x)
	}
}

// Random compositions of elementwise ops.
func TestRandomGraphs(t *testing.T) {
	ops := []ir.Op{ir.OpAdd, ir.OpSub, ir.OpMul, ir.OpNeg, ir.OpMin, ir.OpMax, ir.OpSiLUMul}
	for seed := range uint64(20) {
		r := rand.New(rand.NewPCG(seed, 5))
		b := newBench()
		pool := []ir.ID{b.x("a"), b.x("b"), b.data("d")}
		for range 8 {
			op := ops[r.IntN(len(ops))]
			in := []ir.ID{pool[r.IntN(len(pool))], pool[r.IntN(len(pool))]}[:op.Spec().MinIn]
			pool = append(pool, b.Op1(ir.OpScale, ir.Attrs{Scale: 0.7}, b.op(op, in...)))
		}
		y := pool[3]
		for _, x := range pool[4:] {
			y = b.op(ir.OpAdd, y, x)
		}
		compare(t, b.finish(t, y), seed)
	}
}

// What happens at a tie or a bound is torch's choice.
func TestTies(t *testing.T) {
	for _, c := range []struct {
		name  string
		build func(b *bench) ir.ID
		a, b  float32 // values of the parameters
		da    float32
		db    float32
	}{
		{"min tie", cases[ir.OpMin], 1, 1, 0.5, 0.5},
		{"max tie", cases[ir.OpMax], 1, 1, 0.5, 0.5},
		{"min", cases[ir.OpMin], 1, 2, 1, 0},
		{"max", cases[ir.OpMax], 1, 2, 0, 1},
		{"clamp low bound", clampAt(0.25, 3), 0.25, 0, 1, 0},
		{"clamp high bound", clampAt(-3, 0.25), 0.25, 0, 1, 0},
		{"clamp below", clampAt(0.5, 3), 0.25, 0, 0, 0},
		{"clamp above", clampAt(-3, -1), 0.25, 0, 0, 0},
	} {
		b := newBench()
		y := c.build(b)
		b.Output("loss", b.op(ir.OpSegmentSum, y, b.offsets))
		bg, acc, err := grad.Backward(b.Graph, "loss", func(v *ir.Value) bool { return true })
		if err != nil {
			t.Fatal(err)
		}
		m := newMachine(t, ir.Dims{T: 1, S: 1})
		m.set(grad.Offsets, []int32{0, 1})
		m.set("ids", []int32{0})
		for name, v := range map[string]float32{"a": c.a, "b": c.b} {
			x := make([]float32, tokens*width)
			for i := range x {
				x[i] = v
			}
			m.set(name, x)
		}
		m.run(bg)
		for name, want := range map[string]float32{"a": c.da, "b": c.db} {
			if len(acc[name]) == 0 {
				continue
			}
			if got := m.get("grad:" + name)[0]; got != want {
				t.Errorf("%s: gradient of %s is %g, want %g", c.name, name, got, want)
			}
		}
	}
}

func clampAt(lo, hi float64) func(b *bench) ir.ID {
	return func(b *bench) ir.ID {
		x := b.x("a")
		return b.op(ir.OpClamp, x, b.Op1(ir.OpFill, ir.Attrs{Scale: lo}, x), b.Op1(ir.OpFill, ir.Attrs{Scale: hi}, x))
	}
}

// twoLayers is embed -> linear w1 -> linear w2 -> tied head.
func twoLayers(t *testing.T) *ir.Graph {
	b := newBench()
	table := b.param("embed", tokens, width)
	h := b.Op1(ir.OpEmbed, ir.Attrs{Layer: -1}, b.Input("ids", ir.I32, ir.Of(ir.T)), table)
	h = b.Op1(ir.OpLinear, ir.Attrs{Layer: 0}, h, b.param("w1", width, width))
	h = b.Op1(ir.OpLinear, ir.Attrs{Layer: 1, Module: "second"}, h, b.param("w2", width, width))
	return b.finish(t, b.Op1(ir.OpLinear, ir.Attrs{Layer: -1}, h, table))
}

func count(g *ir.Graph, op ir.Op) (n int) {
	for i := range g.Nodes {
		if g.Nodes[i].Op == op {
			n++
		}
	}
	return n
}

// Frozen parameters cost nothing, and nothing is computed below the lowest
// trained one.
func TestOnlyWhatIsNeeded(t *testing.T) {
	g := twoLayers(t)
	for _, c := range []struct {
		train             string
		gradW, gradX, emb int
		acc               string
	}{
		{"", 0, 0, 0, "map[]"},
		{"w2", 1, 1, 0, "map[w2:[grad:w2]]"},
		{"w1", 1, 2, 0, "map[w1:[grad:w1]]"},
		{"w1 w2", 2, 2, 0, "map[w1:[grad:w1] w2:[grad:w2]]"},
		{"embed", 1, 3, 1, "map[embed:[grad:embed grad:embed#1]]"},
	} {
		b, acc, err := grad.Backward(g, "loss", func(v *ir.Value) bool { return strings.Contains(" "+c.train+" ", " "+v.Name+" ") })
		if err != nil {
			t.Fatal(err)
		}
		if w, x, e := count(b, ir.OpLinearGradW), count(b, ir.OpLinearGradX), count(b, ir.OpEmbedGrad); w != c.gradW || x != c.gradX || e != c.emb || fmt.Sprint(acc) != c.acc {
			t.Errorf("%q: %d weight, %d input and %d embedding gradients, accumulators %v", c.train, w, x, e, acc)
		}
		if c.train == "" && len(b.Nodes) != len(g.Nodes) {
			t.Errorf("nothing to train, yet %d nodes were added", len(b.Nodes)-len(g.Nodes))
		}
		for _, n := range b.Nodes[len(g.Nodes):] {
			if n.Attr.Module == "second" && n.Attr.Layer != 1 {
				t.Errorf("%s of layer 1 is in layer %d", n.Op, n.Attr.Layer)
			}
		}
	}
	if len(g.Named(ir.ClassState)) != 0 {
		t.Error("Backward changed its input")
	}
}

// A tied parameter has an accumulator for each use, in the order of use: the
// first is the embedding's.
func TestTiedAccumulators(t *testing.T) {
	g := twoLayers(t)
	b, _, err := grad.Backward(g, "loss", func(v *ir.Value) bool { return v.Name == "embed" })
	if err != nil {
		t.Fatal(err)
	}
	for _, n := range b.Nodes {
		name := b.Value(n.In[0]).Name
		if (n.Op == ir.OpEmbedGrad && name != "grad:embed") || (n.Op == ir.OpLinearGradW && name != "grad:embed#1") {
			t.Errorf("%s adds into %s", n.Op, name)
		}
	}
}

func TestRefusals(t *testing.T) {
	all := func(*ir.Value) bool { return true }
	for name, build := range map[string]func(b *bench) (output string){
		"no such output": func(b *bench) string { b.Output("loss", b.x("a")); return "los" },
		"gradient of lse": func(b *bench) string {
			lse := b.Add(ir.OpLogProb, ir.Attrs{}, b.x("a"), b.Input("targets", ir.I32, ir.Of(ir.T), ir.Of(ir.C)))[1]
			b.Output("loss", lse)
			return "loss"
		},
		"gradient of an attention's lse": func(b *bench) string {
			x := b.x("a")
			b.Output("loss", b.Add(ir.OpAttention, ir.Attrs{Scale: 1, Heads: 1, KVHeads: 1, HeadDim: width}, x, x, x, b.offsets)[1])
			return "loss"
		},
		"through an op of sampling": func(b *bench) string { b.Output("loss", b.op(ir.OpLSE, b.x("a"))); return "loss" },
		"bounds of clamp": func(b *bench) string {
			x := b.x("a")
			b.Output("loss", b.op(ir.OpClamp, b.data("d"), x, x))
			return "loss"
		},
		"parameter of an op without parameters": func(b *bench) string {
			w := b.param("w", 3)
			b.Output("loss", b.op(ir.OpExp, w))
			return "loss"
		},
		"computed weight": func(b *bench) string {
			w := b.op(ir.OpExp, b.x("a"))
			b.Output("loss", b.op(ir.OpLinear, b.data("d"), w))
			return "loss"
		},
		"rows that are not tokens": func(b *bench) string {
			x := b.Input("x", ir.F32, ir.Of(ir.R), ir.Const(width))
			b.Output("loss", b.op(ir.OpLinear, x, b.param("w", 2, width)))
			return "loss"
		},
	} {
		b := newBench()
		if _, _, err := grad.Backward(b.Graph, build(b), all); !errors.Is(err, grad.ErrGradient) {
			t.Errorf("%s: %v", name, err)
		}
	}
	g := ir.New("no offsets")
	g.Output("loss", g.Op1(ir.OpEmbed, ir.Attrs{}, g.Input("ids", ir.I32, ir.Of(ir.T)), g.Weight("w", ir.F32, ir.Const(2), ir.Const(2))))
	if _, _, err := grad.Backward(g, "loss", all); !errors.Is(err, grad.ErrGradient) || !strings.Contains(err.Error(), "offsets") {
		t.Errorf("without offsets: %v", err)
	}
}
