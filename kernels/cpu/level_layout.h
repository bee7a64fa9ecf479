// Row ops of single families: a value for each column, slices, groups of rows.

typedef struct {
	const float *x, *w;
	float *y;
	int64_t d;      // columns of a row
	const step *s;
} row_args;

#define ROWS(name, cost, body)                                                   \
	static void name##_part(const void *arg, int64_t from, int64_t to, int who) { \
		const row_args *p = arg;                                                 \
		int64_t d = p->d;                                                        \
		(void)who, (void)d;                                                      \
		for (int64_t r = from; r < to; r++) {                                    \
			body                                                                 \
		}                                                                        \
	}                                                                            \
	static int name(const call *c) {                                             \
		row_args p = {fin(c, 0), fin(c, 1), fout(c, 0), c->d[1], c->s};          \
		split(c, c->d[0], 10 + (cost) * (double)p.d, name##_part, &p);           \
		return OK;                                                               \
	}

#define COLUMNS for (int64_t k = 0, n; n = d - k < 16 ? d - k : 16, k < d; k += 16)

// Items of all these are rows of the output, but for row_dot rows of the input.
ROWS(add_row, 0.3, const float *x = p->x + r * d; COLUMNS put(p->y + r * d, k, vadd(get(x, k, (int)n), get(p->w, k, (int)n)), (int)n);)
ROWS(decay, 1.2, const float *x = p->x + r * d; COLUMNS put(p->y + r * d, k, vmul(vneg(vexp(get(p->w, k, (int)n))), get(x, k, (int)n)), (int)n);)
ROWS(
	center, 0.5, const float *x = p->x + r * d; v16 sum = vzero(); COLUMNS sum = vadd(sum, get(x, k, (int)n));
	v16 mean = vset(vsum(sum) / (float)d); COLUMNS put(p->y + r * d, k, vsub(get(x, k, (int)n), mean), (int)n);)
ROWS(scale_rows, 0.3, const float *x = p->x + r * d; v16 w = vset(p->w[r]); COLUMNS put(p->y + r * d, k, vmul(w, get(x, k, (int)n)), (int)n);)
ROWS(sum_rows, 1, int64_t pick = p->s->pick; COLUMNS {
	v16 sum = vzero();
	for (int64_t j = 0; j < pick; j++)
		sum = vadd(sum, get(p->x + (r * pick + j) * d, k, (int)n));
	put(p->y + r * d, k, sum, (int)n);
})
ROWS(repeat_rows, 0.2, memcpy(p->y + r * d, p->x + r / p->s->pick * d, (size_t)d * 4);)
ROWS(row_dot, 0.3, v16 sum = vzero(); COLUMNS sum = vfma(get(p->x + r * d, k, (int)n), get(p->w + r * d, k, (int)n), sum); p->y[r] = vsum(sum);)

// Columns [offset, offset+head_dim) of each group of `of`.
ROWS(slice, 0.3, for (int64_t h = 0; h < p->s->heads; h++)
	memcpy(p->y + (r * p->s->heads + h) * p->s->head_dim, p->x + (r * p->s->heads + h) * p->s->of + p->s->offset, (size_t)p->s->head_dim * 4);)
ROWS(slice_grad, 0.5, for (int64_t h = 0; h < p->s->heads; h++) {
	float *y = p->y + (r * p->s->heads + h) * p->s->of;
	memset(y, 0, (size_t)p->s->of * 4);
	memcpy(y + p->s->offset, p->x + (r * p->s->heads + h) * p->s->head_dim, (size_t)p->s->head_dim * 4);
})

#undef ROWS

// join lays the rows of up to four matrices side by side; the call itself is the argument.
static void join_part(const void *arg, int64_t from, int64_t to, int who) {
	const call *c = arg;
	int64_t width = 0;
	(void)who;
	for (int i = 0; i < c->s->nin; i++)
		width += c->d[1 + i];
	for (int64_t r = from; r < to; r++) {
		float *y = fout(c, 0) + r * width;
		for (int i = 0; i < c->s->nin; y += c->d[1 + i], i++)
			memcpy(y, fin(c, i) + r * c->d[1 + i], (size_t)c->d[1 + i] * 4);
	}
}

static int join(const call *c) {
	split(c, c->d[0], 20 + 0.3 * (double)(c->d[1] + c->d[2] + c->d[3] + c->d[4]), join_part, c);
	return OK;
}
