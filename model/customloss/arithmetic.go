package customloss

import (
	"math"
	"slices"
)

// arithmetic computes a named binary operation with torch's checks of integers.
func (m *machine) arithmetic(name string, a, b *tensor) *tensor {
	if m.err != nil {
		return dead
	}
	dt := resultType(a, b)
	switch {
	case name == "sub" && a.dt == boolean && b.dt == boolean:
		return m.fail("- of two bool tensors is not defined; use ^ or logical_not")
	case dt.floating():
	case slices.Contains([]string{"floordiv", "truncdiv", "remainder", "fmod"}, name):
		if slices.Contains(b.i, 0) {
			return m.fail("integer division by zero")
		}
		if dt == boolean {
			return m.fail("division of bool tensors is not defined")
		}
	case name == "pow":
		if slices.ContainsFunc(b.i, func(x int64) bool { return x < 0 }) {
			return m.fail("an integer to a negative integer power is not defined; use a float")
		}
	}
	return m.binary(a, b, binaries[name])
}

// scaled is b times alpha, left alone where alpha is 1.
func (m *machine) scaled(b *tensor, alpha any) *tensor {
	if n := scalar(alpha); n != nil && n.at(0) != 1 {
		return m.arithmetic("mul", b, n)
	}
	return b
}

func (m *machine) add(a, b *tensor) *tensor { return m.arithmetic("add", a, b) }
func (m *machine) sub(a, b *tensor) *tensor { return m.arithmetic("sub", a, b) }
func (m *machine) mul(a, b *tensor) *tensor { return m.arithmetic("mul", a, b) }
func (m *machine) div(a, b *tensor) *tensor { return m.arithmetic("div", a, b) }

// choose is torch.where.
func (m *machine) choose(cond, a, b *tensor) *tensor {
	if m.err != nil {
		return dead
	}
	if cond.dt != boolean && cond.dt != uint8s {
		return m.fail("a condition must be a bool tensor, it is %v", cond.dt)
	}
	dt := resultType(a, b)
	shape := m.broadcast(cond, a, b)
	a, b = m.cast(a, dt), m.cast(b, dt)
	ic, ia, ib := m.spread(cond.shape, shape), m.spread(a.shape, shape), m.spread(b.shape, shape)
	out := m.alloc(dt, shape)
	if m.err != nil {
		return dead
	}
	for k := range out.len() {
		from, at := b, pick(ib, k)
		if cond.truth(pick(ic, k)) {
			from, at = a, pick(ia, k)
		}
		if dt.floating() {
			out.f[k] = from.f[at]
		} else {
			out.i[k] = from.i[at]
		}
	}
	return m.track(out, func(g []float64) {
		for _, side := range []struct {
			t     *tensor
			index []int
			when  bool
		}{{a, ia, true}, {b, ib, false}} {
			if side.t.node == nil {
				continue
			}
			d := make([]float64, len(side.t.f))
			for k := range g {
				if cond.truth(pick(ic, k)) == side.when {
					d[pick(side.index, k)] += g[k]
				}
			}
			side.t.push(d)
		}
	}, a, b)
}

// clamp takes bounds that are numbers, tensors or nil.
func (m *machine) clamp(t, low, high *tensor) *tensor {
	if m.err != nil {
		return dead
	}
	if low == nil && high == nil {
		return m.fail("clamp needs min or max")
	}
	// The gradient passes at a bound that is a number and is cut outside. A bound
	// that is a tensor gets it where the bound was taken, and half of it at a tie.
	bound := func(t, b *tensor, f func(x, y float64) float64, i func(x, y int64) int64, inside func(x, y float64) bool) *tensor {
		share := func(x, y, _ float64) float64 {
			switch {
			case b.weak:
				return step01(inside(x, y))
			case x == y:
				return 0.5
			}
			return step01(inside(x, y) || math.IsNaN(x) || math.IsNaN(y))
		}
		return m.binary(t, b, binaryRule{f: f, i: i, masked: true, dx: share,
			dy: func(x, y, z float64) float64 { return 1 - share(x, y, z) }})
	}
	if low != nil {
		t = bound(t, low, math.Max, func(x, y int64) int64 { return max(x, y) }, func(x, y float64) bool { return x >= y })
	}
	if high != nil {
		t = bound(t, high, math.Min, func(x, y int64) int64 { return min(x, y) }, func(x, y float64) bool { return x <= y })
	}
	return t
}

