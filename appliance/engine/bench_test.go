package engine

import (
	"cmp"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"io"
	"math"
	"math/rand/v2"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"smolgym/kernels/cpu"
	"smolgym/model/hf"
	"smolgym/model/ir"
	"smolgym/model/safetensors"
)

// shape is the size of a Qwen3 model with random weights.
type shape struct {
	hidden, layers, heads, kvHeads, headDim, ff, vocab int
	matrices                                           ir.DType // f32 when not said
}

// write makes a checkpoint folder of the shape.
func (s shape) write(b testing.TB) string {
	b.Helper()
	dir := b.TempDir()
	config, err := json.Marshal(map[string]any{
		"architectures": []string{"Qwen3ForCausalLM"}, "model_type": "qwen3", "hidden_size": s.hidden, "num_hidden_layers": s.layers,
		"num_attention_heads": s.heads, "num_key_value_heads": s.kvHeads, "head_dim": s.headDim, "intermediate_size": s.ff, "vocab_size": s.vocab,
		"max_position_embeddings": 4096, "rms_norm_eps": 1e-6, "rope_theta": 1e6, "tie_word_embeddings": true, "attention_bias": false, "hidden_act": "silu",
	})
	if err != nil {
		b.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, "config.json"), config, 0o644); err != nil {
		b.Fatal(err)
	}
	r := rand.New(rand.NewPCG(1, 2))
	var entries []safetensors.Entry
	add := func(name string, dims ...int64) {
		n := int64(1)
		for _, d := range dims {
			n *= d
		}
		entries = append(entries, safetensors.Entry{Name: name, DType: safetensors.F32, Shape: dims, Data: func(w io.Writer) error {
			raw := make([]byte, 4*dims[len(dims)-1])
			for range n / dims[len(dims)-1] {
				for i := 0; i < len(raw); i += 4 {
					v := float32(r.NormFloat64() * 0.02)
					if len(dims) == 1 {
						v = 1
					}
					binary.LittleEndian.PutUint32(raw[i:], math.Float32bits(v))
				}
				if _, err := w.Write(raw); err != nil {
					return err
				}
			}
			return nil
		}})
	}
	h, q, kv, d, ff := int64(s.hidden), int64(s.heads*s.headDim), int64(s.kvHeads*s.headDim), int64(s.headDim), int64(s.ff)
	add("model.embed_tokens.weight", int64(s.vocab), h)
	add("model.norm.weight", h)
	for i := range s.layers {
		at := fmt.Sprintf("model.layers.%d.", i)
		add(at+"input_layernorm.weight", h)
		add(at+"post_attention_layernorm.weight", h)
		add(at+"self_attn.q_proj.weight", q, h)
		add(at+"self_attn.k_proj.weight", kv, h)
		add(at+"self_attn.v_proj.weight", kv, h)
		add(at+"self_attn.o_proj.weight", h, q)
		add(at+"self_attn.q_norm.weight", d)
		add(at+"self_attn.k_norm.weight", d)
		add(at+"mlp.gate_proj.weight", ff, h)
		add(at+"mlp.up_proj.weight", ff, h)
		add(at+"mlp.down_proj.weight", h, ff)
	}
	f, err := os.Create(filepath.Join(dir, "model.safetensors"))
	if err != nil {
		b.Fatal(err)
	}
	if err := safetensors.Write(f, entries, map[string]string{"format": "pt"}); err != nil {
		b.Fatal(err)
	}
	if err := f.Close(); err != nil {
		b.Fatal(err)
	}
	return dir
}

// anonymous is the process's anonymous memory in bytes.
func anonymous(b *testing.B) int64 {
	text, err := os.ReadFile("/proc/self/status")
	if err != nil {
		b.Skip("no /proc:", err)
	}
	for line := range strings.Lines(string(text)) {
		if v, ok := strings.CutPrefix(line, "RssAnon:"); ok {
			n, err := strconv.ParseInt(strings.TrimSpace(strings.TrimSuffix(strings.TrimSpace(v), "kB")), 10, 64)
			if err != nil {
				b.Error(err)
			}
			return n << 10
		}
	}
	b.Error("no RssAnon in /proc/self/status")
	return 0
}

// cpuSeconds is the processor time of the process, which other programs on the
// machine disturb less than the clock.
func cpuSeconds(b *testing.B) float64 {
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		b.Fatal(err)
	}
	return float64(u.Utime.Nano()+u.Stime.Nano()) / 1e9
}

