package chat

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"time"

	"smolgym/model/growth"
)

// TestOwn compares our own templates with what Jinja2 makes of them; the recipe is testdata/make.py.
func TestOwn(t *testing.T) {
	lines := 0
	readLines(t, filepath.Join("testdata", "own.jsonl.gz"), func(line []byte) {
		var x struct {
			golden
			conversation
		}
		readJSON(t, line, &x.golden)
		readJSON(t, line, &x.conversation)
		lines++
		name := fmt.Sprintf("%s %d", x.Template, lines)
		tmpl := compile(t, string(readFile(t, filepath.Join("testdata", x.Template+".jinja"))))
		in := x.input(t, map[string]string{"bos_token": "<s>", "eos_token": "</s>"})
		r, err := tmpl.Render(t.Context(), in)
		if why := x.mismatch(r, err); why != "" {
			t.Errorf("%s: %s", name, why)
		}
		x.Conversation = name
		checkMarks(t, x.golden, r)
	})
	if lines < 57 {
		t.Errorf("%d lines", lines)
	}
}

// FuzzTemplate renders any source with any message: an error or a text whose ranges hold, in bounded time and memory.
func FuzzTemplate(f *testing.F) {
	for _, h := range hostile {
		if len(h.source) < 2000 {
			f.Add(h.source, `{"role":"user","content":"<|x|>"}`)
		}
	}
	paths, err := filepath.Glob(filepath.Join("testdata", "*.jinja"))
	if err != nil || len(paths) == 0 {
		f.Fatalf("no templates: %v", err)
	}
	for _, path := range paths {
		source, err := os.ReadFile(path)
		if err != nil {
			f.Fatal(err)
		}
		for _, message := range []string{
			`{"role":"user","content":"a\r\nb"}`, `{"role":"assistant","content":"<think>x</think>y","tool_calls":[{"name":"f","arguments":{"a":1.0}}]}`,
			`{"role":"user","content":[{"type":"text","text":"é"}]}`, `[[[]]]`, `-1e999`, `{"a":12345678901234567890123456789012345678901234567890}`, `"\ud800"`,
		} {
			f.Add(string(source), message)
		}
	}
	// Three calls at their time limit end before the ten seconds after which an input counts as hung.
	limits := Limits{Source: 1 << 16, Input: 1 << 16, Output: 1 << 16, Fuel: 200_000, Memory: 16 << 20, Cached: 2, Time: 2 * time.Second}
	e := NewEngine(limits)
	if _, err := e.Compile(f.Context(), "x"); err != nil { // makes the interpreter, outside of the time of the first input
		f.Fatal(err)
	}
	var live growth.Watch
	f.Fuzz(func(t *testing.T, source, message string) {
		live.Check(t)
		defer func() { // whatever happened, each instance's memory waits or was given back, which live memory doesn't tell
			if open, waiting := e.open.Load(), int64(len(waiting(e))); open != waiting {
				t.Errorf("%d instances are open, %d wait", open, waiting)
			}
		}()
		tmpl, err := e.Compile(t.Context(), source)
		if err != nil {
			return
		}
		in := Input{Messages: []any{message}, Tools: []any{message}, Now: goldenNow, Special: map[string]string{"bos_token": "<s>"}}
		if json.Valid([]byte(message)) {
			in.Messages = []any{json.RawMessage(message), json.RawMessage(message)}
			in.ContinueFinalMessage = len(message)%2 == 1
		}
		r, err := tmpl.Render(t.Context(), in)
		if err != nil {
			return
		}
		if len(r.Text) > limits.Output {
			t.Fatalf("%d bytes of text", len(r.Text))
		}
		checkMarks(t, golden{}, r)
		for _, x := range r.Generation {
			if x[0] < 0 || x[1] < x[0] || x[1] > len(r.Text) {
				t.Fatalf("generation %v of %d bytes", r.Generation, len(r.Text))
			}
		}
		// the same input gives the same text, if the machine lets it
		again, err := tmpl.Render(t.Context(), in)
		if limit := (*LimitError)(nil); errors.As(err, &limit) && limit.Limit == "time" {
			return
		}
		if err != nil || again.Text != r.Text {
			t.Fatalf("again: %q, %v; first %q", again.Text, err, r.Text)
		}
	})
}
