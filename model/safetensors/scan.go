package safetensors

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"slices"
	"unicode/utf8"
)

// scanner reads the header's JSON as a stream. The standard decoder holds a whole string or a whole object before it
// hands it over, which would let a 100 MB header cost several times its size; here nothing is held but the value in
// hand, and every value has a limit.
type scanner struct {
	r    *bufio.Reader
	pos  int64  // bytes of the header consumed
	buf  []byte // the string last read
	kept int    // bytes that the parsed header will hold on to

	shape [MaxRank]int64 // the entry in hand
	ends  [2]int64       // its begin and end
}

var errEOF = fmt.Errorf("%w: the JSON ends too early", ErrHeader)

// next consumes one byte.
func (s *scanner) next() (byte, error) {
	c, err := s.r.ReadByte()
	if err != nil {
		return 0, readError(err)
	}
	s.pos++
	return c, nil
}

func readError(err error) error {
	if errors.Is(err, io.EOF) {
		return errEOF
	}
	return fmt.Errorf("read header: %w", err)
}

// token skips blanks and consumes the byte after them.
func (s *scanner) token() (byte, error) {
	for {
		c, err := s.next()
		if err != nil {
			return 0, err
		}
		if c != ' ' && c != '\n' && c != '\t' && c != '\r' {
			return c, nil
		}
	}
}

func (s *scanner) unread() {
	// Only ever called right after a byte was read, where it cannot fail.
	_ = s.r.UnreadByte()
	s.pos--
}

func (s *scanner) expect(want byte, where string) error {
	c, err := s.token()
	if err != nil {
		return err
	}
	if c != want {
		return fmt.Errorf("%w: %q where %s needs %q, at byte %d", ErrHeader, c, where, want, s.pos-1)
	}
	return nil
}

// more is called at the start of an object or array (first) and after each member; it says whether another one follows.
func (s *scanner) more(first bool, end byte, where string) (bool, error) {
	c, err := s.token()
	if err != nil {
		return false, err
	}
	switch {
	case c == end:
		return false, nil
	case first:
		s.unread()
		return true, nil
	case c == ',':
		return true, nil
	}
	return false, fmt.Errorf("%w: %q after a member of %s, at byte %d", ErrHeader, c, where, s.pos-1)
}

// text reads a string into s.buf, good until the next call, and refuses one longer than limit bytes.
func (s *scanner) text(limit int, what string) ([]byte, error) {
	if err := s.expect('"', what); err != nil {
		return nil, err
	}
	s.buf = s.buf[:0]
	for {
		c, err := s.next()
		if err != nil {
			return nil, err
		}
		switch {
		case c == '"':
			if !utf8.Valid(s.buf) {
				return nil, fmt.Errorf("%w: %s is not UTF-8, before byte %d", ErrHeader, what, s.pos)
			}
			return s.buf, nil
		case c == '\\':
			if err := s.escape(what); err != nil {
				return nil, err
			}
		case c < 0x20:
			return nil, fmt.Errorf("%w: control character in %s, at byte %d", ErrHeader, what, s.pos-1)
		default:
			s.buf = append(doubled(s.buf), c)
		}
		if len(s.buf) > limit {
			return nil, fmt.Errorf("%w: %s is longer than %d bytes, at byte %d", ErrLimit, what, limit, s.pos)
		}
	}
}

// doubled makes room by doubling: append grows large slices by a quarter, which leaves several times more garbage behind.
func doubled[T any](list []T) []T {
	if cap(list)-len(list) < utf8.UTFMax {
		return slices.Grow(list, max(64, len(list)))
	}
	return list
}

func (s *scanner) escape(what string) error {
	c, err := s.next()
	if err != nil {
		return err
	}
	const plain = `"\/bfnrt`
	const means = "\"\\/\b\f\n\r\t"
	for i := range len(plain) {
		if plain[i] == c {
			s.buf = append(doubled(s.buf), means[i])
			return nil
		}
	}
	if c != 'u' {
		return fmt.Errorf("%w: escape \\%c in %s, at byte %d", ErrHeader, c, what, s.pos-1)
	}
	r, err := s.hex4(what)
	if err != nil {
		return err
	}
	if r >= 0xd800 && r < 0xe000 {
		if r, err = s.lowSurrogate(r, what); err != nil {
			return err
		}
	}
	s.buf = utf8.AppendRune(doubled(s.buf), r)
	return nil
}

