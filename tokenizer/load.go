package tokenizer

import (
	"bytes"
	"encoding/json"
	"fmt"
)

// file is the top level of a tokenizer.json.
type file struct {
	AddedTokens   []addedSpec     `json:"added_tokens"`
	Normalizer    json.RawMessage `json:"normalizer"`
	PreTokenizer  json.RawMessage `json:"pre_tokenizer"`
	PostProcessor json.RawMessage `json:"post_processor"`
	Decoder       json.RawMessage `json:"decoder"`
	Model         json.RawMessage `json:"model"`
}

type addedSpec struct {
	ID         int64  `json:"id"`
	Content    string `json:"content"`
	SingleWord bool   `json:"single_word"`
	LStrip     bool   `json:"lstrip"`
	RStrip     bool   `json:"rstrip"`
	Normalized bool   `json:"normalized"`
	Special    bool   `json:"special"`
}

// loader collects what a file is made of, and all that can't be taken.
type loader struct {
	t    *Tokenizer
	gaps []string
	err  error // the first contradiction
	size int   // number of the model's tokens

	patterns   int // regular expressions compiled
	components int // normalizers, pre-tokenizers and decoders opened
}

// gap notes an unsupported component.
func (l *loader) gap(format string, args ...any) {
	l.gaps = append(l.gaps, fmt.Sprintf(format, args...))
}

// fail notes a malformed part; the first one counts.
func (l *loader) fail(format string, args ...any) {
	if l.err == nil {
		l.err = formatErrorf(format, args...)
	}
}

// Load compiles the bytes of a tokenizer.json. The error is an *UnsupportedError, or wraps ErrFormat.
func Load(data []byte) (*Tokenizer, error) {
	var f file
	if err := json.Unmarshal(data, &f); err != nil {
		return nil, formatErrorf("%v; give the bytes of a tokenizer.json", err)
	}
	l := &loader{t: &Tokenizer{ids: make(map[string]int32), special: make(map[int32]bool)}}
	if isNull(f.Model) {
		l.fail("no model; give the bytes of a tokenizer.json")
		return nil, l.err
	}
	l.t.norm = l.normalizers("normalizer", f.Normalizer, 0)
	l.t.pre = l.preTokenizers("pre_tokenizer", f.PreTokenizer, 0)
	l.postProcessor(f.PostProcessor)
	l.decoders(f.Decoder)
	l.checkGrowth()
	l.model(f.Model)
	l.addedTokens(f.AddedTokens)
	if len(l.gaps) > 0 {
		return nil, &UnsupportedError{Components: l.gaps}
	}
	if l.err != nil {
		return nil, l.err
	}
	l.checkTemplate()
	if l.err != nil {
		return nil, l.err
	}
	return l.t, nil
}

func isNull(raw json.RawMessage) bool {
	return len(raw) == 0 || bytes.Equal(bytes.TrimSpace(raw), []byte("null"))
}

// read decodes a component's JSON.
func (l *loader) read(place string, raw json.RawMessage, into any) bool {
	if err := json.Unmarshal(raw, into); err != nil {
		l.fail("%s: %v; compare with the reference's format", place, err)
		return false
	}
	return true
}

// typeOf gives the type name of a component.
func (l *loader) typeOf(place string, raw json.RawMessage) string {
	var c struct {
		Type string `json:"type"`
	}
	if l.read(place, raw, &c) && c.Type == "" {
		l.fail("%s: no type; compare with the reference's format", place)
	}
	return c.Type
}

// Limits that keep a hostile file from asking for much time or memory; real files are far below.
const (
	maxDepth      = 16   // nesting of Sequence components
	maxComponents = 64   // normalizers, pre-tokenizers and decoders together
	maxGrowth     = 256  // times that all normalizers, or decoders, in a row may lengthen a text
	maxContent    = 4096 // bytes of an added token, and of a Prepend
)

// idSlack is how many ids a file may leave free beyond four times the number of its tokens: it bounds the memory
// that one huge id can ask for.
const idSlack = 1 << 16

