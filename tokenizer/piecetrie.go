package tokenizer

import (
	"slices"
	"sort"
	"strings"
)

// pieceTrie finds the pieces of a vocabulary that a text begins with. Node 0 is the root; the children of node i
// are the nodes first[i] to first[i+1], in the order of their bytes.
type pieceTrie struct {
	label []byte
	first []int32
	id    []int32    // of the piece that ends here, -1 for none
	root  [256]int32 // the root's child by byte, 0 for none
}

type trieKey struct {
	text string
	id   int32
}

// newPieceTrie builds the trie; of equal texts the last one counts.
func newPieceTrie(keys []trieKey) *pieceTrie {
	slices.SortStableFunc(keys, func(a, b trieKey) int { return strings.Compare(a.text, b.text) })
	type span struct{ lo, hi, depth int } // the keys below a node
	t := &pieceTrie{label: []byte{0}}
	spans := []span{{0, len(keys), 0}}
	for node := 0; node < len(spans); node++ { // level by level, so that siblings are neighbours
		s := spans[node]
		id := int32(-1)
		for s.lo < s.hi && len(keys[s.lo].text) == s.depth {
			id = keys[s.lo].id
			s.lo++
		}
		t.id = append(t.id, id)
		t.first = append(t.first, int32(len(spans)))
		for s.lo < s.hi {
			c := keys[s.lo].text[s.depth]
			end := s.lo + 1
			for end < s.hi && keys[end].text[s.depth] == c {
				end++
			}
			if node == 0 {
				t.root[c] = int32(len(spans))
			}
			t.label = append(t.label, c)
			spans = append(spans, span{s.lo, end, s.depth + 1})
			s.lo = end
		}
	}
	t.first = append(t.first, int32(len(spans)))
	return t
}

// child gives the child of node by c, 0 for none.
func (t *pieceTrie) child(node int32, c byte) int32 {
	if node == 0 {
		return t.root[c]
	}
	lo, hi := t.first[node], t.first[node+1]
	if hi-lo > 8 {
		lo += int32(sort.Search(int(hi-lo), func(i int) bool { return t.label[lo+int32(i)] >= c }))
		if lo < hi && t.label[lo] == c {
			return lo
		}
		return 0
	}
	for ; lo < hi; lo++ {
		if t.label[lo] == c {
			return lo
		}
	}
	return 0
}

// longest gives the longest piece that s begins with, and its length; 0 for none.
func (t *pieceTrie) longest(s string) (id int32, n int) {
	node := int32(0)
	for i := 0; i < len(s); i++ {
		if node = t.child(node, s[i]); node == 0 {
			break
		}
		if t.id[node] >= 0 {
			id, n = t.id[node], i+1
		}
	}
	return id, n
}
