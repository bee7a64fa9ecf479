package tokenizer

import (
	"encoding/json"
	"unicode"
	"unicode/utf8"
)

// component is the union of the fields that normalizers, pre-tokenizers and decoders have.
type component struct {
	Normalizers   []json.RawMessage `json:"normalizers"`
	PreTokenizers []json.RawMessage `json:"pretokenizers"`
	Decoders      []json.RawMessage `json:"decoders"`

	Charsmap         string          `json:"precompiled_charsmap"`
	Prepend          string          `json:"prepend"`
	Pattern          json.RawMessage `json:"pattern"`
	StripLeft        bool            `json:"strip_left"`
	StripRight       bool            `json:"strip_right"`
	Behavior         *string         `json:"behavior"`
	Invert           bool            `json:"invert"`
	IndividualDigits bool            `json:"individual_digits"`
	AddPrefixSpace   *bool           `json:"add_prefix_space"`
	UseRegex         *bool           `json:"use_regex"`
	Replacement      string          `json:"replacement"`
	PrependScheme    *string         `json:"prepend_scheme"`
	Split            *bool           `json:"split"`
	Start            int             `json:"start"`
	Stop             int             `json:"stop"`

	// Content is a text, for Strip a character.
	Content string `json:"content"`
}

// open reads a component that isn't null; at too great a depth it fails.
func (l *loader) open(place string, raw json.RawMessage, depth int) (kind string, c component, ok bool) {
	if isNull(raw) {
		return "", c, false
	}
	if depth > maxDepth {
		l.fail("%s: nested more than %d deep; unfold the sequences", place, maxDepth)
		return "", c, false
	}
	if l.components++; l.components > maxComponents {
		l.fail("%s: more than %d components; join some", place, maxComponents)
		return "", c, false
	}
	kind = l.typeOf(place, raw)
	return kind, c, kind != "" && l.known(place, kind) && l.read(place+" "+kind, raw, &c)
}

// supported lists the component types by place; Load refuses all others by name.
var supported = map[string]map[string]bool{
	"normalizer": {"Sequence": true, "NFC": true, "NFKC": true, "Lowercase": true, "Prepend": true,
		"Replace": true, "Strip": true, "Precompiled": true},
	"pre_tokenizer": {"Sequence": true, "ByteLevel": true, "Split": true, "Digits": true, "Metaspace": true,
		"WhitespaceSplit": true, "Punctuation": true},
	"decoder": {"Sequence": true, "ByteLevel": true, "Replace": true, "ByteFallback": true, "Fuse": true,
		"Strip": true, "Metaspace": true},
}

func (l *loader) known(place, kind string) bool {
	if !supported[place][kind] {
		l.gap("%s %s", place, kind)
		return false
	}
	return true
}

func (l *loader) normalizers(place string, raw json.RawMessage, depth int) []normalizer {
	kind, c, ok := l.open(place, raw, depth)
	if !ok {
		return nil
	}
	switch kind {
	case "Sequence":
		var all []normalizer
		for _, inner := range c.Normalizers {
			all = append(all, l.normalizers(place, inner, depth+1)...)
		}
		return all
	case "NFC":
		return []normalizer{normalizerFunc(nfc)}
	case "NFKC":
		return []normalizer{normalizerFunc(nfkc)}
	case "Lowercase":
		return []normalizer{normalizerFunc(lowercase)}
	case "Prepend":
		return []normalizer{prepend(c.Prepend)}
	case "Precompiled":
		return l.precompiled(place, c.Charsmap)
	case "Strip":
		return []normalizer{strip{c.StripLeft, c.StripRight}}
	default: // Replace
		return []normalizer{replace{l.pattern(place+" Replace", c.Pattern), c.Content}}
	}
}

