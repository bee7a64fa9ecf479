package reference

import "math"

// unit is what the stored weight lacks.
func unit[F real](c *call[F]) float64 {
	if c.attr.Unit {
		return 1
	}
	return 0
}

// rmsNorm: x[rows,G*D], w[D] -> x / sqrt(mean(x²) + eps) * w, over each group of D.
func rmsNorm[F real](c *call[F]) {
	w, d := c.in[1].f, c.in[1].cols()
	for i := 0; i+d <= len(c.in[0].f); i += d {
		x, y := c.in[0].f[i:i+d], c.out[0].f[i:i+d]
		r := inverseRMS(x, c.attr.Eps)
		for k, v := range x {
			y[k] = F(float64(v) * r * (float64(w[k]) + unit(c)))
		}
	}
}

// rmsNormGrad: x, w, dy -> dx = r*w*dy - x * r³ * mean(w*dy*x), r the inverse root mean square.
func rmsNormGrad[F real](c *call[F]) {
	w, d := c.in[1].f, c.in[1].cols()
	for i := 0; i+d <= len(c.in[0].f); i += d {
		x, dy, dx := c.in[0].f[i:i+d], c.in[2].f[i:i+d], c.out[0].f[i:i+d]
		r := inverseRMS(x, c.attr.Eps)
		dot := 0.0
		for k, v := range x {
			dot += (float64(w[k]) + unit(c)) * float64(dy[k]) * float64(v)
		}
		f := r * r * r * dot / float64(d)
		for k, v := range x {
			dx[k] = F(r*(float64(w[k])+unit(c))*float64(dy[k]) - f*float64(v))
		}
	}
}

// rmsNormGradW: acc[D], x[T,G*D], dy[T,G*D], offsets[S1] -> acc += sum of dy*x*r, one datum after the other.
func rmsNormGradW[F real](c *call[F]) {
	acc, d, groups := c.in[0].f, c.in[0].cols(), c.attr.Heads
	sum := make([]float64, d)
	eachDatum(c.in[3].i, func(from, to int) {
		clear(sum)
		for g := from * groups; g < to*groups; g++ {
			x, dy := c.in[1].f[g*d:(g+1)*d], c.in[2].f[g*d:(g+1)*d]
			r := inverseRMS(x, c.attr.Eps)
			for k, v := range x {
				sum[k] += float64(dy[k]) * float64(v) * r
			}
		}
		accumulate(acc, sum)
	})
}

func inverseRMS[F real](x []F, eps float64) float64 {
	sum := 0.0
	for _, v := range x {
		sum += float64(v) * float64(v)
	}
	return 1 / math.Sqrt(sum/float64(len(x))+eps)
}
