package hf

import (
	"encoding/json"
	"maps"
	"slices"
)

// otherSpellings lists, for a field by its transformers 5 name, its names elsewhere. Everything about the rotary
// embedding counts as one field.
var otherSpellings = map[string][]string{
	"dtype":                   {"torch_dtype"},
	"hidden_act":              {"hidden_activation", "activation_function"},
	"hidden_size":             {"n_embd"},
	"intermediate_size":       {"n_inner"},
	"layer_norm_eps":          {"layer_norm_epsilon"},
	"max_position_embeddings": {"n_positions"},
	"num_attention_heads":     {"n_head"},
	"num_experts":             {"num_local_experts"},
	"num_hidden_layers":       {"n_layer"},
	"sliding_window_pattern":  {"_sliding_window_pattern"},
	"rope_parameters": {
		"rope_scaling", "rope_theta", "rope_local_base_freq", "rotary_emb_base", "rotary_pct", "partial_rotary_factor",
		"original_max_position_embeddings",
	},
}

func spellings(field string) []string { return append([]string{field}, otherSpellings[field]...) }

// canonical gives the transformers 5 name of each other spelling.
var canonical = func() map[string]string {
	names := map[string]string{}
	for field, others := range otherSpellings {
		for _, other := range others {
			names[other] = field
		}
	}
	return names
}()

// Field is a field of config.json with its value as JSON, shortened.
type Field struct{ Name, Value string }

func (f Field) String() string { return f.Name + " = " + f.Value }

// Unused lists the fields of the file, sorted by name, that are neither among the consumed ones nor known to leave the
// numbers alone. A builder names what it has honoured by the transformers 5 name, which covers the other spellings;
// "rope_parameters" covers all that Rope and RopeLocal hold, but not other members of that object: these are listed, and
// consumed, as "rope_parameters.NAME". A null counts as absent.
func (c *Config) Unused(consumed ...string) []Field {
	var unused []Field
	for _, name := range slices.Sorted(maps.Keys(c.Raw)) {
		value := c.Raw[name]
		if isNull(value) || slices.Contains(consumed, name) || slices.Contains(consumed, canonical[name]) || c.harmless(name, value) {
			continue
		}
		unused = append(unused, Field{shorten(name), brief(value)})
	}
	for _, name := range slices.Sorted(maps.Keys(c.ropeRest)) {
		if !slices.Contains(consumed, name) {
			unused = append(unused, Field{shorten(name), brief(c.ropeRest[name])})
		}
	}
	return unused
}

func (c *Config) harmless(name string, value json.RawMessage) bool {
	if slices.Contains(alwaysHarmless, name) {
		return true
	}
	judge, ok := harmlessIf[name]
	return ok && judge(c, value)
}

// alwaysHarmless lists fields that change no number of a decoder, whatever they say: bookkeeping, names, initial values
// of weights that the checkpoint brings along, settings of the reference's own runs, heads for other tasks, and sampling
// defaults, which requests state themselves.
var alwaysHarmless = []string{
	"architectures", "auto_map", "bos_token_id", "dtype", "eos_token_id", "model_type", "pad_token_id", "torch_dtype", "transformers_version",
	"_attn_implementation", "_attn_implementation_autoset", "_commit_hash", "_flash_attn_2_enabled", "_from_model_config",
	"_name_or_path", "attn_implementation", "decoder_start_token_id", "finetuning_task", "forced_bos_token_id", "forced_eos_token_id",
	"id2label", "is_llama_config", "label2id", "n_ctx", "num_labels", "prefix", "problem_type", "sep_token_id", "task_specific_params",
	"tokenizer_class", "torchscript", "transformers.js_config", "unk_token_id", "unsloth_fixed", "unsloth_version", "use_bfloat16",
	"initializer_range", "embedding_initializer_range",
	"gradient_checkpointing", "keys_to_ignore_at_inference", "output_attentions", "output_hidden_states", "output_router_logits",
	"return_dict", "router_aux_loss_coef", "use_cache", "cache_implementation", "use_return_dict", "use_flash_attn", "use_flash_attention",
	"classifier_dropout", "summary_activation", "summary_first_dropout", "summary_proj_to_labels", "summary_type", "summary_use_proj",
	"bad_words_ids", "begin_suppress_tokens", "diversity_penalty", "do_sample", "early_stopping", "encoder_no_repeat_ngram_size",
	"exponential_decay_length_penalty", "length_penalty", "max_length", "min_length", "no_repeat_ngram_size", "num_beam_groups",
	"num_beams", "num_return_sequences", "output_scores", "remove_invalid_values", "repetition_penalty", "return_dict_in_generate",
	"suppress_tokens", "temperature", "top_k", "top_p", "typical_p",
}

// harmlessIf lists fields that change no number as long as their value says "off", here or in another field.
var harmlessIf = map[string]func(c *Config, value json.RawMessage) bool{
	"attention_bias":      isText("false"),
	"mlp_bias":            isText("false"),
	"add_cross_attention": isText("false"),
	"is_decoder":          isText("true", "false"), // causal either way: a lone decoder
	"is_encoder_decoder":  isText("false"),
	"tie_encoder_decoder": isText("false"),
	"rope_interleaved":    isText("false"),
	"use_qk_norm":         isText("false"),
	"qk_layernorm":        isText("false"),
	"use_mrope":           isText("false"),

	"use_bidirectional_attention":     isText("false"),
	"scale_attn_by_inverse_layer_idx": isText("false"),
	"reorder_and_upcast_attn":         isText("false"), // true only raises the precision, but of numbers we promise to match
	"scale_attn_weights":              isText("true"),

	"attention_dropout": isNumber(0), "attn_pdrop": isNumber(0), "embd_pdrop": isNumber(0), "embedding_dropout": isNumber(0),
	"hidden_dropout": isNumber(0), "resid_pdrop": isNumber(0), "resid_dropout": isNumber(0), "dropout": isNumber(0),
	"layerdrop": isNumber(0), "router_jitter_noise": isNumber(0), "chunk_size_feed_forward": isNumber(0),
	"pretraining_tp": isNumber(1),
	"full_attn_mod":  isNumber(1), "interpolate_factor": isNumber(1), "lm_head_bias": isText("false"), // in Phi files
	"embedding_multiplier": isNumber(1), "residual_multiplier": isNumber(1), "logits_scaling": isNumber(1),
	"pruned_heads": isText("{}"), "mlp_only_layers": isText("[]"),

	"use_sliding_window":     isText("false"),
	"sliding_window":         withoutWindow,
	"max_window_layers":      withoutWindow,
	"sliding_window_pattern": withoutWindow, "_sliding_window_pattern": withoutWindow,
	"layer_types": func(c *Config, _ json.RawMessage) bool {
		return !slices.ContainsFunc(c.LayerTypes, func(kind string) bool { return kind != "full_attention" })
	},
	"no_rope_layers": func(c *Config, _ json.RawMessage) bool { return !slices.Contains(c.NoRopeLayers, 0) },
}

func withoutWindow(c *Config, _ json.RawMessage) bool { return c.Window() == 0 }

func isText(values ...string) func(*Config, json.RawMessage) bool {
	return func(_ *Config, v json.RawMessage) bool { return slices.Contains(values, string(compact(v))) }
}

func isNumber(want float64) func(*Config, json.RawMessage) bool {
	return func(_ *Config, v json.RawMessage) bool {
		got, ok := parseNumber(v)
		return ok && got == want
	}
}
