package customloss

import "slices"

// initShapes registers the operations that move elements.
func initShapes() {
	reg("m", "view", "input:T dtype:d", func(m *machine, a []any) any {
		if a[0].(*tensor).dt != a[1].(dtype) {
			return m.fail("view as another dtype reinterprets memory, which is not supported; use to(dtype)")
		}
		return a[0].(*tensor).detach() // torch has no gradient for it
	})
	reg("m", "view", "input:T size:*I", func(m *machine, a []any) any { return m.view(a[0].(*tensor), a[1].([]int64)) })
	reg("m", "reshape", "input:T shape:*I", func(m *machine, a []any) any { return m.view(a[0].(*tensor), a[1].([]int64)) })
	reg("t", "reshape", "input:T shape:I", func(m *machine, a []any) any { return m.view(a[0].(*tensor), a[1].([]int64)) })
	reg("m", "view_as reshape_as", "input:T other:T", func(m *machine, a []any) any {
		return m.view(a[0].(*tensor), toInt64(a[1].(*tensor).shape))
	})
	reg("tm", "flatten", "input:T start_dim:i=0 end_dim:i=-1", func(m *machine, a []any) any {
		t := a[0].(*tensor)
		if len(t.shape) == 0 {
			return m.reshaped(t, []int{1})
		}
		from, to := m.dim(a[1].(int64), len(t.shape)), m.dim(a[2].(int64), len(t.shape))
		if m.err != nil || from > to {
			return m.fail("flatten from dimension %d to %d is not defined", from, to)
		}
		return m.reshaped(t, slices.Concat(t.shape[:from], []int{product(t.shape[from : to+1])}, t.shape[to+1:]))
	})
	reg("tm", "unflatten", "input:T dim:i sizes:I", func(m *machine, a []any) any {
		t := a[0].(*tensor)
		at := m.dim(a[1].(int64), len(t.shape))
		if m.err != nil || len(t.shape) == 0 {
			return m.fail("unflatten of shape %v is not defined", t.shape)
		}
		inner := m.sizes(a[2].([]int64), t.shape[at])
		if m.err != nil {
			return dead
		}
		return m.view(t, toInt64(slices.Concat(t.shape[:at], inner, t.shape[at+1:])))
	})
	reg("tm", "ravel", "input:T", func(m *machine, a []any) any { t := a[0].(*tensor); return m.reshaped(t, []int{t.len()}) })
	reg("tm", "unsqueeze", "input:T dim:i", func(m *machine, a []any) any { return m.unsqueeze(a[0].(*tensor), a[1].(int64)) })
	reg("tm", "squeeze", "input:T dim:D?=None", squeeze)
	initExpansions()
}

func initExpansions() {
	reg("m", "expand", "input:T size:*I ; implicit:Z=False", func(m *machine, a []any) any { return m.expandTo(a[0].(*tensor), a[1].([]int64)) })
	reg("t", "broadcast_to", "input:T size:I", func(m *machine, a []any) any { return m.expandTo(a[0].(*tensor), a[1].([]int64)) })
	reg("m", "broadcast_to", "input:T size:*I", func(m *machine, a []any) any { return m.expandTo(a[0].(*tensor), a[1].([]int64)) })
	reg("m", "expand_as", "input:T other:T", func(m *machine, a []any) any {
		return m.expandTo(a[0].(*tensor), toInt64(a[1].(*tensor).shape))
	})
	reg("t", "broadcast_tensors", "tensors:*L", func(m *machine, a []any) any {
		ts := a[0].([]*tensor)
		shape := m.broadcast(ts...)
		out := list{tuple: true}
		for _, t := range ts {
			out.items = append(out.items, m.expand(t, shape))
		}
		return out
	})
	reg("m", "repeat", "input:T repeats:*I", func(m *machine, a []any) any { return m.repeat(a[0].(*tensor), a[1].([]int64)) })
	tile := func(m *machine, a []any) any {
		t, times := a[0].(*tensor), a[1].([]int64)
		for len(times) < len(t.shape) {
			times = slices.Insert(slices.Clone(times), 0, 1)
		}
		return m.repeat(t, times)
	}
	reg("m", "tile", "input:T dims:*I", tile)
	reg("t", "tile", "input:T dims:I", tile)
	reg("tm", "repeat_interleave", "input:T repeats:i dim:i?=None ; output_size:N=None", func(m *machine, a []any) any {
		t, dim := a[0].(*tensor), int64(0)
		if d, ok := a[2].(int64); ok {
			dim = d
		} else {
			t = m.reshaped(t, []int{t.len()})
		}
		at := m.dim(dim, len(t.shape))
		n := m.sizes([]int64{a[1].(int64)}, -1)
		if m.err != nil || len(t.shape) == 0 {
			return m.fail("repeat_interleave of shape %v is not defined", t.shape)
		}
		thin := slices.Insert(slices.Clone(t.shape), at+1, 1)
		wide := slices.Insert(slices.Clone(t.shape), at+1, n[0])
		index := m.spreadAll(thin, wide)
		shape := slices.Clone(t.shape)
		shape[at] *= n[0]
		return fresh(m.take(t, shape, index))
	})
	initDimensions()
	initJoins()
}

