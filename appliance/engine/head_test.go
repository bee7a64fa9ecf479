package engine

import (
	"fmt"
	"testing"

	"smolgym/kernels"
	"smolgym/model/ir"
	"smolgym/model/loss"
	"smolgym/model/plan"
)

// whole computes a batch's result and gradients with one program that is not cut
// before the head, and nothing computed again.
func (x *bench) whole(tr *Trainer, batch Batch) (logprobs, losses []float32, grads map[string][]float32) {
	x.Helper()
	spec, _ := loss.Lookup(batch.Loss)
	x.do(func() error {
		g, _, err := x.b.lossGraph(tr.cfg, batch.Loss, false)
		if err != nil {
			return err
		}
		p := pack(batch.Data, batch, spec)
		dims := ir.Dims{T: len(p.ids), S: len(batch.Data), R: 1, C: p.columns, P: 1, B: 1}
		prog, err := plan.Build(g, dims)
		if err != nil {
			return err
		}
		w := newWorkspace(x.e.dev)
		defer w.free()
		for name, v := range map[string][]int32{"ids": p.ids, "positions": p.positions, "offsets": p.offsets, "targets": p.targets} {
			if err := w.setI32(name, v); err != nil {
				return err
			}
		}
		for name, v := range p.inputs {
			if err := w.setF32(name, v); err != nil {
				return err
			}
		}
		if err := w.run(prog, dims, tr.lookup, nil); err != nil {
			return err
		}
		if logprobs, err = w.getF32("logprobs", len(p.targets)); err != nil {
			return err
		}
		losses, err = w.getF32("loss", len(batch.Data))
		return err
	})
	return logprobs, losses, x.grads(tr)
}

// grads reads every accumulator and clears it.
func (x *bench) grads(tr *Trainer) map[string][]float32 {
	x.Helper()
	all := map[string][]float32{}
	x.do(func() error {
		for _, p := range tr.params {
			for i, g := range p.grads {
				raw := make([]byte, p.bytes())
				if err := x.e.dev.Read(raw, g, 0); err != nil {
					return err
				}
				all[fmt.Sprint(p.name, " use ", i)] = decodeF32(raw)
			}
		}
		return tr.ClearGradients()
	})
	return all
}

// twoD gives a datum three targets a position, some of no weight.
func (x *bench) twoD(n, seed int) Datum {
	d := Datum{Tokens: x.ids(n, seed), Inputs: map[string]Tensor{}}
	targets, weights := make([]int64, 3*n), make([]float32, 3*n)
	for i := range targets {
		targets[i] = int64(x.ids(1, seed*100+i)[0])
		weights[i] = float32(i%4) * 0.25
	}
	d.Inputs["target_tokens"] = Tensor{Shape: []int{n, 3}, I64: targets}
	d.Inputs["weights"] = Tensor{Shape: []int{n, 3}, F32: weights}
	return d
}

