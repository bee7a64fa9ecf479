package tokenizer

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"unicode/utf8"

	archive "smolgym/model/golden"
)

// goldenLine is one string with the reference's answers.
type goldenLine struct {
	Text        string  `json:"text"`
	IDs         []int32 `json:"ids"`
	IDsSpecial  []int32 `json:"ids_special"`
	Decoded     string  `json:"decoded"`
	DecodedSkip *string `json:"decoded_skip"`
	IDsOrdinary []int32 `json:"ids_ordinary"` // in testdata only: special tokens count as text
}

// sharedFolder finds the tokenizers of the shared material, or skips the test.
func sharedFolder(tb testing.TB, name string) string {
	tb.Helper()
	root := os.Getenv("SMOLGYM_SHARED")
	if root == "" {
		root = filepath.Join("..", "..", "shared")
	}
	dir := filepath.Join(root, "data", "tokenizers", name)
	if _, err := os.Stat(dir); err != nil {
		tb.Skipf("no shared tokenizer %s; set SMOLGYM_SHARED to the shared folder", name)
	}
	return dir
}

func loadShared(tb testing.TB, name string) *Tokenizer {
	tb.Helper()
	t, err := Load(archive.Gunzip(tb, filepath.Join(sharedFolder(tb, name), "tokenizer.json.gz")))
	if err != nil {
		tb.Fatalf("load %s: %v", name, err)
	}
	return t
}

// loadOwn loads one of testdata's tokenizers.
func loadOwn(tb testing.TB, name string) *Tokenizer {
	tb.Helper()
	t, err := Load(archive.Gunzip(tb, filepath.Join("testdata", name+".json.gz")))
	if err != nil {
		tb.Fatalf("load %s: %v", name, err)
	}
	return t
}

// eachGolden calls f for every golden line of a file and gives their number.
func eachGolden(tb testing.TB, path string, f func(g goldenLine)) int {
	tb.Helper()
	n := 0
	for line := range bytes.Lines(archive.Gunzip(tb, path)) {
		var g goldenLine
		if err := json.Unmarshal(line, &g); err != nil {
			tb.Fatal(err)
		}
		if g.IDsSpecial == nil {
			g.IDsSpecial = g.IDs
		}
		if g.DecodedSkip == nil {
			g.DecodedSkip = &g.Decoded
		}
		f(g)
		n++
	}
	return n
}

// TestGolden holds every string of the shared goldens against the reference's ids and texts, whole and streamed.
func TestGolden(t *testing.T) {
	for _, name := range []string{"gpt2", "qwen3", "llama3", "smollm2_style", "tiny512", "llama2",
		"llama2_metaspace", "gemma3", "qwen3_5_style", "edge_added", "gpt_oss", "deepseek_v3",
		"unigram_en", "unigram_ja"} {
		t.Run(name, func(t *testing.T) {
			dir := sharedFolder(t, name)
			n := checkGolden(t, loadShared(t, name), filepath.Join(dir, "golden.jsonl.gz"))
			if n != 3000 {
				t.Errorf("%d golden strings, want 3000", n)
			}
		})
	}
}

// TestOwnGolden is the same on testdata's tokenizers and fuzzed strings (FR-22, FR-23).
func TestOwnGolden(t *testing.T) {
	for _, name := range ownNames {
		t.Run(name, func(t *testing.T) {
			n := checkGolden(t, loadOwn(t, name), filepath.Join("testdata", name+".golden.jsonl.gz"))
			if n != 2000 {
				t.Errorf("%d golden strings, want 2000", n)
			}
		})
	}
}

// ownNames are testdata's tokenizers; make.py says how they were made.
var ownNames = []string{"own_bytes", "own_fallback"}

func checkGolden(t *testing.T, tok *Tokenizer, path string) int {
	bad := 0
	report := func(what, text string, got, want any) {
		if bad++; bad <= 10 {
			t.Errorf("%s of %.80q:\n got %.200s\nwant %.200s", what, text, fmt.Sprint(got), fmt.Sprint(want))
		}
	}
	n := eachGolden(t, path, func(g goldenLine) {
		if got := tok.Encode(g.Text, false); !slices.Equal(got, g.IDs) {
			report("ids", g.Text, got, g.IDs)
		}
		if got := tok.Encode(g.Text, true); !slices.Equal(got, g.IDsSpecial) {
			report("ids with special", g.Text, got, g.IDsSpecial)
		}
		if got := tok.EncodeOrdinary(g.Text); g.IDsOrdinary != nil && !slices.Equal(got, g.IDsOrdinary) {
			report("ordinary ids", g.Text, got, g.IDsOrdinary)
		}
		if got := tok.Decode(g.IDs, false); got != g.Decoded {
			report("decode", g.Text, got, g.Decoded)
		}
		if got := tok.Decode(g.IDsSpecial, true); got != *g.DecodedSkip {
			report("decode without special", g.Text, got, *g.DecodedSkip)
		}
		s := tok.NewStream(false)
		joined := ""
		for _, id := range g.IDs {
			piece := s.Push(id)
			if !utf8.ValidString(piece) {
				report("streamed piece", g.Text, []byte(piece), "whole characters")
			}
			joined += piece
		}
		if joined += s.Flush(); joined != g.Decoded {
			report("stream", g.Text, joined, g.Decoded)
		}
	})
	t.Logf("%d strings, %d mismatches", n, bad)
	return n
}
