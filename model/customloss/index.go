package customloss

import "slices"

// getitem is Python's v[key] for tensors, sequences and shapes.
func (m *machine) getitem(v, key any) any {
	switch v := v.(type) {
	case *tensor:
		return m.index(v, key)
	case list:
		n := int64(len(v.items))
		if s, ok := key.(slicing); ok {
			return m.sliceList(v, s)
		}
		i, ok := integer(key)
		if !ok {
			return m.fail("an index that is %s into a sequence", kindOf(key))
		}
		if i < -n || i >= n {
			return m.fail("index %d is out of range for a sequence of %d", i, n)
		}
		return v.items[(i+n)%n]
	}
	return m.fail("%s has no items", kindOf(v))
}

func (m *machine) sliceList(v list, s slicing) any {
	n := int64(len(v.items))
	start, stop, step, ok := bounds(s, n)
	if !ok {
		return m.fail("a slice that is not of integers, or of step 0")
	}
	out := list{tuple: v.tuple}
	if !m.charge(4 * len(v.items)) {
		return dead
	}
	for k := start; step > 0 && k < stop || step < 0 && k > stop; k += step {
		out.items = append(out.items, v.items[k])
	}
	return out
}

// bounds is Python's slice.indices.
func bounds(s slicing, n int64) (start, stop, step int64, ok bool) {
	step = 1
	if s.step != nil {
		if step, ok = integer(s.step); !ok || step == 0 {
			return 0, 0, 0, false
		}
	}
	step = max(min(step, n+1), -n-1)
	low, high := int64(0), n
	if step < 0 {
		low, high = -1, n-1
	}
	edge := func(v any, missing int64) (int64, bool) {
		if v == nil {
			return missing, true
		}
		i, ok := integer(v)
		if i < 0 {
			i = max(i, -n-1) + n
		}
		return max(low, min(i, high)), ok
	}
	first, last := low, high
	if step < 0 {
		first, last = high, low
	}
	start, ok = edge(s.start, first)
	if !ok {
		return 0, 0, 0, false
	}
	stop, ok = edge(s.stop, last)
	return start, stop, step, ok
}

// indexer is one tensor index and the dimension it takes the place of.
type indexer struct {
	at    int
	index *tensor // int64
}

// index applies Python's t[key]: integers, slices, None, ellipsis, bools, and
// bool or integer tensors together, as torch and numpy do.
func (m *machine) index(t *tensor, key any) *tensor {
	keys := []any{key}
	if l, ok := key.(list); ok && l.tuple {
		keys = slices.Clone(l.items)
	}
	used := 0
	for k, item := range keys {
		switch item := item.(type) {
		case nil, bool, ellipsis:
		case list:
			keys[k] = m.literal(item)
			used++
		case *tensor:
			if item.dt == boolean || item.dt == uint8s {
				used += len(item.shape)
			} else {
				used++
			}
		default:
			used++
		}
	}
	if used > len(t.shape) {
		return m.fail("%d indices for a tensor of %d dimensions", used, len(t.shape))
	}
	at := 0
	ellipses := 0
	var advanced []indexer
	for _, item := range keys {
		if m.err != nil {
			return dead
		}
		switch item := item.(type) {
		case nil:
			t = m.unsqueeze(t, int64(at))
			at++
		case ellipsis:
			if ellipses++; ellipses > 1 {
				return m.fail("an index has one ellipsis")
			}
			at += len(t.shape) - at - remaining(keys, item)
		case bool:
			t = m.unsqueeze(t, int64(at))
			flag := m.alloc(int64s, []int{int(boolInt(item))})
			advanced = append(advanced, indexer{at, flag})
			at++
		case slicing:
			start, stop, step, ok := bounds(item, int64(t.shape[at]))
			if !ok || step < 0 {
				return m.fail("a slice must have integers and a step greater than zero; use flip")
			}
			n := max(0, (stop-start+step-1)/step)
			if start != 0 || int(n) != t.shape[at] {
				t = m.slice(t, at, int(start), int(step), int(n))
			} else {
				t = m.reshaped(t, t.shape)
			}
			at++
		case *tensor:
			t, at, advanced = m.advance(t, at, item, advanced)
		default:
			i, ok := integer(item)
			if !ok {
				return m.fail("an index that is %s", kindOf(item))
			}
			t = m.selectAt(t, at, i)
		}
	}
	if len(advanced) == 0 || m.err != nil {
		return t
	}
	return m.gatherAll(t, advanced)
}

// remaining counts the dimensions that keys after the ellipsis take.
func remaining(keys []any, _ ellipsis) int {
	n := 0
	for k := len(keys) - 1; k >= 0; k-- {
		switch item := keys[k].(type) {
		case ellipsis:
			return n
		case nil, bool:
		case *tensor:
			if item.dt == boolean || item.dt == uint8s {
				n += len(item.shape)
			} else {
				n++
			}
		default:
			n++
		}
	}
	return n
}

