package chat

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	archive "smolgym/model/golden"
)

// goldenNow is the clock that the reference was frozen at.
var goldenNow = time.Date(2026, 7, 4, 9, 5, 6, 0, time.UTC)

// sharedFolder finds the templates and goldens that are no part of the repository.
func sharedFolder(tb testing.TB) string {
	tb.Helper()
	root := os.Getenv("SMOLGYM_SHARED")
	if root == "" {
		root = filepath.Join("..", "..", "..", "shared")
	}
	dir := filepath.Join(root, "data", "chat_templates")
	if _, err := os.Stat(dir); err != nil {
		tb.Skip("no shared chat templates; set SMOLGYM_SHARED to the shared folder")
	}
	return dir
}

// readLines calls line with each line of a gzipped JSON lines file.
func readLines(tb testing.TB, path string, line func([]byte)) {
	tb.Helper()
	for text := range bytes.Lines(archive.Gunzip(tb, path)) {
		line(text)
	}
}

func readJSON(tb testing.TB, data []byte, v any) {
	tb.Helper()
	if err := json.Unmarshal(data, v); err != nil {
		tb.Fatal(err)
	}
}

func readFile(tb testing.TB, path string) []byte {
	tb.Helper()
	data, err := os.ReadFile(path)
	if err != nil {
		tb.Fatal(err)
	}
	return data
}

// conversation is a line of conversations.jsonl.
type conversation struct {
	ID       string
	Messages []json.RawMessage
	Kwargs   map[string]json.RawMessage
}

// input is what apply_chat_template passes to the template for this conversation.
func (c conversation) input(tb testing.TB, special map[string]string) Input {
	in := Input{Special: special, Now: goldenNow, Vars: map[string]any{}, Messages: []any{}}
	for _, m := range c.Messages {
		in.Messages = append(in.Messages, m)
	}
	for name, v := range c.Kwargs {
		switch name {
		case "add_generation_prompt":
			readJSON(tb, v, &in.AddGenerationPrompt)
		case "continue_final_message":
			readJSON(tb, v, &in.ContinueFinalMessage)
		default:
			in.Vars[name] = v
		}
	}
	return in
}

// golden is what the reference makes of a template and a conversation.
type golden struct {
	Template, Conversation string
	Text                   *string
	Error                  *struct{ Type, Message string }
	Spans                  [][2]int // in code points
}

// mismatch says how a result differs from the reference's, or nothing.
func (g golden) mismatch(r Result, err error) string {
	if g.Error != nil {
		var raised *RaisedError
		switch {
		case err == nil:
			return fmt.Sprintf("rendered where the reference fails with %s: %s", g.Error.Type, g.Error.Message)
		case g.Error.Type == "TemplateError" && (!errors.As(err, &raised) || raised.Message != g.Error.Message):
			return fmt.Sprintf("error %v, the reference raises %q", err, g.Error.Message)
		}
		return ""
	}
	if err != nil {
		return fmt.Sprintf("error: %v", err)
	}
	if r.Text != *g.Text {
		return "text differs: " + difference(r.Text, *g.Text)
	}
	if g.Spans == nil {
		return ""
	}
	got := [][2]int{}
	for _, s := range r.Generation {
		got = append(got, [2]int{utf8.RuneCountInString(r.Text[:s[0]]), utf8.RuneCountInString(r.Text[:s[1]])})
	}
	if !slices.Equal(got, g.Spans) {
		return fmt.Sprintf("spans %v, the reference has %v", got, g.Spans)
	}
	return ""
}

// difference shows the first place where two texts differ.
func difference(got, want string) string {
	i := 0
	for i < min(len(got), len(want)) && got[i] == want[i] {
		i++
	}
	cut := func(s string) string { return s[min(len(s), max(0, i-20)):min(len(s), i+60)] }
	return fmt.Sprintf("at byte %d got %q, want %q", i, cut(got), cut(want))
}

