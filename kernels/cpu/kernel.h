// What a kernel sees: its step with every operand found and every size known.
#pragma once
#include "pool.h"
#include "step.h"

typedef struct {
	context *ctx;
	const step *s;
	void *in[MAX_IN], *out[MAX_OUT];
	int64_t d[MAX_DIM];
} call;

typedef int (*kernel)(const call *c); // 0, or NO_MEMORY

typedef uint16_t bf16;   // the upper half of a float32
typedef uint32_t pair16; // two bf16, the first in the low half

#define INLINE static inline __attribute__((always_inline))

INLINE const float *fin(const call *c, int i) { return c->in[i]; }
INLINE const bf16 *hin(const call *c, int i) { return c->in[i]; }
INLINE const int32_t *iin(const call *c, int i) { return c->in[i]; }
INLINE float *fout(const call *c, int i) { return c->out[i]; }

// grain is the number of items that makes a chunk worth handing to a thread:
// about 10 microseconds' work, `cost` being one item's in nanoseconds.
INLINE int64_t grain(double cost) {
	double n = 10000 / (cost > 0.01 ? cost : 0.01);
	return n < 1 ? 1 : (int64_t)n;
}

// run_split hands the items out; a long op stops between items to let others in.
void run_split(context *ctx, int64_t n, int64_t chunk, double cost, pool_task task, const void *arg);

// let_in is what an op calls between two splits of a long row of them.
void let_in(context *ctx);

INLINE void split(const call *c, int64_t n, double cost, pool_task task, const void *arg) {
	run_split(c->ctx, n, grain(cost), cost, task, arg);
}

// shared_memory is scratch that the whole op shares; it lives until the next op. Null if there is none left.
void *shared_memory(context *c, int64_t bytes);

// adapter_of is A and B of an Adapt's module for rows of a place; null for 0.
INLINE const part *adapter_of(const call *c, int32_t place) {
	return place ? (const part *)c->in[2] + 1 + 2 * ((int64_t)(place - 1) * c->s->of + c->s->offset) : 0;
}

INLINE float *scratch_of(const call *c, int who) { return (float *)(c->ctx->scratch + (int64_t)who * SCRATCH_BYTES); }
