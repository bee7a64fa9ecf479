package customloss

import (
	"cmp"
	"math"
	"slices"
)

func initReductions() {
	reg("tm", "sum", "input:T dim:D?=None keepdim:b=False ; dtype:d?=None", func(m *machine, a []any) any {
		return m.sum(m.inDtype(a[0].(*tensor), a[3], int64s), dimsOf(a[1]), a[2].(bool))
	})
	reg("tm", "nansum", "input:T dim:D?=None keepdim:b=False ; dtype:d?=None", func(m *machine, a []any) any {
		t := m.inDtype(a[0].(*tensor), a[3], int64s)
		return m.sum(m.withoutNaN(t), dimsOf(a[1]), a[2].(bool))
	})
	reg("tm", "mean", "input:T dim:D?=None keepdim:b=False ; dtype:d?=None", func(m *machine, a []any) any {
		t := a[0].(*tensor)
		if d, ok := a[3].(dtype); ok {
			t = m.cast(t, d)
		}
		return m.mean(t, dimsOf(a[1]), a[2].(bool))
	})
	reg("tm", "nanmean", "input:T dim:D?=None keepdim:b=False ; dtype:d?=None", func(m *machine, a []any) any {
		t := m.inDtype(a[0].(*tensor), a[3], float32s)
		count := m.test(t, func(x float64) bool { return !math.IsNaN(x) })
		return m.div(m.sum(m.withoutNaN(t), dimsOf(a[1]), a[2].(bool)), m.sum(m.cast(count, int64s), dimsOf(a[1]), a[2].(bool)))
	})
	reg("tm", "prod", "input:T dim:i?=None keepdim:b=False ; dtype:d?=None", func(m *machine, a []any) any {
		return m.prod(m.inDtype(a[0].(*tensor), a[3], int64s), oneDim(a[1]), a[2].(bool))
	})
	for _, root := range []bool{false, true} {
		name := "var"
		if root {
			name = "std"
		}
		spread := func(m *machine, t *tensor, dims []int64, unbiased, correction any, keep bool) *tensor {
			c := 1.0
			if unbiased == false {
				c = 0
			}
			if n, ok := correction.(float64); ok {
				c = n
			}
			return m.variance(t, dims, c, keep, root)
		}
		with := func(m *machine, a []any) (*tensor, []int64, any, any, bool) {
			return a[0].(*tensor), dimsOf(a[1]), a[2], a[4], a[3].(bool)
		}
		const full = "input:T dim:D?=None unbiased:b?=None keepdim:b=False ; correction:n?=None"
		swap := func(f func(m *machine, a []any) any) func(m *machine, a []any) any {
			return func(m *machine, a []any) any { return f(m, []any{a[0], nil, a[1], false, nil}) }
		}
		one := func(m *machine, a []any) any {
			t, dims, u, c, keep := with(m, a)
			return spread(m, t, dims, u, c, keep)
		}
		two := func(m *machine, a []any) any {
			t, dims, u, c, keep := with(m, a)
			return list{items: []any{spread(m, t, dims, u, c, keep), m.mean(t, dims, keep)}, tuple: true}
		}
		// std(True) is the unbiased flag, std(1) a dimension: the bool form comes first.
		reg("tm", name, "input:T unbiased:b", swap(one))
		reg("tm", name, full, one)
		reg("t", name+"_mean", "input:T unbiased:b", swap(two))
		reg("t", name+"_mean", full, two)
	}
	initExtremes()
	reg("tms", "logsumexp", "input:T dim:D keepdim:b=False", func(m *machine, a []any) any {
		return m.logsumexp(a[0].(*tensor), dimsOf(a[1]), a[2].(bool))
	})
	initNorms()
	reg("tm", "all", "input:T dim:D?=None keepdim:b=False", func(m *machine, a []any) any {
		t := m.test(a[0].(*tensor), isTrue)
		return m.foldInts(t, m.lanesOf(t, dimsOf(a[1])), a[2].(bool), boolean, 1, func(acc, x int64) int64 { return acc & x })
	})
	reg("tm", "any", "input:T dim:D?=None keepdim:b=False", func(m *machine, a []any) any {
		t := m.test(a[0].(*tensor), isTrue)
		return m.foldInts(t, m.lanesOf(t, dimsOf(a[1])), a[2].(bool), boolean, 0, func(acc, x int64) int64 { return acc | x })
	})
	reg("tm", "count_nonzero", "input:T dim:D?=None", func(m *machine, a []any) any {
		return m.sum(m.cast(m.test(a[0].(*tensor), isTrue), int64s), dimsOf(a[1]), false)
	})
	initSoftmax()
	initCumulative()
	initOrder()
}

func oneDim(v any) []int64 {
	if d, ok := v.(int64); ok {
		return []int64{d}
	}
	return nil
}

