package engine

import (
	"fmt"
	"slices"
	"strings"

	"smolgym/model/grad"
	"smolgym/model/ir"
	"smolgym/model/lora"
	"smolgym/model/loss"
)

// paramSpec is a parameter that a configuration trains.
type paramSpec struct {
	name  string
	class ir.Class
	shape []int64
	grads []string // accumulators, one for each use of the parameter
	half  bool     // the graph reads a bfloat16 copy
}

func (s paramSpec) bytes() int64 {
	n := int64(4)
	for _, d := range s.shape {
		n *= d
	}
	return n
}

// dtype is what the graph reads.
func (s paramSpec) dtype() ir.DType {
	if s.half {
		return ir.BF16
	}
	return ir.F32
}

// read is the size of what the graph reads, in bytes.
func (s paramSpec) read() int64 { return s.bytes() / 4 * int64(s.dtype().Size()) }

// info names the parameter's tensor, or its moment with prefix "m:" or "v:".
func (s paramSpec) info(prefix string) TensorInfo {
	return TensorInfo{Name: prefix + s.name, Shape: s.shape, Bytes: s.bytes(), Optimizer: prefix != ""}
}

// variant is the training graph of a configuration before any loss.
func (b *Base) variant(g *ir.Graph, cfg TrainerConfig) (*ir.Graph, []lora.Adapter, error) {
	if cfg.LoRA == nil {
		return g, nil, nil
	}
	return lora.Apply(g, cfg.loraConfig())
}

// trains reports whether cfg changes a value.
func (c TrainerConfig) trains(v *ir.Value) bool {
	if c.LoRA != nil {
		return v.Class == ir.ClassAdapter
	}
	return v.Class == ir.ClassWeight
}

// lossGraph is the graph of one loss for cfg, with or without its gradient.
func (b *Base) lossGraph(cfg TrainerConfig, name string, forwardOnly bool) (*ir.Graph, grad.Accumulators, error) {
	g, _, err := b.variant(b.train.Graph, cfg)
	if err != nil {
		return nil, nil, err
	}
	g = g.Clone()
	if err := loss.Append(g, name); err != nil {
		return nil, nil, err
	}
	if forwardOnly {
		g, err = g.Finish()
		return g, nil, err
	}
	return grad.Backward(g, "loss", cfg.trains)
}

// params lists what cfg trains, sorted by name.
func (b *Base) params(cfg TrainerConfig) ([]paramSpec, error) {
	g, acc, err := b.lossGraph(cfg, "cross_entropy", false)
	if err != nil {
		return nil, err
	}
	var specs []paramSpec
	for _, class := range []ir.Class{ir.ClassWeight, ir.ClassAdapter} {
		for _, id := range g.Named(class) {
			v := g.Value(id)
			if !cfg.trains(v) {
				continue
			}
			s := paramSpec{name: v.Name, class: class, grads: acc[v.Name], half: v.Type.DType == ir.BF16}
			for _, d := range v.Type.Shape {
				s.shape = append(s.shape, int64(d.N))
			}
			if len(s.grads) == 0 {
				return nil, fmt.Errorf("parameter %s: the loss does not depend on it", v.Name)
			}
			specs = append(specs, s)
		}
	}
	if len(specs) == 0 {
		return nil, fmt.Errorf("%w: nothing to train: turn one of train_attn, train_mlp, train_unembed on", ErrRequest)
	}
	slices.SortFunc(specs, func(a, b paramSpec) int { return strings.Compare(a.name, b.name) })
	return specs, nil
}
