package lora_test

import (
	"errors"
	"fmt"
	"math"
	"testing"

	"smolgym/model/ir"
	"smolgym/model/lora"
)

// mixed has a plain module, one with its weight stored transposed, and experts.
func mixed(t *testing.T) *ir.Graph {
	t.Helper()
	g := ir.New("mixed")
	x := g.Input("x", ir.F32, ir.Of(ir.T), ir.Const(4))
	at := func(module string) ir.Attrs { return ir.Attrs{Module: module, Part: ir.PartMLP} }
	h := g.Op1(ir.OpLinear, at("plain"), x, g.Weight("plain.weight", ir.F32, ir.Const(4), ir.Const(4)))
	h = g.Op1(ir.OpLinearT, at("turned"), h, g.Weight("turned.weight", ir.F32, ir.Const(4), ir.Const(6)))
	router := g.Op1(ir.OpLinear, ir.Attrs{Module: "gate"}, h, g.Weight("gate.weight", ir.F32, ir.Const(3), ir.Const(6)))
	experts := g.Add(ir.OpTopK, ir.Attrs{Pick: 2}, router)[1]
	w := g.Weight("mlp.experts.gate_up_proj", ir.F32, ir.Const(3), ir.Const(8), ir.Const(6))
	g.Output("y", g.Op1(ir.OpExpertLinear, at("mlp.experts.gate_up_proj"), h, w, experts))
	if _, err := g.Finish(); err != nil {
		t.Fatal(err)
	}
	return g
}

func TestApplyByModule(t *testing.T) {
	c := lora.Config{Rank: 2, Alpha: 8, MLP: true}
	g, adapters, err := lora.Apply(mixed(t), c)
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, a := range adapters {
		id, _ := g.ByName(a.B)
		got = append(got, fmt.Sprint(a.Module, a.In, a.Out, a.Rank, a.Experts, a.Transposed, a.Scale, g.Value(id).Type))
	}
	want := []string{"plain4 4 2 0 false 4 f32[4,2]", "turned4 6 2 0 true 4 f32[6,2]", "mlp.experts.gate_up_proj6 8 2 3 false 4 f32[3,8,2]"}
	if fmt.Sprint(got) != fmt.Sprint(want) {
		t.Errorf("adapters\n%q, want\n%q", got, want)
	}
	c.Of = func(module string) (int, float64) {
		if module == "turned" {
			return 0, 0
		}
		return len(module), 1
	}
	if _, adapters, err = lora.Apply(mixed(t), c); err != nil || len(adapters) != 2 || adapters[0].Rank != 5 || adapters[1].Scale != 1.0/24 {
		t.Errorf("with ranks by module: %v, %v", adapters, err)
	}
	c.Of = func(string) (int, float64) { return lora.MaxRank + 1, 1 }
	if _, _, err = lora.Apply(mixed(t), c); !errors.Is(err, lora.ErrConfig) {
		t.Errorf("a rank beyond the bound: %v", err)
	}
}

// PEFT keeps experts as modules of their own; gate and up get the same A.
func TestTensorsOfExperts(t *testing.T) {
	a := lora.Adapter{Module: "m.mlp.experts.gate_up_proj", Experts: 2, In: 3, Out: 8, Rank: 2}
	var got []string
	for _, x := range a.Tensors(nil) {
		got = append(got, fmt.Sprintf("%s %dx%d %v+%d", x.Name, x.Rows, x.Columns, x.B, x.Offset))
	}
	p := lora.Prefix + "m.mlp.experts."
	want := []string{
		p + "0.gate_proj.lora_A.weight 2x3 false+0", p + "0.gate_proj.lora_B.weight 4x2 true+0",
		p + "0.up_proj.lora_A.weight 2x3 false+0", p + "0.up_proj.lora_B.weight 4x2 true+8",
		p + "1.gate_proj.lora_A.weight 2x3 false+6", p + "1.gate_proj.lora_B.weight 4x2 true+16",
		p + "1.up_proj.lora_A.weight 2x3 false+6", p + "1.up_proj.lora_B.weight 4x2 true+24",
	}
	if fmt.Sprint(got) != fmt.Sprint(want) {
		t.Errorf("tensors\n%q, want\n%q", got, want)
	}
	named := a.Tensors([]string{"x.experts.0.w1.weight", "x.experts.0.w3.weight", "x.experts.1.w1.weight", "x.experts.1.w3.weight"})
	if named[2].Name != lora.Prefix+"x.experts.0.w3.lora_A.weight" {
		t.Errorf("with the files' names: %v", named[2])
	}
	plain := lora.Adapter{A: "a", B: "b", In: 3, Out: 5, Rank: 2}
	if got := fmt.Sprint(plain.Tensors(nil)); got != "[{a 2 3 false 0} {b 5 2 true 0}]" {
		t.Errorf("a plain module: %s", got)
	}
}

func TestMergeKinds(t *testing.T) {
	seq := func(n int, by float32) []float32 {
		x := make([]float32, n)
		for i := range x {
			x[i] = by * float32(i%7-3)
		}
		return x
	}
	const in, out, rank, experts = 3, 5, 2, 2
	w, a, b := seq(experts*out*in, 0.5), seq(experts*rank*in, 1), seq(experts*out*rank, 0.25)
	both, err := lora.Merge(w, a, b, lora.Adapter{In: in, Out: out, Rank: rank, Experts: experts}, 2)
	if err != nil {
		t.Fatal(err)
	}
	for e := range experts {
		cut := func(x []float32) []float32 { return x[e*len(x)/experts : (e+1)*len(x)/experts] }
		one, err := lora.Merge(cut(w), cut(a), cut(b), lora.Adapter{In: in, Out: out, Rank: rank}, 2)
		if err != nil {
			t.Fatal(err)
		}
		turned := make([]float32, in*out)
		for i, v := range cut(w) {
			turned[i%in*out+i/in] = v
		}
		back, err := lora.Merge(turned, cut(a), cut(b), lora.Adapter{In: in, Out: out, Rank: rank, Transposed: true}, 2)
		if err != nil {
			t.Fatal(err)
		}
		for i := range one {
			want := float64(cut(w)[i])
			for r := range rank {
				want += 2 * float64(cut(b)[i/in*rank+r]) * float64(cut(a)[r*in+i%in])
			}
			if math.Abs(float64(one[i])-want) > 1e-6 || one[i] != cut(both)[i] || one[i] != back[i%in*out+i/in] {
				t.Fatalf("expert %d, element %d: %v alone, %v among experts, %v transposed, want %v", e, i, one[i], cut(both)[i], back[i%in*out+i/in], want)
			}
		}
	}
	if _, err := lora.Merge(w, a, b, lora.Adapter{In: in, Out: out, Rank: rank}, 2); !errors.Is(err, lora.ErrTensor) {
		t.Errorf("experts' tensors for one module: %v", err)
	}
}
