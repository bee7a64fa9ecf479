package ir

import (
	"errors"
	"fmt"
)

// infer checks arity and computes the output types of an op.
func infer(g *Graph, op Op, attr Attrs, in []ID) ([]Type, error) {
	spec := op.Spec()
	if spec.Infer == nil {
		return nil, fmt.Errorf("%w: unknown op %s", ErrInvalid, op)
	}
	if len(in) < spec.MinIn || len(in) > spec.MaxIn {
		return nil, fmt.Errorf("%w: %d inputs, takes %d to %d", ErrInvalid, len(in), spec.MinIn, spec.MaxIn)
	}
	types := make([]Type, len(in))
	for i, id := range in {
		if id <= 0 || int(id) >= len(g.Values) {
			return nil, fmt.Errorf("%w: input %d is no value of this graph", ErrInvalid, i)
		}
		types[i] = g.Values[id].Type
	}
	if err := checkAttrs(spec, attr); err != nil {
		return nil, err
	}
	out, err := spec.Infer(types, attr)
	if err != nil {
		return nil, fmt.Errorf("%w: %w (inputs %v)", ErrInvalid, err, types)
	}
	return out, nil
}

func checkAttrs(spec Spec, a Attrs) error {
	used := map[AttrSet]bool{
		AttrEps: a.Eps != 0, AttrScale: a.Scale != 0, AttrHeads: a.Heads != 0, AttrKVHeads: a.KVHeads != 0,
		AttrHeadDim: a.HeadDim != 0, AttrRotary: a.Rotary != 0, AttrWindow: a.Window != 0, AttrPage: a.Page != 0, AttrInverse: a.Inverse,
		AttrSoftcap: a.Softcap != 0, AttrUnit: a.Unit, AttrOffset: a.Offset != 0, AttrOf: a.Of != 0, AttrPick: a.Pick != 0, AttrNormalise: a.Normalise,
	}
	for attr, set := range used {
		if set && spec.Attrs&attr == 0 {
			return fmt.Errorf("%w: %s does not read attribute %#x, yet it is set", ErrInvalid, spec.Name, uint32(attr))
		}
	}
	if a.Window < 0 || a.Heads < 0 || a.KVHeads < 0 || a.HeadDim < 0 || a.Page < 0 || a.Offset < 0 || a.Of < 0 || a.Pick < 0 || a.Softcap < 0 {
		return fmt.Errorf("%w: negative attribute", ErrInvalid)
	}
	return nil
}

var errRank = errors.New("wrong number of axes")

func want(ok bool, format string, args ...any) error {
	if ok {
		return nil
	}
	return fmt.Errorf(format, args...)
}

func rank(ts []Type, ranks ...int) error {
	for i, r := range ranks {
		if r >= 0 && i < len(ts) && len(ts[i].Shape) != r {
			return fmt.Errorf("input %d: %w, has %d, takes %d", i, errRank, len(ts[i].Shape), r)
		}
	}
	return nil
}

func float(t Type) bool { return t.DType == F32 || t.DType == BF16 || t.DType == F16 }

func last(s Shape) Dim { return s[len(s)-1] }

// rows is the shape without its last axis.
func rows(s Shape) Shape { return append(Shape(nil), s[:len(s)-1]...) }

func withLast(s Shape, d Dim) Shape { return append(rows(s), d) }

func inferSame(in []Type, _ Attrs) ([]Type, error) {
	for i, t := range in {
		if !t.Shape.Equal(in[0].Shape) || t.DType != in[0].DType {
			return nil, fmt.Errorf("input %d is %s, input 0 is %s", i, t, in[0])
		}
	}
	return []Type{in[0]}, want(float(in[0]), "not a floating type")
}

func offsetsOK(t Type) error {
	return want(t.DType == I32 && t.Shape.Equal(Shape{Of(S1)}), "offsets are %s, take i32[S1]", t)
}