// TestHeadInChunks: the head in chunks, with activations kept or computed again,
// gives the bits of one program over the whole batch: caps, scales, tied heads,
// biases, adapters on the head or only there, several targets, policy losses.
func TestHeadInChunks(t *testing.T) {
	configs := map[string]TrainerConfig{
		"adapters":        loraConfig(),
		"adapter of head": {LoRA: &LoRA{Rank: 3, Alpha: 8, Seed: 5}, Unembed: true},
		"adapters below":  {LoRA: &LoRA{Rank: 3, Alpha: 8, Seed: 5}, Attention: true},
		"full":            {},
	}
	for _, model := range []string{"llama_tied", "gemma2_uncapped", "gemma3_scaled", "granite_biases", "gpt2_scaled", "qwen3_next_dense"} {
		for name, cfg := range configs {
			t.Run(model+"/"+name, func(t *testing.T) {
				dev := devices(t)["cpu"]
				x := start(t, dev, model, Options{})
				tr := x.stepped(cfg)
				ppo := func(n, seed int) Datum {
					d := datum(x.ids(n+1, seed), 1)
					q, a := make([]float32, n), make([]float32, n)
					for i := range q {
						q[i], a[i] = -4-float32(i%3), float32(i%3)-1
					}
					d.Inputs["logprobs"], d.Inputs["advantages"] = Tensor{F32: q}, Tensor{F32: a}
					delete(d.Inputs, "weights")
					return d
				}
				for _, batch := range []Batch{
					{Loss: "cross_entropy", Data: []Datum{datum(x.ids(9, 1), 0.5), datum(x.ids(31, 2), 0), datum(x.ids(20, 3), -1.5)}},
					{Loss: "cross_entropy", Data: []Datum{x.twoD(7, 4), x.twoD(1, 5), x.twoD(18, 6)}},
					{Loss: "ppo", Data: []Datum{ppo(11, 7), ppo(30, 8)}},
				} {
					logprobs, losses, want := x.whole(tr, batch)
					for _, limit := range []int{tr.headLimit, 1, 40} {
						for _, keep := range []int64{tr.keep, 0} {
							x.chunked(tr, batch, limit, keep, logprobs, losses, want)
						}
					}
				}
			})
		}
	}
}

func (x *bench) chunked(tr *Trainer, batch Batch, limit int, keep int64, logprobs, losses []float32, want map[string][]float32) {
	x.Helper()
	limit0, keep0 := tr.headLimit, tr.keep
	defer func() { tr.headLimit, tr.keep = limit0, keep0 }()
	tr.headLimit, tr.keep = limit, keep
	clear(tr.bodies) // planned for another keep
	var out *Output
	x.do(func() (err error) { out, err = tr.ForwardBackward(batch); return err })
	what := fmt.Sprintf("%s, chunks of %d tokens, keeping %d bytes", batch.Loss, limit, keep)
	var all []float32
	for _, l := range out.Logprobs {
		all = append(all, l...)
	}
	if err := same(all, logprobs); err != nil {
		x.Fatalf("%s: log-probabilities: %v", what, err)
	}
	sum := 0.0
	for _, l := range losses {
		sum += float64(l)
	}
	if out.Loss != sum {
		x.Fatalf("%s: loss %v, of the whole %v", what, out.Loss, sum)
	}
	got, moved := x.grads(tr), false
	for name := range want {
		if err := same(got[name], want[name]); err != nil {
			x.Fatalf("%s: gradient of %s: %v", what, name, err)
		}
		for _, v := range want[name] {
			moved = moved || v != 0
		}
	}
	if !moved {
		x.Fatalf("%s: every gradient is zero", what)
	}
}

// TestNoWholeLogits: the work area of a long batch over a large vocabulary does
// not hold its logits.
func TestNoWholeLogits(t *testing.T) {
	dir := shape{hidden: 32, layers: 1, heads: 2, kvHeads: 1, headDim: 16, ff: 64, vocab: 100_000}.write(t)
	x := startDir(t, devices(t)["cpu"], "test/large vocabulary", dir, ir.F32, Options{})
	tr := x.trainer(TrainerConfig{LoRA: &LoRA{Rank: 2, Alpha: 4, Seed: 1}, MLP: true})
	batch := Batch{Loss: "cross_entropy"}
	for i := range 16 {
		batch.Data = append(batch.Data, datum(x.ids(129, i), 1))
	}
	x.do(func() error { _, err := tr.ForwardBackward(batch); return err })
	logits := int64(4 * 16 * 128 * 100_000)
	if held := held(x.e.train) + held(x.e.head); held > logits/4 {
		t.Errorf("training holds %s of memory, the logits alone would have %s", size(held), size(logits))
	}
}

// held is the memory of a workspace in bytes.
func held(w *workspace) int64 {
	var sum int64
	for _, b := range append([]kernels.Buffer{w.arena}, buffers(w)...) {
		sum += b.Size()
	}
	return sum
}

func buffers(w *workspace) (list []kernels.Buffer) {
	for _, b := range w.named {
		list = append(list, b)
	}
	return list
}
