package tokenizer

import (
	"math/rand/v2"
	"strings"
	"testing"
)

// firstHit pushes ids and gives the index of the first that completes a stop, -1 for none.
func firstHit(m *StopMatcher, ids []int32) int {
	for i, id := range ids {
		if m.Push(id) {
			return i
		}
	}
	return -1
}

// TestStop is FR-04: a stop spans tokens, ends inside one, is a special token's text, is an id; characters split
// over tokens count when their last byte comes.
func TestStop(t *testing.T) {
	for _, name := range ownNames {
		tok := loadOwn(t, name)
		special := map[string]string{"own_bytes": "<|im_end|>", "own_fallback": "</s>"}[name]
		for _, c := range []struct {
			text  string
			stops []string
			upTo  string // the text that has to be there when it stops; "" for no stop
		}{
			{"hello world. The end", []string{"world. T"}, "hello world. T"},
			{"hello world", []string{"hell"}, "hell"},
			{"hello world", []string{"xyz", "wor", "o w"}, "hello w"},
			{"hello world", []string{"worlds"}, ""},
			{"hello world", []string{""}, ""},
			{"aaaaab", []string{"aab"}, "aaaaab"},
			{"one\n\ntwo", []string{"\n\n"}, "one\n\n"},
			{"x 🦜🦜 y", []string{"🦜🦜"}, "x 🦜🦜"},
			{"x 🦜 y", []string{"🦝"}, ""},
			{"日本の首都", []string{"の"}, "日本の"},
			{"bye" + special + "more", []string{special}, "bye" + special},
			{"bye" + special + "more", []string{"e" + special[:3]}, "bye" + special[:3]},
		} {
			ids := tok.Encode(c.text, false)
			got := firstHit(NewStopMatcher(tok, c.stops, nil), ids)
			want := -1
			if c.upTo != "" { // the first prefix of ids whose text holds it
				for i := range ids {
					if strings.Contains(tok.Decode(ids[:i+1], false), c.upTo) {
						want = i
						break
					}
				}
				if want < 0 {
					t.Fatalf("%s %q: the text never holds %q", name, c.text, c.upTo)
				}
			}
			if got != want {
				t.Errorf("%s %q stop %q: at token %d, want %d of %d", name, c.text, c.stops, got, want, len(ids))
			}
		}
	}
}

// TestStopIDs: ids match whole tokens, also one beyond the vocabulary, and text of theirs doesn't.
func TestStopIDs(t *testing.T) {
	tok := loadOwn(t, "own_bytes")
	end, _ := tok.ID("<|im_end|>")
	beyond := int32(tok.VocabSize() + 5)
	ids := append(tok.Encode("say <|im_end", false), beyond, end)
	if got := firstHit(NewStopMatcher(tok, nil, []int32{end}), ids); got != len(ids)-1 {
		t.Errorf("stops at %d, want the last of %d", got, len(ids))
	}
	if got := firstHit(NewStopMatcher(tok, nil, []int32{beyond}), ids); got != len(ids)-2 {
		t.Errorf("stops at %d, want the last but one of %d", got, len(ids))
	}
}

// TestStopContinuation: a blank that the decoder takes from the start of a text belongs to a continuation.
func TestStopContinuation(t *testing.T) {
	tok := loadOwn(t, "own_fallback")
	blank, ok := tok.ID("▁")
	a, ok2 := tok.ID("a")
	if !ok || !ok2 {
		t.Fatal("the tokenizer has no ▁ or a")
	}
	if got := firstHit(NewStopMatcher(tok, []string{" a"}, nil), []int32{blank, a}); got != 1 {
		t.Errorf("stops at %d, want 1", got)
	}
	// Bytes of an invalid run are no text.
	run := make([]int32, 0, 4)
	for _, s := range []string{"<0xFF>", "<0xE3>", "<0x81>", "<0x82>"} {
		id, _ := tok.ID(s)
		run = append(run, id)
	}
	if got := firstHit(NewStopMatcher(tok, []string{"あ"}, nil), run); got != -1 {
		t.Errorf("an invalid run stops at %d", got)
	}
	if got := firstHit(NewStopMatcher(tok, []string{"あ"}, nil), run[1:]); got != 2 {
		t.Errorf("a valid run stops at %d, want 2", got)
	}
}

// TestStopAgainstSearch compares with a plain search in the whole decode, on random ids and stops.
func TestStopAgainstSearch(t *testing.T) {
	tok := loadOwn(t, "own_bytes")
	rng := rand.New(rand.NewPCG(4, 2))
	hits := 0
	for range 2000 {
		ids := make([]int32, 1+rng.IntN(12))
		for i := range ids {
			ids[i] = int32(rng.IntN(tok.VocabSize()))
		}
		text := []rune(tok.Decode(ids, false))
		from := rng.IntN(len(text))
		stop := string(text[from:min(len(text), from+1+rng.IntN(6))])
		if strings.ContainsRune(stop, '\uFFFD') {
			continue
		}
		want := -1
		for i := range ids {
			if strings.Contains(tok.Decode(ids[:i+1], false), stop) {
				want = i
				break
			}
		}
		if got := firstHit(NewStopMatcher(tok, []string{"\x00none", stop}, nil), ids); got != want {
			t.Fatalf("ids %v stop %q: at %d, want %d", ids, stop, got, want)
		}
		hits++
	}
	if hits < 1000 {
		t.Errorf("only %d comparisons", hits)
	}
}
