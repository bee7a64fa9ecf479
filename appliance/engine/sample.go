package engine

import (
	"fmt"
	"math"
	"slices"

	"smolgym/tokenizer"
)

// job is one sample request on its way.
type job struct {
	SampleRequest
	weights *Weights
	limit   int // new tokens a sample may have

	prompt  *sequence // prefills; nil when done
	shared  []int32   // full pages of the prompt, held until every sample has begun
	partial int32     // a copy of the prompt's last page when that is not full and samples are to share it; else -1
	row     []float32 // logits after the prompt [vocabulary]
	lse     float32
	begun   int // samples started
	result  SampleResult
	left    int // samples not finished
	ended   bool
}

// sequence is a prompt being prefilled or a sample being decoded.
type sequence struct {
	j      *job
	index  int     // sample number, -1 for the prompt
	feed   []int32 // tokens to run through the model next
	cached int     // tokens whose keys and values are in the cache
	pages  []int32
	stop   *tokenizer.StopMatcher
	out    Sequence
}

// limit is the room for new tokens.
func (r *SampleRequest) limit() int {
	room := r.Weights.b.info.Context - len(r.Prompt)
	if r.Params.MaxTokens > 0 {
		return min(room, r.Params.MaxTokens)
	}
	return room
}

// check finds everything wrong with a request.
func (r *SampleRequest) check() error {
	info, p := r.Weights.b.info, r.Params
	switch {
	case len(r.Prompt) == 0:
		return fmt.Errorf("prompt is empty: give it at least one token")
	case r.Count < 1 || r.Count > 4096:
		return fmt.Errorf("num_samples is %d, takes 1 to 4096", r.Count)
	case p.MaxTokens < 0:
		return fmt.Errorf("max_tokens is %d, takes 1 or more", p.MaxTokens)
	case len(r.Prompt)+max(p.MaxTokens, 1) > info.Context:
		want := "at least one new token"
		if p.MaxTokens > 0 {
			want = fmt.Sprintf("max_tokens %d", p.MaxTokens)
		}
		return fmt.Errorf("the prompt has %d tokens and asks for %s, the context of %s is %d", len(r.Prompt), want, info.Name, info.Context)
	case math.IsNaN(p.Temperature) || p.Temperature < 0 || math.IsInf(p.Temperature, 0):
		return fmt.Errorf("temperature is %v, takes 0 (greedy) or more", p.Temperature)
	case math.IsNaN(p.TopP) || p.TopP <= 0:
		return fmt.Errorf("top_p is %v, takes more than 0, up to 1 (off)", p.TopP)
	case r.TopKPrompt < 0 || r.TopKPrompt > 256 || r.TopKSample < 0 || r.TopKSample > 256:
		return fmt.Errorf("topk logprobs take 0 to 256 tokens a position")
	case len(p.StopStrings) > 0 && r.Weights.b.tok == nil:
		return fmt.Errorf("stop strings need a tokenizer and %s has none: pass stop token ids", info.Name)
	}
	for i, s := range p.StopStrings {
		if s == "" {
			return fmt.Errorf("stop[%d] is an empty string", i)
		}
	}
	for i, id := range p.StopIDs {
		if id < 0 || int(id) >= info.Vocab {
			return fmt.Errorf("stop[%d] is token %d, outside the vocabulary of %d", i, id, info.Vocab)
		}
	}
	for i, id := range r.Prompt {
		if id < 0 || int(id) >= info.Vocab {
			return fmt.Errorf("prompt: token %d at position %d is outside the vocabulary of %d", id, i, info.Vocab)
		}
	}
	return nil
}

// Sample checks a request and queues it; Done is called later on the owner,
// once. It holds the weights until then. Any goroutine.
func (e *Engine) Sample(r SampleRequest) error {
	if err := r.check(); err != nil {
		return fmt.Errorf("%w: %w", ErrRequest, err)
	}
	j := &job{SampleRequest: r, weights: r.Weights.Retain(), limit: r.limit(), partial: -1, left: r.Count}
	j.result.Sequences = make([]Sequence, r.Count)
	if r.PromptLogprobs {
		j.result.PromptLogprobs = append(make([]float32, 0, len(r.Prompt)), float32(math.NaN()))
	}
	if r.TopKPrompt > 0 {
		j.result.TopKPrompt = &TopK{K: r.TopKPrompt}
		j.result.TopKPrompt.blank()
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.closed {
		j.weights.refs.Add(-1)
		return ErrClosed
	}
	e.incoming = append(e.incoming, j)
	e.signal()
	return nil
}

// scoresPrompt reports whether every row of the prompt is needed.
func (j *job) scoresPrompt() bool { return j.PromptLogprobs || j.TopKPrompt > 0 }

// stopper makes the matcher of one sample's stop strings, nil without any.
func (j *job) stopper() *tokenizer.StopMatcher {
	if len(j.Params.StopStrings) == 0 {
		return nil
	}
	return tokenizer.NewStopMatcher(j.weights.b.tok, j.Params.StopStrings, nil)
}

// stops reports whether a sample ends with id, its newest token.
func (s *sequence) stops(id int32) bool {
	p := &s.j.Params
	hit := s.stop != nil && s.stop.Push(id)
	return hit || slices.Contains(p.StopIDs, id) || !p.NoEOS && slices.Contains(s.j.weights.b.info.EOS, id)
}

// blankSequence is a sample before its first token.
func (j *job) blankSequence() Sequence {
	if j.TopKSample > 0 {
		return Sequence{TopK: &TopK{K: j.TopKSample}}
	}
	return Sequence{}
}
