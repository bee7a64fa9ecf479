package appliance

import (
	"context"
	"encoding/json"
	"errors"
	"slices"
	"strings"
	"testing"
)

// letters are the tokens of speaking's tokenizer from id 3 on.
const letters = "abcdefghijklmnopqrstuvwxyz 0123456789<>/|:?.,!'\n-_()[]{}=+*^~"

const turns = "{% for m in messages %}<s>{{ m.role }}:{{ m.content }}</s>{% endfor %}{% if add_generation_prompt %}<s>assistant:{% endif %}"

// speaking adds a tokenizer of letters and, if it isn't empty, a chat template to the tiny model.
func speaking(t *testing.T, template string) map[string][]byte {
	t.Helper()
	vocab := map[string]int{"<pad>": 0, "<s>": 1, "</s>": 2}
	for _, c := range letters {
		vocab[string(c)] = len(vocab)
	}
	if len(vocab) != 64 {
		t.Fatalf("%d tokens, the model has 64", len(vocab))
	}
	var added []map[string]any
	for i, s := range []string{"<pad>", "<s>", "</s>"} {
		added = append(added, map[string]any{"id": i, "content": s, "single_word": false, "lstrip": false, "rstrip": false, "normalized": false, "special": true})
	}
	files := tinyModel(t, "steps_llama")
	for name, v := range map[string]any{
		"tokenizer.json": map[string]any{"version": "1.0", "added_tokens": added, "normalizer": nil, "pre_tokenizer": nil,
			"post_processor": nil, "decoder": map[string]any{"type": "Fuse"}, "model": map[string]any{"type": "BPE", "vocab": vocab, "merges": []string{}}},
		"tokenizer_config.json": map[string]any{"bos_token": "<s>", "eos_token": map[string]any{"content": "</s>"}},
	} {
		raw, err := json.Marshal(v)
		if err != nil {
			t.Fatal(err)
		}
		files[name] = raw
	}
	if template != "" {
		files["chat_template.jinja"] = []byte(template)
	}
	return files
}

func user(text string) []ChatMessage { return []ChatMessage{{"user", text}} }

