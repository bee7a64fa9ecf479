package chat

import (
	"context"
	"fmt"
	"sync/atomic"
	"syscall"

	"github.com/tetratelabs/wazero/experimental"
)

// memory is the linear memory of one instance: a mapping of its own, as long as it may ever get, of which the system gives
// the pages that are touched. It grows in place and goes back to the system the moment it is closed. On Go's heap each
// page that it grew by would be a copy of the whole, left to the next collection.
type memory struct {
	bytes []byte        // nil when closed
	open  *atomic.Int64 // the engine's count
}

// newMemory maps as much as the limits allow one instance.
func (e *Engine) newMemory() (*memory, error) {
	size := e.limits.pages() * pageBytes
	b, err := syscall.Mmap(-1, 0, size, syscall.PROT_READ|syscall.PROT_WRITE, syscall.MAP_ANON|syscall.MAP_PRIVATE|syscall.MAP_NORESERVE)
	if err != nil {
		return nil, fmt.Errorf("map %d bytes for a template instance: %w", size, err)
	}
	e.open.Add(1)
	return &memory{b, &e.open}, nil
}

// attach makes m the memory of the module that is instantiated with the context.
func (m *memory) attach(ctx context.Context) context.Context {
	return experimental.WithMemoryAllocator(ctx, experimental.MemoryAllocatorFunc(func(_, _ uint64) experimental.LinearMemory { return m }))
}

// Reallocate gives the first size bytes, or nil when there are fewer.
func (m *memory) Reallocate(size uint64) []byte {
	if size > uint64(len(m.bytes)) {
		return nil
	}
	return m.bytes[:size:size]
}

// Free does nothing: wazero calls it when a deadline passes, and the instance's owner may still look at the memory.
func (m *memory) Free() {}

// close gives the memory back to the system. The module must not be called or looked at any more.
func (m *memory) close() {
	if m.bytes == nil {
		return
	}
	if err := syscall.Munmap(m.bytes); err != nil {
		panic(fmt.Sprintf("unmap a template instance: %v", err)) // only for an address that is no mapping
	}
	m.bytes = nil
	m.open.Add(-1)
}
