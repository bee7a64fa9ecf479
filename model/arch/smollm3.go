package arch

import "smolgym/model/ir"

// SmolLM3: as Llama, tied by default; every fourth layer has no rotary embedding, and
// these have the window if there is one.
var smollm3 = family{
	name: "smollm3", architecture: "SmolLM3ForCausalLM", eps: 1e-6, positions: 32768, tied: true,
	layerKinds: []string{fullAttention, slidingAttention},
	consumes:   append([]string{"attention_bias", "mlp_bias", "no_rope_layers", "no_rope_layer_interval"}, qwenWindows...),
	layer: func(b *builder, i int, h ir.ID) ir.ID {
		bias := or(b.c.AttentionBias, false)
		o := attentionOptions{qkvBias: bias, outBias: bias, noRope: (i+1)%or(b.c.NoRopeInterval, 4) == 0}
		if len(b.c.NoRopeLayers) > 0 {
			o.noRope = b.c.NoRopeLayers[i] == 0
		}
		if in := o.noRope; len(b.c.LayerTypes) == 0 && in || len(b.c.LayerTypes) > 0 && b.c.LayerTypes[i] == slidingAttention {
			o.window = b.flaggedWindow()
		}
		return b.preNormLayer(i, h, o, or(b.c.MLPBias, false))
	},
}
