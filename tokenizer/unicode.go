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

//go:generate go run gen/unicode.go

// Code point classes of the reference's regular expressions (Unicode 16), one bit each.
const (
	classL  = 1 << iota // letter
	classN              // number
	classM              // mark
	classWS             // white space
	classLu             // upper-case letter
	classLl             // lower-case letter
	classP              // punctuation
	classS              // symbol
)

// unicodeTables is the unpacked form of unicodeData.
type unicodeTables struct {
	ascii [128]uint8
	page  [unicode.MaxRune>>8 + 1]uint16 // page of r>>8
	pages [][256]uint8
	nfkc  map[rune]string // NFKC of the code points that it changes
	lower map[rune]string // lower case of the code points that it changes
}

// loadUnicode unpacks the tables once (about 2 ms) and gives them.
var loadUnicode = sync.OnceValue(unpackUnicode)

func unpackUnicode() *unicodeTables {
	packed, err := base64.StdEncoding.DecodeString(unicodeData)
	if err != nil {
		panic("tokenizer: unicodeData is not base64: " + err.Error())
	}
	data, err := io.ReadAll(flate.NewReader(bytes.NewReader(packed)))
	if err != nil {
		panic("tokenizer: unicodeData is not deflate: " + err.Error())
	}
	next := func() int {
		v, n := binary.Uvarint(data)
		data = data[n:]
		return int(v)
	}
	flat := make([]uint8, unicode.MaxRune+1)
	for bit := 0; bit < 8; bit++ {
		at := 0
		for n := next(); n > 0; n-- {
			lo := at + next()
			at = lo + next()
			for r := lo; r <= at; r++ {
				flat[r] |= 1 << bit
			}
		}
	}
	readMap := func() map[rune]string {
		n, at := next(), 0
		m := make(map[rune]string, n)
		for ; n > 0; n-- {
			at += next()
			size := next()
			m[rune(at)] = string(data[:size])
			data = data[size:]
		}
		return m
	}
	t := &unicodeTables{nfkc: readMap(), lower: readMap()}
	copy(t.ascii[:], flat)
	t.pages = pack(&t.page, flat)
	return t
}

// pack gives the different pages of flat (a value for each code point), and in page which one is whose.
func pack(page *[unicode.MaxRune>>8 + 1]uint16, flat []uint8) (pages [][256]uint8) {
	seen := make(map[[256]uint8]uint16)
	for p := range page {
		var values [256]uint8
		copy(values[:], flat[p<<8:])
		i, ok := seen[values]
		if !ok {
			i = uint16(len(pages))
			seen[values] = i
			pages = append(pages, values)
		}
		page[p] = i
	}
	return pages
}

// class gives the class bits of r.
func (t *unicodeTables) class(r rune) uint8 {
	if r < utf8.RuneSelf {
		return t.ascii[r&127]
	}
	return t.pages[t.page[r>>8]][r&255]
}

// at gives the class bits of the first code point of s[i:] and its size in bytes; 0, 0 at the end.
func (t *unicodeTables) at(s string, i int) (class uint8, size int) {
	if i >= len(s) {
		return 0, 0
	}
	if c := s[i]; c < utf8.RuneSelf {
		return t.ascii[c], 1
	}
	r, n := utf8.DecodeRuneInString(s[i:])
	return t.pages[t.page[r>>8]][r&255], n
}

// run gives the end of the longest run in s from i of code points with any of the class bits.
func (t *unicodeTables) run(s string, i int, bits uint8) int {
	for i < len(s) {
		class, n := t.at(s, i)
		if class&bits == 0 {
			break
		}
		i += n
	}
	return i
}

// runNot gives the end of the longest run in s from i of code points with none of the class bits.
func (t *unicodeTables) runNot(s string, i int, bits uint8) int {
	for i < len(s) {
		class, n := t.at(s, i)
		if class&bits != 0 {
			break
		}
		i += n
	}
	return i
}

// isWord says whether r is a word character (\w) for added tokens: alphabetic, mark, decimal digit, connector
// punctuation or join control.
func (t *unicodeTables) isWord(r rune) bool {
	class := t.class(r)
	switch {
	case class&(classL|classM) != 0:
		return true
	case class&classN != 0:
		// Numbers newer than Go's tables are all decimal digits.
		return !unicode.Is(unicode.No, r)
	case r < utf8.RuneSelf:
		return r == '_'
	}
	return unicode.In(r, unicode.Pc, unicode.Other_Alphabetic, unicode.Join_Control)
}

// foldInvalid gives s with every maximal invalid part of its UTF-8 replaced by U+FFFD, as Rust and the WHATWG
// decoder do (Go's own conversion would put one mark for each byte).
func foldInvalid(s string) string {
	if utf8.ValidString(s) {
		return s
	}
	out, rest := appendValid(nil, []byte(s))
	if len(rest) > 0 {
		out = append(out, "\uFFFD"...)
	}
	return string(out)
}

// appendValid appends src to dst with maximal invalid parts replaced by U+FFFD. rest is the unfinished (but so
// far valid) character at the end of src, which isn't appended.
func appendValid(dst, src []byte) (out, rest []byte) {
	for len(src) > 0 {
		if c := src[0]; c < utf8.RuneSelf {
			dst = append(dst, c)
			src = src[1:]
			continue
		}
		r, n := utf8.DecodeRune(src)
		if r != utf8.RuneError || n > 1 {
			dst = append(dst, src[:n]...)
			src = src[n:]
			continue
		}
		n, complete := invalidPart(src)
		if !complete {
			return dst, src
		}
		dst = append(dst, "\uFFFD"...)
		src = src[n:]
	}
	return dst, nil
}

// invalidPart gives the length of the maximal invalid part that src starts with. complete is false where src ends
// inside what could still become a character.
func invalidPart(src []byte) (n int, complete bool) {
	c := src[0]
	lo, hi, need := byte(0x80), byte(0xBF), 0
	switch {
	case c >= 0xC2 && c <= 0xDF:
		need = 1
	case c >= 0xE0 && c <= 0xEF:
		need = 2
		if c == 0xE0 {
			lo = 0xA0
		} else if c == 0xED {
			hi = 0x9F
		}
	case c >= 0xF0 && c <= 0xF4:
		need = 3
		if c == 0xF0 {
			lo = 0x90
		} else if c == 0xF4 {
			hi = 0x8F
		}
	default:
		return 1, true
	}
	for n = 1; n <= need; n++ {
		if n >= len(src) {
			return n, false
		}
		if src[n] < lo || src[n] > hi {
			return n, true
		}
		lo, hi = 0x80, 0xBF
	}
	return n, true
}
