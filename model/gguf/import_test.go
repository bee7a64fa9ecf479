package gguf

import (
	"bytes"
	"encoding/binary"
	"encoding/json"
	"errors"
	"io"
	"maps"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	goldens "smolgym/model/golden"
	"smolgym/model/hf"
	"smolgym/model/safetensors"
)

// sharedCheckpoint unpacks a checkpoint of the shared goldens, or skips the test.
func sharedCheckpoint(tb testing.TB, name string) checkpoint {
	tb.Helper()
	file := filepath.Join(goldens.Shared(tb), "goldens", "data", name+".tar.gz")
	if _, err := os.Stat(file); err != nil {
		tb.Skipf("shared goldens are absent; set SMOLGYM_SHARED (%v)", err)
	}
	c := checkpoint(goldens.Files(tb, file))
	maps.DeleteFunc(c, func(name string, _ []byte) bool { return name != "config.json" && !strings.HasPrefix(name, "model") })
	return c
}

// asGGUF writes a checkpoint as a converter would: names and norms of the family, values as float32.
func asGGUF(tb testing.TB, fam *family, src checkpoint, c *hf.Checkpoint, kvs []KV) *File {
	tb.Helper()
	var entries []Entry
	for _, name := range c.Names {
		to := fam.toGGUF(name, c.Config.Layers)
		if to == "" || fam.toHF(to, c.Config.Layers) != name {
			tb.Fatalf("%s became %q and %q", name, to, fam.toHF(to, c.Config.Layers))
		}
		v := values(tb, src, c, name)
		if fam.shifted && isNorm(to) {
			for i := range v {
				v[i]++
			}
		}
		entries = append(entries, f32Entry(to, c.Tensors[name].Shape, v))
	}
	all := append([]KV{{"general.architecture", fam.arch}}, standardKVs(fam.arch, &c.Config)...)
	var b bytes.Buffer
	if err := Write(&b, append(all, kvs...), entries); err != nil {
		tb.Fatal(err)
	}
	f, err := parse(b.Bytes())
	if err != nil {
		tb.Fatal(err)
	}
	return f
}

func f32Entry(name string, shape []int64, v []float32) Entry {
	return Entry{name, F32, shape, func(w io.Writer) error { return binary.Write(w, binary.LittleEndian, v) }}
}

func standardKVs(arch string, c *hf.Config) []KV {
	kvs := []KV{{arch + ".attention.layer_norm_rms_epsilon", float32(*c.RMSNormEps)}, {arch + ".rope.freq_base", float32(c.Rope.Theta)},
		{bosKey, uint32(1)}, {eosKey, uint32(2)}, {eotKey, uint32(5)}}
	for name, v := range map[string]int{"context_length": c.MaxPositions, "embedding_length": c.HiddenSize, "block_count": c.Layers,
		"feed_forward_length": c.IntermediateSize, "attention.head_count": c.Heads, "attention.head_count_kv": c.KVHeads,
		"attention.key_length": c.HeadDim, "attention.value_length": c.HeadDim} {
		kvs = append(kvs, KV{arch + "." + name, uint32(v)})
	}
	slices.SortFunc(kvs, func(a, b KV) int { return strings.Compare(a.Key, b.Key) })
	return kvs
}

