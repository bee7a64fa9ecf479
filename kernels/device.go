package kernels

import (
	"errors"

	"smolgym/model/ir"
)

// NumericsVersion is recorded with runs and checkpoints. It changes whenever a
// kernel's results may change by a bit.
const NumericsVersion = 1

// Info says what a device is and why it was chosen.
type Info struct {
	Kind        string // "cpu", "cuda" or "reference"
	Name        string // processor or card
	Family      string // instruction family, such as "avx512": part of the numerics
	BF16        bool   // whether products with bfloat16 weights are faster than with float32 ones
	Why         string // why this family, in words
	Threads     int
	MemoryBytes int64 // memory the device can allocate in all
	FreeBytes   int64 // of which free now
}

// Buffer is device memory. Its zero offset is aligned to 64 bytes.
type Buffer interface {
	Size() int64 // bytes
	Free()       // idempotent
}

// Device owns memory and runs programs. It is used by one goroutine at a time,
// its owner; others may call Info at any time, and Alloc, Write and Free for
// buffers that the owner does not know yet.
type Device interface {
	Info() Info
	// Alloc gives zeroed memory. An error wraps ErrMemory and names bytes
	// needed and free.
	Alloc(bytes int64) (Buffer, error)
	Write(dst Buffer, offset int64, src []byte) error
	Read(dst []byte, src Buffer, offset int64) error
	Copy(dst Buffer, dstOffset int64, src Buffer, srcOffset, bytes int64) error
	Zero(dst Buffer) error
	// Group makes several buffers one that can be bound to a slot of class
	// group. nil stands for an empty part. Freeing it frees none of them; a run
	// is refused when one of them was freed.
	Group(parts []Buffer) (Buffer, error)
	// Run executes every step of p for a batch of size dims, which must be
	// within p.Capacity. slots has one buffer for each p.Slots, at least as
	// large as the slot's type under dims; arena has at least p.ArenaBytes and
	// may be shared by programs that do not run at the same time. After each
	// step marked Yield the device calls yield(true), and inside a long stretch
	// it may call yield(false) at any time (nil for never); both may run other
	// programs on the device. An error from it ends the run, possibly only after
	// the step, and is returned as it is.
	Run(p *ir.Program, dims ir.Dims, slots []Buffer, arena Buffer, yield func(between bool) error) error
	// Supports reports whether the device has a kernel for op with weights of
	// the given type.
	Supports(op ir.Op, weights ir.DType) bool
	Close() error
}

// The errors of devices.
var (
	// ErrMemory is returned when an allocation does not fit.
	ErrMemory = errors.New("out of device memory")
	// ErrInput is returned when a program's data cannot be computed with: a
	// token id outside the table, offsets that do not rise, a binding too small.
	ErrInput = errors.New("invalid program input")
	// ErrUnsupported is returned for an op or type without a kernel.
	ErrUnsupported = errors.New("no kernel")
)
