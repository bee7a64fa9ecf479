// Products with bfloat16 weights: the other operand is rounded to bfloat16,
// sums are float32. See doc.go for the orders of summation.

typedef struct {
	const float *from; // [rows, cols]
	bf16 *to;
	int64_t cols;
} narrow_args;

// narrow_to rounds n elements.
static void narrow_to(bf16 *y, const float *x, int64_t n) {
	int64_t i = 0;
	for (; i + 16 <= n; i += 16)
		hnarrow(y + i, vload(x + i), 16);
	if (i < n)
		hnarrow(y + i, vload_n(x + i, (int)(n - i)), (int)(n - i));
}

static void narrow_part(const void *arg, int64_t from, int64_t to, int who) {
	const narrow_args *p = arg;
	(void)who;
	for (int64_t r = from; r < to; r++)
		narrow_to(p->to + r * p->cols, p->from + r * p->cols, p->cols);
}

static void narrow_rows(const call *c, bf16 *to, const float *from, int64_t rows, int64_t cols) {
	narrow_args p = {from, to, cols};
	split(c, rows, 4 + 0.15 * (double)cols, narrow_part, &p);
}

// Narrow: w = x rounded. Items are rows of up to 4096 elements.
static int narrow(const call *c) {
	int64_t n = c->d[0] * c->d[1] * c->d[2] * c->d[3], whole = n / 4096;
	narrow_rows(c, c->out[0], fin(c, 1), whole, 4096);
	narrow_rows(c, (bf16 *)c->out[0] + whole * 4096, fin(c, 1) + whole * 4096, n > whole * 4096, n - whole * 4096);
	return OK;
}

typedef struct {
	const int32_t *ids;
	const bf16 *table;
	float *out;
	int64_t d;
} embed16_args;

static void embed16_part(const void *arg, int64_t from, int64_t to, int who) {
	const embed16_args *p = arg;
	(void)who;
	for (int64_t r = from; r < to; r++)
		for (int64_t i = 0; i < p->d; i += 16) {
			int n = p->d - i < 16 ? (int)(p->d - i) : 16;
			put(p->out + r * p->d, i, hwiden(p->table + p->ids[r] * p->d + i, n), n);
		}
}

static int embed16(const call *c) {
	embed16_args p = {iin(c, 0), hin(c, 1), fout(c, 0), c->d[2]};
	split(c, c->d[0], 10 + 0.2 * (double)p.d, embed16_part, &p);
	return OK;
}

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

// pack_pairs: rows r and r+1 of b side by side, panels of PANEL columns,
// [r/2][PANEL]; missing columns and a missing last row are zero.
static void pack_pairs(pair16 *to, const bf16 *b, int64_t ldb, int64_t n, int64_t r) {
	static const bf16 none[16];
	int64_t pairs = (r + 1) / 2;
	for (int64_t j = 0; j < n; j += PANEL, to += PANEL * pairs)
		for (int64_t p = 0; p < pairs; p++)
			for (int64_t q = 0; q < PANEL; q += 16) {
				int64_t left = n - j - q;
				int cols = left >= 16 ? 16 : left > 0 ? (int)left : 0;
				const bf16 *even = b + 2 * p * ldb + j + q, *odd = 2 * p + 1 < r ? even + ldb : none;
				if (!cols)
					even = odd = none;
				h32 both = hzip(even, odd, cols);
				memcpy(to + p * PANEL + q, &both, 64);
			}
}

// narrow_pairs rounds r elements of a row to pairs, a missing last one zero.
static void narrow_pairs(pair16 *to, const float *from, int64_t r) {
	narrow_to((bf16 *)to, from, r);
	if (r % 2)
		((bf16 *)to)[r] = 0;
}

// outer_product16: row[i][j] = sum over r < rn of a[i][r]*b[r][j] from zero, a
// rounded on the way. m <= BLOCK_I, n <= BLOCK_J.
static void outer_product16(float *scratch, int64_t m, int64_t n, float *const *row, const float *const *a, const bf16 *b, int64_t ldb, int64_t rn) {
	enum { ROWS = 2 * BLOCK_R }; // as many bytes as of float32
	pair16 *pb = (pair16 *)scratch, *pa = pb + BLOCK_J * BLOCK_R;
	for (int64_t r0 = 0; r0 < rn || r0 == 0; r0 += ROWS) {
		int64_t r = rn - r0 < ROWS ? rn - r0 : ROWS, pairs = (r + 1) / 2;
		pack_pairs(pb, b + r0 * ldb, ldb, n, r);
		for (int64_t i = 0; i < m; i++)
			narrow_pairs(pa + i * pairs, a[i] + r0, r);
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

typedef struct {
	const call *c;
	const float *dy; // [M,N]
	const bf16 *w;   // [N,K]
	float *dx;       // [M,K]
	int64_t m, n, k;
	blocks b;
} gradx16_args;

static void gradx16_product(const void *arg, int64_t row, int64_t rows, int64_t col, int64_t cols, int who) {
	const gradx16_args *p = arg;
	float *dx[BLOCK_I];
	const float *dy[BLOCK_I];
	for (int64_t i = 0; i < rows; i++)
		dx[i] = p->dx + (row + i) * p->k + col, dy[i] = p->dy + (row + i) * p->n;
	outer_product16(scratch_of(p->c, who), rows, cols, dx, dy, p->w + col, p->k, p->n);
}

static void gradx16_part(const void *arg, int64_t from, int64_t to, int who) {
	const gradx16_args *p = arg;
	for (int64_t item = from; item < to; item++)
		gradx_item(p->dy, p->dx, p->m, p->n, p->k, p->b, item, gradx16_product, p, who);
}

static int linear_grad_x16(const call *c) {
	gradx16_args p = {c, fin(c, 0), hin(c, 1), fout(c, 0), c->d[0], c->d[1], c->d[2], {0, 0, 0, 0}};
	if (!p.m || !p.k)
		return OK;
	p.b = share_out(c, p.m, p.k);
	split(c, p.b.ni * p.b.nj, 0.01 * (double)(p.b.bi * p.b.bj * p.n), gradx16_part, &p);
	return OK;
}
