package reference

import "math"

// conv: x[T,C], w[C,1,K], offsets[S1] -> y[t,c] = sum over j of w[c,j]*x[t-K+1+j,c],
// with zeros before the sequence's first token.
func conv[F real](c *call[F]) {
	x, w := c.in[0], c.in[1]
	eachDatum(c.in[2].i, func(from, to int) {
		for t := from; t < to; t++ {
			past := func(i int) []F {
				if i < from {
					return nil
				}
				return x.row(i)
			}
			convRow(c.out[0].row(t), w, t, past)
		}
	})
}

func convRow[F real](y []F, w tensor[F], t int, past func(i int) []F) {
	k := w.cols()
	sum := make([]float64, len(y))
	for j := range k {
		if x := past(t - k + 1 + j); x != nil {
			for i, v := range x {
				sum[i] += float64(w.f[i*k+j]) * float64(v)
			}
		}
	}
	store(y, sum)
}

// convState: state[L,(K-1)*C], x, w, offsets, start, slot -> state, y. A state
// is the sequence's last K-1 rows of x, the oldest first.
func convState[F real](c *call[F]) {
	state, x, w, start, slot := c.in[0], c.in[1], c.in[2], c.in[4].i, c.in[5].i
	before, width := w.cols()-1, x.cols()
	for s := range slot {
		from, to := int(c.in[3].i[s]), int(c.in[3].i[s+1])
		row := state.row(int(slot[s]))
		if start[s] == 0 {
			clear(row)
		}
		old := append([]F(nil), row...)
		past := func(i int) []F {
			if i >= from {
				return x.row(i)
			}
			return old[(i-from+before)*width : (i-from+before+1)*width]
		}
		for t := from; t < to; t++ {
			convRow(c.out[1].row(t), w, t, past)
		}
		for j := range before {
			copy(row[j*width:(j+1)*width], past(to-before+j))
		}
	}
}

// convGrad: dy[T,C], w[C,1,K], offsets[S1] -> dx[t,c] = sum over j of w[c,j]*dy[t+K-1-j,c].
func convGrad[F real](c *call[F]) {
	dy, w := c.in[0], c.in[1]
	k := w.cols()
	eachDatum(c.in[2].i, func(from, to int) {
		for t := from; t < to; t++ {
			sum := make([]float64, dy.cols())
			for j := range k {
				if at := t + k - 1 - j; at < to {
					for i, v := range dy.row(at) {
						sum[i] += float64(w.f[i*k+j]) * float64(v)
					}
				}
			}
			store(c.out[0].row(t), sum)
		}
	})
}

// convGradW: acc[C,1,K], dy, x, offsets -> acc, one datum after the other.
func convGradW[F real](c *call[F]) {
	acc, dy, x := c.in[0], c.in[1], c.in[2]
	k := acc.cols()
	eachDatum(c.in[3].i, func(from, to int) {
		sum := make([]float64, len(acc.f))
		for t := from; t < to; t++ {
			for j := range k {
				if at := t - k + 1 + j; at >= from {
					for i, v := range x.row(at) {
						sum[i*k+j] += float64(dy.row(t)[i]) * float64(v)
					}
				}
			}
		}
		accumulate(acc.f, sum)
	})
}

// rule is one head's gated delta rule: state s[D,E], and what one token brings.
type rule struct {
	d, e int
	s    []float64 // [D,E]
}

// step is s = exp(g)*s; delta = beta*(v - sᵀk); s += k⊗delta; out = sᵀq. decayed,
// if not nil, gets the state between decay and update.
func (r *rule) step(q, k, v []float64, g, beta float64, decayed []float64) (delta, missing, out []float64) {
	a := math.Exp(g)
	missing, delta, out = append([]float64(nil), v...), make([]float64, r.e), make([]float64, r.e)
	for i := range r.d {
		for j := range r.e {
			r.s[i*r.e+j] *= a
			missing[j] -= r.s[i*r.e+j] * k[i]
		}
	}
	copy(decayed, r.s)
	for j := range delta {
		delta[j] = beta * missing[j]
	}
	for i := range r.d {
		for j := range r.e {
			r.s[i*r.e+j] += k[i] * delta[j]
			out[j] += r.s[i*r.e+j] * q[i]
		}
	}
	return delta, missing, out
}

// deltaHead is where head h's parts of the packed rows lie.
type deltaHead[F real] struct {
	c    *call[F]
	in   []tensor[F] // q, k, v, g, beta
	h, e int
}

func (p deltaHead[F]) key() int { return p.h / (p.c.attr.Heads / p.c.attr.KVHeads) }

func (p deltaHead[F]) token(t int) (q, k, v []float64, g, beta float64) {
	d := p.c.attr.HeadDim
	return wide(head(p.in[0].row(t), p.key(), d)), wide(head(p.in[1].row(t), p.key(), d)), wide(head(p.in[2].row(t), p.h, p.e)),
		float64(p.in[3].row(t)[p.h]), float64(p.in[4].row(t)[p.h])
}

