// exp, log and the logistic function from the same fma polynomials at every level.

// vexp: at most 1 ulp off in the normal range; exp(-inf) = 0, overflow gives
// inf, NaN stays NaN. x = n ln 2 + r; the power of two is applied in two
// halves, so that the result rounds once among the denormals.
INLINE v16 vexp(v16 x) {
	const v16 magic = vset(12582912.0f); // 1.5 * 2^23: adding it rounds to an integer
	x = vmax(vset(-104.0f), vmin(vset(89.0f), x)); // second operand when unordered: NaN stays
	v16 n = vsub(vfma(x, vset(1.44269504f), magic), magic);
	v16 r = vfnma(n, vset(0.693359375f), x);
	r = vfnma(n, vset(-2.12194440e-4f), r);
	v16 p = vset(1.9875691500e-4f);
	p = vfma(p, r, vset(1.3981999507e-3f));
	p = vfma(p, r, vset(8.3334519073e-3f));
	p = vfma(p, r, vset(4.1665795894e-2f));
	p = vfma(p, r, vset(1.6666665459e-1f));
	p = vfma(p, r, vset(5.0000001201e-1f));
	p = vadd(vfma(p, vmul(r, r), r), vset(1));
	v16 half = vfma(n, vset(0.5f), magic);
	v16 rest = vadd(vsub(n, vsub(half, magic)), magic);
	return vmul(vmul(p, vpow2(half)), vpow2(rest));
}

INLINE float exp1(float x) {
	float y;
	vstore_n(&y, vexp(vset(x)), 1);
	return y;
}

// vsigmoid: 1 / (1 + exp(-x)).
INLINE v16 vsigmoid(v16 x) { return vdiv(vset(1), vadd(vset(1), vexp(vneg(x)))); }

// log1: natural logarithm, at most 1 ulp off; log(0) = -inf, of a negative NaN.
// One value a row needs it, so it is scalar; fmaf is the same operation as vfma.
INLINE float log1(float x) {
	if (!(x > 0))
		return x == 0 ? -INFINITY : NAN;
	if (x == INFINITY)
		return x;
	float e = 0;
	if (x < 1.17549435e-38f) {
		x *= 8388608.0f;
		e = -23;
	}
	uint32_t b;
	memcpy(&b, &x, 4);
	e += (float)((int)(b >> 23) - 127);
	b = (b & 0x7fffff) | 0x3f800000;
	memcpy(&x, &b, 4);
	if (x > 1.41421356f) {
		x *= 0.5f;
		e += 1;
	}
	float f = x - 1, z = f * f;
	float y = 7.0376836292e-2f;
	y = fmaf(y, f, -1.1514610310e-1f);
	y = fmaf(y, f, 1.1676998740e-1f);
	y = fmaf(y, f, -1.2420140846e-1f);
	y = fmaf(y, f, 1.4249322787e-1f);
	y = fmaf(y, f, -1.6668057665e-1f);
	y = fmaf(y, f, 2.0000714765e-1f);
	y = fmaf(y, f, -2.4999993993e-1f);
	y = fmaf(y, f, 3.3333331174e-1f);
	y = y * f * z;
	y = fmaf(e, -2.12194440e-4f, y);
	y = fmaf(-0.5f, z, y);
	return fmaf(e, 0.693359375f, f + y);
}

// vtanh: a polynomial up to 0.625, beyond it 1 - 2/(exp(2|x|) + 1).
INLINE v16 vtanh(v16 x) {
	v16 z = vmul(x, x), p = vset(-5.70498872745e-3f);
	p = vfma(p, z, vset(2.06390887954e-2f));
	p = vfma(p, z, vset(-5.37397155531e-2f));
	p = vfma(p, z, vset(1.33314422036e-1f));
	p = vfma(p, z, vset(-3.33332819422e-1f));
	v16 small = vfma(vmul(p, z), x, x);
	v16 e = vexp(vmul(vset(2), vmax(x, vneg(x))));
	v16 large = vsub(vset(1), vdiv(vset(2), vadd(e, vset(1))));
	v16 negative = vgreater(vzero(), x);
	large = vwhere(negative, vneg(large), large);
	return vwhere(vgreater(z, vset(0.625f * 0.625f)), large, small); // NaN takes the polynomial
}

// verfc_abs: erfc(|x|) = t * exp(-x*x + P(t)) with t = 1/(1 + |x|/2); the
// approximation is 1.2e-7 off, relative to the result.
INLINE v16 verfc_abs(v16 x) {
	x = vmax(x, vneg(x));
	v16 t = vdiv(vset(1), vfma(vset(0.5f), x, vset(1)));
	v16 p = vset(0.17087277f);
	p = vfma(p, t, vset(-0.82215223f));
	p = vfma(p, t, vset(1.48851587f));
	p = vfma(p, t, vset(-1.13520398f));
	p = vfma(p, t, vset(0.27886807f));
	p = vfma(p, t, vset(-0.18628806f));
	p = vfma(p, t, vset(0.09678418f));
	p = vfma(p, t, vset(0.37409196f));
	p = vfma(p, t, vset(1.00002368f));
	p = vfma(p, t, vset(-1.26551223f));
	return vmul(t, vexp(vfnma(x, x, p)));
}

// vnormal: the normal distribution function, erfc(-x/sqrt(2))/2.
INLINE v16 vnormal(v16 x) {
	v16 half = vmul(vset(0.5f), verfc_abs(vmul(x, vset(0.70710678f))));
	return vwhere(vgreater(x, vzero()), vsub(vset(1), half), half);
}

// vsoftplus: max(x, 0) + log(1 + y), y = exp(-|x|); u = 1 + y is exact enough
// for the logarithm once its rounding is made good by y/(u-1).
INLINE v16 vsoftplus(v16 x) {
	v16 y = vexp(vneg(vmax(x, vneg(x)))), u = vadd(vset(1), y), d = vsub(u, vset(1));
	v16 big = vgreater(u, vset(1.41421356f)), one = vset(1);
	v16 f = vsub(vwhere(big, vmul(u, vset(0.5f)), u), one), e = vwhere(big, one, vzero()), z = vmul(f, f);
	v16 p = vset(7.0376836292e-2f);
	p = vfma(p, f, vset(-1.1514610310e-1f));
	p = vfma(p, f, vset(1.1676998740e-1f));
	p = vfma(p, f, vset(-1.2420140846e-1f));
	p = vfma(p, f, vset(1.4249322787e-1f));
	p = vfma(p, f, vset(-1.6668057665e-1f));
	p = vfma(p, f, vset(2.0000714765e-1f));
	p = vfma(p, f, vset(-2.4999993993e-1f));
	p = vfma(p, f, vset(3.3333331174e-1f));
	p = vmul(vmul(p, f), z);
	p = vfma(e, vset(-2.12194440e-4f), p);
	p = vfma(vset(-0.5f), z, p);
	p = vfma(e, vset(0.693359375f), vadd(f, p));
	v16 l = vwhere(d, vdiv(vmul(p, y), d), y);
	return vadd(vmax(x, vzero()), l);
}
