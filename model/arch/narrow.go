package arch

import "smolgym/model/ir"

// weightAt is the operand with the matrix, of the ops that take it in bfloat16.
var weightAt = map[ir.Op]int{ir.OpEmbed: 1, ir.OpLinear: 1, ir.OpLinearT: 1, ir.OpExpertLinear: 1}

// Narrow declares as bf16 the weights that nothing but products and embeddings
// read; the caller rounds them. Norms, biases and convolutions stay f32, and so
// does all that is computed: a product's other operand is rounded where it is
// multiplied. It gives the number of weights that are now bf16.
func (m *Model) Narrow() int {
	g := m.Graph
	other := make([]bool, len(g.Values))
	used := make([]bool, len(g.Values))
	for i := range g.Nodes {
		at, ok := weightAt[g.Nodes[i].Op]
		for k, id := range g.Nodes[i].In {
			used[id] = true
			other[id] = other[id] || !ok || k != at
		}
	}
	narrowed := 0
	for _, id := range g.Named(ir.ClassWeight) {
		if used[id] && !other[id] {
			g.Value(id).Type.DType = ir.BF16
			narrowed++
		}
	}
	return narrowed
}
