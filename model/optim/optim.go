package optim

import (
	"errors"
	"fmt"
	"math"

	"smolgym/model/ir"
)

// ErrParam is wrapped by the errors of this package.
var ErrParam = errors.New("unusable optimizer setting")

// Param is one trained tensor.
type Param struct {
	Name  string
	Class ir.Class // ClassWeight or ClassAdapter
	Shape ir.Shape
	Grads []string // accumulators: states with its gradient, summed in this order
	// Narrow: the model computes with a bf16 copy, the state Copy(Name), which
	// follows every update.
	Narrow bool
}

// The names of the states and inputs of the graphs.
const (
	HyperInput = "hyper" // f32[ir.HyperLen]
	normPrefix = "sq:"
)

// NormOutput names the sum of squares of a parameter's gradient, f32[1].
func NormOutput(param string) string { return normPrefix + param }

// Copy names the state with a parameter rounded to bf16.
func Copy(param string) string { return "bf16:" + param }

// Moments names the states with a parameter's first and second moments.
func Moments(param string) (m, v string) { return "m:" + param, "v:" + param }

// Params describes the parameters of g that have accumulators, in the order of
// the graph's values.
func Params(g *ir.Graph, accumulators map[string][]string) []Param {
	var ps []Param
	for i := 1; i < len(g.Values); i++ {
		v := &g.Values[i]
		if acc := accumulators[v.Name]; len(acc) > 0 && (v.Class == ir.ClassWeight || v.Class == ir.ClassAdapter) {
			ps = append(ps, Param{Name: v.Name, Class: v.Class, Shape: v.Type.Shape, Grads: acc})
		}
	}
	return ps
}

// Norm builds a graph with one output [NormOutput] a parameter.
func Norm(params []Param) (*ir.Graph, error) {
	g := ir.New("gradient norm")
	for i, p := range params {
		sum, err := gradient(g, p, i)
		if err != nil {
			return nil, fmt.Errorf("build gradient norm: %w", err)
		}
		g.Output(NormOutput(p.Name), g.Op1(ir.OpSumSquares, ir.Attrs{Layer: i, Module: p.Name}, sum))
	}
	return finish(g)
}

// AdamW builds the graph that updates every parameter, in place. Layers count
// parameters, so that a device may yield between them.
func AdamW(params []Param) (*ir.Graph, error) {
	g := ir.New("adamw")
	hyper := g.Input(HyperInput, ir.F32, ir.Const(ir.HyperLen))
	for i, p := range params {
		sum, err := gradient(g, p, i)
		if err != nil {
			return nil, fmt.Errorf("build adamw: %w", err)
		}
		m, v := Moments(p.Name)
		stepped := g.Add(ir.OpAdamW, ir.Attrs{Layer: i, Module: p.Name},
			g.Declare(p.Class, p.Name, ir.F32, p.Shape...),
			g.Declare(ir.ClassState, m, ir.F32, p.Shape...),
			g.Declare(ir.ClassState, v, ir.F32, p.Shape...),
			sum, hyper)
		if p.Narrow {
			narrow(g, p, stepped[0], i)
		}
	}
	return finish(g)
}

// Copies builds the graph that makes the bf16 copies of the parameters that have one.
func Copies(params []Param) (*ir.Graph, error) {
	g := ir.New("bf16 copies")
	for i, p := range params {
		if p.Narrow {
			narrow(g, p, g.Declare(p.Class, p.Name, ir.F32, p.Shape...), i)
		}
	}
	return finish(g)
}

func narrow(g *ir.Graph, p Param, value ir.ID, layer int) {
	g.Add(ir.OpNarrow, ir.Attrs{Layer: layer, Module: p.Name}, g.Declare(ir.ClassState, Copy(p.Name), ir.BF16, p.Shape...), value)
}

// gradient declares a parameter's accumulators and sums them.
func gradient(g *ir.Graph, p Param, layer int) (ir.ID, error) {
	if p.Class != ir.ClassWeight && p.Class != ir.ClassAdapter {
		return 0, fmt.Errorf("parameter %s: %w: class %s is not trained", p.Name, ErrParam, p.Class)
	}
	if len(p.Grads) == 0 {
		return 0, fmt.Errorf("parameter %s: %w: it has no gradient accumulator", p.Name, ErrParam)
	}
	var sum ir.ID
	for k, name := range p.Grads {
		acc := g.Declare(ir.ClassState, name, ir.F32, p.Shape...)
		if k == 0 {
			sum = acc
			continue
		}
		sum = g.Op1(ir.OpAdd, ir.Attrs{Layer: layer, Module: p.Name}, sum, acc)
	}
	return sum, nil
}

func finish(g *ir.Graph) (*ir.Graph, error) {
	out, err := g.Finish()
	if err != nil {
		return nil, fmt.Errorf("build optimizer: %w", err)
	}
	return out, nil
}

// AdamParams are the settings of one step, as the wire sends them.
type AdamParams struct {
	LR          float64
	Beta1       float64
	Beta2       float64
	Eps         float64
	WeightDecay float64
	ClipNorm    float64 // largest global gradient norm; 0 = no clipping
}

// Check refuses settings that are no numbers or out of range.
func (p AdamParams) Check() error {
	for _, f := range []struct {
		name     string
		value    float64
		low, top float64
		open     bool // top itself is refused
	}{
		{"learning_rate", p.LR, 0, math.MaxFloat32, false},
		{"beta1", p.Beta1, 0, 1, true},
		{"beta2", p.Beta2, 0, 1, true},
		{"eps", p.Eps, 0, math.MaxFloat32, false},
		{"weight_decay", p.WeightDecay, 0, math.MaxFloat32, false},
		{"grad_clip_norm", p.ClipNorm, 0, math.MaxFloat64, false},
	} {
		if !(f.value >= f.low && f.value <= f.top) || (f.open && f.value == f.top) {
			return fmt.Errorf("adam setting %s = %g: %w; it is at least %g and at most %g", f.name, f.value, ErrParam, f.low, f.top)
		}
	}
	return nil
}

// ClipFactor is what gradients of the given global norm are multiplied by, as
// torch's clip_grad_norm_: max/(norm+1e-6), at most 1; 1 if clipping is off.
func (p AdamParams) ClipFactor(norm float64) float64 {
	if p.ClipNorm <= 0 {
		return 1
	}
	return math.Min(1, p.ClipNorm/(norm+1e-6))
}

// Hyper is the hyper input of step number step, counted from 1: torch's AdamW
// with decoupled decay, in float64, each number rounded once to float32.
func Hyper(p AdamParams, step int, gradScale float64) []float32 {
	t := float64(step)
	h := make([]float32, ir.HyperLen)
	h[ir.HyperDecay] = float32(1 - p.LR*p.WeightDecay)
	h[ir.HyperOneMinusBeta1] = float32(1 - p.Beta1)
	h[ir.HyperBeta2] = float32(p.Beta2)
	h[ir.HyperOneMinusBeta2] = float32(1 - p.Beta2)
	h[ir.HyperStepSize] = float32(p.LR / (1 - math.Pow(p.Beta1, t)))
	h[ir.HyperSqrtBias2] = float32(math.Sqrt(1 - math.Pow(p.Beta2, t)))
	h[ir.HyperEps] = float32(p.Eps)
	h[ir.HyperGradScale] = float32(gradScale)
	return h
}
