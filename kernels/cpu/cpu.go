//go:build linux && cgo

package cpu

// -std=c11 is also what keeps a*b+c from being fused: GCC contracts only in its
// own dialects.

/*
#cgo CFLAGS: -std=c11 -O3 -Wall
#cgo LDFLAGS: -lm -pthread
#include <stdlib.h>
#include "step.h"
*/
import "C"

import (
	"fmt"
	"runtime"
	"strings"
	"sync/atomic"
	"unsafe"

	"smolgym/kernels"
	"smolgym/model/ir"
)

// Options configure a device.
type Options struct {
	Threads     int    // 0 for as many as the process may use
	Level       string // "auto" or "", "amx", "avx512bf16", "avx512", "avx2", "neon", "portable", "amx-avx2"
	MemoryBytes int64  // most memory to allocate in all; 0 for what the system has
}

// Device implements kernels.Device.
type Device struct {
	ctx      *C.context
	info     kernels.Info
	capacity int64        // bytes this device may give out
	used     atomic.Int64 // bytes given out; Info reads it from other goroutines
	programs programCache
	depth    int          // runs that have stopped to let others in; the owner's
	inner    []*C.context // of runs inside them
}

var _ kernels.Device = (*Device)(nil)

const maxThreads = 256

var levels = []struct {
	name string
	code C.int
	why  string
}{
	{"amx", C.LEVEL_AMX, "the processor has AMX tiles with BF16, and all of AVX-512 that goes with them"},
	{"avx512bf16", C.LEVEL_AVX512BF16, "the processor has AVX-512 F, BW, DQ and VL, and BF16"},
	{"avx512", C.LEVEL_AVX512, "the processor has AVX-512 F, BW, DQ and VL"},
	{"avx2", C.LEVEL_AVX2, "the processor has AVX2 and FMA"},
	{"neon", C.LEVEL_NEON, "the processor is arm64"},
	{"portable", C.LEVEL_PORTABLE, "plain C, for a processor with none of AVX-512, AVX2 and NEON"},
	{"amx-avx2", C.LEVEL_AMX_AVX2, ""}, // only by name
}

// Levels lists the instruction levels that this machine can run, best first.
func Levels() []string {
	var names []string
	for _, l := range levels {
		if C.cpu_level_runs(l.code) != 0 {
			names = append(names, l.name)
		}
	}
	return names
}

// Open makes a device. The level follows from CPUID alone, never from timing.
func Open(o Options) (kernels.Device, error) {
	d, err := open(o)
	if err != nil {
		return nil, fmt.Errorf("open cpu device: %w", err)
	}
	return d, nil
}

func open(o Options) (*Device, error) {
	threads := o.Threads
	if threads == 0 {
		threads = min(runtime.NumCPU(), maxThreads) // of the process's affinity mask
	}
	if threads < 1 || threads > maxThreads {
		return nil, fmt.Errorf("%w: %d threads, must be from 1 to %d", kernels.ErrInput, o.Threads, maxThreads)
	}
	if o.MemoryBytes < 0 {
		return nil, fmt.Errorf("%w: memory of %d bytes", kernels.ErrInput, o.MemoryBytes)
	}
	for _, l := range levels {
		asked := o.Level == l.name
		if !asked && (o.Level != "" && o.Level != "auto" || l.code == C.LEVEL_AVX512BF16 && C.cpu_slow_bf16() != 0) {
			continue
		}
		if C.cpu_level_runs(l.code) == 0 {
			if asked {
				return nil, fmt.Errorf("level %s: %w on this processor; it runs %s", o.Level, kernels.ErrUnsupported, strings.Join(Levels(), ", "))
			}
			continue
		}
		d := &Device{capacity: systemFree()}
		if o.MemoryBytes > 0 {
			d.capacity = min(d.capacity, o.MemoryBytes)
		}
		if d.ctx = C.cpu_open(C.int(threads), l.code); d.ctx == nil {
			return nil, fmt.Errorf("scratch memory for %d threads: %w", threads, kernels.ErrMemory)
		}
		why := l.why
		if asked {
			why = "asked for by name"
		}
		d.info = kernels.Info{Kind: "cpu", Name: brand(), Family: l.name, BF16: l.code == C.LEVEL_AMX || l.code == C.LEVEL_AVX512BF16 && C.cpu_slow_bf16() == 0, Why: why, Threads: threads, MemoryBytes: d.capacity}
		return d, nil
	}
	return nil, fmt.Errorf("%w: no level %q; this machine runs %s", kernels.ErrInput, o.Level, strings.Join(Levels(), ", "))
}

