package appliance

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"

	"smolgym/appliance/engine"
	"smolgym/store"
	"smolgym/tokenizer"
)

// ChatMessage is one turn of a conversation.
type ChatMessage struct {
	Role    string `json:"role"` // system, user or assistant, as the template has it
	Content string `json:"content"`
}

// ChatRequest asks a model or checkpoint to go on with a conversation, token by token.
type ChatRequest struct {
	Model       string // a model's name, or a checkpoint's path
	Messages    []ChatMessage
	MaxTokens   int     // 0: 512
	Temperature float64 // 0: greedy
	TopP        float64 // 0: off
	Seed        *uint64 // nil: random
}

// ChatStart is known before the first token.
type ChatStart struct {
	Plain        bool // the model has no chat template: the messages' text is gone on with
	PromptTokens int
}

// ChatEnd is known after the last token.
type ChatEnd struct {
	Tokens  int
	Stopped bool // the model ended its turn; else the length did
	Seed    uint64
}

// The bounds of a chat's answer, in tokens.
const (
	chatTokens    = 512
	maxChatTokens = 1 << 16
)

// Chat samples one answer. begin is called once before the first text, then emit
// with every piece of it; an error of either, or the context's end, gives the
// request up.
func (a *Appliance) Chat(ctx context.Context, req ChatRequest, begin func(ChatStart) error, emit func(text string) error) (ChatEnd, error) {
	if err := req.check(); err != nil {
		return ChatEnd{}, err
	}
	s, err := a.chatSampler(req.Model)
	if err != nil {
		return ChatEnd{}, err
	}
	tok, err := a.tokenizerOf(s.rec.BaseModel)
	if err != nil {
		return ChatEnd{}, err
	}
	p, err := a.chatPrompt(ctx, s.rec.BaseModel, tok, req.Messages)
	if err != nil {
		return ChatEnd{}, err
	}
	seed, err := randomSeed()
	if err != nil {
		return ChatEnd{}, problemOf("chat", err)
	}
	if seed >>= 11; req.Seed != nil { // drawn ones fit a JSON number
		seed = *req.Seed
	}
	w, err := a.weightsOf(ctx, s)
	if err != nil {
		return ChatEnd{}, problemOf("chat with "+req.Model, err)
	}
	defer s.put(w)
	c := &chatting{a: a, tok: tok, stops: append(p.stops, w.Base().Info().EOS...), news: make(chan int32, req.MaxTokens+1), done: make(chan error, 1)}
	c.req = engine.SampleRequest{Weights: w, Prompt: p.ids, Count: 1, Params: engine.SampleParams{Seed: seed, Temperature: req.Temperature, TopP: req.TopP, StopIDs: p.stops}}
	if room := w.Base().Info().Context - len(p.ids); room < 1 {
		return ChatEnd{}, Problemf(CodeUser, "chat with %s: the conversation has %d tokens, the context is %d", req.Model, len(p.ids), w.Base().Info().Context).
			WithHint("begin a new conversation, or raise --context when the model has more")
	} else {
		c.req.Params.MaxTokens = min(req.MaxTokens, room)
	}
	if err := begin(ChatStart{p.plain, len(p.ids)}); err != nil {
		return ChatEnd{}, err
	}
	res, err := c.run(ctx, emit)
	if err != nil {
		return ChatEnd{}, problemOf("chat with "+req.Model, err)
	}
	a.meterSamples(s, len(p.ids), &SampleResult{Sequences: res.Sequences, CachedTokens: res.CachedTokens})
	return ChatEnd{Tokens: len(res.Sequences[0].Tokens), Stopped: res.Sequences[0].Stopped, Seed: seed}, nil
}

// check fills in what was left out.
func (req *ChatRequest) check() error {
	bad := func(format string, args ...any) error { return Problemf(CodeUser, "chat: "+format, args...) }
	if req.MaxTokens == 0 {
		req.MaxTokens = chatTokens
	}
	if req.TopP == 0 {
		req.TopP = 1
	}
	switch {
	case len(req.Messages) == 0:
		return bad("there are no messages; give at least one")
	case req.MaxTokens < 1 || req.MaxTokens > maxChatTokens:
		return bad("max_tokens is %d; give 1 to %d", req.MaxTokens, maxChatTokens)
	case !(req.Temperature >= 0 && req.Temperature < 1e6):
		return bad("temperature is %v; give 0 (greedy) or more", req.Temperature)
	case !(req.TopP > 0 && req.TopP <= 1):
		return bad("top_p is %v; give more than 0, up to 1 (off)", req.TopP)
	}
	for i, m := range req.Messages {
		if m.Role == "" {
			return bad("message %d has no role; give system, user or assistant", i)
		}
	}
	return nil
}

