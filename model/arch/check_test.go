package arch_test

import (
	"bytes"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"smolgym/model/arch"
	"smolgym/model/grad"
	"smolgym/model/hf"
	"smolgym/model/ir"
	"smolgym/model/lora"
	"smolgym/model/loss"
	"smolgym/model/plan"
	"smolgym/model/safetensors"
)

var rewrite = flag.Bool("update", false, "rewrite golden files")

// sample is a checkpoint of the import goldens with fields of its configuration
// replaced; "" removes one.
func sample(t *testing.T, name string, fields map[string]string) *hf.Checkpoint {
	t.Helper()
	dir := unpack(t, name)
	text, err := os.ReadFile(filepath.Join(dir, "config_v4.json"))
	if err != nil {
		t.Fatal(err)
	}
	var raw map[string]json.RawMessage
	if err := json.Unmarshal(text, &raw); err != nil {
		t.Fatal(err)
	}
	for k, v := range fields {
		if v == "" {
			delete(raw, k)
			continue
		}
		raw[k] = json.RawMessage(v)
	}
	if text, err = json.Marshal(raw); err != nil {
		t.Fatal(err)
	}
	ck, _ := describe(t, dir, "config_v4.json")
	c, err := hf.ParseConfig(text)
	if err != nil {
		t.Fatal(err)
	}
	ck.Config = *c
	return ck
}