func (m *machine) withoutNaN(t *tensor) *tensor {
	if !t.dt.floating() {
		return t
	}
	return m.unary(t, unaryRule{f: func(x float64) float64 {
		if math.IsNaN(x) {
			return 0
		}
		return x
	}, d: func(x, _ float64) float64 { return step01(!math.IsNaN(x)) }, masked: true})
}

func initExtremes() {
	for _, e := range []struct {
		name   string
		least  bool
		better func(x, y float64) bool
	}{
		{"max", false, func(x, y float64) bool { return x > y }},
		{"min", true, func(x, y float64) bool { return x < y }},
	} {
		reg("tm", e.name, "input:T", func(m *machine, a []any) any { return m.extreme(a[0].(*tensor), nil, false, e.least, same) })
		reg("tm", e.name, "input:T other:T", func(m *machine, a []any) any {
			return m.binary(a[0].(*tensor), a[1].(*tensor), binaries[e.name+"imum"])
		})
		rule := func(x []float64) int { return bestOf(x, e.better) }
		reg("tm", e.name, "input:T dim:i keepdim:b=False", func(m *machine, a []any) any {
			return m.pair(a[0].(*tensor), a[1].(int64), a[2].(bool), rule)
		})
		reg("tm", "a"+e.name, "input:T dim:D?=None keepdim:b=False", func(m *machine, a []any) any {
			return m.extreme(a[0].(*tensor), dimsOf(a[1]), a[2].(bool), e.least, equal)
		})
		reg("tm", "arg"+e.name, "input:T dim:i?=None keepdim:b=False", func(m *machine, a []any) any {
			return m.positions(a[0].(*tensor), oneDim(a[1]), a[2].(bool), rule)
		})
	}
	reg("tm", "aminmax", "input:T ; dim:i?=None keepdim:b=False", func(m *machine, a []any) any {
		t, dims, keep := a[0].(*tensor), oneDim(a[1]), a[2].(bool)
		return list{items: []any{m.extreme(t, dims, keep, true, equal), m.extreme(t, dims, keep, false, equal)}, tuple: true, names: []string{"min", "max"}}
	})
}

func initNorms() {
	norm := func(m *machine, t *tensor, p any, dims any, keep bool) any {
		order := 2.0
		switch p := p.(type) {
		case nil:
		case string:
			if p != "fro" {
				return m.fail("a norm of order %.20q is not supported", p)
			}
		default:
			n := scalar(p)
			if n == nil {
				return m.fail("a norm of order %s is not supported", kindOf(p))
			}
			order = n.at(0)
		}
		return m.norm(t, order, dimsOf(dims), keep)
	}
	reg("tm", "norm", "input:T p:A=fro dim:D?=None keepdim:b=False dtype:d?=None", func(m *machine, a []any) any {
		t := a[0].(*tensor)
		if d, ok := a[4].(dtype); ok {
			t = m.cast(t, d)
		}
		return norm(m, t, a[1], a[2], a[3].(bool))
	})
	reg("l", "vector_norm norm", "input:T ord:A=2 dim:D?=None keepdim:b=False ; dtype:d?=None", func(m *machine, a []any) any {
		t := a[0].(*tensor)
		if d, ok := a[4].(dtype); ok {
			t = m.cast(t, d)
		}
		return norm(m, t, a[1], a[2], a[3].(bool))
	})
}

func initSoftmax() {
	for name, f := range map[string]func(m *machine, t *tensor, dim int64) *tensor{
		"softmax": (*machine).softmax, "log_softmax": (*machine).logSoftmax,
		"softmin": func(m *machine, t *tensor, dim int64) *tensor {
			return m.softmax(m.exact(t, exacts["neg negative"]), dim)
		},
	} {
		run := func(m *machine, t *tensor, dim, dt any) any {
			t = m.inDtype(t, dt, float32s)
			d, ok := dim.(int64)
			if !ok {
				d = boolInt(len(t.shape) != 0 && len(t.shape) != 1 && len(t.shape) != 3) // the rule of old for a missing dim
			}
			return f(m, t, d)
		}
		reg("f", name, "input:T dim:i?=None _stacklevel:i=3 dtype:d?=None", func(m *machine, a []any) any { return run(m, a[0].(*tensor), a[1], a[3]) })
		if name != "softmin" {
			reg("tms", name, "input:T dim:i dtype:d?=None", func(m *machine, a []any) any { return run(m, a[0].(*tensor), a[1], a[2]) })
		}
	}
}

