package arch

import "smolgym/model/ir"

// Mistral: as Llama without biases; every layer attends to a window of tokens.
var mistral = family{
	name: "mistral", architecture: "MistralForCausalLM", eps: 1e-6, positions: 131072,
	consumes: []string{"sliding_window"},
	layer: func(b *builder, i int, h ir.ID) ir.ID {
		return b.preNormLayer(i, h, attentionOptions{window: b.window(4096)}, false)
	},
}
