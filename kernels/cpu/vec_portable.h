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

#define DOT_ROWS 1
enum { DOT_M = DOT_ROWS, DOT_N = 2, OUT_M = 2, OUT_V = 1 };
