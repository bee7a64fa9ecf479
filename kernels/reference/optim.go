package reference

import (
	"math"

	"smolgym/model/ir"
)

// sumSquares: g -> [1].
func sumSquares[F real](c *call[F]) {
	sum := 0.0
	for _, g := range c.in[0].f {
		sum += float64(g) * float64(g)
	}
	c.out[0].f[0] = F(sum)
}

// adamW: w, m, v, g, hyper[HyperLen] -> w, m, v in place; see ir.HyperLen.
func adamW[F real](c *call[F]) {
	w, m, v, g := c.in[0].f, c.in[1].f, c.in[2].f, c.in[3].f
	var h [ir.HyperLen]float64
	for i := range h {
		h[i] = float64(c.in[4].f[i])
	}
	for i := range w {
		gi := float64(g[i]) * h[ir.HyperGradScale]
		wi := float64(w[i]) * h[ir.HyperDecay]
		mi := float64(m[i]) + h[ir.HyperOneMinusBeta1]*(gi-float64(m[i]))
		vi := h[ir.HyperBeta2]*float64(v[i]) + h[ir.HyperOneMinusBeta2]*gi*gi
		m[i], v[i] = F(mi), F(vi)
		w[i] = F(wi - h[ir.HyperStepSize]*mi/(math.Sqrt(vi)/h[ir.HyperSqrtBias2]+h[ir.HyperEps]))
	}
}
