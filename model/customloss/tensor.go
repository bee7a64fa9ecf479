package customloss

import (
	"math"
	"slices"
)

const maxRank = 16

// tensor is immutable and contiguous: a view is a copy or shares the slice.
type tensor struct {
	dt    dtype
	shape []int
	f     []float64 // elements of a floating dtype, already rounded to it
	i     []int64   // elements of bool and integer dtypes
	weak  bool      // a Python number, which promotes weakly
	node  *node     // nil: no gradient flows through it
	store *storage  // shared by a tensor and its views
}

// storage identifies what torch would keep in one memory block.
type storage struct{ _ byte }

func (t *tensor) len() int {
	if t.dt.floating() {
		return len(t.f)
	}
	return len(t.i)
}

// at is element k as a float64.
func (t *tensor) at(k int) float64 {
	if t.dt.floating() {
		return t.f[k]
	}
	return float64(t.i[k])
}

func (t *tensor) truth(k int) bool {
	if t.dt.floating() {
		return t.f[k] != 0
	}
	return t.i[k] != 0
}

// scalar wraps a Python number.
func scalar(v any) *tensor {
	switch v := v.(type) {
	case bool:
		t := &tensor{dt: boolean, weak: true, i: []int64{0}}
		if v {
			t.i[0] = 1
		}
		return t
	case int64:
		return &tensor{dt: int64s, weak: true, i: []int64{v}}
	case float64:
		return &tensor{dt: float64s, weak: true, f: []float64{v}}
	}
	return nil
}

// number unwraps a one-element tensor to a Python number.
func (t *tensor) number() any {
	switch {
	case t.dt.floating():
		return t.f[0]
	case t.dt == boolean:
		return t.i[0] != 0
	}
	return t.i[0]
}

// detach is t without its history.
func (t *tensor) detach() *tensor {
	d := *t
	d.node = nil
	return &d
}

func product(shape []int) int {
	n := 1
	for _, d := range shape {
		n *= d
	}
	return n
}

func strides(shape []int) []int {
	s := make([]int, len(shape))
	n := 1
	for k := len(shape) - 1; k >= 0; k-- {
		s[k] = n
		n *= shape[k]
	}
	return s
}

// broadcast is the common shape of several.
func (m *machine) broadcast(ts ...*tensor) []int {
	shapes := make([][]int, len(ts))
	for k, t := range ts {
		shapes[k] = t.shape
	}
	return m.broadcastShapes(shapes...)
}

func (m *machine) broadcastShapes(shapes ...[]int) []int {
	var out []int
	for _, s := range shapes {
		if len(s) > len(out) {
			out = append(slices.Repeat([]int{1}, len(s)-len(out)), out...)
		}
		for k, d := range s {
			o := &out[len(out)-len(s)+k]
			switch {
			case *o == d || d == 1:
			case *o == 1:
				*o = d
			default:
				m.fail("shapes %v do not broadcast together", shapes)
				return nil
			}
		}
	}
	return out
}

// spread maps each element of shape to that of src it broadcasts from, to be read
// with pick: nil is the identity, and one entry stands for all.
func (m *machine) spread(src, shape []int) []int {
	if m.err == nil && !slices.Equal(src, shape) && product(src) == 1 {
		return []int{0}
	}
	return m.spreadAll(src, shape)
}

// spreadAll is spread with one entry per element, or nil.
func (m *machine) spreadAll(src, shape []int) []int {
	if m.err != nil || slices.Equal(src, shape) {
		return nil
	}
	step := make([]int, len(shape))
	for k, s := range strides(src) {
		if src[k] != 1 {
			step[len(shape)-len(src)+k] = s
		}
	}
	return m.walk(0, shape, step)
}

