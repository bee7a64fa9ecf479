package customloss

import "math"

// unaryRule is one elementwise function of a floating tensor and its derivative,
// given x and y = f(x). Where masked is set a zero derivative stops the gradient
// even when it is infinite or NaN, as torch's masked backward formulas do.
type unaryRule struct {
	f      func(x float64) float64
	d      func(x, y float64) float64
	masked bool
}

func (m *machine) unary(t *tensor, r unaryRule) *tensor {
	if !t.dt.floating() {
		t = m.cast(t, float32s)
	}
	out := m.alloc(t.dt, t.shape)
	if m.err != nil {
		return dead
	}
	for k, x := range t.f {
		out.f[k] = t.dt.round(r.f(x))
	}
	return m.track(out, func(g []float64) {
		d := make([]float64, len(g))
		for k := range d {
			slope := r.d(t.f[k], out.f[k])
			if slope != 0 || !r.masked {
				d[k] = g[k] * slope
			}
		}
		t.push(d)
	}, t)
}

// integral applies f to an integer tensor, keeping its dtype.
func (m *machine) integral(t *tensor, f func(x int64) int64) *tensor {
	out := m.alloc(t.dt, t.shape)
	if m.err != nil {
		return dead
	}
	for k, x := range t.i {
		out.i[k] = t.dt.wrap(f(x))
	}
	return out
}

func flat(_, _ float64) float64 { return 0 }

func sigmoid(x float64) float64 {
	if x < 0 {
		e := math.Exp(x)
		return e / (1 + e)
	}
	return 1 / (1 + math.Exp(-x))
}

// softplus is log(1+e^x).
func softplus(x float64) float64 { return math.Max(x, 0) + math.Log1p(math.Exp(-math.Abs(x))) }

func normalCDF(x float64) float64 { return 0.5 * math.Erfc(-x/math.Sqrt2) }
func normalPDF(x float64) float64 { return math.Exp(-0.5*x*x) / math.Sqrt(2*math.Pi) }

func entropyTerm(x float64) float64 {
	switch {
	case x > 0:
		return -x * math.Log(x)
	case x == 0:
		return 0
	case x < 0:
		return -inf
	}
	return x
}

// unaries are those that turn integers into float32 first.
var unaries = map[string]unaryRule{
	"exp":            {f: math.Exp, d: func(_, y float64) float64 { return y }},
	"exp2":           {f: math.Exp2, d: func(_, y float64) float64 { return y * math.Ln2 }},
	"expm1":          {f: math.Expm1, d: func(_, y float64) float64 { return y + 1 }},
	"log":            {f: math.Log, d: func(x, _ float64) float64 { return 1 / x }},
	"log2":           {f: math.Log2, d: func(x, _ float64) float64 { return 1 / (x * math.Ln2) }},
	"log10":          {f: math.Log10, d: func(x, _ float64) float64 { return 1 / (x * math.Ln10) }},
	"log1p":          {f: math.Log1p, d: func(x, _ float64) float64 { return 1 / (x + 1) }},
	"sqrt":           {f: math.Sqrt, d: func(_, y float64) float64 { return 1 / (2 * y) }},
	"rsqrt":          {f: func(x float64) float64 { return 1 / math.Sqrt(x) }, d: func(_, y float64) float64 { return -0.5 * y * y * y }},
	"reciprocal":     {f: func(x float64) float64 { return 1 / x }, d: func(_, y float64) float64 { return -y * y }},
	"sin":            {f: math.Sin, d: func(x, _ float64) float64 { return math.Cos(x) }},
	"cos":            {f: math.Cos, d: func(x, _ float64) float64 { return -math.Sin(x) }},
	"tan":            {f: math.Tan, d: func(_, y float64) float64 { return 1 + y*y }},
	"asin arcsin":    {f: math.Asin, d: func(x, _ float64) float64 { return 1 / math.Sqrt(1-x*x) }},
	"acos arccos":    {f: math.Acos, d: func(x, _ float64) float64 { return -1 / math.Sqrt(1-x*x) }},
	"atan arctan":    {f: math.Atan, d: func(x, _ float64) float64 { return 1 / (1 + x*x) }},
	"sinh":           {f: math.Sinh, d: func(x, _ float64) float64 { return math.Cosh(x) }},
	"cosh":           {f: math.Cosh, d: func(x, _ float64) float64 { return math.Sinh(x) }},
	"asinh arcsinh":  {f: math.Asinh, d: func(x, _ float64) float64 { return 1 / math.Sqrt(x*x+1) }},
	"acosh arccosh":  {f: math.Acosh, d: func(x, _ float64) float64 { return 1 / math.Sqrt(x*x-1) }},
	"atanh arctanh":  {f: math.Atanh, d: func(x, _ float64) float64 { return 1 / (1 - x*x) }},
	"tanh":           {f: math.Tanh, d: func(_, y float64) float64 { return 1 - y*y }},
	"sigmoid expit":  {f: sigmoid, d: func(_, y float64) float64 { return y * (1 - y) }},
	"erf":            {f: math.Erf, d: func(x, _ float64) float64 { return 2 / math.Sqrt(math.Pi) * math.Exp(-x*x) }},
	"erfc":           {f: math.Erfc, d: func(x, _ float64) float64 { return -2 / math.Sqrt(math.Pi) * math.Exp(-x*x) }},
	"ndtr":           {f: normalCDF, d: func(x, _ float64) float64 { return normalPDF(x) }},
	"entr":           {f: entropyTerm, d: func(x, _ float64) float64 { return -math.Log(x) - 1 }},
	"logsigmoid":     {f: func(x float64) float64 { return -softplus(-x) }, d: func(x, _ float64) float64 { return sigmoid(-x) }},
	"silu":           {f: func(x float64) float64 { return x * sigmoid(x) }, d: func(x, _ float64) float64 { s := sigmoid(x); return s * (1 + x*(1-s)) }},
	"mish":           {f: func(x float64) float64 { return x * math.Tanh(softplus(x)) }, d: mishSlope},
	"tanhshrink":     {f: func(x float64) float64 { return x - math.Tanh(x) }, d: func(x, _ float64) float64 { t := math.Tanh(x); return t * t }},
	"deg2rad":        {f: func(x float64) float64 { return x * math.Pi / 180 }, d: func(_, _ float64) float64 { return math.Pi / 180 }},
	"rad2deg":        {f: func(x float64) float64 { return x * 180 / math.Pi }, d: func(_, _ float64) float64 { return 180 / math.Pi }},
	"gelu_erf":       {f: func(x float64) float64 { return x * normalCDF(x) }, d: func(x, _ float64) float64 { return normalCDF(x) + x*normalPDF(x) }},
	"gelu_tanh":      {f: func(x float64) float64 { return 0.5 * x * (1 + math.Tanh(geluInner(x))) }, d: geluTanhSlope},
	"relu":           {f: func(x float64) float64 { return keepNaN(x, math.Max(x, 0)) }, d: func(_, y float64) float64 { return step01(!(y <= 0)) }, masked: true},
	"lgamma gammaln": {f: func(x float64) float64 { y, _ := math.Lgamma(x); return y }, d: func(x, _ float64) float64 { return digamma(x) }},
}

