package gguf

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
)

// cursor reads a header front to back through a small window, and can pass over bytes without reading them.
type cursor struct {
	r    io.ReaderAt
	end  int64 // bytes of the file
	pos  int64 // of the next byte
	base int64 // where window starts
	win  []byte
	room []byte
}

const windowBytes = 1 << 16

func newCursor(r io.ReaderAt, pos, end int64) *cursor {
	return &cursor{r: r, end: end, pos: pos, room: make([]byte, windowBytes)}
}

// left is the number of bytes that remain in the file.
func (c *cursor) left() int64 { return c.end - c.pos }

// take gives the next n bytes, at most a window's; they are good until the next call.
func (c *cursor) take(n int) ([]byte, error) {
	if int64(n) > c.left() {
		return nil, fmt.Errorf("%w: the file ends at byte %d, in the middle of its header; its transfer was cut", ErrHeader, c.end)
	}
	if from := c.pos - c.base; from >= 0 && from+int64(n) <= int64(len(c.win)) {
		c.pos += int64(n)
		return c.win[from : from+int64(n)], nil
	}
	c.base, c.win = c.pos, c.room[:min(c.left(), windowBytes)]
	if err := readFull(c.r, c.win, c.base); err != nil {
		c.win = nil
		return nil, fmt.Errorf("read header: %w", err)
	}
	c.pos += int64(n)
	return c.win[:n], nil
}

// skip passes over n bytes.
func (c *cursor) skip(n int64) error {
	if n > c.left() {
		return fmt.Errorf("%w: %d bytes are announced, the file has %d more", ErrHeader, n, c.left())
	}
	c.pos += n
	return nil
}

func (c *cursor) u32() (uint32, error) {
	b, err := c.take(4)
	if err != nil {
		return 0, err
	}
	return binary.LittleEndian.Uint32(b), nil
}

func (c *cursor) u64() (uint64, error) {
	b, err := c.take(8)
	if err != nil {
		return 0, err
	}
	return binary.LittleEndian.Uint64(b), nil
}

// length reads the length of a text, which most bounds.
func (c *cursor) length(most int64) (int64, error) {
	n, err := c.u64()
	if err != nil {
		return 0, err
	}
	if n > uint64(most) {
		return 0, fmt.Errorf("%w: a text of %d bytes, at most %d are allowed", ErrLimit, n, most)
	}
	if int64(n) > c.left() {
		return 0, fmt.Errorf("%w: a text of %d bytes, the file has %d more", ErrHeader, n, c.left())
	}
	return int64(n), nil
}

// text reads a short text; most is at most a window.
func (c *cursor) text(most int64) ([]byte, error) {
	n, err := c.length(most)
	if err != nil {
		return nil, err
	}
	return c.take(int(n))
}

// readFull is ReadAt with its one licence taken away: an io.EOF on a complete read is no error, a short read always is.
func readFull(r io.ReaderAt, p []byte, off int64) error {
	n, err := r.ReadAt(p, off)
	if n == len(p) {
		return nil
	}
	if err == nil || errors.Is(err, io.EOF) {
		return io.ErrUnexpectedEOF
	}
	return err
}
