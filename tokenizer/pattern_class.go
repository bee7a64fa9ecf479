package tokenizer

import (
	"errors"
	"fmt"
	"strconv"
	"strings"
	"sync"
	"unicode"
	"unicode/utf8"
)

// runeSet is a set of code points, surrogates aside.
type runeSet []uint64

func newRuneSet() runeSet { return make(runeSet, (unicode.MaxRune+64)/64) }

func (s runeSet) has(r rune) bool { return s[r>>6]>>(r&63)&1 != 0 }

func (s runeSet) add(lo, hi rune) {
	for r := lo; r <= hi; r++ {
		s[r>>6] |= 1 << (r & 63)
	}
}

func (s runeSet) addSet(o runeSet) {
	for i := range s {
		s[i] |= o[i]
	}
}

func (s runeSet) complement() runeSet {
	out := newRuneSet()
	for i := range s {
		out[i] = ^s[i]
	}
	return out
}

func setOf(is func(rune) bool) runeSet {
	s := newRuneSet()
	for r := rune(0); r <= unicode.MaxRune; r++ {
		if is(r) {
			s.add(r, r)
		}
	}
	return s
}

var errFold = errors.New("a character outside ASCII without regard to case")

// folded adds the other cases of the members, which have to be ASCII: the reference's rules for others aren't
// known here.
func (s runeSet) folded() (runeSet, error) {
	out := newRuneSet()
	for i := 2; i < len(s); i++ {
		if s[i] != 0 {
			return nil, errFold
		}
	}
	for r := rune(0); r < utf8.RuneSelf; r++ {
		if !s.has(r) {
			continue
		}
		out.add(r, r)
		for f := unicode.SimpleFold(r); f != r; f = unicode.SimpleFold(f) {
			out.add(f, f)
		}
	}
	return out, nil
}

// writeSet writes a class with all its ranges.
func (p *patternParser) writeSet(s runeSet) error {
	if p.classes++; p.classes > maxClasses {
		return fmt.Errorf("more than %d classes", maxClasses)
	}
	p.out.WriteByte('[')
	for r := rune(0); r <= unicode.MaxRune; r++ {
		if r&63 == 0 && s[r>>6] == 0 {
			r += 63
			continue
		}
		if !s.has(r) {
			continue
		}
		lo := r
		for r < unicode.MaxRune && s.has(r+1) {
			r++
		}
		p.writeBound(lo)
		if r > lo {
			p.out.WriteByte('-')
			p.writeBound(r)
		}
	}
	p.out.WriteByte(']')
	return nil
}

func (p *patternParser) writeBound(r rune) {
	if r < 0x10000 {
		fmt.Fprintf(&p.out, `\u%04X`, r) // surrogates too, which a text can't have
	} else {
		p.out.WriteRune(r)
	}
}

// class reads a bracketed class. Nested classes and intersections are refused.
func (p *patternParser) class(fold bool) (runeSet, error) {
	p.rest = p.rest[1:]
	negated := strings.HasPrefix(p.rest, "^")
	if negated {
		p.rest = p.rest[1:]
	}
	all := newRuneSet()
	for first := true; ; first = false {
		if p.rest == "" {
			return all, errors.New("missing ]")
		}
		if p.rest[0] == ']' {
			if first {
				return all, errors.New("an empty class")
			}
			p.rest = p.rest[1:]
			break
		}
		set, lo, err := p.member()
		if err != nil {
			return all, err
		}
		if set != nil {
			all.addSet(set)
			continue
		}
		hi := lo
		if len(p.rest) > 1 && p.rest[0] == '-' && p.rest[1] != ']' {
			p.rest = p.rest[1:]
			if set, hi, err = p.member(); err != nil || set != nil || hi < lo {
				return all, errors.New("a range that isn't one")
			}
		}
		all.add(lo, hi)
	}
	if fold {
		var err error
		if all, err = all.folded(); err != nil {
			return newRuneSet(), err
		}
	}
	if negated {
		all = all.complement()
	}
	return all, nil
}

// member reads a member of a class: a set, or one code point.
func (p *patternParser) member() (runeSet, rune, error) {
	r, n := utf8.DecodeRuneInString(p.rest)
	switch {
	case n == 0:
		return nil, 0, errors.New("missing ]")
	case r == '\\':
		return p.escape()
	case r == '[' || strings.HasPrefix(p.rest, "&&"):
		return nil, 0, errors.New("a class in a class")
	}
	p.rest = p.rest[n:]
	return nil, r, nil
}

