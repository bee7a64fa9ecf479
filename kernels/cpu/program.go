//go:build linux && cgo

package cpu

/*
#include "step.h"
*/
import "C"

import (
	"fmt"

	"smolgym/kernels"
	"smolgym/model/ir"
)

// kernelKey finds a kernel: the op and the type of its weights.
type kernelKey struct {
	op      ir.Op
	weights ir.DType
}

// sizes says which numbers of its operands an op's kernel takes, in the order
// that its C code reads them.
type sizes func(in, out []ir.Shape) []ir.Dim

type entry struct {
	kernel C.int32_t
	sizes  sizes
}

// all gives every axis of operand 0: elementwise ops take the product.
func all(in, _ []ir.Shape) []ir.Dim {
	dims := append([]ir.Dim(nil), in[0]...)
	for len(dims) < 4 {
		dims = append(dims, ir.Const(1))
	}
	return dims
}

// axis gives operand k's axis i, for the table below.
func axis(s []ir.Shape, k, i int) ir.Dim { return s[k][i] }

var (
	oneSeq = ir.Of(ir.S)

	// The C names: [rows,N,K], [T,V,D] and so on, see each kernel's args.
	sizeLinear = func(in, _ []ir.Shape) []ir.Dim { return []ir.Dim{axis(in, 0, 0), axis(in, 1, 0), axis(in, 1, 1)} }
	sizeEmbed  = func(in, _ []ir.Shape) []ir.Dim { return []ir.Dim{axis(in, 0, 0), axis(in, 1, 0), axis(in, 1, 1)} }
	sizeGather = func(in, _ []ir.Shape) []ir.Dim { return []ir.Dim{axis(in, 1, 0), axis(in, 0, 0), axis(in, 0, 1)} }
	sizeGradW  = func(in, _ []ir.Shape) []ir.Dim {
		return []ir.Dim{axis(in, 1, 0), axis(in, 0, 0), axis(in, 0, 1), oneSeq}
	}
	sizeBias   = func(in, _ []ir.Shape) []ir.Dim { return []ir.Dim{axis(in, 1, 0), axis(in, 0, 0), oneSeq} }
	sizeNorm   = func(in, _ []ir.Shape) []ir.Dim { return []ir.Dim{axis(in, 0, 0), axis(in, 1, 0)} }
	sizeNormW  = func(in, _ []ir.Shape) []ir.Dim { return []ir.Dim{axis(in, 1, 0), axis(in, 0, 0), oneSeq} }
	sizeEmbedW = func(in, _ []ir.Shape) []ir.Dim {
		return []ir.Dim{axis(in, 1, 0), axis(in, 0, 0), axis(in, 0, 1), oneSeq}
	}
	sizeRope  = func(in, _ []ir.Shape) []ir.Dim { return []ir.Dim{axis(in, 0, 0), axis(in, 2, 0), axis(in, 3, 0)} }
	sizeAttn  = func(in, _ []ir.Shape) []ir.Dim { return []ir.Dim{axis(in, 0, 0), oneSeq} }
	sizePaged = func(in, _ []ir.Shape) []ir.Dim {
		return []ir.Dim{axis(in, 0, 0), axis(in, 5, 0), axis(in, 5, 1), axis(in, 1, 0)}
	}
	sizeWrite = func(in, _ []ir.Shape) []ir.Dim {
		return []ir.Dim{axis(in, 1, 0), axis(in, 4, 0), axis(in, 4, 1), axis(in, 0, 0), axis(in, 1, 1)}
	}
	sizeLSE     = func(in, _ []ir.Shape) []ir.Dim { return []ir.Dim{axis(in, 0, 0), axis(in, 0, 1)} }
	sizeLogProb = func(in, _ []ir.Shape) []ir.Dim { return []ir.Dim{axis(in, 0, 0), axis(in, 0, 1), axis(in, 1, 1)} }
	sizeLPGrad  = func(in, _ []ir.Shape) []ir.Dim { return []ir.Dim{axis(in, 0, 0), axis(in, 0, 1), axis(in, 2, 1)} }
	// LinearT is LinearGradX with another name for its first operand: w[K,N].
	sizeOut  = func(_, out []ir.Shape) []ir.Dim { return []ir.Dim{axis(out, 0, 0), axis(out, 0, 1)} }
	sizeRow  = func(in, _ []ir.Shape) []ir.Dim { return []ir.Dim{axis(in, 0, 0), axis(in, 0, 1)} }
	sizeJoin = func(in, _ []ir.Shape) []ir.Dim {
		dims := []ir.Dim{axis(in, 0, 0)}
		for k := range in {
			dims = append(dims, axis(in, k, 1))
		}
		return dims
	}
	// Experts: rows of x, N, K, E, rows of y; the gradients have their own order.
	sizeTopK   = func(in, _ []ir.Shape) []ir.Dim { return []ir.Dim{axis(in, 0, 0), axis(in, 0, 1)} }
	sizeTopKG  = func(in, _ []ir.Shape) []ir.Dim { return []ir.Dim{axis(in, 0, 0), axis(in, 0, 1), axis(in, 1, 1)} }
	sizeExpert = func(in, out []ir.Shape) []ir.Dim {
		return []ir.Dim{axis(in, 0, 0), axis(in, 1, 1), axis(in, 1, 2), axis(in, 1, 0), axis(out, 0, 0)}
	}
	sizeExpertW = func(in, _ []ir.Shape) []ir.Dim {
		return []ir.Dim{axis(in, 0, 0), axis(in, 0, 1), axis(in, 0, 2), axis(in, 1, 0), axis(in, 2, 0), oneSeq, axis(in, 3, 0)}
	}
	sizeAdapt = func(in, _ []ir.Shape) []ir.Dim { return []ir.Dim{axis(in, 0, 0), axis(in, 0, 1), axis(in, 1, 1)} }
	// Linear attention: T, columns, and so on; states have S and L fourth and fifth.
	sizeConv = func(in, _ []ir.Shape) []ir.Dim {
		return []ir.Dim{axis(in, 0, 0), axis(in, 0, 1), axis(in, 1, 2), oneSeq}
	}
	sizeConvW = func(in, _ []ir.Shape) []ir.Dim {
		return []ir.Dim{axis(in, 1, 0), axis(in, 1, 1), axis(in, 0, 2), oneSeq}
	}
	sizeConvS = func(in, _ []ir.Shape) []ir.Dim {
		return []ir.Dim{axis(in, 1, 0), axis(in, 1, 1), axis(in, 2, 2), oneSeq, axis(in, 0, 0)}
	}
	sizeDelta  = func(in, _ []ir.Shape) []ir.Dim { return []ir.Dim{axis(in, 2, 0), oneSeq, axis(in, 2, 1)} }
	sizeDeltaS = func(in, _ []ir.Shape) []ir.Dim {
		return []ir.Dim{axis(in, 3, 0), oneSeq, axis(in, 3, 1), oneSeq, axis(in, 0, 0)}
	}
	sizeSum    = func(in, _ []ir.Shape) []ir.Dim { return cells(in[0]) }
	sizeExpand = func(in, _ []ir.Shape) []ir.Dim { return cells(in[2]) }
)

