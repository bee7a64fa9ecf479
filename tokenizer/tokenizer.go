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
	return t.encode(text, special, false)
}

// EncodeOrdinary gives the ids of text in which special tokens count as ordinary text: what a user's message needs
// that must not be able to spell a control token. Added tokens that aren't special are recognised. Nothing is put
// around.
func (t *Tokenizer) EncodeOrdinary(text string) []int32 { return t.encode(text, false, true) }

// encode is Encode; ordinary says that special tokens in the text don't count.
func (t *Tokenizer) encode(text string, special, ordinary bool) []int32 {
	text = foldInvalid(text)
	ids := make([]int32, 0, len(text)/3+len(t.prefix)+len(t.suffix)+1)
	if special {
		ids = append(ids, t.prefix...)
	}
	if t.raw == nil {
		ids = t.encodeSection(text, true, ordinary, ids)
	} else {
		t.raw.scan(text, t.added, ordinary, func(id int32, start, end int) {
			if id >= 0 {
				ids = append(ids, id)
			} else {
				ids = t.encodeSection(text[start:end], start == 0, ordinary, ids)
			}
		})
	}
	if special {
		ids = append(ids, t.suffix...)
	}
	return ids
}

// encodeSection encodes text that holds none of the raw added tokens.
func (t *Tokenizer) encodeSection(text string, first, ordinary bool, ids []int32) []int32 {
	for _, n := range t.norm {
		text = n.normalize(text)
	}
	if t.normalized == nil {
		return t.encodePlain(text, first, ids)
	}
	t.normalized.scan(text, t.added, ordinary, func(id int32, start, end int) {
		if id >= 0 {
			ids = append(ids, id)
		} else {
			ids = t.encodePlain(text[start:end], first && start == 0, ids)
		}
	})
	return ids
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
	if id < 0 || int(id) >= len(t.tokens) || t.tokens[id] == "" {
		return "", false
	}
	return t.tokens[id], true
}

// IsSpecial says whether id is a special added token.
func (t *Tokenizer) IsSpecial(id int32) bool { return t.special[id] }
