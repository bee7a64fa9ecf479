// Linear attention: the short causal convolution and the gated delta rule, in
// training and with a stored state. Both modes run the same code token by token,
// so that a sequence has the same bits in pieces of any size.

typedef struct {
	const call *c;
	const float *x, *w, *dy; // x[T,C], w[K,C] (transposed)
	float *y, *state;        // [T,C]; [L,(K-1)*C] or null
	const int32_t *offsets, *start, *slot;
	int64_t width, k, s;
} conv_args;

// transposed is w[C,1,K] as [K,C], so that lanes run over columns.
static const float *transposed(const call *c, const float *w, int64_t width, int64_t k) {
	float *to = shared_memory(c->ctx, width * k * 4);
	if (to)
		for (int64_t i = 0; i < width; i++)
			for (int64_t j = 0; j < k; j++)
				to[j * width + i] = w[i * k + j];
	return to;
}

// Items: (sequence, sixteen columns), the columns fastest. y = sum of w*x over
// the kernel, from zero, the oldest token first; before the sequence are zeros.
static void conv_part(const void *arg, int64_t from, int64_t to, int who) {
	const conv_args *p = arg;
	int64_t blocks = (p->width + 15) / 16, before = p->k - 1;
	float *past = scratch_of(p->c, who); // [K-1,16]
	for (int64_t item = from; item < to; item++) {
		int64_t s = item / blocks, i = item % blocks * 16, t0 = p->offsets[s], len = p->offsets[s + 1] - t0;
		int n = p->width - i < 16 ? (int)(p->width - i) : 16;
		float *state = p->state ? p->state + p->slot[s] * before * p->width + i : 0;
		for (int64_t j = 0; j < before; j++)
			vstore(past + j * 16, state && p->start[s] ? get(state, j * p->width, n) : vzero());
		const float *x = p->x + t0 * p->width + i;
		for (int64_t t = 0; t < len; t++) {
			v16 sum = vzero();
			for (int64_t j = 0; j < p->k; j++) {
				int64_t at = t - before + j;
				v16 v = at < 0 ? vload(past + (at + before) * 16) : get(x, at * p->width, n);
				sum = vfma(get(p->w + i, j * p->width, n), v, sum);
			}
			put(p->y + i, (t0 + t) * p->width, sum, n);
		}
		for (int64_t j = 0; state && j < before; j++) {
			int64_t at = len - before + j;
			put(state, j * p->width, at < 0 ? vload(past + (at + before) * 16) : get(x, at * p->width, n), n);
		}
	}
}

static int run_conv(conv_args *p, pool_task task) {
	const call *c = p->c;
	if (p->k * 64 > SCRATCH_BYTES || !(p->w = transposed(c, p->w, p->width, p->k)))
		return NO_MEMORY;
	int64_t items = p->s * ((p->width + 15) / 16);
	split(c, items, items ? 0.3 * (double)(c->d[0] * p->width * p->k) / (double)items + 10 : 1, task, p);
	return OK;
}

static int conv(const call *c) {
	conv_args p = {.c = c, .x = fin(c, 0), .w = fin(c, 1), .offsets = iin(c, 2), .y = fout(c, 0), .width = c->d[1], .k = c->d[2], .s = c->d[3]};
	return run_conv(&p, conv_part);
}

static int conv_state(const call *c) {
	conv_args p = {.c = c, .state = fout(c, 0), .x = fin(c, 1), .w = fin(c, 2), .offsets = iin(c, 3), .start = iin(c, 4), .slot = iin(c, 5), .y = fout(c, 1), .width = c->d[1], .k = c->d[2], .s = c->d[3]};
	return run_conv(&p, conv_part);
}

// dx = sum of w*dy over the kernel, from zero, the newest token first.
static void conv_grad_part(const void *arg, int64_t from, int64_t to, int who) {
	const conv_args *p = arg;
	int64_t blocks = (p->width + 15) / 16;
	(void)who;
	for (int64_t item = from; item < to; item++) {
		int64_t s = item / blocks, i = item % blocks * 16, t0 = p->offsets[s], len = p->offsets[s + 1] - t0;
		int n = p->width - i < 16 ? (int)(p->width - i) : 16;
		const float *dy = p->x + t0 * p->width + i;
		for (int64_t t = 0; t < len; t++) {
			v16 sum = vzero();
			for (int64_t j = 0; j < p->k; j++)
				if (t + p->k - 1 - j < len)
					sum = vfma(get(p->w + i, j * p->width, n), get(dy, (t + p->k - 1 - j) * p->width, n), sum);
			put(p->y + i, (t0 + t) * p->width, sum, n);
		}
	}
}

static int conv_grad(const call *c) {
	conv_args p = {.c = c, .x = fin(c, 0), .w = fin(c, 1), .offsets = iin(c, 2), .y = fout(c, 0), .width = c->d[1], .k = c->d[2], .s = c->d[3]};
	return run_conv(&p, conv_grad_part);
}

