package kerneltest_test

import (
	"bytes"
	"crypto/sha256"
	"encoding/binary"
	"flag"
	"fmt"
	"hash"
	"math"
	"os"
	"slices"
	"strings"
	"testing"

	"smolgym/kernels"
	"smolgym/kernels/cpu"
	"smolgym/kernels/kerneltest"
	"smolgym/model/ir"
)

var update = flag.Bool("update", false, "write testdata/digests.txt anew")

// TestDigests: the bits of every op's cases are those on record, whatever the architecture. A change of them is a new
// kernels.NumericsVersion: raise it, and write the file anew by -update. An op has a line for weights in float32, one for
// bfloat16, and one for bfloat16 on tiles.
func TestDigests(t *testing.T) {
	path := "testdata/digests.txt"
	var now strings.Builder
	fmt.Fprintf(&now, "version %d\n", kernels.NumericsVersion)
	for _, set := range []struct {
		level, name string
		weights     []ir.DType
	}{{plain()[0], "", []ir.DType{ir.F32, ir.BF16}}, {"amx-avx2", " tiles", []ir.DType{ir.BF16}}} {
		if !slices.Contains(cpu.Levels(), set.level) {
			continue // the lines on record of that set are left out of the comparison
		}
		dev := open(t, set.level, 2)
		for _, op := range ir.Ops() {
			for _, weights := range set.weights {
				if line := digest(t, dev, op, weights); line != "" {
					fmt.Fprintf(&now, "%s %s%s %s\n", op, weights, set.name, line)
				}
			}
		}
	}
	if *update {
		if err := os.WriteFile(path, []byte(now.String()), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	recorded, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	tiles := slices.Contains(cpu.Levels(), "amx-avx2")
	var want []string
	for line := range strings.Lines(string(recorded)) {
		if tiles || !strings.Contains(line, " tiles ") {
			want = append(want, strings.TrimSpace(line))
		}
	}
	got := strings.Split(strings.TrimSpace(now.String()), "\n")
	if len(got) != len(want) {
		t.Fatalf("%d lines, %d are on record", len(got), len(want))
	}
	for i := range got {
		if got[i] != want[i] {
			t.Errorf("%s; on record is %s", got[i], want[i])
		}
	}
}

// plain are the levels without tiles, which all have the same bits.
func plain() []string {
	return slices.DeleteFunc(cpu.Levels(), func(l string) bool { return strings.HasPrefix(l, "amx") })
}

// digest is the number of cases of an op with weights of a type, and a hash of their operands and results; empty for none.
func digest(t *testing.T, dev kernels.Device, op ir.Op, weights ir.DType) string {
	cs, err := kerneltest.Cases(dev, op)
	if err != nil {
		t.Fatalf("%s: %v", op, err)
	}
	in, out, n := sha256.New(), sha256.New(), 0
	for _, c := range cs {
		if c.Weights() != weights {
			continue
		}
		n++
		for _, o := range c.In {
			write(in, o.F)
			for _, p := range o.Parts {
				write(in, p)
			}
			if err := binary.Write(in, binary.LittleEndian, o.I); err != nil {
				t.Fatal(err)
			}
		}
		results, err := kerneltest.Exec(dev, c)
		if err != nil {
			t.Fatalf("%s: %v", c, err)
		}
		for _, r := range results {
			write(out, r)
		}
	}
	if n == 0 {
		return ""
	}
	return fmt.Sprintf("%d %x %x", n, in.Sum(nil)[:6], out.Sum(nil)[:6])
}

// write hashes floats; all NaNs are one.
func write(h hash.Hash, v []float32) {
	var b bytes.Buffer
	for _, x := range v {
		bits := math.Float32bits(x)
		if x != x {
			bits = 0x7fc00000
		}
		_ = binary.Write(&b, binary.LittleEndian, bits) // into memory
	}
	h.Write(b.Bytes())
}
