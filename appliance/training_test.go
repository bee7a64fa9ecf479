package appliance

import (
	"maps"
	"math"
	"slices"
	"testing"
	"time"
)

func TestTraining(t *testing.T) {
	for _, c := range []struct {
		name   string
		create func(string, int64) CreateModelRequest
	}{{"lora", lora}, {"full", full}} {
		t.Run(c.name, func(t *testing.T) {
			a, session := ready(t, Options{})
			ticket, err := a.CreateModel(c.create(session, 0))
			run := result[CreateModelResult](t, a, ticket, err).ModelID
			if run != session+":train:0" {
				t.Fatalf("run is %q", run)
			}
			info, err := a.RunInfo(run)
			if err != nil || info.BaseModel != "local/tiny" || info.IsLoRA != (c.name == "lora") {
				t.Fatalf("info %+v, %v", info, err)
			}
			first := step(t, a, run, 1)
			last := first
			for i := int64(1); i < 8; i++ {
				last = step(t, a, run, 1+2*i)
			}
			if !(last < 0.7*first) {
				t.Errorf("loss %g after 8 steps, %g at first", last, first)
			}
		})
	}
}

// A sampler sees the snapshot it was made from; a base-model sampler beside the
// run sees the base. FR-07's equality of logprobs is the engine's test.
func TestSamplerSeesItsSnapshot(t *testing.T) {
	a, session := ready(t, Options{})
	ticket, err := a.CreateModel(lora(session, 0))
	run := result[CreateModelResult](t, a, ticket, err).ModelID
	base, err := a.CreateSampler(SamplerRequest{SessionID: session, Seq: 0, BaseModel: "tiny"})
	if err != nil {
		t.Fatal(err)
	}
	ticket, err = a.Snapshot(SnapshotRequest{RunID: run, Seq: 1, SamplerSeq: 1})
	fresh := result[SaveSamplerResult](t, a, ticket, err).SamplerID
	ask := func(sampler string, seq int64) []Sequence {
		t.Helper()
		n, s := 6, uint64(7)
		ticket, err := a.Sample(SampleRequest{SamplerID: sampler, Seq: seq, Count: 2, Prompt: []int32{1, 8, 15}, MaxTokens: &n, Seed: &s, Temperature: 1, TopP: 1, Stop: &Stop{}})
		if len(ticket.Sequences) != 2 {
			t.Fatalf("%d sequence ids for 2 samples", len(ticket.Sequences))
		}
		return result[SampleResult](t, a, ticket, err).Sequences
	}
	same := func(x, y []Sequence) bool {
		return slices.EqualFunc(x, y, func(p, q Sequence) bool {
			return slices.Equal(p.Tokens, q.Tokens) && slices.Equal(p.Logprobs, q.Logprobs)
		})
	}
	before, plain := ask(fresh, 0), ask(base, 0)
	if !same(before, plain) {
		t.Error("a fresh adapter does not answer as the base")
	}
	step(t, a, run, 2)
	if !same(before, ask(fresh, 1)) {
		t.Error("the sampler changed with its run")
	}
	if !same(plain, ask(base, 1)) {
		t.Error("the base changed with a run")
	}
	ticket, err = a.SaveSamplerWeights(SaveRequest{RunID: run, Seq: 4, Name: "after"})
	path := result[SaveSamplerResult](t, a, ticket, err).Path
	named, err := a.CreateSampler(SamplerRequest{SessionID: session, Seq: 2, ModelPath: path})
	if err != nil {
		t.Fatal(err)
	}
	if same(before, ask(named, 0)) {
		t.Error("a sampler made after a step answers as before it")
	}
}

