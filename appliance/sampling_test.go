package appliance

import (
	"context"
	"math"
	"testing"
	"time"
)

// sampling is an appliance with a sampler of the bare model, context 64 at most.
func sampling(t *testing.T, context int) (*Appliance, string) {
	t.Helper()
	a, session := ready(t, Options{Context: context})
	id, err := a.CreateSampler(SamplerRequest{SessionID: session, BaseModel: "tiny"})
	if err != nil {
		t.Fatal(err)
	}
	return a, id
}

func prompt(n int) []int32 {
	ids := make([]int32, n)
	for i := range ids {
		ids[i] = int32(i*5%61 + 1)
	}
	return ids
}

// FR-08: what doesn't fit the context fails at once and names the numbers; without
// max_tokens sampling runs to the end of the context.
func TestContextLimit(t *testing.T) {
	a, sampler := sampling(t, 32)
	ask := func(seq int64, length int, most *int) (Ticket, error) {
		return a.Sample(SampleRequest{SamplerID: sampler, Seq: seq, Count: 1, Prompt: prompt(length), MaxTokens: most, Temperature: 1, TopP: 1, Stop: &Stop{}})
	}
	n := 10
	ticket, err := ask(0, 25, &n)
	fails(t, a, ticket, err, "25", "10", "32")
	ticket, err = ask(1, 32, nil)
	fails(t, a, ticket, err, "32")
	ticket, err = ask(2, 20, nil)
	s := result[SampleResult](t, a, ticket, err).Sequences[0]
	if len(s.Tokens) != 12 || s.Stopped || len(s.Logprobs) != 12 {
		t.Errorf("%d tokens, %d logprobs, stopped %t; want 12 to the end of the context", len(s.Tokens), len(s.Logprobs), s.Stopped)
	}
	ticket, err = ask(3, 22, &n)
	if s := result[SampleResult](t, a, ticket, err).Sequences[0]; len(s.Tokens) != 10 {
		t.Errorf("%d tokens, want 10", len(s.Tokens))
	}
}

// FR-06: prompt logprobs line up; positions not asked for are blank.
func TestPromptLogprobs(t *testing.T) {
	a, sampler := sampling(t, 64)
	n, last := 1, 3
	req := SampleRequest{SamplerID: sampler, Seq: 0, Count: 1, Prompt: prompt(10), MaxTokens: &n, Temperature: 1, TopP: 1, PromptLogprobs: true, TopKPrompt: 5, TopKSample: 2}
	ticket, err := a.Sample(req)
	all := result[SampleResult](t, a, ticket, err)
	if len(all.PromptLogprobs) != 10 || !math.IsNaN(float64(all.PromptLogprobs[0])) {
		t.Fatalf("prompt logprobs %v", all.PromptLogprobs)
	}
	if k := all.TopKPrompt; k == nil || k.K != 5 || len(k.IDs) != 50 || k.IDs[0] != 0 || k.Logprobs[0] != noLogprob {
		t.Fatalf("table %+v", k)
	}
	req.Seq, req.LastN = 1, &last
	ticket, err = a.Sample(req)
	some := result[SampleResult](t, a, ticket, err)
	for i, v := range some.PromptLogprobs {
		if scored := i >= 7; scored != !math.IsNaN(float64(v)) || scored && v != all.PromptLogprobs[i] {
			t.Errorf("position %d: %v, of all %v", i, v, all.PromptLogprobs[i])
		}
	}
	if all.Sequences[0].TopK == nil || all.Sequences[0].TopK.K != 2 {
		t.Errorf("sampled table %+v", all.Sequences[0].TopK)
	}
}

func TestSampleRequests(t *testing.T) {
	a, sampler := sampling(t, 64)
	n := 4
	good := func() SampleRequest {
		return SampleRequest{SamplerID: sampler, Count: 2, Prompt: prompt(5), MaxTokens: &n, Temperature: 1, TopP: 1}
	}
	first, err := a.Sample(good())
	drawn := result[SampleResult](t, a, first, err)
	again, err := a.Sample(good())
	if err != nil || again.RequestID != first.RequestID || len(again.Sequences) != 2 {
		t.Errorf("repeat %+v, %v; first %+v", again, err, first)
	}
	other := good()
	other.Temperature = 0.5
	_, err = a.Sample(other)
	refused(t, err, CodeConflict, "number 0")
	// The drawn seed is recorded: asking with it gives the same samples.
	repeat := good()
	repeat.Seq, repeat.Seed = 1e18, &drawn.Seed
	ticket, err := a.Sample(repeat)
	if got := result[SampleResult](t, a, ticket, err); got.Sequences[1].Tokens[0] != drawn.Sequences[1].Tokens[0] {
		t.Error("the recorded seed gives other samples")
	}
	zero, empty := 0, []int32{}
	for i, c := range []struct {
		change func(*SampleRequest)
		word   string
	}{
		{func(r *SampleRequest) { r.Prompt = empty }, "empty"},
		{func(r *SampleRequest) { r.Prompt = []int32{1, 64} }, "64"},
		{func(r *SampleRequest) { r.MaxTokens = &zero }, "max_tokens"},
		{func(r *SampleRequest) { r.Temperature = -1 }, "temperature"},
		{func(r *SampleRequest) { r.TopP = 0 }, "top_p"},
		{func(r *SampleRequest) { r.LastN = &zero }, "last_n"},
		{func(r *SampleRequest) { r.Stop = &Stop{IDs: []int32{99}} }, "99"},
		{func(r *SampleRequest) { r.Stop = &Stop{Strings: []string{"x"}} }, "tokenizer"},
	} {
		req := good()
		req.Seq = int64(10 + i)
		c.change(&req)
		ticket, err := a.Sample(req)
		fails(t, a, ticket, err, c.word)
	}
	req := good()
	req.Count, req.Seq = 0, 50
	_, err = a.Sample(req)
	refused(t, err, CodeUser, "num_samples")
	req.SamplerID = "nobody"
	_, err = a.Sample(req)
	refused(t, err, CodeNotFound, "nobody")
}

// Many requests for one result are answered, and one that ends early says why it waits.
func TestRetrieve(t *testing.T) {
	a, sampler := sampling(t, 64)
	release := make(chan struct{})
	go func() { _ = a.eng.Do(t.Context(), func() { <-release }) }()
	for !a.eng.Queue().Training {
		time.Sleep(time.Millisecond) // a condition with the test's deadline
	}
	n := 2
	ticket, err := a.Sample(SampleRequest{SamplerID: sampler, Count: 1, Prompt: prompt(3), MaxTokens: &n, Temperature: 1, TopP: 1})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	ans, err := a.Retrieve(ctx, ticket.RequestID)
	if err != nil || ans.Result != nil || ans.QueueState != "active" || ans.Reason == "" {
		t.Errorf("answer %+v, %v", ans, err)
	}
	got := make(chan *Answer, 8)
	for range cap(got) {
		go func() {
			ans, _ := a.Retrieve(t.Context(), ticket.RequestID)
			got <- ans
		}()
	}
	close(release)
	for range cap(got) {
		if ans := <-got; ans == nil || ans.Result == nil {
			t.Errorf("answer %+v", ans)
		}
	}
}