func brand() string {
	var text [64]C.char
	C.cpu_brand(&text[0])
	if s := strings.TrimSpace(C.GoString(&text[0])); s != "" {
		return s
	}
	return runtime.GOARCH
}

// Info says what the device is.
func (d *Device) Info() kernels.Info {
	i := d.info
	i.FreeBytes = max(d.free(), 0)
	return i
}

// span checks that [offset, offset+n) lies inside b and gives it.
func (d *Device) span(what string, b kernels.Buffer, offset, n int64) ([]byte, error) {
	cb, ok := b.(*buffer)
	if !ok || cb == nil || cb.dev != d || cb.mem == nil {
		return nil, fmt.Errorf("%s buffer: %w: not a live buffer of this device", what, kernels.ErrInput)
	}
	if offset < 0 || n < 0 || offset > cb.size || n > cb.size-offset {
		return nil, fmt.Errorf("%s buffer: %w: %d bytes at %d, the buffer has %d", what, kernels.ErrInput, n, offset, cb.size)
	}
	return cb.mem[offset : offset+n], nil
}

// Write copies src into dst.
func (d *Device) Write(dst kernels.Buffer, offset int64, src []byte) error {
	to, err := d.span("write", dst, offset, int64(len(src)))
	copy(to, src)
	return err
}

// Read copies out of src.
func (d *Device) Read(dst []byte, src kernels.Buffer, offset int64) error {
	from, err := d.span("read", src, offset, int64(len(dst)))
	copy(dst, from)
	return err
}

// Copy copies between buffers; the ranges may overlap.
func (d *Device) Copy(dst kernels.Buffer, dstOffset int64, src kernels.Buffer, srcOffset, bytes int64) error {
	to, err := d.span("copy to", dst, dstOffset, bytes)
	if err != nil {
		return err
	}
	from, err := d.span("copy from", src, srcOffset, bytes)
	if err != nil {
		return err
	}
	copy(to, from)
	return nil
}

// Zero clears a buffer.
func (d *Device) Zero(dst kernels.Buffer) error {
	if dst == nil {
		return fmt.Errorf("zero buffer: %w: nil", kernels.ErrInput)
	}
	to, err := d.span("zero", dst, 0, dst.Size())
	clear(to)
	return err
}

// Supports reports whether there is a kernel for op with weights of the given type.
func (d *Device) Supports(op ir.Op, weights ir.DType) bool {
	_, ok := table[kernelKey{op, weights}]
	return ok
}

// Close frees the device's scratch memory; buffers stay until they are freed.
func (d *Device) Close() error {
	for _, ctx := range d.inner {
		C.cpu_close(ctx)
	}
	d.inner = nil
	if d.ctx != nil {
		C.cpu_close(d.ctx)
		d.ctx = nil
	}
	return nil
}

// mathAt evaluates exp (0) or log (1) at a level, for tests.
func mathAt(level, which int, x []float32) []float32 {
	y := make([]float32, len(x))
	C.cpu_math(C.int(level), C.int(which), (*C.float)(unsafe.Pointer(&x[0])), (*C.float)(unsafe.Pointer(&y[0])), C.int64_t(len(x)))
	return y
}

// fmaPeak runs n rounds of independent fused multiply-adds on this thread and
// gives the number of floating-point operations: a benchmark's ceiling.
func (d *Device) fmaPeak(n int) float64 {
	return float64(C.cpu_fma_peak(C.int(d.ctx.level), C.int64_t(n)))
}
