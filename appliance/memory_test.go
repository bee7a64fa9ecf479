package appliance

import (
	"fmt"
	"testing"
)

// When memory is short, unnamed samplers that newer ones have followed are dropped
// first to last and say so; the newest and the run itself go on.
func TestMemoryIsMadeFree(t *testing.T) {
	a, session := ready(t, Options{Memory: 6 << 20})
	ticket, err := a.CreateModel(full(session, 0))
	run := result[CreateModelResult](t, a, ticket, err).ModelID
	n, s := 2, uint64(1)
	ask := func(sampler string, seq int64) (Ticket, error) {
		return a.Sample(SampleRequest{SamplerID: sampler, Seq: seq, Count: 1, Prompt: prompt(3), MaxTokens: &n, Seed: &s, Temperature: 1, TopP: 1})
	}
	var samplers []string
	for i := range int64(40) {
		ticket, err := a.Snapshot(SnapshotRequest{RunID: run, Seq: i + 1, SamplerSeq: i})
		id := result[SaveSamplerResult](t, a, ticket, err).SamplerID
		samplers = append(samplers, id)
		ticket, err = ask(id, 0)
		result[SampleResult](t, a, ticket, err)
	}
	ticket, err = ask(samplers[0], 1)
	fails(t, a, ticket, err, samplers[0], "memory was needed")
	ticket, err = ask(samplers[39], 1)
	result[SampleResult](t, a, ticket, err)
	step(t, a, run, 100)
	if st, err := a.Status(); err != nil || st.SamplersIn == 0 || st.SamplersIn == 40 {
		t.Errorf("%d of 40 samplers in memory, %v; the test wants some, not all", st.SamplersIn, err)
	}
}

// Idle models are dropped for one that is wanted, and come back when needed. What caches take depends on what is free when they are made, so
// the memory is well below what all six could ever fit into.
func TestModelsTakeTurns(t *testing.T) {
	a, session := ready(t, Options{Memory: 640 << 10})
	files := tinyModel(t, "steps_llama")
	n, s := 2, uint64(1)
	var samplers []string
	for i := range 6 {
		name := fmt.Sprintf("model%d", i)
		if _, err := add(t, a, name, files); err != nil {
			t.Fatal(err)
		}
		id, err := a.CreateSampler(SamplerRequest{SessionID: session, Seq: int64(i), BaseModel: name})
		if err != nil {
			t.Fatal(err)
		}
		samplers = append(samplers, id)
	}
	for round := range int64(2) {
		for _, id := range samplers {
			ticket, err := a.Sample(SampleRequest{SamplerID: id, Seq: round, Count: 1, Prompt: prompt(3), MaxTokens: &n, Seed: &s, Temperature: 1, TopP: 1})
			result[SampleResult](t, a, ticket, err)
		}
	}
	if st, err := a.Status(); err != nil || st.BasesLoaded == 0 || st.BasesLoaded == 6 {
		t.Errorf("%d of 6 models in memory, %v; the test wants some, not all", st.BasesLoaded, err)
	}
}
