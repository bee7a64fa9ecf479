package gguf

import (
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"slices"
	"strings"
)

// gaps collects all that can't be taken, so that one attempt tells the user all of it.
type gaps []string

func (g *gaps) add(format string, args ...any) {
	const most = 20
	if len(*g) < most {
		*g = append(*g, fmt.Sprintf(format, args...))
	}
}

func (g *gaps) err() error {
	if len(*g) == 0 {
		return nil
	}
	return fmt.Errorf("%w: %s", ErrUnsupported, strings.Join(*g, "; "))
}

// settings is what a file says about its model, on the way to a config.json.
type settings struct {
	f    *File
	fam  *family
	gaps *gaps

	hidden, layers, heads, kvHeads, headDim, rotated int64
	context                                          int64
	vocab                                            int64
	out                                              map[string]any
}

// honoured lists the keys, without the architecture, that are read; harmless those that change no number.
var (
	honoured = []string{
		"context_length", "embedding_length", "block_count", "feed_forward_length", "vocab_size",
		"attention.head_count", "attention.head_count_kv", "attention.layer_norm_rms_epsilon", "attention.key_length", "attention.value_length",
		"rope.dimension_count", "rope.freq_base", "rope.scaling.type", "rope.scaling.factor", "rope.scale_linear",
		"rope.scaling.original_context_length", "rope.scaling.attn_factor", "rope.scaling.yarn_beta_fast", "rope.scaling.yarn_beta_slow",
	}
	windowed = []string{"attention.sliding_window"}
	gemma    = []string{
		"attention.sliding_window", "attention.sliding_window_pattern", "attn_logit_softcapping", "final_logit_softcapping", "rope.freq_base_swa",
	}
	harmless = []string{"tensor_data_layout", "rope.scaling.finetuned", "attention.causal", "expert_count", "expert_used_count", "pooling_type"}
)

const maxSetting = 1 << 40 // keeps products of two within int64; what config.json may say is bounded far below

func (s *settings) key(name string) string { return s.fam.arch + "." + name }

// whole reads a whole number; absent is taken where the file has none, and -1 for absent makes it required.
func (s *settings) whole(name string, absent int64) int64 {
	n, err := s.f.Uint(s.key(name))
	switch {
	case err == nil && n <= maxSetting:
		return int64(n)
	case errors.Is(err, ErrAbsent) && absent >= 0:
		return absent
	case err == nil:
		s.gaps.add("metadata %q is %d", s.key(name), n)
	default:
		s.gaps.add("%v", err)
	}
	return 1
}

// float reads a number, if there is one.
func (s *settings) float(name string) (float64, bool) {
	v, err := s.f.Float(s.key(name))
	if err != nil && !errors.Is(err, ErrAbsent) {
		s.gaps.add("%v", err)
	}
	return v, err == nil
}

// readSettings reads everything but the vocabulary's tokens.
func readSettings(f *File, g *gaps) (*settings, error) {
	if n, err := f.Uint("split.count"); err == nil && n > 1 {
		return nil, fmt.Errorf("metadata %q: %w: the file is one of %d parts; join them with llama-gguf-split --merge", "split.count", ErrUnsupported, n)
	}
	arch, err := f.Text("general.architecture", 255)
	if err != nil {
		return nil, err
	}
	fam := familyOf(func(m *family) bool { return m.arch == arch })
	if fam == nil {
		return nil, fmt.Errorf("metadata %q: %w: %q; %s are read", "general.architecture", ErrUnsupported, shorten(arch), strings.Join(Architectures(), ", "))
	}
	s := &settings{f: f, fam: fam, gaps: g, out: map[string]any{}}
	s.sizes()
	s.rope()
	s.windows()
	s.unknown()
	s.tokens()
	return s, nil
}

