package kerneltest_test

import (
	"fmt"
	"runtime"
	"slices"
	"sync"
	"testing"

	"smolgym/kernels"
	"smolgym/kernels/cpu"
	"smolgym/kernels/kerneltest"
	"smolgym/kernels/reference"
	"smolgym/model/ir"
)

var oracle = reference.Open(reference.Options{MemoryBytes: 1 << 30})

func open(t *testing.T, level string, threads int) kernels.Device {
	t.Helper()
	dev, err := cpu.Open(cpu.Options{Level: level, Threads: threads})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { dev.Close() })
	return dev
}

// built are the levels of this architecture.
var built = map[string][]string{"amd64": {"amx", "avx512bf16", "avx512", "avx2", "portable", "amx-avx2"}, "arm64": {"neon", "portable"}}

// twin is another level that has the bits of this one.
func twin(level string) string {
	switch {
	case level == "amx":
		return "amx-avx2"
	case level == "amx-avx2" && slices.Contains(cpu.Levels(), "amx"):
		return "amx"
	case level == "amx-avx2":
		return level
	case level != "portable":
		return "portable"
	}
	return plain()[0]
}

// everyLevel runs a test at each level; those this machine can't run are skipped and say so.
func everyLevel(t *testing.T, test func(t *testing.T, level string)) {
	for _, level := range built[runtime.GOARCH] {
		t.Run(level, func(t *testing.T) {
			if !slices.Contains(cpu.Levels(), level) {
				t.Skipf("this processor does not run %s", level)
			}
			test(t, level)
		})
	}
}

func TestAgainstReference(t *testing.T) {
	everyLevel(t, func(t *testing.T, level string) { kerneltest.Compare(t, oracle, open(t, level, 2)) })
}

// A level, its twin and any number of threads give equal bits; and the level that stands in for tiles those of plain C
// wherever there are none.
func TestBits(t *testing.T) {
	everyLevel(t, func(t *testing.T, level string) {
		if level == "amx-avx2" {
			kerneltest.Bits(t, oracle, open(t, "portable", 1), open(t, level, 2), ir.F32)
		}
		best := open(t, twin(level), 1)
		for _, threads := range []int{1, 2, 3} {
			t.Run(fmt.Sprint(threads), func(t *testing.T) { kerneltest.Bits(t, oracle, best, open(t, level, threads)) })
		}
	})
}

// eachSet runs a test at the processor's best level and, where that isn't it, at the one that stands in for tiles.
func eachSet(t *testing.T, test func(t *testing.T, level string)) {
	for _, level := range []string{"auto", "amx-avx2"} {
		t.Run(level, func(t *testing.T) {
			if level != "auto" && !slices.Contains(cpu.Levels(), level) {
				t.Skipf("this processor does not run %s", level)
			}
			test(t, level)
		})
	}
}

func TestBatches(t *testing.T) {
	eachSet(t, func(t *testing.T, level string) { kerneltest.Batches(t, oracle, open(t, level, 2)) })
}

func TestMicroBatches(t *testing.T) {
	eachSet(t, func(t *testing.T, level string) { kerneltest.MicroBatches(t, oracle, open(t, level, 2)) })
}

func TestStretches(t *testing.T) {
	eachSet(t, func(t *testing.T, level string) {
		kerneltest.Stretches(t, oracle, open(t, level, 1), open(t, level, 4))
	})
}

func TestPaged(t *testing.T) {
	everyLevel(t, func(t *testing.T, level string) { kerneltest.Paged(t, open(t, level, 2)) })
}

func TestRefusals(t *testing.T) {
	t.Run("cpu", func(t *testing.T) { kerneltest.Refusals(t, oracle, open(t, "auto", 2)) })
	t.Run("reference", func(t *testing.T) { kerneltest.Refusals(t, oracle, oracle) })
}

func TestPauses(t *testing.T) {
	everyLevel(t, func(t *testing.T, level string) {
		for _, threads := range []int{1, 2} {
			kerneltest.Pauses(t, oracle, open(t, level, threads))
		}
	})
}

// Devices share one pool of threads: used at the same moment they must not disturb each other.
func TestDevicesTogether(t *testing.T) {
	cs, err := kerneltest.Cases(oracle, ir.OpLinear)
	if err != nil {
		t.Fatal(err)
	}
	c := cs[len(cs)-1]
	want, err := kerneltest.Exec(open(t, "auto", 1), c)
	if err != nil {
		t.Fatal(err)
	}
	var group sync.WaitGroup
	for i := range 4 {
		dev := open(t, "auto", 2+i%3)
		group.Go(func() {
			for range 100 {
				got, err := kerneltest.Exec(dev, c)
				if err != nil || !slices.Equal(got[0], want[0]) {
					t.Errorf("device %d: other results than alone: %v", i, err)
					return
				}
			}
		})
	}
	group.Wait()
}
