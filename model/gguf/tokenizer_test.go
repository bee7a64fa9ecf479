package gguf

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	archive "smolgym/model/golden"
	"smolgym/model/hf"
	"smolgym/tokenizer"
)

// sharedTokenizer finds a tokenizer of the shared material, or skips the test.
func sharedTokenizer(tb testing.TB, name string) string {
	tb.Helper()
	root := os.Getenv("SMOLGYM_SHARED")
	if root == "" {
		root = filepath.Join("..", "..", "..", "shared")
	}
	dir := filepath.Join(root, "data", "tokenizers", name)
	if _, err := os.Stat(dir); err != nil {
		tb.Skipf("no shared tokenizer %s; set SMOLGYM_SHARED to the shared folder", name)
	}
	return dir
}

// asConverted does to a file's tokens what llama.cpp's converter does to those that users defined: spaces as such, and a
// score of its own.
func asConverted(kvs []KV) {
	find := func(key string) any {
		return kvs[slices.IndexFunc(kvs, func(kv KV) bool { return kv.Key == key })].Value
	}
	tokens, types, scores := find(tokensKey).([]string), find(typesKey).([]int32), find(scoresKey).([]float32)
	for i, kind := range types {
		if kind == tokenUser {
			tokens[i], scores[i] = strings.ReplaceAll(tokens[i], "▁", " "), -1000
		}
	}
}

// withTokenizer is a file with a tokenizer and the smallest model that has room for it.
func withTokenizer(text []byte, bos, eos int, change ...func([]KV)) (*File, error) {
	var t struct {
		Added []struct{ ID int } `json:"added_tokens"`
		Model struct{ Vocab map[string]int }
	}
	if err := json.Unmarshal(text, &t); err != nil {
		return nil, err
	}
	size := 0
	for _, id := range t.Model.Vocab {
		size = max(size, id+1)
	}
	for _, a := range t.Added {
		size = max(size, a.ID+1)
	}
	c := &hf.Config{VocabSize: size + 3, BOS: []int{bos}, EOS: []int{eos}} // three rows that pad
	kvs, err := vocabularyOf(text, c, c.EOS)
	if err != nil {
		return nil, err
	}
	for _, f := range change {
		f(kvs)
	}
	var b bytes.Buffer
	if err := Write(&b, kvs, nil); err != nil {
		return nil, err
	}
	return parse(b.Bytes())
}

// The tokenizers that people have: into the file's form and back, they still give the reference's ids.
func TestTokenizerRoundTrip(t *testing.T) {
	if testing.Short() {
		t.Skip("loads large vocabularies")
	}
	for _, name := range []string{"tiny512", "gpt2", "smollm2_style", "llama3", "qwen3", "qwen3_5_style", "gpt_oss", "deepseek_v3", "llama2", "gemma3"} {
		t.Run(name, func(t *testing.T) {
			dir := sharedTokenizer(t, name)
			var change []func([]KV)
			if name == "gemma3" {
				change = append(change, asConverted)
			}
			f, err := withTokenizer(archive.Gunzip(t, filepath.Join(dir, "tokenizer.json.gz")), 0, 1, change...)
			if err != nil {
				t.Fatal(err)
			}
			text, _, err := tokenizerOf(f, 1<<20, 64)
			if err != nil {
				t.Fatal(err)
			}
			tok, err := tokenizer.Load(text)
			if err != nil {
				t.Fatal(err)
			}
			n := eachGolden(t, filepath.Join(dir, "golden.jsonl.gz"), func(g golden) error {
				if got := tok.Encode(g.Text, false); !slices.Equal(got, g.IDs) {
					return fmt.Errorf("%q: %v, want %v", g.Text, got, g.IDs)
				}
				want := g.IDsSpecial
				if want == nil {
					want = g.IDs
				}
				if got := tok.Encode(g.Text, true); !slices.Equal(got, want) {
					return fmt.Errorf("%q with special tokens: %v, want %v", g.Text, got, want)
				}
				if got := tok.Decode(g.IDs, false); got != g.Decoded {
					return fmt.Errorf("%v: %q, want %q", g.IDs, got, g.Decoded)
				}
				return nil
			})
			t.Logf("%d strings", n)
		})
	}
}