// Items: sixteen columns. For each datum, from zero, one fma for each token in
// rising order; the sum is added once to acc[C,1,K].
static void conv_grad_w_part(const void *arg, int64_t from, int64_t to, int who) {
	const conv_args *p = arg;
	(void)who;
	for (int64_t i = from * 16; i < to * 16 && i < p->width; i += 16) {
		int n = p->width - i < 16 ? (int)(p->width - i) : 16;
		for (int64_t s = 0; s < p->s; s++) {
			int64_t t0 = p->offsets[s], len = p->offsets[s + 1] - t0;
			const float *x = p->x + t0 * p->width + i, *dy = p->dy + t0 * p->width + i;
			for (int64_t j = 0; j < p->k && len; j++) {
				float lane[16];
				v16 sum = vzero();
				for (int64_t t = p->k - 1 - j; t < len; t++)
					sum = vfma(get(dy, t * p->width, n), get(x, (t - p->k + 1 + j) * p->width, n), sum);
				vstore(lane, sum);
				for (int q = 0; q < n; q++)
					p->y[(i + q) * p->k + j] += lane[q];
			}
		}
	}
}

static int conv_grad_w(const call *c) {
	conv_args p = {.c = c, .dy = fin(c, 1), .x = fin(c, 2), .offsets = iin(c, 3), .y = fout(c, 0), .width = c->d[1], .k = c->d[2], .s = c->d[3]};
	split(c, (p.width + 15) / 16, 5 * (double)(c->d[0] * p.k), conv_grad_w_part, &p);
	return OK;
}

typedef struct {
	const call *c;
	const float *q, *k, *v, *g, *beta, *dout; // q, k [T,KV*D], v, dout [T,H*E], g, beta [T,H]
	float *out, *state;                       // [T,H*E]; [L,H*D*E] or null
	float *dq, *dk, *dv, *dg, *dbeta;
	const int32_t *offsets, *start, *slot;
	int64_t heads, kvs, d, e, s;
	float *work;      // of the gradient, for each thread
	int64_t each, piece; // floats of work for a thread, tokens of a piece
} delta_args;

// rule_step is one token of sixteen columns of one head's state m[D,ld]:
// m = m*exp(g); missing = v - sum of m*k; delta = beta*missing; m = m + k*delta;
// out = sum of m*q; sums over D in rising order by fma from zero. decayed, if
// not null, gets m between decay and update.
INLINE v16 rule_step(float *m, float *decayed, int64_t ld, int64_t d, const float *q, const float *k, v16 v, v16 decay, v16 beta, int n, v16 *missing, v16 *delta) {
	v16 seen = vzero(), out = vzero();
	for (int64_t i = 0; i < d; i++) {
		v16 row = vmul(get(m, i * ld, n), decay);
		put(m, i * ld, row, n);
		if (decayed)
			put(decayed, i * ld, row, n);
		seen = vfma(row, vset(k[i]), seen);
	}
	*missing = vsub(v, seen);
	*delta = vmul(beta, *missing);
	for (int64_t i = 0; i < d; i++) {
		v16 row = vfma(vset(k[i]), *delta, get(m, i * ld, n));
		put(m, i * ld, row, n);
		out = vfma(row, vset(q[i]), out);
	}
	return out;
}

// Items: (sequence, head, sixteen columns), the columns fastest: they don't meet.
static void delta_part(const void *arg, int64_t from, int64_t to, int who) {
	const delta_args *p = arg;
	int64_t blocks = (p->e + 15) / 16;
	float *m = scratch_of(p->c, who); // [D,16]
	for (int64_t item = from; item < to; item++) {
		int64_t s = item / (blocks * p->heads), h = item / blocks % p->heads, j = item % blocks * 16, kv = h / (p->heads / p->kvs);
		int n = p->e - j < 16 ? (int)(p->e - j) : 16;
		float *state = p->state ? p->state + (p->slot[s] * p->heads + h) * p->d * p->e + j : 0;
		for (int64_t i = 0; i < p->d; i++)
			vstore(m + i * 16, state && p->start[s] ? get(state, i * p->e, n) : vzero());
		for (int64_t t = p->offsets[s]; t < p->offsets[s + 1]; t++) {
			const float *q = p->q + (t * p->kvs + kv) * p->d, *k = p->k + (t * p->kvs + kv) * p->d;
			int64_t at = (t * p->heads + h) * p->e + j;
			v16 missing, delta, decay = vset(exp1(p->g[t * p->heads + h])), beta = vset(p->beta[t * p->heads + h]);
			put(p->out, at, rule_step(m, 0, 16, p->d, q, k, get(p->v, at, n), decay, beta, 16, &missing, &delta), n);
		}
		for (int64_t i = 0; state && i < p->d; i++)
			put(state, i * p->e, vload(m + i * 16), n);
	}
}

