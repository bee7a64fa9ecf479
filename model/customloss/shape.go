package customloss

import "slices"

// sizes resolves a shape argument; at most one -1 is inferred from n elements.
func (m *machine) sizes(dims []int64, n int) []int {
	if len(dims) > maxRank {
		m.fail("%d dimensions, the limit is %d", len(dims), maxRank)
		return nil
	}
	out := make([]int, len(dims))
	unknown, known := -1, 1
	for k, d := range dims {
		switch {
		case d == -1 && unknown < 0 && n >= 0:
			unknown = k
			continue
		case d < 0:
			m.fail("the shape %v is not valid", dims)
			return nil
		case d > 1<<31:
			m.fail("%w: a dimension of %d", ErrLimit, d)
			return nil
		}
		out[k] = int(d)
		known = min(known*out[k], 1<<31)
	}
	if unknown >= 0 {
		if known == 0 || n%known != 0 {
			m.fail("%d elements do not fill the shape %v", n, dims)
			return nil
		}
		out[unknown] = n / known
	}
	return out
}

func (m *machine) view(t *tensor, dims []int64) *tensor {
	shape := m.sizes(dims, t.len())
	if n, ok := sizeOf(shape); m.err == nil && (!ok || n != t.len()) {
		return m.fail("a tensor of shape %v has no view of shape %v", t.shape, dims)
	}
	return m.reshaped(t, shape)
}

// permute reorders dimensions: dimension k of the result is order[k] of t.
func (m *machine) permute(t *tensor, order []int) *tensor {
	if m.err != nil {
		return dead
	}
	s := strides(t.shape)
	shape, step := make([]int, len(order)), make([]int, len(order))
	for k, d := range order {
		shape[k], step[k] = t.shape[d], s[d]
	}
	return m.take(t, shape, m.walk(0, shape, step))
}

func (m *machine) permuteBy(t *tensor, dims []int64) *tensor {
	if len(dims) != len(t.shape) {
		return m.fail("permute takes %d dimensions, not %d", len(t.shape), len(dims))
	}
	order := make([]int, len(dims))
	seen := make([]bool, len(dims))
	for k, d := range dims {
		order[k] = m.dim(d, len(t.shape))
		if m.err != nil {
			return dead
		}
		if seen[order[k]] {
			return m.fail("dimension %d appears twice", d)
		}
		seen[order[k]] = true
	}
	return m.permute(t, order)
}

func (m *machine) transpose(t *tensor, a, b int64) *tensor {
	x, y := m.dim(a, len(t.shape)), m.dim(b, len(t.shape))
	if m.err != nil || len(t.shape) == 0 {
		return t
	}
	order := make([]int, len(t.shape))
	for k := range order {
		order[k] = k
	}
	order[x], order[y] = y, x
	return m.permute(t, order)
}

func (m *machine) reverseDims(t *tensor) *tensor {
	order := make([]int, len(t.shape))
	for k := range order {
		order[k] = len(order) - 1 - k
	}
	return m.permute(t, order)
}

func (m *machine) unsqueeze(t *tensor, dim int64) *tensor {
	if m.err != nil {
		return dead
	}
	at := m.dim(dim, len(t.shape)+1)
	if m.err != nil {
		return dead
	}
	return m.reshaped(t, slices.Insert(slices.Clone(t.shape), at, 1))
}

// slice takes n elements of a dimension from start on, by step.
func (m *machine) slice(t *tensor, at, start, step, n int) *tensor {
	if m.err != nil {
		return dead
	}
	shape, s := slices.Clone(t.shape), strides(t.shape)
	base := start * s[at]
	shape[at], s[at] = n, s[at]*step
	return m.take(t, shape, m.walk(base, shape, s))
}

func (m *machine) narrow(t *tensor, dim, start, n int64) *tensor {
	if m.err != nil {
		return dead
	}
	if len(t.shape) == 0 {
		return m.fail("a tensor without dimensions has no part")
	}
	at := m.dim(dim, len(t.shape))
	size := int64(t.shape[at])
	if start < 0 {
		start += size
	}
	if m.err != nil || start < 0 || n < 0 || start > size || n > size-start {
		return m.fail("%d elements from %d on are not within a dimension of %d", n, start, size)
	}
	return m.slice(t, at, int(start), 1, int(n))
}

// selectAt drops a dimension at one index.
func (m *machine) selectAt(t *tensor, at int, index int64) *tensor {
	if m.err != nil {
		return dead
	}
	size := int64(t.shape[at])
	if index < -size || index >= size {
		return m.fail("index %d is out of range for a dimension of %d", index, size)
	}
	if index < 0 {
		index += size
	}
	part := m.slice(t, at, int(index), 1, 1)
	return m.squeezed(part, int64(at))
}

