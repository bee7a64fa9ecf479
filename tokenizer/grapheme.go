package tokenizer

import (
	"bytes"
	"compress/flate"
	"encoding/base64"
	"encoding/binary"
	"io"
	"sync"
	"unicode"
	"unicode/utf8"
)

// Classes of code points for grapheme clusters (UAX #29, extended clusters, Unicode 16). Linker and ConjunctExtend are also
// Extend; Hangul syllables are told by arithmetic.
const (
	gcOther = iota
	gcControl
	gcExtend
	gcZWJ
	gcRegional
	gcPrepend
	gcSpacingMark
	gcL
	gcV
	gcT
	gcPictographic
	gcConsonant // of Indic_Conjunct_Break
	gcLinker    // Extend, and Indic_Conjunct_Break=Linker
	gcConjunctExtend
	gcLV
	gcLVT
)

// graphemeTable gives the class of a code point in two steps: its page, and the class in there.
type graphemeTable struct {
	page  [unicode.MaxRune>>8 + 1]uint16
	pages [][256]uint8
}

// loadGraphemes unpacks the table once and gives it.
var loadGraphemes = sync.OnceValue(func() *graphemeTable {
	packed, err := base64.StdEncoding.DecodeString(graphemeData)
	if err != nil {
		panic("tokenizer: graphemeData is not base64: " + err.Error())
	}
	data, err := io.ReadAll(flate.NewReader(bytes.NewReader(packed)))
	if err != nil {
		panic("tokenizer: graphemeData is not deflate: " + err.Error())
	}
	flat := make([]uint8, 0, unicode.MaxRune+1)
	for len(data) > 0 {
		length, n := binary.Uvarint(data)
		class := data[n]
		data = data[n+1:]
		for ; length > 0; length-- {
			flat = append(flat, class)
		}
	}
	t := new(graphemeTable)
	t.pages = pack(&t.page, flat)
	return t
})

func (t *graphemeTable) class(r rune) uint8 {
	if r >= hangulS && r < hangulS+countS {
		if (r-hangulS)%countT == 0 {
			return gcLV
		}
		return gcLVT
	}
	return t.pages[t.page[r>>8]][r&255]
}

// graphemeEnd gives the end of the grapheme cluster that begins at s[start:].
func graphemeEnd(s string, start int) int {
	t := loadGraphemes()
	first, n := utf8.DecodeRuneInString(s[start:])
	i := start + n
	prev := t.class(first)
	if prev == gcControl {
		if first == '\r' && i < len(s) && s[i] == '\n' {
			i++
		}
		return i
	}
	var (
		pictographic = prev == gcPictographic // the cluster's last part is one, with only Extend after it
		joined       = false                  // and a ZWJ directly before
		consonant    = prev == gcConsonant    // the cluster's last part is one, with only InCB marks after it
		linked       = false                  // and a linker among those
		regional     = 0                      // regional indicators in a row
	)
	if prev == gcRegional {
		regional = 1
	}
	for i < len(s) {
		r, n := utf8.DecodeRuneInString(s[i:])
		c := t.class(r)
		switch {
		case c == gcControl:
			return i
		case c == gcExtend || c == gcZWJ || c == gcLinker || c == gcConjunctExtend || c == gcSpacingMark:
		case prev == gcPrepend:
		case hangulJoins(prev, c):
		case joined && c == gcPictographic:
		case linked && c == gcConsonant:
		case c == gcRegional && regional%2 == 1:
		default:
			return i
		}
		joined = pictographic && c == gcZWJ
		pictographic = c == gcPictographic ||
			pictographic && (c == gcExtend || c == gcLinker || c == gcConjunctExtend)
		linked = c != gcConsonant && consonant && (linked || c == gcLinker)
		consonant = c == gcConsonant || consonant && (c == gcLinker || c == gcConjunctExtend || c == gcZWJ)
		linked = linked && consonant
		if c == gcRegional {
			regional++
		} else {
			regional = 0
		}
		prev = c
		i += n
	}
	return i
}

// hangulJoins says whether no cluster ends between two parts of a Hangul syllable.
func hangulJoins(a, b uint8) bool {
	switch a {
	case gcL:
		return b == gcL || b == gcV || b == gcLV || b == gcLVT
	case gcLV, gcV:
		return b == gcV || b == gcT
	case gcLVT, gcT:
		return b == gcT
	}
	return false
}