func TestGolden(t *testing.T) {
	dir := sharedFolder(t)
	conversations := map[string]conversation{}
	readLines(t, filepath.Join(dir, "conversations.jsonl.gz"), func(line []byte) {
		var c conversation
		readJSON(t, line, &c)
		conversations[c.ID] = c
	})
	var about map[string]struct {
		Special map[string]string `json:"special_tokens"`
	}
	readJSON(t, readFile(t, filepath.Join(dir, "templates.json")), &about)
	type score struct{ lines, right, spans int }
	scores, order := map[string]*score{}, []string{}
	published, right := 0, 0
	readLines(t, filepath.Join(dir, "golden.jsonl.gz"), func(line []byte) {
		var g golden
		readJSON(t, line, &g)
		s := scores[g.Template]
		if s == nil {
			s = &score{}
			scores[g.Template] = s
			order = append(order, g.Template)
		}
		tmpl, err := Compile(string(readFile(t, filepath.Join(dir, g.Template+".jinja"))))
		if err != nil {
			t.Fatalf("%s: %v", g.Template, err)
		}
		c := conversations[g.Conversation]
		r, err := tmpl.Render(t.Context(), c.input(t, about[g.Template].Special))
		s.lines++
		own := g.Template == "own_loop_generation"
		if !own {
			published++
		}
		if why := g.mismatch(r, err); why == "" {
			s.right++
			if g.Spans != nil {
				s.spans++
			}
			if !own {
				right++
			}
		} else {
			t.Errorf("%s %s: %s", g.Template, g.Conversation, why)
		}
		checkMarks(t, g, r)
	})
	for _, name := range order {
		s := scores[name]
		t.Logf("%-26s %3d of %3d lines equal, %3d with spans", name, s.right, s.lines, s.spans)
	}
	t.Logf("published templates: %d of %d lines equal", right, published)
	if published != 3422 {
		t.Errorf("%d lines of published templates, want 3422", published)
	}
}

// checkMarks holds the ranges of a result to their promises.
func checkMarks(tb testing.TB, g golden, r Result) {
	tb.Helper()
	end := -1
	for _, x := range r.Template {
		if x[0] <= end || x[1] <= x[0] || x[1] > len(r.Text) {
			tb.Errorf("%s %s: template ranges %v of %d bytes", g.Template, g.Conversation, r.Template, len(r.Text))
			return
		}
		end = x[1]
	}
}

// controlText is what control tokens look like in the published templates.
var controlText = regexp.MustCompile(`<\|[^|<>\s]{1,40}\|>|<｜[^｜<>\s]{1,40}｜>|<(?:start|end)_of_turn>|\[/?[A-Z]+(?:_[A-Z]+)*\]|</?s>`)

// controls lists the control tokens of a result that the template made, and those that it did not.
func controls(r Result) (made, not []string) {
	for _, x := range controlText.FindAllStringIndex(r.Text, -1) {
		if r.Control(x[0], x[1]) {
			made = append(made, r.Text[x[0]:x[1]])
		} else {
			not = append(not, r.Text[x[0]:x[1]])
		}
	}
	return made, not
}

// TestGoldenControl holds the marks to their purpose on the published templates: a control token that no message
// spells counts as one, and defusing what messages spell changes no control token.
func TestGoldenControl(t *testing.T) {
	dir := sharedFolder(t)
	var about map[string]struct {
		Special map[string]string `json:"special_tokens"`
	}
	readJSON(t, readFile(t, filepath.Join(dir, "templates.json")), &about)
	made, spelled, compared := 0, 0, 0
	readLines(t, filepath.Join(dir, "conversations.jsonl.gz"), func(line []byte) {
		var c, plain conversation
		readJSON(t, line, &c)
		// without the brackets that control tokens have
		defused := strings.NewReplacer("<|", "(|", "<｜", "(|", "<s", "(s", "</s", "(/s", "<e", "(e", "[", "(", "]", ")")
		var v any
		readJSON(t, line, &v)
		var values func(v any) any
		values = func(v any) any {
			switch v := v.(type) {
			case string:
				return defused.Replace(v)
			case []any:
				for i := range v {
					v[i] = values(v[i])
				}
			case map[string]any:
				for k := range v {
					v[k] = values(v[k])
				}
			}
			return v
		}
		clean, err := json.Marshal(values(v))
		if err != nil {
			t.Fatal(err)
		}
		readJSON(t, clean, &plain)
		for _, name := range slices.Sorted(maps.Keys(about)) {
			tmpl := compile(t, string(readFile(t, filepath.Join(dir, name+".jinja"))))
			r, err := tmpl.Render(t.Context(), c.input(t, about[name].Special))
			if err != nil {
				continue
			}
			is, not := controls(r)
			made += len(is)
			spelled += len(not)
			var raw strings.Builder
			enc := json.NewEncoder(&raw)
			enc.SetEscapeHTML(false)
			readJSON(t, line, &v)
			if err := enc.Encode(v); err != nil {
				t.Fatal(err)
			}
			for _, token := range not {
				if !strings.Contains(raw.String(), token) {
					t.Errorf("%s %s: %s counts as the conversation's, which does not spell it", name, c.ID, token)
				}
			}
			p, err := tmpl.Render(t.Context(), plain.input(t, about[name].Special))
			if err != nil {
				continue
			}
			if other, _ := controls(p); !slices.Equal(is, other) {
				t.Errorf("%s %s: control tokens %q, with defused messages %q", name, c.ID, is, other)
			}
			compared++
		}
	})
	t.Logf("%d control tokens of templates, %d spelled by conversations, %d renderings compared", made, spelled, compared)
	if made == 0 || spelled == 0 || compared == 0 {
		t.Error("nothing was compared")
	}
}