func (m *machine) cat(ts []*tensor, dim int64) *tensor {
	// torch skips empty tensors of one dimension
	ts = slices.DeleteFunc(slices.Clone(ts), func(t *tensor) bool { return len(t.shape) == 1 && t.shape[0] == 0 && len(ts) > 1 })
	if len(ts) == 0 || m.err != nil {
		return m.fail("cat of no tensors with elements is not defined")
	}
	if len(ts[0].shape) == 0 {
		return m.fail("cat of tensors without dimensions is not defined; use stack")
	}
	at := m.dim(dim, len(ts[0].shape))
	dt := ts[0].dt
	shape := slices.Clone(ts[0].shape)
	if m.err != nil {
		return dead
	}
	shape[at] = 0
	for k, t := range ts {
		dt = promote(dt, t.dt)
		same := slices.Clone(t.shape)
		if len(same) == len(shape) {
			same[at] = shape[at]
		}
		if !slices.Equal(same, shape) {
			return m.fail("cat of shapes %v and %v along dimension %d is not defined", ts[0].shape, t.shape, dim)
		}
		shape[at] += t.shape[at]
		if shape[at] > 1<<31 {
			return m.fail("%w: a dimension of %d", ErrLimit, shape[at])
		}
		ts[k] = m.cast(t, dt)
	}
	return m.join(ts, dt, shape, at)
}

// join lays tensors of one dtype side by side along a dimension.
func (m *machine) join(ts []*tensor, dt dtype, shape []int, at int) *tensor {
	for k, t := range ts {
		ts[k] = m.cast(t, dt)
	}
	out := m.alloc(dt, shape)
	if m.err != nil {
		return dead
	}
	inner := product(shape[at+1:])
	outer := product(shape[:at])
	row := shape[at] * inner
	offset := 0
	starts := make([]int, len(ts))
	for k, t := range ts {
		n := t.shape[at] * inner
		starts[k] = offset
		for o := range outer {
			if dt.floating() {
				copy(out.f[o*row+offset:][:n], t.f[o*n:])
			} else {
				copy(out.i[o*row+offset:][:n], t.i[o*n:])
			}
		}
		offset += n
	}
	return m.track(out, func(g []float64) {
		for k, t := range ts {
			if t.node == nil {
				continue
			}
			n := t.shape[at] * inner
			d := make([]float64, len(t.f))
			for o := range outer {
				copy(d[o*n:(o+1)*n], g[o*row+starts[k]:])
			}
			t.push(d)
		}
	}, ts...)
}

func (m *machine) stack(ts []*tensor, dim int64) *tensor {
	if len(ts) == 0 {
		return m.fail("stack of no tensors is not defined")
	}
	lifted := make([]*tensor, len(ts))
	for k, t := range ts {
		if !slices.Equal(t.shape, ts[0].shape) {
			return m.fail("stack of shapes %v and %v is not defined", ts[0].shape, t.shape)
		}
		lifted[k] = m.unsqueeze(t, dim)
	}
	if m.err != nil {
		return dead
	}
	at := m.dim(dim, len(ts[0].shape)+1)
	dt := ts[0].dt
	for _, t := range ts {
		dt = promote(dt, t.dt)
	}
	shape := slices.Clone(lifted[0].shape)
	shape[at] = len(ts)
	return m.join(lifted, dt, shape, at)
}

func (m *machine) flip(t *tensor, dims []int64) *tensor {
	s := strides(t.shape)
	base := 0
	for _, d := range dims {
		at := m.dim(d, len(t.shape))
		if m.err != nil || len(t.shape) == 0 {
			return t
		}
		if s[at] < 0 {
			return m.fail("dimension %d appears twice", d)
		}
		base += (t.shape[at] - 1) * s[at]
		s[at] = -s[at]
	}
	return fresh(m.take(t, t.shape, m.walk(base, t.shape, s)))
}

func (m *machine) roll(t *tensor, shifts, dims []int64) *tensor {
	if len(dims) == 0 {
		if len(shifts) != 1 {
			return m.fail("roll without dims takes one shift")
		}
		return m.reshaped(m.roll(m.reshaped(t, []int{t.len()}), shifts, []int64{0}), t.shape)
	}
	if len(dims) != len(shifts) {
		return m.fail("roll takes as many shifts as dims")
	}
	for k, d := range dims {
		at := m.dim(d, len(t.shape))
		if m.err != nil || len(t.shape) == 0 || t.shape[at] == 0 {
			return t
		}
		n := int64(t.shape[at])
		cut := int64(floorMod(float64(-(shifts[k] % n)), float64(n)))
		t = m.cat([]*tensor{m.narrow(t, d, cut, n-cut), m.narrow(t, d, 0, cut)}, d)
	}
	return fresh(t)
}

