// Package lora adds, merges and exports adapters as graph rewrites.
//
// [Apply] turns every selected Linear y = x·Wᵀ into y + s·((x·Aᵀ)·Bᵀ), with
// s = alpha/rank, and declares A [rank,in] and B [out,rank] under the names that
// PEFT gives them. [Init] draws a fresh adapter, [Merge] folds one into a weight.
package lora
