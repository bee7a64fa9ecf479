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

// Pairs are not filled up, and no row is read beyond the last.
enum { PANEL16 = PANEL, SPARE_ROWS16 = 0 };
INLINE int64_t whole_pairs(int64_t r) { return (r + 1) / 2; }

// outer_rows16: row[i][j] = (resume ? row[i][j] : 0) + sum over the pairs of a[i]*b[j];
// a has lda words in a row, b is packed. A block of BLOCK_I rows of a stays in the
// second cache while b's panels pass.
static void outer_rows16(int64_t m, int64_t n, float *const *row, const pair16 *a, int64_t lda, const pair16 *pb, int64_t pairs, int resume) {
	for (int64_t i0 = 0; i0 < m; i0 += BLOCK_I) {
		int64_t i1 = m - i0 < BLOCK_I ? m : i0 + BLOCK_I;
		for (int64_t j = 0; j < n; j += PANEL)
			for (int64_t i = i0; i < i1; i += OUT_M) {
				float *at[OUT_M];
				int64_t rows = i1 - i < OUT_M ? i1 - i : OUT_M, cols = n - j < PANEL ? n - j : PANEL;
				for (int64_t q = 0; q < rows; q++)
					at[q] = row[i + q] + j;
				outer_block16(rows, cols, at, a + i * lda, lda, 1, pb + j * pairs, PANEL, pairs, resume);
			}
	}
}
