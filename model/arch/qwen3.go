package arch

import "smolgym/model/ir"

// Qwen3: as Llama, with a norm over every query and key head; no bias in the
// feed-forward block.
var qwen3 = family{
	name: "qwen3", architecture: "Qwen3ForCausalLM", eps: 1e-6, positions: 32768,
	layerKinds: []string{fullAttention, slidingAttention},
	consumes:   append([]string{"attention_bias"}, qwenWindows...),
	layer: func(b *builder, i int, h ir.ID) ir.ID {
		bias := or(b.c.AttentionBias, false)
		return b.preNormLayer(i, h, attentionOptions{qkNorm: true, window: b.qwenWindow(i), qkvBias: bias, outBias: bias}, false)
	},
}
