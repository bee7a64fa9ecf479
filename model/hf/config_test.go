package hf

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"reflect"
	"runtime"
	"slices"
	"strings"
	"testing"

	"smolgym/model/golden"
	"smolgym/model/growth"
)

// base is a small sound configuration; with merges changes into it, null taking a field out.
const base = `{"model_type":"llama","vocab_size":512,"hidden_size":64,"intermediate_size":128,"num_hidden_layers":2,
"num_attention_heads":4,"num_key_value_heads":2,"max_position_embeddings":256,"rms_norm_eps":1e-5,"hidden_act":"silu"}`

func with(t testing.TB, changes string) []byte {
	t.Helper()
	all := map[string]json.RawMessage{}
	if err := errors.Join(json.Unmarshal([]byte(base), &all), json.Unmarshal([]byte(changes), &all)); err != nil {
		t.Fatalf("%s: %v", changes, err)
	}
	text, err := json.Marshal(all)
	if err != nil {
		t.Fatal(err)
	}
	return text
}

// variants gives the two spellings of every golden configuration: those of testdata, and the others where the shared
// material is there.
func variants(t *testing.T) map[string][2][]byte {
	t.Helper()
	found := map[string][2][]byte{}
	add := func(path string, text []byte) {
		v := found[filepath.Base(filepath.Dir(path))]
		switch filepath.Base(path) {
		case "config.json":
			v[0] = text
		case "config_v4.json":
			v[1] = text
		default:
			return
		}
		found[filepath.Base(filepath.Dir(path))] = v
	}
	own, err := filepath.Glob("testdata/configs/*/*.json")
	if err != nil || len(own) != 20 {
		t.Fatalf("testdata holds %d configurations, %v; want 20", len(own), err)
	}
	for _, path := range own {
		text, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		add(path, text)
	}
	for _, archive := range goldens(t) {
		unpack(t, archive, add)
	}
	return found
}

func sharedRoot() string {
	if root := os.Getenv("SMOLGYM_SHARED"); root != "" {
		return root
	}
	return filepath.Join("..", "..", "..", "shared")
}

func goldens(t *testing.T) []string {
	t.Helper()
	archives, err := filepath.Glob(filepath.Join(sharedRoot(), "goldens", "data", "*.tar.gz"))
	if err != nil {
		t.Fatal(err)
	}
	return archives
}

func unpack(t *testing.T, archive string, file func(path string, text []byte)) {
	t.Helper()
	for name, text := range golden.Unpack(t, archive) {
		file(name, text)
	}
}

func TestBothSpellingsAgree(t *testing.T) {
	all := variants(t)
	if n := len(all); n != 10 && n != 20 {
		t.Errorf("%d variants, want 10 or 20", n)
	}
	for name, texts := range all {
		t.Run(name, func(t *testing.T) {
			var configs [2]*Config
			for i, text := range texts {
				c, err := ParseConfig(text)
				if err != nil {
					t.Fatal(err)
				}
				if len(c.Warnings) > 0 {
					t.Errorf("warnings %q", c.Warnings)
				}
				if c.VocabSize != 512 || c.HiddenSize != 64 || c.Heads != 4 || c.MaxPositions != 256 || c.HiddenAct == "" {
					t.Errorf("sizes %+v", c)
				}
				if c.Rope.Theta == 0 && name != "gpt2" {
					t.Error("no theta")
				}
				c.Raw = nil
				configs[i] = c
			}
			if !reflect.DeepEqual(configs[0], configs[1]) {
				t.Errorf("the spellings differ:\n%+v\n%+v", *configs[0], *configs[1])
			}
		})
	}
	if len(all) == 10 {
		t.Skip("shared goldens are absent: 10 of 20 variants were checked; set SMOLGYM_SHARED")
	}
}

// What a Llama or Qwen3 builder honours.
var plainBuilder = []string{
	"vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads", "num_key_value_heads", "head_dim",
	"max_position_embeddings", "rms_norm_eps", "hidden_act", "attention_bias", "mlp_bias", "tie_word_embeddings", "rope_parameters",
}

