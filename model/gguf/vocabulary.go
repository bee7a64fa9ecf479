package gguf

import (
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"

	"smolgym/model/hf"
)

// tokenizerFile is what an export reads of a tokenizer.json.
type tokenizerFile struct {
	Added []struct {
		ID         int    `json:"id"`
		Content    string `json:"content"`
		SingleWord bool   `json:"single_word"`
		LStrip     bool   `json:"lstrip"`
		RStrip     bool   `json:"rstrip"`
		Normalized bool   `json:"normalized"`
		Special    bool   `json:"special"`
	} `json:"added_tokens"`
	Normalizer    json.RawMessage `json:"normalizer"`
	PreTokenizer  json.RawMessage `json:"pre_tokenizer"`
	PostProcessor json.RawMessage `json:"post_processor"`
	Model         struct {
		Type         string          `json:"type"`
		Unknown      *string         `json:"unk_token"`
		Prefix       *string         `json:"continuing_subword_prefix"`
		Suffix       *string         `json:"end_of_word_suffix"`
		ByteFallback bool            `json:"byte_fallback"`
		IgnoreMerges bool            `json:"ignore_merges"`
		Vocab        map[string]int  `json:"vocab"`
		Merges       json.RawMessage `json:"merges"`
	} `json:"model"`
}

// vocabularyOf gives the metadata of a tokenizer.json. ends lists the ids that end a text, the main one first.
func vocabularyOf(text []byte, c *hf.Config, ends []int) ([]KV, error) {
	var t tokenizerFile
	if err := json.Unmarshal(text, &t); err != nil {
		return nil, fmt.Errorf("tokenizer.json: %w: %w", ErrHeader, err)
	}
	empty := func(s *string) bool { return s == nil || *s == "" }
	if t.Model.Type != "BPE" && t.Model.Type != "" || !empty(t.Model.Prefix) || !empty(t.Model.Suffix) {
		return nil, fmt.Errorf("tokenizer.json: %w: a model of type %q; BPE without prefixes or suffixes can be written", ErrUnsupported, shorten(t.Model.Type))
	}
	merges, err := mergesOf(t.Model.Merges)
	if err != nil {
		return nil, fmt.Errorf("tokenizer.json: %w", err)
	}
	v, err := t.vocabulary(c.VocabSize)
	if err != nil {
		return nil, fmt.Errorf("tokenizer.json: %w", err)
	}
	kvs, err := t.models(v, merges)
	if err != nil {
		return nil, fmt.Errorf("tokenizer.json: %w", err)
	}
	begin, end, err := t.template()
	if err != nil {
		return nil, fmt.Errorf("tokenizer.json: post_processor: %w", err)
	}
	for _, id := range []*int{begin, end} {
		if id != nil && !v.has(*id) {
			return nil, fmt.Errorf("tokenizer.json: post_processor: %w: there is no token %d", ErrHeader, *id)
		}
	}
	ends = slices.DeleteFunc(slices.Clone(ends), func(id int) bool { return !v.has(id) })
	if begin == nil && len(c.BOS) > 0 && v.has(c.BOS[0]) {
		begin = &c.BOS[0]
		kvs = append(kvs, KV{addBOSKey, false})
	} else {
		kvs = append(kvs, KV{addBOSKey, begin != nil})
	}
	kvs = append(kvs, KV{addEOSKey, end != nil})
	if begin != nil {
		kvs = append(kvs, KV{bosKey, uint32(*begin)})
	}
	if end != nil {
		ends = append([]int{*end}, slices.DeleteFunc(ends, func(id int) bool { return id == *end })...)
	}
	for i, key := range []string{eosKey, eotKey, eomKey} {
		if i < len(ends) {
			kvs = append(kvs, KV{key, uint32(ends[i])})
		}
	}
	if v.unk >= 0 {
		kvs = append(kvs, KV{unkKey, uint32(v.unk)})
	}
	if len(c.Pad) > 0 && v.has(c.Pad[0]) {
		kvs = append(kvs, KV{padKey, uint32(c.Pad[0])})
	}
	return kvs, nil
}

// has says whether an id is a token's, not one that only fills the embedding.
func (v *vocabulary) has(id int) bool {
	return id >= 0 && id < len(v.tokens) && v.types[id] != tokenUnused
}

