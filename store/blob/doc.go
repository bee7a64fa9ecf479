// Package blob is chunked, hashed tensor bytes with references and collection.
//
// A blob is immutable content cut into chunks of [ChunkSize] bytes under
// sequential keys (blob id, chunk number), so that a large write appends to the
// tree instead of scattering over it. Content is known by its SHA-256: writing
// what is already there stores nothing.
//
// Three things keep a blob alive:
//   - references, counted in the file and changed by [Store.AddRef] inside the
//     transaction that stores the record which names the blob;
//   - holds, counted in memory: whoever writes or opens a blob holds it until
//     [Store.Release] or [Reader.Close], so nothing vanishes between the bytes and
//     the record;
//   - a pin ([Store.Pin]), which stops collection altogether while a copy of the
//     store is being made.
//
// Everything else is deleted by [Store.Collect]. A blob is visible only once its
// last chunk and its hash are committed; what a crash leaves half written is
// deleted by [Open], except uploads begun with [Store.OpenPartial], which resume.
//
// No call keeps a transaction open while it waits for a caller: a long read
// transaction would pin freed pages and the file would grow.
package blob
