package httpapi

import (
	"context"
	"net/http"
	"time"

	"github.com/gin-gonic/gin"

	"smolgym/appliance"
	"smolgym/httpapi/wire"
)

// sampleBody reads a sample request. One whose prompt has a part that isn't text is
// accepted and fails with the part's name, as the client expects of a request that
// is sound by itself.
func (s *server) sampleBody(c *gin.Context) (any, error) {
	body, err := s.body(c, maxPrompt)
	if err != nil {
		return nil, err
	}
	req := new(wire.SampleRequest)
	err = wire.DecodeJSON(body, req)
	var chunk *wire.UnsupportedChunkError
	if !asError(err, &chunk) {
		if err != nil {
			return nil, err
		}
		return s.sample(req, nil)
	}
	head := struct {
		SamplingSessionID string `json:"sampling_session_id" wire:"required"`
		SeqID             int64  `json:"seq_id" wire:"required"`
		NumSamples        int    `json:"num_samples"`
	}{NumSamples: 1}
	if err := wire.DecodeJSON(body, &head); err != nil {
		return nil, err
	}
	return s.sample(&wire.SampleRequest{SamplingSessionID: head.SamplingSessionID, SeqID: &head.SeqID, NumSamples: head.NumSamples}, chunk)
}

// sample asks for samples; refusal, if not nil, is why they can't be had.
func (s *server) sample(req *wire.SampleRequest, refusal error) (any, error) {
	if req.SamplingSessionID == "" {
		return nil, errorf(http.StatusBadRequest, "asample: sampling_session_id: missing; make a sampler with create_sampling_session")
	}
	p := req.SamplingParams
	q := appliance.SampleRequest{SamplerID: req.SamplingSessionID, Seq: *req.SeqID, Count: req.NumSamples, Prompt: req.Prompt.Tokens,
		MaxTokens: p.MaxTokens, Temperature: p.Temperature, TopK: p.TopK, TopP: p.TopP,
		PromptLogprobs: req.PromptLogprobs, TopKPrompt: req.TopkPromptLogprobs, TopKSample: req.TopkSampleLogprobs, LastN: req.PromptLogprobsLastN,
		AltTokens: req.PromptAltTokensK, Refusal: refusal}
	if p.Seed != nil {
		seed := uint64(*p.Seed)
		q.Seed = &seed
	}
	switch p.Stop.Kind {
	case wire.StopAtNothing:
		q.Stop = &appliance.Stop{}
	case wire.StopAtStrings, wire.StopAtTokens:
		q.Stop = &appliance.Stop{Strings: p.Stop.Strings, IDs: p.Stop.Tokens}
	}
	if t := req.TargetPromptLogprobs; t != nil {
		q.Targets = &appliance.Targets{Rows: t.Shape[0], Columns: t.Shape[1], IDs: t.I64}
		if t.CSR != nil {
			q.Targets.Crow, q.Targets.Col = t.CSR.Crow, t.CSR.Col
		}
	}
	return future(s.box.Sample(q))
}

// retrieveFutures waits a while for completions of a sampler's requests.
func (s *server) retrieveFutures(c *gin.Context, req *wire.RetrieveFuturesRequest) (any, error) {
	wait := s.opt.Hold
	if t := req.Timeout; t != nil {
		wait = 0
		if *t > 0 {
			wait = min(s.opt.Hold, time.Duration(min(*t, 3600)*float64(time.Second)))
		}
	}
	ctx, cancel := context.WithTimeout(c.Request.Context(), wait)
	defer cancel()
	done, cursor, err := s.box.Completions(ctx, appliance.CompletionsRequest{SamplerID: req.Target.SamplingSessionID,
		Clone: req.Target.ClonedSamplerID, Cursor: req.PrevCursor, Retrieved: req.RetrievedRequestIDs})
	if err != nil {
		return nil, err
	}
	out := wire.RetrieveFuturesResponse{Cursor: cursor}
	for _, d := range done {
		item := wire.Completion{State: "finished", RequestID: d.RequestID}
		switch {
		case d.Failed:
			item.State = "failed"
		case d.Size > 0:
			item.ResponsePayloadUncompressedSize = &d.Size
		}
		out.Completions = append(out.Completions, item)
	}
	return out, nil
}

// cancelFuture gives a sample up; it has nothing to say about what isn't there.
func (s *server) cancelFuture(_ *gin.Context, req *wire.CancelFutureRequest) (any, error) {
	s.box.Cancel(req.RequestID)
	return struct{}{}, nil
}

func (s *server) joinSampling(_ *gin.Context, req *wire.JoinSamplingSessionRequest) (any, error) {
	n, err := s.box.JoinSampler(req.SamplingSessionID)
	if err != nil {
		return nil, err
	}
	return wire.JoinSamplingSessionResponse{ClientCounter: n}, nil
}
