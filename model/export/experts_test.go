package export

import (
	"bytes"
	"encoding/json"
	"errors"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"smolgym/model/hf"
	"smolgym/model/lora"
	"smolgym/model/safetensors"
)

// expertCase is an adapter on experts with the ids and logits that peft gives.
type expertCase struct {
	peftCase
	base   memory
	ids    []int32
	logits []float32
}

func expertCases(t testing.TB) []expertCase {
	t.Helper()
	var cases []expertCase
	for _, c := range savedCases(t, "peft_experts.tar.gz") {
		e := expertCase{peftCase: c, base: memoryOf(t, c.Golden)}
		numbers := must(safetensors.Parse(bytes.NewReader(c.memory["numbers.safetensors"]), int64(len(c.memory["numbers.safetensors"]))))
		read := func(name string) []float32 {
			info, _ := numbers.Tensor(name)
			x := make([]float32, info.Elements())
			if err := numbers.ReadFloat32s(x, name); err != nil {
				t.Fatal(err)
			}
			return x
		}
		for _, v := range read("ids") {
			e.ids = append(e.ids, int32(v))
		}
		e.logits = read("logits")
		cases = append(cases, e)
	}
	return cases
}

func memoryOf(t testing.TB, family string) memory {
	t.Helper()
	return openFamily(t, filepath.Join("..", "..", "testdata", "families", family+".tar.gz"))
}

// TestReadExperts takes adapters on experts in both of PEFT's forms and gives peft's logits: as they are, folded to the one
// rank of a run, merged, and exported and read again.
func TestReadExperts(t *testing.T) {
	cases := expertCases(t)
	if len(cases) != 10 {
		t.Errorf("%d cases, want 10", len(cases))
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			im, err := ReadAdapter(c, c.base)
			if err != nil {
				t.Fatal(err)
			}
			near := func(what string, src hf.Source, w Weights) {
				t.Helper()
				if d := distance(logits(t, src, c.ids, w), c.logits); d > 2e-4 { // the largest is above 10
					t.Errorf("%s: logits are %g off", what, d)
				}
			}
			w := Weights{Adapters: im.Modules}
			near("as it is", c.base, w)
			u := im.Uniform()
			near("folded", c.base, Weights{Adapters: pair(t, u.Tensors, u.Config.Alpha)})
			p, err := Merged(c.base, w, MergedOptions{DType: "F32"})
			near("merged", build(t, p, err), Weights{})
			experts := 0
			for _, m := range im.Modules {
				if strings.Contains(m.Module, ".experts.") {
					experts++
				}
			}
			if experts == 0 {
				t.Error("no adapter on experts")
			}
			if p, err = Adapter(c.base, im.Modules, AdapterOptions{BaseModel: im.BaseModel}); errors.Is(err, ErrWeights) {
				return // PEFT could not load it
			}
			again, err := ReadAdapter(build(t, p, err), c.base)
			if err != nil {
				t.Fatal(err)
			}
			for i, m := range im.Modules {
				n := again.Modules[i]
				if m.Module != n.Module || m.Rank != n.Rank || m.Alpha != n.Alpha || distance(valuesOf(t, m.A), valuesOf(t, n.A)) != 0 || distance(valuesOf(t, m.B), valuesOf(t, n.B)) != 0 {
					t.Errorf("%s differs after export", m.Module)
				}
			}
		})
	}
}

