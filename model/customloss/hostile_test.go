package customloss

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"
)

var oneInput = []Input{{"logprobs", 1}}

func call(op, name, target string, args ...string) string {
	return fmt.Sprintf(`{"op":%q,"name":%q,"target":%q,"args":[%s],"kwargs":{}}`, op, name, target, strings.Join(args, ","))
}

func function(name, target string, args ...string) string {
	return call("call_function", name, target, args...)
}

func method(name, target string, args ...string) string {
	return call("call_method", name, target, args...)
}

func r(name string) string { return fmt.Sprintf(`{"ref":%q}`, name) }

const placeholder = `{"op":"placeholder","name":"logprobs","target":"logprobs","args":[],"kwargs":{}}`

func output(loss string) string {
	return call("output", "output", "output", `{"tuple":[`+r(loss)+`,{"dict":{"custom/x:sum":`+r(loss)+`}}]}`)
}

// graphOf wraps nodes between the placeholder and the output of the last one's sum.
func graphOf(nodes ...string) []byte {
	last := placeholder
	if len(nodes) > 0 {
		last = nodes[len(nodes)-1]
	}
	name := strings.Split(strings.SplitN(last, `"name":"`, 2)[1], `"`)[0]
	all := append([]string{placeholder}, nodes...)
	all = append(all, method("total", "sum", r(name)), output("total"))
	return []byte(`{"format":1,"nodes":[` + strings.Join(all, ",") + `]}`)
}

func raw(nodes ...string) []byte {
	return []byte(`{"format":1,"nodes":[` + strings.Join(nodes, ",") + `]}`)
}