static int run_delta(delta_args *p) {
	const call *c = p->c;
	p->heads = c->s->heads, p->kvs = c->s->kv_heads, p->d = c->s->head_dim;
	p->s = c->d[1], p->e = c->d[2] / p->heads;
	if (p->d * 64 > SCRATCH_BYTES)
		return NO_MEMORY;
	int64_t items = p->s * p->heads * ((p->e + 15) / 16);
	split(c, items, items ? 1.5 * (double)(c->d[0] * p->heads * p->d * ((p->e + 15) / 16)) / (double)items + 20 : 1, delta_part, p);
	return OK;
}

static int delta(const call *c) {
	delta_args p = {.c = c, .q = fin(c, 0), .k = fin(c, 1), .v = fin(c, 2), .g = fin(c, 3), .beta = fin(c, 4), .offsets = iin(c, 5), .out = fout(c, 0)};
	return run_delta(&p);
}

static int delta_state(const call *c) {
	delta_args p = {.c = c, .state = fout(c, 0), .q = fin(c, 1), .k = fin(c, 2), .v = fin(c, 3), .g = fin(c, 4), .beta = fin(c, 5), .offsets = iin(c, 6), .start = iin(c, 7), .slot = iin(c, 8), .out = fout(c, 1)};
	return run_delta(&p);
}

// What one thread works with, in floats: states before each piece, decayed
// states of one piece, the gradient of the state, and what a piece's tokens
// missed and added.
typedef struct {
	float *before, *decayed, *ds, *missing, *delta, *ddelta;
} delta_work;

INLINE delta_work delta_work_of(const delta_args *p, int who, int64_t pieces) {
	int64_t m = p->d * p->e;
	delta_work w;
	w.before = p->work + who * p->each;
	w.decayed = w.before + pieces * m;
	w.ds = w.decayed + p->piece * m;
	w.missing = w.ds + m;
	w.delta = w.missing + p->piece * p->e;
	w.ddelta = w.delta + p->piece * p->e;
	return w;
}

// token_forward runs one token of a head over all columns, on the state m [D,E].
INLINE void token_forward(const delta_args *p, int64_t t, int64_t h, int64_t kv, float *m, float *decayed, float *missing, float *delta) {
	const float *q = p->q + (t * p->kvs + kv) * p->d, *k = p->k + (t * p->kvs + kv) * p->d;
	v16 decay = vset(exp1(p->g[t * p->heads + h])), beta = vset(p->beta[t * p->heads + h]);
	for (int64_t j = 0; j < p->e; j += 16) {
		int n = p->e - j < 16 ? (int)(p->e - j) : 16;
		v16 miss, add;
		rule_step(m + j, decayed ? decayed + j : 0, p->e, p->d, q, k, get(p->v, (t * p->heads + h) * p->e + j, n), decay, beta, n, &miss, &add);
		if (missing) {
			put(missing, j, miss, n);
			put(delta, j, add, n);
		}
	}
}

// token_backward: ds is the gradient of the state after the token, then of the
// state before it. Sums over E in 16 lanes and the tree, over D in rising order.
static void token_backward(const delta_args *p, int64_t t, int64_t h, int64_t kv, const delta_work *w, const float *decayed, const float *missing, const float *delta) {
	const float *q = p->q + (t * p->kvs + kv) * p->d, *k = p->k + (t * p->kvs + kv) * p->d, *dout = p->dout + (t * p->heads + h) * p->e;
	float *dq = p->dq + (t * p->kvs + kv) * p->d, *dk = p->dk + (t * p->kvs + kv) * p->d, *dv = p->dv + (t * p->heads + h) * p->e;
	float a = exp1(p->g[t * p->heads + h]), beta = p->beta[t * p->heads + h];
	memset(w->ddelta, 0, (size_t)p->e * 4);
	for (int64_t i = 0; i < p->d; i++) {
		v16 toq = vzero(), tok = vzero();
		for (int64_t j = 0; j < p->e; j += 16) {
			int n = p->e - j < 16 ? (int)(p->e - j) : 16;
			v16 out = get(dout, j, n), add = get(delta, j, n);
			v16 ds = vfma(vset(q[i]), out, get(w->ds, i * p->e + j, n));
			put(w->ds, i * p->e + j, ds, n);
			toq = vfma(vfma(vset(k[i]), add, get(decayed, i * p->e + j, n)), out, toq);
			tok = vfma(ds, add, tok);
			put(w->ddelta, j, vfma(ds, vset(k[i]), get(w->ddelta, j, n)), n);
		}
		dq[i] += vsum(toq);
		dk[i] += vsum(tok);
	}
	v16 tobeta = vzero(), tog = vzero();
	for (int64_t j = 0; j < p->e; j += 16) {
		int n = p->e - j < 16 ? (int)(p->e - j) : 16;
		v16 dd = get(w->ddelta, j, n);
		tobeta = vfma(dd, get(missing, j, n), tobeta);
		put(dv, j, vmul(vset(beta), dd), n);
	}
	for (int64_t i = 0; i < p->d; i++) {
		v16 tok = vzero();
		for (int64_t j = 0; j < p->e; j += 16) {
			int n = p->e - j < 16 ? (int)(p->e - j) : 16;
			v16 dm = vneg(get(dv, j, n)), state = get(decayed, i * p->e + j, n);
			v16 ds = vfma(vset(k[i]), dm, get(w->ds, i * p->e + j, n));
			tok = vfma(state, dm, tok);
			tog = vfma(state, ds, tog);
			put(w->ds, i * p->e + j, vmul(ds, vset(a)), n);
		}
		dk[i] += vsum(tok);
	}
	p->dg[t * p->heads + h] = vsum(tog);
	p->dbeta[t * p->heads + h] = vsum(tobeta);
}

