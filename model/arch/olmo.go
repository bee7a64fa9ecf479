package arch

import (
	"fmt"

	"smolgym/model/ir"
)

// Olmo2: norms after the blocks instead of before, and over all query and all
// key heads at once.
var olmo2 = family{
	name: "olmo2", architecture: "Olmo2ForCausalLM", eps: 1e-5, positions: 2048, theta: 10000,
	consumes: []string{"attention_bias"},
	layer:    func(b *builder, i int, h ir.ID) ir.ID { return b.postNormLayer(i, h, 0) },
}

// Olmo3: as Olmo2, three of four layers with a window.
var olmo3 = family{
	name: "olmo3", architecture: "Olmo3ForCausalLM", eps: 1e-5, positions: 2048, theta: 10000,
	layerKinds: []string{fullAttention, slidingAttention},
	consumes:   []string{"attention_bias", "sliding_window"},
	layer: func(b *builder, i int, h ir.ID) ir.ID {
		if b.windowed(i, 4) {
			return b.postNormLayer(i, h, b.window(4096))
		}
		return b.postNormLayer(i, h, 0)
	},
}

// postNormLayer is h + norm(attention(h)), then h + norm(mlp(h)).
func (b *builder) postNormLayer(i int, h ir.ID, window int) ir.ID {
	module, d, bias := fmt.Sprintf("model.layers.%d.", i), b.c.HiddenSize, or(b.c.AttentionBias, false)
	y := b.attention(i, h, attentionOptions{wide: true, window: window, qkvBias: bias, outBias: bias})
	h = b.add(i, h, b.norm(i, module+"post_attention_layernorm", y, 1, d))
	return b.add(i, h, b.norm(i, module+"post_feedforward_layernorm", b.mlp(i, h, false), 1, d))
}
