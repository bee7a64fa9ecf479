package lora_test

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	"smolgym/model/ir"
	"smolgym/model/lora"
)

// TestMix: every selected module takes its adapter from the group by its own
// index, and what it takes is declared once.
func TestMix(t *testing.T) {
	g := small(t)
	before := dump(t, g)
	out, modules, err := lora.Mix(g, lora.Config{Attention: true, Unembed: true})
	if err != nil {
		t.Fatal(err)
	}
	if err := ir.Verify(out); err != nil {
		t.Fatal(err)
	}
	if dump(t, g) != before {
		t.Error("the graph itself was changed")
	}
	var names, nodes []string
	for _, m := range modules {
		names = append(names, m.Module)
	}
	for _, n := range out.Nodes {
		if n.Op == ir.OpAdapt {
			nodes = append(nodes, fmt.Sprintf("%s %d of %d", n.Attr.Module, n.Attr.Offset, n.Attr.Of))
			if in := out.Value(n.In[3]); in.Name != lora.PlaceInput || in.Type.String() != "i32[T]" {
				t.Errorf("%s: places are %s %s", n.Attr.Module, in.Name, in.Type)
			}
		}
	}
	if s := strings.Join(names, " "); s != "model.layers.0.self_attn.q_proj model.layers.0.self_attn.o_proj lm_head" {
		t.Errorf("modules %s", s)
	}
	if s := strings.Join(nodes, ", "); s != "model.layers.0.self_attn.q_proj.lora 0 of 3, model.layers.0.self_attn.o_proj.lora 1 of 3, lm_head.lora 2 of 3" {
		t.Errorf("nodes %s", s)
	}
	if n := len(out.Named(ir.ClassGroup)); n != 1 {
		t.Errorf("%d groups", n)
	}
	if n := len(out.Named(ir.ClassAdapter)); n != 0 {
		t.Errorf("%d adapters of the graph's own", n)
	}
}

func TestMixRefusesExperts(t *testing.T) {
	c := lora.Config{MLP: true}
	if _, _, err := lora.Mix(mixed(t), c); !errors.Is(err, lora.ErrConfig) || lora.Mixable(mixed(t), c) {
		t.Errorf("experts were mixed: %v", err)
	}
	if !lora.Mixable(mixed(t), lora.Config{Attention: true}) {
		t.Error("a configuration without the experts can't be mixed")
	}
}