// TestExpertsRanks: gate and up with an A each add their ranks, with equal ones they don't; other ranks and scales of single
// experts, and experts without an adapter, are folded and said.
func TestExpertsRanks(t *testing.T) {
	base := memoryOf(t, "mixtral")
	b := must(openBase(base))
	ids := make([]int32, 32)
	for i := range ids {
		ids[i] = int32(i*37%101 + 3)
	}
	write := func(ranks, alphas map[string]any, keep func(name string) bool, sameA bool) memory {
		var entries []safetensors.Entry
		for _, at := range b.modules {
			if at.Experts == 0 {
				continue
			}
			for i, name := range b.peftModules(at.Module) {
				rank := 2
				if r, ok := ranks[name].(int); ok {
					rank = r
				}
				if !keep(name) {
					continue
				}
				a, bb := lora.Names(name)
				each := len(b.peftModules(at.Module)) / at.Experts
				seed := uint64(i)
				if sameA {
					seed = uint64(i / each)
				}
				for _, x := range []Tensor{noise("a", []int64{int64(rank), int64(at.In)}, 0.3, seed), noise("bb", []int64{int64(at.Out / each), int64(rank)}, 0.3, 1000+uint64(i))} {
					name := a
					if x.Name == "bb" {
						name = bb
					}
					values := valuesOf(t, x)
					raw := make([]byte, 4*len(values))
					if err := safetensors.PutFloat32s(raw, safetensors.F32, values); err != nil {
						t.Fatal(err)
					}
					entries = append(entries, safetensors.Entry{Name: name, DType: safetensors.F32, Shape: x.Shape, Data: writeBytes(raw)})
				}
			}
		}
		var file bytes.Buffer
		if err := safetensors.Write(&file, entries, nil); err != nil {
			t.Fatal(err)
		}
		config, err := json.Marshal(map[string]any{"peft_type": "LORA", "r": 2, "lora_alpha": 6, "target_modules": []string{"w1", "w2", "w3"},
			"rank_pattern": ranks, "alpha_pattern": alphas, "layers_to_transform": []int{0, 1}})
		if err != nil {
			t.Fatal(err)
		}
		return memory{adapterConfigName: config, adapterWeightsName: file.Bytes()}
	}
	all := func(string) bool { return true }
	const odd = "model.layers.0.block_sparse_moe.experts.1.w1"
	for name, c := range map[string]struct {
		folder memory
		rank   int // of layer 0's gate and up
		warned bool
	}{
		"equal A":       {write(nil, nil, all, true), 2, false},
		"own A":         {write(nil, nil, all, false), 4, false},
		"other rank":    {write(map[string]any{odd: 5}, map[string]any{odd: 15}, all, false), 7, false},
		"other scale":   {write(nil, map[string]any{odd: 7}, all, true), 2, true},
		"twice as much": {write(nil, map[string]any{odd: 12}, all, false), 4, false},
		"some experts":  {write(nil, nil, func(n string) bool { return !strings.Contains(n, "experts.2.") && !strings.HasSuffix(n, "3.w3") }, false), 4, false},
	} {
		im, err := ReadAdapter(c.folder, base)
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		if im.Modules[0].Rank != c.rank || len(im.Warnings) > 0 != c.warned {
			t.Errorf("%s: rank %d, warnings %q", name, im.Modules[0].Rank, im.Warnings)
		}
		// What it comes to, expert by expert, as the file says it.
		merged := must(Merged(base, Weights{Adapters: im.Modules}, MergedOptions{DType: "F32"}))
		out := build(t, merged, nil)
		got, stored := must(hf.Describe(out)), must(safetensors.Parse(bytes.NewReader(c.folder[adapterWeightsName]), int64(len(c.folder[adapterWeightsName]))))
		ck := must(hf.Describe(base))
		w, v := ck.Weights(base), got.Weights(out)
		config := must(parsePEFT(c.folder[adapterConfigName]))
		for _, at := range b.modules {
			if at.Experts == 0 {
				continue
			}
			for _, module := range b.peftModules(at.Module) {
				a, bb := lora.Names(module)
				x := ck.Tensors[module+".weight"]
				want, have := make([]float32, x.Elements()), make([]float32, x.Elements())
				if err := errors.Join(w.Float32s(want, x.Name), v.Float32s(have, x.Name)); err != nil {
					t.Fatal(err)
				}
				if info, ok := stored.Tensor(a); ok {
					rank := int(info.Shape[0])
					as, bs := make([]float32, info.Elements()), make([]float32, x.Shape[0]*info.Shape[0])
					if err := errors.Join(stored.ReadFloat32s(as, a), stored.ReadFloat32s(bs, bb)); err != nil {
						t.Fatal(err)
					}
					one := lora.Adapter{In: int(x.Shape[1]), Out: int(x.Shape[0]), Rank: rank}
					want = must(lora.Merge(want, as, bs, one, config.alphaOf(module)/float64(rank)))
				}
				if d := distance(have, want); d > 1e-5 {
					t.Errorf("%s: %s is %g off", name, module, d)
				}
			}
		}
		if err := errors.Join(w.Close(), v.Close()); err != nil {
			t.Fatal(err)
		}
	}
}

