package engine

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"maps"
	"math/rand/v2"
	"os"
	"slices"
	"strconv"
	"strings"
	"testing"

	"smolgym/kernels/cpu"
	"smolgym/model/ir"
)

// TestBitProperty: whatever shares a batch, and however the work is divided, the
// bits are those of each thing done alone on one thread: log-probabilities
// (sampled, scored, trained), gradients and stepped weights. The cases are drawn:
// batches of samples of several adapters, ranks and targets, the bare model and a
// full update; prompts with shared prefixes; matrices in float32 and bfloat16;
// threads, instruction sets, sizes of steps and micro-batches, orders of pages, activations kept or computed again.
// SMOLGYM_CASES sets their number.
func TestBitProperty(t *testing.T) {
	cases := 2000
	if text := os.Getenv("SMOLGYM_CASES"); text != "" {
		n, err := strconv.Atoi(text)
		if err != nil || n < 1 {
			t.Fatalf("SMOLGYM_CASES is %q, takes a number of cases", text)
		}
		cases = n
	}
	// llama_tied has one parameter with two uses; the others have windows, experts,
	// recurrent state.
	models := []string{"llama_tied", "gemma3_scaled", "mixtral", "qwen3_next_dense"}
	// Levels with tiles add products over bfloat16 in an order of their own; over float32 they are AVX-512 and AVX2.
	tiles := func(level string) bool { return strings.HasPrefix(level, "amx") }
	withTiles, without := slices.DeleteFunc(cpu.Levels(), func(l string) bool { return !tiles(l) }), slices.DeleteFunc(cpu.Levels(), tiles)
	sets := []struct {
		matrices ir.DType
		order    string
		levels   []string // the same bits
	}{{ir.F32, "", without}, {ir.BF16, "", without}, {ir.BF16, "/tiles", withTiles}}
	worlds, n := len(models)*(2*len(without)+len(withTiles)), 0
	for _, model := range models {
		for _, set := range sets {
			if len(set.levels) == 0 {
				continue
			}
			t.Run(model+"/"+set.matrices.String()+set.order, func(t *testing.T) {
				truth := newTruth(t, model, set.matrices, set.levels[0])
				for _, level := range set.levels {
					t.Run(level, func(t *testing.T) {
						truth.world(t, level, rand.New(rand.NewPCG(uint64(n), 11)), (n+1)*cases/worlds-n*cases/worlds)
					})
					n++
				}
			})
		}
	}
}

// truth is what every case is compared with: each thing done alone, on one
// thread, at the best of the levels that have the same bits.
type truth struct {
	model string
	dtype ir.DType
	vocab int
	runs  []truthRun // the last is the bare base model, which is only sampled
}

type truthRun struct {
	cfg     TrainerConfig
	start   map[string][]float32 // parameters and moments before the step
	data    []Datum
	scores  [][]float32          // log-probabilities of data
	grads   map[string][]float32 // of data
	stepped map[string][]float32
	asks    []truthAsk
}

type truthAsk struct {
	request SampleRequest
	result  *SampleResult
}

func newTruth(t *testing.T, model string, dtype ir.DType, level string) *truth {
	dev, err := cpu.Open(cpu.Options{Level: level, Threads: 1, MemoryBytes: 1 << 30})
	if err != nil {
		t.Fatal(err)
	}
	x := startAs(t, dev, model, dtype, Options{Context: 128})
	tr := &truth{model: model, dtype: dtype, vocab: x.b.info.Vocab}
	on := func(rank int, attention, mlp, unembed bool) TrainerConfig {
		return TrainerConfig{LoRA: &LoRA{Rank: rank, Alpha: 32, Seed: uint64(rank)}, Attention: attention, MLP: mlp, Unembed: unembed}
	}
	for i, cfg := range []TrainerConfig{on(1, true, false, false), on(3, true, true, true), on(8, false, true, false), on(17, true, false, true), on(32, true, true, true), {}} {
		tr.runs = append(tr.runs, x.truthOf(cfg, i))
	}
	var base *Weights
	x.do(func() error { base = x.b.Weights(); return nil })
	tr.runs = append(tr.runs, truthRun{asks: x.truthAsks(base, nil, len(tr.runs))})
	base.Release()
	return tr
}

// lengths of the datums of a run, by a number.
func lengthsOf(run int) []int {
	return [][]int{{3, 34}, {9, 2, 21}, {40, 5}, {17, 17, 3, 8}, {33, 31}, {6, 45, 2}}[run%6]
}

