package engine

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"math"
	"slices"
	"strings"
	"testing"
)

var adam = AdamParams{LearningRate: 1e-2, Beta1: 0.9, Beta2: 0.95, Eps: 1e-8}

// step accumulates one batch and steps.
func (x *bench) step(tr *Trainer, seed int) {
	x.Helper()
	x.do(func() error {
		if _, err := tr.ForwardBackward(Batch{Loss: "cross_entropy", Data: []Datum{datum(tokens(25, seed), 1)}}); err != nil {
			return err
		}
		_, err := tr.Step(adam)
		return err
	})
}

func sameValues(t *testing.T, want, got map[string][]float32) {
	t.Helper()
	for name := range want {
		if err := same(want[name], got[name]); err != nil {
			t.Fatalf("%s: %v", name, err)
		}
	}
}

// TestResume: a new run loaded with the optimizer state takes the same step to
// the bit; without it, from fresh moments, another (FR-14).
func TestResume(t *testing.T) {
	for name, dev := range devices(t) {
		t.Run(name, func(t *testing.T) {
			x := start(t, dev, "llama_tied", Options{})
			for _, cfg := range []TrainerConfig{loraConfig(), {}} {
				tr := x.stepped(cfg)
				saved, count := x.values(tr), tr.StepCount()
				x.step(tr, 99)
				want := x.values(tr)
				open := func(info TensorInfo) (io.ReaderAt, error) { return bytes.NewReader(floatBytes(saved[info.Name])), nil }
				for _, optimizer := range []bool{true, false} {
					again := x.trainer(cfg)
					x.do(func() error { return again.Load(open, count, optimizer) })
					x.step(again, 99)
					got := x.values(again)
					if optimizer {
						sameValues(t, want, got)
					} else if same(want["m:"+again.params[0].name], got["m:"+again.params[0].name]) == nil {
						t.Fatal("a load without the optimizer kept its moments")
					}
				}
				// A tensor that cannot be read leaves the run as it was.
				x.do(func() error {
					err := tr.Load(func(info TensorInfo) (io.ReaderAt, error) {
						if info.Name == tr.params[len(tr.params)-1].name {
							return nil, errors.New("no such blob")
						}
						return open(info)
					}, count, true)
					if err == nil {
						return errors.New("a load with a missing tensor went through")
					}
					return nil
				})
				sameValues(t, want, x.values(tr))
			}
		})
	}
}

// TestSnapshot: a sampler made before a step answers the same bits after it,
// and the base model is never touched.
func TestSnapshot(t *testing.T) {
	for name, dev := range devices(t) {
		t.Run(name, func(t *testing.T) {
			x := start(t, dev, "qwen3", Options{})
			var base *Weights
			x.do(func() error { base = x.b.Weights(); return nil })
			ask := func(w *Weights) Sequence {
				return x.sample(SampleRequest{Weights: w, Prompt: tokens(9, 5), Count: 1, Params: anything}).Sequences[0]
			}
			first := ask(base)
			for _, cfg := range []TrainerConfig{loraConfig(), {}} {
				tr := x.trainer(cfg)
				var fresh, before, after *Weights
				x.do(func() (err error) { fresh, err = tr.Snapshot(); return err })
				if err := same(first.Logprobs, ask(fresh).Logprobs); err != nil {
					t.Fatalf("a run that has not stepped differs from the base: %v", err)
				}
				x.step(tr, 1)
				x.do(func() (err error) { before, err = tr.Snapshot(); return err })
				was := ask(before)
				x.step(tr, 2)
				x.do(func() (err error) { after, err = tr.Snapshot(); return err })
				if err := same(was.Logprobs, ask(before).Logprobs); err != nil {
					t.Fatalf("a sampler changed under a step: %v", err)
				}
				if same(was.Logprobs, ask(after).Logprobs) == nil {
					t.Fatal("a new sampler does not see the step")
				}
				if err := same(first.Logprobs, ask(base).Logprobs); err != nil {
					t.Fatalf("training changed the base: %v", err)
				}
			}
		})
	}
}

