package tokenizer

import (
	"cmp"
	"fmt"
	"math"
	"slices"
	"unicode/utf8"
)

// Types of the pieces of a SentencePiece model.
const (
	pieceNormal      = 1
	pieceUnknown     = 2
	pieceControl     = 3
	pieceUserDefined = 4
	pieceUnused      = 5
	pieceByte        = 6
)

// Types of SentencePiece models.
const (
	spUnigram = 1
	spBPE     = 2
)

type spPiece struct {
	text  string
	score float32
	kind  uint64
}

// merges says whether the piece can come of a text: SentencePiece keeps the others apart.
func (p spPiece) merges() bool {
	return p.kind == pieceNormal || p.kind == pieceUserDefined || p.kind == pieceUnused
}

// spModel is what a SentencePiece model file says.
type spModel struct {
	pieces       []spPiece
	kind         uint64
	byteFallback bool
	suffix       bool // treat_whitespace_as_suffix
	bos          int64

	charsmap     []byte
	dummyPrefix  bool
	removeExtra  bool // remove_extra_whitespaces
	escape       bool // escape_whitespaces
	denormalizer []byte
}

// LoadSentencePiece compiles the bytes of a SentencePiece model file (tokenizer.model, spiece.model), of type BPE or
// Unigram. The ids of ordinary text are those of SentencePiece itself. As with Load, the text of control pieces is
// recognised as those pieces by Encode, and what SentencePiece puts before the text comes only at the start of the
// whole input; special adds the begin-of-text piece before, if the model has one. Decode gives control and unknown
// pieces as their text, unless they are left out.
//
// The error is an *UnsupportedError, or wraps ErrFormat.
func LoadSentencePiece(data []byte) (*Tokenizer, error) {
	m := spModel{kind: spUnigram, bos: 1, dummyPrefix: true, removeExtra: true, escape: true}
	if err := m.read(data); err != nil {
		return nil, formatErrorf("sentencepiece: %v; give the bytes of a SentencePiece model file", err)
	}
	l := &loader{t: &Tokenizer{ids: make(map[string]int32), special: make(map[int32]bool)}}
	l.sentencePiece(&m)
	if len(l.gaps) > 0 {
		return nil, &UnsupportedError{Components: l.gaps}
	}
	if l.err != nil {
		return nil, l.err
	}
	return l.t, nil
}

// read reads the model message. Of a field that comes twice the last one counts.
func (m *spModel) read(data []byte) error {
	return eachField(data, func(f protoField) error {
		if f.number > 5 {
			return nil
		}
		if err := f.known(protoBytes); err != nil {
			return err
		}
		switch f.number {
		case 1:
			return m.readPiece(f.payload)
		case 2:
			return m.readTrainer(f.payload)
		case 3:
			return m.readNormalizer(f.payload)
		case 5:
			return eachField(f.payload, func(f protoField) error {
				if f.number == 2 {
					m.denormalizer = f.payload
				}
				return nil
			})
		}
		return nil
	})
}

func (m *spModel) readPiece(data []byte) error {
	p := spPiece{kind: pieceNormal}
	err := eachField(data, func(f protoField) error {
		switch f.number {
		case 1:
			p.text = string(f.payload)
			return f.known(protoBytes)
		case 2:
			p.score = f.float()
			return f.known(protoFixed32)
		case 3:
			p.kind = f.varint
			return f.known(protoVarint)
		}
		return nil
	})
	switch id := len(m.pieces); {
	case err != nil:
		return fmt.Errorf("piece %d: %w", id, err)
	case p.text == "" || !utf8.ValidString(p.text) || len(p.text) > maxPiece:
		return fmt.Errorf("piece %d, %.40q, is not a text of 1 to %d bytes", id, p.text, maxPiece)
	case p.kind < pieceNormal || p.kind > pieceByte:
		return fmt.Errorf("piece %d, %q, has the unknown type %d", id, p.text, p.kind)
	case math.IsNaN(float64(p.score)) || math.IsInf(float64(p.score), 0):
		return fmt.Errorf("piece %d, %q, has the score %v", id, p.text, p.score)
	}
	m.pieces = append(m.pieces, p)
	return nil
}

func (m *spModel) readTrainer(data []byte) error {
	return eachField(data, func(f protoField) error {
		switch f.number {
		case 3:
			m.kind = f.varint
		case 24:
			m.suffix = f.varint != 0
		case 35:
			m.byteFallback = f.varint != 0
		case 41:
			m.bos = int64(int32(f.varint))
		default:
			return nil
		}
		return f.known(protoVarint)
	})
}