func TestNoFieldOfAPlainModelIsLost(t *testing.T) {
	for name, texts := range variants(t) {
		want := map[string]string{
			"mistral": "[sliding_window = 8]",
			"smollm3": "[no_rope_layer_interval = 4 no_rope_layers = [1,1,1,0]]",
		}[name]
		plain := want != "" || strings.HasPrefix(name, "llama") || name == "qwen2" || name == "qwen3"
		for _, text := range texts {
			c, err := ParseConfig(text)
			if err != nil {
				t.Fatal(err)
			}
			got := fmt.Sprint(c.Unused(plainBuilder...))
			switch {
			case plain && want == "" && got != "[]", want != "" && got != want:
				t.Errorf("%s: unused %s, want %s", name, got, want)
			case !plain && got == "[]" && name != "olmo2" && name != "phi3": // these two differ from a Llama in their tensors alone
				t.Errorf("%s: nothing is unused, though it is no plain model", name)
			}
			for _, field := range plainBuilder {
				rest := slices.DeleteFunc(slices.Clone(plainBuilder), func(f string) bool { return f == field })
				if stated := c.Has(field) && !c.harmless(field, c.Raw[field]); stated && len(c.Unused(rest...)) == len(c.Unused(plainBuilder...)) {
					t.Errorf("%s: %s would be lost without notice", name, field)
				}
			}
		}
	}
}

func TestConfigValues(t *testing.T) {
	read := func(name, file string) *Config {
		text, err := os.ReadFile(filepath.Join("testdata", "configs", name, file))
		if err != nil {
			t.Fatal(err)
		}
		c, err := ParseConfig(text)
		if err != nil {
			t.Fatal(err)
		}
		return c
	}
	for _, file := range []string{"config.json", "config_v4.json"} {
		c := read("llama3_rope", file)
		want := Rope{Type: "llama3", Theta: 500000, Factor: 8, LowFreqFactor: 1, HighFreqFactor: 4, OriginalMaxPositions: 32}
		if !reflect.DeepEqual(c.Rope, want) {
			t.Errorf("rope %+v, want %+v", c.Rope, want)
		}
		if c.Layers != 2 || c.KVHeads != 2 || c.HeadDim != 16 || c.IntermediateSize != 128 || *c.RMSNormEps != 1e-5 || c.HiddenAct != "silu" ||
			c.DType != "bfloat16" || *c.TieWordEmbeddings || *c.AttentionBias || !slices.Equal(c.EOS, []int{2}) || !slices.Equal(c.BOS, []int{1}) {
			t.Errorf("llama3_rope: %+v", c)
		}
		if c := read("llama_bias_headdim", file); c.HeadDim != 32 || !*c.AttentionBias || !*c.MLPBias {
			t.Errorf("llama_bias_headdim: %+v", c)
		}
		if c := read("llama_yarn_rope", file); c.Rope.Type != "yarn" || c.Rope.Factor != 4 || c.Rope.OriginalMaxPositions != 64 || c.Rope.BetaFast != nil {
			t.Errorf("llama_yarn_rope: %+v", c.Rope)
		}
		if c := read("llama_tied", file); !*c.TieWordEmbeddings || c.Rope.Theta != 100000 {
			t.Errorf("llama_tied: %+v", c)
		}
		if c := read("mistral", file); c.Window() != 8 {
			t.Errorf("mistral: window %d", c.Window())
		}
		if c := read("qwen3", file); c.Window() != 0 || c.HeadDim != 32 || *c.MaxWindowLayers != 28 || len(c.LayerTypes) != 2 {
			t.Errorf("qwen3: %+v", c)
		}
		if c := read("smollm3", file); !slices.Equal(c.NoRopeLayers, []int{1, 1, 1, 0}) || c.HeadDim != 16 {
			t.Errorf("smollm3: %+v", c)
		}
	}
}

