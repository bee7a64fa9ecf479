package export

import (
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"smolgym/model/hf"
	"smolgym/model/onnx"
	"smolgym/model/safetensors"
)

// onnxTrial is a model as an ONNX file, with our logits.
type onnxTrial struct {
	name   string
	out    memory
	ids    []int32 // two sequences of equal length
	logits []float32
	shared bool // made of what a fresh clone hasn't
}

// onnxVerdict is testdata/verdict_onnx.json, as check_onnx.py writes it.
type onnxVerdict struct {
	Cases map[string]struct {
		OK     bool
		Shared bool
		Files  map[string]string // sha256 by path
	}
}

// TestONNXCheck holds our files, byte for byte, to those that the checker has accepted and ONNX Runtime has run to our logits.
// To judge them: make check-onnx; to keep the verdict: make check-onnx VERDICT=write.
func TestONNXCheck(t *testing.T) {
	trials := onnxTrials(t)
	if *writeDir != "" {
		for _, c := range trials {
			c.write(t, filepath.Join(*writeDir, c.name))
		}
		return
	}
	var v onnxVerdict
	readVerdict(t, "verdict_onnx.json", &v)
	for _, c := range trials {
		seen, ok := v.Cases[c.name]
		delete(v.Cases, c.name)
		if !ok || !seen.OK {
			t.Errorf("%s: not judged or failed; run make check-onnx VERDICT=write", c.name)
			continue
		}
		c.out.wasJudged(t, c.name, seen.Files, "run make check-onnx VERDICT=write")
	}
	for name, c := range v.Cases {
		if !c.Shared {
			t.Errorf("%s was judged and is not made any more", name)
		}
	}
}

