// Attention: packed, paged and its gradient.
//
// Keys come in blocks of KEY_BLOCK at fixed absolute positions; a block is a
// run of rows in memory both in a packed sequence and in a cache page, so the
// same code serves both and gives the same bits. A key that a query may not
// see takes no part: its score is replaced, its weight is an exact zero and its
// value is not multiplied.

enum { KEY_BLOCK = 32, QUERY_ROWS = 16 };

typedef struct {
	const call *c;
	const float *q, *k, *v; // q[T,H*D]; k, v [T,KV*D], or caches [P,Page,KV*D]
	const int32_t *offsets, *start, *table;
	float *out, *lse; // [T,H*D], [T,H] or null
	int64_t s, columns; // sequences, columns of the table
	int64_t *items;     // first item of each sequence, [S+1]
	const step *a;
	// Gradient only.
	const float *dout;
	float *dq, *dk, *dv;
} attn_args;

// rows_of a block of keys that starts at position `at` of sequence s; head kv's part.
INLINE const float *rows_of(const attn_args *p, const float *base, int64_t s, int64_t at, int64_t kv) {
	int64_t d = p->a->head_dim, width = p->a->kv_heads * d;
	if (p->table) {
		int64_t page = p->table[s * p->columns + at / p->a->page];
		return base + (page * p->a->page + at % p->a->page) * width + kv * d;
	}
	return base + (p->offsets[s] + at) * width + kv * d;
}

INLINE int64_t first_key(const step *a, int64_t at) { return a->window && at >= a->window ? at - a->window + 1 : 0; }

// A tile is up to QUERY_ROWS rows (token, head) of one sequence that share a key-value head.
typedef struct {
	int n;
	int64_t at[QUERY_ROWS]; // position of the row's token
	const float *q[QUERY_ROWS];
	float *out[QUERY_ROWS];
	float top[QUERY_ROWS], sum[QUERY_ROWS]; // running maximum and sum of exponentials
	int from[QUERY_ROWS], to[QUERY_ROWS];   // keys of the current block that the row sees
} tile;

// bounded is a score times its scale under the bound: cap * tanh(s / cap).
INLINE v16 bounded(v16 s, float cap) { return cap > 0 ? vmul(vset(cap), vtanh(vdiv(s, vset(cap)))) : s; }

// weigh turns the block's scores into weights, updates the running maxima and
// sums and scales the outputs so far.
static void weigh(tile *t, float p[QUERY_ROWS][KEY_BLOCK], const step *a) {
	int64_t d = a->head_dim;
	float next[QUERY_ROWS] = {0}, shrink[QUERY_ROWS], delta[QUERY_ROWS] = {0};
	v16 s = vset(a->scale);
	for (int i = 0; i < t->n; i++) {
		if (t->from[i] >= t->to[i])
			continue;
		v16 lo = vkeep(bounded(vmul(vload(p[i]), s), a->softcap), t->from[i] < 16 ? t->from[i] : 16, t->to[i] < 16 ? t->to[i] : 16, -INFINITY);
		v16 hi = vkeep(bounded(vmul(vload(p[i] + 16), s), a->softcap), t->from[i] > 16 ? t->from[i] - 16 : 0, t->to[i] > 16 ? t->to[i] - 16 : 0, -INFINITY);
		vstore(p[i], lo), vstore(p[i] + 16, hi);
		float top = vtop(vmax(lo, hi));
		next[i] = t->top[i] > top ? t->top[i] : top;
		delta[i] = t->top[i] - next[i];
	}
	vstore(shrink, vexp(vload(delta)));
	for (int i = 0; i < t->n; i++) {
		int from = t->from[i], to = t->to[i];
		if (from >= to)
			continue;
		v16 top = vset(next[i]);
		v16 lo = vkeep(vexp(vsub(vload(p[i]), top)), from < 16 ? from : 16, to < 16 ? to : 16, 0);
		v16 hi = vkeep(vexp(vsub(vload(p[i] + 16), top)), from > 16 ? from - 16 : 0, to > 16 ? to - 16 : 0, 0);
		vstore(p[i], lo), vstore(p[i] + 16, hi);
		t->sum[i] = fmaf(t->sum[i], shrink[i], vsum(vadd(lo, hi)));
		t->top[i] = next[i];
		if (shrink[i] != 1) {
			v16 f = vset(shrink[i]);
			for (int64_t e = 0; e < d; e += 16) {
				int n = d - e < 16 ? (int)(d - e) : 16;
				put(t->out[i], e, vmul(get(t->out[i], e, n), f), n);
			}
		}
	}
}