func inferEmbed(in []Type, _ Attrs) ([]Type, error) {
	if err := rank(in, 1, 2); err != nil {
		return nil, err
	}
	out := Type{F32, Shape{in[0].Shape[0], in[1].Shape[1]}}
	return []Type{out}, want(in[0].DType == I32 && float(in[1]), "takes i32 ids and a floating table")
}

func inferLinear(in []Type, _ Attrs) ([]Type, error) {
	if err := rank(in, 2, 2, 1); err != nil {
		return nil, err
	}
	if last(in[0].Shape) != last(in[1].Shape) {
		return nil, fmt.Errorf("x has %s columns, w has %s", last(in[0].Shape), last(in[1].Shape))
	}
	n := in[1].Shape[0]
	if len(in) == 3 && in[2].Shape[0] != n {
		return nil, fmt.Errorf("bias has %s entries, w has %s rows", in[2].Shape[0], n)
	}
	return []Type{{F32, withLast(in[0].Shape, n)}}, want(float(in[0]) && float(in[1]), "takes floating types")
}

func inferRMSNorm(in []Type, a Attrs) ([]Type, error) {
	if err := rank(in, 2, 1); err != nil {
		return nil, err
	}
	return []Type{in[0]}, groupsOK(in[0], in[1], a)
}

func groupsOK(x, w Type, a Attrs) error {
	d := last(w.Shape)
	return want(a.Heads > 0 && last(x.Shape).Sym == None && last(x.Shape).N == a.Heads*d.N,
		"x has %s columns, w %s, groups %d", last(x.Shape), d, a.Heads)
}

func inferRope(in []Type, a Attrs) ([]Type, error) {
	if err := rank(in, 2, 1, 2, 2); err != nil {
		return nil, err
	}
	half := Const(a.Rotary / 2)
	ok := a.Rotary > 0 && a.Rotary%2 == 0 && a.Rotary <= a.HeadDim && last(in[0].Shape) == Const(a.Heads*a.HeadDim) &&
		last(in[2].Shape) == half && last(in[3].Shape) == half && in[1].DType == I32 && in[1].Shape[0] == in[0].Shape[0]
	return []Type{in[0]}, want(ok, "heads %d of %d, rotary %d do not fit", a.Heads, a.HeadDim, a.Rotary)
}

func attnOK(q, k, v Type, a Attrs) error {
	ok := a.Heads > 0 && a.KVHeads > 0 && a.Heads%a.KVHeads == 0 && a.HeadDim > 0 &&
		last(q.Shape) == Const(a.Heads*a.HeadDim) && last(k.Shape) == Const(a.KVHeads*a.HeadDim) && last(v.Shape) == last(k.Shape)
	return want(ok, "heads %d, kv heads %d, head size %d do not fit", a.Heads, a.KVHeads, a.HeadDim)
}

func inferAttention(in []Type, a Attrs) ([]Type, error) {
	if err := errors.Join(rank(in, 2, 2, 2, 1), offsetsOK(in[3])); err != nil {
		return nil, err
	}
	lse := Type{F32, withLast(in[0].Shape, Const(a.Heads))}
	return []Type{in[0], lse}, attnOK(in[0], in[1], in[2], a)
}

func pagedOK(offsets, start, table Type) error {
	return errors.Join(offsetsOK(offsets),
		want(start.Shape.Equal(Shape{Of(S)}) && start.DType == I32, "start is %s, takes i32[S]", start),
		want(table.Shape.Equal(Shape{Of(S), Of(B)}) && table.DType == I32, "table is %s, takes i32[S,B]", table))
}

func inferKVWrite(in []Type, a Attrs) ([]Type, error) {
	if err := errors.Join(rank(in, 2, 2), pagedOK(in[2], in[3], in[4])); err != nil {
		return nil, err
	}
	ok := a.Page > 0 && a.Page%KeyBlock == 0 && in[0].Shape.Equal(Shape{Of(P), Const(a.Page * last(in[1].Shape).N)})
	return []Type{in[0]}, want(ok, "page %d does not fit cache and rows", a.Page)
}

