package tokenizer

import (
	"slices"
	"strings"
	"testing"
)

// TestPatternTwins: a hand-written splitter cuts as its pattern does by regexp2, on fuzzed strings.
func TestPatternTwins(t *testing.T) {
	var texts []string
	for _, name := range ownNames {
		eachGolden(t, "testdata/"+name+".golden.jsonl.gz", func(g goldenLine) { texts = append(texts, g.Text) })
	}
	for pattern, cut := range knownPatterns {
		slow, err := compilePattern(pattern)
		if err != nil {
			t.Errorf("%.40s: %v", pattern, err)
			continue
		}
		for _, s := range texts {
			got, want := matchesOf(cut, s), matchesOf(slow, s)
			if !slices.Equal(got, want) {
				t.Errorf("%.40s on %q:\n got %q\nwant %q", pattern, s, got, want)
				break
			}
		}
	}
}

func matchesOf(m matcher, s string) (out []string) {
	m.match(s, func(start, end int) { out = append(out, s[start:end]) })
	return out
}

// TestPatternTranslation: constructs that are written anew for regexp2.
func TestPatternTranslation(t *testing.T) {
	for _, c := range []struct{ pattern, text, want string }{
		{`(?i:'s|k)`, "'ſ 'S k K \u212a", "'ſ|'S|k|K|\u212a"},
		{`\p{N}{1,3}`, "12345", "123|45"},
		{`\p{N}{,2}a`, "123a", "23a"},
		{`a{2}`, "aaaaa", "aa|aa"},
		{`[^\r\n\p{L}]?+\p{L}++`, "'ab cd", "'ab| cd"},
		{`a+?b?`, "aab", "a|ab"},
		{`\s+(?!\S)|\s`, "a   b  ", "  | |  "},
		{`[a\-\]c-e]+`, "b-]adz", "-]ad"},
		{`(a|b)(?=c)`, "acbb", "a"},
		{`\x{1F600}|\u0041`, "😀A", "😀|A"},
		{`\P{L}+`, "ab12cd!", "12|!"},
		{`[\d\S]`, "٣ x", "٣|x"},
		{`[一-龥]+`, "東京abc都", "東京|都"},
		{`\p{L}`, "\U00016D40\U00010D4A", "\U00016D40|\U00010D4A"}, // letters since Unicode 16
	} {
		m, err := compilePattern(c.pattern)
		if err != nil {
			t.Errorf("%s: %v", c.pattern, err)
			continue
		}
		if got := strings.Join(matchesOf(m, c.text), "|"); got != c.want {
			t.Errorf("%s on %q: %q, want %q", c.pattern, c.text, got, c.want)
		}
	}
}

// TestPatternRefused: what would mean something else, or could backtrack without end, is refused.
func TestPatternRefused(t *testing.T) {
	for _, pattern := range []string{
		``, `a*`, `a|`, `(?=a)`, `(a)\1`, `^a`, `a$`, `a\b`, `\w+`, `.`, `[[:alpha:]]`, `[a&&b]`, `[]a]`, `[b-a]`, `(?m:a)`,
		`(?<n>a)`, `(?<=a)b`, `a{1,2}+`, `a**`, `a{3,1}`, `a{5000}`, `(a+)+b`, `(a?){30}b`, `(a|a){30}b`, `(?:a*b*)*c`,
		`a+b+c+d+e`, `(a`, `a)`, `[a`, `\`, `a\p`, `\p{Han}`, `\p{L`, `\x41`, `\uD800`, `(?i:ss)`, `(?i:é)`, `(?i:[é])`, `{`,
		strings.Repeat("(", 40) + "a" + strings.Repeat(")", 40), strings.Repeat(`[\p{L}a]`, 70), strings.Repeat("a", 5000),
	} {
		if m, err := compilePattern(pattern); err == nil {
			t.Errorf("%.40q is taken as %v", pattern, m)
		}
	}
}
