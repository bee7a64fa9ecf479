package tokenizer

import (
	"errors"
	"fmt"
	"strconv"
	"strings"
	"unicode"
	"unicode/utf8"

	"github.com/dlclark/regexp2"
)

// Patterns that have no hand-written splitter are read here as the reference's engine (Oniguruma, Ruby syntax)
// reads them, and written again for regexp2 with every character class spelled out from the reference's tables.
// What isn't known to mean the same is refused: the translation accepts, it doesn't pass through.

// Limits of a pattern: a file can ask for no more work than this.
const (
	maxPattern = 4096 // bytes
	maxRepeat  = 1000 // of {n,m}
	maxOpen    = 3    // repeats without upper bound along one path
	maxGroups  = 32   // nested
	maxClasses = 64   // in one pattern; a class is some kilobytes when it is spelled out
)

// compilePattern gives the matcher of a regular expression.
func compilePattern(text string) (matcher, error) {
	if len(text) > maxPattern {
		return nil, fmt.Errorf("longer than %d bytes", maxPattern)
	}
	p := &patternParser{rest: text}
	got, err := p.alternatives(false, 0)
	if err != nil {
		return nil, err
	}
	if p.rest != "" {
		return nil, errors.New("unbalanced )")
	}
	if got.empty {
		return nil, errors.New("matches the empty text")
	}
	re, err := regexp2.Compile(p.out.String(), regexp2.None)
	if err != nil {
		return nil, err
	}
	return backtracker{re}, nil
}

// backtracker matches by regexp2.
type backtracker struct{ re *regexp2.Regexp }

func (b backtracker) match(s string, found func(start, end int)) {
	text := []rune(s)
	// regexp2 counts runes; at and seen are the same place in bytes and in runes.
	at, seen := 0, 0
	to := func(n int) int {
		for ; seen < n; seen++ {
			at += utf8.RuneLen(text[seen])
		}
		return at
	}
	m, err := b.re.FindRunesMatch(text)
	for m != nil && err == nil {
		start := to(m.Index)
		found(start, to(m.Index+m.Length))
		m, err = b.re.FindNextMatch(m)
	}
	if err != nil { // only a time limit gives one, and none is set
		panic("tokenizer: regexp2: " + err.Error())
	}
}

// patternParser reads a pattern and writes it for regexp2.
type patternParser struct {
	rest    string
	out     strings.Builder
	classes int
}

// shape is what the limits need to know of a part of a pattern.
type shape struct {
	empty bool // can match the empty text
	open  int  // most repeats without upper bound along one path
	loose bool // a text can match it in several ways or lengths: repeating it could backtrack without end
}

// alternatives reads up to the end or a closing parenthesis. fold says that case doesn't count.
func (p *patternParser) alternatives(fold bool, depth int) (shape, error) {
	if depth > maxGroups {
		return shape{}, fmt.Errorf("groups nested more than %d deep", maxGroups)
	}
	all := shape{}
	for {
		s, err := p.sequence(fold, depth)
		if err != nil {
			return all, err
		}
		more := strings.HasPrefix(p.rest, "|")
		all = shape{all.empty || s.empty, max(all.open, s.open), all.loose || s.loose || more}
		if !more {
			return all, nil
		}
		p.rest = p.rest[1:]
		p.out.WriteByte('|')
	}
}

func (p *patternParser) sequence(fold bool, depth int) (shape, error) {
	all := shape{empty: true}
	last := rune(0) // the literal just read, in lower case
	for p.rest != "" && p.rest[0] != '|' && p.rest[0] != ')' {
		before := p.out.Len()
		atom, char, err := p.atom(fold, depth)
		if err != nil {
			return all, err
		}
		if fold && char != 0 {
			// The reference matches these pairs with one character too (ß, ﬁ, ﬆ, …).
			switch pair := string([]rune{last, char}); pair {
			case "ss", "ff", "fi", "fl", "st":
				return all, fmt.Errorf("%q without regard to case", pair)
			}
		}
		last = char
		atom, err = p.repeat(before, atom)
		if err != nil {
			return all, err
		}
		all = shape{all.empty && atom.empty, all.open + atom.open, all.loose || atom.loose}
		if all.open > maxOpen {
			return all, fmt.Errorf("more than %d open repeats in a row", maxOpen)
		}
	}
	return all, nil
}

// groups are the openings that mean the same to both engines, and what they do.
var groups = []struct {
	open string
	look bool // takes no text
	fold bool
}{
	{open: "(?:"}, {open: "(?>"}, {open: "(?i:", fold: true},
	{open: "(?=", look: true}, {open: "(?!", look: true},
}

