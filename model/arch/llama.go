package arch

import "smolgym/model/ir"

// Llama: pre-norm layers, grouped queries, gated SiLU; biases by flag.
var llama = family{
	name: "llama", architecture: "LlamaForCausalLM", eps: 1e-6, positions: 2048,
	consumes: []string{"attention_bias", "mlp_bias"},
	layer: func(b *builder, i int, h ir.ID) ir.ID {
		bias := or(b.c.AttentionBias, false)
		return b.preNormLayer(i, h, attentionOptions{qkvBias: bias, outBias: bias}, or(b.c.MLPBias, false))
	},
}
