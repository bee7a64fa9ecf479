// Package engine trains runs and decodes samples of loaded base models on one device, owned by one goroutine.
//
// The goroutine that calls [Engine.Run] is the owner: it alone touches the
// device. Others hand it work in two ways: ordered closures through a [Lane]
// (one lane a run; lanes take turns), and samples through [Engine.Sample]
// (continuous batching). Programs yield at layer boundaries and inside long
// layers, and while a training program yields the owner takes a decoding step
// when one is due, so neither side waits for the other's whole batch.
//
// Methods whose comment says "owner" must be called from inside a lane's closure.
package engine
