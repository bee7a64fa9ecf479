package arch_test

import (
	"fmt"
	"math"
	"slices"
	"strings"
	"testing"

	"smolgym/model/arch"
	"smolgym/model/grad"
	"smolgym/model/ir"
	"smolgym/model/lora"
	"smolgym/model/loss"
	"smolgym/model/optim"
)

var imports = []string{"llama", "llama_tied", "llama_linear_rope", "llama_bias_headdim", "llama3_rope", "llama_yarn_rope", "qwen3",
	// These are in the shared folder only.
	"mistral", "qwen2", "smollm3", "gemma2", "gemma3_text", "olmo2", "phi3", "granite", "gpt2", "gpt_neox", "qwen3_moe", "qwen3_next", "qwen3_5_text",
	// These are our own, in testdata/families.
	"mistral_window40", "mistral_window32", "gemma2_uncapped", "gemma3_scaled", "olmo3", "phi3_longrope", "phi3_longrope_even", "llama_longrope", "llama_dynamic",
	"granite_biases", "gpt2_scaled", "gpt_neox_serial", "qwen3_moe_mixed", "mixtral", "qwen3_next_dense", "qwen3_5_moe", "qwen2_window", "smollm3_window", "qwen3_moe_window"}

// The tolerance of the import goldens.
const (
	rtol  = 1e-4
	share = 1e-5
)

type importInfo struct {
	Loss  float64            `json:"loss"`
	Norms map[string]float64 `json:"grad_norm"`
	Adam  struct {
		Betas [2]float64 `json:"betas"`
		Eps   float64    `json:"eps"`
		LR    float64    `json:"lr"`
		Decay float64    `json:"weight_decay"`
	} `json:"adamw"`
	LoRA loraInfo `json:"lora"`
}

type loraInfo = struct {
	Alpha   float64  `json:"alpha"`
	Rank    int      `json:"rank"`
	Loss    float64  `json:"loss"`
	Targets []string `json:"targets"`
}

// batch binds sequences of equal length, the next token as target of each but
// the last, and weights 1/N where the mask is 1. It returns the dims.
func (r *rig) batch(ids []int32, seqs int, mask []float32) ir.Dims {
	n := len(ids) / seqs
	var positions, targets []int32
	var weights []float32
	offsets := []int32{0}
	total := float32(0)
	for _, m := range mask {
		total += m
	}
	for s := range seqs {
		for i := range n {
			positions = append(positions, int32(i))
			if i+1 < n {
				targets = append(targets, ids[s*n+i+1])
				weights = append(weights, mask[s*(n-1)+i]/total)
			} else {
				targets, weights = append(targets, 0), append(weights, 0)
			}
		}
		offsets = append(offsets, int32((s+1)*n))
	}
	r.setI("ids", ids...)
	r.setI("positions", positions...)
	r.setI("offsets", offsets...)
	r.setI("targets", targets...)
	r.set("loss.weights", weights)
	return ir.Dims{T: len(ids), S: seqs, C: 1}
}

// dropLast leaves out the last row of each of seqs sequences.
func dropLast(x []float32, seqs, width int) []float32 {
	n := len(x) / seqs
	var out []float32
	for s := range seqs {
		out = append(out, x[s*n:(s+1)*n-width]...)
	}
	return out
}

// thin keeps the rows that a compact golden keeps of a tensor [rows,width].
func thin(x []float32, rows int64) []float32 {
	if len(x) <= 1024 {
		return x
	}
	step, width := int64(8), int64(len(x))/rows
	if rows < 16 {
		step = 2
	}
	var out []float32
	for i := int64(0); i < rows; i += step {
		out = append(out, x[i*width:(i+1)*width]...)
	}
	return out
}

// lossGraph is the cross-entropy graph with "logits" as an output, and its
// gradient with respect to one class of parameters.
func lossGraph(t *testing.T, g *ir.Graph, logits ir.ID, class ir.Class) (*ir.Graph, grad.Accumulators) {
	t.Helper()
	g = g.Clone()
	if logits != 0 {
		g.Output("logits", logits)
	}
	if err := loss.Append(g, "cross_entropy"); err != nil {
		t.Fatal(err)
	}
	g, acc, err := grad.Backward(g, loss.Output, func(v *ir.Value) bool { return v.Class == class })
	if err != nil {
		t.Fatal(err)
	}
	return g, acc
}

// sum adds a parameter's accumulators.
func (r *rig) sum(names []string) []float32 {
	x := r.floats(names[0])
	for _, n := range names[1:] {
		for i, v := range r.floats(n) {
			x[i] += v
		}
	}
	return x
}

