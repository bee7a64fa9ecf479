// The optimizer: sum of squares for clipping, and AdamW.

enum { SQUARES_BLOCK = 4096 };

typedef struct {
	const float *g;
	float *part; // one for each block
	int64_t n;
} squares_args;

// Items are blocks of SQUARES_BLOCK elements: 16 lanes with fma, then the tree.
static void squares_part(const void *arg, int64_t from, int64_t to, int who) {
	const squares_args *p = arg;
	(void)who;
	for (int64_t b = from; b < to; b++) {
		int64_t i = b * SQUARES_BLOCK, end = p->n - i < SQUARES_BLOCK ? p->n : i + SQUARES_BLOCK;
		v16 sum = vzero();
		for (; i < end; i += 16) {
			v16 g = get(p->g, i, end - i < 16 ? (int)(end - i) : 16);
			sum = vfma(g, g, sum);
		}
		p->part[b] = vsum(sum);
	}
}

// The blocks are added one after the other in double precision and rounded once.
static int sum_squares(const call *c) {
	int64_t n = c->d[0] * c->d[1] * c->d[2] * c->d[3], blocks = (n + SQUARES_BLOCK - 1) / SQUARES_BLOCK;
	squares_args p = {fin(c, 0), shared_memory(c->ctx, blocks * 4), n};
	if (!p.part)
		return NO_MEMORY;
	split(c, blocks, 0.3 * SQUARES_BLOCK, squares_part, &p);
	double sum = 0;
	for (int64_t b = 0; b < blocks; b++)
		sum += (double)p.part[b];
	fout(c, 0)[0] = (float)sum;
	return OK;
}

typedef struct {
	float *w, *m, *v;
	const float *g, *h; // h: the hyper input, in the order of ir.HyperDecay...
} adam_args;

enum { H_DECAY, H_ONE_MINUS_BETA1, H_BETA2, H_ONE_MINUS_BETA2, H_STEP_SIZE, H_SQRT_BIAS2, H_EPS, H_GRAD_SCALE };

// One rounding for each operation, in the order of ir.HyperLen's comment.
static void adam_part(const void *arg, int64_t from, int64_t to, int who) {
	const adam_args *p = arg;
	(void)who;
	const v16 decay = vset(p->h[H_DECAY]), b1 = vset(p->h[H_ONE_MINUS_BETA1]), b2 = vset(p->h[H_BETA2]), c2 = vset(p->h[H_ONE_MINUS_BETA2]);
	const v16 step_size = vset(p->h[H_STEP_SIZE]), bias = vset(p->h[H_SQRT_BIAS2]), eps = vset(p->h[H_EPS]), clip = vset(p->h[H_GRAD_SCALE]);
	for (int64_t i = from; i < to; i += 16) {
		int n = to - i < 16 ? (int)(to - i) : 16;
		v16 g = vmul(get(p->g, i, n), clip), m = get(p->m, i, n), v = get(p->v, i, n), w = vmul(get(p->w, i, n), decay);
		m = vadd(m, vmul(b1, vsub(g, m)));
		v = vadd(vmul(b2, v), vmul(vmul(c2, g), g));
		w = vsub(w, vdiv(vmul(step_size, m), vadd(vdiv(vsqrt(v), bias), eps)));
		put(p->m, i, m, n), put(p->v, i, v, n), put(p->w, i, w, n);
	}
}

static int adamw(const call *c) {
	adam_args p = {fout(c, 0), fout(c, 1), fout(c, 2), fin(c, 3), fin(c, 4)};
	split(c, c->d[0] * c->d[1] * c->d[2] * c->d[3], 1.5, adam_part, &p);
	return OK;
}
