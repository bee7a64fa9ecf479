// Rows times their experts' matrices, for one element type: ELEM and N(name) as in level_dot.h.

// Items: (run, block of columns), the block fastest.
static void N(expert_linear_part)(const void *arg, int64_t from, int64_t to, int who) {
	const expert_args *p = arg;
	int64_t blocks = (p->n + EXPERT_COLS - 1) / EXPERT_COLS;
	float t[DOT_M * EXPERT_COLS];
	(void)who;
	for (int64_t item = from; item < to; item++) {
		const expert_run *run = p->runs + item / blocks;
		int64_t n0 = item % blocks * EXPERT_COLS, n = p->n - n0 < EXPERT_COLS ? p->n - n0 : EXPERT_COLS;
		const ELEM *x = p->x, *w = (const ELEM *)p->w + (run->expert * p->n + n0) * p->k;
		for (int64_t m = 0; m < run->rows; m += DOT_M) {
			const ELEM *a[DOT_M];
			const int32_t *row = p->order + run->first + m;
			int rows = run->rows - m < DOT_M ? (int)(run->rows - m) : DOT_M;
			for (int i = 0; i < rows; i++)
				a[i] = x + row[i] / p->each * p->k;
			N(dot_block)(rows, n, a, w, p->k, p->k, 0, t, EXPERT_COLS);
			for (int i = 0; i < rows; i++)
				memcpy(p->y + row[i] * p->n + n0, t + i * EXPERT_COLS, (size_t)n * 4);
		}
	}
}
