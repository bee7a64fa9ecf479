// The register tile of sums over both operands' rows, for one element type.
// level_tiles.h includes it once for each, having defined
//
//	ELEM             the type of an element
//	N(name)          the names for this type
//	STEP, VEC        elements in a vector, and its type
//	LOAD, LOAD_N     a vector from memory, or its first n elements and zeros
//	MAC(acc, a, b)   acc plus products of a and b in each of 16 lanes
//
// C[i][j] = sum over k of A[i][k]*B[j][k]. One 16-lane accumulator for each
// (i, j) takes the vectors in rising order, elements beyond K are zero; then the
// tree of vsum.

// dot_step adds a vector of k to every accumulator of a tile.
#ifndef HAVE_DOT_STEP
INLINE void N(dot_step)(const int m, const int n, const ELEM *const *a, const ELEM *b, int64_t ldb, int64_t p, v16 acc[DOT_M][DOT_N]) {
	VEC bv[DOT_N];
#pragma GCC unroll 6
	for (int j = 0; j < n; j++)
		bv[j] = LOAD(b + j * ldb);
#pragma GCC unroll 6
	for (int i = 0; i < m; i++) {
		VEC av = LOAD(a[i] + p);
#pragma GCC unroll 6
		for (int j = 0; j < n; j++)
			acc[i][j] = MAC(acc[i][j], av, bv[j]);
	}
}
#endif

// dot_tile: rows a[0..m), b + j*ldb for j in [0, n), over k values; c[i][j] gets the sum.
INLINE void N(dot_tile)(const int m, const int n, const ELEM *const *a, const ELEM *b, int64_t ldb, int64_t k, float c[DOT_M][DOT_N]) {
	v16 acc[DOT_M][DOT_N];
#pragma GCC unroll 6
	for (int i = 0; i < m; i++)
#pragma GCC unroll 6
		for (int j = 0; j < n; j++)
			acc[i][j] = vzero();
	MODE_ON(m, n, acc);
	int64_t p = 0;
	for (; p + STEP <= k; p += STEP) {
		if (n > 1) // the rows of b after the next, in the order in which they lie in memory: a stream that the processor follows
#pragma GCC unroll 6
			for (int j = 0; j < n; j++)
				__builtin_prefetch(b + 2 * n * ldb + p * n + j * STEP, 0, 2);
		N(dot_step)(m, n, a, b + p, ldb, p, acc);
	}
	if (p < k) {
		int tail = (int)(k - p);
#pragma GCC unroll 6
		for (int i = 0; i < m; i++) {
			VEC av = LOAD_N(a[i] + p, tail);
#pragma GCC unroll 6
			for (int j = 0; j < n; j++)
				acc[i][j] = MAC(acc[i][j], av, LOAD_N(b + j * ldb + p, tail));
		}
	}
	MODE_OFF(m, n, acc);
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
	static __attribute__((noinline)) void name(const ELEM *const *a, const ELEM *b, int64_t ldb, int64_t k, float c[DOT_M][DOT_N]) { N(dot_tile)(m, n, a, b, ldb, k, c); }
DOT(N(dot_full), DOT_M, DOT_N)
#if DOT_ROWS > 4
DOT(N(dot_four), 4, DOT_N)
#endif
#if DOT_ROWS > 2
DOT(N(dot_two), 2, DOT_N)
#endif
DOT(N(dot_row), 1, DOT_N)
DOT(N(dot_one), 1, 1)
#undef DOT

// dot_block: C[i*ldc + j] = a[i] . (b + j*ldb), for i < m and j < n, plus bias[j] if any.
static void N(dot_block)(int m, int64_t n, const ELEM *const *a, const ELEM *b, int64_t ldb, int64_t k, const float *bias, float *c, int64_t ldc) {
	float t[DOT_M][DOT_N] __attribute__((aligned(64)));
	for (int i = 0; i < m;) {
		int rows = 1;
		void (*tile)(const ELEM *const *, const ELEM *, int64_t, int64_t, float[DOT_M][DOT_N]) = N(dot_row);
		if (m - i >= DOT_M)
			rows = DOT_M, tile = N(dot_full);
#if DOT_ROWS > 4
		else if (m - i >= 4)
			rows = 4, tile = N(dot_four);
#endif
#if DOT_ROWS > 2
		else if (m - i >= 2)
			rows = 2, tile = N(dot_two);
#endif
		for (int64_t j = 0; j < n;) {
			// One row reads the weights once: best in the order in which they lie in memory.
			int cols = n - j >= DOT_N && rows > 1 ? DOT_N : 1;
			if (cols == DOT_N)
				tile(a + i, b + j * ldb, ldb, k, t);
			else
				for (int q = 0; q < rows; q++) {
					float one[DOT_M][DOT_N];
					N(dot_one)(a + i + q, b + j * ldb, ldb, k, one);
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
