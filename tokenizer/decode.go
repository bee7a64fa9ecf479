package tokenizer

import (
	"strings"
	"unicode/utf8"
)

// decodeStep makes one stage of a decode chain. A chain turns tokens to text: each stage reads tokens, or the
// fragments of one long token after a stage that joins them, and passes on what is settled. There is only this
// incremental form, so that a stream and a whole decode can't differ.
type decodeStep interface {
	// stage gives a fresh stage. joined says that what it reads are fragments of a single token.
	stage(joined bool) decodeStage
	// joins says that what the step gives are fragments of a single token.
	joins() bool
	// readsFragments says that stage(true) is possible; Load refuses a chain that needs it where it isn't.
	readsFragments() bool
}

// decodeStage is the state of one decode step in one stream.
type decodeStage interface {
	push(token string, emit func(string))
	flush(emit func(string))
}

// chain is the stages of a stream, linked.
type chain struct {
	stages []decodeStage
	emits  []func(string) // emits[i] takes what stage i gives
}

// newChain links fresh stages of the steps; the last one gives to out.
func newChain(steps []decodeStep, out func(string)) *chain {
	c := &chain{stages: make([]decodeStage, len(steps)), emits: make([]func(string), len(steps))}
	joined := false
	for i, step := range steps {
		c.stages[i] = step.stage(joined)
		joined = joined || step.joins()
		c.emits[i] = out
		if i+1 < len(steps) {
			c.emits[i] = func(s string) { c.stages[i+1].push(s, c.emits[i+1]) }
		}
	}
	return c
}

func (c *chain) push(token string) { c.stages[0].push(token, c.emits[0]) }

func (c *chain) flush() {
	for i, s := range c.stages {
		s.flush(c.emits[i])
	}
}

// perToken is a stage that maps each token, or fragment, by itself.
type perToken func(token string) string

func (f perToken) push(token string, emit func(string)) { emit(f(token)) }

func (perToken) flush(func(string)) {}

// fuse joins all tokens to one.
type fuse struct{}

func (fuse) joins() bool                          { return true }
func (fuse) readsFragments() bool                 { return true }
func (fuse) stage(bool) decodeStage               { return fuse{} }
func (fuse) push(token string, emit func(string)) { emit(token) }
func (fuse) flush(func(string))                   {}

// spaced is the absent decoder: tokens with a space between.
type spaced struct{ begun bool }

func (*spaced) joins() bool            { return true }
func (*spaced) readsFragments() bool   { return false }
func (*spaced) stage(bool) decodeStage { return &spaced{} }

func (s *spaced) push(token string, emit func(string)) {
	if s.begun {
		token = " " + token
	}
	s.begun = true
	emit(token)
}

func (*spaced) flush(func(string)) {}

// byteLevel reads tokens in the byte-level alphabet (others as they are) and gives the text of all their bytes.
type byteLevel struct{ eager bool }

func (byteLevel) joins() bool { return true }

func (byteLevel) readsFragments() bool     { return false }
func (b byteLevel) stage(bool) decodeStage { return &byteLevelStage{eager: b.eager} }

type byteLevelStage struct {
	eager bool   // give bytes at once, unfinished characters too
	rest  []byte // of an unfinished character
	buf   []byte
}

func (s *byteLevelStage) push(token string, emit func(string)) {
	s.rest = appendBytesOf(s.rest, token)
	if s.eager {
		emit(string(s.rest))
		s.rest = s.rest[:0]
		return
	}
	var rest []byte
	s.buf, rest = appendValid(s.buf[:0], s.rest)
	s.rest = s.rest[:copy(s.rest, rest)]
	if len(s.buf) > 0 {
		emit(string(s.buf))
	}
}

func (s *byteLevelStage) flush(emit func(string)) {
	if len(s.rest) > 0 {
		s.rest = s.rest[:0]
		emit("\uFFFD")
	}
}

// appendBytesOf appends the bytes that a token stands for: by the byte-level alphabet if all of it is in there.
func appendBytesOf(dst []byte, token string) []byte {
	start := len(dst)
	for i := 0; i < len(token); {
		r, n := utf8.DecodeRuneInString(token[i:])
		if int(r) >= len(charByte) || charByte[r] < 0 {
			return append(dst[:start], token...)
		}
		dst = append(dst, byte(charByte[r]))
		i += n
	}
	return dst
}

// byteFallback turns runs of <0xNN> tokens to the text of their bytes; a run that isn't valid UTF-8 gives one
// U+FFFD for each byte. So nothing of a run is settled before its end.
type byteFallback struct{ eager bool }

func (byteFallback) joins() bool { return false }

func (byteFallback) readsFragments() bool     { return false }
func (b byteFallback) stage(bool) decodeStage { return &byteFallbackStage{eager: b.eager} }

type byteFallbackStage struct {
	eager bool // give each byte at once, as long as the run can still be valid
	run   []byte
	bad   bool // eager: the run is invalid already
}