// cells is [rows, elements in a row, sequences].
func cells(s ir.Shape) []ir.Dim {
	width := ir.Const(1)
	if len(s) > 1 {
		width = s[1]
	}
	return []ir.Dim{s[0], width, oneSeq}
}

var table = map[kernelKey]entry{
	{ir.OpEmbed, ir.F32}:          {C.K_EMBED, sizeEmbed},
	{ir.OpLinear, ir.F32}:         {C.K_LINEAR, sizeLinear},
	{ir.OpRMSNorm, ir.F32}:        {C.K_RMSNORM, sizeNorm},
	{ir.OpRope, ir.F32}:           {C.K_ROPE, sizeRope},
	{ir.OpAttention, ir.F32}:      {C.K_ATTENTION, sizeAttn},
	{ir.OpKVWrite, ir.F32}:        {C.K_KVWRITE, sizeWrite},
	{ir.OpPagedAttention, ir.F32}: {C.K_PAGED_ATTENTION, sizePaged},
	{ir.OpSiLUMul, ir.F32}:        {C.K_SILUMUL, all},
	{ir.OpAdd, ir.F32}:            {C.K_ADD, all},
	{ir.OpScaleAdd, ir.F32}:       {C.K_SCALE_ADD, all},
	{ir.OpScale, ir.F32}:          {C.K_SCALE, all},
	{ir.OpGatherRows, ir.F32}:     {C.K_GATHER_ROWS, sizeGather},
	{ir.OpLSE, ir.F32}:            {C.K_LSE, sizeLSE},
	{ir.OpLogProb, ir.F32}:        {C.K_LOGPROB, sizeLogProb},

	{ir.OpSub, ir.F32}:           {C.K_SUB, all},
	{ir.OpMul, ir.F32}:           {C.K_MUL, all},
	{ir.OpDiv, ir.F32}:           {C.K_DIV, all},
	{ir.OpNeg, ir.F32}:           {C.K_NEG, all},
	{ir.OpExp, ir.F32}:           {C.K_EXP, all},
	{ir.OpMin, ir.F32}:           {C.K_MIN, all},
	{ir.OpMax, ir.F32}:           {C.K_MAX, all},
	{ir.OpClamp, ir.F32}:         {C.K_CLAMP, all},
	{ir.OpGreater, ir.F32}:       {C.K_GREATER, all},
	{ir.OpNonZero, ir.F32}:       {C.K_NONZERO, all},
	{ir.OpWhere, ir.F32}:         {C.K_WHERE, all},
	{ir.OpDetach, ir.F32}:        {C.K_COPY, all},
	{ir.OpFill, ir.F32}:          {C.K_FILL, all},
	{ir.OpSegmentSum, ir.F32}:    {C.K_SEGMENT_SUM, sizeSum},
	{ir.OpSegmentExpand, ir.F32}: {C.K_SEGMENT_EXPAND, sizeExpand},

	{ir.OpLinearGradX, ir.F32}:   {C.K_LINEAR_GRADX, sizeLinear},
	{ir.OpLinearGradW, ir.F32}:   {C.K_LINEAR_GRADW, sizeGradW},
	{ir.OpBiasGrad, ir.F32}:      {C.K_BIAS_GRAD, sizeBias},
	{ir.OpEmbedGrad, ir.F32}:     {C.K_EMBED_GRAD, sizeEmbedW},
	{ir.OpRMSNormGrad, ir.F32}:   {C.K_RMSNORM_GRAD, sizeNorm},
	{ir.OpRMSNormGradW, ir.F32}:  {C.K_RMSNORM_GRADW, sizeNormW},
	{ir.OpAttentionGrad, ir.F32}: {C.K_ATTENTION_GRAD, sizeAttn},
	{ir.OpSiLUMulGrad, ir.F32}:   {C.K_SILUMUL_GRAD, all},
	{ir.OpLogProbGrad, ir.F32}:   {C.K_LOGPROB_GRAD, sizeLPGrad},

	{ir.OpSumSquares, ir.F32}: {C.K_SUM_SQUARES, all},
	{ir.OpAdamW, ir.F32}:      {C.K_ADAMW, all},

	{ir.OpLinearT, ir.F32}:      {C.K_LINEAR_GRADX, sizeLinear},
	{ir.OpAddRow, ir.F32}:       {C.K_ADD_ROW, sizeRow},
	{ir.OpCenter, ir.F32}:       {C.K_CENTER, sizeRow},
	{ir.OpDecay, ir.F32}:        {C.K_DECAY, sizeRow},
	{ir.OpSlice, ir.F32}:        {C.K_SLICE, sizeOut},
	{ir.OpSliceGrad, ir.F32}:    {C.K_SLICE_GRAD, sizeOut},
	{ir.OpJoin, ir.F32}:         {C.K_JOIN, sizeJoin},
	{ir.OpTanh, ir.F32}:         {C.K_TANH, all},
	{ir.OpSigmoid, ir.F32}:      {C.K_SIGMOID, all},
	{ir.OpSoftplus, ir.F32}:     {C.K_SOFTPLUS, all},
	{ir.OpGELU, ir.F32}:         {C.K_GELU, all},
	{ir.OpGELUTanh, ir.F32}:     {C.K_GELU_TANH, all},
	{ir.OpGELUGrad, ir.F32}:     {C.K_GELU_GRAD, all},
	{ir.OpGELUTanhGrad, ir.F32}: {C.K_GELU_TANH_GRAD, all},
	{ir.OpScaleRows, ir.F32}:    {C.K_SCALE_ROWS, sizeRow},
	{ir.OpSumRows, ir.F32}:      {C.K_SUM_ROWS, sizeOut},
	{ir.OpRepeatRows, ir.F32}:   {C.K_REPEAT_ROWS, sizeOut},
	{ir.OpRowDot, ir.F32}:       {C.K_ROW_DOT, sizeRow},

	{ir.OpTopK, ir.F32}:          {C.K_TOPK, sizeTopK},
	{ir.OpTopKGrad, ir.F32}:      {C.K_TOPK_GRAD, sizeTopKG},
	{ir.OpExpertLinear, ir.F32}:  {C.K_EXPERT_LINEAR, sizeExpert},
	{ir.OpExpertGradX, ir.F32}:   {C.K_EXPERT_GRADX, sizeExpert},
	{ir.OpExpertGradW, ir.F32}:   {C.K_EXPERT_GRADW, sizeExpertW},
	{ir.OpConv, ir.F32}:          {C.K_CONV, sizeConv},
	{ir.OpConvState, ir.F32}:     {C.K_CONV_STATE, sizeConvS},
	{ir.OpConvGrad, ir.F32}:      {C.K_CONV_GRAD, sizeConv},
	{ir.OpConvGradW, ir.F32}:     {C.K_CONV_GRADW, sizeConvW},
	{ir.OpAdapt, ir.F32}:         {C.K_ADAPT, sizeAdapt},
	{ir.OpNarrow, ir.BF16}:       {C.K_NARROW, all},
	{ir.OpEmbed, ir.BF16}:        {C.K_EMBED16, sizeEmbed},
	{ir.OpLinear, ir.BF16}:       {C.K_LINEAR16, sizeLinear},
	{ir.OpLinearT, ir.BF16}:      {C.K_LINEAR_GRADX16, sizeLinear},
	{ir.OpLinearGradX, ir.BF16}:  {C.K_LINEAR_GRADX16, sizeLinear},
	{ir.OpExpertLinear, ir.BF16}: {C.K_EXPERT_LINEAR16, sizeExpert},
	{ir.OpExpertGradX, ir.BF16}:  {C.K_EXPERT_GRADX16, sizeExpert},
	{ir.OpDelta, ir.F32}:         {C.K_DELTA, sizeDelta},
	{ir.OpDeltaState, ir.F32}:    {C.K_DELTA_STATE, sizeDeltaS},
	{ir.OpDeltaGrad, ir.F32}:     {C.K_DELTA_GRAD, sizeDelta},
}

