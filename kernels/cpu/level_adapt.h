// Adapters of several runs in one batch: y + scale*(x·Aᵀ·Bᵀ), each row with the
// adapter of its place.
//
// A row has the bits of Linear, Linear and ScaleAdd: rows are only grouped by
// adapter so that its matrices are read once. Where samples decode, a row or two
// of each adapter, that reading is the work, and it goes at the memory's speed.

enum { ADAPT_ROWS = 96, ADAPT_RANK = 16, ADAPT_COLS = 128 };

// Neighbouring rows of one adapter.
typedef struct {
	const float *a, *b; // [rank,K], [N,rank]
	int64_t first, rows, rank;
} adapt_run;

typedef struct {
	const float *x, *y, *scale; // [rows,K], [rows,N], [rows]
	float *h, *out;             // x·Aᵀ [rows,width]; [rows,N]
	const adapt_run *runs;
	int64_t n, k, width;
} adapt_args;

// adapt_down computes ranks r0 up to r1 of a run's x·Aᵀ.
static void adapt_down(const adapt_args *p, const adapt_run *run, int64_t r0, int64_t r1) {
	for (int64_t m = 0; r0 < r1 && m < run->rows; m += DOT_M) {
		const float *a[DOT_M];
		int rows = run->rows - m < DOT_M ? (int)(run->rows - m) : DOT_M;
		for (int i = 0; i < rows; i++)
			a[i] = p->x + (run->first + m + i) * p->k;
		dot_block(rows, r1 - r0, a, run->a + r0 * p->k, p->k, p->k, 0, p->h + (run->first + m) * p->width + r0, p->width);
	}
}

// adapt_up adds a run's adapter to n <= ADAPT_COLS columns from n0 on.
static void adapt_up(const adapt_args *p, const adapt_run *run, int64_t n0, int64_t n) {
	float t[DOT_M * ADAPT_COLS];
	for (int64_t m = 0; m < run->rows; m += DOT_M) {
		const float *a[DOT_M];
		int rows = run->rows - m < DOT_M ? (int)(run->rows - m) : DOT_M;
		for (int i = 0; i < rows; i++)
			a[i] = p->h + (run->first + m + i) * p->width;
		dot_block(rows, n, a, run->b + n0 * run->rank, run->rank, run->rank, 0, t, ADAPT_COLS);
		for (int i = 0; i < rows; i++) {
			int64_t row = run->first + m + i, at = row * p->n + n0;
			v16 scale = vset(p->scale[row]);
			for (int64_t q = 0; q < n; q += 16) {
				int lanes = n - q < 16 ? (int)(n - q) : 16;
				put(p->out + at, q, vfma(scale, get(t + i * ADAPT_COLS, q, lanes), get(p->y + at, q, lanes)), lanes);
			}
		}
	}
}

// Items are runs.
static void adapt_part(const void *arg, int64_t from, int64_t to, int who) {
	const adapt_args *p = arg;
	(void)who;
	for (const adapt_run *run = p->runs + from; run < p->runs + to; run++) {
		adapt_down(p, run, 0, run->rank);
		for (int64_t n = 0; n < p->n; n += ADAPT_COLS)
			adapt_up(p, run, n, p->n - n < ADAPT_COLS ? p->n - n : ADAPT_COLS);
	}
}

// Items: (run, block of ranks), the block fastest.
static void adapt_down_part(const void *arg, int64_t from, int64_t to, int who) {
	const adapt_args *p = arg;
	int64_t blocks = (p->width + ADAPT_RANK - 1) / ADAPT_RANK;
	(void)who;
	for (int64_t item = from; item < to; item++) {
		const adapt_run *run = p->runs + item / blocks;
		int64_t r = item % blocks * ADAPT_RANK;
		adapt_down(p, run, r, run->rank - r < ADAPT_RANK ? run->rank : r + ADAPT_RANK);
	}
}

