// Products over bfloat16 on tiles of 16 rows by 64 bytes. A tile product adds to
// c, float32[16][16], the products of a, bf16[16][32], and b, [16][16] pairs of
// neighbours: c[i][j] += sum over k of a[i][k]*b[k/2][j][k%2].
//
// Whatever is stored with its sum along rows is an a as it stands: weights on the
// way forward, with the rows of x turned to columns of pairs; the other operand
// of a gradient. Sums take 32 at a time in rising order, elements beyond the last
// are zero: so a result has the same bits in any tile and with any neighbours.

enum { TILE = 16, TILE_K = 32 };

// tile_edge copies a piece of a that isn't a whole tile, zeros where there is none.
static const bf16 *tile_edge(bf16 to[TILE * TILE_K], const bf16 *a, int64_t lda, int64_t rows, int64_t cols) {
	memset(to, 0, TILE * TILE_K * 2);
	for (int64_t i = 0; i < rows && i < TILE; i++)
		memcpy(to + i * TILE_K, a + i * lda, (size_t)(cols < TILE_K ? cols : TILE_K) * 2);
	return to;
}

// tile_run: m by n tiles, both 1 or 2, of c[32][32]. a has so many rows and k
// columns; b has whole tiles, with ldb words between its rows of pairs and zeros
// beyond k. From zero unless resume.
INLINE void tile_run(const int m, const int n, const bf16 *a, int64_t lda, int64_t rows, const pair16 *b, int64_t ldb, int64_t k, float *c, int resume) {
	enum { ROW = 2 * TILE * 4 };
	bf16 piece[2][TILE * TILE_K] __attribute__((aligned(64)));
	tile_barrier();
	if (resume) {
		tile_load(0, c, ROW);
		if (n > 1)
			tile_load(1, c + TILE, ROW);
		if (m > 1)
			tile_load(2, c + 2 * TILE * TILE, ROW);
		if (m > 1 && n > 1)
			tile_load(3, c + 2 * TILE * TILE + TILE, ROW);
	} else {
		tile_zero(0);
		if (n > 1)
			tile_zero(1);
		if (m > 1)
			tile_zero(2);
		if (m > 1 && n > 1)
			tile_zero(3);
	}
	for (int64_t p = 0; p < k; p += TILE_K) {
		const bf16 *a0 = a + p, *a1 = a + TILE * lda + p;
		int64_t l0 = lda, l1 = lda;
		if (k - p < TILE_K || rows < TILE)
			a0 = tile_edge(piece[0], a0, lda, rows, k - p), l0 = TILE_K;
		if (m > 1 && (k - p < TILE_K || rows < 2 * TILE))
			a1 = tile_edge(piece[1], a1, lda, rows - TILE, k - p), l1 = TILE_K;
		tile_barrier();
		tile_load(6, b + p / 2 * ldb, ldb * 4);
		tile_load(4, a0, l0 * 2);
		tile_mac(0, 4, 6);
		if (n > 1) {
			tile_load(7, b + p / 2 * ldb + TILE, ldb * 4);
			tile_mac(1, 4, 7);
		}
		if (m > 1) {
			tile_load(5, a1, l1 * 2);
			tile_mac(2, 5, 6);
			if (n > 1)
				tile_mac(3, 5, 7);
		}
	}
	tile_store(0, c, ROW);
	if (n > 1)
		tile_store(1, c + TILE, ROW);
	if (m > 1)
		tile_store(2, c + 2 * TILE * TILE, ROW);
	if (m > 1 && n > 1)
		tile_store(3, c + 2 * TILE * TILE + TILE, ROW);
}

#define TILE_RUN(m, n)                                                                                                                                                      \
	static __attribute__((noinline)) void tile_run_##m##n(const bf16 *a, int64_t lda, int64_t rows, const pair16 *b, int64_t ldb, int64_t k, float *c, int resume) { \
		tile_run(m, n, a, lda, rows, b, ldb, k, c, resume);                                                                                                                 \
	}
TILE_RUN(1, 1)
TILE_RUN(1, 2)
TILE_RUN(2, 1)
TILE_RUN(2, 2)
#undef TILE_RUN

// tile_product is tile_run for up to 32 rows and 32 columns.
static void tile_product(const bf16 *a, int64_t lda, int64_t rows, const pair16 *b, int64_t ldb, int64_t cols, int64_t k, float *c, int resume) {
	if (rows > TILE)
		(cols > TILE ? tile_run_22 : tile_run_21)(a, lda, rows, b, ldb, k, c, resume);
	else
		(cols > TILE ? tile_run_12 : tile_run_11)(a, lda, rows, b, ldb, k, c, resume);
}

