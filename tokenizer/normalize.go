package tokenizer

import (
	"strings"
)

// normalizer rewrites the text before it is split.
type normalizer interface {
	normalize(s string) string
}

type normalizerFunc func(string) string

func (f normalizerFunc) normalize(s string) string { return f(s) }

// prepend puts a text before what isn't empty.
type prepend string

func (p prepend) normalize(s string) string {
	if s == "" {
		return s
	}
	return string(p) + s
}

// replace puts content in the place of each match.
type replace struct {
	pattern matcher
	content string
}

func (r replace) normalize(s string) string {
	if lit, ok := r.pattern.(literal); ok {
		return strings.ReplaceAll(s, string(lit), r.content)
	}
	var out strings.Builder
	done := 0
	r.pattern.match(s, func(start, end int) {
		out.WriteString(s[done:start])
		out.WriteString(r.content)
		done = end
	})
	if done == 0 && out.Len() == 0 {
		return s
	}
	out.WriteString(s[done:])
	return out.String()
}

// strip trims white space.
type strip struct{ left, right bool }

func (st strip) normalize(s string) string {
	if st.left {
		s = trimLeftSpace(s)
	}
	if st.right {
		s = trimRightSpace(s)
	}
	return s
}

// nfkc maps each code point by the reference's table; what is left then is composition.
func nfkc(s string) string { return nfc(mapRunes(s, loadUnicode().nfkc)) }

// lowercase maps each code point by itself: no rule looks at its neighbours (final sigma stays σ).
func lowercase(s string) string { return mapRunes(s, loadUnicode().lower) }

func mapRunes(s string, images map[rune]string) string {
	var out strings.Builder
	done := 0
	for i, r := range s {
		image, ok := images[r]
		if !ok {
			continue
		}
		out.WriteString(s[done:i])
		out.WriteString(image)
		done = i + len(string(r))
	}
	if done == 0 {
		return s
	}
	out.WriteString(s[done:])
	return out.String()
}
