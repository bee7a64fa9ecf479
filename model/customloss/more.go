package customloss

import (
	"math"
	"slices"
	"sort"
)

// initRare registers what losses use now and then: pairs of positions, sorted
// look-ups, writes at an index, and the less common losses.
func initRare() {
	for name, upper := range map[string]bool{"triu_indices": true, "tril_indices": false} {
		reg("t", name, "row:i col:i offset:i=0"+tensorOptions, func(m *machine, a []any) any {
			size := m.sizes([]int64{a[0].(int64), a[1].(int64)}, -1)
			offset := max(min(a[2].(int64), 1<<31), -1<<31)
			ones := m.filled(boolean, size, scalar(true))
			if m.err != nil {
				return dead
			}
			ones = m.band(ones, func(r, c int) bool { return upper == (int64(c-r) >= offset) || int64(c-r) == offset })
			parts := m.nonzero(ones)
			if m.err != nil {
				return dead
			}
			return m.stack(parts, 0)
		})
	}
	reg("t", "meshgrid", "tensors:*L ; indexing:s?=None", func(m *machine, a []any) any {
		ts := a[0].([]*tensor)
		if len(ts) != 2 || len(ts[0].shape) != 1 || len(ts[1].shape) != 1 {
			return m.fail("meshgrid takes two vectors here")
		}
		r, c := m.unsqueeze(ts[0], 1), m.unsqueeze(ts[1], 0)
		if a[1] == "xy" {
			r, c = m.unsqueeze(ts[0], 0), m.unsqueeze(ts[1], 1)
		}
		shape := m.broadcast(r, c)
		return list{items: []any{m.expand(r, shape), m.expand(c, shape)}, tuple: true}
	})
	reg("tm", "equal", "input:T other:T", func(m *machine, a []any) any {
		x, y := a[0].(*tensor), a[1].(*tensor)
		if !slices.Equal(x.shape, y.shape) {
			return false
		}
		same := m.compare(x, y, func(x, y float64) bool { return x == y }, func(x, y int64) bool { return x == y })
		return !slices.Contains(same.i, 0)
	})
	reg("tm", "allclose", "input:T other:T rtol:n=1e-05 atol:n=1e-08 equal_nan:b=False", func(m *machine, a []any) any {
		close, ok := table["torch.isclose"][0].run(m, a).(*tensor)
		return ok && !slices.Contains(close.i, 0)
	})
	initRareAlgebra()
}

func initRareAlgebra() {
	reg("tm", "dist", "input:T other:T p:n=2", func(m *machine, a []any) any {
		return m.norm(m.sub(a[0].(*tensor), a[1].(*tensor)), a[2].(float64), nil, false)
	})
	reg("t", "trapezoid trapz", "y:T x:N=None ; dx:n=1 dim:i=-1", func(m *machine, a []any) any {
		t, dim := a[0].(*tensor), a[3].(int64)
		if len(t.shape) == 0 {
			return m.fail("trapezoid takes at least one dimension")
		}
		at := m.dim(dim, len(t.shape))
		n := int64(t.shape[at])
		pairs := m.add(m.narrow(t, dim, 1, n-1), m.narrow(t, dim, 0, n-1))
		return m.mul(m.sum(pairs, []int64{dim}, false), scalar(a[2].(float64)/2))
	})
	reg("tm", "addmm addmv", "input:T mat1:T mat2:T ; beta:A=None alpha:A=None", func(m *machine, a []any) any {
		return m.add(m.scaled(a[0].(*tensor), a[3]), m.scaled(m.matmul(a[1].(*tensor), a[2].(*tensor)), a[4]))
	})
	reg("l", "vecdot", "x:T y:T ; dim:i=-1", func(m *machine, a []any) any {
		return m.sum(m.mul(a[0].(*tensor), a[1].(*tensor)), []int64{a[2].(int64)}, false)
	})
	reg("m", "sum_to_size", "input:T size:*I", func(m *machine, a []any) any { return m.sumTo(a[0].(*tensor), a[1].([]int64)) })
	reg("t", "column_stack", "tensors:L", func(m *machine, a []any) any {
		ts := slices.Clone(a[0].([]*tensor))
		for k, t := range ts {
			if len(t.shape) < 2 {
				ts[k] = m.reshaped(t, []int{t.len(), 1})
			}
		}
		return m.cat(ts, 1)
	})
	reg("t", "isin", "elements:T test_elements:S ; assume_unique:A=None invert:b=False", func(m *machine, a []any) any {
		among := a[1].(*tensor)
		known := map[float64]bool{}
		for k := range among.len() {
			known[among.at(k)] = true
		}
		inverted := a[3].(bool)
		return m.test(a[0].(*tensor), func(x float64) bool { return known[x] != inverted })
	})
	initWrites()
}

