package reference

import (
	"math"

	"smolgym/model/ir"
)

// real is the storage type: float32 on the device, float64 in tests that take
// finite differences.
type real interface{ float32 | float64 }

// tensor is an operand: elements row-major, f or i by its type.
type tensor[F real] struct {
	shape []int
	f     []F
	i     []int32
	parts [][]F    // of a group
	half  []uint16 // of bfloat16: its memory, of which f is a copy

	computed bool // by an earlier node: integers are right by construction and not there to be checked yet
}

// rows is the number of rows: the product of all axes but the last.
func (t tensor[F]) rows() int {
	n := 1
	for _, d := range t.shape[:max(len(t.shape)-1, 0)] {
		n *= d
	}
	return n
}

// cols is the last axis.
func (t tensor[F]) cols() int {
	if len(t.shape) == 0 {
		return 1
	}
	return t.shape[len(t.shape)-1]
}

// row is row r of a matrix.
func (t tensor[F]) row(r int) []F {
	c := t.cols()
	return t.f[r*c : (r+1)*c : (r+1)*c]
}

// call is one application of an op to bound memory.
type call[F real] struct {
	op      ir.Op
	attr    ir.Attrs
	in, out []tensor[F]
}

type kernel[F real] func(c *call[F])

func table[F real]() map[ir.Op]kernel[F] {
	return map[ir.Op]kernel[F]{
		ir.OpEmbed: embed[F], ir.OpEmbedGrad: embedGrad[F], ir.OpGatherRows: gatherRows[F],
		ir.OpLinear: linear[F], ir.OpLinearGradX: linearGradX[F], ir.OpLinearGradW: linearGradW[F], ir.OpBiasGrad: biasGrad[F],
		ir.OpRMSNorm: rmsNorm[F], ir.OpRMSNormGrad: rmsNormGrad[F], ir.OpRMSNormGradW: rmsNormGradW[F],
		ir.OpRope:      rope[F],
		ir.OpAttention: attention[F], ir.OpAttentionGrad: attentionGrad[F], ir.OpKVWrite: kvWrite[F], ir.OpPagedAttention: pagedAttention[F],
		ir.OpSiLUMul: siluMul[F], ir.OpSiLUMulGrad: siluMulGrad[F],
		ir.OpLSE: logSumExp[F], ir.OpLogProb: logProb[F], ir.OpLogProbGrad: logProbGrad[F],

		ir.OpAdd: binary[F](add), ir.OpSub: binary[F](sub), ir.OpMul: binary[F](mul), ir.OpDiv: binary[F](div),
		ir.OpMin: binary[F](minimum), ir.OpMax: binary[F](maximum), ir.OpGreater: binary[F](greater),
		ir.OpNeg: unary[F](neg), ir.OpExp: unary[F](exp), ir.OpNonZero: unary[F](nonZero), ir.OpDetach: unary[F](same),
		ir.OpScale: scale[F], ir.OpScaleAdd: scaleAdd[F], ir.OpFill: fill[F], ir.OpClamp: clamp[F], ir.OpWhere: where[F],
		ir.OpSegmentSum: segmentSum[F], ir.OpSegmentExpand: segmentExpand[F],

		ir.OpSumSquares: sumSquares[F], ir.OpAdamW: adamW[F],

		ir.OpLinearT: linearGradX[F], ir.OpAddRow: addRow[F], ir.OpCenter: center[F], ir.OpDecay: decay[F], ir.OpSlice: slice[F], ir.OpSliceGrad: sliceGrad[F], ir.OpJoin: join[F],
		ir.OpTanh: unary[F](math.Tanh), ir.OpSigmoid: unary[F](sigmoid), ir.OpSoftplus: unary[F](softplus),
		ir.OpGELU: unary[F](gelu), ir.OpGELUTanh: unary[F](geluTanh), ir.OpGELUGrad: binary[F](geluGrad), ir.OpGELUTanhGrad: binary[F](geluTanhGrad),
		ir.OpTopK: topK[F], ir.OpTopKGrad: topKGrad[F],
		ir.OpExpertLinear: expertLinear[F], ir.OpExpertGradX: expertGradX[F], ir.OpExpertGradW: expertGradW[F],
		ir.OpScaleRows: scaleRows[F], ir.OpSumRows: sumRows[F], ir.OpRepeatRows: repeatRows[F], ir.OpRowDot: rowDot[F],
		ir.OpAdapt: adapt[F], ir.OpNarrow: narrow[F],
		ir.OpConv: conv[F], ir.OpConvState: convState[F], ir.OpConvGrad: convGrad[F], ir.OpConvGradW: convGradW[F],
		ir.OpDelta: delta[F], ir.OpDeltaState: deltaState[F], ir.OpDeltaGrad: deltaGrad[F],
	}
}
