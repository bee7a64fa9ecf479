package arch

import "smolgym/model/ir"

// Qwen2: as Llama, with biases on query, key and value and nowhere else.
var qwen2 = family{
	name: "qwen2", architecture: "Qwen2ForCausalLM", eps: 1e-6, positions: 32768,
	layer: func(b *builder, i int, h ir.ID) ir.ID {
		return b.preNormLayer(i, h, attentionOptions{qkvBias: true}, false)
	},
}