// Items: (sequence, key head). The sequence runs forward once, keeping the state
// before each piece; then the pieces go backwards, each run forward again with
// all of its states kept. The heads of a key are summed in rising order.
static void delta_grad_part(const void *arg, int64_t from, int64_t to, int who) {
	const delta_args *p = arg;
	int64_t group = p->heads / p->kvs, m = p->d * p->e;
	for (int64_t item = from; item < to; item++) {
		int64_t s = item / p->kvs, kv = item % p->kvs, t0 = p->offsets[s], len = p->offsets[s + 1] - t0, pieces = (len + p->piece - 1) / p->piece;
		if (!len)
			continue;
		delta_work w = delta_work_of(p, who, pieces);
		for (int64_t t = t0; t < t0 + len; t++) {
			memset(p->dq + (t * p->kvs + kv) * p->d, 0, (size_t)p->d * 4);
			memset(p->dk + (t * p->kvs + kv) * p->d, 0, (size_t)p->d * 4);
		}
		for (int64_t h = kv * group; h < (kv + 1) * group; h++) {
			memset(w.ds, 0, (size_t)m * 4); // the running state of the first pass
			for (int64_t i = 0; i < pieces; i++) {
				memcpy(w.before + i * m, w.ds, (size_t)m * 4);
				for (int64_t t = i * p->piece; i + 1 < pieces && t < (i + 1) * p->piece; t++)
					token_forward(p, t0 + t, h, kv, w.ds, 0, 0, 0);
			}
			memset(w.ds, 0, (size_t)m * 4);
			for (int64_t i = pieces - 1; i >= 0; i--) {
				int64_t first = i * p->piece, last = first + p->piece < len ? first + p->piece : len;
				float *state = w.before + i * m;
				for (int64_t t = first; t < last; t++)
					token_forward(p, t0 + t, h, kv, state, w.decayed + (t - first) * m, w.missing + (t - first) * p->e, w.delta + (t - first) * p->e);
				for (int64_t t = last - 1; t >= first; t--)
					token_backward(p, t0 + t, h, kv, &w, w.decayed + (t - first) * m, w.missing + (t - first) * p->e, w.delta + (t - first) * p->e);
			}
		}
	}
}

static int delta_grad(const call *c) {
	delta_args p = {.c = c, .q = fin(c, 0), .k = fin(c, 1), .v = fin(c, 2), .g = fin(c, 3), .beta = fin(c, 4), .dout = fin(c, 5), .offsets = iin(c, 6), .dq = fout(c, 0), .dk = fout(c, 1), .dv = fout(c, 2), .dg = fout(c, 3), .dbeta = fout(c, 4)};
	p.heads = c->s->heads, p.kvs = c->s->kv_heads, p.d = c->s->head_dim;
	p.s = c->d[1], p.e = c->d[2] / p.heads;
	int64_t longest = 1;
	for (int64_t s = 0; s < p.s; s++)
		if (p.offsets[s + 1] - p.offsets[s] > longest)
			longest = p.offsets[s + 1] - p.offsets[s];
	for (p.piece = 1; p.piece * p.piece < longest;)
		p.piece++;
	// Rounded up to a cache line, so that threads don't share one.
	p.each = (((longest + p.piece - 1) / p.piece + p.piece + 1) * p.d * p.e + (2 * p.piece + 1) * p.e + 15) / 16 * 16;
	p.work = shared_memory(c->ctx, c->ctx->threads * p.each * 4);
	if (!p.work)
		return NO_MEMORY;
	int64_t items = p.s * p.kvs;
	split(c, items, items ? 4.0 * (double)(c->d[0] * p.heads * p.d * ((p.e + 15) / 16)) / (double)items + 20 : 1, delta_grad_part, &p);
	return OK;
}