func toInt64(shape []int) []int64 {
	out := make([]int64, len(shape))
	for k, d := range shape {
		out[k] = int64(d)
	}
	return out
}

func squeeze(m *machine, a []any) any {
	t := a[0].(*tensor)
	drop := make([]bool, len(t.shape))
	if a[1] == nil {
		for k := range drop {
			drop[k] = true
		}
	}
	for _, d := range dimsOf(a[1]) {
		at := m.dim(d, len(t.shape))
		if m.err != nil || len(t.shape) == 0 {
			return t
		}
		drop[at] = true
	}
	shape := []int{}
	for k, d := range t.shape {
		if d != 1 || !drop[k] {
			shape = append(shape, d)
		}
	}
	return m.reshaped(t, shape)
}

// expandTo broadcasts to sizes; -1 keeps a dimension.
func (m *machine) expandTo(t *tensor, sizes []int64) *tensor {
	if len(sizes) < len(t.shape) || len(sizes) > maxRank {
		return m.fail("shape %v does not expand to %v", t.shape, sizes)
	}
	shape := make([]int, len(sizes))
	lead := len(sizes) - len(t.shape)
	for k, d := range sizes {
		old := int64(1)
		if k >= lead {
			old = int64(t.shape[k-lead])
		}
		if d == -1 && k >= lead {
			d = old
		}
		if d < 0 || old != 1 && d != old {
			return m.fail("shape %v does not expand to %v", t.shape, sizes)
		}
		shape[k] = int(min(d, 1<<31))
	}
	return m.expand(t, shape)
}

