// The two register tiles from which every matrix product is made.
//
// dot: C[i][j] = sum over k of A[i][k]*B[j][k]. One 16-lane accumulator for
// each (i, j): lane l takes k = l, l+16, ... in rising order with fma, lanes
// beyond K are zero; then the tree of vsum.
//
// outer: C[i][j] = C[i][j] + a(i,r)*B[r][j] for r in rising order, one fma
// each, lanes over j.

// dot_step adds sixteen k to every accumulator of a tile.
#ifndef HAVE_DOT_STEP
INLINE void dot_step(const int m, const int n, const float *const *a, const float *b, int64_t ldb, int64_t p, v16 acc[DOT_M][DOT_N]) {
	v16 bv[DOT_N];
#pragma GCC unroll 6
	for (int j = 0; j < n; j++)
		bv[j] = vload(b + j * ldb);
#pragma GCC unroll 6
	for (int i = 0; i < m; i++) {
		v16 av = vload(a[i] + p);
#pragma GCC unroll 6
		for (int j = 0; j < n; j++)
			acc[i][j] = vfma(av, bv[j], acc[i][j]);
	}
}
#endif

// dot_tile: rows a[0..m), b + j*ldb for j in [0, n), over k values; c[i][j] gets the sum.
INLINE void dot_tile(const int m, const int n, const float *const *a, const float *b, int64_t ldb, int64_t k, float c[DOT_M][DOT_N]) {
	v16 acc[DOT_M][DOT_N];
#pragma GCC unroll 6
	for (int i = 0; i < m; i++)
#pragma GCC unroll 6
		for (int j = 0; j < n; j++)
			acc[i][j] = vzero();
	int64_t p = 0;
	for (; p + 16 <= k; p += 16)
		dot_step(m, n, a, b + p, ldb, p, acc);
	if (p < k) {
		int tail = (int)(k - p);
#pragma GCC unroll 6
		for (int i = 0; i < m; i++) {
			v16 av = vload_n(a[i] + p, tail);
#pragma GCC unroll 6
			for (int j = 0; j < n; j++)
				acc[i][j] = vfma(av, vload_n(b + j * ldb + p, tail), acc[i][j]);
		}
	}
#ifdef HAVE_VSUM_TILE
	if (m == DOT_M && n == DOT_N) {
		vsum_tile(acc, &c[0][0]);
		return;
	}
#endif
#pragma GCC unroll 6
	for (int i = 0; i < m; i++)
#pragma GCC unroll 6
		for (int j = 0; j < n; j++)
			c[i][j] = vsum(acc[i][j]);
}

// Tiles of DOT_N columns by DOT_M, 4, 2 and 1 rows are instantiated; the
// columns at the edge are taken one by one.
#define DOT(name, m, n) \
	static __attribute__((noinline)) void name(const float *const *a, const float *b, int64_t ldb, int64_t k, float c[DOT_M][DOT_N]) { dot_tile(m, n, a, b, ldb, k, c); }
DOT(dot_full, DOT_M, DOT_N)
#if DOT_ROWS > 4
DOT(dot_four, 4, DOT_N)
#endif
#if DOT_ROWS > 2
DOT(dot_two, 2, DOT_N)
#endif
DOT(dot_row, 1, DOT_N)
DOT(dot_one, 1, 1)

// dot_block: C[i*ldc + j] = a[i] . (b + j*ldb), for i < m and j < n, plus bias[j] if any.
static void dot_block(int m, int64_t n, const float *const *a, const float *b, int64_t ldb, int64_t k, const float *bias, float *c, int64_t ldc) {
	float t[DOT_M][DOT_N] __attribute__((aligned(64)));
	for (int i = 0; i < m;) {
		int rows = 1;
		void (*tile)(const float *const *, const float *, int64_t, int64_t, float[DOT_M][DOT_N]) = dot_row;
		if (m - i >= DOT_M)
			rows = DOT_M, tile = dot_full;
#if DOT_ROWS > 4
		else if (m - i >= 4)
			rows = 4, tile = dot_four;
#endif
#if DOT_ROWS > 2
		else if (m - i >= 2)
			rows = 2, tile = dot_two;
#endif
		for (int64_t j = 0; j < n;) {
			int cols = n - j >= DOT_N ? DOT_N : 1;
			if (cols == DOT_N)
				tile(a + i, b + j * ldb, ldb, k, t);
			else
				for (int q = 0; q < rows; q++) {
					float one[DOT_M][DOT_N];
					dot_one(a + i + q, b + j * ldb, ldb, k, one);
					t[q][0] = one[0][0];
				}
			for (int q = 0; q < rows; q++)
				if (cols == DOT_N && !bias)
					memcpy(c + (i + q) * ldc + j, t[q], sizeof t[q]);
				else
					for (int p = 0; p < cols; p++)
						c[(i + q) * ldc + j + p] = bias ? t[q][p] + bias[j + p] : t[q][p];
			j += cols;
		}
		i += rows;
	}
}

