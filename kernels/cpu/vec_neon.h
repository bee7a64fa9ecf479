// Sixteen lanes in four NEON registers. See vec_portable.h for what each
// operation means; the bits are the same. AArch64 keeps denormals unless it is
// told otherwise, and its min and max treat NaN and signed zeros in a way of
// their own, so comparisons choose here.
#include <arm_neon.h>
#include <math.h>
#include <string.h>

typedef struct {
	float32x4_t a, b, c, d; // lanes 0 to 3, 4 to 7, 8 to 11, 12 to 15
} v16;

#define QUADS(expr_a, expr_b, expr_c, expr_d) \
	(v16) { (expr_a), (expr_b), (expr_c), (expr_d) }
#define EACH1(f, x) QUADS(f((x).a), f((x).b), f((x).c), f((x).d))
#define EACH2(f, x, y) QUADS(f((x).a, (y).a), f((x).b, (y).b), f((x).c, (y).c), f((x).d, (y).d))
#define EACH3(f, x, y, z) QUADS(f((x).a, (y).a, (z).a), f((x).b, (y).b, (z).b), f((x).c, (y).c, (z).c), f((x).d, (y).d, (z).d))

INLINE v16 vset(float x) {
	float32x4_t q = vdupq_n_f32(x);
	return QUADS(q, q, q, q);
}
INLINE v16 vzero(void) { return vset(0); }
INLINE v16 vload(const float *p) { return QUADS(vld1q_f32(p), vld1q_f32(p + 4), vld1q_f32(p + 8), vld1q_f32(p + 12)); }
INLINE void vstore(float *p, v16 x) { vst1q_f32(p, x.a), vst1q_f32(p + 4, x.b), vst1q_f32(p + 8, x.c), vst1q_f32(p + 12, x.d); }

// The first n lanes of four, 0 < n < 4; what lies beyond p[n-1] is not touched.
INLINE float32x4_t load_some(const float *p, int n) {
	float32x4_t q = vld1q_lane_f32(p, vdupq_n_f32(0), 0);
	if (n > 1)
		q = vld1q_lane_f32(p + 1, q, 1);
	return n > 2 ? vld1q_lane_f32(p + 2, q, 2) : q;
}
INLINE void store_some(float *p, float32x4_t q, int n) {
	vst1q_lane_f32(p, q, 0);
	if (n > 1)
		vst1q_lane_f32(p + 1, q, 1);
	if (n > 2)
		vst1q_lane_f32(p + 2, q, 2);
}
INLINE float32x4_t load4(const float *p, int n) { return n >= 4 ? vld1q_f32(p) : n > 0 ? load_some(p, n) : vdupq_n_f32(0); }
INLINE void store4(float *p, float32x4_t q, int n) {
	if (n >= 4)
		vst1q_f32(p, q);
	else if (n > 0)
		store_some(p, q, n);
}
INLINE v16 vload_n(const float *p, int n) { return QUADS(load4(p, n), load4(p + 4, n - 4), load4(p + 8, n - 8), load4(p + 12, n - 12)); }
INLINE void vstore_n(float *p, v16 x, int n) { store4(p, x.a, n), store4(p + 4, x.b, n - 4), store4(p + 8, x.c, n - 8), store4(p + 12, x.d, n - 12); }

INLINE v16 vadd(v16 x, v16 y) { return EACH2(vaddq_f32, x, y); }
INLINE v16 vsub(v16 x, v16 y) { return EACH2(vsubq_f32, x, y); }
INLINE v16 vmul(v16 x, v16 y) { return EACH2(vmulq_f32, x, y); }
INLINE v16 vdiv(v16 x, v16 y) { return EACH2(vdivq_f32, x, y); }
INLINE v16 vfma(v16 x, v16 y, v16 z) { return EACH3(vfmaq_f32, z, x, y); }  // the addend comes first
INLINE v16 vfnma(v16 x, v16 y, v16 z) { return EACH3(vfmsq_f32, z, x, y); } // z - x*y
INLINE v16 vsqrt(v16 x) { return EACH1(vsqrtq_f32, x); }
INLINE v16 vneg(v16 x) { return EACH1(vnegq_f32, x); }

