package arch

import (
	"fmt"
	"math"

	"smolgym/model/ir"
)

// Gemma2: embeddings times sqrt(hidden), norms before and after each block with
// weights stored less one, every other layer with a window, soft caps on scores
// and logits, GELU gates.
var gemma2 = family{
	name: "gemma2", architecture: "Gemma2ForCausalLM", eps: 1e-6, positions: 8192, theta: 10000, tied: true, unitNorm: true,
	activations: []string{"gelu_pytorch_tanh", "gelu_new", "gelu"},
	layerKinds:  []string{fullAttention, slidingAttention},
	consumes:    []string{"attention_bias", "query_pre_attn_scalar", "attn_logit_softcapping", "final_logit_softcapping", "sliding_window"},
	setup: func(b *builder) {
		b.gemmaScales()
		b.scoreCap, b.logitCap = b.softcap("attn_logit_softcapping", b.c.AttentionSoftcap, 50), b.softcap("final_logit_softcapping", b.c.FinalSoftcap, 30)
	},
	layer: func(b *builder, i int, h ir.ID) ir.ID {
		bias := or(b.c.AttentionBias, false)
		o := attentionOptions{qkvBias: bias, outBias: bias}
		if b.windowed(i, 2) {
			o.window = b.window(4096)
		}
		return b.sandwich(i, h, o)
	},
}

func (b *builder) gemmaScales() {
	b.embedScale = float64(float32(math.Sqrt(float64(b.c.HiddenSize))))
	b.scale = 1 / math.Sqrt(or(b.c.QueryPreAttnScalar, 256))
}

// softcap is a cap with the class's default where the file does not state it; null is none.
func (b *builder) softcap(field string, value *float64, absent float64) float64 {
	if _, stated := b.c.Raw[field]; !stated {
		return absent
	}
	return or(value, 0)
}

// sandwich is a layer with a norm before and after each block.
func (b *builder) sandwich(i int, h ir.ID, o attentionOptions) ir.ID {
	module, d := fmt.Sprintf("model.layers.%d.", i), b.c.HiddenSize
	y := b.attention(i, b.norm(i, module+"input_layernorm", h, 1, d), o)
	h = b.add(i, h, b.norm(i, module+"post_attention_layernorm", y, 1, d))
	y = b.mlp(i, b.norm(i, module+"pre_feedforward_layernorm", h, 1, d), false)
	return b.add(i, h, b.norm(i, module+"post_feedforward_layernorm", y, 1, d))
}
