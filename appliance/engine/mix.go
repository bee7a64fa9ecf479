package engine

import (
	"cmp"
	"slices"

	"smolgym/kernels"
	"smolgym/model/ir"
	"smolgym/model/lora"
	"smolgym/model/plan"
)

// mixture is the weights that decode together, in one pass over the base's: any
// number of adapters, of whatever ranks and modules, beside the bare base model.
type mixture struct {
	weights []*Weights // adapters, by name; place i+1 of the group is weights[i]
	parts   decodeKey  // modules that any of them adapts
	modules []lora.Adapter
	group   kernels.Buffer // nil without adapters
}

// mixable says whether w decodes beside other weights of its base.
func (b *Base) mixable(cfg TrainerConfig) bool {
	return cfg.LoRA != nil && lora.Mixable(b.decode.Graph, cfg.loraConfig())
}

// scale is the factor of the adapter's output.
func (w *Weights) scale() float32 { return float32(w.cfg.loraConfig().Scale()) }

// mostMixed is how many sets of weights a mixture may have when not all of them decode.
const mostMixed = 64

// mixed gives a mixture of the sequences' weights. It is kept from step to step, and
// with samplers that have no sequence now, as between two requests: only one that is
// new or gone makes another mixture.
func (b *Base) mixed(seqs []*sequence) (*mixture, error) {
	var weights []*Weights
	for _, s := range seqs {
		if w := s.j.weights; !w.base && !slices.Contains(weights, w) {
			weights = append(weights, w)
		}
	}
	if b.mix != nil {
		kept := slices.DeleteFunc(slices.Clone(b.mix.weights), func(w *Weights) bool { return w.own == nil }) // freed
		fresh := slices.DeleteFunc(slices.Clone(weights), func(w *Weights) bool { return slices.Contains(kept, w) })
		if len(fresh) == 0 && len(kept) == len(b.mix.weights) {
			return b.mix, nil
		}
		if len(kept)+len(fresh) <= mostMixed {
			weights = append(kept, fresh...)
		}
	}
	slices.SortFunc(weights, func(a, b *Weights) int { return cmp.Compare(a.name, b.name) })
	m := &mixture{weights: weights}
	for _, w := range weights {
		m.parts.attention = m.parts.attention || w.cfg.Attention
		m.parts.mlp = m.parts.mlp || w.cfg.MLP
		m.parts.unembed = m.parts.unembed || w.cfg.Unembed
	}
	if len(weights) > 0 {
		_, modules, err := lora.Mix(b.decode.Graph, m.parts.config())
		if err != nil {
			return nil, err
		}
		m.modules = modules
		if m.group, err = b.e.dev.Group(m.tensors()); err != nil {
			return nil, err
		}
	}
	b.dropMixture()
	b.mix = m
	return m, nil
}

func (b *Base) dropMixture() {
	if b.mix != nil && b.mix.group != nil {
		b.mix.group.Free()
	}
	b.mix = nil
}

// tensors are the group's parts: A and B of each module, adapter by adapter.
func (m *mixture) tensors() []kernels.Buffer {
	list := make([]kernels.Buffer, 0, 2*len(m.weights)*len(m.modules))
	for _, w := range m.weights {
		for _, a := range m.modules {
			for _, name := range []string{a.A, a.B} {
				if buf, ok := w.own[name]; ok {
					list = append(list, buf)
				} else {
					list = append(list, nil)
				}
			}
		}
	}
	return list
}

// places tells which adapter each row has and its scale, for rows of the batch's
// sequences as owner lists them.
func (m *mixture) places(seqs []*sequence, owner []int) (place []int32, scale []float32) {
	at, factor := make([]int32, len(seqs)), make([]float32, len(seqs))
	for i, s := range seqs {
		if w := s.j.weights; !w.base {
			at[i], factor[i] = int32(slices.Index(m.weights, w)+1), w.scale()
		}
	}
	for _, i := range owner {
		place, scale = append(place, at[i]), append(scale, factor[i])
	}
	return place, scale
}

func (k decodeKey) config() lora.Config {
	return lora.Config{Attention: k.attention, MLP: k.mlp, Unembed: k.unembed}
}

// program is the decoding program of a mixture.
func (m *mixture) program(b *Base, capacity ir.Dims) (*ir.Program, error) {
	return b.decodeProgram(m.parts, capacity, func() (*ir.Graph, error) {
		if len(m.weights) == 0 {
			return b.decode.Graph, nil
		}
		g, _, err := lora.Mix(b.decode.Graph, m.parts.config())
		return g, err
	})
}

// decodeProgram plans a decoding graph once.
func (b *Base) decodeProgram(key decodeKey, capacity ir.Dims, graph func() (*ir.Graph, error)) (*ir.Program, error) {
	if p, ok := b.decoders[key]; ok {
		return p, nil
	}
	g, err := graph()
	if err != nil {
		return nil, err
	}
	p, err := plan.Build(g, capacity)
	if err != nil {
		return nil, err
	}
	b.decoders[key] = p
	return p, nil
}

// interleave orders sequences so that weights take turns, those of one in order
// of arrival; which is first changes from step to step. So a batch that can't
// hold all, of sequences or of prompts' tokens, leaves no sampler out.
func (d *decoder) interleave(seqs []*sequence) []*sequence {
	var order []uint64
	of := map[uint64][]*sequence{}
	for _, s := range seqs {
		id := s.j.weights.id()
		if of[id] == nil {
			order = append(order, id)
		}
		of[id] = append(of[id], s)
	}
	d.steps++
	list := make([]*sequence, 0, len(seqs))
	for i := 0; len(list) < len(seqs); i++ {
		for j := range order {
			if of := of[order[(d.steps+j)%len(order)]]; i < len(of) {
				list = append(list, of[i])
			}
		}
	}
	return list
}
