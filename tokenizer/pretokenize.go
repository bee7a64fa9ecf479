package tokenizer

import (
	"strings"
	"unicode/utf8"
)

// preTokenizer cuts a piece into pieces, which it appends to out.
type preTokenizer interface {
	split(p piece, out []piece) []piece
}

// matcher finds the matches of a pattern in a text, from left to right and without overlap. Empty matches don't
// count.
type matcher interface {
	match(s string, found func(start, end int))
}

// splitter gives the length of the first piece of a text that isn't empty; at least 1. A splitter is a pattern
// whose matches tile every text.
type splitter func(s string) int

func (cut splitter) match(s string, found func(start, end int)) {
	for at := 0; at < len(s); {
		n := cut(s[at:])
		found(at, at+n)
		at += n
	}
}

// literal matches a fixed text.
type literal string

func (l literal) match(s string, found func(start, end int)) {
	if l == "" {
		return
	}
	for at := 0; ; {
		n := strings.Index(s[at:], string(l))
		if n < 0 {
			return
		}
		found(at+n, at+n+len(l))
		at += n + len(l)
	}
}

// runes matches runs (or, each by itself, single ones) of the code points that have a property.
type runes struct {
	is     func(rune) bool
	single bool
}

func (m runes) match(s string, found func(start, end int)) {
	start := -1
	for i, r := range s {
		in := m.is(r)
		switch {
		case in && m.single:
			found(i, i+utf8.RuneLen(r))
		case in && start < 0:
			start = i
		case !in && start >= 0:
			found(start, i)
			start = -1
		}
	}
	if start >= 0 {
		found(start, len(s))
	}
}

// behavior says what a split does with the matches.
type behavior int

const (
	removed behavior = iota
	isolated
	mergedWithPrevious
	mergedWithNext
	contiguous
)

var behaviors = map[string]behavior{
	"Removed": removed, "Isolated": isolated, "MergedWithPrevious": mergedWithPrevious,
	"MergedWithNext": mergedWithNext, "Contiguous": contiguous,
}

// split cuts at the matches of a pattern.
type split struct {
	pattern  matcher
	behavior behavior
	invert   bool // what lies between the matches counts as the matches
}

// span is a part of a text: a match or what lies between two.
type span struct {
	start, end int
	match      bool
}

func (sp split) split(p piece, out []piece) []piece {
	add := func(start, end int) {
		if start < end {
			out = append(out, piece{p.text[start:end], p.first && start == 0})
		}
	}
	var spans []span
	done := 0
	sp.pattern.match(p.text, func(start, end int) {
		if done < start {
			spans = append(spans, span{done, start, sp.invert})
		}
		spans = append(spans, span{start, end, !sp.invert})
		done = end
	})
	if done < len(p.text) {
		spans = append(spans, span{done, len(p.text), sp.invert})
	}
	for _, s := range sp.behavior.arrange(spans) {
		add(s.start, s.end)
	}
	return out
}

// arrange joins spans, or drops some, as the behavior says.
func (b behavior) arrange(spans []span) []span {
	out := spans[:0]
	switch b {
	case isolated:
		return spans
	case removed:
		for _, s := range spans {
			if !s.match {
				out = append(out, s)
			}
		}
	case contiguous:
		for i, s := range spans {
			if i > 0 && s.match == out[len(out)-1].match {
				out[len(out)-1].end = s.end
			} else {
				out = append(out, s)
			}
		}
	case mergedWithPrevious:
		previous := false
		for _, s := range spans {
			if s.match && !previous && len(out) > 0 {
				out[len(out)-1].end = s.end
			} else {
				out = append(out, s)
			}
			previous = s.match
		}
	case mergedWithNext:
		// The mirror image, from the right.
		merged := make([]span, 0, len(spans))
		next := false
		for i := len(spans) - 1; i >= 0; i-- {
			s := spans[i]
			if s.match && !next && len(merged) > 0 {
				merged[len(merged)-1].start = s.start
			} else {
				merged = append(merged, s)
			}
			next = s.match
		}
		for i := len(merged) - 1; i >= 0; i-- {
			out = append(out, merged[i])
		}
	}
	return out
}

// spacePrefix puts a space before a piece that doesn't begin with one (add_prefix_space).
type spacePrefix struct{}

func (spacePrefix) split(p piece, out []piece) []piece {
	if !strings.HasPrefix(p.text, " ") {
		p.text = " " + p.text
	}
	return append(out, p)
}

// byteChars writes a piece in the byte-level alphabet. It is left out where the model reads bytes itself.
type byteChars struct{}

func (byteChars) split(p piece, out []piece) []piece {
	p.text = toByteChars(p.text)
	return append(out, p)
}

// When Metaspace puts its mark before a piece.
const (
	prependAlways = "always"
	prependFirst  = "first" // only at the start of the whole input
	prependNever  = "never"
)

// metaspace writes spaces as a visible mark (▁) and may cut before each.
type metaspace struct {
	mark   string
	scheme string
	cut    bool
}

func (m metaspace) split(p piece, out []piece) []piece {
	p.text = strings.ReplaceAll(p.text, " ", m.mark)
	if !strings.HasPrefix(p.text, m.mark) &&
		(m.scheme == prependAlways || m.scheme == prependFirst && p.first) {
		p.text = m.mark + p.text
	}
	if !m.cut {
		return append(out, p)
	}
	return split{pattern: literal(m.mark), behavior: mergedWithNext}.split(p, out)
}
