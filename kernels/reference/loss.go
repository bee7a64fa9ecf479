package reference

import "math"

// The elementwise ops. Each reads its operands before it writes, so an output
// may lie in the memory of an input.

func unary[F real](f func(a float64) float64) kernel[F] {
	return func(c *call[F]) {
		for i, a := range c.in[0].f {
			c.out[0].f[i] = F(f(float64(a)))
		}
	}
}

func binary[F real](f func(a, b float64) float64) kernel[F] {
	return func(c *call[F]) {
		for i, a := range c.in[0].f {
			c.out[0].f[i] = F(f(float64(a), float64(c.in[1].f[i])))
		}
	}
}

func add(a, b float64) float64 { return a + b }
func sub(a, b float64) float64 { return a - b }
func mul(a, b float64) float64 { return a * b }
func div(a, b float64) float64 { return a / b }
func neg(a float64) float64    { return -a }
func exp(a float64) float64    { return math.Exp(a) }
func same(a float64) float64   { return a }

// minimum is C's fmin: of a number and NaN, the number; a when equal.
func minimum(a, b float64) float64 {
	if b < a || a != a {
		return b
	}
	return a
}

// maximum is C's fmax: of a number and NaN, the number; a when equal.
func maximum(a, b float64) float64 {
	if b > a || a != a {
		return b
	}
	return a
}

func greater(a, b float64) float64 {
	if a > b {
		return 1
	}
	return 0
}

// nonZero is 1 for NaN, which is not 0.
func nonZero(a float64) float64 {
	if a != 0 {
		return 1
	}
	return 0
}

// factor is the Scale attribute, rounded to float32 as the devices hold it.
func factor[F real](c *call[F]) float64 { return float64(F(c.attr.Scale)) }

func scale[F real](c *call[F]) {
	k := factor(c)
	for i, a := range c.in[0].f {
		c.out[0].f[i] = F(k * float64(a))
	}
}

func scaleAdd[F real](c *call[F]) {
	k := factor(c)
	for i, a := range c.in[0].f {
		c.out[0].f[i] = F(float64(a) + k*float64(c.in[1].f[i]))
	}
}

func fill[F real](c *call[F]) {
	for i := range c.out[0].f {
		c.out[0].f[i] = F(c.attr.Scale)
	}
}

// clamp: x, lo, hi -> min(max(x, lo), hi).
func clamp[F real](c *call[F]) {
	for i, x := range c.in[0].f {
		c.out[0].f[i] = F(minimum(maximum(float64(x), float64(c.in[1].f[i])), float64(c.in[2].f[i])))
	}
}

// where selects without arithmetic: what is not chosen may be NaN.
func where[F real](c *call[F]) {
	for i, m := range c.in[0].f {
		v := c.in[2].f[i]
		if m != 0 {
			v = c.in[1].f[i]
		}
		c.out[0].f[i] = v
	}
}

// segmentSum: x[rows] or [rows,C], offsets[S1] -> the sum of each sequence's cells [S].
func segmentSum[F real](c *call[F]) {
	x, offsets := c.in[0], c.in[1].i
	width := cells(x)
	for s := range c.out[0].f {
		sum := 0.0
		for _, v := range x.f[int(offsets[s])*width : int(offsets[s+1])*width] {
			sum += float64(v)
		}
		c.out[0].f[s] = F(sum)
	}
}

// segmentExpand: x[S], offsets[S1], like[rows] or [rows,C] -> each sequence's value in all of its cells.
func segmentExpand[F real](c *call[F]) {
	offsets, out := c.in[1].i, c.out[0]
	width := cells(out)
	for s, v := range c.in[0].f {
		for i := int(offsets[s]) * width; i < int(offsets[s+1])*width; i++ {
			out.f[i] = v
		}
	}
}

// cells is the number of elements in each entry of the first axis.
func cells[F real](t tensor[F]) int {
	n := 1
	for _, d := range t.shape[1:] {
		n *= d
	}
	return n
}

// siluMul: gate, up -> gate * sigmoid(gate) * up.
func siluMul[F real](c *call[F]) {
	for i, v := range c.in[0].f {
		g := float64(v)
		c.out[0].f[i] = F(g / (1 + math.Exp(-g)) * float64(c.in[1].f[i]))
	}
}

// siluMulGrad: gate, up, dy -> dgate, dup.
func siluMulGrad[F real](c *call[F]) {
	for i, v := range c.in[0].f {
		g, u, dy := float64(v), float64(c.in[1].f[i]), float64(c.in[2].f[i])
		s := 1 / (1 + math.Exp(-g))
		c.out[0].f[i] = F(dy * u * s * (1 + g*(1-s)))
		c.out[1].f[i] = F(dy * g * s)
	}
}
