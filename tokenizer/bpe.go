package tokenizer

import (
	"slices"
	"strings"
	"unicode/utf8"
)

// bpe is byte-pair encoding over ids: a piece starts as one symbol for each character (or byte) and the pair of
// neighbours with the lowest rank is merged until there is none.
type bpe struct {
	ids   map[string]int32 // id by token: raw bytes if bytesIn, else text
	pairs pairTable
	cache *wordCache

	bytesIn      bool       // pieces are raw bytes, not the byte-level alphabet
	byteID       [256]int32 // bytesIn: id of each byte; byteFallback: id of <0xNN>
	byteFallback bool       // a character without id becomes the ids of its bytes
	ignoreMerges bool       // a piece that is a token is that token
	fuseUnknown  bool       // neighbouring unknown characters give one unknown id
	unknown      int32      // id of the unknown token, -1 for none: unknown characters vanish
	wordMark     string     // not empty: no merge crosses a place before this mark, so words are cut there
	beyond       []string   // characters without token that merges know, by id less the least id of them
	firstBeyond  int32      // that least id
}

// maxCachedPiece is the longest piece, in bytes, that the word cache keeps.
const maxCachedPiece = 48

func (m *bpe) encode(piece string, ids []int32) []int32 {
	if m.wordMark == "" {
		return m.encodeWord(piece, ids)
	}
	start := 0
	for at := 0; at < len(piece); {
		n := strings.Index(piece[at:], m.wordMark)
		if n < 0 {
			break
		}
		at += n
		if at > start && !strings.HasSuffix(piece[start:at], m.wordMark) {
			ids = m.encodeWord(piece[start:at], ids)
			start = at
		}
		at += len(m.wordMark)
	}
	return m.encodeWord(piece[start:], ids)
}

func (m *bpe) encodeWord(word string, ids []int32) []int32 {
	if m.bytesIn && len(word) == 1 {
		return append(ids, m.byteID[word[0]])
	}
	if len(word) > maxCachedPiece {
		return m.merge(word, ids)
	}
	hash := m.cache.hash(word)
	if cached, ok := m.cache.get(hash, word); ok {
		return append(ids, cached...)
	}
	start := len(ids)
	ids = m.merge(word, ids)
	m.cache.put(hash, word, ids[start:])
	return ids
}

func (m *bpe) merge(word string, ids []int32) []int32 {
	if m.ignoreMerges {
		if id, ok := m.ids[word]; ok {
			return append(ids, id)
		}
	}
	start := len(ids)
	if m.bytesIn {
		for i := 0; i < len(word); i++ {
			ids = append(ids, m.byteID[word[i]])
		}
	} else {
		ids = m.characters(word, ids)
	}
	if len(ids)-start <= maxScanned {
		ids = ids[:start+m.mergeShort(ids[start:])]
	} else {
		ids = ids[:start+m.mergeLong(ids[start:])]
	}
	if len(m.beyond) > 0 {
		ids = m.replaceBeyond(ids, start)
	}
	return ids
}

// replaceBeyond makes bytes or unknown tokens of the characters without token that no merge took.
func (m *bpe) replaceBeyond(ids []int32, start int) []int32 {
	symbols := slices.Clone(ids[start:])
	ids = ids[:start]
	for _, id := range symbols {
		switch {
		case id < m.firstBeyond:
			if id != m.unknown || len(ids) == start || ids[len(ids)-1] != m.unknown || !m.fuseUnknown {
				ids = append(ids, id)
			}
		case m.byteFallback:
			for _, b := range []byte(m.beyond[id-m.firstBeyond]) {
				ids = append(ids, m.byteID[b])
			}
		case len(ids) == start || ids[len(ids)-1] != m.unknown || !m.fuseUnknown:
			ids = append(ids, m.unknown)
		}
	}
	return ids
}

// characters appends the first symbols of a word: one for each character.
func (m *bpe) characters(word string, ids []int32) []int32 {
	waiting := false // an unknown id isn't appended yet, as the next unknown may fuse with it
	for i := 0; i < len(word); {
		_, n := utf8.DecodeRuneInString(word[i:])
		char := word[i : i+n]
		i += n
		if id, ok := m.ids[char]; ok {
			if waiting {
				ids = append(ids, m.unknown)
				waiting = false
			}
			ids = append(ids, id)
			continue
		}
		if m.byteFallback {
			whole := true
			for j := 0; j < len(char); j++ {
				whole = whole && m.byteID[char[j]] >= 0
			}
			if whole {
				// A waiting unknown goes after these bytes: so does the reference.
				for j := 0; j < len(char); j++ {
					ids = append(ids, m.byteID[char[j]])
				}
				continue
			}
		}
		if m.unknown < 0 {
			continue
		}
		if waiting && !m.fuseUnknown {
			ids = append(ids, m.unknown)
		}
		waiting = true
	}
	if waiting {
		ids = append(ids, m.unknown)
	}
	return ids
}

// maxScanned is the longest word, in symbols, for which scanning all ranks after each merge is cheaper than a heap.
const maxScanned = 48

