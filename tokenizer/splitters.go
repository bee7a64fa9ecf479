package tokenizer

import (
	"strings"
	"unicode"
	"unicode/utf8"
)

// Hand-written splitters for the patterns of well-known tokenizers. regexp2 would be some 50 times slower, and
// its tables are older than the reference's.

// knownPatterns maps the text of a pattern to its matcher.
var knownPatterns = map[string]matcher{
	patternGPT2:    splitter(splitGPT2),
	patternLlama3:  splitter(cl100k{letters: classL, maxDigits: 3}.split),
	patternQwen2:   splitter(cl100k{letters: classL, maxDigits: 1}.split),
	patternQwen3_5: splitter(cl100k{letters: classL | classM, maxDigits: 1}.split),
	patternO200k:   splitter(splitO200k),

	// The three of DeepSeek V3, in a row.
	`\p{N}{1,3}`: partial(matchDigits),
	"[一-龥\u3040-ゟ゠-ヿ]+": runes{is: func(r rune) bool {
		return r >= '一' && r <= '龥' || r >= '\u3040' && r <= 'ヿ'
	}},
	patternDeepSeek: partial(matchDeepSeek),
}

const (
	// patternGPT2 is the one that ByteLevel uses.
	patternGPT2 = `'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+`

	patternLlama3  = contractions + `|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|` + blanks
	patternQwen2   = contractions + `|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|` + blanks
	patternQwen3_5 = contractions + `|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*|` + blanks
	patternO200k   = `[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+` + contractions + `?|` +
		`[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*` + contractions + `?|` +
		`\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|` + blanks
	patternDeepSeek = "[!\"#$%&'()*+,\\-./:;<=>?@\\[\\\\\\]^_`{|}~][A-Za-z]+|" +
		"[^\r\n\\p{L}\\p{P}\\p{S}]?[\\p{L}\\p{M}]+| ?[\\p{P}\\p{S}]+[\r\n]*|" + blanksDeepSeek

	contractions   = `(?i:'s|'t|'re|'ve|'m|'ll|'d)`
	blanks         = `\s*[\r\n]+|\s+(?!\S)|\s+`
	blanksDeepSeek = "\\s*[\r\n]+|\\s+(?!\\S)|\\s+" // the line breaks themselves stand in the pattern
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
	if n := contraction(s); n > 0 {
		return n
	}
	class, n := u.at(s, 0)
	if class&k.letters != 0 {
		return u.run(s, n, k.letters)
	}
	if class&classN != 0 {
		return digits(u, s, k.maxDigits)
	}
	next, size := u.at(s, n)
	if next&k.letters != 0 && s[0] != '\r' && s[0] != '\n' {
		return u.run(s, n+size, k.letters)
	}
	other := classWS | classN | k.letters | classL
	if class&other == 0 || s[0] == ' ' && size > 0 && next&other == 0 {
		return runOf(s, u.runNot(s, n, other), "\r\n")
	}
	return splitLines(u, s)
}

// digits gives the end of the run of at most most numbers that s begins with.
func digits(u *unicodeTables, s string, most int) int {
	end := 0
	for range most {
		class, n := u.at(s, end)
		if class&classN == 0 {
			break
		}
		end += n
	}
	return end
}

// runOf gives the end of the run in s from i of the bytes in set.
func runOf(s string, i int, set string) int {
	for i < len(s) && strings.IndexByte(set, s[i]) >= 0 {
		i++
	}
	return i
}

// splitLines is \s*[\r\n]+|\s+(?!\S)|\s+ for s that begins with white space: up to the last line break of the run
// if it has one.
func splitLines(u *unicodeTables, s string) int {
	end := u.run(s, 0, classWS)
	if i := strings.LastIndexAny(s[:end], "\r\n"); i >= 0 {
		return i + 1
	}
	return splitBlanks(u, s)
}

