// A product x·wᵀ shared out, for one element type: ELEM and N(name) as in level_dot.h.

typedef struct {
	const ELEM *x, *w; // x[M,K], w[N,K]
	const float *bias;
	float *y;                // [M,N]
	int64_t m, n, k, mb, nb; // block sizes of a work item
} N(linear_args);

// One item is a block of mb rows by nb columns. The A rows of a register tile
// stay in the first cache while B's block streams from the second.
static void N(linear_part)(const void *arg, int64_t from, int64_t to, int who) {
	const N(linear_args) *p = arg;
	int64_t blocks_m = (p->m + p->mb - 1) / p->mb;
	(void)who;
	for (int64_t item = from; item < to; item++) {
		int64_t m0 = item % blocks_m * p->mb, n0 = item / blocks_m * p->nb;
		int64_t m1 = m0 + p->mb < p->m ? m0 + p->mb : p->m, n1 = n0 + p->nb < p->n ? n0 + p->nb : p->n;
		for (int64_t m = m0; m < m1; m += DOT_M) {
			const ELEM *a[DOT_M];
			int rows = m1 - m < DOT_M ? (int)(m1 - m) : DOT_M;
			for (int i = 0; i < rows; i++)
				a[i] = p->x + (m + i) * p->k;
			N(dot_block)(rows, n1 - n0, a, p->w + n0 * p->k, p->k, p->k, p->bias ? p->bias + n0 : 0, p->y + m * p->n + n0, p->n);
		}
	}
}

// linear_of is a Linear's step with x in the type of w.
static int N(linear_of)(const call *c, const ELEM *x) {
	N(linear_args) p = {x, c->in[1], c->s->nin > 2 ? fin(c, 2) : 0, fout(c, 0), c->d[0], c->d[1], c->d[2], 0, 0};
	if (!p.m || !p.n)
		return OK;
	dot_blocks(c, p.m, p.n, (int64_t)sizeof(ELEM) * p.k, &p.mb, &p.nb);
	int64_t items = ((p.m + p.mb - 1) / p.mb) * ((p.n + p.nb - 1) / p.nb);
	int64_t bytes = (int64_t)sizeof(ELEM) * p.nb * p.k;
	split(c, items, least_cost(0.005 * (double)(p.mb * bytes), bytes), N(linear_part), &p);
	return OK;
}
