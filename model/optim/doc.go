// Package optim is the optimizer as graphs: gradient norms and the AdamW update.
//
// A step is two programs with the host between them. [Norm] gives every
// parameter's sum of squared gradients; the host adds them in float64, refuses
// what is not finite and computes the clip factor. [AdamW] then updates
// parameters and moments in place with the numbers of [Hyper].
package optim
