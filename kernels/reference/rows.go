package reference

import "math"

// addRow: x[rows,N], b[N] -> x + b.
func addRow[F real](c *call[F]) {
	b := c.in[1].f
	for i, v := range c.in[0].f {
		c.out[0].f[i] = F(float64(v) + float64(b[i%len(b)]))
	}
}

// decay: x[rows,N], a[N] -> -exp(a)*x.
func decay[F real](c *call[F]) {
	a := c.in[1].f
	for i, v := range c.in[0].f {
		c.out[0].f[i] = F(-math.Exp(float64(a[i%len(a)])) * float64(v))
	}
}

// center: x[rows,D] -> x - mean over D.
func center[F real](c *call[F]) {
	for r := range c.in[0].rows() {
		x, y := c.in[0].row(r), c.out[0].row(r)
		mean := 0.0
		for _, v := range x {
			mean += float64(v)
		}
		mean /= float64(len(x))
		for i, v := range x {
			y[i] = F(float64(v) - mean)
		}
	}
}

// slice: x[rows,G*Of] -> columns [Offset,Offset+D) of each group [rows,G*D].
func slice[F real](c *call[F]) {
	a, d := c.attr, c.attr.HeadDim
	for i := 0; i*a.Of < len(c.in[0].f); i++ {
		copy(c.out[0].f[i*d:(i+1)*d], c.in[0].f[i*a.Of+a.Offset:])
	}
}

// sliceGrad: dy[rows,G*D] -> [rows,G*Of], zero outside the slice.
func sliceGrad[F real](c *call[F]) {
	a, d := c.attr, c.attr.HeadDim
	clear(c.out[0].f)
	for i := 0; i*d < len(c.in[0].f); i++ {
		copy(c.out[0].f[i*a.Of+a.Offset:], c.in[0].f[i*d:(i+1)*d])
	}
}

// join: two to four x[rows,N] -> side by side.
func join[F real](c *call[F]) {
	for r := range c.out[0].rows() {
		y := c.out[0].row(r)
		for _, x := range c.in {
			y = y[copy(y, x.row(r)):]
		}
	}
}

// scaleRows: x[kT,D], w[T,k] -> each row times its weight.
func scaleRows[F real](c *call[F]) {
	for r, w := range c.in[1].f {
		y := c.out[0].row(r)
		for i, v := range c.in[0].row(r) {
			y[i] = F(float64(w) * float64(v))
		}
	}
}

// sumRows: x[kT,D] -> the sum of each k rows [T,D].
func sumRows[F real](c *call[F]) {
	sum := make([]float64, c.out[0].cols())
	for t := range c.out[0].rows() {
		clear(sum)
		for j := range c.attr.Pick {
			for i, v := range c.in[0].row(t*c.attr.Pick + j) {
				sum[i] += float64(v)
			}
		}
		store(c.out[0].row(t), sum)
	}
}

// repeatRows: x[T,D] -> each row k times [kT,D].
func repeatRows[F real](c *call[F]) {
	for r := range c.out[0].rows() {
		copy(c.out[0].row(r), c.in[0].row(r/c.attr.Pick))
	}
}

// rowDot: a[kT,D], b[kT,D] -> their dot products [T,k].
func rowDot[F real](c *call[F]) {
	for r := range c.in[0].rows() {
		c.out[0].f[r] = F(dot(c.in[0].row(r), c.in[1].row(r)))
	}
}
