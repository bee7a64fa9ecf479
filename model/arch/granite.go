package arch

import "smolgym/model/ir"

// Granite: as Llama, with factors on embedding, scores, residual and logits.
var granite = family{
	name: "granite", architecture: "GraniteForCausalLM", eps: 1e-6, positions: 2048, theta: 10000, mlpBias: true,
	consumes: []string{"attention_bias", "mlp_bias", "embedding_multiplier", "attention_multiplier", "residual_multiplier", "logits_scaling"},
	setup: func(b *builder) {
		b.embedScale, b.scale, b.residual = or(b.c.EmbeddingMultiplier, 1), or(b.c.AttentionMultiplier, 1), or(b.c.ResidualMultiplier, 1)
		b.logitScale = 1 / or(b.c.LogitsScaling, 1)
	},
	check: func(k *checker) {
		if v := k.c.LogitsScaling; v != nil && *v == 0 {
			k.gap(GapConfig, "logits_scaling", "is 0; the logits are divided by it")
		}
	},
	layer: func(b *builder, i int, h ir.ID) ir.ID {
		bias := or(b.c.AttentionBias, false)
		return b.preNormLayer(i, h, attentionOptions{qkvBias: bias, outBias: bias}, or(b.c.MLPBias, false))
	},
}