// mergeShort merges in place and gives the number of symbols left.
func (m *bpe) mergeShort(ids []int32) int {
	var store [maxScanned]merged
	n := len(ids)
	if n < 2 {
		return n
	}
	next := store[:n-1] // next[i] is the merge of ids[i] and ids[i+1]
	for i := range next {
		next[i] = m.pairs.get(ids[i], ids[i+1])
	}
	for {
		best, at := noMerge.rank, -1
		for i := range next {
			if next[i].rank < best {
				best, at = next[i].rank, i
			}
		}
		if at < 0 {
			return len(next) + 1
		}
		ids[at] = next[at].id
		copy(ids[at+1:], ids[at+2:len(next)+1])
		copy(next[at:], next[at+1:])
		next = next[:len(next)-1]
		if at > 0 {
			next[at-1] = m.pairs.get(ids[at-1], ids[at])
		}
		if at < len(next) {
			next[at] = m.pairs.get(ids[at], ids[at+1])
		}
		if len(next) == 0 {
			return 1
		}
	}
}

// candidate is a possible merge in mergeLong: of the symbol at position at with its right neighbour.
type candidate struct {
	rank  uint32
	at    int32
	left  int32 // the two ids when it was found: it is stale if they have changed
	right int32
	id    int32
}

func (c candidate) before(o candidate) bool {
	return c.rank < o.rank || c.rank == o.rank && c.at < o.at
}

// mergeLong is mergeShort with a heap over a linked list: n log n for a word of n symbols.
func (m *bpe) mergeLong(ids []int32) int {
	n := int32(len(ids))
	left, right := make([]int32, n), make([]int32, n) // neighbours' positions, -1 and n at the ends
	heap := make([]candidate, 0, n)
	consider := func(a, b int32) {
		if a < 0 || b >= n {
			return
		}
		if g := m.pairs.get(ids[a], ids[b]); g != noMerge {
			heap = pushCandidate(heap, candidate{g.rank, a, ids[a], ids[b], g.id})
		}
	}
	for i := range n {
		left[i], right[i] = i-1, i+1
	}
	for i := range n {
		consider(i, i+1)
	}
	for len(heap) > 0 {
		var c candidate
		c, heap = popCandidate(heap)
		a := c.at
		b := right[a]
		if ids[a] != c.left || b >= n || ids[b] != c.right {
			continue
		}
		ids[a], ids[b] = c.id, gone
		right[a] = right[b]
		if right[a] < n {
			left[right[a]] = a
		}
		consider(left[a], a)
		consider(a, right[a])
	}
	kept := 0
	for _, id := range ids {
		if id != gone {
			ids[kept] = id
			kept++
		}
	}
	return kept
}

// gone marks a symbol that was merged into its left neighbour.
const gone = int32(-1)

func pushCandidate(heap []candidate, c candidate) []candidate {
	heap = append(heap, c)
	i := len(heap) - 1
	for i > 0 {
		up := (i - 1) / 2
		if !heap[i].before(heap[up]) {
			break
		}
		heap[i], heap[up] = heap[up], heap[i]
		i = up
	}
	return heap
}

func popCandidate(heap []candidate) (candidate, []candidate) {
	top, last := heap[0], len(heap)-1
	heap[0] = heap[last]
	heap = heap[:last]
	for i := 0; ; {
		small := 2*i + 1
		if small >= last {
			break
		}
		if small+1 < last && heap[small+1].before(heap[small]) {
			small++
		}
		if !heap[small].before(heap[i]) {
			break
		}
		heap[i], heap[small] = heap[small], heap[i]
		i = small
	}
	return top, heap
}

// merged is what a pair merges to; rank orders the merges, lowest first.
type merged struct {
	rank uint32
	id   int32
}

var noMerge = merged{rank: ^uint32(0), id: -1}

// pairTable is an open-addressing hash table from a pair of ids to its merge.
type pairTable struct {
	slots []pairSlot // a power of two, at most half full
	shift uint
}

type pairSlot struct {
	pair  uint64 // left id in the high half; emptyPair where free
	value merged
}

const emptyPair = ^uint64(0)

func newPairTable(n int) pairTable {
	shift := uint(63)
	for 1<<(64-shift) < 2*n {
		shift--
	}
	t := pairTable{make([]pairSlot, 1<<(64-shift)), shift}
	for i := range t.slots {
		t.slots[i].pair = emptyPair
	}
	return t
}

// slot gives the place of a pair: its own, or the free one where it belongs.
func (t *pairTable) slot(a, b int32) *pairSlot {
	pair := uint64(uint32(a))<<32 | uint64(uint32(b))
	i := pair * 0x9E3779B97F4A7C15 >> t.shift
	for {
		s := &t.slots[i]
		if s.pair == pair || s.pair == emptyPair {
			return s
		}
		i = (i + 1) & uint64(len(t.slots)-1)
	}
}

func (t *pairTable) set(a, b int32, v merged) {
	s := t.slot(a, b)
	s.pair, s.value = uint64(uint32(a))<<32|uint64(uint32(b)), v
}

func (t *pairTable) get(a, b int32) merged {
	if s := t.slot(a, b); s.pair != emptyPair {
		return s.value
	}
	return noMerge
}