// visible sets the range of keys each row sees in the block at base; same tells
// whether all rows see the same.
INLINE int visible(const attn_args *p, tile *t, int64_t base) {
	int same = 1;
	for (int i = 0; i < t->n; i++) {
		int64_t from = first_key(p->a, t->at[i]) - base, to = t->at[i] + 1 - base;
		t->from[i] = from < 0 ? 0 : from > KEY_BLOCK ? KEY_BLOCK : (int)from;
		t->to[i] = to < 0 ? 0 : to > KEY_BLOCK ? KEY_BLOCK : (int)to;
		same &= t->from[i] == t->from[0] && t->to[i] == t->to[0];
	}
	return same;
}

static void attend(const attn_args *p, tile *t, int64_t s, int64_t kv) {
	float w[QUERY_ROWS][KEY_BLOCK] __attribute__((aligned(64)));
	int64_t d = p->a->head_dim, width = p->a->kv_heads * d, last = t->at[t->n - 1];
	for (int i = 0; i < t->n; i++) {
		memset(t->out[i], 0, (size_t)d * 4);
		t->top[i] = -INFINITY, t->sum[i] = 0;
	}
	memset(w, 0, sizeof w);
	for (int64_t base = first_key(p->a, t->at[0]) / KEY_BLOCK * KEY_BLOCK; base <= last; base += KEY_BLOCK) {
		int same = visible(p, t, base);
		int keys = last + 1 - base < KEY_BLOCK ? (int)(last + 1 - base) : KEY_BLOCK;
		const float *k = rows_of(p, p->k, s, base, kv), *v = rows_of(p, p->v, s, base, kv);
		for (int i = 0; i < t->n; i += DOT_M)
			dot_block(t->n - i < DOT_M ? t->n - i : DOT_M, keys, t->q + i, k, width, d, 0, w[i], KEY_BLOCK);
		weigh(t, w, p->a);
		if (same)
			outer_block(t->n, d, t->out, w[0] + t->from[0], KEY_BLOCK, 1, v + t->from[0] * width, width, t->to[0] - t->from[0], 1);
		else
			for (int i = 0; i < t->n; i++)
				if (t->from[i] < t->to[i])
					outer_block(1, d, t->out + i, w[i] + t->from[i], 0, 1, v + t->from[i] * width, width, t->to[i] - t->from[i], 1);
	}
	for (int i = 0; i < t->n; i++) {
		v16 f = vset(1 / t->sum[i]);
		for (int64_t e = 0; e < d; e += 16) {
			int n = d - e < 16 ? (int)(d - e) : 16;
			put(t->out[i], e, vmul(get(t->out[i], e, n), f), n);
		}
	}
}

// Item: (sequence, tile of rows, key-value head), the head fastest.
static void attention_part(const void *arg, int64_t from, int64_t to, int who) {
	const attn_args *p = arg;
	int64_t d = p->a->head_dim, heads = p->a->heads, kvs = p->a->kv_heads, group = heads / kvs, s = 0;
	(void)who;
	for (int64_t item = from; item < to; item++) {
		while (item >= p->items[s + 1])
			s++;
		int64_t kv = (item - p->items[s]) % kvs, row = (item - p->items[s]) / kvs * QUERY_ROWS;
		int64_t rows = (p->offsets[s + 1] - p->offsets[s]) * group;
		tile t = {.n = rows - row < QUERY_ROWS ? (int)(rows - row) : QUERY_ROWS};
		int64_t cell[QUERY_ROWS]; // token * heads + head
		for (int i = 0; i < t.n; i++) {
			int64_t token = (row + i) / group;
			cell[i] = (p->offsets[s] + token) * heads + kv * group + (row + i) % group;
			t.at[i] = token + (p->start ? p->start[s] : 0);
			t.q[i] = p->q + cell[i] * d;
			t.out[i] = p->out + cell[i] * d;
		}
		attend(p, &t, s, kv);
		if (p->lse)
			for (int i = 0; i < t.n; i++)
				p->lse[cell[i]] = t.top[i] + log1(t.sum[i]);
	}
}

