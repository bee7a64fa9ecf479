package customloss

import (
	"math"
	"slices"
)

// lanes splits the elements of a tensor into the groups a reduction takes: lane o
// holds the elements base[o]+step[r]. kept has 1 in place of the reduced dimensions.
type lanes struct {
	base, step  []int
	shape, kept []int
}

// lanesOf reduces over dims; nil or empty means all.
func (m *machine) lanesOf(t *tensor, dims []int64) lanes {
	rank := len(t.shape)
	out := make([]bool, rank)
	for _, d := range dims {
		at := m.dim(d, rank)
		if m.err != nil {
			return lanes{}
		}
		if rank == 0 {
			continue
		}
		if out[at] {
			m.fail("dimension %d appears twice", d)
			return lanes{}
		}
		out[at] = true
	}
	var l lanes
	var inner, outerStep, innerStep []int
	s := strides(t.shape)
	for d, size := range t.shape {
		if out[d] || len(dims) == 0 {
			inner, innerStep = append(inner, size), append(innerStep, s[d])
			l.kept = append(l.kept, 1)
			continue
		}
		l.shape, outerStep = append(l.shape, size), append(outerStep, s[d])
		l.kept = append(l.kept, size)
	}
	l.base, l.step = m.walk(0, l.shape, outerStep), m.walk(0, inner, innerStep)
	m.work(2 * t.len())
	return l
}

func (l lanes) result(keep bool) []int {
	if keep {
		return l.kept
	}
	return l.shape
}

// fold is a reduction of floating lanes: f gives the value of one lane, back the
// derivative with respect to each of its elements, times the gradient g.
func (m *machine) fold(t *tensor, l lanes, keep bool, f func(x []float64) float64, back func(x []float64, y, g float64, d []float64)) *tensor {
	out := m.alloc(t.dt, l.result(keep))
	if m.err != nil {
		return dead
	}
	x := make([]float64, len(l.step))
	load := func(o int) {
		for r, s := range l.step {
			x[r] = t.f[l.base[o]+s]
		}
	}
	for o := range l.base {
		load(o)
		out.f[o] = t.dt.round(f(x))
	}
	return m.track(out, func(g []float64) {
		d := make([]float64, len(t.f))
		slope := make([]float64, len(x))
		for o := range l.base {
			load(o)
			clear(slope)
			back(x, out.f[o], g[o], slope)
			for r, s := range l.step {
				d[l.base[o]+s] = slope[r]
			}
		}
		t.push(d)
	}, t)
}

// scan maps each lane of t to a lane of the same length; back gets x, y and the
// gradient of y.
func (m *machine) scan(t *tensor, dims []int64, f func(x, y []float64), back func(x, y, g, d []float64)) *tensor {
	l := m.lanesOf(t, dims)
	out := m.alloc(t.dt, t.shape)
	if m.err != nil {
		return dead
	}
	n := len(l.step)
	x, y, gl, d := make([]float64, n), make([]float64, n), make([]float64, n), make([]float64, n)
	for o := range l.base {
		for r, s := range l.step {
			x[r] = t.f[l.base[o]+s]
		}
		f(x, y)
		for r, s := range l.step {
			out.f[l.base[o]+s] = t.dt.round(y[r])
		}
	}
	return m.track(out, func(g []float64) {
		all := make([]float64, len(t.f))
		for o := range l.base {
			for r, s := range l.step {
				at := l.base[o] + s
				x[r], y[r], gl[r] = t.f[at], out.f[at], g[at]
			}
			clear(d)
			back(x, y, gl, d)
			for r, s := range l.step {
				all[l.base[o]+s] = d[r]
			}
		}
		t.push(all)
	}, t)
}

func sumOf(x []float64) float64 {
	s := 0.0
	for _, v := range x {
		s += v
	}
	return s
}

func fill(g float64, d []float64) {
	for k := range d {
		d[k] = g
	}
}

// dimsOf reads an optional dim argument.
func dimsOf(v any) []int64 {
	d, _ := v.([]int64)
	return d
}

// inDtype casts to an optional dtype argument, or integers to the default given.
func (m *machine) inDtype(t *tensor, v any, integers dtype) *tensor {
	if d, ok := v.(dtype); ok {
		return m.cast(t, d)
	}
	if !t.dt.floating() {
		return m.cast(t, integers)
	}
	return t
}

// foldInts reduces integer lanes.
func (m *machine) foldInts(t *tensor, l lanes, keep bool, dt dtype, start int64, f func(acc, x int64) int64) *tensor {
	out := m.alloc(dt, l.result(keep))
	if m.err != nil {
		return dead
	}
	for o, base := range l.base {
		acc := start
		for _, s := range l.step {
			acc = f(acc, t.i[base+s])
		}
		out.i[o] = dt.wrap(acc)
	}
	return out
}