// controls are the escapes of single control characters.
var controls = map[byte]rune{'t': '\t', 'n': '\n', 'v': '\v', 'f': '\f', 'r': '\r'}

// escape reads a backslash sequence: a set, or one code point.
func (p *patternParser) escape() (runeSet, rune, error) {
	if len(p.rest) < 2 {
		return nil, 0, errors.New(`a lone \`)
	}
	c := p.rest[1]
	p.rest = p.rest[2:]
	if r, ok := controls[c]; ok {
		return nil, r, nil
	}
	switch {
	case c < utf8.RuneSelf && loadUnicode().class(rune(c))&(classP|classS) != 0 || c == ' ':
		return nil, rune(c), nil
	case c == 's' || c == 'S' || c == 'd' || c == 'D':
		name := "Nd"
		if c|0x20 == 's' {
			name = "White_Space"
		}
		set, err := property(name)
		if err == nil && c < 'a' {
			set = set.complement()
		}
		return set, 0, err
	case c == 'p' || c == 'P':
		name, after, ok := strings.Cut(p.rest, "}")
		if !ok || !strings.HasPrefix(name, "{") {
			return nil, 0, errors.New(`a \p without braces`)
		}
		p.rest = after
		set, err := property(name[1:])
		if err == nil && c == 'P' {
			set = set.complement()
		}
		return set, 0, err
	case c == 'u' && len(p.rest) >= 4:
		v, err := strconv.ParseUint(p.rest[:4], 16, 32)
		p.rest = p.rest[4:]
		if err != nil || v >= 0xD800 && v < 0xE000 {
			return nil, 0, errors.New(`a \u without a code point`)
		}
		return nil, rune(v), nil
	case c == 'x' && strings.HasPrefix(p.rest, "{"):
		body, after, ok := strings.Cut(p.rest[1:], "}")
		v, err := strconv.ParseUint(body, 16, 32)
		if !ok || err != nil || !utf8.ValidRune(rune(min(v, 1<<30))) {
			return nil, 0, errors.New(`a \x without a code point`)
		}
		p.rest = after
		return nil, rune(v), nil
	}
	return nil, 0, fmt.Errorf(`\%c`, c)
}

// newModifiers are the modifier letters (Lm) that Unicode 16 has and Go's tables lack.
var newModifiers = [][2]rune{{0x10D4E, 0x10D4E}, {0x10D6F, 0x10D6F}, {0x16D40, 0x16D42}, {0x16D6B, 0x16D6C}}

// properties keeps the sets of property, which nobody changes: there are a dozen.
var properties sync.Map

// property gives the code points of a property by its short name. The set is shared.
func property(name string) (runeSet, error) {
	if set, ok := properties.Load(name); ok {
		return set.(runeSet), nil
	}
	set, err := makeProperty(name)
	if err == nil {
		properties.Store(name, set)
	}
	return set, err
}

func makeProperty(name string) (runeSet, error) {
	u := loadUnicode()
	bits := map[string]uint8{"L": classL, "N": classN, "M": classM, "White_Space": classWS, "Lu": classLu,
		"Ll": classLl, "P": classP, "S": classS}
	if bit, ok := bits[name]; ok {
		return setOf(func(r rune) bool { return u.class(r)&bit != 0 }), nil
	}
	isLm := func(r rune) bool {
		for _, m := range newModifiers {
			if r >= m[0] && r <= m[1] {
				return true
			}
		}
		return unicode.Is(unicode.Lm, r)
	}
	switch name {
	case "Nd": // the numbers that Go's tables lack are all decimal digits
		return setOf(func(r rune) bool {
			return u.class(r)&classN != 0 && !unicode.In(r, unicode.Nl, unicode.No)
		}), nil
	case "Lt":
		return setOf(func(r rune) bool { return unicode.Is(unicode.Lt, r) }), nil
	case "Lm":
		return setOf(isLm), nil
	case "Lo":
		return setOf(func(r rune) bool {
			return u.class(r)&(classL|classLu|classLl) == classL && !unicode.Is(unicode.Lt, r) && !isLm(r)
		}), nil
	}
	return nil, fmt.Errorf(`\p{%s}`, name)
}
