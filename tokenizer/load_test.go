package tokenizer

import (
	"encoding/json"
	"errors"
	"slices"
	"strings"
	"sync"
	"testing"
)

// smallFile is a tokenizer.json as a tree, to be bent by tests.
func smallFile(t *testing.T) map[string]any {
	t.Helper()
	var f map[string]any
	if err := json.Unmarshal([]byte(smallJSON), &f); err != nil {
		t.Fatal(err)
	}
	return f
}

// smallJSON is a character BPE with nothing around it.
const smallJSON = `{"added_tokens":[],"normalizer":null,"pre_tokenizer":null,"post_processor":null,"decoder":null,
"model":{"type":"BPE","unk_token":"?","vocab":{"?":0,"a":1,"b":2,"c":3,"ab":4,"abc":5," ":6},
"merges":[["a","b"],["ab","c"]]}}`

func encodeFile(t *testing.T, f any) []byte {
	t.Helper()
	data, err := json.Marshal(f)
	if err != nil {
		t.Fatal(err)
	}
	return data
}

// TestUnsupportedIsComplete: a file with many unknown parts names all of them at once (FR-22).
func TestUnsupportedIsComplete(t *testing.T) {
	data := `{"normalizer":{"type":"Sequence","normalizers":[{"type":"NFC"},{"type":"Nmt"},{"type":"StripAccents"}]},
	"pre_tokenizer":{"type":"Sequence","pretokenizers":[{"type":"UnicodeScripts"},
		{"type":"Split","pattern":{"Regex":"(a)\\1"},"behavior":"Isolated","invert":false}]},
	"post_processor":{"type":"Surprise"},"decoder":{"type":"CTC"},"model":{"type":"WordLevel","vocab":{}}}`
	_, err := Load([]byte(data))
	var gaps *UnsupportedError
	if !errors.As(err, &gaps) || !errors.Is(err, ErrUnsupported) {
		t.Fatalf("error %v, want an UnsupportedError", err)
	}
	want := []string{"normalizer Nmt", "normalizer StripAccents", "pre_tokenizer UnicodeScripts",
		`pre_tokenizer Split pattern "(a)\\1"`, "post_processor Surprise", "decoder CTC", "model WordLevel"}
	if len(gaps.Components) != len(want) {
		t.Errorf("%d components, want %d: %v", len(gaps.Components), len(want), gaps)
	}
	for i, w := range want {
		if i < len(gaps.Components) && !strings.HasPrefix(gaps.Components[i], w) {
			t.Errorf("component %d: %q, want %q", i, gaps.Components[i], w)
		}
		if !strings.Contains(err.Error(), w) {
			t.Errorf("the message doesn't name %q: %v", w, err)
		}
	}
}