// tile_panel is how many words the columns of 32 rows take.
INLINE int64_t tile_panel(int64_t k) { return (k + TILE_K - 1) / TILE_K * TILE * 2 * TILE; }

// turn_rows makes columns of pairs of up to 32 rows of a: [pairs][32], whole tiles,
// missing rows and elements zero.
static void turn_rows(pair16 *to, const bf16 *const *a, int64_t rows, int64_t k) {
	uint32_t some[TILE * TILE] __attribute__((aligned(64)));
	for (int64_t p = 0; p < k; p += TILE_K)
		for (int64_t j = 0; j < 2 * TILE; j += TILE) {
			pair16 *at = to + p / 2 * 2 * TILE + j;
			for (int64_t i = 0; i < TILE; i++) {
				h32 x = j + i >= rows ? hload_n(a[0], 0) : k - p < TILE_K ? hload_n(a[j + i] + p, (int)(k - p)) : hload(a[j + i] + p);
				memcpy(some + i * TILE, &x, 64);
			}
			turn(at, 2 * TILE, some, TILE);
		}
}

// tile_linear: y[i][j] = sum over k of x[i][k]*w[j][k], plus bias[j] if any, of up
// to 32 rows of x, turned, and n rows of w.
static void tile_linear(const pair16 *x, int64_t rows, const bf16 *w, int64_t n, int64_t k, const float *bias, float *const *y) {
	float c[4 * TILE * TILE] __attribute__((aligned(64))), t[TILE * TILE] __attribute__((aligned(64)));
	for (int64_t j = 0; j < n; j += 2 * TILE) {
		tile_product(w + j * k, k, n - j, x, 2 * TILE, rows, k, c, 0);
		for (int64_t q = j; q < n && q < j + 2 * TILE; q += TILE)
			for (int64_t i0 = 0; i0 < rows; i0 += TILE) {
				turn((uint32_t *)t, TILE, (const uint32_t *)c + (q - j) * 2 * TILE + i0, 2 * TILE);
				int cols = n - q < TILE ? (int)(n - q) : TILE;
				for (int64_t i = 0; i < TILE && i0 + i < rows; i++) {
					v16 sum = vload(t + i * TILE);
					put(y[i0 + i], q, bias ? vadd(sum, get(bias, q, cols)) : sum, cols);
				}
			}
	}
}

typedef struct {
	const call *c;
	const bf16 *rows; // [M,K]
	pair16 *x;        // the same turned, 32 rows a panel
	const bf16 *w;    // [N,K]
	const float *bias;
	float *y; // [M,N]
	int64_t m, n, k, mb, nb;
} tile_linear_args;

// Items: panels.
static void turn_part(const void *arg, int64_t from, int64_t to, int who) {
	const tile_linear_args *p = arg;
	(void)who;
	for (int64_t at = from; at < to; at++) {
		const bf16 *a[2 * TILE];
		int64_t m = at * 2 * TILE, rows = p->m - m < 2 * TILE ? p->m - m : 2 * TILE;
		for (int64_t i = 0; i < rows; i++)
			a[i] = p->rows + (m + i) * p->k;
		turn_rows(p->x + at * tile_panel(p->k), a, rows, p->k);
	}
}

// Items: blocks of mb rows of x by nb of w.
static void tile_linear_part(const void *arg, int64_t from, int64_t to, int who) {
	const tile_linear_args *p = arg;
	int64_t blocks_m = (p->m + p->mb - 1) / p->mb;
	(void)who;
	tiles_on();
	for (int64_t item = from; item < to; item++) {
		int64_t m0 = item % blocks_m * p->mb, n0 = item / blocks_m * p->nb;
		int64_t m1 = m0 + p->mb < p->m ? m0 + p->mb : p->m, n = n0 + p->nb < p->n ? p->nb : p->n - n0;
		for (int64_t m = m0; m < m1; m += 2 * TILE) {
			float *y[2 * TILE];
			int64_t rows = m1 - m < 2 * TILE ? m1 - m : 2 * TILE;
			for (int64_t i = 0; i < rows; i++)
				y[i] = p->y + (m + i) * p->n + n0;
			tile_linear(p->x + m / (2 * TILE) * tile_panel(p->k), rows, p->w + n0 * p->k, n, p->k, p->bias ? p->bias + n0 : 0, y);
		}
	}
	tiles_off();
}

