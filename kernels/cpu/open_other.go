//go:build !(linux && cgo)

package cpu

import (
	"fmt"

	"smolgym/kernels"
)

// Options configure a device.
type Options struct {
	Threads     int
	Level       string
	MemoryBytes int64
}

// Open always fails: the kernels are C and their threads use Linux futexes.
func Open(Options) (kernels.Device, error) {
	return nil, fmt.Errorf("open cpu device: %w: this binary was built without cgo or not for linux; build on linux with CGO_ENABLED=1", kernels.ErrUnsupported)
}
