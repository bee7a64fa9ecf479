package gguf

import (
	"fmt"
	"math"
)

// llama3Scaling is the rotary scaling that a file states only by its result, a factor per pair of dimensions.
type llama3Scaling struct{ factor, low, high, original float64 }

// factors gives what each frequency is divided by.
func (s llama3Scaling) factors(theta float64, dims int) []float32 {
	out := make([]float32, dims/2)
	for i := range out {
		wave := 2 * math.Pi * math.Pow(theta, float64(2*i)/float64(dims))
		smooth := (s.original/wave - s.low) / (s.high - s.low)
		switch {
		case wave < s.original/s.high:
			out[i] = 1
		case wave > s.original/s.low:
			out[i] = float32(s.factor)
		default:
			out[i] = float32(1 / ((1-smooth)/s.factor + smooth))
		}
	}
	return out
}

// solveLlama3 finds settings that give these factors. They are not unique: the lower frequency factor can be taken as 1,
// since the others scale with it.
func solveLlama3(factors []float32, theta float64) (llama3Scaling, error) {
	dims, most := 2*len(factors), 1.0
	for i, f := range factors {
		if !(f >= 1 && f <= 1e6) {
			return llama3Scaling{}, fmt.Errorf("tensor %q: %w: factor %d is %v", ropeFreqs, ErrUnsupported, i, f)
		}
		most = max(most, float64(f))
	}
	fits := func(s llama3Scaling) bool {
		for i, want := range s.factors(theta, dims) {
			if math.Abs(float64(want/factors[i])-1) > 1e-4 {
				return false
			}
		}
		return true
	}
	if s, ok := lineThrough(factors, theta, most); ok && fits(s) {
		return s, nil
	}
	for original := 1 << 20; original >= 4; original /= 2 {
		for _, high := range []float64{4, 2, 8, 16, 32, 64} { // 4 is the published one
			if s := (llama3Scaling{most, 1, high, float64(original)}); fits(s) {
				return s, nil
			}
		}
	}
	return llama3Scaling{}, fmt.Errorf("tensor %q: %w: its factors are none of the llama3 scaling; convert the original checkpoint",
		ropeFreqs, ErrUnsupported)
}

// lineThrough solves for the settings: between the two bounds, the blend is linear in the frequency.
func lineThrough(factors []float32, theta, most float64) (llama3Scaling, bool) {
	var x, y []float64 // cycles a position, share of the unscaled frequency
	for i, f := range factors {
		if v := float64(f); v > 1.0001 && v < most*0.9999 {
			x = append(x, math.Pow(theta, -float64(i)/float64(len(factors)))/(2*math.Pi))
			y = append(y, (1/v-1/most)/(1-1/most))
		}
	}
	last := len(x) - 1
	if last < 1 {
		return llama3Scaling{}, false
	}
	slope := (y[0] - y[last]) / (x[0] - x[last])
	start := y[0] - slope*x[0] // -low/(high-low)
	if !(slope > 0) || !(start < 0) {
		return llama3Scaling{}, false
	}
	near := func(v, unit float64) float64 {
		if r := math.Round(v/unit) * unit; math.Abs(r/v-1) < 1e-3 {
			return r
		}
		return v
	}
	s := llama3Scaling{factor: most, low: 1, high: near(1-1/start, 0.5), original: math.Round(near(-slope/start, 64))}
	return s, s.original >= 1
}
