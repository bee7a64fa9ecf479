// What Go hands to C: a program as an array of steps, and how it is run.
#pragma once
#include <stdint.h>

// The kernels by op. The order is this file's own; op_codes in program.go maps to it.
enum {
	K_NONE,
	K_EMBED, K_LINEAR, K_RMSNORM, K_ROPE, K_ATTENTION, K_KVWRITE, K_PAGED_ATTENTION, K_SILUMUL,
	K_ADD, K_SCALE_ADD, K_SCALE, K_GATHER_ROWS, K_LSE, K_LOGPROB,
	K_SUB, K_MUL, K_DIV, K_NEG, K_EXP, K_MIN, K_MAX, K_CLAMP, K_GREATER, K_NONZERO, K_WHERE, K_COPY, K_FILL,
	K_SEGMENT_SUM, K_SEGMENT_EXPAND,
	K_LINEAR_GRADX, K_LINEAR_GRADW, K_BIAS_GRAD, K_EMBED_GRAD, K_RMSNORM_GRAD, K_RMSNORM_GRADW,
	K_ATTENTION_GRAD, K_SILUMUL_GRAD, K_LOGPROB_GRAD,
	K_SUM_SQUARES, K_ADAMW,
	K_ADD_ROW, K_CENTER, K_DECAY, K_SLICE, K_SLICE_GRAD, K_JOIN,
	K_TANH, K_SIGMOID, K_SOFTPLUS, K_GELU, K_GELU_TANH, K_GELU_GRAD, K_GELU_TANH_GRAD,
	K_SCALE_ROWS, K_SUM_ROWS, K_REPEAT_ROWS, K_ROW_DOT,
	K_TOPK, K_TOPK_GRAD, K_EXPERT_LINEAR, K_EXPERT_GRADX, K_EXPERT_GRADW,
	K_CONV, K_CONV_STATE, K_CONV_GRAD, K_CONV_GRADW,
	K_DELTA, K_DELTA_STATE, K_DELTA_GRAD,
	K_ADAPT,
	K_NARROW, K_EMBED16, K_LINEAR16, K_LINEAR_GRADX16, K_EXPERT_LINEAR16, K_EXPERT_GRADX16, // with bfloat16 weights
	K_COUNT
};

enum { MAX_IN = 9, MAX_OUT = 5, MAX_DIM = 7, MAX_SYM = 16 };

// A size: n times the value of a symbol (symbol 0 is the constant 1).
typedef struct {
	int32_t sym, n;
} dim;

// One buffer of a group, n elements. A group's memory begins with one that has
// no address and the number of those that follow.
typedef struct {
	const float *at;
	int64_t n;
} part;

// A place: an arena offset in bytes if not negative, else slot -1-at.
typedef int64_t place;

typedef struct {
	int32_t kernel, yield, nin, nout;
	place in[MAX_IN], out[MAX_OUT];
	dim dims[MAX_DIM]; // meaning by kernel, see sizes in program.go
	float scale, eps, softcap;
	int32_t heads, kv_heads, head_dim, rotary, window, page, inverse, unit, offset, of, pick, normalise;
} step;

typedef struct {
	int threads;
	int level;             // index into levels
	char *scratch;         // threads * SCRATCH_BYTES, 64-byte aligned
	char *shared;          // grown as needed, for what an op computes before it splits
	int64_t shared_bytes;

	// While a run may stop to let others in: whom to ask, and since when it has
	// not. What they run on this device has another context.
	uintptr_t pause; // 0: it may not
	int64_t since;   // nanoseconds
	int stopped;     // they want the run to end
} context;

enum { SCRATCH_BYTES = 1 << 20 };

// Where a check failed. code 0 is success.
typedef struct {
	int32_t code, step, operand;
	int64_t index, value, limit;
} failure;

enum { OK, BAD_ID, BAD_OFFSET, BAD_LAST_OFFSET, BAD_START, BAD_PAGE, BAD_SLOT, BAD_ADAPTER, NO_MEMORY };

// One run's memory: the value of each symbol, the bound buffers, the arena.
// They are separate arguments because Go memory handed to C may not hold
// pointers to other Go memory.

// cpu_check validates every integer operand of the program; nothing has run yet.
failure cpu_check(const step *steps, int32_t n, const int64_t *syms, void *const *slots, char *arena);

// cpu_run executes steps from `from` up to the end, or if pause is not 0 up to and
// including the next yield point, or to where it was stopped; then it also calls
// cpuPause(pause) whenever a few milliseconds have passed. It gives the index of
// the next step, or -1 with f filled.
int32_t cpu_run(context *c, const step *steps, int32_t n, int32_t from, uintptr_t pause, const int64_t *syms, void *const *slots, char *arena, failure *f);

enum { LEVEL_PORTABLE, LEVEL_AVX2, LEVEL_AVX512, LEVEL_AVX512BF16, LEVEL_AMX, LEVEL_AMX_AVX2, LEVEL_NEON, LEVEL_COUNT };

// cpu_level_runs says whether this processor and operating system can run a level.
int cpu_level_runs(int level);
void cpu_brand(char out[64]);
// cpu_slow_bf16 says whether the processor's bfloat16 products are no faster than float32 ones.
int cpu_slow_bf16(void);
context *cpu_open(int threads, int level);
void cpu_close(context *c);

// cpu_math evaluates the level's exp (0) or log (1), for tests.
void cpu_math(int level, int which, const float *x, float *y, int64_t n);

// cpu_fma_peak runs n rounds of independent fused multiply-adds and gives the
// number of floating-point operations, for the benchmark's ceiling.
double cpu_fma_peak(int level, int64_t n);
