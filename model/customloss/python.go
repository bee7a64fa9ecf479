package customloss

import (
	"math"
	"slices"
	"strings"
)

// operators maps Python's operators to the tensor operation and, for two Python
// numbers, to what Python does.
var operators = map[string]string{
	"add": "add", "sub": "sub", "mul": "mul", "truediv": "div", "floordiv": "floordiv", "mod": "remainder", "pow": "pow",
	"and_ and": "bitwise_and", "or_ or": "bitwise_or", "xor": "bitwise_xor", "lshift": "bitwise_left_shift", "rshift": "bitwise_right_shift",
	"eq": "eq", "ne": "ne", "lt": "lt", "le": "le", "gt": "gt", "ge": "ge",
}

func initOperators() {
	for names, op := range operators {
		reg("o", names, "a:A b:A", func(m *machine, a []any) any { return m.operator(op, a[0], a[1]) })
	}
	for names, op := range map[string]string{"neg": "neg", "pos": "positive", "abs": "abs", "invert inv": "bitwise_not"} {
		reg("o", names, "a:A", func(m *machine, a []any) any {
			if t, ok := a[0].(*tensor); ok {
				return table["torch."+op][0].run(m, []any{t, nil})
			}
			return m.pythonUnary(op, a[0])
		})
	}
	reg("o", "matmul", "a:T b:T", func(m *machine, a []any) any { return m.matmul(a[0].(*tensor), a[1].(*tensor)) })
	reg("o", "getitem", "a:A b:A", func(m *machine, a []any) any { return m.getitem(a[0], a[1]) })
	reg("o", "getattr", "a:A name:s", func(m *machine, a []any) any { return m.getattr(a[0], a[1].(string)) })
	for name, pickFirst := range map[string]func(x, y float64) bool{
		"sym_max": func(x, y float64) bool { return x >= y },
		"sym_min": func(x, y float64) bool { return x <= y },
	} {
		reg("t", name, "a:A b:A", func(m *machine, a []any) any {
			x, y := scalar(a[0]), scalar(a[1])
			if x == nil || y == nil {
				return m.fail("%s takes two numbers", name)
			}
			out := a[1]
			if pickFirst(x.at(0), y.at(0)) {
				out = a[0]
			}
			if x.dt.floating() || y.dt.floating() {
				return scalar(out).at(0)
			}
			return out
		})
	}
	reg("t", "sym_float", "a:n", func(_ *machine, a []any) any { return a[0] })
	reg("t", "sym_int", "a:n", func(m *machine, a []any) any { return m.toInteger(math.Trunc(a[0].(float64))) })
	reg("t", "sym_not", "a:b", func(_ *machine, a []any) any { return !a[0].(bool) })
}

// operator applies a Python operator to tensors, numbers or sequences.
func (m *machine) operator(op string, a, b any) any {
	ta, aIsTensor := a.(*tensor)
	tb, bIsTensor := b.(*tensor)
	if !aIsTensor && !bIsTensor {
		return m.pythonBinary(op, a, b)
	}
	if !aIsTensor {
		ta = scalar(a)
	}
	if !bIsTensor {
		tb = scalar(b)
	}
	if ta == nil || tb == nil {
		return m.fail("%s of %s and %s is not defined", op, kindOf(a), kindOf(b))
	}
	if f, ok := bitwise[op]; ok {
		return m.binary(ta, tb, binaryRule{i: f})
	}
	if _, ok := binaries[op]; ok {
		return m.arithmetic(op, ta, tb)
	}
	return table["torch."+op][0].run(m, []any{ta, tb})
}

func (m *machine) toInteger(x float64) any {
	if math.IsNaN(x) || math.Abs(x) >= 1<<62 {
		return m.fail("%v is no integer in range", x)
	}
	return int64(x)
}

