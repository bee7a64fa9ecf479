package engine

import (
	"cmp"
	"math"
	"slices"
)

// noLogprob marks an empty cell of a top-k table, as the wire has it.
const noLogprob = float32(-99999)

// uniform is a number in [0,1) that depends on nothing but the seed, the
// sample's index and the token's index: whoever shares a batch changes nothing.
// The mixing function is splitmix64 (Steele, Lea, Flood 2014).
func uniform(seed uint64, sample, token int) float64 {
	x := mix(mix(mix(seed)+uint64(sample)) + uint64(token))
	return float64(x>>11) / (1 << 53)
}

func mix(x uint64) uint64 {
	x += 0x9e3779b97f4a7c15
	x = (x ^ x>>30) * 0xbf58476d1ce4e5b9
	x = (x ^ x>>27) * 0x94d049bb133111eb
	return x ^ x>>31
}

// candidate is a token with its unnormalised probability.
type candidate struct {
	id int32
	p  float64
}

// choose draws a token from logits[:n], n being the tokenizer's size: rows of a
// padded vocabulary beyond it are never drawn. Order of filters: temperature,
// top_k, top_p. Temperature 0 is the largest logit, the lowest id on a tie.
func choose(logits []float32, n int, p SampleParams, u float64) int32 {
	list, total := candidates(logits, n, p)
	at := u * total
	for _, c := range list {
		if at -= c.p; at < 0 {
			return c.id
		}
	}
	return list[len(list)-1].id
}

// candidates are the tokens that may be drawn, with the sum of their weights.
func candidates(logits []float32, n int, p SampleParams) ([]candidate, float64) {
	logits = logits[:n]
	best := argmax(logits)
	if p.Temperature == 0 || p.TopK == 1 {
		return []candidate{{best, 1}}, 1
	}
	top := float64(logits[best])
	list := make([]candidate, 0, n)
	total := 0.0
	for i, l := range logits {
		w := math.Exp((float64(l) - top) / p.Temperature)
		if w > 0 {
			list = append(list, candidate{int32(i), w})
			total += w
		}
	}
	list, total = topK(list, total, p.TopK)
	return topP(list, total, p.TopP)
}

// draws is a distribution to draw from many times.
type draws struct {
	list    []candidate
	reached []float64 // sums of the weights up to each
}

func newDraws(logits []float32, n int, p SampleParams) draws {
	list, _ := candidates(logits, n, p)
	d := draws{list, make([]float64, len(list))}
	total := 0.0
	for i, c := range list {
		total += c.p
		d.reached[i] = total
	}
	return d
}

// draw takes the token at share u of the distribution.
func (d draws) draw(u float64) int32 {
	last := len(d.list) - 1
	i, _ := slices.BinarySearchFunc(d.reached[:last], u*d.reached[last], func(reached, at float64) int {
		if reached <= at {
			return -1
		}
		return 1
	})
	return d.list[i].id
}

func argmax(logits []float32) int32 {
	best := 0
	for i, l := range logits {
		if l > logits[best] || logits[best] != logits[best] {
			best = i
		}
	}
	return int32(best)
}

func byProbability(a, b candidate) int {
	return cmp.Or(cmp.Compare(b.p, a.p), cmp.Compare(a.id, b.id))
}

func sum(list []candidate) float64 {
	total := 0.0
	for _, c := range list {
		total += c.p
	}
	return total
}

func topK(list []candidate, total float64, k int) ([]candidate, float64) {
	if k <= 0 || k >= len(list) {
		return list, total
	}
	slices.SortFunc(list, byProbability)
	list = list[:k]
	return list, sum(list)
}

// topP keeps the fewest likeliest tokens that together reach p.
func topP(list []candidate, total, p float64) ([]candidate, float64) {
	if p >= 1 {
		return list, total
	}
	// Tokens below this weight together hold less than 1-p: none is needed.
	least := (1 - p) * total / float64(len(list)) * (1 - 1e-9)
	list = slices.DeleteFunc(list, func(c candidate) bool { return c.p < least })
	slices.SortFunc(list, byProbability)
	reached := 0.0
	for i, c := range list {
		if reached += c.p; reached >= p*total {
			return list[:i+1], reached
		}
	}
	return list, reached
}

// best appends the k best tokens of a row to a table.
func (t *TopK) best(logits []float32, lse float32) {
	ids := make([]int32, 0, t.K+1)
	for i, l := range logits {
		if len(ids) == t.K && !(l > logits[ids[t.K-1]]) {
			continue
		}
		at := len(ids)
		for at > 0 && l > logits[ids[at-1]] {
			at--
		}
		ids = slices.Insert(ids, at, int32(i))
		ids = ids[:min(len(ids), t.K)]
	}
	for _, id := range ids {
		t.IDs = append(t.IDs, id)
		t.Logprobs = append(t.Logprobs, logits[id]-lse)
	}
	for range t.K - len(ids) {
		t.IDs = append(t.IDs, 0)
		t.Logprobs = append(t.Logprobs, noLogprob)
	}
}

// blank appends an empty row.
func (t *TopK) blank() {
	for range t.K {
		t.IDs = append(t.IDs, 0)
		t.Logprobs = append(t.Logprobs, noLogprob)
	}
}
