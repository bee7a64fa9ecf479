package engine

import (
	"context"
	"fmt"
	"math"
	"slices"
	"testing"

	"smolgym/kernels"
	"smolgym/kernels/cpu"
	"smolgym/kernels/reference"
	"smolgym/model/golden"
	"smolgym/model/hf"
	"smolgym/model/ir"
)

// unpack extracts a golden archive and returns its folder.
func unpack(t *testing.T, name string) string {
	t.Helper()
	return golden.Lay(t, name)
}

// bench is an engine with a loaded golden model.
type bench struct {
	*testing.T
	e *Engine
	b *Base
}

func start(t *testing.T, dev kernels.Device, model string, opt Options) *bench {
	t.Helper()
	return startAs(t, dev, model, ir.F32, opt)
}

// startAs loads the model's matrices as dtype.
func startAs(t *testing.T, dev kernels.Device, model string, dtype ir.DType, opt Options) *bench {
	t.Helper()
	return startDir(t, dev, "test/"+model, unpack(t, model), dtype, opt)
}

func startDir(t *testing.T, dev kernels.Device, name, dir string, dtype ir.DType, opt Options) *bench {
	t.Helper()
	e := New(dev, opt)
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- e.Run(ctx) }()
	t.Cleanup(func() { cancel(); <-done })
	src, err := hf.Dir(dir)
	if err != nil {
		t.Fatal(err)
	}
	ck, err := hf.Describe(src)
	if err != nil {
		t.Fatal(err)
	}
	x := &bench{T: t, e: e}
	x.do(func() error {
		x.b, err = e.LoadBase(name, ck, src, nil, dtype)
		return err
	})
	return x
}

// do runs fn on the owner and fails the test on an error.
func (x *bench) do(fn func() error) {
	x.Helper()
	var err error
	if e := x.e.Do(context.Background(), func() { err = fn() }); e != nil {
		x.Fatal(e)
	}
	if err != nil {
		x.Fatal(err)
	}
}

func (x *bench) trainer(cfg TrainerConfig) (tr *Trainer) {
	x.Helper()
	x.do(func() (err error) { tr, err = x.b.NewTrainer(cfg); return err })
	return tr
}

func (x *bench) sample(r SampleRequest) *SampleResult {
	x.Helper()
	type answer struct {
		res *SampleResult
		err error
	}
	ch := make(chan answer, 1)
	r.Done = func(res *SampleResult, err error) { ch <- answer{res, err} }
	if err := x.e.Sample(r); err != nil {
		x.Fatal(err)
	}
	a := <-ch
	if a.err != nil {
		x.Fatal(a.err)
	}
	return a.res
}

func tokens(n, seed int) []int32 {
	ids := make([]int32, n)
	for i := range ids {
		ids[i] = int32(mix(uint64(seed)<<32+uint64(i)) % 500)
	}
	return ids
}

// ids are tokens of the model's vocabulary.
func (x *bench) ids(n, seed int) []int32 {
	list := tokens(n, seed)
	for i := range list {
		list[i] %= int32(x.b.info.Vocab)
	}
	return list
}

// datum scores ids[1:] given ids[:len-1] with equal weights.
func datum(ids []int32, weight float32) Datum {
	n := len(ids) - 1
	d := Datum{Tokens: ids[:n], Inputs: map[string]Tensor{}}
	targets, weights := make([]int64, n), make([]float32, n)
	for i := range n {
		targets[i], weights[i] = int64(ids[i+1]), weight
	}
	d.Inputs["target_tokens"] = Tensor{I64: targets}
	d.Inputs["weights"] = Tensor{F32: weights}
	return d
}

var anything = SampleParams{MaxTokens: 20, Seed: 7, Temperature: 1, TopP: 1}

func loraConfig() TrainerConfig {
	return TrainerConfig{LoRA: &LoRA{Rank: 4, Alpha: 32, Seed: 3}, Attention: true, MLP: true, Unembed: true}
}

