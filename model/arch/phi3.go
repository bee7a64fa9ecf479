package arch

import (
	"fmt"

	"smolgym/model/ir"
)

// Phi3: one projection for query, key and value and one for gate and up;
// partial rotary, longrope.
var phi3 = family{
	name: "phi3", architecture: "Phi3ForCausalLM", eps: 1e-5, positions: 4096, theta: 10000, partial: true,
	consumes: []string{"sliding_window"},
	layer: func(b *builder, i int, h ir.ID) ir.ID {
		o := attentionOptions{window: b.window(0)}
		return b.preNorm(i, h, func(x ir.ID) ir.ID { return b.fusedAttention(i, x, o) }, func(x ir.ID) ir.ID { return b.fusedMLP(i, x) })
	},
}

func (b *builder) fusedAttention(i int, x ir.ID, o attentionOptions) ir.ID {
	c, module := b.c, fmt.Sprintf("model.layers.%d.self_attn.", i)
	qSize, kvSize := c.Heads*c.HeadDim, c.KVHeads*c.HeadDim
	all := qSize + 2*kvSize
	qkv := b.linear(i, module+"qkv_proj", ir.PartAttention, x, c.HiddenSize, all, false)
	q, k, v := b.slice(i, qkv, 1, all, 0, qSize), b.slice(i, qkv, 1, all, qSize, kvSize), b.slice(i, qkv, 1, all, qSize+kvSize, kvSize)
	return b.linear(i, module+"o_proj", ir.PartAttention, b.attend(i, q, k, v, o), qSize, c.HiddenSize, false)
}

func (b *builder) fusedMLP(i int, x ir.ID) ir.ID {
	module, d, f := fmt.Sprintf("model.layers.%d.mlp.", i), b.c.HiddenSize, b.inner
	both := b.linear(i, module+"gate_up_proj", ir.PartMLP, x, d, 2*f, false)
	y := b.gate(i, b.slice(i, both, 1, 2*f, 0, f), b.slice(i, both, 1, 2*f, f, f))
	return b.linear(i, module+"down_proj", ir.PartMLP, y, f, d, false)
}
