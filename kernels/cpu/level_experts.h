// Mixtures of experts: the choice, and products by the chosen expert's matrix.
//
// A product's row has the bits of the same row in a Linear: rows are only
// grouped by expert so that a matrix is read once.

typedef struct {
	const call *c;
	const float *logits, *dw; // [T,E], [T,k]
	const int32_t *chosen;    // [T,k], of the gradient
	float *out;               // weights [T,k], or dlogits [T,E]
	int32_t *experts;         // [T,k]
	int64_t e, k;
	int normalise;
} choice_args;

// shares gives exp(logit - top) of the chosen experts, top being the first
// one's logit, and their divisor: over the chosen in order, or over all experts
// in 16 lanes and the tree.
INLINE float shares(const choice_args *p, const float *x, const int32_t *chosen, float *share) {
	float top = x[chosen[0]], sum = 0;
	for (int64_t j = 0; j < p->k; j++) {
		share[j] = exp1(x[chosen[j]] - top);
		sum += share[j];
	}
	if (p->normalise)
		return sum;
	v16 all = vzero();
	for (int64_t i = 0; i < p->e; i += 16) {
		int n = p->e - i < 16 ? (int)(p->e - i) : 16;
		all = vadd(all, vkeep(vexp(vsub(get(x, i, n), vset(top))), 0, n, 0));
	}
	return vsum(all);
}

// The largest first, equal ones by rising expert; a NaN counts as the smallest.
static void top_k_part(const void *arg, int64_t from, int64_t to, int who) {
	const choice_args *p = arg;
	float *share = scratch_of(p->c, who);
	char *taken = (char *)(share + p->k);
	for (int64_t t = from; t < to; t++) {
		const float *x = p->logits + t * p->e;
		int32_t *chosen = p->experts + t * p->k;
		memset(taken, 0, (size_t)p->e);
		for (int64_t j = 0; j < p->k; j++) {
			int64_t best = -1;
			for (int64_t i = 0; i < p->e; i++)
				if (!taken[i] && (best < 0 || x[i] > x[best] || (x[best] != x[best] && x[i] == x[i])))
					best = i;
			taken[best] = 1;
			chosen[j] = (int32_t)best;
		}
		float sum = shares(p, x, chosen, share);
		for (int64_t j = 0; j < p->k; j++)
			p->out[t * p->k + j] = share[j] / sum;
	}
}

static int top_k(const call *c) {
	choice_args p = {c, fin(c, 0), 0, 0, fout(c, 0), c->out[1], c->d[1], c->s->pick, c->s->normalise};
	if ((p.k + 1) * 4 + p.e > SCRATCH_BYTES)
		return NO_MEMORY;
	split(c, c->d[0], 20 + 1.0 * (double)(p.e * p.k), top_k_part, &p);
	return OK;
}

// With p the softmax: dlogit = p*(dw - sum of p*dw over the chosen, in order) of
// the chosen, dw being 0 of the others, which have p = 0 if normalised.
static void top_k_grad_part(const void *arg, int64_t from, int64_t to, int who) {
	const choice_args *p = arg;
	float *share = scratch_of(p->c, who);
	for (int64_t t = from; t < to; t++) {
		const float *x = p->logits + t * p->e, *dw = p->dw + t * p->k;
		const int32_t *chosen = p->chosen + t * p->k;
		float *out = p->out + t * p->e, top = x[chosen[0]];
		float sum = shares(p, x, chosen, share), mean = 0;
		for (int64_t j = 0; j < p->k; j++) {
			share[j] /= sum;
			mean = fmaf(share[j], dw[j], mean);
		}
		if (p->normalise)
			memset(out, 0, (size_t)p->e * 4);
		else
			for (int64_t i = 0; i < p->e; i += 16) {
				int n = p->e - i < 16 ? (int)(p->e - i) : 16;
				v16 q = vdiv(vexp(vsub(get(x, i, n), vset(top))), vset(sum));
				put(out, i, vneg(vmul(q, vset(mean))), n);
			}
		for (int64_t j = 0; j < p->k; j++)
			out[chosen[j]] = share[j] * (dw[j] - mean);
	}
}

