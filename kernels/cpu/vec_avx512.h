// Sixteen lanes in one AVX-512 register. See vec_portable.h for what each
// operation means; the bits are the same.
#include <immintrin.h>

typedef __m512 v16;

INLINE v16 vzero(void) { return _mm512_setzero_ps(); }
INLINE v16 vset(float x) { return _mm512_set1_ps(x); }
INLINE v16 vload(const float *p) { return _mm512_loadu_ps(p); }
INLINE void vstore(float *p, v16 x) { _mm512_storeu_ps(p, x); }
INLINE __mmask16 first_lanes(int n) { return (__mmask16)((1u << n) - 1); }
INLINE v16 vload_n(const float *p, int n) { return _mm512_maskz_loadu_ps(first_lanes(n), p); }
INLINE void vstore_n(float *p, v16 x, int n) { _mm512_mask_storeu_ps(p, first_lanes(n), x); }
INLINE v16 vadd(v16 a, v16 b) { return _mm512_add_ps(a, b); }
INLINE v16 vsub(v16 a, v16 b) { return _mm512_sub_ps(a, b); }
INLINE v16 vmul(v16 a, v16 b) { return _mm512_mul_ps(a, b); }
INLINE v16 vdiv(v16 a, v16 b) { return _mm512_div_ps(a, b); }
INLINE v16 vfma(v16 a, v16 b, v16 c) { return _mm512_fmadd_ps(a, b, c); }
INLINE v16 vfnma(v16 a, v16 b, v16 c) { return _mm512_fnmadd_ps(a, b, c); }
INLINE v16 vsqrt(v16 a) { return _mm512_sqrt_ps(a); }
INLINE v16 vmin(v16 a, v16 b) { return _mm512_min_ps(a, b); }
INLINE v16 vmax(v16 a, v16 b) { return _mm512_max_ps(a, b); }
INLINE v16 vneg(v16 a) { return (v16)_mm512_xor_si512((__m512i)a, _mm512_set1_epi32((int)0x80000000)); }
INLINE v16 vmin_c(v16 a, v16 b) { return _mm512_mask_mov_ps(_mm512_min_ps(b, a), _mm512_cmp_ps_mask(a, a, _CMP_UNORD_Q), b); }
INLINE v16 vmax_c(v16 a, v16 b) { return _mm512_mask_mov_ps(_mm512_max_ps(b, a), _mm512_cmp_ps_mask(a, a, _CMP_UNORD_Q), b); }
INLINE v16 vgreater(v16 a, v16 b) { return _mm512_maskz_mov_ps(_mm512_cmp_ps_mask(a, b, _CMP_GT_OQ), vset(1)); }
INLINE v16 vnonzero(v16 a) { return _mm512_maskz_mov_ps(_mm512_cmp_ps_mask(a, vzero(), _CMP_NEQ_UQ), vset(1)); }
INLINE v16 vwhere(v16 m, v16 a, v16 b) { return _mm512_mask_mov_ps(b, _mm512_cmp_ps_mask(m, vzero(), _CMP_NEQ_UQ), a); }
INLINE v16 vkeep(v16 x, int from, int to, float fill) {
	unsigned m = ((1u << to) - 1) & ~((1u << from) - 1);
	return _mm512_mask_mov_ps(vset(fill), (__mmask16)m, x);
}
INLINE v16 vpow2(v16 t) {
	return (v16)_mm512_add_epi32(_mm512_slli_epi32((__m512i)t, 23), _mm512_set1_epi32(0x3f800000));
}

INLINE float vsum(v16 x) {
	__m256 a = _mm256_add_ps(_mm512_castps512_ps256(x), _mm512_extractf32x8_ps(x, 1));
	__m128 b = _mm_add_ps(_mm256_castps256_ps128(a), _mm256_extractf128_ps(a, 1));
	b = _mm_add_ps(b, _mm_movehl_ps(b, b));
	return _mm_cvtss_f32(_mm_add_ss(b, _mm_shuffle_ps(b, b, 1)));
}

INLINE float vtop(v16 x) {
	__m256 a = _mm256_max_ps(_mm512_castps512_ps256(x), _mm512_extractf32x8_ps(x, 1));
	__m128 b = _mm_max_ps(_mm256_castps256_ps128(a), _mm256_extractf128_ps(a, 1));
	b = _mm_max_ps(b, _mm_movehl_ps(b, b));
	return _mm_cvtss_f32(_mm_max_ss(b, _mm_shuffle_ps(b, b, 1)));
}

// Four accumulators to one register: 128-bit part i holds accumulator i with
// lanes l, l+8 and then l, l+4 added.
INLINE v16 fold4(v16 a, v16 b, v16 c, v16 d) {
	v16 ab = vadd(_mm512_shuffle_f32x4(a, b, 0x44), _mm512_shuffle_f32x4(a, b, 0xee));
	v16 cd = vadd(_mm512_shuffle_f32x4(c, d, 0x44), _mm512_shuffle_f32x4(c, d, 0xee));
	return vadd(_mm512_shuffle_f32x4(ab, cd, 0x88), _mm512_shuffle_f32x4(ab, cd, 0xdd));
}

typedef __m512i h32;

