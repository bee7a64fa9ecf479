package gguf

import (
	"maps"
	"slices"
	"strconv"
	"strings"
)

// family is how a model family's checkpoint is spelled in a GGUF file.
type family struct {
	arch      string // general.architecture, and the prefix of its metadata
	modelType string // of config.json
	class     string // of config.json, architectures
	act       string // hidden_act, which the file does not state
	block     map[string]string
	permuted  bool // query and key rows are stored for a rotation of neighbours, not of halves
	shifted   bool // 1 was added to the weights of the norms
	biased    bool // config.json states attention_bias and mlp_bias
	writable  bool
}

// outside maps the modules outside of the layers; block maps those of one layer. Keys are without ".weight" and ".bias".
var outside = map[string]string{"token_embd": "model.embed_tokens", "output_norm": "model.norm", "output": "lm_head"}

var plainBlock = map[string]string{
	"attn_norm": "input_layernorm", "attn_q": "self_attn.q_proj", "attn_k": "self_attn.k_proj", "attn_v": "self_attn.v_proj",
	"attn_output": "self_attn.o_proj", "ffn_norm": "post_attention_layernorm", "ffn_gate": "mlp.gate_proj",
	"ffn_up": "mlp.up_proj", "ffn_down": "mlp.down_proj",
}

// with is a copy of m with changes; a module that becomes "" is none of the family's.
func with(m map[string]string, changes ...map[string]string) map[string]string {
	m = maps.Clone(m)
	for _, c := range changes {
		maps.Copy(m, c)
	}
	maps.DeleteFunc(m, func(_, v string) bool { return v == "" })
	return m
}

var (
	headNorms   = map[string]string{"attn_q_norm": "self_attn.q_norm", "attn_k_norm": "self_attn.k_norm"}
	gemmaNorms  = map[string]string{"ffn_norm": "pre_feedforward_layernorm", "post_attention_norm": "post_attention_layernorm", "post_ffw_norm": "post_feedforward_layernorm"}
	phi3Modules = map[string]string{"attn_q": "", "attn_k": "", "attn_v": "", "attn_qkv": "self_attn.qkv_proj", "ffn_gate": "", "ffn_up": "mlp.gate_up_proj"}
)

var families = []*family{
	{arch: "llama", modelType: "llama", class: "LlamaForCausalLM", act: "silu", block: plainBlock, permuted: true, biased: true, writable: true},
	{arch: "qwen2", modelType: "qwen2", class: "Qwen2ForCausalLM", act: "silu", block: plainBlock, writable: true},
	{arch: "qwen3", modelType: "qwen3", class: "Qwen3ForCausalLM", act: "silu", block: with(plainBlock, headNorms), writable: true},
	{arch: "gemma2", modelType: "gemma2", class: "Gemma2ForCausalLM", act: "gelu_pytorch_tanh", block: with(plainBlock, gemmaNorms), shifted: true},
	{arch: "gemma3", modelType: "gemma3_text", class: "Gemma3ForCausalLM", act: "gelu_pytorch_tanh", block: with(plainBlock, headNorms, gemmaNorms), shifted: true},
	{arch: "phi3", modelType: "phi3", class: "Phi3ForCausalLM", act: "silu", block: with(plainBlock, phi3Modules)},
}

// familyOf finds the family for which match holds.
func familyOf(match func(*family) bool) *family {
	if i := slices.IndexFunc(families, match); i >= 0 {
		return families[i]
	}
	return nil
}

// Architectures lists what can be imported, as general.architecture spells it.
func Architectures() []string {
	var names []string
	for _, f := range families {
		names = append(names, f.arch)
	}
	return names
}

// ropeTensors hold rotary factors, which config.json states.
var ropeTensors = []string{ropeFreqs, ropeShort, ropeLong}

const (
	ropeFreqs = "rope_freqs.weight"
	ropeShort = "rope_factors_short.weight"
	ropeLong  = "rope_factors_long.weight"
)

// toHF gives the checkpoint's name of a tensor, "" if the family has none of that name.
func (f *family) toHF(name string, layers int) string {
	module, kind, ok := cutKind(name)
	if !ok {
		return ""
	}
	if to := outside[module]; to != "" && kind == "weight" {
		return to + ".weight"
	}
	rest, ok := strings.CutPrefix(module, "blk.")
	if !ok {
		return ""
	}
	number, module, _ := strings.Cut(rest, ".")
	n, err := strconv.Atoi(number)
	if to := f.block[module]; err == nil && n >= 0 && n < layers && strconv.Itoa(n) == number && to != "" {
		return "model.layers." + number + "." + to + "." + kind
	}
	return ""
}

// toGGUF is the way back.
func (f *family) toGGUF(name string, layers int) string {
	module, kind, ok := cutKind(name)
	if !ok {
		return ""
	}
	for from, to := range outside {
		if to == module && kind == "weight" {
			return from + ".weight"
		}
	}
	rest, ok := strings.CutPrefix(module, "model.layers.")
	if !ok {
		return ""
	}
	number, module, _ := strings.Cut(rest, ".")
	n, err := strconv.Atoi(number)
	for from, to := range f.block {
		if to == module && err == nil && n >= 0 && n < layers && strconv.Itoa(n) == number {
			return "blk." + number + "." + from + "." + kind
		}
	}
	return ""
}

func cutKind(name string) (module, kind string, ok bool) {
	i := strings.LastIndexByte(name, '.')
	if i < 0 || name[i+1:] != "weight" && name[i+1:] != "bias" {
		return "", "", false
	}
	return name[:i], name[i+1:], true
}

// isNorm says whether a tensor of the file is the weight of a norm.
func isNorm(name string) bool { return strings.HasSuffix(name, "norm.weight") }

// permutedHeads is the number of heads whose rows are interleaved in a tensor of the file, 0 for all other tensors.
func (f *family) permutedHeads(name string, heads, kvHeads int64) int64 {
	switch module, _, _ := cutKind(name); {
	case !f.permuted || !strings.HasPrefix(module, "blk."):
	case strings.HasSuffix(module, ".attn_q"):
		return heads
	case strings.HasSuffix(module, ".attn_k"):
		return kvHeads
	}
	return 0
}

// interleaved gives the row of the file that holds a checkpoint's row: within a head of size rows, the checkpoint has both
// halves of the rotated pairs one after the other, the file has each pair together.
func interleaved(row, size int64) int64 {
	head, in := row/size, row%size
	return head*size + in%(size/2)*2 + in/(size/2)
}
