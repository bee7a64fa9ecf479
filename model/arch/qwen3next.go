package arch

import (
	"fmt"
	"slices"

	"smolgym/model/hf"
	"smolgym/model/ir"
)

// mtp begins the names of the tensors that predict several tokens at once,
// which the reference leaves alone, too.
var mtp = []string{"mtp.", "model.mtp."}

// Qwen3-Next: three of four layers have linear attention by the gated delta
// rule, the others attention with gated output and partial rotary; experts, one
// of them shared; norms' weights stored less one.
var qwen3Next = family{
	name: "qwen3_next", architecture: "Qwen3NextForCausalLM", eps: 1e-6, positions: 32768, theta: 10000, rotary: 0.25, partial: true, unitNorm: true,
	experts:    qwenExperts,
	layerKinds: []string{linearAttention, fullAttention},
	consumes:   slices.Concat(linearFields, moeFields, []string{"shared_expert_intermediate_size"}),
	ignores:    mtp,
	inner:      func(*hf.Config) int { return 5632 },
	check:      func(k *checker) { checkDelta(k); checkExperts(512, 10)(k) },
	layer: func(b *builder, i int, h ir.ID) ir.ID {
		c := b.c
		return b.preNorm(i, h, func(x ir.ID) ir.ID { return b.hybrid(i, x, b.groupedInputs) }, func(x ir.ID) ir.ID {
			if !sparse(c, i) {
				return b.mlp(i, x, false)
			}
			return b.mixture(i, x, expertOptions{count: or(c.Experts, 512), pick: or(c.ExpertsPerToken, 10), inner: or(c.ExpertSize, 512),
				normalise: or(c.NormTopKProb, true), shared: or(c.SharedExpertSize, 512)})
		})
	},
}

// Qwen3.5 (text): as Qwen3-Next with a feed-forward block instead of experts
// and the linear attention's projections apart.
var qwen35 = family{
	name: "qwen3_5_text", architecture: "Qwen3_5ForCausalLM", wrapper: "Qwen3_5ForConditionalGeneration",
	eps: 1e-6, positions: 32768, theta: 10000, rotary: 0.25, partial: true, unitNorm: true,
	layerKinds: []string{linearAttention, fullAttention},
	consumes:   slices.Concat(linearFields, textRope),
	ignores:    mtp,
	check:      checkDelta,
	layer: func(b *builder, i int, h ir.ID) ir.ID {
		return b.preNorm(i, h, func(x ir.ID) ir.ID { return b.hybrid(i, x, b.plainInputs) }, func(x ir.ID) ir.ID { return b.mlp(i, x, false) })
	},
}

// Qwen3.5-MoE (text): as Qwen3.5 with the experts of Qwen3-Next in every layer.
var qwen35MoE = family{
	name: "qwen3_5_moe_text", architecture: "Qwen3_5MoeForCausalLM", wrapper: "Qwen3_5MoeForConditionalGeneration",
	eps: 1e-6, positions: 32768, theta: 10000, rotary: 0.25, partial: true, unitNorm: true,
	experts:    qwenExperts,
	layerKinds: []string{linearAttention, fullAttention},
	consumes:   slices.Concat(linearFields, textRope, []string{"num_experts", "num_experts_per_tok", "moe_intermediate_size", "shared_expert_intermediate_size"}),
	ignores:    mtp,
	inner:      func(*hf.Config) int { return 1 }, // no layer has a block without experts
	check:      func(k *checker) { checkDelta(k); checkExperts(256, 8)(k) },
	layer: func(b *builder, i int, h ir.ID) ir.ID {
		c := b.c
		return b.preNorm(i, h, func(x ir.ID) ir.ID { return b.hybrid(i, x, b.plainInputs) }, func(x ir.ID) ir.ID {
			return b.mixture(i, x, expertOptions{count: or(c.Experts, 256), pick: or(c.ExpertsPerToken, 8), inner: or(c.ExpertSize, 512),
				normalise: true, shared: or(c.SharedExpertSize, 512)})
		})
	},
}

// textRope is how three-dimensional positions share a head; a text's three are
// equal, so that nothing depends on it. Tensors for several tokens ahead are
// ignored, and their number with them.
var textRope = []string{"rope_parameters.mrope_section", "rope_parameters.mrope_interleaved", "mtp_num_hidden_layers", "mtp_use_dedicated_embeddings", "mamba_ssm_dtype", "attn_output_gate"}

// hybrid is the attention block of layer i, of either kind.
func (b *builder) hybrid(i int, x ir.ID, inputs func(i int, x ir.ID) deltaInputs) ir.ID {
	if b.linearLayer(i) {
		return b.deltaRule(i, inputs(i, x))
	}
	bias := or(b.c.AttentionBias, false)
	return b.attention(i, x, attentionOptions{qkNorm: true, gated: true, qkvBias: bias, outBias: bias})
}

// plainInputs has one projection for query, key and value, and one for each of the rest.
func (b *builder) plainInputs(i int, x ir.ID) deltaInputs {
	s, module, d := deltaOf(b.c), fmt.Sprintf("model.layers.%d.linear_attn.", i), b.c.HiddenSize
	project := func(leaf string, out int) ir.ID {
		return b.linear(i, module+leaf, ir.PartAttention, x, d, out, false)
	}
	return deltaInputs{mixed: project("in_proj_qkv", s.mixed()), z: project("in_proj_z", s.values()), beta: project("in_proj_b", s.valueHeads), a: project("in_proj_a", s.valueHeads)}
}

// groupedInputs has two projections, grouped by key head: of the first each
// group holds query, key, the group's values and their gates.
func (b *builder) groupedInputs(i int, x ir.ID) deltaInputs {
	s, module, d := deltaOf(b.c), fmt.Sprintf("model.layers.%d.linear_attn.", i), b.c.HiddenSize
	per := s.valueHeads / s.keyHeads
	v := per * s.valueDim
	of := 2*s.keyDim + 2*v
	all := b.linear(i, module+"in_proj_qkvz", ir.PartAttention, x, d, s.keyHeads*of, false)
	ba := b.linear(i, module+"in_proj_ba", ir.PartAttention, x, d, 2*s.valueHeads, false)
	take := func(from, size int) ir.ID { return b.slice(i, all, s.keyHeads, of, from, size) }
	mixed := b.g.Op1(ir.OpJoin, ir.Attrs{Layer: i}, take(0, s.keyDim), take(s.keyDim, s.keyDim), take(2*s.keyDim, v))
	return deltaInputs{mixed: mixed, z: take(2*s.keyDim+v, v), beta: b.slice(i, ba, s.keyHeads, 2*per, 0, per), a: b.slice(i, ba, s.keyHeads, 2*per, per, per)}
}
