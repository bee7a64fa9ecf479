package arch

import (
	"testing"

	"smolgym/model/ir"
)

// TestNarrow: matrices become bf16, among them an embedding that is the head as
// well; norms, biases and what is read in another way do not.
func TestNarrow(t *testing.T) {
	g := ir.New("narrow")
	ids := g.Input("ids", ir.I32, ir.Of(ir.T))
	table := g.Weight("table", ir.F32, ir.Const(8), ir.Const(4))
	both := g.Weight("both", ir.F32, ir.Const(4), ir.Const(4)) // a matrix and an addend
	bias, norm := g.Weight("bias", ir.F32, ir.Const(4)), g.Weight("norm", ir.F32, ir.Const(4))
	g.Weight("unread", ir.F32, ir.Const(4), ir.Const(4))
	x := g.Op1(ir.OpEmbed, ir.Attrs{}, ids, table)
	x = g.Op1(ir.OpRMSNorm, ir.Attrs{Heads: 1, Eps: 1e-6}, x, norm)
	x = g.Op1(ir.OpLinear, ir.Attrs{}, x, both, bias)
	x = g.Op1(ir.OpLinear, ir.Attrs{}, x, g.Op1(ir.OpScale, ir.Attrs{Scale: 2}, both))
	g.Output("logits", g.Op1(ir.OpLinear, ir.Attrs{}, x, table))
	m := &Model{Graph: g}
	if n := m.Narrow(); n != 1 {
		t.Errorf("%d weights narrowed, want the table alone", n)
	}
	for _, id := range g.Named(ir.ClassWeight) {
		want := ir.F32
		if g.Value(id).Name == "table" {
			want = ir.BF16
		}
		if v := g.Value(id); v.Type.DType != want {
			t.Errorf("%s is %s", v.Name, v.Type.DType)
		}
	}
	if _, err := g.Finish(); err != nil {
		t.Error(err)
	}
}