// models gives the tokens, and the merges or scores.
func (t *tokenizerFile) models(v *vocabulary, merges [][2]string) ([]KV, error) {
	types := make([]int32, len(v.types))
	for i, kind := range v.types {
		types[i] = int32(kind)
	}
	if prefix, ok := t.sentencePiece(); ok {
		if err := v.scoresFrom(merges); err != nil {
			return nil, err
		}
		return []KV{{modelKey, "llama"}, {preKey, "default"}, {tokensKey, v.tokens}, {scoresKey, v.scores}, {typesKey, types}, {addSpaceKey, prefix}}, nil
	}
	pre := preLike(t.Normalizer, t.PreTokenizer, t.Model.IgnoreMerges)
	if pre == nil || t.Model.ByteFallback {
		return nil, fmt.Errorf("%w: its normalizer and pre_tokenizer have no name in this format", ErrUnsupported)
	}
	lines := make([]string, len(merges))
	for i, m := range merges {
		if strings.Contains(m[0]+m[1], " ") || m[0] == "" || m[1] == "" {
			return nil, fmt.Errorf("%w: merge %d, %q with %q, can't be written", ErrUnsupported, i, shorten(m[0]), shorten(m[1]))
		}
		lines[i] = m[0] + " " + m[1]
	}
	return []KV{{modelKey, "gpt2"}, {preKey, pre.names[0]}, {tokensKey, v.tokens}, {typesKey, types}, {mergesKey, lines}}, nil
}

// sentencePiece says whether the pipeline is that of a SentencePiece model, and whether a space is put first. The format
// does not tell the two forms of the pipeline apart: after a special token, a reader decides whether to put one.
func (t *tokenizerFile) sentencePiece() (prefix, ok bool) {
	const spaces = `{"type":"Replace","pattern":{"String":" "},"content":"▁"}`
	normalizer, pre := t.Normalizer, t.PreTokenizer
	if sameJSON(pre, []byte(`{"type":"Split","pattern":{"String":" "},"behavior":"MergedWithPrevious","invert":false}`)) {
		pre = nil // without effect: no space is left
	}
	switch {
	case !t.Model.ByteFallback || t.Model.IgnoreMerges:
		return false, false
	case sameJSON(pre, nil) && sameJSON(normalizer, []byte(`{"type":"Sequence","normalizers":[{"type":"Prepend","prepend":"▁"},`+spaces+`]}`)):
		return true, true
	case sameJSON(pre, nil) && sameJSON(normalizer, []byte(spaces)):
		return false, true
	}
	var m struct {
		Type        string `json:"type"`
		Replacement string `json:"replacement"`
		Scheme      string `json:"prepend_scheme"`
		Split       *bool  `json:"split"`
	}
	if !sameJSON(normalizer, nil) || json.Unmarshal(pre, &m) != nil || m.Type != "Metaspace" || m.Replacement != "▁" || m.Split == nil || *m.Split {
		return false, false
	}
	return m.Scheme != "never", true
}

// mergesOf reads both spellings of merges.
func mergesOf(text json.RawMessage) ([][2]string, error) {
	var pairs [][2]string
	if json.Unmarshal(text, &pairs) == nil {
		return pairs, nil
	}
	var lines []string
	if err := json.Unmarshal(text, &lines); err != nil {
		return nil, fmt.Errorf("%w: merges: %w", ErrHeader, err)
	}
	pairs = make([][2]string, 0, len(lines))
	for _, line := range lines {
		if left, right, ok := strings.Cut(line, " "); ok && !strings.HasPrefix(line, "#version") {
			pairs = append(pairs, [2]string{left, right})
		}
	}
	return pairs, nil
}

// vocabulary gives every id below size a token and a type.
func (t *tokenizerFile) vocabulary(size int) (*vocabulary, error) {
	v := &vocabulary{tokens: make([]string, size), types: make([]byte, size), ids: map[string]int{}, unk: -1}
	put := func(token string, id int, kind byte) error {
		if id < 0 || id >= size || token == "" {
			return fmt.Errorf("%w: token %q has id %d, the model has %d", ErrUnsupported, shorten(token), id, size)
		}
		if old := v.tokens[id]; old != "" && old != token {
			return fmt.Errorf("%w: id %d is %q and %q", ErrHeader, id, shorten(old), shorten(token))
		}
		if old, ok := v.ids[token]; ok && old != id {
			return fmt.Errorf("%w: token %q is %d and %d", ErrHeader, shorten(token), old, id)
		}
		v.tokens[id], v.types[id], v.ids[token] = token, kind, id
		return nil
	}
	for _, token := range slices.Sorted(maps.Keys(t.Model.Vocab)) {
		id := t.Model.Vocab[token]
		kind := byte(tokenNormal)
		if t.Model.ByteFallback && len(token) == 6 && strings.HasPrefix(token, "<0x") && token[5] == '>' {
			kind = tokenByte
		}
		if err := put(token, id, kind); err != nil {
			return nil, err
		}
	}
	for _, a := range t.Added {
		kind := byte(tokenUser)
		if a.Special {
			kind = tokenControl
		}
		if a.SingleWord || a.LStrip || a.RStrip {
			return nil, fmt.Errorf("%w: added token %q strips spaces or is a word by itself, which can't be said in this format", ErrUnsupported, shorten(a.Content))
		}
		if err := put(a.Content, a.ID, kind); err != nil {
			return nil, err
		}
	}
	if u := t.Model.Unknown; u != nil {
		id, ok := v.ids[*u]
		if !ok {
			return nil, fmt.Errorf("%w: unk_token %q is not in the vocabulary", ErrHeader, shorten(*u))
		}
		v.unk, v.types[id] = id, tokenUnknown
	}
	for id, token := range v.tokens {
		if token == "" {
			v.tokens[id], v.types[id] = filler(id), tokenUnused
			if _, taken := v.ids[filler(id)]; taken {
				return nil, fmt.Errorf("%w: token %q is taken", ErrUnsupported, filler(id))
			}
		}
	}
	return v, nil
}

