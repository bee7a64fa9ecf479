package appliance

import (
	"context"
	"encoding/json"
	"errors"
	"strings"

	"smolgym/tokenizer"
	"smolgym/tokenizer/chat"
)

// maxChatFile bounds the small files that a chat needs, in bytes.
const maxChatFile = 16 << 20

// tokenizerConfig is what tokenizer_config.json says about conversations.
type tokenizerConfig struct {
	template string
	special  map[string]string // bos_token and the like
}

// chatPrompt renders a conversation by the model's chat template. Text of the
// messages that spells a control token stays text. Without a template it is the
// messages' text, one after the other.
func (a *Appliance) chatPrompt(ctx context.Context, model string, tok *tokenizer.Tokenizer, messages []ChatMessage) (chatPrompt, error) {
	conf, err := a.tokenizerConfig(model)
	if err != nil {
		return chatPrompt{}, err
	}
	if conf.template == "" {
		p := chatPrompt{ids: beginning(tok), plain: true}
		var text strings.Builder
		for _, m := range messages {
			text.WriteString(m.Content)
		}
		if p.ids = append(p.ids, tok.EncodeOrdinary(text.String())...); len(p.ids) == 0 {
			return p, Problemf(CodeUser, "chat: %s has no chat template, and there is no text to go on with", model).WithHint("give some text")
		}
		return p, nil
	}
	tmpl, err := chat.Compile(conf.template)
	if err != nil {
		return chatPrompt{}, templateProblem(model, err)
	}
	in := chat.Input{AddGenerationPrompt: true, Special: conf.special, Now: a.now()}
	for _, m := range messages {
		in.Messages = append(in.Messages, m)
	}
	res, err := tmpl.Render(ctx, in)
	if err != nil {
		return chatPrompt{}, templateProblem(model, err)
	}
	p := chatPrompt{ids: tok.EncodeFunc(res.Text, res.Control)}
	if id, ok := tok.ID(conf.special["eos_token"]); ok {
		p.stops = append(p.stops, id) // it ends a turn, also where the model's own configuration lacks it
	}
	if len(p.ids) == 0 {
		return p, Problemf(CodeUser, "chat: the template of %s made no text of the messages", model)
	}
	return p, nil
}

// templateProblem is an error of a chat template for the user.
func templateProblem(model string, err error) error {
	for _, known := range []error{chat.ErrSyntax, chat.ErrRaised, chat.ErrLimit, chat.ErrInput, chat.ErrRender} {
		if errors.Is(err, known) {
			return Problemf(CodeUser, "chat template of %s: %v", model, err).Because(err)
		}
	}
	return problemOf("render the chat template of "+model, err)
}

// tokenizerConfig reads the chat template, a file of its own or a field, and the
// special tokens that templates may name.
func (a *Appliance) tokenizerConfig(model string) (c tokenizerConfig, err error) {
	m, src, err := a.modelFolder(model)
	if err != nil {
		return c, err
	}
	c.special = map[string]string{}
	text, ok, err := src.read("tokenizer_config.json", maxChatFile)
	if err != nil {
		return c, problemOf("read tokenizer_config.json of "+m.Name, err)
	}
	if ok {
		var fields map[string]json.RawMessage
		if err := json.Unmarshal(text, &fields); err != nil {
			return c, Problemf(CodeUser, "model %s: tokenizer_config.json: %v", m.Name, err).WithHint("add the model again with a sound one").Because(err)
		}
		c.template = templateOf(fields["chat_template"])
		for name, raw := range fields {
			if s, ok := tokenText(raw); ok && strings.HasSuffix(name, "_token") {
				c.special[name] = s
			}
		}
	}
	file, ok, err := src.read("chat_template.jinja", maxChatFile)
	if err != nil {
		return c, problemOf("read chat_template.jinja of "+m.Name, err)
	}
	if ok {
		c.template = string(file)
	}
	return c, nil
}

// templateOf reads a template: a text, or a list of named ones, of which the
// default one counts.
func templateOf(raw json.RawMessage) string {
	var one string
	if json.Unmarshal(raw, &one) == nil {
		return one
	}
	var list []struct{ Name, Template string }
	if json.Unmarshal(raw, &list) != nil {
		return ""
	}
	for _, t := range list {
		if t.Name == "default" {
			return t.Template
		}
	}
	return ""
}

// tokenText reads a token: a text, or an object with its content.
func tokenText(raw json.RawMessage) (string, bool) {
	var s string
	if json.Unmarshal(raw, &s) == nil {
		return s, s != ""
	}
	var o struct{ Content string }
	if json.Unmarshal(raw, &o) != nil {
		return "", false
	}
	return o.Content, o.Content != ""
}