func optional(v any) *tensor {
	if t, ok := v.(*tensor); ok {
		return t
	}
	return nil
}

func initArithmetic() {
	simple := func(where, names, op string) {
		reg(where, names, "input:S other:S ; alpha:A=None", func(m *machine, a []any) any {
			return m.arithmetic(op, a[0].(*tensor), m.scaled(a[1].(*tensor), a[2]))
		})
	}
	simple("tmi", "add", "add")
	simple("tmi", "sub subtract", "sub")
	reg("t", "rsub", "input:T other:S ; alpha:A=None", func(m *machine, a []any) any {
		return m.sub(a[1].(*tensor), m.scaled(a[0].(*tensor), a[2]))
	})
	for names, op := range map[string]string{
		"mul multiply": "mul", "true_divide": "div", "floor_divide": "floordiv", "remainder": "remainder",
		"fmod": "fmod",
	} {
		reg("tmi", names, "input:S other:S", func(m *machine, a []any) any {
			return m.arithmetic(op, a[0].(*tensor), a[1].(*tensor))
		})
	}
	reg("tmi", "pow", "input:S exponent:S", func(m *machine, a []any) any {
		return m.arithmetic("pow", a[0].(*tensor), a[1].(*tensor))
	})
	reg("tm", "float_power", "input:S exponent:S", func(m *machine, a []any) any {
		return m.arithmetic("pow", m.cast(a[0].(*tensor), float64s), m.cast(a[1].(*tensor), float64s))
	})
	reg("tmi", "div divide", "input:S other:S ; rounding_mode:s?=None", func(m *machine, a []any) any {
		op, ok := map[any]string{nil: "div", "floor": "floordiv", "trunc": "truncdiv"}[a[2]]
		if !ok {
			return m.fail("rounding_mode %.20v, it is floor or trunc", a[2])
		}
		return m.arithmetic(op, a[0].(*tensor), a[1].(*tensor))
	})
	reg("tmi", "clamp clip", "input:T min:S?=None max:S?=None", func(m *machine, a []any) any {
		return m.clamp(a[0].(*tensor), optional(a[1]), optional(a[2]))
	})
	reg("tmi", "clamp_min", "input:T min:S", func(m *machine, a []any) any { return m.clamp(a[0].(*tensor), a[1].(*tensor), nil) })
	reg("tmi", "clamp_max", "input:T max:S", func(m *machine, a []any) any { return m.clamp(a[0].(*tensor), nil, a[1].(*tensor)) })
	reg("t", "where", "condition:T input:S other:S", func(m *machine, a []any) any {
		return m.choose(a[0].(*tensor), a[1].(*tensor), a[2].(*tensor))
	})
	reg("t", "where", "condition:T", func(m *machine, a []any) any { return m.nonzeroTuple(a[0].(*tensor)) })
	reg("m", "where", "input:T condition:T other:S", func(m *machine, a []any) any {
		return m.choose(a[1].(*tensor), a[0].(*tensor), a[2].(*tensor))
	})
	reg("tmi", "masked_fill", "input:T mask:T value:S", func(m *machine, a []any) any {
		t, value := a[0].(*tensor), a[2].(*tensor)
		if len(value.shape) > 0 {
			return m.fail("masked_fill takes a value without dimensions, its shape is %v", value.shape)
		}
		return m.choose(a[1].(*tensor), m.cast(value, t.dt), t)
	})
	reg("tmi", "lerp", "input:T end:T weight:S", func(m *machine, a []any) any {
		x, y, w := a[0].(*tensor), a[1].(*tensor), a[2].(*tensor)
		return m.add(x, m.mul(w, m.sub(y, x)))
	})
	reg("tmi", "addcmul", "input:T tensor1:T tensor2:T ; value:A=None", func(m *machine, a []any) any {
		return m.add(a[0].(*tensor), m.scaled(m.mul(a[1].(*tensor), a[2].(*tensor)), a[3]))
	})
	reg("tmi", "addcdiv", "input:T tensor1:T tensor2:T ; value:A=None", func(m *machine, a []any) any {
		return m.add(a[0].(*tensor), m.scaled(m.div(a[1].(*tensor), a[2].(*tensor)), a[3]))
	})
}
