// Package safetensors reads and writes safetensors without trusting a byte of the header.
//
// A file is an 8-byte little-endian header length, a JSON header, and the tensors' bytes. [Parse] reads only the header,
// as a stream, and checks all of it before anything is believed: lengths against the file, shapes against byte counts,
// and that the tensors tile the data section with no overlap, no hole and nothing left over. What it keeps is bounded by
// fixed limits (see [MaxHeaderBytes] and [MaxTensors]), so that no header, however hostile, costs 50 MB of memory.
// [Write] streams a file out; the same entries give the same bytes.
package safetensors
