package ir

import "errors"

// Shape rules of the ops that single families need.

func inferMatrix(in []Type, a Attrs) ([]Type, error) {
	if err := rank(in, 2); err != nil {
		return nil, err
	}
	return inferSame(in, a)
}

func inferLinearT(in []Type, _ Attrs) ([]Type, error) {
	if err := rank(in, 2, 2); err != nil {
		return nil, err
	}
	ok := last(in[0].Shape) == in[1].Shape[0] && float(in[0]) && float(in[1])
	return []Type{{F32, withLast(in[0].Shape, in[1].Shape[1])}}, want(ok, "x does not fit w")
}

// inferRow is x [rows,N] with one value for each column.
func inferRow(in []Type, _ Attrs) ([]Type, error) {
	if err := rank(in, 2, 1); err != nil {
		return nil, err
	}
	return []Type{in[0]}, want(last(in[0].Shape) == in[1].Shape[0] && float(in[0]) && float(in[1]), "the row does not fit x")
}

func sliceOK(columns Dim, a Attrs, per int) error {
	ok := a.Heads > 0 && a.HeadDim > 0 && a.HeadDim <= a.Of && a.Offset <= a.Of-a.HeadDim && columns == Const(a.Heads*per)
	return want(ok, "%d columns from %d of %d groups of %d do not fit", a.HeadDim, a.Offset, a.Heads, a.Of)
}

func inferSlice(in []Type, a Attrs) ([]Type, error) {
	if err := rank(in, 2); err != nil {
		return nil, err
	}
	return []Type{{in[0].DType, withLast(in[0].Shape, Const(a.Heads*a.HeadDim))}}, sliceOK(last(in[0].Shape), a, a.Of)
}

func inferSliceGrad(in []Type, a Attrs) ([]Type, error) {
	if err := rank(in, 2); err != nil {
		return nil, err
	}
	return []Type{{in[0].DType, withLast(in[0].Shape, Const(a.Heads*a.Of))}}, sliceOK(last(in[0].Shape), a, a.HeadDim)
}

func inferJoin(in []Type, _ Attrs) ([]Type, error) {
	width := 0
	for i, t := range in {
		if len(t.Shape) != 2 || t.Shape[0] != in[0].Shape[0] || t.Shape[1].Sym != None || t.DType != in[0].DType || !float(t) {
			return nil, want(false, "input %d is %s, input 0 is %s", i, t, in[0])
		}
		width += t.Shape[1].N
	}
	return []Type{{in[0].DType, withLast(in[0].Shape, Const(width))}}, nil
}

func inferTopK(in []Type, a Attrs) ([]Type, error) {
	if err := rank(in, 2); err != nil {
		return nil, err
	}
	e := last(in[0].Shape)
	s := Shape{in[0].Shape[0], Const(a.Pick)}
	return []Type{{F32, s}, {I32, s}}, want(a.Pick > 0 && e.Sym == None && a.Pick <= e.N && in[0].DType == F32, "%d of %s experts", a.Pick, e)
}

func inferTopKGrad(in []Type, _ Attrs) ([]Type, error) {
	if err := rank(in, 2, 2, 2); err != nil {
		return nil, err
	}
	ok := in[1].DType == I32 && in[1].Shape.Equal(in[2].Shape) && in[1].Shape[0] == in[0].Shape[0]
	return []Type{in[0]}, want(ok, "experts or gradient do not fit logits")
}

// times is k rows for each of a shape's rows.
func times(d Dim, k Dim) Dim { return Dim{d.Sym, d.N * k.N} }

// expertsOK checks experts[T,k] against rows that are one for each token or one for each choice.
func expertsOK(x, experts Type, each bool) error {
	ok := experts.DType == I32 && last(experts.Shape).Sym == None &&
		(x.Shape[0] == times(experts.Shape[0], last(experts.Shape)) || !each && x.Shape[0] == experts.Shape[0])
	return want(ok, "experts do not fit rows")
}

