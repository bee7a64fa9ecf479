package plan

import "smolgym/model/ir"

// Bytes is what a program needs, by what it is for.
type Bytes struct {
	Weights  int64 // base model
	Adapters int64
	Consts   int64
	States   int64 // gradients, moments, caches
	Inputs   int64
	Outputs  int64
	Arena    int64 // scratch, at the program's capacity
}

// Total is the sum.
func (b Bytes) Total() int64 {
	return b.Weights + b.Adapters + b.Consts + b.States + b.Inputs + b.Outputs + b.Arena
}

// Memory splits a program's buffers under dims, each rounded up to the
// alignment. The arena is the one that was planned, whatever dims are.
func Memory(p *ir.Program, dims ir.Dims) Bytes {
	m := Bytes{Arena: p.ArenaBytes}
	for _, s := range p.Slots {
		n := align(s.Type.Bytes(dims))
		switch s.Class {
		case ir.ClassWeight:
			m.Weights += n
		case ir.ClassAdapter:
			m.Adapters += n
		case ir.ClassConst:
			m.Consts += n
		case ir.ClassState:
			m.States += n
		case ir.ClassInput:
			m.Inputs += n
		default:
			m.Outputs += n
		}
	}
	return m
}
