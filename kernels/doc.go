// Package kernels is the device contract: memory, copies, running a planned program with yield points.
//
// Nothing above this package knows which device computes. Two implementations
// are always present: kernels/reference (obvious and slow, the oracle) and
// kernels/cpu; kernels/kerneltest runs any device against the reference.
//
// Conventions that every device keeps:
//   - parameter gradients add into their accumulator, one datum (sequence) after
//     the other in batch order: acc = acc + (the datum's sum over its tokens in
//     rising order, started from zero). Activation gradients overwrite. So
//     neither micro-batching nor batch-mates change a bit of an accumulator;
//   - a row of an output depends on its own row of the inputs (and, for
//     attention, on the earlier tokens of its own sequence) and on nothing else
//     in the batch, so a token has the same bits alone, in a batch, in prefill,
//     in decode and in training;
//   - the number of threads never changes a bit.
package kernels