func (m *machine) sum(t *tensor, dims []int64, keep bool) *tensor {
	l := m.lanesOf(t, dims)
	if !t.dt.floating() {
		return m.foldInts(t, l, keep, t.dt, 0, func(a, x int64) int64 { return a + x })
	}
	return m.fold(t, l, keep, sumOf, func(_ []float64, _, g float64, d []float64) { fill(g, d) })
}

func (m *machine) mean(t *tensor, dims []int64, keep bool) *tensor {
	if !t.dt.floating() {
		return m.fail("mean of a %v tensor is not defined; convert it with .float()", t.dt)
	}
	l := m.lanesOf(t, dims)
	return m.fold(t, l, keep, func(x []float64) float64 { return sumOf(x) / float64(len(x)) },
		func(x []float64, _, g float64, d []float64) { fill(g/float64(len(x)), d) })
}

func (m *machine) prod(t *tensor, dims []int64, keep bool) *tensor {
	l := m.lanesOf(t, dims)
	if !t.dt.floating() {
		return m.foldInts(t, l, keep, t.dt, 1, func(a, x int64) int64 { return a * x })
	}
	return m.fold(t, l, keep, func(x []float64) float64 {
		p := 1.0
		for _, v := range x {
			p *= v
		}
		return p
	}, func(x []float64, _, g float64, d []float64) {
		zeros := 0
		for _, v := range x {
			zeros += int(step01(v == 0))
		}
		if zeros > 1 && len(dims) == 0 {
			return // torch looks no further, whatever the others are
		}
		before := 1.0
		for k, v := range x {
			d[k] = g * before
			before *= v
		}
		after := 1.0
		for k := len(x) - 1; k >= 0; k-- {
			d[k] *= after
			after *= x[k]
		}
	})
}

// variance has the given correction to the number of elements.
func (m *machine) variance(t *tensor, dims []int64, correction float64, keep, root bool) *tensor {
	if !t.dt.floating() {
		return m.fail("var and std of a %v tensor are not defined; convert it with .float()", t.dt)
	}
	l := m.lanesOf(t, dims)
	free := math.Max(0, float64(len(l.step))-correction)
	mid := func(x []float64) float64 { return sumOf(x) / float64(len(x)) }
	return m.fold(t, l, keep, func(x []float64) float64 {
		c, s := mid(x), 0.0
		for _, v := range x {
			s += (v - c) * (v - c)
		}
		if root {
			return math.Sqrt(s / free)
		}
		return s / free
	}, func(x []float64, y, g float64, d []float64) {
		if root {
			if y == 0 {
				return
			}
			g /= 2 * y
		}
		c := mid(x)
		for k, v := range x {
			d[k] = g * 2 / free * (v - c)
		}
	})
}

// extreme is the largest or least element; equal elements share the gradient. A
// NaN takes it when alike holds for two NaN, else it makes the gradient NaN.
func (m *machine) extreme(t *tensor, dims []int64, keep, least bool, alike func(x, y float64) bool) *tensor {
	l := m.lanesOf(t, dims)
	if m.err == nil && len(l.step) == 0 && len(l.base) > 0 {
		return m.fail("max or min of no elements is not defined")
	}
	better := func(x, y float64) bool { return x > y }
	if least {
		better = func(x, y float64) bool { return x < y }
	}
	if !t.dt.floating() {
		out := m.alloc(t.dt, l.result(keep))
		if m.err != nil {
			return dead
		}
		for o, base := range l.base {
			best := t.i[base+l.step[0]]
			for _, s := range l.step {
				if x := t.i[base+s]; x != best && (x < best) == least {
					best = x
				}
			}
			out.i[o] = best
		}
		return out
	}
	return m.fold(t, l, keep, func(x []float64) float64 { return x[bestOf(x, better)] },
		func(x []float64, y, g float64, d []float64) {
			n := 0.0
			for _, v := range x {
				n += step01(alike(v, y))
			}
			for k, v := range x {
				if alike(v, y) || n == 0 {
					d[k] = g / n * step01(alike(v, y))
				}
			}
		})
}

func equal(x, y float64) bool { return x == y }

func same(x, y float64) bool { return x == y || math.IsNaN(x) && math.IsNaN(y) }

// bestOf is the first best element; a NaN wins over everything.
func bestOf(x []float64, better func(x, y float64) bool) int {
	best := 0
	for k, v := range x {
		if math.IsNaN(v) {
			return k
		}
		if better(v, x[best]) {
			best = k
		}
	}
	return best
}

// positions gives for one dimension the position rule finds in each lane.
func (m *machine) positions(t *tensor, dims []int64, keep bool, rule func(x []float64) int) *tensor {
	l := m.lanesOf(t, dims)
	if m.err == nil && len(l.step) == 0 && len(l.base) > 0 {
		return m.fail("the position of an extreme of no elements is not defined")
	}
	out := m.alloc(int64s, l.result(keep))
	if m.err != nil {
		return dead
	}
	x := make([]float64, len(l.step))
	for o, base := range l.base {
		for r, s := range l.step {
			x[r] = t.at(base + s)
		}
		out.i[o] = int64(rule(x))
	}
	return out
}

