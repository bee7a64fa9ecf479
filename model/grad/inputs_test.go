package grad_test

import (
	"errors"
	"math/rand/v2"
	"slices"
	"testing"

	"smolgym/model/grad"
	"smolgym/model/ir"
)

// TestByInput: the gradient by an input has the bits of the gradient by a table
// that is looked up in its place, row i for token i.
func TestByInput(t *testing.T) {
	through := func(b *bench, x ir.ID) *ir.Graph {
		h := b.op(ir.OpLinear, x, b.param("w", 4, width))
		return b.finish(t, b.op(ir.OpAdd, b.op(ir.OpExp, h), h))
	}
	byTable, byInput := newBench(), newBench()
	tg, ig := through(byTable, byTable.x("table")), through(byInput, byInput.data("x"))
	_, none, err := grad.Backward(ig, "loss", func(*ir.Value) bool { return false }, "x")
	if err != nil || len(none) != 0 {
		t.Fatalf("accumulators %v, %v", none, err)
	}

	r := rand.New(rand.NewPCG(3, 4))
	draw := func(n int) []float32 {
		v := make([]float32, n)
		for i := range v {
			v[i] = float32(r.NormFloat64())
		}
		return v
	}
	table, w, factors := draw(tokens*width), draw(4*width), draw(tokens*4)
	results := map[string][]float32{}
	for name, g := range map[string]*ir.Graph{"table": tg, "x": ig} {
		m := newMachine(t, ir.Dims{T: tokens, S: 1})
		var inputs []string
		if name == "x" {
			inputs = []string{"x"}
		}
		back, acc, err := grad.Backward(g, "loss", func(*ir.Value) bool { return true }, inputs...)
		if err != nil {
			t.Fatal(err)
		}
		if len(acc["w"]) != 1 {
			t.Fatalf("accumulators %v", acc)
		}
		m.set(name, table)
		m.set("w", w)
		m.set("factors", factors)
		m.set("offsets", []int32{0, tokens})
		m.set("ids", []int32{0, 1, 2, 3, 4})
		m.run(back)
		if name == "x" {
			results[name] = m.get(grad.OfInput("x"))
		} else {
			results[name] = m.get("grad:table")
		}
	}
	if !slices.Equal(results["x"], results["table"]) || slices.Max(results["x"]) == 0 {
		t.Errorf("by the input %v, by the table %v", results["x"], results["table"])
	}

	for _, name := range []string{"w", "offsets", "nothing"} {
		if _, _, err := grad.Backward(ig, "loss", func(*ir.Value) bool { return true }, name); !errors.Is(err, grad.ErrGradient) {
			t.Errorf("gradient by %q: %v", name, err)
		}
	}
	unused := newBench()
	unused.data("apart")
	g := through(unused, unused.data("x"))
	if _, _, err := grad.Backward(g, "loss", func(*ir.Value) bool { return true }, "apart"); !errors.Is(err, grad.ErrGradient) {
		t.Errorf("gradient by an input that plays no part: %v", err)
	}
}
