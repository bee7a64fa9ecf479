package tokenizer

import (
	"slices"
	"unicode/utf8"
)

// unigram cuts a text into the pieces with the highest sum of scores (Viterbi); a character that no piece is counts
// as unknown.
type unigram struct {
	trie         *pieceTrie
	scores       []float64 // by id
	unknown      int32
	unknownScore float64
	cache        *wordCache // nil: pieces aren't kept

	// ids looks up a run of unknown characters, as the reference does; nil where SentencePiece itself doesn't.
	ids          map[string]int32
	byteFallback bool
	byteID       [256]int32 // byteFallback: the id of <0xNN>, -1 for none
	narrow       bool       // sums are rounded to float32, as SentencePiece's are
}

// unknownPenalty is how much less an unknown character scores than the worst piece.
const unknownPenalty = 10

// pathNode is the end of the best path to a place in the text: its last piece.
type pathNode struct {
	score float64 // of the whole path
	start int32   // where the last piece begins; -1 before any path is found
	id    int32
}

func (m *unigram) encode(piece string, ids []int32) []int32 {
	if m.cache == nil || len(piece) > maxCachedPiece {
		return m.viterbi(piece, ids)
	}
	hash := m.cache.hash(piece)
	if cached, ok := m.cache.get(hash, piece); ok {
		return append(ids, cached...)
	}
	start := len(ids)
	ids = m.viterbi(piece, ids)
	m.cache.put(hash, piece, ids[start:])
	return ids
}

// round gives a sum as it is kept.
func (m *unigram) round(score float64) float64 {
	if m.narrow {
		return float64(float32(score))
	}
	return score
}

func (m *unigram) viterbi(s string, ids []int32) []int32 {
	var store [maxCachedPiece + 1]pathNode
	nodes := store[:0]
	if len(s) >= len(store) {
		nodes = make([]pathNode, 0, len(s)+1)
	}
	nodes = nodes[:len(s)+1]
	for i := range nodes {
		nodes[i] = pathNode{start: -1}
	}
	offer := func(start, end int, id int32, score float64) {
		n := &nodes[end]
		if n.start < 0 || score > n.score { // of equal scores the first, that is the longest, stays
			*n = pathNode{m.round(score), int32(start), id}
		}
	}
	for start := 0; start < len(s); {
		here := nodes[start].score
		_, size := utf8.DecodeRuneInString(s[start:])
		single := false
		node := int32(0)
		for end := start; end < len(s); {
			if node = m.trie.child(node, s[end]); node == 0 {
				break
			}
			end++
			if id := m.trie.id[node]; id >= 0 {
				offer(start, end, id, m.scores[id]+here)
				single = single || end-start == size
			}
		}
		if !single {
			offer(start, start+size, m.unknown, m.round(m.unknownScore+here))
		}
		start += size
	}
	return m.read(s, nodes, ids)
}

// read appends the ids of the best path. A run of unknown characters is one unknown.
func (m *unigram) read(s string, nodes []pathNode, ids []int32) []int32 {
	// The path is known from its end: each place is linked to the next one, in the place of its id's node.
	next := int32(-1)
	for end := int32(len(s)); ; {
		start := nodes[end].start
		nodes[end].start, next = next, end
		if end == 0 {
			break
		}
		end = start
	}
	for start := int32(0); int(start) < len(s); {
		end := nodes[start].start
		id := nodes[end].id
		if id != m.unknown {
			ids = append(ids, id)
			start = end
			continue
		}
		for int(end) < len(s) && nodes[nodes[end].start].id == m.unknown {
			end = nodes[end].start
		}
		ids = m.unknownRun(s[start:end], ids)
		start = end
	}
	return ids
}

func (m *unigram) unknownRun(run string, ids []int32) []int32 {
	if id, ok := m.ids[run]; ok {
		return append(ids, id)
	}
	if !m.byteFallback {
		return append(ids, m.unknown)
	}
	begin := len(ids)
	ids = slices.Grow(ids, len(run))
	for i := 0; i < len(run); i++ {
		id := m.byteID[run[i]]
		if id < 0 {
			return append(ids[:begin], m.unknown)
		}
		ids = append(ids, id)
	}
	return ids
}
