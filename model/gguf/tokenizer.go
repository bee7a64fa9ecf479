package gguf

import (
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"
)

const (
	maxVocabulary = 1 << 21 // tokens
	maxTemplate   = 4 << 20 // bytes of a chat template
)

// vocabulary is a tokenizer as the file holds it.
type vocabulary struct {
	f      *File
	tokens []string
	types  []byte    // by id
	scores []float32 // by id; of a SentencePiece model
	ids    map[string]int
	bos    int // -1 where there is none
	eos    int
	unk    int
	pad    int
}

// tokenizerOf writes a tokenizer.json, and a tokenizer_config.json with what else the file says. rows are those of the
// embedding, context the most positions.
func tokenizerOf(f *File, rows, context int64) (text, config []byte, err error) {
	model, err := f.Text(modelKey, 64)
	if err != nil {
		return nil, nil, err
	}
	if model != "gpt2" && model != "llama" {
		return nil, nil, fmt.Errorf("metadata %q: %w: %q; gpt2 (byte-level) and llama (SentencePiece) are read", modelKey, ErrUnsupported, shorten(model))
	}
	v, err := readVocabulary(f, model == "llama", rows)
	if err != nil {
		return nil, nil, err
	}
	if model == "llama" {
		text, err = v.sentencePiece()
	} else {
		text, err = v.byteLevel()
	}
	if err != nil {
		return nil, nil, err
	}
	config, err = v.config(context)
	return text, config, err
}

func readVocabulary(f *File, scored bool, rows int64) (*vocabulary, error) {
	_, item, count, ok := f.Kind(tokensKey)
	if !ok || item != String || count < 1 {
		return nil, fmt.Errorf("metadata %q: %w: the tokens are missing", tokensKey, ErrHeader)
	}
	if count > maxVocabulary || count > rows {
		return nil, fmt.Errorf("metadata %q: %w: %d tokens, but the embedding has %d rows", tokensKey, ErrHeader, count, rows)
	}
	v := &vocabulary{f: f, types: bytes.Repeat([]byte{tokenNormal}, int(count)), ids: make(map[string]int, count)}
	if f.Has(typesKey) {
		if err := v.eachOf(typesKey, count, func(i int, kind float64) error {
			if kind < 0 || kind > tokenByte || kind != float64(byte(kind)) {
				return fmt.Errorf("metadata %q: %w: token %d has type %v", typesKey, ErrHeader, i, kind)
			}
			v.types[i] = byte(kind)
			return nil
		}); err != nil {
			return nil, err
		}
	}
	err := f.EachText(tokensKey, func(i int, token string) error {
		if token == "" || v.types[i] == tokenUnused && token == filler(i) {
			token = "" // no text is made into it: a converter's own, for an embedding longer than the vocabulary
		} else if old, twice := v.ids[token]; twice {
			return fmt.Errorf("metadata %q: %w: token %q is %d and %d", tokensKey, ErrHeader, shorten(token), old, i)
		} else {
			v.ids[token] = i
		}
		v.tokens = append(v.tokens, token)
		return nil
	})
	if err != nil {
		return nil, err
	}
	if scored {
		v.scores = make([]float32, count)
		err := v.eachOf(scoresKey, count, func(i int, score float64) error {
			if score-score != 0 {
				return fmt.Errorf("metadata %q: %w: token %d has score %v", scoresKey, ErrHeader, i, score)
			}
			v.scores[i] = float32(score)
			return nil
		})
		if err != nil {
			return nil, err
		}
	}
	return v, v.special()
}

// filler is how converters call an id that the original tokenizer does not have.
func filler(id int) string { return "[PAD" + strconv.Itoa(id) + "]" }

// eachOf is EachNumber for an array with one element a token.
func (v *vocabulary) eachOf(key string, count int64, do func(i int, x float64) error) error {
	_, _, n, ok := v.f.Kind(key)
	if !ok || n != count {
		return fmt.Errorf("metadata %q: %w: it has %d elements, the tokens are %d", key, ErrHeader, n, count)
	}
	return v.f.EachNumber(key, do)
}

