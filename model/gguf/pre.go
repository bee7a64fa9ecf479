package gguf

import (
	"encoding/json"
	"reflect"
)

const (
	modelKey    = "tokenizer.ggml.model"
	preKey      = "tokenizer.ggml.pre"
	tokensKey   = "tokenizer.ggml.tokens"
	typesKey    = "tokenizer.ggml.token_type"
	scoresKey   = "tokenizer.ggml.scores"
	mergesKey   = "tokenizer.ggml.merges"
	bosKey      = "tokenizer.ggml.bos_token_id"
	eosKey      = "tokenizer.ggml.eos_token_id"
	eotKey      = "tokenizer.ggml.eot_token_id"
	eomKey      = "tokenizer.ggml.eom_token_id"
	unkKey      = "tokenizer.ggml.unknown_token_id"
	padKey      = "tokenizer.ggml.padding_token_id"
	addBOSKey   = "tokenizer.ggml.add_bos_token"
	addEOSKey   = "tokenizer.ggml.add_eos_token"
	addSpaceKey = "tokenizer.ggml.add_space_prefix"
	templateKey = "tokenizer.chat_template"
)

// noTokenizer is the tokenizer.ggml.model of a file without one. llama.cpp refuses a file that does not say it.
const noTokenizer = "no_vocab"

// The types of tokens.
const (
	tokenNormal  = 1
	tokenUnknown = 2
	tokenControl = 3
	tokenUser    = 4
	tokenUnused  = 5
	tokenByte    = 6
)

// preTokenizer is what a value of tokenizer.ggml.pre stands for: the pipeline of the tokenizer.json that it was made from.
// The file holds the name only.
type preTokenizer struct {
	names        []string // the first one is written
	normalizer   string   // JSON
	splits       string   // JSON, pre-tokenizers before ByteLevel, with commas after
	ownPattern   bool     // ByteLevel splits by its own pattern
	ignoreMerges bool
	addBOS       bool // where the file does not say
}

const (
	contractions  = `(?i:'s|'t|'re|'ve|'m|'ll|'d)`
	tail          = `|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+`
	llama3Pattern = contractions + `|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|\\p{N}{1,3}| ?[^\\s\\p{L}\\p{N}]+[\\r\\n]*` + tail
	qwen2Pattern  = contractions + `|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|\\p{N}| ?[^\\s\\p{L}\\p{N}]+[\\r\\n]*` + tail
	qwen35Pattern = contractions + `|[^\\r\\n\\p{L}\\p{N}]?[\\p{L}\\p{M}]+|\\p{N}| ?[^\\s\\p{L}\\p{M}\\p{N}]+[\\r\\n]*` + tail

	upper         = `[\\p{Lu}\\p{Lt}\\p{Lm}\\p{Lo}\\p{M}]`
	lower         = `[\\p{Ll}\\p{Lm}\\p{Lo}\\p{M}]`
	gpt4oPattern  = `[^\\r\\n\\p{L}\\p{N}]?` + upper + `*` + lower + `+` + contractions + `?|[^\\r\\n\\p{L}\\p{N}]?` + upper + `+` + lower + `*` + contractions + `?|\\p{N}{1,3}| ?[^\\s\\p{L}\\p{N}]+[\\r\\n/]*` + tail
	tekkenPattern = `[^\\r\\n\\p{L}\\p{N}]?` + upper + `*` + lower + `+|[^\\r\\n\\p{L}\\p{N}]?` + upper + `+` + lower + `*|\\p{N}| ?[^\\s\\p{L}\\p{N}]+[\\r\\n/]*` + tail

	deepseekText = `[!\"#$%&'()*+,\\-./:;<=>?@\\[\\\\\\]^_` + "`" + `{|}~][A-Za-z]+|[^\r\n\\p{L}\\p{P}\\p{S}]?[\\p{L}\\p{M}]+| ?[\\p{P}\\p{S}]+[\r\n]*|\\s*[\r\n]+|\\s+(?!\\S)|\\s+`
)

