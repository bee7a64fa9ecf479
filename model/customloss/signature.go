package customloss

import (
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"
)

// param is one parameter of an operation, written "name:kind", "name:kind?" where
// None may be given, with "=default" when it may be left out. After ";" in a
// signature parameters are by keyword only. A kind with "*" takes the rest of the
// positional arguments when they are not given as one list. Kinds:
//
//	T tensor   S tensor or number   L list of tensors   n number   i integer
//	b bool   I integers (a list or one)   D dimensions (a list or one)   s string
//	d dtype   V device, layout or memory format (no effect)   A anything
//	N only None   Z only False or None
type param struct {
	name, kind    string
	none, varargs bool
	keyword       bool
	optional      bool
	value         any
}

// operation is one form of a call the table knows.
type operation struct {
	params []param
	run    func(m *machine, a []any) any
}

// aliases are torch's numpy names for keyword arguments.
var aliases = map[string]string{"axis": "dim", "keepdims": "keepdim", "x": "input", "x2": "other", "x1": "input", "a": "input", "correction": "correction"}

func parseSignature(sig string) []param {
	var out []param
	keyword := false
	for _, word := range strings.Fields(sig) {
		if word == ";" {
			keyword = true
			continue
		}
		word, value, optional := strings.Cut(word, "=")
		name, kind, ok := strings.Cut(word, ":")
		if !ok {
			panic("signature " + sig)
		}
		p := param{name: name, keyword: keyword, optional: optional}
		p.kind, p.varargs = strings.CutPrefix(kind, "*")
		p.kind, p.none = strings.CutSuffix(p.kind, "?")
		if optional {
			p.value = parseDefault(value)
			p.none = p.none || p.value == nil
		}
		out = append(out, p)
	}
	return out
}

func parseDefault(text string) any {
	switch text {
	case "None":
		return nil
	case "True":
		return true
	case "False":
		return false
	}
	if i, err := strconv.ParseInt(text, 10, 64); err == nil {
		return i
	}
	if x, err := strconv.ParseFloat(text, 64); err == nil {
		return x
	}
	return text
}

// bind lays the arguments of a call on the parameters, or says why it can't.
func (o *operation) bind(args []any, kwargs map[string]any) ([]any, error) {
	out := make([]any, len(o.params))
	given := make([]bool, len(o.params))
	for k, a := range args {
		if k >= len(o.params) || o.params[k].keyword {
			return nil, fmt.Errorf("takes at most %d positional arguments, not %d", k, len(args))
		}
		if _, isList := a.(list); o.params[k].varargs && !isList && (len(args) > k+1) {
			out[k], given[k] = list{items: args[k:], tuple: true}, true
			break
		}
		out[k], given[k] = a, true
	}
	for _, key := range sortedKeys(kwargs) {
		if key == "out" && kwargs[key] == nil {
			continue
		}
		at := slices.IndexFunc(o.params, func(p param) bool { return p.name == key })
		if at < 0 {
			at = slices.IndexFunc(o.params, func(p param) bool { return p.name == aliases[key] })
		}
		if at < 0 {
			return nil, fmt.Errorf("has no argument %.40q here", key)
		}
		if given[at] {
			return nil, fmt.Errorf("has two values for %.40q", key)
		}
		out[at], given[at] = kwargs[key], true
	}
	for k, p := range o.params {
		switch {
		case !given[k] && !p.optional:
			return nil, fmt.Errorf("needs an argument %q", p.name)
		case !given[k]:
			out[k] = p.value
		}
		if err := p.possible(out[k]); err != nil {
			return nil, err
		}
	}
	return out, nil
}

// possible says whether a decoded argument, which may hold references, can be of
// the parameter's kind.
func (p *param) possible(v any) error {
	switch v := v.(type) {
	case ref:
		if p.kind == "N" {
			return fmt.Errorf("argument %q is supported as None alone", p.name)
		}
		return nil
	case list:
		for _, item := range v.items {
			if _, isRef := item.(ref); isRef && strings.Contains("ILDA", p.kind) {
				return nil // the run decides
			}
		}
	}
	if p.kind == "A" {
		return nil
	}
	_, err := p.coerce(v)
	return err
}

