// Sixteen lanes in two AVX2 registers. See vec_portable.h for what each
// operation means; the bits are the same.
#include <immintrin.h>
#include <string.h>

typedef struct {
	__m256 lo, hi;
} v16;

#define PAIR(l, h) \
	(v16) { (l), (h) }

INLINE v16 vzero(void) { return PAIR(_mm256_setzero_ps(), _mm256_setzero_ps()); }
INLINE v16 vset(float x) { return PAIR(_mm256_set1_ps(x), _mm256_set1_ps(x)); }
INLINE v16 vload(const float *p) { return PAIR(_mm256_loadu_ps(p), _mm256_loadu_ps(p + 8)); }
INLINE void vstore(float *p, v16 x) { _mm256_storeu_ps(p, x.lo), _mm256_storeu_ps(p + 8, x.hi); }
INLINE __m256i lanes_below(int n, int base) {
	return _mm256_cmpgt_epi32(_mm256_set1_epi32(n - base), _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7));
}
INLINE v16 vload_n(const float *p, int n) {
	if (n <= 8) // p + 8 may lie outside the object
		return PAIR(_mm256_maskload_ps(p, lanes_below(n, 0)), _mm256_setzero_ps());
	return PAIR(_mm256_loadu_ps(p), _mm256_maskload_ps(p + 8, lanes_below(n, 8)));
}
INLINE void vstore_n(float *p, v16 x, int n) {
	_mm256_maskstore_ps(p, lanes_below(n, 0), x.lo);
	if (n > 8)
		_mm256_maskstore_ps(p + 8, lanes_below(n, 8), x.hi);
}
INLINE v16 vadd(v16 a, v16 b) { return PAIR(_mm256_add_ps(a.lo, b.lo), _mm256_add_ps(a.hi, b.hi)); }
INLINE v16 vsub(v16 a, v16 b) { return PAIR(_mm256_sub_ps(a.lo, b.lo), _mm256_sub_ps(a.hi, b.hi)); }
INLINE v16 vmul(v16 a, v16 b) { return PAIR(_mm256_mul_ps(a.lo, b.lo), _mm256_mul_ps(a.hi, b.hi)); }
INLINE v16 vdiv(v16 a, v16 b) { return PAIR(_mm256_div_ps(a.lo, b.lo), _mm256_div_ps(a.hi, b.hi)); }
INLINE v16 vfma(v16 a, v16 b, v16 c) { return PAIR(_mm256_fmadd_ps(a.lo, b.lo, c.lo), _mm256_fmadd_ps(a.hi, b.hi, c.hi)); }
INLINE v16 vfnma(v16 a, v16 b, v16 c) { return PAIR(_mm256_fnmadd_ps(a.lo, b.lo, c.lo), _mm256_fnmadd_ps(a.hi, b.hi, c.hi)); }
INLINE v16 vsqrt(v16 a) { return PAIR(_mm256_sqrt_ps(a.lo), _mm256_sqrt_ps(a.hi)); }
INLINE v16 vmin(v16 a, v16 b) { return PAIR(_mm256_min_ps(a.lo, b.lo), _mm256_min_ps(a.hi, b.hi)); }
INLINE v16 vmax(v16 a, v16 b) { return PAIR(_mm256_max_ps(a.lo, b.lo), _mm256_max_ps(a.hi, b.hi)); }
INLINE v16 vneg(v16 a) {
	__m256 s = _mm256_set1_ps(-0.0f);
	return PAIR(_mm256_xor_ps(a.lo, s), _mm256_xor_ps(a.hi, s));
}
INLINE __m256 or_if_nan(__m256 a, __m256 x, __m256 b) { return _mm256_blendv_ps(x, b, _mm256_cmp_ps(a, a, _CMP_UNORD_Q)); }
INLINE v16 vmin_c(v16 a, v16 b) { return PAIR(or_if_nan(a.lo, _mm256_min_ps(b.lo, a.lo), b.lo), or_if_nan(a.hi, _mm256_min_ps(b.hi, a.hi), b.hi)); }
INLINE v16 vmax_c(v16 a, v16 b) { return PAIR(or_if_nan(a.lo, _mm256_max_ps(b.lo, a.lo), b.lo), or_if_nan(a.hi, _mm256_max_ps(b.hi, a.hi), b.hi)); }
INLINE v16 vgreater(v16 a, v16 b) {
	__m256 one = _mm256_set1_ps(1);
	return PAIR(_mm256_and_ps(one, _mm256_cmp_ps(a.lo, b.lo, _CMP_GT_OQ)), _mm256_and_ps(one, _mm256_cmp_ps(a.hi, b.hi, _CMP_GT_OQ)));
}
INLINE v16 vnonzero(v16 a) {
	__m256 one = _mm256_set1_ps(1), z = _mm256_setzero_ps();
	return PAIR(_mm256_and_ps(one, _mm256_cmp_ps(a.lo, z, _CMP_NEQ_UQ)), _mm256_and_ps(one, _mm256_cmp_ps(a.hi, z, _CMP_NEQ_UQ)));
}
INLINE v16 vwhere(v16 m, v16 a, v16 b) {
	__m256 z = _mm256_setzero_ps();
	return PAIR(_mm256_blendv_ps(b.lo, a.lo, _mm256_cmp_ps(m.lo, z, _CMP_NEQ_UQ)), _mm256_blendv_ps(b.hi, a.hi, _mm256_cmp_ps(m.hi, z, _CMP_NEQ_UQ)));
}
INLINE __m256 keep8(__m256 x, int from, int to, int base, __m256 fill) {
	__m256i in = _mm256_andnot_si256(lanes_below(from, base), lanes_below(to, base));
	return _mm256_blendv_ps(fill, x, (__m256)in);
}
INLINE v16 vkeep(v16 x, int from, int to, float fill) {
	__m256 f = _mm256_set1_ps(fill);
	return PAIR(keep8(x.lo, from, to, 0, f), keep8(x.hi, from, to, 8, f));
}
INLINE __m256 pow2_8(__m256 t) { return (__m256)_mm256_add_epi32(_mm256_slli_epi32((__m256i)t, 23), _mm256_set1_epi32(0x3f800000)); }
INLINE v16 vpow2(v16 t) { return PAIR(pow2_8(t.lo), pow2_8(t.hi)); }

