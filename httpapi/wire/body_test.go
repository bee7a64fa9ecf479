package wire

import (
	"bytes"
	"errors"
	"io"
	"strings"
	"testing"
	"testing/iotest"

	"github.com/klauspost/compress/zstd"
)

func compress(t testing.TB, level zstd.EncoderLevel, parts ...[]byte) []byte {
	t.Helper()
	var out bytes.Buffer
	for _, p := range parts { // one frame each
		w, err := zstd.NewWriter(&out, zstd.WithEncoderLevel(level))
		if err != nil {
			t.Fatal(err)
		}
		if _, err = w.Write(p); err == nil {
			err = w.Close()
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	return out.Bytes()
}

func TestDecodeBody(t *testing.T) {
	text := []byte(strings.Repeat("tokens and weights ", 50_000)) // 950 kB, well below 1 % of that compressed
	n := int64(len(text))
	small := compress(t, zstd.SpeedDefault, text)
	noise := bytes.Repeat([]byte{0}, 1000)
	for i := range noise {
		noise[i] = byte(i * i * 31)
	}
	skippable := bytes.Repeat([]byte{0x50, 0x2A, 0x4D, 0x18, 4, 0, 0, 0, 1, 2, 3, 4}, 1000)
	for _, c := range []struct {
		name, encoding string
		body           []byte
		limit          int64
		want           []byte
		fails          error // ErrMalformed, ErrEncoding or *TooLargeError
	}{
		{"identity", "", text, n, text, nil},
		{"identity by name", "Identity", text, n, text, nil},
		{"identity large", "", text, n - 1, nil, &TooLargeError{}},
		{"empty", "", nil, 0, []byte{}, nil},
		{"zstd", "zstd", small, n, text, nil},
		{"zstd best", " ZSTD", compress(t, zstd.SpeedBestCompression, text), n, text, nil},
		{"zstd frames", "zstd", compress(t, zstd.SpeedFastest, text[:10], text[10:]), n, text, nil},
		{"zstd incompressible", "zstd", compress(t, zstd.SpeedDefault, noise), 1000, noise, nil},
		{"zstd bomb", "zstd", small, n - 1, nil, &TooLargeError{}},
		{"zstd bomb, small limit", "zstd", small, 10, nil, &TooLargeError{}},
		{"zstd of nothing, without end", "zstd", skippable, 100, nil, &TooLargeError{}},
		{"zstd cut", "zstd", small[:len(small)-5], n, nil, ErrMalformed},
		{"zstd garbage", "zstd", text, n, nil, ErrMalformed},
		{"zstd trailing garbage", "zstd", append(bytes.Clone(small), "xxxxxxxx"...), n, nil, ErrMalformed},
		{"gzip", "gzip", text, n, nil, ErrEncoding},
	} {
		got, err := DecodeBody(bytes.NewReader(c.body), c.encoding, c.limit)
		var large *TooLargeError
		switch {
		case c.fails == nil:
			if err != nil || !bytes.Equal(got, c.want) {
				t.Errorf("%s: got %d bytes, %v", c.name, len(got), err)
			}
		case errors.As(c.fails, &large):
			if !errors.As(err, &large) || large.Limit != c.limit {
				t.Errorf("%s: want TooLargeError with limit %d, got %v", c.name, c.limit, err)
			}
		case !errors.Is(err, c.fails):
			t.Errorf("%s: want %v, got %v", c.name, c.fails, err)
		}
	}
	for _, encoding := range []string{"", "zstd"} { // a broken connection is not the sender's malformed data
		r := io.MultiReader(bytes.NewReader(small[:20]), iotest.ErrReader(io.ErrClosedPipe))
		if _, err := DecodeBody(r, encoding, n); !errors.Is(err, io.ErrClosedPipe) || errors.Is(err, ErrMalformed) {
			t.Errorf("%q: got %v", encoding, err)
		}
	}
}