// coerce gives v the Go type the operation expects of the kind: *tensor, []*tensor,
// float64, int64, bool, []int64, string, dtype; nil where None may be given.
func (p *param) coerce(v any) (any, error) {
	if v == nil && (p.none || strings.Contains("NZA", p.kind)) {
		return nil, nil
	}
	switch p.kind {
	case "A":
		return v, nil
	case "T", "S":
		if t, ok := v.(*tensor); ok {
			return t, nil
		}
		if t := scalar(v); t != nil && p.kind == "S" {
			return t, nil
		}
	case "L":
		if l, ok := v.(list); ok {
			out := make([]*tensor, len(l.items))
			for k, item := range l.items {
				if out[k], ok = item.(*tensor); !ok {
					return nil, fmt.Errorf("argument %q: item %d is %s, it needs a tensor", p.name, k, kindOf(item))
				}
			}
			return out, nil
		}
	case "n":
		switch x := unwrap(v).(type) {
		case int64:
			return float64(x), nil
		case float64:
			return x, nil
		case bool:
			return scalar(x).at(0), nil
		}
	case "i":
		if i, ok := integer(v); ok {
			return i, nil
		}
	case "b":
		if b, ok := unwrap(v).(bool); ok {
			return b, nil
		}
	case "I", "D":
		if out, ok := integers(v); ok {
			return out, nil
		}
	case "Z":
		if v == false {
			return nil, nil
		}
		return nil, fmt.Errorf("argument %q is supported as False alone", p.name)
	case "N":
		return nil, fmt.Errorf("argument %q is supported as None alone", p.name)
	case "s":
		if s, ok := v.(string); ok {
			return s, nil
		}
	case "d":
		if d, ok := v.(dtype); ok {
			return d, nil
		}
	case "V":
		if o, ok := v.(opaque); ok || v == "cpu" || v == false || v == true {
			return o, nil
		}
	}
	return nil, fmt.Errorf("argument %q is %s, it needs %s", p.name, kindOf(v), kindNames[p.kind])
}

var kindNames = map[string]string{
	"T": "a tensor", "S": "a tensor or a number", "L": "a list of tensors", "n": "a number", "i": "an integer", "b": "True or False",
	"I": "integers", "D": "dimensions", "s": "a string", "d": "a dtype", "V": "the cpu device or the default layout",
}

// unwrap reads a tensor of one element and no dimension as a number; torch does
// so only where no gradient is lost.
func unwrap(v any) any {
	if t, ok := v.(*tensor); ok && len(t.shape) == 0 && t.node == nil {
		return t.number()
	}
	return v
}

func integer(v any) (int64, bool) {
	switch v := v.(type) {
	case int64:
		return v, true
	case bool:
		return scalar(v).i[0], true
	case *tensor:
		if !v.dt.floating() && v.len() == 1 {
			return v.i[0], true
		}
	}
	return 0, false
}

func integers(v any) ([]int64, bool) {
	l, ok := v.(list)
	if !ok {
		i, ok := integer(v)
		return []int64{i}, ok
	}
	out := make([]int64, len(l.items))
	for k, item := range l.items {
		if out[k], ok = integer(item); !ok {
			return nil, false
		}
	}
	return out, true
}

func kindOf(v any) string {
	switch v := v.(type) {
	case nil:
		return "None"
	case bool:
		return "a bool"
	case int64:
		return "an integer"
	case float64:
		if math.IsInf(v, 0) {
			return "infinity"
		}
		return "a float"
	case string:
		return fmt.Sprintf("%.40q", v)
	case *tensor:
		return fmt.Sprintf("a %v tensor of shape %v", v.dt, v.shape)
	case list:
		return fmt.Sprintf("a list of %d", len(v.items))
	case dtype:
		return "a dtype"
	case opaque:
		return "a " + v.kind
	case slicing:
		return "a slice"
	case ellipsis:
		return "an ellipsis"
	case ref:
		return "the result of another node"
	}
	return "a dict"
}

// table holds every operation by canonical name: "torch.", "F." (torch.nn.functional),
// "special.", "linalg.", "operator.", "math." or "." (a Tensor method) and its name.
var table = map[string][]*operation{}

// reg adds one form under several names. where lists the doors it is reached by:
// t torch, m Tensor method, f torch.nn.functional, o operator, s torch.special,
// l torch.linalg, p math; i says that the method with "_" changes its tensor in place.
func reg(where, names, sig string, run func(m *machine, a []any) any) {
	o := &operation{params: parseSignature(sig), run: run}
	for _, name := range strings.Fields(names) {
		for _, door := range where {
			prefix := map[rune]string{'t': "torch.", 'm': ".", 'f': "F.", 'o': "operator.", 's': "special.", 'l': "linalg.", 'p': "math.", 'i': "_."}[door]
			table[prefix+name] = append(table[prefix+name], o)
		}
	}
}

// canonical maps a node's target to the name of the table, and says whether the
// call changes its first argument in place.
func canonical(op, target string) (name string, inPlace bool) {
	if op == "call_method" {
		base, under := strings.CutSuffix(target, "_")
		if under && !strings.HasSuffix(base, "_") {
			return "_." + base, true
		}
		return "." + target, false
	}
	for _, p := range [][2]string{
		{"torch._C._nn.", "F."}, {"torch.nn.functional.", "F."}, {"torch.functional.", "torch."},
		{"torch._C._special.special_", "special."}, {"torch.special.", "special."},
		{"torch._C._linalg.linalg_", "linalg."}, {"torch.linalg.", "linalg."}, {"torch._C._VariableFunctions.", "torch."},
	} {
		if rest, ok := strings.CutPrefix(target, p[0]); ok {
			return p[1] + rest, false
		}
	}
	if rest, ok := strings.CutPrefix(target, "operator.i"); ok && rest != "nvert" && rest != "nv" && rest != "s_" && rest != "s_not" {
		return "operator." + rest, true
	}
	if target == "getattr" || target == "builtins.getattr" || target == "_operator.getattr" {
		return "operator.getattr", false
	}
	return target, false
}