// talk is one answer, put together from its pieces.
func talk(t *testing.T, a *Appliance, req ChatRequest) (ChatStart, string, ChatEnd) {
	t.Helper()
	var start ChatStart
	var text strings.Builder
	begun := 0
	end, err := a.Chat(t.Context(), req, func(s ChatStart) error {
		start = s
		begun++
		return nil
	}, func(s string) error {
		if begun != 1 || s == "" {
			t.Errorf("text %q after %d starts", s, begun)
		}
		text.WriteString(s)
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return start, text.String(), end
}

// FR-23: a chat's prompt is what the template makes of it, a control token that a message
// spells stays text, and the streamed answer is what sampling gives for the same seed.
func TestChat(t *testing.T) {
	a := open(t, Options{})
	if _, err := add(t, a, "speaker", speaking(t, turns)); err != nil {
		t.Fatal(err)
	}
	tok, err := a.tokenizerOf("speaker")
	if err != nil {
		t.Fatal(err)
	}
	p, err := a.chatPrompt(t.Context(), "speaker", tok, user("hi</s><s>x"))
	if err != nil {
		t.Fatal(err)
	}
	want := slices.Concat([]int32{1}, tok.EncodeOrdinary("user:hi</s><s>x"), []int32{2, 1}, tok.EncodeOrdinary("assistant:"))
	if !slices.Equal(p.ids, want) || p.plain || !slices.Equal(p.stops, []int32{2}) {
		t.Fatalf("prompt %+v, want %v", p, want)
	}

	seed := uint64(11)
	req := ChatRequest{Model: "speaker", Messages: user("hi"), MaxTokens: 20, Temperature: 1, Seed: &seed}
	start, text, end := talk(t, a, req)
	session, err := a.CreateSession(SessionRequest{})
	if err != nil {
		t.Fatal(err)
	}
	id, err := a.CreateSampler(SamplerRequest{SessionID: session, BaseModel: "speaker"})
	if err != nil {
		t.Fatal(err)
	}
	p, err = a.chatPrompt(t.Context(), "speaker", tok, req.Messages)
	if err != nil {
		t.Fatal(err)
	}
	ticket, err := a.Sample(SampleRequest{SamplerID: id, Count: 1, Prompt: p.ids, MaxTokens: &req.MaxTokens, Seed: &seed, Temperature: 1, TopP: 1})
	s := result[SampleResult](t, a, ticket, err).Sequences[0]
	spoken := s.Tokens
	if s.Stopped {
		spoken = spoken[:len(spoken)-1]
	}
	if text != tok.Decode(spoken, true) || text == "" || end.Tokens != len(s.Tokens) || end.Stopped != s.Stopped || end.Seed != seed || start.PromptTokens != len(p.ids) {
		t.Errorf("chat gave %q %+v after %+v, sampling %q (%d tokens, stopped %t)", text, end, start, tok.Decode(spoken, true), len(s.Tokens), s.Stopped)
	}
	if _, again, _ := talk(t, a, req); again != text {
		t.Errorf("the same seed gave %q, then %q", text, again)
	}

	// One who leaves ends the request and nothing else.
	left := errors.New("left")
	_, err = a.Chat(t.Context(), req, func(ChatStart) error { return nil }, func(string) error { return left })
	if !errors.Is(err, left) {
		t.Errorf("error %v, want the listener's", err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	_, err = a.Chat(ctx, req, func(ChatStart) error { cancel(); return nil }, func(string) error { return nil })
	if !errors.Is(err, context.Canceled) {
		t.Errorf("error %v, want the context's", err)
	}
	if _, again, _ := talk(t, a, req); again != text {
		t.Errorf("after two who left: %q, want %q", again, text)
	}
}

// Without a template the text goes on; a checkpoint speaks as its own weights.
func TestChatPlain(t *testing.T) {
	a := open(t, Options{})
	if _, err := add(t, a, "tiny", speaking(t, "")); err != nil {
		t.Fatal(err)
	}
	session, err := a.CreateSession(SessionRequest{})
	if err != nil {
		t.Fatal(err)
	}
	ticket, err := a.CreateModel(lora(session, 0))
	run := result[CreateModelResult](t, a, ticket, err).ModelID
	for seq := int64(1); seq < 20; seq += 2 {
		step(t, a, run, seq)
	}
	ticket, err = a.SaveWeights(SaveRequest{RunID: run, Seq: 21, Name: "w"})
	path := result[SaveResult](t, a, ticket, err).Path
	start, before, _ := talk(t, a, ChatRequest{Model: "tiny", Messages: user("abc"), MaxTokens: 12})
	_, after, _ := talk(t, a, ChatRequest{Model: path, Messages: user("abc"), MaxTokens: 12})
	if !start.Plain || start.PromptTokens != 3 || before == after {
		t.Errorf("start %+v; the model says %q, the checkpoint %q", start, before, after)
	}
}

func TestChatRefusals(t *testing.T) {
	a := open(t, Options{})
	for name, files := range map[string]map[string][]byte{
		"speaker": speaking(t, turns), "mute": tinyModel(t, "steps_llama"),
		"picky": speaking(t, "{{ raise_exception('no such role') }}"), "broken": speaking(t, "{% for %}"),
	} {
		if _, err := add(t, a, name, files); err != nil {
			t.Fatal(err)
		}
	}
	for _, c := range []struct {
		req   ChatRequest
		code  Code
		words []string
	}{
		{ChatRequest{Model: "nobody", Messages: user("x")}, CodeNotFound, []string{"nobody"}},
		{ChatRequest{Model: "tinker://x/weights/y", Messages: user("x")}, CodeNotFound, []string{"tinker://x/weights/y"}},
		{ChatRequest{Model: "tinker://x", Messages: user("x")}, CodeUser, []string{"tinker://"}},
		{ChatRequest{Model: "mute", Messages: user("x")}, CodeUser, []string{"tokenizer"}},
		{ChatRequest{Model: "speaker"}, CodeUser, []string{"messages"}},
		{ChatRequest{Model: "speaker", Messages: []ChatMessage{{"", "x"}}}, CodeUser, []string{"role"}},
		{ChatRequest{Model: "speaker", Messages: user("x"), MaxTokens: -1}, CodeUser, []string{"max_tokens"}},
		{ChatRequest{Model: "speaker", Messages: user("x"), Temperature: -1}, CodeUser, []string{"temperature"}},
		{ChatRequest{Model: "speaker", Messages: user("x"), TopP: 2}, CodeUser, []string{"top_p"}},
		{ChatRequest{Model: "speaker", Messages: user(strings.Repeat("x", 100))}, CodeUser, []string{"context", "64"}},
		{ChatRequest{Model: "picky", Messages: user("x")}, CodeUser, []string{"local/picky", "no such role"}},
		{ChatRequest{Model: "broken", Messages: user("x")}, CodeUser, []string{"local/broken", "template"}},
	} {
		_, err := a.Chat(t.Context(), c.req, func(ChatStart) error { t.Error("it began"); return nil }, func(string) error { return nil })
		refused(t, err, c.code, c.words...)
	}
}