// FR-02: a repeat counts once and gets the first request's id.
func TestRepeats(t *testing.T) {
	a, session := ready(t, Options{})
	ticket, err := a.CreateModel(lora(session, 0))
	run := result[CreateModelResult](t, a, ticket, err).ModelID
	again, err := a.CreateModel(lora(session, 0))
	if err != nil || again.RequestID != ticket.RequestID {
		t.Errorf("repeat of create_model: %+v, %v; first %+v", again, err, ticket)
	}
	other := lora(session, 0)
	other.LoRA.Rank = 8
	_, err = a.CreateModel(other)
	refused(t, err, CodeConflict, "number -1", "another request")

	once := lora(session, 1)
	ticket, err = a.CreateModel(once)
	single := result[CreateModelResult](t, a, ticket, err).ModelID

	fb := ForwardBackwardRequest{RunID: run, Seq: 1, Batch: lesson()}
	first, err := a.ForwardBackward(fb)
	if err != nil {
		t.Fatal(err)
	}
	for range 2 {
		again, err := a.ForwardBackward(ForwardBackwardRequest{RunID: run, Seq: 1, Batch: lesson()})
		if err != nil || again.RequestID != first.RequestID {
			t.Errorf("repeat of forward_backward: %+v, %v; first %+v", again, err, first)
		}
		result[ForwardBackwardResult](t, a, again, err)
	}
	changed := lesson()
	changed.Data[0].Inputs["weights"].F32[0] = 0.5
	_, err = a.ForwardBackward(ForwardBackwardRequest{RunID: run, Seq: 1, Batch: changed})
	refused(t, err, CodeConflict, "number 1", "another request")
	for range 2 {
		ticket, err = a.OptimStep(OptimStepRequest{RunID: run, Seq: 2, Adam: adam})
		result[OptimResult](t, a, ticket, err)
	}
	step(t, a, single, 1)
	if x, y := state(t, a, run, 3, "x"), state(t, a, single, 3, "x"); !maps.Equal(x, y) {
		t.Error("weights after repeats differ from those of a run without")
	}
}

// Numbers may have gaps; one below an executed number that was never seen is refused.
func TestOrder(t *testing.T) {
	a, session := ready(t, Options{})
	ticket, err := a.CreateModel(lora(session, 0))
	run := result[CreateModelResult](t, a, ticket, err).ModelID
	step(t, a, run, 10)
	_, err = a.OptimStep(OptimStepRequest{RunID: run, Seq: 5, Adam: adam})
	refused(t, err, CodeConflict, "number 5", "number 11")
	step(t, a, run, 100)

	// Held back, requests execute by number, not by arrival.
	release := make(chan struct{})
	go func() { _ = a.eng.Do(t.Context(), func() { <-release }) }()
	for a.eng.Queue().LanesWaiting > 0 || !a.eng.Queue().Training {
		time.Sleep(time.Millisecond) // a condition with the test's deadline
	}
	late, err := a.SaveWeights(SaveRequest{RunID: run, Seq: 205, Name: "late"})
	if err != nil {
		t.Fatal(err)
	}
	early, err := a.OptimStep(OptimStepRequest{RunID: run, Seq: 204, Adam: adam})
	if err != nil {
		t.Fatal(err)
	}
	close(release)
	result[OptimResult](t, a, early, nil)
	path := result[SaveResult](t, a, late, nil).Path
	if cp, err := a.Checkpoint(path); err != nil || cp.Step != 3 {
		t.Errorf("checkpoint at step %d, %v; want 3", cp.Step, err)
	}
}

