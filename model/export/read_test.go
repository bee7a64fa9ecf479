package export

import (
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"maps"
	"math"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"smolgym/model/arch"
	goldens "smolgym/model/golden"
	"smolgym/model/hf"
	"smolgym/model/lora"
	"smolgym/model/safetensors"
)

// peftCase is an adapter that peft has saved: testdata/make_peft.py.
type peftCase struct {
	memory
	name    string
	Golden  string
	Refused bool
}

func peftCases(t testing.TB) []peftCase { return savedCases(t, "peft.tar.gz") }

func savedCases(t testing.TB, archive string) []peftCase {
	t.Helper()
	folders := map[string]memory{}
	for name, text := range goldens.Unpack(t, filepath.Join("testdata", archive)) {
		dir := path.Dir(name)
		if folders[dir] == nil {
			folders[dir] = memory{}
		}
		folders[dir][path.Base(name)] = text
	}
	var cases []peftCase
	for _, name := range slices.Sorted(maps.Keys(folders)) {
		c := peftCase{memory: folders[name], name: name}
		if err := json.Unmarshal(c.memory["case.json"], &c); err != nil {
			t.Fatal(err)
		}
		cases = append(cases, c)
	}
	return cases
}

// TestReadPEFT takes what peft saves, folds it to one rank and scale, and gives peft's logits; what can't be taken is refused
// by name.
func TestReadPEFT(t *testing.T) {
	refusals := map[string]string{"dora": "use_dora is true", "bias": `bias is "lora_only"`, "lora_bias": "lora_bias is true", "saved": `modules_to_save is ["lm_head"]`,
		"embedding": "lora_embedding_A (an adapter on the embedding is not supported)", "tokens": "trainable_token_indices is [1,2]", "pissa": `init_lora_weights is "pissa"`}
	folds := map[string][2]int{ // modules that are folded or absent, and rounded ones
		"plain": {}, "bf16": {}, "head": {}, "head_only": {}, "rslora": {}, "layers": {12, 0}, "excluded": {1, 0}, "expression": {8, 0},
	}
	for _, c := range peftCases(t) {
		kind, _, _ := strings.Cut(c.name, ".")
		g := openGolden(t, c.Golden)
		im, err := ReadAdapter(c, g.base)
		if c.Refused {
			if !errors.Is(err, ErrAdapter) || !strings.Contains(err.Error(), refusals[kind]) || refusals[kind] == "" {
				t.Errorf("%s: %v", c.name, err)
			}
			continue
		}
		if err != nil {
			t.Errorf("%s: %v", c.name, err)
			continue
		}
		if im.BaseModel != "org/"+c.Golden {
			t.Errorf("%s: base model %q", c.name, im.BaseModel)
		}
		if warned := len(im.Warnings) > 0; warned != (kind == "expression" || kind == "plain") {
			t.Errorf("%s: warnings %q", c.name, im.Warnings)
		}
		numbers := must(safetensors.Parse(bytes.NewReader(c.memory["numbers.safetensors"]), int64(len(c.memory["numbers.safetensors"]))))
		want := make([]float32, 2*16*64)
		if err := numbers.ReadFloat32s(want, "logits"); err != nil {
			t.Fatal(err)
		}
		u := im.Uniform()
		if err := u.Config.Check(); err != nil {
			t.Errorf("%s: %v", c.name, err)
		}
		if n, ok := folds[kind]; ok && (len(u.Notes) != n[0] || len(u.Rounded) != n[1]) {
			t.Errorf("%s: %d folded, %d rounded, want %v: %q", c.name, len(u.Notes), len(u.Rounded), n, u.Notes)
		}
		even := Weights{Adapters: pair(t, u.Tensors, u.Config.Alpha)}
		if d := distance(logits(t, g.base, g.ids(), even), want); d > 1e-4 {
			t.Errorf("%s: folded logits are %g off", c.name, d)
		}
		if d := distance(logits(t, g.base, g.ids(), Weights{Adapters: im.Modules}), want); d > 1e-4 {
			t.Errorf("%s: logits are %g off", c.name, d)
		}
		checkExact(t, c.name, g, im)
		p, err := Merged(g.base, Weights{Adapters: im.Modules}, MergedOptions{})
		if d := distance(logits(t, build(t, p, err), g.ids(), Weights{}), want); d > 1e-4 {
			t.Errorf("%s: merged logits are %g off", c.name, d)
		}
		roundTrip(t, c.name, g, im)
	}
}

