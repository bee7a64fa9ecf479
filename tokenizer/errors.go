package tokenizer

import (
	"errors"
	"fmt"
	"strings"
)

// Sentinels of Load.
var (
	// ErrFormat is returned when the bytes aren't a tokenizer file or contradict themselves.
	ErrFormat = errors.New("malformed tokenizer file")
	// ErrUnsupported is returned when the file needs components that this package doesn't have.
	ErrUnsupported = errors.New("unsupported tokenizer components")
)

// UnsupportedError is the complete list of what a tokenizer.json needs and this package doesn't have.
type UnsupportedError struct {
	Components []string // each named by its place and type, e.g. "normalizer Nmt"; in the order of the file
}

func (e *UnsupportedError) Error() string {
	return fmt.Sprintf("load tokenizer: %d unsupported components: %s; use a tokenizer.json without them",
		len(e.Components), strings.Join(e.Components, ", "))
}

// Is makes errors.Is(err, ErrUnsupported) hold.
func (e *UnsupportedError) Is(target error) bool { return target == ErrUnsupported }

func formatErrorf(format string, args ...any) error {
	return fmt.Errorf("load tokenizer: "+format+": %w", append(args, ErrFormat)...)
}
