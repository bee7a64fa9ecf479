package arch_test

import (
	"fmt"
	"math"
	"os"
	"path/filepath"
	"testing"

	"smolgym/model/arch"
	"smolgym/model/hf"
	"smolgym/model/ir"
)

// A trained model continues real prompts as the reference does, in one batch of
// all prompts, each with its own pages.
func TestStories(t *testing.T) {
	root := os.Getenv("SMOLGYM_SHARED")
	if root == "" {
		root = filepath.Join("..", "..", "..", "shared")
	}
	dir := filepath.Join(root, "data", "models", "stories260k")
	if _, err := os.Stat(dir); err != nil {
		t.Skip("the stories model is absent; set SMOLGYM_SHARED to the shared folder")
	}
	gold := openGolden(t, dir, new(any))
	src := &without{hidden: "golden.safetensors"}
	var err error
	if src.Source, err = hf.Dir(dir); err != nil {
		t.Fatal(err)
	}
	ck, err := hf.Describe(src)
	if err != nil {
		t.Fatal(err)
	}
	m, err := arch.Build(ck, arch.Decode)
	if err != nil {
		t.Fatal(err)
	}
	if len(m.Unused)+len(m.Warnings) > 0 || !m.Tied || m.Context != 512 {
		t.Errorf("unused %v, warnings %v, tied %v, context %d", m.Unused, m.Warnings, m.Tied, m.Context)
	}
	r := newRig(t)
	r.load(m, ck, src)
	const prompts, pages, steps = 5, 4, 64
	var seqs, tables [][]int32
	for p := range prompts {
		seqs = append(seqs, gold.ids(fmt.Sprint(p, ".input_ids")))
		var table []int32
		for i := range pages {
			table = append(table, int32(i*prompts+p)) // interleaved with the others'
		}
		tables = append(tables, table)
	}
	next, start := seqs, make([]int32, prompts)
	for step := range steps {
		var rows []int32
		total := 0
		for _, s := range next {
			for i := range s {
				if step == 0 || i == len(s)-1 {
					rows = append(rows, int32(total+i))
				}
			}
			total += len(s)
		}
		r.decodeInputs(next, start, tables, rows)
		r.run(m.Graph, ir.Dims{T: total, S: prompts, R: len(rows), P: prompts * pages, B: pages})
		logits, lse := r.floats("logits"), r.floats("lse")
		row := 0
		fresh := make([][]int32, prompts)
		for p := range prompts {
			if step == 0 {
				want := gold.floats(fmt.Sprint(p, ".logits"))
				for i, w := range want {
					if d := math.Abs(float64(logits[row*m.Vocab+i] - w)); d > 1e-4+1e-4*math.Abs(float64(w)) {
						t.Fatalf("prompt %d: logit %d is %g, want %g", p, i, logits[row*m.Vocab+i], w)
					}
				}
				row += len(next[p]) - 1
			}
			best, l := 0, logits[row*m.Vocab:(row+1)*m.Vocab]
			for i, v := range l {
				if v > l[best] {
					best = i
				}
			}
			if got, want := l[best]-lse[row], gold.floats(fmt.Sprint(p, ".greedy_logprobs"))[step]; math.Abs(float64(got-want)) > 1e-4 {
				t.Errorf("prompt %d, token %d: log-probability %g, want %g", p, step, got, want)
			}
			row++
			start[p] = int32(len(seqs[p]))
			fresh[p] = []int32{int32(best)}
			seqs[p] = append(seqs[p], int32(best))
		}
		next = fresh
	}
	for p := range prompts {
		if got, want := fmt.Sprint(seqs[p]), fmt.Sprint(gold.ids(fmt.Sprint(p, ".greedy_ids"))); got != want {
			t.Errorf("prompt %d continues\n%s, want\n%s", p, got, want)
		}
	}
}

// without hides a file that is no part of the model.
type without struct {
	hf.Source
	hidden string
}

func (w *without) Names() []string {
	var names []string
	for _, n := range w.Source.Names() {
		if n != w.hidden {
			names = append(names, n)
		}
	}
	return names
}
