package tokenizer

import (
	"bytes"
	"encoding/json"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"unicode/utf8"

	archive "smolgym/model/golden"
)

// gzipLines are the lines of a golden file.
func gzipLines(t *testing.T, name string) [][]byte {
	t.Helper()
	return bytes.Split(bytes.TrimSpace(archive.Gunzip(t, filepath.Join("testdata", name))), []byte("\n"))
}

// TestFR22Patterns: 2,000 fuzzed strings behind the patterns of GPT-2, Llama 3 and Qwen give the reference's ids, with
// merges in both spellings, and come back as they were.
func TestFR22Patterns(t *testing.T) {
	lines := gzipLines(t, "fr22.jsonl.gz")
	var head struct {
		File  map[string]any
		Parts map[string]map[string]any
	}
	if err := json.Unmarshal(lines[0], &head); err != nil {
		t.Fatal(err)
	}
	if len(lines) != 2001 || len(head.Parts) != 3 {
		t.Fatalf("%d lines, parts %v", len(lines), head.Parts)
	}
	both := map[string][2]*Tokenizer{}
	for name, parts := range head.Parts {
		model := head.File["model"].(map[string]any)
		head.File["normalizer"], head.File["pre_tokenizer"] = parts["normalizer"], parts["pre_tokenizer"]
		model["ignore_merges"] = parts["ignore_merges"]
		pairs := model["merges"].([]any)
		joined := make([]string, len(pairs))
		for i, p := range pairs {
			joined[i] = p.([]any)[0].(string) + " " + p.([]any)[1].(string)
		}
		var spelled [2]*Tokenizer
		for i, merges := range []any{pairs, joined} {
			model["merges"] = merges
			tok, err := Load(encodeFile(t, head.File))
			if err != nil {
				t.Fatalf("%s: %v", name, err)
			}
			spelled[i] = tok
		}
		model["merges"] = pairs
		both[name] = spelled
	}
	bad := 0
	for _, line := range lines[1:] {
		var g struct {
			Text               string
			GPT2, Llama3, Qwen []int32
		}
		if err := json.Unmarshal(line, &g); err != nil {
			t.Fatal(err)
		}
		for name, want := range map[string][]int32{"gpt2": g.GPT2, "llama3": g.Llama3, "qwen": g.Qwen} {
			for i, tok := range both[name] {
				if got := tok.Encode(g.Text, false); !slices.Equal(got, want) {
					if bad++; bad <= 10 {
						t.Errorf("%s, spelling %d, %q:\n got %v\nwant %v", name, i, g.Text, got, want)
					}
				}
			}
			if text := both[name][0].Decode(want, false); name != "qwen" && text != g.Text {
				t.Errorf("%s: %q came back as %q", name, g.Text, text)
			}
		}
	}
}

// TestFR22UnsupportedPattern: a pattern that can't be had exactly is refused by name.
func TestFR22UnsupportedPattern(t *testing.T) {
	for _, pattern := range []string{`(a)\1`, `(?<=a)b+(?{code})`, `[`} {
		f := smallFile(t)
		f["pre_tokenizer"] = map[string]any{"type": "Split", "pattern": map[string]any{"Regex": pattern}, "behavior": "Isolated", "invert": false}
		if _, err := Load(encodeFile(t, f)); err == nil || !strings.Contains(err.Error(), "Split") {
			t.Errorf("%s: %v", pattern, err)
		}
	}
}

// TestFR23Reference: added tokens that strip, that contain each other and that stand in words, and Metaspace in every
// spelling, encode and decode as the reference does, whole and in pieces.
func TestFR23Reference(t *testing.T) {
	lines := gzipLines(t, "fr23.jsonl.gz")
	if len(lines) != 15 {
		t.Errorf("%d tokenizers, want 15", len(lines))
	}
	for _, line := range lines {
		var c struct {
			Name  string
			File  json.RawMessage
			Lines []goldenLine
		}
		if err := json.Unmarshal(line, &c); err != nil {
			t.Fatal(err)
		}
		t.Run(c.Name, func(t *testing.T) {
			tok, err := Load(c.File)
			if err != nil {
				t.Fatal(err)
			}
			if len(c.Lines) != 250 {
				t.Errorf("%d strings", len(c.Lines))
			}
			bad := 0
			for _, g := range c.Lines {
				ids, text, streamed := tok.Encode(g.Text, false), tok.Decode(g.IDs, false), ""
				s := tok.NewStream(false)
				for _, id := range g.IDs {
					streamed += s.Push(id)
				}
				streamed += s.Flush()
				if !slices.Equal(ids, g.IDs) || text != g.Decoded || streamed != g.Decoded {
					if bad++; bad <= 5 {
						t.Errorf("%q: ids %v, want %v; text %q and in pieces %q, want %q", g.Text, ids, g.IDs, text, streamed, g.Decoded)
					}
				}
			}
			if bad > 0 {
				t.Errorf("%d of %d strings differ", bad, len(c.Lines))
			}
		})
	}
}

