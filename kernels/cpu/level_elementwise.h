// Elementwise ops. Every operand is read before the result is written, lane by
// lane, so an output may lie in the memory of an input. Scalars: s->scale.

typedef struct {
	const float *a, *b, *c;
	float *y, *z;
	v16 k;
} map_args;

#define MAP(name, cost, body)                                                    \
	INLINE void name##_lanes(const map_args *p, int64_t i, const int n) {              \
		body                                                                           \
	}                                                                                  \
	static void name##_part(const void *arg, int64_t from, int64_t to, int who) {      \
		map_args p = *(const map_args *)arg;                                           \
		(void)who;                                                                     \
		int64_t i = from;                                                              \
		for (; i + 16 <= to; i += 16)                                                  \
			name##_lanes(&p, i, 16);                                                   \
		if (i < to)                                                                    \
			name##_lanes(&p, i, (int)(to - i));                                        \
	}                                                                                  \
	static int name(const call *c) {                                                   \
		map_args p = {fin(c, 0), fin(c, 1), fin(c, 2), fout(c, 0), fout(c, 1), vset(c->s->scale)}; \
		int64_t n = c->d[0] * c->d[1] * c->d[2] * c->d[3];                             \
		split(c, n, cost, name##_part, &p);                                            \
		return OK;                                                                     \
	}

// n is 16 for all lanes but the last few.
INLINE v16 get(const float *p, int64_t i, int n) { return n == 16 ? vload(p + i) : vload_n(p + i, n); }
INLINE void put(float *p, int64_t i, v16 x, int n) {
	if (n == 16)
		vstore(p + i, x);
	else
		vstore_n(p + i, x, n);
}

#define A get(p->a, i, n)
#define B get(p->b, i, n)
#define C get(p->c, i, n)
#define TO(x) put(p->y, i, x, n);

MAP(add, 0.3, TO(vadd(A, B)))
MAP(sub, 0.3, TO(vsub(A, B)))
MAP(mul, 0.3, TO(vmul(A, B)))
MAP(divide, 0.5, TO(vdiv(A, B)))
MAP(neg, 0.2, TO(vneg(A)))
MAP(expo, 1, TO(vexp(A)))
MAP(minimum, 0.3, TO(vmin_c(A, B)))
MAP(maximum, 0.3, TO(vmax_c(A, B)))
MAP(clamp, 0.4, TO(vmin_c(vmax_c(A, B), C)))
MAP(greater, 0.3, TO(vgreater(A, B)))
MAP(non_zero, 0.3, TO(vnonzero(A)))
MAP(where, 0.4, TO(vwhere(A, B, C)))
MAP(copy, 0.2, TO(A))
MAP(fill, 0.1, TO(p->k))
MAP(scale, 0.2, TO(vmul(p->k, A)))
MAP(scale_add, 0.3, TO(vfma(p->k, B, A)))

// gate * sigmoid(gate) * up, the first product first.
MAP(silu_mul, 1.2, v16 g = A; TO(vmul(vmul(g, vsigmoid(g)), B)))

// dgate = dy*up * s*(1 + g*(1-s)), dup = dy * (g*s), s = sigmoid(g).
MAP(silu_mul_grad, 1.6, v16 g = A; v16 u = B; v16 dy = C; v16 s = vsigmoid(g);
	v16 slope = vmul(s, vfma(g, vsub(vset(1), s), vset(1)));
	put(p->z, i, vmul(dy, vmul(g, s)), n);
	TO(vmul(vmul(dy, u), slope)))

#undef A
#undef B
#undef C
#undef TO
