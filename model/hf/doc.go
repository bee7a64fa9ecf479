// Package hf turns config.json, shard index and tensor names into a checked description of a checkpoint.
//
// A checkpoint is a set of named files behind a [Source]: a folder, one .safetensors file, or stored blobs. [Describe]
// reads its configuration, index and weight headers, never the weights, and returns a [Checkpoint]. Configurations are
// foreign bytes: sizes are bounded, types are checked and names are refused before anything is allocated for them.
//
// Both spellings of a configuration (the field names of published checkpoints, and those that transformers 5 writes)
// give the same [Config]. Every field of the file stays accounted for: a builder says which it has honoured, and
// [Config.Unused] lists those that it has not and that are not known to leave the numbers alone.
package hf
