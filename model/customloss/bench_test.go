package customloss

import (
	"math"
	"testing"
)

// BenchmarkLoss measures whole losses of the goldens on long datums.
func BenchmarkLoss(b *testing.B) {
	for _, c := range []struct {
		name string
		n    int
	}{{"loss clipped_surrogate", 32768}, {"loss pairwise_ranking", 2048}, {"loss geometric_ratio", 32768}} {
		b.Run(c.name[5:], func(b *testing.B) {
			for _, g := range goldens(b) {
				if g.Name != c.name {
					continue
				}
				l, err := Import(g.Graph, g.Inputs)
				if err != nil {
					b.Fatal(err)
				}
				inputs := map[string]Tensor{}
				for _, in := range g.Inputs {
					t := Tensor{Float32: []float32{0.5}}
					if in.Rank == 1 {
						t = Tensor{Shape: []int{c.n}, Float32: make([]float32, c.n)}
						for k := range t.Float32 {
							t.Float32[k] = float32(math.Sin(float64(k)))
						}
					}
					inputs[in.Name] = t
				}
				b.ResetTimer()
				b.ReportAllocs()
				for range b.N {
					if _, err := l.Run(inputs["logprobs"], inputs); err != nil {
						b.Fatal(err)
					}
				}
			}
		})
	}
}