// The families that are read but not written: names, norms, settings.
func TestImportFamilies(t *testing.T) {
	tests := []struct {
		golden string
		arch   string
		kvs    []KV
		change func(*hf.Config) // what the format can't say, in the expectation
	}{
		{"qwen2", "qwen2", nil, nil},
		{"gemma2", "gemma2", []KV{{"gemma2.attention.sliding_window", uint32(8)}, {"gemma2.attn_logit_softcapping", float32(5)},
			{"gemma2.final_logit_softcapping", float32(3)}}, func(c *hf.Config) { *c.QueryPreAttnScalar = 16 }},
		{"gemma3_text", "gemma3", []KV{{"gemma3.attention.sliding_window", uint32(8)}, {"gemma3.attention.sliding_window_pattern", uint32(3)}},
			func(c *hf.Config) { *c.QueryPreAttnScalar = 16 }},
		{"phi3", "phi3", []KV{{"phi3.rope.dimension_count", uint32(16)}}, func(c *hf.Config) { c.Rope.PartialRotaryFactor, c.Rope.OriginalMaxPositions = nil, 0 }},
	}
	for _, tt := range tests {
		t.Run(tt.golden, func(t *testing.T) {
			src := sharedCheckpoint(t, tt.golden)
			want, err := hf.Describe(src)
			if err != nil {
				t.Fatal(err)
			}
			f := asGGUF(t, familyOf(func(m *family) bool { return m.arch == tt.arch }), src, want, tt.kvs)
			back, err := NewSource(f, Options{})
			if err != nil {
				t.Fatal(err)
			}
			got, err := hf.Describe(back)
			if err != nil {
				t.Fatal(err)
			}
			if tt.change != nil {
				tt.change(&want.Config)
			}
			if a, b := settingsOf(t, want.Config), settingsOf(t, got.Config); a != b {
				t.Errorf("settings\n%s, want\n%s", b, a)
			}
			if !slices.Equal(got.EOS, []int{2, 5}) || !slices.Equal(got.GenerationConfig.BOS, []int{1}) {
				t.Errorf("ends %v, begins %v", got.EOS, got.GenerationConfig.BOS)
			}
			if !slices.Equal(got.Names, want.Names) {
				t.Fatalf("tensors %v, want %v", got.Names, want.Names)
			}
			for _, name := range want.Names {
				a, b := values(t, src, want, name), values(t, back, got, name)
				for i := range a {
					// A norm's weight has lost its last bits when 1 was added: an ulp of 2 at most.
					if d := math.Abs(float64(a[i] - b[i])); d > 0 && (d > 2.4e-7 || !strings.Contains(name, "norm")) {
						t.Fatalf("%s: element %d is %v, want %v", name, i, b[i], a[i])
					}
				}
			}
		})
	}
}

