package tokenizer

import (
	"encoding/binary"
	"fmt"
	"strings"
	"unicode/utf8"
)

// charsmap is SentencePiece's compiled normalization table: a double-array trie from the bytes of a text to where
// its image begins in a text of images, each ended by NUL.
//
// A unit of the trie holds the byte it was reached by (bits 0 to 7, and bit 31 clear), whether a key ends there
// (bit 8), and an offset (bits 10 to 30, shifted by 8 where bit 9 is set). The children of the unit at p are at
// base^byte, base being p^offset; if a key ends, the unit at base holds its value (bit 31 set).
type charsmap struct {
	units  []uint32
	images string
	ascii  [utf8.RuneSelf]asciiImage // of each ASCII character by itself
	growth int                       // how many times longer the table can make a text
}

type asciiImage struct {
	image  string
	mapped bool
}

// maxRule is the longest text, in bytes, that a charsmap may map.
const maxRule = 256

func unitOffset(unit uint32) uint32 { return unit >> 10 << (unit & (1 << 9) >> 6) }

// newCharsmap reads and checks a compiled table: the size of the trie in bytes, the trie, the images.
func newCharsmap(blob []byte) (*charsmap, error) {
	if len(blob) < 4 {
		return nil, fmt.Errorf("%d bytes are no charsmap", len(blob))
	}
	size := uint64(binary.LittleEndian.Uint32(blob))
	blob = blob[4:]
	if size%4 != 0 || size == 0 || size > uint64(len(blob)) {
		return nil, fmt.Errorf("a trie of %d bytes in %d", size, len(blob))
	}
	m := &charsmap{units: make([]uint32, size/4), images: string(blob[size:])}
	if !utf8.ValidString(m.images) {
		return nil, fmt.Errorf("the images are not valid UTF-8")
	}
	for i := range m.units {
		m.units[i] = binary.LittleEndian.Uint32(blob[4*i:])
	}
	if err := m.check(); err != nil {
		return nil, err
	}
	for c := range m.ascii {
		image, n := m.shortest(string(rune(c)))
		m.ascii[c] = asciiImage{image, n > 0}
	}
	return m, nil
}

// check walks the trie (subtrees may be shared): all values must point to a character among the images, and no
// key may be longer than maxRule, so a cycle is refused too.
func (m *charsmap) check() error {
	// children[base] is the first unit that says it is a child of base, next[i] another one of the same.
	const none = -1
	n := len(m.units)
	children, next := make([]int32, n+256), make([]int32, n)
	for i := range children {
		children[i] = none
	}
	for i, unit := range m.units {
		if label := unit & 0xFF; unit>>31 == 0 && label != 0 {
			base := uint32(i) ^ label
			next[i], children[base] = children[base], int32(i)
		}
	}
	height := make([]int16, n) // of the checked units, 0 for none; 1 for a leaf
	var walk func(at, depth int) (int16, error)
	walk = func(at, depth int) (int16, error) {
		if depth > maxRule {
			return 0, fmt.Errorf("a rule for more than %d bytes", maxRule)
		}
		if h := height[at]; h > 0 {
			if depth+int(h)-1 > maxRule {
				return 0, fmt.Errorf("a rule for more than %d bytes", maxRule)
			}
			return h, nil
		}
		unit := m.units[at]
		base := uint32(at) ^ unitOffset(unit)
		if unit>>8&1 == 1 {
			if base >= uint32(n) || m.units[base]>>31 == 0 {
				return 0, fmt.Errorf("unit %d has no value", at)
			}
			value := m.units[base] &^ (1 << 31)
			if uint64(value) > uint64(len(m.images)) ||
				int(value) < len(m.images) && !utf8.RuneStart(m.images[value]) {
				return 0, fmt.Errorf("unit %d points outside the images", at)
			}
		}
		highest := int16(0)
		if base < uint32(len(children)) {
			for child := children[base]; child != none; child = next[child] {
				h, err := walk(int(child), depth+1)
				if err != nil {
					return 0, err
				}
				highest = max(highest, h)
			}
		}
		height[at] = highest + 1
		return height[at], nil
	}
	if _, err := walk(0, 0); err != nil {
		return err
	}
	m.growth = m.measure(children, next)
	return nil
}