static int top_k_grad(const call *c) {
	choice_args p = {c, fin(c, 0), fin(c, 2), iin(c, 1), fout(c, 0), 0, c->d[1], c->d[2], c->s->normalise};
	if (p.k * 4 > SCRATCH_BYTES)
		return NO_MEMORY;
	split(c, c->d[0], 20 + 2.0 * (double)(p.e + p.k), top_k_grad_part, &p);
	return OK;
}

enum { EXPERT_ROWS = 48, EXPERT_COLS = BLOCK_J, EXPERT_N = 96, EXPERT_T = 64 };

// A run of rows of one expert.
typedef struct {
	int32_t expert, first, rows; // first: into order
} expert_run;

typedef struct {
	const call *c;
	const void *x, *w; // float, or bfloat16
	const float *dy;
	float *y;
	const int32_t *experts; // of each row [kT]
	int32_t *order;         // rows by expert, rising inside one
	int32_t *start;         // [E+1], into order
	expert_run *runs;
	const int32_t *offsets;
	int64_t rows, n, k, e; // rows: kT
	int64_t each;          // rows that read one row of x
	int64_t s, pick;
	void *room; // as much as group was asked for
} expert_args;

// group sorts rows by expert and cuts them into runs; it gives their number, -1 without memory.
static int64_t group(expert_args *p, int64_t room) {
	int64_t most = p->rows / EXPERT_ROWS + p->e;
	room = (room + 63) / 64 * 64;
	char *mem = shared_memory(p->c->ctx, room + most * (int64_t)sizeof(expert_run) + (p->rows + 2 * p->e + 2) * 4);
	if (!mem)
		return -1;
	p->room = mem;
	p->runs = (expert_run *)(mem + room);
	p->order = (int32_t *)(p->runs + most);
	p->start = p->order + p->rows;
	int32_t *next = p->start + p->e + 1;
	memset(p->start, 0, (size_t)(p->e + 1) * 4);
	for (int64_t r = 0; r < p->rows; r++)
		p->start[p->experts[r] + 1]++;
	for (int64_t e = 0; e < p->e; e++) {
		p->start[e + 1] += p->start[e];
		next[e] = p->start[e];
	}
	for (int64_t r = 0; r < p->rows; r++)
		p->order[next[p->experts[r]]++] = (int32_t)r;
	int64_t runs = 0;
	for (int64_t e = 0; e < p->e; e++)
		for (int32_t at = p->start[e]; at < p->start[e + 1]; at += EXPERT_ROWS) {
			int32_t left = p->start[e + 1] - at;
			p->runs[runs++] = (expert_run){(int32_t)e, at, left < EXPERT_ROWS ? left : EXPERT_ROWS};
		}
	return runs;
}

// share_experts hands out runs by blocks of so many columns.
static int share_experts(expert_args *p, int64_t runs, int64_t columns, double cost, pool_task part) {
	int64_t blocks = (columns + EXPERT_COLS - 1) / EXPERT_COLS, items = runs * blocks;
	split(p->c, items, least_cost(cost * (double)(p->rows * p->n * p->k) / (double)items, 2 * p->n * p->k / blocks), part, p);
	return OK;
}

#define ELEM float
#define N(name) name
#include "level_expert_part.h"
#undef ELEM
#undef N
#ifdef HAVE_TILES
#include "level_tile_experts.h"
#else
#define ELEM bf16
#define N(name) name##16
#include "level_expert_part.h"
#undef ELEM
#undef N
INLINE int64_t expert_room16(int64_t k) { return 0 * k; }
#endif

static expert_args linear_experts(const call *c) {
	return (expert_args){.c = c, .x = c->in[0], .w = c->in[1], .experts = iin(c, 2), .y = fout(c, 0), .n = c->d[1], .k = c->d[2], .e = c->d[3], .rows = c->d[4], .each = c->d[0] ? c->d[4] / c->d[0] : 0};
}