func total(x []float32) float64 {
	s := 0.0
	for _, v := range x {
		s += float64(v)
	}
	return s
}

func TestImportGoldens(t *testing.T) {
	for _, name := range imports {
		for _, config := range []string{"config.json", "config_v4.json"} {
			t.Run(name+"/"+config, func(t *testing.T) {
				dir := unpack(t, name)
				var info importInfo
				gold := openGolden(t, dir, &info)
				ck, src := describe(t, dir, config)
				if e := ck.Config.Experts; e != nil {
					gold.experts = *e
				}
				m, err := arch.Build(ck, arch.Train)
				if err != nil {
					t.Fatal(err)
				}
				warned := slices.DeleteFunc(slices.Clone(m.Warnings), func(w string) bool {
					return (strings.HasSuffix(name, "longrope") || name == "llama_dynamic") && strings.HasPrefix(w, "texts of up to")
				})
				if len(m.Unused) > 0 || len(warned) > 0 {
					t.Errorf("unused %v, warnings %v", m.Unused, m.Warnings)
				}
				r := newRig(t)
				r.load(m, ck, src)
				dims := r.batch(gold.ids("input_ids"), 2, gold.floats("loss_mask"))
				g, acc := lossGraph(t, m.Graph, m.Logits, ir.ClassWeight)
				r.run(g, dims)
				within(t, "logits", r.floats("logits"), gold.floats("logits"), rtol, share)
				within(t, "logprobs", dropLast(r.floats("logprobs"), 2, 1), gold.floats("logprobs"), rtol, share)
				if got := total(r.floats("loss")); !near(got, info.Loss, 1e-5) {
					t.Errorf("loss %g, want %g", got, info.Loss)
				}
				if len(acc) != len(info.Norms) {
					t.Errorf("%d parameters have gradients, want %d", len(acc), len(info.Norms))
				}
				for param, names := range acc {
					id, _ := g.ByName(param)
					within(t, "grad "+param, thin(r.sum(names), int64(g.Value(id).Type.Shape[0].N)), gold.floats("grad."+param), rtol, share)
				}
				if gold.count("step3.") > 0 {
					t.Run("adamw", func(t *testing.T) { testImportSteps(t, r, m, gold, &info, g, acc, dims) })
				}
				t.Run("lora", func(t *testing.T) { testImportLoRA(t, r, m, gold, &info, dims) })
			})
		}
	}
}

// leaveNoise sets got to want where the gradient is rounding noise: there the
// direction of a step of Adam is arbitrary, and only its size is checked. A key's
// bias, for one, has no gradient at all but in rounding.
func leaveNoise(t *testing.T, what string, got, want, gradient []float32, most float64) {
	t.Helper()
	top, noise := 0.0, 0
	for _, v := range gradient {
		top = math.Max(top, math.Abs(float64(v)))
	}
	for i, v := range gradient {
		if math.Abs(float64(v)) > 1e-3*top && top > 1e-6 {
			continue
		}
		noise++
		if math.Abs(float64(got[i]-want[i])) <= most {
			got[i] = want[i]
		}
	}
	if 2*noise > len(got) && top > 1e-6 && !strings.Contains(what, "experts") && !strings.Contains(what, "embed") && !strings.Contains(what, ".wpe.") && !strings.Contains(what, ".wte.") {
		t.Errorf("%s: %d of %d gradients are noise", what, noise, len(got))
	}
}

// testImportSteps takes three steps of a full update and restores the weights.
func testImportSteps(t *testing.T, r *rig, m *arch.Model, gold *golden, info *importInfo, g *ir.Graph, acc grad.Accumulators, dims ir.Dims) {
	r.t = t
	before := map[string][]float32{}
	for param, names := range acc {
		before[param] = r.floats(param)
		r.zero(names...)
	}
	update := newUpdate(t, r, g, acc)
	adam := optim.AdamParams{LR: info.Adam.LR, Beta1: info.Adam.Betas[0], Beta2: info.Adam.Betas[1], Eps: info.Adam.Eps, WeightDecay: info.Adam.Decay}
	for step := range 3 {
		r.run(g, dims)
		update.step(adam, step+1)
	}
	for param := range acc {
		id, _ := g.ByName(param)
		got, want := thin(r.floats(param), int64(g.Value(id).Type.Shape[0].N)), gold.floats("step3."+param)
		leaveNoise(t, "step3 "+param, got, want, gold.floats("grad."+param), 6*adam.LR)
		within(t, "step3 "+param, got, want, rtol*max(slacks[gold.name], 1), share)
	}
	for param, x := range before {
		r.set(param, x)
	}
}

