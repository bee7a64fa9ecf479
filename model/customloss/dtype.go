package customloss

import "math"

type dtype uint8

const (
	boolean dtype = iota
	uint8s
	int8s
	int16s
	int32s
	int64s
	float16s
	bfloat16s
	float32s
	float64s
)

var dtypeNames = [...]string{"bool", "uint8", "int8", "int16", "int32", "int64", "float16", "bfloat16", "float32", "float64"}

func (d dtype) String() string { return dtypeNames[d] }

func (d dtype) floating() bool { return d >= float16s }

// dtypeByName takes torch's names and their older aliases.
func dtypeByName(name string) (dtype, bool) {
	switch name {
	case "float":
		return float32s, true
	case "double":
		return float64s, true
	case "half":
		return float16s, true
	case "long":
		return int64s, true
	case "int":
		return int32s, true
	case "short":
		return int16s, true
	}
	for d, n := range dtypeNames {
		if n == name {
			return dtype(d), true
		}
	}
	return 0, false
}

// promote is torch.promote_types.
func promote(a, b dtype) dtype {
	if a > b {
		a, b = b, a
	}
	switch {
	case a == b:
		return a
	case a == float16s && b == bfloat16s:
		return float32s
	case a == uint8s && b == int8s:
		return int16s
	}
	return b
}

// round brings x to the precision of a floating dtype d.
func (d dtype) round(x float64) float64 {
	switch d {
	case float32s:
		return float64(float32(x))
	case bfloat16s:
		return roundBits(x, 8, -126, 0x1.fep127)
	case float16s:
		return roundBits(x, 11, -14, 65504)
	}
	return x
}

// roundBits rounds to nearest even with the given significand bits, smallest
// normal exponent and largest finite value.
func roundBits(x float64, bits, emin int, top float64) float64 {
	if x == 0 || math.IsNaN(x) || math.IsInf(x, 0) {
		return x
	}
	_, exp := math.Frexp(x) // x = frac * 2^exp, frac in [0.5,1)
	unit := math.Ldexp(1, max(exp-1, emin)-bits+1)
	y := math.RoundToEven(x/unit) * unit
	if math.Abs(y) > top {
		return math.Inf(int(math.Copysign(1, y)))
	}
	return y
}

// wrap brings x into the range of an integer dtype d, as two's complement does.
func (d dtype) wrap(x int64) int64 {
	switch d {
	case boolean:
		if x != 0 {
			return 1
		}
		return 0
	case uint8s:
		return int64(uint8(x))
	case int8s:
		return int64(int8(x))
	case int16s:
		return int64(int16(x))
	case int32s:
		return int64(int32(x))
	}
	return x
}

// toInt is the C conversion of a float to an integer, defined for every x.
func (d dtype) toInt(x float64) int64 {
	if d == boolean {
		if x != 0 {
			return 1
		}
		return 0
	}
	switch {
	case math.IsNaN(x) || x >= math.MaxInt64 || x <= math.MinInt64:
		return d.wrap(math.MinInt64)
	}
	return d.wrap(int64(x))
}

// resultType is torch.result_type: tensors with dimensions outrank tensors
// without, and those outrank Python numbers, within a kind (bool, integer, float).
func resultType(ts ...*tensor) dtype {
	var rank [3]dtype
	var seen [3]bool
	for _, t := range ts {
		class, d := 0, t.dt
		switch {
		case t.weak:
			class = 2
			if d.floating() {
				d = float32s
			}
		case len(t.shape) == 0:
			class = 1
		}
		if seen[class] {
			d = promote(rank[class], d)
		}
		rank[class], seen[class] = d, true
	}
	var out dtype
	have := false
	for class := range rank {
		switch {
		case !seen[class]:
		case !have:
			out, have = rank[class], true
		case out.floating(): // the higher class decides
		case out == boolean || rank[class].floating():
			out = promote(out, rank[class])
		}
	}
	return out
}