// TestBadBatch: what is wrong is named, and accumulated gradients stay.
func TestBadBatch(t *testing.T) {
	x := start(t, devices(t)["reference"], "llama_tied", Options{Context: 40})
	tr := x.trainer(loraConfig())
	good := Batch{Loss: "cross_entropy", Data: []Datum{datum(tokens(20, 1), 1)}}
	x.do(func() error { _, err := tr.ForwardBackward(good); return err })
	gradient := func() (all []float32) {
		for _, info := range tr.Tensors(false) {
			x.do(func() error {
				g, err := tr.Gradient(info.Name)
				all = append(all, g...)
				return err
			})
		}
		return all
	}
	before := gradient()
	if !slices.ContainsFunc(before, func(v float32) bool { return v != 0 }) {
		t.Fatal("no gradient to lose")
	}
	with := func(change func(*Batch)) Batch {
		b := Batch{Loss: "cross_entropy", Data: []Datum{datum(tokens(5, 2), 1), datum(tokens(9, 3), 1)}}
		change(&b)
		return b
	}
	policy := func(b *Batch) { b.Loss = "ppo" }
	for want, batch := range map[string]Batch{
		"loss_fn \"sft\" is unknown":              with(func(b *Batch) { b.Loss = "sft" }),
		"data is empty":                           with(func(b *Batch) { b.Data = nil }),
		"datum 1: model_input is empty":           with(func(b *Batch) { b.Data[1].Tokens = nil }),
		"token 512 at position 2":                 with(func(b *Batch) { b.Data[0].Tokens[2] = 512 }),
		"token -1 at position 2":                  with(func(b *Batch) { b.Data[0].Tokens[2] = -1 }),
		"datum 1: target_tokens: token 600":       with(func(b *Batch) { b.Data[1].Inputs["target_tokens"].I64[0] = 600 }),
		"lacks target_tokens":                     with(func(b *Batch) { delete(b.Data[0].Inputs, "target_tokens") }),
		"lacks weights":                           with(func(b *Batch) { delete(b.Data[0].Inputs, "weights") }),
		"weights has 3 positions, model_input 4":  with(func(b *Batch) { b.Data[0].Inputs["weights"] = Tensor{F32: make([]float32, 3)} }),
		"weights is int64, takes float32":         with(func(b *Batch) { b.Data[0].Inputs["weights"] = Tensor{I64: make([]int64, 4)} }),
		"target_tokens is float32, takes int64":   with(func(b *Batch) { b.Data[0].Inputs["target_tokens"] = Tensor{F32: make([]float32, 4)} }),
		"weights: value NaN at 0":                 with(func(b *Batch) { b.Data[0].Inputs["weights"].F32[0] = float32(math.NaN()) }),
		"lacks logprobs, which ppo needs":         with(policy),
		"loss_fn_config \"epsilon\" is not a set": with(func(b *Batch) { b.Config = map[string]float64{"epsilon": 1} }),
		"model_input has 49 tokens, the context":  with(func(b *Batch) { b.Data[1] = datum(tokens(50, 3), 1) }),
	} {
		x.do(func() error {
			_, err := tr.ForwardBackward(batch)
			if !errors.Is(err, ErrRequest) || !strings.Contains(err.Error(), want) {
				return fmt.Errorf("got %v, want %q", err, want)
			}
			return nil
		})
	}
	if err := same(before, gradient()); err != nil {
		t.Fatalf("a refused batch changed the gradient: %v", err)
	}
}

// TestNonFinite: a gradient that is not finite never reaches a weight.
func TestNonFinite(t *testing.T) {
	x := start(t, devices(t)["reference"], "llama_tied", Options{})
	tr := x.stepped(loraConfig())
	before := x.values(tr)
	x.do(func() error {
		if _, err := tr.ForwardBackward(Batch{Loss: "cross_entropy", Data: []Datum{datum(tokens(20, 1), 3e38)}}); err != nil {
			return err
		}
		if _, err := tr.Step(adam); !errors.Is(err, ErrNonFinite) {
			return fmt.Errorf("stepped with an infinite gradient: %v", err)
		}
		return nil
	})
	sameValues(t, before, x.values(tr))
	x.step(tr, 4) // and the run goes on
}