// stepped is a run after a few steps, with an adapter that matters.
func (x *bench) stepped(cfg TrainerConfig) *Trainer {
	tr := x.trainer(cfg)
	x.do(func() error {
		for i := range 3 {
			if _, err := tr.ForwardBackward(Batch{Loss: "cross_entropy", Data: []Datum{datum(x.ids(30, 50+i), 1)}}); err != nil {
				return err
			}
			if _, err := tr.Step(AdamParams{LearningRate: 1e-2, Beta1: 0.9, Beta2: 0.95, Eps: 1e-8}); err != nil {
				return err
			}
		}
		return nil
	})
	return tr
}

func same(a, b []float32) error {
	if len(a) != len(b) {
		return fmt.Errorf("%d values and %d", len(a), len(b))
	}
	for i := range a {
		if math.Float32bits(a[i]) != math.Float32bits(b[i]) {
			return fmt.Errorf("value %d: %v and %v", i, a[i], b[i])
		}
	}
	return nil
}

func devices(t *testing.T) map[string]kernels.Device {
	t.Helper()
	fast, err := cpu.Open(cpu.Options{MemoryBytes: 2 << 30})
	if err != nil {
		t.Fatal(err)
	}
	return map[string]kernels.Device{"reference": reference.Open(reference.Options{MemoryBytes: 2 << 30}), "cpu": fast}
}

// TestOnPolicy: a token's log-probability has the same bits sampled alone,
// sampled among others, scored as a prompt and computed in forward.
func TestOnPolicy(t *testing.T) {
	for name, dev := range devices(t) {
		t.Run(name, func(t *testing.T) {
			x := start(t, dev, "llama_tied", Options{})
			for _, cfg := range []TrainerConfig{loraConfig(), {}} {
				tr := x.stepped(cfg)
				var w *Weights
				x.do(func() (err error) { w, err = tr.Snapshot(); return err })
				x.onPolicy(tr, w)
				w.Release()
				x.do(func() error { tr.Release(); return nil })
			}
		})
	}
}

// TestFamiliesOnPolicy: the same for windows, experts and recurrent state, a
// prompt cut into pieces and groups that share it included.
func TestFamiliesOnPolicy(t *testing.T) {
	for _, model := range []string{"gemma3_scaled", "mixtral", "qwen3_next_dense", "qwen3_5_moe"} {
		t.Run(model, func(t *testing.T) {
			x := start(t, devices(t)["cpu"], model, Options{DecodeTokens: 24, DecodeSequences: 12})
			for _, cfg := range []TrainerConfig{loraConfig(), {}} {
				tr := x.stepped(cfg)
				var w *Weights
				x.do(func() (err error) { w, err = tr.Snapshot(); return err })
				x.onPolicy(tr, w)
				w.Release()
				x.do(func() error {
					tr.Release()
					c := x.b.cache
					if n := len(c.freeSlots); n != c.slots {
						return fmt.Errorf("%d of %d slots came back", n, c.slots)
					}
					return c.balanced()
				})
			}
		})
	}
}

