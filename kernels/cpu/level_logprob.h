// Log-sum-exp, log-probabilities of targets and their gradient.

enum { VOCAB_BLOCK = 512 };

typedef struct {
	const call *c;
	const float *logits, *lse_in, *g; // logits[rows,V]
	const int32_t *targets;           // [rows,C]
	float *out, *lse;
	int64_t v, k; // vocabulary, targets in a row
} logprob_args;

// lse_of: the maximum first; then the sum of exp(x - max), 16 lanes and the
// tree inside each block of VOCAB_BLOCK, the blocks one after the other. An
// infinite maximum is taken as 0: a row of -inf is log(0), one with +inf +inf.
static float lse_of(const float *x, int64_t v) {
	v16 most = vset(-INFINITY);
	for (int64_t i = 0; i < v; i += 16) {
		int n = v - i < 16 ? (int)(v - i) : 16;
		most = vmax(n == 16 ? vload(x + i) : vkeep(vload_n(x + i, n), 0, n, -INFINITY), most);
	}
	float top = vtop(most), sum = 0;
	if (top == INFINITY || top == -INFINITY)
		top = 0;
	v16 t = vset(top);
	for (int64_t b = 0; b < v; b += VOCAB_BLOCK) {
		int64_t end = v - b < VOCAB_BLOCK ? v : b + VOCAB_BLOCK;
		v16 part = vzero();
		for (int64_t i = b; i < end; i += 16) {
			int n = end - i < 16 ? (int)(end - i) : 16;
			v16 e = vexp(vsub(get(x, i, n), t));
			part = vadd(part, n == 16 ? e : vkeep(e, 0, n, 0));
		}
		sum = sum + vsum(part);
	}
	return top + log1(sum);
}

// Items are rows.
static void lse_part(const void *arg, int64_t from, int64_t to, int who) {
	const logprob_args *p = arg;
	(void)who;
	for (int64_t r = from; r < to; r++) {
		const float *row = p->logits + r * p->v;
		float lse = lse_of(row, p->v);
		p->lse[r] = lse;
		for (int64_t i = r * p->k; i < (r + 1) * p->k; i++)
			p->out[i] = row[p->targets[i]] - lse;
	}
}

static int log_sum_exp(const call *c) {
	logprob_args p = {.c = c, .logits = fin(c, 0), .lse = fout(c, 0), .v = c->d[1]};
	split(c, c->d[0], 1.2 * (double)p.v, lse_part, &p);
	return OK;
}

static int log_prob(const call *c) {
	logprob_args p = {.c = c, .logits = fin(c, 0), .targets = iin(c, 1), .out = fout(c, 0), .lse = fout(c, 1), .v = c->d[1], .k = c->d[2]};
	split(c, c->d[0], 1.2 * (double)p.v, lse_part, &p);
	return OK;
}

// dlogits = -(sum of g) * exp(logit - lse), then + g_c at each target in order.
static void logprob_grad_part(const void *arg, int64_t from, int64_t to, int who) {
	const logprob_args *p = arg;
	(void)who;
	for (int64_t r = from; r < to; r++) {
		const float *row = p->logits + r * p->v, *g = p->g + r * p->k;
		float *out = p->out + r * p->v, total = 0;
		int zero = 1;
		for (int64_t i = 0; i < p->k; i++) {
			total += g[i];
			zero &= g[i] == 0;
		}
		if (zero) {
			memset(out, 0, (size_t)p->v * 4);
			continue;
		}
		v16 f = vset(-total), lse = vset(p->lse_in[r]);
		for (int64_t i = 0; i < p->v; i += 16) {
			int n = p->v - i < 16 ? (int)(p->v - i) : 16;
			put(out, i, vmul(f, vexp(vsub(get(row, i, n), lse))), n);
		}
		for (int64_t i = 0; i < p->k; i++)
			out[p->targets[r * p->k + i]] += g[i];
	}
}

static int log_prob_grad(const call *c) {
	logprob_args p = {.c = c, .logits = fin(c, 0), .lse_in = fin(c, 1), .targets = iin(c, 2), .g = fin(c, 3), .out = fout(c, 0), .v = c->d[1], .k = c->d[2]};
	split(c, c->d[0], (double)p.v, logprob_grad_part, &p);
	return OK;
}