type golden struct {
	Text       string  `json:"text"`
	IDs        []int32 `json:"ids"`
	IDsSpecial []int32 `json:"ids_special"`
	Decoded    string  `json:"decoded"`
}

func eachGolden(t *testing.T, path string, check func(golden) error) int {
	t.Helper()
	n, bad := 0, 0
	for line := range bytes.Lines(archive.Gunzip(t, path)) {
		n++
		var g golden
		if err := json.Unmarshal(line, &g); err != nil {
			t.Fatal(err)
		}
		if err := check(g); err != nil {
			if bad++; bad <= 3 {
				t.Errorf("line %d: %.600v", n, err)
			}
		}
	}
	if bad > 0 || n == 0 {
		t.Errorf("%d of %d lines differ", bad, n)
	}
	return n
}

// smallTokenizer is a byte-level tokenizer.json with few merges.
func smallTokenizer(pre string, added string) []byte {
	var b bytes.Buffer
	b.WriteString(`{"added_tokens":[` + added + `],"normalizer":null,"pre_tokenizer":` + pre + `,"post_processor":null,"decoder":` + byteLevel(true) +
		`,"model":{"type":"BPE","ignore_merges":false,"vocab":{"<end>":0`)
	for i := range 94 {
		b.WriteByte(',')
		quote(&b, string(rune('!'+i)))
		fmt.Fprintf(&b, ":%d", i+1)
	}
	b.WriteString(`,"ab":95,"abc":96},"merges":[["a","b"],["ab","c"]]}}`)
	return b.Bytes()
}

const endToken = `{"id":0,"content":"<end>","special":true,"normalized":false}`

func TestTokenizerSmall(t *testing.T) {
	f, err := withTokenizer(smallTokenizer(byteLevel(true), endToken), 0, 0)
	if err != nil {
		t.Fatal(err)
	}
	text, config, err := tokenizerOf(f, 100, 64)
	if err != nil {
		t.Fatal(err)
	}
	tok, err := tokenizer.Load(text)
	if err != nil {
		t.Fatal(err)
	}
	if got := tok.Encode("abcab<end>a", true); !slices.Equal(got, []int32{96, 95, 0, 65}) {
		t.Errorf("ids %v", got)
	}
	if !tok.IsSpecial(0) || tok.VocabSize() != 97 {
		t.Errorf("special %v, %d tokens", tok.IsSpecial(0), tok.VocabSize())
	}
	if !bytes.Contains(config, []byte(`"eos_token": "<end>"`)) {
		t.Errorf("configuration %s", config)
	}
}

