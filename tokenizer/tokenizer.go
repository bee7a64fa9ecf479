package tokenizer

import (
	"strings"
)

// Tokenizer encodes and decodes as one tokenizer.json says.
type Tokenizer struct {
	norm  []normalizer
	pre   []preTokenizer
	cut   splitter // not nil: the whole pre-tokenizer is this one splitter (the fast path)
	model model

	tokens  []string         // text by id; "" where the id is free
	ids     map[string]int32 // id by text, added tokens included
	special map[int32]bool

	raw        *tokenTrie // added tokens matched in the raw text
	normalized *tokenTrie // added tokens matched in the normalized text
	added      []addedToken

	prefix, suffix []int32 // what the post-processor puts around the ids
	decoder        []decodeStep
}

// model turns one pre-tokenized piece into ids.
type model interface {
	encode(piece string, ids []int32) []int32
}

// piece is a part of the text on its way through the pre-tokenizers.
type piece struct {
	text  string
	first bool // it begins at the first byte of the whole input
}

// Encode gives the ids of text. special adds what the post-processor puts around it (begin and end of text).
// Text of added tokens, special ones too, is recognised in either case. Invalid UTF-8 counts as U+FFFD.
func (t *Tokenizer) Encode(text string, special bool) []int32 {
	return t.encode(text, special, nil)
}

// EncodeOrdinary gives the ids of text in which special tokens count as ordinary text: what a user's message needs
// that must not be able to spell a control token. Added tokens that aren't special are recognised. Nothing is put
// around.
func (t *Tokenizer) EncodeOrdinary(text string) []int32 { return t.encode(text, false, ordinary) }

// EncodeFunc gives the ids of text in which the text of a special token at bytes [start,end) counts as that token only
// if accept says so: what a rendered conversation needs, whose template may spell control tokens and whose messages may
// not. Added tokens that aren't special are recognised. Nothing is put around. Offsets are those of text, in which
// invalid UTF-8 counts as U+FFFD: give it valid text. A token that only appears once the text is normalised, and stands
// nowhere in text itself, never counts.
func (t *Tokenizer) EncodeFunc(text string, accept func(start, end int) bool) []int32 {
	return t.encode(text, false, func(token *addedToken, start, end int) bool { return !token.special || accept(start, end) })
}

// encode is Encode with a choice of the added tokens that count.
func (t *Tokenizer) encode(text string, special bool, accept acceptor) []int32 {
	text = foldInvalid(text)
	ids := make([]int32, 0, len(text)/3+len(t.prefix)+len(t.suffix)+1)
	if special {
		ids = append(ids, t.prefix...)
	}
	if t.raw == nil {
		ids = t.encodeSection(text, 0, accept, ids)
	} else {
		t.raw.scan(text, t.added, accept, func(id int32, start, end int) {
			if id >= 0 {
				ids = append(ids, id)
			} else {
				ids = t.encodeSection(text[start:end], start, accept, ids)
			}
		})
	}
	if special {
		ids = append(ids, t.suffix...)
	}
	return ids
}

// encodeSection encodes text that holds none of the raw added tokens and begins at byte at of the whole.
func (t *Tokenizer) encodeSection(text string, at int, accept acceptor, ids []int32) []int32 {
	raw := text
	text = t.normalize(text)
	if t.normalized == nil {
		return t.encodePlain(text, at == 0, ids)
	}
	if accept != nil {
		accept = t.placed(raw, text, at, accept)
	}
	t.normalized.scan(text, t.added, accept, func(id int32, start, end int) {
		if id >= 0 {
			ids = append(ids, id)
		} else {
			ids = t.encodePlain(text[start:end], at == 0 && start == 0, ids)
		}
	})
	return ids
}

func (t *Tokenizer) normalize(text string) string {
	for _, n := range t.norm {
		text = n.normalize(text)
	}
	return text
}

// placed asks accept, which knows the whole text, about places in a normalised section of it. Where normalising has
// changed the section, a special token's place is the one in the raw section before which as much stands, normalised,
// as before the token; without one it doesn't count.
func (t *Tokenizer) placed(raw, normalized string, at int, accept acceptor) acceptor {
	if raw == normalized {
		return func(token *addedToken, start, end int) bool { return accept(token, at+start, at+end) }
	}
	from := 0                      // tokens come in rising order
	budget := 16<<20 + 16*len(raw) // bytes to normalise again: a text made of nothing but such tokens must not take hours
	return func(token *addedToken, start, end int) bool {
		if !token.special {
			return accept(token, at, at)
		}
		for {
			n := strings.Index(raw[from:], token.content)
			if n < 0 {
				return false
			}
			place := from + n
			if budget -= place; budget < 0 {
				return false
			}
			before := t.normalize(raw[:place])
			if len(before) > start {
				return false // the next token may still find its own
			}
			from = place + len(token.content)
			if before == normalized[:start] {
				return accept(token, at+place, at+from)
			}
		}
	}
}

// encodePlain encodes normalized text that holds no added token.
func (t *Tokenizer) encodePlain(text string, first bool, ids []int32) []int32 {
	if t.cut != nil {
		for len(text) > 0 {
			n := t.cut(text)
			ids = t.model.encode(text[:n], ids)
			text = text[n:]
		}
		return ids
	}
	if text == "" {
		return ids
	}
	pieces := []piece{{text, first}}
	for _, step := range t.pre {
		var next []piece
		for _, p := range pieces {
			next = step.split(p, next)
		}
		pieces = next
	}
	for _, p := range pieces {
		ids = t.model.encode(p.text, ids)
	}
	return ids
}

// Decode gives the text of ids. skipSpecial leaves special tokens out. Ids that the tokenizer doesn't have (a
// padded vocabulary) decode to nothing.
func (t *Tokenizer) Decode(ids []int32, skipSpecial bool) string {
	var out strings.Builder
	s := t.NewStream(skipSpecial)
	for _, id := range ids {
		s.push(id, &out)
	}
	s.flush(&out)
	return out.String()
}

// VocabSize is one more than the largest id.
func (t *Tokenizer) VocabSize() int { return len(t.tokens) }

// ID gives the id of a token by its text as it stands in the file.
func (t *Tokenizer) ID(token string) (int32, bool) {
	id, ok := t.ids[token]
	return id, ok
}

// Token gives the text of a token as it stands in the file.
func (t *Tokenizer) Token(id int32) (string, bool) {
	if id < 0 || int(id) >= len(t.tokens) {
		return "", false
	}
	if t.tokens[id] == "" { // free, or the token that is the empty text
		empty, ok := t.ids[""]
		return "", ok && empty == id
	}
	return t.tokens[id], true
}

// IsSpecial says whether id is a special added token.
func (t *Tokenizer) IsSpecial(id int32) bool { return t.special[id] }
