package appliance

import (
	"context"
	"fmt"
	"math"
	"slices"

	"smolgym/appliance/engine"
	"smolgym/kernels"
)

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
	LastN          *int     // of prompt logprobs and the prompt's table: only the last n tokens
	Targets        *Targets // tokens to score at the prompt's positions
	AltTokens      int      // tokens to draw at each of them
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
	req.Targets.hash(h)
	h.int(int64(req.AltTokens))
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
	case req.AltTokens < 0 || req.AltTokens > 0 && len(req.Prompt) > maxTargets/req.AltTokens:
		return bad("prompt_alt_tokens_k %d for a prompt of %d tokens is out of range; give 0 to %d", req.AltTokens, len(req.Prompt), maxTargets/len(req.Prompt))
	}
	if err := req.Targets.check(len(req.Prompt)); err != nil {
		return bad("%v", err)
	}
	return nil
}

// SampleResult is that of asample.
type SampleResult struct {
	Sequences      []Sequence
	PromptLogprobs []float32 // NaN where not scored; nil when not asked for
	TopKPrompt     *TopK
	Targets        *TargetLogprobs // nil when not asked for
	AltTokens      []int32         // [len(Prompt)-1,AltK]
	AltLogprobs    []float32       // of AltTokens
	AltK           int             // 0 when not asked for
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
	if id, err := s.repeat(req.Seq, sum); id != "" || err != nil {
		return sampleTicket(id, req), err
	}
	if err := a.accept(s, req.Seq); err != nil {
		return Ticket{}, err
	}
	s.mu.Lock()
	if id, err := s.repeatLocked(req.Seq, sum); id != "" || err != nil { // the same at the same moment
		s.mu.Unlock()
		return sampleTicket(id, req), err
	}
	f, err := a.newSample(s, req, sum)
	if err != nil {
		s.mu.Unlock()
		s.clone(req.Seq/cloneStride, a.now()).close(req.Seq)
		return Ticket{}, err
	}
	s.seen[req.Seq] = entry{sum, f.id}
	s.mu.Unlock()
	a.startSample(s, f, req)
	return sampleTicket(f.id, req), nil
}

// repeat is the id of a request that came before, empty for a new one.
func (s *sampler) repeat(seq int64, sum digest) (string, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.repeatLocked(seq, sum)
}

// repeatLocked is repeat with mu held.
func (s *sampler) repeatLocked(seq int64, sum digest) (string, error) {
	e, ok := s.seen[seq]
	if ok && e.sum != sum {
		return "", Problemf(CodeConflict, "asample: number %d of sampler %s was used by another request", seq, s.rec.ID).
			WithHint("a repeat must have the same content, a new request a new number")
	}
	return e.id, nil
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
		if a.canceled(f) {
			a.settle(f, nil, engine.ErrCanceled)
			return
		}
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
		PromptLogprobs: req.PromptLogprobs, TopKPrompt: req.TopKPrompt, TopKSample: req.TopKSample,
		Targets: req.Targets.dense(), AltTokens: req.AltTokens}
	if req.LastN != nil && req.Targets == nil && req.AltTokens == 0 { // those are for all positions
		er.LastN = *req.LastN
	}
	fail := func(err error) {
		s.put(w)
		a.settle(f, nil, err)
	}
	began := a.now()
	er.Done = func(res *engine.SampleResult, err error) { // owner
		if noFit(err) && a.makeRoom() {
			var held *engine.Pending
			if held, err = a.eng.Begin(er); err == nil {
				a.begun(f, held)
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
	held, err := a.eng.Begin(er)
	if err != nil {
		fail(err)
		return
	}
	a.begun(f, held)
}

// sampleResult is the engine's, with unasked positions of the prompt blanked.
func sampleResult(res *engine.SampleResult, req SampleRequest, seed uint64) *SampleResult {
	out := &SampleResult{Sequences: res.Sequences, PromptLogprobs: res.PromptLogprobs, TopKPrompt: res.TopKPrompt,
		Targets: req.Targets.answer(res.TargetLogprobs), AltTokens: res.AltTokens, AltLogprobs: res.AltLogprobs, AltK: req.AltTokens,
		CachedTokens: res.CachedTokens, Seed: seed}
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