INLINE float32x4_t min4(float32x4_t x, float32x4_t y) { return vbslq_f32(vcltq_f32(x, y), x, y); }
INLINE float32x4_t max4(float32x4_t x, float32x4_t y) { return vbslq_f32(vcgtq_f32(x, y), x, y); }
INLINE float32x4_t min4_c(float32x4_t x, float32x4_t y) { return vbslq_f32(vbicq_u32(vceqq_f32(x, x), vcltq_f32(y, x)), x, y); }
INLINE float32x4_t max4_c(float32x4_t x, float32x4_t y) { return vbslq_f32(vbicq_u32(vceqq_f32(x, x), vcgtq_f32(y, x)), x, y); }
INLINE v16 vmin(v16 x, v16 y) { return EACH2(min4, x, y); }
INLINE v16 vmax(v16 x, v16 y) { return EACH2(max4, x, y); }
INLINE v16 vmin_c(v16 x, v16 y) { return EACH2(min4_c, x, y); }
INLINE v16 vmax_c(v16 x, v16 y) { return EACH2(max4_c, x, y); }

INLINE float32x4_t one_where(uint32x4_t m) { return vreinterpretq_f32_u32(vandq_u32(m, vreinterpretq_u32_f32(vdupq_n_f32(1)))); }
INLINE float32x4_t greater4(float32x4_t x, float32x4_t y) { return one_where(vcgtq_f32(x, y)); }
INLINE float32x4_t nonzero4(float32x4_t x) { return one_where(vmvnq_u32(vceqzq_f32(x))); }
INLINE float32x4_t where4(float32x4_t m, float32x4_t x, float32x4_t y) { return vbslq_f32(vceqzq_f32(m), y, x); }
INLINE v16 vgreater(v16 x, v16 y) { return EACH2(greater4, x, y); }
INLINE v16 vnonzero(v16 x) { return EACH1(nonzero4, x); }
INLINE v16 vwhere(v16 m, v16 x, v16 y) { return EACH3(where4, m, x, y); }

INLINE float32x4_t keep4(float32x4_t x, int from, int to, int base, float32x4_t fill) {
	static const int32_t lanes[4] = {0, 1, 2, 3};
	int32x4_t i = vld1q_s32(lanes);
	return vbslq_f32(vandq_u32(vcgeq_s32(i, vdupq_n_s32(from - base)), vcltq_s32(i, vdupq_n_s32(to - base))), x, fill);
}
INLINE v16 vkeep(v16 x, int from, int to, float fill) {
	float32x4_t f = vdupq_n_f32(fill);
	return QUADS(keep4(x.a, from, to, 0, f), keep4(x.b, from, to, 4, f), keep4(x.c, from, to, 8, f), keep4(x.d, from, to, 12, f));
}
INLINE float32x4_t pow2_4(float32x4_t t) {
	return vreinterpretq_f32_u32(vaddq_u32(vshlq_n_u32(vreinterpretq_u32_f32(t), 23), vdupq_n_u32(0x3f800000)));
}
INLINE v16 vpow2(v16 t) { return EACH1(pow2_4, t); }

// The tree down to four lanes: l and l+8, then l+4.
INLINE float32x4_t fold(v16 x) { return vaddq_f32(vaddq_f32(x.a, x.c), vaddq_f32(x.b, x.d)); }
INLINE float vsum(v16 x) {
	float32x4_t q = fold(x);
	return vpadds_f32(vadd_f32(vget_low_f32(q), vget_high_f32(q)));
}
INLINE float vtop(v16 x) {
	float32x4_t q = max4(max4(x.a, x.c), max4(x.b, x.d));
	q = max4(q, vextq_f32(q, q, 2));
	float l = vgetq_lane_f32(q, 0), r = vgetq_lane_f32(q, 1);
	return l > r ? l : r;
}

