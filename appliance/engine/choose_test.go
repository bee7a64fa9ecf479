package engine

import (
	"cmp"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
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

// kept is what the filters leave, by sorting everything.
func kept(logits []float32, p SampleParams) map[int32]bool {
	type candidate struct {
		id int32
		w  float32
	}
	best := slices.Max(logits)
	var list []candidate
	for i, l := range logits {
		list = append(list, candidate{int32(i), float32(expNegative((float64(l) - float64(best)) / p.Temperature))})
	}
	slices.SortFunc(list, func(a, b candidate) int { return cmp.Or(cmp.Compare(b.w, a.w), cmp.Compare(a.id, b.id)) })
	if p.TopK > 0 {
		list = list[:min(p.TopK, len(list))]
	}
	total, reached, out := 0.0, 0.0, map[int32]bool{}
	for _, c := range list {
		total += float64(c.w)
	}
	for _, c := range list {
		if reached >= p.TopP*total && p.TopP < 1 {
			break
		}
		if reached += float64(c.w); c.w > 0 {
			out[c.id] = true
		}
	}
	return out
}

// TestFilters: top_k and top_p keep what sorting the whole vocabulary keeps; peaked, flat and equal logits.
func TestFilters(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	for _, shape := range []struct {
		name  string
		logit func(i int) float32
	}{
		{"normal", func(int) float32 { return float32(r.NormFloat64() * 2) }},
		{"peaked", func(i int) float32 { return float32(r.NormFloat64()) * float32(3000/(1+i)) }},
		{"flat", func(int) float32 { return float32(r.NormFloat64() * 1e-4) }},
		{"equal", func(int) float32 { return 3 }},
		{"steps", func(i int) float32 { return float32(i % 7) }},
		{"few", func(i int) float32 { return []float32{0, float32(math.Inf(-1))}[min(i%500, 1)] }},
	} {
		logits := make([]float32, 5000)
		for i := range logits {
			logits[i] = shape.logit(i)
		}
		for _, p := range []SampleParams{{TopP: 1, TopK: 50}, {TopP: 0.9}, {TopP: 0.95, TopK: 2000}, {TopP: 0.2, TopK: 4}, {TopP: 1, TopK: 4999}, {TopP: 1e-9}, {TopP: 1}} {
			for _, p.Temperature = range []float64{1, 0.3, 2.5} {
				var d distribution
				d.set(logits, argmax(logits), p)
				want, got := kept(logits, p), map[int32]bool{}
				for i, w := range d.weights {
					if w > 0 {
						got[int32(i)] = true
					}
				}
				if len(got) != len(want) {
					t.Fatalf("%s %+v: %d tokens are left, want %d", shape.name, p, len(got), len(want))
				}
				for id := range want {
					if !got[id] {
						t.Fatalf("%s %+v: %d is not left", shape.name, p, id)
					}
				}
				for _, u := range []float64{0, 0.3, 0.999, math.Nextafter(1, 0)} {
					if id := d.at(u * d.total); !want[id] {
						t.Fatalf("%s %+v: drew %d at %v, which is filtered out", shape.name, p, id, u)
					}
				}
			}
		}
	}
}

// TestExp: expNegative is exp to one part in 10^10, 1 at 0, and 0 far below.
func TestExp(t *testing.T) {
	worst := 0.0
	for x := -699.0; x < 0; x += 0.00371 {
		worst = max(worst, math.Abs(expNegative(x)/math.Exp(x)-1))
	}
	if worst > 1e-10 || expNegative(0) != 1 || expNegative(math.Inf(-1)) != 0 || expNegative(math.NaN()) != 0 {
		t.Errorf("off by %g at most; %v at 0", worst, expNegative(0))
	}
}

// BenchmarkChoose draws from the vocabulary of Qwen3.
func BenchmarkChoose(b *testing.B) {
	logits := make([]float32, 151936)
	for i := range logits {
		logits[i] = float32(rand.NormFloat64() * 2)
	}
	for _, p := range []SampleParams{{Temperature: 1, TopP: 1}, {Temperature: 1, TopP: 0.95}, {Temperature: 1, TopP: 1, TopK: 50}} {
		b.Run(fmt.Sprintf("top_p%v_top_k%d", p.TopP, p.TopK), func(b *testing.B) {
			for i := 0; b.Loop(); i++ {
				choose(logits, len(logits), p, uniform(1, 0, i))
			}
		})
	}
}