func (c onnxTrial) write(t *testing.T, dir string) {
	t.Helper()
	if err := os.MkdirAll(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	ids := make([]float32, len(c.ids))
	for i, v := range c.ids {
		ids[i] = float32(v)
	}
	n := int64(len(c.ids) / 2)
	numbers := inMemory(t, []Tensor{tensorOf("ids", []int64{2, n}, ids), tensorOf("logits", []int64{2, n, int64(len(c.logits)) / (2 * n)}, c.logits)},
		map[string]string{"shared": map[bool]string{true: "yes", false: "no"}[c.shared]})
	for name, b := range c.out {
		if err := os.WriteFile(filepath.Join(dir, name), b, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.WriteFile(filepath.Join(dir, "numbers.safetensors"), numbers, 0o644); err != nil {
		t.Fatal(err)
	}
}

// inMemory is a safetensors file in memory.
func inMemory(t *testing.T, tensors []Tensor, metadata map[string]string) []byte {
	t.Helper()
	var entries []safetensors.Entry
	for _, x := range tensors {
		entries = append(entries, safetensors.Entry{Name: x.Name, DType: safetensors.F32, Shape: x.Shape, Data: func(w io.Writer) error {
			v, err := x.values()
			if err != nil {
				return err
			}
			return errors.Join(convert(w, v, x.elements(), safetensors.F32), v.Close())
		}})
	}
	var b bytes.Buffer
	if err := safetensors.Write(&b, entries, metadata); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

// onnxTrials makes every case: the dense families of all goldens, soft caps and gated attention in a fresh clone too, trained
// weights, and the form of two files.
func onnxTrials(t *testing.T) []onnxTrial {
	t.Helper()
	var trials []onnxTrial
	add := func(name string, base memory, w Weights, o ONNXOptions, ids []int32, shared bool) {
		t.Helper()
		p, err := ONNX(base, w, o)
		trials = append(trials, onnxTrial{name, build(t, p, err), ids, logits(t, base, ids, w), shared})
	}
	goldens, err := filepath.Glob(filepath.Join("..", "..", "testdata", "goldens", "*.tar.gz"))
	if err != nil {
		t.Fatal(err)
	}
	have := map[string]bool{}
	for _, path := range append(goldens, familyArchives(t)...) {
		name := strings.TrimSuffix(filepath.Base(path), ".tar.gz")
		all := unpacked(t, path)
		shared := !strings.Contains(path, "testdata")
		weights := all["model.safetensors"] != nil || all[indexName] != nil
		if have[name] || !weights || all["config.json"] == nil || strings.HasPrefix(name, "steps_") {
			continue
		}
		have[name] = true
		base := openFamily(t, path)
		if _, err := ONNX(base, Weights{}, ONNXOptions{}); errors.Is(err, onnx.ErrUnsupported) {
			continue // which these are, package onnx tests
		}
		ids := idsOf(t, all["golden.safetensors"])
		add(name, base, Weights{}, ONNXOptions{}, ids, shared)
		if name == "gemma2_uncapped" {
			add("gemma2_capped", edited(t, base, map[string]any{"attn_logit_softcapping": 1.5, "final_logit_softcapping": 2.5}), Weights{}, ONNXOptions{}, ids, shared)
		}
	}
	add("qwen3_5_full", gatedModel(t), Weights{}, ONNXOptions{}, []int32{3, 1, 4, 1, 5, 9, 2, 6, 5, 3, 5, 8}, false)
	for _, name := range []string{"steps_llama", "steps_llama_tied"} {
		g := openGolden(t, name)
		add(name+".adapters", g.base, Weights{Adapters: pair(t, g.tensors("lora.step3.", "base_model.model."), 8)}, ONNXOptions{File: name + ".onnx", Inline: 1}, g.ids(), false)
		add(name+".full", sharded(t, g.base, 3), Weights{Full: g.tensors("own.step3.", "")}, ONNXOptions{}, g.ids(), false)
	}
	slices.SortFunc(trials, func(a, b onnxTrial) int { return strings.Compare(a.name, b.name) })
	return trials
}

func idsOf(t *testing.T, numbers []byte) []int32 {
	t.Helper()
	f, err := safetensors.Parse(bytes.NewReader(numbers), int64(len(numbers)))
	if err != nil {
		t.Fatal(err)
	}
	return (&golden{t: t, numbers: f}).ids()
}

// edited is a model with other fields in its configuration.
func edited(t *testing.T, base memory, fields map[string]any) memory {
	t.Helper()
	var config map[string]any
	if err := json.Unmarshal(base["config.json"], &config); err != nil {
		t.Fatal(err)
	}
	for k, v := range fields {
		config[k] = v
	}
	text, err := json.Marshal(config)
	if err != nil {
		t.Fatal(err)
	}
	return memory{"config.json": text, "model.safetensors": base["model.safetensors"]}
}

// gatedModel is a Qwen3.5 whose one layer attends to everything: the only kind with gated attention and no linear one.
func gatedModel(t *testing.T) memory {
	config := `{"model_type":"qwen3_5_text","architectures":["Qwen3_5ForCausalLM"],"vocab_size":40,"hidden_size":16,"intermediate_size":24,"num_hidden_layers":1,
		"num_attention_heads":4,"num_key_value_heads":2,"head_dim":8,"max_position_embeddings":32,"layer_types":["full_attention"],"tie_word_embeddings":false,
		"rope_parameters":{"rope_type":"default","rope_theta":10000,"partial_rotary_factor":0.5}}`
	var tensors []Tensor
	layer := "model.layers.0."
	for _, x := range []struct {
		name  string
		shape []int64
	}{
		{"model.embed_tokens.weight", []int64{40, 16}}, {"lm_head.weight", []int64{40, 16}}, {"model.norm.weight", []int64{16}},
		{layer + "input_layernorm.weight", []int64{16}}, {layer + "post_attention_layernorm.weight", []int64{16}},
		{layer + "self_attn.q_proj.weight", []int64{64, 16}}, {layer + "self_attn.k_proj.weight", []int64{16, 16}}, {layer + "self_attn.v_proj.weight", []int64{16, 16}},
		{layer + "self_attn.o_proj.weight", []int64{16, 32}}, {layer + "self_attn.q_norm.weight", []int64{8}}, {layer + "self_attn.k_norm.weight", []int64{8}},
		{layer + "mlp.gate_proj.weight", []int64{24, 16}}, {layer + "mlp.up_proj.weight", []int64{24, 16}}, {layer + "mlp.down_proj.weight", []int64{16, 24}},
	} {
		tensors = append(tensors, noise(x.name, x.shape, 0.5, 7))
	}
	return memory{"config.json": []byte(config), "model.safetensors": inMemory(t, tensors, map[string]string{"format": "pt"})}
}

// TestONNXRefusals: what can't be written is said before anything is.
func TestONNXRefusals(t *testing.T) {
	g := openGolden(t, "steps_llama")
	if _, err := ONNX(g.base, Weights{}, ONNXOptions{File: "../x.onnx"}); !errors.Is(err, hf.ErrName) {
		t.Errorf("a name that leaves the folder: %v", err)
	}
	wrong := Weights{Full: []Tensor{noise("model.norm.weight", []int64{32}, 1, 1)}}
	if _, err := ONNX(g.base, wrong, ONNXOptions{}); !errors.Is(err, ErrWeights) {
		t.Errorf("some of the parameters: %v", err)
	}
	mixtral := openFamily(t, filepath.Join("..", "..", "testdata", "families", "mixtral.tar.gz"))
	if _, err := ONNX(mixtral, Weights{}, ONNXOptions{}); !errors.Is(err, onnx.ErrUnsupported) || !strings.Contains(err.Error(), "mixtral") || !strings.Contains(err.Error(), "ExpertLinear") {
		t.Errorf("experts: %v", err)
	}
}
