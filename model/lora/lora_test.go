package lora_test

import (
	"errors"
	"fmt"
	"math"
	"slices"
	"strings"
	"testing"

	"smolgym/model/ir"
	"smolgym/model/lora"
)

// small is two attention and two feed-forward modules, one with a bias, a head
// and one module without part.
func small(t *testing.T) *ir.Graph {
	t.Helper()
	g := ir.New("small")
	x := g.Input("x", ir.F32, ir.Of(ir.T), ir.Const(6))
	linear := func(x ir.ID, layer int, module string, part ir.Part, in, out int, bias bool) ir.ID {
		args := []ir.ID{x, g.Weight(module+".weight", ir.F32, ir.Const(out), ir.Const(in))}
		if bias {
			args = append(args, g.Weight(module+".bias", ir.F32, ir.Const(out)))
		}
		return g.Op1(ir.OpLinear, ir.Attrs{Layer: layer, Module: module, Part: part}, args...)
	}
	h := linear(x, 0, "model.layers.0.self_attn.q_proj", ir.PartAttention, 6, 8, true)
	h = linear(h, 0, "model.layers.0.self_attn.o_proj", ir.PartAttention, 8, 6, false)
	h = linear(h, 0, "model.layers.0.mlp.up_proj", ir.PartMLP, 6, 10, false)
	h = linear(h, 0, "model.layers.0.mlp.down_proj", ir.PartMLP, 10, 6, false)
	h = linear(h, 0, "model.layers.0.router", ir.PartNone, 6, 6, false)
	g.Output("logits", linear(h, -1, "lm_head", ir.PartUnembed, 6, 12, false))
	if _, err := g.Finish(); err != nil {
		t.Fatal(err)
	}
	return g
}

func TestApplySelectsParts(t *testing.T) {
	g := small(t)
	before := dump(t, g)
	for _, c := range []struct {
		attention, mlp, unembed bool
		want                    string
	}{
		{true, false, false, "model.layers.0.self_attn.q_proj[6→8] model.layers.0.self_attn.o_proj[8→6]"},
		{false, true, false, "model.layers.0.mlp.up_proj[6→10] model.layers.0.mlp.down_proj[10→6]"},
		{false, false, true, "lm_head[6→12]"},
		{true, true, true, "model.layers.0.self_attn.q_proj[6→8] model.layers.0.self_attn.o_proj[8→6] model.layers.0.mlp.up_proj[6→10] model.layers.0.mlp.down_proj[10→6] lm_head[6→12]"},
	} {
		out, adapters, err := lora.Apply(g, lora.Config{Rank: 3, Alpha: 12, Attention: c.attention, MLP: c.mlp, Unembed: c.unembed})
		if err != nil {
			t.Fatal(err)
		}
		var got []string
		for _, a := range adapters {
			got = append(got, fmt.Sprintf("%s[%d→%d]", a.Module, a.In, a.Out))
			if a.A != "base_model.model."+a.Module+".lora_A.weight" || a.B != "base_model.model."+a.Module+".lora_B.weight" || a.Weight != a.Module+".weight" || a.Rank != 3 {
				t.Errorf("%+v", a)
			}
			ida, _ := out.ByName(a.A)
			idb, _ := out.ByName(a.B)
			va, vb := out.Value(ida), out.Value(idb)
			if va.Class != ir.ClassAdapter || va.Type.String() != fmt.Sprintf("f32[3,%d]", a.In) || vb.Type.String() != fmt.Sprintf("f32[%d,3]", a.Out) {
				t.Errorf("%s: %s, %s", a.Module, va.Type, vb.Type)
			}
		}
		if s := strings.Join(got, " "); s != c.want {
			t.Errorf("adapters %s, want %s", s, c.want)
		}
		if n := len(out.Nodes); n != len(g.Nodes)+3*len(adapters) {
			t.Errorf("%d nodes for %d adapters", n, len(adapters))
		}
		for _, n := range out.Nodes {
			if n.Op == ir.OpScaleAdd && n.Attr.Scale != 4 {
				t.Errorf("scale %g, want alpha/rank = 4", n.Attr.Scale)
			}
		}
		if _, again, err := lora.Apply(out, lora.Config{Rank: 3, Alpha: 12, Attention: c.attention, MLP: c.mlp, Unembed: c.unembed}); err == nil && len(again) != len(adapters) {
			t.Error("adapters got adapters")
		}
	}
	if dump(t, g) != before {
		t.Error("Apply changed its input")
	}
}

func dump(t *testing.T, g *ir.Graph) string {
	t.Helper()
	var b strings.Builder
	if err := ir.Dump(&b, g); err != nil {
		t.Fatal(err)
	}
	return b.String()
}

