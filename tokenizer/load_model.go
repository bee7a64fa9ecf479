package tokenizer

import (
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"
)

// bpeSpec is a BPE model as it stands in the file.
type bpeSpec struct {
	Dropout                 *float64         `json:"dropout"`
	UnknownToken            *string          `json:"unk_token"`
	ContinuingSubwordPrefix *string          `json:"continuing_subword_prefix"`
	EndOfWordSuffix         *string          `json:"end_of_word_suffix"`
	FuseUnknown             bool             `json:"fuse_unk"`
	ByteFallback            bool             `json:"byte_fallback"`
	IgnoreMerges            bool             `json:"ignore_merges"`
	Vocab                   map[string]int64 `json:"vocab"`
	Merges                  mergeList        `json:"merges"`
}

// mergeList reads both spellings of merges: pairs, and strings with one blank.
type mergeList [][2]string

func (m *mergeList) UnmarshalJSON(data []byte) error {
	var pairs [][]string
	if err := json.Unmarshal(data, &pairs); err == nil {
		*m = make(mergeList, len(pairs))
		for i, p := range pairs {
			if len(p) != 2 {
				return fmt.Errorf("merge %d has %d parts, not 2", i, len(p))
			}
			(*m)[i] = [2]string{p[0], p[1]}
		}
		return nil
	}
	var lines []string
	if err := json.Unmarshal(data, &lines); err != nil {
		return fmt.Errorf("merges are neither pairs nor strings: %w", err)
	}
	*m = make(mergeList, 0, len(lines))
	for i, line := range lines {
		if strings.HasPrefix(line, "#version") {
			continue
		}
		left, right, ok := strings.Cut(line, " ")
		if !ok || strings.Contains(right, " ") {
			return fmt.Errorf("merge %d, %q, is not two parts with a blank between", i, line)
		}
		*m = append(*m, [2]string{left, right})
	}
	return nil
}

func (l *loader) model(raw json.RawMessage) {
	var head struct {
		Type   string          `json:"type"`
		Merges json.RawMessage `json:"merges"`
	}
	if !l.read("model", raw, &head) {
		return
	}
	if head.Type == "" && !isNull(head.Merges) { // files from before the field
		head.Type = "BPE"
	}
	switch head.Type {
	case "BPE":
		l.bpe(raw)
	case "Unigram":
		l.unigram(raw)
	case "":
		l.fail("model: no type; compare with the reference's format")
	default:
		l.gap("model %s", head.Type)
	}
}

func (l *loader) bpe(raw json.RawMessage) {
	var spec bpeSpec
	if !l.read("model BPE", raw, &spec) {
		return
	}
	if spec.Dropout != nil && *spec.Dropout != 0 {
		l.gap("model BPE dropout")
	}
	if spec.ContinuingSubwordPrefix != nil && *spec.ContinuingSubwordPrefix != "" {
		l.gap("model BPE continuing_subword_prefix")
	}
	if spec.EndOfWordSuffix != nil && *spec.EndOfWordSuffix != "" {
		l.gap("model BPE end_of_word_suffix")
	}
	if len(l.gaps) > 0 || l.err != nil {
		return
	}
	limit := 4*len(spec.Vocab) + idSlack
	for _, token := range sortedKeys(spec.Vocab) {
		if !l.place(token, spec.Vocab[token], limit) {
			return
		}
	}
	m := &bpe{ids: make(map[string]int32, len(spec.Vocab)), pairs: newPairTable(len(spec.Merges)),
		cache: newWordCache(), byteFallback: spec.ByteFallback, ignoreMerges: spec.IgnoreMerges,
		fuseUnknown: spec.FuseUnknown, unknown: -1}
	if spec.UnknownToken != nil {
		id, ok := l.t.ids[*spec.UnknownToken]
		if !ok {
			l.fail("model BPE: unk_token %q is not in the vocabulary; add it or remove the field", *spec.UnknownToken)
			return
		}
		m.unknown = id
	}
	for rank, pair := range spec.Merges {
		left, ok1 := l.t.ids[pair[0]]
		right, ok2 := l.t.ids[pair[1]]
		whole, ok3 := l.t.ids[pair[0]+pair[1]]
		if !ok1 || !ok2 || !ok3 {
			l.fail("model BPE: merge %d, %q with %q: the parts and the whole must be in the vocabulary", rank,
				pair[0], pair[1])
			return
		}
		m.pairs.set(left, right, merged{uint32(rank), whole})
	}
	l.readBytes(m)
	if !m.bytesIn {
		for token, id := range l.t.ids {
			m.ids[token] = id
		}
		if _, ok := l.t.ids[sentencePieceMark]; ok && !m.ignoreMerges {
			m.wordMark = wordMark(spec.Merges)
		}
	}
	l.size = len(spec.Vocab)
	l.t.model = m
}

// readBytes sets up the model's byte ids, and lets it read bytes where the pre-tokenizer ends in the byte-level
// alphabet and the vocabulary has all of it: the result is the same and the detour is saved.
func (l *loader) readBytes(m *bpe) {
	for b := range m.byteID {
		m.byteID[b] = -1
		if id, ok := l.t.ids[fmt.Sprintf("<0x%02X>", b)]; ok && m.byteFallback {
			m.byteID[b] = id
		}
	}
	last := len(l.t.pre) - 1
	if last < 0 || l.t.pre[last] != preTokenizer(byteChars{}) {
		return
	}
	var byteID [256]int32
	for b, char := range byteChar {
		id, ok := l.t.ids[string(char)]
		if !ok {
			return
		}
		byteID[b] = id
	}
	m.byteID, m.bytesIn, m.byteFallback = byteID, true, false
	for token, id := range l.t.ids {
		// A token with other characters can't come out of bytes.
		if raw, ok := fromByteChars(token); ok {
			m.ids[raw] = id
		}
	}
	l.t.pre = l.t.pre[:last]
	if len(l.t.pre) == 1 {
		if s, ok := l.t.pre[0].(split); ok && s.behavior == isolated {
			if cut, ok := s.pattern.(splitter); ok {
				l.t.cut = cut
			}
		}
	}
}

