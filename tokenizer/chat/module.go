package chat

import (
	"bytes"
	"compress/gzip"
	_ "embed"
	"fmt"
	"io"
)

// moduleGzip is the interpreter; the recipe is wasm/build.sh.
//
//go:embed template.wasm.gz
var moduleGzip []byte

func moduleBytes() ([]byte, error) {
	zr, err := gzip.NewReader(bytes.NewReader(moduleGzip))
	if err != nil {
		return nil, fmt.Errorf("unpack template module: %w", err)
	}
	code, err := io.ReadAll(zr)
	if err != nil {
		return nil, fmt.Errorf("unpack template module: %w", err)
	}
	return code, nil
}
