package engine

import (
	"testing"

	"smolgym/model/hf"
	"smolgym/model/ir"
)

// gate is a source whose files come when it is opened.
type gate struct {
	hf.Source
	asked, open chan struct{}
}

func (g gate) Open(name string) (hf.ReaderAtSized, error) {
	select {
	case g.asked <- struct{}{}:
	default:
	}
	<-g.open
	return g.Source.Open(name)
}

// TestLoadBeside: while a model is being read the owner goes on: samples of
// another model are answered, and a run trains.
func TestLoadBeside(t *testing.T) {
	for name, dev := range devices(t) {
		t.Run(name, func(t *testing.T) {
			x := start(t, dev, "llama_tied", Options{})
			src, err := hf.Dir(unpack(t, "qwen3"))
			if err != nil {
				t.Fatal(err)
			}
			ck, err := hf.Describe(src)
			if err != nil {
				t.Fatal(err)
			}
			g := gate{src, make(chan struct{}, 1), make(chan struct{})}
			loaded := make(chan error, 1)
			var other *Base
			go func() {
				b, err := x.e.LoadBase("test/qwen3", ck, g, nil, ir.F32)
				other = b
				loaded <- err
			}()
			<-g.asked // it has begun and can't go on
			var w *Weights
			x.do(func() error { w = x.b.Weights(); return nil })
			first := x.sample(SampleRequest{Weights: w, Prompt: tokens(9, 5), Count: 2, Params: anything})
			if len(first.Sequences[0].Tokens) == 0 {
				t.Error("no tokens")
			}
			x.step(x.trainer(loraConfig()), 1)
			select {
			case err := <-loaded:
				t.Fatalf("the model was loaded without its files: %v", err)
			default:
			}
			close(g.open)
			if err := <-loaded; err != nil {
				t.Fatal(err)
			}
			x.do(func() error { w = other.Weights(); return nil })
			if r := x.sample(SampleRequest{Weights: w, Prompt: tokens(9, 5), Count: 1, Params: anything}); len(r.Sequences[0].Tokens) == 0 {
				t.Error("no tokens of the model that was loaded")
			}
		})
	}
}

// TestHold: inside a long layer decoding is asked for, with the bits unchanged,
// and the layers are still counted as layers.
func TestHold(t *testing.T) {
	x := start(t, devices(t)["cpu"], "llama_tied", Options{})
	tr := x.trainer(TrainerConfig{})
	batch := Batch{Loss: "cross_entropy", Data: []Datum{datum(tokens(200, 1), 1), datum(tokens(200, 2), 1), datum(tokens(200, 3), 1)}}
	var w *Weights
	x.do(func() error { w = x.b.Weights(); return nil })
	alone := x.sample(SampleRequest{Weights: w, Prompt: tokens(9, 5), Count: 3, Params: anything})
	want := x.stepOnBatch(tr, batch)
	answers := make(chan *SampleResult, 1)
	r := SampleRequest{Weights: w, Prompt: tokens(9, 5), Count: 3, Params: anything, Done: func(res *SampleResult, err error) {
		if err != nil {
			t.Error(err)
		}
		answers <- res
	}}
	again := x.trainer(TrainerConfig{})
	x.do(func() error { // it is there before the batch begins
		return x.e.Sample(r)
	})
	got := x.stepOnBatch(again, batch)
	for i, s := range (<-answers).Sequences {
		if err := same(alone.Sequences[i].Logprobs, s.Logprobs); err != nil {
			t.Errorf("sample %d inside training: %v", i, err)
		}
	}
	sameValues(t, want, got)
	if x.e.Stats().LongestHold <= 0 {
		t.Error("no hold was noted")
	}
}

func (x *bench) stepOnBatch(tr *Trainer, b Batch) map[string][]float32 {
	x.do(func() error {
		out, err := tr.ForwardBackward(b)
		if err == nil && len(out.Passes) != 2 {
			x.Errorf("%d passes through the model", len(out.Passes))
		}
		if err == nil {
			_, err = tr.Step(adam)
		}
		return err
	})
	return x.values(tr)
}
