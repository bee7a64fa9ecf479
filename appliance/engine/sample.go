package engine

import (
	"fmt"
	"math"
	"slices"
	"sync/atomic"

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
	saved   int32     // slot with the recurrent state after the prompt, for later samples; noSlot without
	row     []float32 // logits after the prompt [vocabulary]
	lse     float32
	begun   int // samples started
	result  SampleResult
	left    int // samples not finished
	ended   bool
	started atomic.Bool
	watch   func(sample int, id int32) // called for every new token; may be nil
}

// sequence is a prompt being prefilled or a sample being decoded.
type sequence struct {
	j      *job
	index  int     // sample number, -1 for the prompt
	feed   []int32 // tokens to run through the model next
	cached int     // tokens whose keys and values are in the cache
	pages  []int32
	slot   int32 // row of recurrent state, noSlot without
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
	case r.LastN < 0 || r.LastN > 0 && r.LastN >= len(r.Prompt):
		return fmt.Errorf("prompt_logprobs_last_n is %d, takes 1 to %d for a prompt of %d tokens", r.LastN, len(r.Prompt)-1, len(r.Prompt))
	case r.AltTokens < 0 || r.AltTokens > 256:
		return fmt.Errorf("prompt_alt_tokens_k is %d, takes 0 to 256", r.AltTokens)
	case len(r.Targets) > 0 && (len(r.Prompt) < 2 || len(r.Targets)%(len(r.Prompt)-1) != 0):
		return fmt.Errorf("target_prompt_logprobs has %d entries, takes a whole number for each of the %d positions that predict a prompt token", len(r.Targets), len(r.Prompt)-1)
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
	for i, id := range r.Targets {
		if id < -1 || int(id) >= info.Vocab {
			return fmt.Errorf("target_prompt_logprobs: token %d at %d is outside the vocabulary of %d", id, i, info.Vocab)
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
	_, err := e.Begin(r)
	return err
}

// Begin is Sample for a caller that may give the request up.
func (e *Engine) Begin(r SampleRequest) (*Pending, error) { return e.Watch(r, nil) }

// Watch is Begin for a caller that wants the tokens as they come: watch is called
// on the owner, before Done, and must not block.
func (e *Engine) Watch(r SampleRequest, watch func(sample int, id int32)) (*Pending, error) {
	if err := r.check(); err != nil {
		return nil, fmt.Errorf("%w: %w", ErrRequest, err)
	}
	j := &job{SampleRequest: r, weights: r.Weights.Retain(), limit: r.limit(), partial: -1, saved: noSlot, left: r.Count, watch: watch}
	j.result.Sequences = make([]Sequence, r.Count)
	j.blankScores()
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.closed {
		j.weights.refs.Add(-1)
		return nil, ErrClosed
	}
	e.incoming = append(e.incoming, j)
	e.signal()
	return &Pending{e, j}, nil
}

// scoresPrompt reports whether rows of the prompt are needed.
func (j *job) scoresPrompt() bool {
	return j.PromptLogprobs || j.TopKPrompt > 0 || len(j.Targets) > 0 || j.AltTokens > 0
}

// firstScored is the first prompt token that is scored; that needs the row of
// the position before it.
func (j *job) firstScored() int {
	if j.LastN > 0 {
		return max(1, len(j.Prompt)-j.LastN)
	}
	return 1
}

// reusable is how many prompt tokens may come from the prefix cache: all but
// the last, whose row is the first sample's, and all rows that are scored.
func (j *job) reusable() int {
	if j.weights.b.cache.slots > 0 {
		return 0 // pages alone do not bring the recurrent state back
	}
	if j.scoresPrompt() {
		return j.firstScored() - 1
	}
	return len(j.Prompt) - 1
}

// remember names full pages for later prompts, unless they need a recurrent
// state that is not kept.
func (j *job) remember(tokens, pages []int32) {
	if c := j.weights.b.cache; c.slots == 0 {
		c.remember(j.weights.id(), tokens, pages)
	}
}

// blankScores prepares the tables that score fills.
func (j *job) blankScores() {
	n, r := len(j.Prompt), &j.result
	if j.PromptLogprobs {
		r.PromptLogprobs = make([]float32, n)
		for i := range r.PromptLogprobs {
			r.PromptLogprobs[i] = float32(math.NaN())
		}
	}
	if j.TopKPrompt > 0 {
		r.TopKPrompt = &TopK{K: j.TopKPrompt}
		for range j.firstScored() {
			r.TopKPrompt.blank()
		}
	}
	if len(j.Targets) > 0 {
		r.TargetLogprobs = make([]float32, len(j.Targets))
	}
	if j.AltTokens > 0 {
		r.AltTokens = make([]int32, (n-1)*j.AltTokens)
		r.AltLogprobs = make([]float32, (n-1)*j.AltTokens)
	}
}

// score takes the row after prompt position at: the distribution of the next
// prompt token.
func (j *job) score(at int, logits []float32, lse float32) {
	next, r := at+1, &j.result
	if next >= len(j.Prompt) || next < j.firstScored() {
		return
	}
	if j.PromptLogprobs {
		r.PromptLogprobs[next] = logits[j.Prompt[next]] - lse
	}
	if r.TopKPrompt != nil {
		r.TopKPrompt.best(logits, lse)
	}
	if k := len(j.Targets) / max(len(j.Prompt)-1, 1); k > 0 {
		for i := at * k; i < next*k; i++ {
			if id := j.Targets[i]; id >= 0 {
				r.TargetLogprobs[i] = logits[id] - lse
			}
		}
	}
	if j.AltTokens == 0 {
		return
	}
	d := newDraws(logits, j.weights.b.drawable(), j.Params)
	for i := range j.AltTokens {
		// Streams beyond the samples' own, so that no draw is made twice.
		id := d.draw(uniform(j.Params.Seed, -1-i, at))
		r.AltTokens[at*j.AltTokens+i] = id
		r.AltLogprobs[at*j.AltTokens+i] = logits[id] - lse
	}
}

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
