package arch_test

import (
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"smolgym/model/arch"
	"smolgym/model/hf"
	"smolgym/model/ir"
	"smolgym/model/safetensors"
)

// What the other families refuse, field by field.
func TestFamiliesRefuse(t *testing.T) {
	for _, c := range []struct {
		model  string
		fields map[string]string
		want   []string // prefixes of the gaps
	}{
		{model: "gemma2_uncapped"},
		{model: "gemma2_uncapped", fields: map[string]string{"use_bidirectional_attention": "true"}, want: []string{"config use_bidirectional_attention: true"}},
		{model: "gemma2_uncapped", fields: map[string]string{"hidden_activation": `"relu"`}, want: []string{`config hidden_act: "relu" is not supported; gelu_pytorch_tanh`}},
		{model: "gemma2_uncapped", fields: map[string]string{"layer_types": `["full_attention","chunked_attention"]`}, want: []string{`config layer_types: layer 1 is "chunked_attention"`}},
		{model: "gemma3_scaled", fields: map[string]string{"rope_local_base_freq": "", "rope_theta": "", "rope_scaling": `{"sliding_attention":{"rope_type":"spiral","rope_theta":1e4},"full_attention":{"rope_theta":1e6}}`},
			want: []string{`config rope_parameters.sliding_attention.rope_type: "spiral"`}},
		{model: "olmo3", fields: map[string]string{"layer_types": `["full_attention","full_attention","linear_attention","full_attention"]`}, want: []string{`config layer_types: layer 2 is "linear_attention"`}},
		{model: "phi3_longrope", fields: map[string]string{"rope_scaling": `{"type":"su","short_factor":[1],"long_factor":[1,2]}`}, want: []string{"config rope_parameters.short_factor: 1 factors and 2 in long_factor; 2 pairs"}},
		{model: "phi3_longrope", fields: map[string]string{"resid_pdrop": "0.1"}, want: []string{"config resid_pdrop: 0.1"}},
		{model: "granite_biases", fields: map[string]string{"logits_scaling": "0"}, want: []string{"config logits_scaling: is 0"}},
		{model: "gpt2_scaled", fields: map[string]string{"activation_function": `"relu"`}, want: []string{`config hidden_act: "relu"`}},
		{model: "gpt2_scaled", fields: map[string]string{"n_head": "3", "head_dim": "8"}, want: []string{"config n_head: 3 heads of 8"}},
		{model: "gpt2_scaled", fields: map[string]string{"add_cross_attention": "true"}, want: []string{"config add_cross_attention: true"}},
		{model: "gpt2_scaled", fields: map[string]string{"n_positions": "95"}, want: []string{"shape transformer.wpe.weight: is [96 32], the configuration says [95,32]"}},
		{model: "gpt_neox_serial", fields: map[string]string{"rotary_pct": "0.1"}, want: []string{"config head_dim: 0 elements of a head would rotate"}},
		{model: "mixtral", fields: map[string]string{"num_local_experts": "5"}, want: slices.Repeat([]string{"missing model.layers.", "missing model.layers.", "missing model.layers.", "shape model.layers."}, 2)},
		{model: "mixtral", fields: map[string]string{"router_jitter_noise": "0.01"}, want: []string{"config router_jitter_noise: 0.01"}},
		{model: "qwen3_moe_mixed", fields: map[string]string{"mlp_only_layers": "[]"}, want: []string{"unexpected model.layers.1.mlp.down_proj.weight", "missing model.layers.1.mlp.experts.down_proj: the family qwen3_moe needs it, shape [5,32,12]"}},
		{model: "qwen3_moe_mixed", fields: map[string]string{"moe_intermediate_size": "13"}, want: []string{"shape model.layers.0.mlp.experts.0.down_proj.weight: is [32 12], the configuration says [32,13]"}},
		{model: "qwen3_next_dense", fields: map[string]string{"linear_num_key_heads": "3"}, want: []string{"config linear_num_key_heads: is 3; it must divide linear_num_value_heads, 4"}},
		{model: "qwen3_next_dense", fields: map[string]string{"linear_conv_kernel_dim": "1"}, want: []string{"config linear_conv_kernel_dim: is 1"}},
		{model: "qwen3_5_moe", fields: map[string]string{"attn_output_gate": "false"}, want: []string{"config attn_output_gate: is false"}},
		{model: "qwen3_5_moe", fields: map[string]string{"attn_output_gate": "true", "mtp_num_hidden_layers": "1"}},
		{model: "qwen3_5_moe", fields: map[string]string{"output_gate_type": `"swish"`}, want: []string{`config output_gate_type: "swish"`}},
	} {
		t.Run(fmt.Sprint(c.model, c.fields), func(t *testing.T) {
			gaps := arch.Check(sample(t, c.model, c.fields))
			if len(c.want) == 0 && len(gaps) > 0 {
				t.Fatalf("gaps %v", gaps)
			}
			for i, w := range c.want {
				if i >= len(gaps) || !strings.HasPrefix(gaps[i].String(), w) {
					t.Fatalf("gaps\n%v, want\n%q", gaps, c.want)
				}
			}
		})
	}
}

