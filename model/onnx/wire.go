package onnx

import (
	"encoding/binary"
	"io"
	"maps"
	"math"
	"slices"

	"google.golang.org/protobuf/encoding/protowire"
)

// The fields of onnx.proto that are written, by message. They are part of the standard and do not change.
const (
	modelIRVersion, modelProducer, modelDoc, modelGraph, modelOpset, modelMetadata protowire.Number = 1, 2, 6, 7, 8, 14

	opsetVersion protowire.Number = 2

	entryKey, entryValue protowire.Number = 1, 2

	graphNode, graphName, graphInitializer, graphInput, graphOutput, graphValue protowire.Number = 1, 2, 5, 11, 12, 13

	nodeInput, nodeOutput, nodeName, nodeOp, nodeAttribute protowire.Number = 1, 2, 3, 4, 5

	attributeName, attributeInt, attributeInts, attributeType protowire.Number = 1, 3, 8, 20

	tensorDims, tensorType, tensorName, tensorRaw, tensorExternal, tensorLocation protowire.Number = 1, 2, 8, 9, 13, 14

	valueName, valueType                protowire.Number = 1, 2
	typeTensor                          protowire.Number = 1
	tensorTypeElem, tensorTypeShape     protowire.Number = 1, 2
	shapeDim                            protowire.Number = 1
	dimensionValue, dimensionParam      protowire.Number = 1, 2
	attributeTypeInt, attributeTypeInts int64            = 2, 7
	locationExternal                    int64            = 1
)

// irVersion is that of the file's layout; version 8 came with operator set 17.
const (
	irVersion = 8
	opset     = 17
)

// element is an element type of the standard.
type element int64

const (
	float32s element = 1
	int64s   element = 7
)

// message is a protobuf message while it is written.
type message []byte

func (m *message) number(field protowire.Number, v int64) {
	*m = protowire.AppendTag(*m, field, protowire.VarintType)
	*m = protowire.AppendVarint(*m, uint64(v))
}

func (m *message) text(field protowire.Number, s string) {
	*m = protowire.AppendTag(*m, field, protowire.BytesType)
	*m = protowire.AppendString(*m, s)
}

func (m *message) sub(field protowire.Number, s message) {
	*m = protowire.AppendTag(*m, field, protowire.BytesType)
	*m = protowire.AppendBytes(*m, s)
}

// open begins a part of n bytes that follow by other ways.
func (m *message) open(field protowire.Number, n int64) {
	*m = protowire.AppendTag(*m, field, protowire.BytesType)
	*m = protowire.AppendVarint(*m, uint64(n))
}

func (m *message) entry(field protowire.Number, key, value string) {
	var e message
	e.text(entryKey, key)
	e.text(entryValue, value)
	m.sub(field, e)
}

func (m *message) entries(field protowire.Number, of map[string]string) {
	for _, k := range slices.Sorted(maps.Keys(of)) {
		m.entry(field, k, of[k])
	}
}

// attribute is a node's static parameter: one integer, or several where it is a list.
type attribute struct {
	name string
	list bool
	ints []int64
}

func integer(name string, v int64) attribute     { return attribute{name: name, ints: []int64{v}} }
func integers(name string, v ...int64) attribute { return attribute{name: name, list: true, ints: v} }

// node is one application of an operator; it has one output, which has the node's name.
type node struct {
	op, name   string
	in         []string
	attributes []attribute
}

func (n *node) encode() message {
	var m message
	for _, in := range n.in {
		m.text(nodeInput, in)
	}
	m.text(nodeOutput, n.name)
	m.text(nodeName, n.name)
	m.text(nodeOp, n.op)
	for _, a := range n.attributes {
		var e message
		e.text(attributeName, a.name)
		if a.list {
			for _, v := range a.ints {
				e.number(attributeInts, v)
			}
			e.number(attributeType, attributeTypeInts)
		} else {
			e.number(attributeInt, a.ints[0])
			e.number(attributeType, attributeTypeInt)
		}
		m.sub(nodeAttribute, e)
	}
	return m
}

// dim is an axis: a number, or a name where only a run knows it.
type dim struct {
	size int64
	name string
}

// value declares a tensor's type.
func value(name string, of element, shape ...dim) message {
	var dims message
	for _, d := range shape {
		var e message
		if d.name != "" {
			e.text(dimensionParam, d.name)
		} else {
			e.number(dimensionValue, d.size)
		}
		dims.sub(shapeDim, e)
	}
	var tensor, kind, m message
	tensor.number(tensorTypeElem, int64(of))
	tensor.sub(tensorTypeShape, dims)
	kind.sub(typeTensor, tensor)
	m.text(valueName, name)
	m.sub(valueType, kind)
	return m
}

// initializer is a tensor that the file brings along.
type initializer struct {
	name  string
	of    element
	dims  []int64
	bytes int64
	write func(io.Writer) error // little-endian, row-major
}

// head is the message without its elements.
func (i *initializer) head() message {
	var m message
	for _, d := range i.dims {
		m.number(tensorDims, d)
	}
	m.number(tensorType, int64(i.of))
	m.text(tensorName, i.name)
	return m
}

func product(dims []int64) int64 {
	n := int64(1)
	for _, d := range dims {
		n *= d
	}
	return n
}

func raw(b []byte) func(io.Writer) error {
	return func(w io.Writer) error {
		_, err := w.Write(b)
		return err
	}
}

func floatInitializer(name string, dims []int64, write func(io.Writer) error) initializer {
	return initializer{name, float32s, dims, 4 * product(dims), write}
}

// scalar has no axes.
func scalar(name string, v float32) initializer {
	return floatInitializer(name, nil, raw(binary.LittleEndian.AppendUint32(nil, math.Float32bits(v))))
}

// integersOf has one axis, or none where it is a single number.
func integersOf(name string, single bool, v ...int64) initializer {
	dims := []int64{int64(len(v))}
	if single {
		dims = nil
	}
	var b []byte
	for _, x := range v {
		b = binary.LittleEndian.AppendUint64(b, uint64(x))
	}
	return initializer{name, int64s, dims, 8 * product(dims), raw(b)}
}

// Floats writes values as an initializer's bytes.
func Floats(w io.Writer, values []float32) error {
	buf := make([]byte, 0, 1<<16)
	for len(values) > 0 {
		n := min(len(values), cap(buf)/4)
		buf = buf[:0]
		for _, v := range values[:n] {
			buf = binary.LittleEndian.AppendUint32(buf, math.Float32bits(v))
		}
		if _, err := w.Write(buf); err != nil {
			return err
		}
		values = values[n:]
	}
	return nil
}
