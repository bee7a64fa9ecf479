package tokenizer

import "slices"

// StopMatcher watches the ids of one sampled sequence for stop strings and stop ids.
type StopMatcher struct {
	t     *Tokenizer
	ids   []int32
	stops []stopState
	chain *chain
	hit   bool // since the last Push
}

// stopState is the automaton of one stop string (Knuth, Morris and Pratt), over bytes.
type stopState struct {
	text string
	fail []int32 // fail[i]: length of the longest proper prefix of text that ends text[:i+1]
	at   int     // bytes of text matched so far
}

// NewStopMatcher makes a matcher for stop strings and whole-token stop ids. A stop string may span tokens, end
// inside one, or be the text of a special token. Empty strings never match.
//
// The text is that of a continuation: where the decoder takes a blank from the very start of a text, it is kept
// here. Bytes of a character that is split over tokens count as they come.
func NewStopMatcher(t *Tokenizer, stops []string, ids []int32) *StopMatcher {
	m := &StopMatcher{t: t, ids: slices.Clone(ids)}
	for _, text := range stops {
		if text != "" {
			m.stops = append(m.stops, newStopState(text))
		}
	}
	m.chain = newChain(continuation(t.decoder), m.text)
	return m
}

// Push takes the next id and says whether it completes a stop. The completing id belongs to the output.
func (m *StopMatcher) Push(id int32) bool {
	m.hit = slices.Contains(m.ids, id)
	if token, ok := m.t.Token(id); ok && len(m.stops) > 0 {
		m.chain.push(token)
	}
	return m.hit
}

// text takes decoded bytes.
func (m *StopMatcher) text(s string) {
	for i := range m.stops {
		if m.stops[i].feed(s) {
			m.hit = true
		}
	}
}

func newStopState(text string) stopState {
	fail := make([]int32, len(text))
	k := int32(0)
	for i := 1; i < len(text); i++ {
		for k > 0 && text[k] != text[i] {
			k = fail[k-1]
		}
		if text[k] == text[i] {
			k++
		}
		fail[i] = k
	}
	return stopState{text: text, fail: fail}
}

// feed advances over s and says whether a match ended in it.
func (s *stopState) feed(part string) (hit bool) {
	for i := 0; i < len(part); i++ {
		for s.at > 0 && s.text[s.at] != part[i] {
			s.at = int(s.fail[s.at-1])
		}
		if s.text[s.at] == part[i] {
			s.at++
		}
		if s.at == len(s.text) {
			hit = true
			s.at = int(s.fail[s.at-1])
		}
	}
	return hit
}

// continuation gives the steps for text that continues a prompt, with bytes given as soon as they are known.
func continuation(steps []decodeStep) []decodeStep {
	out := make([]decodeStep, 0, len(steps))
	for _, step := range steps {
		switch s := step.(type) {
		case byteLevel:
			step = byteLevel{eager: true}
		case byteFallback:
			step = byteFallback{eager: true}
		case decodeMetaspace:
			s.started = true
			step = s
		case decodeStrip:
			s.start, s.stop = 0, 0
			step = s
		case leadingMarks:
			continue
		}
		out = append(out, step)
	}
	return out
}