// TestFR23Strip: what the two flags and the longest match mean, in small.
func TestFR23Strip(t *testing.T) {
	data := `{"added_tokens":[{"id":3,"content":"<l>","lstrip":true},{"id":4,"content":"<r>","rstrip":true},
		{"id":5,"content":"<t>"},{"id":6,"content":"<t>b"}],"model":{"type":"BPE","vocab":{" ":0,"a":1,"b":2},"merges":[]}}`
	tok, err := Load([]byte(data))
	if err != nil {
		t.Fatal(err)
	}
	for text, want := range map[string][]int32{
		"a  <l>  a": {1, 3, 0, 0, 1}, // blanks before are eaten,
		"a<l>a":     {1, 3, 1},       // and are no condition
		"a  <r>  a": {1, 0, 0, 4, 1},
		"a<r>a":     {1, 4, 1},
		"<t>b<t>a":  {6, 5, 1}, // the longest match
	} {
		if got := tok.Encode(text, false); !slices.Equal(got, want) {
			t.Errorf("%q: %v, want %v", text, got, want)
		}
	}
}

// TestFR23RawText: raw text may spell special tokens, which is documented; text of others need not, and rendered
// conversations choose by place.
func TestFR23RawText(t *testing.T) {
	tok := loadOwn(t, "own_bytes")
	end, ok := tok.ID("<|im_end|>")
	if !ok {
		t.Fatal("no <|im_end|>")
	}
	const text = "say <|im_end|> twice: <|im_end|>"
	if n := count(tok.Encode(text, false), end); n != 2 {
		t.Errorf("raw text: %d control ids, want 2", n)
	}
	if ids := tok.EncodeOrdinary(text); count(ids, end) != 0 || tok.Decode(ids, false) != text {
		t.Errorf("ordinary text: %v", ids)
	}
	first := strings.Index(text, "<|im_end|>")
	ids := tok.EncodeFunc(text, func(start, end int) bool { return start == first && end == first+len("<|im_end|>") })
	if count(ids, end) != 1 || tok.Decode(ids, false) != text {
		t.Errorf("by place: %v", ids)
	}
}

func count(ids []int32, id int32) int {
	n := 0
	for _, x := range ids {
		if x == id {
			n++
		}
	}
	return n
}

// TestFR24Pieces: an emoji over two to four tokens, a Hangul syllable and a family come in whole characters, and cut
// anywhere what is left is flushed once and makes up the whole decode.
func TestFR24Pieces(t *testing.T) {
	lines := gzipLines(t, "fr22.jsonl.gz")
	var head struct{ File json.RawMessage }
	if err := json.Unmarshal(lines[0], &head); err != nil {
		t.Fatal(err)
	}
	trained, err := Load(head.File)
	if err != nil {
		t.Fatal(err)
	}
	tokens := map[int]bool{} // over how many tokens an emoji came
	for name, tok := range map[string]*Tokenizer{"own_bytes": loadOwn(t, "own_bytes"), "own_fallback": loadOwn(t, "own_fallback"), "trained": trained} {
		for _, text := range []string{"😀", "🦜", "👍🏽", "한", "각", "👨‍👩‍👧‍👦", "👩🏽‍🚀", "🏴󠁧󠁢󠁥󠁮󠁧󠁿", "a🦜b"} {
			ids := tok.Encode(text, false)
			if utf8.RuneCountInString(text) == 1 {
				tokens[len(ids)] = true
			}
			for cut := 0; cut <= len(ids); cut++ {
				s := tok.NewStream(false)
				joined := ""
				for _, id := range ids[:cut] {
					piece := s.Push(id)
					if !utf8.ValidString(piece) || strings.ContainsRune(piece, utf8.RuneError) {
						t.Errorf("%s %q: piece %q", name, text, piece)
					}
					joined += piece
				}
				if cut == len(ids) && strings.TrimPrefix(joined, " ") != text && name != "own_fallback" {
					t.Errorf("%s %q: %q before the flush", name, text, joined)
				}
				joined += s.Flush()
				if want := tok.Decode(ids[:cut], false); joined != want {
					t.Errorf("%s %q cut at %d: %q, want %q", name, text, cut, joined, want)
				}
				if again := s.Flush(); again != "" {
					t.Errorf("%s %q cut at %d: flushed again %q", name, text, cut, again)
				}
			}
		}
	}
	for n := 2; n <= 4; n++ {
		if !tokens[n] {
			t.Errorf("no character over %d tokens; the texts no longer test that (%v)", n, tokens)
		}
	}
}