// literal makes the tensor of a list of integers or bools used as an index.
func (m *machine) literal(l list) *tensor {
	if len(l.items) == 0 {
		return m.alloc(int64s, []int{0})
	}
	values, ok := integers(l)
	if !ok {
		return m.fail("an index list that is not of integers")
	}
	dt := int64s
	if _, isBool := l.items[0].(bool); isBool {
		dt = boolean
	}
	out := m.alloc(dt, []int{len(values)})
	if m.err == nil {
		copy(out.i, values)
	}
	return out
}

// advance notes a tensor index: an integer one as it is, a bool one as the
// positions where it is true, one index per dimension of it.
func (m *machine) advance(t *tensor, at int, item *tensor, advanced []indexer) (*tensor, int, []indexer) {
	if item.dt.floating() {
		return m.fail("an index tensor must be of integers or bools, it is %v", item.dt), at, advanced
	}
	if item.dt != boolean && item.dt != uint8s {
		return t, at + 1, append(advanced, indexer{at, item})
	}
	if len(item.shape) == 0 {
		t = m.unsqueeze(t, int64(at))
		n := int(boolInt(item.i[0] != 0))
		return t, at + 1, append(advanced, indexer{at, m.alloc(int64s, []int{n})})
	}
	if !slices.Equal(item.shape, t.shape[at:min(at+len(item.shape), len(t.shape))]) {
		return m.fail("a mask of shape %v does not fit a tensor of shape %v", item.shape, t.shape), at, advanced
	}
	for k, positions := range m.nonzero(item) {
		advanced = append(advanced, indexer{at + k, positions})
	}
	return t, at + len(item.shape), advanced
}

// nonzero lists the indices of true elements, one tensor per dimension.
func (m *machine) nonzero(t *tensor) []*tensor {
	var hits []int
	for k := range t.len() {
		if t.truth(k) {
			hits = append(hits, k)
		}
	}
	out := make([]*tensor, len(t.shape))
	for d, s := range strides(t.shape) {
		out[d] = m.alloc(int64s, []int{len(hits)})
		if m.err != nil {
			return nil
		}
		for k, h := range hits {
			out[d].i[k] = int64(h / s % t.shape[d])
		}
	}
	return out
}

func (m *machine) nonzeroTuple(t *tensor) any {
	if len(t.shape) == 0 {
		t = m.reshaped(t, []int{1})
	}
	out := list{tuple: true}
	for _, p := range m.nonzero(t) {
		out.items = append(out.items, p)
	}
	return out
}

// gatherAll applies tensor indices together: they broadcast to one shape, which
// stands where they stood if they are neighbours, else first.
func (m *machine) gatherAll(t *tensor, advanced []indexer) *tensor {
	shapes := make([][]int, len(advanced))
	indexed := make([]bool, len(t.shape))
	neighbours := true
	for k, a := range advanced {
		shapes[k] = a.index.shape
		indexed[a.at] = true
		neighbours = neighbours && (k == 0 || a.at == advanced[k-1].at+1)
	}
	common := m.broadcastShapes(shapes...)
	if m.err != nil {
		return dead
	}
	s := strides(t.shape)
	// Outer, index and inner parts of the result, each with its steps in t.
	var outer, outerStep, inner, innerStep []int
	for d, size := range t.shape {
		switch {
		case indexed[d]:
		case neighbours && d < advanced[0].at:
			outer, outerStep = append(outer, size), append(outerStep, s[d])
		default:
			inner, innerStep = append(inner, size), append(innerStep, s[d])
		}
	}
	shape := slices.Concat(outer, common, inner)
	if n, ok := sizeOf(shape); !ok || int64(n) > m.left.Elements {
		return m.tooLarge(shape)
	}
	middle := make([]int, product(common))
	for _, a := range advanced {
		spread := m.spread(a.index.shape, common)
		size := int64(t.shape[a.at])
		for k := range middle {
			i := a.index.i[pick(spread, k)]
			if i < -size || i >= size {
				return m.fail("index %d is out of range for a dimension of %d", i, size)
			}
			if i < 0 {
				i += size
			}
			middle[k] += int(i) * s[a.at]
		}
	}
	index := make([]int, 0, product(shape))
	in := m.walk(0, inner, innerStep)
	for _, o := range m.walk(0, outer, outerStep) {
		for _, mid := range middle {
			for _, i := range in {
				index = append(index, o+mid+i)
			}
		}
	}
	m.work(len(index))
	return fresh(m.take(t, shape, index))
}

// gather is torch.gather: the index replaces the coordinate along dim.
func (m *machine) gather(t *tensor, dim int64, index *tensor) *tensor {
	at := m.along(t, dim, index)
	if m.err != nil {
		return dead
	}
	if len(t.shape) == 0 {
		return fresh(m.reshaped(t, index.shape))
	}
	return fresh(m.take(t, index.shape, at))
}