func (l *loader) preTokenizers(place string, raw json.RawMessage, depth int) []preTokenizer {
	kind, c, ok := l.open(place, raw, depth)
	if !ok {
		return nil
	}
	switch kind {
	case "Sequence":
		var all []preTokenizer
		for _, inner := range c.PreTokenizers {
			all = append(all, l.preTokenizers(place, inner, depth+1)...)
		}
		return all
	case "ByteLevel":
		var all []preTokenizer
		if c.AddPrefixSpace == nil {
			l.fail("%s ByteLevel: no add_prefix_space; compare with the reference's format", place)
		} else if *c.AddPrefixSpace {
			all = append(all, spacePrefix{})
		}
		if c.UseRegex == nil || *c.UseRegex {
			all = append(all, split{pattern: knownPatterns[patternGPT2], behavior: isolated})
		}
		return append(all, byteChars{})
	case "Split":
		pattern := l.pattern(place+" Split", c.Pattern)
		return []preTokenizer{split{pattern, l.behavior(place+" Split", c.Behavior, ""), c.Invert}}
	case "Digits":
		is := isDigit
		if c.IndividualDigits {
			return []preTokenizer{split{pattern: runes{is, true}, behavior: isolated}}
		}
		return []preTokenizer{split{pattern: runes{is, true}, behavior: contiguous}}
	case "WhitespaceSplit":
		return []preTokenizer{split{pattern: runes{isSpace, false}, behavior: removed}}
	case "Punctuation":
		behavior := l.behavior(place+" Punctuation", c.Behavior, "Isolated")
		return []preTokenizer{split{pattern: runes{isPunctuation, true}, behavior: behavior}}
	default: // Metaspace
		mark, scheme := l.metaspace(place, c)
		return []preTokenizer{metaspace{mark, scheme, c.Split == nil || *c.Split}}
	}
}

// punctuationSince9 is the punctuation that came with Unicode 9 to 15: the reference's own table for its
// Punctuation component (unlike that of its regular expressions) is of Unicode 8.
var punctuationSince9 = &unicode.RangeTable{
	R16: []unicode.Range16{{0x061D, 0x061D, 1}, {0x09FD, 0x09FD, 1}, {0x0A76, 0x0A76, 1}, {0x0C77, 0x0C77, 1},
		{0x0C84, 0x0C84, 1}, {0x1B7D, 0x1B7E, 1}, {0x2E43, 0x2E4F, 1}, {0x2E52, 0x2E5D, 1}},
	R32: []unicode.Range32{{0x10EAD, 0x10EAD, 1}, {0x10F55, 0x10F59, 1}, {0x10F86, 0x10F89, 1},
		{0x1144B, 0x1144F, 1}, {0x1145A, 0x1145B, 1}, {0x1145D, 0x1145D, 1}, {0x11660, 0x1166C, 1},
		{0x116B9, 0x116B9, 1}, {0x1183B, 0x1183B, 1}, {0x11944, 0x11946, 1}, {0x119E2, 0x119E2, 1},
		{0x11A3F, 0x11A46, 1}, {0x11A9A, 0x11A9C, 1}, {0x11A9E, 0x11AA2, 1}, {0x11B00, 0x11B09, 1},
		{0x11C41, 0x11C45, 1}, {0x11C70, 0x11C71, 1}, {0x11EF7, 0x11EF8, 1}, {0x11F43, 0x11F4F, 1},
		{0x11FFF, 0x11FFF, 1}, {0x12FF1, 0x12FF2, 1}, {0x16E97, 0x16E9A, 1}, {0x16FE2, 0x16FE2, 1},
		{0x1E95E, 0x1E95F, 1}},
}

// isDigit is that of the reference's Digits, whose table (unlike that of its regular expressions) is of Unicode 17.
func isDigit(r rune) bool {
	return loadUnicode().class(r)&classN != 0 || r >= 0x11DE0 && r <= 0x11DE9 || r >= 0x16FF4 && r <= 0x16FF6
}

// isPunctuation is the reference's: ASCII punctuation (symbols as $ too) and the categories P of old tables.
func isPunctuation(r rune) bool {
	if r < utf8.RuneSelf {
		return loadUnicode().class(r)&(classP|classS) != 0
	}
	if r == 0x166D || r == 0x111C9 { // left the category later
		return true
	}
	return unicode.IsPunct(r) && !unicode.Is(punctuationSince9, r)
}

func (l *loader) behavior(place string, name *string, absent string) behavior {
	if name == nil {
		name = &absent
	}
	b, ok := behaviors[*name]
	if !ok {
		l.fail("%s: behavior %q; use one of Removed, Isolated, MergedWithPrevious, MergedWithNext, Contiguous",
			place, *name)
	}
	return b
}