// atom reads one character, class or group. char is the lower case of a literal, else 0.
func (p *patternParser) atom(fold bool, depth int) (s shape, char rune, err error) {
	r, n := utf8.DecodeRuneInString(p.rest)
	switch r {
	case '(':
		s, err = p.group(fold, depth)
		return s, 0, err
	case '[':
		set, err := p.class(fold)
		if err != nil {
			return shape{}, 0, err
		}
		return shape{}, 0, p.writeSet(set)
	case '\\':
		set, lit, err := p.escape()
		if err != nil {
			return shape{}, 0, err
		}
		if set != nil {
			return shape{}, 0, p.writeSet(set)
		}
		r = lit
	case '.', '^', '$', '*', '+', '?', '{', '}', ']':
		return shape{}, 0, fmt.Errorf("%q here", r)
	default:
		p.rest = p.rest[n:]
	}
	if fold && r >= utf8.RuneSelf {
		return shape{}, 0, errFold
	}
	p.out.WriteByte('[')
	p.writeBound(r)
	for f := unicode.SimpleFold(r); fold && f != r; f = unicode.SimpleFold(f) {
		p.writeBound(f)
	}
	p.out.WriteByte(']')
	return shape{}, unicode.ToLower(r), nil
}

func (p *patternParser) group(fold bool, depth int) (shape, error) {
	open, look := "", false
	for _, g := range groups {
		if strings.HasPrefix(p.rest, g.open) {
			open, look, fold = g.open, g.look, fold || g.fold
			break
		}
	}
	switch {
	case open != "":
		p.rest = p.rest[len(open):]
	case strings.HasPrefix(p.rest, "(?"):
		return shape{}, fmt.Errorf("group %.4s", p.rest)
	default:
		p.rest = p.rest[1:]
	}
	if open == "" || open == "(?i:" { // captures aren't used, and folding is spelled out
		open = "(?:"
	}
	p.out.WriteString(open)
	s, err := p.alternatives(fold, depth+1)
	if err != nil {
		return s, err
	}
	if !strings.HasPrefix(p.rest, ")") {
		return s, errors.New("missing )")
	}
	p.rest = p.rest[1:]
	p.out.WriteByte(')')
	s.empty = s.empty || look
	return s, nil
}

// repeat reads a quantifier, if there is one, for the atom that was written from before on.
func (p *patternParser) repeat(before int, atom shape) (shape, error) {
	if p.rest == "" {
		return atom, nil
	}
	low, high := 1, 1 // high -1: without bound
	counted := false
	switch p.rest[0] {
	case '?':
		low = 0
	case '*':
		low, high = 0, -1
	case '+':
		high = -1
	case '{':
		counted = true
	default:
		return atom, nil
	}
	if counted {
		body, after, ok := strings.Cut(p.rest[1:], "}")
		var err error
		if low, high, err = bounds(body); err != nil || !ok {
			return atom, fmt.Errorf("repeat {%.10s", body)
		}
		p.rest = after
	} else {
		p.rest = p.rest[1:]
	}
	kind := ""
	if p.rest != "" && strings.ContainsRune("?+*{", rune(p.rest[0])) {
		if counted || p.rest[0] != '?' && p.rest[0] != '+' {
			return atom, errors.New("a repeat of a repeat")
		}
		kind = p.rest[:1]
		p.rest = p.rest[1:]
	}
	if high != 1 && (atom.loose || atom.empty) {
		return atom, errors.New("a repeat of what can match in several ways")
	}
	quantifier := fmt.Sprintf("{%d,%d}", low, high)
	if high < 0 {
		quantifier = fmt.Sprintf("{%d,}", low)
	}
	if kind == "+" { // possessive: regexp2 writes it as an atomic group
		written := p.out.String()
		p.out.Reset()
		p.out.WriteString(written[:before] + "(?>" + written[before:] + quantifier + ")")
	} else {
		p.out.WriteString(quantifier + kind)
	}
	if high < 0 {
		atom.open = 1
	} else {
		atom.open *= high
	}
	atom.empty = atom.empty || low == 0
	atom.loose = atom.loose || low != high
	return atom, nil
}

// bounds reads what stands between the braces of a repeat: n, n,m, n, or ,m.
func bounds(body string) (low, high int, err error) {
	first, second, comma := strings.Cut(body, ",")
	if first != "" || !comma {
		if low, err = strconv.Atoi(first); err != nil {
			return 0, 0, err
		}
	}
	high = low
	if comma {
		high = -1
		if second != "" {
			if high, err = strconv.Atoi(second); err != nil {
				return 0, 0, err
			}
		} else if first == "" {
			return 0, 0, errors.New("no bounds")
		}
	}
	if low < 0 || low > maxRepeat || high > maxRepeat || high >= 0 && high < low {
		return 0, 0, errors.New("bounds out of order or too large")
	}
	return low, high, nil
}