static int expert_linear(const call *c) {
	expert_args p = linear_experts(c);
	if (!p.rows || !p.n)
		return OK;
	int64_t runs = group(&p, 0);
	return runs < 0 ? NO_MEMORY : share_experts(&p, runs, p.n, 0.03, expert_linear_part);
}

static int expert_linear16(const call *c) {
	expert_args p = linear_experts(c);
	if (!p.rows || !p.n)
		return OK;
	int64_t runs = group(&p, c->d[0] * p.k * 2);
	if (runs < 0 || expert_room16(p.k) > SCRATCH_BYTES)
		return NO_MEMORY;
	p.x = p.room;
	narrow_rows(c, p.room, fin(c, 0), c->d[0], p.k);
	return share_experts(&p, runs, p.n, 0.015, expert_linear_part16);
}

// dx = dy·w, from zero, one fma for each n in rising order.
static void expert_grad_x_part(const void *arg, int64_t from, int64_t to, int who) {
	const expert_args *p = arg;
	int64_t blocks = (p->k + EXPERT_COLS - 1) / EXPERT_COLS;
	float a[OUT_M * EXPERT_COLS];
	(void)who;
	for (int64_t item = from; item < to; item++) {
		const expert_run *run = p->runs + item / blocks;
		int64_t k0 = item % blocks * EXPERT_COLS, k = p->k - k0 < EXPERT_COLS ? p->k - k0 : EXPERT_COLS;
		const float *w = (const float *)p->w + run->expert * p->n * p->k + k0;
		for (int64_t m = 0; m < run->rows; m += OUT_M) {
			float *out[OUT_M];
			const int32_t *row = p->order + run->first + m;
			int64_t rows = run->rows - m < OUT_M ? run->rows - m : OUT_M;
			for (int64_t i = 0; i < rows; i++)
				out[i] = p->y + row[i] * p->k + k0;
			for (int64_t r = 0; r < p->n || r == 0; r += EXPERT_COLS) {
				int64_t count = p->n - r < EXPERT_COLS ? p->n - r : EXPERT_COLS;
				for (int64_t i = 0; i < rows; i++)
					memcpy(a + i * EXPERT_COLS, p->dy + row[i] * p->n + r, (size_t)count * 4);
				outer_block(rows, k, out, a, EXPERT_COLS, 1, w + r * p->k, p->k, count, r > 0);
			}
		}
	}
}

static void expert_grad_x16_part(const void *arg, int64_t from, int64_t to, int who) {
	enum { ROWS = 2 * BLOCK_R };
	const expert_args *p = arg;
	int64_t blocks = (p->k + EXPERT_COLS - 1) / EXPERT_COLS;
	pair16 *pb = (pair16 *)scratch_of(p->c, who), *pa = pb + BLOCK_J * BLOCK_R;
	for (int64_t item = from; item < to; item++) {
		const expert_run *run = p->runs + item / blocks;
		int64_t k0 = item % blocks * EXPERT_COLS, k = p->k - k0 < EXPERT_COLS ? p->k - k0 : EXPERT_COLS;
		const int32_t *order = p->order + run->first;
		const bf16 *w = (const bf16 *)p->w + run->expert * p->n * p->k + k0;
		float *out[EXPERT_ROWS];
		for (int64_t i = 0; i < run->rows; i++)
			out[i] = p->y + order[i] * p->k + k0;
		for (int64_t r0 = 0; r0 < p->n || r0 == 0; r0 += ROWS) {
			int64_t r = p->n - r0 < ROWS ? p->n - r0 : ROWS, pairs = whole_pairs(r);
			pack_pairs(pb, PANEL16, w + r0 * p->k, p->k, k, r, pairs);
			for (int64_t i = 0; i < run->rows; i++)
				narrow_pairs(pa + i * pairs, p->dy + order[i] * p->n + r0, r, pairs);
			memset(pa + run->rows * pairs, 0, (size_t)(SPARE_ROWS16 * pairs) * 4);
			outer_rows16(run->rows, k, out, pa, pairs, pb, pairs, r0 > 0);
		}
	}
}