func TestImportRefuses(t *testing.T) {
	many := make([]string, 0, 1e6)
	for k := range 1_000_000 {
		many = append(many, fmt.Sprintf(`{"op":"call_function","name":"n%d","target":"torch.exp"}`, k))
	}
	x := r("logprobs")
	for name, c := range map[string]struct {
		graph []byte
		want  string // in the error
	}{
		"cycle":              {graphOf(function("a", "torch.exp", r("b")), function("b", "torch.exp", r("a"))), "no earlier node"},
		"self":               {graphOf(function("a", "torch.exp", r("a"))), "no earlier node"},
		"unknown function":   {graphOf(function("a", "torch.bogus", x)), `function "torch.bogus"`},
		"os":                 {graphOf(function("a", "os.system", `"true"`)), `function "os.system"`},
		"method door":        {graphOf(function("a", ".exp", x)), "no function"},
		"unknown method":     {graphOf(method("a", "backward", x)), `Tensor method "backward"`},
		"host method":        {graphOf(method("a", "item", x)), `Tensor method "item"`},
		"random":             {graphOf(function("a", "torch.randn_like", x)), "torch.randn_like"},
		"attribute":          {graphOf(function("a", "getattr", x, `"__class__"`)), `attribute "__class__"`},
		"module":             {graphOf(call("call_module", "a", "lin", x)), "call_module"},
		"captured tensor":    {graphOf(call("get_attr", "a", "_tensor_constant0")), "get_attr"},
		"unknown op":         {graphOf(call("exec", "a", "x", x)), "op"},
		"NaN":                {graphOf(function("a", "torch.mul", x, `{"float":"nan"}`)), "NaN"},
		"huge number":        {graphOf(function("a", "torch.mul", x, `1e999`)), "out of range"},
		"huge integer":       {graphOf(function("a", "torch.mul", x, `9223372036854775808`)), "out of range"},
		"too few arguments":  {graphOf(function("a", "torch.exp")), `needs an argument "input"`},
		"too many arguments": {graphOf(function("a", "torch.exp", x, `1`)), "torch.exp"},
		"wrong kind":         {graphOf(function("a", "torch.softmax", x, `"rows"`)), `argument "dim"`},
		"device":             {graphOf(method("a", "to", x, `{"device":"cuda:0"}`)), "cuda:0"},
		"dtype":              {graphOf(method("a", "to", x, `{"dtype":"complex64"}`)), "complex64"},
		"two keys":           {graphOf(function("a", "torch.exp", `{"ref":"logprobs","float":"inf"}`)), "2 keys"},
		"unknown form":       {graphOf(function("a", "torch.exp", `{"code":"x"}`)), "unknown form"},
		"nesting":            {graphOf(function("a", "torch.tensor", strings.Repeat("[", 100000)+strings.Repeat("]", 100000))), "deep"},
		"million nodes":      {graphOf(many...), "limit"},
		"string":             {graphOf(function("a", "torch.einsum", `"`+strings.Repeat("i", 1000)+`"`, x)), "string of 1000 bytes"},
		"long name":          {graphOf(function(strings.Repeat("a", 1000), "torch.exp", x)), "no name"},
		"name twice":         {graphOf(function("a", "torch.exp", x), function("a", "torch.exp", x)), "no name of its own"},
		"no output":          {raw(placeholder, function("a", "torch.exp", x)), "no output"},
		"after output":       {raw(placeholder, output("logprobs"), function("a", "torch.exp", x)), "after the output"},
		"other placeholder":  {raw(strings.ReplaceAll(placeholder, `"target":"logprobs"`, `"target":"other"`), output("logprobs")), "not the declared"},
		"no placeholder":     {raw(function("a", "torch.arange", `3`), output("a")), "fewer placeholders"},
		"late placeholder":   {raw(placeholder, strings.ReplaceAll(placeholder, `"name":"logprobs"`, `"name":"b"`), output("b")), "not the declared"},
		"no pair":            {raw(placeholder, call("output", "output", "output", x)), "no pair"},
		"constant loss":      {raw(placeholder, call("output", "output", "output", `{"tuple":[1,{"dict":{}}]}`)), "no result of a node"},
		"metric name":        {raw(placeholder, call("output", "output", "output", `{"tuple":[`+x+`,{"dict":{"loss:sum":`+x+`}}]}`)), "custom/<name>"},
		"format":             {[]byte(`{"format":2,"nodes":[]}`), "format 2"},
		"unknown field":      {[]byte(`{"format":1,"nodes":[],"code":"x"}`), "code"},
		"text after":         {append(graphOf(), "{}"...), "after the graph"},
		"no JSON":            {[]byte(`nodes`), "malformed"},
		"null":               {[]byte(`null`), "no output"},
	} {
		t.Run(name, func(t *testing.T) {
			start := time.Now()
			_, err := Import(c.graph, oneInput)
			if err == nil {
				t.Fatal("imported")
			}
			if !strings.Contains(err.Error(), c.want) {
				t.Errorf("%q lacks %q", err, c.want)
			}
			var gaps *UnsupportedError
			if !errors.As(err, &gaps) && !errors.Is(err, ErrGraph) {
				t.Errorf("%v is of neither kind", err)
			}
			if len(err.Error()) > 2000 {
				t.Errorf("an error of %d bytes", len(err.Error()))
			}
			if d := time.Since(start); d > 10*time.Second {
				t.Errorf("refused only after %v", d)
			}
		})
	}
}

func TestImportListsEverything(t *testing.T) {
	x := r("logprobs")
	_, err := Import(graphOf(
		function("a", "torch.bogus", x), function("b", "torch.exp", x), method("c", "numpy", r("b")),
		function("d", "torch.rand", `3`), function("e", "torch.softmax", r("d"))), oneInput)
	var gaps *UnsupportedError
	if !errors.As(err, &gaps) || len(gaps.Gaps) != 4 {
		t.Fatalf("%v, want four gaps", err)
	}
	for _, want := range []string{"torch.bogus", "numpy", "torch.rand", `needs an argument "dim"`, "pass the plain function to forward_backward_custom"} {
		if !strings.Contains(err.Error(), want) {
			t.Errorf("%q lacks %q", err, want)
		}
	}
}