func mishSlope(x, _ float64) float64 {
	t := math.Tanh(softplus(x))
	return t + x*(1-t*t)*sigmoid(x)
}

func geluInner(x float64) float64 { return math.Sqrt(2/math.Pi) * (x + 0.044715*x*x*x) }

func geluTanhSlope(x, _ float64) float64 {
	t := math.Tanh(geluInner(x))
	return 0.5*(1+t) + 0.5*x*(1-t*t)*math.Sqrt(2/math.Pi)*(1+3*0.044715*x*x)
}

// digamma by recurrence and the asymptotic series.
func digamma(x float64) float64 {
	if x <= 0 && x == math.Floor(x) {
		return nan
	}
	if x < 0 {
		return digamma(1-x) - math.Pi/math.Tan(math.Pi*x)
	}
	sum := 0.0
	for ; x < 10; x++ {
		sum -= 1 / x
	}
	y := 1 / (x * x)
	return sum + math.Log(x) - 0.5/x - y*(1.0/12-y*(1.0/120-y*(1.0/252-y*(1.0/240-y/132))))
}

func keepNaN(x, y float64) float64 {
	if math.IsNaN(x) {
		return x
	}
	return y
}

func step01(b bool) float64 {
	if b {
		return 1
	}
	return 0
}

// exact are those that keep integers as they are or have an integer form.
type exactRule struct {
	rule unaryRule
	i    func(x int64) int64 // nil: integers stay
}

func one(_, _ float64) float64 { return 1 }

var exacts = map[string]exactRule{
	"neg negative": {unaryRule{f: func(x float64) float64 { return -x }, d: func(_, _ float64) float64 { return -1 }}, func(x int64) int64 { return -x }},
	"abs absolute": {unaryRule{f: math.Abs, d: func(x, _ float64) float64 { return sign(x) }}, func(x int64) int64 { return max(x, -x) }},
	"sign sgn":     {unaryRule{f: func(x float64) float64 { return sign(x) }, d: flat, masked: true}, func(x int64) int64 { return int64(sign(float64(x))) }},
	"square":       {unaryRule{f: func(x float64) float64 { return x * x }, d: func(x, _ float64) float64 { return 2 * x }}, func(x int64) int64 { return x * x }},
	"floor":        {unaryRule{f: math.Floor, d: flat, masked: true}, nil},
	"ceil":         {unaryRule{f: math.Ceil, d: flat, masked: true}, nil},
	"trunc fix":    {unaryRule{f: math.Trunc, d: flat, masked: true}, nil},
	"frac":         {unaryRule{f: func(x float64) float64 { return x - math.Trunc(x) }, d: one}, nil},
	"positive":     {unaryRule{f: func(x float64) float64 { return x }, d: one}, nil},
	"relu6":        {unaryRule{f: func(x float64) float64 { return keepNaN(x, math.Min(math.Max(x, 0), 6)) }, d: func(x, _ float64) float64 { return step01(!(x <= 0 || x >= 6)) }, masked: true}, func(x int64) int64 { return min(max(x, 0), 6) }},
}

