package reference

import "math"

// topK: logits[T,E] -> weights[T,k], experts[T,k]: the k largest of the softmax,
// equal logits by rising expert; a NaN counts as the smallest.
func topK[F real](c *call[F]) {
	k := c.attr.Pick
	for t := range c.in[0].rows() {
		row := c.in[0].row(t)
		taken := make([]bool, len(row))
		chosen := c.out[1].i[t*k : (t+1)*k]
		for j := range chosen {
			best := -1
			for e, v := range row {
				if !taken[e] && (best < 0 || v > row[best] || row[best] != row[best] && v == v) {
					best = e
				}
			}
			taken[best] = true
			chosen[j] = int32(best)
		}
		store(c.out[0].row(t), chosenProbs(row, chosen, c.attr.Normalise))
	}
}

// chosenProbs are the softmax values of the chosen experts, over them alone or over all.
func chosenProbs[F real](row []F, chosen []int32, normalise bool) []float64 {
	top := float64(row[chosen[0]])
	p, sum := make([]float64, len(chosen)), 0.0
	for j, e := range chosen {
		p[j] = math.Exp(float64(row[e]) - top)
		sum += p[j]
	}
	if !normalise {
		sum = 0
		for _, v := range row {
			sum += math.Exp(float64(v) - top)
		}
	}
	for j := range p {
		p[j] /= sum
	}
	return p
}

// topKGrad: logits[T,E], experts[T,k], dweights[T,k] -> dlogits.
func topKGrad[F real](c *call[F]) {
	k := c.in[1].cols()
	for t := range c.in[0].rows() {
		row, chosen, dw, out := c.in[0].row(t), c.in[1].i[t*k:(t+1)*k], c.in[2].row(t), c.out[0].row(t)
		p := chosenProbs(row, chosen, c.attr.Normalise)
		mean := 0.0
		for j := range p {
			mean += p[j] * float64(dw[j])
		}
		sum := make([]float64, len(row))
		if !c.attr.Normalise {
			all := make([]int32, len(row))
			for e := range all {
				all[e] = int32(e)
			}
			// The largest first: chosenProbs takes its maximum from there.
			all[0], all[chosen[0]] = chosen[0], 0
			for i, q := range chosenProbs(row, all, true) {
				sum[all[i]] = -q * mean
			}
		}
		for j, e := range chosen {
			if c.attr.Normalise {
				sum[e] = p[j] * (float64(dw[j]) - mean)
			} else {
				sum[e] += p[j] * float64(dw[j])
			}
		}
		store(out, sum)
	}
}

// expert is the matrix [N,K] of expert e out of w[E,N,K].
func expert[F real](w tensor[F], e int32) tensor[F] {
	n := w.shape[1] * w.shape[2]
	return tensor[F]{shape: w.shape[1:], f: w.f[int(e)*n : (int(e)+1)*n]}
}

// expertLinear: x[T,K] or [kT,K], w[E,N,K], experts[T,k] -> [kT,N].
func expertLinear[F real](c *call[F]) {
	x, y := c.in[0], c.out[0]
	for r, e := range c.in[2].i {
		w := expert(c.in[1], e)
		xr, yr := x.row(r*x.rows()/y.rows()), y.row(r)
		for n := range yr {
			yr[n] = F(dot(xr, w.row(n)))
		}
	}
}

// expertGradX: dy[kT,N], w[E,N,K], experts[T,k] -> [kT,K].
func expertGradX[F real](c *call[F]) {
	sum := make([]float64, c.out[0].cols())
	for r, e := range c.in[2].i {
		w := expert(c.in[1], e)
		clear(sum)
		for n, g := range c.in[0].row(r) {
			for k, v := range w.row(n) {
				sum[k] += float64(g) * float64(v)
			}
		}
		store(c.out[0].row(r), sum)
	}
}

// expertGradW: acc[E,N,K], dy[kT,N], x[T,K] or [kT,K], experts[T,k], offsets ->
// acc, one datum after the other; an expert that no token of a datum chose is
// not touched by it.
func expertGradW[F real](c *call[F]) {
	acc, dy, x, experts := c.in[0], c.in[1], c.in[2], c.in[3]
	k := experts.cols()
	eachDatum(c.in[4].i, func(from, to int) {
		for e := range acc.shape[0] {
			m := expert(acc, int32(e))
			var rows []int
			for r := from * k; r < to*k; r++ {
				if int(experts.i[r]) == e {
					rows = append(rows, r)
				}
			}
			sum := make([]float64, m.cols())
			for n := 0; n < m.rows() && len(rows) > 0; n++ {
				clear(sum)
				for _, r := range rows {
					g := float64(dy.row(r)[n])
					for i, v := range x.row(r * x.rows() / dy.rows()) {
						sum[i] += g * float64(v)
					}
				}
				accumulate(m.row(n), sum)
			}
		}
	})
}
