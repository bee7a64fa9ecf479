package ir

import "fmt"

// TableVersion changes when an op's meaning changes: it is part of the
// numerics version that runs record.
const TableVersion = 1

// KeyBlock is the number of keys in one step of the online softmax. Blocks lie
// at fixed absolute positions from 0, in training and in the paged cache alike,
// so that a query's output has the same bits in both. A cache page is a whole
// number of blocks.
const KeyBlock = 32

// Op is a row of the op table.
type Op uint8

// The ops. Comments give shapes; rows means any leading axis ([T] or [R]).
const (
	OpInvalid Op = iota

	// Forward.
	OpEmbed          // ids[T] i32, table[V,D] -> [T,D]
	OpLinear         // x[rows,K], w[N,K], (bias[N]) -> x·wᵀ + bias [rows,N]
	OpRMSNorm        // x[rows,G*D], w[D]; Heads=G, Eps -> x/rms(x over D)*w; Unit: *(w+1)
	OpRope           // x[T,Heads*HeadDim], pos[T] i32, cos[X,Rotary/2], sin[X,Rotary/2] -> rotated halves; Inverse negates sin
	OpAttention      // q[T,Heads*D], k[T,KVHeads*D], v[T,KVHeads*D], offsets[S1] i32 -> out[T,Heads*D], lse[T,Heads]; causal inside each sequence; Softcap: scores s become Softcap*tanh(s/Softcap)
	OpKVWrite        // cache[P,Page*KVHeads*D], x[T,KVHeads*D], offsets[S1], start[S], table[S,B] -> cache (in place)
	OpPagedAttention // q[T,Heads*D], kcache, vcache, offsets[S1], start[S], table[S,B] -> out[T,Heads*D]; sequence s's token i sits at position start[s]+i
	OpSiLUMul        // gate[rows,F], up[rows,F] -> gate*sigmoid(gate)*up
	OpAdd            // a, b of one shape -> a+b
	OpScaleAdd       // a, b of one shape; Scale -> a + Scale*b
	OpScale          // a; Scale -> Scale*a
	OpGatherRows     // x[T,D], rows[R] i32 -> [R,D]
	OpLSE            // logits[rows,V] -> log(sum(exp)) [rows]
	OpLogProb        // logits[rows,V], targets[rows,C] i32 -> logits[target]-lse [rows,C], lse[rows]

	// Losses: elementwise over one shape, masks are 0 or 1 in f32.
	OpSub
	OpMul
	OpDiv
	OpNeg
	OpExp
	OpMin
	OpMax
	OpClamp         // x, lo, hi of one shape -> min(max(x,lo),hi)
	OpGreater       // a, b -> a > b
	OpNonZero       // a -> a != 0
	OpWhere         // mask, a, b -> a where mask is not 0, else b
	OpDetach        // a -> a, no gradient
	OpFill          // like; Scale -> the constant Scale in the shape of like
	OpSegmentSum    // x[rows] or [rows,C], offsets[S1] -> sum over each sequence's rows and targets [S]
	OpSegmentExpand // x[S], offsets[S1], like[rows,C] -> each sequence's value in all of its cells

	// Backward. Parameter gradients add into an accumulator, one datum after
	// the other; activation gradients overwrite.
	OpLinearGradX   // dy[rows,N], w[N,K] -> dy·w [rows,K]
	OpLinearGradW   // acc[N,K], dy[T,N], x[T,K], offsets[S1] -> acc + per-datum dyᵀ·x (in place)
	OpBiasGrad      // acc[N], dy[T,N], offsets[S1] -> acc + per-datum column sums (in place)
	OpEmbedGrad     // acc[V,D], ids[T] i32, dy[T,D], offsets[S1] -> acc (in place)
	OpRMSNormGrad   // x, w, dy; Heads, Eps -> dx
	OpRMSNormGradW  // acc[D], x, dy, offsets[S1]; Heads, Eps -> acc (in place)
	OpAttentionGrad // q, k, v, out, lse, dout, offsets -> dq, dk, dv
	OpSiLUMulGrad   // gate, up, dy -> dgate, dup
	OpLogProbGrad   // logits[rows,V], lse[rows], targets[rows,C], dlogprobs[rows,C] -> dlogits[rows,V]

	// Optimizer.
	OpSumSquares // g -> sum of squares [1]
	OpAdamW      // w, m, v, g of one shape, hyper[HyperLen] -> w, m, v (in place)

	// What single families need: other norms, activations and layouts.
	OpLinearT  // x[rows,K], w[K,N] -> x·w [rows,N]: a Linear whose weight is stored transposed
	OpAddRow   // x[rows,N], b[N] -> x + b
	OpCenter   // x[rows,D] -> x - mean over D
	OpDecay    // x[rows,N], a[N] -> -exp(a)*x
	OpSlice    // x[rows,Heads*Of]; Offset, HeadDim -> columns [Offset,Offset+HeadDim) of each group of Of [rows,Heads*HeadDim]
	OpJoin     // two to four x[rows,N] -> side by side [rows,sum of N]
	OpTanh     // a
	OpSigmoid  // a
	OpSoftplus // a -> log(1+exp(a))
	OpGELU     // a -> a/2*(1+erf(a/sqrt(2)))
	OpGELUTanh // a -> a/2*(1+tanh(sqrt(2/pi)*(a+0.044715*a³)))

	// Experts. A token's k experts stand in rows k*t to k*t+k-1.
	OpTopK         // logits[T,E]; Pick=k, Normalise -> weights[T,k], experts[T,k] i32: the largest of softmax, equal ones by rising expert
	OpExpertLinear // x[T,K] or [kT,K], w[E,N,K], experts[T,k] i32 -> [kT,N]: each row by its expert's w
	OpScaleRows    // x[kT,D], w[T,k] -> each row times its weight
	OpSumRows      // x[kT,D]; Pick=k -> [T,D]
	OpRepeatRows   // x[T,D]; Pick=k -> [kT,D]
	OpRowDot       // a[kT,D], b[kT,D]; Pick=k -> dot products [T,k]

	// Linear attention. A sequence's state lives in row slot[s] of a state
	// tensor; one whose start is 0 begins from zero, whatever the row holds.
	OpConv       // x[T,C], w[C,1,K], offsets[S1] -> causal convolution of each column inside its sequence
	OpConvState  // state[L,(K-1)*C], x[T,C], w[C,1,K], offsets, start[S], slot[S] -> state (in place), y[T,C]
	OpDelta      // q[T,KVHeads*D], k[T,KVHeads*D], v[T,Heads*E], g[T,Heads], beta[T,Heads], offsets; HeadDim=D -> [T,Heads*E]: gated delta rule
	OpDeltaState // state[L,Heads*D*E], q, k, v, g, beta, offsets, start, slot -> state (in place), out

	// Adapters of several runs in one batch. The parts of a group are A[r,K] and
	// B[N,r] of each of Of modules, then those of the next adapter; a module
	// without an adapter has two empty parts.
	OpAdapt // y[rows,N], x[rows,K], group, place[rows] i32, scale[rows]; Offset=module, Of=modules -> y + scale*(x·Aᵀ·Bᵀ) with the A and B of adapter place-1; place 0: y

	// Storage.
	OpNarrow // w, x f32 of one shape -> x rounded to the type of w (in place)

	OpSliceGrad    // dy[rows,Heads*HeadDim]; Offset, Of -> [rows,Heads*Of], zero outside the slice
	OpGELUGrad     // x, dy -> dx
	OpGELUTanhGrad // x, dy -> dx
	OpTopKGrad     // logits[T,E], experts[T,k], dweights[T,k]; Normalise -> dlogits
	OpExpertGradX  // dy[kT,N], w[E,N,K], experts[T,k] -> [kT,K]
	OpExpertGradW  // acc[E,N,K], dy[kT,N], x[T,K] or [kT,K], experts[T,k], offsets -> acc (in place)
	OpConvGrad     // dy[T,C], w[C,1,K], offsets -> dx
	OpConvGradW    // acc[C,1,K], dy[T,C], x[T,C], offsets -> acc (in place)
	OpDeltaGrad    // q, k, v, g, beta, dout, offsets -> dq, dk, dv, dg, dbeta

	numOps
)

