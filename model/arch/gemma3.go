package arch

import "smolgym/model/ir"

// Gemma3 (text): as Gemma2 without caps, with norms over query and key heads;
// five of six layers have a window and a rotary embedding of their own.
var gemma3 = family{
	name: "gemma3_text", architecture: "Gemma3ForCausalLM", wrapper: "Gemma3ForConditionalGeneration",
	eps: 1e-6, positions: 131072, theta: 1e6, tied: true, unitNorm: true, localRope: true,
	activations: []string{"gelu_pytorch_tanh", "gelu_new", "gelu"},
	layerKinds:  []string{fullAttention, slidingAttention},
	consumes:    []string{"attention_bias", "query_pre_attn_scalar", "attn_logit_softcapping", "final_logit_softcapping", "sliding_window", "sliding_window_pattern"},
	setup: func(b *builder) {
		b.gemmaScales()
		b.scoreCap, b.logitCap = or(b.c.AttentionSoftcap, 0), or(b.c.FinalSoftcap, 0)
	},
	layer: func(b *builder, i int, h ir.ID) ir.ID {
		bias := or(b.c.AttentionBias, false)
		o := attentionOptions{qkNorm: true, qkvBias: bias, outBias: bias}
		if b.windowed(i, or(b.c.WindowPattern, 6)) {
			o.window, o.local = b.window(4096), true
		}
		return b.sandwich(i, h, o)
	},
}