// What the families read where their files say nothing, as the reference's classes.
func TestClassDefaults(t *testing.T) {
	attention := func(m *arch.Model) (windows []int, caps, scales []float64, rotary []int) {
		for _, n := range m.Graph.Nodes {
			switch n.Op {
			case ir.OpAttention:
				windows, caps, scales = append(windows, n.Attr.Window), append(caps, n.Attr.Softcap), append(scales, n.Attr.Scale)
			case ir.OpRope:
				rotary = append(rotary, n.Attr.Rotary)
			}
		}
		return
	}
	for _, c := range []struct {
		model  string
		absent []string
		want   string
	}{
		{"gemma2_uncapped", []string{"sliding_window", "attn_logit_softcapping", "query_pre_attn_scalar", "layer_types"}, "[4096 0] [50 50] [0.0625 0.0625] [16 16 16 16]"},
		{"gemma3_scaled", []string{"sliding_window", "layer_types", "_sliding_window_pattern"}, "[4096 4096 4096] [0 0 0] [0.2886751345948129 0.2886751345948129 0.2886751345948129] [8 8 8 8 8 8]"},
		{"olmo3", []string{"sliding_window", "layer_types"}, "[4096 4096 4096 0] [0 0 0 0] [0.35355339059327373 0.35355339059327373 0.35355339059327373 0.35355339059327373] [8 8 8 8 8 8 8 8]"},
		{"gpt_neox_serial", []string{"rotary_pct"}, "[0 0] [0 0] [0.35355339059327373 0.35355339059327373] [2 2 2 2]"},
		{"granite_biases", []string{"attention_multiplier"}, "[0 0] [0 0] [1 1] [8 8 8 8]"},
		{"mixtral", []string{"sliding_window"}, "[0 0] [0 0] [0.35355339059327373 0.35355339059327373] [8 8 8 8]"},
	} {
		fields := map[string]string{}
		for _, f := range c.absent {
			fields[f] = ""
		}
		m, err := arch.Build(sample(t, c.model, fields), arch.Train)
		if err != nil {
			t.Errorf("%s: %v", c.model, err)
			continue
		}
		w, caps, scales, rotary := attention(m)
		if got := fmt.Sprint(w, caps, scales, rotary); got != c.want {
			t.Errorf("%s without %v: %s, want %s", c.model, c.absent, got, c.want)
		}
	}
}

// A decoder inside a model of several parts: its configuration and its tensors
// are found, the others are named as unused.
func TestWrapper(t *testing.T) {
	dir := unpack(t, "qwen3_5_moe")
	text, err := os.ReadFile(filepath.Join(dir, "config.json"))
	if err != nil {
		t.Fatal(err)
	}
	var inner map[string]any
	if err := json.Unmarshal(text, &inner); err != nil {
		t.Fatal(err)
	}
	plain, src := describe(t, dir, "config.json")
	delete(inner, "architectures")
	outer, err := json.Marshal(map[string]any{"model_type": "qwen3_5_moe", "architectures": []string{"Qwen3_5MoeForConditionalGeneration"},
		"text_config": inner, "vision_config": map[string]any{"depth": 2}, "image_token_id": 7, "tie_word_embeddings": false})
	if err != nil {
		t.Fatal(err)
	}
	c, err := hf.ParseConfig(outer)
	if err != nil {
		t.Fatal(err)
	}
	wrapped := *plain
	wrapped.Config = *c
	wrapped.Tensors = maps.Clone(plain.Tensors)
	extra := []string{"model.visual.blocks.0.attn.qkv.weight", "mtp.layers.0.input_layernorm.weight", "model.visual.patch_embed.proj.bias"}
	for _, n := range extra {
		wrapped.Tensors[n] = hf.Tensor{Name: n, DType: safetensors.BF16, Shape: []int64{4}}
	}
	wrapped.Names = slices.Sorted(maps.Keys(wrapped.Tensors))
	m, err := arch.Build(&wrapped, arch.Train)
	if err != nil {
		t.Fatal(err)
	}
	slices.Sort(extra)
	if !slices.Equal(m.Unused, extra) || len(m.Warnings) != 1 || !strings.Contains(m.Warnings[0], "text decoder alone") {
		t.Errorf("unused %v, warnings %v", m.Unused, m.Warnings)
	}
	alone, err := arch.Build(plain, arch.Train)
	if err != nil {
		t.Fatal(err)
	}
	var a, b strings.Builder
	if ir.Dump(&a, m.Graph) != nil || ir.Dump(&b, alone.Graph) != nil || a.String() != b.String() {
		t.Error("the wrapped decoder's graph is not that of the decoder alone")
	}
	if parts := m.Stored["model.embed_tokens.weight"]; len(parts) != 1 || parts[0] != "model.language_model.embed_tokens.weight" {
		t.Errorf("the embedding is stored as %v", parts)
	}
	r := newRig(t)
	r.load(m, &wrapped, src) // every weight is found under its stored name
	if _, err := hf.ParseConfig([]byte(strings.Replace(string(outer), `"qwen3_5_moe"`, `"gemma3"`, 1))); err == nil {
		t.Error("a decoder of another wrapper is taken")
	}
}