// TestLoadErrors: what contradicts itself is refused with a word on where.
func TestLoadErrors(t *testing.T) {
	model := func(f map[string]any) map[string]any { return f["model"].(map[string]any) }
	vocab := func(f map[string]any) map[string]any { return model(f)["vocab"].(map[string]any) }
	added := func(id int, content string) any { return map[string]any{"id": id, "content": content} }
	for name, c := range map[string]struct {
		bend func(f map[string]any)
		says string
	}{
		"no model":      {func(f map[string]any) { delete(f, "model") }, "no model"},
		"huge id":       {func(f map[string]any) { vocab(f)["z"] = 2_000_000_000 }, `"z": id 2000000000`},
		"negative id":   {func(f map[string]any) { vocab(f)["z"] = -1 }, "id -1"},
		"same id":       {func(f map[string]any) { vocab(f)["z"] = 1 }, "id 1 is given"},
		"lost merge":    {func(f map[string]any) { delete(vocab(f), "abc") }, `merge 1, "ab" with "c"`},
		"three parts":   {func(f map[string]any) { model(f)["merges"] = []any{[]string{"a", "b", "c"}} }, "3 parts"},
		"string merge":  {func(f map[string]any) { model(f)["merges"] = []string{"a b c"} }, "not two parts"},
		"no unknown":    {func(f map[string]any) { model(f)["unk_token"] = "!" }, `unk_token "!"`},
		"added shifted": {func(f map[string]any) { f["added_tokens"] = []any{added(9, "<x>")} }, "would give it 7"},
		"added moved":   {func(f map[string]any) { f["added_tokens"] = []any{added(9, "ab")} }, "would give it 4"},
		"added twice":   {func(f map[string]any) { f["added_tokens"] = []any{added(7, "x"), added(8, "x")} }, "stands twice"},
		"behavior": {func(f map[string]any) {
			f["pre_tokenizer"] = map[string]any{"type": "Split", "pattern": map[string]any{"String": "a"}, "behavior": "Sideways"}
		}, `"Sideways"`},
		"template id": {func(f map[string]any) {
			f["post_processor"] = json.RawMessage(`{"type":"TemplateProcessing","single":[{"SpecialToken":{"id":"x","type_id":0}},
				{"Sequence":{"id":"A","type_id":0}}],"pair":[],"special_tokens":{"x":{"id":"x","ids":[77],"tokens":["x"]}}}`)
		}, "id 77"},
		"bert id": {func(f map[string]any) {
			f["post_processor"] = json.RawMessage(`{"type":"RobertaProcessing","cls":["a",1],"sep":["b","2"]}`)
		}, "id -1"},
		"empty pattern": {func(f map[string]any) {
			f["decoder"] = json.RawMessage(`{"type":"Replace","pattern":{"String":""},"content":"x"}`)
		}, "empty text"},
		"metaspace": {func(f map[string]any) {
			f["decoder"] = map[string]any{"type": "Metaspace", "replacement": "ab"}
		}, `"ab"`},
	} {
		f := smallFile(t)
		c.bend(f)
		_, err := Load(encodeFile(t, f))
		if !errors.Is(err, ErrFormat) || !strings.Contains(err.Error(), c.says) {
			t.Errorf("%s: error %v, want one that says %q", name, err, c.says)
		}
	}
	growth := []any{}
	for range 20 {
		growth = append(growth, map[string]any{"type": "Replace", "pattern": map[string]any{"String": "a"}, "content": "aa"})
	}
	f := smallFile(t)
	f["normalizer"] = map[string]any{"type": "Sequence", "normalizers": growth}
	if _, err := Load(encodeFile(t, f)); !errors.Is(err, ErrFormat) || !strings.Contains(err.Error(), "times longer") {
		t.Errorf("a text 2^20 times longer: error %v", err)
	}
	deep := strings.Repeat(`{"type":"Sequence","normalizers":[`, 50) + strings.Repeat(`]}`, 50)
	f["normalizer"] = json.RawMessage(deep)
	if _, err := Load(encodeFile(t, f)); !errors.Is(err, ErrFormat) {
		t.Errorf("50 sequences deep: error %v", err)
	}
}

// TestMergeSpellings: pairs and strings mean the same (FR-22).
func TestMergeSpellings(t *testing.T) {
	f := smallFile(t)
	f["model"].(map[string]any)["merges"] = []string{"#version: 0.2", "a b", "ab c"}
	for _, file := range []any{smallFile(t), f} {
		tok, err := Load(encodeFile(t, file))
		if err != nil {
			t.Fatal(err)
		}
		if got := tok.Encode("abcaba!", false); !slices.Equal(got, []int32{5, 4, 1, 0}) {
			t.Errorf("ids %v", got)
		}
		if got := tok.Decode([]int32{5, 4, 1}, false); got != "abc ab a" {
			t.Errorf("decode without decoder: %q", got)
		}
	}
}

// TestBertProcessing: the fixed template of older files.
func TestBertProcessing(t *testing.T) {
	f := smallFile(t)
	f["post_processor"] = json.RawMessage(`{"type":"BertProcessing","sep":["c",3],"cls":["b",2]}`)
	tok, err := Load(encodeFile(t, f))
	if err != nil {
		t.Fatal(err)
	}
	if got := tok.Encode("ab", true); !slices.Equal(got, []int32{2, 4, 3}) {
		t.Errorf("ids %v", got)
	}
}

// TestUnknown: neighbouring unknown characters give one id or one each.
func TestUnknown(t *testing.T) {
	for fuse, want := range map[bool][]int32{true: {1, 0, 1, 0}, false: {1, 0, 0, 1, 0, 0, 0}} {
		f := smallFile(t)
		f["model"].(map[string]any)["fuse_unk"] = fuse
		tok, err := Load(encodeFile(t, f))
		if err != nil {
			t.Fatal(err)
		}
		if got := tok.Encode("a!éa~~~", false); !slices.Equal(got, want) {
			t.Errorf("fuse %v: %v, want %v", fuse, got, want)
		}
	}
}