// contraction gives the length of 's, 't, 're, 've, 'm, 'll or 'd in any case at the start of s, else 0. The long
// s (U+017F) folds to s.
func contraction(s string) int {
	if len(s) < 2 || s[0] != '\'' {
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

// splitO200k is patternO200k, that of GPT-4o and gpt-oss: a word is upper-case then lower-case letters.
func splitO200k(s string) int {
	u := loadUnicode()
	class, n := u.at(s, 0)
	if class&(classL|classN) == 0 && s[0] != '\r' && s[0] != '\n' {
		if end := casedWord(u, s, n); end > 0 {
			return end + contraction(s[end:])
		}
	}
	if end := casedWord(u, s, 0); end > 0 {
		return end + contraction(s[end:])
	}
	if class&(classL|classN) == 0 && s[0] != '\r' && s[0] != '\n' {
		if end := upperRun(u, s, n); end > n {
			return end + contraction(s[end:])
		}
	}
	if end := upperRun(u, s, 0); end > 0 {
		return end + contraction(s[end:])
	}
	if class&classN != 0 {
		return digits(u, s, 3)
	}
	const other = classWS | classL | classN
	next, size := u.at(s, n)
	if class&other == 0 || s[0] == ' ' && size > 0 && next&other == 0 {
		return runOf(s, u.runNot(s, n, other), "\r\n/")
	}
	return splitLines(u, s)
}

// letterCase says whether the code point at s[i:] can stand among the upper-case and among the lower-case letters
// of a word; letters without case and marks can do both.
func letterCase(u *unicodeTables, s string, i int) (upper, lower bool, n int) {
	class, n := u.at(s, i)
	switch {
	case class&classM != 0:
		return true, true, n
	case class&classL == 0:
		return false, false, n
	case class&classLu != 0:
		return true, false, n
	case class&classLl != 0:
		return false, true, n
	}
	r, _ := utf8.DecodeRuneInString(s[i:])
	return true, !unicode.Is(unicode.Lt, r), n
}

// upperRun gives the end of the run of upper-case letters in s from i.
func upperRun(u *unicodeTables, s string, i int) int {
	for {
		upper, _, n := letterCase(u, s, i)
		if !upper {
			return i
		}
		i += n
	}
}

// casedWord gives the end of upper-case letters (or none) and then at least one lower-case one in s from i, 0 for
// no match. A letter that can be either goes to the upper-case ones unless the others would be left with none.
func casedWord(u *unicodeTables, s string, i int) int {
	both := 0 // end of the last letter that can be either
	for {
		upper, lower, n := letterCase(u, s, i)
		if !upper {
			if !lower {
				return both
			}
			break
		}
		i += n
		if lower {
			both = i
		}
	}
	for {
		_, lower, n := letterCase(u, s, i)
		if !lower {
			return i
		}
		i += n
	}
}

// partial is a pattern that doesn't match everywhere: it gives the length of the match at the start of a text that
// isn't empty, 0 for none.
type partial func(s string) int

func (p partial) match(s string, found func(start, end int)) {
	for at := 0; at < len(s); {
		n := p(s[at:])
		if n > 0 {
			found(at, at+n)
		} else {
			_, n = utf8.DecodeRuneInString(s[at:])
		}
		at += n
	}
}

func matchDigits(s string) int { return digits(loadUnicode(), s, 3) }

// matchDeepSeek is patternDeepSeek.
func matchDeepSeek(s string) int {
	u := loadUnicode()
	class, n := u.at(s, 0)
	if s[0] < utf8.RuneSelf && class&(classP|classS) != 0 {
		end := 1
		for end < len(s) && s[end]|0x20 >= 'a' && s[end]|0x20 <= 'z' {
			end++
		}
		if end > 1 {
			return end
		}
	}
	const word, marks = classL | classM, classP | classS
	if class&word != 0 {
		return u.run(s, n, word)
	}
	next, size := u.at(s, n)
	if class&marks == 0 && s[0] != '\r' && s[0] != '\n' && next&word != 0 {
		return u.run(s, n+size, word)
	}
	if class&marks != 0 || s[0] == ' ' && next&marks != 0 {
		return runOf(s, u.run(s, n, marks), "\r\n")
	}
	if class&classWS != 0 {
		return splitLines(u, s)
	}
	return 0
}
