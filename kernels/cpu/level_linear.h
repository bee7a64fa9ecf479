// Linear layers, forward and backward. See doc.go for the orders of summation.

// dot_blocks gives the sizes of a work item; a row of B has so many bytes.
static void dot_blocks(const call *c, int64_t m, int64_t n, int64_t bytes, int64_t *mb, int64_t *nb) {
	// B's block: at most a quarter of a megabyte, so that it stays in the
	// second cache; at M=1 small enough to share out.
	*nb = (1 << 18) / (bytes ? bytes : 1) / 16 * 16;
	*nb = *nb < 16 ? 16 : *nb > 256 ? 256 : *nb;
	*mb = m < 192 ? m : 96;
	while (((m + *mb - 1) / *mb) * ((n + *nb - 1) / *nb) < 4 * c->ctx->threads && *nb > 16)
		*nb = *nb < 32 ? 16 : *nb / 32 * 16;
}

// least_cost is what reading so many bytes of weights from memory takes a thread, in
// nanoseconds: with few rows all that counts.
INLINE double least_cost(double cost, int64_t bytes) { return cost > 0.06 * (double)bytes ? cost : 0.06 * (double)bytes; }

#define ELEM float
#define N(name) name
#include "level_linear_part.h"
#undef ELEM
#undef N

static int linear(const call *c) { return linear_of(c, fin(c, 0)); }

// A product of the outer kind in blocks: C[i,j] (+)= sum over r of a*b, with b
// packed so that the tiles read it in a row, and a too where r is its slow axis.
enum { BLOCK_I = 192, BLOCK_J = 256, BLOCK_R = 256, PANEL = 16 * OUT_V };

// pack_a: a[i + r*sr] -> groups of OUT_M rows, [r][OUT_M], missing rows zero.
static void pack_a(float *to, const float *a, int64_t sr, int64_t m, int64_t r) {
	int64_t whole = m / OUT_M * OUT_M;
	if (m % OUT_M)
		memset(to + whole * r, 0, (size_t)(OUT_M * r) * 4);
	for (int64_t p = 0; p < r; p++) { // along i: the rows of a may lie a power of two apart
		const float *from = a + p * sr;
		float *at = to + p * OUT_M;
		for (int64_t i = 0; i < whole; i += OUT_M, at += OUT_M * r)
			for (int64_t q = 0; q < OUT_M; q++)
				at[q] = from[i + q];
		for (int64_t i = whole; i < m; i++)
			at[i - whole] = from[i];
	}
}

// pack_b: b[r*ldb + j] -> panels of PANEL columns, [r][PANEL], missing columns zero.
static void pack_b(float *to, const float *b, int64_t ldb, int64_t n, int64_t r) {
	for (int64_t j = 0; j < n; j += PANEL, to += PANEL * r)
		for (int64_t p = 0; p < r; p++)
			for (int64_t q = 0; q < PANEL; q += 16) {
				int64_t left = n - j - q;
				const float *from = b + p * ldb + j + q;
				vstore(to + p * PANEL + q, left >= 16 ? vload(from) : left > 0 ? vload_n(from, (int)left) : vzero());
			}
}

// outer_product: C[i,j] = (resume ? C : 0) + sum over r < rn. m <= BLOCK_I, n <= BLOCK_J;
// one of si and sr is 1.
static void outer_product(float *scratch, int64_t m, int64_t n, float *c, int64_t ldc, const float *a, int64_t si, int64_t sr, const float *b, int64_t ldb, int64_t rn, int resume) {
	float *pa = scratch, *pb = scratch + (BLOCK_I + OUT_M) * BLOCK_R;
	float *row[BLOCK_I];
	for (int64_t i = 0; i < m; i++)
		row[i] = c + i * ldc;
	for (int64_t r0 = 0; r0 < rn || r0 == 0; r0 += BLOCK_R) {
		int64_t r = rn - r0 < BLOCK_R ? rn - r0 : BLOCK_R;
		if (m <= OUT_M) { // too few rows to pay for packing
			outer_block(m, n, row, a + r0 * sr, si, sr, b + r0 * ldb, ldb, r, resume || r0);
			continue;
		}
		if (sr != 1) // rows of a that lie along r are read where they are
			pack_a(pa, a + r0 * sr, sr, m, r);
		pack_b(pb, b + r0 * ldb, ldb, n, r);
		for (int64_t j = 0; j < n; j += PANEL)
			for (int64_t i = 0; i < m; i += OUT_M) {
				float *at[OUT_M];
				int64_t rows = m - i < OUT_M ? m - i : OUT_M, cols = n - j < PANEL ? n - j : PANEL;
				for (int64_t q = 0; q < rows; q++)
					at[q] = row[i + q] + j;
				if (sr == 1)
					outer_block(rows, cols, at, a + i * si + r0, si, 1, pb + j * r, PANEL, r, resume || r0);
				else
					outer_block(rows, cols, at, pa + i * r, 1, OUT_M, pb + j * r, PANEL, r, resume || r0);
			}
	}
}

