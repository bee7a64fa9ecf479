package customloss

import (
	"slices"
	"strings"
)

// product3 multiplies [B,M,K] by [B,K,N].
func (m *machine) product3(a, b *tensor) *tensor {
	if m.err != nil {
		return dead
	}
	if a.dt != b.dt {
		return m.fail("a matrix product of %v and %v is not defined; convert one", a.dt, b.dt)
	}
	B, M, K, N := a.shape[0], a.shape[1], a.shape[2], b.shape[2]
	out := m.alloc(a.dt, []int{B, M, N})
	if m.err != nil {
		return dead
	}
	if K > 0 && out.len() > 1<<40/K || !m.work(out.len()*K) {
		return m.fail("%w: a matrix product of %v and %v", ErrLimit, a.shape, b.shape)
	}
	// Rows of b are read in order, so that long products stay in cache.
	row := make([]float64, N)
	whole := make([]int64, N)
	for r := range B * M {
		left, right := r*K, r/max(M, 1)*K*N
		if !a.dt.floating() {
			clear(whole)
			for k := range K {
				for j := range whole {
					whole[j] += a.i[left+k] * b.i[right+k*N+j]
				}
			}
			for j, s := range whole {
				out.i[r*N+j] = a.dt.wrap(s)
			}
			continue
		}
		clear(row)
		for k, x := range a.f[left : left+K] {
			for j, y := range b.f[right+k*N : right+k*N+N] {
				row[j] += x * y
			}
		}
		for j, s := range row {
			out.f[r*N+j] = a.dt.round(s)
		}
	}
	return m.track(out, func(g []float64) {
		da, db := make([]float64, len(a.f)), make([]float64, len(b.f))
		for r := range B * M {
			left, right := r*K, r/max(M, 1)*K*N
			for k := range K {
				x, s := a.f[left+k], 0.0
				for j, v := range g[r*N : r*N+N] {
					s += v * b.f[right+k*N+j]
					db[right+k*N+j] += v * x
				}
				da[left+k] = s
			}
		}
		a.push(da)
		b.push(db)
	}, a, b)
}

// matmul is torch.matmul: vectors, matrices and batches of them.
func (m *machine) matmul(a, b *tensor) *tensor {
	if len(a.shape) == 0 || len(b.shape) == 0 {
		return m.fail("matmul takes at least one dimension on both sides")
	}
	row, column := len(a.shape) == 1, len(b.shape) == 1
	if row {
		a = m.unsqueeze(a, 0)
	}
	if column {
		b = m.unsqueeze(b, 1)
	}
	if m.err != nil {
		return dead
	}
	ra, rb := len(a.shape), len(b.shape)
	M, K, N := a.shape[ra-2], a.shape[ra-1], b.shape[rb-1]
	if b.shape[rb-2] != K {
		return m.fail("matmul of shapes %v and %v is not defined", a.shape, b.shape)
	}
	batch := m.broadcastShapes(a.shape[:ra-2], b.shape[:rb-2])
	if m.err != nil {
		return dead
	}
	B, ok := sizeOf(batch)
	if !ok {
		return m.fail("%w: a batch of shape %v", ErrLimit, batch)
	}
	wide := func(t *tensor, r, c int) *tensor {
		return m.reshaped(m.expand(t, slices.Concat(batch, []int{r, c})), []int{B, r, c})
	}
	out := m.product3(wide(a, M, K), wide(b, K, N))
	shape := slices.Clone(batch)
	if !row {
		shape = append(shape, M)
	}
	if !column {
		shape = append(shape, N)
	}
	return m.reshaped(out, shape)
}

