package engine

import (
	"runtime"
	"testing"
	"time"
)

// wide is the model of testdata/sdk/bench_clients.py.
var wide = shape{hidden: 1024, layers: 2, heads: 4, kvHeads: 2, headDim: 256, ff: 4096, vocab: 259}

// BenchmarkDecodeClients decodes 16 sequences of the base model, and then so that
// every second one has an adapter of its own, as testdata/sdk/bench_clients.py does:
// by processor time with one thread, and by the shortest step on the clock with all,
// which other programs on the machine disturb least.
func BenchmarkDecodeClients(b *testing.B) {
	for _, t := range []struct {
		threads int
		name    string
		measure func(b *testing.B, e *Engine, list []*Weights) float64 // seconds for a step
	}{
		{1, "cpu-ms/step", func(b *testing.B, e *Engine, list []*Weights) float64 { return decodeSeconds(b, e, list, 16, 48) / 47 }},
		{runtime.NumCPU(), "ms/step", shortestStep},
	} {
		e, base := wide.open(b, t.threads, Options{})
		plain := []*Weights{base.Weights()}
		lists, least := [][]*Weights{plain, everySecond(b, base, plain[0])}, [2]float64{}
		for range max(b.N, 1) {
			for i, list := range lists {
				if s := t.measure(b, e, list); least[i] == 0 || s < least[i] {
					least[i] = s
				}
			}
		}
		b.ReportMetric(1e3*least[0], t.name+"-base")
		b.ReportMetric(1e3*least[1], t.name+"-mixed")
		b.ReportMetric(least[0]/least[1], "rate-by-"+t.name)
	}
}

// everySecond is 16 samplers, the base model's and snapshots of runs in turn.
func everySecond(b *testing.B, base *Base, plain *Weights) (list []*Weights) {
	for i := range 8 {
		list = append(list, plain, snapshotOf(b, base, TrainerConfig{LoRA: &LoRA{Rank: []int{4, 8, 16, 32}[i%4], Alpha: 32, Seed: uint64(i)}, Attention: true, MLP: true, Unembed: true}))
	}
	return list
}

// shortestStep is the shortest decoding step of 16 sequences by the clock.
func shortestStep(b *testing.B, e *Engine, list []*Weights) float64 {
	var least time.Duration
	prompted(b, e, list, 16, 48)
	for e.dec.due() {
		at := time.Now()
		e.dec.step()
		if took := time.Since(at); least == 0 || took < least {
			least = took
		}
	}
	return least.Seconds()
}