// blocks shares an I x J result out: block sizes that leave every thread several items, of at most most_i rows.
typedef struct {
	int64_t bi, bj, ni, nj;
} blocks;

static blocks share_out(const call *c, int64_t i, int64_t j, int64_t most_i) {
	blocks b = {i < most_i ? i : most_i, j < BLOCK_J ? j : BLOCK_J, 0, 0};
	for (;;) {
		b.ni = (i + b.bi - 1) / b.bi, b.nj = (j + b.bj - 1) / b.bj;
		if (c->ctx->threads == 1 || b.ni * b.nj >= 3 * c->ctx->threads)
			return b;
		if (b.bj > PANEL)
			b.bj = (b.bj / 2 + PANEL - 1) / PANEL * PANEL;
		else if (b.bi > 2 * OUT_M)
			b.bi = (b.bi / 2 + OUT_M - 1) / OUT_M * OUT_M;
		else
			return b;
	}
}

// What the gradients by x have in common, whatever the type of w: dx[M,K] =
// dy[M,N]·w[N,K], a stretch [from, to) of N at a time so that others get their turn.
typedef struct {
	const call *c;
	const float *dy;
	const void *w;
	float *dx;
	uint8_t *zero;    // of each row of dy, whether it is all zeros
	pair16 *narrow;   // the stretch of dy in bfloat16, where it is needed
	int64_t lda;      // words in a row of that
	int64_t m, n, k, from, to;
	blocks b;
} gradx_args;

static int all_zero(const float *x, int64_t n) {
	int64_t i = 0;
	for (; i + 64 <= n; i += 64) {
		int other = 0;
		for (int k = 0; k < 64; k++)
			other |= x[i + k] != 0;
		if (other)
			return 0;
	}
	for (; i < n; i++)
		if (x[i] != 0)
			return 0;
	return 1;
}

// product adds the stretch to a block of dx.
typedef void (*product)(const gradx_args *p, int64_t row, int64_t rows, int64_t col, int64_t cols, int who);

// gradx_item adds the stretch to one block of dx. Rows of zeros, as the tokens without
// weight have in the head, give zeros; runs of OUT_M and more of them are not multiplied.
INLINE void gradx_item(const gradx_args *p, int64_t item, product multiply, int who) {
	int64_t i = item % p->b.ni * p->b.bi, j = item / p->b.ni * p->b.bj;
	int64_t rows = p->m - i < p->b.bi ? p->m - i : p->b.bi, cols = p->k - j < p->b.bj ? p->k - j : p->b.bj;
	const uint8_t *zero = p->zero + i;
	for (int64_t r = 0; r < rows;) {
		int64_t end = r, zeros = 0; // of the rows that are multiplied, and zeros before end
		for (; end < rows && zeros < OUT_M; end++)
			zeros = zero[end] ? zeros + 1 : 0;
		end -= zeros;
		if (end > r)
			multiply(p, i + r, end - r, j, cols, who);
		for (; end < rows && zero[end]; end++)
			;
		for (; r < end; r++)
			if (zero[r])
				memset(p->dx + (i + r) * p->k + j, 0, (size_t)cols * 4);
	}
}

// gradx_stretch is how much of N an item takes at a time: 2 milliseconds' work, cost
// being that of a product in nanoseconds, and whole times `whole`. The last stretch is
// up to twice as long.
static int64_t gradx_stretch(const gradx_args *p, double cost, int64_t whole) {
	int64_t n = (int64_t)(2e6 / (cost * (double)(p->b.bi * p->b.bj))) / whole * whole;
	return n < whole ? whole : n;
}

// gradx_stretches hands the blocks of dx out, for one stretch of N after the other;
// prepare, if any, is given all rows of dy before each.
static void gradx_stretches(gradx_args *p, double cost, int64_t stretch, pool_task prepare, pool_task part) {
	do {
		p->to = p->n - p->from < 2 * stretch ? p->n : p->from + stretch;
		if (p->from)
			let_in(p->c->ctx);
		if (prepare)
			split(p->c, p->m, 4 + 0.15 * (double)(p->to - p->from), prepare, p);
		split(p->c, p->b.ni * p->b.nj, cost * (double)(p->b.bi * p->b.bj * (p->to - p->from)), part, p);
		p->from = p->to;
	} while (p->to < p->n);
}