func TestApplyRefuses(t *testing.T) {
	g := small(t)
	for name, c := range map[string]lora.Config{
		"rank 0":    {Alpha: 32, MLP: true},
		"huge rank": {Rank: lora.MaxRank + 1, Alpha: 32, MLP: true},
		"alpha 0":   {Rank: 4, MLP: true},
		"alpha NaN": {Rank: 4, Alpha: math.NaN(), MLP: true},
		"no part":   {Rank: 4, Alpha: 32},
	} {
		if _, _, err := lora.Apply(g, c); !errors.Is(err, lora.ErrConfig) {
			t.Errorf("%s: %v", name, err)
		}
	}
	h := ir.New("no linear")
	h.Output("y", h.Op1(ir.OpNeg, ir.Attrs{}, h.Input("x", ir.F32, ir.Of(ir.T))))
	if _, _, err := lora.Apply(h, lora.Config{Rank: 4, Alpha: 32, MLP: true}); !errors.Is(err, lora.ErrConfig) {
		t.Errorf("nothing to adapt: %v", err)
	}
}

func TestInit(t *testing.T) {
	_, adapters, err := lora.Apply(small(t), lora.Config{Rank: 64, Alpha: 32, Attention: true, MLP: true, Unembed: true})
	if err != nil {
		t.Fatal(err)
	}
	first := lora.Init(adapters, 1)
	for _, a := range adapters {
		bound := 1 / math.Sqrt(float64(a.In))
		sum, square, n := 0.0, 0.0, float64(len(first[a.A]))
		for _, v := range first[a.A] {
			if x := math.Abs(float64(v)); x > bound*(1+1e-6) || x == 0 {
				t.Fatalf("%s holds %g, bound %g", a.A, v, bound)
			}
			sum += float64(v)
			square += float64(v) * float64(v)
		}
		if len(first[a.A]) != 64*a.In || math.Abs(sum/n) > 4*bound/math.Sqrt(3*n) || math.Abs(square/n-bound*bound/3) > 0.15*bound*bound {
			t.Errorf("%s: %g numbers, mean %g, variance %g for bound %g", a.A, n, sum/n, square/n, bound)
		}
		if i := slices.IndexFunc(first[a.B], func(v float32) bool { return math.Float32bits(v) != 0 }); i >= 0 || len(first[a.B]) != 64*a.Out {
			t.Errorf("%s is not zero", a.B)
		}
	}
	reversed := slices.Clone(adapters)
	slices.Reverse(reversed)
	again, other := lora.Init(reversed[1:], 1), lora.Init(adapters, 2)
	for _, a := range reversed[1:] {
		if !slices.Equal(again[a.A], first[a.A]) {
			t.Errorf("%s depends on order or number of adapters", a.A)
		}
		if slices.Equal(other[a.A], first[a.A]) {
			t.Errorf("%s does not depend on the seed", a.A)
		}
	}
	if slices.Equal(first[adapters[0].A], first[adapters[2].A]) { // same shape, other name
		t.Error("two modules start alike")
	}
	// The stream is part of what a seed means: it must not change.
	if got := fmt.Sprintf("%.7g", lora.Init(adapters[:1], 42)[adapters[0].A][:4]); got != initGolden {
		t.Errorf("seed 42 begins with %s, was %s", got, initGolden)
	}
}

// Computed by an independent program from the description of Init.
const initGolden = "[-0.3946522 0.2495651 -0.2271237 -0.3481206]"

func TestMerge(t *testing.T) {
	a := lora.Adapter{Module: "m", In: 3, Out: 2, Rank: 2}
	w := []float32{1, 2, 3, 4, 5, 6}
	down := []float32{1, 0, 2, 0, 1, -1} // [2,3]
	up := []float32{1, 2, 0, 3}          // [2,2]
	got, err := lora.Merge(w, down, up, a, 0.5)
	// B·A = [[1,2,0],[0,3,-3]]
	if want := []float32{1.5, 3, 3, 4, 6.5, 4.5}; err != nil || !slices.Equal(got, want) {
		t.Errorf("%v, %v, want %v", got, err, want)
	}
	if w[0] != 1 {
		t.Error("Merge changed its input")
	}
	if got, _ := lora.Merge(w, down, make([]float32, 4), a, 2); !slices.Equal(got, w) {
		t.Errorf("a fresh adapter changes the weight: %v", got)
	}
	if _, err := lora.Merge(w, down, up[:3], a, 1); !errors.Is(err, lora.ErrTensor) {
		t.Errorf("short B: %v", err)
	}
}