// sentencePieceMark is how SentencePiece writes a space.
const sentencePieceMark = "▁"

// wordMark gives SentencePiece's mark (▁) where no merge crosses a place between another character and a mark:
// then words are merged by themselves with the same result, and can be cached.
func wordMark(merges mergeList) string {
	const mark = sentencePieceMark
	used := false
	for _, pair := range merges {
		for i, token := range pair {
			if at := strings.Index(strings.TrimLeft(token, mark), mark); at >= 0 {
				return ""
			}
			used = used || strings.HasPrefix(token, mark)
			if i == 1 && strings.HasPrefix(token, mark) && strings.TrimLeft(pair[0], mark) != "" {
				return ""
			}
		}
	}
	if !used {
		return ""
	}
	return mark
}

// templateSpec is a post-processor as it stands in the file.
type templateSpec struct {
	Processors []json.RawMessage `json:"processors"`
	Single     json.RawMessage   `json:"single"`
	Special    map[string]struct {
		IDs []int64 `json:"ids"`
	} `json:"special_tokens"`
	SEP pairSpec `json:"sep"`
	CLS pairSpec `json:"cls"`
}

// pairSpec is a token's text and id, as [text, id].
type pairSpec []any

// id gives the pair's id, -1 if it has none that can be one.
func (p pairSpec) id() int32 {
	if len(p) == 2 {
		if id, ok := p[1].(float64); ok && id >= 0 && id < 1<<31 && id == float64(int32(id)) {
			return int32(id)
		}
	}
	return -1
}

// templatePart is one part of a template: a special token or the text.
type templatePart struct {
	SpecialToken *struct{ ID string } `json:"SpecialToken"`
	Sequence     *struct{ ID string } `json:"Sequence"`
}

func (l *loader) postProcessor(raw json.RawMessage) {
	if !isNull(raw) {
		l.postProcessors("post_processor", raw, 0)
	}
}

func (l *loader) postProcessors(place string, raw json.RawMessage, depth int) {
	if depth > maxDepth {
		l.fail("%s: nested more than %d deep; unfold the sequences", place, maxDepth)
		return
	}
	kind := l.typeOf(place, raw)
	if kind == "" {
		return
	}
	var spec templateSpec
	switch kind {
	case "ByteLevel": // moves offsets, which ids don't have
	case "Sequence":
		if l.read(place+" Sequence", raw, &spec) {
			for _, inner := range spec.Processors {
				l.postProcessors(place, inner, depth+1)
			}
		}
	case "TemplateProcessing":
		if !l.read(place+" TemplateProcessing", raw, &spec) {
			return
		}
		if len(l.t.prefix)+len(l.t.suffix) > 0 {
			l.gap("%s Sequence with two templates", place)
			return
		}
		l.template(place+" TemplateProcessing", spec)
	case "BertProcessing", "RobertaProcessing": // a fixed template
		if !l.read(place+" "+kind, raw, &spec) {
			return
		}
		if len(l.t.prefix)+len(l.t.suffix) > 0 {
			l.gap("%s Sequence with two templates", place)
			return
		}
		l.t.prefix, l.t.suffix = []int32{spec.CLS.id()}, []int32{spec.SEP.id()}
	default:
		l.gap("%s %s", place, kind)
	}
}

// maxTemplate is the most ids that a template may put around a text.
const maxTemplate = 1024

func (l *loader) template(place string, spec templateSpec) {
	var parts []templatePart
	if !l.read(place+" single", spec.Single, &parts) {
		return
	}
	texts := 0
	for _, p := range parts {
		switch {
		case p.Sequence != nil:
			texts++
			if p.Sequence.ID != "A" {
				l.gap("%s single with sequence %q", place, p.Sequence.ID)
			}
		case p.SpecialToken != nil:
			special, ok := spec.Special[p.SpecialToken.ID]
			if !ok {
				l.fail("%s: special token %q has no ids; add it to special_tokens", place, p.SpecialToken.ID)
				return
			}
			for _, id := range special.IDs {
				if id < 0 || id > 1<<31-1 {
					l.fail("%s: special token %q has id %d; ids are 0 and up", place, p.SpecialToken.ID, id)
					return
				}
				if texts == 0 {
					l.t.prefix = append(l.t.prefix, int32(id))
				} else {
					l.t.suffix = append(l.t.suffix, int32(id))
				}
			}
		default:
			l.fail("%s: a part of single is neither SpecialToken nor Sequence", place)
			return
		}
		if len(l.t.prefix)+len(l.t.suffix) > maxTemplate {
			l.fail("%s: more than %d ids around a text; shorten the template", place, maxTemplate)
			return
		}
	}
	if texts != 1 {
		l.gap("%s single with the text %d times", place, texts)
	}
}

// checkTemplate makes sure that the tokenizer has the ids that its template adds.
func (l *loader) checkTemplate() {
	for _, ids := range [][]int32{l.t.prefix, l.t.suffix} {
		for _, id := range ids {
			if _, ok := l.t.Token(id); !ok {
				l.fail("post_processor: id %d is not in the vocabulary; correct its special tokens", id)
			}
		}
	}
}

func sortedKeys[V any](m map[string]V) []string { return slices.Sorted(maps.Keys(m)) }
