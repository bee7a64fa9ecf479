package appliance

import (
	"strings"
	"testing"

	"smolgym/kernels/cpu"
	"smolgym/model/ir"
	"smolgym/store"
)

// TestPrecision: auto takes bf16 for what is large and stored in it, on a processor
// that is faster so; by name each is taken, and runs record it.
func TestPrecision(t *testing.T) {
	large, small := store.Model{Parameters: 600_000_000, DType: "BF16"}, store.Model{Parameters: 2_000_000, DType: "BF16"}
	wide := store.Model{Parameters: 600_000_000, DType: "F32+BF16"}
	dev, err := cpu.Open(cpu.Options{})
	if err != nil {
		t.Fatal(err)
	}
	auto := ir.F32
	defer dev.Close()
	if dev.Info().BF16 {
		auto = ir.BF16
	}
	for _, c := range []struct {
		device, precision string
		m                 store.Model
		want              ir.DType
	}{
		{"cpu", "auto", large, auto}, {"cpu", "", large, auto}, {"cpu", "auto", small, ir.F32}, {"cpu", "auto", wide, ir.F32}, {"cpu", "fp32", large, ir.F32},
		{"cpu", "bf16", small, ir.BF16}, {"cpu", "bf16", wide, ir.BF16}, {"reference", "auto", large, ir.F32}, {"reference", "bf16", large, ir.BF16},
	} {
		a := open(t, Options{Device: c.device, Precision: c.precision})
		if got := a.matrices(c.m); got != c.want {
			t.Errorf("%s, %q, %+v: %s", c.device, c.precision, c.m, got)
		}
		shut(t, a)
	}

	a := open(t, Options{Precision: "bf16"})
	defer shut(t, a)
	if _, err := add(t, a, "tiny", tinyModel(t, "steps_llama")); err != nil {
		t.Fatal(err)
	}
	if s := a.numerics("local/tiny"); !strings.Contains(s, " bf16 v") {
		t.Errorf("numerics %q", s)
	}
	if s, err := a.Status(); err != nil || s.Precision != "bf16" {
		t.Errorf("status: precision %q, %v", s.Precision, err)
	}
}
