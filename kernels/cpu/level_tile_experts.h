// Rows times their experts' matrices, over bfloat16 on tiles.

// expert_room16 is the scratch memory that turned rows of k elements take.
INLINE int64_t expert_room16(int64_t k) { return tile_panel(k) * 4; }

// Items: (run, block of columns), the block fastest. See level_expert_part.h.
static void expert_linear_part16(const void *arg, int64_t from, int64_t to, int who) {
	const expert_args *p = arg;
	int64_t blocks = (p->n + EXPERT_COLS - 1) / EXPERT_COLS;
	pair16 *turned = (pair16 *)scratch_of(p->c, who);
	tiles_on();
	for (int64_t item = from; item < to; item++) {
		const expert_run *run = p->runs + item / blocks;
		int64_t n0 = item % blocks * EXPERT_COLS, n = p->n - n0 < EXPERT_COLS ? p->n - n0 : EXPERT_COLS;
		const bf16 *x = p->x, *w = (const bf16 *)p->w + (run->expert * p->n + n0) * p->k;
		for (int64_t m = 0; m < run->rows; m += 2 * TILE) {
			const bf16 *a[2 * TILE];
			float *y[2 * TILE];
			const int32_t *row = p->order + run->first + m;
			int64_t rows = run->rows - m < 2 * TILE ? run->rows - m : 2 * TILE;
			for (int64_t i = 0; i < rows; i++)
				a[i] = x + row[i] / p->each * p->k, y[i] = p->y + row[i] * p->n + n0;
			turn_rows(turned, a, rows, p->k);
			tile_linear(turned, rows, w, n, p->k, 0, y);
		}
	}
	tiles_off();
}
