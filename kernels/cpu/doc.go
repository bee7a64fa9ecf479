// Package cpu is the fast CPU device: C kernels chosen by CPUID, one thread pool.
//
// # What float32 means here
//
// Every result is defined, to the bit, on a virtual vector of 16 float32 lanes
// with fused multiply-add; the levels (portable C, AVX2 with FMA, AVX-512, AVX-512
// with BF16, AMX, NEON) compute the same bits, and so does any number of threads. vec_portable.h is
// the definition of the lane operations. No sum is ever split between threads,
// and -std=c11 keeps the compiler from fusing what isn't written fused. NaNs
// are equal to each other whatever their payload.
//
// The orders of summation. "tree" adds lanes l and l+8, then l+4, l+2, l+1:
//
//   - Linear, and the scores of attention: one accumulator of 16 lanes, lane l
//     takes k = l, l+16, ... in rising order by fma, lanes beyond K take zeros;
//     then the tree; then the bias. The same for every number of rows.
//   - LinearGradX: from zero, one fma for each n in rising order; a row of zeros
//     gives zeros, whatever the weights.
//   - LinearGradW: for each datum from zero, one fma for each token in rising
//     order; then the datum's sum is added once to the accumulator. BiasGrad,
//     RMSNormGradW ((dy*r)*x by fma, groups in rising order inside a token) and
//     EmbedGrad (tokens of one id) likewise.
//   - Attention and PagedAttention: blocks of ir.KeyBlock keys at absolute
//     positions in rising order; score = dot * Scale (with a Softcap:
//     Softcap * tanh(score / Softcap)); new maximum m' of the
//     block and before; weights exp(score - m'), exact zeros for keys that the
//     query may not see, summed as (lane l + lane l+16) and the tree;
//     sum = fma(sum, exp(m - m'), that); output = output * exp(m - m'), then one
//     fma for each visible key in rising order; at last output * (1/sum) and
//     lse = m + log(sum). Blocks that hold no visible key are skipped.
//   - AttentionGrad: p = exp(dot(q,k)*Scale - lse), ds = p*(dot(dout,v) -
//     dot(dout,out))*Scale; dq by fma over keys in rising order; dk and dv by
//     fma over the heads of the group, then over queries, in rising order.
//   - RMSNorm: x*x by fma in 16 lanes, tree, (x*r)*(w+Unit) with r = 1/sqrt(sum/D+eps).
//   - LSE: the maximum; then exp(x-max) added in 16 lanes and the tree inside
//     blocks of 512 words, the blocks one after the other; max + log(sum).
//   - TopK: exp(logit - the largest), divided by their sum over the chosen in
//     order or over all experts in 16 lanes and the tree. ExpertLinear is Linear,
//     ExpertGradX LinearGradX; ExpertGradW is LinearGradW over the rows of a
//     datum that chose the expert, in rising order.
//   - With bfloat16 weights (Linear, LinearT, LinearGradX, ExpertLinear,
//     ExpertGradX): the other operand is rounded to bfloat16, to the nearest, ties
//     to even. A lane of Linear takes k = 2l+1, 2l, 2l+33, 2l+32, ... and the
//     gradient n = 1, 0, 3, 2, ..., each by fma, denormals counting as zeros in
//     every product and sum: what VDPBF16PS does. The tree and the bias as above.
//   - The same products on tiles (level AMX, and AMX-AVX2, its twin for processors
//     without them): 32 of the summed axis at a time, in rising order, zeros beyond
//     its end; for each 32 the even ones from zero by fma, the odd ones from zero by
//     fma, their sum added to what was before; denormals count as zeros throughout:
//     what TDPBF16PS does. For a gradient the axis is n.
//   - Adapt is Linear by A, Linear by B and ScaleAdd.
//   - Conv and ConvState: from zero, one fma for each token of the kernel, the
//     oldest first; ConvGrad the newest first; ConvGradW as LinearGradW.
//   - Delta and DeltaState: state*exp(g); what is missing, v minus the sum over D
//     by fma from zero in rising order; state + k*(beta*missing) by fma; the
//     output's sum over D as before. DeltaGrad: sums over E in 16 lanes and the
//     tree, over D in rising order, heads of one key in rising order.
//   - SegmentSum: 16 lanes from the sequence's first cell, then the tree.
//   - SumSquares: fma in 16 lanes and the tree inside blocks of 4096, the blocks
//     added one after the other in double precision, rounded once.
//   - exp, log and sigmoid: the polynomials of level_math.h, at most 1 ulp off
//     in the normal range; exp(-inf) = 0, log(0) = -inf, NaN stays NaN.
//
// Elementwise: Min, Max and Clamp are C's fminf and fmaxf (of a number and NaN
// the number; the first operand when equal); Greater is false and NonZero true
// for NaN; Where selects without arithmetic; ScaleAdd is one fma; all else is
// IEEE, so 0 times -inf is NaN. AdamW rounds after each operation of
// ir.HyperLen's formula. Denormals are kept.
//
// # How it runs
//
// A program is translated once into an array of C steps; a run is one call into
// C for all integer checks and one for each stretch between yield points. Work
// is claimed in chunks by the threads of one pool that all devices of the
// process share; idle threads sleep. A sum over a long axis is taken in stretches
// of a few milliseconds, so that others get their turn. Memory is mapped outside the Go heap.
//
// Files: step.h is what Go hands over, run.c checks and dispatches, pool.c the
// threads; level.h includes the kernels (level_*.h, forward and backward
// together) and is compiled once for each vector type vec_*.h; with tiles,
// tile_*.h, the products over bfloat16 are those of level_tile*.h.
package cpu
