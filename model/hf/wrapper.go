package hf

import (
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"
)

// wrappers lists, by model_type, the models of several parts whose text decoder can be taken out, and its model_type.
var wrappers = map[string]string{"gemma3": "gemma3_text", "qwen3_5": "qwen3_5_text", "qwen3_5_moe": "qwen3_5_moe_text"}

// fromWrapper are the fields that the decoder takes from the outer object where it has none of its own.
var fromWrapper = []string{"architectures", "tie_word_embeddings", "bos_token_id", "eos_token_id", "pad_token_id", "torch_dtype", "dtype",
	"quantization_config", "compression_config", "quantization"}

// decoderOf gives the members that describe the text decoder, and the wrapper's model_type if there is one.
func decoderOf(members map[string]json.RawMessage) (map[string]json.RawMessage, string, error) {
	for _, composite := range []string{"text_config", "llm_config", "language_config", "thinker_config"} {
		v, ok := members[composite]
		if !ok || isNull(v) {
			continue
		}
		var outer string
		_ = json.Unmarshal(members["model_type"], &outer) // anything but a text is in no table
		text, known := wrappers[outer]
		if !known || composite != "text_config" {
			return nil, "", fmt.Errorf("%w: field %q: a model of several parts (images, sound); the decoder can be taken out of %s only",
				ErrUnsupported, composite, strings.Join(slices.Sorted(maps.Keys(wrappers)), ", "))
		}
		inner, err := object(v)
		if err != nil {
			return nil, "", fmt.Errorf("text_config: %w", err)
		}
		kind := text
		if m, ok := inner["model_type"]; ok && !isNull(m) && (json.Unmarshal(m, &kind) != nil || kind != text) {
			return nil, "", fmt.Errorf("%w: text_config.model_type is %s; in a %s it is %q", ErrUnsupported, brief(m), outer, text)
		}
		inner = maps.Clone(inner)
		inner["model_type"], _ = json.Marshal(text) // a text always can be
		for _, field := range fromWrapper {
			if own, ok := inner[field]; (!ok || isNull(own)) && members[field] != nil {
				inner[field] = members[field]
			}
		}
		return inner, outer, nil
	}
	return members, "", nil
}

// sizeDefaults are the sizes that published files of a family leave to its configuration class.
var sizeDefaults = map[string]map[string]string{
	"gemma2":           {"head_dim": "256", "num_key_value_heads": "4"},
	"gemma3_text":      {"head_dim": "256", "num_attention_heads": "8", "num_key_value_heads": "4", "vocab_size": "262208"},
	"mistral":          {"num_key_value_heads": "8"},
	"mixtral":          {"num_key_value_heads": "8"},
	"qwen3":            {"head_dim": "128"},
	"qwen3_next":       {"head_dim": "256"},
	"qwen3_5_text":     {"head_dim": "256"},
	"qwen3_5_moe_text": {"head_dim": "256"},
}

// withDefaults is a reader that finds defaults where the file has nothing. A null counts as a statement: the class's
// default does not apply to it.
func (r *reader) withDefaults(defaults map[string]string) *reader {
	if len(defaults) == 0 {
		return r
	}
	members := maps.Clone(r.members)
	for field, value := range defaults {
		if _, stated := members[field]; !stated {
			members[field] = json.RawMessage(value)
		}
	}
	return &reader{members: members, prefix: r.prefix, problems: r.problems}
}
