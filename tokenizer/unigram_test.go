package tokenizer

import (
	"encoding/binary"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// TestCharsmap: lookups by hand, and a whole cluster loses what comes after its shortest beginning.
func TestCharsmap(t *testing.T) {
	m, err := newCharsmap(smallCharsmap())
	if err != nil {
		t.Fatal(err)
	}
	for s, want := range map[string]string{"": "", "b": "b", "a": "xyz", "ab": "xyzb", "ca\u0301c": "cxyzc",
		"a\u0301\u0301": "xyz", "a\u0301\u0301\u0301": "xyz\u0301\u0301\u0301"} {
		if got := m.normalize(s); got != want {
			t.Errorf("%q became %q, want %q", s, got, want)
		}
	}
	if m.growth != 3 {
		t.Errorf("growth %d, want 3", m.growth)
	}
	if image, n := m.longest("abc"); image != "" || n != 2 {
		t.Errorf("longest: %q for %d bytes, want nothing for 2", image, n)
	}
	if image, n := m.shortest("abc"); image != "xyz" || n != 1 {
		t.Errorf("shortest: %q for %d bytes, want xyz for 1", image, n)
	}
}

// TestCharsmapRefuses: broken tables are refused with what is wrong.
func TestCharsmapRefuses(t *testing.T) {
	unit := func(at int, value uint32) []byte {
		blob := smallCharsmap()
		binary.LittleEndian.PutUint32(blob[4+4*at:], value)
		return blob
	}
	for _, c := range []struct {
		want string
		blob []byte
	}{
		{"no charsmap", []byte{1, 2}},
		{"a trie of", []byte{8, 0, 0, 0, 1, 2, 3, 4}},
		{"a trie of", []byte{3, 0, 0, 0, 1, 2, 3, 4}},
		{"not valid UTF-8", append(smallCharsmap(), 0xFF)},
		{"outside the images", unit(1, 1<<31|99)},
		{"has no value", unit(1, 7)},
		{"more than 256 bytes", unit(1^'b', 'b'|uint32((1^'b')^1)<<10)}, // its own parent's children
	} {
		if _, err := newCharsmap(c.blob); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("error %v, want one with %q", err, c.want)
		}
	}
}

// TestPieceTrie holds the trie against a scan of the vocabulary.
func TestPieceTrie(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 2))
	word := func(n int) string {
		b := make([]byte, 1+rng.IntN(n))
		for i := range b {
			b[i] = "abcdefghijklmnop"[rng.IntN(2+rng.IntN(15))]
		}
		return string(b)
	}
	var keys []trieKey
	for i := range 500 {
		keys = append(keys, trieKey{word(5), int32(i)})
	}
	want := slices.Clone(keys)
	trie := newPieceTrie(keys)
	for range 5000 {
		s := word(8)
		wantID, wantN := int32(0), 0
		for _, k := range want {
			if strings.HasPrefix(s, k.text) && len(k.text) >= wantN {
				wantID, wantN = k.id, len(k.text)
			}
		}
		if id, n := trie.longest(s); id != wantID || n != wantN {
			t.Fatalf("%q: piece %d of %d bytes, want %d of %d", s, id, n, wantID, wantN)
		}
	}
}

// TestUnigramUnknown: unknown characters fuse, and become bytes only where all their bytes are pieces.
func TestUnigramUnknown(t *testing.T) {
	data, err := os.ReadFile(filepath.Join("testdata", "seeds", "unigram.json"))
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		text string
		want []int32
	}{
		{"é", []int32{1, 6, 7}},
		{"éé a", []int32{1, 6, 7, 6, 7, 1, 2}},
		{"éü", []int32{1, 0}},
		{"qq c", []int32{1, 0, 5}},
		{"", nil},
	} {
		tok, err := Load(data)
		if err != nil {
			t.Fatal(err)
		}
		if got := tok.Encode(c.text, false); !slices.Equal(got, c.want) {
			t.Errorf("%q: %v, want %v", c.text, got, c.want)
		}
	}
}

// TestUnigramRefuses: vocabularies that contradict themselves.
func TestUnigramRefuses(t *testing.T) {
	for _, c := range []struct {
		vocab, unknown, want string
		is                   error
	}{
		{`[["a",1]]`, "null", "without unk_id", ErrUnsupported},
		{`[["a",1]]`, "1", "unk_id 1 is outside", ErrFormat},
		{`[]`, "0", "unk_id 0 is outside", ErrFormat},
		{`[["a"]]`, "0", "not a token and its score", ErrFormat},
		{`[["a",1,2]]`, "0", "not a token and its score", ErrFormat},
		{`[["",1]]`, "0", "is empty", ErrFormat},
		{`[["` + strings.Repeat("a", maxPiece+1) + `",1]]`, "0", "longer than", ErrFormat},
	} {
		_, err := Load(fmt.Appendf(nil, `{"model":{"type":"Unigram","unk_id":%s,"vocab":%s}}`, c.unknown, c.vocab))
		if !errors.Is(err, c.is) || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%.60s: error %v, want one with %q", c.vocab, err, c.want)
		}
	}
	_, err := Load([]byte(`{"normalizer":{"type":"Precompiled","precompiled_charsmap":"AAA"},
		"model":{"type":"Unigram","unk_id":0,"vocab":[["a",1]]}}`))
	if !errors.Is(err, ErrFormat) || !strings.Contains(err.Error(), "Precompiled") {
		t.Errorf("error %v, want one that names Precompiled", err)
	}
}