func TestCheckListsEverything(t *testing.T) {
	for _, c := range []struct {
		name, model string
		fields      map[string]string
		tensors     func(m map[string]hf.Tensor)
		want        []string // prefixes of the gaps, in order
	}{
		{name: "good", model: "llama"},
		{name: "unknown family", model: "llama", fields: map[string]string{"model_type": `"mamba"`}, want: []string{"architecture mamba: unknown model_type; known are gemma2, gemma3_text, gpt2, gpt_neox, granite, llama, mistral, mixtral, olmo2, "}},
		{name: "other head", model: "llama", fields: map[string]string{"architectures": `["LlamaForSequenceClassification"]`}, want: []string{"architecture LlamaForSequenceClassification: "}},
		{name: "no architectures", model: "llama", fields: map[string]string{"architectures": ""}},
		{name: "activation", model: "llama", fields: map[string]string{"hidden_act": `"gelu"`}, want: []string{`config hidden_act: "gelu"`}},
		{name: "longrope", model: "llama", fields: map[string]string{"rope_scaling": `{"type":"longrope","short_factor":[1,1],"long_factor":[1,1]}`}, want: []string{"config rope_parameters.short_factor: 2 factors and 2 in long_factor; 8 pairs", "config rope_parameters.original_max_position_embeddings: is 0"}},
		{name: "partial rotary", model: "llama", fields: map[string]string{"partial_rotary_factor": "0.5"}, want: []string{"config partial_rotary_factor: 0.5"}},
		{name: "dynamic is default within the context", model: "llama", fields: map[string]string{"rope_scaling": `{"type":"dynamic","factor":4.0}`}},
		{name: "unknown rotary field", model: "llama", fields: map[string]string{"rope_scaling": `{"type":"linear","factor":4.0,"twist":1}`}, want: []string{"config rope_parameters.twist: 1 "}},
		{name: "window", model: "qwen3", fields: map[string]string{"use_sliding_window": "true", "sliding_window": "64", "max_window_layers": "1"}},
		{name: "window off", model: "qwen3", fields: map[string]string{"use_sliding_window": "false", "sliding_window": "64"}},
		{name: "window of a llama", model: "llama", fields: map[string]string{"sliding_window": "64"}, want: []string{"config sliding_window: 64 "}},
		{name: "layer types", model: "qwen3", fields: map[string]string{"layer_types": `["full_attention","sliding_attention"]`}},
		{name: "layer types of a llama", model: "llama", fields: map[string]string{"layer_types": `["full_attention","sliding_attention"]`}, want: []string{"config layer_types: "}},
		{name: "mlp bias of qwen3", model: "qwen3", fields: map[string]string{"mlp_bias": "true"}, want: []string{"config mlp_bias: true"}},
		{name: "field that changes numbers", model: "llama", fields: map[string]string{"logits_scaling": "8", "attention_dropout": "0.1"}, want: []string{"config attention_dropout: 0.1", "config logits_scaling: 8"}},
		{name: "several at once", model: "llama", fields: map[string]string{"hidden_act": `"relu"`, "logits_scaling": "8"},
			tensors: func(m map[string]hf.Tensor) {
				delete(m, "model.norm.weight")
				set(m, "model.layers.0.mlp.up_proj.weight", func(x *hf.Tensor) { x.Shape = []int64{64, 128} })
				set(m, "model.layers.1.mlp.up_proj.weight", func(x *hf.Tensor) { x.DType = safetensors.I8 })
				m["model.layers.0.mlp.up_proj.bias"] = hf.Tensor{Name: "model.layers.0.mlp.up_proj.bias", DType: safetensors.F32, Shape: []int64{128}}
			},
			want: []string{`config hidden_act: "relu"`, "config logits_scaling: 8", "unexpected model.layers.0.mlp.up_proj.bias", "shape model.layers.0.mlp.up_proj.weight: is [64 128], the configuration says [128,64]",
				"dtype model.layers.1.mlp.up_proj.weight: I8", "missing model.norm.weight"}},
		{name: "bias asked for and absent", model: "llama", fields: map[string]string{"mlp_bias": "true"}, want: []string{
			"missing model.layers.0.mlp.down_proj.bias", "missing model.layers.0.mlp.gate_proj.bias", "missing model.layers.0.mlp.up_proj.bias",
			"missing model.layers.1.mlp.down_proj.bias", "missing model.layers.1.mlp.gate_proj.bias", "missing model.layers.1.mlp.up_proj.bias"}},
		{name: "too many layers stored", model: "llama", fields: map[string]string{"num_hidden_layers": "1"}, want: slices.Repeat([]string{"unexpected model.layers.1."}, 9)},
		{name: "tables of the reference", model: "llama", tensors: func(m map[string]hf.Tensor) {
			m["model.layers.0.self_attn.rotary_emb.inv_freq"] = hf.Tensor{Name: "model.layers.0.self_attn.rotary_emb.inv_freq", DType: safetensors.F32, Shape: []int64{8}}
		}},
		{name: "untied without head", model: "llama_tied", fields: map[string]string{"tie_word_embeddings": "false"}, want: []string{"missing lm_head.weight: tie_word_embeddings is false"}},
		{name: "flag absent without head", model: "llama_tied", fields: map[string]string{"tie_word_embeddings": ""}, want: []string{"missing lm_head.weight: "}},
	} {
		t.Run(c.name, func(t *testing.T) {
			ck := sample(t, c.model, c.fields)
			if c.tensors != nil {
				c.tensors(ck.Tensors)
				ck.Names = slices.Sorted(maps.Keys(ck.Tensors))
			}
			gaps := arch.Check(ck)
			ok := len(gaps) == len(c.want)
			for i := range min(len(gaps), len(c.want)) {
				ok = ok && strings.HasPrefix(gaps[i].String(), c.want[i])
			}
			if !ok {
				t.Errorf("gaps\n%v, want\n%q", gaps, c.want)
			}
			for _, mode := range []arch.Mode{arch.Train, arch.Decode} {
				_, err := arch.Build(ck, mode)
				if len(c.want) == 0 {
					if err != nil {
						t.Error(err)
					}
					continue
				}
				var u *arch.UnsupportedError
				if !errors.As(err, &u) || !errors.Is(err, arch.ErrUnsupported) || len(u.Gaps) != len(gaps) {
					t.Errorf("Build says %v", err)
				}
			}
		})
	}
}

func set(m map[string]hf.Tensor, name string, change func(*hf.Tensor)) {
	x := m[name]
	change(&x)
	m[name] = x
}