func wide[F real](x []F) []float64 {
	y := make([]float64, len(x))
	for i, v := range x {
		y[i] = float64(v)
	}
	return y
}

// heads of the rule whose operands are in.
func deltaHeads[F real](c *call[F], in []tensor[F], do func(p deltaHead[F])) {
	for h := range c.attr.Heads {
		do(deltaHead[F]{c, in, h, in[2].cols() / c.attr.Heads})
	}
}

// delta: q, k, v, g, beta, offsets -> out.
func delta[F real](c *call[F]) {
	eachDatum(c.in[5].i, func(from, to int) {
		deltaHeads(c, c.in[:5], func(p deltaHead[F]) {
			r := rule{c.attr.HeadDim, p.e, make([]float64, c.attr.HeadDim*p.e)}
			for t := from; t < to; t++ {
				q, k, v, g, beta := p.token(t)
				_, _, out := r.step(q, k, v, g, beta, nil)
				store(head(c.out[0].row(t), p.h, p.e), out)
				roundState[F](r.s)
			}
		})
	})
}

// roundState keeps what a stored state would keep, so that a sequence has the
// same bits whether or not its state was stored in between.
func roundState[F real](s []float64) {
	for i, v := range s {
		s[i] = float64(F(v))
	}
}

// deltaState: state[L,H*D*E], q, k, v, g, beta, offsets, start, slot -> state, out.
func deltaState[F real](c *call[F]) {
	start, slot := c.in[7].i, c.in[8].i
	for s := range slot {
		row := c.in[0].row(int(slot[s]))
		if start[s] == 0 {
			clear(row)
		}
		deltaHeads(c, c.in[1:6], func(p deltaHead[F]) {
			at := head(row, p.h, c.attr.HeadDim*p.e)
			r := rule{c.attr.HeadDim, p.e, wide(at)}
			for t := int(c.in[6].i[s]); t < int(c.in[6].i[s+1]); t++ {
				q, k, v, g, beta := p.token(t)
				_, _, out := r.step(q, k, v, g, beta, nil)
				store(head(c.out[1].row(t), p.h, p.e), out)
				roundState[F](r.s)
			}
			store(at, r.s)
		})
	}
}

// deltaGrad: q, k, v, g, beta, dout, offsets -> dq, dk, dv, dg, dbeta. All
// states are kept, then the tokens are gone through backwards.
func deltaGrad[F real](c *call[F]) {
	dq, dk := make([]float64, len(c.in[0].f)), make([]float64, len(c.in[1].f))
	eachDatum(c.in[6].i, func(from, to int) {
		deltaHeads(c, c.in[:5], func(p deltaHead[F]) { p.backward(from, to, dq, dk) })
	})
	store(c.out[0].f, dq)
	store(c.out[1].f, dk)
}

func (p deltaHead[F]) backward(from, to int, dq, dk []float64) {
	c, d, e := p.c, p.c.attr.HeadDim, p.e
	type kept struct{ decayed, after, delta, missing []float64 }
	var all []kept
	r := rule{d, e, make([]float64, d*e)}
	for t := from; t < to; t++ {
		q, k, v, g, beta := p.token(t)
		m := kept{decayed: make([]float64, d*e)}
		m.delta, m.missing, _ = r.step(q, k, v, g, beta, m.decayed)
		roundState[F](r.s)
		m.after = append([]float64(nil), r.s...)
		all = append(all, m)
	}
	ds := make([]float64, d*e) // gradient of the state after the token
	for t := to - 1; t >= from; t-- {
		m := all[t-from]
		q, k, _, g, beta := p.token(t)
		dout := wide(head(c.in[5].row(t), p.h, e))
		dqt, dkt := head(dq[t*c.in[0].cols():], p.key(), d), head(dk[t*c.in[1].cols():], p.key(), d)
		ddelta := make([]float64, e)
		for i := range d {
			for j := range e {
				ds[i*e+j] += q[i] * dout[j]
				dqt[i] += m.after[i*e+j] * dout[j]
				ddelta[j] += ds[i*e+j] * k[i]
				dkt[i] += ds[i*e+j] * m.delta[j]
			}
		}
		dbeta, dg, a := 0.0, 0.0, math.Exp(g)
		dv := head(c.out[2].row(t), p.h, e)
		for j := range e {
			dbeta += ddelta[j] * m.missing[j]
			dv[j] = F(beta * ddelta[j])
		}
		for i := range d {
			for j := range e {
				dm := -beta * ddelta[j]
				dkt[i] += m.decayed[i*e+j] * dm
				ds[i*e+j] += k[i] * dm
				dg += m.decayed[i*e+j] * ds[i*e+j]
				ds[i*e+j] *= a
			}
		}
		c.out[3].row(t)[p.h], c.out[4].row(t)[p.h] = F(dg), F(dbeta)
	}
}