// measure gives the growth of a checked trie: the largest ratio of an image's length to its shortest key's.
func (m *charsmap) measure(children, next []int32) int {
	ends := make([]int32, len(m.images)+1) // where the image that begins here ends
	for i := len(m.images); i >= 0; i-- {
		if ends[i] = int32(i); i < len(m.images) && m.images[i] != 0 {
			ends[i] = ends[i+1]
		}
	}
	growth := 1
	seen := make([]bool, len(m.units))
	level := []int32{0}
	seen[0] = true
	for depth := 0; len(level) > 0; depth++ { // level by level, so that each unit is met by its shortest key
		var below []int32
		for _, at := range level {
			base := uint32(at) ^ unitOffset(m.units[at])
			if depth > 0 && m.units[at]>>8&1 == 1 {
				value := m.units[base] &^ (1 << 31)
				growth = max(growth, (int(ends[value])-int(value)+depth-1)/depth)
			}
			if base >= uint32(len(children)) {
				continue
			}
			for child := children[base]; child >= 0; child = next[child] {
				if !seen[child] {
					seen[child] = true
					below = append(below, child)
				}
			}
		}
		level = below
	}
	return growth
}

// shortest gives the image of the shortest beginning of s that has one, and the length of that beginning; 0 where
// there is none.
func (m *charsmap) shortest(s string) (image string, n int) { return m.find(s, false) }

// longest is shortest for the longest beginning.
func (m *charsmap) longest(s string) (image string, n int) { return m.find(s, true) }

func (m *charsmap) find(s string, longest bool) (image string, n int) {
	base := unitOffset(m.units[0])
	value := uint32(0)
	for i := 0; i < len(s) && s[i] != 0; i++ {
		at := base ^ uint32(s[i])
		if at >= uint32(len(m.units)) {
			break
		}
		unit := m.units[at]
		if unit&(1<<31|0xFF) != uint32(s[i]) {
			break
		}
		base = at ^ unitOffset(unit)
		if unit>>8&1 == 1 {
			value, n = m.units[base]&^(1<<31), i+1
			if !longest {
				break
			}
		}
	}
	if n == 0 {
		return "", 0
	}
	image = m.images[value:]
	if end := strings.IndexByte(image, 0); end >= 0 {
		image = image[:end]
	}
	return image, n
}

// maxWholeGrapheme is the longest grapheme cluster, in bytes, that Precompiled looks up as a whole.
const maxWholeGrapheme = 5

// normalize is the reference's Precompiled: a short grapheme cluster becomes the image of its shortest beginning
// that has one (the rest of the cluster is lost), else each code point becomes its own.
func (m *charsmap) normalize(s string) string {
	var out strings.Builder
	done := 0
	put := func(start, end int, image string) {
		out.WriteString(s[done:start])
		out.WriteString(image)
		done = end
	}
	for i := 0; i < len(s); {
		if c := s[i]; c < utf8.RuneSelf && c != '\r' && (i+1 == len(s) || s[i+1] < utf8.RuneSelf) {
			if a := &m.ascii[c]; a.mapped {
				put(i, i+1, a.image)
			}
			i++
			continue
		}
		end := graphemeEnd(s, i)
		if end-i <= maxWholeGrapheme {
			if image, n := m.shortest(s[i:end]); n > 0 {
				put(i, end, image)
				i = end
				continue
			}
		}
		for i < end {
			_, size := utf8.DecodeRuneInString(s[i:])
			if image, n := m.shortest(s[i : i+size]); n > 0 {
				put(i, i+size, image)
			}
			i += size
		}
	}
	if done == 0 {
		return s
	}
	out.WriteString(s[done:])
	return out.String()
}
