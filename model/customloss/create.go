package customloss

import (
	"math"
	"slices"
)

// getattr reads a tensor's attribute or a field of a named tuple.
func (m *machine) getattr(v any, name string) any {
	if l, ok := v.(list); ok {
		if k := slices.Index(l.names, name); k >= 0 {
			return l.items[k]
		}
		return m.fail("a sequence has no attribute %.40q here", name)
	}
	t, ok := v.(*tensor)
	if !ok {
		if d, isDtype := v.(dtype); isDtype && name == "is_floating_point" {
			return d.floating()
		}
		return m.fail("%s has no attribute %.40q here", kindOf(v), name)
	}
	switch name {
	case "shape":
		return shapeOf(t)
	case "ndim":
		return int64(len(t.shape))
	case "dtype":
		return t.dt
	case "device":
		return opaque{"device", "cpu"}
	case "layout":
		return opaque{"layout", "strided"}
	case "T":
		return m.reverseDims(t)
	case "mT":
		if len(t.shape) < 2 {
			return m.fail("mT takes at least two dimensions")
		}
		return m.transpose(t, -2, -1)
	case "data":
		return t.detach()
	case "requires_grad":
		return t.node != nil
	case "real":
		return t
	case "is_cuda", "is_sparse", "is_quantized", "is_mps", "is_meta":
		return false
	case "grad", "grad_fn":
		return nil
	case "itemsize":
		return int64([]int{1, 1, 1, 2, 4, 8, 2, 2, 4, 8}[t.dt])
	}
	return m.fail("a tensor has no attribute %.40q here", name)
}

// attributes are those getattr answers, for the check of a graph.
var attributes = []string{"shape", "ndim", "dtype", "device", "layout", "T", "mT", "data", "requires_grad", "real", "is_cuda", "is_sparse", "is_quantized",
	"is_mps", "is_meta", "grad", "grad_fn", "itemsize", "values", "indices", "min", "max", "is_floating_point"}

func shapeOf(t *tensor) list {
	out := list{tuple: true}
	for _, d := range t.shape {
		out.items = append(out.items, int64(d))
	}
	return out
}

func initInfo() {
	reg("m", "size", "input:T dim:i?=None", func(m *machine, a []any) any {
		t := a[0].(*tensor)
		d, ok := a[1].(int64)
		if !ok {
			return shapeOf(t)
		}
		at := m.dim(d, len(t.shape))
		if m.err != nil || len(t.shape) == 0 {
			return m.fail("dimension %d of a tensor of shape %v", d, t.shape)
		}
		return int64(t.shape[at])
	})
	reg("m", "dim ndimension", "input:T", func(_ *machine, a []any) any { return int64(len(a[0].(*tensor).shape)) })
	reg("tm", "numel", "input:T", func(_ *machine, a []any) any { return int64(a[0].(*tensor).len()) })
	reg("m", "nelement", "input:T", func(_ *machine, a []any) any { return int64(a[0].(*tensor).len()) })
	reg("m", "numel", "shape:I", func(m *machine, a []any) any { // of a torch.Size
		n, ok := sizeOf(m.sizes(a[0].([]int64), -1))
		if !ok {
			return m.fail("%w: a shape %v", ErrLimit, a[0])
		}
		return int64(n)
	})
	reg("tm", "is_floating_point", "input:T", func(_ *machine, a []any) any { return a[0].(*tensor).dt.floating() })
	reg("m", "is_contiguous", "input:T ; memory_format:V?=None", func(_ *machine, _ []any) any { return true })
	reg("tm", "detach", "input:T", func(_ *machine, a []any) any { return a[0].(*tensor).detach() })
	reg("tm", "clone", "input:T ; memory_format:V?=None", func(m *machine, a []any) any {
		t := a[0].(*tensor)
		return fresh(m.reshaped(t, t.shape))
	})
	reg("m", "contiguous", "input:T memory_format:V?=None", func(_ *machine, a []any) any { return a[0] })
	reg("m", "cpu", "input:T", func(_ *machine, a []any) any { return a[0] })
	initCasts()
}

