package customloss

import "math"

// binaryRule is an elementwise function of two tensors of one dtype. The slopes
// take x, y and the result; nil ones stop the gradient. i is the integer form:
// nil sends integers through float32 when toFloat is set, else fails.
type binaryRule struct {
	f       func(x, y float64) float64
	i       func(x, y int64) int64
	dx, dy  func(x, y, z float64) float64
	toFloat bool
	masked  bool // a zero slope stops even an infinite gradient
}

func (m *machine) binary(a, b *tensor, r binaryRule) *tensor {
	if m.err != nil {
		return dead
	}
	dt := resultType(a, b)
	if !dt.floating() && r.toFloat {
		dt = float32s
	}
	shape := m.broadcast(a, b)
	a, b = m.cast(a, dt), m.cast(b, dt)
	ia, ib := m.spread(a.shape, shape), m.spread(b.shape, shape)
	out := m.alloc(dt, shape)
	if m.err != nil {
		return dead
	}
	if !dt.floating() {
		if r.i == nil {
			return m.fail("this operation is not defined on %v tensors", dt)
		}
		for k := range out.i {
			out.i[k] = dt.wrap(r.i(a.i[pick(ia, k)], b.i[pick(ib, k)]))
		}
		return out
	}
	if r.f == nil {
		return m.fail("this operation is not defined on %v tensors", dt)
	}
	for k := range out.f {
		out.f[k] = dt.round(r.f(a.f[pick(ia, k)], b.f[pick(ib, k)]))
	}
	if r.dx == nil && r.dy == nil {
		return out
	}
	flow := func(g []float64, to *tensor, slope func(x, y, z float64) float64, index []int) {
		if to.node == nil || slope == nil {
			return
		}
		d := make([]float64, len(to.f))
		for k := range g {
			s := slope(a.f[pick(ia, k)], b.f[pick(ib, k)], out.f[k])
			if s != 0 || !r.masked {
				d[pick(index, k)] += g[k] * s
			}
		}
		to.push(d)
	}
	return m.track(out, func(g []float64) {
		flow(g, a, r.dx, ia)
		flow(g, b, r.dy, ib)
	}, a, b)
}

func boolInt(b bool) int64 {
	if b {
		return 1
	}
	return 0
}

func (m *machine) compare(a, b *tensor, f func(x, y float64) bool, i func(x, y int64) bool) *tensor {
	dt := resultType(a, b)
	shape := m.broadcast(a, b)
	a, b = m.cast(a, dt), m.cast(b, dt)
	ia, ib := m.spread(a.shape, shape), m.spread(b.shape, shape)
	out := m.alloc(boolean, shape)
	if m.err != nil {
		return dead
	}
	for k := range out.i {
		if dt.floating() {
			out.i[k] = boolInt(f(a.f[pick(ia, k)], b.f[pick(ib, k)]))
		} else {
			out.i[k] = boolInt(i(a.i[pick(ia, k)], b.i[pick(ib, k)]))
		}
	}
	return out
}

// floorMod is Python's remainder, of the divisor's sign.
func floorMod(x, y float64) float64 {
	r := math.Mod(x, y)
	if r != 0 && (r < 0) != (y < 0) {
		r += y
	}
	return r
}

func floorDivInt(x, y int64) int64 {
	q := x / y
	if x%y != 0 && (x < 0) != (y < 0) {
		q--
	}
	return q
}

func powInt(x, y int64) int64 {
	out := int64(1)
	for ; y > 0; y >>= 1 {
		if y&1 == 1 {
			out *= x
		}
		x *= x
	}
	return out
}

func logAddExp(x, y float64) float64 {
	if math.IsInf(x, 0) && x == y {
		return x
	}
	top := math.Max(x, y)
	return top + math.Log1p(math.Exp(-math.Abs(x-y)))
}

func xlogy(x, y float64) float64 {
	switch {
	case math.IsNaN(y):
		return y
	case x == 0:
		return 0
	}
	return x * math.Log(y)
}

// powSlopes follow torch at exponent 0 and base 0.
func powBaseSlope(x, y, _ float64) float64 {
	if y == 0 {
		return 0
	}
	return y * math.Pow(x, y-1)
}

func powExponentSlope(x, y, z float64) float64 {
	if x == 0 && y >= 0 {
		return 0
	}
	return z * math.Log(x)
}

// nanSlope is the slope of fmax and fmin, which a NaN never wins.
func nanSlope(wins func(x, y float64) bool) (dx, dy func(x, y, z float64) float64) {
	slope := func(x, y, _ float64) float64 {
		switch {
		case x == y:
			return 0.5
		case math.IsNaN(y):
			return 1
		}
		return step01(wins(x, y))
	}
	return slope, func(x, y, z float64) float64 { return 1 - slope(x, y, z) }
}

