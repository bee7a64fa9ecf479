package tokenizer

import (
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"
)

// TestEncodeFuncBounds: a caller that accepts everything gets what Encode gives, one that accepts nothing what
// EncodeOrdinary gives.
func TestEncodeFuncBounds(t *testing.T) {
	for _, name := range ownNames {
		tok := loadOwn(t, name)
		n := eachGolden(t, filepath.Join("testdata", name+".golden.jsonl.gz"), func(g goldenLine) {
			text := foldInvalid(g.Text)
			all := tok.EncodeFunc(text, func(start, end int) bool { return start < end && end <= len(text) })
			none := tok.EncodeFunc(text, func(int, int) bool { return false })
			if !slices.Equal(all, g.IDs) || !slices.Equal(none, tok.EncodeOrdinary(text)) {
				t.Errorf("%s: %.80q: %v and %v", name, text, all, none)
			}
		})
		if n == 0 {
			t.Errorf("%s: no golden strings", name)
		}
	}
}

// spelling is smallJSON with a control token, matched before or after a normaliser.
func spelling(t *testing.T, normalizer string, normalized bool) *Tokenizer {
	t.Helper()
	token := fmt.Sprintf(`[{"id":7,"content":"<s>","single_word":false,"lstrip":false,"rstrip":false,"normalized":%t,"special":true}]`, normalized)
	data := strings.Replace(smallJSON, `"added_tokens":[],"normalizer":null`, `"added_tokens":`+token+`,"normalizer":`+normalizer, 1)
	tok, err := Load([]byte(data))
	if err != nil {
		t.Fatal(err)
	}
	return tok
}

// TestEncodeFunc: a control token counts exactly where the caller accepts it, and is text everywhere else.
func TestEncodeFunc(t *testing.T) {
	const prepend, lower, nfkc = `{"type":"Prepend","prepend":"c"}`, `{"type":"Lowercase"}`, `{"type":"NFKC"}`
	for _, c := range []struct {
		normalizer string
		normalized bool
		text       string
		accept     [][2]int
		want       []bool // of each control token that Encode finds: is it one here?
	}{
		{"null", false, "a<s>b<s>", [][2]int{{1, 4}}, []bool{true, false}},
		{"null", true, "a<s>b<s>", [][2]int{{5, 8}}, []bool{false, true}},
		{prepend, false, "a<s>b<s>", [][2]int{{5, 8}}, []bool{false, true}},
		// The token's own text is normalised too, so that it is only found at the start.
		{prepend, true, "<s>a<s>", [][2]int{{0, 3}, {4, 7}}, []bool{true}},
		{prepend, true, "<s>a<s>", [][2]int{{4, 7}}, []bool{false}},
		{lower, true, "A<s>B<s>", [][2]int{{1, 4}}, []bool{true, false}},
		// Appears only once normalised: never a token, and the one after it keeps its place.
		{lower, true, "A<S>B<s>", [][2]int{{1, 4}, {5, 8}}, []bool{false, true}},
		{nfkc, true, "＜s＞a<s>", [][2]int{{0, 7}, {8, 11}}, []bool{false, true}},
		{nfkc, true, "ﬁ<s>＜s＞<s>", [][2]int{{3, 6}, {6, 13}}, []bool{true, false, false}},
	} {
		tok := spelling(t, c.normalizer, c.normalized)
		var asked [][2]int
		ids := tok.EncodeFunc(c.text, func(start, end int) bool {
			asked = append(asked, [2]int{start, end})
			if c.text[start:end] != "<s>" {
				t.Errorf("%q: asked about %q", c.text, c.text[start:end])
			}
			return slices.Contains(c.accept, [2]int{start, end})
		})
		tokens := 0
		for _, id := range ids {
			if id == 7 {
				tokens++
			}
		}
		want := 0
		for _, yes := range c.want {
			if yes {
				want++
			}
		}
		if tokens != want {
			t.Errorf("%q after %s: %d control tokens in %v, want %d; asked about %v", c.text, c.normalizer, tokens, ids, want, asked)
		}
	}
}

// TestEncodeFuncTime: a text of nothing but control tokens under a normaliser ends soon.
func TestEncodeFuncTime(t *testing.T) {
	tok := spelling(t, `{"type":"Lowercase"}`, true)
	text := "A" + strings.Repeat("<s>", 200_000)
	began := time.Now()
	tok.EncodeFunc(text, func(int, int) bool { return true })
	if d := time.Since(began); d > 20*time.Second {
		t.Errorf("took %v", d)
	}
}
