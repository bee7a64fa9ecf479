// One level of the instruction set: every kernel, compiled with the vector
// type that was included before. The .c file of the level defines LEVEL(name).
#include <math.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "level_math.h"
#include "level_tiles.h"

#include "level_elementwise.h"
#include "level_linear.h"
#include "level_bf16.h"
#include "level_norm.h"
#include "level_attention.h"
#include "level_logprob.h"
#include "level_rows.h"
#include "level_optim.h"
#include "level_activations.h"
#include "level_layout.h"
#include "level_experts.h"
#include "level_delta.h"
#include "level_adapt.h"

const kernel LEVEL(kernels)[K_COUNT] = {
	[K_EMBED] = embed, [K_GATHER_ROWS] = gather_rows, [K_EMBED_GRAD] = embed_grad,
	[K_LINEAR] = linear, [K_LINEAR_GRADX] = linear_grad_x, [K_LINEAR_GRADW] = linear_grad_w, [K_BIAS_GRAD] = bias_grad,
	[K_RMSNORM] = rms_norm, [K_RMSNORM_GRAD] = rms_norm_grad, [K_RMSNORM_GRADW] = rms_norm_grad_w,
	[K_ROPE] = rope,
	[K_ATTENTION] = attention, [K_PAGED_ATTENTION] = paged_attention, [K_ATTENTION_GRAD] = attention_grad, [K_KVWRITE] = kv_write,
	[K_SILUMUL] = silu_mul, [K_SILUMUL_GRAD] = silu_mul_grad,
	[K_LSE] = log_sum_exp, [K_LOGPROB] = log_prob, [K_LOGPROB_GRAD] = log_prob_grad,
	[K_ADD] = add, [K_SUB] = sub, [K_MUL] = mul, [K_DIV] = divide, [K_NEG] = neg, [K_EXP] = expo,
	[K_MIN] = minimum, [K_MAX] = maximum, [K_CLAMP] = clamp, [K_GREATER] = greater, [K_NONZERO] = non_zero,
	[K_WHERE] = where, [K_COPY] = copy, [K_FILL] = fill, [K_SCALE] = scale, [K_SCALE_ADD] = scale_add,
	[K_SEGMENT_SUM] = segment_sum, [K_SEGMENT_EXPAND] = segment_expand,
	[K_SUM_SQUARES] = sum_squares, [K_ADAMW] = adamw,
	[K_ADD_ROW] = add_row, [K_CENTER] = center, [K_DECAY] = decay, [K_SLICE] = slice, [K_SLICE_GRAD] = slice_grad, [K_JOIN] = join,
	[K_TANH] = tanh_op, [K_SIGMOID] = sigmoid, [K_SOFTPLUS] = softplus,
	[K_GELU] = gelu, [K_GELU_TANH] = gelu_tanh, [K_GELU_GRAD] = gelu_grad, [K_GELU_TANH_GRAD] = gelu_tanh_grad,
	[K_SCALE_ROWS] = scale_rows, [K_SUM_ROWS] = sum_rows, [K_REPEAT_ROWS] = repeat_rows, [K_ROW_DOT] = row_dot,
	[K_TOPK] = top_k, [K_TOPK_GRAD] = top_k_grad, [K_EXPERT_LINEAR] = expert_linear, [K_EXPERT_GRADX] = expert_grad_x, [K_EXPERT_GRADW] = expert_grad_w,
	[K_CONV] = conv, [K_CONV_STATE] = conv_state, [K_CONV_GRAD] = conv_grad, [K_CONV_GRADW] = conv_grad_w,
	[K_ADAPT] = adapt,
	[K_NARROW] = narrow, [K_EMBED16] = embed16, [K_LINEAR16] = linear16, [K_LINEAR_GRADX16] = linear_grad_x16,
	[K_EXPERT_LINEAR16] = expert_linear16, [K_EXPERT_GRADX16] = expert_grad_x16,
	[K_DELTA] = delta, [K_DELTA_STATE] = delta_state, [K_DELTA_GRAD] = delta_grad,
};

void LEVEL(math)(int which, const float *x, float *y, int64_t n) {
	for (int64_t i = 0; i < n; i++)
		if (which == 0) {
			v16 e = vexp(vset(x[i]));
			vstore_n(y + i, e, 1);
		} else
			y[i] = log1(x[i]);
}

double LEVEL(fma_peak)(int64_t n) {
	enum { CHAINS = OUT_V == 4 ? 12 : 6 }; // as many as the register file takes
	v16 c[CHAINS], a = vset(0.999f), b = vset(1e-3f);
	for (int i = 0; i < CHAINS; i++)
		c[i] = vset((float)i);
	for (int64_t k = 0; k < n; k++) {
#pragma GCC unroll 16
		for (int i = 0; i < CHAINS; i++)
			c[i] = vfma(c[i], a, b);
	}
	float sum = 0;
	for (int i = 0; i < CHAINS; i++)
		sum += vsum(c[i]);
	return sum == 12345 ? 0 : 32.0 * CHAINS * (double)n;
}
