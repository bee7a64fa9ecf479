package wire

import (
	"errors"
	"fmt"
	"math"

	"google.golang.org/protobuf/encoding/protowire"
)

// StopReason says why a sample ended. There are only these two.
type StopReason int32

// Reasons to stop.
const (
	StopStop   StopReason = 0 // a stop token or string, or an end token of the model
	StopLength StopReason = 1 // max_tokens or the end of the context
)

// MissingLogprob fills the cells of a TopkLogprobs that have no token; their id is 0.
const MissingLogprob float32 = -99999.0

// SampleResponse is the result of asample.
type SampleResponse struct {
	Sequences            []SampledSequence
	PromptLogprobs       []float32     // nil if not asked, else one per prompt token, NaN where not scored
	TopkPromptLogprobs   *TopkLogprobs // nil if not asked, else one row per prompt token, best first
	PromptCacheHitTokens int32
	TargetPromptLogprobs *Tensor // nil if not asked, else Float32 in the shape and layout of the request's tensor
	PromptAltTokens      *PromptAltTokens
}

// SampledSequence is one of the samples.
type SampledSequence struct {
	StopReason   StopReason
	Tokens       []int32
	Logprobs     []float32 // one per token, of the distribution at temperature 1
	TopkLogprobs *TopkLogprobs
}

// TopkLogprobs is a table of the K best tokens at each of Length positions, [Length,K] row-major.
type TopkLogprobs struct {
	Length, K int
	TokenIDs  []int32
	Logprobs  []float32
}

// PromptAltTokens are tokens drawn at each prompt position after the first.
type PromptAltTokens struct {
	Tokens   Tensor // Int64 [P-1,k]
	Logprobs Tensor // Float32 [P-1,k]
}

// EncodeSampleResponse writes the protobuf result. Equal responses give equal bytes.
func EncodeSampleResponse(r *SampleResponse) ([]byte, error) {
	var b []byte
	for i, s := range r.Sequences {
		msg, err := encodeSequence(s)
		if err != nil {
			return nil, fmt.Errorf("encode sample response: sequence %d: %w", i, err)
		}
		b = appendBytesField(b, 1, msg)
	}
	if r.PromptLogprobs != nil {
		b = appendBytesField(b, 2, float32Bytes(r.PromptLogprobs))
	}
	if r.TopkPromptLogprobs != nil {
		msg, err := encodeTopk(r.TopkPromptLogprobs)
		if err != nil {
			return nil, fmt.Errorf("encode sample response: topk_prompt_logprobs: %w", err)
		}
		b = appendBytesField(b, 3, msg)
	}
	b = appendVarintField(b, 4, int64(r.PromptCacheHitTokens))
	if t := r.TargetPromptLogprobs; t != nil {
		if err := t.check(); err != nil {
			return nil, fmt.Errorf("encode sample response: target_prompt_logprobs: %w", err)
		}
		b = appendBytesField(b, 5, appendTensor(nil, *t))
	}
	if alt := r.PromptAltTokens; alt != nil {
		if err := errors.Join(alt.Tokens.check(), alt.Logprobs.check()); err != nil {
			return nil, fmt.Errorf("encode sample response: prompt_alt_tokens: %w", err)
		}
		msg := appendBytesField(nil, 1, appendTensor(nil, alt.Tokens))
		b = appendBytesField(b, 6, appendBytesField(msg, 2, appendTensor(nil, alt.Logprobs)))
	}
	return b, nil
}

func encodeSequence(s SampledSequence) ([]byte, error) {
	if s.StopReason != StopStop && s.StopReason != StopLength {
		return nil, fmt.Errorf("stop reason %d is not one the client knows", s.StopReason)
	}
	if s.Logprobs != nil && len(s.Logprobs) != len(s.Tokens) {
		return nil, fmt.Errorf("%d logprobs for %d tokens", len(s.Logprobs), len(s.Tokens))
	}
	b := appendVarintField(nil, 1, int64(s.StopReason))
	if len(s.Tokens) > 0 {
		b = appendBytesField(b, 2, int32Bytes(s.Tokens))
	}
	if s.Logprobs != nil {
		b = appendBytesField(b, 3, float32Bytes(s.Logprobs))
	}
	if s.TopkLogprobs != nil {
		msg, err := encodeTopk(s.TopkLogprobs)
		if err != nil {
			return nil, fmt.Errorf("topk_sampled_logprobs: %w", err)
		}
		b = appendBytesField(b, 4, msg)
	}
	return b, nil
}

func (t *TopkLogprobs) check() error {
	n, err := elements([]int{t.Length, t.K})
	if err == nil && (len(t.TokenIDs) != n || len(t.Logprobs) != n) {
		err = fmt.Errorf("table of %d by %d holds %d ids and %d logprobs", t.Length, t.K, len(t.TokenIDs), len(t.Logprobs))
	}
	return err
}