func (s *scanner) lowSurrogate(high rune, what string) (rune, error) {
	lone := fmt.Errorf("%w: half of a surrogate pair in %s, at byte %d", ErrHeader, what, s.pos)
	if high >= 0xdc00 {
		return 0, lone
	}
	for _, want := range []byte(`\u`) {
		c, err := s.next()
		if err != nil {
			return 0, err
		}
		if c != want {
			return 0, lone
		}
	}
	low, err := s.hex4(what)
	if err != nil {
		return 0, err
	}
	if low < 0xdc00 || low >= 0xe000 {
		return 0, lone
	}
	return (high-0xd800)<<10 + (low - 0xdc00) + 0x10000, nil
}

func (s *scanner) hex4(what string) (rune, error) {
	var r rune
	for range 4 {
		c, err := s.next()
		if err != nil {
			return 0, err
		}
		switch {
		case c >= '0' && c <= '9':
			c -= '0'
		case c >= 'a' && c <= 'f':
			c -= 'a' - 10
		case c >= 'A' && c <= 'F':
			c -= 'A' - 10
		default:
			return 0, fmt.Errorf("%w: %q in a \\u escape in %s, at byte %d", ErrHeader, c, what, s.pos-1)
		}
		r = r<<4 | rune(c)
	}
	return r, nil
}

// size reads a number that counts something: a JSON integer without sign, fraction or exponent, at most 2^63-1.
func (s *scanner) size(what string) (int64, error) {
	c, err := s.token()
	if err != nil {
		return 0, err
	}
	if c < '0' || c > '9' {
		return 0, fmt.Errorf("%w: %s begins with %q, at byte %d: whole numbers from 0 are allowed", ErrTensor, what, c, s.pos-1)
	}
	n := int64(c - '0')
	for first := c; ; {
		c, err := s.next()
		if err != nil {
			return 0, err
		}
		if c < '0' || c > '9' {
			s.unread()
			if c == '.' || c == 'e' || c == 'E' {
				return 0, fmt.Errorf("%w: %s has a fraction or exponent, at byte %d: whole numbers from 0 are allowed", ErrTensor, what, s.pos)
			}
			return n, nil
		}
		if first == '0' {
			return 0, fmt.Errorf("%w: %s has a leading zero, at byte %d", ErrHeader, what, s.pos-1)
		}
		if n > (1<<63-1-int64(c-'0'))/10 {
			return 0, fmt.Errorf("%w: %s is larger than 2^63-1, at byte %d", ErrTensor, what, s.pos-1)
		}
		n = n*10 + int64(c-'0')
	}
}

// sizes reads an array of at most limit numbers, appended to dst.
func (s *scanner) sizes(dst []int64, limit int, what string) ([]int64, error) {
	c, err := s.token()
	if err != nil {
		return nil, err
	}
	if c != '[' {
		return nil, fmt.Errorf("%w: %s begins with %q, not with a list, at byte %d", ErrTensor, what, c, s.pos-1)
	}
	for {
		more, err := s.more(len(dst) == 0, ']', what)
		if err != nil || !more {
			return dst, err
		}
		if len(dst) == limit {
			return nil, fmt.Errorf("%w: %s has more than %d numbers", ErrTensor, what, limit)
		}
		n, err := s.size(what)
		if err != nil {
			return nil, err
		}
		dst = append(dst, n)
	}
}

// keep counts bytes that outlive the scan against the budget.
func (s *scanner) keep(n int) error {
	if s.kept += n; s.kept > maxKeptBytes {
		return fmt.Errorf("%w: names, shapes and metadata take more than %d bytes", ErrLimit, maxKeptBytes)
	}
	return nil
}
