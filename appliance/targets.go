package appliance

import (
	"fmt"
	"math"
)

// maxTargets bounds the cells of a table of targets, or of draws, for one prompt.
const maxTargets = 1 << 22

// Targets are tokens to score at the positions of a prompt after its first: a
// table of Rows by Columns in which -1 asks for nothing. With Crow it is sparse:
// row r has IDs[Crow[r]:Crow[r+1]] at columns Col, and nothing else.
type Targets struct {
	Rows, Columns int
	IDs           []int64
	Crow, Col     []int64
}

// TargetLogprobs is the answer in the layout of the request, 0 where nothing was
// asked.
type TargetLogprobs struct {
	Rows, Columns int
	Logprobs      []float32
	Crow, Col     []int64
}

// width is how many columns the table needs once gaps are closed.
func (t *Targets) width() int {
	if t.Crow == nil {
		return t.Columns
	}
	k := 0
	for r := range t.Rows {
		k = max(k, int(t.Crow[r+1]-t.Crow[r]))
	}
	return k
}

// check refuses a table that doesn't fit its prompt. Its indices are those of a
// sound sparse table.
func (t *Targets) check(prompt int) error {
	if t == nil {
		return nil
	}
	if t.Rows != prompt-1 {
		return fmt.Errorf("target_prompt_logprobs has %d rows; give %d, one less than the prompt has tokens", t.Rows, prompt-1)
	}
	if k := t.width(); k > 0 && t.Rows > maxTargets/k {
		return fmt.Errorf("target_prompt_logprobs of %d rows with up to %d ids each is more than %d cells; ask for less at once", t.Rows, k, maxTargets)
	}
	named := false
	for i, id := range t.IDs {
		if id < -1 || id > math.MaxInt32 {
			return fmt.Errorf("target_prompt_logprobs: token %d at %d; give ids of the vocabulary, or -1 for nothing", id, i)
		}
		named = named || id >= 0
	}
	if !named {
		return fmt.Errorf("target_prompt_logprobs names no token; give at least one id that isn't -1, or leave it out")
	}
	return nil
}

// dense is the table as the engine takes it, [Rows,width].
func (t *Targets) dense() []int32 {
	if t == nil {
		return nil
	}
	k := t.width()
	out := make([]int32, t.Rows*k)
	if t.Crow == nil {
		for i, id := range t.IDs {
			out[i] = int32(id)
		}
		return out
	}
	for i := range out {
		out[i] = -1
	}
	for r := range t.Rows {
		for i, id := range t.IDs[t.Crow[r]:t.Crow[r+1]] {
			out[r*k+i] = int32(id)
		}
	}
	return out
}

// answer lays the engine's scores, [Rows,width], out as the request was.
func (t *Targets) answer(scores []float32) *TargetLogprobs {
	if t == nil {
		return nil
	}
	out := &TargetLogprobs{Rows: t.Rows, Columns: t.Columns, Crow: t.Crow, Col: t.Col, Logprobs: scores}
	if t.Crow == nil {
		return out
	}
	k := t.width()
	out.Logprobs = make([]float32, len(t.IDs))
	for r := range t.Rows {
		first, end := t.Crow[r], t.Crow[r+1]
		copy(out.Logprobs[first:end], scores[r*k:])
	}
	return out
}

// hash writes what the table asks.
func (t *Targets) hash(h hasher) {
	h.bool(t != nil)
	if t == nil {
		return
	}
	h.int(int64(t.Rows))
	h.int(int64(t.Columns))
	for _, v := range [][]int64{t.IDs, t.Crow, t.Col} {
		h.int(int64(len(v)))
		for _, x := range v {
			h.int(x)
		}
	}
}