func near(got, want, rel float64) bool {
	d := got - want
	return d <= rel*want && -d <= rel*want
}

func testImportLoRA(t *testing.T, r *rig, m *arch.Model, gold *golden, info *importInfo, dims ir.Dims) {
	r.t = t
	g := m.Graph.Clone()
	g.Output("logits", m.Logits) // follows the value through the rewrite
	c := lora.Config{Rank: info.LoRA.Rank, Alpha: info.LoRA.Alpha, Attention: true, MLP: true}
	c.Of = func(module string) (int, float64) { return gold.adapterRank(module, &info.LoRA) }
	g, adapters, err := lora.Apply(g, c)
	if err != nil {
		t.Fatal(err)
	}
	pairs := 0
	for _, a := range adapters {
		pairs += 2
		r.set(a.A, gold.adapter(a, "lora.init.", a.A))
		r.set(a.B, gold.adapter(a, "lora.init.", a.B))
	}
	if want := gold.count("lora.init."); pairs != want {
		t.Fatalf("%d adapter tensors, want %d", pairs, want)
	}
	of := map[string]lora.Adapter{}
	for _, a := range adapters {
		of[a.A], of[a.B] = a, a
	}
	bg, acc := lossGraph(t, g, 0, ir.ClassAdapter)
	if len(acc) != 2*len(adapters) {
		t.Errorf("%d gradients, want %d: the base is frozen", len(acc), 2*len(adapters))
	}
	update := newUpdate(t, r, bg, acc)
	adam := optim.AdamParams{LR: info.Adam.LR, Beta1: info.Adam.Betas[0], Beta2: info.Adam.Betas[1], Eps: info.Adam.Eps, WeightDecay: info.Adam.Decay}
	for step := range 3 {
		r.run(bg, dims)
		if step == 0 {
			if got := total(r.floats("loss")); !near(got, info.LoRA.Loss, 1e-5) {
				t.Errorf("loss %g, want %g", got, info.LoRA.Loss)
			}
			within(t, "logits", thin(r.floats("logits"), int64(dims.T)), gold.floats("lora.logits"), rtol, share)
			for param, names := range acc {
				a := of[param]
				got := gold.storedOrder(a, param, r.sum(names))
				slack := max(slacks[gold.name], 1)
				within(t, "grad "+param, got, gold.floats("lora.grad."+gold.adapterName(a, param)), rtol*slack, share*slack)
			}
		}
		update.step(adam, step+1)
	}
	for param := range acc {
		// Adam divides by the gradient's own size: where a gradient is rounding
		// noise its step is of the order of the rate, whatever the sign.
		a := of[param]
		within(t, "step3 "+param, gold.storedOrder(a, param, r.floats(param)), gold.floats("lora.step3."+gold.adapterName(a, param)), rtol, share)
	}
}

// update runs the optimizer as an engine would.
type update struct {
	r          *rig
	params     []optim.Param
	norm, adam *ir.Graph
}

func newUpdate(t *testing.T, r *rig, g *ir.Graph, acc grad.Accumulators) *update {
	t.Helper()
	u := &update{r: r, params: optim.Params(g, acc)}
	var err error
	if u.norm, err = optim.Norm(u.params); err == nil {
		u.adam, err = optim.AdamW(u.params)
	}
	if err != nil {
		t.Fatal(err)
	}
	return u
}

// step applies and clears the accumulated gradient and returns its norm.
func (u *update) step(p optim.AdamParams, n int) float64 {
	u.r.run(u.norm, ir.Dims{})
	square := 0.0
	for _, q := range u.params {
		square += total(u.r.floats(optim.NormOutput(q.Name)))
	}
	norm := sqrt(square)
	u.r.set(optim.HyperInput, optim.Hyper(p, n, p.ClipFactor(norm)))
	u.r.run(u.adam, ir.Dims{})
	for _, q := range u.params {
		u.r.zero(q.Grads...)
	}
	return norm
}

