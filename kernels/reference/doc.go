// Package reference is the oracle device: float32 storage, obvious loops, always built.
//
// Every kernel is the definition of its op written down once, forward and
// backward together, one file for each group of ops. Sums run in float64, so a
// result is the exact one rounded once or twice; the fast devices are compared
// with it under the tolerances of package kerneltest. Kernels are generic in
// the storage type only so that tests can take finite differences in float64.
//
// As everywhere (package kernels): parameter gradients add into their
// accumulator one datum after the other, activation gradients overwrite.
package reference