// einsum multiplies its operands, broadcast over all letters, and sums the
// letters that the result lacks.
func (m *machine) einsum(equation string, ts []*tensor) *tensor {
	equation = strings.ReplaceAll(equation, " ", "")
	left, right, explicit := strings.Cut(equation, "->")
	terms := strings.Split(left, ",")
	if len(terms) != len(ts) {
		return m.fail("einsum %.60q has %d terms for %d tensors", equation, len(terms), len(ts))
	}
	letters := ""
	size := map[byte]int{}
	for k, term := range terms {
		if len(term) != len(ts[k].shape) {
			return m.fail("einsum term %.60q does not fit a tensor of shape %v (an ellipsis is not supported)", term, ts[k].shape)
		}
		for d := range term {
			c := term[d]
			old, seen := size[c]
			switch {
			case !(c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z') || strings.Count(term, string(c)) > 1:
				return m.fail("einsum term %.60q: letters alone, each once, are supported", term)
			case !seen:
				letters += string(c)
			case old != ts[k].shape[d]:
				return m.fail("einsum letter %c is both %d and %d", c, old, ts[k].shape[d])
			}
			size[c] = ts[k].shape[d]
		}
	}
	if !explicit {
		sorted := []byte(letters)
		slices.Sort(sorted)
		for _, c := range sorted {
			if strings.Count(left, string(c)) == 1 {
				right += string(c)
			}
		}
	}
	order := right
	for _, c := range letters {
		if !strings.ContainsRune(right, c) {
			order += string(c)
		}
	}
	for k := range right {
		if strings.Count(right, right[k:k+1]) > 1 || !strings.Contains(letters, right[k:k+1]) {
			return m.fail("einsum result %.60q names a letter twice or one that no term has", right)
		}
	}
	if len(order) > maxRank {
		return m.fail("einsum of %d letters, the limit is %d", len(order), maxRank)
	}
	var out *tensor
	for k, term := range terms {
		t := m.alignTo(ts[k], term, order)
		if out != nil {
			t = m.mul(out, t)
		}
		out = t
	}
	var dims []int64
	for d := len(right); d < len(order); d++ {
		dims = append(dims, int64(d))
	}
	if len(dims) == 0 {
		return out
	}
	return m.sum(out, dims, false)
}

// alignTo permutes the dimensions named by term into the order given, size 1 where it has none.
func (m *machine) alignTo(t *tensor, term, order string) *tensor {
	var perm []int
	for _, c := range order {
		if d := strings.IndexRune(term, c); d >= 0 {
			perm = append(perm, d)
		}
	}
	t = m.permute(t, perm)
	for d, c := range order {
		if !strings.ContainsRune(term, c) {
			t = m.unsqueeze(t, int64(d))
		}
	}
	return t
}

// similarity is cosine similarity, each norm at least eps.
func (m *machine) similarity(a, b *tensor, dim int64, eps float64) *tensor {
	shape := m.broadcast(a, b)
	a, b = m.expand(m.inDtype(a, nil, float32s), shape), m.expand(m.inDtype(b, nil, float32s), shape)
	low := scalar(eps)
	na := m.clampDetached(m.norm(a, 2, []int64{dim}, true), low)
	nb := m.clampDetached(m.norm(b, 2, []int64{dim}, true), low)
	return m.sum(m.mul(m.div(a, na), m.div(b, nb)), []int64{dim}, false)
}

// clampDetached raises values to low and lets the gradient pass everywhere: torch
// clamps the norms of cosine similarity outside autograd.
func (m *machine) clampDetached(t, low *tensor) *tensor {
	x := low.at(0)
	return m.unary(t, unaryRule{f: func(v float64) float64 { return max(v, x) }, d: func(_, _ float64) float64 { return 1 }})
}

func initLinalg() {
	rank := func(name string, ra, rb int) {
		reg("tm", name, "input:T other:T", func(m *machine, a []any) any {
			x, y := a[0].(*tensor), a[1].(*tensor)
			if len(x.shape) != ra || len(y.shape) != rb {
				return m.fail("%s takes %d and %d dimensions, not %d and %d", name, ra, rb, len(x.shape), len(y.shape))
			}
			return m.matmul(x, y)
		})
	}
	rank("mm", 2, 2)
	rank("bmm", 3, 3)
	rank("mv", 2, 1)
	rank("dot", 1, 1)
	rank("vdot", 1, 1)
	rank("inner", 1, 1)
	reg("tm", "matmul __matmul__", "input:T other:T", func(m *machine, a []any) any { return m.matmul(a[0].(*tensor), a[1].(*tensor)) })
	reg("tm", "outer ger", "input:T vec2:T", func(m *machine, a []any) any {
		x, y := a[0].(*tensor), a[1].(*tensor)
		if len(x.shape) != 1 || len(y.shape) != 1 {
			return m.fail("outer takes two vectors")
		}
		return m.mul(m.unsqueeze(x, 1), y)
	})
	reg("t", "einsum", "equation:s operands:*L", func(m *machine, a []any) any { return m.einsum(a[0].(string), a[1].([]*tensor)) })
	reg("t", "einsum", "equation:s operand:T", func(m *machine, a []any) any { return m.einsum(a[0].(string), []*tensor{a[1].(*tensor)}) })
	reg("f", "linear", "input:T weight:T bias:T?=None", func(m *machine, a []any) any {
		out := m.matmul(a[0].(*tensor), m.reverseDims(a[1].(*tensor)))
		if b, ok := a[2].(*tensor); ok {
			return m.add(out, b)
		}
		return out
	})
	reg("tf", "cosine_similarity", "x1:T x2:T dim:i=1 eps:n=1e-08", func(m *machine, a []any) any {
		return m.similarity(a[0].(*tensor), a[1].(*tensor), a[2].(int64), a[3].(float64))
	})
	reg("tf", "pairwise_distance", "x1:T x2:T p:n=2 eps:n=1e-06 keepdim:b=False", func(m *machine, a []any) any {
		d := m.add(m.sub(a[0].(*tensor), a[1].(*tensor)), scalar(a[3].(float64)))
		return m.norm(d, a[2].(float64), []int64{-1}, a[4].(bool))
	})
}
