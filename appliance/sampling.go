package appliance

import (
	"context"
	"fmt"
	"math"
	"slices"

	"smolgym/appliance/engine"
	"smolgym/kernels"
)

// maxOpenSamples bounds sample requests that aren't done: a client is then told to
// slow down. The SDK keeps at most 2000 per sampler in flight.
const maxOpenSamples = 20000

// maxSamples bounds the samples of one request.
const maxSamples = 1024

// Stop says where a sample ends. A nil *Stop: at the model's end tokens. An empty
// one: nowhere. Otherwise: at what it lists, and at the end tokens.
type Stop struct {
	Strings []string
	IDs     []int32
}

// SampleRequest asks for samples that go on from a prompt.
type SampleRequest struct {
	SamplerID      string
	Seq            int64
	Count          int
	Prompt         []int32
	MaxTokens      *int    // nil: until a stop or the end of the context
	Seed           *uint64 // nil: random
	Temperature    float64
	TopK           int // <= 0: off
	TopP           float64
	Stop           *Stop
	PromptLogprobs bool
	TopKPrompt     int
	TopKSample     int
	LastN          *int // score only the last n tokens of the prompt
	// Refusal, if not nil, is what makes the request impossible though it could be
	// read: its future fails with it.
	Refusal error
}

func (req SampleRequest) digest() digest {
	h := hashOf(KindSample)
	h.int(int64(req.Count))
	h.int32s(req.Prompt)
	optional(h, req.MaxTokens, func(n int) { h.int(int64(n)) })
	optional(h, req.Seed, h.uint)
	h.float(req.Temperature)
	h.int(int64(req.TopK))
	h.float(req.TopP)
	optional(h, req.Stop, func(s Stop) {
		h.texts(s.Strings)
		h.int32s(s.IDs)
	})
	h.bool(req.PromptLogprobs)
	h.int(int64(req.TopKPrompt))
	h.int(int64(req.TopKSample))
	optional(h, req.LastN, func(n int) { h.int(int64(n)) })
	if req.Refusal != nil {
		h.text(req.Refusal.Error())
	}
	return h.sum()
}

// check refuses what no weights could answer.
func (req SampleRequest) check() error {
	bad := func(format string, args ...any) error { return Problemf(CodeUser, "asample: "+format, args...) }
	switch {
	case req.Refusal != nil:
		return bad("%v", req.Refusal)
	case len(req.Prompt) == 0:
		return bad("the prompt is empty; give at least one token")
	case req.MaxTokens != nil && *req.MaxTokens < 1:
		return bad("max_tokens is %d; give at least 1, or leave it out", *req.MaxTokens)
	case req.Temperature < 0 || math.IsNaN(req.Temperature) || math.IsInf(req.Temperature, 0):
		return bad("temperature is %v; give 0 or more", req.Temperature)
	case req.TopP <= 0 || math.IsNaN(req.TopP):
		return bad("top_p is %v; give more than 0, 1 for off", req.TopP)
	case req.LastN != nil && (*req.LastN < 1 || *req.LastN >= len(req.Prompt)):
		return bad("prompt_logprobs_last_n is %d; give 1 to %d, one less than the prompt has", *req.LastN, len(req.Prompt)-1)
	}
	return nil
}

// SampleResult is that of asample.
type SampleResult struct {
	Sequences      []Sequence
	PromptLogprobs []float32 // NaN where not scored; nil when not asked for
	TopKPrompt     *TopK
	CachedTokens   int
	Seed           uint64 // given or drawn
}

type (
	// Sequence is one sample.
	Sequence = engine.Sequence
	// TopK is a table of best tokens.
	TopK = engine.TopK
)

// Sample asks for samples. Errors of the sampler's name come at once; everything
// else ends the future.
func (a *Appliance) Sample(req SampleRequest) (Ticket, error) {
	s, err := a.sampler(req.SamplerID)
	if err != nil {
		return Ticket{}, err
	}
	switch {
	case req.Seq < 0:
		return Ticket{}, Problemf(CodeUser, "asample: seq_id %d is negative", req.Seq)
	case req.Count < 1 || req.Count > maxSamples:
		return Ticket{}, Problemf(CodeUser, "asample: num_samples is %d; give 1 to %d", req.Count, maxSamples)
	}
	a.touchSession(s.rec.SessionID)
	sum := req.digest()
	s.mu.Lock()
	if e, ok := s.seen[req.Seq]; ok {
		s.mu.Unlock()
		if e.sum != sum {
			return Ticket{}, Problemf(CodeConflict, "asample: number %d of sampler %s was used by another request", req.Seq, s.rec.ID).
				WithHint("a repeat must have the same content, a new request a new number")
		}
		return sampleTicket(e.id, req), nil
	}
	if a.openFutures(KindSample) >= maxOpenSamples {
		s.mu.Unlock()
		return Ticket{}, Problemf(CodeBusy, "asample: %d requests wait already", maxOpenSamples).WithHint("wait for some to finish")
	}
	f := a.newFuture(KindSample, s.rec.ID, req.Seq, sum, a.sampleReason)
	f.expire = func() { s.forget(req.Seq) }
	s.seen[req.Seq] = entry{sum, f.id}
	s.mu.Unlock()
	a.startSample(s, f, req)
	return sampleTicket(f.id, req), nil
}