// A SentencePiece model: merges by score, bytes for what has no token, a space put first, and the way back to a file.
func TestSentencePieceSmall(t *testing.T) {
	tokens := []string{"<unk>", "<s>", "</s>"}
	types := []int32{tokenUnknown, tokenControl, tokenControl}
	scores := []float32{0, 0, 0}
	for b := range 256 {
		tokens, types, scores = append(tokens, fmt.Sprintf("<0x%02X>", b)), append(types, tokenByte), append(scores, 0)
	}
	pieces := []string{"ab", "bc", "▁a", "▁abc", "▁", "a", "b", "c"} // ids from 259, best first
	for i, p := range pieces {
		tokens, types, scores = append(tokens, p), append(types, tokenNormal), append(scores, -float32(i))
	}
	for _, prefix := range []bool{true, false} {
		var b bytes.Buffer
		if err := Write(&b, []KV{{modelKey, "llama"}, {tokensKey, tokens}, {typesKey, types}, {scoresKey, scores}, {addSpaceKey, prefix},
			{bosKey, uint32(1)}, {eosKey, uint32(2)}, {unkKey, uint32(0)}}, nil); err != nil {
			t.Fatal(err)
		}
		f, err := parse(b.Bytes())
		if err != nil {
			t.Fatal(err)
		}
		text, _, err := tokenizerOf(f, 300, 64)
		if err != nil {
			t.Fatal(err)
		}
		again, err := withTokenizer(text, 1, 2)
		if err != nil {
			t.Fatal(err)
		}
		back, _, err := tokenizerOf(again, 300, 64)
		if err != nil || !bytes.Equal(back, text) {
			t.Errorf("prefix %v: written and read again it differs (%v)", prefix, err)
		}
		tok, err := tokenizer.Load(text)
		if err != nil {
			t.Fatal(err)
		}
		// "ab" comes before "bc", so c stays alone; é has no token.
		want := []int32{1, 259, 266, 3 + 0xC3, 3 + 0xA9, 263, 260}
		if prefix {
			want = slices.Insert(want, 1, 263)
		}
		if got := tok.Encode("abcé bc", true); !slices.Equal(got, want) {
			t.Errorf("prefix %v: ids %v, want %v", prefix, got, want)
		}
		if got := tok.Decode(want, true); got != "abcé bc" {
			t.Errorf("prefix %v: decoded %q", prefix, got)
		}
	}
}

// A vocabulary of repetitions asks for merges by the square of its size.
func TestFR17RepeatedTokens(t *testing.T) {
	var tokens []string
	for n := range 1000 {
		tokens = append(tokens, strings.Repeat("a", n+1), strings.Repeat("b", n+1))
	}
	var b bytes.Buffer
	if err := Write(&b, []KV{{modelKey, "llama"}, {tokensKey, tokens}, {scoresKey, make([]float32, len(tokens))}}, nil); err != nil {
		t.Fatal(err)
	}
	f, err := parse(b.Bytes())
	if err != nil {
		t.Fatal(err)
	}
	if grown := allocated(func() { _, _, err = tokenizerOf(f, 10000, 64) }); !errors.Is(err, ErrLimit) || grown > 50<<20 {
		t.Errorf("%d bytes, %v", grown, err)
	}
}