func (m *machine) repeat(t *tensor, times []int64) *tensor {
	if len(times) < len(t.shape) {
		return m.fail("repeat takes at least %d numbers", len(t.shape))
	}
	n := m.sizes(times, -1)
	if m.err != nil {
		return dead
	}
	// [a,b] repeated (r,s) is [r,a,s,b] broadcast from [1,a,1,b]
	lift := append(slices.Repeat([]int{1}, len(n)-len(t.shape)), t.shape...)
	var thin, wide []int
	shape := make([]int, len(n))
	for k, r := range n {
		thin, wide = append(thin, 1, lift[k]), append(wide, r, lift[k])
		if shape[k] = r * lift[k]; lift[k] > 0 && r > 1<<31/lift[k] {
			return m.fail("%w: a repeat of %d times %d", ErrLimit, r, lift[k])
		}
	}
	if size, ok := sizeOf(wide); !ok || int64(size) > m.left.Elements {
		return m.tooLarge(shape)
	}
	spread := m.spreadAll(thin, wide)
	return fresh(m.take(t, shape, spread))
}

// pieces cuts a dimension at the given sizes, which sum to it.
func (m *machine) pieces(t *tensor, dim int64, sizes []int64) any {
	out := list{tuple: true}
	start := int64(0)
	for _, n := range sizes {
		out.items = append(out.items, m.narrow(t, dim, start, n))
		start += n
	}
	if at := m.dim(dim, len(t.shape)); m.err == nil && start != int64(t.shape[at]) {
		return m.fail("pieces of %v do not make up a dimension of %d", sizes, t.shape[at])
	}
	return out
}

// evenPieces are of n elements, the last one shorter.
func (m *machine) evenPieces(t *tensor, dim, n int64) any {
	if m.err != nil || len(t.shape) == 0 {
		return m.fail("a tensor without dimensions has no pieces")
	}
	at := m.dim(dim, len(t.shape))
	size := int64(t.shape[at])
	if n <= 0 || size/n > maxNodes {
		return m.fail("pieces of %d of a dimension of %d: none or too many", n, size)
	}
	var sizes []int64
	for left := size; left > 0; left -= n {
		sizes = append(sizes, min(n, left))
	}
	if size == 0 {
		sizes = []int64{0}
	}
	return m.pieces(t, dim, sizes)
}

func (m *machine) unbind(t *tensor, dim int64) any {
	at := m.dim(dim, len(t.shape))
	if m.err != nil || len(t.shape) == 0 || t.shape[at] > maxNodes {
		return m.fail("unbind of dimension %d of shape %v is not supported", dim, t.shape)
	}
	out := list{tuple: true}
	for k := range t.shape[at] {
		out.items = append(out.items, m.selectAt(t, at, int64(k)))
	}
	return out
}

// band keeps the elements under or above a diagonal of the last two dimensions.
func (m *machine) band(t *tensor, keep func(row, column int) bool) *tensor {
	if len(t.shape) < 2 {
		return m.fail("tril and triu take at least two dimensions")
	}
	index := m.walk(0, t.shape, strides(t.shape))
	c := t.shape[len(t.shape)-1]
	r := t.shape[len(t.shape)-2]
	for k := range index {
		if !keep(k/c%r, k%c) {
			index[k] = -1
		}
	}
	return fresh(m.take(t, t.shape, index))
}

// pad adds a constant around the last dimensions; widths come in pairs from the last.
func (m *machine) pad(t *tensor, widths []int64, value float64) *tensor {
	if len(widths)%2 != 0 || len(widths)/2 > len(t.shape) {
		return m.fail("pad takes pairs of widths, at most one per dimension")
	}
	for k := 0; k < len(widths); k += 2 {
		dim := int64(len(t.shape) - 1 - k/2)
		side := func(w int64, first bool) {
			switch {
			case m.err != nil || w == 0:
			case w < 0 && first:
				t = m.narrow(t, dim, -w, int64(t.shape[dim])+w)
			case w < 0:
				t = m.narrow(t, dim, 0, int64(t.shape[dim])+w)
			default:
				shape := slices.Clone(t.shape)
				if w > 1<<31 {
					m.fail("%w: a pad of %d", ErrLimit, w)
					return
				}
				shape[dim] = int(w)
				parts := []*tensor{t, m.filled(t.dt, shape, scalar(value))}
				if first {
					slices.Reverse(parts)
				}
				if m.err == nil {
					whole := slices.Clone(t.shape)
					whole[dim] += int(w)
					t = m.join(parts, t.dt, whole, int(dim))
				}
			}
		}
		side(widths[k], true)
		side(widths[k+1], false)
	}
	return fresh(t)
}
