package arch

import (
	"fmt"
	"math"
	"slices"

	"smolgym/model/hf"
)

// ropeTypes are the scalings that can be computed. Two of them go by the length
// of the whole text in the reference: beyond the original length "longrope" takes
// other factors, and "dynamic" another base for every length, at all positions,
// those of the beginning too. A token's log-probability would depend on how much
// follows it: not the same when it is sampled, scored and trained, and wrong for
// what a cache holds from before. So the context ends where the numbers would
// begin to change. A configuration that means one table for every length has it
// all: longrope with equal factors, or a fixed base (see stretchWarning).
var ropeTypes = []string{"default", "linear", "dynamic", "llama3", "yarn", "longrope"}

// sameFactors says of longrope that it has one table for every length.
func sameFactors(r hf.Rope) bool { return slices.Equal(r.ShortFactor, r.LongFactor) }

// stretchWarning says of a configuration whose scaling goes by the length of a
// text where the context ends, why, and what to write for a longer one.
func (f *family) stretchWarning(c *hf.Config, rotary, context int) string {
	const why = "would change the numbers of every position of a longer text, so that a token would not be scored as it was sampled"
	most := f.maxPositions(c)
	for _, r := range f.ropes(c) {
		switch {
		case r.Type == "longrope" && !sameFactors(r) && context < min(most, MaxContext):
			return fmt.Sprintf("texts of up to %d tokens (original_max_position_embeddings): long_factor %s; for %d tokens write the values of long_factor as short_factor too: "+
				"then every text is computed by them, as by servers that are started for long texts", context, why, most)
		case r.Type == "dynamic" && r.Factor > 1 && rotary > 2:
			return fmt.Sprintf("texts of up to %d tokens (max_position_embeddings): dynamic scaling %s; for %d tokens write a fixed base: rope_type \"default\", rope_theta %.9g, max_position_embeddings %[3]d",
				context, why, int(float64(most)*r.Factor), dynamicTheta(r, rotary, most))
		}
	}
	return ""
}

// dynamicTheta is the base that dynamic scaling takes for a text of factor times
// the original length.
func dynamicTheta(r hf.Rope, rotary, maxPositions int) float64 {
	length := math.Trunc(r.Factor * float64(maxPositions))
	stretch := r.Factor*length/float64(maxPositions) - (r.Factor - 1)
	return r.Theta * math.Pow(stretch, float64(rotary)/float64(rotary-2))
}

// ropeTables gives cos and sin [context, headDim/2] as the reference does: every
// step in float32, the angle being the rounded product of position and
// frequency.
func ropeTables(r hf.Rope, headDim, context, maxPositions int) (cos, sin []float32) {
	freq, factor := frequencies(r, headDim, maxPositions)
	n := len(freq)
	cos, sin = make([]float32, context*n), make([]float32, context*n)
	for pos := range context {
		for i, f := range freq {
			angle := float64(float32(pos) * f)
			s, c := math.Sincos(angle)
			cos[pos*n+i] = float32(c) * factor
			sin[pos*n+i] = float32(s) * factor
		}
	}
	return cos, sin
}

// frequencies gives headDim/2 radians a position, and the factor of cos and sin.
func frequencies(r hf.Rope, headDim, maxPositions int) (freq []float32, factor float32) {
	base := make([]float32, headDim/2) // theta^(2i/headDim)
	freq = make([]float32, headDim/2)
	for i := range freq {
		exponent := float32(2*i) / float32(headDim)
		base[i] = float32(math.Pow(float64(float32(r.Theta)), float64(exponent)))
		freq[i] = 1 / base[i]
	}
	switch r.Type {
	case "linear":
		for i := range freq {
			freq[i] /= float32(r.Factor)
		}
	case "llama3":
		llama3Frequencies(r, freq)
	case "longrope":
		for i := range freq {
			freq[i] = 1 / (float32(r.ShortFactor[i]) * base[i])
		}
		return freq, longRopeFactor(r, maxPositions)
	case "yarn":
		return yarnFrequencies(r, base, headDim, maxPositions), yarnFactor(r)
	}
	return freq, 1
}

// llama3Frequencies divides slow rotations by the factor, keeps fast ones and
// blends those between.
func llama3Frequencies(r hf.Rope, freq []float32) {
	old := float64(r.OriginalMaxPositions)
	slow, fast := float32(old/r.LowFreqFactor), float32(old/r.HighFreqFactor) // wavelengths
	factor := float32(r.Factor)
	for i, f := range freq {
		wave := float32(2*math.Pi) / f
		switch {
		case wave > slow:
			freq[i] = f / factor
		case !(wave < fast):
			smooth := (float32(old)/wave - float32(r.LowFreqFactor)) / float32(r.HighFreqFactor-r.LowFreqFactor)
			// The conversions keep each product rounded: no fused multiply-add.
			freq[i] = float32(float32(1-smooth)*f/factor) + float32(smooth*f)
		}
	}
}

// yarnFactor is what cos and sin are multiplied by.
func yarnFactor(r hf.Rope) float32 {
	if r.AttentionFactor != nil {
		return float32(*r.AttentionFactor)
	}
	scale := func(m float64) float64 {
		if r.Factor <= 1 {
			return 1
		}
		return 0.1*m*math.Log(r.Factor) + 1
	}
	if m, all := or(r.MScale, 0), or(r.MScaleAllDim, 0); m != 0 && all != 0 {
		return float32(scale(m) / scale(all))
	}
	return float32(scale(1))
}

// longRopeFactor is what cos and sin are multiplied by.
func longRopeFactor(r hf.Rope, maxPositions int) float32 {
	if r.AttentionFactor != nil {
		return float32(*r.AttentionFactor)
	}
	factor, original := r.Factor, float64(r.OriginalMaxPositions)
	if factor == 0 {
		factor = float64(maxPositions) / original
	}
	if factor <= 1 {
		return 1
	}
	return float32(math.Sqrt(1 + math.Log(factor)/math.Log(original)))
}

// yarnFrequencies blends interpolated (slow) and original (fast) rotations.
func yarnFrequencies(r hf.Rope, base []float32, headDim, maxPositions int) []float32 {
	length := float64(r.OriginalMaxPositions)
	if length == 0 {
		length = float64(maxPositions)
	}
	orDefault := func(p *float64, d float64) float64 {
		if v := or(p, 0); v != 0 {
			return v
		}
		return d
	}
	dim := func(rotations float64) float64 {
		return float64(headDim) * math.Log(length/(rotations*2*math.Pi)) / (2 * math.Log(r.Theta))
	}
	low, high := dim(orDefault(r.BetaFast, 32)), dim(orDefault(r.BetaSlow, 1))
	if or(r.Truncate, true) {
		low, high = math.Floor(low), math.Ceil(high)
	}
	low, high = math.Max(low, 0), math.Min(high, float64(headDim-1))
	if low == high {
		high += 0.001
	}
	freq := make([]float32, len(base))
	for i, b := range base {
		ramp := min(max((float32(i)-float32(low))/float32(high-low), 0), 1)
		keep := 1 - ramp
		freq[i] = float32(1/(float32(r.Factor)*b)*float32(1-keep)) + float32(1/b*keep)
	}
	return freq
}
