package httpapi

import (
	"context"
	"encoding/json"
	"errors"
	"net/http"

	"github.com/gin-gonic/gin"

	"smolgym/appliance"
	"smolgym/httpapi/wire"
)

// Bodies of POST /smolgym/v1/chat. The answer is a stream of JSON objects, one a line.
type (
	// ChatRequest asks a model or checkpoint to go on with a conversation.
	ChatRequest struct {
		Model       string        `json:"model" wire:"required"` // a name, or tinker://…
		Messages    []ChatMessage `json:"messages" wire:"required"`
		MaxTokens   int           `json:"max_tokens,omitempty"`  // 0: 512
		Temperature float64       `json:"temperature,omitempty"` // 0: greedy
		TopP        float64       `json:"top_p,omitempty"`       // 0: off
		Seed        *int64        `json:"seed,omitempty"`
	}
	// ChatMessage is one turn.
	ChatMessage struct {
		Role    string `json:"role" wire:"required"`
		Content string `json:"content"`
	}
	// ChatEvent is one line of the answer: start, then text any number of times,
	// then end or error.
	ChatEvent struct {
		Type         string `json:"type"`
		Plain        bool   `json:"plain,omitempty"`         // start: there is no chat template, so the text is gone on with
		PromptTokens int    `json:"prompt_tokens,omitempty"` // start
		Text         string `json:"text,omitempty"`          // text
		Tokens       int    `json:"tokens,omitempty"`        // end
		Finish       string `json:"finish,omitempty"`        // end: stop or length
		Seed         uint64 `json:"seed,omitempty"`          // end
		Detail       string `json:"detail,omitempty"`        // error
	}
)

// chat streams an answer. What goes wrong before the first line has a status.
func (s *server) chat(c *gin.Context) {
	body, err := s.body(c, maxPrompt)
	var req ChatRequest
	if err == nil {
		err = wire.DecodeJSON(body, &req)
	}
	if err != nil {
		s.fail(c, err)
		return
	}
	q := appliance.ChatRequest{Model: req.Model, MaxTokens: req.MaxTokens, Temperature: req.Temperature, TopP: req.TopP}
	for _, m := range req.Messages {
		q.Messages = append(q.Messages, appliance.ChatMessage(m))
	}
	if req.Seed != nil {
		seed := uint64(*req.Seed)
		q.Seed = &seed
	}
	line := func(e ChatEvent) error {
		raw, err := json.Marshal(e)
		if err != nil {
			return err
		}
		if _, err = c.Writer.Write(append(raw, '\n')); err == nil {
			c.Writer.Flush()
		}
		return err
	}
	end, err := s.box.Chat(c.Request.Context(), q, func(st appliance.ChatStart) error {
		c.Header("Content-Type", "application/x-ndjson")
		c.Header("Cache-Control", "no-store")
		c.Status(http.StatusOK)
		return line(ChatEvent{Type: "start", Plain: st.Plain, PromptTokens: st.PromptTokens})
	}, func(text string) error { return line(ChatEvent{Type: "text", Text: text}) })
	switch {
	case errors.Is(err, context.Canceled) || c.Request.Context().Err() != nil: // nobody listens
	case err != nil && !c.Writer.Written():
		s.fail(c, err)
	case err != nil:
		_, text := statusOf(err)
		s.log.Error("chat broke off", "model", req.Model, "error", causes(err))
		_ = line(ChatEvent{Type: "error", Detail: text}) // the client may have gone
	default:
		finish := "length"
		if end.Stopped {
			finish = "stop"
		}
		_ = line(ChatEvent{Type: "end", Tokens: end.Tokens, Finish: finish, Seed: end.Seed}) // the same
	}
}
