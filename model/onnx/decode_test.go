package onnx

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"math"
	"slices"
	"strings"
	"testing"

	"google.golang.org/protobuf/encoding/protowire"
)

// fields are a message's values by field number: numbers as uint64, all else as bytes.
type fields struct {
	t       *testing.T
	numbers map[protowire.Number][]int64
	parts   map[protowire.Number][][]byte
}

func parse(t *testing.T, b []byte) fields {
	t.Helper()
	f := fields{t, map[protowire.Number][]int64{}, map[protowire.Number][][]byte{}}
	for len(b) > 0 {
		field, kind, n := protowire.ConsumeTag(b)
		if n < 0 {
			t.Fatalf("tag: %v", protowire.ParseError(n))
		}
		b = b[n:]
		switch kind {
		case protowire.VarintType:
			v, n := protowire.ConsumeVarint(b)
			if n < 0 {
				t.Fatalf("field %d: %v", field, protowire.ParseError(n))
			}
			f.numbers[field] = append(f.numbers[field], int64(v))
			b = b[n:]
		case protowire.BytesType:
			v, n := protowire.ConsumeBytes(b)
			if n < 0 {
				t.Fatalf("field %d: %v", field, protowire.ParseError(n))
			}
			f.parts[field] = append(f.parts[field], v)
			b = b[n:]
		default:
			t.Fatalf("field %d is of wire type %d", field, kind)
		}
	}
	return f
}

func (f fields) text(field protowire.Number) string {
	if p := f.parts[field]; len(p) == 1 {
		return string(p[0])
	}
	f.t.Fatalf("field %d: %d texts, want one", field, len(f.parts[field]))
	return ""
}

func (f fields) number(field protowire.Number) int64 {
	if p := f.numbers[field]; len(p) == 1 {
		return p[0]
	}
	f.t.Fatalf("field %d: %d numbers, want one", field, len(f.numbers[field]))
	return 0
}

func (f fields) texts(field protowire.Number) (list []string) {
	for _, b := range f.parts[field] {
		list = append(list, string(b))
	}
	return list
}

func (f fields) entries(field protowire.Number) map[string]string {
	m := map[string]string{}
	for _, b := range f.parts[field] {
		e := parse(f.t, b)
		m[e.text(1)] = e.text(2)
	}
	return m
}

// readTensor is an initializer as it is read back. The field numbers here are those of onnx.proto, written out again.
type readTensor struct {
	name     string
	of       int64
	dims     []int64
	raw      []byte
	external map[string]string
}

type readNode struct {
	op, name   string
	in, out    []string
	attributes map[string][]int64
}

type readValue struct {
	of   int64
	dims []string
}

type readModel struct {
	ir, opset                int64
	name                     string
	metadata                 map[string]string
	nodes                    []readNode
	tensors                  []readTensor
	inputs, outputs, between map[string]readValue
}

func read(t *testing.T, b []byte) readModel {
	t.Helper()
	f := parse(t, b)
	operators := parse(t, []byte(f.text(8)))
	g := parse(t, []byte(f.text(7)))
	m := readModel{ir: f.number(1), opset: operators.number(2), name: g.text(2), metadata: f.entries(14)}
	for _, b := range g.parts[1] {
		n := parse(t, b)
		r := readNode{op: n.text(4), name: n.text(3), in: n.texts(1), out: n.texts(2), attributes: map[string][]int64{}}
		for _, b := range n.parts[5] {
			a := parse(t, b)
			switch kind := a.number(20); kind {
			case 2:
				r.attributes[a.text(1)] = a.numbers[3]
			case 7:
				r.attributes[a.text(1)] = a.numbers[8]
			default:
				t.Fatalf("node %s: attribute of type %d", r.name, kind)
			}
		}
		m.nodes = append(m.nodes, r)
	}
	for _, b := range g.parts[5] {
		x := parse(t, b)
		r := readTensor{name: x.text(8), of: x.number(2), dims: x.numbers[1], external: x.entries(13)}
		if len(r.external) == 0 {
			r.raw = []byte(x.text(9))
		} else if x.number(14) != 1 {
			t.Fatalf("%s: bytes elsewhere, and the location does not say so", r.name)
		}
		m.tensors = append(m.tensors, r)
	}
	m.inputs, m.outputs, m.between = readValues(t, g.parts[11]), readValues(t, g.parts[12]), readValues(t, g.parts[13])
	return m
}

func readValues(t *testing.T, list [][]byte) map[string]readValue {
	m := map[string]readValue{}
	for _, b := range list {
		v := parse(t, b)
		tensor := parse(t, []byte(parse(t, []byte(v.text(2))).text(1)))
		r := readValue{of: tensor.number(1)}
		for _, b := range parse(t, []byte(tensor.text(2))).parts[1] {
			if d := parse(t, b); len(d.parts[2]) > 0 {
				r.dims = append(r.dims, d.text(2))
			} else {
				r.dims = append(r.dims, fmt.Sprint(d.number(1)))
			}
		}
		m[v.text(1)] = r
	}
	return m
}

var elementNames = map[int64]string{1: "f32", 7: "i64"}

// text is a model for people, one line a value or node.
func (m readModel) text() string {
	var b bytes.Buffer
	fmt.Fprintf(&b, "model %s (layout %d, operators %d) %v\n", m.name, m.ir, m.opset, m.metadata)
	values := func(what string, of map[string]readValue) {
		for name, v := range of {
			fmt.Fprintf(&b, "%s %s %s%v\n", what, name, elementNames[v.of], v.dims)
		}
	}
	values("input", m.inputs)
	for _, x := range m.tensors {
		fmt.Fprintf(&b, "tensor %s %s%v%s\n", x.name, elementNames[x.of], x.dims, x.shown())
	}
	for _, n := range m.nodes {
		fmt.Fprintf(&b, "%s = %s(%s)", n.name, n.op, strings.Join(n.in, ", "))
		for _, k := range sorted(n.attributes) {
			fmt.Fprintf(&b, " %s=%v", k, n.attributes[k])
		}
		if v, ok := m.between[n.name]; ok {
			fmt.Fprintf(&b, "  # %s%v", elementNames[v.of], v.dims)
		}
		b.WriteByte('\n')
	}
	values("output", m.outputs)
	return b.String()
}

// shown are the values of a small constant.
func (x readTensor) shown() string {
	if !strings.HasPrefix(x.name, "const/") {
		return ""
	}
	var list []string
	for b := x.raw; len(b) > 0; {
		if x.of == 7 {
			list, b = append(list, fmt.Sprint(int64(binary.LittleEndian.Uint64(b)))), b[8:]
		} else {
			list, b = append(list, fmt.Sprint(math.Float32frombits(binary.LittleEndian.Uint32(b)))), b[4:]
		}
	}
	return " = " + strings.Join(list, " ")
}

func sorted[V any](m map[string]V) []string {
	var keys []string
	for k := range m {
		keys = append(keys, k)
	}
	slices.Sort(keys)
	return keys
}