// pair is the named tuple of values and indices, the values gathered along dim.
func (m *machine) pair(t *tensor, dim int64, keep bool, rule func(x []float64) int) any {
	index := m.positions(t, []int64{dim}, true, rule)
	if len(t.shape) == 0 && m.err == nil {
		return valuesIndices(t, m.filled(int64s, nil, scalar(int64(0))))
	}
	values := m.gather(t, dim, index)
	if !keep {
		values, index = m.squeezed(values, dim), m.squeezed(index, dim)
	}
	return valuesIndices(values, index)
}

func valuesIndices(values, indices *tensor) list {
	return list{items: []any{values, indices}, tuple: true, names: []string{"values", "indices"}}
}

func (m *machine) squeezed(t *tensor, dim int64) *tensor {
	if m.err != nil || len(t.shape) == 0 {
		return t
	}
	at := m.dim(dim, len(t.shape))
	if t.shape[at] != 1 {
		return t
	}
	return m.reshaped(t, slices.Delete(slices.Clone(t.shape), at, at+1))
}

// logSumExp is max + log Σ exp(x-max), in one pass of float64.
func logSumExp(x []float64) float64 {
	top := -inf
	for _, v := range x {
		if math.IsNaN(v) {
			return v
		}
		top = math.Max(top, v)
	}
	if math.IsInf(top, 0) {
		return top
	}
	s := 0.0
	for _, v := range x {
		s += math.Exp(v - top)
	}
	return top + math.Log(s)
}

func (m *machine) logsumexp(t *tensor, dims []int64, keep bool) *tensor {
	t = m.inDtype(t, nil, float32s)
	return m.fold(t, m.lanesOf(t, dims), keep, logSumExp, func(x []float64, y, g float64, d []float64) {
		for k, v := range x {
			if math.IsInf(y, 0) {
				// torch shifts by zero where the maximum is infinite
				d[k] = g * math.Exp(v) / math.Exp(y)
				continue
			}
			d[k] = g * math.Exp(v-y)
		}
	})
}

func (m *machine) softmax(t *tensor, dim int64) *tensor {
	return m.scan(t, []int64{dim}, func(x, y []float64) {
		z := logSumExp(x)
		for k, v := range x {
			y[k] = math.Exp(v - z)
		}
	}, func(_, y, g, d []float64) {
		dot := 0.0
		for k := range y {
			dot += y[k] * g[k]
		}
		for k := range y {
			d[k] = y[k] * (g[k] - dot)
		}
	})
}

func (m *machine) logSoftmax(t *tensor, dim int64) *tensor {
	return m.scan(t, []int64{dim}, func(x, y []float64) {
		z := logSumExp(x)
		for k, v := range x {
			y[k] = v - z
		}
	}, func(_, y, g, d []float64) {
		total := sumOf(g)
		for k := range y {
			d[k] = g[k] - math.Exp(y[k])*total
		}
	})
}

// norm is the p-norm over dims.
func (m *machine) norm(t *tensor, p float64, dims []int64, keep bool) *tensor {
	if !t.dt.floating() {
		return m.fail("norm of a %v tensor is not defined; convert it with .float()", t.dt)
	}
	l := m.lanesOf(t, dims)
	if m.err == nil && math.IsInf(p, 0) && len(l.step) == 0 && len(l.base) > 0 {
		return m.fail("an infinity norm of no elements is not defined")
	}
	return m.fold(t, l, keep, func(x []float64) float64 {
		switch {
		case math.IsInf(p, 0):
			best := math.Abs(x[0])
			for _, v := range x {
				v = math.Abs(v)
				if math.IsNaN(v) || v > best && p > 0 || v < best && p < 0 {
					best = v
				}
			}
			return best
		case p == 2:
			s := 0.0
			for _, v := range x {
				s += v * v
			}
			return math.Sqrt(s)
		}
		s := 0.0
		for _, v := range x {
			if p == 0 {
				s += step01(v != 0)
				continue
			}
			s += math.Pow(math.Abs(v), p)
		}
		if p == 0 {
			return s
		}
		return math.Pow(s, 1/p)
	}, func(x []float64, y, g float64, d []float64) { normSlopes(p, x, y, g, d) })
}

func normSlopes(p float64, x []float64, y, g float64, d []float64) {
	ties := 0.0
	for _, v := range x {
		ties += step01(same(math.Abs(v), y))
	}
	for k, v := range x {
		switch {
		case p == 0:
		case math.IsInf(p, 0):
			if same(math.Abs(v), y) {
				d[k] = g * sign(v) / ties
			}
		case p == 1:
			d[k] = g * sign(v)
		case y == 0 || v == 0 && p < 2:
		case p == 2:
			d[k] = g * v / y
		default:
			d[k] = g * sign(v) * math.Pow(math.Abs(v), p-1) / math.Pow(y, p-1)
		}
	}
}