// split is a Split whose pattern stands in JSON already.
func split(pattern string) string {
	return `{"type":"Split","pattern":{"Regex":"` + pattern + `"},"behavior":"Isolated","invert":false},`
}

const digits = `{"type":"Digits","individual_digits":true},`

// preTokenizers lists the known names. Others are refused: a wrong pipeline would give plausible, wrong ids.
var preTokenizers = []preTokenizer{
	{names: []string{"gpt-2", "phi-2", "mpt", "olmo"}, normalizer: "null", ownPattern: true},
	{names: []string{"smollm", "starcoder", "refact", "codeshell"}, normalizer: "null", splits: digits, ownPattern: true},
	{names: []string{"llama-bpe", "llama3", "llama-v3"}, normalizer: "null", splits: split(llama3Pattern), ignoreMerges: true, addBOS: true},
	{names: []string{"qwen2"}, normalizer: `{"type":"NFC"}`, splits: split(qwen2Pattern)},
	{names: []string{"qwen35"}, normalizer: `{"type":"NFC"}`, splits: split(qwen35Pattern)},
	{names: []string{"gpt-4o"}, normalizer: "null", splits: split(gpt4oPattern), ignoreMerges: true},
	{names: []string{"tekken"}, normalizer: "null", splits: split(tekkenPattern), ignoreMerges: true, addBOS: true},
	{names: []string{"deepseek-v3"}, normalizer: `{"type":"Sequence","normalizers":[]}`,
		splits: split(`\\p{N}{1,3}`) + split(`[一-龥぀-ゟ゠-ヿ]+`) + split(deepseekText)},
}

// byteLevel is the ByteLevel pre-tokenizer, decoder or post-processor.
func byteLevel(pattern bool) string {
	own := "false"
	if pattern {
		own = "true"
	}
	return `{"type":"ByteLevel","add_prefix_space":false,"trim_offsets":true,"use_regex":` + own + `}`
}

// pipeline is the pre-tokenizer in JSON.
func (p *preTokenizer) pipeline() string {
	if p.splits == "" {
		return byteLevel(p.ownPattern)
	}
	return `{"type":"Sequence","pretokenizers":[` + p.splits + byteLevel(p.ownPattern) + `]}`
}

// preNamed finds a pre-tokenizer by its name.
func preNamed(name string) *preTokenizer {
	for i, p := range preTokenizers {
		for _, n := range p.names {
			if n == name {
				return &preTokenizers[i]
			}
		}
	}
	return nil
}

// preLike finds the pre-tokenizer that a tokenizer.json has.
func preLike(normalizer, pipeline json.RawMessage, ignoreMerges bool) *preTokenizer {
	for i := range preTokenizers {
		p := &preTokenizers[i]
		if p.ignoreMerges == ignoreMerges && sameJSON(normalizer, []byte(p.normalizer)) && sameJSON(pipeline, []byte(p.pipeline())) {
			return p
		}
	}
	return nil
}

// sameJSON compares components, but for trim_offsets, which moves no id, and an empty sequence, which is none.
func sameJSON(a, b []byte) bool { return reflect.DeepEqual(plainJSON(a), plainJSON(b)) }

func plainJSON(text []byte) any {
	var v any
	if len(text) == 0 || json.Unmarshal(text, &v) != nil {
		return nil
	}
	return withoutOffsets(v)
}

func withoutOffsets(v any) any {
	switch v := v.(type) {
	case map[string]any:
		delete(v, "trim_offsets")
		for k, inner := range v {
			v[k] = withoutOffsets(inner)
		}
		if list, ok := v["normalizers"].([]any); ok && len(list) == 0 {
			return nil
		}
		return v
	case []any:
		for i := range v {
			v[i] = withoutOffsets(v[i])
		}
		return v
	}
	return v
}