// Positions in AdamW's hyper input, computed on the host in float64 and rounded
// once. Update (as torch's AdamW, single tensor): g' = g*GradScale;
// w *= Decay; m += OneMinusBeta1*(g'-m); v = Beta2*v + OneMinusBeta2*g'*g';
// w -= StepSize * m / (sqrt(v)/SqrtBias2 + Eps).
const (
	HyperDecay         = iota // 1 - lr*weight_decay
	HyperOneMinusBeta1        // 1 - beta1
	HyperBeta2
	HyperOneMinusBeta2
	HyperStepSize  // lr / (1 - beta1^t)
	HyperSqrtBias2 // sqrt(1 - beta2^t)
	HyperEps
	HyperGradScale // clip factor, 1 when not clipped
	HyperLen
)

// AttrSet names the attributes an op reads.
type AttrSet uint32

// The attributes.
const (
	AttrEps AttrSet = 1 << iota
	AttrScale
	AttrHeads
	AttrKVHeads
	AttrHeadDim
	AttrRotary
	AttrWindow
	AttrPage
	AttrInverse
	AttrSoftcap
	AttrUnit
	AttrOffset
	AttrOf
	AttrPick
	AttrNormalise
)

// Gradient says how reverse mode treats an op.
type Gradient uint8

// The kinds of gradient.
const (
	GradRule Gradient = iota // package grad has a rule
	GradZero                 // piecewise constant or explicitly stopped: no gradient flows
	GradNone                 // never on a path to a loss; reverse mode refuses it
)

