// Package onnx writes the forward part of a model's graph as a standard ONNX model that any runtime reads.
//
// [Translate] goes op by op: each row of our op table that a forward graph can hold has a rule in ops.go that gives its
// nodes of the default operator set, version 17 (the oldest that is asked for; ONNX 1.12 and ONNX Runtime 1.12, both of
// 2022, read it). Ops without a rule (experts, linear attention, caches, losses) are refused with the complete list.
//
// Our values are packed tokens, [T,N]. So are the file's: input_ids [batch,sequence] is laid end to end as tokens =
// batch*sequence rows, every row of the batch is one sequence from position 0, and only attention takes the rows apart again.
// A batch of texts of different lengths is padded on the right: attention is causal, so that padding changes nothing
// before it. The output is logits [batch,sequence,vocab].
//
// Weights are written in float32, in which the values of every stored type are exact and the graph computes: no node stands
// between a weight and its use, and no runtime needs to know bfloat16. Up to [MaxInline] bytes they lie in the file
// itself; beyond, since a protobuf message ends at 2 GiB, in a second file beside it that the first names. Either is
// streamed, and the same model gives the same bytes.
package onnx
