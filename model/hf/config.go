package hf

import (
	"encoding/json"
	"fmt"
	"strings"
)

// Bounds on what a configuration may say. They are an order of magnitude above any published decoder, and low enough
// that products of a few of them stay far from overflow.
const (
	maxConfigBytes = 4 << 20
	maxVocab       = 1 << 24
	maxHidden      = 1 << 17
	maxInner       = 1 << 20
	maxLayers      = 1024
	maxHeads       = 4096
	maxHeadDim     = 4096
	maxPositions   = 1 << 27
	maxExperts     = 4096
	maxTokenIDs    = 1024
	maxScale       = 1e9 // multipliers, soft caps, rotary factors
)

// ParseConfig reads a config.json in either spelling. Everything that is wrong is told at once, each field by name.
func ParseConfig(text []byte) (*Config, error) {
	if len(text) > maxConfigBytes {
		return nil, fmt.Errorf("parse config.json: %w: %d bytes, at most %d are allowed", ErrLimit, len(text), maxConfigBytes)
	}
	members, err := object(text)
	if err != nil {
		return nil, fmt.Errorf("parse config.json: %w", err)
	}
	members, wrapper, err := decoderOf(members)
	if err != nil {
		return nil, fmt.Errorf("parse config.json: %w", err)
	}
	var problems []string
	r := &reader{members: members, problems: &problems}
	c := &Config{Raw: members, Wrapper: wrapper}
	c.readSizes(r)
	c.readNumbers(r)
	c.readLayers(r)
	c.readExtras(r)
	c.readRope(r)
	if len(problems) > 0 {
		return nil, fmt.Errorf("parse config.json: %w: %s", ErrInvalid, strings.Join(problems, "; "))
	}
	return c, nil
}

func (c *Config) readSizes(r *reader) {
	if c.ModelType = r.text("model_type"); c.ModelType == "" {
		r.problem("model_type is missing: the family, such as \"llama\", is needed")
	}
	c.Architectures = list[string](r, 64, "texts", nil, "architectures")
	c.DType = r.text(spellings("dtype")...)

	r = r.withDefaults(sizeDefaults[c.ModelType])
	r.required(&c.VocabSize, 1, maxVocab, "vocab_size")
	hidden := r.required(&c.HiddenSize, 1, maxHidden, spellings("hidden_size")...)
	r.required(&c.Layers, 1, maxLayers, spellings("num_hidden_layers")...)
	heads := r.required(&c.Heads, 1, maxHeads, spellings("num_attention_heads")...)
	c.IntermediateSize = or(r.integer(1, maxInner, spellings("intermediate_size")...), 0)
	c.MaxPositions = or(r.integer(1, maxPositions, spellings("max_position_embeddings")...), 0)
	if !hidden || !heads {
		return
	}
	c.KVHeads = or(r.integer(1, maxHeads, "num_key_value_heads"), c.Heads)
	if c.Heads%c.KVHeads != 0 {
		r.problem("num_key_value_heads is %d: it must divide num_attention_heads, %d", c.KVHeads, c.Heads)
	}
	before := len(*r.problems)
	c.HeadDim = or(r.integer(1, maxHeadDim, "head_dim"), 0)
	if c.HeadDim == 0 && len(*r.problems) == before {
		c.HeadDim = c.HiddenSize / c.Heads
		if c.HiddenSize%c.Heads != 0 || c.HeadDim > maxHeadDim {
			r.problem("head_dim is missing and hidden_size, %d, over num_attention_heads, %d, is no size from 1 to %d",
				c.HiddenSize, c.Heads, maxHeadDim)
		}
	}
	if c.Heads*c.HeadDim > maxInner {
		r.problem("num_attention_heads times head_dim is %d: at most %d is allowed", c.Heads*c.HeadDim, maxInner)
	}
}

func (c *Config) readNumbers(r *reader) {
	c.RMSNormEps = r.number(0, 1, "rms_norm_eps")
	c.LayerNormEps = r.number(0, 1, spellings("layer_norm_eps")...)
	c.HiddenAct = r.text(spellings("hidden_act")...)
	c.AttentionBias = r.boolean("attention_bias")
	c.MLPBias = r.boolean("mlp_bias")
	c.TieWordEmbeddings = r.boolean("tie_word_embeddings")
	c.ParallelResidual = r.boolean("use_parallel_residual")

	c.AttentionSoftcap = r.number(0, maxScale, "attn_logit_softcapping")
	c.FinalSoftcap = r.number(0, maxScale, "final_logit_softcapping")
	c.QueryPreAttnScalar = r.number(0, maxScale, "query_pre_attn_scalar")
	c.AttentionMultiplier = r.number(-maxScale, maxScale, "attention_multiplier")
	c.EmbeddingMultiplier = r.number(-maxScale, maxScale, "embedding_multiplier")
	c.ResidualMultiplier = r.number(-maxScale, maxScale, "residual_multiplier")
	c.LogitsScaling = r.number(-maxScale, maxScale, "logits_scaling")

	c.BOS = r.tokens("bos_token_id")
	c.EOS = r.tokens("eos_token_id")
	c.Pad = r.tokens("pad_token_id")
}

