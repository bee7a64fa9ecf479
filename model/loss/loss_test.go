package loss_test

import (
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"smolgym/kernels"
	"smolgym/kernels/reference"
	"smolgym/model/grad"
	"smolgym/model/ir"
	"smolgym/model/loss"
	"smolgym/model/plan"
)

// values are what a test binds by name: []float32 or []int32.
type values map[string]any

// evaluate runs a graph on the reference device and gives every output and state.
func evaluate(t *testing.T, g *ir.Graph, dims ir.Dims, in values) map[string][]float32 {
	t.Helper()
	p, err := plan.Build(g, dims)
	if err == nil {
		err = plan.Verify(p)
	}
	if err != nil {
		t.Fatal(err)
	}
	dev := reference.Open(reference.Options{})
	alloc := func(n int64) kernels.Buffer {
		b, err := dev.Alloc(n)
		if err != nil {
			t.Fatal(err)
		}
		return b
	}
	bufs := make([]kernels.Buffer, len(p.Slots))
	for i, s := range p.Slots {
		bufs[i] = alloc(s.Type.Bytes(dims))
		if v, bound := in[s.Name]; bound {
			var raw []byte
			if raw, err = binary.Append(nil, binary.LittleEndian, v); err == nil {
				err = dev.Write(bufs[i], 0, raw)
			}
		} else if s.Class != ir.ClassState && !s.Output {
			t.Fatalf("nothing bound to %s", s.Name)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	if err := dev.Run(p, dims, bufs, alloc(p.ArenaBytes), nil); err != nil {
		t.Fatal(err)
	}
	out := map[string][]float32{}
	for i, s := range p.Slots {
		if s.Class == ir.ClassState || s.Output {
			raw := make([]byte, s.Type.Bytes(dims))
			x := make([]float32, len(raw)/4)
			if err = dev.Read(raw, bufs[i], 0); err == nil {
				_, err = binary.Decode(raw, binary.LittleEndian, x)
			}
			if err != nil {
				t.Fatal(err)
			}
			out[s.Name] = x
		}
	}
	return out
}

// overTable is a loss whose log-probabilities [T,width] are looked up in a
// trained table, row i for token i: the table's gradient is that of the loss with
// respect to each log-probability.
func overTable(t *testing.T, name string, rows, width int) *ir.Graph {
	t.Helper()
	g := ir.New(name)
	p := g.Op1(ir.OpEmbed, ir.Attrs{Layer: -1}, g.Input("ids", ir.I32, ir.Of(ir.T)), g.Weight("p", ir.F32, ir.Const(rows), ir.Const(width)))
	g.Output(loss.LogProbs, p)
	return differentiate(t, g, name)
}

func differentiate(t *testing.T, g *ir.Graph, name string) *ir.Graph {
	t.Helper()
	if err := loss.Append(g, name); err != nil {
		t.Fatal(err)
	}
	b, _, err := grad.Backward(g, loss.Output, func(v *ir.Value) bool { return v.Name == "p" })
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// run computes the loss of each datum and dL/dp. in holds the request's fields.
func run(t *testing.T, name string, p []float32, width int, lengths []int, in values, config map[string]float64) (losses, gradient []float32) {
	t.Helper()
	rows := len(p) / width
	g := overTable(t, name, rows, width)
	out := evaluate(t, g, ir.Dims{T: rows, S: len(lengths), C: width}, bind(t, name, p, width, lengths, in, config))
	return out[loss.Output], out["grad:p"]
}

// bind fills a loss's inputs as its table row says.
func bind(t *testing.T, name string, p []float32, width int, lengths []int, in values, config map[string]float64) values {
	t.Helper()
	spec, ok := loss.Lookup(name)
	if !ok {
		t.Fatalf("no loss %s", name)
	}
	v := values{"p": p, "ids": iota32(len(p) / width), "offsets": []int32{0}}
	for _, n := range lengths {
		o := v["offsets"].([]int32)
		v["offsets"] = append(o, o[len(o)-1]+int32(n))
	}
	for _, i := range spec.Inputs {
		if x, sent := in[i.Field]; sent {
			v[i.Name] = x
			continue
		}
		if slices.Contains(spec.Required, i.Field) {
			t.Fatalf("%s needs %s", name, i.Field)
		}
		fill := i.Default
		if c, set := config[i.Config]; set {
			fill = c
		}
		v[i.Name] = slices.Repeat([]float32{float32(fill)}, len(p))
	}
	return v
}

func iota32(n int) []int32 {
	x := make([]int32, n)
	for i := range x {
		x[i] = int32(i)
	}
	return x
}

func closeTo(t *testing.T, what string, got []float32, want ...float64) {
	t.Helper()
	if len(got) != len(want) {
		t.Errorf("%s: %v, want %v", what, got, want)
		return
	}
	for i := range want {
		if d := math.Abs(float64(got[i]) - want[i]); !(d <= 2e-6*math.Max(1, math.Abs(want[i]))) {
			t.Errorf("%s: [%d] is %g, want %g", what, i, got[i], want[i])
		}
	}
}

// Ratios 0.5, 1, 1.6, each with advantage +1 then -1, one datum a token.
func TestRatiosAndBounds(t *testing.T) {
	r := []float64{0.5, 0.5, 1, 1, 1.6, 1.6}
	var p, q []float32
	for _, v := range r {
		p, q = append(p, float32(math.Log(v)-1)), append(q, -1)
	}
	in := values{"logprobs": q, "advantages": []float32{1, -1, 1, -1, 1, -1}}
	ones := []int{1, 1, 1, 1, 1, 1}
	l, g := run(t, "importance_sampling", p, 1, ones, in, nil)
	closeTo(t, "importance sampling", l, -0.5, 0.5, -1, 1, -1.6, 1.6)
	closeTo(t, "importance sampling gradient", g, -0.5, 0.5, -1, 1, -1.6, 1.6)
	l, g = run(t, "ppo", p, 1, ones, in, nil)
	closeTo(t, "ppo", l, -0.5, 0.8, -1, 1, -1.2, 1.6)
	closeTo(t, "ppo gradient", g, -0.5, 0, -1, 1, 0, 1.6)
	_, g = run(t, "cispo", p, 1, ones, in, nil)
	closeTo(t, "cispo gradient", g, -0.5, 0.5, -1, 1, -1.6, 1.6)
	_, g = run(t, "cispo", p, 1, ones, in, map[string]float64{"clip_low_threshold": 0.8, "clip_high_threshold": 1.2})
	closeTo(t, "cispo gradient, clipped", g, -0.8, 0.8, -1, 1, -1.2, 1.2)
	// A bound itself is inside.
	in["clip_low_threshold"], in["clip_high_threshold"] = []float32{1, 1, 1, 1, 2, 2}, []float32{2, 2, 1, 1, 2, 2}
	_, g = run(t, "ppo", p, 1, ones, in, nil)
	closeTo(t, "ppo gradient with bounds for each token", g, -0.5, 0, -1, 1, -1.6, 0)
}

func TestGoldenLosses(t *testing.T) {
	text, err := os.ReadFile(filepath.Join("..", "..", "testdata", "goldens", "losses.json"))
	if err != nil {
		t.Fatal(err)
	}
	var file struct {
		Cases []struct {
			Label, Loss_fn      string
			Config              map[string]float64
			Logprob             json.RawMessage
			Sampled_logprob     []float32
			Advantages, Weights json.RawMessage
			Logits, Grad_logits [][]float32
			Target_tokens       json.RawMessage
			Loss                float64
			Grad                []float64
		}
	}
	if err := json.Unmarshal(text, &file); err != nil {
		t.Fatal(err)
	}
	for i, c := range file.Cases {
		t.Run(fmt.Sprint(i, " ", c.Loss_fn, " ", c.Label), func(t *testing.T) {
			in := values{"logprobs": c.Sampled_logprob}
			if c.Advantages != nil {
				in["advantages"] = flat(t, c.Advantages)
			}
			if c.Weights != nil {
				in["weights"] = flat(t, c.Weights)
			}
			if c.Logits != nil {
				goldenLogits(t, c.Loss_fn, c.Logits, c.Target_tokens, in, c.Config, c.Loss, c.Grad_logits)
				return
			}
			p := flat(t, c.Logprob)
			if c.Loss_fn == "dro" {
				c.Loss -= silencePenalty(c.Grad, in, c.Config["beta"])
			}
			l, g := run(t, c.Loss_fn, p, 1, []int{len(p)}, in, c.Config)
			closeTo(t, "loss", l, c.Loss)
			closeTo(t, "gradient", g, c.Grad...)
		})
	}
}

// silencePenalty takes the tokens with advantage 0 out of a golden of dro, whose
// formula has w·β/2·(p-q)² for them too: they count for nothing here, by the rule
// that holds for all losses (a prompt's tokens are sent with advantage 0 and
// log-probability 0). It clears their gradients w·β·(p-q) and returns their loss.
func silencePenalty(grad []float64, in values, beta float64) (penalty float64) {
	for i, a := range in["advantages"].([]float32) {
		if a != 0 {
			continue
		}
		w := 1.0
		if x, ok := in["weights"].([]float32); ok {
			w = float64(x[i])
		}
		if grad[i] != 0 {
			penalty += grad[i] * grad[i] / (2 * beta * w)
		}
		grad[i] = 0
	}
	return penalty
}

// flat reads a list of numbers or of lists of numbers.
func flat(t *testing.T, raw json.RawMessage) []float32 {
	t.Helper()
	var one []float32
	if json.Unmarshal(raw, &one) == nil {
		return one
	}
	var two [][]float32
	if err := json.Unmarshal(raw, &two); err != nil {
		t.Fatal(err)
	}
	return slices.Concat(two...)
}

func goldenLogits(t *testing.T, name string, logits [][]float32, targets json.RawMessage, in values, config map[string]float64, want float64, wantGrad [][]float32) {
	t.Helper()
	rows, vocab := len(logits), len(logits[0])
	ids := flat(t, targets)
	width := len(ids) / rows
	g := ir.New(name)
	x := g.Op1(ir.OpEmbed, ir.Attrs{Layer: -1}, g.Input("ids", ir.I32, ir.Of(ir.T)), g.Weight("p", ir.F32, ir.Const(rows), ir.Const(vocab)))
	g.Output(loss.LogProbs, g.Add(ir.OpLogProb, ir.Attrs{Layer: -1}, x, g.Input("targets", ir.I32, ir.Of(ir.T), ir.Of(ir.C)))[0])
	v := bind(t, name, make([]float32, rows*width), width, []int{rows}, in, config)
	v["p"] = slices.Concat(logits...)
	v["ids"] = iota32(rows)
	v["targets"] = make([]int32, len(ids))
	for i, id := range ids {
		v["targets"].([]int32)[i] = int32(id)
	}
	out := evaluate(t, differentiate(t, g, name), ir.Dims{T: rows, S: 1, C: width}, v)
	closeTo(t, "loss", out[loss.Output], want)
	var flatGrad []float64
	for _, row := range wantGrad {
		for _, x := range row {
			flatGrad = append(flatGrad, float64(x))
		}
	}
	closeTo(t, "gradient", out["grad:p"], flatGrad...)
}

// Tokens with zero weight or zero advantage add exactly nothing, whatever their
// log-probabilities are.
func TestSilentTokensAddNothing(t *testing.T) {
	inf, nan := float32(math.Inf(1)), float32(math.NaN())
	bad := []float32{-inf, inf, nan, -300}
	p := append(append([]float32{-0.5}, bad...), -0.25)
	q := append([]float32{-1, nan, -1, -inf}, 400, -1)
	for _, name := range loss.Names() {
		for _, silent := range []string{"weights", "advantages"} {
			if name == "cross_entropy" && silent == "advantages" {
				continue
			}
			in := values{"logprobs": q, "advantages": []float32{1, 1, -1, 1, -1, -1}, "weights": []float32{1, 1, 2, 1, 1, 1}, "sequence_ratio_mask": []float32{1, 0, 0, 0, 0, 1}}
			zero := slices.Clone(in[silent].([]float32))
			clear(zero[1:5])
			in[silent] = zero
			l, g := run(t, name, p, 1, []int{6}, in, nil)
			short := values{}
			for k, v := range in {
				x := v.([]float32)
				short[k] = []float32{x[0], x[5]}
			}
			wantL, wantG := run(t, name, []float32{p[0], p[5]}, 1, []int{2}, short, nil)
			if l[0] != wantL[0] || math.IsNaN(float64(l[0])) {
				t.Errorf("%s with zero %s: loss %g, without those tokens %g", name, silent, l[0], wantL[0])
			}
			if want := []float32{wantG[0], 0, 0, 0, 0, wantG[1]}; !slices.Equal(g, want) {
				t.Errorf("%s with zero %s: gradient %v, want %v", name, silent, g, want)
			}
		}
	}
}

// Losses are sums: weights are factors and datums are apart.
func TestWeightsAndDatums(t *testing.T) {
	p := []float32{-0.5, -1.5, -2, -0.25, -3, -1}
	in := values{"logprobs": []float32{-1, -1, -2, -0.5, -3.5, -1}, "advantages": []float32{1, -2, 0.5, 1, -1, 3}, "sequence_ratio_mask": []float32{1, 1, 0, 1, 1, 1}, "weights": []float32{1, 1, 1, 1, 1, 1}}
	for _, name := range loss.Names() {
		one, gOne := run(t, name, p, 1, []int{2, 4}, in, nil)
		in["weights"] = []float32{2, 2, -3, -3, -3, -3}
		l, g := run(t, name, p, 1, []int{2, 4}, in, nil)
		closeTo(t, name, l, 2*float64(one[0]), -3*float64(one[1]))
		for i := range g {
			f := []float64{2, 2, -3, -3, -3, -3}[i]
			closeTo(t, fmt.Sprint(name, " gradient ", i), g[i:i+1], f*float64(gOne[i]))
		}
		in["weights"] = []float32{1, 1, 1, 1, 1, 1}
	}
}

// gspo: the sequence's ratio is the value, each token's own probability the
// gradient.
func TestGSPO(t *testing.T) {
	p := []float32{-0.5, -1.5, -2, -1}
	in := values{"logprobs": []float32{-0.7, -1.4, -2.3, -1.5}, "advantages": []float32{1, -1, 2, 1}, "sequence_ratio_mask": []float32{1, 0, 1, 0}}
	wide := map[string]float64{"clip_low_threshold": 0.5, "clip_high_threshold": 2}
	s := math.Exp((0.2 + 0.3) / 2)
	l, g := run(t, "gspo", p, 1, []int{3, 1}, in, wide)
	closeTo(t, "loss", l, -2*s, -1) // advantages 1-1+2; an empty mask: ratio 1
	closeTo(t, "gradient", g, -s, s, -2*s, -1)
	l, g = run(t, "gspo", p, 1, []int{3, 1}, in, nil) // s is above 1+4e-4
	closeTo(t, "clipped loss", l, -(1.0004 - s + 2*1.0004), -1)
	closeTo(t, "clipped gradient", g, 0, s, 0, -1)
}

func TestTable(t *testing.T) {
	if got := fmt.Sprint(loss.Names()); got != "[cross_entropy importance_sampling ppo cispo dro gspo]" {
		t.Error(got)
	}
	for name, want := range map[string]string{
		"cross_entropy":       "[weights] [] map[] true",
		"importance_sampling": "[logprobs advantages] [weights] map[] false",
		"ppo":                 "[logprobs advantages] [clip_low_threshold clip_high_threshold weights] map[clip_high_threshold:1.2 clip_low_threshold:0.8] false",
		"cispo":               "[logprobs advantages] [clip_low_threshold clip_high_threshold weights] map[clip_high_threshold:4 clip_low_threshold:0] false",
		"dro":                 "[logprobs advantages] [beta weights] map[beta:0.05] false",
		"gspo":                "[logprobs advantages sequence_ratio_mask] [clip_low_threshold clip_high_threshold weights] map[clip_high_threshold:1.0004 clip_low_threshold:0.9997] false",
	} {
		s, ok := loss.Lookup(name)
		if got := fmt.Sprint(s.Required, s.Optional, s.Config, s.Targets2D); !ok || got != want {
			t.Errorf("%s: %s, want %s", name, got, want)
		}
		if len(s.Inputs) != len(s.Required)+len(s.Optional) {
			t.Errorf("%s: %d inputs", name, len(s.Inputs))
		}
	}
	g := ir.New("g")
	if err := loss.Append(g, "hinge"); !errors.Is(err, loss.ErrUnknown) {
		t.Errorf("unknown loss: %v", err)
	}
	if err := loss.Append(g, "ppo"); err == nil {
		t.Error("a graph without log-probabilities is accepted")
	}
}