func inferExpertLinear(in []Type, _ Attrs) ([]Type, error) {
	if err := rank(in, 2, 3, 2); err != nil {
		return nil, err
	}
	if last(in[0].Shape) != last(in[1].Shape) || !float(in[0]) || !float(in[1]) {
		return nil, want(false, "x has %s columns, w has %s", last(in[0].Shape), last(in[1].Shape))
	}
	out := Shape{times(in[2].Shape[0], last(in[2].Shape)), in[1].Shape[1]}
	return []Type{{F32, out}}, expertsOK(in[0], in[2], false)
}

func inferExpertGradX(in []Type, _ Attrs) ([]Type, error) {
	if err := rank(in, 2, 3, 2); err != nil {
		return nil, err
	}
	return []Type{{F32, withLast(in[0].Shape, in[1].Shape[2])}}, errors.Join(expertsOK(in[0], in[2], true), want(last(in[0].Shape) == in[1].Shape[1], "dy does not fit w"))
}

func inferExpertGradW(in []Type, _ Attrs) ([]Type, error) {
	if err := errors.Join(rank(in, 3, 2, 2, 2), offsetsOK(in[4])); err != nil {
		return nil, err
	}
	ok := last(in[1].Shape) == in[0].Shape[1] && last(in[2].Shape) == in[0].Shape[2]
	return []Type{in[0]}, errors.Join(expertsOK(in[1], in[3], true), expertsOK(in[2], in[3], false), want(ok, "accumulator, dy and x do not fit"))
}

func inferScaleRows(in []Type, _ Attrs) ([]Type, error) {
	if err := rank(in, 2, 2); err != nil {
		return nil, err
	}
	ok := last(in[1].Shape).Sym == None && in[0].Shape[0] == times(in[1].Shape[0], last(in[1].Shape))
	return []Type{in[0]}, want(ok, "weights do not fit rows")
}

func inferSumRows(in []Type, a Attrs) ([]Type, error) {
	if err := rank(in, 2); err != nil {
		return nil, err
	}
	r := in[0].Shape[0]
	if a.Pick < 1 || r.N%a.Pick != 0 {
		return nil, want(false, "%s rows are not in groups of %d", r, a.Pick)
	}
	return []Type{{in[0].DType, Shape{{r.Sym, r.N / a.Pick}, in[0].Shape[1]}}}, nil
}

func inferRepeatRows(in []Type, a Attrs) ([]Type, error) {
	if err := rank(in, 2); err != nil {
		return nil, err
	}
	return []Type{{in[0].DType, Shape{times(in[0].Shape[0], Const(a.Pick)), in[0].Shape[1]}}}, want(a.Pick > 0, "%d repeats", a.Pick)
}

func inferRowDot(in []Type, a Attrs) ([]Type, error) {
	if err := rank(in, 2, 2); err != nil {
		return nil, err
	}
	r := in[0].Shape[0]
	if a.Pick < 1 || r.N%a.Pick != 0 || !in[0].Shape.Equal(in[1].Shape) {
		return nil, want(false, "%s rows are not in groups of %d", r, a.Pick)
	}
	return []Type{{F32, Shape{{r.Sym, r.N / a.Pick}, Const(a.Pick)}}}, nil
}

func convOK(x, w Type) error {
	s := w.Shape
	ok := last(x.Shape) == s[0] && s[1] == Const(1) && s[2].Sym == None && s[2].N > 0
	return want(ok, "the kernels do not fit x")
}

func inferConv(in []Type, _ Attrs) ([]Type, error) {
	if err := errors.Join(rank(in, 2, 3), offsetsOK(in[2])); err != nil {
		return nil, err
	}
	return []Type{in[0]}, convOK(in[0], in[1])
}

func inferConvGradW(in []Type, _ Attrs) ([]Type, error) {
	if err := errors.Join(rank(in, 3, 2, 2), offsetsOK(in[3])); err != nil {
		return nil, err
	}
	return []Type{in[0]}, errors.Join(convOK(in[1], in[0]), want(in[1].Shape.Equal(in[2].Shape), "dy does not fit x"))
}

// slotsOK checks what says where the sequences' states are.
func slotsOK(offsets, start, slot Type) error {
	return errors.Join(offsetsOK(offsets),
		want(start.Shape.Equal(Shape{Of(S)}) && start.DType == I32, "start is %s, takes i32[S]", start),
		want(slot.Shape.Equal(Shape{Of(S)}) && slot.DType == I32, "slot is %s, takes i32[S]", slot))
}