func encodeTopk(t *TopkLogprobs) ([]byte, error) {
	if err := t.check(); err != nil {
		return nil, err
	}
	var b []byte
	if len(t.TokenIDs) > 0 {
		b = appendBytesField(b, 1, int32Bytes(t.TokenIDs))
		b = appendBytesField(b, 2, float32Bytes(t.Logprobs))
	}
	b = appendVarintField(b, 3, int64(t.K))
	return appendVarintField(b, 4, int64(t.Length)), nil
}

// DecodeSampleResponse reads a result as the SDK does.
func DecodeSampleResponse(body []byte) (*SampleResponse, error) {
	r := &SampleResponse{}
	err := eachField(body, func(f field) error {
		if f.num == 4 {
			v, err := f.varint()
			r.PromptCacheHitTokens = int32(v)
			return named("prompt_cache_hit_tokens", err)
		}
		if f.num < 1 || f.num > 6 {
			return nil
		}
		msg, err := f.message()
		if err != nil {
			return err
		}
		return r.decodePart(f.num, msg)
	})
	if err != nil {
		return nil, &malformed{what: "sample response", err: err}
	}
	return r, nil
}

func (r *SampleResponse) decodePart(num protowire.Number, msg []byte) (err error) {
	switch num {
	case 1:
		s, err := decodeSequence(msg)
		r.Sequences = append(r.Sequences, s)
		return named(fmt.Sprintf("sequence %d", len(r.Sequences)-1), err)
	case 2:
		r.PromptLogprobs, err = wholeFloats(msg)
		return named("prompt_logprobs", err)
	case 3:
		r.TopkPromptLogprobs, err = decodeTopk(msg)
		return named("topk_prompt_logprobs", err)
	case 5:
		t, err := decodeCheckedTensor(msg)
		r.TargetPromptLogprobs = &t
		return named("target_prompt_logprobs", err)
	case 6:
		r.PromptAltTokens = &PromptAltTokens{}
		return named("prompt_alt_tokens", eachField(msg, func(f field) error {
			if f.num != 1 && f.num != 2 {
				return nil
			}
			part, err := f.message()
			if err != nil {
				return err
			}
			t, err := decodeCheckedTensor(part)
			if f.num == 1 {
				r.PromptAltTokens.Tokens = t
			} else {
				r.PromptAltTokens.Logprobs = t
			}
			return err
		}))
	}
	return nil
}

// decodeCheckedTensor keeps a sparse tensor sparse, with its indices checked.
func decodeCheckedTensor(msg []byte) (Tensor, error) {
	t, err := decodeTensor(msg)
	if err == nil {
		err = t.check()
	}
	return t, err
}

func decodeSequence(msg []byte) (s SampledSequence, err error) {
	err = eachField(msg, func(f field) error {
		if f.num == 1 {
			v, err := f.varint()
			s.StopReason = StopReason(int32(v))
			return named("stop_reason", err)
		}
		if f.num < 2 || f.num > 4 {
			return nil
		}
		part, err := f.message()
		if err != nil {
			return err
		}
		switch f.num {
		case 2:
			s.Tokens, err = wholeInts(part)
			return named("tokens", err)
		case 3:
			s.Logprobs, err = wholeFloats(part)
			return named("logprobs", err)
		}
		s.TopkLogprobs, err = decodeTopk(part)
		return named("topk_sampled_logprobs", err)
	})
	return s, err
}

func decodeTopk(msg []byte) (*TopkLogprobs, error) {
	t := &TopkLogprobs{}
	err := eachField(msg, func(f field) (err error) {
		switch f.num {
		case 1, 2:
			part, err := f.message()
			if err != nil {
				return err
			}
			if f.num == 1 {
				t.TokenIDs, err = wholeInts(part)
			} else {
				t.Logprobs, err = wholeFloats(part)
			}
			return err
		case 3, 4:
			v, err := f.varint()
			if v < 0 || v > math.MaxInt32 {
				return fmt.Errorf("dimension %d is out of range", v)
			}
			if f.num == 3 {
				t.K = int(v)
			} else {
				t.Length = int(v)
			}
			return err
		}
		return nil
	})
	if err == nil {
		err = t.check()
	}
	return t, err
}

func wholeFloats(raw []byte) ([]float32, error) {
	if len(raw)%4 != 0 {
		return nil, fmt.Errorf("%d bytes are not a whole number of float32 values", len(raw))
	}
	return float32s(raw), nil
}

func wholeInts(raw []byte) ([]int32, error) {
	if len(raw)%4 != 0 {
		return nil, fmt.Errorf("%d bytes are not a whole number of int32 values", len(raw))
	}
	return appendInt32s(make([]int32, 0, len(raw)/4), raw), nil
}