// TestMetaspaceSpellings: prepend_scheme always, first, never, and the older field (FR-23).
func TestMetaspaceSpellings(t *testing.T) {
	for fields, want := range map[string]string{
		`"prepend_scheme":"always"`: "▁ab ▁ab X ▁c",
		`"add_prefix_space":true`:   "▁ab ▁ab X ▁c",
		`"prepend_scheme":"first"`:  "▁ab ▁ab X c",
		`"prepend_scheme":"never"`:  "ab ▁ab X c",
		`"add_prefix_space":false`:  "ab ▁ab X c",
	} {
		for _, normalized := range []string{"false", "true"} {
			data := `{"added_tokens":[{"id":8,"content":"X","normalized":` + normalized + `}],
		"pre_tokenizer":{"type":"Metaspace","replacement":"▁",` + fields + `},
		"decoder":{"type":"Metaspace","replacement":"▁",` + fields + `},
		"model":{"type":"BPE","vocab":{"a":0,"b":1,"c":2,"ab":3,"▁":4,"▁ab":5,"▁c":6,"!":7},
		"merges":[["a","b"],["▁","ab"],["▁","c"]]}}`
			tok, err := Load([]byte(data))
			if err != nil {
				t.Fatalf("%s: %v", fields, err)
			}
			var got []string
			ids := tok.Encode("ab abXc", false)
			for _, id := range ids {
				text, _ := tok.Token(id)
				got = append(got, text)
			}
			if s := strings.Join(got, " "); s != want {
				t.Errorf("%s: tokens %q, want %q", fields, s, want)
			}
			wantText := "ab abXc"
			if strings.Contains(fields, "always") || strings.Contains(fields, "true") {
				wantText = "ab abX c"
			}
			if text := tok.Decode(ids, false); text != wantText {
				t.Errorf("%s: decode %q, want %q", fields, text, wantText)
			}
		}
	}
}

// TestDoors: vocabulary questions.
func TestDoors(t *testing.T) {
	tok := loadOwn(t, "own_bytes")
	if n := tok.VocabSize(); n != 806 {
		t.Errorf("vocabulary of %d, want 806", n)
	}
	for id := range int32(tok.VocabSize()) {
		text, ok := tok.Token(id)
		if back, ok2 := tok.ID(text); !ok || !ok2 || back != id {
			t.Errorf("token %d is %q and that is %d", id, text, back)
		}
	}
	for _, id := range []int32{-1, 806, 1 << 30} {
		if text, ok := tok.Token(id); ok {
			t.Errorf("token %d is %q", id, text)
		}
	}
	eos, _ := tok.ID("<|eos|>")
	tool, _ := tok.ID("<tool>")
	if !tok.IsSpecial(eos) || tok.IsSpecial(tool) || tok.IsSpecial(-5) {
		t.Error("special: want <|eos|> and not <tool>")
	}
}

// TestConcurrent: many goroutines share one tokenizer and its cache (run with -race).
func TestConcurrent(t *testing.T) {
	tok := loadOwn(t, "own_bytes")
	texts := strings.SplitAfter(strings.Repeat("The little robot's tokens, 12345 日本 🦜\n", 20), " ")
	var want [][]int32
	fresh := loadOwn(t, "own_bytes")
	for _, s := range texts {
		want = append(want, fresh.Encode(s, true))
	}
	var wait sync.WaitGroup
	for range 8 {
		wait.Go(func() {
			for i, s := range texts {
				if got := tok.Encode(s, true); !slices.Equal(got, want[i]) {
					t.Errorf("%q: %v, want %v", s, got, want[i])
				}
			}
		})
	}
	wait.Wait()
}

// TestLongWord: one word of a million characters takes the heap, not forever, and merges as the short path does.
func TestLongWord(t *testing.T) {
	tok := loadOwn(t, "own_bytes")
	unit := tok.Encode("internationalisation", false)
	long := tok.Encode(strings.Repeat("a", 1_000_000), false)
	if got := tok.Decode(long, false); got != strings.Repeat("a", 1_000_000) {
		t.Errorf("a million a came back as %d bytes", len(got))
	}
	m := tok.model.(*bpe)
	for n := 2; n < 200; n += 7 {
		word := strings.Repeat("internationalisation", 20)[:n]
		ids := make([]int32, n)
		for i := range ids {
			ids[i] = m.byteID[word[i]]
		}
		short, heap := slices.Clone(ids[:min(n, maxScanned)]), slices.Clone(ids[:min(n, maxScanned)])
		short = short[:m.mergeShort(short)]
		heap = heap[:m.mergeLong(heap)]
		if !slices.Equal(short, heap) {
			t.Errorf("%q: %v by scanning, %v by heap", word, short, heap)
		}
	}
	if len(unit) == 0 {
		t.Error("no ids")
	}
}