// along maps each element of index to the element of t it names along dim.
func (m *machine) along(t *tensor, dim int64, index *tensor) []int {
	at := m.dim(dim, len(t.shape))
	if m.err != nil {
		return nil
	}
	if index.dt.floating() || index.dt == boolean {
		m.fail("an index must be of integers, it is %v", index.dt)
		return nil
	}
	if len(index.shape) != len(t.shape) && index.len() > 0 && (len(t.shape) > 1 || len(index.shape) > 1) {
		m.fail("an index of shape %v does not fit a tensor of shape %v", index.shape, t.shape)
		return nil
	}
	s := []int{1}
	size := int64(1)
	if len(t.shape) > 0 && len(index.shape) == len(t.shape) {
		s = strides(t.shape)
	}
	if len(t.shape) > 0 {
		size = int64(t.shape[at])
	}
	s = slices.Clone(s)
	along := s[min(at, len(s)-1)]
	s[min(at, len(s)-1)] = 0
	for d, n := range index.shape {
		if d != at && d < len(t.shape) && n > t.shape[d] {
			m.fail("an index of shape %v does not fit a tensor of shape %v along dimension %d", index.shape, t.shape, dim)
			return nil
		}
	}
	out := m.walk(0, index.shape, s[:len(index.shape)])
	for k := range out {
		i := index.i[k]
		if i < 0 || i >= size {
			m.fail("index %d is out of range for a dimension of %d", i, size)
			return nil
		}
		out[k] += int(i) * along
	}
	return out
}

// scatter puts src (nil: value) at the positions index names along dim; add sums.
func (m *machine) scatter(t *tensor, dim int64, index, src *tensor, add bool) *tensor {
	if m.err != nil {
		return dead
	}
	to := m.along(t, dim, index)
	if m.err != nil {
		return dead
	}
	src = m.cast(src, t.dt)
	if len(src.shape) == 0 && len(index.shape) > 0 {
		src = m.expand(src, index.shape)
	}
	if len(src.shape) != len(index.shape) {
		return m.fail("a source of shape %v does not fit an index of shape %v", src.shape, index.shape)
	}
	for d, n := range index.shape {
		if n > src.shape[d] {
			return m.fail("a source of shape %v does not fit an index of shape %v", src.shape, index.shape)
		}
	}
	from := m.walk(0, index.shape, strides(src.shape))
	out := m.alloc(t.dt, t.shape)
	if m.err != nil {
		return dead
	}
	copy(out.f, t.f)
	copy(out.i, t.i)
	for k, p := range to {
		switch {
		case t.dt.floating() && add:
			out.f[p] = t.dt.round(out.f[p] + src.f[from[k]])
		case t.dt.floating():
			out.f[p] = src.f[from[k]]
		case add:
			out.i[p] = t.dt.wrap(out.i[p] + src.i[from[k]])
		default:
			out.i[p] = src.i[from[k]]
		}
	}
	return m.track(out, func(g []float64) {
		if t.node != nil {
			d := slices.Clone(g)
			if !add {
				for _, p := range to {
					d[p] = 0
				}
			}
			t.push(d)
		}
		if src.node != nil {
			d := make([]float64, len(src.f))
			for k, p := range to {
				d[from[k]] += g[p]
			}
			src.push(d)
		}
	}, t, src)
}

// alongDim lifts a one-dimensional index to the shape of t, for index_select and its like.
func (m *machine) alongDim(t *tensor, dim int64, index *tensor) *tensor {
	if len(index.shape) > 1 {
		return m.fail("an index must have one dimension, it has %d", len(index.shape))
	}
	at := m.dim(dim, len(t.shape))
	if m.err != nil || len(t.shape) == 0 {
		return index
	}
	thin := slices.Repeat([]int{1}, len(t.shape))
	thin[at] = index.len()
	wide := slices.Clone(t.shape)
	wide[at] = index.len()
	return m.expand(m.reshaped(index, thin), wide)
}

