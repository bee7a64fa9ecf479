package arch_test

import (
	"math"
	"strings"
	"testing"

	"smolgym/model/arch"
	"smolgym/model/ir"
	"smolgym/model/lora"
	"smolgym/model/optim"
)

func sqrt(x float64) float64 { return math.Sqrt(x) }

type adamStep struct {
	LR    float64 `json:"learning_rate"`
	Beta1 float64 `json:"beta1"`
	Beta2 float64 `json:"beta2"`
	Eps   float64 `json:"eps"`
	Decay float64 `json:"weight_decay"`
	Clip  float64 `json:"grad_clip_norm"`
}

func (s adamStep) params() optim.AdamParams {
	return optim.AdamParams{LR: s.LR, Beta1: s.Beta1, Beta2: s.Beta2, Eps: s.Eps, WeightDecay: s.Decay, ClipNorm: s.Clip}
}

type stepRun struct {
	Steps  []adamStep `json:"steps"`
	Norms  []float64  `json:"grad_norm"`
	Losses []float64  `json:"losses_before_step"`
	After  float64    `json:"loss_after"`
	Alpha  float64    `json:"alpha"`
	Rank   int        `json:"rank"`
	Target []string   `json:"targets"`
}

type stepsInfo struct {
	Loss           float64
	Tied           bool
	Fed, Own, LoRA stepRun
}

func TestStepGoldens(t *testing.T) {
	for _, name := range []string{"steps_llama", "steps_llama_tied", "steps_qwen3"} {
		dir := unpack(t, name)
		var info stepsInfo
		gold := openGolden(t, dir, &info)
		ck, src := describe(t, dir, "config.json")
		m, err := arch.Build(ck, arch.Train)
		if err != nil {
			t.Fatal(err)
		}
		if m.Tied != info.Tied {
			t.Errorf("%s: tied %v, want %v", name, m.Tied, info.Tied)
		}
		start := func(t *testing.T) (*rig, ir.Dims) {
			r := newRig(t)
			r.load(m, ck, src)
			return r, r.batch(gold.ids("input_ids"), 2, gold.floats("loss_mask"))
		}
		g, acc := lossGraph(t, m.Graph, 0, ir.ClassWeight)
		t.Run(name+"/fed", func(t *testing.T) {
			r, _ := start(t)
			u := newUpdate(t, r, g, acc)
			for i, s := range info.Fed.Steps {
				for param, names := range acc {
					r.set(names[0], gold.floats("fed.grad"+string(rune('1'+i))+"."+param))
					for _, n := range names[1:] {
						r.set(n, make([]float32, r.bufs[names[0]].Size()/4))
					}
				}
				if norm := u.step(s.params(), i+1); !near(norm, info.Fed.Norms[i], 1e-5) {
					t.Errorf("step %d: norm %g, want %g", i+1, norm, info.Fed.Norms[i])
				}
			}
			for param := range acc {
				within(t, param, r.floats(param), gold.floats("fed.step3."+param), 1e-6, 1e-6)
			}
		})
		t.Run(name+"/own", func(t *testing.T) {
			r, dims := start(t)
			runSteps(t, r, g, newUpdate(t, r, g, acc), dims, &info.Own)
			for param := range acc {
				within(t, param, r.floats(param), gold.floats("own.step3."+param), rtol, share)
			}
		})
		t.Run(name+"/lora", func(t *testing.T) {
			r, dims := start(t)
			lg, adapters, err := lora.Apply(m.Graph, lora.Config{Rank: info.LoRA.Rank, Alpha: info.LoRA.Alpha, Attention: true, MLP: true, Unembed: true})
			if err != nil {
				t.Fatal(err)
			}
			if len(adapters) != len(info.LoRA.Target) {
				t.Errorf("%d adapters, want %d", len(adapters), len(info.LoRA.Target))
			}
			short := func(name string) string { return strings.TrimPrefix(name, lora.Prefix) }
			for _, a := range adapters {
				r.set(a.A, gold.floats("lora.init."+short(a.A)))
				r.set(a.B, gold.floats("lora.init."+short(a.B)))
			}
			bg, lacc := lossGraph(t, lg, 0, ir.ClassAdapter)
			runSteps(t, r, bg, newUpdate(t, r, bg, lacc), dims, &info.LoRA)
			for param := range lacc {
				within(t, param, r.floats(param), gold.floats("lora.step3."+short(param)), rtol, share)
			}
		})
	}
}

// runSteps takes every step with own gradients and compares losses and norms.
func runSteps(t *testing.T, r *rig, g *ir.Graph, u *update, dims ir.Dims, run *stepRun) {
	t.Helper()
	for i, s := range run.Steps {
		r.run(g, dims)
		if got := total(r.floats("loss")); !near(got, run.Losses[i], 1e-5) {
			t.Errorf("step %d: loss %g, want %g", i+1, got, run.Losses[i])
		}
		if norm := u.step(s.params(), i+1); !near(norm, run.Norms[i], 1e-4) {
			t.Errorf("step %d: norm %g, want %g", i+1, norm, run.Norms[i])
		}
	}
	r.run(g, dims)
	if got := total(r.floats("loss")); !near(got, run.After, 1e-5) {
		t.Errorf("loss after %g, want %g", got, run.After)
	}
}
