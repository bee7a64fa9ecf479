// Sixteen lanes in plain C: the definition of the virtual vector. fmaf rounds
// once whether or not the processor has the instruction.
#include <math.h>
#include <string.h>

typedef struct {
	float l[16];
} v16;

#define LANES for (int i = 0; i < 16; i++)
#define EACH(expr) \
	v16 r;         \
	LANES r.l[i] = (expr); \
	return r

INLINE v16 vzero(void) { EACH(0); }
INLINE v16 vset(float x) { EACH(x); }
INLINE v16 vload(const float *p) { EACH(p[i]); }
INLINE void vstore(float *p, v16 x) { LANES p[i] = x.l[i]; }
// The first n lanes, 0 <= n <= 16; the others are zero and not touched in memory.
INLINE v16 vload_n(const float *p, int n) { EACH(i < n ? p[i] : 0); }
INLINE void vstore_n(float *p, v16 x, int n) {
	for (int i = 0; i < n; i++)
		p[i] = x.l[i];
}
INLINE v16 vadd(v16 a, v16 b) { EACH(a.l[i] + b.l[i]); }
INLINE v16 vsub(v16 a, v16 b) { EACH(a.l[i] - b.l[i]); }
INLINE v16 vmul(v16 a, v16 b) { EACH(a.l[i] * b.l[i]); }
INLINE v16 vdiv(v16 a, v16 b) { EACH(a.l[i] / b.l[i]); }
INLINE v16 vfma(v16 a, v16 b, v16 c) { EACH(fmaf(a.l[i], b.l[i], c.l[i])); }   // a*b + c, one rounding
INLINE v16 vfnma(v16 a, v16 b, v16 c) { EACH(fmaf(-a.l[i], b.l[i], c.l[i])); } // c - a*b, one rounding
INLINE v16 vsqrt(v16 a) { EACH(sqrtf(a.l[i])); }
// Min and max give the second operand when unordered or equal.
INLINE v16 vmin(v16 a, v16 b) { EACH(a.l[i] < b.l[i] ? a.l[i] : b.l[i]); }
INLINE v16 vmax(v16 a, v16 b) { EACH(a.l[i] > b.l[i] ? a.l[i] : b.l[i]); }
INLINE v16 vneg(v16 a) { EACH(-a.l[i]); }
// As C's fminf and fmaxf: of a number and NaN the number; a when equal.
INLINE v16 vmin_c(v16 a, v16 b) { EACH(b.l[i] < a.l[i] || a.l[i] != a.l[i] ? b.l[i] : a.l[i]); }
INLINE v16 vmax_c(v16 a, v16 b) { EACH(b.l[i] > a.l[i] || a.l[i] != a.l[i] ? b.l[i] : a.l[i]); }
INLINE v16 vgreater(v16 a, v16 b) { EACH(a.l[i] > b.l[i] ? 1 : 0); }
INLINE v16 vnonzero(v16 a) { EACH(a.l[i] != 0 ? 1 : 0); }
INLINE v16 vwhere(v16 m, v16 a, v16 b) { EACH(m.l[i] != 0 ? a.l[i] : b.l[i]); }
// Lanes from <= i < to of x, the others fill.
INLINE v16 vkeep(v16 x, int from, int to, float fill) { EACH(i >= from && i < to ? x.l[i] : fill); }
// 2 to the n, given t = n + 1.5 * 2^23 in floating point.
INLINE v16 vpow2(v16 t) {
	v16 r;
	LANES {
		uint32_t b;
		memcpy(&b, &t.l[i], 4);
		b = (b << 23) + 0x3f800000u;
		memcpy(&r.l[i], &b, 4);
	}
	return r;
}

// The reduction tree: lanes l and l+8, then l+4, l+2, l+1.
INLINE float vsum(v16 x) {
	for (int half = 8; half > 0; half /= 2)
		for (int i = 0; i < half; i++)
			x.l[i] = x.l[i] + x.l[i + half];
	return x.l[0];
}

INLINE float vtop(v16 x) {
	for (int half = 8; half > 0; half /= 2)
		for (int i = 0; i < half; i++)
			x.l[i] = x.l[i] > x.l[i + half] ? x.l[i] : x.l[i + half];
	return x.l[0];
}

// bfloat16, as VDPBF16PS computes with it: 32 elements, lane l has 2l and 2l+1.
typedef struct {
	bf16 e[32];
} h32;

INLINE h32 hload_n(const bf16 *p, int n) { // the first n elements, 0 <= n <= 32, then zeros
	h32 r;
	for (int i = 0; i < 32; i++)
		r.e[i] = i < n ? p[i] : 0;
	return r;
}
INLINE h32 hload(const bf16 *p) { return hload_n(p, 32); }
INLINE h32 hset(pair16 x) {
	h32 r;
	for (int i = 0; i < 32; i++)
		r.e[i] = (bf16)(x >> 16 * (i % 2));
	return r;
}
// hzip: lane l is (even[l], odd[l]) for l < n, 0 <= n <= 16, the others zero.
INLINE h32 hzip(const bf16 *even, const bf16 *odd, int n) {
	h32 r;
	for (int i = 0; i < 32; i++)
		r.e[i] = i / 2 >= n ? 0 : i % 2 ? odd[i / 2] : even[i / 2];
	return r;
}
INLINE float widen1(bf16 x) {
	uint32_t b = (uint32_t)x << 16;
	float f;
	memcpy(&f, &b, 4);
	return f;
}
INLINE v16 hwiden(const bf16 *p, int n) { EACH(i < n ? widen1(p[i]) : 0); }
// To the nearest, ties to even; denormals become zeros, NaNs quiet.
INLINE bf16 narrow1(float x) {
	uint32_t b;
	memcpy(&b, &x, 4);
	if ((b & 0x7f800000) == 0)
		return (bf16)(b >> 16 & 0x8000);
	if (x != x)
		return (bf16)(b >> 16 | 0x40);
	return (bf16)((b + 0x7fff + (b >> 16 & 1)) >> 16);
}
INLINE void hnarrow(bf16 *p, v16 x, int n) {
	for (int i = 0; i < n; i++)
		p[i] = narrow1(x.l[i]);
}
// Denormals count as zeros, going in and coming out. A result is denormal if it
// is so when rounded to 24 bits with an exponent that has no end.
INLINE float flush1(float x) { return fabsf(x) < 0x1p-126f ? copysignf(0, x) : x; }
INLINE float fma_flush(bf16 a, bf16 b, float c) {
	float x = flush1(widen1(a)), y = flush1(widen1(b)), r = fmaf(x, y, c);
	if (fabsf(r) == 0x1p-126f && fabs((double)x * (double)y + (double)c) < 0x1p-126 - 0x1p-151)
		return copysignf(0, r);
	return flush1(r);
}
// acc + the second product, rounded, + the first, rounded.
INLINE v16 hdot(v16 acc, h32 a, h32 b) {
	LANES acc.l[i] = fma_flush(a.e[2 * i], b.e[2 * i], fma_flush(a.e[2 * i + 1], b.e[2 * i + 1], flush1(acc.l[i])));
	return acc;
}
// A level without the instruction sets the processor's mode to have denormals
// flushed while it adds, with the sums pinned so that none crosses over.
INLINE unsigned hmode_on(void) { return 0; }
INLINE void hmode_off(unsigned old) { (void)old; }
#define PIN(x) ((void)(x))

#define DOT_ROWS 1
enum { DOT_M = DOT_ROWS, DOT_N = 2, OUT_M = 2, OUT_V = 1 };