// outer_tile: m rows by v vectors at column offset 0; tail > 0 means the single
// vector has only that many columns. Starts from zero unless resume.
INLINE void outer_tile(const int m, const int v, const int tail, float *const *c, int64_t col, const float *a, int64_t si, int64_t sr, const float *b, int64_t ldb, int64_t r, int resume) {
	v16 acc[OUT_M][OUT_V];
#pragma GCC unroll 6
	for (int i = 0; i < m; i++)
#pragma GCC unroll 6
		for (int j = 0; j < v; j++)
			acc[i][j] = !resume ? vzero() : tail ? vload_n(c[i] + col, tail) : vload(c[i] + col + 16 * j);
	for (int64_t p = 0; p < r; p++) {
		v16 bv[OUT_V];
#pragma GCC unroll 6
		for (int j = 0; j < v; j++)
			bv[j] = tail ? vload_n(b + p * ldb, tail) : vload(b + p * ldb + 16 * j);
#pragma GCC unroll 6
		for (int i = 0; i < m; i++) {
			v16 av = vset(a[i * si + p * sr]);
#pragma GCC unroll 6
			for (int j = 0; j < v; j++)
				acc[i][j] = vfma(av, bv[j], acc[i][j]);
		}
	}
#pragma GCC unroll 6
	for (int i = 0; i < m; i++)
#pragma GCC unroll 6
		for (int j = 0; j < v; j++)
			if (tail)
				vstore_n(c[i] + col, acc[i][j], tail);
			else
				vstore(c[i] + col + 16 * j, acc[i][j]);
}

#define OUTER(name, m, v, tail)                                                                                                                                                       \
	static __attribute__((noinline)) void name(float *const *c, int64_t col, const float *a, int64_t si, int64_t sr, const float *b, int64_t ldb, int64_t r, int resume, int last) { \
		(void)last;                                                                                                                                                                       \
		outer_tile(m, v, tail, c, col, a, si, sr, b, ldb, r, resume);                                                                                                                     \
	}
OUTER(outer_full, OUT_M, OUT_V, 0)
OUTER(outer_two, 2, OUT_V, 0)
OUTER(outer_one, 1, OUT_V, 0)
OUTER(outer_full_1, OUT_M, 1, 0)
OUTER(outer_two_1, 2, 1, 0)
OUTER(outer_one_1, 1, 1, 0)
OUTER(outer_full_t, OUT_M, 1, last)
OUTER(outer_two_t, 2, 1, last)
OUTER(outer_one_t, 1, 1, last)

typedef void (*outer_fn)(float *const *, int64_t, const float *, int64_t, int64_t, const float *, int64_t, int64_t, int, int);

// outer_block: c[i][j] (+)= sum over r of a[i*si + r*sr] * b[r*ldb + j], for i < m, j < n.
static void outer_block(int64_t m, int64_t n, float *const *c, const float *a, int64_t si, int64_t sr, const float *b, int64_t ldb, int64_t r, int resume) {
	static const outer_fn wide[3] = {outer_one, outer_two, outer_full}, narrow[3] = {outer_one_1, outer_two_1, outer_full_1}, tails[3] = {outer_one_t, outer_two_t, outer_full_t};
	for (int64_t j = 0; j < n;) {
		int64_t left = n - j;
		int64_t cols = left >= 16 * OUT_V ? 16 * OUT_V : left >= 16 ? 16 : left;
		const outer_fn *by = left >= 16 * OUT_V ? wide : left >= 16 ? narrow : tails;
		for (int64_t i = 0; i < m;) {
			int64_t rows = m - i >= OUT_M ? OUT_M : m - i >= 2 ? 2 : 1;
			by[rows == OUT_M ? 2 : rows - 1](c + i, j, a + i * si, si, sr, b + j, ldb, r, resume, (int)cols);
			i += rows;
		}
		j += cols;
	}
}
