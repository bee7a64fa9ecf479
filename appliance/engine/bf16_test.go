package engine

import (
	"bytes"
	"io"
	"math"
	"testing"

	"smolgym/model/ir"
)

// TestHalfMemory: with matrices in bfloat16 the weights take little more than half
// the memory, scores are near those in float32 without being the same, and a full
// update's sampler gets the rounded copy that the trainer computes with.
func TestHalfMemory(t *testing.T) {
	dev := devices(t)["cpu"]
	wide, half := startAs(t, dev, "llama_tied", ir.F32, Options{}), startAs(t, dev, "llama_tied", ir.BF16, Options{})
	if w, h := wide.b.info.Bytes, half.b.info.Bytes; h > w*11/20 || half.b.info.DType != ir.BF16 || half.b.info.Params != wide.b.info.Params {
		t.Errorf("%d bytes in bfloat16 (%+v), %d in float32", h, half.b.info, w)
	}
	score := func(x *bench) []float32 {
		tr := x.trainer(TrainerConfig{})
		x.step(tr, 3)
		var out *Output
		x.do(func() (err error) {
			out, err = tr.ForwardBackward(Batch{Loss: "cross_entropy", ForwardOnly: true, Data: []Datum{datum(tokens(30, 1), 1)}})
			return err
		})
		var w *Weights
		x.do(func() (err error) { w, err = tr.Snapshot(); return err })
		sampled := x.sample(SampleRequest{Weights: w, Prompt: tokens(30, 1), Count: 1, Params: SampleParams{MaxTokens: 1, Temperature: 1, TopP: 1}, PromptLogprobs: true}).PromptLogprobs
		if err := same(sampled[1:], out.Logprobs[0]); err != nil {
			t.Errorf("%s: scored by the sampler and by the trainer: %v", x.b.info.DType, err)
		}
		for name, buf := range w.own {
			p := tr.params[0]
			for _, q := range tr.params {
				if q.name == name {
					p = q
				}
			}
			if buf.Size() != p.read() {
				t.Errorf("%s: the sampler's copy of %s has %d bytes, want %d", x.b.info.DType, name, buf.Size(), p.read())
			}
		}
		return out.Logprobs[0]
	}
	a, b := score(wide), score(half)
	largest := 0.0
	for i := range a {
		largest = max(largest, math.Abs(float64(a[i]-b[i])))
	}
	if largest == 0 || largest > 0.1 {
		t.Errorf("log-probabilities in bfloat16 are off by up to %g", largest)
	}
}

// TestHalfResume: what is saved of a full update is the float32 parameter, not its
// copy, and small steps add up in it that the copy could not take one by one.
func TestHalfResume(t *testing.T) {
	x := startAs(t, devices(t)["cpu"], "llama_tied", ir.BF16, Options{})
	tr := x.stepped(TrainerConfig{})
	saved, count := x.values(tr), tr.StepCount()
	fine := 0
	for _, p := range tr.params {
		if !p.half {
			continue
		}
		for _, v := range saved[p.name] {
			if math.Float32bits(v)&0xffff != 0 {
				fine++
			}
		}
	}
	if fine == 0 {
		t.Error("the parameters are rounded to bfloat16")
	}
	x.step(tr, 99)
	want := x.values(tr)
	open := func(info TensorInfo) (io.ReaderAt, error) { return bytes.NewReader(floatBytes(saved[info.Name])), nil }
	again := x.trainer(TrainerConfig{})
	x.do(func() error { return again.Load(open, count, true) })
	x.step(again, 99)
	sameValues(t, want, x.values(again))

	// A sampler's weights read from the file are those of a snapshot.
	var snap, stored *Weights
	x.do(func() (err error) { snap, err = tr.Snapshot(); return err })
	x.do(func() (err error) {
		stored, err = x.b.LoadWeights(TrainerConfig{}, func(info TensorInfo) (io.ReaderAt, error) { return bytes.NewReader(floatBytes(want[info.Name])), nil })
		return err
	})
	ask := SampleRequest{Weights: snap, Prompt: tokens(9, 5), Count: 1, Params: SampleParams{MaxTokens: 8, Temperature: 1, TopP: 1, Seed: 3}}
	first := x.sample(ask)
	ask.Weights = stored
	if err := same(first.Sequences[0].Logprobs, x.sample(ask).Sequences[0].Logprobs); err != nil {
		t.Errorf("sampled from the snapshot and from the file: %v", err)
	}
}