// truthOf trains a run for a few steps, then does alone what the cases do.
func (x *bench) truthOf(cfg TrainerConfig, run int) truthRun {
	tr := x.stepped(cfg)
	r := truthRun{cfg: cfg, start: x.values(tr), grads: map[string][]float32{}}
	for i, n := range lengthsOf(run) {
		r.data = append(r.data, datum(x.ids(n+1, 100*run+i), 0.5+float32(i)))
	}
	var w *Weights
	x.do(func() (err error) { w, err = tr.Snapshot(); return err })
	r.asks = x.truthAsks(w, tr, run)
	w.Release()
	x.do(func() error {
		for _, d := range r.data { // one at a time
			out, err := tr.ForwardBackward(Batch{Loss: "cross_entropy", Data: []Datum{d}})
			if err != nil {
				return err
			}
			r.scores = append(r.scores, out.Logprobs...)
		}
		return r.gradients(tr, r.grads)
	})
	x.do(func() error { _, err := tr.Step(propertyStep); return err })
	r.stepped = x.values(tr)
	x.do(func() error { tr.Release(); return nil })
	return r
}

var propertyStep = AdamParams{LearningRate: 1e-2, Beta1: 0.9, Beta2: 0.95, Eps: 1e-8, WeightDecay: 0.1, GradClipNorm: 0.5}

func (r *truthRun) gradients(tr *Trainer, into map[string][]float32) (err error) {
	for _, info := range tr.Tensors(false) {
		if into[info.Name], err = tr.Gradient(info.Name); err != nil {
			return err
		}
	}
	return nil
}

// truthAsks answers the requests of a run's weights one after the other. What was
// sampled is scored as a prompt and in a forward pass, unless there is no trainer.
func (x *bench) truthAsks(w *Weights, tr *Trainer, run int) (asks []truthAsk) {
	shared := x.ids(64, 7) // two pages
	for i, prompt := range [][]int32{x.ids(1, run), x.ids(11+run, 20+run), append(slices.Clone(shared[:32]), x.ids(4+run, 30+run)...), append(slices.Clone(shared), x.ids(9, 40)...)} {
		r := SampleRequest{Weights: w, Prompt: prompt, Count: 1 + i%2, Params: SampleParams{MaxTokens: 3 + (run+2*i)%5, Seed: uint64(run), Temperature: 1, TopP: 1, NoEOS: true}}
		if i == 1 {
			r.PromptLogprobs = true
		}
		if i == 3 {
			r.PromptLogprobs, r.LastN = true, 5
		}
		asks = append(asks, truthAsk{r, x.sample(r)})
	}
	for _, a := range asks {
		for _, s := range a.result.Sequences {
			whole := append(slices.Clone(a.request.Prompt), s.Tokens...)
			scored := x.sample(SampleRequest{Weights: w, Prompt: whole, Count: 1, Params: SampleParams{MaxTokens: 1, Temperature: 1, TopP: 1}, PromptLogprobs: true}).PromptLogprobs
			if err := same(s.Logprobs, scored[len(a.request.Prompt):]); err != nil {
				x.Fatalf("run %d: sampled and scored: %v", run, err)
			}
			if tr == nil {
				continue
			}
			x.do(func() error {
				out, err := tr.ForwardBackward(Batch{Loss: "cross_entropy", ForwardOnly: true, Data: []Datum{datum(whole, 1)}})
				if err != nil {
					return err
				}
				return same(scored[1:], out.Logprobs[0])
			})
		}
	}
	return asks
}

// world draws an engine and runs cases on it.
func (tr *truth) world(t *testing.T, level string, r *rand.Rand, cases int) {
	opt := Options{Context: 128, DecodeTokens: 8 + r.IntN(120), DecodeSequences: 2 + r.IntN(20), TrainTokens: 1 + r.IntN(90), CacheTokens: 32 * (10 + r.IntN(60)),
		keepActivations: []int64{1, 1 << 30}[r.IntN(2)], headTokens: 1 + r.IntN(90)}
	threads := 1 + r.IntN(3)
	dev, err := cpu.Open(cpu.Options{Level: level, Threads: threads, MemoryBytes: 1 << 30})
	if err != nil {
		t.Fatal(err)
	}
	x := startAs(t, dev, tr.model, tr.dtype, opt)
	w := &world{bench: x, truth: tr, r: r, trainers: make([]*Trainer, len(tr.runs))}
	for i := range tr.runs {
		w.weights = append(w.weights, w.load(i))
	}
	for n := range cases {
		do := w.decode
		if n%3 == 2 {
			do = w.train
		}
		if err := do(); err != nil {
			t.Fatalf("case %d, %d threads, %+v: %v", n, threads, opt, err)
		}
	}
	if s := x.e.Stats(); cases > 20 && (s.MaxDecodeBatch < 2 || s.MaxDecodeMix < 2) {
		t.Errorf("%d cases and no more than %d sequences of %d samplers in a batch", cases, s.MaxDecodeBatch, s.MaxDecodeMix)
	}
	for _, w := range w.weights {
		w.Release()
	}
	x.do(func() error {
		for _, tr := range w.trainers {
			if tr != nil {
				tr.Release()
			}
		}
		return x.b.cache.balanced()
	})
}

type world struct {
	*bench
	truth    *truth
	r        *rand.Rand
	weights  []*Weights
	trainers []*Trainer // made when first drawn
}

