package gguf

import (
	"flag"
	"os"
	"path/filepath"
	"testing"

	archive "smolgym/model/golden"
)

var writeTo = flag.String("export", "", "folder to leave exported goldens in, for testdata/check.py")

// TestLeaveExports leaves files for the judge outside: go test -run LeaveExports -export DIR, then testdata/check.py.
func TestLeaveExports(t *testing.T) {
	if *writeTo == "" {
		t.Skip("no -export: nothing to leave")
	}
	for _, name := range roundTrips {
		src := goldenCheckpoint(t, name)
		folder := filepath.Join(*writeTo, name)
		if err := os.MkdirAll(folder, 0o755); err != nil {
			t.Fatal(err)
		}
		files := map[string][]byte{}
		for _, n := range src.Names() {
			files[n] = src[n]
		}
		for _, encoding := range writable {
			m := modelOf(t, src)
			m.Tokenizer = exportTokenizer(t)
			files["tokenizer.json"] = m.Tokenizer
			files[encoding.String()+".gguf"] = exported(t, m, encoding)
		}
		for n, b := range files {
			if err := os.WriteFile(filepath.Join(folder, n), b, 0o644); err != nil {
				t.Fatal(err)
			}
		}
	}
}

// exportTokenizer is one that fits the goldens' vocabulary of 512: the shared one, or a smaller one where that is absent.
func exportTokenizer(t *testing.T) []byte {
	root := os.Getenv("SMOLGYM_SHARED")
	if root == "" {
		root = filepath.Join("..", "..", "..", "shared")
	}
	path := filepath.Join(root, "data", "tokenizers", "tiny512", "tokenizer.json.gz")
	if _, err := os.Stat(path); err != nil {
		return smallTokenizer(byteLevel(true), endToken)
	}
	return archive.Gunzip(t, path)
}
