package reference

import "slices"

// linear: x[M,K], w[N,K], bias[N] or none -> y[M,N] = x·wᵀ + bias.
func linear[F real](c *call[F]) {
	x, w, y := c.in[0], c.in[1], c.out[0]
	for m := range x.rows() {
		xm, ym := x.row(m), y.row(m)
		for n := range ym {
			wn := w.row(n)
			sum := 0.0
			for k, v := range xm {
				sum += float64(v) * float64(wn[k])
			}
			if len(c.in) == 3 {
				sum += float64(c.in[2].f[n])
			}
			ym[n] = F(sum)
		}
	}
}

// linearGradX: dy[M,N], w[N,K] -> dx[M,K] = dy·w; a row of zeros gives zeros, whatever w.
func linearGradX[F real](c *call[F]) {
	dy, w, dx := c.in[0], c.in[1], c.out[0]
	sum := make([]float64, w.cols())
	for m := range dy.rows() {
		clear(sum)
		for n, g := range dy.row(m) {
			for k, v := range w.row(n) {
				sum[k] += float64(g) * float64(v)
			}
		}
		if !slices.ContainsFunc(dy.row(m), func(g F) bool { return g != 0 }) {
			clear(sum)
		}
		store(dx.row(m), sum)
	}
}

// linearGradW: acc[N,K], dy[T,N], x[T,K], offsets[S1] -> acc += dyᵀ·x, one datum after the other.
func linearGradW[F real](c *call[F]) {
	acc, dy, x := c.in[0], c.in[1], c.in[2]
	sum := make([]float64, x.cols())
	eachDatum(c.in[3].i, func(from, to int) {
		for n := range acc.rows() {
			clear(sum)
			for t := from; t < to; t++ {
				g := float64(dy.row(t)[n])
				for k, v := range x.row(t) {
					sum[k] += g * float64(v)
				}
			}
			accumulate(acc.row(n), sum)
		}
	})
}

// biasGrad: acc[N], dy[T,N], offsets[S1] -> acc += column sums, one datum after the other.
func biasGrad[F real](c *call[F]) {
	acc, dy := c.in[0], c.in[1]
	sum := make([]float64, len(acc.f))
	eachDatum(c.in[2].i, func(from, to int) {
		clear(sum)
		for t := from; t < to; t++ {
			for n, g := range dy.row(t) {
				sum[n] += float64(g)
			}
		}
		accumulate(acc.f, sum)
	})
}

func eachDatum(offsets []int32, do func(from, to int)) {
	for s := 0; s+1 < len(offsets); s++ {
		if offsets[s] < offsets[s+1] {
			do(int(offsets[s]), int(offsets[s+1]))
		}
	}
}

func store[F real](dst []F, src []float64) {
	for i, v := range src {
		dst[i] = F(v)
	}
}

// accumulate rounds the datum's sum to storage, then adds it once.
func accumulate[F real](dst []F, src []float64) {
	for i, v := range src {
		dst[i] += F(v)
	}
}

// adapt: y[rows,N] + scale*(x·Aᵀ·Bᵀ), each row with the adapter of its place.
func adapt[F real](c *call[F]) {
	y, x, out := c.in[0], c.in[1], c.out[0]
	for m := range y.rows() {
		a, b := c.adapter(int(c.in[3].i[m]))
		rank, ym, to := len(a)/x.cols(), y.row(m), out.row(m)
		h := make([]float64, rank)
		for r := range h {
			for k, v := range x.row(m) {
				h[r] += float64(v) * float64(a[r*x.cols()+k])
			}
			h[r] = float64(F(h[r]))
		}
		for n := range to {
			sum := 0.0
			for r, v := range h {
				sum += v * float64(b[n*rank+r])
			}
			to[n] = ym[n]
			if rank > 0 {
				to[n] = F(float64(ym[n]) + float64(c.in[4].f[m])*float64(F(sum)))
			}
		}
	}
}

// adapter is A and B of the module for rows of a place; none for 0.
func (c *call[F]) adapter(place int) (a, b []F) {
	if place == 0 {
		return nil, nil
	}
	at := 2 * ((place-1)*c.attr.Of + c.attr.Offset)
	return c.in[2].parts[at], c.in[2].parts[at+1]
}