func (v *vocabulary) special() error {
	for _, s := range []struct {
		key string
		id  *int
	}{{bosKey, &v.bos}, {eosKey, &v.eos}, {unkKey, &v.unk}, {padKey, &v.pad}} {
		key, id := s.key, s.id
		n, err := v.f.Uint(key)
		switch *id = -1; {
		case errors.Is(err, ErrAbsent):
		case err != nil:
			return err
		case n >= 1<<32-1: // some converters write -1 for none
		case n >= uint64(len(v.tokens)) || v.tokens[n] == "":
			return fmt.Errorf("metadata %q: %w: there is no token %d", key, ErrHeader, n)
		default:
			*id = int(n)
		}
	}
	return nil
}

// flag reads a bool that may be absent.
func (v *vocabulary) flag(key string, absent bool) (bool, error) {
	b, err := v.f.Bool(key)
	if errors.Is(err, ErrAbsent) {
		return absent, nil
	}
	return b, err
}

// byteLevel is the tokenizer.json of a byte-level BPE.
func (v *vocabulary) byteLevel() ([]byte, error) {
	name, err := v.f.Text(preKey, 255)
	if err != nil {
		return nil, err
	}
	pre := preNamed(name)
	if pre == nil {
		var known []string
		for _, p := range preTokenizers {
			known = append(known, p.names...)
		}
		return nil, fmt.Errorf("metadata %q: %w: pre-tokenizer %q is not known; %s are", preKey, ErrUnsupported, shorten(name), strings.Join(known, ", "))
	}
	post, err := v.postProcessor(pre.addBOS)
	if err != nil {
		return nil, err
	}
	if post == "null" {
		post = byteLevel(true)
	}
	var b bytes.Buffer
	v.open(&b)
	fmt.Fprintf(&b, `"normalizer":%s,"pre_tokenizer":%s,"post_processor":%s,"decoder":%s,`, pre.normalizer, pre.pipeline(), post, byteLevel(true))
	fmt.Fprintf(&b, `"model":{"type":"BPE","dropout":null,"unk_token":null,"continuing_subword_prefix":null,"end_of_word_suffix":null,`+
		`"fuse_unk":false,"byte_fallback":false,"ignore_merges":%t,`, pre.ignoreMerges)
	v.vocab(&b)
	b.WriteString(`,"merges":[`)
	err = v.f.EachText(mergesKey, func(i int, merge string) error {
		// The left part has a character at least, which may be a space.
		_, width := utf8.DecodeRuneInString(merge)
		at := strings.IndexByte(merge[width:], ' ')
		if at < 0 {
			return fmt.Errorf("metadata %q: %w: merge %d, %q, is not two parts with a space between", mergesKey, ErrHeader, i, shorten(merge))
		}
		writeMerge(&b, i, merge[:width+at], merge[width+at+1:])
		return nil
	})
	b.WriteString("]}}")
	return b.Bytes(), err
}

func writeMerge(b *bytes.Buffer, i int, left, right string) {
	if i > 0 {
		b.WriteByte(',')
	}
	b.WriteByte('[')
	quote(b, left)
	b.WriteByte(',')
	quote(b, right)
	b.WriteByte(']')
}

// sentencePiece is the tokenizer.json of a SentencePiece BPE: merges in the order of the scores of what they make.
func (v *vocabulary) sentencePiece() ([]byte, error) {
	for _, key := range []string{"tokenizer.ggml.precompiled_charsmap", "tokenizer.ggml.remove_extra_whitespaces"} {
		if on, err := v.flag(key, false); v.f.Has(key) && (err != nil || on) {
			return nil, fmt.Errorf("metadata %q: %w: normalisation of a SentencePiece model", key, ErrUnsupported)
		}
	}
	if err := v.userTokens(); err != nil {
		return nil, err
	}
	prefix, err := v.flag(addSpaceKey, true)
	if err != nil {
		return nil, err
	}
	post, err := v.postProcessor(true)
	if err != nil {
		return nil, err
	}
	normalizer := `{"type":"Replace","pattern":{"String":" "},"content":"▁"}`
	strip := ""
	if prefix {
		normalizer = `{"type":"Sequence","normalizers":[{"type":"Prepend","prepend":"▁"},` + normalizer + `]}`
		strip = `,{"type":"Strip","content":" ","start":1,"stop":0}`
	}
	unknown := "null"
	if v.unk >= 0 {
		var b bytes.Buffer
		quote(&b, v.tokens[v.unk])
		unknown = b.String()
	}
	var b bytes.Buffer
	v.open(&b)
	fmt.Fprintf(&b, `"normalizer":%s,"pre_tokenizer":null,"post_processor":%s,`, normalizer, post)
	fmt.Fprintf(&b, `"decoder":{"type":"Sequence","decoders":[{"type":"Replace","pattern":{"String":"▁"},"content":" "},{"type":"ByteFallback"},{"type":"Fuse"}%s]},`, strip)
	fmt.Fprintf(&b, `"model":{"type":"BPE","dropout":null,"unk_token":%s,"continuing_subword_prefix":null,"end_of_word_suffix":null,`+
		`"fuse_unk":true,"byte_fallback":true,"ignore_merges":false,`, unknown)
	v.vocab(&b)
	b.WriteString(`,"merges":[`)
	merges, err := v.scoredMerges()
	if err != nil {
		return nil, err
	}
	for i, m := range merges {
		whole := v.tokens[m.whole]
		writeMerge(&b, i, whole[:m.at], whole[m.at:])
	}
	b.WriteString("]}}")
	return b.Bytes(), nil
}

