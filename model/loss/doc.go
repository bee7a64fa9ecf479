// Package loss builds the loss functions as graphs over per-token log-probabilities.
//
// Every loss is a sum over tokens, given for each datum: the output "loss" [S].
// [Lookup] gives the table row of a loss, which says what a request must and may
// bring; [Append] adds its nodes to a graph with an output "logprobs" [T,C].
// Settings that are numbers in a request (clip thresholds, beta) are tensors
// here, filled by the caller, so that a request may also send them per token.
//
// A token with zero weight or zero advantage adds exactly 0 to the loss and to
// the gradient, whatever its log-probabilities are, infinite or NaN included.
package loss
