// Package ir is the model graph: op table, dtypes, shapes over packed tokens, verifier, text dump and the planned Program.
//
// A [Graph] is ONNX-style: values produced by nodes in topological order,
// named inputs, named weights (initializers, by tensor name) and named outputs.
// Shapes are symbolic over a packed batch: [T] tokens of several sequences
// laid end to end, with [S]+1 sequence offsets; there is no padding anywhere.
//
// Ops come from the closed, versioned table in ops.go. An op whose first output
// must live in the memory of its first input (a gradient accumulator, an
// optimizer moment, a key-value cache) is marked InPlace there; everything else
// is a pure function of its inputs.
//
// A [Program] is a graph that a planner has ordered and given memory; a device
// (package kernels) runs it.
package ir