func (s *byteFallbackStage) push(token string, emit func(string)) {
	b, ok := fallbackByte(token)
	if !ok {
		s.flush(emit)
		emit(token)
		return
	}
	s.run = append(s.run, b)
	if !s.eager {
		return
	}
	// Keep only the unfinished character: what is before it is valid.
	_, rest := appendValid(nil, s.run)
	if !s.bad && !utf8.Valid(s.run[:len(s.run)-len(rest)]) {
		s.bad = true
	}
	s.run = s.run[:copy(s.run, rest)]
	if s.bad {
		emit("\uFFFD")
	} else {
		emit(string([]byte{b}))
	}
}

func (s *byteFallbackStage) flush(emit func(string)) {
	run := s.run
	s.run, s.bad = s.run[:0], false
	switch {
	case s.eager || len(run) == 0:
	case utf8.Valid(run):
		emit(string(run))
	default:
		for range run {
			emit("\uFFFD")
		}
	}
}

// fallbackByte reads a token <0xNN>. The reference reads the two digits as a number that may have a plus sign.
func fallbackByte(token string) (byte, bool) {
	if len(token) != 6 || token[:3] != "<0x" || token[5] != '>' {
		return 0, false
	}
	hi, ok := hexDigit(token[3])
	if token[3] == '+' {
		hi, ok = 0, true
	}
	lo, ok2 := hexDigit(token[4])
	return hi<<4 | lo, ok && ok2
}

func hexDigit(c byte) (byte, bool) {
	switch {
	case c >= '0' && c <= '9':
		return c - '0', true
	case c|0x20 >= 'a' && c|0x20 <= 'f':
		return c | 0x20 - 'a' + 10, true
	}
	return 0, false
}

// decodeReplace puts content in the place of each match in each token.
type decodeReplace struct{ replace }

func (decodeReplace) joins() bool { return false }

func (d decodeReplace) readsFragments() bool {
	_, ok := d.pattern.(literal)
	return ok
}

func (d decodeReplace) stage(joined bool) decodeStage {
	if lit, ok := d.pattern.(literal); ok && joined {
		return &replaceStage{old: string(lit), new: d.content}
	}
	return perToken(d.normalize)
}

// replaceStage replaces in fragments: it keeps back what could become a match.
type replaceStage struct {
	old, new string
	text     string
}

func (s *replaceStage) push(token string, emit func(string)) {
	s.text += token
	done, keep := s.text, ""
	var out strings.Builder
	for {
		before, after, found := strings.Cut(done, s.old)
		if !found {
			break
		}
		out.WriteString(before)
		out.WriteString(s.new)
		done = after
	}
	for n := min(len(s.old)-1, len(done)); n > 0; n-- {
		if strings.HasSuffix(done, s.old[:n]) {
			done, keep = done[:len(done)-n], done[len(done)-n:]
			break
		}
	}
	out.WriteString(done)
	s.text = keep
	if out.Len() > 0 {
		emit(out.String())
	}
}

func (s *replaceStage) flush(emit func(string)) {
	if s.text != "" {
		emit(s.text)
		s.text = ""
	}
}

// decodeStrip takes up to start and stop copies of content from the ends of each token.
type decodeStrip struct {
	content     string // one character
	start, stop int
}

func (decodeStrip) joins() bool          { return false }
func (decodeStrip) readsFragments() bool { return true }

func (d decodeStrip) stage(joined bool) decodeStage {
	if joined {
		return &stripStage{decodeStrip: d}
	}
	return perToken(func(token string) string {
		for i := 0; i < d.start && strings.HasPrefix(token, d.content); i++ {
			token = token[len(d.content):]
		}
		for i := 0; i < d.stop && strings.HasSuffix(token, d.content); i++ {
			token = token[:len(token)-len(d.content)]
		}
		return token
	})
}

// stripStage strips a token that comes in fragments: it keeps back the copies of content at the end.
type stripStage struct {
	decodeStrip
	begun int // copies taken from the start; -1 once other text has come
	held  int // copies at the end that aren't given yet
}

func (s *stripStage) push(token string, emit func(string)) {
	for s.begun >= 0 && token != "" {
		if s.begun == s.start || !strings.HasPrefix(token, s.content) {
			s.begun = -1
			break
		}
		token = token[len(s.content):]
		s.begun++
	}
	if s.stop == 0 {
		if token != "" {
			emit(token)
		}
		return
	}
	body := strings.TrimRight(token, s.content)
	held := s.held + (len(token)-len(body))/len(s.content)
	give := ""
	if body != "" {
		give = strings.Repeat(s.content, s.held) + body
		held -= s.held
	}
	if over := held - s.stop; over > 0 {
		give += strings.Repeat(s.content, over)
		held = s.stop
	}
	s.held = held
	if give != "" {
		emit(give)
	}
}

func (s *stripStage) flush(func(string)) { s.held = 0 }

// decodeMetaspace turns marks to spaces. In the first token they vanish, unless none was put there.
type decodeMetaspace struct {
	mark    string
	scheme  string
	started bool // there is text before: no token is the first
}

func (decodeMetaspace) joins() bool          { return false }
func (decodeMetaspace) readsFragments() bool { return true }

func (d decodeMetaspace) stage(joined bool) decodeStage {
	first := d.scheme != prependNever && !d.started
	return perToken(func(token string) string {
		as := " "
		if first {
			as = ""
			first = joined // all fragments are of the first token
		}
		return strings.ReplaceAll(token, d.mark, as)
	})
}
