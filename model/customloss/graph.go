package customloss

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"slices"
	"strconv"
)

// What a graph may be at most. The encoder's own nesting is one object and one
// list per level of a user's literal, so 24 leaves room for any real one.
const (
	maxGraphBytes = 4 << 20
	maxNodes      = 10000
	maxNesting    = 24
	maxString     = 256
	maxInputs     = 16
)

// ErrGraph is returned for a graph that is not one the SDK's tracer makes.
var ErrGraph = errors.New("malformed custom loss graph")

// jsonGraph is the wire form, as the SDK encodes it.
type jsonGraph struct {
	Format *int       `json:"format"`
	Nodes  []jsonNode `json:"nodes"`
}

type jsonNode struct {
	Op     string         `json:"op"`
	Name   string         `json:"name"`
	Target string         `json:"target"`
	Args   []any          `json:"args"`
	Kwargs map[string]any `json:"kwargs"`
}

// Values that flow through a graph: nil (None), bool, int64, float64, string,
// *tensor, and these.
type (
	// list is a Python list or tuple; names are those of a named tuple.
	list struct {
		items []any
		tuple bool
		names []string
	}
	slicing  struct{ start, stop, step any }
	dict     map[string]any
	ellipsis struct{}
	// opaque is a device, layout or memory format: accepted where it changes nothing.
	opaque struct{ kind, name string }
	// ref is an argument that an earlier node gives: that node's position.
	ref int
)

// nesting scans for depth without recursion, before a decoder recurses.
func nesting(text []byte) int {
	depth, deepest, quoted := 0, 0, false
	for k := 0; k < len(text); k++ {
		switch c := text[k]; {
		case quoted && c == '\\':
			k++
		case c == '"':
			quoted = !quoted
		case quoted:
		case c == '{' || c == '[':
			depth++
			deepest = max(deepest, depth)
		case c == '}' || c == ']':
			depth--
		}
	}
	return deepest
}

func parse(text []byte) (*jsonGraph, error) {
	if len(text) > maxGraphBytes {
		return nil, fmt.Errorf("%w: %d bytes, the limit is %d", ErrGraph, len(text), maxGraphBytes)
	}
	if d := nesting(text); d > maxNesting {
		return nil, fmt.Errorf("%w: nested %d deep, the limit is %d", ErrGraph, d, maxNesting)
	}
	dec := json.NewDecoder(bytes.NewReader(text))
	dec.DisallowUnknownFields()
	dec.UseNumber()
	var g jsonGraph
	if err := dec.Decode(&g); err != nil {
		return nil, fmt.Errorf("%w: %w", ErrGraph, err)
	}
	if _, err := dec.Token(); err != io.EOF {
		return nil, fmt.Errorf("%w: text after the graph", ErrGraph)
	}
	switch {
	case g.Format != nil && *g.Format != 1:
		return nil, fmt.Errorf("%w: format %d, this server reads format 1", ErrGraph, *g.Format)
	case len(g.Nodes) > maxNodes:
		return nil, fmt.Errorf("%w: %d nodes, the limit is %d", ErrGraph, len(g.Nodes), maxNodes)
	}
	return &g, nil
}

// decode turns an encoded argument into a value; earlier names the nodes that
// may be referred to. Nesting is bounded by parse.
func decode(arg any, earlier map[string]int) (any, error) {
	switch arg := arg.(type) {
	case nil, bool:
		return arg, nil
	case string:
		if len(arg) > maxString {
			return nil, fmt.Errorf("a string of %d bytes, the limit is %d", len(arg), maxString)
		}
		return arg, nil
	case json.Number:
		return decodeNumber(string(arg))
	case []any:
		items, err := decodeAll(arg, earlier)
		return list{items: items}, err
	case map[string]any:
		if len(arg) != 1 {
			return nil, fmt.Errorf("an argument object with %d keys, it has one", len(arg))
		}
		for key, v := range arg {
			return decodeObject(key, v, earlier)
		}
	}
	return nil, fmt.Errorf("an argument of an unknown form")
}

func decodeNumber(text string) (any, error) {
	if i, err := strconv.ParseInt(text, 10, 64); err == nil {
		return i, nil
	}
	x, err := strconv.ParseFloat(text, 64)
	if err != nil || math.IsInf(x, 0) || math.IsNaN(x) || !bytes.ContainsAny([]byte(text), ".eE") {
		return nil, fmt.Errorf("the number %.40s is out of range", text)
	}
	return x, nil
}

func decodeAll(args []any, earlier map[string]int) ([]any, error) {
	out := make([]any, len(args))
	for k, a := range args {
		v, err := decode(a, earlier)
		if err != nil {
			return nil, err
		}
		out[k] = v
	}
	return out, nil
}

func decodeObject(key string, v any, earlier map[string]int) (any, error) {
	text, isText := v.(string)
	items, isList := v.([]any)
	switch {
	case key == "ref" && isText:
		at, ok := earlier[text]
		if !ok {
			return nil, fmt.Errorf("a reference to %.40q, which is no earlier node", text)
		}
		return ref(at), nil
	case key == "tuple" && isList:
		all, err := decodeAll(items, earlier)
		return list{items: all, tuple: true}, err
	case key == "slice" && isList && len(items) == 3:
		all, err := decodeAll(items, earlier)
		if err != nil {
			return nil, err
		}
		return slicing{all[0], all[1], all[2]}, nil
	case key == "ellipsis" && v == true:
		return ellipsis{}, nil
	case key == "float" && text == "inf":
		return inf, nil
	case key == "float" && text == "-inf":
		return -inf, nil
	case key == "float" && text == "nan":
		return nil, fmt.Errorf("a NaN constant, which makes every value it meets NaN")
	case key == "dtype" && isText:
		d, ok := dtypeByName(text)
		if !ok {
			return nil, fmt.Errorf("dtype %.40q, supported are %v", text, dtypeNames)
		}
		return d, nil
	case (key == "device" || key == "layout" || key == "memory_format") && isText:
		if key == "device" && text != "cpu" || key == "layout" && text != "strided" {
			return nil, fmt.Errorf("%s %.40q, supported is the default alone", key, text)
		}
		return opaque{key, text}, nil
	case key == "dict":
		return decodeDict(v, earlier)
	}
	return nil, fmt.Errorf("an argument object %.40q of an unknown form", key)
}

func decodeDict(v any, earlier map[string]int) (any, error) {
	fields, ok := v.(map[string]any)
	if !ok {
		return nil, fmt.Errorf("a dict that is no object")
	}
	out := dict{}
	for _, key := range sortedKeys(fields) {
		if len(key) > maxString {
			return nil, fmt.Errorf("a key of %d bytes, the limit is %d", len(key), maxString)
		}
		item, err := decode(fields[key], earlier)
		if err != nil {
			return nil, err
		}
		out[key] = item
	}
	return out, nil
}

func sortedKeys[V any](m map[string]V) []string {
	keys := make([]string, 0, len(m))
	for k := range m {
		keys = append(keys, k)
	}
	slices.Sort(keys)
	return keys
}

// resolve replaces the references in a decoded argument by the values of env.
func resolve(arg any, env []any) any {
	switch arg := arg.(type) {
	case ref:
		return env[arg]
	case list:
		out := list{items: make([]any, len(arg.items)), tuple: arg.tuple}
		for k, a := range arg.items {
			out.items[k] = resolve(a, env)
		}
		return out
	case slicing:
		return slicing{resolve(arg.start, env), resolve(arg.stop, env), resolve(arg.step, env)}
	}
	return arg
}
