package wire

import (
	"errors"
	"fmt"
)

// SampleRequest is the body of asample.
type SampleRequest struct {
	SamplingSessionID    string         `json:"sampling_session_id,omitempty"`
	SeqID                *int64         `json:"seq_id,omitempty"` // from 0; near 1e18 for clones
	BaseModel            string         `json:"base_model,omitempty"`
	ModelPath            string         `json:"model_path,omitempty"`
	NumSamples           int            `json:"num_samples"`
	Prompt               Prompt         `json:"prompt" wire:"required"`
	SamplingParams       SamplingParams `json:"sampling_params" wire:"required"`
	PromptLogprobs       bool           `json:"prompt_logprobs"`
	TopkPromptLogprobs   int            `json:"topk_prompt_logprobs"`
	TopkSampleLogprobs   int            `json:"topk_sample_logprobs"`
	TargetPromptLogprobs *Tensor        `json:"target_prompt_logprobs,omitempty"` // Int64 [P-1,K], -1 asks nothing
	PromptAltTokensK     int            `json:"prompt_alt_tokens_k"`
	PromptLogprobsLastN  *int           `json:"prompt_logprobs_last_n,omitempty"` // 1 to P-1
	RecordStabilityInfo  bool           `json:"record_stability_info"`
}

func (r *SampleRequest) setDefaults() { r.NumSamples = 1 }

func (r *SampleRequest) check() error {
	switch {
	case r.SamplingSessionID == "" && r.BaseModel == "" && r.ModelPath == "":
		return at(".sampling_session_id", errors.New("missing"))
	case r.SamplingSessionID != "" && r.SeqID == nil:
		return at(".seq_id", errors.New("missing"))
	case r.SeqID != nil && *r.SeqID < 0:
		return at(".seq_id", fmt.Errorf("want 0 or more, got %d", *r.SeqID))
	case r.NumSamples < 1:
		return at(".num_samples", fmt.Errorf("want 1 or more, got %d", r.NumSamples))
	case r.TopkPromptLogprobs < 0:
		return at(".topk_prompt_logprobs", fmt.Errorf("want 0 or more, got %d", r.TopkPromptLogprobs))
	case r.TopkSampleLogprobs < 0:
		return at(".topk_sample_logprobs", fmt.Errorf("want 0 or more, got %d", r.TopkSampleLogprobs))
	case r.PromptAltTokensK < 0:
		return at(".prompt_alt_tokens_k", fmt.Errorf("want 0 or more, got %d", r.PromptAltTokensK))
	}
	positions := len(r.Prompt.Tokens) - 1
	if n := r.PromptLogprobsLastN; n != nil && (*n < 1 || *n > positions) {
		return at(".prompt_logprobs_last_n", fmt.Errorf("want 1 to %d (one less than the prompt), got %d", positions, *n))
	}
	if t := r.TargetPromptLogprobs; t != nil && (t.DType != Int64 || len(t.Shape) != 2 || t.Shape[0] != positions) {
		return at(".target_prompt_logprobs", fmt.Errorf("want int64 of shape [%d,K], got %v of shape %v", positions, t.DType, t.Shape))
	}
	return nil
}

// SamplingParams says how tokens are drawn.
type SamplingParams struct {
	MaxTokens   *int     `json:"max_tokens,omitempty"` // absent: until the context is full
	Seed        *Seed    `json:"seed,omitempty"`       // absent: drawn by the server
	Stop        StopSpec `json:"stop,omitzero"`
	Temperature float64  `json:"temperature"` // 0 is greedy
	TopK        int      `json:"top_k"`       // -1 is off
	TopP        float64  `json:"top_p"`
}

func (p *SamplingParams) setDefaults() { p.Temperature, p.TopK, p.TopP = 1, -1, 1 }

func (p *SamplingParams) check() error {
	switch {
	case p.MaxTokens != nil && *p.MaxTokens < 1:
		return at(".max_tokens", fmt.Errorf("want 1 or more, got %d", *p.MaxTokens))
	case p.Temperature < 0:
		return at(".temperature", fmt.Errorf("want 0 or more, got %v", p.Temperature))
	case p.TopK < -1 || p.TopK == 0:
		return at(".top_k", fmt.Errorf("want 1 or more, or -1 for off, got %d", p.TopK))
	case p.TopP <= 0 || p.TopP > 1:
		return at(".top_p", fmt.Errorf("want more than 0 and at most 1, got %v", p.TopP))
	}
	return nil
}

type (
	createSampling struct{}
	joinSampling   struct{}
)

func (createSampling) kind() string { return "create_sampling_session" }
func (joinSampling) kind() string   { return "join_sampling_session" }

// CreateSamplingSessionRequest asks for a sampler of a base model or of a checkpoint.
type CreateSamplingSessionRequest struct {
	SessionID            string `json:"session_id" wire:"required"`
	SamplingSessionSeqID int64  `json:"sampling_session_seq_id" wire:"required"`
	BaseModel            string `json:"base_model,omitempty"`
	ModelPath            string `json:"model_path,omitempty"`
}

func (r *CreateSamplingSessionRequest) check() error {
	if r.BaseModel == "" && r.ModelPath == "" {
		return at(".base_model", errors.New("missing; name a base_model or a model_path"))
	}
	return nil
}

// CreateSamplingSessionResponse names the sampler.
type CreateSamplingSessionResponse struct {
	Type              Const[createSampling] `json:"type"`
	SamplingSessionID string                `json:"sampling_session_id"`
}

// JoinSamplingSessionRequest asks for a clone number of a sampler.
type JoinSamplingSessionRequest struct {
	SamplingSessionID string `json:"sampling_session_id" wire:"required"`
}

// JoinSamplingSessionResponse gives the clone number, from 1.
type JoinSamplingSessionResponse struct {
	Type          Const[joinSampling] `json:"type"`
	ClientCounter int64               `json:"client_counter"`
}

// SamplerResponse describes a sampler.
type SamplerResponse struct {
	SamplerID string `json:"sampler_id"`
	BaseModel string `json:"base_model"`
	ModelPath string `json:"model_path,omitempty"`
}