func (x *bench) onPolicy(tr *Trainer, w *Weights) {
	prompt := x.ids(37, 1)
	alone := x.sample(SampleRequest{Weights: w, Prompt: prompt, Count: 1, Params: anything}).Sequences[0]

	results := make(chan *SampleResult, 15)
	for i := range 15 {
		r := SampleRequest{Weights: w, Prompt: x.ids(5+5*i, 100+i), Count: 1 + i%3, Params: SampleParams{MaxTokens: 30, Seed: uint64(i), Temperature: 0.8, TopP: 1}}
		r.Done = func(res *SampleResult, err error) {
			if err != nil {
				x.Error(err)
			}
			results <- res
		}
		if err := x.e.Sample(r); err != nil {
			x.Fatal(err)
		}
	}
	crowd := x.sample(SampleRequest{Weights: w, Prompt: prompt, Count: 3, Params: anything})
	for range 15 {
		<-results
	}
	if n := x.e.Stats().MaxDecodeBatch; n < 10 {
		x.Fatalf("the largest decode batch had %d sequences: nothing was shared", n)
	}
	if !slices.Equal(alone.Tokens, crowd.Sequences[0].Tokens) {
		x.Fatalf("alone %v, in a crowd %v", alone.Tokens, crowd.Sequences[0].Tokens)
	}
	if slices.Equal(crowd.Sequences[0].Tokens, crowd.Sequences[1].Tokens) {
		x.Fatal("two samples of one seed are the same")
	}
	for _, s := range crowd.Sequences {
		whole := append(slices.Clone(prompt), s.Tokens...)
		scored := x.sample(SampleRequest{Weights: w, Prompt: whole, Count: 1, Params: SampleParams{MaxTokens: 1, Temperature: 1, TopP: 1}, PromptLogprobs: true}).PromptLogprobs
		if len(scored) != len(whole) || scored[0] == scored[0] {
			x.Fatalf("%d prompt log-probabilities for %d tokens, first %v", len(scored), len(whole), scored[0])
		}
		if err := same(s.Logprobs, scored[len(prompt):]); err != nil {
			x.Fatalf("sampled and scored: %v", err)
		}
		var out *Output
		x.do(func() (err error) {
			out, err = tr.ForwardBackward(Batch{Loss: "cross_entropy", ForwardOnly: true, Data: []Datum{datum(x.ids(11, 9), 1), datum(whole, 1), datum(x.ids(40, 8), 0)}})
			return err
		})
		if err := same(scored[1:], out.Logprobs[1]); err != nil {
			x.Fatalf("scored and trained: %v", err)
		}
	}
}

// TestMicroBatches: cutting a batch into micro-batches or calls changes no bit
// of the stepped weights (FR-11).
func TestMicroBatches(t *testing.T) {
	data := []Datum{datum(tokens(4, 1), 0.5), datum(tokens(6, 2), 1.25), datum(tokens(51, 3), -0.25), datum(tokens(80, 4), 0.75)}
	for name, dev := range devices(t) {
		t.Run(name, func(t *testing.T) {
			for _, cfg := range []TrainerConfig{loraConfig(), {}} {
				var want map[string][]float32
				for _, opt := range []Options{{}, {TrainTokens: 16}, {TrainTokens: 60}} {
					for _, calls := range [][][]Datum{{data}, {data[:1], data[1:2], data[2:3], data[3:]}} {
						x := start(t, dev, "llama_tied", opt)
						got := x.stepOn(cfg, calls)
						if want == nil {
							want = got
						}
						for name := range want {
							if err := same(want[name], got[name]); err != nil {
								t.Fatalf("TrainTokens %d, %d calls: %s: %v", opt.TrainTokens, len(calls), name, err)
							}
						}
					}
				}
			}
		})
	}
}

// stepOn takes one step on the calls' data and returns the parameters.
func (x *bench) stepOn(cfg TrainerConfig, calls [][]Datum) map[string][]float32 {
	tr := x.trainer(cfg)
	x.do(func() error {
		for _, data := range calls {
			if _, err := tr.ForwardBackward(Batch{Loss: "cross_entropy", Data: data}); err != nil {
				return err
			}
		}
		_, err := tr.Step(AdamParams{LearningRate: 1e-2, Beta1: 0.9, Beta2: 0.95, Eps: 1e-8, WeightDecay: 0.1, GradClipNorm: 0.5})
		return err
	})
	return x.values(tr)
}

func (x *bench) values(tr *Trainer) map[string][]float32 {
	out := map[string][]float32{}
	x.do(func() error {
		for _, info := range tr.Tensors(true) {
			raw := make([]byte, info.Bytes)
			if err := tr.Read(info.Name, 0, raw); err != nil {
				return err
			}
			out[info.Name] = decodeF32(raw)
		}
		return nil
	})
	return out
}
