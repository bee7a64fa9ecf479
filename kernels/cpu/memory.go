//go:build linux && cgo

package cpu

/*
#include "step.h"
*/
import "C"

import (
	"bytes"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"strconv"
	"syscall"
	"unsafe"

	"smolgym/kernels"
)

// buffer is anonymous mapped memory: zeroed, page-aligned, outside the Go heap.
type buffer struct {
	dev  *Device
	mem  []byte // the mapping, whole pages; nil once freed
	size int64

	group []*buffer // of a group: its parts, nil where empty
}

func (b *buffer) Size() int64 { return b.size }

func (b *buffer) Free() {
	if b.mem != nil {
		// An error here means that the mapping is not ours: nothing to be done about it.
		_ = syscall.Munmap(b.mem)
		b.dev.used.Add(-int64(len(b.mem)))
		b.mem, b.size, b.group = nil, 0, nil
	}
}

// Group makes several buffers one: their addresses and sizes, as step.h has it.
func (d *Device) Group(parts []kernels.Buffer) (kernels.Buffer, error) {
	const width = int(unsafe.Sizeof(C.part{}))
	b, err := d.Alloc(int64(width * (len(parts) + 1)))
	if err != nil {
		return nil, fmt.Errorf("group %d buffers: %w", len(parts), err)
	}
	g := b.(*buffer)
	list := unsafe.Slice((*C.part)(unsafe.Pointer(&g.mem[0])), len(parts)+1)
	list[0].n = C.int64_t(len(parts))
	g.group = make([]*buffer, len(parts))
	for i, p := range parts {
		if p == nil {
			continue
		}
		mem, err := d.span("group", p, 0, p.Size())
		if err != nil {
			g.Free()
			return nil, fmt.Errorf("part %d: %w", i, err)
		}
		list[i+1] = C.part{at: (*C.float)(unsafe.Pointer(unsafe.SliceData(mem))), n: C.int64_t(len(mem) / 4)}
		g.group[i] = p.(*buffer)
	}
	return g, nil
}

// groupAlive refuses what is no group, and a group with a part that was freed.
func (b *buffer) groupAlive() error {
	if b.group == nil {
		return fmt.Errorf("%w: a buffer is bound where a group belongs", kernels.ErrInput)
	}
	for i, p := range b.group {
		if p != nil && p.mem == nil {
			return fmt.Errorf("%w: part %d of the group was freed", kernels.ErrInput, i)
		}
	}
	return nil
}

// Bytes is the memory of a live buffer of this device kind, for reading
// without a copy; nil for any other. It dies with Free.
func Bytes(b kernels.Buffer) []byte {
	if cb, ok := b.(*buffer); ok && cb != nil {
		return cb.mem[:cb.size:cb.size]
	}
	return nil
}

const hugeFrom = 4 << 20 // bytes from which huge pages are asked for

var pageSize = int64(os.Getpagesize()) // 4 KiB; on arm64 up to 64

// Alloc gives zeroed memory. Pages are touched late by the system, so what is
// free is the least of what it says now and what was free at Open less what
// this device has given out.
func (d *Device) Alloc(size int64) (kernels.Buffer, error) {
	if size < 0 {
		return nil, fmt.Errorf("allocate %d bytes: %w: negative size", size, kernels.ErrInput)
	}
	if size > math.MaxInt64-pageSize {
		return nil, fmt.Errorf("allocate on cpu: %d bytes needed: %w", size, kernels.ErrMemory)
	}
	rounded := max((size+pageSize-1)/pageSize*pageSize, pageSize)
	// Taken before it is looked whether it fits, since others allocate at the same time.
	if d.used.Add(rounded); d.used.Load() > d.capacity || rounded > systemFree() {
		d.used.Add(-rounded)
		return nil, fmt.Errorf("allocate on cpu: %d bytes needed, %d free: %w", size, max(d.free(), 0), kernels.ErrMemory)
	}
	mem, err := syscall.Mmap(-1, 0, int(rounded), syscall.PROT_READ|syscall.PROT_WRITE, syscall.MAP_ANON|syscall.MAP_PRIVATE)
	if err != nil {
		d.used.Add(-rounded)
		return nil, fmt.Errorf("allocate on cpu: %d bytes needed, %d free: %w: %w", size, d.free(), kernels.ErrMemory, err)
	}
	if rounded >= hugeFrom {
		_ = syscall.Madvise(mem, 14 /* MADV_HUGEPAGE */) // only a wish
	}
	return &buffer{dev: d, mem: mem, size: size}, nil
}

func (d *Device) free() int64 { return min(d.capacity-d.used.Load(), systemFree()) }

// systemFree is the least of what the system and the control group leave.
func systemFree() int64 {
	free := int64(math.MaxInt64)
	if text, err := os.ReadFile("/proc/meminfo"); err == nil {
		if _, rest, ok := bytes.Cut(text, []byte("MemAvailable:")); ok {
			line, _, _ := bytes.Cut(rest, []byte("\n"))
			if kb, ok := firstNumber(line); ok {
				free = kb * 1024
			}
		}
	}
	return max(min(free, groupFree()), 0)
}

// groupFree is the room under the process's control group and the groups above it.
func groupFree() int64 {
	free := int64(math.MaxInt64)
	text, err := os.ReadFile("/proc/self/cgroup")
	if err != nil {
		return free
	}
	for line := range bytes.Lines(text) {
		parts := bytes.SplitN(bytes.TrimSpace(line), []byte(":"), 3)
		if len(parts) != 3 {
			continue
		}
		root, most, now := "/sys/fs/cgroup", "memory.max", "memory.current"
		if string(parts[1]) == "memory" {
			root, most, now = "/sys/fs/cgroup/memory", "memory.limit_in_bytes", "memory.usage_in_bytes"
		} else if string(parts[0]) != "0" {
			continue
		}
		for dir := filepath.Join("/", string(parts[2])); ; dir = filepath.Dir(dir) {
			limit, ok1 := numberIn(filepath.Join(root, dir, most))
			used, ok2 := numberIn(filepath.Join(root, dir, now))
			if ok1 && ok2 {
				free = min(free, limit-used)
			}
			if dir == "/" {
				break
			}
		}
	}
	return free
}

func numberIn(path string) (int64, bool) {
	text, err := os.ReadFile(path)
	if err != nil {
		return 0, false
	}
	return firstNumber(text)
}

// firstNumber parses the first field; "max" is no number.
func firstNumber(text []byte) (int64, bool) {
	fields := bytes.Fields(text)
	if len(fields) == 0 {
		return 0, false
	}
	n, err := strconv.ParseInt(string(fields[0]), 10, 64)
	return n, err == nil
}