// TestNothingToLearn: all weights zero, no decay: loss 0, parameters unchanged
// to the bit (FR-10); learning rate 0 changes nothing either (FR-12).
func TestNothingToLearn(t *testing.T) {
	x := start(t, devices(t)["reference"], "llama_tied", Options{})
	for _, cfg := range []TrainerConfig{loraConfig(), {}} {
		tr := x.trainer(cfg)
		before := x.values(tr)
		x.do(func() error {
			out, err := tr.ForwardBackward(Batch{Loss: "cross_entropy", Data: []Datum{datum(tokens(20, 1), 0)}})
			if err != nil {
				return err
			}
			if out.Loss != 0 || out.Scored != 0 {
				return fmt.Errorf("loss %v, %d scored", out.Loss, out.Scored)
			}
			_, err = tr.Step(AdamParams{LearningRate: 1, Beta1: 0.9, Beta2: 0.95, Eps: 1e-12})
			return err
		})
		sameValues(t, before, x.values(tr))
		x.do(func() error {
			if _, err := tr.ForwardBackward(Batch{Loss: "cross_entropy", Data: []Datum{datum(tokens(20, 1), 1)}}); err != nil {
				return err
			}
			_, err := tr.Step(AdamParams{Beta1: 0.9, Beta2: 0.95, Eps: 1e-12, WeightDecay: 0.5})
			return err
		})
		for _, p := range tr.params {
			if err := same(before[p.name], x.values(tr)[p.name]); err != nil {
				t.Fatalf("learning rate 0 changed %s: %v", p.name, err)
			}
		}
	}
}

// TestContext: limits are refused at once with the numbers in the text (FR-08).
func TestContext(t *testing.T) {
	x := start(t, devices(t)["reference"], "llama_tied", Options{Context: 128, CacheTokens: 128})
	var w *Weights
	x.do(func() error { w = x.b.Weights(); return nil })
	ask := func(prompt, limit int) error {
		return x.e.Sample(SampleRequest{Weights: w, Prompt: tokens(prompt, 1), Count: 1, Params: SampleParams{MaxTokens: limit, Temperature: 1, TopP: 1}, Done: func(*SampleResult, error) {}})
	}
	for _, c := range []struct{ prompt, limit int }{{100, 50}, {128, 1}, {128, 0}} {
		err := ask(c.prompt, c.limit)
		if !errors.Is(err, ErrRequest) || !strings.Contains(err.Error(), fmt.Sprint(c.prompt)) || !strings.Contains(err.Error(), "128") {
			t.Fatalf("prompt %d, max_tokens %d: %v", c.prompt, c.limit, err)
		}
	}
	p := SampleParams{Temperature: 1, TopP: 1, NoEOS: true}
	s := x.sample(SampleRequest{Weights: w, Prompt: tokens(100, 1), Count: 2, Params: p})
	for _, q := range s.Sequences {
		if len(q.Tokens) != 28 || q.Stopped {
			t.Fatalf("without max_tokens: %d tokens, stopped %v; want 28 to the end of the context", len(q.Tokens), q.Stopped)
		}
	}
}