static int run_attention(attn_args *p) {
	p->items = shared_memory(p->c->ctx, (p->s + 1) * 8);
	if (!p->items)
		return NO_MEMORY;
	int64_t group = p->a->heads / p->a->kv_heads, keys = 0;
	p->items[0] = 0;
	for (int64_t s = 0; s < p->s; s++) {
		int64_t n = p->offsets[s + 1] - p->offsets[s];
		p->items[s + 1] = p->items[s] + (n * group + QUERY_ROWS - 1) / QUERY_ROWS * p->a->kv_heads;
		keys += n * (n / 2 + (p->start ? p->start[s] : 0) + 1);
	}
	int64_t n = p->items[p->s];
	double work = 0.04 * (double)(keys * p->a->heads * p->a->head_dim);
	split(p->c, n, n ? work / (double)n + 50 : 1, attention_part, p);
	return OK;
}

static int attention(const call *c) {
	attn_args p = {.c = c, .q = fin(c, 0), .k = fin(c, 1), .v = fin(c, 2), .offsets = iin(c, 3), .out = fout(c, 0), .lse = fout(c, 1), .s = c->d[1], .a = c->s};
	return run_attention(&p);
}

static int paged_attention(const call *c) {
	attn_args p = {.c = c, .q = fin(c, 0), .k = fin(c, 1), .v = fin(c, 2), .offsets = iin(c, 3), .start = iin(c, 4), .table = iin(c, 5), .out = fout(c, 0), .s = c->d[1], .columns = c->d[2], .a = c->s};
	return run_attention(&p);
}

// One tile of queries (one head, consecutive tokens) against one block of keys:
// p = exp(scale*q.k - lse), ds = p * (dout.v - dout.out) * scale; then
// dq += ds*k over keys in rising order, dk += ds*q and dv += p*dout over
// queries in rising order.
static void grad_block(const attn_args *p, tile *t, const float *const *dout, float *const *dq, const float *delta, const float *lse, int64_t s, int64_t kv, int64_t base, int64_t len) {
	float w[QUERY_ROWS][KEY_BLOCK] __attribute__((aligned(64))), ds[QUERY_ROWS][KEY_BLOCK] __attribute__((aligned(64)));
	int64_t d = p->a->head_dim, width = p->a->kv_heads * d, ldq = p->a->heads * d, last = t->at[t->n - 1];
	int keys = last + 1 - base < KEY_BLOCK ? (int)(last + 1 - base) : KEY_BLOCK, same = visible(p, t, base);
	const float *k = rows_of(p, p->k, s, base, kv), *v = rows_of(p, p->v, s, base, kv);
	memset(w, 0, sizeof w), memset(ds, 0, sizeof ds);
	(void)len;
	for (int i = 0; i < t->n; i += DOT_M) {
		int rows = t->n - i < DOT_M ? t->n - i : DOT_M;
		dot_block(rows, keys, t->q + i, k, width, d, 0, w[i], KEY_BLOCK);
		dot_block(rows, keys, dout + i, v, width, d, 0, ds[i], KEY_BLOCK);
	}
	v16 scale = vset(p->a->scale);
	for (int i = 0; i < t->n; i++)
		for (int half = 0; half < KEY_BLOCK; half += 16) {
			int from = t->from[i] - half, to = t->to[i] - half;
			from = from < 0 ? 0 : from > 16 ? 16 : from, to = to < 0 ? 0 : to > 16 ? 16 : to;
			v16 score = vmul(vload(w[i] + half), scale);
			v16 under = bounded(score, p->a->softcap);
			v16 e = vexp(vsub(under, vset(lse[i])));
			v16 g = vmul(vmul(e, vsub(vload(ds[i] + half), vset(delta[i]))), scale);
			if (p->a->softcap > 0) { // the slope is 1 - tanh²
				v16 th = vdiv(under, vset(p->a->softcap));
				g = vmul(g, vfnma(th, th, vset(1)));
			}
			vstore(w[i] + half, vkeep(e, from, to, 0));
			vstore(ds[i] + half, vkeep(g, from, to, 0));
		}
	if (same)
		outer_block(t->n, d, dq, ds[0] + t->from[0], KEY_BLOCK, 1, k + t->from[0] * width, width, t->to[0] - t->from[0], 1);
	else
		for (int i = 0; i < t->n; i++)
			if (t->from[i] < t->to[i])
				outer_block(1, d, dq + i, ds[i] + t->from[i], 0, 1, k + t->from[i] * width, width, t->to[i] - t->from[i], 1);
	float *dk[KEY_BLOCK], *dv[KEY_BLOCK];
	for (int j = 0; j < keys; j++) {
		dk[j] = p->dk + (k - p->k) + j * width;
		dv[j] = p->dv + (v - p->v) + j * width;
	}
	outer_block(keys, d, dk, ds[0], 1, KEY_BLOCK, t->q[0], ldq, t->n, 1);
	outer_block(keys, d, dv, w[0], 1, KEY_BLOCK, dout[0], ldq, t->n, 1);
}

