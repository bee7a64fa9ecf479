package tokenizer

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/text/unicode/norm"
)

// TestUnicodeOfReference holds every code point of the planes 0 to 2 against the reference's components, by digest
// (testdata/make.py): its tables are of Unicode 8, 9, 16 and 17, depending on the component.
func TestUnicodeOfReference(t *testing.T) {
	data, err := os.ReadFile(filepath.Join("testdata", "unicode.json"))
	if err != nil {
		t.Fatal(err)
	}
	var digests map[string]string
	if err := json.Unmarshal(data, &digests); err != nil {
		t.Fatal(err)
	}
	bit := func(is func(rune) bool) func(string) string {
		return func(c string) string {
			if is([]rune(c)[0]) {
				return "1"
			}
			return "0"
		}
	}
	kinds := map[string]func(string) string{
		"nfkc":        func(c string) string { return nfkc(c + "\u0301") },
		"lower":       lowercase,
		"punctuation": bit(isPunctuation),
		"digit":       bit(isDigit),
		"space":       bit(isSpace),
		"word":        bit(loadUnicode().isWord),
	}
	for name, want := range digests {
		f := kinds[name]
		if around, ok := strings.CutPrefix(name, "nfc "); ok {
			f = func(c string) string { return nfc(strings.Replace(around, "{}", c, 1)) }
		}
		if f == nil {
			t.Errorf("no component %q", name)
			continue
		}
		h := sha256.New()
		for r := rune(1); r < 0x30000; r++ {
			if r >= 0xD800 && r < 0xE000 {
				continue
			}
			io.WriteString(h, f(string(r)))
			io.WriteString(h, "\n")
		}
		if got := hex.EncodeToString(h.Sum(nil)); got != want {
			t.Errorf("%s: not the reference's on some code point", name)
		}
	}
	if len(digests) != 12 {
		t.Errorf("%d components, want 12", len(digests))
	}
}

// TestNFCLongRun: no U+034F is put into long runs of marks, which are sorted and composed as a whole.
func TestNFCLongRun(t *testing.T) {
	run := "z" + strings.Repeat("\u0301\u0323", 40)
	want := "ẓ" + strings.Repeat("\u0323", 39) + strings.Repeat("\u0301", 40)
	if got := nfc(run); got != want {
		t.Errorf("got %q, want %q", got, want)
	}
	if norm.NFC.String(run) == want {
		t.Error("x/text agrees now: the own composition could go")
	}
}