// bfloat16: 32 elements, lane l of v16 has 2l in its low half and 2l+1 in its high.
typedef struct {
	uint32x4_t a, b, c, d;
} h32;

#define HALVES(a, b, c, d) \
	(h32) { (a), (b), (c), (d) }
INLINE uint32x4_t half4(const bf16 *p) { return vreinterpretq_u32_u16(vld1q_u16(p)); }
INLINE h32 hload(const bf16 *p) { return HALVES(half4(p), half4(p + 8), half4(p + 16), half4(p + 24)); }
INLINE h32 hload_n(const bf16 *p, int n) {
	bf16 part[32] = {0};
	memcpy(part, p, (size_t)n * 2);
	return hload(part);
}
INLINE h32 hset(pair16 x) {
	uint32x4_t q = vdupq_n_u32(x);
	return HALVES(q, q, q, q);
}
// up16: 16 elements, each the low half of a lane.
INLINE h32 up16(const bf16 *p, int n) {
	bf16 part[16] = {0};
	memcpy(part, p, (size_t)n * 2);
	return HALVES(vmovl_u16(vld1_u16(part)), vmovl_u16(vld1_u16(part + 4)), vmovl_u16(vld1_u16(part + 8)), vmovl_u16(vld1_u16(part + 12)));
}
INLINE uint32x4_t zip4(uint32x4_t even, uint32x4_t odd) { return vorrq_u32(even, vshlq_n_u32(odd, 16)); }
INLINE h32 hzip(const bf16 *even, const bf16 *odd, int n) {
	h32 e = up16(even, n), o = up16(odd, n);
	return HALVES(zip4(e.a, o.a), zip4(e.b, o.b), zip4(e.c, o.c), zip4(e.d, o.d));
}
INLINE float32x4_t upper4(uint32x4_t x) { return vreinterpretq_f32_u32(vandq_u32(x, vdupq_n_u32(0xffff0000))); }
INLINE float32x4_t lower4(uint32x4_t x) { return vreinterpretq_f32_u32(vshlq_n_u32(x, 16)); }
INLINE v16 hwiden(const bf16 *p, int n) {
	h32 h = up16(p, n);
	return QUADS(lower4(h.a), lower4(h.b), lower4(h.c), lower4(h.d));
}
INLINE uint16x4_t narrow4(float32x4_t x) {
	uint32x4_t b = vreinterpretq_u32_f32(x), top = vshrq_n_u32(b, 16);
	uint32x4_t r = vshrq_n_u32(vaddq_u32(vaddq_u32(b, vdupq_n_u32(0x7fff)), vandq_u32(top, vdupq_n_u32(1))), 16);
	r = vbslq_u32(vtstq_u32(b, vdupq_n_u32(0x7f800000)), r, vandq_u32(top, vdupq_n_u32(0x8000)));
	return vmovn_u32(vbslq_u32(vceqq_f32(x, x), r, vorrq_u32(top, vdupq_n_u32(0x40))));
}
INLINE void hnarrow(bf16 *p, v16 x, int n) {
	bf16 part[16];
	vst1_u16(part, narrow4(x.a)), vst1_u16(part + 4, narrow4(x.b)), vst1_u16(part + 8, narrow4(x.c)), vst1_u16(part + 12, narrow4(x.d));
	memcpy(p, part, (size_t)n * 2);
}
// Denormals become zeros with their sign. The processor's own mode for that looks
// at a result before it is rounded, VDPBF16PS after.
INLINE float32x4_t flush4(float32x4_t x) {
	uint32x4_t b = vreinterpretq_u32_f32(x);
	return vreinterpretq_f32_u32(vandq_u32(b, vorrq_u32(vtstq_u32(b, vdupq_n_u32(0x7f800000)), vdupq_n_u32(0x80000000))));
}
// One lane whose result is the smallest normal number: was it smaller before it
// was rounded to a denormal's precision?
INLINE float smallest(float x, float y, float c, float r) {
	return fabsf(r) == 0x1p-126f && fabs((double)x * (double)y + (double)c) < 0x1p-126 - 0x1p-151 ? copysignf(0, r) : r;
}
INLINE float32x4_t fma_flush4(float32x4_t x, float32x4_t y, float32x4_t c) {
	x = flush4(x), y = flush4(y);
	float32x4_t r = vfmaq_f32(c, x, y);
	if (vmaxvq_u32(vceqq_f32(vabsq_f32(r), vdupq_n_f32(0x1p-126f)))) {
		float xs[4], ys[4], cs[4], rs[4];
		vst1q_f32(xs, x), vst1q_f32(ys, y), vst1q_f32(cs, c), vst1q_f32(rs, r);
		for (int i = 0; i < 4; i++)
			rs[i] = smallest(xs[i], ys[i], cs[i], rs[i]);
		r = vld1q_f32(rs);
	}
	return flush4(r);
}
INLINE float32x4_t hdot4(float32x4_t acc, uint32x4_t a, uint32x4_t b) {
	return fma_flush4(lower4(a), lower4(b), fma_flush4(upper4(a), upper4(b), acc));
}
INLINE v16 hdot(v16 acc, h32 x, h32 y) { return QUADS(hdot4(acc.a, x.a, y.a), hdot4(acc.b, x.b, y.b), hdot4(acc.c, x.c, y.c), hdot4(acc.d, x.d, y.d)); }
INLINE unsigned hmode_on(void) { return 0; }
INLINE void hmode_off(unsigned old) { (void)old; }
#define PIN(x) ((void)(x))

