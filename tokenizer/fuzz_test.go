package tokenizer

import (
	"encoding/binary"
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"unicode/utf8"

	"smolgym/model/growth"
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
	var live growth.Watch
	f.Fuzz(func(t *testing.T, data []byte) {
		live.Check(t)
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
		exercise(t, tok)
	})
}

// exercise encodes and decodes with a tokenizer of a fuzzed file.
func exercise(t *testing.T, tok *Tokenizer) {
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

// FuzzLoadSentencePiece: a hostile model file gives an error or a tokenizer that works, never a panic, and no
// growth beyond what the file's size allows.
func FuzzLoadSentencePiece(f *testing.F) {
	// Small seeds: the engine takes minutes to shrink what it finds in whole models.
	unknown := wirePiece("<unk>", pieceUnknown)
	f.Add(wire(unknown, wirePiece("a", 1), wirePiece("<s>", pieceControl), wirePiece("\u2581b", 1),
		message(2, "\x18\x02"), message(3, "\x18\x00\x20\x00")))
	f.Add(wire(unknown, wirePiece("ab", 1), wirePiece("x", pieceUserDefined), wirePiece("y", pieceUnused)))
	f.Add(wire(unknown, wirePiece("a", 1), message(3, message(2, string(smallCharsmap())))))
	bytePieces := unknown
	for b := range 256 {
		bytePieces += wirePiece(fmt.Sprintf("<0x%02X>", b), pieceByte)
	}
	f.Add(wire(bytePieces, wirePiece("ab", 1), message(2, "\x98\x02\x01\x18\x02")))
	f.Add(wire(bytePieces, wirePiece("a", 1), message(2, "\x98\x02\x01\xc0\x01\x01")))
	var live growth.Watch
	f.Fuzz(func(t *testing.T, data []byte) {
		live.Check(t)
		if len(data) > 1<<18 {
			return
		}
		tok, err := LoadSentencePiece(data)
		if err != nil {
			return
		}
		if n := tok.VocabSize(); n > len(data) {
			t.Fatalf("%d bytes made a table of %d ids", len(data), n)
		}
		exercise(t, tok)
	})
}

// FuzzCharsmap: a hostile charsmap is refused, or works within its bounds.
func FuzzCharsmap(f *testing.F) {
	f.Add(smallCharsmap(), "xa\u0301 b")
	f.Add([]byte{4, 0, 0, 0, 0, 0, 0, 0}, "a")
	f.Fuzz(func(t *testing.T, blob []byte, s string) {
		if len(blob) > 1<<16 || len(s) > 1<<10 {
			return
		}
		m, err := newCharsmap(blob)
		if err != nil {
			return
		}
		s = foldInvalid(s)
		if out := m.normalize(s); len(out) > len(s)*m.growth {
			t.Fatalf("%d bytes became %d with a growth of %d", len(s), len(out), m.growth)
		}
		for i := range s {
			short, n := m.shortest(s[i:])
			long, k := m.longest(s[i:])
			if k < n || k > maxRule || !utf8.ValidString(short) || !utf8.ValidString(long) {
				t.Fatalf("%q: %q for %d bytes, %q for %d", s[i:], short, n, long, k)
			}
		}
	})
}

// smallCharsmap is a table that maps a to xyz and ab to nothing.
func smallCharsmap() []byte {
	units := make([]uint32, 512)
	units[0] = 256 << 10                                  // children at 256^byte
	units[256^'a'] = 'a' | 1<<8 | uint32((256^'a')^1)<<10 // its value at 1, its children at 1^byte
	units[1] = 1 << 31
	units[1^'b'] = 'b' | 1<<8 | uint32((1^'b')^2)<<10
	units[2] = 1<<31 | 3
	blob := binary.LittleEndian.AppendUint32(nil, uint32(4*len(units)))
	for _, u := range units {
		blob = binary.LittleEndian.AppendUint32(blob, u)
	}
	return append(blob, "xyz\x00"...)
}