// attrs are the attributes that the kernels know: an op that has learnt a new
// one is refused until its kernel has, too.
const attrs = ir.AttrEps | ir.AttrScale | ir.AttrHeads | ir.AttrKVHeads | ir.AttrHeadDim | ir.AttrRotary | ir.AttrWindow | ir.AttrPage | ir.AttrInverse |
	ir.AttrSoftcap | ir.AttrUnit | ir.AttrOffset | ir.AttrOf | ir.AttrPick | ir.AttrNormalise

// compiled is a program as C steps. It holds no Go pointers, so C may read it.
type compiled struct {
	program *ir.Program
	steps   []C.step
	slots   []uintptr // addresses, reused between runs; no pointers, since the memory may be unmapped by then
	used    uint64    // the cache's clock at the last run
}

// programCache keeps the translations of the programs run last.
type programCache struct {
	entries []*compiled
	clock   uint64
}

const cachedPrograms = 64

func (c *programCache) get(p *ir.Program) (*compiled, error) {
	c.clock++
	oldest := 0
	for i, e := range c.entries {
		if e.program == p {
			e.used = c.clock
			return e, nil
		}
		if e.used < c.entries[oldest].used {
			oldest = i
		}
	}
	e, err := compile(p)
	if err != nil {
		return nil, err
	}
	e.used = c.clock
	if len(c.entries) < cachedPrograms {
		c.entries = append(c.entries, e)
	} else {
		c.entries[oldest] = e
	}
	return e, nil
}