// What has no name in the other format is refused by its own.
func TestTokenizerRefusals(t *testing.T) {
	for name, text := range map[string][]byte{
		"normalizer and pre_tokenizer": smallTokenizer(`{"type":"Whitespace"}`, endToken),
		`"<end>"`:                      smallTokenizer(byteLevel(true), `{"id":0,"content":"<end>","lstrip":true,"special":true}`),
		`"Unigram"`:                    []byte(`{"model":{"type":"Unigram","vocab":{}}}`),
	} {
		if _, err := withTokenizer(text, 0, 0); !errors.Is(err, ErrUnsupported) || !strings.Contains(err.Error(), name) {
			t.Errorf("%s: %v", name, err)
		}
	}
	tokens := []string{"a", "b", "ab"}
	tests := []struct {
		name  string
		kvs   []KV
		is    error
		names string
	}{
		{"unknown pre", []KV{{modelKey, "gpt2"}, {preKey, "shiny-new"}, {tokensKey, tokens}, {mergesKey, []string{"a b"}}}, ErrUnsupported, "shiny-new"},
		{"no pre", []KV{{modelKey, "gpt2"}, {tokensKey, tokens}, {mergesKey, []string{"a b"}}}, ErrAbsent, preKey},
		{"unknown model", []KV{{modelKey, "bert"}, {tokensKey, tokens}}, ErrUnsupported, "bert"},
		{"no tokens", []KV{{modelKey, "gpt2"}, {preKey, "gpt-2"}}, ErrHeader, tokensKey},
		{"tokens are numbers", []KV{{modelKey, "gpt2"}, {preKey, "gpt-2"}, {tokensKey, []int32{1}}}, ErrHeader, tokensKey},
		{"more tokens than rows", []KV{{modelKey, "gpt2"}, {preKey, "gpt-2"}, {tokensKey, make([]string, 101)}}, ErrHeader, "101"},
		{"token twice", []KV{{modelKey, "gpt2"}, {preKey, "gpt-2"}, {tokensKey, []string{"a", "a"}}}, ErrHeader, `"a" is 0 and 1`},
		{"types too short", []KV{{modelKey, "gpt2"}, {preKey, "gpt-2"}, {tokensKey, tokens}, {typesKey, []int32{1}}}, ErrHeader, typesKey},
		{"type 9", []KV{{modelKey, "gpt2"}, {preKey, "gpt-2"}, {tokensKey, tokens}, {typesKey, []int32{1, 9, 1}}}, ErrHeader, "token 1"},
		{"no merges", []KV{{modelKey, "gpt2"}, {preKey, "gpt-2"}, {tokensKey, tokens}}, ErrAbsent, mergesKey},
		{"merge without space", []KV{{modelKey, "gpt2"}, {preKey, "gpt-2"}, {tokensKey, tokens}, {mergesKey, []string{"ab"}}}, ErrHeader, "merge 0"},
		{"bos outside", []KV{{modelKey, "gpt2"}, {preKey, "gpt-2"}, {tokensKey, tokens}, {mergesKey, []string{"a b"}}, {bosKey, uint32(3)}}, ErrHeader, bosKey},
		{"bos a text", []KV{{modelKey, "gpt2"}, {preKey, "gpt-2"}, {tokensKey, tokens}, {mergesKey, []string{"a b"}}, {bosKey, "a"}}, ErrKind, bosKey},
		{"add_bos without bos", []KV{{modelKey, "gpt2"}, {preKey, "gpt-2"}, {tokensKey, tokens}, {mergesKey, []string{"a b"}}, {addBOSKey, true}}, ErrHeader, addBOSKey},
		{"no scores", []KV{{modelKey, "llama"}, {tokensKey, tokens}}, ErrHeader, scoresKey},
		{"charsmap", []KV{{modelKey, "llama"}, {tokensKey, tokens}, {scoresKey, make([]float32, 3)}, {"tokenizer.ggml.precompiled_charsmap", "x"}}, ErrUnsupported, "charsmap"},
	}
	for _, tt := range tests {
		var b bytes.Buffer
		if err := Write(&b, tt.kvs, nil); err != nil {
			t.Fatal(err)
		}
		f, err := parse(b.Bytes())
		if err != nil {
			t.Fatal(err)
		}
		if _, _, err = tokenizerOf(f, 100, 64); !errors.Is(err, tt.is) || !strings.Contains(err.Error(), tt.names) {
			t.Errorf("%s: %v", tt.name, err)
		}
	}
}

// All known pre-tokenizers load, and are found again by what they are.
func TestPreTokenizers(t *testing.T) {
	for i := range preTokenizers {
		p := &preTokenizers[i]
		if got := preLike([]byte(p.normalizer), []byte(p.pipeline()), p.ignoreMerges); got != p {
			t.Errorf("%s is found as %v", p.names[0], got)
		}
		for _, name := range p.names {
			tokens := []string{"a", "b", "ab", "<s>"}
			var b bytes.Buffer
			if err := Write(&b, []KV{{modelKey, "gpt2"}, {preKey, name}, {tokensKey, tokens}, {typesKey, []int32{1, 1, 1, 3}},
				{mergesKey, []string{"a b"}}, {bosKey, uint32(3)}}, nil); err != nil {
				t.Fatal(err)
			}
			f, err := parse(b.Bytes())
			if err != nil {
				t.Fatal(err)
			}
			text, _, err := tokenizerOf(f, 100, 64)
			if err != nil {
				t.Fatal(err)
			}
			tok, err := tokenizer.Load(text)
			if err != nil {
				t.Errorf("%s: %v", name, err)
				continue
			}
			want := []int32{2}
			if p.addBOS {
				want = []int32{3, 2}
			}
			if got := tok.Encode("ab", true); !slices.Equal(got, want) {
				t.Errorf("%s: ids %v, want %v", name, got, want)
			}
		}
	}
}