// Item: (sequence, key-value head).
static void attention_grad_part(const void *arg, int64_t from, int64_t to, int who) {
	const attn_args *p = arg;
	int64_t d = p->a->head_dim, heads = p->a->heads, kvs = p->a->kv_heads, group = heads / kvs;
	(void)who;
	for (int64_t item = from; item < to; item++) {
		int64_t s = item / kvs, kv = item % kvs, t0 = p->offsets[s], len = p->offsets[s + 1] - t0;
		for (int64_t i = 0; i < len; i++) {
			memset(p->dk + ((t0 + i) * kvs + kv) * d, 0, (size_t)d * 4);
			memset(p->dv + ((t0 + i) * kvs + kv) * d, 0, (size_t)d * 4);
		}
		for (int64_t h = kv * group; h < (kv + 1) * group; h++)
			for (int64_t row = 0; row < len; row += QUERY_ROWS) {
				tile t = {.n = len - row < QUERY_ROWS ? (int)(len - row) : QUERY_ROWS};
				const float *dout[QUERY_ROWS];
				float *dq[QUERY_ROWS], delta[QUERY_ROWS], lse[QUERY_ROWS];
				for (int i = 0; i < t.n; i++) {
					int64_t cell = (t0 + row + i) * heads + h;
					t.at[i] = row + i;
					t.q[i] = p->q + cell * d;
					dout[i] = p->dout + cell * d;
					dq[i] = p->dq + cell * d;
					lse[i] = p->lse[cell];
					memset(dq[i], 0, (size_t)d * 4);
					const float *out = p->out + cell * d;
					v16 sum = vzero();
					for (int64_t e = 0; e < d; e += 16) {
						int n = d - e < 16 ? (int)(d - e) : 16;
						sum = vfma(get(dout[i], e, n), get(out, e, n), sum);
					}
					delta[i] = vsum(sum);
				}
				for (int64_t base = first_key(p->a, row) / KEY_BLOCK * KEY_BLOCK; base < row + t.n; base += KEY_BLOCK)
					grad_block(p, &t, dout, dq, delta, lse, s, kv, base, len);
			}
	}
}

static int attention_grad(const call *c) {
	attn_args p = {.c = c, .q = fin(c, 0), .k = fin(c, 1), .v = fin(c, 2), .out = c->in[3], .lse = c->in[4], .dout = fin(c, 5), .offsets = iin(c, 6), .dq = fout(c, 0), .dk = fout(c, 1), .dv = fout(c, 2), .s = c->d[1], .a = c->s};
	int64_t items = p.s * p.a->kv_heads;
	double keys = p.s ? (double)c->d[0] * (double)c->d[0] / (double)p.s : 0;
	split(c, items, items ? 0.1 * keys * (double)(p.a->heads * p.a->head_dim) / (double)items + 100 : 1, attention_grad_part, &p);
	return OK;
}

typedef struct {
	float *cache;   // [P,Page,width]
	const float *x; // [T,width]
	const int32_t *offsets, *start, *table;
	int64_t s, columns, width, page;
} write_args;

// Items are sequences: token i goes to position start+i.
static void kv_write_part(const void *arg, int64_t from, int64_t to, int who) {
	const write_args *p = arg;
	(void)who;
	for (int64_t s = from; s < to; s++)
		for (int64_t t = p->offsets[s]; t < p->offsets[s + 1]; t++) {
			int64_t at = p->start[s] + t - p->offsets[s], page = p->table[s * p->columns + at / p->page];
			memcpy(p->cache + (page * p->page + at % p->page) * p->width, p->x + t * p->width, (size_t)p->width * 4);
		}
}

static int kv_write(const call *c) {
	write_args p = {fout(c, 0), fin(c, 1), iin(c, 2), iin(c, 3), iin(c, 4), c->d[1], c->d[2], c->d[4], c->s->page};
	split(c, p.s, p.s ? 0.2 * (double)(c->d[0] * p.width) / (double)p.s : 1, kv_write_part, &p);
	return OK;
}
