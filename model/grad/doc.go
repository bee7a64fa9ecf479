// Package grad is reverse mode: one rule per op, graph in, graph out.
//
// [Backward] appends to a copy of a graph the nodes that add each selected
// parameter's gradient into its accumulator. Gradients of activations overwrite
// and, where a value is used more than once, are summed with Add in a fixed
// order: the last use first. Nothing is computed that no selected parameter
// (or input whose gradient is asked for) needs.
//
// Where an op is not differentiable, the rules do as torch does: Clamp passes
// the gradient inside its bounds, both included; Min and Max pass it to the
// selected side and half to each at a tie; a mask of Where gets none.
package grad