func (m *spModel) readNormalizer(data []byte) error {
	return eachField(data, func(f protoField) error {
		switch f.number {
		case 2:
			m.charsmap = f.payload
			return f.known(protoBytes)
		case 3:
			m.dummyPrefix = f.varint != 0
		case 4:
			m.removeExtra = f.varint != 0
		case 5:
			m.escape = f.varint != 0
		default:
			return nil
		}
		return f.known(protoVarint)
	})
}

// sentencePiece makes the tokenizer of a model file.
func (l *loader) sentencePiece(m *spModel) {
	if len(m.denormalizer) > 0 {
		l.gap("sentencepiece denormalizer")
	}
	if m.kind != spBPE && m.kind != spUnigram {
		l.gap("sentencepiece model type %d (neither Unigram nor BPE)", m.kind)
	}
	unknown := int32(-1)
	var user []trieKey
	var added []addedSpec
	for i, p := range m.pieces {
		id := int32(i)
		if _, twice := l.t.ids[p.text]; twice {
			l.fail("sentencepiece: piece %q stands twice; remove one", p.text)
			return
		}
		if !l.place(p.text, int64(id), len(m.pieces)) {
			return
		}
		switch p.kind {
		case pieceUnknown:
			if unknown >= 0 {
				l.fail("sentencepiece: pieces %d and %d are both the unknown one; remove one", unknown, id)
				return
			}
			unknown = id
			added = append(added, addedSpec{ID: int64(id), Content: p.text, Special: true})
		case pieceControl:
			added = append(added, addedSpec{ID: int64(id), Content: p.text, Special: true})
		case pieceUserDefined:
			user = append(user, trieKey{p.text, id})
		}
	}
	if unknown < 0 {
		l.fail("sentencepiece: no unknown piece; give the bytes of a SentencePiece model file")
		return
	}
	byteID, ok := l.spBytes(m)
	if !ok {
		return
	}
	n := &spNormalizer{user: newPieceTrie(slices.Clone(user)), dummy: m.dummyPrefix, suffix: m.suffix,
		removeExtra: m.removeExtra, escape: m.escape}
	if len(m.charsmap) > 0 {
		var err error
		if n.table, err = newCharsmap(m.charsmap); err != nil {
			l.fail("sentencepiece: normalizer: %v; take it from the original file", err)
			return
		}
		if growth := n.table.growth; growth > maxGrowth {
			l.fail("sentencepiece: the normalizer can make a text %d times longer; shorten its images", growth)
			return
		}
	}
	l.t.pre = []preTokenizer{n}
	l.t.decoder = []decodeStep{decodeReplace{replace{literal(sentencePieceMark), " "}}, byteFallback{}, fuse{}}
	if m.dummyPrefix || m.removeExtra {
		l.t.decoder = slices.Insert(l.t.decoder, 0, decodeStep(leadingMarks{every: m.removeExtra}))
	}
	if m.kind == spUnigram {
		l.t.model = m.unigram(unknown, byteID)
	} else {
		l.t.model = l.spBPE(m, unknown, byteID, user)
	}
	l.size = len(m.pieces)
	l.addedTokens(added)
	if m.bos >= 0 && m.bos < int64(len(m.pieces)) && m.pieces[m.bos].kind == pieceControl {
		l.t.prefix = []int32{int32(m.bos)}
	}
}

// spBytes gives the ids of the byte pieces: all 256 must be there with byte fallback, and none without.
func (l *loader) spBytes(m *spModel) (byteID [256]int32, ok bool) {
	for b := range byteID {
		byteID[b] = -1
		text := fmt.Sprintf("<0x%02X>", b)
		if id, found := l.t.ids[text]; found && m.pieces[id].kind == pieceByte {
			byteID[b] = id
		}
		if m.byteFallback && byteID[b] < 0 {
			l.fail("sentencepiece: byte fallback without the piece %s; add it", text)
			return byteID, false
		}
	}
	for _, p := range m.pieces {
		if _, isByte := fallbackByte(p.text); p.kind == pieceByte && (!isByte || !m.byteFallback) {
			l.fail("sentencepiece: byte piece %q is no byte, or there is no byte fallback; correct its type", p.text)
			return byteID, false
		}
	}
	return byteID, true
}

// userBonus is what a user-defined piece scores less than length times the best score.
const userBonus = 0.1

