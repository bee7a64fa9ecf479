// Package kerneltest runs any device against the reference under written tolerances, and checks the promises of package kernels to the bit.
//
// A device's test calls [Compare] with the oracle, and [Bits], [Batches],
// [MicroBatches], [Paged] and [Refusals] for the rest of the contract. Cases
// come from one table keyed by op; an op without a case or a tolerance fails.
package kerneltest