// TestPages: with a cache that holds two sequences, many groups still finish,
// with the answers they have alone, and every page comes back.
func TestPages(t *testing.T) {
	x := start(t, devices(t)["reference"], "llama_tied", Options{Context: 96, CacheTokens: 224, DecodeTokens: 40})
	var w *Weights
	x.do(func() error { w = x.b.Weights(); return nil })
	request := func(i int) SampleRequest {
		return SampleRequest{Weights: w, Prompt: tokens(20+3*i, i), Count: 3, Params: SampleParams{MaxTokens: 30, Seed: uint64(i), Temperature: 1, TopP: 0.9, TopK: 40, NoEOS: true}}
	}
	var alone [][]int32
	for i := range 8 {
		for _, s := range x.sample(request(i)).Sequences {
			alone = append(alone, s.Tokens)
		}
	}
	results := make([]chan *SampleResult, 8)
	for i := range results {
		results[i] = make(chan *SampleResult, 1)
		r := request(i)
		r.Done = func(res *SampleResult, err error) {
			if err != nil {
				t.Error(err)
			}
			results[i] <- res
		}
		if err := x.e.Sample(r); err != nil {
			t.Fatal(err)
		}
	}
	for i, ch := range results {
		for k, s := range (<-ch).Sequences {
			if !slices.Equal(s.Tokens, alone[3*i+k]) {
				t.Fatalf("group %d sample %d: %v in a crowd, %v alone", i, k, s.Tokens, alone[3*i+k])
			}
		}
	}
	x.do(func() error {
		return x.b.cache.balanced()
	})
}

// TestChoices: greedy is argmax, filters keep what they say, tables are sorted.
func TestChoices(t *testing.T) {
	logits := []float32{1, 3, 2, 3, -1, float32(math.Inf(-1))}
	if id := choose(logits, 6, SampleParams{Temperature: 0, TopP: 1}, 0.99); id != 1 {
		t.Fatalf("greedy chose %d", id)
	}
	seen := func(p SampleParams) map[int32]int {
		m := map[int32]int{}
		for i := range 4000 {
			m[choose(logits, 6, p, uniform(5, 0, i))]++
		}
		return m
	}
	if m := seen(SampleParams{Temperature: 1, TopP: 1, TopK: 2}); len(m) != 2 || m[1] == 0 || m[3] == 0 {
		t.Fatalf("top_k 2 drew %v", m)
	}
	if m := seen(SampleParams{Temperature: 1, TopP: 0.7}); len(m) != 2 || m[1] == 0 || m[3] == 0 {
		t.Fatalf("top_p 0.7 drew %v", m)
	}
	m := seen(SampleParams{Temperature: 1, TopP: 1})
	total := 0.0
	for _, l := range logits {
		total += math.Exp(float64(l))
	}
	for id, l := range logits {
		p := math.Exp(float64(l)) / total
		if got := float64(m[int32(id)]) / 4000; math.Abs(got-p) > 4*math.Sqrt(p*(1-p)/4000)+1e-9 {
			t.Fatalf("token %d drawn with frequency %.3f, has probability %.3f", id, got, p)
		}
	}
	table := &TopK{K: 8}
	table.best(logits, 4)
	if want := []int32{1, 3, 2, 0, 4, 5, 0, 0}; !slices.Equal(table.IDs, want) || table.Logprobs[6] != noLogprob {
		t.Fatalf("top-k table %v %v, want ids %v", table.IDs, table.Logprobs, want)
	}
}

// balanced checks that nobody holds a page and that every page is free or idle
// under its name.
func (c *cache) balanced() error {
	if n := len(c.free) + len(c.idle); n != c.pages {
		return fmt.Errorf("%d of %d pages came back", n, c.pages)
	}
	if len(c.known) != len(c.idle) {
		return fmt.Errorf("%d pages are known, %d idle", len(c.known), len(c.idle))
	}
	for key, p := range c.known {
		if c.named[p] != key || c.refs[p] != 0 {
			return fmt.Errorf("page %d is held %d times, named %x, known as %x", p, c.refs[p], c.named[p], key)
		}
	}
	return nil
}