// checkExact holds the exact form to what package lora makes of its configuration.
func checkExact(t *testing.T, name string, g *golden, im *Imported) {
	t.Helper()
	c, tensors := im.Exact()
	graph := must(arch.Build(must(hf.Describe(g.base)), arch.Train)).Graph
	_, adapters, err := lora.Apply(graph, c)
	if err != nil || 2*len(adapters) != len(tensors) {
		t.Fatalf("%s: %d adapters for %d tensors: %v", name, len(adapters), len(tensors), err)
	}
	for i, a := range adapters {
		shapeA, shapeB := shapesOf(a, a.Rank)
		if tensors[2*i].Name != a.A || tensors[2*i+1].Name != a.B || !slices.Equal(tensors[2*i].Shape, shapeA) || !slices.Equal(tensors[2*i+1].Shape, shapeB) || a.Scale != im.Modules[i].Scale() {
			t.Errorf("%s: %s is not as package lora has it", name, a.Module)
		}
	}
}

// roundTrip exports what was read and reads it again: every value, rank and scale is the same.
func roundTrip(t *testing.T, name string, g *golden, im *Imported) {
	t.Helper()
	p, err := Adapter(g.base, im.Modules, AdapterOptions{BaseModel: im.BaseModel})
	again, err := ReadAdapter(build(t, p, err), g.base)
	if err != nil {
		t.Errorf("%s: %v", name, err)
		return
	}
	if len(again.Modules) != len(im.Modules) {
		t.Errorf("%s: %d modules, %d after export", name, len(im.Modules), len(again.Modules))
		return
	}
	for i, m := range im.Modules {
		n := again.Modules[i]
		if m.Module != n.Module || m.Rank != n.Rank || m.Alpha != n.Alpha || distance(valuesOf(t, m.A), valuesOf(t, n.A)) != 0 || distance(valuesOf(t, m.B), valuesOf(t, n.B)) != 0 {
			t.Errorf("%s: %s differs after export", name, m.Module)
		}
	}
}

// TestPatterns pins ranks and scales that peft itself has shown to mean (TestReadPEFT compares its logits).
func TestPatterns(t *testing.T) {
	for _, c := range peftCases(t) {
		if c.name != "patterns.steps_llama" && c.name != "patterns_rslora.steps_llama" {
			continue
		}
		im := must(ReadAdapter(c, openGolden(t, c.Golden).base))
		for _, m := range im.Modules {
			rank, scale := 4, 2.0
			switch leaf := lora.Leaf(m.Module); {
			case c.name == "patterns_rslora.steps_llama" && leaf == "v_proj":
				rank, scale = 8, 3/math.Sqrt(8)
			case c.name == "patterns_rslora.steps_llama" && strings.Contains(m.Module, "layers.0."):
				scale = 5.0 / 2
			case c.name == "patterns_rslora.steps_llama":
				scale = 3.0 / 2
			case leaf == "q_proj":
				rank, scale = 2, 2
			case leaf == "up_proj" && strings.Contains(m.Module, "layers.1."):
				rank, scale = 6, 0.5
			case leaf == "up_proj":
				scale = 0.75
			case leaf == "k_proj" && strings.Contains(m.Module, "layers.0."):
				rank, scale = 3, 8.0/3
			case strings.Contains(m.Module, "layers.1.mlp."):
				scale = 4
			}
			if m.Rank != rank || math.Abs(m.Scale()-scale) > 1e-12 {
				t.Errorf("%s %s: rank %d scale %g, want %d and %g", c.name, m.Module, m.Rank, m.Scale(), rank, scale)
			}
		}
		u := im.Uniform()
		if want := map[string]int{"patterns.steps_llama": 6, "patterns_rslora.steps_llama": 8}[c.name]; len(u.Rounded) != 2 || u.Config.Rank != want {
			t.Errorf("%s: rank %d, rounded %v", c.name, u.Config.Rank, u.Rounded)
		}
	}
}

