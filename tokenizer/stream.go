package tokenizer

import "strings"

// Stream decodes the ids of one sequence as they come.
type Stream struct {
	t    *Tokenizer
	skip bool // leave special tokens out
	out  *strings.Builder
	*chain
}

// NewStream begins an incremental decode. skipSpecial leaves special tokens out.
func (t *Tokenizer) NewStream(skipSpecial bool) *Stream {
	s := &Stream{t: t, skip: skipSpecial}
	s.chain = newChain(t.decoder, func(text string) { s.out.WriteString(text) })
	return s
}

// Push gives the text that id settles: maybe none, never a part of a character. All that Push gives, and then
// Flush, make up what Decode gives for the same ids.
func (s *Stream) Push(id int32) string {
	var out strings.Builder
	s.push(id, &out)
	return out.String()
}

// Flush gives the text that waited for more ids; an unfinished character comes as U+FFFD. The stream is over.
func (s *Stream) Flush() string {
	var out strings.Builder
	s.flush(&out)
	return out.String()
}

func (s *Stream) push(id int32, out *strings.Builder) {
	token, ok := s.t.Token(id)
	if !ok || s.skip && s.t.special[id] {
		return
	}
	s.out = out
	s.chain.push(token)
}

func (s *Stream) flush(out *strings.Builder) {
	s.out = out
	s.chain.flush()
}