static int linear16(const call *c) {
	tile_linear_args p = {c, 0, 0, hin(c, 1), c->s->nin > 2 ? fin(c, 2) : 0, fout(c, 0), c->d[0], c->d[1], c->d[2], 0, 0};
	if (!p.m || !p.n)
		return OK;
	int64_t panels = (p.m + 2 * TILE - 1) / (2 * TILE), turned = panels * tile_panel(p.k) * 4;
	char *room = shared_memory(c->ctx, turned + p.m * p.k * 2);
	if (!room)
		return NO_MEMORY;
	p.x = (pair16 *)room, p.rows = (bf16 *)(room + turned);
	narrow_rows(c, (bf16 *)p.rows, fin(c, 0), p.m, p.k);
	split(c, panels, 2 * TILE * (4 + 0.15 * (double)p.k), turn_part, &p);
	dot_blocks(c, p.m, p.n, 2 * p.k, &p.mb, &p.nb);
	p.mb = (p.mb + 2 * TILE - 1) / (2 * TILE) * 2 * TILE; // panels
	int64_t items = ((p.m + p.mb - 1) / p.mb) * ((p.n + p.nb - 1) / p.nb);
	int64_t rows = p.m < p.mb ? (p.m + TILE - 1) / TILE * TILE : p.mb;
	split(c, items, least_cost(0.003 * (double)(rows * p.nb * p.k), 2 * p.nb * p.k), tile_linear_part, &p);
	return OK;
}

// Pairs are filled up to whole tiles, and up to 15 rows are read beyond the last one.
enum { PANEL16 = 2 * TILE, SPARE_ROWS16 = TILE };
INLINE int64_t whole_pairs(int64_t r) { return (r + TILE_K - 1) / TILE_K * TILE; }

// outer_rows16: row[i][j] = (resume ? row[i][j] : 0) + sum over the pairs of a[i]*b[j];
// a has lda words in a row, b is packed.
static void outer_rows16(int64_t m, int64_t n, float *const *row, const pair16 *a, int64_t lda, const pair16 *pb, int64_t pairs, int resume) {
	enum { COLS = 2 * TILE };
	float c[COLS * COLS] __attribute__((aligned(64))) = {0};
	tiles_on();
	for (int64_t i0 = 0; i0 < m; i0 += BLOCK_I) {
		int64_t i1 = m - i0 < BLOCK_I ? m : i0 + BLOCK_I;
		for (int64_t j = 0; j < n; j += COLS)
			for (int64_t i = i0; i < i1; i += COLS) {
				int64_t rows = i1 - i < COLS ? i1 - i : COLS, cols = n - j < COLS ? n - j : COLS;
				for (int64_t q = 0; q < rows && resume; q++)
					for (int64_t s = 0; s < cols; s += 16)
						vstore(c + q * COLS + s, get(row[i + q] + j, s, cols - s < 16 ? (int)(cols - s) : 16));
				tile_product((const bf16 *)(a + i * lda), 2 * lda, (rows + TILE - 1) / TILE * TILE, pb + j * pairs, COLS, cols, 2 * pairs, c, resume);
				for (int64_t q = 0; q < rows; q++)
					for (int64_t s = 0; s < cols; s += 16)
						put(row[i + q] + j, s, vload(c + q * COLS + s), cols - s < 16 ? (int)(cols - s) : 16);
			}
	}
	tiles_off();
}

// tiles_work says whether a product of small integers, which is exact, comes out right.
int LEVEL(tiles_work)(void) {
	bf16 a[TILE * TILE_K];
	pair16 b[TILE * TILE];
	float c[4 * TILE * TILE];
	int right = 1;
	for (int i = 0; i < TILE * TILE_K; i++)
		narrow_to(a + i, &(float){(float)(i * 7 % 13 - 6)}, 1);
	for (int i = 0; i < 2 * TILE * TILE; i++)
		narrow_to((bf16 *)b + i, &(float){(float)(i * 5 % 11 - 5)}, 1);
	tiles_on();
	tile_run_11(a, TILE_K, TILE, b, TILE, TILE_K, c, 0);
	tiles_off();
	for (int i = 0; i < TILE; i++)
		for (int j = 0; j < TILE; j++) {
			int sum = 0;
			for (int k = 0; k < TILE_K; k++)
				sum += ((i * TILE_K + k) * 7 % 13 - 6) * ((2 * (k / 2 * TILE + j) + k % 2) * 5 % 11 - 5);
			right &= c[i * 2 * TILE + j] == (float)sum;
		}
	return right;
}