// featureWrong lists the small templates that differ from Jinja2, each with its reason.
var featureWrong = map[string]string{
	"{{ 'ǆ'.title() }}":            "title case of digraphs",
	"{{ \"%r\"|format('q') }}":     "no %r",
	"{{ s.encode('utf-8') }}":      "no bytes",
	"{{ 'a\\tb'.expandtabs(4) }}":  "no expandtabs",
	"{{ d.items() }}":              "views print as lists",
	"{{ d.keys() }}":               "views print as lists",
	"{{ range(3) }}":               "ranges print as lists",
	"{{ namespace(a=1, b='x') }}":  "namespaces print as dicts",
	"{{ html|urlize }}":            "no urlize",
	"{{ 'a b c d'|wordwrap(3) }}":  "wordwrap takes its width by name",
	"{{ d|xmlattr }}":              "no xmlattr",
	"{{ d|pprint }}":               "pprint has another layout",
	"{{ cycler('a','b').next() }}": "cycler takes one list",
	"{{ self is defined }}":        "no self",
	"{{ n.bit_length() }}":         "no methods of numbers",
	"{{ f.is_integer() }}":         "no methods of numbers",
	"{{ d.b.real }}":               "no attributes of numbers",
	"{% macro f(x) %}{% for y in x %}{{ y }}{% endfor %}{% endmacro %}{{ f(l) | upper }}{{ f(l) ~ 'q' }}{{ f(l) | length }}{{ f is defined }}{{ f.name }}{{ f.arguments }}": "a macro's arguments are a list",
	"{% autoescape true %}{{ html }}{% endautoescape %}": "autoescape writes other entities; transformers has it off",
}

func TestFeatures(t *testing.T) {
	dir := sharedFolder(t)
	var vars map[string]any
	lines, right := 0, 0
	readLines(t, filepath.Join(dir, "features.jsonl.gz"), func(line []byte) {
		if vars == nil {
			var head struct{ Vars map[string]json.RawMessage }
			readJSON(t, line, &head)
			vars = map[string]any{}
			for name, v := range head.Vars {
				vars[name] = v
			}
			return
		}
		var f struct {
			Template    string
			Text, Error json.RawMessage
		}
		readJSON(t, line, &f)
		lines++
		tmpl, err := Compile(f.Template)
		var r Result
		if err == nil {
			r, err = tmpl.Render(t.Context(), Input{Vars: vars, Now: goldenNow})
		}
		why := ""
		if f.Text == nil {
			if err == nil {
				why = fmt.Sprintf("rendered %q, the reference fails: %.80s", r.Text, f.Error)
			}
		} else {
			var want string
			readJSON(t, f.Text, &want)
			switch {
			case err != nil:
				why = fmt.Sprintf("error: %v, want %q", err, want)
			case r.Text != want:
				why = fmt.Sprintf("got %q, want %q", r.Text, want)
			}
		}
		reason, known := featureWrong[f.Template]
		switch {
		case why == "":
			right++
			if known {
				t.Errorf("%s: listed as different (%s), but it is right", f.Template, reason)
			}
		case !known:
			t.Errorf("%q: %s", f.Template, why)
		}
	})
	t.Logf("%d of %d features equal", right, lines)
}