// What is wrong with adapters on experts is told by name.
func TestExpertsRefusals(t *testing.T) {
	of := map[string]expertCase{}
	for _, c := range expertCases(t) {
		of[c.name] = c
	}
	drop := func(part string) func([]safetensors.Entry) []safetensors.Entry {
		return func(list []safetensors.Entry) []safetensors.Entry {
			return slices.DeleteFunc(list, func(e safetensors.Entry) bool { return strings.Contains(e.Name, part) })
		}
	}
	add := func(name string, shape ...int64) func([]safetensors.Entry) []safetensors.Entry {
		return func(list []safetensors.Entry) []safetensors.Entry {
			return append(list, safetensors.Entry{Name: name, DType: "F32", Shape: shape, Data: writeBytes(make([]byte, 4*product(shape)))})
		}
	}
	const one = "base_model.model.model.layers.1.block_sparse_moe.experts.2.w3."
	for _, c := range []struct {
		name   string
		config map[string]any
		change func([]safetensors.Entry) []safetensors.Entry
		want   string
	}{
		{"single.mixtral", nil, drop("layers.1.block_sparse_moe.experts.2.w3.lora_B"), "1 missing: " + one + "lora_B.weight"},
		{"single.mixtral", nil, drop("layers.1.block_sparse_moe.experts.2.w3."), "2 missing: " + one + "lora_A.weight; " + one + "lora_B.weight"},
		{"single.mixtral", nil, drop(".experts."), "48 missing: "},
		{"single.mixtral", map[string]any{"r": 3}, nil, "w1.lora_A.weight is [2 32], the base model and rank 3 need [3 32]"},
		{"single.mixtral", nil, add("base_model.model.model.layers.1.block_sparse_moe.experts.4.w3.lora_A.weight", 2, 32), "experts.4.w3.lora_A.weight (the base model has no such"},
		{"fused.mixtral", nil, drop("layers.0.mlp.experts.lora_B"), "1 missing: base_model.model.model.layers.0.mlp.experts.down_proj.lora_B.weight"},
		{"fused.mixtral", nil, drop("layers.0.mlp.experts.base_layer."), "2 missing: base_model.model.model.layers.0.mlp.experts.gate_up_proj.lora_A.weight"},
		{"fused.mixtral", map[string]any{"r": 3}, nil, "mlp.experts.lora_A.weight is [8 20], the base model and rank 3 need [12 20]"},
		{"fused.mixtral", map[string]any{"target_parameters": nil}, nil, "mlp.experts.lora_A.weight (the base model has no such"},
		{"fused.mixtral", map[string]any{"target_parameters": "gate_up_proj"}, nil, `target_parameters is "gate_up_proj"`},
		{"fused.mixtral", nil, add(one+"lora_A.weight", 2, 32), "its experts have adapters of their own too"},
	} {
		folder := edit(t, of[c.name].peftCase, c.config, c.change)
		if _, err := ReadAdapter(folder, of[c.name].base); !errors.Is(err, ErrAdapter) || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v, want %q", c.name, err, c.want)
		}
	}
}

func FuzzReadExperts(f *testing.F) {
	base := memoryOf(f, "mixtral")
	for _, c := range expertCases(f) {
		if c.Golden == "mixtral" {
			f.Add(c.memory[adapterConfigName], c.memory[adapterWeightsName])
		}
	}
	f.Fuzz(func(t *testing.T, config, weights []byte) {
		im, err := ReadAdapter(memory{adapterConfigName: config, adapterWeightsName: weights}, base)
		if err != nil {
			if !errors.Is(err, ErrAdapter) && !errors.Is(err, hf.ErrLimit) {
				t.Errorf("an error without a reason: %v", err)
			}
			return
		}
		for _, x := range im.Uniform().Tensors {
			if v := valuesOf(t, x); int64(len(v)) != x.elements() {
				t.Errorf("%s has %d values", x.Name, len(v))
			}
		}
	})
}