func initCumulative() {
	reg("tmi", "cumsum", "input:T dim:i ; dtype:d?=None", func(m *machine, a []any) any {
		t := m.inDtype(a[0].(*tensor), a[2], int64s)
		return m.cumulative(t, a[1].(int64), func(acc, x float64) float64 { return acc + x }, func(acc, x int64) int64 { return acc + x }, 0,
			func(_, _, g, d []float64) {
				total := 0.0
				for k := len(g) - 1; k >= 0; k-- {
					total += g[k]
					d[k] = total
				}
			})
	})
	reg("tmi", "cumprod", "input:T dim:i ; dtype:d?=None", func(m *machine, a []any) any {
		t := m.inDtype(a[0].(*tensor), a[2], int64s)
		return m.cumulative(t, a[1].(int64), func(acc, x float64) float64 { return acc * x }, func(acc, x int64) int64 { return acc * x }, 1,
			func(x, _, g, d []float64) {
				// d_k = Π_{j<k} x_j · (g_k + x_{k+1}(g_{k+1} + …))
				tail := 0.0
				for k := len(x) - 1; k >= 0; k-- {
					tail += g[k]
					d[k] = tail
					tail *= x[k]
				}
				before := 1.0
				for k := range x {
					d[k] *= before
					before *= x[k]
				}
			})
	})
	reg("tm", "logcumsumexp", "input:T dim:i", func(m *machine, a []any) any {
		t := m.inDtype(a[0].(*tensor), nil, float32s)
		return m.cumulative(t, a[1].(int64), logAddExp, nil, -inf, func(x, y, g, d []float64) {
			// d_j = Σ_{k>=j} g_k e^(x_j-y_k), kept as e^x_j Σ g_k e^-y_k relative to the last y
			tail, ref := 0.0, 0.0
			for k := len(x) - 1; k >= 0; k-- {
				if k < len(x)-1 {
					tail *= math.Exp(y[k] - ref)
				}
				ref = y[k]
				tail += g[k]
				d[k] = tail * math.Exp(x[k]-ref)
			}
		})
	})
	for name, better := range map[string]func(x, y float64) bool{
		"cummax": func(x, y float64) bool { return x >= y }, "cummin": func(x, y float64) bool { return x <= y },
	} {
		reg("tm", name, "input:T dim:i", func(m *machine, a []any) any {
			t, dim := a[0].(*tensor), a[1].(int64)
			if len(t.shape) == 0 {
				return m.fail("%s of a tensor without dimensions is not supported", name)
			}
			l := m.lanesOf(t, []int64{dim})
			index := m.alloc(int64s, t.shape)
			if m.err != nil {
				return dead
			}
			for _, base := range l.base {
				best := 0
				for r, s := range l.step {
					x := t.at(base + s)
					if top := t.at(base + l.step[best]); math.IsNaN(x) || !math.IsNaN(top) && better(x, top) {
						best = r
					}
					index.i[base+s] = int64(best)
				}
			}
			return valuesIndices(m.gather(t, dim, index), index)
		})
	}
}

func (m *machine) cumulative(t *tensor, dim int64, f func(acc, x float64) float64, i func(acc, x int64) int64, start float64, back func(x, y, g, d []float64)) *tensor {
	if t.dt.floating() {
		return m.scan(t, []int64{dim}, func(x, y []float64) {
			acc := start
			for k, v := range x {
				acc = f(acc, v)
				y[k] = acc
			}
		}, back)
	}
	l := m.lanesOf(t, []int64{dim})
	out := m.alloc(t.dt, t.shape)
	if m.err != nil {
		return dead
	}
	for _, base := range l.base {
		acc := int64(start)
		for _, s := range l.step {
			acc = t.dt.wrap(i(acc, t.i[base+s]))
			out.i[base+s] = acc
		}
	}
	return out
}

// order is the stable sort of each lane along dim, as positions; NaN is largest.
func (m *machine) order(t *tensor, dim int64, descending bool) *tensor {
	l := m.lanesOf(t, []int64{dim})
	index := m.alloc(int64s, t.shape)
	n := len(l.step)
	if m.err != nil || !m.work(t.len()*(1+int(math.Log2(float64(n+1))))) {
		return dead
	}
	at := make([]int, n)
	for _, base := range l.base {
		for r := range at {
			at[r] = r
		}
		slices.SortStableFunc(at, func(p, q int) int {
			x, y := t.at(base+l.step[p]), t.at(base+l.step[q])
			c := cmp.Compare(x, y)
			if math.IsNaN(x) || math.IsNaN(y) {
				c = cmp.Compare(step01(math.IsNaN(x)), step01(math.IsNaN(y)))
			}
			if descending {
				return -c
			}
			return c
		})
		for r, p := range at {
			index.i[base+l.step[r]] = int64(p)
		}
	}
	return index
}