// Register tiles: twenty-four accumulators of the thirty-two registers.
#define DOT_ROWS 3
enum { DOT_M = DOT_ROWS, DOT_N = 2, OUT_M = 6, OUT_V = 1 };

// A tile's step by quarters of the vector, so that two of b and one of a fit
// beside the accumulators.
#define HAVE_DOT_STEP
#define DOT_QUARTER(part, at)                                 \
	{                                                         \
		float32x4_t bv[DOT_N];                                \
		_Pragma("GCC unroll 6") for (int j = 0; j < n; j++)   \
			bv[j] = vld1q_f32(b + j * ldb + (at));            \
		_Pragma("GCC unroll 6") for (int i = 0; i < m; i++) { \
			float32x4_t av = vld1q_f32(a[i] + p + (at));      \
			_Pragma("GCC unroll 6") for (int j = 0; j < n; j++) \
				acc[i][j].part = vfmaq_f32(acc[i][j].part, av, bv[j]); \
		}                                                     \
	}
INLINE void dot_step(const int m, const int n, const float *const *a, const float *b, int64_t ldb, int64_t p, v16 acc[DOT_M][DOT_N]) {
	DOT_QUARTER(a, 0)
	DOT_QUARTER(b, 4)
	DOT_QUARTER(c, 8)
	DOT_QUARTER(d, 12)
}

// half_tree: lanes l and l+2 of two folded accumulators, side by side.
INLINE float32x4_t half_tree(float32x4_t x, float32x4_t y) {
	float64x2_t p = vreinterpretq_f64_f32(x), q = vreinterpretq_f64_f32(y);
	return vaddq_f32(vreinterpretq_f32_f64(vzip1q_f64(p, q)), vreinterpretq_f32_f64(vzip2q_f64(p, q)));
}

// vsum_tile stores the sums of a full tile of accumulators, c[DOT_M][DOT_N].
#define HAVE_VSUM_TILE
INLINE void vsum_tile(v16 a[DOT_M][DOT_N], float *c) {
	float32x4_t x = half_tree(fold(a[0][0]), fold(a[0][1])), y = half_tree(fold(a[1][0]), fold(a[1][1])), z = half_tree(fold(a[2][0]), fold(a[2][1]));
	vst1q_f32(c, vpaddq_f32(x, y));
	vst1_f32(c + 4, vget_low_f32(vpaddq_f32(z, z)));
}