INLINE float vsum(v16 x) {
	__m256 a = _mm256_add_ps(x.lo, x.hi);
	__m128 b = _mm_add_ps(_mm256_castps256_ps128(a), _mm256_extractf128_ps(a, 1));
	b = _mm_add_ps(b, _mm_movehl_ps(b, b));
	return _mm_cvtss_f32(_mm_add_ss(b, _mm_shuffle_ps(b, b, 1)));
}

INLINE float vtop(v16 x) {
	__m256 a = _mm256_max_ps(x.lo, x.hi);
	__m128 b = _mm_max_ps(_mm256_castps256_ps128(a), _mm256_extractf128_ps(a, 1));
	b = _mm_max_ps(b, _mm_movehl_ps(b, b));
	return _mm_cvtss_f32(_mm_max_ss(b, _mm_shuffle_ps(b, b, 1)));
}

typedef struct {
	__m256i lo, hi;
} h32;

INLINE h32 hload(const bf16 *p) { return (h32){_mm256_loadu_si256((const __m256i *)p), _mm256_loadu_si256((const __m256i *)(p + 16))}; }
INLINE h32 hload_n(const bf16 *p, int n) {
	bf16 part[32] = {0};
	memcpy(part, p, (size_t)n * 2);
	return hload(part);
}
INLINE h32 hset(pair16 x) { return (h32){_mm256_set1_epi32((int)x), _mm256_set1_epi32((int)x)}; }
INLINE h32 up16(const bf16 *p, int n) {
	h32 h = n == 16 ? (h32){_mm256_loadu_si256((const __m256i *)p), _mm256_setzero_si256()} : hload_n(p, n);
	return (h32){_mm256_cvtepu16_epi32(_mm256_castsi256_si128(h.lo)), _mm256_cvtepu16_epi32(_mm256_extracti128_si256(h.lo, 1))};
}
INLINE h32 hzip(const bf16 *even, const bf16 *odd, int n) {
	h32 e = up16(even, n), o = up16(odd, n);
	return (h32){_mm256_or_si256(e.lo, _mm256_slli_epi32(o.lo, 16)), _mm256_or_si256(e.hi, _mm256_slli_epi32(o.hi, 16))};
}
INLINE v16 hwiden(const bf16 *p, int n) {
	h32 h = up16(p, n);
	return PAIR((__m256)_mm256_slli_epi32(h.lo, 16), (__m256)_mm256_slli_epi32(h.hi, 16));
}
INLINE __m256i narrow8(__m256 x) {
	__m256i b = (__m256i)x, top = _mm256_srli_epi32(b, 16), one = _mm256_set1_epi32(1);
	__m256i r = _mm256_srli_epi32(_mm256_add_epi32(_mm256_add_epi32(b, _mm256_set1_epi32(0x7fff)), _mm256_and_si256(top, one)), 16);
	__m256i tiny = _mm256_cmpeq_epi32(_mm256_and_si256(b, _mm256_set1_epi32(0x7f800000)), _mm256_setzero_si256());
	r = _mm256_blendv_epi8(r, _mm256_and_si256(top, _mm256_set1_epi32(0x8000)), tiny);
	return _mm256_blendv_epi8(r, _mm256_or_si256(top, _mm256_set1_epi32(0x40)), (__m256i)_mm256_cmp_ps(x, x, _CMP_UNORD_Q));
}
INLINE void hnarrow(bf16 *p, v16 x, int n) {
	bf16 part[16];
	__m256i r = _mm256_permute4x64_epi64(_mm256_packus_epi32(narrow8(x.lo), narrow8(x.hi)), 0xd8);
	if (n == 16)
		_mm256_storeu_si256((__m256i *)p, r);
	else {
		_mm256_storeu_si256((__m256i *)part, r);
		memcpy(p, part, (size_t)n * 2);
	}
}
INLINE __m256 hdot8(__m256 acc, __m256i a, __m256i b) {
	__m256i upper = _mm256_set1_epi32((int)0xffff0000);
	acc = _mm256_fmadd_ps((__m256)_mm256_and_si256(a, upper), (__m256)_mm256_and_si256(b, upper), acc);
	return _mm256_fmadd_ps((__m256)_mm256_slli_epi32(a, 16), (__m256)_mm256_slli_epi32(b, 16), acc);
}
INLINE v16 hdot(v16 acc, h32 a, h32 b) { return PAIR(hdot8(acc.lo, a.lo, b.lo), hdot8(acc.hi, a.hi, b.hi)); }
INLINE unsigned hmode_on(void) {
	unsigned old = _mm_getcsr();
	_mm_setcsr(old | 0x8040); // flush to zero, denormals are zeros
	return old;
}
INLINE void hmode_off(unsigned old) { _mm_setcsr(old); }
#define PIN(x) __asm__ volatile("" : "+x"((x).lo), "+x"((x).hi))

