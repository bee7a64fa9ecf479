package reference

import (
	"math"

	"smolgym/model/ir"
)

// capped is a score under its bound, and the slope there.
func capped(s, bound float64) (capped, slope float64) {
	if bound == 0 {
		return s, 1
	}
	t := math.Tanh(s / bound)
	return bound * t, 1 - t*t
}

// scores fills p with the softmax weights of one query over keys [first, last]
// and gives the log of the sum of exponentials.
func scores[F real](p []float64, q []F, key func(i int) []F, first, last int, a ir.Attrs) float64 {
	top := math.Inf(-1)
	for i := first; i <= last; i++ {
		dot := 0.0
		for k, v := range key(i) {
			dot += float64(q[k]) * float64(v)
		}
		p[i], _ = capped(dot*a.Scale, a.Softcap)
		top = math.Max(top, p[i])
	}
	sum := 0.0
	for i := first; i <= last; i++ {
		p[i] = math.Exp(p[i] - top)
		sum += p[i]
	}
	for i := first; i <= last; i++ {
		p[i] /= sum
	}
	return top + math.Log(sum)
}

// firstKey is the first key that the query at position at sees.
func firstKey(at, window int) int {
	if window == 0 {
		return 0
	}
	return max(0, at-window+1)
}

// head is the part of a packed row that belongs to head h.
func head[F real](row []F, h, d int) []F { return row[h*d : (h+1)*d] }

// attention: q[T,H*D], k[T,KV*D], v[T,KV*D], offsets[S1] -> out[T,H*D], lse[T,H]; causal inside each sequence.
func attention[F real](c *call[F]) {
	q, k, v, out, lse := c.in[0], c.in[1], c.in[2], c.out[0], c.out[1]
	a, d := c.attr, c.attr.HeadDim
	eachDatum(c.in[3].i, func(from, to int) {
		p := make([]float64, to-from)
		for t := from; t < to; t++ {
			for h := range a.Heads {
				kv := h / (a.Heads / a.KVHeads)
				key := func(i int) []F { return head(k.row(from+i), kv, d) }
				value := func(i int) []F { return head(v.row(from+i), kv, d) }
				first := firstKey(t-from, a.Window)
				l := scores(p, head(q.row(t), h, d), key, first, t-from, a)
				lse.f[t*a.Heads+h] = F(l)
				weighted(head(out.row(t), h, d), p, value, first, t-from)
			}
		}
	})
}

// weighted: out[D] = sum of p[i]*value(i)[D].
func weighted[F real](out []F, p []float64, value func(i int) []F, first, last int) {
	sum := make([]float64, len(out))
	for i := first; i <= last; i++ {
		for k, v := range value(i) {
			sum[k] += p[i] * float64(v)
		}
	}
	store(out, sum)
}

// attentionGrad: q, k, v, out, lse, dout, offsets -> dq, dk, dv, with the
// weights recomputed from lse: p = exp(scale*q·k - lse).
func attentionGrad[F real](c *call[F]) {
	q, k, v, out, lse, dout := c.in[0], c.in[1], c.in[2], c.in[3], c.in[4], c.in[5]
	a, d := c.attr, c.attr.HeadDim
	dq, dk, dv := make([]float64, len(q.f)), make([]float64, len(k.f)), make([]float64, len(v.f))
	eachDatum(c.in[6].i, func(from, to int) {
		for h := range a.Heads {
			kv := h / (a.Heads / a.KVHeads)
			for t := from; t < to; t++ {
				qt, do, l := head(q.row(t), h, d), head(dout.row(t), h, d), float64(lse.f[t*a.Heads+h])
				delta := dot(do, head(out.row(t), h, d))
				at := t*q.cols() + h*d
				for i := from + firstKey(t-from, a.Window); i <= t; i++ {
					ki, vi := head(k.row(i), kv, d), head(v.row(i), kv, d)
					score, slope := capped(a.Scale*dot(qt, ki), a.Softcap)
					p := math.Exp(score - l)
					ds := a.Scale * slope * p * (dot(do, vi) - delta)
					ai := i*k.cols() + kv*d
					for e := range d {
						dq[at+e] += ds * float64(ki[e])
						dk[ai+e] += ds * float64(qt[e])
						dv[ai+e] += p * float64(do[e])
					}
				}
			}
		}
	})
	store(c.out[0].f, dq)
	store(c.out[1].f, dk)
	store(c.out[2].f, dv)
}

func dot[F real](a, b []F) float64 {
	sum := 0.0
	for i, v := range a {
		sum += float64(v) * float64(b[i])
	}
	return sum
}

// kvWrite: cache[P,Page*KV*D], x[T,KV*D], offsets[S1], start[S], table[S,B]:
// token i of sequence s goes to position start[s]+i.
func kvWrite[F real](c *call[F]) {
	cache, x, start, table := c.in[0], c.in[1], c.in[3].i, c.in[4]
	for s := range start {
		offsets := c.in[2].i
		for t := offsets[s]; t < offsets[s+1]; t++ {
			copy(cached(cache, table, s, int(start[s]+t-offsets[s]), c.attr, x.cols()), x.row(int(t)))
		}
	}
}

// cached is the row of the cache that holds position at of sequence s; width is KV*D.
func cached[F real](cache, table tensor[F], s, at int, a ir.Attrs, width int) []F {
	page := table.i[s*table.cols()+at/a.Page]
	slot := at % a.Page
	return cache.row(int(page))[slot*width : (slot+1)*width]
}

// pagedAttention: q[T,H*D], kcache, vcache, offsets[S1], start[S], table[S,B] -> out[T,H*D].
func pagedAttention[F real](c *call[F]) {
	q, kcache, vcache, offsets, start, table := c.in[0], c.in[1], c.in[2], c.in[3].i, c.in[4].i, c.in[5]
	a, d := c.attr, c.attr.HeadDim
	for s := range start {
		p := make([]float64, int(start[s]+offsets[s+1]-offsets[s]))
		for t := int(offsets[s]); t < int(offsets[s+1]); t++ {
			at := int(start[s]) + t - int(offsets[s])
			for h := range a.Heads {
				kv := h / (a.Heads / a.KVHeads)
				key := func(i int) []F { return head(cached(kcache, table, s, i, a, a.KVHeads*d), kv, d) }
				value := func(i int) []F { return head(cached(vcache, table, s, i, a, a.KVHeads*d), kv, d) }
				first := firstKey(at, a.Window)
				scores(p, head(q.row(t), h, d), key, first, at, a)
				weighted(head(c.out[0].row(t), h, d), p, value, first, at)
			}
		}
	}
}