func initIndexing() {
	reg("tm", "gather", "input:T dim:i index:T ; sparse_grad:Z=False", func(m *machine, a []any) any {
		return m.gather(a[0].(*tensor), a[1].(int64), a[2].(*tensor))
	})
	reg("tm", "index_select", "input:T dim:i index:T", func(m *machine, a []any) any {
		t := a[0].(*tensor)
		return m.gather(t, a[1].(int64), m.alongDim(t, a[1].(int64), a[2].(*tensor)))
	})
	reg("tm", "take_along_dim", "input:T indices:T dim:i?=None", func(m *machine, a []any) any {
		t, index := a[0].(*tensor), a[1].(*tensor)
		dim, ok := a[2].(int64)
		if !ok {
			t, index = m.reshaped(t, []int{t.len()}), m.reshaped(index, []int{index.len()})
			return m.gather(t, 0, index)
		}
		at := m.dim(dim, len(t.shape))
		if m.err != nil || len(t.shape) == 0 || len(index.shape) != len(t.shape) {
			return m.fail("indices of shape %v do not fit a tensor of shape %v", index.shape, t.shape)
		}
		ts, is := slices.Clone(t.shape), slices.Clone(index.shape)
		ts[at], is[at] = 1, 1
		common := m.broadcastShapes(ts, is)
		if m.err != nil {
			return dead
		}
		wide, wideIndex := slices.Clone(common), slices.Clone(common)
		wide[at], wideIndex[at] = t.shape[at], index.shape[at]
		return m.gather(m.expand(t, wide), dim, m.expand(index, wideIndex))
	})
	reg("tm", "take", "input:T index:T", func(m *machine, a []any) any {
		t := a[0].(*tensor)
		return m.index(m.reshaped(t, []int{t.len()}), a[1])
	})
	initMasks()
}

func initMasks() {
	reg("tm", "masked_select", "input:T mask:T", func(m *machine, a []any) any {
		t, mask := a[0].(*tensor), a[1].(*tensor)
		shape := m.broadcast(t, mask)
		if mask.dt != boolean {
			return m.fail("a mask must be of bools, it is %v", mask.dt)
		}
		return m.index(m.expand(t, shape), m.expand(mask, shape))
	})
	reg("tm", "nonzero", "input:T ; as_tuple:b=False", func(m *machine, a []any) any {
		if a[1].(bool) {
			return m.nonzeroTuple(a[0].(*tensor))
		}
		t := a[0].(*tensor)
		parts := m.nonzero(t)
		if len(parts) == 0 {
			return m.alloc(int64s, []int{int(boolInt(t.truth(0))), 0})
		}
		return m.stack(parts, 1)
	})
	reg("tm", "argwhere", "input:T", func(m *machine, a []any) any {
		parts := m.nonzero(a[0].(*tensor))
		if len(parts) == 0 {
			return m.fail("argwhere of a tensor without dimensions is not supported")
		}
		return m.stack(parts, 1)
	})
	reg("tmi", "scatter", "input:T dim:i index:T src:S", func(m *machine, a []any) any {
		return m.scatter(a[0].(*tensor), a[1].(int64), a[2].(*tensor), a[3].(*tensor), false)
	})
	reg("tmi", "scatter", "input:T dim:i index:T value:S", func(m *machine, a []any) any {
		return m.scatter(a[0].(*tensor), a[1].(int64), a[2].(*tensor), a[3].(*tensor), false)
	})
	reg("tmi", "scatter_add", "input:T dim:i index:T src:T", func(m *machine, a []any) any {
		return m.scatter(a[0].(*tensor), a[1].(int64), a[2].(*tensor), a[3].(*tensor), true)
	})
	reg("tmi", "index_add", "input:T dim:i index:T source:T ; alpha:A=None", func(m *machine, a []any) any {
		t, src := a[0].(*tensor), a[3].(*tensor)
		index := m.alongDim(t, a[1].(int64), a[2].(*tensor))
		if !slices.Equal(index.shape, src.shape) {
			return m.fail("a source of shape %v does not fit index_add into shape %v", src.shape, t.shape)
		}
		return m.scatter(t, a[1].(int64), index, m.scaled(src, a[4]), true)
	})
	reg("tmi", "index_fill", "input:T dim:i index:T value:S", func(m *machine, a []any) any {
		t := a[0].(*tensor)
		return m.scatter(t, a[1].(int64), m.alongDim(t, a[1].(int64), a[2].(*tensor)), a[3].(*tensor), false)
	})
	reg("f", "one_hot", "input:T num_classes:i=-1", func(m *machine, a []any) any { return m.oneHot(a[0].(*tensor), a[1].(int64)) })
}

func (m *machine) oneHot(t *tensor, classes int64) *tensor {
	if t.dt != int64s {
		return m.fail("one_hot takes an int64 tensor, not %v", t.dt)
	}
	if classes < 0 {
		if t.len() == 0 {
			return m.fail("one_hot of no elements needs num_classes")
		}
		classes = slices.Max(t.i) + 1
	}
	if classes < 1 || classes > 1<<31 {
		return m.fail("%w: one_hot of %d classes", ErrLimit, classes)
	}
	out := m.alloc(int64s, append(slices.Clone(t.shape), int(classes)))
	if m.err != nil {
		return dead
	}
	for k, c := range t.i {
		if c < 0 || c >= classes {
			return m.fail("class %d is out of range for %d classes", c, classes)
		}
		out.i[k*int(classes)+int(c)] = 1
	}
	return out
}