// Spec is one row of the op table.
type Spec struct {
	Name    string
	MinIn   int
	MaxIn   int
	Outputs int
	InPlace int // the first InPlace outputs are the same memory as the inputs of the same index
	// Reuse: a planner may give an output the memory of a same-typed input that
	// dies here; the kernel reads an element of every input before it writes it.
	Reuse bool
	Attrs AttrSet
	Grad  Gradient
	Why   string // for GradZero and GradNone
	Infer func(in []Type, a Attrs) ([]Type, error)
	// FLOPs counts multiplications and additions under dims; nil means one per output element.
	FLOPs func(in, out []Type, a Attrs, d Dims) int64
}

// Spec is the op's table row.
func (o Op) Spec() Spec {
	if o > OpInvalid && o < numOps {
		return table[o]
	}
	return Spec{Name: fmt.Sprintf("op(%d)", uint8(o)), Outputs: 1}
}

func (o Op) String() string { return o.Spec().Name }

// Ops lists the table in order.
func Ops() []Op {
	ops := make([]Op, 0, numOps-1)
	for o := OpInvalid + 1; o < numOps; o++ {
		ops = append(ops, o)
	}
	return ops
}

const (
	whyBackward = "a gradient itself; second derivatives are out of scope"
	whyOptim    = "updates parameters, no loss behind it"
	whyCache    = "sampling only; training uses Attention"
)

