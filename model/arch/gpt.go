package arch

import (
	"fmt"

	"smolgym/model/hf"
	"smolgym/model/ir"
)

// GPT-2: learned positions, layer norms, weights stored [in,out], GELU without gate.
var gpt2 = family{
	name: "gpt2", architecture: "GPT2LMHeadModel", eps: 1e-5, positions: 1024, tied: true, layerNorm: true, noRope: true,
	names:       moduleNames{embed: "transformer.wte", positions: "transformer.wpe", norm: "transformer.ln_f", head: "lm_head"},
	activations: []string{"gelu_new", "gelu_pytorch_tanh", "gelu_fast", "gelu"},
	consumes:    []string{"scale_attn_weights", "scale_attn_by_inverse_layer_idx"},
	inner:       func(c *hf.Config) int { return 4 * c.HiddenSize },
	check: func(k *checker) {
		if k.c.KVHeads != k.c.Heads || k.c.Heads*k.c.HeadDim != k.c.HiddenSize {
			k.gap(GapConfig, "n_head", "%d heads of %d, %d for keys; a GPT has all of one kind that make up the hidden size, %d", k.c.Heads, k.c.HeadDim, k.c.KVHeads, k.c.HiddenSize)
		}
	},
	layer: func(b *builder, i int, h ir.ID) ir.ID {
		module, d := fmt.Sprintf("transformer.h.%d.", i), b.c.HiddenSize
		usual := b.scale
		if string(b.c.Raw["scale_attn_weights"]) == "false" {
			b.scale = 1
		}
		if string(b.c.Raw["scale_attn_by_inverse_layer_idx"]) == "true" {
			b.scale /= float64(i + 1)
		}
		x := b.norm(i, module+"ln_1", h, 1, d)
		qkv := b.linearT(i, module+"attn.c_attn", ir.PartAttention, x, d, 3*d)
		y := b.attend(i, b.slice(i, qkv, 1, 3*d, 0, d), b.slice(i, qkv, 1, 3*d, d, d), b.slice(i, qkv, 1, 3*d, 2*d, d), attentionOptions{noRope: true})
		b.scale = usual
		h = b.add(i, h, b.linearT(i, module+"attn.c_proj", ir.PartAttention, y, d, d))
		x = b.norm(i, module+"ln_2", h, 1, d)
		x = b.activate(i, b.linearT(i, module+"mlp.c_fc", ir.PartMLP, x, d, b.inner))
		return b.add(i, h, b.linearT(i, module+"mlp.c_proj", ir.PartMLP, x, b.inner, d))
	},
}

// GPT-NeoX: layer norms, one projection with query, key and value of each head
// side by side, partial rotary, attention and feed-forward block in parallel.
var gptNeoX = family{
	name: "gpt_neox", architecture: "GPTNeoXForCausalLM", eps: 1e-5, positions: 2048, theta: 10000, rotary: 0.25, partial: true, layerNorm: true,
	names:       moduleNames{embed: "gpt_neox.embed_in", norm: "gpt_neox.final_layer_norm", head: "embed_out"},
	activations: []string{"gelu", "gelu_new", "gelu_fast", "gelu_pytorch_tanh"},
	consumes:    []string{"attention_bias", "use_parallel_residual"},
	inner:       func(*hf.Config) int { return 24576 },
	check:       gpt2.check,
	layer: func(b *builder, i int, h ir.ID) ir.ID {
		module, d := fmt.Sprintf("gpt_neox.layers.%d.", i), b.c.HiddenSize
		heads, size, bias := b.c.Heads, b.c.HeadDim, or(b.c.AttentionBias, true)
		qkv := b.linear(i, module+"attention.query_key_value", ir.PartAttention, b.norm(i, module+"input_layernorm", h, 1, d), d, 3*d, bias)
		part := func(k int) ir.ID { return b.slice(i, qkv, heads, 3*size, k*size, size) }
		y := b.linear(i, module+"attention.dense", ir.PartAttention, b.attend(i, part(0), part(1), part(2), attentionOptions{}), d, d, bias)
		mlp := func(x ir.ID) ir.ID {
			x = b.norm(i, module+"post_attention_layernorm", x, 1, d)
			x = b.activate(i, b.linear(i, module+"mlp.dense_h_to_4h", ir.PartMLP, x, d, b.inner, true))
			return b.linear(i, module+"mlp.dense_4h_to_h", ir.PartMLP, x, b.inner, d, true)
		}
		if or(b.c.ParallelResidual, true) {
			return b.add(i, b.add(i, mlp(h), y), h)
		}
		h = b.add(i, h, y)
		return b.add(i, h, mlp(h))
	},
}