// FR-09 and FR-10: what is wrong with a batch ends its future and leaves the
// accumulated gradient alone.
func TestBadBatches(t *testing.T) {
	a, session := ready(t, Options{})
	ticket, err := a.CreateModel(lora(session, 0))
	run := result[CreateModelResult](t, a, ticket, err).ModelID
	ticket, err = a.CreateModel(lora(session, 1))
	clean := result[CreateModelResult](t, a, ticket, err).ModelID
	ticket, err = a.ForwardBackward(ForwardBackwardRequest{RunID: run, Seq: 1, Batch: lesson()})
	result[ForwardBackwardResult](t, a, ticket, err)
	seq := int64(2)
	for _, c := range []struct {
		name   string
		change func(*Batch)
		words  []string
	}{
		{"empty", func(b *Batch) { b.Data = nil }, []string{"empty"}},
		{"loss", func(b *Batch) { b.Loss = "mse" }, []string{"mse", "cross_entropy"}},
		{"token", func(b *Batch) { b.Data[1].Tokens[3] = 64 }, []string{"datum 1", "64"}},
		{"negative token", func(b *Batch) { b.Data[0].Tokens[0] = -1 }, []string{"datum 0", "-1"}},
		{"target", func(b *Batch) { b.Data[1].Inputs["target_tokens"].I64[2] = 1000 }, []string{"datum 1", "target_tokens", "1000"}},
		{"no input", func(b *Batch) { delete(b.Data[0].Inputs, "target_tokens") }, []string{"datum 0", "target_tokens"}},
		{"short weights", func(b *Batch) {
			b.Data[1].Inputs["weights"] = Tensor{F32: make([]float32, 3), Shape: []int{3}}
		}, []string{"datum 1", "weights"}},
		{"dtype", func(b *Batch) {
			b.Data[0].Inputs["target_tokens"] = Tensor{F32: make([]float32, 12), Shape: []int{12}}
		}, []string{"datum 0", "target_tokens"}},
	} {
		b := lesson()
		c.change(&b)
		ticket, err := a.ForwardBackward(ForwardBackwardRequest{RunID: run, Seq: seq, Batch: b})
		t.Run(c.name, func(t *testing.T) { fails(t, a, ticket, err, c.words...) })
		seq++
	}
	ticket, err = a.OptimStep(OptimStepRequest{RunID: run, Seq: seq, Adam: AdamParams{LearningRate: math.NaN()}})
	fails(t, a, ticket, err, "learning_rate")
	ticket, err = a.OptimStep(OptimStepRequest{RunID: run, Seq: seq + 1, Adam: adam})
	result[OptimResult](t, a, ticket, err)
	step(t, a, clean, 1)
	if x, y := state(t, a, run, seq+2, "x"), state(t, a, clean, 3, "x"); !maps.Equal(x, y) {
		t.Error("refused batches changed the gradient")
	}
	_, err = a.ForwardBackward(ForwardBackwardRequest{RunID: "nobody:train:0", Seq: 1, Batch: lesson()})
	refused(t, err, CodeNotFound, "nobody:train:0")
}

func TestBadModels(t *testing.T) {
	a, session := ready(t, Options{})
	for i, c := range []struct {
		name   string
		change func(*CreateModelRequest)
		words  []string
	}{
		{"no such model", func(r *CreateModelRequest) { r.BaseModel = "org/absent" }, []string{"org/absent", "smolgym model add", "smolgym model pull", "smolgym model list"}},
		{"full update without attention", func(r *CreateModelRequest) { r.LoRA.Rank, r.LoRA.Attention = 0, false }, []string{"train_attn", "rank 0"}},
		{"full update without unembed", func(r *CreateModelRequest) { r.LoRA.Rank, r.LoRA.Unembed = 0, false }, []string{"train_unembed"}},
		{"nothing to train", func(r *CreateModelRequest) { r.LoRA.Attention, r.LoRA.MLP, r.LoRA.Unembed = false, false, false }, []string{"train_mlp"}},
		{"rank", func(r *CreateModelRequest) { r.LoRA.Rank = 1 << 30 }, []string{"rank"}},
		{"optimizer", func(r *CreateModelRequest) { r.Optimizer = "dimuon" }, []string{"dimuon", "adamw"}},
		{"name", func(r *CreateModelRequest) { r.BaseModel = "../../etc/passwd" }, []string{"model name"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			req := lora(session, int64(i))
			c.change(&req)
			ticket, err := a.CreateModel(req)
			fails(t, a, ticket, err, c.words...)
			// What was already sent to it fails too, and says why.
			ticket, err = a.OptimStep(OptimStepRequest{RunID: RunID(session, int64(i)), Seq: 1, Adam: adam})
			fails(t, a, ticket, err, "was not created")
		})
	}
	_, err := a.CreateModel(lora("nobody", 0))
	refused(t, err, CodeNotFound, "nobody")
}

// A full update that doesn't fit says what it needs and what is free, and leaves
// the server and other runs alone.
func TestNoFit(t *testing.T) {
	a, session := ready(t, Options{Memory: 200 << 10})
	ticket, err := a.CreateModel(full(session, 0))
	fails(t, a, ticket, err, "needs", "free")
	if _, err := a.Status(); err != nil {
		t.Fatal(err)
	}
}