func inferPagedAttention(in []Type, a Attrs) ([]Type, error) {
	if err := errors.Join(rank(in, 2, 2, 2), pagedOK(in[3], in[4], in[5])); err != nil {
		return nil, err
	}
	ok := a.Page > 0 && a.Page%KeyBlock == 0 && a.Heads > 0 && a.KVHeads > 0 && a.Heads%a.KVHeads == 0 && last(in[0].Shape) == Const(a.Heads*a.HeadDim) &&
		in[1].Shape.Equal(Shape{Of(P), Const(a.Page * a.KVHeads * a.HeadDim)}) && in[2].Shape.Equal(in[1].Shape)
	return []Type{in[0]}, want(ok, "heads %d, kv heads %d, head size %d, page %d do not fit", a.Heads, a.KVHeads, a.HeadDim, a.Page)
}

func inferGatherRows(in []Type, _ Attrs) ([]Type, error) {
	if err := rank(in, 2, 1); err != nil {
		return nil, err
	}
	return []Type{{in[0].DType, Shape{in[1].Shape[0], in[0].Shape[1]}}}, want(in[1].DType == I32, "rows are not i32")
}

func inferLSE(in []Type, _ Attrs) ([]Type, error) {
	if err := rank(in, 2); err != nil {
		return nil, err
	}
	return []Type{{F32, rows(in[0].Shape)}}, nil
}

func inferLogProb(in []Type, _ Attrs) ([]Type, error) {
	if err := rank(in, 2, 2); err != nil {
		return nil, err
	}
	ok := in[1].DType == I32 && in[0].Shape[0] == in[1].Shape[0]
	return []Type{{F32, in[1].Shape}, {F32, rows(in[0].Shape)}}, want(ok, "targets do not fit logits")
}

func inferSegmentSum(in []Type, _ Attrs) ([]Type, error) {
	return []Type{{F32, Shape{Of(S)}}}, offsetsOK(in[1])
}

func inferSegmentExpand(in []Type, _ Attrs) ([]Type, error) {
	return []Type{{F32, in[2].Shape}}, errors.Join(offsetsOK(in[1]), want(in[0].Shape.Equal(Shape{Of(S)}), "x is not [S]"))
}

func inferLinearGradX(in []Type, _ Attrs) ([]Type, error) {
	if err := rank(in, 2, 2); err != nil {
		return nil, err
	}
	return []Type{{F32, withLast(in[0].Shape, in[1].Shape[1])}}, want(last(in[0].Shape) == in[1].Shape[0], "dy does not fit w")
}

func inferLinearGradW(in []Type, _ Attrs) ([]Type, error) {
	if err := errors.Join(rank(in, 2, 2, 2), offsetsOK(in[3])); err != nil {
		return nil, err
	}
	ok := in[0].Shape[0] == last(in[1].Shape) && in[0].Shape[1] == last(in[2].Shape) && in[1].Shape[0] == in[2].Shape[0]
	return []Type{in[0]}, want(ok, "accumulator, dy and x do not fit")
}

func inferBiasGrad(in []Type, _ Attrs) ([]Type, error) {
	if err := errors.Join(rank(in, 1, 2), offsetsOK(in[2])); err != nil {
		return nil, err
	}
	return []Type{in[0]}, want(in[0].Shape[0] == last(in[1].Shape), "accumulator does not fit dy")
}

func inferEmbedGrad(in []Type, _ Attrs) ([]Type, error) {
	if err := errors.Join(rank(in, 2, 1, 2), offsetsOK(in[3])); err != nil {
		return nil, err
	}
	ok := in[1].DType == I32 && in[0].Shape[1] == in[2].Shape[1] && in[1].Shape[0] == in[2].Shape[0]
	return []Type{in[0]}, want(ok, "accumulator, ids and dy do not fit")
}

