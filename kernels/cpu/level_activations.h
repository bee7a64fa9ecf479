// Activations of single families, elementwise as in level_elementwise.h.

#define A get(p->a, i, n)
#define B get(p->b, i, n)
#define TO(x) put(p->y, i, x, n);

MAP(tanh_op, 1.5, TO(vtanh(A)))
MAP(sigmoid, 1.2, TO(vsigmoid(A)))
MAP(softplus, 2.5, TO(vsoftplus(A)))
MAP(gelu, 2, v16 a = A; TO(vmul(a, vnormal(a))))

// sqrt(2/pi) * (a + 0.044715*a³)
INLINE v16 gelu_inner(v16 a) { return vmul(vset(0.79788456f), vfma(vmul(vmul(a, a), a), vset(0.044715f), a)); }

// (1 + tanh(u))/2 is the logistic function of 2u.
MAP(gelu_tanh, 1.5, v16 a = A; TO(vmul(a, vsigmoid(vmul(vset(2), gelu_inner(a))))))

// dy * (normal(a) + a*density(a))
MAP(gelu_grad, 3, v16 a = A; v16 dy = B;
	v16 density = vmul(vset(0.39894228f), vexp(vmul(vset(-0.5f), vmul(a, a))));
	TO(vmul(dy, vfma(a, density, vnormal(a)))))

// dy * (s + 2a*s*(1-s)*slope)
MAP(gelu_tanh_grad, 2.5, v16 a = A; v16 dy = B;
	v16 s = vsigmoid(vmul(vset(2), gelu_inner(a)));
	v16 slope = vmul(vset(0.79788456f), vfma(vmul(a, a), vset(3 * 0.044715f), vset(1)));
	v16 rise = vmul(vmul(vmul(vset(2), a), vmul(s, vsub(vset(1), s))), slope);
	TO(vmul(dy, vadd(s, rise))))

#undef A
#undef B
#undef TO
