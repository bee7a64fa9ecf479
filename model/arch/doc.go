// Package arch builds an ir graph from a checkpoint's description, one file per model family.
//
// [Check] lists everything about a checkpoint that can't be taken, before
// anything is allocated; [Build] makes the graph of a checkpoint without gaps, to
// train with or to sample from. Both read the same blocks, so a tensor that Check
// asks for is one that Build uses, and every other tensor is named.
//
// Inputs of both graphs: ids[T], positions[T], offsets[S1], all i32. A [Train]
// graph takes targets[T,C] and gives logprobs[T,C]. A [Decode] graph takes
// start[S], table[S,B], rows[R], keeps keys and values in the states "kv.k.<layer>"
// and "kv.v.<layer>" [P, Page*kvheads*headdim] and gives logits[R,V] and lse[R]
// of the selected rows.
package arch