// userTokens undoes what converters do to the tokens that users defined, such as runs of spaces: these were written with
// spaces, and with a score of their own. The original's come before all other merges.
func (v *vocabulary) userTokens() error {
	best := float32(math.Inf(-1))
	for id, kind := range v.types {
		if kind == tokenNormal {
			best = max(best, v.scores[id])
		}
	}
	for id, token := range v.tokens {
		if v.types[id] != tokenUser || token == "" {
			continue
		}
		v.scores[id] = best
		if strings.Trim(token, " ") != "" {
			continue
		}
		marked := strings.ReplaceAll(token, " ", "▁")
		if old, taken := v.ids[marked]; taken {
			return fmt.Errorf("metadata %q: %w: token %q is %d and, with spaces, %d", tokensKey, ErrHeader, marked, old, id)
		}
		delete(v.ids, token)
		v.tokens[id], v.ids[marked] = marked, id
	}
	return nil
}

// scoredMerge cuts a token in two, each a token too.
type scoredMerge struct {
	whole       int // its id
	at          int // bytes of the left part
	left, right int // ids
	leftLength  int // characters
	length      int // characters of the whole
}

// scoredMerges gives all merges, the best scores first; of equal ones the longest left part, as the reference's converter.
func (v *vocabulary) scoredMerges() ([]scoredMerge, error) {
	mergeable := func(id int) bool {
		kind := v.types[id]
		return kind == tokenNormal || kind == tokenUser
	}
	var merges []scoredMerge
	text := 0 // bytes of all merges
	for id, token := range v.tokens {
		if !mergeable(id) || len(token) > maxMerged {
			continue
		}
		first, length := len(merges), utf8.RuneCountInString(token)
		chars := 0
		for at := range token {
			if at > 0 {
				left, ok1 := v.ids[token[:at]]
				right, ok2 := v.ids[token[at:]]
				if ok1 && ok2 && mergeable(left) && mergeable(right) {
					if text += len(token); text > maxMergeText || len(merges) == maxMerges {
						return nil, fmt.Errorf("metadata %q: %w: more than %d merges, or %d bytes of them, at token %d", tokensKey, ErrLimit, maxMerges, maxMergeText, id)
					}
					merges = append(merges, scoredMerge{id, at, left, right, chars, length})
				}
			}
			chars++
		}
		slices.SortStableFunc(merges[first:], func(a, b scoredMerge) int {
			return cmp.Or(cmp.Compare(a.left, b.left), cmp.Compare(a.right, b.right))
		})
	}
	slices.SortStableFunc(merges, func(a, b scoredMerge) int {
		return cmp.Or(cmp.Compare(v.scores[b.whole], v.scores[a.whole]), cmp.Compare(b.leftLength, a.leftLength),
			cmp.Compare(b.length-b.leftLength, a.length-a.leftLength))
	})
	return merges, nil
}

// Tokens that consist of each other have merges by the square of their lengths. The largest published vocabulary has half a
// million, of 5 MB; SentencePiece makes no token of more than a few hundred bytes.
const (
	maxMerged    = 1024     // bytes of a token that is made by merges
	maxMerges    = 1 << 20  // in all
	maxMergeText = 16 << 20 // bytes of what they make, in all
)

