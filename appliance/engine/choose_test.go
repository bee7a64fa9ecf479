package engine

import (
	"math"
	"testing"
)

// TestDraws: many draws from one distribution are those of choose, but for sums
// that round differently at a border.
func TestDraws(t *testing.T) {
	logits := make([]float32, 300)
	for i := range logits {
		logits[i] = float32(math.Sin(float64(i*i))) * 4
	}
	logits[7] = float32(math.Inf(-1))
	for _, p := range []SampleParams{{Temperature: 1, TopP: 1}, {Temperature: 0.3, TopP: 0.8}, {Temperature: 2, TopP: 1, TopK: 5}, {Temperature: 0, TopP: 1}, {Temperature: 1, TopP: 1, TopK: 1}} {
		d, other := newDraws(logits, 290, p), 0
		for i := range 5000 {
			u := uniform(3, 0, i)
			if id := d.draw(u); id != choose(logits, 290, p, u) {
				other++
			} else if id == 7 || id >= 290 {
				t.Fatalf("%+v: drew %d", p, id)
			}
		}
		if other > 2 {
			t.Errorf("%+v: %d of 5000 draws differ from choose", p, other)
		}
		for _, u := range []float64{0, math.Nextafter(1, 0)} {
			if id, want := d.draw(u), choose(logits, 290, p, u); id != want {
				t.Errorf("%+v at %v: drew %d, choose %d", p, u, id, want)
			}
		}
	}
}
