package tokenizer

import (
	"slices"
	"sync"
	"unicode"
	"unicode/utf8"

	"golang.org/x/text/unicode/norm"
)

// Unicode normal form C without the stream-safe step: x/text puts U+034F into runs of more than 30 combining
// marks and the reference doesn't, so only the data come from there.

// Hangul syllables are composed by arithmetic (Unicode chapter 3.12).
const (
	hangulS, hangulL, hangulV, hangulT = 0xAC00, 0x1100, 0x1161, 0x11A7
	countL, countV, countT             = 19, 21, 28
	countS                             = countL * countV * countT
)

// composePairs maps a pair of code points to their primary composite.
var composePairs = sync.OnceValue(func() map[[2]rune]rune {
	pairs := make(map[[2]rune]rune, 1024)
	for r := rune(0xC0); r <= unicode.MaxRune; r++ {
		if r >= hangulS && r < hangulS+countS {
			continue
		}
		full := norm.NFC.PropertiesString(string(r)).Decomposition()
		// A composite that NFC itself changes is excluded from composition.
		if full == nil || !norm.NFC.IsNormalString(string(r)) {
			continue
		}
		// The table holds full decompositions: composing all but the last code point gives the pair.
		last, n := utf8.DecodeLastRune(full)
		head := []rune(norm.NFC.String(string(full[:len(full)-n])))
		if len(head) == 1 {
			pairs[[2]rune{head[0], last}] = r
		}
	}
	return pairs
})

// nfc gives the normal form C of s.
func nfc(s string) string {
	if isASCII(s) || norm.NFC.IsNormalString(s) {
		return s
	}
	type char struct {
		r   rune
		ccc uint8 // canonical combining class
	}
	var chars []char
	for i := 0; i < len(s); {
		_, n := utf8.DecodeRuneInString(s[i:])
		part := s[i : i+n]
		i += n
		if d := norm.NFC.PropertiesString(part).Decomposition(); d != nil {
			part = string(d)
		}
		for _, r := range part {
			ccc := uint8(0)
			if r >= 0x300 {
				ccc = norm.NFC.PropertiesString(string(r)).CCC()
			}
			chars = append(chars, char{r, ccc})
		}
	}
	for i := 0; i < len(chars); { // canonical order: a stable sort of each run of marks
		if chars[i].ccc == 0 {
			i++
			continue
		}
		start := i
		for i < len(chars) && chars[i].ccc != 0 {
			i++
		}
		slices.SortStableFunc(chars[start:i], func(a, b char) int { return int(a.ccc) - int(b.ccc) })
	}
	pairs := composePairs()
	out := make([]rune, 0, len(chars))
	starter, lastCCC := -1, uint8(0) // index in out; class of the last kept mark after it
	for _, c := range chars {
		if starter >= 0 && (lastCCC < c.ccc || starter == len(out)-1) {
			if composite, ok := compose(pairs, out[starter], c.r); ok {
				out[starter] = composite
				continue
			}
		}
		if c.ccc == 0 {
			starter = len(out)
		}
		lastCCC = c.ccc
		out = append(out, c.r)
	}
	return string(out)
}

// compose gives the primary composite of a and b.
func compose(pairs map[[2]rune]rune, a, b rune) (rune, bool) {
	if a >= hangulL && a < hangulL+countL && b >= hangulV && b < hangulV+countV {
		return hangulS + ((a-hangulL)*countV+(b-hangulV))*countT, true
	}
	if a >= hangulS && a < hangulS+countS && (a-hangulS)%countT == 0 && b > hangulT && b < hangulT+countT {
		return a + b - hangulT, true
	}
	r, ok := pairs[[2]rune{a, b}]
	return r, ok
}

func isASCII(s string) bool {
	for i := 0; i < len(s); i++ {
		if s[i] >= utf8.RuneSelf {
			return false
		}
	}
	return true
}
