package kerneltest

import "smolgym/model/ir"

// Cases and tolerances of the ops that single families need.

func init() {
	for op, c := range map[ir.Op]func(m *maker) (cases, error){
		ir.OpLinearT: linearGradX, // x[T,K] by w[K,N] has the shapes of dy by w
		ir.OpAddRow:  columns, ir.OpDecay: columns, ir.OpCenter: matrix,
		ir.OpJoin: join, ir.OpSlice: sliced(false), ir.OpSliceGrad: sliced(true),
		ir.OpTanh: elementwise(1, true), ir.OpSigmoid: elementwise(1, true), ir.OpSoftplus: elementwise(1, true), ir.OpGELU: elementwise(1, false), ir.OpGELUTanh: elementwise(1, false),
		ir.OpGELUGrad: elementwise(2, false), ir.OpGELUTanhGrad: elementwise(2, false),
		ir.OpScaleRows: scaleRows, ir.OpSumRows: groupsOfRows, ir.OpRepeatRows: repeatRows, ir.OpRowDot: rowDot,
	} {
		table[op] = c
	}
	for op, tol := range map[ir.Op]Tolerance{
		ir.OpLinearT: {Rel: 1e-6, Abs: 1e-6, Why: whySum},
		ir.OpAddRow:  exact, ir.OpJoin: exact, ir.OpSlice: exact, ir.OpSliceGrad: exact, ir.OpScaleRows: exact, ir.OpRepeatRows: exact,
		ir.OpCenter:       {Rel: 1e-6, Abs: 2e-7, Why: whySum},
		ir.OpDecay:        {Rel: 3e-7, Why: whyExp},
		ir.OpTanh:         {Rel: 4e-7, Why: "a polynomial below 0.625, exp beyond it"},
		ir.OpSigmoid:      {Rel: 4e-7, Abs: 1e-38, Why: whyExp + "; below -88 exp(-x) overflows and the result is 0"},
		ir.OpSoftplus:     {Rel: 5e-7, Why: "exp, then a logarithm with its argument's rounding made good"},
		ir.OpGELU:         {Rel: 2e-6, Abs: 3e-7, Why: "erfc by an approximation 1.2e-7 off"},
		ir.OpGELUTanh:     {Rel: 2e-6, Abs: 2e-7, Why: whyExp + " of an argument with four roundings"},
		ir.OpGELUGrad:     {Rel: 2e-6, Abs: 3e-7, Why: "erfc by an approximation 1.2e-7 off; the terms cancel for negative a"},
		ir.OpGELUTanhGrad: {Rel: 2e-6, Abs: 3e-7, Why: whyExp + "; the terms cancel for negative a"},
		ir.OpSumRows:      {Rel: 1e-6, Abs: 2e-7, Why: whySum},
		ir.OpRowDot:       {Rel: 1e-6, Abs: 1e-6, Why: whySum},
	} {
		tolerances[op] = tol
	}
}

var matrices = [][2]int{{1, 1}, {7, 19}, {130, 515}}

func matrix(m *maker) (cs cases, err error) {
	for _, s := range matrices {
		d := ir.Dims{T: s[0]}
		cs = append(cs, Case{Dims: d, In: []Operand{m.floats(d, tokens, ir.Const(s[1]))}})
	}
	return cs, nil
}

func columns(m *maker) (cases, error) {
	cs, err := matrix(m)
	for i, c := range cs {
		cs[i].In = append(c.In, m.floats(c.Dims, c.In[0].Type.Shape[1]))
	}
	return cs, err
}

func sliced(grad bool) func(m *maker) (cases, error) {
	return func(m *maker) (cs cases, err error) {
		for i, a := range []ir.Attrs{{Heads: 1, HeadDim: 1, Of: 1}, {Heads: 3, HeadDim: 5, Of: 12, Offset: 7}, {Heads: 4, HeadDim: 64, Of: 192, Offset: 64}} {
			d := ir.Dims{T: 1 + 60*i}
			width := a.Of
			if grad {
				width = a.HeadDim
			}
			cs = append(cs, Case{Attr: a, Dims: d, In: []Operand{m.floats(d, tokens, ir.Const(a.Heads*width))}})
		}
		return cs, nil
	}
}

func join(m *maker) (cs cases, err error) {
	for _, widths := range [][]int{{1, 1}, {5, 16, 37}, {128, 128, 64, 3}} {
		c := Case{Dims: ir.Dims{T: 3 * len(widths) * widths[0]}}
		for _, n := range widths {
			c.In = append(c.In, m.floats(c.Dims, tokens, ir.Const(n)))
		}
		cs = append(cs, c)
	}
	return cs, nil
}

// choices are [T, k, D]: tokens, experts of each, columns.
var choices = [][3]int{{1, 1, 1}, {5, 3, 37}, {200, 4, 130}}

func rowsOf(pick int) ir.Dim { return ir.Dim{Sym: ir.T, N: pick} }

func scaleRows(m *maker) (cs cases, err error) {
	for _, s := range choices {
		d := ir.Dims{T: s[0]}
		cs = append(cs, Case{Dims: d, In: []Operand{m.floats(d, rowsOf(s[1]), ir.Const(s[2])), m.floats(d, tokens, ir.Const(s[1]))}})
	}
	return cs, nil
}

func groupsOfRows(m *maker) (cs cases, err error) {
	for _, s := range choices {
		d := ir.Dims{T: s[0]}
		cs = append(cs, Case{Attr: ir.Attrs{Pick: s[1]}, Dims: d, In: []Operand{m.floats(d, rowsOf(s[1]), ir.Const(s[2]))}})
	}
	return cs, nil
}

func rowDot(m *maker) (cases, error) {
	cs, err := groupsOfRows(m)
	for i, c := range cs {
		cs[i].In = append(c.In, m.floats(c.Dims, c.In[0].Type.Shape...))
	}
	return cs, err
}

func repeatRows(m *maker) (cs cases, err error) {
	for _, s := range choices {
		d := ir.Dims{T: s[0]}
		cs = append(cs, Case{Attr: ir.Attrs{Pick: s[1]}, Dims: d, In: []Operand{m.floats(d, tokens, ir.Const(s[2]))}})
	}
	return cs, nil
}

// Pending lists the ops that no fast device has a kernel for yet, with the
// decision: the reference runs them, and the cpu device refuses a program that
// has one. A kernel that is added must leave this list.
var Pending = map[ir.Op]string{}
