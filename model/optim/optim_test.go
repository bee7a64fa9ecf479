package optim_test

import (
	"errors"
	"fmt"
	"math"
	"strings"
	"testing"

	"smolgym/model/ir"
	"smolgym/model/optim"
)

var good = optim.AdamParams{LR: 1e-4, Beta1: 0.9, Beta2: 0.95, Eps: 1e-12}

func TestHyper(t *testing.T) {
	p := optim.AdamParams{LR: 0.01, Beta1: 0.9, Beta2: 0.95, Eps: 1e-12, WeightDecay: 0.1}
	want := [ir.HyperLen]float64{
		ir.HyperDecay: 0.999, ir.HyperOneMinusBeta1: 0.1, ir.HyperBeta2: 0.95, ir.HyperOneMinusBeta2: 0.05,
		ir.HyperStepSize: 0.01 / (1 - 0.9*0.9*0.9), ir.HyperSqrtBias2: math.Sqrt(1 - 0.95*0.95*0.95), ir.HyperEps: 1e-12, ir.HyperGradScale: 0.25,
	}
	got := optim.Hyper(p, 3, 0.25)
	for i, w := range want {
		if math.Abs(float64(got[i])-w) > 6e-8*w { // rounded once
			t.Errorf("number %d is %g, want %g", i, got[i], w)
		}
	}
	// 1-beta2 is taken in float64: in float32 it would be off by 1e-6 of itself.
	if got[ir.HyperOneMinusBeta2] != float32(1-0.95) || got[ir.HyperOneMinusBeta2] == 1-float32(0.95) {
		t.Error("1-beta2 is not computed in float64")
	}
}

func TestClipFactor(t *testing.T) {
	p := good
	for _, c := range []struct{ clip, norm, want float64 }{
		{0, 100, 1}, {0.5, 0.25, 1}, {0.5, 0, 1}, {0.5, 2, 0.24999987500006250}, {1, 1, 0.99999900000099999},
	} {
		p.ClipNorm = c.clip
		if got := p.ClipFactor(c.norm); math.Abs(got-c.want) > 1e-15 {
			t.Errorf("clip %g of norm %g: %g, want %g", c.clip, c.norm, got, c.want)
		}
	}
}

func TestCheck(t *testing.T) {
	if err := good.Check(); err != nil {
		t.Error(err)
	}
	nan, inf := math.NaN(), math.Inf(1)
	for name, change := range map[string]func(p *optim.AdamParams, v float64){
		"learning_rate":  func(p *optim.AdamParams, v float64) { p.LR = v },
		"beta1":          func(p *optim.AdamParams, v float64) { p.Beta1 = v },
		"beta2":          func(p *optim.AdamParams, v float64) { p.Beta2 = v },
		"eps":            func(p *optim.AdamParams, v float64) { p.Eps = v },
		"weight_decay":   func(p *optim.AdamParams, v float64) { p.WeightDecay = v },
		"grad_clip_norm": func(p *optim.AdamParams, v float64) { p.ClipNorm = v },
	} {
		bad := []float64{nan, inf, -1e-9}
		if strings.HasPrefix(name, "beta") {
			bad = append(bad, 1)
		}
		for _, v := range bad {
			p := good
			change(&p, v)
			if err := p.Check(); !errors.Is(err, optim.ErrParam) || !strings.Contains(err.Error(), name) {
				t.Errorf("%s = %g: %v", name, v, err)
			}
		}
		p := good
		if change(&p, 0); p.Check() != nil {
			t.Errorf("%s = 0 is refused: %v", name, p.Check())
		}
	}
}

func TestGraphs(t *testing.T) {
	params := []optim.Param{
		{Name: "embed", Class: ir.ClassWeight, Shape: ir.Shape{ir.Const(4), ir.Const(3)}, Grads: []string{"grad:embed", "grad:embed#1", "grad:embed#2"}},
		{Name: "a", Class: ir.ClassAdapter, Shape: ir.Shape{ir.Const(3)}, Grads: []string{"grad:a"}},
	}
	for _, c := range []struct {
		build func([]optim.Param) (*ir.Graph, error)
		want  []string
	}{
		{optim.Norm, []string{
			"= Add(grad:embed, grad:embed#1)", "grad:embed#2)", "SumSquares(grad:a)", "sq:embed", "sq:a"}},
		{optim.AdamW, []string{
			"f32[4,3]           embed", "adapter", "m:embed", "v:a", "= AdamW(a, m:a, v:a, grad:a, hyper)", "f32[8]             hyper"}},
	} {
		g, err := c.build(params)
		if err != nil {
			t.Fatal(err)
		}
		var b strings.Builder
		if err := ir.Dump(&b, g); err != nil {
			t.Fatal(err)
		}
		for _, line := range c.want {
			if !strings.Contains(b.String(), line) {
				t.Errorf("no %q in\n%s", line, &b)
			}
		}
		layers := map[string]int{}
		for _, n := range g.Nodes {
			layers[n.Attr.Module] = n.Attr.Layer
		}
		if fmt.Sprint(layers) != "map[a:1 embed:0]" {
			t.Errorf("layers %v: a parameter is a layer", layers)
		}
		for name, bad := range map[string]optim.Param{
			"no accumulator": {Name: "x", Class: ir.ClassWeight, Shape: ir.Shape{ir.Const(1)}},
			"an input":       {Name: "x", Class: ir.ClassInput, Shape: ir.Shape{ir.Const(1)}, Grads: []string{"g"}},
			"another shape":  {Name: "x", Class: ir.ClassWeight, Shape: ir.Shape{ir.Const(1)}, Grads: []string{"grad:a"}},
		} {
			if _, err := c.build(append(params[:2:2], bad)); err == nil {
				t.Errorf("%s is accepted", name)
			}
		}
	}
}

func TestParams(t *testing.T) {
	g := ir.New("g")
	g.Weight("w2", ir.F32, ir.Const(2))
	g.Declare(ir.ClassAdapter, "a", ir.F32, ir.Const(3))
	g.Weight("frozen", ir.F32, ir.Const(2))
	g.Weight("w1", ir.F32, ir.Const(1))
	got := optim.Params(g, map[string][]string{"w1": {"grad:w1"}, "w2": {"grad:w2", "grad:w2#1"}, "a": {"grad:a"}})
	if s := fmt.Sprint(got); s != "[{w2 weight [2] [grad:w2 grad:w2#1] false} {a adapter [3] [grad:a] false} {w1 weight [1] [grad:w1] false}]" {
		t.Error(s)
	}
}