func initWrites() {
	initSorted()
	reg("tmi", "index_put", "input:T indices:L values:T accumulate:b=False", func(m *machine, a []any) any {
		t := a[0].(*tensor)
		where := m.filled(int64s, t.shape, scalar(int64(0)))
		for k := range where.i {
			if m.err == nil {
				where.i[k] = int64(k)
			}
		}
		key := list{tuple: true}
		for _, index := range a[1].([]*tensor) {
			key.items = append(key.items, index)
		}
		at := m.index(where, key)
		values := m.expandTo(m.cast(a[2].(*tensor), t.dt), toInt64(at.shape))
		flat := m.scatter(m.reshaped(t, []int{t.len()}), 0, m.reshaped(at, []int{at.len()}), m.reshaped(values, []int{values.len()}), a[3].(bool))
		return m.reshaped(flat, t.shape)
	})
	initRareLosses()
}

func (m *machine) sumTo(t *tensor, size []int64) *tensor {
	lead := len(t.shape) - len(size)
	if lead < 0 {
		return m.fail("shape %v does not sum to %v", t.shape, size)
	}
	var dims []int64
	for d, n := range t.shape {
		switch {
		case d < lead || size[d-lead] == 1 && n != 1:
			dims = append(dims, int64(d))
		case size[d-lead] != int64(n):
			return m.fail("shape %v does not sum to %v", t.shape, size)
		}
	}
	if len(dims) > 0 {
		t = m.sum(t, dims, true)
	}
	return m.view(t, size)
}

// initSorted registers look-ups in a sorted vector.
func initSorted() {
	search := func(m *machine, edges, t *tensor, right bool) any {
		if len(edges.shape) != 1 {
			return m.fail("the sorted values must be a vector, their shape is %v", edges.shape)
		}
		out := m.alloc(int64s, t.shape)
		if !m.work(32 * t.len()) {
			return dead
		}
		for k := range out.i {
			x := t.at(k)
			out.i[k] = int64(sort.Search(edges.len(), func(e int) bool {
				if v := edges.at(e); right {
					return v > x || math.IsNaN(v) && !math.IsNaN(x)
				} else {
					return v >= x || math.IsNaN(v) || math.IsNaN(x) && math.IsNaN(v)
				}
			}))
		}
		return out
	}
	reg("t", "searchsorted", "sorted_sequence:T input:S ; out_int32:Z=False right:b=False side:N=None sorter:N=None", func(m *machine, a []any) any {
		return search(m, a[0].(*tensor), a[1].(*tensor), a[3].(bool))
	})
	reg("t", "bucketize", "input:S boundaries:T ; out_int32:Z=False right:b=False", func(m *machine, a []any) any {
		return search(m, a[1].(*tensor), a[0].(*tensor), a[3].(bool))
	})
}

func initRareLosses() {
	reg("f", "poisson_nll_loss", "input:T target:T log_input:b=True full:Z=False size_average:N=None eps:n=1e-08 reduce:N=None reduction:s=mean", func(m *machine, a []any) any {
		x, y := inputTarget(a)
		out := m.sub(m.unary(x, unaries["exp"]), m.mul(y, x))
		if !a[2].(bool) {
			out = m.sub(x, m.mul(y, m.unary(m.add(x, scalar(a[5])), unaries["log"])))
		}
		return m.reduce(out, a[7])
	})
	reg("f", "gaussian_nll_loss", "input:T target:T var:T full:b=False eps:n=1e-06 reduction:s=mean", func(m *machine, a []any) any {
		x, y := inputTarget(a)
		v := a[2].(*tensor)
		// the floor on the variance stands outside autograd
		v = m.add(v, m.sub(m.clamp(v.detach(), scalar(a[4]), nil), v.detach()))
		gap := m.sub(x, y)
		out := m.mul(scalar(0.5), m.add(m.unary(v, unaries["log"]), m.div(m.mul(gap, gap), v)))
		if a[3].(bool) {
			out = m.add(out, scalar(0.5*math.Log(2*math.Pi)))
		}
		return m.reduce(out, a[5])
	})
	reg("f", "triplet_margin_loss", "anchor:T positive:T negative:T margin:n=1 p:n=2 eps:n=1e-06 swap:Z=False"+legacy, func(m *machine, a []any) any {
		far := func(t *tensor) *tensor {
			return m.norm(m.add(m.sub(a[0].(*tensor), t), scalar(a[5])), a[4].(float64), []int64{-1}, false)
		}
		gap := m.add(m.sub(far(a[1].(*tensor)), far(a[2].(*tensor))), scalar(a[3]))
		return m.reduce(m.clamp(gap, scalar(int64(0)), nil), a[9])
	})
	reg("f", "cosine_embedding_loss", "input1:T input2:T target:T margin:n=0"+legacy, func(m *machine, a []any) any {
		x, y := inputTarget(a)
		target := a[2].(*tensor)
		alike := m.similarity(x, y, -1, 1e-12)
		apart := m.clamp(m.sub(alike, scalar(a[3])), scalar(int64(0)), nil)
		positive := m.test(target, func(x float64) bool { return x == 1 })
		return m.reduce(m.choose(positive, m.sub(scalar(int64(1)), alike), apart), a[6])
	})
}