// tieSlope shares the gradient of equal elements, as maximum and minimum do.
func tieSlope(won func(x, y float64) bool) (dx, dy func(x, y, z float64) float64) {
	share := func(mine, other float64) float64 {
		switch {
		case mine == other:
			return 0.5
		case won(other, mine):
			return 0
		}
		return 1
	}
	return func(x, y, _ float64) float64 { return share(x, y) }, func(x, y, _ float64) float64 { return share(y, x) }
}

var binaries = map[string]binaryRule{
	"add": {f: func(x, y float64) float64 { return x + y }, i: func(x, y int64) int64 { return x + y },
		dx: one3, dy: one3},
	"sub": {f: func(x, y float64) float64 { return x - y }, i: func(x, y int64) int64 { return x - y },
		dx: one3, dy: func(_, _, _ float64) float64 { return -1 }},
	"mul": {f: func(x, y float64) float64 { return x * y }, i: func(x, y int64) int64 { return x * y },
		dx: func(_, y, _ float64) float64 { return y }, dy: func(x, _, _ float64) float64 { return x }},
	"div": {f: func(x, y float64) float64 { return x / y }, toFloat: true,
		dx: func(_, y, _ float64) float64 { return 1 / y }, dy: func(_, y, z float64) float64 { return -z / y }},
	"remainder": {f: floorMod, i: func(x, y int64) int64 { return x - y*floorDivInt(x, y) },
		dx: one3, dy: func(x, y, _ float64) float64 { return -math.Floor(x / y) }},
	"fmod": {f: math.Mod, i: func(x, y int64) int64 { return x % y },
		dx: one3, dy: func(x, y, _ float64) float64 { return -math.Trunc(x / y) }},
	"pow": {f: math.Pow, i: powInt, dx: powBaseSlope, dy: powExponentSlope},
	"atan2": {f: math.Atan2, toFloat: true, masked: true,
		dx: func(x, y, _ float64) float64 { return atanSlope(y, x*x+y*y) }, dy: func(x, y, _ float64) float64 { return -atanSlope(x, x*x+y*y) }},
	"hypot": {f: math.Hypot, toFloat: true, dx: func(x, _, z float64) float64 { return x / z }, dy: func(_, y, z float64) float64 { return y / z }},
	"logaddexp": {f: logAddExp, toFloat: true, dx: func(x, _, z float64) float64 { return math.Exp(x - z) },
		dy: func(_, y, z float64) float64 { return math.Exp(y - z) }},
	"logaddexp2": {f: func(x, y float64) float64 { return logAddExp(x*math.Ln2, y*math.Ln2) / math.Ln2 }, toFloat: true,
		dx: func(x, _, z float64) float64 { return math.Exp2(x - z) }, dy: func(_, y, z float64) float64 { return math.Exp2(y - z) }},
	"xlogy":    {f: xlogy, toFloat: true, dx: xlogySlope, dy: func(x, y, _ float64) float64 { return x / y }},
	"floordiv": {f: func(x, y float64) float64 { return floorDiv(x, y) }, i: floorDivInt, dx: flat3, dy: flat3, masked: true},
	"truncdiv": {f: func(x, y float64) float64 { return math.Trunc(x / y) }, i: func(x, y int64) int64 { return x / y }, dx: flat3, dy: flat3, masked: true},
	"copysign": {f: math.Copysign, toFloat: true, dx: func(x, _, z float64) float64 {
		if x == 0 {
			return 0
		}
		return z / x
	}},
	"heaviside": {f: func(x, y float64) float64 {
		if x == 0 {
			return y
		}
		return keepNaN(x, step01(x > 0))
	}},
}

// atanSlope is zero at the origin.
func atanSlope(x, square float64) float64 {
	if square == 0 {
		return 0
	}
	return x / square
}

func one3(_, _, _ float64) float64  { return 1 }
func flat3(_, _, _ float64) float64 { return 0 }

func xlogySlope(x, y, _ float64) float64 {
	if x == 0 && !math.IsNaN(y) && y <= 0 {
		return 0
	}
	return math.Log(y)
}

func fmaxOf(x, y float64) float64 {
	switch {
	case math.IsNaN(x):
		return y
	case math.IsNaN(y):
		return x
	}
	return math.Max(x, y)
}

// floorDiv is torch's floor division of floats: exact at integers.
func floorDiv(x, y float64) float64 {
	if y == 0 {
		return x / y
	}
	r := math.Mod(x, y)
	q := (x - r) / y
	if r != 0 && (y < 0) != (r < 0) {
		q--
	}
	if q == 0 {
		return math.Copysign(0, x/y)
	}
	if f := math.Floor(q); q-f > 0.5 {
		return f + 1
	} else {
		return f
	}
}

