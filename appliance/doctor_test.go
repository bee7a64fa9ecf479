package appliance

import (
	"math"
	"testing"
)

// A model, an adapter and a full update: all ways to a log-probability give the same bits.
func TestAgree(t *testing.T) {
	for _, isFull := range []bool{false, true} {
		a, weights, sampler := taught(t, "steps_llama", isFull)
		for _, name := range []string{"tiny", weights, sampler} {
			g, err := a.Agree(t.Context(), name)
			if err != nil {
				t.Fatal(err)
			}
			if g.Largest() != 0 || g.Tokens < 10 {
				t.Errorf("%s: %+v", name, g)
			}
		}
		_, err := a.Agree(t.Context(), "nobody")
		refused(t, err, CodeNotFound, "nobody")
		d, err := a.Disk()
		if err != nil || d.File <= 0 || d.Free == 0 {
			t.Errorf("disk %+v: %v", d, err)
		}
	}
}

// A difference of one bit shows, and so does a length.
func TestApart(t *testing.T) {
	x := []float32{-1, -2}
	y := []float32{-1, math.Nextafter32(-2, 0)}
	if apart(x, x) != 0 || apart(x, y) == 0 || !math.IsInf(apart(x, x[:1]), 1) {
		t.Error(apart(x, x), apart(x, y), apart(x, x[:1]))
	}
}
