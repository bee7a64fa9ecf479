package arch

import "smolgym/model/ir"

// SmolLM3: as Llama, tied by default; every fourth layer has no rotary embedding.
var smollm3 = family{
	name: "smollm3", architecture: "SmolLM3ForCausalLM", eps: 1e-6, positions: 32768, tied: true,
	consumes: []string{"attention_bias", "mlp_bias", "no_rope_layers", "no_rope_layer_interval"},
	layer: func(b *builder, i int, h ir.ID) ir.ID {
		bias := or(b.c.AttentionBias, false)
		o := attentionOptions{qkvBias: bias, outBias: bias, noRope: (i+1)%or(b.c.NoRopeInterval, 4) == 0}
		if len(b.c.NoRopeLayers) > 0 {
			o.noRope = b.c.NoRopeLayers[i] == 0
		}
		return b.preNormLayer(i, h, o, or(b.c.MLPBias, false))
	},
}
