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

// pack_pairs: rows r and r+1 of b side by side, panels of so many columns,
// [pairs][panel]; missing columns and missing rows are zero.
INLINE void pack_pairs(pair16 *to, const int64_t panel, const bf16 *b, int64_t ldb, int64_t n, int64_t r, int64_t pairs) {
	static const bf16 none[16];
	for (int64_t j = 0; j < n; j += panel, to += panel * pairs)
		for (int64_t p = 0; p < pairs; p++)
			for (int64_t q = 0; q < panel; q += 16) {
				int64_t left = n - j - q;
				int cols = left >= 16 ? 16 : left > 0 ? (int)left : 0;
				const bf16 *even = b + 2 * p * ldb + j + q, *odd = 2 * p + 1 < r ? even + ldb : none;
				if (!cols || 2 * p >= r)
					even = odd = none;
				h32 both = hzip(even, odd, cols);
				memcpy(to + p * panel + q, &both, 64);
			}
}

// narrow_pairs rounds r elements of a row to so many pairs, missing ones zero.
static void narrow_pairs(pair16 *to, const float *from, int64_t r, int64_t pairs) {
	narrow_to((bf16 *)to, from, r);
	memset((bf16 *)to + r, 0, (size_t)(2 * pairs - r) * 2);
}

#ifdef HAVE_TILES
#include "level_tile.h"
#else
#include "level_bf16_lanes.h"
#endif

// Rows of dx in one item: w's block is packed once for all of them.
enum { GRADX16_I = 4 * BLOCK_I };

// Items: rows. The stretch of a row of dy rounded, zeros behind it.
static void gradx16_rows_part(const void *arg, int64_t from, int64_t to, int who) {
	const gradx_args *p = arg;
	(void)who;
	for (int64_t r = from; r < to; r++)
		narrow_pairs(p->narrow + r * p->lda, p->dy + r * p->n + p->from, p->to - p->from, whole_pairs(p->to - p->from));
}

static void gradx16_product(const gradx_args *p, int64_t row, int64_t rows, int64_t col, int64_t cols, int who) {
	enum { ROWS = 2 * BLOCK_R }; // as many bytes as of float32
	pair16 *pb = (pair16 *)scratch_of(p->c, who);
	float *dx[GRADX16_I];
	for (int64_t i = 0; i < rows; i++)
		dx[i] = p->dx + (row + i) * p->k + col;
	for (int64_t r0 = p->from; r0 < p->to || r0 == 0; r0 += ROWS) {
		int64_t r = p->to - r0 < ROWS ? p->to - r0 : ROWS, pairs = whole_pairs(r);
		pack_pairs(pb, PANEL16, (const bf16 *)p->w + r0 * p->k + col, p->k, cols, r, pairs);
		outer_rows16(rows, cols, dx, p->narrow + row * p->lda + (r0 - p->from) / 2, p->lda, pb, pairs, r0 > 0);
	}
}

static void gradx16_part(const void *arg, int64_t from, int64_t to, int who) {
	for (int64_t item = from; item < to; item++)
		gradx_item(arg, item, gradx16_product, who);
}

static int linear_grad_x16(const call *c) {
	gradx_args p = {.c = c, .dy = fin(c, 0), .w = c->in[1], .dx = fout(c, 0), .m = c->d[0], .n = c->d[1], .k = c->d[2]};
	if (!p.m || !p.k)
		return OK;
	p.b = share_out(c, p.m, p.k, GRADX16_I);
	int64_t stretch = gradx_stretch(&p, 0.01, 2 * BLOCK_R);
	p.lda = whole_pairs(p.n < 2 * stretch ? p.n : 2 * stretch);
	int64_t rows = p.m * p.lda * 4, spare = SPARE_ROWS16 * p.lda * 4;
	char *room = shared_memory(c->ctx, rows + spare + p.m);
	if (!room)
		return NO_MEMORY;
	p.narrow = (pair16 *)room, p.zero = (uint8_t *)room + rows + spare;
	memset(room + rows, 0, (size_t)spare);
	split(c, p.m, 10, zero_part, &p);
	gradx_stretches(&p, 0.01, stretch, gradx16_rows_part, gradx16_part);
	return OK;
}