// opener reads a run's state as it was before its step.
func (run *truthRun) opener(info TensorInfo) (io.ReaderAt, error) {
	return bytes.NewReader(floatBytes(run.start[info.Name])), nil
}

func (w *world) load(i int) (out *Weights) {
	run := &w.truth.runs[i]
	w.do(func() (err error) {
		if out = w.b.Weights(); run.start != nil {
			out.Release()
			out, err = w.b.LoadWeights(run.cfg, run.opener)
		}
		return err
	})
	return out
}

// decode answers drawn requests together.
func (w *world) decode() error {
	w.do(w.shuffle)
	type answer struct {
		ask truthAsk
		res *SampleResult
		err error
	}
	n := 1 + w.r.IntN(6)
	answers := make(chan answer, n)
	for range n {
		i := w.r.IntN(len(w.weights))
		ask := w.truth.runs[i].asks[w.r.IntN(len(w.truth.runs[i].asks))]
		r := ask.request
		r.Weights = w.weights[i]
		r.Done = func(res *SampleResult, err error) { answers <- answer{ask, res, err} }
		if err := w.e.Sample(r); err != nil {
			return err
		}
	}
	var all error
	for range n {
		a := <-answers
		if a.err != nil {
			all = errors.Join(all, a.err)
			continue
		}
		want := a.ask.result
		err := sameScores(want.PromptLogprobs, a.res.PromptLogprobs)
		for k, s := range want.Sequences {
			if got := a.res.Sequences[k]; !slices.Equal(s.Tokens, got.Tokens) {
				err = errors.Join(err, fmt.Errorf("tokens %v, alone %v", got.Tokens, s.Tokens))
			} else {
				err = errors.Join(err, same(s.Logprobs, got.Logprobs))
			}
		}
		if err != nil {
			all = errors.Join(all, fmt.Errorf("prompt of %d tokens of %+v: %w", len(a.ask.request.Prompt), a.ask.request.Weights.cfg, err))
		}
	}
	return all
}

// sameScores is same for scores of which some positions have none.
func sameScores(a, b []float32) error {
	blank := func(v []float32) []float32 {
		v = slices.Clone(v)
		for i := range v {
			if v[i] != v[i] {
				v[i] = 1 // no log-probability
			}
		}
		return v
	}
	return same(blank(a), blank(b))
}

// shuffle changes which pages and slots come next. Owner.
func (w *world) shuffle() error {
	if c := w.b.cache; c != nil {
		w.r.Shuffle(len(c.free), func(i, j int) { c.free[i], c.free[j] = c.free[j], c.free[i] })
		w.r.Shuffle(len(c.freeSlots), func(i, j int) { c.freeSlots[i], c.freeSlots[j] = c.freeSlots[j], c.freeSlots[i] })
	}
	return nil
}

// train takes a drawn run's step, its batch cut into drawn calls, while samples
// are decoded between the layers.
func (w *world) train() error {
	i := w.r.IntN(len(w.truth.runs) - 1)
	run := &w.truth.runs[i]
	if w.trainers[i] == nil {
		w.trainers[i] = w.trainer(run.cfg)
	}
	tr := w.trainers[i]
	ask := run.asks[1]
	r := ask.request
	r.Weights = w.weights[i]
	sampled := make(chan error, 1)
	r.Done = func(res *SampleResult, err error) {
		if err == nil {
			err = same(ask.result.Sequences[0].Logprobs, res.Sequences[0].Logprobs)
		}
		sampled <- err
	}
	if err := w.e.Sample(r); err != nil {
		return err
	}
	grads := map[string][]float32{}
	var scores [][]float32
	var failed error
	w.do(func() error {
		w.e.opt.TrainTokens = 1 + w.r.IntN(90)
		failed = tr.Load(run.opener, 3, true)
		for at := 0; at < len(run.data) && failed == nil; {
			n := 1 + w.r.IntN(len(run.data)-at)
			var out *Output
			if out, failed = tr.ForwardBackward(Batch{Loss: "cross_entropy", Data: run.data[at : at+n]}); failed == nil {
				scores = append(scores, out.Logprobs...)
			}
			at += n
		}
		if failed == nil {
			failed = run.gradients(tr, grads)
		}
		if failed == nil {
			_, failed = tr.Step(propertyStep)
		}
		return nil
	})
	if err := errors.Join(failed, <-sampled); err != nil {
		return err
	}
	for k, want := range run.scores {
		if err := same(want, scores[k]); err != nil {
			return fmt.Errorf("%+v: datum %d: trained log-probability: %w", run.cfg, k, err)
		}
	}
	got := w.values(tr)
	for _, name := range slices.Sorted(maps.Keys(run.stepped)) {
		if want, ok := run.grads[name]; ok {
			if err := same(want, grads[name]); err != nil {
				return fmt.Errorf("%+v: gradient of %s: %w", run.cfg, name, err)
			}
		}
		if err := same(run.stepped[name], got[name]); err != nil {
			return fmt.Errorf("%+v: %s after the step: %w", run.cfg, name, err)
		}
	}
	return nil
}