func TestConfigSpellings(t *testing.T) {
	tests := []struct {
		name, changes string
		good          func(c *Config) bool
	}{
		{"rope_type and type agree", `{"rope_scaling":{"type":"linear","rope_type":"linear","factor":2}}`, func(c *Config) bool { return c.Rope.Type == "linear" && c.Rope.Factor == 2 }},
		{"type alone", `{"rope_theta":5e5,"rope_scaling":{"type":"llama3","factor":32,"low_freq_factor":1,"high_freq_factor":4,"original_max_position_embeddings":16}}`,
			func(c *Config) bool {
				return c.Rope.Type == "llama3" && c.Rope.Factor == 32 && c.Rope.OriginalMaxPositions == 16 && c.Rope.Theta == 5e5
			}},
		{"both places agree", `{"rope_theta":10000,"rope_parameters":{"rope_type":"default","rope_theta":10000.0}}`, func(c *Config) bool { return c.Rope.Theta == 10000 }},
		{"theta absent in llama", `{}`, func(c *Config) bool { return c.Rope.Theta == 10000 && c.Rope.Type == "default" }},
		{"theta absent elsewhere", `{"model_type":"smollm3"}`, func(c *Config) bool { return c.Rope.Theta == 0 }},
		{"longrope", `{"model_type":"phi3","original_max_position_embeddings":64,"rope_scaling":{"type":"su","short_factor":[1,1.5],"long_factor":[2,3]}}`,
			func(c *Config) bool {
				return c.Rope.Type == "longrope" && c.Rope.OriginalMaxPositions == 64 && slices.Equal(c.Rope.LongFactor, []float64{2, 3}) && len(c.Warnings) == 0
			}},
		{"yarn options", `{"rope_scaling":{"rope_type":"yarn","factor":4,"beta_fast":32,"beta_slow":1,"attention_factor":0.9,"mscale":1,"mscale_all_dim":0.5,"truncate":false}}`,
			func(c *Config) bool {
				r := c.Rope
				return *r.BetaFast == 32 && *r.BetaSlow == 1 && *r.AttentionFactor == 0.9 && *r.MScale == 1 && *r.MScaleAllDim == 0.5 && !*r.Truncate
			}},
		{"a factor without scaling", `{"rope_scaling":{"rope_type":"default","factor":4}}`, func(c *Config) bool {
			return len(c.Warnings) == 1 && strings.Contains(c.Warnings[0], "rope_scaling.factor")
		}},
		{"tie absent", `{}`, func(c *Config) bool { return c.TieWordEmbeddings == nil }},
		{"tie null", `{"tie_word_embeddings":null}`, func(c *Config) bool { return c.TieWordEmbeddings == nil }},
		{"tie false", `{"tie_word_embeddings":false}`, func(c *Config) bool { return c.TieWordEmbeddings != nil && !*c.TieWordEmbeddings }},
		{"kv heads null", `{"num_key_value_heads":null}`, func(c *Config) bool { return c.KVHeads == 4 }},
		{"head_dim null", `{"head_dim":null}`, func(c *Config) bool { return c.HeadDim == 16 }},
		{"hidden not a multiple, head_dim given", `{"hidden_size":66,"head_dim":16}`, func(c *Config) bool { return c.HeadDim == 16 }},
		{"eos list", `{"eos_token_id":[128001,128008,128009],"vocab_size":128256}`, func(c *Config) bool { return slices.Equal(c.EOS, []int{128001, 128008, 128009}) }},
		{"pad -1", `{"pad_token_id":-1}`, func(c *Config) bool { return c.Pad == nil }},
		{"window off", `{"model_type":"qwen2","sliding_window":4096,"use_sliding_window":false}`, func(c *Config) bool { return c.Window() == 0 && len(c.Unused(plainBuilder...)) == 0 }},
		{"window without a word", `{"model_type":"qwen2","sliding_window":4096}`, func(c *Config) bool { return c.Window() == 0 }},
		{"window on", `{"model_type":"qwen2","sliding_window":4096,"use_sliding_window":true,"max_window_layers":1}`, func(c *Config) bool {
			return c.Window() == 4096 && fmt.Sprint(c.Unused(plainBuilder...)) == "[max_window_layers = 1 sliding_window = 4096 use_sliding_window = true]"
		}},
		{"dropout off", `{"attention_dropout":0.0,"pretraining_tp":1,"custom":null}`, func(c *Config) bool { return len(c.Unused(plainBuilder...)) == 0 }},
		{"dropout on", `{"attention_dropout":0.1,"pretraining_tp":2,"brand_new":{"a":[1]}}`, func(c *Config) bool {
			return fmt.Sprint(c.Unused(plainBuilder...)) == `[attention_dropout = 0.1 brand_new = {"a":[1]} pretraining_tp = 2]`
		}},
		// Field for field what published models of these kinds state beside the sizes.
		{"as SmolLM2", `{"is_llama_config":true,"rope_interleaved":false,"rope_scaling":null,"rope_theta":100000,"tie_word_embeddings":true,"torch_dtype":"bfloat16",
			"transformers.js_config":{"kv_cache_dtype":{"q4f16":"float16"}},"transformers_version":"4.42.3","use_cache":true,"initializer_range":0.041666666666666664}`,
			func(c *Config) bool {
				return len(c.Unused(plainBuilder...)) == 0 && c.Rope.Theta == 100000 && c.DType == "bfloat16"
			}},
		{"as Qwen2.5", `{"model_type":"qwen2","attention_dropout":0.0,"max_window_layers":21,"sliding_window":32768,"use_sliding_window":false,"rope_theta":1000000.0}`,
			func(c *Config) bool { return len(c.Unused(plainBuilder...)) == 0 && c.Window() == 0 }},
		{"as Llama 3.2", `{"rope_scaling":{"factor":32.0,"high_freq_factor":4.0,"low_freq_factor":1.0,"original_max_position_embeddings":8192,"rope_type":"llama3"},
			"rope_theta":500000.0,"eos_token_id":[1,2],"pretraining_tp":1,"mlp_bias":false}`,
			func(c *Config) bool {
				return len(c.Unused(plainBuilder...)) == 0 && c.Rope.HighFreqFactor == 4 && len(c.EOS) == 2
			}},
		{"as Phi-3", `{"model_type":"phi3","auto_map":{"AutoConfig":"x"},"embd_pdrop":0.0,"resid_pdrop":0.0,"original_max_position_embeddings":4096,"sliding_window":2047,"rope_scaling":null}`,
			func(c *Config) bool {
				return fmt.Sprint(c.Unused(plainBuilder...)) == "[sliding_window = 2047]" && len(c.Warnings) == 0
			}},
		{"unknown rotary member", `{"rope_parameters":{"rope_type":"default","rope_theta":10000,"mrope_section":[2,1,1]}}`, func(c *Config) bool {
			return fmt.Sprint(c.Unused(plainBuilder...)) == "[rope_parameters.mrope_section = [2,1,1]]" &&
				len(c.Unused(append(slices.Clone(plainBuilder), "rope_parameters.mrope_section")...)) == 0
		}},
	}
	for _, tt := range tests {
		c, err := ParseConfig(with(t, tt.changes))
		if err != nil {
			t.Errorf("%s: %v", tt.name, err)
		} else if !tt.good(c) {
			t.Errorf("%s: %+v\nunused %v", tt.name, *c, c.Unused(plainBuilder...))
		}
	}
}

