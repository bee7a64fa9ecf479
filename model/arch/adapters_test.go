package arch_test

import (
	"strings"

	"smolgym/model/lora"
)

// slacks widens the tolerance of adapters' gradients, and of what three steps of
// Adam make of a gradient, where the golden's own
// rounding is as large: its linear attention works in float32 chunks. Of
// qwen3_5_text the worst element is off by 1.9e-4 of itself from the same
// computation in float64, ours by 0.6e-4.
var slacks = map[string]float64{"qwen3_5_text": 3, "qwen3_next": 3}

// adapterName is a tensor's name in the goldens. Experts' adapters are named as
// PEFT's wrappers of the fused parameters: the inner one around gate and up.
func (g *golden) adapterName(a lora.Adapter, name string) string {
	name = strings.TrimPrefix(name, lora.Prefix)
	if a.Experts == 0 {
		return name
	}
	return strings.NewReplacer(".gate_up_proj.", ".base_layer.", ".down_proj.", ".").Replace(name)
}

// adapterRank is the rank that the golden has for a module, 0 if it has none.
func (g *golden) adapterRank(module string, info *loraInfo) (int, float64) {
	a := lora.Adapter{}
	if strings.Contains(module, ".experts.") {
		a.Experts = 1
	}
	nameA, _ := lora.Names(module)
	t, ok := g.file.Tensor("lora.init." + g.adapterName(a, nameA))
	if !ok {
		return 0, 0
	}
	rank := int(t.Shape[0])
	if a.Experts > 0 {
		rank /= g.experts
	}
	return rank, info.Alpha / float64(info.Rank) * float64(rank)
}

// count is the number of tensors whose names begin so.
func (g *golden) count(begin string) int {
	n := 0
	for _, t := range g.file.Tensors() {
		if strings.HasPrefix(t.Name, begin) {
			n++
		}
	}
	return n
}

// adapter reads A or B in the graph's order. PEFT keeps the wrapper's B as
// [out, rank*experts], the expert changing fastest.
func (g *golden) adapter(a lora.Adapter, kind, name string) []float32 {
	x := g.floats(kind + g.adapterName(a, name))
	if a.Experts == 0 || name == a.A {
		return x
	}
	y := make([]float32, len(x))
	for i := range x {
		o, r, e := i/(a.Rank*a.Experts), i/a.Experts%a.Rank, i%a.Experts
		y[(e*a.Out+o)*a.Rank+r] = x[i]
	}
	return y
}

// storedOrder is the reverse of adapter.
func (g *golden) storedOrder(a lora.Adapter, name string, x []float32) []float32 {
	if a.Experts == 0 || name == a.A {
		return x
	}
	y := make([]float32, len(x))
	for i := range y {
		o, r, e := i/(a.Rank*a.Experts), i/a.Experts%a.Rank, i%a.Experts
		y[i] = x[(e*a.Out+o)*a.Rank+r]
	}
	return y
}