func (m *machine) pythonUnary(op string, a any) any {
	switch x := a.(type) {
	case bool:
		return m.pythonUnary(op, boolInt(x))
	case int64:
		switch {
		case op == "bitwise_not":
			return ^x
		case op == "neg" || op == "abs" && x < 0:
			return -x
		}
		return x
	case float64:
		switch {
		case op == "bitwise_not":
		case op == "neg":
			return -x
		case op == "abs":
			return math.Abs(x)
		default:
			return x
		}
	}
	return m.fail("%s of %s is not defined", op, kindOf(a))
}

// pythonBinary is Python on two numbers or two sequences; results stay in 62 bits.
func (m *machine) pythonBinary(op string, a, b any) any {
	if la, ok := a.(list); ok {
		if lb, ok := b.(list); ok && op == "add" && la.tuple == lb.tuple {
			if len(la.items)+len(lb.items) > maxNodes {
				return m.fail("%w: a sequence of more than %d", ErrLimit, maxNodes)
			}
			if !m.charge(4 * (len(la.items) + len(lb.items))) {
				return dead
			}
			return list{items: append(slices.Clone(la.items), lb.items...), tuple: la.tuple}
		}
		return m.sequenceCompare(op, a, b)
	}
	x, y := scalar(a), scalar(b)
	if x == nil || y == nil {
		return m.sequenceCompare(op, a, b)
	}
	p, q := x.at(0), y.at(0)
	switch op {
	case "eq":
		return p == q
	case "ne":
		return p != q
	case "lt":
		return p < q
	case "le":
		return p <= q
	case "gt":
		return p > q
	case "ge":
		return p >= q
	case "div", "floordiv", "remainder":
		if q == 0 {
			return m.fail("division by zero")
		}
	}
	if !x.dt.floating() && !y.dt.floating() && op != "div" && (op != "pow" || q >= 0) {
		return m.pythonInts(op, a, b, x.i[0], y.i[0])
	}
	switch op {
	case "pow":
		if p == 0 && q < 0 || p < 0 && q != math.Trunc(q) {
			return m.fail("%v to the power %v is no real number", p, q)
		}
		return math.Pow(p, q)
	case "floordiv":
		return floorDiv(p, q)
	}
	if rule, ok := binaries[op]; ok {
		return rule.f(p, q)
	}
	return m.fail("%s of %s and %s is not defined", op, kindOf(a), kindOf(b))
}

func (m *machine) pythonInts(op string, a, b any, x, y int64) any {
	_, aBool := a.(bool)
	_, bBool := b.(bool)
	if f, ok := bitwise[op]; ok {
		if op == "bitwise_left_shift" {
			if y < 0 || y > 62 {
				return m.fail("a shift by %d", y)
			}
			return m.pythonInts("mul", nil, nil, x, int64(1)<<y)
		}
		if op == "bitwise_right_shift" && y < 0 {
			return m.fail("a shift by %d", y)
		}
		out := f(x, y)
		if aBool && bBool && !strings.HasSuffix(op, "shift") {
			return out != 0
		}
		return out
	}
	if near := math.Abs(binaries[op].f(float64(x), float64(y))); math.IsNaN(near) || near >= 1<<62 {
		return m.fail("the integer result of %s is out of range", op)
	}
	return binaries[op].i(x, y)
}

// sequenceCompare compares shapes, dtypes, devices and strings for equality.
func (m *machine) sequenceCompare(op string, a, b any) any {
	if op != "eq" && op != "ne" {
		return m.fail("%s of %s and %s is not defined", op, kindOf(a), kindOf(b))
	}
	ia, aok := integers(a)
	ib, bok := integers(b)
	la, lok := a.(list)
	lb, rok := b.(list)
	switch {
	case lok && rok && aok && bok:
		return (slices.Equal(ia, ib) && la.tuple == lb.tuple) == (op == "eq")
	case lok || rok:
		return m.fail("%s of %s and %s is not defined", op, kindOf(a), kindOf(b))
	}
	switch a.(type) {
	case nil, bool, int64, float64, string, dtype, opaque:
		switch b.(type) {
		case nil, bool, int64, float64, string, dtype, opaque:
			return (a == b) == (op == "eq")
		}
	}
	return m.fail("%s of %s and %s is not defined", op, kindOf(a), kindOf(b))
}

