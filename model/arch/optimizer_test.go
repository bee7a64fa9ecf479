package arch_test

import (
	"math"
	"slices"
	"strconv"
	"testing"

	"smolgym/model/arch"
	"smolgym/model/ir"
	"smolgym/model/optim"
	"smolgym/model/plan"
)

// Five steps with changing rates, betas 0.9/0.95, eps 1e-12, decay 0.01 and clip
// 0.5 are torch's AdamW.
func TestOptimizerGolden(t *testing.T) {
	dir := unpack(t, "optimizer")
	var info struct {
		Steps []adamStep `json:"steps"`
		Norms []float64  `json:"grad_norm"`
	}
	gold := openGolden(t, dir, &info)
	r := newRig(t)
	u := &update{r: r}
	for _, name := range []string{"matrix", "vector", "one", "wide"} {
		p := optim.Param{Name: name, Class: ir.ClassWeight, Grads: []string{"grad:" + name}}
		for _, n := range gold.shape("init." + name) {
			p.Shape = append(p.Shape, ir.Const(int(n)))
		}
		u.params = append(u.params, p)
		r.set(name, gold.floats("init."+name))
	}
	var err error
	if u.norm, err = optim.Norm(u.params); err == nil {
		u.adam, err = optim.AdamW(u.params)
	}
	if err != nil {
		t.Fatal(err)
	}
	for i, s := range info.Steps {
		step := strconv.Itoa(i + 1)
		before := map[string][]float32{}
		for _, p := range u.params {
			before[p.Name] = r.floats(p.Name)
			r.set(p.Grads[0], gold.floats("grad"+step+"."+p.Name))
		}
		if norm := u.step(s.params(), i+1); math.Abs(norm-info.Norms[i]) > 1e-5*info.Norms[i] {
			t.Errorf("step %s: norm %g, want %g", step, norm, info.Norms[i])
		}
		for _, p := range u.params {
			got := r.floats(p.Name)
			within(t, "step "+step+" "+p.Name, got, gold.floats("step"+step+"."+p.Name), 1e-6, 1e-6)
			if s.LR == 0 && !slices.Equal(got, before[p.Name]) {
				t.Errorf("step %s: a rate of 0 changed %s", step, p.Name)
			}
			for _, v := range r.floats(p.Grads[0]) {
				if v != 0 {
					t.Fatal("the gradient is not cleared")
				}
			}
		}
	}
}

// Datums one at a time, in pairs or all at once: the same bits in every
// accumulator, tied head included.
func TestMicroBatchesKeepBits(t *testing.T) {
	dir := unpack(t, "llama_tied")
	gold := openGolden(t, dir, &struct{}{})
	ck, src := describe(t, dir, "config.json")
	m, err := arch.Build(ck, arch.Train)
	if err != nil {
		t.Fatal(err)
	}
	if !m.Tied {
		t.Fatal("not tied")
	}
	g, acc := lossGraph(t, m.Graph, 0, ir.ClassWeight)
	if n := len(acc["model.embed_tokens.weight"]); n != 2 {
		t.Fatalf("%d accumulators of the tied embedding, want 2", n)
	}
	ids := gold.ids("input_ids")
	datums := [][]int32{ids[:24], ids[24:41], ids[41:48], ids[5:30]}
	var want map[string][]float32
	for _, size := range []int{4, 1, 2} {
		r := newRig(t)
		r.load(m, ck, src)
		for part := range slices.Chunk(datums, size) {
			r.run(g, r.packed(part))
		}
		got := map[string][]float32{}
		for _, names := range acc {
			for _, n := range names {
				got[n] = r.floats(n)
			}
		}
		if want == nil {
			want = got
			continue
		}
		for n, x := range got {
			if !slices.Equal(x, want[n]) {
				t.Errorf("micro-batches of %d change %s", size, n)
			}
		}
	}
}

// packed binds datums of any length, each token but the last with its successor
// as target and a weight of its own.
func (r *rig) packed(datums [][]int32) ir.Dims {
	var ids, positions, targets []int32
	var weights []float32
	offsets := []int32{0}
	for _, d := range datums {
		for i := range d {
			positions = append(positions, int32(i))
			weights = append(weights, float32(i%3)-0.5)
		}
		ids = append(ids, d...)
		targets = append(append(targets, d[1:]...), d[0])
		offsets = append(offsets, int32(len(ids)))
	}
	r.setI("ids", ids...)
	r.setI("positions", positions...)
	r.setI("offsets", offsets...)
	r.setI("targets", targets...)
	r.set("loss.weights", weights)
	return ir.Dims{T: len(ids), S: len(datums), C: 1}
}