func (m *machine) exact(t *tensor, r exactRule) *tensor {
	switch {
	case t.dt.floating():
		return m.unary(t, r.rule)
	case r.i == nil:
		return t
	}
	return m.integral(t, r.i)
}

// test makes a bool of each element.
func (m *machine) test(t *tensor, f func(x float64) bool) *tensor {
	out := m.alloc(boolean, t.shape)
	if m.err != nil {
		return dead
	}
	for k := range t.len() {
		if f(t.at(k)) {
			out.i[k] = 1
		}
	}
	return out
}

func init() {
	for names, rule := range unaries {
		where := "tmis"
		switch names {
		case "logsigmoid":
			names, where = "logsigmoid log_sigmoid", "f"
		case "silu", "mish", "tanhshrink":
			where = "f"
		case "relu":
			reg("f", names, "input:T inplace:Z=False", func(m *machine, a []any) any { return m.reluOf(a[0].(*tensor)) })
			reg("tmi", names, "input:T", func(m *machine, a []any) any { return m.reluOf(a[0].(*tensor)) })
			continue
		case "gelu_erf", "gelu_tanh":
			continue
		case "sigmoid expit", "tanh":
			where = "tmisf"
		}
		reg(where, names, "input:T inplace:Z=False", func(m *machine, a []any) any { return m.unary(a[0].(*tensor), rule) })
	}
	for names, rule := range exacts {
		where := "tmi"
		if names == "relu6" {
			where = "f"
		}
		reg(where, names, "input:T inplace:Z=False", func(m *machine, a []any) any {
			if t := a[0].(*tensor); t.dt == boolean && (names == "neg negative" || names == "abs absolute") {
				return m.fail("%s of a bool tensor is not defined", names)
			}
			return m.exact(a[0].(*tensor), rule)
		})
	}
	for names, f := range map[string]func(float64) bool{
		"isnan":    math.IsNaN,
		"isinf":    func(x float64) bool { return math.IsInf(x, 0) },
		"isfinite": func(x float64) bool { return !math.IsInf(x, 0) && !math.IsNaN(x) },
		"isposinf": func(x float64) bool { return math.IsInf(x, 1) },
		"isneginf": func(x float64) bool { return math.IsInf(x, -1) },
		"signbit":  func(x float64) bool { return math.Signbit(x) },
	} {
		reg("tm", names, "input:T", func(m *machine, a []any) any { return m.test(a[0].(*tensor), f) })
	}
	initParameterised()
}

// initParameterised registers the elementwise functions with arguments of their own.
func initParameterised() {
	reg("tmi", "logical_not", "input:T", func(m *machine, a []any) any {
		return m.test(a[0].(*tensor), func(x float64) bool { return x == 0 })
	})
	reg("tmi", "round", "input:T ; decimals:i=0", func(m *machine, a []any) any {
		scale := math.Pow(10, float64(a[1].(int64)))
		return m.exact(a[0].(*tensor), exactRule{unaryRule{f: func(x float64) float64 {
			if scale == 1 {
				return math.RoundToEven(x)
			}
			return math.RoundToEven(x*scale) / scale
		}, d: flat, masked: true}, nil})
	})
	reg("tmis", "logit", "input:T eps:n?=None", func(m *machine, a []any) any {
		// Outside its range the gradient is zero with eps, and NaN without.
		low, high, outside := 0.0, 1.0, nan
		if eps, ok := a[1].(float64); ok {
			low, high, outside = eps, 1-eps, 0
		}
		return m.unary(a[0].(*tensor), unaryRule{f: func(x float64) float64 {
			if outside == 0 {
				x = math.Min(math.Max(x, low), high)
			}
			return math.Log(x / (1 - x))
		}, d: func(x, _ float64) float64 {
			if x < low || x > high {
				return outside
			}
			return 1 / (x * (1 - x))
		}, masked: true})
	})
	reg("f", "softsign", "input:T", func(m *machine, a []any) any {
		t := a[0].(*tensor)
		return m.div(t, m.add(m.exact(t, exacts["abs absolute"]), scalar(int64(1))))
	})
	reg("f", "gelu", "input:T ; approximate:s=none", func(m *machine, a []any) any {
		if a[1] == "tanh" {
			return m.unary(a[0].(*tensor), unaries["gelu_tanh"])
		}
		return m.unary(a[0].(*tensor), unaries["gelu_erf"])
	})
	reg("tmi", "nan_to_num", "input:T nan:n?=None posinf:n?=None neginf:n?=None", nanToNum)
	initActivations()
}

