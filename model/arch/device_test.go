package arch_test

import (
	"math/rand/v2"
	"slices"
	"testing"

	"smolgym/kernels"
	"smolgym/kernels/cpu"
	"smolgym/model/arch"
	"smolgym/model/grad"
	"smolgym/model/ir"
	"smolgym/model/loss"
	"smolgym/model/plan"
)

// The CPU device, float32 throughout, is as close to the goldens as the
// reference device, whose sums are float64.
func TestCPUGoldens(t *testing.T) {
	for _, name := range imports {
		t.Run(name, func(t *testing.T) {
			dir := unpack(t, name)
			var info importInfo
			gold := openGolden(t, dir, &info)
			ck, src := describe(t, dir, "config.json")
			m, err := arch.Build(ck, arch.Train)
			if err != nil {
				t.Fatal(err)
			}
			dev, err := cpu.Open(cpu.Options{Threads: 2})
			if err != nil {
				t.Fatal(err)
			}
			defer dev.Close()
			r := newRigOn(t, dev)
			r.load(m, ck, src)
			dims := r.batch(gold.ids("input_ids"), 2, gold.floats("loss_mask"))
			g, acc := lossGraph(t, m.Graph, m.Logits, ir.ClassWeight)
			r.run(g, dims)
			slack := max(slacks[name], 1)
			within(t, "logits", r.floats("logits"), gold.floats("logits"), rtol*slack, share*slack)
			within(t, "logprobs", dropLast(r.floats("logprobs"), 2, 1), gold.floats("logprobs"), rtol, share)
			for param, names := range acc {
				id, _ := g.ByName(param)
				within(t, "grad "+param, thin(r.sum(names), int64(g.Value(id).Type.Shape[0].N)), gold.floats("grad."+param), rtol*slack, share*slack)
			}
		})
	}
}

// Datums one at a time or all at once, activations kept or computed again: the
// same bits in every accumulator, of weights and of adapters.
func TestGradientBits(t *testing.T) {
	datums := [][]int32{{5, 9, 11, 3, 77, 20, 21, 5}, {8, 5}, {60, 61, 62, 63, 64}}
	for _, name := range []string{"gemma2_uncapped", "gpt2_scaled", "phi3_longrope", "mixtral", "qwen3_moe_mixed", "qwen3_next_dense", "qwen3_5_moe"} {
		t.Run(name, func(t *testing.T) {
			ck, src := describe(t, unpack(t, name), "config.json")
			m := adapted(t, ck, arch.Train)
			g, acc := allGradients(t, m.Graph)
			again, err := plan.Recompute(g, func(int) bool { return true })
			if err != nil {
				t.Fatal(err)
			}
			onBoth(t, func(t *testing.T, dev kernels.Device) {
				var want map[string][]float32
				for _, c := range []struct {
					what string
					g    *ir.Graph
					size int
				}{{"at once", g, 3}, {"one at a time", g, 1}, {"computed again", again, 3}} {
					r := newRigOn(t, dev)
					r.load(m, ck, src)
					rng := rand.New(rand.NewPCG(21, 22))
					for _, id := range m.Graph.Named(ir.ClassAdapter) {
						v := m.Graph.Value(id)
						x := make([]float32, v.Type.Shape.Elements(ir.Dims{}))
						for i := range x {
							x[i] = float32(rng.NormFloat64() * 0.1)
						}
						r.set(v.Name, x)
					}
					for at := 0; at < len(datums); at += c.size {
						r.run(c.g, r.packed(datums[at:at+c.size]))
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
							t.Errorf("%s changes %s", c.what, n)
						}
					}
				}
			})
		})
	}
}

// allGradients differentiates the cross-entropy by weights and adapters alike.
func allGradients(t *testing.T, g *ir.Graph) (*ir.Graph, grad.Accumulators) {
	t.Helper()
	g = g.Clone()
	if err := loss.Append(g, "cross_entropy"); err != nil {
		t.Fatal(err)
	}
	g, acc, err := grad.Backward(g, loss.Output, func(v *ir.Value) bool { return v.Class == ir.ClassWeight || v.Class == ir.ClassAdapter })
	if err != nil {
		t.Fatal(err)
	}
	return g, acc
}