var hostileConfigs = []struct {
	changes string
	names   []string // what the message must contain
}{
	{`{"model_type":null}`, []string{"model_type is missing"}},
	{`{"model_type":7}`, []string{"model_type is 7"}},
	{`{"vocab_size":null}`, []string{"vocab_size is missing"}},
	{`{"vocab_size":-1}`, []string{"vocab_size is -1"}},
	{`{"vocab_size":1e3}`, []string{"vocab_size is 1e3"}},
	{`{"hidden_size":0}`, []string{"hidden_size is 0"}},
	{`{"hidden_size":99999999999999999999999999}`, []string{"hidden_size is 9999"}},
	{`{"hidden_size":"64"}`, []string{`hidden_size is "64"`}},
	{`{"hidden_size":64.5}`, []string{"hidden_size is 64.5"}},
	{`{"hidden_size":true}`, []string{"hidden_size is true"}},
	{`{"hidden_size":[64]}`, []string{"hidden_size is [64]"}},
	{`{"num_hidden_layers":1000000000}`, []string{"num_hidden_layers is 1000000000"}},
	{`{"num_attention_heads":0}`, []string{"num_attention_heads is 0"}},
	{`{"num_key_value_heads":3}`, []string{"num_key_value_heads is 3"}},
	{`{"num_key_value_heads":0}`, []string{"num_key_value_heads is 0"}},
	{`{"head_dim":0}`, []string{"head_dim is 0"}},
	{`{"head_dim":-16}`, []string{"head_dim is -16"}},
	{`{"hidden_size":65}`, []string{"head_dim is missing"}},
	{`{"hidden_size":131072,"num_attention_heads":4096,"head_dim":4096,"num_key_value_heads":1}`, []string{"num_attention_heads times head_dim"}},
	{`{"intermediate_size":-5}`, []string{"intermediate_size is -5"}},
	{`{"max_position_embeddings":1e18}`, []string{"max_position_embeddings is 1e18"}},
	{`{"rms_norm_eps":-1}`, []string{"rms_norm_eps is -1"}},
	{`{"rms_norm_eps":"1e-5"}`, []string{"rms_norm_eps"}},
	{`{"attention_bias":0}`, []string{"attention_bias is 0"}},
	{`{"tie_word_embeddings":"yes"}`, []string{"tie_word_embeddings"}},
	{`{"eos_token_id":"</s>"}`, []string{"eos_token_id"}},
	{`{"eos_token_id":[2,"x"]}`, []string{"eos_token_id[1]"}},
	{`{"eos_token_id":-7}`, []string{"eos_token_id"}},
	{`{"eos_token_id":99999999999}`, []string{"eos_token_id"}},
	{`{"layer_types":["full_attention"]}`, []string{"layer_types has 1"}},
	{`{"layer_types":"full_attention"}`, []string{"layer_types"}},
	{`{"no_rope_layers":[1,2]}`, []string{"no_rope_layers[1]"}},
	{`{"sliding_window":-8}`, []string{"sliding_window is -8"}},
	{`{"n_embd":65}`, []string{"hidden_size is 64", "n_embd is 65"}},
	{`{"dtype":"float32","torch_dtype":"bfloat16"}`, []string{"dtype", "torch_dtype"}},
	{`{"rope_theta":0}`, []string{"rope_theta is 0"}},
	{`{"rope_theta":-1e4}`, []string{"rope_theta is -"}},
	{`{"rope_theta":1e999}`, []string{"rope_theta is 1e999"}},
	{`{"rope_theta":20000,"rope_parameters":{"rope_theta":10000}}`, []string{"rope_theta is 20000"}},
	{`{"rope_scaling":{"factor":2},"rope_parameters":{"factor":3}}`, []string{"rope_parameters", "rope_scaling"}},
	{`{"rope_scaling":"linear"}`, []string{"rope_scaling"}},
	{`{"rope_scaling":{"type":"linear","rope_type":"yarn","factor":2}}`, []string{"rope_scaling.rope_type", "rope_scaling.type"}},
	{`{"rope_scaling":{"type":"linear"}}`, []string{"rope_scaling.factor is missing"}},
	{`{"rope_scaling":{"type":"linear","factor":0}}`, []string{"rope_scaling.factor is 0"}},
	{`{"rope_scaling":{"type":"llama3","factor":8}}`, []string{"low_freq_factor", "high_freq_factor", "original_max_position_embeddings"}},
	{`{"rope_scaling":{"type":"llama3","factor":8,"low_freq_factor":4,"high_freq_factor":4,"original_max_position_embeddings":16}}`, []string{"high_freq_factor is 4"}},
	{`{"rope_scaling":{"type":"longrope","short_factor":[0],"long_factor":[1]}}`, []string{"short_factor[0]"}},
	{`{"rope_parameters":{"full_attention":{"rope_theta":1}}}`, []string{"rope_parameters.sliding_attention"}},
	{`{"rope_parameters":{"full_attention":{},"sliding_attention":{},"factor":2}}`, []string{"rope_parameters.factor"}},
	{`{"partial_rotary_factor":1.5}`, []string{"partial_rotary_factor is 1.5"}},
	{`{"num_experts":2,"num_experts_per_tok":3}`, []string{"num_experts_per_tok is 3"}},
	{`{"vocab_size":0,"hidden_size":-1,"rope_theta":"x"}`, []string{"vocab_size is 0", "hidden_size is -1", "rope_theta"}},
}

