package customloss

import (
	"encoding/json"
	"fmt"
	"math"
	"slices"
	"testing"

	archive "smolgym/model/golden"
)

// number reads a golden value: JSON has no infinity.
type number float64

func (n *number) UnmarshalJSON(text []byte) error {
	switch string(text) {
	case `"nan"`:
		*n = number(nan)
	case `"inf"`:
		*n = number(inf)
	case `"-inf"`:
		*n = number(-inf)
	default:
		return json.Unmarshal(text, (*float64)(n))
	}
	return nil
}

type golden struct {
	Name   string
	Inputs []Input
	Graph  json.RawMessage
	Data   map[string]struct {
		Shape  []int
		Dtype  string
		Values []number
	}
	Value   number
	Grad    []number
	Metrics map[string]number
}

// goldens were made by testdata/make_goldens.py.
func goldens(t testing.TB) []golden {
	t.Helper()
	var all struct{ Cases []golden }
	if err := json.Unmarshal(archive.Gunzip(t, "testdata/goldens.json.gz"), &all); err != nil {
		t.Fatal(err)
	}
	return all.Cases
}

func (g *golden) tensors() (logprobs Tensor, inputs map[string]Tensor) {
	inputs = map[string]Tensor{}
	for name, d := range g.Data {
		in := Tensor{Shape: d.Shape}
		for _, v := range d.Values {
			if d.Dtype == "int64" {
				in.Int64 = append(in.Int64, int64(v))
			} else {
				in.Float32 = append(in.Float32, float32(v))
			}
		}
		inputs[name] = in
	}
	return inputs["logprobs"], inputs
}

// near is within 1e-5 relative or 1e-6 absolute.
func near(got, want float64) bool {
	if math.IsNaN(want) || math.IsInf(want, 0) {
		return got == want || math.IsNaN(got) && math.IsNaN(want)
	}
	return math.Abs(got-want) <= math.Max(1e-6, 1e-5*math.Abs(want))
}

func TestGoldens(t *testing.T) {
	cases := goldens(t)
	losses := 0
	for _, g := range cases {
		t.Run(g.Name, func(t *testing.T) {
			l, err := Import(g.Graph, g.Inputs)
			if err != nil {
				t.Fatal(err)
			}
			logprobs, inputs := g.tensors()
			before := fmt.Sprint(logprobs, inputs)
			r, err := l.Run(logprobs, inputs)
			if err != nil {
				t.Fatal(err)
			}
			if !near(r.Value, float64(g.Value)) {
				t.Errorf("loss %v, torch has %v", r.Value, g.Value)
			}
			if len(r.Grad) != len(g.Grad) {
				t.Fatalf("%d gradients, torch has %d", len(r.Grad), len(g.Grad))
			}
			for k, want := range g.Grad {
				if !near(float64(r.Grad[k]), float64(want)) {
					t.Errorf("gradient %d is %v, torch has %v", k, r.Grad[k], want)
				}
			}
			if len(r.Metrics) != len(g.Metrics) {
				t.Errorf("metrics %v, torch has %v", r.Metrics, g.Metrics)
			}
			for key, want := range g.Metrics {
				if got, ok := r.Metrics[key]; !ok || !near(got, float64(want)) {
					t.Errorf("metric %s is %v, torch has %v", key, got, want)
				}
			}
			if after := fmt.Sprint(logprobs, inputs); after != before {
				t.Error("a run changed its inputs")
			}
			again, err := l.Run(logprobs, inputs)
			if err != nil || math.Float64bits(again.Value) != math.Float64bits(r.Value) ||
				!slices.EqualFunc(again.Grad, r.Grad, func(x, y float32) bool { return math.Float32bits(x) == math.Float32bits(y) }) {
				t.Errorf("a second run differs: %v", err)
			}
		})
		if len(g.Name) > 5 && g.Name[:5] == "loss " {
			losses++
		}
	}
	if len(cases) < 500 || losses < 40 {
		t.Errorf("%d cases, %d whole losses: the file is not the one testdata/make_goldens.py makes", len(cases), losses)
	}
}