static void gradx_product(const gradx_args *p, int64_t row, int64_t rows, int64_t col, int64_t cols, int who) {
	outer_product(scratch_of(p->c, who), rows, cols, p->dx + row * p->k + col, p->k, p->dy + row * p->n + p->from, p->n, 1, (const float *)p->w + p->from * p->k + col, p->k, p->to - p->from, p->from > 0);
}

static void gradx_part(const void *arg, int64_t from, int64_t to, int who) {
	for (int64_t item = from; item < to; item++)
		gradx_item(arg, item, gradx_product, who);
}

// Items: rows.
static void zero_part(const void *arg, int64_t from, int64_t to, int who) {
	const gradx_args *p = arg;
	(void)who;
	for (int64_t r = from; r < to; r++)
		p->zero[r] = (uint8_t)all_zero(p->dy + r * p->n, p->n);
}

static int linear_grad_x(const call *c) {
	gradx_args p = {.c = c, .dy = fin(c, 0), .w = c->in[1], .dx = fout(c, 0), .m = c->d[0], .n = c->d[1], .k = c->d[2]};
	if (!p.m || !p.k)
		return OK;
	if (!(p.zero = shared_memory(c->ctx, p.m)))
		return NO_MEMORY;
	split(c, p.m, 10, zero_part, &p); // most rows end at their first element
	p.b = share_out(c, p.m, p.k, BLOCK_I);
	gradx_stretches(&p, 0.02, gradx_stretch(&p, 0.02, BLOCK_R), 0, gradx_part);
	return OK;
}

typedef struct {
	const call *c;
	const float *dy, *x; // dy[T,N], x[T,K]
	const int32_t *offsets;
	float *acc; // [N,K]
	int64_t n, k, s;
	blocks b;
} gradw_args;

static void gradw_part(const void *arg, int64_t from, int64_t to, int who) {
	const gradw_args *p = arg;
	float *scratch = scratch_of(p->c, who), *sum = scratch + (BLOCK_I + OUT_M) * BLOCK_R + BLOCK_J * BLOCK_R;
	for (int64_t item = from; item < to; item++) {
		int64_t i = item % p->b.ni * p->b.bi, j = item / p->b.ni * p->b.bj;
		int64_t rows = p->n - i < p->b.bi ? p->n - i : p->b.bi, cols = p->k - j < p->b.bj ? p->k - j : p->b.bj;
		for (int64_t s = 0; s < p->s; s++) {
			int64_t t = p->offsets[s], len = p->offsets[s + 1] - t;
			if (!len)
				continue;
			outer_product(scratch, rows, cols, sum, BLOCK_J, p->dy + t * p->n + i, 1, p->n, p->x + t * p->k + j, p->k, len, 0);
			for (int64_t r = 0; r < rows; r++) {
				float *at = p->acc + (i + r) * p->k + j, *add = sum + r * BLOCK_J;
				for (int64_t q = 0; q < cols; q += 16) {
					int n = cols - q < 16 ? (int)(cols - q) : 16;
					put(at, q, vadd(get(at, q, n), get(add, q, n)), n);
				}
			}
		}
	}
}

// Short datums: a block of the accumulator is copied out of its rows, which may
// lie a power of two apart, and stays in the first cache while the datums pass;
// a tile's sum goes from the registers straight onto it.
enum { SHORT = 128, SHORT_I = 48, SHORT_J = 64 };

// copy_block copies rows of up to w columns, missing columns zero, to rows of w.
static void copy_block(float *to, int64_t w, const float *from, int64_t ld, int64_t rows, int64_t cols) {
	for (int64_t r = 0; r < rows; r++)
		for (int64_t q = 0; q < w; q += 16) {
			int64_t left = cols - q;
			vstore(to + r * w + q, left >= 16 ? vload(from + r * ld + q) : left > 0 ? vload_n(from + r * ld + q, (int)left) : vzero());
		}
}

// sum_tile: acc[i*SHORT_J + j] += sum over n of a[n*SHORT_I + i] * b[n*SHORT_J + j], the sum from zero.
static __attribute__((noinline)) void sum_tile(float *acc, const float *a, const float *b, int64_t n) {
	v16 sum[OUT_M][OUT_V];
#pragma GCC unroll 6
	for (int i = 0; i < OUT_M; i++)
#pragma GCC unroll 6
		for (int j = 0; j < OUT_V; j++)
			sum[i][j] = vzero();
	for (int64_t p = 0; p < n; p++) {
		v16 bv[OUT_V];
#pragma GCC unroll 6
		for (int j = 0; j < OUT_V; j++)
			bv[j] = vload(b + p * SHORT_J + 16 * j);
#pragma GCC unroll 6
		for (int i = 0; i < OUT_M; i++) {
			v16 av = vset(a[p * SHORT_I + i]);
#pragma GCC unroll 6
			for (int j = 0; j < OUT_V; j++)
				sum[i][j] = vfma(av, bv[j], sum[i][j]);
		}
	}
#pragma GCC unroll 6
	for (int i = 0; i < OUT_M; i++)
#pragma GCC unroll 6
		for (int j = 0; j < OUT_V; j++)
			vstore(acc + i * SHORT_J + 16 * j, vadd(vload(acc + i * SHORT_J + 16 * j), sum[i][j]));
}