func TestHostileConfigs(t *testing.T) {
	for _, tt := range hostileConfigs {
		_, err := ParseConfig(with(t, tt.changes))
		if !errors.Is(err, ErrInvalid) {
			t.Errorf("%s: error %v, want a refusal", tt.changes, err)
			continue
		}
		for _, name := range tt.names {
			if !strings.Contains(err.Error(), name) {
				t.Errorf("%s: error %q does not contain %q", tt.changes, err, name)
			}
		}
	}
	for text, name := range map[string]string{
		``: "not a JSON object", `[]`: "not a JSON object", `{`: "not closed", `{}{}`: "follows", `{"a":1} x`: "follows",
		`{"hidden_size":NaN}`:                      `"hidden_size"`,
		`{"hidden_size":Infinity}`:                 `"hidden_size"`,
		`{"hidden_size":64,"hidden_size":65}`:      `"hidden_size" appears twice`,
		strings.Repeat(`{"a":`, 1<<19) + `1`:       `"a"`,
		strings.Repeat(" ", maxConfigBytes+1):      "at most",
		`{"model_type":"x","text_config":{"a":1}}`: "text_config",
	} {
		if _, err := ParseConfig([]byte(text)); err == nil || !strings.Contains(err.Error(), name) {
			t.Errorf("%.40q: error %v, want %q", text, err, name)
		}
	}
}

