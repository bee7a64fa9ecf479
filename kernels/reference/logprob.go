package reference

import "math"

// lseOf is log(sum(exp(row))); a row of nothing but -inf gives -inf.
func lseOf[F real](row []F) float64 {
	top := math.Inf(-1)
	for _, v := range row {
		top = math.Max(top, float64(v))
	}
	if math.IsInf(top, 0) {
		top = 0 // inf - inf is NaN; a row of -inf is log(0), one with +inf is +inf
	}
	sum := 0.0
	for _, v := range row {
		sum += math.Exp(float64(v) - top)
	}
	return top + math.Log(sum)
}

// logSumExp: logits[rows,V] -> lse[rows].
func logSumExp[F real](c *call[F]) {
	for r := range c.in[0].rows() {
		c.out[0].f[r] = F(lseOf(c.in[0].row(r)))
	}
}

// logProb: logits[rows,V], targets[rows,C] -> logits[target]-lse [rows,C], lse[rows].
func logProb[F real](c *call[F]) {
	logits, targets, k := c.in[0], c.in[1].i, c.in[1].cols()
	for r := range logits.rows() {
		row := logits.row(r)
		// Rounded first: a sampler that reads LSE and subtracts gets these bits.
		lse := F(lseOf(row))
		c.out[1].f[r] = lse
		for i := r * k; i < (r+1)*k; i++ {
			c.out[0].f[i] = row[targets[i]] - lse
		}
	}
}

// logProbGrad: logits[rows,V], lse[rows], targets[rows,C], g[rows,C] ->
// dlogits = sum over c of g_c * (onehot(target_c) - softmax). A row whose g are
// all zero gives zeros, whatever its logits.
func logProbGrad[F real](c *call[F]) {
	logits, lse, targets, g, k := c.in[0], c.in[1].f, c.in[2].i, c.in[3].f, c.in[2].cols()
	for r := range logits.rows() {
		row, out := logits.row(r), c.out[0].row(r)
		total, zero := 0.0, true
		for i := r * k; i < (r+1)*k; i++ {
			total += float64(g[i])
			zero = zero && g[i] == 0
		}
		if zero {
			clear(out)
			continue
		}
		sum := make([]float64, len(row))
		for v, l := range row {
			sum[v] = -total * math.Exp(float64(l)-float64(lse[r]))
		}
		for i := r * k; i < (r+1)*k; i++ {
			sum[targets[i]] += float64(g[i])
		}
		store(out, sum)
	}
}
