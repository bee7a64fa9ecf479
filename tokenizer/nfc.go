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

// marksSince10 are the marks that came with Unicode 10 to 15: the reference's normalizer is of Unicode 9, so these
// don't combine or move there. (Found by asking the reference about every code point among marks.)
var marksSince10 = &unicode.RangeTable{
	R16: []unicode.Range16{{0x07FD, 0x07FD, 1}, {0x0898, 0x089F, 1}, {0x08CA, 0x08D3, 1}, {0x09FE, 0x09FE, 1},
		{0x0C3C, 0x0C3C, 1}, {0x0D3B, 0x0D3C, 1}, {0x0EBA, 0x0EBA, 1}, {0x1715, 0x1715, 1}, {0x1ABF, 0x1ACE, 1},
		{0x1DF6, 0x1DFA, 1}, {0xA82C, 0xA82C, 1}},
	R32: []unicode.Range32{{0x10D24, 0x10D27, 1}, {0x10EAB, 0x10EAC, 1}, {0x10EFD, 0x10EFF, 1},
		{0x10F46, 0x10F50, 1}, {0x10F82, 0x10F85, 1}, {0x11070, 0x11070, 1}, {0x1133B, 0x1133B, 1},
		{0x1145E, 0x1145E, 1}, {0x11839, 0x1183A, 1}, {0x1193D, 0x1193E, 1}, {0x11943, 0x11943, 1},
		{0x119E0, 0x119E0, 1}, {0x11A34, 0x11A34, 1}, {0x11A47, 0x11A47, 1}, {0x11A99, 0x11A99, 1},
		{0x11D42, 0x11D42, 1}, {0x11D44, 0x11D45, 1}, {0x11D97, 0x11D97, 1}, {0x11F41, 0x11F42, 1},
		{0x16FF0, 0x16FF1, 1}, {0x1E08F, 0x1E08F, 1}, {0x1E130, 0x1E136, 1}, {0x1E2AE, 0x1E2AE, 1},
		{0x1E2EC, 0x1E2EF, 1}, {0x1E4EC, 0x1E4EF, 1}},
}

// compositeSince10 is the one primary composite of Unicode 10 to 15: the reference neither makes it nor takes it
// apart.
const compositeSince10 = 0x11938

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
		if len(head) == 1 && r != compositeSince10 {
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
		if d := norm.NFC.PropertiesString(part).Decomposition(); d != nil && part != string(rune(compositeSince10)) {
			part = string(d)
		}
		for _, r := range part {
			ccc := uint8(0)
			if r >= 0x300 && !unicode.Is(marksSince10, r) {
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