static int grad_x_experts(const call *c, double cost, pool_task part) {
	expert_args p = {.c = c, .dy = fin(c, 0), .w = c->in[1], .experts = iin(c, 2), .y = fout(c, 0), .rows = c->d[0], .n = c->d[1], .k = c->d[2], .e = c->d[3]};
	if (!p.rows || !p.k)
		return OK;
	int64_t runs = group(&p, 0);
	return runs < 0 ? NO_MEMORY : share_experts(&p, runs, p.k, cost, part);
}

static int expert_grad_x(const call *c) { return grad_x_experts(c, 0.03, expert_grad_x_part); }
static int expert_grad_x16(const call *c) { return grad_x_experts(c, 0.015, expert_grad_x16_part); }

// Items: (expert, block of n, block of k). For each datum that chose the expert:
// from zero, one fma for each row in rising order; the sum is added once.
static void expert_grad_w_part(const void *arg, int64_t from, int64_t to, int who) {
	const expert_args *p = arg;
	int64_t bn = (p->n + EXPERT_N - 1) / EXPERT_N, bk = (p->k + EXPERT_COLS - 1) / EXPERT_COLS;
	float *sum = scratch_of(p->c, who), *a = sum + EXPERT_N * EXPERT_COLS, *b = a + EXPERT_T * EXPERT_N;
	for (int64_t item = from; item < to; item++) {
		int64_t e = item / (bn * bk), i0 = item / bk % bn * EXPERT_N, j0 = item % bk * EXPERT_COLS;
		int64_t rows = p->n - i0 < EXPERT_N ? p->n - i0 : EXPERT_N, cols = p->k - j0 < EXPERT_COLS ? p->k - j0 : EXPERT_COLS;
		float *acc = p->y + (e * p->n + i0) * p->k + j0, *at[EXPERT_N];
		for (int64_t i = 0; i < rows; i++)
			at[i] = sum + i * EXPERT_COLS;
		int64_t r = p->start[e], last = p->start[e + 1];
		for (int64_t s = 0; s < p->s && r < last; s++) {
			int64_t first = r, end = p->offsets[s + 1] * p->pick;
			while (r < last && p->order[r] < end) {
				int64_t count = 0;
				int resume = r > first;
				for (; count < EXPERT_T && r < last && p->order[r] < end; count++, r++) {
					memcpy(a + count * EXPERT_N, p->dy + p->order[r] * p->n + i0, (size_t)rows * 4);
					memcpy(b + count * EXPERT_COLS, (const float *)p->x + p->order[r] / p->each * p->k + j0, (size_t)cols * 4);
				}
				outer_block(rows, cols, at, a, 1, EXPERT_N, b, EXPERT_COLS, count, resume);
			}
			if (r == first)
				continue;
			for (int64_t i = 0; i < rows; i++)
				for (int64_t q = 0; q < cols; q += 16) {
					int n = cols - q < 16 ? (int)(cols - q) : 16;
					put(acc + i * p->k, q, vadd(get(acc + i * p->k, q, n), get(at[i], q, n)), n);
				}
		}
	}
}

static int expert_grad_w(const call *c) {
	expert_args p = {.c = c, .dy = fin(c, 1), .x = fin(c, 2), .experts = iin(c, 3), .offsets = iin(c, 4), .y = fout(c, 0), .e = c->d[0], .n = c->d[1], .k = c->d[2], .rows = c->d[3], .s = c->d[5]};
	if (!p.rows || !p.n || !p.k)
		return OK;
	p.each = p.rows / c->d[4];
	p.pick = p.rows / p.offsets[p.s];
	if (group(&p, 0) < 0)
		return NO_MEMORY;
	int64_t items = p.e * ((p.n + EXPERT_N - 1) / EXPERT_N) * ((p.k + EXPERT_COLS - 1) / EXPERT_COLS);
	split(c, items, 0.04 * (double)(p.rows * p.n * p.k) / (double)items, expert_grad_w_part, &p);
	return OK;
}
