//go:build linux && cgo

// Runs a program's steps at the level that was chosen when the device opened.
#define _GNU_SOURCE
#include "kernel.h"
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>
#if defined(__x86_64__)
#include <cpuid.h>
#endif

extern const kernel kernels_portable[K_COUNT];
extern void math_portable(int, const float *, float *, int64_t);
extern double fma_peak_portable(int64_t);
#if defined(__x86_64__)
extern const kernel kernels_avx2[K_COUNT], kernels_avx512[K_COUNT], kernels_avx512bf16[K_COUNT], kernels_amx[K_COUNT], kernels_amx_avx2[K_COUNT];
extern void math_avx2(int, const float *, float *, int64_t), math_avx512(int, const float *, float *, int64_t), math_avx512bf16(int, const float *, float *, int64_t);
extern void math_amx(int, const float *, float *, int64_t), math_amx_avx2(int, const float *, float *, int64_t);
extern double fma_peak_avx2(int64_t), fma_peak_avx512(int64_t), fma_peak_avx512bf16(int64_t), fma_peak_amx(int64_t), fma_peak_amx_avx2(int64_t);
extern int tiles_work_amx(void);
#elif defined(__aarch64__)
extern const kernel kernels_neon[K_COUNT];
extern void math_neon(int, const float *, float *, int64_t);
extern double fma_peak_neon(int64_t);
#endif

static const struct {
	const kernel *kernels;
	void (*math)(int, const float *, float *, int64_t);
	double (*fma_peak)(int64_t);
} levels[LEVEL_COUNT] = {
	[LEVEL_PORTABLE] = {kernels_portable, math_portable, fma_peak_portable},
#if defined(__x86_64__)
	[LEVEL_AVX2] = {kernels_avx2, math_avx2, fma_peak_avx2},
	[LEVEL_AVX512] = {kernels_avx512, math_avx512, fma_peak_avx512},
	[LEVEL_AVX512BF16] = {kernels_avx512bf16, math_avx512bf16, fma_peak_avx512bf16},
	[LEVEL_AMX] = {kernels_amx, math_amx, fma_peak_amx},
	[LEVEL_AMX_AVX2] = {kernels_amx_avx2, math_amx_avx2, fma_peak_amx_avx2},
#elif defined(__aarch64__)
	[LEVEL_NEON] = {kernels_neon, math_neon, fma_peak_neon},
#endif
};

#if defined(__x86_64__)
// tiles_allowed asks for the tile registers, which the system gives a process
// that asks once for all of its threads. Their 8 KB must fit the threads' signal
// stacks; Go's are large enough.
static int tiles_allowed(void) {
	enum { REQUEST = 0x1023, TILE_DATA = 18 }; // ARCH_REQ_XCOMP_PERM, since Linux 5.16
	unsigned a, b, c, d;
	if (!__get_cpuid_count(7, 0, &a, &b, &c, &d) || !(d >> 22 & 1) || !(d >> 24 & 1)) // AMX-BF16, AMX-TILE
		return 0;
	return syscall(SYS_arch_prctl, REQUEST, TILE_DATA) == 0;
}
#endif

int cpu_level_runs(int level) {
	if (level == LEVEL_PORTABLE)
		return 1;
#if defined(__x86_64__)
	__builtin_cpu_init(); // asks the operating system about the registers, too
	int avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
	if (level == LEVEL_AVX2)
		return avx2;
	int avx512 = avx2 && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl");
	if (level == LEVEL_AVX512)
		return avx512;
	if (level == LEVEL_AVX512BF16)
		return avx512 && __builtin_cpu_supports("avx512bf16");
	if (level == LEVEL_AMX_AVX2)
		return avx2;
	if (level == LEVEL_AMX)
		return avx512 && __builtin_cpu_supports("avx512bf16") && tiles_allowed() && tiles_work_amx();
#elif defined(__aarch64__)
	if (level == LEVEL_NEON)
		return 1; // part of the architecture
#endif
	return 0;
}

