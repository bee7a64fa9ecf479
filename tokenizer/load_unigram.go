package tokenizer

import (
	"encoding/base64"
	"encoding/json"
	"fmt"
)

// unigramSpec is a Unigram model as it stands in the file.
type unigramSpec struct {
	UnknownID    *int64         `json:"unk_id"`
	ByteFallback bool           `json:"byte_fallback"`
	Vocab        []unigramPiece `json:"vocab"`
}

// unigramPiece is a token and its score, as [token, score].
type unigramPiece struct {
	token string
	score float64
}

func (p *unigramPiece) UnmarshalJSON(data []byte) error {
	var token *string
	var score *float64
	pair := []any{&token, &score}
	if err := json.Unmarshal(data, &pair); err != nil {
		return err
	}
	if len(pair) != 2 || token == nil || score == nil {
		return fmt.Errorf("%.80s is not a token and its score", data)
	}
	p.token, p.score = *token, *score
	return nil
}

// maxPiece is the longest piece, in bytes, of a Unigram or SentencePiece model: it bounds the time that a text can
// ask for.
const maxPiece = 1024

func (l *loader) unigram(raw json.RawMessage) {
	var spec unigramSpec
	if !l.read("model Unigram", raw, &spec) {
		return
	}
	if spec.UnknownID == nil {
		l.gap("model Unigram without unk_id")
		return
	}
	if *spec.UnknownID < 0 || *spec.UnknownID >= int64(len(spec.Vocab)) {
		l.fail("model Unigram: unk_id %d is outside the vocabulary of %d; correct it", *spec.UnknownID, len(spec.Vocab))
		return
	}
	if spec.Vocab[*spec.UnknownID].token == "" {
		l.fail("model Unigram: the unknown token %d is empty; give it a text", *spec.UnknownID)
		return
	}
	m := &unigram{scores: make([]float64, len(spec.Vocab)), unknown: int32(*spec.UnknownID), cache: newWordCache(),
		ids: make(map[string]int32, len(spec.Vocab)), byteFallback: spec.ByteFallback}
	keys := make([]trieKey, 0, len(spec.Vocab))
	lowest := spec.Vocab[0].score
	for id, p := range spec.Vocab {
		if len(p.token) > maxPiece {
			l.fail("model Unigram: token %.40q… is longer than %d bytes; shorten it", p.token, maxPiece)
			return
		}
		if !l.place(p.token, int64(id), len(spec.Vocab)) {
			return
		}
		m.scores[id] = p.score
		m.ids[p.token] = int32(id) // of equal tokens the last one counts
		lowest = min(lowest, p.score)
		keys = append(keys, trieKey{p.token, int32(id)})
	}
	m.unknownScore = lowest - unknownPenalty
	m.trie = newPieceTrie(keys)
	for b := range m.byteID {
		id, ok := m.ids[fmt.Sprintf("<0x%02X>", b)]
		if !ok {
			id = -1
		}
		m.byteID[b] = id
	}
	l.size = len(spec.Vocab)
	l.t.model = m
}

// precompiled reads the normalizer of that name.
func (l *loader) precompiled(place, text string) []normalizer {
	blob, err := base64.StdEncoding.DecodeString(text)
	if err == nil {
		var m *charsmap
		if m, err = newCharsmap(blob); err == nil {
			return []normalizer{m}
		}
	}
	l.fail("%s Precompiled: %v; take precompiled_charsmap from the original file", place, err)
	return nil
}
