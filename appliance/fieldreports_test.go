package appliance

import (
	"encoding/json"
	"slices"
	"strings"
	"testing"
)

// tearing gives the tiny model, whose vocabulary is of 64, a byte-level tokenizer of 40 tokens: most of its texts are
// pieces of characters.
func tearing(t *testing.T) map[string][]byte {
	t.Helper()
	byteChar := func(b int) string { // the printable stand-in of a byte
		switch {
		case b >= 0x80 && b <= 0xA0:
			return string(rune(290 + b - 0x80))
		case b == ' ':
			return "Ġ"
		}
		return string(rune(b))
	}
	vocab := map[string]int{"<pad>": 0, "<s>": 1, "</s>": 2}
	for _, b := range []int{'a', 'b', ' ', 0xF0, 0x9F, 0x98, 0xE2, 0xED, 0xEA, 0xC3} {
		vocab[byteChar(b)] = len(vocab)
	}
	for b := 0x80; len(vocab) < 40; b++ {
		if _, have := vocab[byteChar(b)]; !have {
			vocab[byteChar(b)] = len(vocab)
		}
	}
	var added []map[string]any
	for i, s := range []string{"<pad>", "<s>", "</s>"} {
		added = append(added, map[string]any{"id": i, "content": s, "single_word": false, "lstrip": false, "rstrip": false, "normalized": false, "special": true})
	}
	level := map[string]any{"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": true}
	raw, err := json.Marshal(map[string]any{"version": "1.0", "added_tokens": added, "normalizer": nil, "pre_tokenizer": level, "post_processor": nil,
		"decoder": level, "model": map[string]any{"type": "BPE", "vocab": vocab, "merges": []string{}}})
	if err != nil {
		t.Fatal(err)
	}
	files := tinyModel(t, "steps_llama")
	files["tokenizer.json"] = raw
	return files
}

// FR-24: cut by max_tokens anywhere, the pieces of an answer make up the whole decode, what is left coming once; ids beyond
// the tokenizer's last are drawn only where there is no tokenizer to say so.
func TestFR24CutAndPadded(t *testing.T) {
	a := open(t, Options{})
	for name, files := range map[string]map[string][]byte{"torn": tearing(t), "bare": tinyModel(t, "steps_llama")} {
		if _, err := add(t, a, name, files); err != nil {
			t.Fatal(err)
		}
	}
	draw := func(model string, seed uint64, n int, temperature float64) []int32 {
		session, err := a.CreateSession(SessionRequest{})
		if err != nil {
			t.Fatal(err)
		}
		id, err := a.CreateSampler(SamplerRequest{SessionID: session, BaseModel: model})
		if err != nil {
			t.Fatal(err)
		}
		tok, err := a.tokenizerOf("torn")
		if err != nil {
			t.Fatal(err)
		}
		p, err := a.chatPrompt(t.Context(), "torn", tok, user("a b"))
		if err != nil {
			t.Fatal(err)
		}
		ticket, err := a.Sample(SampleRequest{SamplerID: id, Count: 1, Prompt: p.ids, MaxTokens: &n, Seed: &seed, Temperature: temperature, TopP: 1})
		s := result[SampleResult](t, a, ticket, err).Sequences[0]
		if s.Stopped {
			return s.Tokens[:len(s.Tokens)-1]
		}
		return s.Tokens
	}
	tok, err := a.tokenizerOf("torn")
	if err != nil {
		t.Fatal(err)
	}
	const most = 40
	torn := 0
	for seed := uint64(1); seed < 3; seed++ {
		for n := 1; n < most; n += 4 {
			ids := draw("torn", seed, n, 1)
			req := ChatRequest{Model: "torn", Messages: user("a b"), MaxTokens: n, Temperature: 1, Seed: &seed}
			if _, text, _ := talk(t, a, req); text != tok.Decode(ids, true) {
				t.Errorf("seed %d, %d tokens: pieces %q, whole %q", seed, n, text, tok.Decode(ids, true))
			} else if strings.HasSuffix(text, "\uFFFD") {
				torn++
			}
		}
	}
	if torn < 4 {
		t.Errorf("only %d answers end inside a character: the test shows little", torn)
	}
	beyond := func(ids []int32) bool {
		return slices.ContainsFunc(ids, func(id int32) bool { return int(id) >= tok.VocabSize() })
	}
	for _, temperature := range []float64{0, 1, 100} {
		if ids := draw("torn", 7, most, temperature); beyond(ids) {
			t.Errorf("temperature %g: drew %v, the tokenizer has %d", temperature, ids, tok.VocabSize())
		}
	}
	if ids := draw("bare", 7, most, 100); !beyond(ids) {
		t.Errorf("without a tokenizer %v: the model would never have drawn one beyond", ids)
	}
	if text := tok.Decode([]int32{3, 40, 63, 64, 1 << 30, -1, 4}, true); text != "ab" {
		t.Errorf("ids beyond the last decode to %q", text)
	}
}