// benchTrain times forward_backward and optimizer step on sequences of one length.
func benchTrain(b *testing.B, s shape, cfg TrainerConfig, sequences, length int) {
	_, base := s.open(b, runtime.NumCPU(), Options{})
	runtime.GC()
	idle := anonymous(b)
	tr, err := base.NewTrainer(cfg)
	if err != nil {
		b.Fatal(err)
	}
	batch := Batch{Loss: "cross_entropy"}
	for i := range sequences {
		ids := tokens(length+1, i)
		targets, weights := make([]int64, length), make([]float32, length)
		for j := range targets {
			ids[j] %= int32(s.vocab)
			targets[j], weights[j] = int64(ids[j+1])%int64(s.vocab), 1
		}
		batch.Data = append(batch.Data, Datum{Tokens: ids[:length], Inputs: map[string]Tensor{"target_tokens": {I64: targets}, "weights": {F32: weights}}})
	}
	planned, err := tr.StepBytes(batch)
	if err != nil {
		b.Fatal(err)
	}
	stop, peak := make(chan struct{}), make(chan int64)
	go func() {
		most := int64(0)
		for tick := time.NewTicker(5 * time.Millisecond); ; {
			select {
			case <-tick.C:
				most = max(most, anonymous(b))
			case <-stop:
				peak <- most
				return
			}
		}
	}()
	began := cpuSeconds(b)
	for b.Loop() {
		if _, err := tr.ForwardBackward(batch); err != nil {
			b.Fatal(err)
		}
		if _, err := tr.Step(AdamParams{LearningRate: 1e-4, Beta1: 0.9, Beta2: 0.95, Eps: 1e-8}); err != nil {
			b.Fatal(err)
		}
	}
	b.ReportMetric(float64(sequences*length*b.N)/(cpuSeconds(b)-began), "tok/cpu-s")
	close(stop)
	b.ReportMetric(float64(<-peak-idle)/1e6, "MB-peak-over-idle")
	b.ReportMetric(float64(planned)/1e6, "MB-planned")
	b.ReportMetric(float64(sequences*length*b.N)/b.Elapsed().Seconds(), "tok/s")
	tr.Release()
	base.Release()
}

var (
	small = shape{hidden: 256, layers: 4, heads: 4, kvHeads: 2, headDim: 64, ff: 768, vocab: 512}
	q06   = shape{hidden: 1024, layers: 28, heads: 16, kvHeads: 8, headDim: 128, ff: 3072, vocab: 151936}
)

func BenchmarkSmallFullUpdateShort(b *testing.B) { benchTrain(b, small, TrainerConfig{}, 256, 24) }
func BenchmarkSmallFullUpdateLong(b *testing.B)  { benchTrain(b, small, TrainerConfig{}, 8, 256) }

// BenchmarkQ06SeventhLoRA has a seventh of the layers and of the vocabulary: as
// BenchmarkQ06LoRA in a seventh of time and memory.
func BenchmarkQ06SeventhLoRA(b *testing.B) {
	part := q06
	part.layers, part.vocab = part.layers/7, part.vocab/7
	part.benchLoRA(b)
}

func BenchmarkQ06LoRA(b *testing.B) {
	if testing.Short() {
		b.Skip("needs 3 GB of memory and a minute")
	}
	q06.benchLoRA(b)
}

// benchLoRA is a step of 8 x 256 tokens with matrices of either type.
func (s shape) benchLoRA(b *testing.B) {
	for _, s.matrices = range []ir.DType{ir.F32, ir.BF16} {
		b.Run(s.matrices.String(), func(b *testing.B) {
			benchTrain(b, s, TrainerConfig{LoRA: &LoRA{Rank: 32, Alpha: 32, Seed: 1}, Attention: true, MLP: true, Unembed: true}, 8, 256)
		})
	}
}

// mid is a model whose weights don't stay in a cache.
var mid = shape{hidden: 512, layers: 8, heads: 8, kvHeads: 4, headDim: 64, ff: 1536, vocab: 4096}

// open is an engine with a loaded model whose steps are taken by hand.
func (s shape) open(b *testing.B, threads int, opt Options) (*Engine, *Base) {
	b.Helper()
	dev, err := cpu.Open(cpu.Options{Threads: threads})
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() { _ = dev.Close() }) // nothing is read from it any more
	src, err := hf.Dir(s.write(b))
	if err != nil {
		b.Fatal(err)
	}
	ck, err := hf.Describe(src)
	if err != nil {
		b.Fatal(err)
	}
	e := New(dev, opt)
	base, err := e.LoadBase("bench", ck, src, nil, cmp.Or(s.matrices, ir.F32))
	if err != nil {
		b.Fatal(err)
	}
	return e, base
}