INLINE h32 hload(const bf16 *p) { return _mm512_loadu_si512(p); }
INLINE h32 hload_n(const bf16 *p, int n) { return _mm512_maskz_loadu_epi16((__mmask32)((1ull << n) - 1), p); }
INLINE h32 hset(pair16 x) { return _mm512_set1_epi32((int)x); }
INLINE __m512i up16(const bf16 *p, int n) { return _mm512_cvtepu16_epi32(_mm256_maskz_loadu_epi16(first_lanes(n), p)); }
INLINE h32 hzip(const bf16 *even, const bf16 *odd, int n) { return _mm512_or_si512(up16(even, n), _mm512_slli_epi32(up16(odd, n), 16)); }
INLINE v16 hwiden(const bf16 *p, int n) { return (v16)_mm512_slli_epi32(up16(p, n), 16); }
INLINE void hstore_n(bf16 *p, __m256i x, int n) { // a store with a mask takes many times as long
	if (n == 16)
		_mm256_storeu_si256((__m256i *)p, x);
	else
		_mm256_mask_storeu_epi16(p, first_lanes(n), x);
}
#ifdef __AVX512BF16__
INLINE void hnarrow(bf16 *p, v16 x, int n) { hstore_n(p, (__m256i)_mm512_cvtneps_pbh(x), n); }
INLINE v16 hdot(v16 acc, h32 a, h32 b) { return _mm512_dpbf16_ps(acc, (__m512bh)a, (__m512bh)b); }
INLINE unsigned hmode_on(void) { return 0; }
INLINE void hmode_off(unsigned old) { (void)old; }
#define PIN(x) ((void)(x))
#else
INLINE void hnarrow(bf16 *p, v16 x, int n) {
	__m512i b = (__m512i)x, odd = _mm512_and_si512(_mm512_srli_epi32(b, 16), _mm512_set1_epi32(1));
	__m512i r = _mm512_srli_epi32(_mm512_add_epi32(_mm512_add_epi32(b, _mm512_set1_epi32(0x7fff)), odd), 16);
	__mmask16 tiny = _mm512_testn_epi32_mask(b, _mm512_set1_epi32(0x7f800000)), nan = _mm512_cmp_ps_mask(x, x, _CMP_UNORD_Q);
	r = _mm512_mask_and_epi32(r, tiny, _mm512_srli_epi32(b, 16), _mm512_set1_epi32(0x8000));
	r = _mm512_mask_or_epi32(r, nan, _mm512_srli_epi32(b, 16), _mm512_set1_epi32(0x40));
	hstore_n(p, _mm512_cvtepi32_epi16(r), n);
}
INLINE v16 upper_half(h32 x) { return (v16)_mm512_and_si512(x, _mm512_set1_epi32((int)0xffff0000)); }
INLINE v16 hdot(v16 acc, h32 a, h32 b) {
	acc = _mm512_fmadd_ps(upper_half(a), upper_half(b), acc);
	return _mm512_fmadd_ps((v16)_mm512_slli_epi32(a, 16), (v16)_mm512_slli_epi32(b, 16), acc);
}
INLINE unsigned hmode_on(void) {
	unsigned old = _mm_getcsr();
	_mm_setcsr(old | 0x8040); // flush to zero, denormals are zeros
	return old;
}
INLINE void hmode_off(unsigned old) { _mm_setcsr(old); }
#define PIN(x) __asm__ volatile("" : "+v"(x))
#endif

// Register tiles: DOT_M x DOT_N accumulators of 16 lanes; OUT_M rows by OUT_V vectors.
#define DOT_ROWS 6
enum { DOT_M = DOT_ROWS, DOT_N = 4, OUT_M = 6, OUT_V = 4 };

// Four folded registers, one for each column, to the sums of four rows: part i
// of the result holds row i. Each sum is vsum's tree.
INLINE v16 finish4(v16 z0, v16 z1, v16 z2, v16 z3) {
	v16 p = vadd(_mm512_unpacklo_ps(z0, z1), _mm512_unpackhi_ps(z0, z1));
	v16 q = vadd(_mm512_unpacklo_ps(z2, z3), _mm512_unpackhi_ps(z2, z3));
	__m512d x = (__m512d)p, y = (__m512d)q;
	return vadd((v16)_mm512_unpacklo_pd(x, y), (v16)_mm512_unpackhi_pd(x, y));
}

// vsum_tile stores the sums of a full tile of accumulators, c[DOT_M][DOT_N].
#define HAVE_VSUM_TILE
INLINE void vsum_tile(v16 a[DOT_M][DOT_N], float *c) {
	v16 z[DOT_N];
#pragma GCC unroll 4
	for (int j = 0; j < DOT_N; j++)
		z[j] = fold4(a[0][j], a[1][j], a[2][j], a[3][j]);
	vstore(c, finish4(z[0], z[1], z[2], z[3]));
#pragma GCC unroll 4
	for (int j = 0; j < DOT_N; j++)
		z[j] = fold4(a[4][j], a[5][j], a[4][j], a[5][j]);
	_mm256_storeu_ps(c + 16, _mm512_castps512_ps256(finish4(z[0], z[1], z[2], z[3])));
}
