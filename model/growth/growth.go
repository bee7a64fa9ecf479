package growth

import (
	"fmt"
	"os"
	"runtime"
	"runtime/debug"
	"testing"
)

// Every is how many executions lie between two measurements; the first one is what the later ones are held to.
const Every = 10_000

// Limit is by how many bytes live memory may have grown since the first measurement.
const Limit = 50 << 20

// LogVariable names the environment variable with the file that measurements are appended to, one a line: process,
// executions, and live bytes.
const LogVariable = "SMOLGYM_GROWTH_LOG"

// Watch counts the executions of one fuzz target in one process. The zero value is ready.
type Watch struct {
	executions int
	first      uint64 // live bytes
}

// Check counts an execution. Each time Every more are done it measures, and fails the test past Limit.
func (w *Watch) Check(t testing.TB) {
	t.Helper()
	if w.executions++; w.executions%Every != 0 {
		return
	}
	live := Live()
	if w.first == 0 {
		w.first = live
	}
	if err := record(w.executions, live); err != nil {
		t.Error(err)
	}
	if live > w.first+Limit {
		t.Errorf("%d bytes are live after %d executions, %d after the first %d", live, w.executions, w.first, Every)
	}
}

// Live is how many bytes a collection leaves, in the heap and on stacks. Freed pages go back to the system.
func Live() uint64 {
	debug.FreeOSMemory() // collects first
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return m.HeapAlloc + m.StackInuse
}

func record(executions int, live uint64) error {
	path := os.Getenv(LogVariable)
	if path == "" {
		return nil
	}
	f, err := os.OpenFile(path, os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o644)
	if err != nil {
		return fmt.Errorf("record growth: %w", err)
	}
	_, err = fmt.Fprintln(f, os.Getpid(), executions, live)
	if shut := f.Close(); err == nil {
		err = shut
	}
	if err != nil {
		return fmt.Errorf("record growth: %w", err)
	}
	return nil
}