func initOrder() {
	sorted := func(m *machine, t *tensor, dim int64, descending bool) (values, index *tensor) {
		index = m.order(t, dim, descending)
		return m.gather(t, dim, index), index
	}
	reg("tm", "sort", "input:T dim:i=-1 descending:b=False stable:A=None", func(m *machine, a []any) any {
		return valuesIndices(sorted(m, a[0].(*tensor), a[1].(int64), a[2].(bool)))
	})
	reg("tm", "argsort", "input:T dim:i=-1 descending:b=False stable:A=None", func(m *machine, a []any) any {
		return m.order(a[0].(*tensor), a[1].(int64), a[2].(bool))
	})
	reg("tm", "topk", "input:T k:i dim:i=-1 largest:b=True sorted:A=True", func(m *machine, a []any) any {
		t, k, dim := a[0].(*tensor), a[1].(int64), a[2].(int64)
		values, index := sorted(m, t, dim, a[3].(bool))
		return valuesIndices(m.narrow(values, dim, 0, k), m.narrow(index, dim, 0, k))
	})
	reg("tm", "kthvalue", "input:T k:i dim:i=-1 keepdim:b=False", func(m *machine, a []any) any {
		t, k, dim := a[0].(*tensor), a[1].(int64), a[2].(int64)
		values, index := sorted(m, t, dim, false)
		values, index = m.narrow(values, dim, k-1, 1), m.narrow(index, dim, k-1, 1)
		if !a[3].(bool) {
			values, index = m.squeezed(values, dim), m.squeezed(index, dim)
		}
		return valuesIndices(values, index)
	})
	reg("tm", "median", "input:T", func(m *machine, a []any) any {
		t := a[0].(*tensor)
		if t.len() == 0 {
			return m.fail("the median of no elements is not defined")
		}
		return m.medianOf(t)
	})
	reg("tm", "median", "input:T dim:i keepdim:b=False", func(m *machine, a []any) any {
		t, dim := a[0].(*tensor), a[1].(int64)
		if t.len() == 0 || len(t.shape) == 0 {
			return m.fail("the median over a dimension of shape %v is not supported", t.shape)
		}
		values, index := sorted(m, t, dim, false)
		if m.err != nil {
			return dead
		}
		mid := int64(t.shape[m.dim(dim, len(t.shape))]-1) / 2
		values, index = m.narrow(values, dim, mid, 1), m.narrow(index, dim, mid, 1)
		if !a[2].(bool) {
			values, index = m.squeezed(values, dim), m.squeezed(index, dim)
		}
		return valuesIndices(values, index)
	})
	reg("tm", "quantile", "input:T q:A dim:i?=None keepdim:b=False ; interpolation:s=linear", quantile)
}

// medianOf is the lower median of all; equal elements share the gradient.
func (m *machine) medianOf(t *tensor) *tensor {
	flat := m.reshaped(t, []int{t.len()})
	if !t.dt.floating() {
		return m.reshaped(m.narrow(m.gather(flat, 0, m.order(flat, 0, false)), 0, int64(t.len()-1)/2, 1), nil)
	}
	m.work(32 * t.len())
	return m.fold(flat, m.lanesOf(flat, nil), false, func(x []float64) float64 {
		if k := slices.IndexFunc(x, math.IsNaN); k >= 0 {
			return nan
		}
		s := slices.Clone(x)
		slices.Sort(s)
		return s[(len(s)-1)/2]
	}, func(x []float64, y, g float64, d []float64) {
		n := 0.0
		for _, v := range x {
			n += step01(same(v, y))
		}
		for k, v := range x {
			if same(v, y) {
				d[k] = g / n
			}
		}
	})
}

// quantile interpolates between the sorted values of a dimension, or of all.
func quantile(m *machine, a []any) any {
	t := a[0].(*tensor)
	qs, isTensor := a[1].(*tensor)
	if !isTensor {
		qs = scalar(a[1])
	}
	if qs == nil || len(qs.shape) > 0 || !t.dt.floating() || a[4] != "linear" || t.len() == 0 {
		return m.fail("quantile takes one q, a floating tensor with elements, and linear interpolation")
	}
	q, dim := qs.at(0), int64(0)
	if d, ok := a[2].(int64); ok {
		dim = d
	} else {
		t = m.reshaped(t, []int{t.len()})
	}
	if len(t.shape) == 0 {
		t = m.reshaped(t, []int{1})
	}
	at := m.dim(dim, len(t.shape))
	if m.err != nil || !(q >= 0 && q <= 1) {
		return m.fail("a quantile of %v, it is in [0,1]", q)
	}
	// torch takes the rank in the dtype of the tensor
	rank := t.dt.round(t.dt.round(q) * float64(t.shape[at]-1))
	low := int64(rank)
	s := m.gather(t, dim, m.order(t, dim, false))
	x, y := m.narrow(s, dim, low, 1), m.narrow(s, dim, int64(math.Ceil(rank)), 1)
	out := m.add(x, m.mul(m.sub(y, x), scalar(t.dt.round(rank-float64(low)))))
	if a[3].(bool) {
		return out
	}
	return m.squeezed(out, dim)
}
