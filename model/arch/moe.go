package arch

import (
	"fmt"
	"slices"

	"smolgym/model/hf"
	"smolgym/model/ir"
)

// expertOptions size a block of experts.
type expertOptions struct {
	count, pick int // experts, and how many of them a token goes to
	inner       int
	normalise   bool // the chosen experts' weights sum to 1
	shared      int  // inner size of an expert that every token goes to, 0 = none
}

// mixture is a router and experts, without norm and residual: [T,D] -> [T,D].
// A token's experts are summed in order of falling weight.
func (b *builder) mixture(i int, x ir.ID, o expertOptions) ir.ID {
	d, module, at := b.c.HiddenSize, fmt.Sprintf("model.layers.%d.mlp.", i), ir.Attrs{Layer: i}
	router := b.linear(i, module+"gate", ir.PartNone, x, d, o.count, false)
	chosen := b.g.Add(ir.OpTopK, ir.Attrs{Layer: i, Module: module + "gate", Pick: o.pick, Normalise: o.normalise}, router)
	weights, experts := chosen[0], chosen[1]
	linear := func(leaf string, x ir.ID, in, out int) ir.ID {
		w := b.g.Weight(module+"experts."+leaf, ir.F32, ir.Const(o.count), ir.Const(out), ir.Const(in))
		return b.g.Op1(ir.OpExpertLinear, ir.Attrs{Layer: i, Module: module + "experts." + leaf, Part: ir.PartMLP}, x, w, experts)
	}
	both := linear("gate_up_proj", x, d, 2*o.inner)
	y := b.gate(i, b.slice(i, both, 1, 2*o.inner, 0, o.inner), b.slice(i, both, 1, 2*o.inner, o.inner, o.inner))
	y = b.g.Op1(ir.OpScaleRows, at, linear("down_proj", y, o.inner, d), weights)
	y = b.g.Op1(ir.OpSumRows, ir.Attrs{Layer: i, Pick: o.pick}, y)
	if o.shared == 0 {
		return y
	}
	every := b.gatedMLP(i, module+"shared_expert.", x, o.shared, false)
	gate := b.g.Op1(ir.OpSigmoid, at, b.linear(i, module+"shared_expert_gate", ir.PartMLP, x, d, 1, false))
	return b.add(i, y, b.g.Op1(ir.OpScaleRows, at, every, gate))
}

// sparse says whether layer i has experts.
func sparse(c *hf.Config, i int) bool {
	return !slices.Contains(c.DenseLayers, i) && (i+1)%or(c.SparseStep, 1) == 0
}

// checkExperts wants sizes that make a mixture.
func checkExperts(count, pick int) func(k *checker) {
	return func(k *checker) {
		n, p := or(k.c.Experts, count), or(k.c.ExpertsPerToken, pick)
		if p > n {
			k.gap(GapConfig, "num_experts_per_tok", "is %d; there are %d experts", p, n)
		}
		if most := ir.KeyBlock; p > most {
			k.gap(GapConfig, "num_experts_per_tok", "is %d; at most %d are supported", p, most)
		}
	}
}

var qwenExperts = &expertNames{block: ".mlp.", gate: "gate_proj", up: "up_proj", down: "down_proj"}

var moeFields = []string{"num_experts", "num_experts_per_tok", "moe_intermediate_size", "norm_topk_prob", "decoder_sparse_step", "mlp_only_layers"}

// Qwen3-MoE: as Qwen3, with experts in most layers.
var qwen3MoE = family{
	name: "qwen3_moe", architecture: "Qwen3MoeForCausalLM", eps: 1e-6, positions: 32768, theta: 10000,
	experts:  qwenExperts,
	consumes: slices.Concat([]string{"attention_bias"}, moeFields, qwenWindows),
	inner:    func(*hf.Config) int { return 6144 },
	check:    checkExperts(128, 8),
	layer: func(b *builder, i int, h ir.ID) ir.ID {
		c, bias := b.c, or(b.c.AttentionBias, false)
		o := attentionOptions{qkNorm: true, window: b.flaggedWindow(), qkvBias: bias, outBias: bias}
		return b.preNorm(i, h, func(x ir.ID) ir.ID { return b.attention(i, x, o) }, func(x ir.ID) ir.ID {
			if !sparse(c, i) {
				return b.mlp(i, x, false)
			}
			return b.mixture(i, x, expertOptions{count: or(c.Experts, 128), pick: or(c.ExpertsPerToken, 8), inner: or(c.ExpertSize, 768), normalise: or(c.NormTopKProb, false)})
		})
	},
}

// Mixtral: as Mistral, with experts in every layer.
var mixtral = family{
	name: "mixtral", architecture: "MixtralForCausalLM", eps: 1e-5, positions: 131072, theta: 1e6,
	experts:  &expertNames{block: ".block_sparse_moe.", gate: "w1", up: "w3", down: "w2"},
	consumes: []string{"sliding_window", "num_experts", "num_experts_per_tok"},
	check:    checkExperts(8, 2),
	layer: func(b *builder, i int, h ir.ID) ir.ID {
		o := attentionOptions{window: b.window(0)}
		return b.preNorm(i, h, func(x ir.ID) ir.ID { return b.attention(i, x, o) }, func(x ir.ID) ir.ID {
			return b.mixture(i, x, expertOptions{count: or(b.c.Experts, 8), pick: or(b.c.ExpertsPerToken, 2), inner: b.inner, normalise: true})
		})
	},
}