// Items: (run, block of columns), the block fastest.
static void adapt_up_part(const void *arg, int64_t from, int64_t to, int who) {
	const adapt_args *p = arg;
	int64_t blocks = (p->n + ADAPT_COLS - 1) / ADAPT_COLS;
	(void)who;
	for (int64_t item = from; item < to; item++) {
		int64_t n = item % blocks * ADAPT_COLS;
		adapt_up(p, p->runs + item / blocks, n, p->n - n < ADAPT_COLS ? p->n - n : ADAPT_COLS);
	}
}

typedef struct {
	const float *from;
	float *to;
	int64_t n;
} rows_args;

static void copy_rows_part(const void *arg, int64_t from, int64_t to, int who) {
	const rows_args *p = arg;
	(void)who;
	memcpy(p->to + from * p->n, p->from + from * p->n, (size_t)((to - from) * p->n) * 4);
}

// adapt_sort puts the runs that take longest first, so that threads which take
// one after the other end together.
static void adapt_sort(adapt_run *runs, int64_t count) {
	for (int64_t i = 1; i < count; i++) {
		adapt_run run = runs[i];
		int64_t at = i;
		for (; at > 0 && runs[at - 1].rank * runs[at - 1].rows < run.rank * run.rows; at--)
			runs[at] = runs[at - 1];
		runs[at] = run;
	}
}

// adapt_runs lists the rows that have an adapter of this module; it gives their
// number and, in width, the largest rank.
static int64_t adapt_runs(const call *c, adapt_run *runs, int64_t *width) {
	const int32_t *place = iin(c, 3);
	int64_t count = 0;
	*width = 0;
	for (int64_t row = 0; row < c->d[0]; row++) {
		const part *ab = adapter_of(c, place[row]);
		if (!ab || !ab[0].n)
			continue;
		adapt_run *last = runs + count - 1;
		if (count && last->a == ab[0].at && last->first + last->rows == row && last->rows < ADAPT_ROWS) {
			last->rows++;
			continue;
		}
		runs[count++] = (adapt_run){ab[0].at, ab[1].at, row, 1, ab[0].n / c->d[2]};
		if (runs[count - 1].rank > *width)
			*width = runs[count - 1].rank;
	}
	return count;
}

static int adapt(const call *c) {
	int64_t rows = c->d[0], n = c->d[1], k = c->d[2], list = rows * (int64_t)sizeof(adapt_run), width;
	if (fin(c, 0) != fout(c, 0)) {
		rows_args all = {fin(c, 0), fout(c, 0), n};
		split(c, rows, 0.2 * (double)n, copy_rows_part, &all);
	}
	adapt_run *runs = shared_memory(c->ctx, list);
	if (!runs)
		return NO_MEMORY;
	int64_t count = adapt_runs(c, runs, &width);
	if (!count)
		return OK;
	if (c->ctx->shared_bytes < list + rows * width * 4) {
		if (!(runs = shared_memory(c->ctx, list + rows * width * 4)))
			return NO_MEMORY;
		count = adapt_runs(c, runs, &width); // the memory is another's now
	}
	adapt_args p = {fin(c, 1), fout(c, 0), fin(c, 4), (float *)((char *)runs + list), fout(c, 0), runs, n, k, width};
	double each = 0.2 + 0.02 * (double)rows / (double)count; // nanoseconds for an element of A or B: to read it and to use it
	if (count >= 2 * c->ctx->threads) {                       // one job instead of two
		adapt_sort(runs, count);
		split(c, count, each * (double)((k + n) * width), adapt_part, &p);
		return OK;
	}
	split(c, count * ((width + ADAPT_RANK - 1) / ADAPT_RANK), each * (double)(ADAPT_RANK * k), adapt_down_part, &p);
	split(c, count * ((n + ADAPT_COLS - 1) / ADAPT_COLS), each * (double)(ADAPT_COLS * width), adapt_up_part, &p);
	return OK;
}
