package tokenizer

import (
	"crypto/sha256"
	"fmt"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"unicode"
	"unicode/utf8"

	archive "smolgym/model/golden"
)

// ends writes where the clusters of s end, counted in code points.
func ends(s string) string {
	var out []string
	at := 0
	for i := 0; i < len(s); {
		end := graphemeEnd(s, i)
		at += utf8.RuneCountInString(s[i:end])
		out = append(out, strconv.Itoa(at))
		i = end
	}
	return strings.Join(out, " ")
}

// TestGraphemes holds random texts, and every code point in six contexts with three ends, against the library that
// the reference uses (testdata/graphemes).
func TestGraphemes(t *testing.T) {
	lines := strings.Split(strings.TrimSpace(string(archive.Gunzip(t, filepath.Join("testdata", "graphemes.txt.gz")))), "\n")
	if len(lines) != 8001 {
		t.Fatalf("%d lines, want 8001", len(lines))
	}
	for i := 0; i+1 < len(lines); i += 2 {
		text := ""
		for hex := range strings.SplitSeq(lines[i], " ") {
			c, err := strconv.ParseInt(hex, 16, 32)
			if err != nil {
				t.Fatal(err)
			}
			text += string(rune(c))
		}
		if got := ends(text); got != lines[i+1] {
			t.Errorf("%s: clusters end at %s, want %s", lines[i], got, lines[i+1])
		}
	}
	h := sha256.New()
	for _, before := range []string{"a", "👩\u200d", "क\u094d", "\u1100", "\uac00", "\uac01"} {
		for _, after := range []string{"", "\u0300\u200d👩", "\u094dक"} {
			for c := rune(0); c <= unicode.MaxRune; c++ {
				if c < 0xD800 || c >= 0xE000 {
					fmt.Fprintln(h, ends(before+string(c)+after))
				}
			}
		}
	}
	if got, want := fmt.Sprintf("%x", h.Sum(nil)), lines[8000]; got != want {
		t.Errorf("SHA-256 of the ends for every code point is %s, want %s", got, want)
	}
}
