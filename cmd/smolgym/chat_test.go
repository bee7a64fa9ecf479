package main

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// speaking is a tiny model with a tokenizer of letters and a chat template.
func speaking(t *testing.T) string {
	t.Helper()
	dir := folder(t, "steps_llama")
	vocab := map[string]int{"<pad>": 0, "<s>": 1, "</s>": 2}
	for _, c := range "abcdefghijklmnopqrstuvwxyz 0123456789<>/|:?.,!'\n-_()[]{}=+*^~" {
		vocab[string(c)] = len(vocab)
	}
	var added []map[string]any
	for i, s := range []string{"<pad>", "<s>", "</s>"} {
		added = append(added, map[string]any{"id": i, "content": s, "single_word": false, "lstrip": false, "rstrip": false, "normalized": false, "special": true})
	}
	for name, v := range map[string]any{
		"tokenizer.json": map[string]any{"version": "1.0", "added_tokens": added, "normalizer": nil, "pre_tokenizer": nil,
			"post_processor": nil, "decoder": map[string]any{"type": "Fuse"}, "model": map[string]any{"type": "BPE", "vocab": vocab, "merges": []string{}}},
		"tokenizer_config.json": map[string]any{"bos_token": "<s>", "eos_token": "</s>",
			"chat_template": "{% for m in messages %}<s>{{ m.role }}:{{ m.content }}</s>{% endfor %}"},
	} {
		raw, err := json.Marshal(v)
		if err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(dir, name), raw, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

// TestChat: one message, a conversation, a model without a template, a checkpoint.
func TestChat(t *testing.T) {
	url, _ := serve(t, t.TempDir())
	env := []string{"TINKER_BASE_URL=" + url}
	dir := speaking(t)
	cli(t, "", env, "model", "add", "speaker", dir).want(t, 0, "added local/speaker")
	if err := os.Remove(filepath.Join(dir, "tokenizer_config.json")); err != nil {
		t.Fatal(err)
	}
	cli(t, "", env, "model", "add", "plain", dir).want(t, 0, "added local/plain")

	var first, second struct {
		Text         string `json:"text"`
		Plain        bool   `json:"plain"`
		PromptTokens int    `json:"prompt_tokens"`
		Tokens       int    `json:"tokens"`
		Finish       string `json:"finish"`
		Seed         uint64 `json:"seed"`
	}
	one := []string{"chat", "speaker", "--message", "hi", "--max-tokens", "9", "--seed", "5", "--json"}
	if err := json.Unmarshal([]byte(cli(t, "", env, one...).out), &first); err != nil || first.Text == "" || first.PromptTokens != len("user:hi")+2 || first.Seed != 5 || first.Plain {
		t.Fatalf("%+v: %v", first, err)
	}
	text := cli(t, "", env, one[:len(one)-1]...)
	text.want(t, 0, first.Text)
	if text.out != first.Text+"\n" {
		t.Errorf("printed %q, streamed %q", text.out, first.Text)
	}
	talk := cli(t, "a\nb\n\nnever asked\n", env, "chat", "speaker", "--max-tokens", "3", "--temperature", "0", "--json")
	lines := strings.Split(strings.TrimSpace(talk.out), "\n")
	if talk.code != 0 || len(lines) != 2 {
		t.Fatalf("%+v", talk)
	}
	if err := json.Unmarshal([]byte(lines[0]), &first); err != nil {
		t.Fatal(err)
	}
	if err := json.Unmarshal([]byte(lines[1]), &second); err != nil || second.PromptTokens <= first.PromptTokens+len(first.Text) {
		t.Errorf("the second turn, %+v, does not hold the first, %+v: %v", second, first, err)
	}
	_, path := sdk{t, url}.train("plain", 4)
	r := cli(t, "", env, "chat", path, "--message", "abc", "--max-tokens", "4", "--temperature", "0")
	if r.code != 0 || !strings.Contains(r.err, "no chat template") || r.out == "\n" {
		t.Errorf("%+v", r)
	}
	cli(t, "", env, "chat", "nobody", "--message", "x").want(t, exitNotFound, "nobody")
	cli(t, "hello\n", env, "chat", "nobody").want(t, exitNotFound, "nobody")
	cli(t, "", env, "chat", "speaker", "--message", strings.Repeat("x", 100)).wantFailure(t, "context", "64")
	for _, args := range [][]string{{}, {"tinker://x"}, {"speaker", "--max-tokens", "0"}, {"speaker", "--temperature", "-1"}, {"speaker", "--top-p", "2"}, {"speaker", "--seed", "x"}} {
		cli(t, "", env, append([]string{"chat"}, args...)...).want(t, exitUsage, "for example: smolgym chat me/mymodel")
	}
}
