package lora

import (
	"fmt"
	"hash/fnv"
	"math"
)

// Init draws a fresh adapter, tensors by name: every A uniform in
// ±1/sqrt(in), as PEFT's kaiming_uniform with a = sqrt(5), every B zero.
//
// The numbers are our own and depend on seed, tensor name and index alone:
// key = mix(fnv1a64(name) + seed·γ), u(i) = the top 24 bits of mix(key + (i+1)·γ),
// value = (2u+1-2^24)/2^24 · bound in float32, with γ = 0x9e3779b97f4a7c15 and mix
// the finalizer of SplitMix64 (Steele, Lea, Flood, OOPSLA 2014). Neither the
// order of tensors nor their number matters, and a shape's prefix is stable.
func Init(adapters []Adapter, seed uint64) map[string][]float32 {
	tensors := make(map[string][]float32, 2*len(adapters))
	for _, a := range adapters {
		n := max(a.Experts, 1)
		down := make([]float32, n*a.Rank*a.In)
		uniform(down, stream(a.A, seed), float32(1/math.Sqrt(float64(a.In))))
		tensors[a.A] = down
		tensors[a.B] = make([]float32, n*a.Out*a.Rank)
	}
	return tensors
}

const gamma = 0x9e3779b97f4a7c15

func stream(name string, seed uint64) uint64 {
	h := fnv.New64a()
	h.Write([]byte(name)) // never fails
	return mix(h.Sum64() + seed*gamma)
}

func mix(z uint64) uint64 {
	z = (z ^ z>>30) * 0xbf58476d1ce4e5b9
	z = (z ^ z>>27) * 0x94d049bb133111eb
	return z ^ z>>31
}

// uniform fills x from the open interval (-bound, bound), symmetric around 0.
func uniform(x []float32, key uint64, bound float32) {
	for i := range x {
		u := int64(mix(key+uint64(i+1)*gamma) >> 40)
		x[i] = float32(2*u+1-1<<24) / (1 << 24) * bound
	}
}

// Merge gives w + scale·b·a, computed in float64 and rounded once: w [out,in]
// (or [in,out] if Transposed), a [rank,in], b [out,rank]; of experts one after
// the other.
func Merge(w, a, b []float32, ad Adapter, scale float64) ([]float32, error) {
	n := max(ad.Experts, 1)
	if len(w) != n*ad.Out*ad.In || len(a) != n*ad.Rank*ad.In || len(b) != n*ad.Out*ad.Rank {
		return nil, fmt.Errorf("merge adapter of %s: %w: weight of %d, A of %d, B of %d elements for %d of [%d,%d] of rank %d",
			ad.Module, ErrTensor, len(w), len(a), len(b), n, ad.Out, ad.In, ad.Rank)
	}
	merged := make([]float32, len(w))
	for e := range n {
		cut := func(x []float32) []float32 { return x[e*len(x)/n : (e+1)*len(x)/n] }
		mergeOne(cut(merged), cut(w), cut(a), cut(b), ad, scale)
	}
	return merged, nil
}

func mergeOne(merged, w, a, b []float32, ad Adapter, scale float64) {
	row := make([]float64, ad.In)
	for o := range ad.Out {
		clear(row)
		for r := range ad.Rank {
			f := float64(b[o*ad.Rank+r])
			for i, v := range a[r*ad.In : (r+1)*ad.In] {
				row[i] += f * float64(v)
			}
		}
		for i, d := range row {
			at := o*ad.In + i
			if ad.Transposed {
				at = i*ad.Out + o
			}
			merged[at] = float32(float64(w[at]) + scale*d)
		}
	}
}