// samplers are snapshots of runs of different ranks.
func samplers(b *testing.B, base *Base, n int) (list []*Weights) {
	for i := range n {
		list = append(list, snapshotOf(b, base, TrainerConfig{LoRA: &LoRA{Rank: []int{8, 16, 32}[i%3], Alpha: 32, Seed: uint64(i)}, Attention: true, MLP: true}))
	}
	return list
}

// snapshotOf is what a run at its start samples from.
func snapshotOf(b *testing.B, base *Base, cfg TrainerConfig) *Weights {
	tr, err := base.NewTrainer(cfg)
	if err != nil {
		b.Fatal(err)
	}
	w, err := tr.Snapshot()
	if err != nil {
		b.Fatal(err)
	}
	tr.Release()
	return w
}

// prompted takes rows sequences of the samplers, of so many tokens each, through their prompts.
func prompted(b *testing.B, e *Engine, weights []*Weights, rows, length int) {
	for i := range rows {
		r := SampleRequest{Weights: weights[i%len(weights)], Prompt: []int32{1, int32(i)}, Count: 1,
			Params: SampleParams{MaxTokens: length, Temperature: 0, TopP: 1, NoEOS: true}, Done: func(_ *SampleResult, err error) {
				if err != nil {
					b.Error(err)
				}
			}}
		if err := e.Sample(r); err != nil {
			b.Fatal(err)
		}
	}
	e.dec.due()
	e.dec.step()
}

// decodeSeconds is the processor time of the steps that bring rows sequences of
// the samplers from their prompts to the end.
func decodeSeconds(b *testing.B, e *Engine, weights []*Weights, rows, length int) float64 {
	prompted(b, e, weights, rows, length)
	began := cpuSeconds(b)
	for e.dec.due() {
		e.dec.step()
	}
	return cpuSeconds(b) - began
}

// BenchmarkDecodeMix decodes 16 sequences of one sampler and of 2, 4, 8 and 16, in
// turn: the rate of many over the rate of one is the metric.
func BenchmarkDecodeMix(b *testing.B) {
	e, base := mid.open(b, 1, Options{})
	all := samplers(b, base, 16)
	least := map[int]float64{}
	counts := []int{1, 2, 4, 8, 16}
	for b.Loop() {
		for _, n := range counts {
			t := decodeSeconds(b, e, all[:n], 16, 24)
			if old, ok := least[n]; !ok || t < old {
				least[n] = t
			}
		}
	}
	b.ReportMetric(16*23/least[1], "tok/cpu-s-of-1")
	for _, n := range counts[1:] {
		b.ReportMetric(least[1]/least[n], fmt.Sprintf("rate-of-%d", n))
	}
}

// BenchmarkHold trains while samples wait and reports the longest time that the
// device was kept from them, on the clock: other programs on the machine count.
func BenchmarkHold(b *testing.B) {
	e, base := shape{hidden: 1024, layers: 3, heads: 16, kvHeads: 8, headDim: 128, ff: 3072, vocab: 32768}.open(b, 1, Options{})
	tr, err := base.NewTrainer(TrainerConfig{LoRA: &LoRA{Rank: 32, Alpha: 32, Seed: 1}, Attention: true, MLP: true, Unembed: true})
	if err != nil {
		b.Fatal(err)
	}
	w := base.Weights()
	batch := Batch{Loss: "cross_entropy"}
	for i := range 4 {
		batch.Data = append(batch.Data, datum(tokens(257, i), 1))
	}
	for first := true; b.Loop(); first = false {
		if !first {
			e.longest = 0 // programs are planned and memory is touched for the first time once
		}
		r := SampleRequest{Weights: w, Prompt: []int32{1, 2}, Count: 1, Params: SampleParams{MaxTokens: 2000, Temperature: 0, TopP: 1, NoEOS: true}, Done: func(*SampleResult, error) {}}
		if err := e.Sample(r); err != nil {
			b.Fatal(err)
		}
		e.free = time.Now() // the batch begins
		if _, err := tr.ForwardBackward(batch); err != nil {
			b.Fatal(err)
		}
		if _, err := tr.Step(AdamParams{LearningRate: 1e-4, Beta1: 0.9, Beta2: 0.95, Eps: 1e-8}); err != nil {
			b.Fatal(err)
		}
	}
	b.ReportMetric(float64(e.longest.Milliseconds()), "ms-longest-hold")
	b.ReportMetric(float64(e.Stats().DecodeSteps)/float64(b.N), "decode-steps/op")
}