// edit gives the plain case with another configuration or other tensors.
func edit(t *testing.T, c peftCase, config map[string]any, tensors func([]safetensors.Entry) []safetensors.Entry) memory {
	t.Helper()
	out := maps.Clone(c.memory)
	var fields map[string]any
	if err := json.Unmarshal(out[adapterConfigName], &fields); err != nil {
		t.Fatal(err)
	}
	maps.Copy(fields, config)
	out[adapterConfigName] = must(json.Marshal(fields))
	text := out[adapterWeightsName]
	var entries []safetensors.Entry
	for _, x := range must(safetensors.Parse(bytes.NewReader(text), int64(len(text)))).Tensors() {
		entries = append(entries, safetensors.Entry{Name: x.Name, DType: x.DType, Shape: x.Shape, Data: writeBytes(text[x.Offset:][:x.Bytes])})
	}
	if tensors != nil {
		entries = tensors(entries)
	}
	var b bytes.Buffer
	if err := safetensors.Write(&b, entries, nil); err != nil {
		t.Fatal(err)
	}
	out[adapterWeightsName] = b.Bytes()
	return out
}

func plainCase(t *testing.T) (peftCase, *golden) {
	for _, c := range peftCases(t) {
		if c.name == "plain.steps_llama" {
			return c, openGolden(t, c.Golden)
		}
	}
	t.Fatal("no plain case")
	return peftCase{}, nil
}

