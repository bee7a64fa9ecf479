// The register tile of sums over a slow axis, for one element type; see
// level_dot.h for what is defined before, and
//
//	SET(x)   an element of A in all lanes
//
// It is the last to be included for a type, and ends all of these names.
//
// C[i][j] = C[i][j] + a(i,r)*B[r][j] for r in rising order, lanes over j.

// outer_tile: m rows by v vectors at column offset 0; tail > 0 means the single
// vector has only that many columns. Starts from zero unless resume.
INLINE void N(outer_tile)(const int m, const int v, const int tail, float *const *c, int64_t col, const ELEM *a, int64_t si, int64_t sr, const ELEM *b, int64_t ldb, int64_t r, int resume) {
	v16 acc[OUT_M][OUT_V];
#pragma GCC unroll 6
	for (int i = 0; i < m; i++)
#pragma GCC unroll 6
		for (int j = 0; j < v; j++)
			acc[i][j] = !resume ? vzero() : tail ? vload_n(c[i] + col, tail) : vload(c[i] + col + 16 * j);
	MODE_ON(m, v, acc);
	for (int64_t p = 0; p < r; p++) {
		VEC bv[OUT_V];
#pragma GCC unroll 6
		for (int j = 0; j < v; j++)
			bv[j] = tail ? LOAD_N(b + p * ldb, tail) : LOAD(b + p * ldb + 16 * j);
#pragma GCC unroll 6
		for (int i = 0; i < m; i++) {
			VEC av = SET(a[i * si + p * sr]);
#pragma GCC unroll 6
			for (int j = 0; j < v; j++)
				acc[i][j] = MAC(acc[i][j], av, bv[j]);
		}
	}
	MODE_OFF(m, v, acc);
#pragma GCC unroll 6
	for (int i = 0; i < m; i++)
#pragma GCC unroll 6
		for (int j = 0; j < v; j++)
			if (tail)
				vstore_n(c[i] + col, acc[i][j], tail);
			else
				vstore(c[i] + col + 16 * j, acc[i][j]);
}

#define OUTER(name, m, v, tail)                                                                                                                                                    \
	static __attribute__((noinline)) void name(float *const *c, int64_t col, const ELEM *a, int64_t si, int64_t sr, const ELEM *b, int64_t ldb, int64_t r, int resume, int last) { \
		(void)last;                                                                                                                                                                \
		N(outer_tile)(m, v, tail, c, col, a, si, sr, b, ldb, r, resume);                                                                                                           \
	}
OUTER(N(outer_full), OUT_M, OUT_V, 0)
OUTER(N(outer_two), 2, OUT_V, 0)
OUTER(N(outer_one), 1, OUT_V, 0)
OUTER(N(outer_full_1), OUT_M, 1, 0)
OUTER(N(outer_two_1), 2, 1, 0)
OUTER(N(outer_one_1), 1, 1, 0)
OUTER(N(outer_full_t), OUT_M, 1, last)
OUTER(N(outer_two_t), 2, 1, last)
OUTER(N(outer_one_t), 1, 1, last)
#undef OUTER

typedef void (*N(outer_fn))(float *const *, int64_t, const ELEM *, int64_t, int64_t, const ELEM *, int64_t, int64_t, int, int);

// outer_block: c[i][j] (+)= sum over r of a[i*si + r*sr] * b[r*ldb + j], for i < m, j < n.
static void N(outer_block)(int64_t m, int64_t n, float *const *c, const ELEM *a, int64_t si, int64_t sr, const ELEM *b, int64_t ldb, int64_t r, int resume) {
	static const N(outer_fn) wide[3] = {N(outer_one), N(outer_two), N(outer_full)}, narrow[3] = {N(outer_one_1), N(outer_two_1), N(outer_full_1)}, tails[3] = {N(outer_one_t), N(outer_two_t), N(outer_full_t)};
	for (int64_t j = 0; j < n;) {
		int64_t left = n - j;
		int64_t cols = left >= 16 * OUT_V ? 16 * OUT_V : left >= 16 ? 16 : left;
		const N(outer_fn) *by = left >= 16 * OUT_V ? wide : left >= 16 ? narrow : tails;
		for (int64_t i = 0; i < m;) {
			int64_t rows = m - i >= OUT_M ? OUT_M : m - i >= 2 ? 2 : 1;
			by[rows == OUT_M ? 2 : rows - 1](c + i, j, a + i * si, si, sr, b + j, ldb, r, resume, (int)cols);
			i += rows;
		}
		j += cols;
	}
}

#undef ELEM
#undef VEC
#undef N
#undef LOAD
#undef LOAD_N
#undef SET
#undef MODE_ON
#undef MODE_OFF
#undef STEP
#undef MAC
