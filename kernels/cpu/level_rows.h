// Ops that move or add whole rows: embedding, gather, rotary positions, segments.

typedef struct {
	const int32_t *ids;
	const float *table;
	float *out;
	int64_t d;
} gather_args;

static void gather_part(const void *arg, int64_t from, int64_t to, int who) {
	const gather_args *p = arg;
	(void)who;
	for (int64_t r = from; r < to; r++)
		memcpy(p->out + r * p->d, p->table + p->ids[r] * p->d, (size_t)p->d * 4);
}

static int embed(const call *c) {
	gather_args p = {iin(c, 0), fin(c, 1), fout(c, 0), c->d[2]};
	split(c, c->d[0], 10 + 0.2 * (double)p.d, gather_part, &p);
	return OK;
}

static int gather_rows(const call *c) {
	gather_args p = {iin(c, 1), fin(c, 0), fout(c, 0), c->d[2]};
	split(c, c->d[0], 10 + 0.2 * (double)p.d, gather_part, &p);
	return OK;
}

typedef struct {
	const int64_t *order; // per datum, id<<32|token sorted: equal ids together, positions rising
	const int32_t *offsets;
	const float *dy; // [T,D]
	float *acc;      // [V,D]
	int64_t d, s;
} embed_grad_args;

// Items are columns in sixteens. A token's repeats inside a datum are summed
// from zero in position order and added once.
static void embed_grad_part(const void *arg, int64_t from, int64_t to, int who) {
	const embed_grad_args *p = arg;
	(void)who;
	for (int64_t s = 0; s < p->s; s++)
		for (int64_t t = p->offsets[s]; t < p->offsets[s + 1];) {
			int64_t id = p->order[t] >> 32, next = t + 1;
			while (next < p->offsets[s + 1] && p->order[next] >> 32 == id)
				next++;
			for (int64_t k = from * 16; k < to * 16 && k < p->d; k += 16) {
				int n = p->d - k < 16 ? (int)(p->d - k) : 16;
				v16 sum = vzero();
				for (int64_t i = t; i < next; i++)
					sum = vadd(sum, get(p->dy + (p->order[i] & 0xffffffff) * p->d, k, n));
				put(p->acc + id * p->d, k, vadd(get(p->acc + id * p->d, k, n), sum), n);
			}
			t = next;
		}
}

static int by_value(const void *a, const void *b) {
	int64_t x = *(const int64_t *)a, y = *(const int64_t *)b;
	return (x > y) - (x < y);
}

static int embed_grad(const call *c) {
	const int32_t *ids = iin(c, 1), *offsets = iin(c, 3);
	int64_t *order = shared_memory(c->ctx, c->d[0] * 8);
	if (!order)
		return NO_MEMORY;
	for (int64_t s = 0; s < c->d[3]; s++) {
		for (int64_t t = offsets[s]; t < offsets[s + 1]; t++)
			order[t] = (int64_t)ids[t] << 32 | t;
		qsort(order + offsets[s], (size_t)(offsets[s + 1] - offsets[s]), 8, by_value);
	}
	embed_grad_args p = {order, offsets, fin(c, 2), fout(c, 0), c->d[2], c->d[3]};
	split(c, (p.d + 15) / 16, 6 * (double)c->d[0], embed_grad_part, &p);
	return OK;
}

typedef struct {
	const float *x, *cos, *sin; // x[T,H*D], tables [X,Rotary/2]
	const int32_t *pos;
	float *y;
	const step *a;
} rope_args;

// y1 = fma(x1, cos, -(x2*sin)), y2 = fma(x2, cos, x1*sin); sin negated for Inverse.
static void rope_part(const void *arg, int64_t from, int64_t to, int who) {
	const rope_args *p = arg;
	int64_t d = p->a->head_dim, half = p->a->rotary / 2, heads = p->a->heads;
	(void)who;
	for (int64_t t = from; t < to; t++) {
		const float *co = p->cos + p->pos[t] * half, *si = p->sin + p->pos[t] * half;
		for (int64_t h = 0; h < heads; h++) {
			const float *x = p->x + (t * heads + h) * d;
			float *y = p->y + (t * heads + h) * d;
			for (int64_t k = 0; k < half; k += 16) {
				int n = half - k < 16 ? (int)(half - k) : 16;
				v16 a = get(x, k, n), b = get(x + half, k, n), c = get(co, k, n), s = get(si, k, n);
				if (p->a->inverse)
					s = vneg(s);
				put(y, k, vfma(a, c, vneg(vmul(b, s))), n);
				put(y + half, k, vfma(b, c, vmul(a, s)), n);
			}
			if (x != y && 2 * half < d)
				memmove(y + 2 * half, x + 2 * half, (size_t)(d - 2 * half) * 4);
		}
	}
}

static int rope(const call *c) {
	rope_args p = {fin(c, 0), fin(c, 2), fin(c, 3), iin(c, 1), fout(c, 0), c->s};
	split(c, c->d[0], 0.5 * (double)(c->s->heads * c->s->head_dim), rope_part, &p);
	return OK;
}

typedef struct {
	const float *x;
	const int32_t *offsets;
	float *y;
	int64_t width; // elements in a row
} segment_args;

// The sum runs in 16 lanes from the sequence's first cell, then the tree.
static void segment_sum_part(const void *arg, int64_t from, int64_t to, int who) {
	const segment_args *p = arg;
	(void)who;
	for (int64_t s = from; s < to; s++) {
		const float *x = p->x + p->offsets[s] * p->width;
		int64_t len = (p->offsets[s + 1] - p->offsets[s]) * p->width;
		v16 sum = vzero();
		for (int64_t i = 0; i < len; i += 16)
			sum = vadd(sum, get(x, i, len - i < 16 ? (int)(len - i) : 16));
		p->y[s] = vsum(sum);
	}
}

static int segment_sum(const call *c) {
	segment_args p = {fin(c, 0), iin(c, 1), fout(c, 0), c->d[1]};
	split(c, c->d[2], c->d[2] ? 0.3 * (double)(c->d[0] * p.width) / (double)c->d[2] : 1, segment_sum_part, &p);
	return OK;
}

static void segment_expand_part(const void *arg, int64_t from, int64_t to, int who) {
	const segment_args *p = arg;
	(void)who;
	for (int64_t s = from; s < to; s++)
		for (int64_t i = p->offsets[s] * p->width; i < p->offsets[s + 1] * p->width; i++)
			p->y[i] = p->x[s];
}

static int segment_expand(const call *c) {
	segment_args p = {fin(c, 0), iin(c, 1), fout(c, 0), c->d[1]};
	split(c, c->d[2], c->d[2] ? 0.3 * (double)(c->d[0] * p.width) / (double)c->d[2] : 1, segment_expand_part, &p);
	return OK;
}