// FR-21: heads of another size than hidden/heads, grouped keys, and llama3 scaling in every spelling at positions up to 255.
func TestGeometryGoldens(t *testing.T) {
	dir := unpack(t, "geometry")
	var info struct {
		Cases []struct {
			Configs []string
			Logits  string
		}
	}
	gold := openGolden(t, dir, &info)
	ids, rows := gold.ids("input_ids"), gold.ids("rows")
	for _, c := range info.Cases {
		for _, config := range c.Configs {
			t.Run(config, func(t *testing.T) {
				ck, src := describe(t, dir, config)
				m, err := arch.Build(ck, arch.Decode)
				if err != nil {
					t.Fatal(err)
				}
				r := newRig(t)
				r.load(m, ck, src)
				pages := (len(ids) + arch.Page - 1) / arch.Page
				r.decodeInputs([][]int32{ids}, []int32{0}, [][]int32{reversed(pages)}, rows)
				r.run(m.Graph, ir.Dims{T: len(ids), S: 1, R: len(rows), P: pages, B: pages})
				within(t, c.Logits, r.floats("logits"), gold.floats(c.Logits), rtol, share)
			})
		}
	}
}

// reversed is a block table that uses the last page first.
func reversed(pages int) []int32 {
	var table []int32
	for i := range pages {
		table = append(table, int32(pages-1-i))
	}
	return table
}

func (r *rig) decodeInputs(seqs [][]int32, start []int32, tables [][]int32, rows []int32) {
	var ids, positions, table []int32
	offsets := []int32{0}
	for s, seq := range seqs {
		ids = append(ids, seq...)
		for i := range seq {
			positions = append(positions, start[s]+int32(i))
		}
		offsets = append(offsets, int32(len(ids)))
		table = append(table, tables[s]...)
	}
	r.setI("ids", ids...)
	r.setI("positions", positions...)
	r.setI("offsets", offsets...)
	r.setI("start", start...)
	slot := make([]int32, len(seqs))
	for i := range slot {
		slot[i] = int32(len(seqs) - i) // not the order of the batch, and 0 is nobody's
	}
	r.setI("slot", slot...)
	r.setI("table", table...)
	r.setI("rows", rows...)
}

func TestGreedyGoldens(t *testing.T) {
	for _, name := range imports {
		t.Run(name, func(t *testing.T) {
			dir := unpack(t, name)
			gold := openGolden(t, dir, &struct{}{})
			ck, src := describe(t, dir, "config.json")
			m, err := arch.Build(ck, arch.Decode)
			if err != nil {
				t.Fatal(err)
			}
			cached := greedy(t, m, func(r *rig) { r.load(m, ck, src) }, gold.ids("prompt_ids"), true)
			fresh := greedy(t, m, func(r *rig) { r.load(m, ck, src) }, gold.ids("prompt_ids"), false)
			want := fmt.Sprint(gold.ids("cached_ids"))
			if got := fmt.Sprint(cached.ids); got != want {
				t.Errorf("with cache\n%s, want\n%s", got, want)
			}
			if got := fmt.Sprint(fresh.ids); got != want {
				t.Errorf("without cache\n%s, want\n%s", got, want)
			}
			within(t, "logits", cached.logits, gold.floats("cached_logits"), rtol, share)
			for i := range cached.logits {
				if cached.logits[i] != fresh.logits[i] {
					t.Fatalf("logit %d is %g with cache, %g without: must be the same bits", i, cached.logits[i], fresh.logits[i])
				}
			}
		})
	}
}

type greedyResult struct {
	ids    []int32   // [2,28]
	logits []float32 // [2,16,V]
}

// greedy continues two prompts by 16 tokens each, in one batch, with the cache
// or with everything recomputed at each step.
func greedy(t *testing.T, m *arch.Model, load func(*rig), prompts []int32, cache bool) greedyResult {
	t.Helper()
	r := newRig(t)
	load(r)
	seqs := [][]int32{append([]int32(nil), prompts[:12]...), append([]int32(nil), prompts[12:]...)}
	next := seqs
	start := []int32{0, 0}
	logits := make([][]float32, 2)
	for range 16 {
		n := len(next[0])
		r.decodeInputs(next, start, [][]int32{{2}, {0}}, []int32{int32(n - 1), int32(2*n - 1)})
		r.run(m.Graph, ir.Dims{T: 2 * n, S: 2, R: 2, P: 3, B: 1, L: 3})
		out := r.floats("logits")
		for s := range 2 {
			row := out[s*m.Vocab : (s+1)*m.Vocab]
			best := 0
			for i, v := range row {
				if v > row[best] {
					best = i
				}
			}
			seqs[s] = append(seqs[s], int32(best))
			logits[s] = append(logits[s], row...)
		}
		if cache {
			start = []int32{int32(len(seqs[0]) - 1), int32(len(seqs[1]) - 1)}
			next = [][]int32{seqs[0][len(seqs[0])-1:], seqs[1][len(seqs[1])-1:]}
		} else {
			next = seqs
		}
	}
	return greedyResult{append(seqs[0], seqs[1]...), append(logits[0], logits[1]...)}
}
