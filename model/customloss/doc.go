// Package customloss checks and runs a loss the user wrote, which arrives as a traced graph of torch calls in plain JSON.
//
// [Import] checks a whole graph before anything runs and names everything it
// cannot take in one error. [Loss.Run] then computes the loss of one datum, its
// gradient with respect to the log probabilities, and its metrics, with a small
// tensor interpreter that follows torch: its dtypes and promotion, broadcasting,
// indexing and gradient conventions. Reductions accumulate in float64; every
// result is rounded to its dtype.
//
// No code of the user's ever runs: a graph can only name operations of the table
// in this package. Elements, work and nodes are bounded, by [Limits] for a run and
// by constants for a graph.
package customloss
