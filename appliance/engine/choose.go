package engine

import (
	"cmp"
	"math"
	"slices"
	"sync"
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

// choose draws a token from logits[:n], n being the tokenizer's size: rows of a
// padded vocabulary beyond it are never drawn. Order of filters: temperature,
// top_k, top_p. Temperature 0 is the largest logit, the lowest id on a tie.
func choose(logits []float32, n int, p SampleParams, u float64) int32 {
	best := argmax(logits[:n])
	if p.Temperature == 0 || p.TopK == 1 {
		return best
	}
	d := scratch.Get().(*distribution)
	defer scratch.Put(d)
	d.set(logits[:n], best, p)
	return d.at(u * d.total)
}

// draws is a distribution to draw from many times.
type draws struct {
	ids     []int32   // that may be drawn, rising
	reached []float64 // sums of the weights up to each
}

func newDraws(logits []float32, n int, p SampleParams) draws {
	best := argmax(logits[:n])
	if p.Temperature == 0 || p.TopK == 1 {
		return draws{[]int32{best}, []float64{1}}
	}
	d := scratch.Get().(*distribution)
	defer scratch.Put(d)
	d.set(logits[:n], best, p)
	var out draws
	total := 0.0
	for i, w := range d.weights {
		if w > 0 {
			total += float64(w)
			out.ids, out.reached = append(out.ids, int32(i)), append(out.reached, total)
		}
	}
	return out
}

// draw takes the token at share u of the distribution.
func (d draws) draw(u float64) int32 {
	last := len(d.ids) - 1
	i, _ := slices.BinarySearchFunc(d.reached[:last], u*d.reached[last], func(reached, at float64) int {
		if reached <= at {
			return -1
		}
		return 1
	})
	return d.ids[i]
}

// drawBlock is how many tokens' weights have a common sum.
const drawBlock = 512

// distribution is what one token is drawn from. A vocabulary has 150,000 tokens and
// a batch draws from each of its rows in every step, so nothing is sorted but the few
// tokens around the border of a filter, and the memory is used again.
type distribution struct {
	weights []float32 // exp((logit - largest)/temperature); 0 for what is filtered out
	sums    []float64 // of blocks of weights
	total   float64   // of sums
	border  []int32
}

var scratch = sync.Pool{New: func() any { return new(distribution) }}

func (d *distribution) set(logits []float32, best int32, p SampleParams) {
	d.weights = slices.Grow(d.weights[:0], len(logits))[:len(logits)]
	top, inverse := float64(logits[best]), 1/p.Temperature
	for i, l := range logits {
		d.weights[i] = float32(expNegative((float64(l) - top) * inverse))
	}
	if k := p.TopK; k > 0 && k < len(logits) {
		d.keep(func(count int, _ float64) bool { return count >= k })
	}
	if p.TopP < 1 {
		total := 0.0
		for _, w := range d.weights {
			total += float64(w)
		}
		d.keep(func(_ int, sum float64) bool { return sum >= p.TopP*total })
	}
	d.sums, d.total = d.sums[:0], 0
	for block := range slices.Chunk(d.weights, drawBlock) {
		sum := 0.0
		for _, w := range block {
			sum += float64(w)
		}
		d.sums = append(d.sums, sum)
		d.total += sum
	}
}

// at is the token at which the sum of the weights passes a number: the last one that
// may be drawn if rounding leaves it short of that.
func (d *distribution) at(sum float64) int32 {
	last := int32(0)
	for b, of := range d.sums {
		if of == 0 {
			continue
		}
		first := b * drawBlock
		block := d.weights[first:min(first+drawBlock, len(d.weights))]
		if sum < of {
			reached := 0.0
			for i, w := range block {
				if reached += float64(w); reached > sum {
					return int32(first + i)
				}
			}
		}
		sum -= of
		for i := len(block) - 1; i >= 0; i-- {
			if block[i] > 0 {
				last = int32(first + i)
				break
			}
		}
	}
	return last
}

// keep drops all but the likeliest tokens, the lower id first on a tie, up to the one
// with which there are enough of them, or together they have enough weight. What is
// likelier than the rest of its kind is found by buckets, of which only one is sorted.
func (d *distribution) keep(enough func(count int, sum float64) bool) {
	const shift = 23 - 5 // 32 buckets for each power of two: weights are from 0 to 1
	var counts [1 + 127<<5]int
	var sums [len(counts)]float64
	for _, w := range d.weights {
		b := math.Float32bits(w) >> shift
		counts[b]++
		sums[b] += float64(w)
	}
	count, sum, bucket := 0, 0.0, len(counts)-1
	for ; bucket >= 0; bucket-- {
		if enough(count+counts[bucket], sum+sums[bucket]) {
			break
		}
		count += counts[bucket]
		sum += sums[bucket]
	}
	if bucket < 0 {
		return // rounding: all of them don't reach it
	}
	d.border = d.border[:0]
	for i, w := range d.weights {
		if b := int(math.Float32bits(w) >> shift); b < bucket {
			d.weights[i] = 0
		} else if b == bucket {
			d.border = append(d.border, int32(i))
		}
	}
	slices.SortFunc(d.border, func(a, b int32) int {
		return cmp.Or(cmp.Compare(d.weights[b], d.weights[a]), cmp.Compare(a, b))
	})
	reached := false
	for _, id := range d.border {
		if reached {
			d.weights[id] = 0
			continue
		}
		count++
		sum += float64(d.weights[id])
		reached = enough(count, sum)
	}
}

// powers has 2^(i/64).
var powers = func() (p [64]uint64) {
	for i := range p {
		p[i] = math.Float64bits(math.Exp2(float64(i) / 64))
	}
	return p
}()

// expNegative is e^x for x <= 0, to one part in 10^10, by 2^(k/64) from a table and a
// cubic for the rest; 0 below -700 and for NaN. A third of math.Exp's time, and the same
// bits on every architecture: the conversions keep products from being fused.
func expNegative(x float64) float64 {
	if !(x > -700) {
		return 0
	}
	const round = 0x1.8p52 // a float64 of this size has no fraction
	k := float64(x*(64/math.Ln2)) + round
	bits := math.Float64bits(k)
	r := x - float64((k-round)*(math.Ln2/64))
	e := 1 + (r + float64(float64(r*r)*(0.5+float64(r*(1.0/6)))))
	return float64(math.Float64frombits(powers[bits%64]+(bits>>6<<52)) * e)
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