func TestReadRefusals(t *testing.T) {
	c, g := plainCase(t)
	rename := func(from, to string) func([]safetensors.Entry) []safetensors.Entry {
		return func(list []safetensors.Entry) []safetensors.Entry {
			for i := range list {
				list[i].Name = strings.Replace(list[i].Name, from, to, 1)
			}
			return list
		}
	}
	zero := func(name string, dtype safetensors.DType, shape ...int64) func([]safetensors.Entry) []safetensors.Entry {
		return func(list []safetensors.Entry) []safetensors.Entry {
			return append(list, safetensors.Entry{Name: name, DType: dtype, Shape: shape, Data: writeBytes(make([]byte, product(shape)*dtype.Size()))})
		}
	}
	const q0 = "base_model.model.model.layers.0.self_attn.q_proj."
	for want, folder := range map[string]memory{
		"2 missing: " + q0 + "lora_A.weight; " + q0 + "lora_B.weight": edit(t, c, nil, func(l []safetensors.Entry) []safetensors.Entry {
			return slices.DeleteFunc(l, func(e safetensors.Entry) bool { return strings.HasPrefix(e.Name, q0) })
		}),
		"1 missing: " + q0 + "lora_B.weight": edit(t, c, nil, func(l []safetensors.Entry) []safetensors.Entry {
			return slices.DeleteFunc(l, func(e safetensors.Entry) bool { return e.Name == q0+"lora_B.weight" })
		}),
		"28 unexpected: base_model.model.model.layers.0.mlp.down_proj.lora_A.default.weight (the adapter's own name": edit(t, c, nil, rename(".weight", ".default.weight")),
		"layers.9.self_attn.q_proj.lora_A.weight (the base model has no such linear module)":                         edit(t, c, nil, rename("layers.1.", "layers.9.")),
		"(DoRA is not supported)":                  edit(t, c, nil, zero(q0+"lora_magnitude_vector", "F32", 32)),
		"lm_head.weight (a whole trained tensor":   edit(t, c, nil, zero("base_model.model.lm_head.weight", "F32", 64, 32)),
		"what (no adapter's tensor)":               edit(t, c, nil, zero("what", "F32", 1)),
		"rank 5 need [5 32]":                       edit(t, c, map[string]any{"r": 5}, nil),
		"lm_head.lora_A.weight is I8":              edit(t, c, nil, zero("base_model.model.lm_head.lora_A.weight", "I8", 4, 32)),
		`peft_type is "IA3"`:                       edit(t, c, map[string]any{"peft_type": "IA3"}, nil),
		`task_type is "SEQ_CLS"`:                   edit(t, c, map[string]any{"task_type": "SEQ_CLS"}, nil),
		"lora_alpha is -1":                         edit(t, c, map[string]any{"lora_alpha": -1}, nil),
		"r is 1.5":                                 edit(t, c, map[string]any{"r": 1.5}, nil),
		"target_modules is missing":                edit(t, c, map[string]any{"target_modules": nil}, nil),
		"new_method is 1, which is not known here": edit(t, c, map[string]any{"new_method": 1}, nil),
		`rank_pattern of "q_proj" is 0`:            edit(t, c, map[string]any{"rank_pattern": map[string]any{"q_proj": 0}}, nil),
		`the expression "(?=q)" is not supported`:  edit(t, c, map[string]any{"alpha_pattern": map[string]any{"(?=q)": 1}}, nil),
		`the expression "q{2}" is not supported`:   edit(t, c, map[string]any{"alpha_pattern": map[string]any{"q{2}": 1}}, nil),
		"layer_replication is [[0,1]]":             edit(t, c, map[string]any{"layer_replication": []any{[]int{0, 1}}}, nil),
		"holds no tensors":                         edit(t, c, map[string]any{"layers_to_transform": 1}, func([]safetensors.Entry) []safetensors.Entry { return nil }),
		"there is no adapter_config.json":          {adapterWeightsName: nil},
		"adapter_model.bin is a pickle":            {adapterConfigName: c.memory[adapterConfigName], "adapter_model.bin": nil},
		"there is no adapter_model.safetensors":    {adapterConfigName: c.memory[adapterConfigName]},
		"read adapter_model.safetensors":           {adapterConfigName: c.memory[adapterConfigName], adapterWeightsName: c.memory[adapterWeightsName][:5000]},
		"use_dora is true":                         edit(t, c, map[string]any{"use_dora": true, "modules_to_save": []string{"lm_head"}}, nil),
		`modules_to_save is ["lm_head"], which is not supported; merge the adapter with PEFT and import the model; use_dora`: edit(t, c, map[string]any{"use_dora": true, "modules_to_save": []string{"lm_head"}}, nil),
	} {
		if _, err := ReadAdapter(folder, g.base); !errors.Is(err, ErrAdapter) || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v", want, err)
		}
	}
	// The hosted service's name of the output head is understood, dropout and the storage order are told of.
	named := edit(t, c, map[string]any{"target_modules": "all-linear", "lora_dropout": 0.1, "fan_in_fan_out": true}, func(l []safetensors.Entry) []safetensors.Entry {
		return zero("base_model.model.model.unembed_tokens.lora_B.weight", "F32", 64, 4)(zero("base_model.model.model.unembed_tokens.lora_A.weight", "BF16", 4, 32)(l))
	})
	im, err := ReadAdapter(named, g.base)
	if err != nil {
		t.Fatal(err)
	}
	if last := im.Modules[len(im.Modules)-1]; last.Module != "lm_head" || last.A.Name != "base_model.model.lm_head.lora_A.weight" || len(im.Warnings) != 3 {
		t.Errorf("last module %s with %s, warnings %q", last.Module, last.A.Name, im.Warnings)
	}
}