// A configuration costs memory by its length, not by the numbers it names.
func TestHostileConfigAllocatesLittle(t *testing.T) {
	text := with(t, `{"num_hidden_layers":1000000000,"vocab_size":9000000000000000000,"num_experts":1000000000,"layer_types":["x"]}`)
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	_, err := ParseConfig(text)
	runtime.ReadMemStats(&after)
	if err == nil {
		t.Fatal("accepted")
	}
	if grown := after.TotalAlloc - before.TotalAlloc; grown > 1<<20 {
		t.Errorf("allocated %d bytes", grown)
	}
}

func TestGenerationConfig(t *testing.T) {
	g, err := ParseGenerationConfig([]byte(`{"eos_token_id":[3,2],"bos_token_id":1,"pad_token_id":null,"temperature":0.6}`))
	if err != nil || !slices.Equal(g.EOS, []int{3, 2}) || !slices.Equal(g.BOS, []int{1}) || g.Pad != nil || len(g.Raw) != 4 {
		t.Errorf("%+v, %v", g, err)
	}
	if _, err := ParseGenerationConfig([]byte(`{"eos_token_id":"x"}`)); !errors.Is(err, ErrInvalid) || !strings.Contains(err.Error(), "eos_token_id") {
		t.Errorf("%v", err)
	}
}

func FuzzConfig(f *testing.F) {
	f.Add([]byte(base))
	f.Add([]byte(`{"model_type":"gemma3","tie_word_embeddings":true,"text_config":{"model_type":"gemma3_text","hidden_size":8,"num_hidden_layers":1}}`))
	own, _ := filepath.Glob("testdata/configs/*/*.json")
	for _, path := range own {
		text, err := os.ReadFile(path)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(text)
	}
	f.Add(with(f, `{"rope_parameters":{"full_attention":{"rope_theta":1},"sliding_attention":{"rope_theta":2}},"sliding_window_pattern":2}`))
	f.Add(with(f, `{"rope_scaling":{"type":"longrope","short_factor":[1],"long_factor":[2]},"eos_token_id":[1,-1],"num_experts":2,"num_experts_per_tok":2}`))
	var live growth.Watch
	f.Fuzz(func(t *testing.T, text []byte) {
		live.Check(t)
		c, err := ParseConfig(text)
		if err != nil {
			if c != nil || len(err.Error()) > 1<<16 {
				t.Fatalf("refused with %v and %d bytes of message", c, len(err.Error()))
			}
			return
		}
		_ = c.Unused()
		sizes := []int{c.VocabSize, c.HiddenSize, c.Layers, c.Heads, c.KVHeads, c.HeadDim}
		if slices.Min(sizes) < 1 || c.VocabSize > maxVocab || c.HiddenSize > maxHidden || c.Layers > maxLayers || c.Heads*c.HeadDim > maxInner ||
			c.Heads%c.KVHeads != 0 || c.IntermediateSize < 0 || c.IntermediateSize > maxInner || c.Window() < 0 || c.Rope.Theta < 0 {
			t.Fatalf("accepted %+v", c)
		}
		if len(c.LayerTypes) != 0 && len(c.LayerTypes) != c.Layers {
			t.Fatalf("accepted %+v", c)
		}
		again, err := ParseConfig(text)
		if err != nil || !reflect.DeepEqual(c, again) {
			t.Fatalf("the second reading differs: %v", err)
		}
	})
}