func (s *settings) sizes() {
	s.hidden, s.layers = s.whole("embedding_length", -1), s.whole("block_count", -1)
	s.heads = s.whole("attention.head_count", -1)
	s.kvHeads = s.whole("attention.head_count_kv", s.heads)
	s.context = s.whole("context_length", -1)
	s.rotated = s.whole("rope.dimension_count", 0)
	var byDefault int64
	if s.heads > 0 {
		byDefault = s.hidden / s.heads
	}
	if s.fam.arch == "llama" && s.rotated > 0 && !s.f.Has(s.key("attention.key_length")) {
		byDefault = s.rotated // of a head size of its own, older converters wrote only this
	}
	s.headDim = s.whole("attention.key_length", byDefault)
	if v := s.whole("attention.value_length", s.headDim); v != s.headDim {
		s.gaps.add("metadata %q is %d, that of keys %d: they must be equal", s.key("attention.value_length"), v, s.headDim)
	}
	if s.rotated == 0 {
		s.rotated = s.headDim
	}
	if t, ok := s.f.Tensor("token_embd.weight"); !ok || len(t.Shape) != 2 {
		s.gaps.add("tensor %q: a matrix is needed, the embedding", "token_embd.weight")
	} else {
		s.vocab = t.Shape[0]
	}
	_, head := s.f.Tensor("output.weight")
	eps, ok := s.float("attention.layer_norm_rms_epsilon")
	if !ok {
		s.gaps.add("metadata %q is missing", s.key("attention.layer_norm_rms_epsilon"))
	}
	for name, value := range map[string]any{
		"architectures": []string{s.fam.class}, "model_type": s.fam.modelType, "hidden_act": s.fam.act,
		"vocab_size": s.vocab, "hidden_size": s.hidden, "intermediate_size": s.whole("feed_forward_length", -1), "num_hidden_layers": s.layers,
		"num_attention_heads": s.heads, "num_key_value_heads": s.kvHeads, "head_dim": s.headDim, "max_position_embeddings": s.context,
		"rms_norm_eps": eps, "tie_word_embeddings": !head, "dtype": s.dtype(),
	} {
		s.out[name] = value
	}
	if s.fam.arch == "phi3" {
		delete(s.out, "head_dim") // the family has no such field
		if s.headDim*s.heads != s.hidden {
			s.gaps.add("metadata %q is %d: phi3 has hidden size over heads, %d", s.key("attention.key_length"), s.headDim, byDefault)
		}
	}
	if s.fam.biased {
		_, q := s.f.Tensor("blk.0.attn_q.bias")
		_, up := s.f.Tensor("blk.0.ffn_up.bias")
		s.out["attention_bias"], s.out["mlp_bias"] = q, up
	}
	if strings.HasPrefix(s.fam.arch, "gemma") {
		delete(s.out, "hidden_act")
		s.out["hidden_activation"] = s.fam.act
	}
}

// dtype is that of the layers' matrices; quantised ones have none.
func (s *settings) dtype() string {
	t, _ := s.f.Tensor("blk.0.ffn_down.weight")
	switch t.Type {
	case F16:
		return "float16"
	case BF16:
		return "bfloat16"
	}
	return "float32"
}

func (s *settings) rope() {
	theta, ok := s.float("rope.freq_base")
	if !ok {
		theta = 10000
	}
	r := map[string]any{"rope_theta": theta, "rope_type": "default"}
	s.out["rope_parameters"] = r
	if s.rotated != s.headDim && s.headDim > 0 {
		s.out["partial_rotary_factor"] = float64(s.rotated) / float64(s.headDim)
	}
	kind, err := s.f.Text(s.key("rope.scaling.type"), 64)
	if err != nil && !errors.Is(err, ErrAbsent) {
		s.gaps.add("%v", err)
	}
	factor, ok := s.float("rope.scaling.factor")
	if !ok {
		factor, _ = s.float("rope.scale_linear")
	}
	scale, hasScale := s.float("rope.scaling.attn_factor")
	_, freqs := s.f.Tensor(ropeFreqs)
	_, long := s.f.Tensor(ropeLong)
	switch {
	case long || kind == "longrope":
		s.longRope(r, scale, hasScale)
		return
	case hasScale && scale != 1:
		s.gaps.add("metadata %q is %g", s.key("rope.scaling.attn_factor"), scale)
	}
	scaled := factor != 0 && factor != 1
	switch {
	case freqs && (kind == "yarn" || scaled):
		s.gaps.add("tensor %q stands beside scaling %q", ropeFreqs, kind)
	case freqs:
		s.llama3Rope(r, theta)
	case kind == "yarn":
		r["rope_type"], r["factor"] = "yarn", factor
		if n := s.whole("rope.scaling.original_context_length", 0); n > 0 {
			r["original_max_position_embeddings"] = n
		}
		for _, field := range []string{"beta_fast", "beta_slow"} {
			if v, ok := s.float("rope.scaling.yarn_" + field); ok {
				r[field] = v
			}
		}
	case kind == "linear" || kind == "":
		if scaled {
			r["rope_type"], r["factor"] = "linear", factor
		}
	case kind != "none":
		s.gaps.add("metadata %q is %q: none, linear, yarn and longrope are read", s.key("rope.scaling.type"), shorten(kind))
	}
}

