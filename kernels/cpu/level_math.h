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