int cpu_slow_bf16(void) {
#if defined(__x86_64__)
	__builtin_cpu_init();
	return __builtin_cpu_is("intel"); // half the rate of an fma, which two products take
#endif
	return 0;
}

void cpu_brand(char out[64]) {
	memset(out, 0, 64);
#if defined(__x86_64__)
	unsigned r[12], most = __get_cpuid_max(0x80000000, 0);
	if (most < 0x80000004)
		return;
	for (unsigned i = 0; i < 3; i++)
		__get_cpuid(0x80000002 + i, &r[4 * i], &r[4 * i + 1], &r[4 * i + 2], &r[4 * i + 3]);
	memcpy(out, r, sizeof r);
#endif
}

context *cpu_open(int threads, int level) {
	context *c = calloc(1, sizeof *c);
	if (!c)
		return 0;
	c->threads = threads, c->level = level;
	c->scratch = aligned_alloc(64, (size_t)threads * SCRATCH_BYTES);
	if (!c->scratch) {
		free(c);
		return 0;
	}
	return c;
}

void cpu_close(context *c) {
	free(c->scratch);
	free(c->shared);
	free(c);
}

void *shared_memory(context *c, int64_t bytes) {
	bytes = (bytes + 64) / 64 * 64;
	if (bytes > c->shared_bytes) {
		free(c->shared);
		c->shared_bytes = 0;
		if ((c->shared = aligned_alloc(64, (size_t)bytes)))
			c->shared_bytes = bytes;
	}
	return c->shared;
}

typedef struct {
	const int64_t *syms;
	void *const *slots;
	char *arena;
} binding;

static void *find(place at, const binding *b) { return at >= 0 ? b->arena + at : b->slots[-1 - at]; }

static void resolve(call *c, context *ctx, const step *s, const binding *b) {
	memset(c, 0, sizeof *c);
	c->ctx = ctx, c->s = s;
	for (int i = 0; i < s->nin; i++)
		c->in[i] = find(s->in[i], b);
	for (int i = 0; i < s->nout; i++)
		c->out[i] = find(s->out[i], b);
	for (int i = 0; i < MAX_DIM; i++)
		c->d[i] = s->dims[i].n * b->syms[s->dims[i].sym];
}

enum { PAUSE_NS = 4000000 };

extern int cpuPause(uintptr_t); // in run.go

static int64_t now(void) {
	struct timespec t;
	clock_gettime(CLOCK_MONOTONIC, &t);
	return (int64_t)t.tv_sec * 1000000000 + t.tv_nsec;
}

void let_in(context *ctx) {
	if (!ctx->pause || now() - ctx->since < PAUSE_NS)
		return;
	if (cpuPause(ctx->pause))
		ctx->stopped = 1, ctx->pause = 0;
	ctx->since = now();
}

void run_split(context *ctx, int64_t n, int64_t chunk, double cost, pool_task task, const void *arg) {
	int64_t slice = n;
	if (ctx->pause && cost * (double)n > (double)PAUSE_NS * ctx->threads) {
		slice = (int64_t)((double)PAUSE_NS * ctx->threads / cost);
		slice = slice < chunk * ctx->threads ? chunk * ctx->threads : slice / chunk * chunk;
	}
	for (int64_t from = 0; from < n; from += slice) {
		if (from)
			let_in(ctx);
		pool_run(ctx->threads, from, n - from < slice ? n : from + slice, chunk, task, arg);
	}
}

int32_t cpu_run(context *ctx, const step *steps, int32_t n, int32_t from, uintptr_t pause, const int64_t *syms, void *const *slots, char *arena, failure *f) {
	binding b = {syms, slots, arena};
	call c;
	ctx->pause = pause, ctx->stopped = 0, ctx->since = now();
	for (int32_t i = from; i < n; i++) {
		resolve(&c, ctx, &steps[i], &b);
		int code = levels[ctx->level].kernels[steps[i].kernel](&c);
		if (code != OK) {
			*f = (failure){.code = code, .step = i};
			return -1;
		}
		if ((pause && steps[i].yield) || ctx->stopped)
			return i + 1;
		let_in(ctx);
		if (ctx->stopped)
			return i + 1;
	}
	return n;
}