// The same token has the same log-probability bits in training, as a prompt and
// sampled from a cache, in any batch.
func TestOnPolicyBits(t *testing.T) {
	dir := unpack(t, "qwen3")
	gold := openGolden(t, dir, &struct{}{})
	ck, src := describe(t, dir, "config.json")
	train, err := arch.Build(ck, arch.Train)
	if err != nil {
		t.Fatal(err)
	}
	decode, err := arch.Build(ck, arch.Decode)
	if err != nil {
		t.Fatal(err)
	}
	r := newRig(t)
	r.load(train, ck, src)
	ids := gold.ids("input_ids")
	long := slices.Concat(ids, ids[:20]) // 68 tokens: three pages, several key blocks
	r.run(train.Graph, r.packed([][]int32{ids[:9], long}))
	trained := r.floats("logprobs")[9:]
	// Prefill 40 tokens, the rest one at a time beside another sequence.
	var sampled []float32
	score := func(rows int) {
		logits, lse := r.floats("logits"), r.floats("lse")
		for i := range rows {
			if len(sampled)+1 < len(long) {
				sampled = append(sampled, logits[i*decode.Vocab+int(long[len(sampled)+1])]-lse[i])
			}
		}
	}
	rows := make([]int32, 40)
	for i := range rows {
		rows[i] = int32(i)
	}
	r.decodeInputs([][]int32{long[:40]}, []int32{0}, [][]int32{{3, 0, 4}}, rows)
	r.run(decode.Graph, ir.Dims{T: 40, S: 1, R: 40, P: 6, B: 3})
	score(40)
	for i := 40; i < len(long); i++ {
		other := int32(i - 40)
		r.decodeInputs([][]int32{{long[i]}, {ids[other]}}, []int32{int32(i), other}, [][]int32{{3, 0, 4}, {5, 1, 1}}, []int32{0})
		r.run(decode.Graph, ir.Dims{T: 2, S: 2, R: 1, P: 6, B: 3})
		score(1)
	}
	if !slices.Equal(sampled, trained[:len(sampled)]) || len(sampled) != len(long)-1 {
		t.Errorf("sampled %v\ntrained %v", sampled, trained)
	}
}

// Recomputing activations changes no bit and saves memory.
func TestRecomputeKeepsBits(t *testing.T) {
	for _, name := range []string{"llama_tied", "qwen3"} {
		dir := unpack(t, name)
		ck, src := describe(t, dir, "config.json")
		m, err := arch.Build(ck, arch.Train)
		if err != nil {
			t.Fatal(err)
		}
		g, acc := lossGraph(t, m.Graph, 0, ir.ClassWeight)
		datums := [][]int32{{5, 6, 7, 8, 9, 10, 11}, {300, 301, 302, 303, 304}}
		var results []map[string][]float32
		var programs []*ir.Program
		for _, layers := range []int{0, 1, 2} {
			rg, err := plan.Recompute(g, func(l int) bool { return l < layers })
			if err != nil {
				t.Fatal(err)
			}
			p, err := plan.Build(rg, ir.Dims{T: 4096, S: 4, C: 1})
			if err != nil {
				t.Fatal(err)
			}
			programs = append(programs, p)
			r := newRig(t)
			r.load(m, ck, src)
			r.run(rg, r.packed(datums))
			got := map[string][]float32{"loss": r.floats("loss"), "logprobs": r.floats("logprobs")}
			for _, names := range acc {
				for _, n := range names {
					got[n] = r.floats(n)
				}
			}
			results = append(results, got)
		}
		for i := range results {
			for n, x := range results[i] {
				if !slices.Equal(x, results[0][n]) {
					t.Errorf("%s: recomputing %d layers changes %s", name, i, n)
				}
			}
			if i > 0 && (programs[i].ArenaBytes > programs[i-1].ArenaBytes || programs[i].FLOPs <= programs[i-1].FLOPs) {
				t.Errorf("%s, %d layers: arena %d after %d, operations %d after %d", name, i, programs[i].ArenaBytes, programs[i-1].ArenaBytes, programs[i].FLOPs, programs[i-1].FLOPs)
			}
		}
		if saved := programs[0].ArenaBytes - programs[2].ArenaBytes; saved*8 < programs[0].ArenaBytes {
			t.Errorf("%s: only %d of %d bytes saved", name, saved, programs[0].ArenaBytes)
		}
		t.Logf("%s: arena %d, %d, %d", name, programs[0].ArenaBytes, programs[1].ArenaBytes, programs[2].ArenaBytes)
	}
}
