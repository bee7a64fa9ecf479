package tokenizer

import (
	"strings"
	"unicode/utf8"
)

// spNormalizer is SentencePiece's normalizer: at each place the user-defined piece, else the longest rule of the
// table, else the character; with spaces cleaned up and marked as the model says.
type spNormalizer struct {
	user        *pieceTrie
	table       *charsmap // nil for none
	dummy       bool      // put a space before the text
	suffix      bool      // rather after it
	removeExtra bool      // drop spaces at the ends, and all but one between
	escape      bool      // write spaces as marks
}

// next gives what the beginning of s becomes, and its length.
func (sp *spNormalizer) next(s string) (image string, n int) {
	if _, n := sp.user.longest(s); n > 0 {
		return s[:n], n
	}
	if sp.table != nil {
		if image, n := sp.table.longest(s); n > 0 {
			return image, n
		}
	}
	_, n = utf8.DecodeRuneInString(s)
	return s[:n], n
}

// split rewrites the piece; it never cuts.
func (sp *spNormalizer) split(p piece, out []piece) []piece {
	if text := sp.normalize(p.text, p.first); text != "" {
		return append(out, piece{text, p.first})
	}
	return out
}

// normalize rewrites s; first says that it is at the start of the whole input, where the dummy space goes.
func (sp *spNormalizer) normalize(s string, first bool) string {
	if sp.removeExtra {
		for s != "" {
			image, n := sp.next(s)
			if image != " " {
				break
			}
			s = s[n:]
		}
	}
	if s == "" {
		return ""
	}
	space := " "
	if sp.escape {
		space = sentencePieceMark
	}
	var out strings.Builder
	out.Grow(len(s) + len(s)/4 + len(space))
	if sp.dummy && !sp.suffix && first {
		out.WriteString(space)
	}
	afterSpace := sp.removeExtra
	for s != "" {
		image, n := sp.next(s)
		s = s[n:]
		if afterSpace {
			image = strings.TrimLeft(image, " ")
		}
		if image != "" {
			afterSpace = sp.removeExtra && strings.HasSuffix(image, " ")
			if sp.escape {
				image = strings.ReplaceAll(image, " ", sentencePieceMark)
			}
			out.WriteString(image)
		}
	}
	text := out.String()
	if sp.removeExtra {
		for strings.HasSuffix(text, space) {
			text = text[:len(text)-len(space)]
		}
	}
	if sp.dummy && sp.suffix && first {
		text += space
	}
	return text
}

// leadingMarks is how SentencePiece decodes the start: the mark that the first token begins with is dropped, and with
// every one of each token up to the first that has more.
type leadingMarks struct{ every bool }

func (leadingMarks) joins() bool          { return false }
func (leadingMarks) readsFragments() bool { return false }

func (d leadingMarks) stage(bool) decodeStage {
	done := false
	return perToken(func(token string) string {
		if done {
			return token
		}
		text, marked := strings.CutPrefix(token, sentencePieceMark)
		done = text != "" || marked && !d.every
		return text
	})
}