func TestImportInputs(t *testing.T) {
	for _, inputs := range [][]Input{
		nil, {{"weights", 1}}, {{"logprobs", 0}}, {{"logprobs", 3}}, {{"logprobs", 1}, {"Weights", 1}},
		{{"logprobs", 1}, {"logprobs", 1}}, {{"logprobs", 1}, {"w", -1}}, {{"logprobs", 1}, {"w", 1}}, make([]Input, 17),
	} {
		if _, err := Import(graphOf(), inputs); !errors.Is(err, ErrGraph) {
			t.Errorf("inputs %v: %v", inputs, err)
		}
	}
}

func mustImport(t testing.TB, graph []byte, inputs ...Input) *Loss {
	t.Helper()
	l, err := Import(graph, append(oneInput, inputs...))
	if err != nil {
		t.Fatal(err)
	}
	return l
}

func vector(x ...float32) Tensor { return Tensor{Shape: []int{len(x)}, Float32: x} }

// TestRunRefusesSize: whatever is too large fails at once, before it is made.
func TestRunRefusesSize(t *testing.T) {
	x := r("logprobs")
	doubling := func(target, shape string) []string {
		var nodes []string
		last := x
		for k := range 60 {
			name := fmt.Sprintf("d%d", k)
			nodes = append(nodes, function(name, target, fmt.Sprintf(shape, last, last)))
			last = r(name)
		}
		return nodes
	}
	var tuples []string
	last := `{"tuple":[1,2]}`
	for k := range 60 {
		name := fmt.Sprintf("d%d", k)
		tuples = append(tuples, function(name, "operator.add", last, last))
		last = r(name)
	}
	tuples = append(tuples, function("z", "torch.zeros", last))
	var unbound []string
	for k := range 4000 {
		unbound = append(unbound, method(fmt.Sprintf("u%d", k), "unbind", r("wide")))
	}
	for name, nodes := range map[string][]string{
		"expand":            {method("a", "expand", x, "1000000000", "2")},
		"expand a product":  {method("u", "reshape", x, "2", "1", "1"), method("a", "expand", r("u"), "2", "100000", "100000")},
		"shape from data":   {method("i", "long", x), function("n", "operator.getitem", r("i"), "0"), method("a", "new_zeros", x, r("n"))},
		"repeat":            {method("a", "repeat", x, "4611686018427387904")},
		"repeat twice":      {method("a", "repeat", x, "2147483648", "2147483648")},
		"repeat_interleave": {method("a", "repeat_interleave", x, "1000000000")},
		"arange":            {function("a", "torch.arange", "1000000000000000000")},
		"arange by little":  {function("a", "torch.arange", "0", "1.0", "1e-12")},
		"linspace":          {function("a", "torch.linspace", "0", "1", "1000000000")},
		"zeros":             {function("a", "torch.zeros", "{\"tuple\":[1000000,1000000,0,1000000]}"), function("b", "torch.zeros", "[100000,100000]")},
		"eye":               {function("a", "torch.eye", "1000000")},
		"pad":               {function("a", "torch.nn.functional.pad", x, "[1000000000,1000000000]")},
		"one_hot":           {method("i", "long", x), method("c", "clamp", r("i"), "0", "1"), function("a", "torch._C._nn.one_hot", r("c"), "1000000000")},
		"diag":              {function("a", "torch.diag", x, "1000000")},
		"triu_indices":      {function("a", "torch.triu_indices", "100000", "100000")},
		"outer":             {method("w", "repeat", x, "50000"), function("a", "torch.outer", r("w"), r("w"))},
		"matmul":            {method("w", "repeat", x, "2000", "1000"), method("v", "t", r("w")), function("a", "torch.matmul", r("w"), r("v")), function("b", "torch.matmul", r("a"), r("a"))},
		"cat":               doubling("torch.cat", "[%s,%s]"),
		"stack":             doubling("torch.stack", "[%s,%s]"),
		"tuple":             tuples,
		"pieces":            append([]string{method("wide", "repeat", x, "5000")}, append(unbound, method("u", "sum", x))...),
		"power":             {function("n", "operator.pow", "2", "1000000000"), method("a", "mul", x, r("n"))},
		"shift":             {function("n", "operator.lshift", "1", "1000000000"), method("a", "mul", x, r("n"))},
		"power of powers":   {function("n", "operator.pow", "3037000500", "2"), method("a", "mul", x, r("n"))},
		"unfold":            {method("w", "repeat", x, "50000"), method("a", "unfold", r("w"), "0", "50000", "1")},
		"index":             {method("w", "repeat", x, "10000"), method("i", "long", r("w")), method("z", "mul", r("i"), "0"), function("m", "torch.outer", r("z"), r("z")), function("a", "operator.getitem", r("w"), r("m"))},
	} {
		t.Run(name, func(t *testing.T) {
			l := mustImport(t, graphOf(nodes...))
			start := time.Now()
			_, err := l.Run(vector(1e9, 2), nil)
			if err == nil {
				t.Fatal("it ran")
			}
			if !errors.Is(err, ErrLimit) && name != "power" && name != "shift" && name != "power of powers" {
				t.Errorf("%v is no ErrLimit", err)
			}
			if !strings.Contains(err.Error(), "node") {
				t.Errorf("%q names no node", err)
			}
			if d := time.Since(start); d > time.Minute {
				t.Errorf("refused only after %v", d)
			}
		})
	}
}