func (c *Config) readLayers(r *reader) {
	c.SlidingWindow = r.integer(1, maxPositions, "sliding_window")
	c.UseSlidingWindow = r.boolean("use_sliding_window")
	c.MaxWindowLayers = r.integer(0, maxPositions, "max_window_layers")
	c.WindowPattern = r.integer(1, maxLayers, spellings("sliding_window_pattern")...)
	c.LayerTypes = list(r, maxLayers, "short texts", func(s string) bool { return s != "" && len(s) < 64 }, "layer_types")
	c.NoRopeLayers = list(r, maxLayers, "0 or 1", func(v int) bool { return v == 0 || v == 1 }, "no_rope_layers")
	c.NoRopeInterval = r.integer(1, maxLayers, "no_rope_layer_interval")
	c.DenseLayers = list(r, maxLayers, "layer numbers", func(v int) bool { return v >= 0 && v < maxLayers }, "mlp_only_layers")
	if n := len(c.LayerTypes); n > 0 && c.Layers > 0 && n != c.Layers {
		r.problem("layer_types has %d elements: num_hidden_layers is %d", n, c.Layers)
	}
	if n := len(c.NoRopeLayers); n > 0 && c.Layers > 0 && n != c.Layers {
		r.problem("no_rope_layers has %d elements: num_hidden_layers is %d", n, c.Layers)
	}
}

func (c *Config) readExtras(r *reader) {
	c.Experts = r.integer(1, maxExperts, spellings("num_experts")...)
	c.ExpertsPerToken = r.integer(1, maxExperts, "num_experts_per_tok")
	c.ExpertSize = r.integer(1, maxInner, "moe_intermediate_size")
	c.SharedExpertSize = r.integer(0, maxInner, "shared_expert_intermediate_size")
	c.NormTopKProb = r.boolean("norm_topk_prob")
	c.SparseStep = r.integer(1, maxLayers, "decoder_sparse_step")
	if c.Experts != nil && c.ExpertsPerToken != nil && *c.ExpertsPerToken > *c.Experts {
		r.problem("num_experts_per_tok is %d: there are %d experts", *c.ExpertsPerToken, *c.Experts)
	}
	c.LinearConvKernel = r.integer(1, maxHeadDim, "linear_conv_kernel_dim")
	c.LinearKeyDim = r.integer(1, maxHeadDim, "linear_key_head_dim")
	c.LinearValueDim = r.integer(1, maxHeadDim, "linear_value_head_dim")
	c.LinearKeyHeads = r.integer(1, maxHeads, "linear_num_key_heads")
	c.LinearValueHeads = r.integer(1, maxHeads, "linear_num_value_heads")
	c.FullInterval = r.integer(1, maxLayers, "full_attention_interval")
}

// Window is the number of tokens that the windowed layers attend to, 0 if the model has no window. The Qwen and SmolLM
// families write a window beside use_sliding_window and mean it only where that is true; the others always mean it.
func (c *Config) Window() int {
	needsFlag := strings.HasPrefix(c.ModelType, "qwen") || strings.HasPrefix(c.ModelType, "smollm")
	if c.SlidingWindow == nil || needsFlag && c.UseSlidingWindow == nil || c.UseSlidingWindow != nil && !*c.UseSlidingWindow {
		return 0
	}
	return *c.SlidingWindow
}

// Has says whether the file states the field, under that name and not as null.
func (c *Config) Has(name string) bool {
	v, ok := c.Raw[name]
	return ok && !isNull(v)
}

// or gives the value behind p, or the other one if there is none.
func or[T any](p *T, other T) T {
	if p == nil {
		return other
	}
	return *p
}

// ParseGenerationConfig reads a generation_config.json.
func ParseGenerationConfig(text []byte) (*GenerationConfig, error) {
	if len(text) > maxConfigBytes {
		return nil, fmt.Errorf("parse generation_config.json: %w: %d bytes, at most %d are allowed", ErrLimit, len(text), maxConfigBytes)
	}
	members, err := object(text)
	if err != nil {
		return nil, fmt.Errorf("parse generation_config.json: %w", err)
	}
	var problems []string
	r := &reader{members: members, problems: &problems}
	g := &GenerationConfig{BOS: r.tokens("bos_token_id"), EOS: r.tokens("eos_token_id"), Pad: r.tokens("pad_token_id"), Raw: members}
	if len(problems) > 0 {
		return nil, fmt.Errorf("parse generation_config.json: %w: %s", ErrInvalid, strings.Join(problems, "; "))
	}
	return g, nil
}

// quantization names the method of a quantised checkpoint, "" if it is not quantised.
func (c *Config) quantization() string {
	for _, field := range []string{"quantization_config", "compression_config", "quantization"} {
		if !c.Has(field) {
			continue
		}
		var q struct {
			Method string `json:"quant_method"`
		}
		// Whatever the value is, its presence is what counts; the method is for the message alone.
		_ = json.Unmarshal(c.Raw[field], &q)
		return fmt.Sprintf("%s (method %q)", field, shorten(q.Method))
	}
	return ""
}