// ropeFactors reads a tensor of factors, one for each pair of rotated dimensions.
func (s *settings) ropeFactors(name string) []float32 {
	t, ok := s.f.Tensor(name)
	if !ok || t.Type != F32 || t.Elements() != s.rotated/2 {
		s.gaps.add("tensor %q: %d F32 factors are needed", name, s.rotated/2)
		return nil
	}
	factors := make([]float32, t.Elements())
	if err := s.f.ReadFloat32s(factors, t, 0); err != nil {
		s.gaps.add("%v", err)
		return nil
	}
	for i, v := range factors {
		if !(v > 0 && v <= 1e6) {
			s.gaps.add("tensor %q: factor %d is %v", name, i, v)
			return nil
		}
	}
	return factors
}

func (s *settings) llama3Rope(r map[string]any, theta float64) {
	factors := s.ropeFactors(ropeFreqs)
	if factors == nil || !slices.ContainsFunc(factors, func(v float32) bool { return v != 1 }) {
		return
	}
	found, err := solveLlama3(factors, theta)
	if err != nil {
		s.gaps.add("%v", err)
		return
	}
	r["rope_type"], r["factor"] = "llama3", found.factor
	r["low_freq_factor"], r["high_freq_factor"] = found.low, found.high
	r["original_max_position_embeddings"] = int64(found.original)
}

func (s *settings) longRope(r map[string]any, scale float64, hasScale bool) {
	original := s.whole("rope.scaling.original_context_length", -1)
	r["rope_type"] = "longrope"
	for _, part := range [][2]string{{ropeShort, "short_factor"}, {ropeLong, "long_factor"}} {
		wide := []json.Number{} // shortest decimals, as the original file had them
		for _, v := range s.ropeFactors(part[0]) {
			wide = append(wide, json.Number(fmt.Sprint(v)))
		}
		r[part[1]] = wide
	}
	r["original_max_position_embeddings"], s.out["original_max_position_embeddings"] = original, original
	// The reference computes the factor from the lengths; only one that differs is stated.
	usual := 1.0
	if ratio := float64(s.context) / float64(max(original, 1)); ratio > 1 && original > 1 {
		usual = math.Sqrt(1 + math.Log(ratio)/math.Log(float64(original)))
	}
	if hasScale && math.Abs(scale/usual-1) > 1e-5 {
		r["attention_factor"] = scale
	}
}

// windows reads what Gemma and Phi say about windows, caps and scales.
func (s *settings) windows() {
	window := s.whole("attention.sliding_window", 0)
	if s.fam.arch == "phi3" && window > 0 && window < s.context {
		s.out["sliding_window"] = window
	}
	if !s.fam.shifted {
		return
	}
	pattern := int64(2)
	if s.fam.arch == "gemma3" {
		pattern = 6
		s.localRope()
	}
	if window == 0 {
		s.gaps.add("metadata %q is missing or 0", s.key("attention.sliding_window"))
		return
	}
	s.out["sliding_window"] = window
	s.layerTypes(pattern)
	for _, field := range []string{"attn_logit_softcapping", "final_logit_softcapping"} {
		if v, ok := s.float(field); ok && v != 0 {
			s.out[field] = v
		}
	}
	// The file does not state the scale of the queries: as llama.cpp, by the number of layers of the published sizes.
	s.out["query_pre_attn_scalar"] = s.headDim
	if large := map[string]int64{"gemma2": 46, "gemma3": 62}[s.fam.arch]; s.layers == large && s.heads > 0 {
		s.out["query_pre_attn_scalar"] = s.hidden / s.heads
	}
}