func initDimensions() {
	reg("tm", "transpose swapaxes swapdims", "input:T dim0:i dim1:i", func(m *machine, a []any) any {
		return m.transpose(a[0].(*tensor), a[1].(int64), a[2].(int64))
	})
	reg("m", "permute", "input:T dims:*I", func(m *machine, a []any) any { return m.permuteBy(a[0].(*tensor), a[1].([]int64)) })
	reg("t", "permute", "input:T dims:I", func(m *machine, a []any) any { return m.permuteBy(a[0].(*tensor), a[1].([]int64)) })
	reg("tm", "t", "input:T", func(m *machine, a []any) any {
		if len(a[0].(*tensor).shape) > 2 {
			return m.fail("t takes at most two dimensions")
		}
		return m.reverseDims(a[0].(*tensor))
	})
	reg("tm", "movedim moveaxis", "input:T source:i destination:i", func(m *machine, a []any) any {
		t := a[0].(*tensor)
		from, to := m.dim(a[1].(int64), len(t.shape)), m.dim(a[2].(int64), len(t.shape))
		if m.err != nil || len(t.shape) == 0 {
			return t
		}
		var order []int
		for k := range t.shape {
			if k != from {
				order = append(order, k)
			}
		}
		return m.permute(t, slices.Insert(order, to, from))
	})
	reg("m", "flip", "input:T dims:*I", func(m *machine, a []any) any { return m.flip(a[0].(*tensor), a[1].([]int64)) })
	reg("t", "flip", "input:T dims:I", func(m *machine, a []any) any { return m.flip(a[0].(*tensor), a[1].([]int64)) })
	reg("tm", "fliplr", "input:T", func(m *machine, a []any) any { return m.flip(a[0].(*tensor), []int64{1}) })
	reg("tm", "flipud", "input:T", func(m *machine, a []any) any { return m.flip(a[0].(*tensor), []int64{0}) })
	reg("tm", "roll", "input:T shifts:I dims:D?=None", func(m *machine, a []any) any {
		return m.roll(a[0].(*tensor), a[1].([]int64), dimsOf(a[2]))
	})
	reg("tm", "diff", "input:T n:i=1 dim:i=-1 prepend:T?=None append:T?=None", diff)
	reg("tm", "narrow", "input:T dim:i start:i length:i", func(m *machine, a []any) any {
		return m.narrow(a[0].(*tensor), a[1].(int64), a[2].(int64), a[3].(int64))
	})
	reg("tm", "select", "input:T dim:i index:i", func(m *machine, a []any) any {
		t := a[0].(*tensor)
		at := m.dim(a[1].(int64), len(t.shape))
		if m.err != nil || len(t.shape) == 0 {
			return m.fail("a tensor without dimensions has no part")
		}
		return m.selectAt(t, at, a[2].(int64))
	})
	reg("tm", "tril", "input:T diagonal:i=0", func(m *machine, a []any) any {
		d := int(max(min(a[1].(int64), 1<<31), -1<<31))
		return m.band(a[0].(*tensor), func(r, c int) bool { return c-r <= d })
	})
	reg("tm", "triu", "input:T diagonal:i=0", func(m *machine, a []any) any {
		d := int(max(min(a[1].(int64), 1<<31), -1<<31))
		return m.band(a[0].(*tensor), func(r, c int) bool { return c-r >= d })
	})
	reg("tm", "diagonal diag", "input:T offset:i=0", diagonal)
	reg("tm", "trace", "input:T", func(m *machine, a []any) any {
		d, ok := diagonal(m, []any{a[0], int64(0)}).(*tensor)
		if !ok || len(a[0].(*tensor).shape) != 2 {
			return m.fail("trace takes two dimensions")
		}
		return m.sum(d, nil, false)
	})
	reg("m", "unfold", "input:T dimension:i size:i step:i", unfold)
	reg("f", "pad", "input:T pad:I mode:s=constant value:n?=None", func(m *machine, a []any) any {
		value, _ := a[3].(float64)
		if a[2] != "constant" {
			return m.fail("pad mode %.20q is not supported; use constant", a[2])
		}
		return m.pad(a[0].(*tensor), a[1].([]int64), value)
	})
}

func diff(m *machine, a []any) any {
	t, n, dim := a[0].(*tensor), a[1].(int64), a[2].(int64)
	parts := []*tensor{}
	for _, k := range []int{3, 0, 4} {
		if p, ok := a[k].(*tensor); ok {
			parts = append(parts, p)
		}
	}
	if len(parts) > 1 {
		t = m.cat(parts, dim)
	}
	if len(t.shape) == 0 || n < 0 || n > 64 {
		return m.fail("diff of order %d of shape %v is not supported", n, t.shape)
	}
	at := m.dim(dim, len(t.shape))
	for range n {
		if m.err != nil {
			return dead
		}
		size := int64(t.shape[at])
		if size == 0 {
			return t
		}
		high, low := m.narrow(t, dim, 1, size-1), m.narrow(t, dim, 0, size-1)
		if t.dt == boolean {
			t = m.binary(high, low, binaryRule{i: bitwise["bitwise_xor"]})
			continue
		}
		t = m.sub(high, low)
	}
	return t
}

// diagonal of two dimensions; of one, the matrix with it.
func diagonal(m *machine, a []any) any {
	t, offset := a[0].(*tensor), a[1].(int64)
	if offset < -1<<31 || offset > 1<<31 {
		return m.fail("a diagonal %d is out of range", offset)
	}
	switch len(t.shape) {
	case 1:
		n := t.shape[0] + int(max(offset, -offset))
		index := m.walk(0, []int{n, n}, []int{0, 0})
		for k := range index {
			index[k] = -1
		}
		for k := range t.shape[0] {
			if m.err == nil {
				index[(k+int(max(-offset, 0)))*n+k+int(max(offset, 0))] = k
			}
		}
		return fresh(m.take(t, []int{n, n}, index))
	case 2:
		r, c := int64(t.shape[0]), int64(t.shape[1])
		n := max(0, min(r-max(-offset, 0), c-max(offset, 0)))
		shape := []int{int(n)}
		return m.take(t, shape, m.walk(int(max(-offset, 0)*c+max(offset, 0)), shape, []int{int(c) + 1}))
	}
	return m.fail("diagonal takes one or two dimensions")
}

