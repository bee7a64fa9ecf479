//go:build linux && cgo

package cpu_test

import (
	"errors"
	"math"
	"os"
	"os/exec"
	"strings"
	"testing"
	"unsafe"

	"smolgym/kernels"
	"smolgym/kernels/cpu"
)

func raw(v []int32) []byte {
	return unsafe.Slice((*byte)(unsafe.Pointer(unsafe.SliceData(v))), 4*len(v))
}

func floats(b []byte) []float32 {
	return unsafe.Slice((*float32)(unsafe.Pointer(unsafe.SliceData(b))), len(b)/4)
}

// ulps between a and the exact value, in units of a's spacing.
func ulps(got float32, want float64) float64 {
	if math.IsInf(want, 0) || math.Abs(want) > math.MaxFloat32 || float64(got) == want {
		if float64(got) == want || float32(want) == got {
			return 0
		}
		return math.Inf(1)
	}
	w := float32(want)
	spacing := float64(math.Float32frombits(math.Float32bits(float32(math.Abs(float64(w))))+1)) - math.Abs(float64(w))
	return math.Abs(float64(got)-want) / spacing
}

// Every 997th float32 through exp and log, at every level.
func TestMath(t *testing.T) {
	var x []float32
	for b := uint64(0); b < 1<<32; b += 997 * 16 {
		x = append(x, math.Float32frombits(uint32(b)))
	}
	for b := float32(-104.5); b < 89.5; b += 0.0037 {
		x = append(x, b)
	}
	first := map[int][]float32{}
	for name, code := range cpu.LevelCodes() {
		for which, f := range []func(float64) float64{math.Exp, math.Log} {
			worst, at := 0.0, float32(0)
			y := cpu.MathAt(code, which, x)
			for i, v := range y {
				want := f(float64(x[i]))
				if want != want {
					if v == v {
						t.Fatalf("%s %d: f(%g) = %g, want NaN", name, which, x[i], v)
					}
					continue
				}
				if u := ulps(v, want); u > worst {
					worst, at = u, x[i]
				}
			}
			t.Logf("%s %s: at most %.2f ulp, at %g", name, []string{"exp", "log"}[which], worst, at)
			if worst > 2 {
				t.Errorf("%s %s: %.2f ulp at %g", name, []string{"exp", "log"}[which], worst, at)
			}
			if first[which] == nil {
				first[which] = y
			}
			for i, v := range y {
				if math.Float32bits(v) != math.Float32bits(first[which][i]) && v == v {
					t.Fatalf("%s: f%d(%g) is %x, another level has %x", name, which, x[i], math.Float32bits(v), math.Float32bits(first[which][i]))
				}
			}
		}
	}
}

func TestOpen(t *testing.T) {
	for _, o := range []cpu.Options{{Threads: -1}, {Threads: 100000}, {Level: "mmx"}, {MemoryBytes: -1}} {
		if dev, err := cpu.Open(o); !errors.Is(err, kernels.ErrInput) {
			t.Errorf("%+v: %v, %v", o, dev, err)
		}
	}
	dev, err := cpu.Open(cpu.Options{})
	if err != nil {
		t.Fatal(err)
	}
	if i := dev.Info(); i.Family != cpu.Levels()[0] || i.Threads < 1 || i.Why == "" || i.Name == "" || i.MemoryBytes < 1<<20 || i.FreeBytes < 1<<20 {
		t.Errorf("info: %+v", i)
	}
	if err := errors.Join(dev.Close(), dev.Close()); err != nil {
		t.Error(err)
	}
}

func TestMemoryLimit(t *testing.T) {
	dev, err := cpu.Open(cpu.Options{MemoryBytes: 1 << 20, Threads: 1})
	if err != nil {
		t.Fatal(err)
	}
	defer dev.Close()
	a, err := dev.Alloc(600 << 10)
	if err != nil {
		t.Fatal(err)
	}
	if uintptr(unsafe.Pointer(&cpu.Bytes(a)[0]))%64 != 0 {
		t.Error("memory is not aligned to 64 bytes")
	}
	_, err = dev.Alloc(600 << 10)
	if !errors.Is(err, kernels.ErrMemory) || !strings.Contains(err.Error(), "614400 bytes needed, 434176 free") {
		t.Errorf("second allocation: %v", err)
	}
	a.Free()
	a.Free()
	if free := dev.Info().FreeBytes; free != 1<<20 {
		t.Errorf("%d bytes free after Free", free)
	}
	if cpu.Bytes(a) != nil && len(cpu.Bytes(a)) > 0 {
		t.Error("a freed buffer still gives memory")
	}
}

// The test binary has the package linked in: it needs libc, libm and the loader only.
func TestSharedLibraries(t *testing.T) {
	ldd, err := exec.LookPath("ldd")
	if err != nil {
		t.Skip("no ldd on this machine")
	}
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	out, err := exec.Command(ldd, self).Output()
	if err != nil {
		t.Skipf("ldd: %v", err)
	}
	for _, line := range strings.Split(strings.TrimSpace(string(out)), "\n") {
		name := strings.Fields(line)[0]
		ok := false
		for _, allowed := range []string{"linux-vdso", "libc.so", "libm.so", "libpthread.so", "libresolv.so", "/lib", "ld-linux"} {
			ok = ok || strings.HasPrefix(name, allowed)
		}
		if !ok {
			t.Errorf("needs %s", name)
		}
	}
}