// localRope gives the windowed layers a rotation of their own, without scaling.
func (s *settings) localRope() {
	local, ok := s.float("rope.freq_base_swa")
	if !ok {
		local = 10000
	}
	s.out["rope_parameters"] = map[string]any{
		"full_attention":    s.out["rope_parameters"],
		"sliding_attention": map[string]any{"rope_theta": local, "rope_type": "default"},
	}
}

// layerTypes says which layers have the window: all but every pattern-th, or as the file lists them.
func (s *settings) layerTypes(pattern int64) {
	const maxLayers = 1024
	key := s.key("attention.sliding_window_pattern")
	kind, item, count, ok := s.f.Kind(key)
	listed := ok && kind == Array
	switch {
	case s.layers > maxLayers:
		s.gaps.add("metadata %q is %d", s.key("block_count"), s.layers)
		return
	case listed && (item != Bool || count != s.layers):
		s.gaps.add("metadata %q: a number or a bool for each layer is needed", key)
		return
	case ok && !listed:
		pattern = s.whole("attention.sliding_window_pattern", pattern)
	}
	kinds := make([]string, s.layers)
	for i := range kinds {
		if kinds[i] = "sliding_attention"; pattern > 0 && int64(i+1)%pattern == 0 {
			kinds[i] = "full_attention"
		}
	}
	if listed {
		err := s.f.EachNumber(key, func(i int, windowed float64) error {
			if kinds[i] = "sliding_attention"; windowed == 0 {
				kinds[i] = "full_attention"
			}
			return nil
		})
		if err != nil {
			s.gaps.add("%v", err)
		}
	}
	s.out["layer_types"] = kinds
}

// unknown refuses settings that are not read and could change numbers.
func (s *settings) unknown() {
	reads := slices.Concat(honoured, harmless)
	switch {
	case s.fam.shifted:
		reads = append(reads, gemma...)
	case s.fam.arch == "phi3":
		reads = append(reads, windowed...)
	}
	for _, key := range s.f.Keys() {
		if name, ok := strings.CutPrefix(key, s.fam.arch+"."); ok && !slices.Contains(reads, name) {
			s.gaps.add("metadata %q is not honoured", shorten(key))
		}
	}
	if n := s.whole("expert_count", 0); n > 0 {
		s.gaps.add("metadata %q is %d: a mixture of experts", s.key("expert_count"), n)
	}
	if s.f.Has(s.key("attention.causal")) {
		if causal, err := s.f.Bool(s.key("attention.causal")); err != nil || !causal {
			s.gaps.add("metadata %q is not true", s.key("attention.causal"))
		}
	}
}

// tokens takes the ids that begin and end a text.
func (s *settings) tokens() {
	for field, key := range map[string]string{"bos_token_id": bosKey, "eos_token_id": eosKey, "pad_token_id": padKey} {
		if id, err := s.f.Uint(key); err == nil && int64(id) < s.vocab {
			s.out[field] = id
		}
	}
}

// configJSON is the config.json.
func (s *settings) configJSON() ([]byte, error) { return json.MarshalIndent(s.out, "", "  ") }

// generationJSON is the generation_config.json: all ids that end a text or a turn.
func (s *settings) generationJSON() ([]byte, error) {
	ends := []uint64{}
	for _, key := range []string{eosKey, eotKey, eomKey} {
		if id, err := s.f.Uint(key); err == nil && int64(id) < s.vocab && !slices.Contains(ends, id) {
			ends = append(ends, id)
		}
	}
	out := map[string]any{}
	if len(ends) > 0 {
		out["eos_token_id"] = ends
	}
	if id, ok := s.out["bos_token_id"]; ok {
		out["bos_token_id"] = id
	}
	return json.MarshalIndent(out, "", "  ")
}
