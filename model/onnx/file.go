package onnx

import (
	"fmt"
	"io"

	"google.golang.org/protobuf/encoding/protowire"
)

// MaxInline is how many bytes of tensors a single file holds at most. Half of what a protobuf message can have: readers keep
// the message and the tensors they make of it at the same time.
const MaxInline = 1 << 30

const (
	// smallTensor is what stays in the model's file when the others go into a second one: shapes, factors, the constants
	// that readers look at before they run anything.
	smallTensor = 1 << 10
	// page is where each tensor of the second file begins, so that readers can map it.
	page = 4 << 10
)

// File is one file of a model, whose bytes are made while it is written.
type File struct {
	Path  string
	Size  int64 // bytes, exact
	Write func(w io.Writer) error
}

// piece is a run of bytes, and the tensor that follows it.
type piece struct {
	bytes  []byte
	tensor *initializer // nil in the last
}

// Files gives the model as a file of that name, and one with ".data" behind it if the tensors have more than inline bytes.
func (m *Model) Files(name string, inline int64) []File {
	var total int64
	for i := range m.initializers {
		total += m.initializers[i].bytes
	}
	if total <= inline {
		return []File{m.modelFile(name, "", nil)}
	}
	var data []piece
	offsets := map[string]int64{}
	var at int64
	for i := range m.initializers {
		t := &m.initializers[i]
		if t.bytes < smallTensor {
			continue
		}
		gap := (page - at%page) % page
		at += gap
		offsets[t.name] = at
		data = append(data, piece{make([]byte, gap), t})
		at += t.bytes
	}
	beside := name + ".data"
	return []File{m.modelFile(name, beside, offsets), fileOf(beside, data)}
}

// modelFile has the nodes, and the tensors that have no offset in the file beside it.
func (m *Model) modelFile(name, beside string, offsets map[string]int64) File {
	var graph message // what comes before the tensors; the fields are in the order of their numbers
	for i := range m.nodes {
		graph.sub(graphNode, m.nodes[i].encode())
	}
	graph.text(graphName, m.name)
	var pieces []piece
	for i := range m.initializers {
		t := &m.initializers[i]
		e := t.head()
		if offset, external := offsets[t.name]; external {
			e.entry(tensorExternal, "location", beside)
			e.entry(tensorExternal, "offset", fmt.Sprint(offset))
			e.entry(tensorExternal, "length", fmt.Sprint(t.bytes))
			e.number(tensorLocation, locationExternal)
			graph.sub(graphInitializer, e)
			continue
		}
		graph.open(graphInitializer, int64(len(e))+int64(protowire.SizeTag(tensorRaw))+int64(protowire.SizeBytes(int(t.bytes))))
		graph = append(graph, e...)
		graph.open(tensorRaw, t.bytes)
		pieces = append(pieces, piece{graph, t})
		graph = nil
	}
	graph = append(graph, m.declared...)
	pieces = append(pieces, piece{bytes: graph})
	var size int64
	for _, p := range pieces {
		size += p.size()
	}
	var head message
	head.number(modelIRVersion, irVersion)
	head.text(modelProducer, "smolgym")
	head.text(modelDoc, m.doc)
	head.open(modelGraph, size)
	var tail, operators message
	operators.number(opsetVersion, opset)
	tail.sub(modelOpset, operators)
	tail.entries(modelMetadata, m.metadata)
	return fileOf(name, append(append([]piece{{bytes: head}}, pieces...), piece{bytes: tail}))
}

func (p piece) size() int64 {
	n := int64(len(p.bytes))
	if p.tensor != nil {
		n += p.tensor.bytes
	}
	return n
}

func fileOf(name string, pieces []piece) File {
	f := File{Path: name}
	for _, p := range pieces {
		f.Size += p.size()
	}
	f.Write = func(w io.Writer) error {
		for _, p := range pieces {
			if _, err := w.Write(p.bytes); err != nil {
				return err
			}
			if p.tensor == nil {
				continue
			}
			c := &counter{w: w}
			if err := p.tensor.write(c); err != nil {
				return fmt.Errorf("write tensor %q: %w", p.tensor.name, err)
			}
			if c.n != p.tensor.bytes {
				return fmt.Errorf("write tensor %q: %d bytes came, %d were announced", p.tensor.name, c.n, p.tensor.bytes)
			}
		}
		return nil
	}
	return f
}

type counter struct {
	w io.Writer
	n int64
}

func (c *counter) Write(p []byte) (int, error) {
	n, err := c.w.Write(p)
	c.n += int64(n)
	return n, err
}