func TestRunReports(t *testing.T) {
	x := r("logprobs")
	for name, c := range map[string]struct {
		nodes []string
		want  string
		is    error
	}{
		"shapes":                {[]string{function("a", "torch.arange", "3"), function("b", "operator.add", x, r("a"))}, "do not broadcast", ErrRun},
		"index":                 {[]string{function("a", "operator.getitem", x, "2")}, "out of range", ErrRun},
		"negative step":         {[]string{function("a", "operator.getitem", x, `{"slice":[null,null,-1]}`)}, "greater than zero", ErrRun},
		"integer mean":          {[]string{method("i", "long", x), method("a", "mean", r("i"))}, "mean of a int64", ErrRun},
		"integer division":      {[]string{method("i", "long", x), method("a", "floor_divide", r("i"), "0")}, "division by zero", ErrRun},
		"python division":       {[]string{function("n", "operator.truediv", "1", "0"), method("a", "mul", x, r("n"))}, "division by zero", ErrRun},
		"empty max":             {[]string{function("e", "operator.getitem", x, `{"slice":[0,0,null]}`), method("a", "max", r("e"))}, "no elements", ErrRun},
		"matmul":                {[]string{function("a", "torch.outer", x, x), function("n", "torch.arange", "3"), method("f", "float", r("n")), function("b", "operator.matmul", r("a"), r("f"))}, "matmul of shapes", ErrRun},
		"math domain":           {[]string{function("s", "math.log", "0"), method("a", "mul", x, r("s"))}, "domain", ErrRun},
		"in place on leaf":      {[]string{method("a", "mul_", x, "2")}, "in-place", ErrRun},
		"in place on view":      {[]string{method("y", "mul", x, "2"), function("v", "operator.getitem", r("y"), `{"slice":[0,1,null]}`), method("z", "add_", r("y"), "1"), method("a", "add", r("v"), r("z"))}, "view", ErrRun},
		"in place dtype":        {[]string{method("i", "long", x), method("a", "add_", r("i"), "0.5")}, "in-place", ErrRun},
		"no gradient":           {[]string{method("a", "detach", x)}, "does not depend on logprobs", ErrNoGradient},
		"integer loss":          {[]string{method("a", "long", x)}, "does not depend on logprobs", ErrNoGradient},
		"sequence for a tensor": {[]string{method("a", "size", x)}, "needs", ErrRun},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := mustImport(t, graphOf(c.nodes...)).Run(vector(-1, -2), nil)
			if err == nil || !strings.Contains(err.Error(), c.want) || !errors.Is(err, c.is) {
				t.Errorf("%v, want %q", err, c.want)
			}
		})
	}
	l := mustImport(t, raw(placeholder, output("logprobs")))
	if _, err := l.Run(vector(1, 2), nil); !errors.Is(err, ErrRun) || !strings.Contains(err.Error(), "scalar") {
		t.Errorf("a vector as loss: %v", err)
	}
}