// Item: a block of up to SHORT_I rows by SHORT_J columns of the accumulator.
static void gradw_short_part(const void *arg, int64_t from, int64_t to, int who) {
	const gradw_args *p = arg;
	float *a = scratch_of(p->c, who), *b = a + SHORT * SHORT_I, *acc = b + SHORT * SHORT_J;
	for (int64_t item = from; item < to; item++) {
		int64_t i = item % p->b.ni * p->b.bi, j = item / p->b.ni * SHORT_J;
		int64_t rows = p->n - i < p->b.bi ? p->n - i : p->b.bi, cols = p->k - j < SHORT_J ? p->k - j : SHORT_J;
		float *at = p->acc + i * p->k + j;
		copy_block(acc, SHORT_J, at, p->k, rows, cols);
		for (int64_t s = 0; s < p->s; s++) {
			int64_t t = p->offsets[s], len = p->offsets[s + 1] - t;
			if (!len)
				continue;
			copy_block(a, SHORT_I, p->dy + t * p->n + i, p->n, len, rows);
			copy_block(b, SHORT_J, p->x + t * p->k + j, p->k, len, cols);
			for (int64_t q = 0; q < rows; q += OUT_M)
				for (int64_t r = 0; r < cols; r += 16 * OUT_V)
					sum_tile(acc + q * SHORT_J + r, a + q, b + r, len);
		}
		for (int64_t q = 0; q < rows; q++)
			for (int64_t r = 0; r < cols; r += 16)
				put(at + q * p->k, r, vload(acc + q * SHORT_J + r), cols - r < 16 ? (int)(cols - r) : 16);
	}
}

static int linear_grad_w(const call *c) {
	gradw_args p = {c, fin(c, 1), fin(c, 2), iin(c, 3), fout(c, 0), c->d[1], c->d[2], c->d[3], {0, 0, 0, 0}};
	if (!p.n || !p.k)
		return OK;
	int64_t longest = 0;
	for (int64_t s = 0; s < p.s; s++)
		longest = p.offsets[s + 1] - p.offsets[s] > longest ? p.offsets[s + 1] - p.offsets[s] : longest;
	pool_task part = gradw_part;
	if (longest <= SHORT) {
		part = gradw_short_part;
		p.b = (blocks){p.n < SHORT_I ? p.n : SHORT_I, SHORT_J, 0, (p.k + SHORT_J - 1) / SHORT_J};
		while (p.b.bi > 2 * OUT_M && (p.n + p.b.bi - 1) / p.b.bi * p.b.nj < 3 * c->ctx->threads && c->ctx->threads > 1)
			p.b.bi = (p.b.bi / 2 + OUT_M - 1) / OUT_M * OUT_M;
		p.b.ni = (p.n + p.b.bi - 1) / p.b.bi;
	} else
		p.b = share_out(c, p.n, p.k, BLOCK_I);
	split(c, p.b.ni * p.b.nj, 0.02 * (double)(p.b.bi * p.b.bj * c->d[0]), part, &p);
	return OK;
}

typedef struct {
	const float *dy; // [T,N]
	const int32_t *offsets;
	float *acc; // [N]
	int64_t n, s;
} bias_args;

// Items are columns in sixteens.
static void bias_part(const void *arg, int64_t from, int64_t to, int who) {
	const bias_args *p = arg;
	(void)who;
	for (int64_t i = from * 16; i < to * 16 && i < p->n; i += 16) {
		int n = p->n - i < 16 ? (int)(p->n - i) : 16;
		for (int64_t s = 0; s < p->s; s++) {
			v16 sum = vzero();
			for (int64_t t = p->offsets[s]; t < p->offsets[s + 1]; t++)
				sum = vadd(sum, get(p->dy + t * p->n, i, n));
			if (p->offsets[s] < p->offsets[s + 1])
				put(p->acc, i, vadd(get(p->acc, i, n), sum), n);
		}
	}
}

static int bias_grad(const call *c) {
	bias_args p = {fin(c, 1), iin(c, 2), fout(c, 0), c->d[1], c->d[2]};
	split(c, (p.n + 15) / 16, 5 * (double)c->d[0], bias_part, &p);
	return OK;
}
