// Package gguf reads and writes GGUF files without trusting a byte of them.
//
// A GGUF file is a count of tensors and of metadata, the metadata, the tensors' descriptions, and their bytes. [Parse]
// walks the header as a stream and checks all of it before anything is believed: counts against the file, value types,
// that names and keys are unique, and that every tensor lies in the file without touching another. Arrays and texts stay
// in the file and are read when asked for, so that no header, however hostile, costs 50 MB of memory.
//
// [NewSource] and [OpenPath] show a file as the folder that it was made from: a config.json written from the metadata, a
// tokenizer.json written from the vocabulary, and a model.safetensors that does not exist: its header is made up, and its
// bytes are dequantised, renamed and put back into their order when they are read. This form was chosen since everything
// that takes a checkpoint then takes GGUF files too, with the same checks and refusals, and no tensor is held whole.
//
// [Export] is the way back: it streams the tensors of a checkpoint into a file; the same model gives the same bytes.
package gguf