func TestRunDatum(t *testing.T) {
	w := `{"op":"placeholder","name":"w","target":"w","args":[],"kwargs":{}}`
	l := mustImport(t, raw(placeholder, w, function("a", "operator.mul", r("logprobs"), r("w")), method("s", "sum", r("a")), output("s")), Input{"w", 1})
	for name, c := range map[string]struct {
		logprobs Tensor
		inputs   map[string]Tensor
	}{
		"missing":      {vector(1, 2), nil},
		"rank":         {vector(1, 2), map[string]Tensor{"w": {Float32: []float32{1}}}},
		"length":       {vector(1, 2), map[string]Tensor{"w": {Shape: []int{3}, Float32: []float32{1}}}},
		"negative":     {vector(1, 2), map[string]Tensor{"w": {Shape: []int{-1}, Float32: []float32{1}}}},
		"overflow":     {Tensor{Shape: []int{1 << 62}}, map[string]Tensor{"w": vector(1)}},
		"int logprobs": {Tensor{Shape: []int{1}, Int64: []int64{1}}, map[string]Tensor{"w": vector(1)}},
	} {
		if _, err := l.Run(c.logprobs, c.inputs); !errors.Is(err, ErrDatum) {
			t.Errorf("%s: %v", name, err)
		}
	}
	got, err := l.Run(vector(1, 2), map[string]Tensor{"w": {Shape: []int{2}, Int64: []int64{3, 4}}, "target_tokens": vector()})
	if err != nil || got.Value != 11 || got.Grad[0] != 3 || got.Grad[1] != 4 || got.Metrics["custom/x:sum"] != 11 {
		t.Errorf("%+v, %v", got, err)
	}
	if _, err := l.RunWithin(context.Background(), vector(1, 2), map[string]Tensor{"w": vector(3, 4)}, Limits{Elements: 10, Work: 10}); !errors.Is(err, ErrLimit) {
		t.Errorf("a run within ten elements: %v", err)
	}
}

func TestRunStops(t *testing.T) {
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	if _, err := mustImport(t, graphOf(method("a", "exp", r("logprobs")))).RunWithin(ctx, vector(1), nil, DefaultLimits); !errors.Is(err, context.Canceled) {
		t.Errorf("a cancelled run: %v", err)
	}
}

// TestInPlaceRebinds: every name of a tensor sees the change, as in torch.
func TestInPlaceRebinds(t *testing.T) {
	x := r("logprobs")
	l := mustImport(t, graphOf(method("y", "mul", x, "2"), method("same", "float", r("y")), function("z", "operator.iadd", r("y"), "1"),
		function("a", "operator.add", r("y"), r("z")), function("b", "operator.add", r("a"), r("same"))))
	got, err := l.Run(vector(1), nil)
	if err != nil || got.Value != 9 || got.Grad[0] != 6 { // 3(2x+1)
		t.Errorf("%+v, %v", got, err)
	}
}

func TestCombine(t *testing.T) {
	got := Combine([]map[string]float64{{"custom/a:sum": 1, "custom/a:mean": 2}, {"custom/a:sum": 3, "custom/a:mean": 4}})
	if got["custom/a:sum"] != 4 || got["custom/a:mean"] != 3 || len(got) != 2 {
		t.Error(got)
	}
}