// What the other families read where their files say nothing.
func TestFamilyDefaults(t *testing.T) {
	as := func(family, architecture string, more map[string]string) map[string]string {
		fields := map[string]string{"model_type": `"` + family + `"`, "architectures": `["` + architecture + `"]`}
		maps.Copy(fields, more)
		return fields
	}
	windows := func(m *arch.Model) (w []int) {
		for _, n := range m.Graph.Nodes {
			if n.Op == ir.OpAttention {
				w = append(w, n.Attr.Window)
			}
		}
		return w
	}
	for _, c := range []struct {
		sliding string
		want    string
	}{{"", "[4096 4096]"}, {"null", "[0 0]"}, {"8", "[8 8]"}} {
		m, err := arch.Build(sample(t, "llama", as("mistral", "MistralForCausalLM", map[string]string{"sliding_window": c.sliding})), arch.Train)
		if err != nil {
			t.Fatal(err)
		}
		if got := fmt.Sprint(windows(m)); got != c.want {
			t.Errorf("mistral, sliding_window %q: windows %s, want %s", c.sliding, got, c.want)
		}
	}
	m, err := arch.Build(sample(t, "llama_tied", as("smollm3", "SmolLM3ForCausalLM",
		map[string]string{"tie_word_embeddings": "", "no_rope_layer_interval": "2"})), arch.Train)
	if err != nil {
		t.Fatal(err)
	}
	ropes := map[int]int{}
	for _, n := range m.Graph.Nodes {
		if n.Op == ir.OpRope {
			ropes[n.Attr.Layer]++
		}
	}
	if !m.Tied || fmt.Sprint(ropes) != "map[0:2]" {
		t.Errorf("smollm3: tied %v, rotations by layer %v; want tied by default and every second layer without", m.Tied, ropes)
	}
	gaps := arch.Check(sample(t, "llama", as("qwen2", "Qwen2ForCausalLM", nil)))
	if len(gaps) != 6 || !strings.HasPrefix(gaps[0].String(), "missing model.layers.0.self_attn.k_proj.bias") {
		t.Errorf("qwen2 without its biases: %v", gaps)
	}
}

func TestUnusedTensorsAreNamed(t *testing.T) {
	ck := sample(t, "llama", nil)
	const name = "model.rotary_emb.inv_freq"
	ck.Tensors[name] = hf.Tensor{Name: name, DType: safetensors.F32, Shape: []int64{8}}
	ck.Names = slices.Sorted(maps.Keys(ck.Tensors))
	m, err := arch.Build(ck, arch.Train)
	if err != nil || fmt.Sprint(m.Unused) != "["+name+"]" {
		t.Errorf("%v, unused %v", err, m)
	}
}

