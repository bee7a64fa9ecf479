// RMSNorm over groups of D, forward and backward.

typedef struct {
	const call *c;
	const float *x, *w, *dy;
	float *y, *inverse; // inverse: one for each group, for the weight's gradient
	const int32_t *offsets;
	int64_t d, groups, s; // groups: in a row
	float eps;
	v16 unit; // 1 where the weight is stored as its difference from one, else 0
} norm_args;

// inverse_rms: 1/sqrt(mean(x*x) + eps), the sum in 16 lanes and the tree.
INLINE float inverse_rms(const float *x, int64_t d, float eps) {
	v16 sum = vzero();
	for (int64_t k = 0; k < d; k += 16) {
		v16 v = get(x, k, d - k < 16 ? (int)(d - k) : 16);
		sum = vfma(v, v, sum);
	}
	return 1 / sqrtf(vsum(sum) / (float)d + eps);
}

// y = (x * r) * (w + unit); adding a zero unit changes no result but the sign of
// a zero weight, in the same way everywhere.
static void norm_part(const void *arg, int64_t from, int64_t to, int who) {
	const norm_args *p = arg;
	(void)who;
	for (int64_t g = from; g < to; g++) {
		const float *x = p->x + g * p->d;
		float *y = p->y + g * p->d;
		v16 r = vset(inverse_rms(x, p->d, p->eps));
		for (int64_t k = 0; k < p->d; k += 16) {
			int n = p->d - k < 16 ? (int)(p->d - k) : 16;
			put(y, k, vmul(vmul(get(x, k, n), r), vadd(get(p->w, k, n), p->unit)), n);
		}
	}
}

static int rms_norm(const call *c) {
	norm_args p = {c, fin(c, 0), fin(c, 1), 0, fout(c, 0), 0, 0, c->d[1], c->s->heads, 0, c->s->eps, vset((float)c->s->unit)};
	split(c, c->d[0] * p.groups, 5 + 0.5 * (double)p.d, norm_part, &p);
	return OK;
}

// dx = r*(w*dy) - x * (r*r*r * sum(w*dy*x) / D)
static void norm_grad_part(const void *arg, int64_t from, int64_t to, int who) {
	const norm_args *p = arg;
	(void)who;
	for (int64_t g = from; g < to; g++) {
		const float *x = p->x + g * p->d, *dy = p->dy + g * p->d;
		float *dx = p->y + g * p->d;
		float r = inverse_rms(x, p->d, p->eps);
		v16 sum = vzero();
		for (int64_t k = 0; k < p->d; k += 16) {
			int n = p->d - k < 16 ? (int)(p->d - k) : 16;
			sum = vfma(vmul(vadd(get(p->w, k, n), p->unit), get(dy, k, n)), get(x, k, n), sum);
		}
		v16 f = vset(r * r * r * vsum(sum) / (float)p->d), rv = vset(r);
		for (int64_t k = 0; k < p->d; k += 16) {
			int n = p->d - k < 16 ? (int)(p->d - k) : 16;
			put(dx, k, vfnma(get(x, k, n), f, vmul(rv, vmul(vadd(get(p->w, k, n), p->unit), get(dy, k, n)))), n);
		}
	}
}

static int rms_norm_grad(const call *c) {
	norm_args p = {c, fin(c, 0), fin(c, 1), fin(c, 2), fout(c, 0), 0, 0, c->d[1], c->s->heads, 0, c->s->eps, vset((float)c->s->unit)};
	split(c, c->d[0] * p.groups, 5 + 0.8 * (double)p.d, norm_grad_part, &p);
	return OK;
}

static void inverse_part(const void *arg, int64_t from, int64_t to, int who) {
	const norm_args *p = arg;
	(void)who;
	for (int64_t g = from; g < to; g++)
		p->inverse[g] = inverse_rms(p->x + g * p->d, p->d, p->eps);
}

// acc[k] += sum over the datum's groups in rising order of (dy*r)*x; items are columns in sixteens.
static void norm_grad_w_part(const void *arg, int64_t from, int64_t to, int who) {
	const norm_args *p = arg;
	(void)who;
	for (int64_t k = from * 16; k < to * 16 && k < p->d; k += 16) {
		int n = p->d - k < 16 ? (int)(p->d - k) : 16;
		for (int64_t s = 0; s < p->s; s++) {
			v16 sum = vzero();
			for (int64_t g = p->offsets[s] * p->groups; g < p->offsets[s + 1] * p->groups; g++)
				sum = vfma(vmul(get(p->dy + g * p->d, k, n), vset(p->inverse[g])), get(p->x + g * p->d, k, n), sum);
			if (p->offsets[s] < p->offsets[s + 1])
				put(p->y, k, vadd(get(p->y, k, n), sum), n);
		}
	}
}

static int rms_norm_grad_w(const call *c) {
	int64_t groups = c->d[0] * c->s->heads;
	float *inverse = shared_memory(c->ctx, groups * 4);
	if (!inverse)
		return NO_MEMORY;
	norm_args p = {c, fin(c, 1), 0, fin(c, 2), fout(c, 0), inverse, iin(c, 3), c->d[1], c->s->heads, c->d[2], c->s->eps, vzero()};
	split(c, groups, 5 + 0.2 * (double)p.d, inverse_part, &p);
	split(c, (p.d + 15) / 16, 4 * (double)groups, norm_grad_w_part, &p);
	return OK;
}
