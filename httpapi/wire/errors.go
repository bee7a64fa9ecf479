package wire

import (
	"errors"
	"fmt"
)

// Reasons a body is refused. Match them with errors.Is; the text of the error names the field.
var (
	// ErrMalformed is returned for every body that does not follow the wire format or its syntax rules.
	ErrMalformed = errors.New("malformed request")
	// ErrEncoding is returned by DecodeBody for a Content-Encoding other than identity and zstd.
	ErrEncoding = errors.New("unsupported content encoding")
)

// malformed marks err as ErrMalformed without adding words to its text.
type malformed struct {
	what string // what was being decoded
	err  error
}

func (e *malformed) Error() string        { return "decode " + e.what + ": " + e.err.Error() }
func (e *malformed) Unwrap() error        { return e.err }
func (e *malformed) Is(target error) bool { return target == ErrMalformed }

// syntaxError marks a refused name, path or query value as ErrMalformed.
type syntaxError struct{ text string }

func (e *syntaxError) Error() string        { return e.text }
func (e *syntaxError) Is(target error) bool { return target == ErrMalformed }

func syntaxErrorf(format string, args ...any) error {
	return &syntaxError{text: fmt.Sprintf(format, args...)}
}

// UnsupportedChunkError is returned when a prompt holds something other than text tokens.
type UnsupportedChunkError struct {
	Datum int    // index of the datum in a forward_backward request, -1 for the prompt of a sample request
	Chunk int    // index of the chunk in its input
	Kind  string // "image", "dmel", "image_asset_pointer" or the unknown name as sent
}

func (e *UnsupportedChunkError) Error() string {
	where := "" // for a prompt, the path of the field says it
	if e.Datum >= 0 {
		where = fmt.Sprintf("datum %d: model_input[%d]: ", e.Datum, e.Chunk)
	}
	return fmt.Sprintf("%schunk kind %q is not supported; send encoded_text chunks only", where, e.Kind)
}

// TooLargeError is returned by DecodeBody when a body, compressed or not, passes the limit.
type TooLargeError struct {
	Limit int64 // bytes
}

func (e *TooLargeError) Error() string {
	return fmt.Sprintf("request body is larger than %d bytes after decompression; send fewer datums per request", e.Limit)
}