// FR-20: all combinations of the tie flag and a stored head, with the logits that the reference gives when it loads them.
func TestTiedHead(t *testing.T) {
	dir := unpack(t, "tied_head")
	var info struct {
		Cases []struct {
			Tie    *bool   `json:"tie_word_embeddings"`
			Head   *string `json:"head"`
			Expect string  `json:"expect"`
		}
	}
	gold := openGolden(t, dir, &info)
	ids := gold.ids("input_ids")
	if len(info.Cases) != 9 {
		t.Fatalf("%d cases", len(info.Cases))
	}
	for i, c := range info.Cases {
		t.Run(fmt.Sprint(i, " ", c.Expect), func(t *testing.T) {
			folder := assemble(t, dir, c.Tie, c.Head)
			ck, src := describe(t, folder, "config.json")
			m, err := arch.Build(ck, arch.Decode)
			if c.Expect == "refused" {
				if !errors.Is(err, arch.ErrUnsupported) || !strings.Contains(err.Error(), "lm_head.weight") {
					t.Errorf("want a refusal, got %v", err)
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			want := c.Expect
			if c.Expect == "warning" {
				want = "logits.own_head" // as the reference: used, and said aloud
			}
			if warned := strings.Contains(strings.Join(m.Warnings, "\n"), "lm_head.weight differs"); warned != (c.Expect == "warning") {
				t.Errorf("warnings %v", m.Warnings)
			}
			if tied := c.Tie != nil && *c.Tie && c.Expect != "warning"; m.Tied != tied {
				t.Errorf("tied %v, want %v", m.Tied, tied)
			}
			r := newRig(t)
			r.load(m, ck, src)
			rows := make([]int32, len(ids))
			for i := range rows {
				rows[i] = int32(i)
			}
			r.decodeInputs([][]int32{ids}, []int32{0}, [][]int32{{0}}, rows)
			r.run(m.Graph, ir.Dims{T: len(ids), S: 1, R: len(ids), P: 1, B: 1})
			within(t, want, r.floats("logits"), gold.floats(want), rtol, share)
		})
	}
}

// assemble makes a sharded checkpoint of the pieces of the tied-head golden.
func assemble(t *testing.T, dir string, tie *bool, head *string) string {
	t.Helper()
	to := t.TempDir()
	text, err := os.ReadFile(filepath.Join(dir, "config.json"))
	if err != nil {
		t.Fatal(err)
	}
	var raw map[string]any
	if err := json.Unmarshal(text, &raw); err != nil {
		t.Fatal(err)
	}
	delete(raw, "tie_word_embeddings")
	if tie != nil {
		raw["tie_word_embeddings"] = *tie
	}
	if text, err = json.Marshal(raw); err != nil {
		t.Fatal(err)
	}
	write := func(name string, data []byte) {
		if err := os.WriteFile(filepath.Join(to, name), data, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	write("config.json", text)
	index := map[string]string{}
	for _, shard := range []*string{ptr("trunk.safetensors"), head} {
		if shard == nil {
			continue
		}
		data, err := os.ReadFile(filepath.Join(dir, *shard))
		if err != nil {
			t.Fatal(err)
		}
		f, err := safetensors.Parse(bytes.NewReader(data), int64(len(data)))
		if err != nil {
			t.Fatal(err)
		}
		for _, x := range f.Tensors() {
			index[x.Name] = *shard
		}
		write(*shard, data)
	}
	if text, err = json.Marshal(map[string]any{"metadata": map[string]any{}, "weight_map": index}); err != nil {
		t.Fatal(err)
	}
	write("model.safetensors.index.json", text)
	return to
}

func ptr[T any](v T) *T { return &v }

// Without Resolve a stored head is used, so the numbers are right either way,
// and the model says so.
func TestUnresolvedHeadIsUsedAndSaid(t *testing.T) {
	ck := sample(t, "llama", map[string]string{"tie_word_embeddings": "true"})
	m, err := arch.Build(ck, arch.Train)
	if err != nil {
		t.Fatal(err)
	}
	if m.Tied || len(m.Warnings) != 1 || !strings.Contains(m.Warnings[0], "was not compared") {
		t.Errorf("tied %v, warnings %v", m.Tied, m.Warnings)
	}
}

func TestModelDescription(t *testing.T) {
	m, err := arch.Build(sample(t, "llama3_rope", nil), arch.Decode)
	if err != nil {
		t.Fatal(err)
	}
	if m.Context != 256 || m.Vocab != 512 || m.Layers != 2 || m.Heads != 4 || m.KVHeads != 2 || m.HeadDim != 16 || fmt.Sprint(m.EOS) != "[2]" {
		t.Errorf("%+v", m)
	}
	if want := int64(2 * 2 * 2 * 16 * 4); m.KVBytesPerToken != want {
		t.Errorf("cache of %d bytes a token, want %d", m.KVBytesPerToken, want)
	}
	id, _ := m.Graph.ByName("kv.k.0")
	state := m.Graph.Value(id).Type.Bytes(ir.Dims{P: 1})
	if state*2*2 != m.KVBytesPerToken*arch.Page {
		t.Errorf("a page of one layer's keys has %d bytes", state)
	}
	if n := len(m.Consts["rope.cos"]); n != 256*8 {
		t.Errorf("%d cosines", n)
	}
	big, err := arch.Build(sample(t, "llama", map[string]string{"max_position_embeddings": "1000000"}), arch.Train)
	if err != nil || big.Context != arch.MaxContext || len(big.Warnings) != 1 {
		t.Errorf("%v: context %d, warnings %v", err, big.Context, big.Warnings)
	}
}

// Every pass over both families verifies, plans without overlap, and the text of
// the training graph is the golden one.
func TestPassesAndDump(t *testing.T) {
	for _, name := range []string{"llama_tied", "qwen3"} {
		train, err := arch.Build(sample(t, name, map[string]string{"max_position_embeddings": "64"}), arch.Train)
		if err != nil {
			t.Fatal(err)
		}
		decode, err := arch.Build(sample(t, name, nil), arch.Decode)
		if err != nil {
			t.Fatal(err)
		}
		dims := ir.Dims{T: 96, S: 5, R: 5, C: 1, P: 8, B: 4}
		adapted, _, err := lora.Apply(train.Graph, lora.Config{Rank: 4, Alpha: 32, Attention: true, MLP: true, Unembed: true})
		if err != nil {
			t.Fatal(err)
		}
		for _, g := range []*ir.Graph{train.Graph, adapted} {
			for _, l := range loss.Names() {
				g := g.Clone()
				if err := loss.Append(g, l); err != nil {
					t.Fatal(err)
				}
				class := ir.ClassWeight
				if len(g.Named(ir.ClassAdapter)) > 0 {
					class = ir.ClassAdapter
				}
				b, _, err := grad.Backward(g, loss.Output, func(v *ir.Value) bool { return v.Class == class })
				if err != nil {
					t.Fatal(err)
				}
				verifyPlan(t, b, dims)
			}
		}
		sampled, _, err := lora.Apply(decode.Graph, lora.Config{Rank: 4, Alpha: 32, Attention: true, MLP: true, Unembed: true})
		if err != nil {
			t.Fatal(err)
		}
		verifyPlan(t, decode.Graph, dims)
		verifyPlan(t, sampled, dims)
		compareDump(t, name+".train.txt", train.Graph)
		compareDump(t, name+".decode_lora.txt", sampled)
	}
}

func verifyPlan(t *testing.T, g *ir.Graph, dims ir.Dims) {
	t.Helper()
	p, err := plan.Build(g, dims)
	if err == nil {
		err = plan.Verify(p)
	}
	if err != nil {
		t.Fatal(err)
	}
	yields := 0
	for _, s := range p.Steps {
		if s.Yield {
			yields++
		}
	}
	if yields < 3 { // before, between and after two layers, at least
		t.Errorf("graph %s yields %d times", g.Name, yields)
	}
}

func compareDump(t *testing.T, file string, g *ir.Graph) {
	t.Helper()
	var b bytes.Buffer
	if err := ir.Dump(&b, g); err != nil {
		t.Fatal(err)
	}
	path := filepath.Join("testdata", file)
	if *rewrite {
		if err := os.WriteFile(path, b.Bytes(), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(want, b.Bytes()) {
		t.Errorf("%s changed; look at it and run with -update", path)
	}
}

// A fresh adapter leaves the model's bits alone.
func TestFreshAdapterKeepsBits(t *testing.T) {
	dir := unpack(t, "qwen3")
	gold := openGolden(t, dir, &struct{}{})
	ck, src := describe(t, dir, "config.json")
	m, err := arch.Build(ck, arch.Train)
	if err != nil {
		t.Fatal(err)
	}
	r := newRig(t)
	r.load(m, ck, src)
	dims := r.batch(gold.ids("input_ids"), 2, gold.floats("loss_mask"))
	g := m.Graph.Clone()
	g.Output("logits", m.Logits)
	r.run(g, dims)
	base := r.floats("logits")
	adapted, adapters, err := lora.Apply(g, lora.Config{Rank: 8, Alpha: 32, Attention: true, MLP: true, Unembed: true})
	if err != nil {
		t.Fatal(err)
	}
	for name, x := range lora.Init(adapters, 7) {
		r.set(name, x)
	}
	r.run(adapted, dims)
	for i, v := range r.floats("logits") {
		if v != base[i] {
			t.Fatalf("logit %d: %g with a fresh adapter, %g without", i, v, base[i])
		}
	}
}