// metaspace reads the mark and when it is put first. Older files say add_prefix_space in place of prepend_scheme.
func (l *loader) metaspace(place string, c component) (mark, scheme string) {
	scheme = prependAlways
	if c.PrependScheme != nil {
		scheme = *c.PrependScheme
	}
	if c.AddPrefixSpace != nil && !*c.AddPrefixSpace {
		if c.PrependScheme != nil && scheme != prependNever {
			l.fail("%s Metaspace: add_prefix_space false and prepend_scheme %q; remove one", place, scheme)
		}
		scheme = prependNever
	}
	if scheme != prependAlways && scheme != prependFirst && scheme != prependNever {
		l.fail("%s Metaspace: prepend_scheme %q; use always, first or never", place, scheme)
	}
	if utf8.RuneCountInString(c.Replacement) != 1 {
		l.fail("%s Metaspace: replacement %q; use one character", place, c.Replacement)
	}
	return c.Replacement, scheme
}

// maxPatterns is the most regular expressions of a file that have to be compiled.
const maxPatterns = 16

// pattern reads {"String": …} or {"Regex": …}.
func (l *loader) pattern(place string, raw json.RawMessage) matcher {
	var p struct{ String, Regex *string }
	if isNull(raw) || !l.read(place+" pattern", raw, &p) {
		l.fail("%s: no pattern; give one as String or Regex", place)
		return literal("")
	}
	switch {
	case p.String != nil && *p.String == "":
		l.fail("%s: the pattern is the empty text; give one that isn't", place)
		return literal("")
	case p.String != nil:
		return literal(*p.String)
	case p.Regex == nil:
		l.fail("%s: no pattern; give one as String or Regex", place)
		return literal("")
	}
	if m, ok := knownPatterns[*p.Regex]; ok {
		return m
	}
	if l.patterns++; l.patterns > maxPatterns {
		l.fail("%s: more than %d regular expressions; join them", place, maxPatterns)
		return literal("")
	}
	m, err := compilePattern(*p.Regex)
	if err != nil {
		l.gap("%s pattern %q (%v)", place, *p.Regex, err)
		return literal("")
	}
	return m
}

func (l *loader) decoders(raw json.RawMessage) {
	if isNull(raw) {
		l.t.decoder = []decodeStep{&spaced{}}
		return
	}
	l.t.decoder = l.decoderSteps("decoder", raw, 0)
	joined := false
	for _, step := range l.t.decoder {
		if joined && !step.readsFragments() {
			l.gap("decoder Sequence with %T after a step that joins the tokens", step)
		}
		joined = joined || step.joins()
	}
	if len(l.t.decoder) == 0 { // an empty sequence: the tokens as they are
		l.t.decoder = []decodeStep{fuse{}}
	}
}

func (l *loader) decoderSteps(place string, raw json.RawMessage, depth int) []decodeStep {
	kind, c, ok := l.open(place, raw, depth)
	if !ok {
		return nil
	}
	switch kind {
	case "Sequence":
		var all []decodeStep
		for _, inner := range c.Decoders {
			all = append(all, l.decoderSteps(place, inner, depth+1)...)
		}
		return all
	case "ByteLevel":
		return []decodeStep{byteLevel{}}
	case "ByteFallback":
		return []decodeStep{byteFallback{}}
	case "Fuse":
		return []decodeStep{fuse{}}
	case "Replace":
		return []decodeStep{decodeReplace{replace{l.pattern(place+" Replace", c.Pattern), c.Content}}}
	case "Strip":
		if utf8.RuneCountInString(c.Content) != 1 || c.Start < 0 || c.Stop < 0 {
			l.fail("%s Strip: content %q, start %d, stop %d; use one character and counts from 0", place,
				c.Content, c.Start, c.Stop)
		}
		return []decodeStep{decodeStrip{c.Content, c.Start, c.Stop}}
	default: // Metaspace
		mark, scheme := l.metaspace(place, c)
		return []decodeStep{decodeMetaspace{mark: mark, scheme: scheme}}
	}
}