func settingsOf(t *testing.T, c hf.Config) string {
	t.Helper()
	if c.AttentionBias != nil && !*c.AttentionBias {
		c.AttentionBias = nil
	}
	text, err := json.Marshal([]any{c.ModelType, c.Architectures, c.VocabSize, c.HiddenSize, c.IntermediateSize, c.Layers, c.Heads, c.KVHeads, c.HeadDim,
		c.MaxPositions, c.RMSNormEps, c.HiddenAct, c.TieWordEmbeddings, c.Rope, c.RopeLocal, c.Window(), c.AttentionBias, c.MLPBias,
		c.AttentionSoftcap, c.FinalSoftcap, c.QueryPreAttnScalar, window(c)})
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

func window(c hf.Config) []string {
	if c.Window() == 0 {
		return nil
	}
	return c.LayerTypes
}

// tiny is a model of one layer, as llama spells it, with changes.
func tiny(tb testing.TB, arch string, kvs []KV, entries ...Entry) *File {
	tb.Helper()
	fam := familyOf(func(m *family) bool { return m.arch == arch })
	const d = 32
	all := []KV{{"general.architecture", arch}}
	eps := 1e-5
	for _, kv := range standardKVs(arch, &hf.Config{MaxPositions: 64, HiddenSize: d, Layers: 1, IntermediateSize: d, Heads: 2, KVHeads: 2, HeadDim: d / 2,
		RMSNormEps: &eps, Rope: hf.Rope{Theta: 10000}}) {
		if !slices.ContainsFunc(kvs, func(other KV) bool { return other.Key == kv.Key }) {
			all = append(all, kv)
		}
	}
	for _, kv := range kvs {
		if kv.Value != nil {
			all = append(all, kv)
		}
	}
	add := func(e Entry) {
		if !slices.ContainsFunc(entries, func(other Entry) bool { return other.Name == e.Name }) {
			entries = append(entries, e)
		}
	}
	add(f32Entry("token_embd.weight", []int64{40, d}, make([]float32, 40*d)))
	add(f32Entry("output_norm.weight", []int64{d}, make([]float32, d)))
	for _, module := range []string{"attn_norm", "attn_q", "attn_k", "attn_v", "attn_output", "ffn_norm", "ffn_gate", "ffn_up", "ffn_down"} {
		if fam == nil || fam.block[module] == "" {
			continue
		}
		shape := []int64{d, d}
		if strings.HasSuffix(module, "norm") {
			shape = shape[1:]
		}
		add(f32Entry("blk.0."+module+".weight", shape, make([]float32, d*d)[:d*map[int]int{1: 1, 2: d}[len(shape)]]))
	}
	var b bytes.Buffer
	if err := Write(&b, all, entries); err != nil {
		tb.Fatal(err)
	}
	f, err := parse(b.Bytes())
	if err != nil {
		tb.Fatal(err)
	}
	return f
}

// Everything that can't be taken is refused by name.
func TestImportRefusals(t *testing.T) {
	quantised := func(name string, kind Type, shape ...int64) Entry {
		n, _ := checkedElements(shape)
		block, size := kind.Block()
		return Entry{name, kind, shape, func(w io.Writer) error { _, err := w.Write(make([]byte, n/block*size)); return err }}
	}
	tests := []struct {
		name    string
		arch    string
		kvs     []KV
		entries []Entry
		is      error
		names   []string
	}{
		{"family", "mamba", nil, nil, ErrUnsupported, []string{"general.architecture", "mamba"}},
		{"parts", "llama", []KV{{"split.count", uint32(2)}}, nil, ErrUnsupported, []string{"split.count"}},
		{"encodings", "llama", nil, []Entry{quantised("blk.0.attn_v.weight", 6, 32, 32), quantised("blk.0.ffn_up.weight", 20, 32, 32)}, ErrUnsupported,
			[]string{"blk.0.attn_v.weight", "Q5_0", "blk.0.ffn_up.weight", "IQ4_NL"}},
		{"tensor", "llama", nil, []Entry{f32Entry("blk.0.ffn_gate_inp.weight", []int64{1}, make([]float32, 1))}, ErrUnsupported, []string{"blk.0.ffn_gate_inp.weight"}},
		{"tensor of a layer too many", "llama", nil, []Entry{f32Entry("blk.1.attn_q.weight", []int64{1}, make([]float32, 1))}, ErrUnsupported, []string{"blk.1.attn_q.weight"}},
		{"tensor of layer 00", "llama", nil, []Entry{f32Entry("blk.00.attn_q.weight", []int64{1}, make([]float32, 1))}, ErrUnsupported, []string{"blk.00.attn_q.weight"}},
		{"setting", "llama", []KV{{"llama.attention.clamp_kqv", float32(8)}, {"llama.logit_scale", float32(2)}}, nil, ErrUnsupported,
			[]string{"llama.attention.clamp_kqv", "llama.logit_scale"}},
		{"experts", "llama", []KV{{"llama.expert_count", uint32(8)}}, nil, ErrUnsupported, []string{"llama.expert_count"}},
		{"no heads", "llama", []KV{{"llama.attention.head_count", nil}}, nil, ErrUnsupported, []string{"llama.attention.head_count"}},
		{"heads a text", "llama", []KV{{"llama.attention.head_count", "two"}}, nil, ErrUnsupported, []string{"llama.attention.head_count"}},
		{"heads a list", "llama", []KV{{"llama.attention.head_count_kv", []int32{1, 2}}}, nil, ErrUnsupported, []string{"llama.attention.head_count_kv"}},
		{"layers 2^63", "llama", []KV{{"llama.block_count", uint64(1) << 63}}, nil, ErrUnsupported, []string{"llama.block_count"}},
		{"value size", "llama", []KV{{"llama.attention.value_length", uint32(8)}}, nil, ErrUnsupported, []string{"llama.attention.value_length"}},
		{"not causal", "llama", []KV{{"llama.attention.causal", false}}, nil, ErrUnsupported, []string{"llama.attention.causal"}},
		{"no eps", "llama", []KV{{"llama.attention.layer_norm_rms_epsilon", nil}}, nil, ErrUnsupported, []string{"layer_norm_rms_epsilon"}},
		{"eps NaN", "llama", []KV{{"llama.attention.layer_norm_rms_epsilon", float32(math.NaN())}}, nil, ErrUnsupported, []string{"layer_norm_rms_epsilon"}},
		{"scaling", "llama", []KV{{"llama.rope.scaling.type", "su"}}, nil, ErrUnsupported, []string{"llama.rope.scaling.type", "su"}},
		{"attention factor", "llama", []KV{{"llama.rope.scaling.attn_factor", float32(1.2)}}, nil, ErrUnsupported, []string{"attn_factor"}},
		{"factors", "llama", nil, []Entry{f32Entry(ropeFreqs, []int64{8}, []float32{1, 5, 1, 5, 1, 5, 1, 5})}, ErrUnsupported, []string{ropeFreqs}},
		{"factors of another size", "llama", nil, []Entry{f32Entry(ropeFreqs, []int64{4}, []float32{1, 1, 1, 2})}, ErrUnsupported, []string{ropeFreqs}},
		{"no window", "gemma2", nil, nil, ErrUnsupported, []string{"gemma2.attention.sliding_window"}},
		{"odd heads", "llama", []KV{{"llama.attention.head_count", uint32(32)}}, nil, ErrUnsupported, []string{"blk.0.attn_q.weight"}},
		{"heads 0", "llama", []KV{{"llama.attention.head_count", uint32(0)}, {"llama.attention.head_count_kv", uint32(0)}}, nil, nil, nil},
		{"pre", "llama", []KV{{modelKey, "gpt2"}, {preKey, "new"}, {tokensKey, []string{"a", "b", "c"}}}, nil, ErrUnsupported, []string{preKey, "new"}},
	}
	for _, tt := range tests {
		s, err := NewSource(tiny(t, tt.arch, tt.kvs, tt.entries...), Options{})
		if tt.is == nil { // left to the next layer
			if err == nil {
				_, err = hf.Describe(s)
			}
			if err == nil {
				t.Errorf("%s: taken", tt.name)
			}
			continue
		}
		if !errors.Is(err, tt.is) {
			t.Errorf("%s: %v", tt.name, err)
			continue
		}
		for _, want := range tt.names {
			if !strings.Contains(err.Error(), want) {
				t.Errorf("%s: %v does not name %s", tt.name, err, want)
			}
		}
	}
	if _, err := NewSource(tiny(t, "llama", nil), Options{As: safetensors.I64}); !errors.Is(err, ErrUnsupported) {
		t.Errorf("as I64: %v", err)
	}
}

func TestImportRope(t *testing.T) {
	long := []float32{1.05, 1.1, 2, 3.25, 5, 8, 13, 21}
	tests := []struct {
		name    string
		arch    string
		kvs     []KV
		entries []Entry
		want    string
	}{
		{"none", "llama", []KV{{"llama.rope.scaling.type", "none"}, {"llama.rope.scaling.factor", float32(4)}}, nil, `{"rope_theta":10000,"rope_type":"default"}`},
		{"old linear", "llama", []KV{{"llama.rope.scale_linear", float32(4)}}, nil, `{"factor":4,"rope_theta":10000,"rope_type":"linear"}`},
		{"linear", "qwen2", []KV{{"qwen2.rope.scaling.type", "linear"}, {"qwen2.rope.scaling.factor", float32(2.5)}}, nil, `{"factor":2.5,"rope_theta":10000,"rope_type":"linear"}`},
		{"yarn", "qwen2", []KV{{"qwen2.rope.scaling.type", "yarn"}, {"qwen2.rope.scaling.factor", float32(4)}, {"qwen2.rope.scaling.original_context_length", uint32(16)}, {"qwen2.rope.scaling.yarn_beta_fast", float32(16)}},
			nil, `{"beta_fast":16,"factor":4,"original_max_position_embeddings":16,"rope_theta":10000,"rope_type":"yarn"}`},
		{"longrope", "phi3", []KV{{"phi3.rope.scaling.original_context_length", uint32(16)}, {"phi3.rope.scaling.attn_factor", float32(math.Sqrt(1 + math.Log(4)/math.Log(16)))}},
			[]Entry{f32Entry(ropeLong, []int64{8}, long), f32Entry(ropeShort, []int64{8}, long)},
			`{"long_factor":[1.05,1.1,2,3.25,5,8,13,21],"original_max_position_embeddings":16,"rope_theta":10000,"rope_type":"longrope","short_factor":[1.05,1.1,2,3.25,5,8,13,21]}`},
	}
	for _, tt := range tests {
		s, err := NewSource(tiny(t, tt.arch, tt.kvs, tt.entries...), Options{})
		if err != nil {
			t.Errorf("%s: %v", tt.name, err)
			continue
		}
		var c map[string]json.RawMessage
		if err := json.Unmarshal(s.texts["config.json"], &c); err != nil {
			t.Fatal(err)
		}
		var got bytes.Buffer
		if err := json.Compact(&got, c["rope_parameters"]); err != nil || got.String() != tt.want {
			t.Errorf("%s: %s, want %s (%v)", tt.name, got.String(), tt.want, err)
		}
		if _, err := hf.ParseConfig(s.texts["config.json"]); err != nil {
			t.Errorf("%s: %v", tt.name, err)
		}
	}
}

// TestImportWithoutTokenizer takes both spellings that llama.cpp has for a file without one.
func TestImportWithoutTokenizer(t *testing.T) {
	for _, model := range []string{"no_vocab", "none"} {
		s, err := NewSource(tiny(t, "llama", []KV{{modelKey, model}}), Options{})
		if err != nil || s.Tokenizer || len(s.Warnings) != 1 || slices.Contains(s.Names(), "tokenizer.json") {
			t.Errorf("%s: %+v, %v", model, s, err)
		}
	}
}