// unfold makes windows of a dimension, the last dimension of the result.
func unfold(m *machine, a []any) any {
	t, size, step := a[0].(*tensor), a[2].(int64), a[3].(int64)
	at := m.dim(a[1].(int64), len(t.shape))
	if m.err != nil || len(t.shape) == 0 || size < 0 || step < 1 || size > int64(t.shape[at]) {
		return m.fail("windows of %d by %d of shape %v are not defined", size, step, t.shape)
	}
	shape, s := append(slices.Clone(t.shape), int(size)), strides(t.shape)
	s = append(s, s[at])
	shape[at] = (t.shape[at]-int(size))/int(min(step, 1<<31)) + 1
	s[at] *= int(min(step, 1<<31))
	return m.take(t, shape, m.walk(0, shape, s))
}

func initJoins() {
	reg("t", "cat concat concatenate", "tensors:L dim:i=0", func(m *machine, a []any) any { return m.cat(a[0].([]*tensor), a[1].(int64)) })
	reg("t", "stack", "tensors:L dim:i=0", func(m *machine, a []any) any { return m.stack(a[0].([]*tensor), a[1].(int64)) })
	join := func(rank int, dim int64) func(m *machine, a []any) any {
		return func(m *machine, a []any) any {
			ts := slices.Clone(a[0].([]*tensor))
			for k, t := range ts {
				for len(ts[k].shape) < rank {
					ts[k] = m.reshaped(t, append(slices.Repeat([]int{1}, rank-len(t.shape)), t.shape...))
				}
			}
			d := dim
			if rank == 1 && len(ts) > 0 && len(ts[0].shape) > 1 {
				d = 1
			}
			return m.cat(ts, d)
		}
	}
	reg("t", "hstack", "tensors:L", join(1, 0))
	reg("t", "vstack row_stack", "tensors:L", join(2, 0))
	reg("tm", "split", "input:T split_size_or_sections:i dim:i=0", func(m *machine, a []any) any {
		return m.evenPieces(a[0].(*tensor), a[2].(int64), a[1].(int64))
	})
	reg("tm", "split", "input:T split_size:i dim:i=0", func(m *machine, a []any) any {
		return m.evenPieces(a[0].(*tensor), a[2].(int64), a[1].(int64))
	})
	reg("tm", "split", "input:T split_size_or_sections:I dim:i=0", func(m *machine, a []any) any {
		return m.pieces(a[0].(*tensor), a[2].(int64), a[1].([]int64))
	})
	reg("tm", "split_with_sizes", "input:T split_sizes:I dim:i=0", func(m *machine, a []any) any {
		return m.pieces(a[0].(*tensor), a[2].(int64), a[1].([]int64))
	})
	reg("tm", "chunk", "input:T chunks:i dim:i=0", func(m *machine, a []any) any {
		t, n := a[0].(*tensor), a[1].(int64)
		at := m.dim(a[2].(int64), len(t.shape))
		if m.err != nil || len(t.shape) == 0 || n < 1 {
			return m.fail("%d chunks of shape %v are not defined", n, t.shape)
		}
		n = min(n, int64(max(t.shape[at], 1)))
		return m.evenPieces(t, a[2].(int64), max(1, (int64(t.shape[at])+n-1)/n))
	})
	reg("tm", "unbind", "input:T dim:i=0", func(m *machine, a []any) any { return m.unbind(a[0].(*tensor), a[1].(int64)) })
	for rank, name := range map[int]string{1: "atleast_1d", 2: "atleast_2d"} {
		reg("t", name, "input:T", func(m *machine, a []any) any {
			t := a[0].(*tensor)
			for len(t.shape) < rank {
				t = m.reshaped(t, append([]int{1}, t.shape...))
			}
			return t
		})
	}
}