// scoresFrom gives each token that merges make the place of its first merge as score, and those that users defined the
// score of the first: so do SentencePiece's own files. It sees that the scores give these merges back: only then is the model one of SentencePiece.
func (v *vocabulary) scoresFrom(merges [][2]string) error {
	v.scores = make([]float32, len(v.tokens))
	next, scored := float32(0), make([]bool, len(v.tokens))
	for id, kind := range v.types {
		scored[id] = kind != tokenNormal
	}
	for _, m := range merges {
		if id, ok := v.ids[m[0]+m[1]]; ok && !scored[id] {
			v.scores[id], scored[id] = next, true
			next--
		}
	}
	for id := range v.tokens {
		if !scored[id] {
			v.scores[id] = next
			next--
		}
	}
	ours, err := v.scoredMerges()
	if err != nil {
		return err
	}
	if len(ours) != len(merges) {
		return fmt.Errorf("%w: a SentencePiece model with these tokens would have %d merges, not %d", ErrUnsupported, len(ours), len(merges))
	}
	// Older converters order the cuts of one token by their ids. Which comes first makes no difference, but that of the
	// tokens that users defined, such as runs of spaces of any length, where the order goes over all of them.
	run := map[[2]string]bool{}
	for i, m := range ours {
		whole := v.tokens[m.whole]
		if i == 0 || ours[i-1].whole != m.whole {
			clear(run)
			for j := i; j < len(merges) && merges[j][0]+merges[j][1] == whole; j++ {
				run[merges[j]] = true
			}
		}
		cut := [2]string{whole[:m.at], whole[m.at:]}
		if !run[cut] || v.types[m.whole] == tokenUser && merges[i] != cut {
			return fmt.Errorf("%w: merge %d is not where a SentencePiece model would have it", ErrUnsupported, i)
		}
	}
	return nil
}

// template finds the ids that the post-processor puts before and after a text.
func (t *tokenizerFile) template() (begin, end *int, err error) {
	type processor struct {
		Type       string            `json:"type"`
		Processors []json.RawMessage `json:"processors"`
		Single     []struct {
			SpecialToken *struct{ ID string }
			Sequence     *struct{ ID string }
		} `json:"single"`
		Special map[string]struct{ IDs []int } `json:"special_tokens"`
	}
	queue := []json.RawMessage{t.PostProcessor}
	for n := 0; n < len(queue) && n < 16; n++ {
		if sameJSON(queue[n], nil) {
			continue
		}
		var p processor
		if err := json.Unmarshal(queue[n], &p); err != nil {
			return nil, nil, fmt.Errorf("%w: %w", ErrHeader, err)
		}
		switch p.Type {
		case "ByteLevel":
		case "Sequence":
			queue = append(queue, p.Processors...)
		case "TemplateProcessing":
			into := &begin
			for _, part := range p.Single {
				if part.Sequence != nil {
					into = &end
					continue
				}
				if part.SpecialToken == nil || *into != nil || len(p.Special[part.SpecialToken.ID].IDs) != 1 {
					return nil, nil, fmt.Errorf("%w: more than one token before or after the text", ErrUnsupported)
				}
				*into = &p.Special[part.SpecialToken.ID].IDs[0]
			}
		default:
			return nil, nil, fmt.Errorf("%w: %q can't be said in this format", ErrUnsupported, shorten(p.Type))
		}
	}
	return begin, end, nil
}

// templateOf finds the chat template, the default one if there are several.
func templateOf(m Model) (string, error) {
	if m.ChatTemplate != "" || m.TokenizerConfig == nil {
		return m.ChatTemplate, nil
	}
	var c struct {
		Template json.RawMessage `json:"chat_template"`
	}
	if err := json.Unmarshal(m.TokenizerConfig, &c); err != nil {
		return "", fmt.Errorf("tokenizer_config.json: %w: %w", ErrHeader, err)
	}
	if sameJSON(c.Template, nil) {
		return "", nil
	}
	var one string
	if json.Unmarshal(c.Template, &one) == nil {
		return one, nil
	}
	var several []struct{ Name, Template string }
	if err := json.Unmarshal(c.Template, &several); err != nil {
		return "", fmt.Errorf("tokenizer_config.json: chat_template: %w: %w", ErrHeader, err)
	}
	for _, t := range several {
		if t.Name == "default" {
			return t.Template, nil
		}
	}
	return "", nil
}