// TestPrefix: the next turn of a conversation reuses the pages of the last one,
// with the bits it would have computed; other weights never do.
func TestPrefix(t *testing.T) {
	for name, dev := range devices(t) {
		t.Run(name, func(t *testing.T) {
			x := start(t, dev, "llama_tied", Options{})
			tr := x.stepped(loraConfig())
			var base, one, two *Weights
			x.do(func() (err error) {
				base = x.b.Weights()
				if one, err = tr.Snapshot(); err == nil {
					two, err = tr.Snapshot()
				}
				return err
			})
			long := SampleParams{MaxTokens: 70, Seed: 3, Temperature: 1, TopP: 1, NoEOS: true}
			first := x.sample(SampleRequest{Weights: one, Prompt: tokens(50, 1), Count: 1, Params: long}).Sequences[0]
			turn := append(append(tokens(50, 1), first.Tokens...), tokens(9, 2)...)
			again := SampleRequest{Weights: one, Prompt: turn, Count: 2, Params: anything}
			hit := x.sample(again)
			if hit.CachedTokens != 96 { // 119 of the 120 earlier tokens were fed: three full pages
				t.Fatalf("%d tokens from the cache, want 96", hit.CachedTokens)
			}
			for _, other := range []*Weights{two, base} {
				r := again
				r.Weights = other
				miss := x.sample(r)
				if miss.CachedTokens != 0 {
					t.Fatalf("%d tokens came from other weights' cache", miss.CachedTokens)
				}
				if other == two { // equal weights under another name: equal answers
					for i := range miss.Sequences {
						if err := same(hit.Sequences[i].Logprobs, miss.Sequences[i].Logprobs); err != nil {
							t.Fatalf("sample %d, cached and not: %v", i, err)
						}
					}
				}
			}
			// Only the last rows are scored: the rest may come from the cache.
			r := SampleRequest{Weights: one, Prompt: turn, Count: 1, Params: anything, PromptLogprobs: true}
			all := x.sample(r)
			r.LastN = 12
			last := x.sample(r)
			if all.CachedTokens != 0 || last.CachedTokens != 96 {
				t.Fatalf("%d and %d tokens from the cache, want 0 and 96", all.CachedTokens, last.CachedTokens)
			}
			at := len(turn) - 12
			if err := same(all.PromptLogprobs[at:], last.PromptLogprobs[at:]); err != nil {
				t.Fatal(err)
			}
			for _, v := range last.PromptLogprobs[:at] {
				if v == v {
					t.Fatal("a row outside the last n is scored")
				}
			}
			x.do(x.b.cache.balanced)
		})
	}
}

// TestScores: targets, alternatives and tables agree with each other.
func TestScores(t *testing.T) {
	x := start(t, devices(t)["cpu"], "llama_tied", Options{DecodeTokens: 16})
	var w *Weights
	x.do(func() error { w = x.b.Weights(); return nil })
	prompt := tokens(40, 6)
	targets := make([]int32, 0, 3*39)
	for _, id := range prompt[1:] {
		targets = append(targets, id, -1, 7)
	}
	r := x.sample(SampleRequest{Weights: w, Prompt: prompt, Count: 1, Params: anything, PromptLogprobs: true, TopKPrompt: 5, Targets: targets, AltTokens: 4})
	if len(r.TopKPrompt.IDs) != 40*5 || r.TopKPrompt.Logprobs[0] != noLogprob {
		t.Fatalf("a table of %d cells that begins with %v", len(r.TopKPrompt.IDs), r.TopKPrompt.Logprobs[0])
	}
	for i := range 39 {
		if r.TargetLogprobs[3*i] != r.PromptLogprobs[i+1] || r.TargetLogprobs[3*i+1] != 0 || r.TargetLogprobs[3*i+2] >= 0 {
			t.Fatalf("position %d: targets %v, prompt %v", i, r.TargetLogprobs[3*i:3*i+3], r.PromptLogprobs[i+1])
		}
		best := r.TopKPrompt.Logprobs[(i+1)*5]
		for k := range 4 {
			if lp := r.AltLogprobs[4*i+k]; lp > best || r.AltTokens[4*i+k] < 0 {
				t.Fatalf("position %d: draw %d has %v, the best token %v", i, k, lp, best)
			}
		}
	}
	if slices.Equal(r.AltTokens[:4], r.AltTokens[4:8]) && slices.Equal(r.AltTokens[4:8], r.AltTokens[8:12]) {
		t.Fatal("the draws are the same at every position")
	}
}