func (m *spModel) unigram(unknown int32, byteID [256]int32) model {
	u := &unigram{scores: make([]float64, len(m.pieces)), unknown: unknown, byteFallback: m.byteFallback,
		byteID: byteID, narrow: true}
	// The best score is never below the smallest positive float32: that is how SentencePiece begins its search.
	lowest, best := float32(math.MaxFloat32), float32(0x1p-126)
	var keys []trieKey
	for id, p := range m.pieces {
		if p.kind == pieceNormal {
			lowest, best = min(lowest, p.score), max(best, p.score)
		}
		if p.kind == pieceNormal || p.kind == pieceUserDefined {
			u.scores[id] = float64(p.score)
			keys = append(keys, trieKey{p.text, int32(id)})
		}
	}
	for id, p := range m.pieces {
		if p.kind == pieceUserDefined {
			u.scores[id] = float64(float32(len(p.text))*best) - userBonus
		}
	}
	u.trie = newPieceTrie(keys)
	u.unknownScore = float64(lowest - unknownPenalty)
	return u
}

// spBPE makes the merges: SentencePiece merges two neighbours if the whole is a piece, the best score first.
func (l *loader) spBPE(m *spModel, unknown int32, byteID [256]int32, user []trieKey) model {
	b := &bpe{ids: make(map[string]int32), byteID: byteID, byteFallback: m.byteFallback, fuseUnknown: true,
		unknown: unknown, cache: newWordCache(), firstBeyond: int32(len(m.pieces))}
	var order []int32 // the pieces of more than one character, best first
	symbols := make(map[string]int32, len(m.pieces))
	for i, p := range m.pieces {
		if p.kind == pieceUnused {
			l.gap("sentencepiece BPE with the unused piece %q", p.text)
			return nil
		}
		_, n := utf8.DecodeRuneInString(p.text)
		if p.merges() || n == len(p.text) {
			symbols[p.text] = int32(i)
		}
		if n == len(p.text) {
			b.ids[p.text] = int32(i)
		} else if p.merges() {
			order = append(order, int32(i))
		}
	}
	slices.SortStableFunc(order, func(x, y int32) int { return cmp.Compare(m.pieces[y].score, m.pieces[x].score) })
	// A character that is no piece can still be a part of one: it gets an id beyond the vocabulary.
	for _, id := range order {
		for _, r := range m.pieces[id].text {
			if c := string(r); !known(symbols, c) {
				beyond := b.firstBeyond + int32(len(b.beyond))
				symbols[c], b.ids[c] = beyond, beyond
				b.beyond = append(b.beyond, c)
			}
		}
	}
	type merge struct {
		left, right int32
		to          merged
	}
	var merges []merge
	var texts mergeList
	rank := uint32(0)
	for i, id := range order {
		p := m.pieces[id]
		if i > 0 && p.score != m.pieces[order[i-1]].score {
			rank++ // of equal scores the leftmost is merged first
		}
		for cut := range p.text {
			left, ok1 := symbols[p.text[:cut]]
			right, ok2 := symbols[p.text[cut:]]
			if ok1 && ok2 {
				merges = append(merges, merge{left, right, merged{rank, id}})
				texts = append(texts, [2]string{p.text[:cut], p.text[cut:]})
			}
		}
	}
	b.pairs = newPairTable(len(merges))
	for _, g := range merges {
		b.pairs.set(g.left, g.right, g.to)
	}
	if _, ok := l.t.ids[sentencePieceMark]; ok {
		b.wordMark = wordMark(texts)
	}
	if len(user) == 0 {
		return b
	}
	return &userPieces{newPieceTrie(user), b}
}

func known(symbols map[string]int32, s string) bool {
	_, ok := symbols[s]
	return ok
}

// userPieces takes out user-defined pieces, which are never merged, before the model.
type userPieces struct {
	trie *pieceTrie
	rest model
}

func (u *userPieces) encode(s string, ids []int32) []int32 {
	done := 0
	for i := 0; i < len(s); {
		id, n := u.trie.longest(s[i:])
		if n == 0 {
			_, n = utf8.DecodeRuneInString(s[i:])
			i += n
			continue
		}
		if done < i {
			ids = u.rest.encode(s[done:i], ids)
		}
		ids = append(ids, id)
		i += n
		done = i
	}
	if done < len(s) {
		ids = u.rest.encode(s[done:], ids)
	}
	return ids
}
