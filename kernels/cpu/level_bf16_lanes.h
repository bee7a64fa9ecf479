// Products over bfloat16 by the level's vectors.

#define ELEM bf16
#define N(name) name##16
#include "level_linear_part.h"
#undef ELEM
#undef N

static int linear16(const call *c) {
	bf16 *x = shared_memory(c->ctx, c->d[0] * c->d[2] * 2);
	if (!x)
		return NO_MEMORY;
	narrow_rows(c, x, fin(c, 0), c->d[0], c->d[2]);
	return linear_of16(c, x);
}

// outer_product16: row[i][j] = sum over r < rn of a[i][r]*b[r][j] from zero, a
// rounded on the way. m <= BLOCK_I, n <= BLOCK_J.
static void outer_product16(float *scratch, int64_t m, int64_t n, float *const *row, const float *const *a, const bf16 *b, int64_t ldb, int64_t rn) {
	enum { ROWS = 2 * BLOCK_R }; // as many bytes as of float32
	pair16 *pb = (pair16 *)scratch, *pa = pb + BLOCK_J * BLOCK_R;
	for (int64_t r0 = 0; r0 < rn || r0 == 0; r0 += ROWS) {
		int64_t r = rn - r0 < ROWS ? rn - r0 : ROWS, pairs = (r + 1) / 2;
		pack_pairs(pb, PANEL, b + r0 * ldb, ldb, n, r, pairs);
		for (int64_t i = 0; i < m; i++)
			narrow_pairs(pa + i * pairs, a[i] + r0, r, pairs);
		for (int64_t j = 0; j < n; j += PANEL)
			for (int64_t i = 0; i < m; i += OUT_M) {
				float *at[OUT_M];
				int64_t rows = m - i < OUT_M ? m - i : OUT_M, cols = n - j < PANEL ? n - j : PANEL;
				for (int64_t q = 0; q < rows; q++)
					at[q] = row[i + q] + j;
				outer_block16(rows, cols, at, pa + i * pairs, pairs, 1, pb + j * pairs, PANEL, pairs, r0 > 0);
			}
	}
}
