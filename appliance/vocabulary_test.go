package appliance

import (
	"path/filepath"
	"strings"
	"testing"

	"smolgym/model/golden"
)

// TestSentencePieceFolder: a folder with tokenizer.model and no tokenizer.json has
// a tokenizer; a broken one is refused by name.
func TestSentencePieceFolder(t *testing.T) {
	a, _ := ready(t, Options{})
	model := golden.Gunzip(t, filepath.Join("..", "tokenizer", "testdata", "sp_bpe.model.gz"))
	files := tinyModel(t, "steps_llama")
	delete(files, "tokenizer.json")
	files["tokenizer.model"] = model
	if _, err := add(t, a, "me/pieces", files); err != nil {
		t.Fatal(err)
	}
	ids, err := a.Tokenize("me/pieces", "hello there", false)
	if err != nil || len(ids) == 0 {
		t.Fatalf("%v, %v", ids, err)
	}
	if text, err := a.Detokenize("me/pieces", ids, true); err != nil || strings.TrimSpace(text) != "hello there" {
		t.Fatalf("%q, %v", text, err)
	}
	files["tokenizer.model"] = model[:len(model)/2]
	if _, err := add(t, a, "me/broken", files); err == nil || !strings.Contains(err.Error(), "tokenizer.model") {
		t.Fatalf("half a tokenizer.model: %v", err)
	}
}
