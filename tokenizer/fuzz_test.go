package tokenizer

import (
	"os"
	"path/filepath"
	"testing"
	"unicode/utf8"
)

// FuzzLoad: a hostile tokenizer.json gives an error or a tokenizer that works, never a panic. Seeds are small
// files of every kind of component.
func FuzzLoad(f *testing.F) {
	f.Add([]byte(smallJSON))
	seeds, err := filepath.Glob(filepath.Join("testdata", "seeds", "*.json"))
	if err != nil || len(seeds) == 0 {
		f.Fatalf("no seeds: %v", err)
	}
	for _, path := range seeds {
		data, err := os.ReadFile(path)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(data)
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		if len(data) > 1<<16 {
			return
		}
		tok, err := Load(data)
		if err != nil {
			return
		}
		if n := tok.VocabSize(); n > len(data)+idSlack {
			t.Fatalf("%d bytes made a table of %d ids", len(data), n)
		}
		ids := tok.Encode("ab c's \t12 <s>é😀\r\n  x", true)
		for _, id := range ids {
			if _, ok := tok.Token(id); !ok {
				t.Fatalf("id %d isn't in the vocabulary", id)
			}
		}
		tok.Decode(ids, true)
		m := NewStopMatcher(tok, []string{"c's"}, nil)
		for _, id := range ids {
			m.Push(id)
		}
	})
}

// FuzzRoundTrip: on any text a byte-level tokenizer without normalizer gives the text back, and the stream gives
// what the whole decode gives in whole characters.
func FuzzRoundTrip(f *testing.F) {
	for _, s := range []string{"", " ", "It's 123456 o'clock\r\n\r\n  x ", "日本語 한국어 👨‍👩‍👧‍👦", "a\xff\xe3\x81b",
		"<|bos|><tool>x <left> cat", "e\u0301\u0323", "'ſ 'RE"} {
		f.Add(s)
	}
	var toks []*Tokenizer
	for _, name := range ownNames {
		toks = append(toks, loadOwn(f, name))
	}
	f.Fuzz(func(t *testing.T, s string) {
		if len(s) > 1<<14 {
			return
		}
		for i, tok := range toks {
			ids := tok.Encode(s, false)
			whole := tok.Decode(ids, false)
			stream := tok.NewStream(false)
			joined := ""
			for _, id := range ids {
				piece := stream.Push(id)
				if !utf8.ValidString(piece) {
					t.Fatalf("torn piece %q", piece)
				}
				joined += piece
			}
			if joined += stream.Flush(); joined != whole {
				t.Fatalf("stream %q, whole %q", joined, whole)
			}
			if i > 0 {
				continue
			}
			// Without added tokens (they swallow blanks) the bytes come back.
			back := ""
			plain := foldInvalid(s)
			for text := nfc(plain); text != ""; {
				n := tok.cut(text)
				back += tok.Decode(tok.model.encode(text[:n], nil), false)
				text = text[n:]
			}
			if want := nfc(plain); utf8.ValidString(back) && back != want {
				t.Fatalf("%q came back as %q", want, back)
			}
		}
	})
}
