package tokenizer

import (
	"encoding/json"
	"math/rand/v2"
	"path/filepath"
	"testing"

	"github.com/nlpodyssey/gotokenizers/models/bpemodel"
	"github.com/nlpodyssey/gotokenizers/vocabulary"

	archive "smolgym/model/golden"
)

// twinModel builds gotokenizers' BPE model, the slow twin, from a byte-level tokenizer.json.
func twinModel(t *testing.T, data []byte) *bpemodel.BPEModel {
	t.Helper()
	var f struct {
		Model struct {
			Vocab  map[string]int
			Merges mergeList
		}
	}
	if err := json.Unmarshal(data, &f); err != nil {
		t.Fatal(err)
	}
	terms := make([]string, len(f.Model.Vocab))
	for token, id := range f.Model.Vocab {
		if id >= len(terms) {
			t.Fatalf("the twin can't have gaps: %q has id %d of %d", token, id, len(terms))
		}
		terms[id] = token
	}
	vocab := vocabulary.NewVocabulary()
	for _, term := range terms {
		vocab.AddTerm(term)
	}
	merges := bpemodel.NewMergeMap()
	for rank, pair := range f.Model.Merges {
		left, right, whole := f.Model.Vocab[pair[0]], f.Model.Vocab[pair[1]], f.Model.Vocab[pair[0]+pair[1]]
		merges.Set(left, right, bpemodel.MergeValue{Rank: rank, ID: whole})
	}
	return bpemodel.New(vocab, merges, 0, 0, "", "", "", false)
}

// TestTwin compares our merges with gotokenizers' on words of the goldens and random strings.
func TestTwin(t *testing.T) {
	type subject struct{ name, file, golden string }
	subjects := []subject{{"own_bytes", filepath.Join("testdata", "own_bytes.json.gz"),
		filepath.Join("testdata", "own_bytes.golden.jsonl.gz")}}
	for _, name := range []string{"gpt2", "qwen3"} {
		subjects = append(subjects, subject{name: name})
	}
	for _, s := range subjects {
		t.Run(s.name, func(t *testing.T) {
			if s.file == "" {
				dir := sharedFolder(t, s.name)
				s.file, s.golden = filepath.Join(dir, "tokenizer.json.gz"), filepath.Join(dir, "golden.jsonl.gz")
			}
			data := archive.Gunzip(t, s.file)
			tok, err := Load(data)
			if err != nil {
				t.Fatal(err)
			}
			twin := twinModel(t, data)
			words := 0
			compare := func(word string) {
				want, err := twin.Tokenize(toByteChars(word))
				if err != nil {
					t.Fatal(err)
				}
				got := tok.model.encode(word, nil)
				same := len(got) == len(want)
				for i := 0; same && i < len(got); i++ {
					same = int(got[i]) == want[i].ID
				}
				if !same {
					t.Errorf("%q: %v, the twin has %v", word, got, want)
				}
				words++
			}
			eachGolden(t, s.golden, func(g goldenLine) {
				if words > 20000 {
					return
				}
				for text := nfc(g.Text); text != ""; {
					n := tok.cut(text)
					if n < 400 { // the twin is slow
						compare(text[:n])
					}
					text = text[n:]
				}
			})
			rng := rand.New(rand.NewPCG(1, 1))
			for range 2000 {
				word := make([]byte, 1+rng.IntN(80))
				for i := range word {
					word[i] = "etaoin shrdlu\xe3\x81\x82"[rng.IntN(16)]
				}
				compare(string(word))
			}
			t.Logf("%d words", words)
		})
	}
}
