package tokenizer

import "strings"

// Hand-written splitters for the patterns of well-known tokenizers. regexp2 would be some 50 times slower, and
// its tables are older than the reference's.

// knownPatterns maps the text of a pattern to its splitter.
var knownPatterns = map[string]splitter{
	patternGPT2: splitGPT2,
	contractions + `|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|` + blanks: cl100k{
		letters: classL, maxDigits: 3}.split,
	contractions + `|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|` + blanks: cl100k{
		letters: classL, maxDigits: 1}.split,
	contractions + `|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*|` + blanks: cl100k{
		letters: classL | classM, maxDigits: 1}.split,
}

const (
	// patternGPT2 is the one that ByteLevel uses.
	patternGPT2  = `'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+`
	contractions = `(?i:'s|'t|'re|'ve|'m|'ll|'d)`
	blanks       = `\s*[\r\n]+|\s+(?!\S)|\s+`
)

// splitGPT2 is patternGPT2.
func splitGPT2(s string) int {
	u := loadUnicode()
	if s[0] == '\'' && len(s) > 1 {
		switch s[1] {
		case 's', 't', 'm', 'd':
			return 2
		case 'r', 'v', 'l':
			if len(s) > 2 && (s[1:3] == "re" || s[1:3] == "ve" || s[1:3] == "ll") {
				return 3
			}
		}
	}
	start := 0
	if s[0] == ' ' {
		start = 1
	}
	class, n := u.at(s, start)
	switch {
	case n == 0 || class&classWS != 0:
		return splitBlanks(u, s)
	case class&classL != 0:
		return u.run(s, start+n, classL)
	case class&classN != 0:
		return u.run(s, start+n, classN)
	}
	return u.runNot(s, start+n, classWS|classL|classN)
}

// splitBlanks is \s+(?!\S)|\s+ for s that begins with white space: a run gives its last blank to the word that
// follows.
func splitBlanks(u *unicodeTables, s string) int {
	end, last := 0, 0 // of the run; start of its last blank
	for end < len(s) {
		class, n := u.at(s, end)
		if class&classWS == 0 {
			break
		}
		last = end
		end += n
	}
	if end < len(s) && last > 0 {
		return last
	}
	return end
}

// cl100k is the family of patterns of GPT-4's tokenizer: Llama 3, Qwen.
type cl100k struct {
	letters   uint8 // class bits of what makes up a word
	maxDigits int   // longest run of digits in a piece
}

func (k cl100k) split(s string) int {
	u := loadUnicode()
	if s[0] == '\'' {
		if n := contraction(s); n > 0 {
			return n
		}
	}
	class, n := u.at(s, 0)
	if class&k.letters != 0 {
		return u.run(s, n, k.letters)
	}
	if class&classN != 0 {
		for i := 1; i < k.maxDigits; i++ {
			class, size := u.at(s, n)
			if class&classN == 0 {
				break
			}
			n += size
		}
		return n
	}
	next, size := u.at(s, n)
	if next&k.letters != 0 && s[0] != '\r' && s[0] != '\n' {
		return u.run(s, n+size, k.letters)
	}
	other := classWS | classN | k.letters | classL
	if class&other == 0 || s[0] == ' ' && size > 0 && next&other == 0 {
		end := u.runNot(s, n, other)
		for end < len(s) && (s[end] == '\r' || s[end] == '\n') {
			end++
		}
		return end
	}
	// White space: up to the last line break of the run if it has one.
	end := u.run(s, 0, classWS)
	if i := strings.LastIndexAny(s[:end], "\r\n"); i >= 0 {
		return i + 1
	}
	return splitBlanks(u, s[:min(len(s), end+1)])
}

// contraction gives the length of 's, 't, 're, 've, 'm, 'll or 'd in any case at the start of s, else 0. The long
// s (U+017F) folds to s.
func contraction(s string) int {
	if len(s) < 2 {
		return 0
	}
	switch s[1] | 0x20 {
	case 's', 't', 'm', 'd':
		return 2
	case 'r', 'v':
		if len(s) > 2 && s[2]|0x20 == 'e' {
			return 3
		}
	case 'l':
		if len(s) > 2 && s[2]|0x20 == 'l' {
			return 3
		}
	}
	if strings.HasPrefix(s[1:], "ſ") {
		return 3
	}
	return 0
}