func init() {
	dx, dy := tieSlope(func(x, y float64) bool { return x > y })
	binaries["maximum"] = binaryRule{f: math.Max, i: func(x, y int64) int64 { return max(x, y) }, dx: dx, dy: dy, masked: true}
	dx, dy = tieSlope(func(x, y float64) bool { return x < y })
	binaries["minimum"] = binaryRule{f: math.Min, i: func(x, y int64) int64 { return min(x, y) }, dx: dx, dy: dy, masked: true}

	dx, dy = nanSlope(func(x, y float64) bool { return x > y })
	binaries["fmax"] = binaryRule{f: fmaxOf, i: func(x, y int64) int64 { return max(x, y) }, dx: dx, dy: dy, masked: true}
	dx, dy = nanSlope(func(x, y float64) bool { return x < y })
	binaries["fmin"] = binaryRule{f: func(x, y float64) float64 { return -fmaxOf(-x, -y) }, i: func(x, y int64) int64 { return min(x, y) }, dx: dx, dy: dy, masked: true}

	initArithmetic()
	for _, name := range []string{"fmax", "fmin", "maximum", "minimum", "atan2", "hypot", "logaddexp", "logaddexp2", "heaviside", "copysign"} {
		reg("tmi", name, "input:T other:S", func(m *machine, a []any) any {
			return m.binary(a[0].(*tensor), a[1].(*tensor), binaries[name])
		})
	}
	reg("tmi", "arctan2", "input:T other:T", func(m *machine, a []any) any {
		return m.binary(a[0].(*tensor), a[1].(*tensor), binaries["atan2"])
	})
	reg("tmis", "xlogy", "input:S other:S", func(m *machine, a []any) any {
		return m.binary(a[0].(*tensor), a[1].(*tensor), binaries["xlogy"])
	})
	for names, c := range map[string]struct {
		f func(x, y float64) bool
		i func(x, y int64) bool
	}{
		"eq":               {func(x, y float64) bool { return x == y }, func(x, y int64) bool { return x == y }},
		"ne not_equal":     {func(x, y float64) bool { return x != y }, func(x, y int64) bool { return x != y }},
		"lt less":          {func(x, y float64) bool { return x < y }, func(x, y int64) bool { return x < y }},
		"le less_equal":    {func(x, y float64) bool { return x <= y }, func(x, y int64) bool { return x <= y }},
		"gt greater":       {func(x, y float64) bool { return x > y }, func(x, y int64) bool { return x > y }},
		"ge greater_equal": {func(x, y float64) bool { return x >= y }, func(x, y int64) bool { return x >= y }},
	} {
		reg("tm", names, "input:T other:S", func(m *machine, a []any) any { return m.compare(a[0].(*tensor), a[1].(*tensor), c.f, c.i) })
	}
	for name, f := range map[string]func(x, y bool) bool{
		"logical_and": func(x, y bool) bool { return x && y },
		"logical_or":  func(x, y bool) bool { return x || y },
		"logical_xor": func(x, y bool) bool { return x != y },
	} {
		reg("tmi", name, "input:T other:T", func(m *machine, a []any) any {
			return m.compare(m.test(a[0].(*tensor), isTrue), m.test(a[1].(*tensor), isTrue), nil, func(x, y int64) bool { return f(x != 0, y != 0) })
		})
	}
	for name, f := range bitwise {
		reg("tmi", name, "input:S other:S", func(m *machine, a []any) any {
			return m.binary(a[0].(*tensor), a[1].(*tensor), binaryRule{i: f})
		})
	}
	reg("tmi", "bitwise_not", "input:T", func(m *machine, a []any) any { return m.invert(a[0].(*tensor)) })
	reg("tm", "isclose", "input:T other:T rtol:n=1e-05 atol:n=1e-08 equal_nan:b=False", func(m *machine, a []any) any {
		rtol, atol, same := a[2].(float64), a[3].(float64), a[4].(bool)
		near := func(x, y float64) bool {
			return x == y || same && math.IsNaN(x) && math.IsNaN(y) || !math.IsInf(y, 0) && math.Abs(x-y) <= atol+rtol*math.Abs(y)
		}
		return m.compare(a[0].(*tensor), a[1].(*tensor), near, func(x, y int64) bool { return near(float64(x), float64(y)) })
	})
}

func isTrue(x float64) bool { return x != 0 }

var bitwise = map[string]func(x, y int64) int64{
	"bitwise_and": func(x, y int64) int64 { return x & y },
	"bitwise_or":  func(x, y int64) int64 { return x | y },
	"bitwise_xor": func(x, y int64) int64 { return x ^ y },
	"bitwise_left_shift": func(x, y int64) int64 {
		if y < 0 || y > 63 {
			return 0
		}
		return x << y
	},
	"bitwise_right_shift": func(x, y int64) int64 { return x >> min(uint64(y), 63) },
}

func (m *machine) invert(t *tensor) *tensor {
	switch {
	case t.dt == boolean:
		return m.integral(t, func(x int64) int64 { return 1 - x })
	case t.dt.floating():
		return m.fail("~ of a %v tensor is not defined", t.dt)
	}
	return m.integral(t, func(x int64) int64 { return ^x })
}
