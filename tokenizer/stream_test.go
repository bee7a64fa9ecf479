package tokenizer

import (
	"slices"
	"strings"
	"testing"
	"unicode/utf8"
)

// TestStreamPieces: characters over several tokens come whole, and the pieces make up the text (FR-24).
func TestStreamPieces(t *testing.T) {
	texts := []string{"🦜", "한국어 각", "👨‍👩‍👧‍👦 family", "a🏴󠁧󠁢󠁥󠁮󠁧󠁿b", "e\u0301x", "naïve ☃ 龥", " leading", "𐍈\u0000\uFFFDz"}
	for _, name := range ownNames {
		tok := loadOwn(t, name)
		split := 0
		for _, text := range texts {
			ids := tok.Encode(text, false)
			s := tok.NewStream(false)
			joined := ""
			for _, id := range ids {
				piece := s.Push(id)
				if !utf8.ValidString(piece) {
					t.Errorf("%s %q: torn piece %q", name, text, piece)
				}
				if strings.ContainsRune(piece, utf8.RuneError) && !strings.ContainsRune(text, utf8.RuneError) {
					t.Errorf("%s %q: replacement mark in piece %q", name, text, piece)
				}
				if piece == "" {
					split++
				}
				joined += piece
			}
			joined += s.Flush()
			if want := tok.Decode(ids, false); joined != want {
				t.Errorf("%s %q: joined %q, whole decode %q", name, text, joined, want)
			}
			if joined != nfc(text) && name == "own_bytes" {
				t.Errorf("%s: %q came back as %q", name, text, joined)
			}
		}
		if split < 10 {
			t.Errorf("%s: only %d tokens end inside a character; the texts no longer test that", name, split)
		}
	}
}

// TestStreamCut: (FR-24) an unfinished character is flushed once, as the whole decode has it.
func TestStreamCut(t *testing.T) {
	tok := loadOwn(t, "own_bytes")
	ids := tok.Encode("ok 🦜", false)
	for cut := range ids {
		s := tok.NewStream(false)
		joined := ""
		for _, id := range ids[:cut] {
			joined += s.Push(id)
		}
		joined += s.Flush()
		if want := tok.Decode(ids[:cut], false); joined != want {
			t.Errorf("cut at %d: %q, want %q", cut, joined, want)
		}
		if again := s.Flush(); again != "" {
			t.Errorf("cut at %d: a second flush gives %q", cut, again)
		}
	}
}

// TestBeyondVocabulary: (FR-24) ids of a padded vocabulary decode to nothing and don't tear what is around them.
func TestBeyondVocabulary(t *testing.T) {
	for _, name := range ownNames {
		tok := loadOwn(t, name)
		ids := tok.Encode("é🦜 x", false)
		beyond := int32(tok.VocabSize())
		mixed := []int32{}
		for _, id := range ids {
			mixed = append(mixed, beyond, id, -1, 1<<31-1)
		}
		if got, want := tok.Decode(mixed, false), tok.Decode(ids, false); got != want {
			t.Errorf("%s: %q, want %q", name, got, want)
		}
	}
}

// TestDecodeInvalid: invalid bytes give the reference's number of replacement marks.
func TestDecodeInvalid(t *testing.T) {
	for _, c := range []struct{ in, want string }{
		{"a\xFFb", "a\uFFFDb"},
		{"\xE3\x81", "\uFFFD"},
		{"\xE3\x81x", "\uFFFDx"},
		{"\xE3\x81\xE3\x81\x82", "\uFFFDあ"},
		{"\xF0\x9F\x98", "\uFFFD"},
		{"\xF0\x9F\x98\xF0\x9F\x98\x80", "\uFFFD😀"},
		{"\xED\xA0\x80", "\uFFFD\uFFFD\uFFFD"},
		{"\xC0\xAF", "\uFFFD\uFFFD"},
		{"\xF4\x90\x80\x80", "\uFFFD\uFFFD\uFFFD\uFFFD"},
		{"\xE0\x80\x80", "\uFFFD\uFFFD\uFFFD"},
		{"\uFFFD", "\uFFFD"},
	} {
		if got := foldInvalid(c.in); got != c.want {
			t.Errorf("%q: %q, want %q", c.in, got, c.want)
		}
		tok := loadOwn(t, "own_bytes")
		var ids []int32
		for _, b := range []byte(c.in) {
			id, ok := tok.ID(string(byteChar[b]))
			if !ok {
				t.Fatalf("no token for byte %#x", b)
			}
			ids = append(ids, id)
		}
		if got := tok.Decode(ids, false); got != c.want {
			t.Errorf("decode of %q: %q, want %q", c.in, got, c.want)
		}
	}
}

// TestFallbackRun: a run of byte tokens is text only if all of it is valid; else there is a mark for each byte.
func TestFallbackRun(t *testing.T) {
	tok := loadOwn(t, "own_fallback")
	token := func(text string) int32 {
		id, ok := tok.ID(text)
		if !ok {
			t.Fatalf("no token %q", text)
		}
		return id
	}
	valid := []int32{token("<0xE3>"), token("<0x81>"), token("<0x82>")}
	a := token("a")
	for _, c := range []struct {
		ids  []int32
		want string
	}{
		{slices.Concat(valid, []int32{a}), "あa"},
		{slices.Concat(valid, []int32{token("<0xFF>"), a}), "\uFFFD\uFFFD\uFFFD\uFFFDa"},
		{slices.Concat(valid[:2], []int32{a}, valid), "\uFFFD\uFFFDaあ"},
		{slices.Concat([]int32{token("▁")}, valid), "あ"},
		{slices.Concat([]int32{token("▁"), token("▁")}, valid), " あ"},
	} {
		if got := tok.Decode(c.ids, false); got != c.want {
			t.Errorf("%v: %q, want %q", c.ids, got, c.want)
		}
	}
}

// TestDecodeStages: stages on fragments give what they would on the whole token.
func TestDecodeStages(t *testing.T) {
	steps := map[string][]decodeStep{
		"replace": {fuse{}, decodeReplace{replace{literal("aba"), "X"}}},
		"strip":   {fuse{}, decodeStrip{"a", 2, 3}},
		"both":    {fuse{}, decodeReplace{replace{literal("bb"), ""}}, decodeStrip{"a", 1, 2}, decodeStrip{"b", 0, 1}},
		"mark":    {fuse{}, decodeMetaspace{mark: "a", scheme: prependFirst}},
	}
	run := func(steps []decodeStep, parts []string) string {
		var out strings.Builder
		c := newChain(steps, func(s string) { out.WriteString(s) })
		for _, p := range parts {
			c.push(p)
		}
		c.flush()
		return out.String()
	}
	for name, s := range steps {
		for n := range 1 << 10 { // all texts over {a,b} up to 9 long
			text := ""
			for v := n; v > 1; v /= 2 {
				text += string("ab"[v%2])
			}
			want := run(s[1:], []string{text})
			if got := run(s, strings.Split(text, "")); got != want {
				t.Fatalf("%s of %q: %q in single characters, %q whole", name, text, got, want)
			}
		}
	}
}