void cpu_math(int level, int which, const float *x, float *y, int64_t n) { levels[level].math(which, x, y, n); }

double cpu_fma_peak(int level, int64_t n) { return levels[level].fma_peak(n); }

// Checks. Each gives a failure with code OK when all is well.

static failure in_range(int operand, const int32_t *ids, int64_t n, int64_t limit) {
	for (int64_t i = 0; i < n; i++)
		if (ids[i] < 0 || ids[i] >= limit)
			return (failure){BAD_ID, 0, operand, i, ids[i], limit};
	return (failure){0};
}

static failure offsets_rise(int operand, const int32_t *offsets, int64_t s, int64_t rows) {
	int32_t last = 0;
	for (int64_t i = 0; i <= s; i++) {
		if (offsets[i] < last || offsets[i] > rows || (i == 0 && offsets[i] != 0))
			return (failure){BAD_OFFSET, 0, operand, i, offsets[i], rows};
		last = offsets[i];
	}
	if (last != rows)
		return (failure){BAD_LAST_OFFSET, 0, operand, s, last, rows};
	return (failure){0};
}

// pages checks the table entries that will be touched: those of the new tokens
// for a write, those of every key the queries see for a read.
static failure pages(const call *c, int operand, int write) {
	int64_t rows = c->d[0], s = c->d[1], columns = c->d[2], count = c->d[3], page = c->s->page;
	const int32_t *offsets = c->in[operand], *start = c->in[operand + 1], *table = c->in[operand + 2];
	failure f = offsets_rise(operand, offsets, s, rows);
	for (int64_t i = 0; i < s && f.code == OK; i++) {
		int64_t n = offsets[i + 1] - offsets[i], at = start[i], first = 0;
		if (at < 0 || at + n > columns * page)
			return (failure){BAD_START, 0, operand + 1, i, at, columns * page};
		if (write)
			first = at;
		else if (c->s->window && at >= c->s->window)
			first = at - c->s->window + 1;
		for (int64_t b = first / page; n > 0 && b <= (at + n - 1) / page; b++)
			if (table[i * columns + b] < 0 || table[i * columns + b] >= count)
				return (failure){BAD_PAGE, 0, operand + 2, i * columns + b, table[i * columns + b], count};
	}
	return f;
}

// choice checks which experts rows go to, unless the program computes it: then
// it is right by construction, and not there yet.
static failure choice(const call *c, int operand, int64_t n, int64_t experts) {
	return c->s->in[operand] >= 0 ? (failure){0} : in_range(operand, c->in[operand], n, experts);
}

// states checks that sequences have states of their own; offsets, start and slot stand from operand on.
static failure states(const call *c, int operand) {
	int64_t s = c->d[3];
	const int32_t *slot = c->in[operand + 2];
	failure f = offsets_rise(operand, c->in[operand], s, c->d[0]);
	if (f.code == OK)
		f = in_range(operand + 1, c->in[operand + 1], s, INT32_MAX);
	if (f.code == OK)
		f = in_range(operand + 2, slot, s, c->d[4]);
	for (int64_t i = 0; i < s && f.code == OK; i++)
		for (int64_t j = 0; j < i; j++)
			if (slot[i] == slot[j])
				return (failure){BAD_SLOT, 0, operand + 2, i, slot[i], 0};
	return f;
}