// chatSampler finds or makes the sampler of a model or checkpoint that chats
// share. It has no record and no session; its weights leave the device when others
// need the memory.
func (a *Appliance) chatSampler(model string) (*sampler, error) {
	rec := store.Sampler{Created: a.now()}
	if strings.HasPrefix(model, "tinker://") {
		cp, err := a.Checkpoint(model)
		if err != nil {
			return nil, err
		}
		if cp.Kind == store.KindExternal {
			return nil, Problemf(CodeUser, "checkpoint %s is an export and can't be sampled from", model).WithHint("use one of kind sampler_weights or weights")
		}
		rec.ModelPath, rec.RunID, rec.BaseModel = cp.Path(), cp.RunID, cp.BaseModel
		// A checkpoint of that name that comes later is another one.
		rec.ID = fmt.Sprintf("chat:%s@%d", cp.Path(), cp.Created.UnixNano())
	} else {
		rec.BaseModel = model
	}
	m, err := a.model(rec.BaseModel)
	if err != nil {
		return nil, err
	}
	if rec.BaseModel = m.Name; rec.ID == "" {
		rec.ID = "chat:" + m.Name
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	s := a.samplers[rec.ID]
	if s == nil {
		s = a.newSampler(rec)
		a.samplers[rec.ID] = s
	}
	return s, nil
}

// weightsOf brings a sampler's weights in and holds them; the caller puts them back.
func (a *Appliance) weightsOf(ctx context.Context, s *sampler) (*engine.Weights, error) {
	for {
		s.load.Lock()
		err := a.onOwner(ctx, func() error { return a.bringIn(s) })
		s.load.Unlock()
		if err != nil {
			return nil, err
		}
		w, ended := s.take(a.now())
		if ended != nil {
			return nil, ended
		}
		if w != nil {
			return w, nil
		}
		// Another request needed the memory before this one could take it.
	}
}

// chatting is one answer on its way.
type chatting struct {
	a     *Appliance
	req   engine.SampleRequest
	tok   *tokenizer.Tokenizer
	stops []int32    // tokens that end a turn and aren't text
	news  chan int32 // holds every token there can be: the owner never waits
	done  chan error
	res   *engine.SampleResult

	mu   sync.Mutex // guards held
	held *engine.Pending
}

// begin hands the request to the engine, or hands it in again.
func (c *chatting) begin() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	held, err := c.a.eng.Watch(c.req, c.token)
	if err == nil {
		c.held = held
	}
	return err
}

func (c *chatting) cancel() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.held.Cancel()
}

// run samples and emits text until the sample ends.
func (c *chatting) run(ctx context.Context, emit func(string) error) (*engine.SampleResult, error) {
	c.req.Done = func(res *engine.SampleResult, err error) { // owner
		if noFit(err) && c.a.makeRoom() && c.begin() == nil {
			return
		}
		c.res = res
		c.done <- err
	}
	if err := c.begin(); err != nil {
		return nil, err
	}
	stream := c.tok.NewStream(true)
	var failed error
	say := func(text string) {
		if failed == nil && text != "" {
			if failed = emit(text); failed != nil {
				c.cancel()
			}
		}
	}
	gone := ctx.Done()
	for {
		select {
		case id := <-c.news:
			if !slices.Contains(c.stops, id) {
				say(stream.Push(id))
			}
		case err := <-c.done:
			for len(c.news) > 0 {
				if id := <-c.news; !slices.Contains(c.stops, id) {
					say(stream.Push(id))
				}
			}
			if failed == nil && ctx.Err() != nil {
				failed = ctx.Err()
			}
			if err == nil {
				say(stream.Flush())
			}
			if failed != nil {
				err = failed
			}
			return c.res, err
		case <-gone:
			c.cancel()
			gone = nil // Done comes next
		}
	}
}

func (c *chatting) token(_ int, id int32) { c.news <- id }

// chatPrompt is what a conversation is as tokens.
type chatPrompt struct {
	ids   []int32
	stops []int32 // beside the model's end tokens
	plain bool
}

// beginning is what the post-processor puts before a text.
func beginning(tok *tokenizer.Tokenizer) []int32 {
	bare := tok.Encode("a", false)
	whole := tok.Encode("a", true)
	for n := 0; n+len(bare) <= len(whole); n++ {
		if slices.Equal(whole[n:n+len(bare)], bare) {
			return whole[:n]
		}
	}
	return nil
}