// open writes the head of a tokenizer.json and the added tokens: all that a user must not be able to write as text, and
// those that users defined.
func (v *vocabulary) open(b *bytes.Buffer) {
	b.WriteString(`{"version":"1.0","truncation":null,"padding":null,"added_tokens":[`)
	n := 0
	for id, token := range v.tokens {
		kind := v.types[id]
		if token == "" || kind != tokenControl && kind != tokenUser && kind != tokenUnknown {
			continue
		}
		if n > 0 {
			b.WriteByte(',')
		}
		n++
		fmt.Fprintf(b, `{"id":%d,"content":`, id)
		quote(b, token)
		fmt.Fprintf(b, `,"single_word":false,"lstrip":false,"rstrip":false,"normalized":false,"special":%t}`, kind != tokenUser)
	}
	b.WriteString("],")
}

func (v *vocabulary) vocab(b *bytes.Buffer) {
	b.WriteString(`"vocab":{`)
	n := 0
	for id, token := range v.tokens {
		if token == "" {
			continue
		}
		if n > 0 {
			b.WriteByte(',')
		}
		n++
		quote(b, token)
		b.WriteByte(':')
		b.WriteString(strconv.Itoa(id))
	}
	b.WriteByte('}')
}

// postProcessor puts the begin and end of a text around it, "null" where neither is put. addBOS is what holds where the
// file does not say.
func (v *vocabulary) postProcessor(addBOS bool) (string, error) {
	begin, err := v.flag(addBOSKey, addBOS && v.bos >= 0)
	if err != nil {
		return "", err
	}
	end, err := v.flag(addEOSKey, false)
	if err != nil {
		return "", err
	}
	if begin && v.bos < 0 || end && v.eos < 0 {
		return "", fmt.Errorf("metadata %q: %w: it is true, but there is no such token", addBOSKey+" or "+addEOSKey, ErrHeader)
	}
	if !begin && !end {
		return "null", nil
	}
	part := func(id, typeID int) string {
		var b bytes.Buffer
		b.WriteString(`{"SpecialToken":{"id":`)
		quote(&b, v.tokens[id])
		fmt.Fprintf(&b, `,"type_id":%d}}`, typeID)
		return b.String()
	}
	around := func(name string, typeID int) string {
		text := fmt.Sprintf(`{"Sequence":{"id":"%s","type_id":%d}}`, name, typeID)
		if begin {
			text = part(v.bos, typeID) + "," + text
		}
		if end {
			text += "," + part(v.eos, typeID)
		}
		return text
	}
	var specials []string
	for _, s := range []struct {
		on bool
		id int
	}{{begin, v.bos}, {end && !(begin && v.bos == v.eos), v.eos}} {
		if s.on {
			var b bytes.Buffer
			quote(&b, v.tokens[s.id])
			specials = append(specials, fmt.Sprintf(`%[1]s:{"id":%[1]s,"ids":[%[2]d],"tokens":[%[1]s]}`, b.String(), s.id))
		}
	}
	single := around("A", 0)
	return `{"type":"TemplateProcessing","single":[` + single + `],"pair":[` + single + "," + around("B", 1) +
		`],"special_tokens":{` + strings.Join(specials, ",") + `}}`, nil
}

// config is the tokenizer_config.json.
func (v *vocabulary) config(context int64) ([]byte, error) {
	out := map[string]any{"tokenizer_class": "PreTrainedTokenizerFast", "model_max_length": context, "clean_up_tokenization_spaces": false}
	for field, id := range map[string]int{"bos_token": v.bos, "eos_token": v.eos, "unk_token": v.unk, "pad_token": v.pad} {
		if id >= 0 {
			out[field] = v.tokens[id]
		}
	}
	if v.f.Has(templateKey) {
		template, err := v.f.Text(templateKey, maxTemplate)
		if err != nil {
			return nil, err
		}
		out["chat_template"] = template
	}
	var b bytes.Buffer
	enc := json.NewEncoder(&b)
	enc.SetEscapeHTML(false)
	enc.SetIndent("", "  ")
	err := enc.Encode(out)
	return b.Bytes(), err
}

// quote writes a JSON string.
func quote(b *bytes.Buffer, s string) {
	enc := json.NewEncoder(b)
	enc.SetEscapeHTML(false)
	_ = enc.Encode(s)       // a string and a buffer: neither can fail
	b.Truncate(b.Len() - 1) // the newline that Encode adds
}