func initCasts() {
	for name, dt := range map[string]dtype{"float": float32s, "double": float64s, "half": float16s, "bfloat16": bfloat16s, "long": int64s, "int": int32s, "short": int16s, "char": int8s, "byte": uint8s, "bool": boolean} {
		reg("m", name, "input:T ; memory_format:V?=None", func(m *machine, a []any) any { return m.cast(a[0].(*tensor), dt) })
	}
	to := func(m *machine, t *tensor, dt any, copied bool) any {
		if d, ok := dt.(dtype); ok {
			t = m.cast(t, d)
		}
		if copied {
			return fresh(m.reshaped(t, t.shape))
		}
		return t
	}
	reg("m", "to", "input:T dtype:d non_blocking:b=False copy:b=False ; memory_format:V?=None device:V?=None", func(m *machine, a []any) any {
		return to(m, a[0].(*tensor), a[1], a[3].(bool))
	})
	reg("m", "to", "input:T device:V?=None dtype:d?=None non_blocking:b=False copy:b=False ; memory_format:V?=None", func(m *machine, a []any) any {
		return to(m, a[0].(*tensor), a[2], a[4].(bool))
	})
	reg("m", "to", "input:T other:T non_blocking:b=False copy:b=False ; memory_format:V?=None", func(m *machine, a []any) any {
		return to(m, a[0].(*tensor), a[1].(*tensor).dt, a[3].(bool))
	})
	reg("m", "type", "input:T dtype:d non_blocking:b=False", func(m *machine, a []any) any { return m.cast(a[0].(*tensor), a[1].(dtype)) })
	reg("m", "type", "input:T dtype:s non_blocking:b=False", func(m *machine, a []any) any {
		dt, ok := map[string]dtype{"torch.FloatTensor": float32s, "torch.DoubleTensor": float64s, "torch.LongTensor": int64s, "torch.IntTensor": int32s, "torch.BoolTensor": boolean}[a[1].(string)]
		if !ok {
			return m.fail("the tensor type %.40q is not supported", a[1])
		}
		return m.cast(a[0].(*tensor), dt)
	})
	reg("m", "type_as", "input:T other:T", func(m *machine, a []any) any { return m.cast(a[0].(*tensor), a[1].(*tensor).dt) })
	reg("t", "promote_types", "type1:d type2:d", func(_ *machine, a []any) any { return promote(a[0].(dtype), a[1].(dtype)) })
	reg("t", "result_type", "tensor1:S tensor2:S", func(_ *machine, a []any) any { return resultType(a[0].(*tensor), a[1].(*tensor)) })
}

// numberType is the dtype torch gives a Python number.
func numberType(t *tensor) dtype {
	if t.weak && t.dt.floating() {
		return float32s
	}
	return t.dt
}

const tensorOptions = " ; dtype:d?=None device:V?=None layout:V?=None requires_grad:Z=False pin_memory:Z=False"

// initCreation registers the functions that make tensors. They are bounded by
// the element limit of the run like every other result.
func initCreation() {
	for name, x := range map[string]float64{"zeros": 0, "ones": 1, "empty": 0} {
		make1 := func(m *machine, shape []int, dt any, otherwise dtype) any {
			d, ok := dt.(dtype)
			if !ok {
				d = otherwise
			}
			return m.filled(d, shape, scalar(x))
		}
		reg("t", name, "size:*I"+tensorOptions, func(m *machine, a []any) any {
			return make1(m, m.sizes(a[0].([]int64), -1), a[1], float32s)
		})
		reg("m", "new_"+name, "input:T size:*I"+tensorOptions, func(m *machine, a []any) any {
			return make1(m, m.sizes(a[1].([]int64), -1), a[2], a[0].(*tensor).dt)
		})
		reg("t", name+"_like", "input:T"+tensorOptions+" memory_format:V?=None", func(m *machine, a []any) any {
			return make1(m, a[0].(*tensor).shape, a[1], a[0].(*tensor).dt)
		})
	}
	initFilled()
}

func initFilled() {
	full := func(m *machine, shape []int, x *tensor, dt any, otherwise dtype) any {
		if x.len() != 1 {
			return m.fail("a fill value must be one number, its shape is %v", x.shape)
		}
		d, ok := dt.(dtype)
		if !ok {
			d = otherwise
		}
		return m.filled(d, shape, x)
	}
	reg("t", "full", "size:I fill_value:S"+tensorOptions, func(m *machine, a []any) any {
		x := a[1].(*tensor)
		return full(m, m.sizes(a[0].([]int64), -1), x, a[2], numberType(x))
	})
	reg("m", "new_full", "input:T size:I fill_value:S"+tensorOptions, func(m *machine, a []any) any {
		return full(m, m.sizes(a[1].([]int64), -1), a[2].(*tensor), a[3], a[0].(*tensor).dt)
	})
	reg("t", "full_like", "input:T fill_value:S"+tensorOptions+" memory_format:V?=None", func(m *machine, a []any) any {
		return full(m, a[0].(*tensor).shape, a[1].(*tensor), a[2], a[0].(*tensor).dt)
	})
	reg("t", "tensor scalar_tensor asarray as_tensor", "data:A"+tensorOptions, func(m *machine, a []any) any { return m.constant(a[0], a[1], nil) })
	reg("m", "new_tensor", "input:T data:A"+tensorOptions, func(m *machine, a []any) any { return m.constant(a[1], a[2], a[0].(*tensor).dt) })
	reg("t", "arange", "end:S"+tensorOptions, func(m *machine, a []any) any {
		return m.arange(scalar(int64(0)), a[0].(*tensor), scalar(int64(1)), a[1])
	})
	reg("t", "arange", "start:S end:S step:S=1"+tensorOptions, func(m *machine, a []any) any {
		return m.arange(a[0].(*tensor), a[1].(*tensor), a[2].(*tensor), a[3])
	})
	reg("t", "linspace", "start:n end:n steps:i"+tensorOptions, func(m *machine, a []any) any {
		from, to := a[0].(float64), a[1].(float64)
		dt, ok := a[3].(dtype)
		if !ok {
			dt = float32s
		}
		out := m.alloc(float64s, m.sizes([]int64{a[2].(int64)}, -1))
		if m.err != nil {
			return dead
		}
		step := (to - from) / float64(max(len(out.f)-1, 1))
		for k := range out.f {
			if k < len(out.f)/2 {
				out.f[k] = from + step*float64(k)
			} else {
				out.f[k] = to - step*float64(len(out.f)-1-k)
			}
		}
		if len(out.f) == 1 {
			out.f[0] = from
		}
		return m.cast(out, dt)
	})
	initOverwrites()
}

