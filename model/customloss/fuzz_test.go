package customloss

import (
	"context"
	"encoding/json"
	"errors"
	"strings"
	"testing"
)

func FuzzImport(f *testing.F) {
	for k, g := range goldens(f) {
		if k%25 == 0 {
			f.Add([]byte(g.Graph))
		}
	}
	f.Add([]byte(`{"format":1,"nodes":[]}`))
	f.Fuzz(func(t *testing.T, graph []byte) {
		inputs := []Input{{"logprobs", 1}, {"w", 1}}
		l, err := Import(graph, inputs)
		if err != nil {
			var gaps *UnsupportedError
			if l != nil || !errors.As(err, &gaps) && !errors.Is(err, ErrGraph) {
				t.Fatalf("%v is of neither kind", err)
			}
			return
		}
		_, err = l.RunWithin(context.Background(), vector(-1, -2, -0.5), map[string]Tensor{"w": vector(1, 0, 2)}, Limits{Elements: 1 << 16, Work: 1 << 20})
		checkRun(t, err)
	})
}

func checkRun(t *testing.T, err error) {
	t.Helper()
	switch {
	case err == nil, errors.Is(err, ErrLimit), errors.Is(err, ErrDatum), errors.Is(err, ErrNoGradient):
	case errors.Is(err, ErrRun) && !strings.Contains(err.Error(), "internal error"):
	default:
		t.Fatal(err)
	}
}

// FuzzRun builds random graphs of valid calls: bytes choose operations of the
// goldens' nodes, constants included, and which earlier results they read.
func FuzzRun(f *testing.F) {
	var pool []jsonNode
	for _, g := range goldens(f) {
		var graph jsonGraph
		if err := json.Unmarshal(g.Graph, &graph); err != nil {
			f.Fatal(err)
		}
		for _, n := range graph.Nodes {
			if strings.HasPrefix(n.Op, "call_") {
				pool = append(pool, n)
			}
		}
	}
	f.Add([]byte{0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13}, 3)
	f.Fuzz(func(t *testing.T, program []byte, size int) {
		next := func() int {
			if len(program) == 0 {
				return 0
			}
			b := int(program[0])
			program = program[1:]
			return b
		}
		names := []string{"logprobs", "w", "t", "two"}
		nodes := []jsonNode{}
		for _, n := range names {
			nodes = append(nodes, jsonNode{Op: "placeholder", Name: n, Target: n})
		}
		for len(program) > 2 && len(nodes) < 40 {
			n := pool[(next()*256+next())%len(pool)]
			rewired, _ := rewire(n.Args, names, next).([]any)
			kwargs, _ := rewire(n.Kwargs, names, next).(map[string]any)
			name := "n" + string(rune('a'+len(nodes)%26)) + string(rune('a'+len(nodes)/26))
			nodes = append(nodes, jsonNode{Op: n.Op, Name: name, Target: n.Target, Args: rewired, Kwargs: kwargs})
			names = append(names, name)
		}
		ref := func(k int) map[string]any { return map[string]any{"ref": names[k]} }
		last := len(names) - 1
		nodes = append(nodes, jsonNode{Op: "call_method", Name: "total", Target: "sum", Args: []any{ref(last)}})
		nodes = append(nodes, jsonNode{Op: "output", Name: "output", Target: "output", Args: []any{map[string]any{"tuple": []any{
			map[string]any{"ref": "total"}, map[string]any{"dict": map[string]any{"custom/m:mean": ref(last)}}}}}})
		format := 1
		graph, err := json.Marshal(jsonGraph{&format, nodes})
		if err != nil {
			t.Fatal(err)
		}
		l, err := Import(graph, []Input{{"logprobs", 1}, {"w", 1}, {"t", 1}, {"two", 2}})
		if err != nil {
			return
		}
		n := size % 5
		if n < 0 {
			n = -n
		}
		lp, w, ints, two := make([]float32, n), make([]float32, n), make([]int64, n), make([]float32, 2*n)
		for k := range n {
			lp[k], w[k], ints[k] = -float32(next())/50, float32(next()-128)/50, int64(next()%6-1)
			two[2*k], two[2*k+1] = float32(next())/90, -float32(next())/90
		}
		r, err := l.RunWithin(context.Background(), vector(lp...), map[string]Tensor{"w": vector(w...), "t": {Shape: []int{n}, Int64: ints}, "two": {Shape: []int{n, 2}, Float32: two}}, Limits{Elements: 1 << 18, Work: 1 << 22})
		checkRun(t, err)
		if err == nil && len(r.Grad) != n {
			t.Fatalf("%d gradients for %d log probabilities", len(r.Grad), n)
		}
	})
}

// rewire points every reference of an encoded argument at some earlier node.
func rewire(v any, names []string, next func() int) any {
	switch v := v.(type) {
	case []any:
		out := make([]any, len(v))
		for k, item := range v {
			out[k] = rewire(item, names, next)
		}
		return out
	case map[string]any:
		out := map[string]any{}
		for _, key := range sortedKeys(v) {
			out[key] = rewire(v[key], names, next)
			if key == "ref" {
				out[key] = names[len(names)-1-next()%min(len(names), 6)]
			}
		}
		return out
	}
	return v
}
