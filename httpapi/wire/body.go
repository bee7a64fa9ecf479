package wire

import (
	"errors"
	"fmt"
	"io"
	"math"
	"strings"

	"github.com/klauspost/compress/zstd"
)

// maxZstdWindow is the largest history, in bytes, a frame may ask the decoder to keep: 8 MiB is what the format's
// specification tells decoders to support, and compressors stay below it up to level 19.
const maxZstdWindow = 8 << 20

// DecodeBody reads a request body whole and undoes its Content-Encoding ("", "identity" or "zstd").
// The limit counts decompressed bytes; passing it gives a *TooLargeError.
func DecodeBody(r io.Reader, encoding string, limit int64) ([]byte, error) {
	if limit < 0 || limit > math.MaxInt64/2 {
		return nil, fmt.Errorf("decode body: limit %d is out of range", limit)
	}
	switch strings.ToLower(strings.TrimSpace(encoding)) {
	case "", "identity":
		return readIdentity(r, limit)
	case "zstd":
		return readZstd(r, limit)
	}
	return nil, fmt.Errorf("decode body: content encoding %q: %w; send identity or zstd", encoding, ErrEncoding)
}

func readZstd(r io.Reader, limit int64) ([]byte, error) {
	// A frame may hold nothing (skippable frames), so the compressed side needs a limit of its own. Incompressible
	// data grows a little: 3 bytes a block of at most 128 KiB, and the frame header.
	in := &cappedReader{r: r, left: limit + limit/1024 + 1024}
	d, err := zstd.NewReader(in, zstd.WithDecoderConcurrency(1), zstd.WithDecoderLowmem(true),
		zstd.WithDecoderMaxWindow(maxZstdWindow))
	if err != nil {
		return nil, fmt.Errorf("decode body: start zstd: %w", err)
	}
	defer d.Close()
	body, err := io.ReadAll(io.LimitReader(d, limit+1))
	switch {
	case int64(len(body)) > limit || in.spent:
		return nil, &TooLargeError{Limit: limit}
	case in.err != nil: // the connection's fault, not the data's
		return nil, fmt.Errorf("read body: %w", in.err)
	case err != nil:
		return nil, &malformed{what: "body", err: fmt.Errorf("zstd: %w", err)}
	}
	return body, nil
}

func readIdentity(r io.Reader, limit int64) ([]byte, error) {
	body, err := io.ReadAll(io.LimitReader(r, limit+1))
	if int64(len(body)) > limit {
		return nil, &TooLargeError{Limit: limit}
	}
	if err != nil {
		return nil, fmt.Errorf("read body: %w", err)
	}
	return body, nil
}

// cappedReader ends after its allowance and remembers why it stopped, because the decoder rewords errors.
type cappedReader struct {
	r     io.Reader
	left  int64
	spent bool  // the allowance ran out
	err   error // the underlying reader failed, io.EOF apart
}

func (c *cappedReader) Read(p []byte) (int, error) {
	if c.left <= 0 {
		c.spent = true
		return 0, io.ErrUnexpectedEOF
	}
	if int64(len(p)) > c.left {
		p = p[:c.left]
	}
	n, err := c.r.Read(p)
	c.left -= int64(n)
	if err != nil && !errors.Is(err, io.EOF) {
		c.err = err
	}
	return n, err
}
