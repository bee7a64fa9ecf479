package arch_test

import (
	"encoding/json"
	"math"
	"path/filepath"
	"slices"
	"testing"

	"smolgym/kernels/cpu"
	"smolgym/model/arch"
	goldens "smolgym/model/golden"
	"smolgym/model/ir"
	"smolgym/model/lora"
)

// halfError is a mean and a largest error against the float32 golden.
type halfError struct{ Mean, Max float64 }

// errorOf compares tensors; those of gradients as shares of each tensor's largest
// value, those that are nothing but rounding left out.
func errorOf(t *testing.T, got, want map[string][]float32, shares bool) halfError {
	t.Helper()
	top := func(x []float32) (m float64) {
		for _, v := range x {
			m = math.Max(m, math.Abs(float64(v)))
		}
		return m
	}
	largest := 0.0
	for _, w := range want {
		largest = math.Max(largest, top(w))
	}
	var sum, count float64
	var e halfError
	for name, w := range want {
		if len(got[name]) != len(w) {
			t.Fatalf("%s: %d elements, want %d", name, len(got[name]), len(w))
		}
		scale := 1.0
		if shares {
			if scale = top(w); scale < 1e-6*largest {
				continue
			}
		}
		for i, v := range w {
			d := math.Abs(float64(got[name][i])-float64(v)) / scale
			sum, count = sum+d, count+1
			e.Max = math.Max(e.Max, d)
		}
	}
	e.Mean = sum / count
	return e
}

// TestHalfErrors: with matrices in bfloat16 the errors against the float32 goldens,
// mean and largest, are at most 1.1 times those of torch's own bfloat16; see
// testdata/goldens/make_bf16.py.
func TestHalfErrors(t *testing.T) {
	var torch struct {
		Models map[string]map[string]halfError
	}
	if err := json.Unmarshal(goldens.Gunzip(t, filepath.Join("..", "..", "testdata", "goldens", "bf16.json.gz")), &torch); err != nil {
		t.Fatal(err)
	}
	if len(torch.Models) != 20 {
		t.Fatalf("%d models have figures, want 20", len(torch.Models))
	}
	for _, name := range imports {
		theirs, ok := torch.Models[name]
		if !ok {
			continue
		}
		for _, level := range []string{"auto", "amx-avx2"} { // the orders of summation
			t.Run(name+"/"+level, func(t *testing.T) {
				if level != "auto" && !slices.Contains(cpu.Levels(), level) {
					t.Skipf("this processor does not run %s", level)
				}
				for key, e := range halfErrors(t, name, level) {
					w, ok := theirs[key]
					if !ok || w.Mean <= 0 {
						t.Fatalf("no figure for %s", key)
					}
					t.Logf("%s: mean %.3g (torch %.3g, ratio %.2f), largest %.3g (%.3g, %.2f)", key, e.Mean, w.Mean, e.Mean/w.Mean, e.Max, w.Max, e.Max/w.Max)
					if e.Mean == 0 || e.Mean > 1.1*w.Mean || e.Max > 1.1*w.Max {
						t.Errorf("%s: mean error %.3g, largest %.3g; torch has %.3g and %.3g", key, e.Mean, e.Max, w.Mean, w.Max)
					}
				}
			})
		}
	}
}

// halfErrors computes a golden with matrices in bfloat16.
func halfErrors(t *testing.T, name, level string) map[string]halfError {
	dir := unpack(t, name)
	var info importInfo
	gold := openGolden(t, dir, &info)
	ck, src := describe(t, dir, "config.json")
	if e := ck.Config.Experts; e != nil {
		gold.experts = *e
	}
	m, err := arch.Build(ck, arch.Train)
	if err != nil {
		t.Fatal(err)
	}
	if m.Narrow() == 0 {
		t.Fatal("no weight was narrowed")
	}
	dev, err := cpu.Open(cpu.Options{Level: level})
	if err != nil {
		t.Fatal(err)
	}
	defer dev.Close()
	r := newRigOn(t, dev)
	r.load(m, ck, src)
	dims := r.batch(gold.ids("input_ids"), 2, gold.floats("loss_mask"))
	errs := map[string]halfError{}
	one := func(key string, got []float32) {
		errs[key] = errorOf(t, map[string][]float32{key: got}, map[string][]float32{key: gold.floats(key)}, false)
	}

	g, acc := lossGraph(t, m.Graph, m.Logits, ir.ClassWeight)
	r.run(g, dims)
	one("logits", r.floats("logits"))
	one("logprobs", dropLast(r.floats("logprobs"), 2, 1))
	got, want := map[string][]float32{}, map[string][]float32{}
	for param, names := range acc {
		id, _ := g.ByName(param)
		got[param], want[param] = thin(r.sum(names), int64(g.Value(id).Type.Shape[0].N)), gold.floats("grad."+param)
	}
	errs["grad"] = errorOf(t, got, want, true)

	g = m.Graph.Clone()
	g.Output("logits", m.Logits)
	c := lora.Config{Rank: info.LoRA.Rank, Alpha: info.LoRA.Alpha, Attention: true, MLP: true}
	c.Of = func(module string) (int, float64) { return gold.adapterRank(module, &info.LoRA) }
	g, adapters, err := lora.Apply(g, c)
	if err != nil {
		t.Fatal(err)
	}
	of := map[string]lora.Adapter{}
	for _, a := range adapters {
		r.set(a.A, gold.adapter(a, "lora.init.", a.A))
		r.set(a.B, gold.adapter(a, "lora.init.", a.B))
		of[a.A], of[a.B] = a, a
	}
	g, acc = lossGraph(t, g, 0, ir.ClassAdapter)
	r.run(g, dims)
	one("lora.logits", thin(r.floats("logits"), int64(dims.T)))
	got, want = map[string][]float32{}, map[string][]float32{}
	for param, names := range acc {
		a := of[param]
		got[param], want[param] = gold.storedOrder(a, param, r.sum(names)), gold.floats("lora.grad."+gold.adapterName(a, param))
	}
	errs["lora.grad"] = errorOf(t, got, want, true)
	return errs
}