#define DOT_ROWS 3
enum { DOT_M = DOT_ROWS, DOT_N = 2, OUT_M = 6, OUT_V = 1 };

// A tile's step by halves of the vector: twelve accumulators, two of b and one
// of a fit the sixteen registers, whole vectors would not.
#define HAVE_DOT_STEP
// in_register keeps the compiler from loading x anew for every use: the load
// ports are the bottleneck.
INLINE __m256 in_register(__m256 x) {
	__asm__("" : "+x"(x));
	return x;
}
INLINE void dot_step(const int m, const int n, const float *const *a, const float *b, int64_t ldb, int64_t p, v16 acc[DOT_M][DOT_N]) {
	__m256 bv[DOT_N];
#pragma GCC unroll 6
	for (int j = 0; j < n; j++)
		bv[j] = _mm256_loadu_ps(b + j * ldb);
#pragma GCC unroll 6
	for (int i = 0; i < m; i++) {
		__m256 av = in_register(_mm256_loadu_ps(a[i] + p));
#pragma GCC unroll 6
		for (int j = 0; j < n; j++)
			acc[i][j].lo = _mm256_fmadd_ps(av, bv[j], acc[i][j].lo);
	}
#pragma GCC unroll 6
	for (int j = 0; j < n; j++)
		bv[j] = _mm256_loadu_ps(b + j * ldb + 8);
#pragma GCC unroll 6
	for (int i = 0; i < m; i++) {
		__m256 av = in_register(_mm256_loadu_ps(a[i] + p + 8));
#pragma GCC unroll 6
		for (int j = 0; j < n; j++)
			acc[i][j].hi = _mm256_fmadd_ps(av, bv[j], acc[i][j].hi);
	}
}