func inferConvState(in []Type, _ Attrs) ([]Type, error) {
	if err := errors.Join(rank(in, 2, 2, 3), slotsOK(in[3], in[4], in[5])); err != nil {
		return nil, err
	}
	if err := convOK(in[1], in[2]); err != nil {
		return nil, err
	}
	row := (in[2].Shape[2].N - 1) * in[2].Shape[0].N
	return []Type{in[0], in[1]}, want(in[0].Shape.Equal(Shape{Of(L), Const(row)}), "state is %s, takes [L,%d]", in[0], row)
}

// deltaOK checks q, k, v, g and beta, and gives the elements of one sequence's state.
func deltaOK(in []Type, a Attrs) (int, error) {
	if err := rank(in, 2, 2, 2, 2, 2); err != nil {
		return 0, err
	}
	qk, h, v := Const(a.KVHeads*a.HeadDim), Const(a.Heads), last(in[2].Shape)
	ok := a.Heads > 0 && a.KVHeads > 0 && a.Heads%a.KVHeads == 0 && a.HeadDim > 0 && v.Sym == None && v.N > 0 && v.N%a.Heads == 0 &&
		last(in[0].Shape) == qk && last(in[1].Shape) == qk && last(in[3].Shape) == h && last(in[4].Shape) == h
	return a.HeadDim * v.N, want(ok, "heads %d, key heads %d of %d do not fit", a.Heads, a.KVHeads, a.HeadDim)
}

func inferDelta(in []Type, a Attrs) ([]Type, error) {
	_, err := deltaOK(in, a)
	return []Type{in[2]}, errors.Join(err, offsetsOK(in[5]))
}

func inferDeltaGrad(in []Type, a Attrs) ([]Type, error) {
	_, err := deltaOK(in, a)
	return in[:5:5], errors.Join(err, offsetsOK(in[6]), want(in[5].Shape.Equal(in[2].Shape), "dout does not fit v"))
}

func inferDeltaState(in []Type, a Attrs) ([]Type, error) {
	row, err := deltaOK(in[1:], a)
	return []Type{in[0], in[3]}, errors.Join(err, slotsOK(in[6], in[7], in[8]), want(in[0].Shape.Equal(Shape{Of(L), Const(row)}), "state is %s, takes [L,%d]", in[0], row))
}

func flopsExpert(in, out []Type, _ Attrs, d Dims) int64 {
	return 2 * out[0].Shape.Elements(d) * int64(last(in[0].Shape).Size(d))
}

func flopsExpertW(in, _ []Type, _ Attrs, d Dims) int64 {
	return 2 * in[1].Shape.Elements(d) * int64(last(in[2].Shape).Size(d))
}

func flopsConv(in, out []Type, _ Attrs, d Dims) int64 {
	for _, t := range in {
		if len(t.Shape) == 3 {
			return 2 * out[len(out)-1].Shape.Elements(d) * int64(t.Shape[2].N)
		}
	}
	return 0
}

// flopsDelta counts the four passes over a head's state for each token.
func flopsDelta(_, out []Type, a Attrs, d Dims) int64 {
	return 8 * out[len(out)-1].Shape.Elements(d) * int64(a.HeadDim)
}

// GroupType is the type of every group: the size of its parts is known when it
// is bound.
var GroupType = Type{F32, Shape{Const(0)}}

func inferAdapt(in []Type, a Attrs) ([]Type, error) {
	if err := rank(in, 2, 2, 1, 1, 1); err != nil {
		return nil, err
	}
	y, x, rows := in[0], in[1], in[0].Shape[0]
	ok := a.Offset < a.Of && x.Shape[0] == rows && last(y.Shape).Sym == None && last(x.Shape).Sym == None && y.DType == F32 && x.DType == F32
	return []Type{y}, errors.Join(want(ok, "module %d of %d, y or x do not fit", a.Offset, a.Of),
		want(in[2].DType == GroupType.DType && in[2].Shape.Equal(GroupType.Shape), "adapters are %s, no group", in[2]),
		want(in[3].DType == I32 && in[3].Shape[0] == rows && in[4].DType == F32 && in[4].Shape[0] == rows, "place or scale do not fit y"))
}