func TestWhoLoads(t *testing.T) {
	for name, want := range map[string]string{"steps_llama": "not every stock inference server", "steps_llama_tied": "stock inference servers can't load it as an adapter: it has one on the output head"} {
		g := openGolden(t, name)
		all := pair(t, g.tensors("lora.step3.", lora.Prefix), 8)
		body := slices.DeleteFunc(slices.Clone(all), func(m Module) bool { return m.Module == "lm_head" })
		for _, c := range []struct {
			modules []Module
			want    string
		}{{all, want}, {body, "stock inference servers can load it as an adapter, where they allow rank 4"}, {unevenModules(t, body), "its modules differ in rank or alpha"}} {
			p, err := Adapter(g.base, c.modules, AdapterOptions{BaseModel: "local/`odd\n\"name"})
			out := build(t, p, err)
			if len(p.Notes) != 1 || !strings.Contains(p.Notes[0], c.want) || !strings.Contains(strings.ToLower(string(out[readmeName])), strings.ToLower(c.want)) {
				t.Errorf("%s: %q, README\n%s", name, p.Notes, out[readmeName])
			}
			if !bytes.Contains(out[readmeName], []byte("base_model: \"local/`odd\\n\\\"name\"\n")) {
				t.Errorf("README\n%s", out[readmeName])
			}
		}
		for _, dtype := range []safetensors.DType{safetensors.F16, safetensors.BF16} {
			p, err := Adapter(g.base, body, AdapterOptions{DType: dtype})
			im := must(ReadAdapter(build(t, p, err), g.base))
			want := valuesOf(t, body[3].B)
			b := make([]byte, 2*len(want))
			if err := errors.Join(safetensors.PutFloat32s(b, dtype, want), safetensors.Float32s(want, dtype, b)); err != nil {
				t.Fatal(err)
			}
			if i := slices.IndexFunc(im.Modules, func(m Module) bool { return m.Module == body[3].Module }); distance(valuesOf(t, im.Modules[i].B), want) != 0 {
				t.Errorf("%s: values differ", dtype)
			}
		}
	}
	g := openGolden(t, "steps_llama")
	if _, err := Adapter(g.base, nil, AdapterOptions{}); !errors.Is(err, ErrWeights) {
		t.Errorf("no adapters: %v", err)
	}
}

// Bytes of a computed tensor are the same however they are asked for.
func TestComputedReadAt(t *testing.T) {
	b := noise("b", []int64{50, 3}, 1, 9)
	r := must(padded(b, 3, 5, 250, 0.5)())
	defer r.Close()
	whole := make([]byte, r.Size())
	if err := readFull(r, whole, 0); err != nil || r.Size() != 1000 {
		t.Fatal(r.Size(), err)
	}
	values := valuesOf(t, b)
	got := make([]float32, 250)
	if err := safetensors.Float32s(got, safetensors.F32, whole); err != nil {
		t.Fatal(err)
	}
	for i, v := range got {
		want := float32(0)
		if i%5 < 3 {
			want = values[i/5*3+i%5] / 2
		}
		if v != want {
			t.Fatalf("element %d is %g, want %g", i, v, want)
		}
	}
	for off := range int64(1000) {
		for _, n := range []int64{1, 3, 4, 21, 400, 2000} {
			p := make([]byte, n)
			k, err := r.ReadAt(p, off)
			want := min(n, 1000-off)
			if int64(k) != want || (err != nil) != (want < n) || err != nil && err != io.EOF || !bytes.Equal(p[:k], whole[off:off+want]) {
				t.Fatalf("%d bytes at %d: %d, %v", n, off, k, err)
			}
		}
	}
	if _, err := r.ReadAt(make([]byte, 1), -1); err == nil {
		t.Error("a negative offset")
	}
}