// Experts kept one by one are laid end to end, gate before up, expert by expert.
func TestStoredExperts(t *testing.T) {
	for name, want := range map[string][]string{
		"mixtral":         {"model.layers.1.block_sparse_moe.experts.0.w1.weight", "model.layers.1.block_sparse_moe.experts.0.w3.weight", "model.layers.1.block_sparse_moe.experts.1.w1.weight"},
		"qwen3_moe_mixed": {"model.layers.2.mlp.experts.0.gate_proj.weight", "model.layers.2.mlp.experts.0.up_proj.weight", "model.layers.2.mlp.experts.1.gate_proj.weight"},
	} {
		ck, src := describe(t, unpack(t, name), "config.json")
		m, err := arch.Build(ck, arch.Train)
		if err != nil {
			t.Fatal(err)
		}
		weight := strings.Split(want[0], ".experts.")[0]
		weight = strings.Replace(weight, ".block_sparse_moe", ".mlp", 1) + ".experts.gate_up_proj"
		parts := m.Stored[weight]
		if len(parts) != 2**ck.Config.Experts || !slices.Equal(parts[:3], want) {
			t.Fatalf("%s is stored as %v", weight, parts)
		}
		id, _ := m.Graph.ByName(weight)
		shape := m.Graph.Value(id).Type.Shape
		all := make([]float32, shape.Elements(ir.Dims{}))
		w := ck.Weights(src)
		defer w.Close()
		if err := w.Float32s(all, weight); err != nil {
			t.Fatal(err)
		}
		size := len(all) / len(parts)
		for i, p := range parts {
			one := make([]float32, size)
			if err := w.Float32s(one, p); err != nil {
				t.Fatal(err)
			}
			if !slices.Equal(one, all[i*size:(i+1)*size]) {
				t.Errorf("part %d of %s is not %s", i, weight, p)
			}
		}
		if err := w.Float32s(all[:len(all)-1], weight); err == nil {
			t.Error("too short a destination is filled")
		}
	}
}

// Files of the bare decoder, saved without the head's class, have no prefix.
func TestBareDecoder(t *testing.T) {
	ck, _ := describe(t, unpack(t, "gpt2_scaled"), "config.json")
	tensors := map[string]hf.Tensor{}
	for n, x := range ck.Tensors {
		x.Name = strings.TrimPrefix(n, "transformer.")
		tensors[x.Name] = x
	}
	mask := hf.Tensor{Name: "h.0.attn.bias", DType: safetensors.U8, Shape: []int64{1, 1, 96, 96}}
	tensors[mask.Name] = mask
	ck.Tensors, ck.Names = tensors, slices.Sorted(maps.Keys(tensors))
	m, err := arch.Build(ck, arch.Train)
	if err != nil {
		t.Fatal(err)
	}
	if fmt.Sprint(m.Unused) != "[h.0.attn.bias]" || m.Stored["transformer.h.1.mlp.c_fc.weight"][0] != "h.1.mlp.c_fc.weight" {
		t.Errorf("unused %v, stored %v", m.Unused, m.Stored)
	}
}