func initOverwrites() {
	reg("t", "eye", "n:i m:i?=None"+tensorOptions, func(m *machine, a []any) any {
		r := a[0].(int64)
		c, ok := a[1].(int64)
		if !ok {
			c = r
		}
		dt, ok := a[2].(dtype)
		if !ok {
			dt = float32s
		}
		ones := m.filled(dt, m.sizes([]int64{r, c}, -1), scalar(int64(1)))
		if m.err != nil {
			return dead
		}
		return m.band(m.band(ones, func(r, c int) bool { return c <= r }), func(r, c int) bool { return c >= r })
	})
	reg("i", "fill", "input:T value:S", func(m *machine, a []any) any {
		return m.expandTo(m.cast(a[1].(*tensor), a[0].(*tensor).dt), toInt64(a[0].(*tensor).shape))
	})
	reg("i", "zero", "input:T", func(m *machine, a []any) any {
		return m.filled(a[0].(*tensor).dt, a[0].(*tensor).shape, scalar(int64(0)))
	})
	reg("i", "copy", "input:T other:T non_blocking:b=False", func(m *machine, a []any) any {
		return m.expandTo(m.cast(a[1].(*tensor), a[0].(*tensor).dt), toInt64(a[0].(*tensor).shape))
	})
}

func (m *machine) arange(start, end, step *tensor, dt any) *tensor {
	if start.len() != 1 || end.len() != 1 || step.len() != 1 {
		return m.fail("arange takes numbers")
	}
	from, to, by := start.at(0), end.at(0), step.at(0)
	n := math.Ceil((to - from) / by)
	if by == 0 || math.IsNaN(n) || n < 0 {
		return m.fail("arange from %v to %v by %v is not defined", from, to, by)
	}
	if n > 1<<31 {
		return m.fail("%w: arange of %v elements", ErrLimit, n)
	}
	d, ok := dt.(dtype)
	whole := !start.dt.floating() && !end.dt.floating() && !step.dt.floating()
	switch {
	case ok:
	case whole:
		d = int64s
	default:
		d = float32s
	}
	out := m.alloc(d, []int{int(n)})
	for k := range out.len() {
		x := from + by*float64(k)
		switch {
		case m.err != nil:
			return dead
		case d.floating():
			out.f[k] = d.round(x)
		default:
			out.i[k] = d.toInt(x)
		}
	}
	return out
}

// constant is torch.tensor of a number, a tensor or nested lists of numbers.
func (m *machine) constant(data, dt, otherwise any) *tensor {
	if t, ok := data.(*tensor); ok {
		t = t.detach()
		if d, ok := dt.(dtype); ok {
			t = m.cast(t, d)
		}
		return fresh(t)
	}
	shape := []int{}
	row := []any{data}
	for {
		first, ok := row[0].(list)
		if !ok {
			break
		}
		var next []any
		for _, item := range row {
			l, ok := item.(list)
			if !ok || len(l.items) != len(first.items) || len(l.items) == 0 {
				return m.fail("a constant tensor takes numbers in lists of one length")
			}
			next = append(next, l.items...)
		}
		shape, row = append(shape, len(first.items)), next
	}
	values := make([]*tensor, len(row))
	kind := boolean
	for k, item := range row {
		if values[k] = scalar(unwrap(item)); values[k] == nil {
			return m.fail("a constant tensor takes numbers, not %s", kindOf(item))
		}
		kind = promote(kind, numberType(values[k]))
	}
	if d, ok := otherwise.(dtype); ok {
		kind = d
	}
	if d, ok := dt.(dtype); ok {
		kind = d
	}
	out := m.alloc(kind, shape)
	for k, v := range values {
		switch {
		case m.err != nil:
			return dead
		case kind.floating():
			out.f[k] = kind.round(v.at(0))
		case v.dt.floating():
			out.i[k] = kind.toInt(v.f[0])
		default:
			out.i[k] = kind.wrap(v.i[0])
		}
	}
	return out
}