func compile(p *ir.Program) (*compiled, error) {
	e := &compiled{program: p, steps: make([]C.step, len(p.Steps)), slots: make([]uintptr, len(p.Slots))}
	for i := range p.Steps {
		if err := compileStep(&e.steps[i], p, &p.Steps[i]); err != nil {
			return nil, fmt.Errorf("step %d %s: %w", i, p.Graph.Nodes[p.Steps[i].Node].Op, err)
		}
	}
	return e, nil
}

func compileStep(s *C.step, p *ir.Program, from *ir.Step) error {
	n := &p.Graph.Nodes[from.Node]
	weights := ir.F32
	for _, ids := range [2][]ir.ID{n.In, n.Out} {
		for _, id := range ids {
			if t := p.Graph.Value(id).Type.DType; t != ir.I32 && t != ir.F32 {
				weights = t
			}
		}
	}
	k, ok := table[kernelKey{n.Op, weights}]
	if !ok {
		return fmt.Errorf("%w for %s", kernels.ErrUnsupported, weights)
	}
	if more := n.Op.Spec().Attrs &^ attrs; more != 0 {
		return fmt.Errorf("%w that reads attributes %#x", kernels.ErrUnsupported, uint32(more))
	}
	if len(from.In) != len(n.In) || len(from.Out) != len(n.Out) || len(n.In) > C.MAX_IN || len(n.Out) > C.MAX_OUT {
		return fmt.Errorf("%w: %d inputs and %d outputs have places for %d and %d", kernels.ErrInput, len(n.In), len(n.Out), len(from.In), len(from.Out))
	}
	if n.Op == ir.OpAdapt && p.Graph.Value(n.In[2]).Class != ir.ClassGroup {
		return fmt.Errorf("%w: its adapters are no group", kernels.ErrInput)
	}
	a := n.Attr
	*s = C.step{kernel: k.kernel, nin: C.int32_t(len(n.In)), nout: C.int32_t(len(n.Out)),
		scale: C.float(a.Scale), eps: C.float(a.Eps), heads: C.int32_t(a.Heads), kv_heads: C.int32_t(a.KVHeads), head_dim: C.int32_t(a.HeadDim),
		softcap: C.float(a.Softcap), offset: C.int32_t(a.Offset), of: C.int32_t(a.Of), pick: C.int32_t(a.Pick),
		rotary: C.int32_t(a.Rotary), window: C.int32_t(a.Window), page: C.int32_t(a.Page)}
	for _, f := range []struct {
		set bool
		to  *C.int32_t
	}{{from.Yield, &s.yield}, {a.Inverse, &s.inverse}, {a.Unit, &s.unit}, {a.Normalise, &s.normalise}} {
		if f.set {
			*f.to = 1
		}
	}
	var shapes [2][]ir.Shape
	for k, ids := range [2][]ir.ID{n.In, n.Out} {
		for j, id := range ids {
			t := p.Graph.Value(id).Type
			shapes[k] = append(shapes[k], t.Shape)
			at, err := placeOf(p, [2][]ir.Ref{from.In, from.Out}[k][j], t)
			if err != nil {
				return err
			}
			if k == 0 {
				s.in[j] = at
			} else {
				s.out[j] = at
			}
		}
	}
	dims := k.sizes(shapes[0], shapes[1])
	if len(dims) > C.MAX_DIM {
		return fmt.Errorf("%w: %d axes", kernels.ErrUnsupported, len(dims))
	}
	for i, d := range dims {
		s.dims[i] = C.dim{sym: C.int32_t(d.Sym), n: C.int32_t(d.N)}
	}
	return nil
}

// placeOf checks a reference against the memory that the program promises.
func placeOf(p *ir.Program, r ir.Ref, t ir.Type) (C.place, error) {
	if r.Space == ir.External {
		if r.Slot < 0 || r.Slot >= len(p.Slots) {
			return 0, fmt.Errorf("%w: slot %d of %d", kernels.ErrInput, r.Slot, len(p.Slots))
		}
		if have, need := p.Slots[r.Slot].Type.Bytes(p.Capacity), t.Bytes(p.Capacity); have < need {
			return 0, fmt.Errorf("%w: slot %s has %d bytes, its value %d", kernels.ErrInput, p.Slots[r.Slot].Name, have, need)
		}
		return C.place(-1 - r.Slot), nil
	}
	if n := t.Bytes(p.Capacity); r.Offset < 0 || r.Offset%4 != 0 || n > p.ArenaBytes-r.Offset {
		return 0, fmt.Errorf("%w: %d bytes at %d of an arena of %d", kernels.ErrInput, n, r.Offset, p.ArenaBytes)
	}
	return C.place(r.Offset), nil
}