var table = [numOps]Spec{
	OpEmbed:          {Name: "Embed", MinIn: 2, MaxIn: 2, Outputs: 1, Infer: inferEmbed},
	OpLinear:         {Name: "Linear", MinIn: 2, MaxIn: 3, Outputs: 1, Infer: inferLinear, FLOPs: flopsLinear},
	OpRMSNorm:        {Name: "RMSNorm", MinIn: 2, MaxIn: 2, Outputs: 1, Reuse: true, Attrs: normAttrs, Infer: inferRMSNorm},
	OpRope:           {Name: "Rope", MinIn: 4, MaxIn: 4, Outputs: 1, Reuse: true, Attrs: AttrHeads | AttrHeadDim | AttrRotary | AttrInverse, Infer: inferRope},
	OpAttention:      {Name: "Attention", MinIn: 4, MaxIn: 4, Outputs: 2, Attrs: attnAttrs, Infer: inferAttention, FLOPs: flopsAttention},
	OpKVWrite:        {Name: "KVWrite", MinIn: 5, MaxIn: 5, Outputs: 1, InPlace: 1, Attrs: AttrPage, Grad: GradNone, Why: whyCache, Infer: inferKVWrite},
	OpPagedAttention: {Name: "PagedAttention", MinIn: 6, MaxIn: 6, Outputs: 1, Attrs: attnAttrs | AttrPage, Grad: GradNone, Why: whyCache, Infer: inferPagedAttention, FLOPs: flopsAttention},
	OpSiLUMul:        {Name: "SiLUMul", MinIn: 2, MaxIn: 2, Outputs: 1, Reuse: true, Infer: inferSame},
	OpAdd:            {Name: "Add", MinIn: 2, MaxIn: 2, Outputs: 1, Reuse: true, Infer: inferSame},
	OpScaleAdd:       {Name: "ScaleAdd", MinIn: 2, MaxIn: 2, Outputs: 1, Reuse: true, Attrs: AttrScale, Infer: inferSame},
	OpScale:          {Name: "Scale", MinIn: 1, MaxIn: 1, Outputs: 1, Reuse: true, Attrs: AttrScale, Infer: inferSame},
	OpGatherRows:     {Name: "GatherRows", MinIn: 2, MaxIn: 2, Outputs: 1, Grad: GradNone, Why: "sampling only; training scores every row", Infer: inferGatherRows},
	OpLSE:            {Name: "LSE", MinIn: 1, MaxIn: 1, Outputs: 1, Grad: GradNone, Why: "sampling only; training uses LogProb", Infer: inferLSE},
	OpLogProb:        {Name: "LogProb", MinIn: 2, MaxIn: 2, Outputs: 2, Infer: inferLogProb},

	OpSub:           {Name: "Sub", MinIn: 2, MaxIn: 2, Outputs: 1, Reuse: true, Infer: inferSame},
	OpMul:           {Name: "Mul", MinIn: 2, MaxIn: 2, Outputs: 1, Reuse: true, Infer: inferSame},
	OpDiv:           {Name: "Div", MinIn: 2, MaxIn: 2, Outputs: 1, Reuse: true, Infer: inferSame},
	OpNeg:           {Name: "Neg", MinIn: 1, MaxIn: 1, Outputs: 1, Reuse: true, Infer: inferSame},
	OpExp:           {Name: "Exp", MinIn: 1, MaxIn: 1, Outputs: 1, Reuse: true, Infer: inferSame},
	OpMin:           {Name: "Min", MinIn: 2, MaxIn: 2, Outputs: 1, Reuse: true, Infer: inferSame},
	OpMax:           {Name: "Max", MinIn: 2, MaxIn: 2, Outputs: 1, Reuse: true, Infer: inferSame},
	OpClamp:         {Name: "Clamp", MinIn: 3, MaxIn: 3, Outputs: 1, Reuse: true, Infer: inferSame},
	OpGreater:       {Name: "Greater", MinIn: 2, MaxIn: 2, Outputs: 1, Reuse: true, Grad: GradZero, Why: "piecewise constant", Infer: inferSame},
	OpNonZero:       {Name: "NonZero", MinIn: 1, MaxIn: 1, Outputs: 1, Reuse: true, Grad: GradZero, Why: "piecewise constant", Infer: inferSame},
	OpWhere:         {Name: "Where", MinIn: 3, MaxIn: 3, Outputs: 1, Reuse: true, Infer: inferSame},
	OpDetach:        {Name: "Detach", MinIn: 1, MaxIn: 1, Outputs: 1, Reuse: true, Grad: GradZero, Why: "stops the gradient by definition", Infer: inferSame},
	OpFill:          {Name: "Fill", MinIn: 1, MaxIn: 1, Outputs: 1, Reuse: true, Attrs: AttrScale, Grad: GradZero, Why: "a constant", Infer: inferSame},
	OpSegmentSum:    {Name: "SegmentSum", MinIn: 2, MaxIn: 2, Outputs: 1, Infer: inferSegmentSum},
	OpSegmentExpand: {Name: "SegmentExpand", MinIn: 3, MaxIn: 3, Outputs: 1, Infer: inferSegmentExpand},

	OpLinearGradX:   {Name: "LinearGradX", MinIn: 2, MaxIn: 2, Outputs: 1, Grad: GradNone, Why: whyBackward, Infer: inferLinearGradX, FLOPs: flopsLinearGradX},
	OpLinearGradW:   {Name: "LinearGradW", MinIn: 4, MaxIn: 4, Outputs: 1, InPlace: 1, Grad: GradNone, Why: whyBackward, Infer: inferLinearGradW, FLOPs: flopsLinearGradW},
	OpBiasGrad:      {Name: "BiasGrad", MinIn: 3, MaxIn: 3, Outputs: 1, InPlace: 1, Grad: GradNone, Why: whyBackward, Infer: inferBiasGrad},
	OpEmbedGrad:     {Name: "EmbedGrad", MinIn: 4, MaxIn: 4, Outputs: 1, InPlace: 1, Grad: GradNone, Why: whyBackward, Infer: inferEmbedGrad},
	OpRMSNormGrad:   {Name: "RMSNormGrad", MinIn: 3, MaxIn: 3, Outputs: 1, Attrs: normAttrs, Grad: GradNone, Why: whyBackward, Infer: inferRMSNormGrad},
	OpRMSNormGradW:  {Name: "RMSNormGradW", MinIn: 4, MaxIn: 4, Outputs: 1, InPlace: 1, Attrs: AttrEps | AttrHeads, Grad: GradNone, Why: whyBackward, Infer: inferRMSNormGradW},
	OpAttentionGrad: {Name: "AttentionGrad", MinIn: 7, MaxIn: 7, Outputs: 3, Attrs: attnAttrs, Grad: GradNone, Why: whyBackward, Infer: inferAttentionGrad, FLOPs: flopsAttentionGrad},
	OpSiLUMulGrad:   {Name: "SiLUMulGrad", MinIn: 3, MaxIn: 3, Outputs: 2, Reuse: true, Grad: GradNone, Why: whyBackward, Infer: inferSiLUMulGrad},
	OpLogProbGrad:   {Name: "LogProbGrad", MinIn: 4, MaxIn: 4, Outputs: 1, Reuse: true, Grad: GradNone, Why: whyBackward, Infer: inferLogProbGrad},

	OpSumSquares: {Name: "SumSquares", MinIn: 1, MaxIn: 1, Outputs: 1, Grad: GradNone, Why: whyOptim, Infer: inferSumSquares},
	OpAdamW:      {Name: "AdamW", MinIn: 5, MaxIn: 5, Outputs: 3, InPlace: 3, Grad: GradNone, Why: whyOptim, Infer: inferAdamW},

	OpLinearT:  {Name: "LinearT", MinIn: 2, MaxIn: 2, Outputs: 1, Infer: inferLinearT, FLOPs: flopsLinearGradX},
	OpAddRow:   {Name: "AddRow", MinIn: 2, MaxIn: 2, Outputs: 1, Reuse: true, Infer: inferRow},
	OpCenter:   {Name: "Center", MinIn: 1, MaxIn: 1, Outputs: 1, Reuse: true, Infer: inferMatrix},
	OpDecay:    {Name: "Decay", MinIn: 2, MaxIn: 2, Outputs: 1, Reuse: true, Infer: inferRow},
	OpSlice:    {Name: "Slice", MinIn: 1, MaxIn: 1, Outputs: 1, Attrs: sliceAttrs, Infer: inferSlice},
	OpJoin:     {Name: "Join", MinIn: 2, MaxIn: 4, Outputs: 1, Infer: inferJoin},
	OpTanh:     {Name: "Tanh", MinIn: 1, MaxIn: 1, Outputs: 1, Reuse: true, Infer: inferSame},
	OpSigmoid:  {Name: "Sigmoid", MinIn: 1, MaxIn: 1, Outputs: 1, Reuse: true, Infer: inferSame},
	OpSoftplus: {Name: "Softplus", MinIn: 1, MaxIn: 1, Outputs: 1, Reuse: true, Infer: inferSame},
	OpGELU:     {Name: "GELU", MinIn: 1, MaxIn: 1, Outputs: 1, Reuse: true, Infer: inferSame},
	OpGELUTanh: {Name: "GELUTanh", MinIn: 1, MaxIn: 1, Outputs: 1, Reuse: true, Infer: inferSame},

	OpTopK:         {Name: "TopK", MinIn: 1, MaxIn: 1, Outputs: 2, Attrs: AttrPick | AttrNormalise, Infer: inferTopK},
	OpExpertLinear: {Name: "ExpertLinear", MinIn: 3, MaxIn: 3, Outputs: 1, Infer: inferExpertLinear, FLOPs: flopsExpert},
	OpScaleRows:    {Name: "ScaleRows", MinIn: 2, MaxIn: 2, Outputs: 1, Reuse: true, Infer: inferScaleRows},
	OpSumRows:      {Name: "SumRows", MinIn: 1, MaxIn: 1, Outputs: 1, Attrs: AttrPick, Infer: inferSumRows},
	OpRepeatRows:   {Name: "RepeatRows", MinIn: 1, MaxIn: 1, Outputs: 1, Attrs: AttrPick, Grad: GradNone, Why: whyBackward, Infer: inferRepeatRows},
	OpRowDot:       {Name: "RowDot", MinIn: 2, MaxIn: 2, Outputs: 1, Attrs: AttrPick, Grad: GradNone, Why: whyBackward, Infer: inferRowDot},

	OpConv:       {Name: "Conv", MinIn: 3, MaxIn: 3, Outputs: 1, Infer: inferConv, FLOPs: flopsConv},
	OpConvState:  {Name: "ConvState", MinIn: 6, MaxIn: 6, Outputs: 2, InPlace: 1, Grad: GradNone, Why: whyCache, Infer: inferConvState, FLOPs: flopsConv},
	OpDelta:      {Name: "Delta", MinIn: 6, MaxIn: 6, Outputs: 1, Attrs: deltaAttrs, Infer: inferDelta, FLOPs: flopsDelta},
	OpDeltaState: {Name: "DeltaState", MinIn: 9, MaxIn: 9, Outputs: 2, InPlace: 1, Attrs: deltaAttrs, Grad: GradNone, Why: whyCache, Infer: inferDeltaState, FLOPs: flopsDelta},

	OpAdapt: {Name: "Adapt", MinIn: 5, MaxIn: 5, Outputs: 1, Reuse: true, Attrs: AttrOffset | AttrOf, Grad: GradNone, Why: "sampling only; a run trains one adapter, as Linears", Infer: inferAdapt},

	OpNarrow: {Name: "Narrow", MinIn: 2, MaxIn: 2, Outputs: 1, InPlace: 1, Grad: GradNone, Why: whyOptim, Infer: inferNarrow},

	OpSliceGrad:    {Name: "SliceGrad", MinIn: 1, MaxIn: 1, Outputs: 1, Attrs: sliceAttrs, Grad: GradNone, Why: whyBackward, Infer: inferSliceGrad},
	OpGELUGrad:     {Name: "GELUGrad", MinIn: 2, MaxIn: 2, Outputs: 1, Reuse: true, Grad: GradNone, Why: whyBackward, Infer: inferSame},
	OpGELUTanhGrad: {Name: "GELUTanhGrad", MinIn: 2, MaxIn: 2, Outputs: 1, Reuse: true, Grad: GradNone, Why: whyBackward, Infer: inferSame},
	OpTopKGrad:     {Name: "TopKGrad", MinIn: 3, MaxIn: 3, Outputs: 1, Attrs: AttrNormalise, Grad: GradNone, Why: whyBackward, Infer: inferTopKGrad},
	OpExpertGradX:  {Name: "ExpertGradX", MinIn: 3, MaxIn: 3, Outputs: 1, Grad: GradNone, Why: whyBackward, Infer: inferExpertGradX, FLOPs: flopsExpert},
	OpExpertGradW:  {Name: "ExpertGradW", MinIn: 5, MaxIn: 5, Outputs: 1, InPlace: 1, Grad: GradNone, Why: whyBackward, Infer: inferExpertGradW, FLOPs: flopsExpertW},
	OpConvGrad:     {Name: "ConvGrad", MinIn: 3, MaxIn: 3, Outputs: 1, Grad: GradNone, Why: whyBackward, Infer: inferConv, FLOPs: flopsConv},
	OpConvGradW:    {Name: "ConvGradW", MinIn: 4, MaxIn: 4, Outputs: 1, InPlace: 1, Grad: GradNone, Why: whyBackward, Infer: inferConvGradW},
	OpDeltaGrad:    {Name: "DeltaGrad", MinIn: 7, MaxIn: 7, Outputs: 5, Attrs: deltaAttrs, Grad: GradNone, Why: whyBackward, Infer: inferDeltaGrad, FLOPs: flopsDelta},
}

const (
	attnAttrs  = AttrScale | AttrHeads | AttrKVHeads | AttrHeadDim | AttrWindow | AttrSoftcap
	normAttrs  = AttrEps | AttrHeads | AttrUnit
	sliceAttrs = AttrHeads | AttrHeadDim | AttrOffset | AttrOf
	deltaAttrs = AttrHeads | AttrKVHeads | AttrHeadDim
)
