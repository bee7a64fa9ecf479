// Package plan orders nodes, assigns buffers and states the memory a step needs before it runs.
//
// [Build] turns a graph into an [ir.Program] for batches up to a capacity. The
// order is the graph's own; nodes whose results nobody asks for are dropped.
// Named values and outputs live in buffers the caller binds (slots); everything
// else shares one arena, whose size is the exact peak. [Verify] proves, without
// trusting Build, that no step of a program overwrites a value that is still
// needed. [Recompute] trades one more forward pass for the memory of kept
// activations.
package plan