func FuzzReadAdapter(f *testing.F) {
	var g *golden
	for _, c := range peftCases(f) {
		if g == nil {
			g = openGolden(f, "steps_llama")
		}
		head := c.memory[adapterWeightsName]
		f.Add(c.memory[adapterConfigName], head[:min(len(head), 1<<15)])
	}
	f.Add([]byte(`{"peft_type":"LORA","target_modules":"x","rank_pattern":{"(a|b)*":1,"[":2},"alpha_pattern":{"q_proj":1e5},"use_rslora":true}`), []byte{})
	f.Fuzz(func(t *testing.T, config, weights []byte) {
		im, err := ReadAdapter(memory{adapterConfigName: config, adapterWeightsName: weights}, g.base)
		if err != nil {
			if !errors.Is(err, ErrAdapter) && !errors.Is(err, hf.ErrLimit) {
				t.Errorf("an error without a reason: %v", err)
			}
			return
		}
		u := im.Uniform()
		if err := u.Config.Check(); err != nil {
			t.Errorf("folded to what can't be run: %v", err)
		}
		for _, x := range u.Tensors {
			if v := valuesOf(t, x); int64(len(v)) != x.elements() {
				t.Errorf("%s has %d values", x.Name, len(v))
			}
		}
	})
}

func FuzzSetField(f *testing.F) {
	f.Add([]byte(`{"a": 1, "text_config": {"b": true}}`))
	f.Add([]byte("{\n \"b\": null }"))
	f.Fuzz(func(t *testing.T, text []byte) {
		out, err := setField(text, "false", true, "b")
		if err != nil {
			return
		}
		var was, is map[string]json.RawMessage
		if err := errors.Join(json.Unmarshal(text, &was), json.Unmarshal(out, &is)); err != nil {
			t.Fatalf("%q becomes %q: %v", text, out, err)
		}
		if string(is["b"]) != "false" {
			t.Errorf("%q becomes %q", text, out)
		}
		delete(was, "b")
		delete(is, "b")
		delete(was, "text_config")
		delete(is, "text_config")
		if !maps.EqualFunc(was, is, func(a, b json.RawMessage) bool { return bytes.Equal(a, b) }) {
			t.Errorf("%q becomes %q", text, out)
		}
	})
}

// FR-18: adapters in BF16 and F16 on a base model of F32 are taken with exactly the values that are stored.
func TestFR18HalfAdapterOnF32Base(t *testing.T) {
	g := openGolden(t, "steps_llama")
	modules := pair(t, g.tensors("lora.step3.", "base_model.model."), 8)
	for _, dtype := range []safetensors.DType{safetensors.BF16, safetensors.F16} {
		p, err := Adapter(g.base, modules, AdapterOptions{DType: dtype})
		files := build(t, p, err)
		im, err := ReadAdapter(files, g.base)
		if err != nil {
			t.Fatal(err)
		}
		stored := must(safetensors.Parse(bytes.NewReader(files[adapterWeightsName]), int64(len(files[adapterWeightsName]))))
		rounded := 0
		for i, m := range im.Modules {
			for k, x := range []Tensor{m.A, m.B} {
				want := make([]float32, x.elements())
				if err := stored.ReadFloat32s(want, x.Name); err != nil {
					t.Fatal(err)
				}
				if info, _ := stored.Tensor(x.Name); info.DType != dtype || !slices.Equal(valuesOf(t, x), want) {
					t.Errorf("%s: %s has other values than the file", dtype, x.Name)
				}
				if whole := [2]Tensor{modules[i].A, modules[i].B}[k]; distance(valuesOf(t, whole), want) > 0 {
					rounded++
				}
			}
		}
		if rounded == 0 {
			t.Errorf("%s: nothing was rounded: the test shows nothing", dtype)
		}
		u := im.Uniform()
		if d := distance(logits(t, g.base, g.ids(), Weights{Adapters: pair(t, u.Tensors, u.Config.Alpha)}), logits(t, g.base, g.ids(), Weights{Adapters: im.Modules})); d != 0 {
			t.Errorf("%s: logits differ by %g", dtype, d)
		}
	}
}