func inferRMSNormGrad(in []Type, a Attrs) ([]Type, error) {
	if err := rank(in, 2, 1, 2); err != nil {
		return nil, err
	}
	return []Type{in[0]}, errors.Join(groupsOK(in[0], in[1], a), want(in[0].Shape.Equal(in[2].Shape), "dy does not fit x"))
}

func inferRMSNormGradW(in []Type, a Attrs) ([]Type, error) {
	if err := errors.Join(rank(in, 1, 2, 2), offsetsOK(in[3])); err != nil {
		return nil, err
	}
	return []Type{in[0]}, errors.Join(groupsOK(in[1], in[0], a), want(in[1].Shape.Equal(in[2].Shape), "dy does not fit x"))
}

func inferAttentionGrad(in []Type, a Attrs) ([]Type, error) {
	if err := errors.Join(rank(in, 2, 2, 2, 2, 2, 2), offsetsOK(in[6])); err != nil {
		return nil, err
	}
	ok := in[3].Shape.Equal(in[0].Shape) && in[5].Shape.Equal(in[0].Shape) && last(in[4].Shape) == Const(a.Heads)
	return []Type{in[0], in[1], in[2]}, errors.Join(attnOK(in[0], in[1], in[2], a), want(ok, "out, lse, dout do not fit q"))
}

func inferSiLUMulGrad(in []Type, a Attrs) ([]Type, error) {
	out, err := inferSame(in, a)
	return append(out, out...), err
}

func inferLogProbGrad(in []Type, _ Attrs) ([]Type, error) {
	if err := rank(in, 2, 1, 2, 2); err != nil {
		return nil, err
	}
	ok := in[2].DType == I32 && in[2].Shape.Equal(in[3].Shape) && in[0].Shape[0] == in[2].Shape[0]
	return []Type{in[0]}, want(ok, "targets or gradient do not fit logits")
}

func inferSumSquares([]Type, Attrs) ([]Type, error) {
	return []Type{{F32, Shape{Const(1)}}}, nil
}

func inferAdamW(in []Type, _ Attrs) ([]Type, error) {
	for i := 1; i < 4; i++ {
		if !in[i].Shape.Equal(in[0].Shape) || in[i].DType != F32 {
			return nil, fmt.Errorf("input %d is %s, the parameter %s", i, in[i], in[0])
		}
	}
	ok := in[4].Shape.Equal(Shape{Const(HyperLen)})
	return []Type{in[0], in[1], in[2]}, want(ok, "hyper is %s, takes f32[%d]", in[4], HyperLen)
}

func inferNarrow(in []Type, _ Attrs) ([]Type, error) {
	ok := in[0].Shape.Equal(in[1].Shape) && float(in[0]) && in[1].DType == F32
	return []Type{in[0]}, want(ok, "x does not fit w")
}

func flopsLinear(in, _ []Type, _ Attrs, d Dims) int64 {
	return 2 * in[0].Shape.Elements(d) * int64(in[1].Shape[0].Size(d))
}

func flopsLinearGradX(in, _ []Type, _ Attrs, d Dims) int64 {
	return 2 * in[0].Shape.Elements(d) * int64(in[1].Shape[1].Size(d))
}

func flopsLinearGradW(in, _ []Type, _ Attrs, d Dims) int64 {
	return 2 * in[0].Shape.Elements(d) * int64(in[1].Shape[0].Size(d))
}

// flopsAttention is an upper bound: every query of a sequence of T/S tokens
// against the half of it before it, scores and values.
func flopsAttention(_, _ []Type, a Attrs, d Dims) int64 {
	t, s := int64(d.T), int64(max(d.S, 1))
	return 2 * t * (t/s + 1) * int64(a.Heads*a.HeadDim)
}

func flopsAttentionGrad(in, out []Type, a Attrs, d Dims) int64 {
	return 5 * flopsAttention(in, out, a, d) / 2
}