// adapters checks that places are the group's and its parts fit y and x.
static failure adapters(const call *c) {
	int64_t rows = c->d[0], n = c->d[1], k = c->d[2];
	const int32_t *place = c->in[3];
	failure f = in_range(3, place, rows, ((const part *)c->in[2])->n / (2 * c->s->of) + 1);
	for (int64_t i = 0; i < rows && f.code == OK; i++) {
		const part *ab = adapter_of(c, place[i]);
		if (ab && (i == 0 || place[i] != place[i - 1]) && (ab[0].n % k || ab[1].n != ab[0].n / k * n))
			return (failure){BAD_ADAPTER, 0, 3, i, place[i], c->s->offset};
	}
	return f;
}

static failure check(const call *c) {
	switch (c->s->kernel) {
	case K_EMBED:
	case K_EMBED16:
		return in_range(0, c->in[0], c->d[0], c->d[1]);
	case K_GATHER_ROWS:
		return in_range(1, c->in[1], c->d[0], c->d[1]);
	case K_ROPE:
		return in_range(1, c->in[1], c->d[0], c->d[1] < c->d[2] ? c->d[1] : c->d[2]);
	case K_ATTENTION:
		return offsets_rise(3, c->in[3], c->d[1], c->d[0]);
	case K_ATTENTION_GRAD:
		return offsets_rise(6, c->in[6], c->d[1], c->d[0]);
	case K_KVWRITE:
		return pages(c, 2, 1);
	case K_PAGED_ATTENTION:
		return pages(c, 3, 0);
	case K_LOGPROB:
		return in_range(1, c->in[1], c->d[0] * c->d[2], c->d[1]);
	case K_LOGPROB_GRAD:
		return in_range(2, c->in[2], c->d[0] * c->d[2], c->d[1]);
	case K_SEGMENT_SUM:
	case K_SEGMENT_EXPAND:
		return offsets_rise(1, c->in[1], c->d[2], c->d[0]);
	case K_LINEAR_GRADW:
		return offsets_rise(3, c->in[3], c->d[3], c->d[0]);
	case K_BIAS_GRAD:
		return offsets_rise(2, c->in[2], c->d[2], c->d[0]);
	case K_RMSNORM_GRADW:
		return offsets_rise(3, c->in[3], c->d[2], c->d[0]);
	case K_EMBED_GRAD: {
		failure f = in_range(1, c->in[1], c->d[0], c->d[1]);
		return f.code ? f : offsets_rise(3, c->in[3], c->d[3], c->d[0]);
	}
	case K_TOPK_GRAD:
		return choice(c, 1, c->d[0] * c->d[2], c->d[1]);
	case K_EXPERT_LINEAR:
	case K_EXPERT_LINEAR16:
		return choice(c, 2, c->d[4], c->d[3]);
	case K_EXPERT_GRADX:
	case K_EXPERT_GRADX16:
		return choice(c, 2, c->d[0], c->d[3]);
	case K_EXPERT_GRADW: {
		failure f = choice(c, 3, c->d[3], c->d[0]);
		return f.code ? f : offsets_rise(4, c->in[4], c->d[5], c->d[6]);
	}
	case K_CONV:
	case K_CONV_GRAD:
		return offsets_rise(2, c->in[2], c->d[3], c->d[0]);
	case K_CONV_GRADW:
		return offsets_rise(3, c->in[3], c->d[3], c->d[0]);
	case K_CONV_STATE:
		return states(c, 3);
	case K_DELTA:
		return offsets_rise(5, c->in[5], c->d[1], c->d[0]);
	case K_DELTA_GRAD:
		return offsets_rise(6, c->in[6], c->d[1], c->d[0]);
	case K_DELTA_STATE:
		return states(c, 6);
	case K_ADAPT:
		return adapters(c);
	}
	return (failure){0};
}

failure cpu_check(const step *steps, int32_t n, const int64_t *syms, void *const *slots, char *arena) {
	binding b = {syms, slots, arena};
	call c;
	for (int32_t i = 0; i < n; i++) {
		resolve(&c, 0, &steps[i], &b);
		failure f = check(&c);
		if (f.code) {
			f.step = i;
			return f;
		}
	}
	return (failure){0};
}