// walk lists base + Σ index·step over all indices of shape, in order.
func (m *machine) walk(base int, shape, step []int) []int {
	n, ok := sizeOf(shape)
	if !ok || int64(n) > m.left.Elements {
		m.tooLarge(shape)
		return nil
	}
	if !m.charge(n) || !m.work(n) {
		return nil
	}
	out := make([]int, n)
	index := make([]int, len(shape))
	for k := range out {
		out[k] = base
		for d := len(shape) - 1; d >= 0; d-- {
			index[d]++
			base += step[d]
			if index[d] < shape[d] {
				break
			}
			base -= index[d] * step[d]
			index[d] = 0
		}
	}
	return out
}

// pick resolves a map of spread.
func pick(index []int, k int) int {
	switch len(index) {
	case 0:
		return k
	case 1:
		return index[0]
	}
	return index[k]
}

// take is the one primitive behind views and indexing: out[k] = t[index[k]], and
// zero where the index is -1. A nil index keeps the elements.
func (m *machine) take(t *tensor, shape []int, index []int) *tensor {
	if m.err != nil {
		return dead
	}
	if index == nil {
		if !m.charge(overhead) {
			return dead
		}
		out := &tensor{dt: t.dt, shape: shape, f: t.f, i: t.i, store: t.store}
		return m.track(out, func(g []float64) { t.push(slices.Clone(g)) }, t)
	}
	out := m.alloc(t.dt, shape)
	if m.err != nil {
		return dead
	}
	for k, s := range index {
		switch {
		case s < 0:
		case t.dt.floating():
			out.f[k] = t.f[s]
		default:
			out.i[k] = t.i[s]
		}
	}
	out.store = t.store
	return m.track(out, func(g []float64) {
		d := make([]float64, t.len())
		for k, s := range index {
			if s >= 0 {
				d[s] += g[k]
			}
		}
		t.push(d)
	}, t)
}

// fresh gives a copy its own storage, for operations that torch does not make views.
func fresh(t *tensor) *tensor {
	c := *t
	c.store = new(storage)
	return &c
}

func (m *machine) reshaped(t *tensor, shape []int) *tensor {
	if m.err != nil {
		return dead
	}
	return m.take(t, shape, nil)
}

func (m *machine) expand(t *tensor, shape []int) *tensor {
	return m.take(t, shape, m.spreadAll(t.shape, shape))
}

// cast converts to dt; gradients flow between floating dtypes.
func (m *machine) cast(t *tensor, dt dtype) *tensor {
	if m.err != nil {
		return dead
	}
	if t.dt == dt && !t.weak {
		return t
	}
	out := m.alloc(dt, t.shape)
	if m.err != nil {
		return dead
	}
	for k := range t.len() {
		switch {
		case dt.floating():
			out.f[k] = dt.round(t.at(k))
		case t.dt.floating():
			out.i[k] = dt.toInt(t.f[k])
		default:
			out.i[k] = dt.wrap(t.i[k])
		}
	}
	return m.track(out, func(g []float64) { t.push(slices.Clone(g)) }, t)
}

// filled is a constant tensor.
func (m *machine) filled(dt dtype, shape []int, x *tensor) *tensor {
	out := m.alloc(dt, shape)
	if m.err != nil {
		return dead
	}
	for k := range out.len() {
		switch {
		case dt.floating():
			out.f[k] = dt.round(x.at(0))
		case x.dt.floating():
			out.i[k] = dt.toInt(x.f[0])
		default:
			out.i[k] = dt.wrap(x.i[0])
		}
	}
	return out
}

// dim resolves a negative dimension; a 0-d tensor has dimension 0 as torch says.
func (m *machine) dim(d int64, rank int) int {
	n := int64(max(rank, 1))
	if d < -n || d >= n {
		m.fail("dimension %d is out of range for %d dimensions", d, rank)
		return 0
	}
	if d < 0 {
		d += n
	}
	return int(d)
}

// sign is torch's: zero for NaN.
func sign(x float64) float64 {
	switch {
	case x > 0:
		return 1
	case x < 0:
		return -1
	}
	return 0
}

var inf, nan = math.Inf(1), math.NaN()