// mathFunctions are those of Python's math module with one argument.
var mathFunctions = map[string]func(float64) float64{
	"exp": math.Exp, "expm1": math.Expm1, "log1p": math.Log1p, "log2": math.Log2, "log10": math.Log10, "sqrt": math.Sqrt,
	"sin": math.Sin, "cos": math.Cos, "tan": math.Tan, "asin": math.Asin, "acos": math.Acos, "atan": math.Atan,
	"sinh": math.Sinh, "cosh": math.Cosh, "tanh": math.Tanh, "asinh": math.Asinh, "acosh": math.Acosh, "atanh": math.Atanh,
	"erf": math.Erf, "erfc": math.Erfc, "fabs": math.Abs, "exp2": math.Exp2, "cbrt": math.Cbrt, "gamma": math.Gamma,
	"lgamma": func(x float64) float64 { y, _ := math.Lgamma(x); return y }, "degrees": func(x float64) float64 { return x * 180 / math.Pi },
	"radians": func(x float64) float64 { return x * math.Pi / 180 },
}

// initMath registers the math module, which sees tensors as Python numbers: no
// gradient flows, as in torch.
func initMath() {
	finite := func(m *machine, name string, y float64, args ...float64) any {
		for _, x := range args {
			if math.IsNaN(x) || math.IsInf(x, 0) {
				return y
			}
		}
		if math.IsNaN(y) || math.IsInf(y, 0) {
			return m.fail("math.%s of %v is out of its domain", name, args)
		}
		return y
	}
	for name, f := range mathFunctions {
		reg("p", name, "x:A", func(m *machine, a []any) any {
			x := m.hostFloat(a[0])
			return finite(m, name, f(x), x)
		})
	}
	for name, f := range map[string]func(x, y float64) float64{
		"pow": math.Pow, "atan2": math.Atan2, "fmod": math.Mod, "hypot": math.Hypot, "copysign": math.Copysign, "remainder": math.Remainder,
	} {
		reg("p", name, "x:A y:A", func(m *machine, a []any) any {
			x, y := m.hostFloat(a[0]), m.hostFloat(a[1])
			return finite(m, name, f(x, y), x, y)
		})
	}
	reg("p", "log", "x:A base:A=None", func(m *machine, a []any) any {
		x := m.hostFloat(a[0])
		if a[1] == nil {
			return finite(m, "log", math.Log(x), x)
		}
		base := m.hostFloat(a[1])
		return finite(m, "log", math.Log(x)/math.Log(base), x, base)
	})
	for name, f := range map[string]func(float64) float64{"floor": math.Floor, "ceil": math.Ceil, "trunc": math.Trunc} {
		reg("p", name, "x:A", func(m *machine, a []any) any {
			if t, ok := a[0].(*tensor); ok {
				return table["torch."+name][0].run(m, []any{t, nil}) // Tensor.__floor__ and its like
			}
			return m.toInteger(f(m.hostFloat(a[0])))
		})
	}
	for name, f := range map[string]func(float64) bool{
		"isnan": math.IsNaN, "isinf": func(x float64) bool { return math.IsInf(x, 0) },
		"isfinite": func(x float64) bool { return !math.IsInf(x, 0) && !math.IsNaN(x) },
	} {
		reg("p", name, "x:A", func(m *machine, a []any) any { return f(m.hostFloat(a[0])) })
	}
	reg("p", "prod", "x:I", func(m *machine, a []any) any {
		out := any(int64(1))
		for _, x := range a[0].([]int64) {
			if m.err == nil {
				out = m.pythonBinary("mul", out, x)
			}
		}
		return out
	})
}

// hostFloat is Python's float(v).
func (m *machine) hostFloat(v any) float64 {
	if t, ok := v.(*tensor); ok && t.len() == 1 {
		return t.at(0)
	}
	t := scalar(v)
	if t == nil {
		m.fail("a number is needed, not %s", kindOf(v))
		return 0
	}
	return t.at(0)
}