// place puts a token at its id.
func (l *loader) place(token string, id int64, limit int) bool {
	if id < 0 || id >= int64(limit) {
		l.fail("token %q: id %d is outside 0..%d; number the tokens without large gaps", token, id, limit-1)
		return false
	}
	for int(id) >= len(l.t.tokens) {
		l.t.tokens = append(l.t.tokens, "")
	}
	if old := l.t.tokens[id]; old != "" && old != token {
		l.fail("id %d is given to %q and to %q; give each token its own id", id, old, token)
		return false
	}
	l.t.tokens[id] = token
	l.t.ids[token] = int32(id)
	return true
}

// addedTokens takes the added tokens, with the ids that the reference gives them: that of the model's vocabulary
// if the text is in there, else the next free one.
func (l *loader) addedTokens(specs []addedSpec) {
	if l.err != nil || len(l.gaps) > 0 {
		return
	}
	size := int64(l.size) // the reference counts the model's tokens
	next := size
	seen := make(map[string]int, len(specs))
	var contents [2][]string // raw, normalized
	var indexes [2][]int32
	limit := 4*(len(l.t.ids)+len(specs)) + idSlack
	for _, s := range specs {
		if s.Content == "" {
			continue
		}
		if len(s.Content) > maxContent {
			l.fail("added token %.40q…: longer than %d bytes; shorten it", s.Content, maxContent)
			return
		}
		if _, twice := seen[s.Content]; twice {
			l.fail("added token %q stands twice; remove one", s.Content)
			return
		}
		want, inModel := l.t.ids[s.Content]
		id := int64(want)
		if !inModel {
			id = next
		}
		if id >= size {
			next = id + 1
		}
		if id != s.ID {
			l.fail("added token %q has id %d, but the reference would give it %d; set that id", s.Content, s.ID, id)
			return
		}
		if !l.place(s.Content, id, limit) {
			return
		}
		seen[s.Content] = len(l.t.added)
		l.t.added = append(l.t.added, addedToken{id: int32(id), content: s.Content, singleWord: s.SingleWord,
			lstrip: s.LStrip, rstrip: s.RStrip, normalized: s.Normalized, special: s.Special})
		if s.Special {
			l.t.special[int32(id)] = true
		}
	}
	for _, special := range []bool{true, false} { // of equal contents the special one is found
		for i, a := range l.t.added {
			if a.special != special {
				continue
			}
			kind, content := 0, a.content
			if a.normalized {
				kind = 1
				for _, n := range l.t.norm {
					content = n.normalize(content)
				}
			}
			contents[kind] = append(contents[kind], content)
			indexes[kind] = append(indexes[kind], int32(i))
		}
	}
	l.t.raw = newTokenTrie(contents[0], indexes[0])
	l.t.normalized = newTokenTrie(contents[1], indexes[1])
}

// growth is how many times longer a step can make a text.
func (r replace) growth() int {
	shortest := 1
	if lit, ok := r.pattern.(literal); ok {
		shortest = max(1, len(lit))
	}
	return max(1, (len(r.content)+shortest-1)/shortest)
}

// checkGrowth bounds how much longer the steps can make a text: steps in a row multiply.
func (l *loader) checkGrowth() {
	normalizers, decoders := 1, 1
	grow := func(place string, times *int, by int) {
		if *times *= by; *times > maxGrowth {
			l.fail("%s: the steps can make a text %d times longer; shorten what they put in", place, *times)
			*times = 1
		}
	}
	for _, n := range l.t.norm {
		switch n := n.(type) {
		case replace:
			grow("normalizer", &normalizers, n.growth())
		case *charsmap:
			grow("normalizer", &normalizers, n.growth)
		case prepend:
			if len(n) > maxContent {
				l.fail("normalizer Prepend: longer than %d bytes; shorten it", maxContent)
			}
		}
	}
	for _, d := range l.t.decoder {
		if r, ok := d.(decodeReplace); ok {
			grow("decoder", &decoders, r.growth())
		}
	}
	alphabets := 0
	for _, p := range l.t.pre {
		if _, ok := p.(byteChars); ok {
			alphabets++
		}
	}
	if alphabets > 1 {
		l.gap("pre_tokenizer Sequence with ByteLevel %d times", alphabets)
	}
}