func (m *machine) reluOf(t *tensor) *tensor {
	return m.exact(t, exactRule{unaries["relu"], func(x int64) int64 { return max(x, 0) }})
}

func nanToNum(m *machine, a []any) any {
	t := a[0].(*tensor)
	if !t.dt.floating() {
		return t
	}
	top := map[dtype]float64{float32s: math.MaxFloat32, float64s: math.MaxFloat64, float16s: 65504, bfloat16s: 0x1.fep127}[t.dt]
	with := [3]float64{0, top, -top}
	for k := range with {
		if x, ok := a[k+1].(float64); ok {
			with[k] = x
		}
	}
	return m.unary(t, unaryRule{f: func(x float64) float64 {
		switch {
		case math.IsNaN(x):
			return with[0]
		case math.IsInf(x, 1):
			return with[1]
		case math.IsInf(x, -1):
			return with[2]
		}
		return x
	}, d: func(x, _ float64) float64 { return step01(!math.IsNaN(x) && !math.IsInf(x, 0)) }})
}

// initActivations registers the functions with parameters.
func initActivations() {
	reg("f", "softplus", "input:T beta:n=1 threshold:n=20", func(m *machine, a []any) any {
		beta, limit := a[1].(float64), a[2].(float64)
		return m.unary(a[0].(*tensor), unaryRule{f: func(x float64) float64 {
			if x*beta > limit {
				return x
			}
			return softplus(x*beta) / beta
		}, d: func(x, _ float64) float64 {
			if x*beta > limit {
				return 1
			}
			return sigmoid(x * beta)
		}})
	})
	reg("f", "leaky_relu", "input:T negative_slope:n=0.01 inplace:Z=False", func(m *machine, a []any) any {
		slope := a[1].(float64)
		return m.unary(a[0].(*tensor), unaryRule{f: func(x float64) float64 {
			if x > 0 {
				return x
			}
			return x * slope
		}, d: func(x, _ float64) float64 {
			if x > 0 {
				return 1
			}
			return slope
		}})
	})
	elu := func(alpha, scale, inner float64) unaryRule {
		return unaryRule{f: func(x float64) float64 {
			if !(x <= 0) {
				return scale * x
			}
			return scale * alpha * math.Expm1(x*inner)
		}, d: func(x, _ float64) float64 {
			if !(x <= 0) {
				return scale
			}
			return scale * alpha * inner * math.Exp(x*inner)
		}}
	}
	reg("f", "elu", "input:T alpha:n=1 inplace:Z=False", func(m *machine, a []any) any {
		return m.unary(a[0].(*tensor), elu(a[1].(float64), 1, 1))
	})
	reg("f", "celu", "input:T alpha:n=1 inplace:Z=False", func(m *machine, a []any) any {
		return m.unary(a[0].(*tensor), elu(a[1].(float64), 1, 1/a[1].(float64)))
	})
	reg("tf", "selu", "input:T inplace:Z=False", func(m *machine, a []any) any {
		return m.unary(a[0].(*tensor), elu(1.6732632423543772, 1.0507009873554805, 1))
	})
	reg("f", "hardtanh", "input:T min_val:n=-1 max_val:n=1 inplace:Z=False", func(m *machine, a []any) any {
		low, high := a[1].(float64), a[2].(float64)
		return m.unary(a[0].(*tensor), unaryRule{f: func(x float64) float64 { return keepNaN(x, math.Min(math.Max(x, low), high)) },
			d: func(x, _ float64) float64 { return step01(!(x <= low || x >= high)) }, masked: true})
	})
	reg("f", "hardsigmoid", "input:T inplace:Z=False", func(m *machine, a []any) any {
		return m.unary(a[0].(*tensor), unaryRule{f: func(x float64) float64 { return keepNaN(x, math.Min(math.Max(x+3, 0), 6)/6) },
			d: func(x, _ float64) float64 { return step01(x > -3 && x < 3) / 6 }, masked: true})
	})
	reg("f", "threshold _threshold", "input:T threshold:n value:n inplace:Z=False", func(m *machine, a []any) any {
		limit, value := a[1].(float64), a[2].(float64)
		return m.unary(a[0].(*tensor), unaryRule{f: func(x float64) float64 {
			if x <= limit {
				return value
			}
			return x
		}, d: func(x, _ float64) float64 { return step01(!(x <= limit)) }, masked: true})
	})
}
