package engine

import (
	"fmt"
	"slices"
	"testing"
)

// TestMix: samplers of different ranks and targets, the bare model among them,
// decode in the same steps; programs are planned for what they adapt, not for who
// they are; and a full update keeps to itself and gets its turns.
func TestMix(t *testing.T) {
	for name, dev := range devices(t) {
		t.Run(name, func(t *testing.T) {
			x := start(t, dev, "llama_tied", Options{})
			on := func(rank int, attention, mlp, unembed bool) TrainerConfig {
				return TrainerConfig{LoRA: &LoRA{Rank: rank, Alpha: 32, Seed: uint64(rank)}, Attention: attention, MLP: mlp, Unembed: unembed}
			}
			var weights []*Weights
			for _, cfg := range []TrainerConfig{on(2, true, false, false), on(9, true, true, false), on(16, true, true, true), {}} {
				tr := x.stepped(cfg)
				x.do(func() error {
					w, err := tr.Snapshot()
					weights = append(weights, w)
					return err
				})
			}
			x.do(func() error { weights = append(weights, x.b.Weights()); return nil })
			request := func(i int) SampleRequest {
				return SampleRequest{Weights: weights[i], Prompt: tokens(6+7*i, i), Count: 2, Params: SampleParams{MaxTokens: 12, Seed: 5, Temperature: 1, TopP: 1, NoEOS: true}}
			}
			var alone []*SampleResult
			for i := range weights {
				alone = append(alone, x.sample(request(i)))
			}
			before, programs := x.e.Stats(), 0
			together := func(order []int) {
				results := make([]chan *SampleResult, len(order))
				x.do(func() error { // so that all have arrived before the first step
					for k, i := range order {
						results[k] = make(chan *SampleResult, 1)
						r := request(i)
						r.Done = func(res *SampleResult, err error) {
							if err != nil {
								t.Error(err)
								res = &SampleResult{Sequences: make([]Sequence, 2)}
							}
							results[k] <- res
						}
						if err := x.e.Sample(r); err != nil {
							return err
						}
					}
					return nil
				})
				for k, i := range order {
					for s, q := range (<-results[k]).Sequences {
						if err := same(alone[i].Sequences[s].Logprobs, q.Logprobs); err != nil || !slices.Equal(alone[i].Sequences[s].Tokens, q.Tokens) {
							t.Errorf("sampler %d, sample %d, among others: %v", i, s, err)
						}
					}
				}
			}
			together([]int{0, 1, 2, 3, 4})
			after := x.e.Stats()
			if after.MaxDecodeMix != 4 {
				t.Errorf("%d sets of weights in a batch, want 4", after.MaxDecodeMix)
			}
			// 12 tokens a sample, the first out of the prompt's step: each of the two passes.
			if n := after.DecodeSteps - before.DecodeSteps; n > 2*14 {
				t.Errorf("%d steps for what two passes do in about 24", n)
			}
			x.do(func() error { programs = len(x.b.decoders); return nil })
			for _, order := range [][]int{{4, 2}, {2, 1, 0}, {1, 4, 2, 0}} {
				together(order)
			}
			x.do(func() error {
				if n := len(x.b.decoders); n != programs {
					return fmt.Errorf("%d programs, %d before the same samplers came in other company", n, programs)
				}
				return x.b.cache.balanced()
			})
		})
	}
}

// TestMixIsFair: with more sequences than a step holds, every sampler's go on.
func TestMixIsFair(t *testing.T) {
	x := start(t, devices(t)["reference"], "llama_tied", Options{DecodeSequences: 4})
	tr := x.stepped(loraConfig())
	var base, w *Weights
	x.do(func() (err error) {
		base = x.b.Weights()
		w, err = tr.Snapshot()
		return err
	})
	x.do(func() error {
		d, ended := x.e.dec, false
		many := SampleRequest{Weights: base, Prompt: tokens(5, 1), Count: 12, Params: SampleParams{MaxTokens: 60, Seed: 1, Temperature: 1, TopP: 1, NoEOS: true}, Done: func(*SampleResult, error) {}}
		one := SampleRequest{Weights: w, Prompt: tokens(5, 2), Count: 1, Params: SampleParams{MaxTokens: 10, Seed: 1, Temperature: 1, TopP: 1, NoEOS: true}, Done: func(*SampleResult, error) { ended = true }}
		for _, r := range []SampleRequest{many, one} {
			if err := x.e.Sample(r); err != nil {
				return err
			}
		}
		for range 16 {
			if d.due() {
				d.step()
			}
		}
		if !ended {
			return fmt.Errorf("after 16 steps one sample of 10 tokens beside 12 of another sampler is not done")
		}
		return nil
	})
}

// TestMixtureStays: a sampler that has no sequence for a while is no reason for
// another mixture; a new one and one that is gone are.
func TestMixtureStays(t *testing.T) {
	x := start(t, devices(t)["reference"], "llama_tied", Options{})
	var weights []*Weights
	for _, rank := range []int{2, 4, 8} {
		tr := x.stepped(TrainerConfig{LoRA: &LoRA{Rank: rank, Alpha: 32, Seed: 1}, Attention: true})
		x.do(func() error {
			w, err := tr.Snapshot()
			weights = append(weights, w)
			return err
		})
	}
	use := func(i int) *mixture {
		var m *mixture
		x.sample(SampleRequest{Weights: weights[i], Prompt: tokens(5, i), Count: 1, Params: SampleParams{MaxTokens: 3, Temperature: 1, TopP: 1, NoEOS: true}})
		x.do(func() error { m = x.b.mix; return nil })
		return m
	}
	use(0)
	both := use(1)
	if use(0) != both || use(1) != both || len(both.weights) != 2 {
		t.Errorf("two samplers in turn have a mixture of %d, and not one", len(both.weights))
	}
	weights[0].Release()
	x.do(func() error { return nil }) // its memory is freed
	if m := use(1); m == both || len(m.weights) != 1 || m.weights[0] != weights[1] {
		t.Errorf("a mixture of %d after one of two samplers is gone", len(m.weights))
	}
	if m := use(2); len(m.weights) != 2 {
		t.Errorf("a mixture of %d after a third sampler came", len(m.weights))
	}
}