func (s *sampler) forget(seq int64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.seen, seq)
}

func sampleTicket(id string, req SampleRequest) Ticket {
	t := Ticket{RequestID: id, Sequences: make([]string, req.Count)}
	for i := range t.Sequences {
		t.Sequences[i] = fmt.Sprintf("%s:%d:%d", req.SamplerID, req.Seq, i)
	}
	return t
}

// sampleReason says in words what samples wait for.
func (a *Appliance) sampleReason() string {
	q := a.eng.Queue()
	training := "no run trains"
	if q.Training || q.LanesWaiting > 0 {
		training = fmt.Sprintf("training of %s shares the device", count(max(1, q.LanesWaiting), "run"))
	}
	return fmt.Sprintf("%s being sampled, %d waiting; %s", count(q.SamplesActive, "sequence"), q.SamplesWaiting, training)
}

// startSample hands a request to the engine, at once if the weights are there.
func (a *Appliance) startSample(s *sampler, f *future, req SampleRequest) {
	if err := req.check(); err != nil {
		a.settle(f, nil, err)
		return
	}
	w, ended := s.take(a.now())
	switch {
	case ended != nil:
		a.settle(f, nil, ended)
	case w != nil:
		a.sample(s, w, f, req)
	default:
		go a.sampleLater(s, f, req)
	}
}

// sampleLater brings the weights in first.
func (a *Appliance) sampleLater(s *sampler, f *future, req SampleRequest) {
	ctx, cancel := a.untilClosing()
	defer cancel()
	for {
		s.load.Lock()
		err := a.onOwner(ctx, func() error { return a.bringIn(s) })
		s.load.Unlock()
		if err != nil {
			a.settle(f, nil, err)
			return
		}
		w, ended := s.take(a.now())
		if ended != nil {
			a.settle(f, nil, ended)
			return
		}
		if w != nil {
			a.sample(s, w, f, req)
			return
		}
		// Another request needed the memory before this one could take it.
	}
}

// untilClosing ends when the appliance does.
func (a *Appliance) untilClosing() (context.Context, context.CancelFunc) {
	ctx, cancel := context.WithCancel(context.Background())
	go func() {
		select {
		case <-a.closing:
			cancel()
		case <-ctx.Done():
		}
	}()
	return ctx, cancel
}

// sample queues a request with its weights.
func (a *Appliance) sample(s *sampler, w *engine.Weights, f *future, req SampleRequest) {
	p := engine.SampleParams{Temperature: req.Temperature, TopK: req.TopK, TopP: req.TopP}
	if req.MaxTokens != nil {
		p.MaxTokens = *req.MaxTokens
	}
	if st := req.Stop; st != nil {
		p.StopStrings, p.StopIDs = st.Strings, st.IDs
		p.NoEOS = len(st.Strings) == 0 && len(st.IDs) == 0
	}
	if req.Seed != nil {
		p.Seed = *req.Seed
	} else {
		seed, err := randomSeed()
		if err != nil {
			s.put(w)
			a.settle(f, nil, err)
			return
		}
		p.Seed = seed
	}
	er := engine.SampleRequest{Weights: w, Prompt: req.Prompt, Count: req.Count, Params: p,
		PromptLogprobs: req.PromptLogprobs, TopKPrompt: req.TopKPrompt, TopKSample: req.TopKSample}
	fail := func(err error) {
		s.put(w)
		a.settle(f, nil, err)
	}
	began := a.now()
	er.Done = func(res *engine.SampleResult, err error) { // owner
		if noFit(err) && a.makeRoom() {
			if err = a.eng.Sample(er); err == nil {
				return
			}
		}
		if err != nil {
			fail(err)
			return
		}
		s.put(w)
		out := sampleResult(res, req, p.Seed)
		a.traceSample(s, f, began)
		a.meterSamples(s, len(req.Prompt), out)
		a.settle(f, out, nil)
	}
	if err := a.eng.Sample(er); err != nil {
		fail(err)
	}
}

// sampleResult is the engine's, with unasked positions of the prompt blanked.
func sampleResult(res *engine.SampleResult, req SampleRequest, seed uint64) *SampleResult {
	out := &SampleResult{Sequences: res.Sequences, PromptLogprobs: res.PromptLogprobs, TopKPrompt: res.TopKPrompt, CachedTokens: res.CachedTokens, Seed: seed}
	if req.LastN == nil {
		return out
	}
	skip := len(req.Prompt) - *req.LastN
	if out.PromptLogprobs != nil {
		out.PromptLogprobs = slices.Clone(out.PromptLogprobs)
		for i := range min(skip, len(out.PromptLogprobs)) {
			out.PromptLogprobs[i] = float32(math.NaN())
		}
	}
	if t := out.TopKPrompt; t != nil {
		out.TopKPrompt = &TopK{K: t.K, IDs: slices.Clone(t.IDs), Logprobs: slices.Clone(t.Logprobs)}
		for i := range min(skip*t.K, len(t.IDs)) {
			out.TopKPrompt.IDs[i], out.TopKPrompt.Logprobs[i] = 0, noLogprob
		}
	}
	return out
}

// noLogprob fills the cells of a table that hold nothing.
const noLogprob = -99999

// EngineStats are the engine's counters.
type EngineStats = engine.Stats

// DeviceInfo describes the device.
type DeviceInfo = kernels.Info
