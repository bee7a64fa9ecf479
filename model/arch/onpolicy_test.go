package arch_test

import (
	"fmt"
	"math"
	"math/rand/v2"
	"testing"

	"smolgym/kernels"
	"smolgym/kernels/cpu"
	"smolgym/kernels/reference"
	"smolgym/model/arch"
	"smolgym/model/hf"
	"smolgym/model/ir"
	"smolgym/model/lora"
	"smolgym/model/plan"
)

// onBoth runs a test on the reference and on the CPU device.
func onBoth(t *testing.T, test func(t *testing.T, dev kernels.Device)) {
	t.Run("reference", func(t *testing.T) { test(t, reference.Open(reference.Options{})) })
	t.Run("cpu", func(t *testing.T) {
		dev, err := cpu.Open(cpu.Options{Threads: 2})
		if err != nil {
			t.Fatal(err)
		}
		defer dev.Close()
		test(t, dev)
	})
}

// runnable skips a test of a graph with an op that the device lacks.
func runnable(t *testing.T, dev kernels.Device, g *ir.Graph) {
	t.Helper()
	for _, n := range g.Nodes {
		if !dev.Supports(n.Op, ir.F32) {
			t.Skipf("%s has no %s", dev.Info().Kind, n.Op)
		}
	}
}

// Every family: the log-probability of a token has the same bits whether it was
// trained on in a packed batch or sampled from cache and states, whatever the
// pieces the sequences came in and whoever shared the batch. Adapters of random
// factors are in both.
func TestSampledIsTrained(t *testing.T) {
	for _, name := range imports {
		t.Run(name, func(t *testing.T) {
			dir := unpack(t, name)
			ck, src := describe(t, dir, "config.json")
			onBoth(t, func(t *testing.T, dev kernels.Device) { sampledIsTrained(t, dev, ck, src) })
		})
	}
}

func sampledIsTrained(t *testing.T, dev kernels.Device, ck *hf.Checkpoint, src hf.Source) {
	train, decode := adapted(t, ck, arch.Train), adapted(t, ck, arch.Decode)
	runnable(t, dev, train.Graph)
	runnable(t, dev, decode.Graph)
	rng := rand.New(rand.NewPCG(11, 12))
	lengths := []int{min(train.Context, 75), 3, min(train.Context, 41)}
	var seqs [][]int32
	for _, n := range lengths {
		var s []int32
		for range n {
			s = append(s, int32(rng.IntN(train.Vocab)))
		}
		seqs = append(seqs, s)
	}
	r := newRigOn(t, dev)
	r.load(train, ck, src)
	for _, id := range train.Graph.Named(ir.ClassAdapter) {
		v := train.Graph.Value(id)
		x := make([]float32, v.Type.Shape.Elements(ir.Dims{}))
		for i := range x {
			x[i] = float32(rng.NormFloat64() * 0.1)
		}
		r.set(v.Name, x)
	}
	want := r.trained(train, seqs)
	got := r.sampled(decode, rng, seqs)
	for s := range seqs {
		for i := range want[s] {
			if math.Float32bits(got[s][i]) != math.Float32bits(want[s][i]) {
				t.Fatalf("sequence %d, token %d: %v when sampled, %v when trained", s, i+1, got[s][i], want[s][i])
			}
		}
	}
}

// adapted is a model with an adapter on every module that can have one.
func adapted(t *testing.T, ck *hf.Checkpoint, mode arch.Mode) *arch.Model {
	t.Helper()
	m, err := arch.Build(ck, mode)
	if err != nil {
		t.Fatal(err)
	}
	g, _, err := lora.Apply(m.Graph, lora.Config{Rank: 3, Alpha: 6, Attention: true, MLP: true, Unembed: true})
	if err != nil {
		t.Fatal(err)
	}
	m.Graph = g
	return m
}

// trained scores all sequences in one batch; the last token of each predicts nothing.
func (r *rig) trained(m *arch.Model, seqs [][]int32) [][]float32 {
	var ids, positions, targets []int32
	offsets := []int32{0}
	for _, s := range seqs {
		ids = append(ids, s...)
		for i := range s {
			positions = append(positions, int32(i))
			targets = append(targets, s[min(i+1, len(s)-1)])
		}
		offsets = append(offsets, int32(len(ids)))
	}
	r.setI("ids", ids...)
	r.setI("positions", positions...)
	r.setI("offsets", offsets...)
	r.setI("targets", targets...)
	r.run(m.Graph, ir.Dims{T: len(ids), S: len(seqs), C: 1})
	lp := r.floats("logprobs")
	var out [][]float32
	for s := range seqs {
		out = append(out, lp[offsets[s]:offsets[s+1]-1])
	}
	return out
}

// sampled feeds random pieces of random sequences until all are through. States
// start with what an earlier sequence could have left there.
func (r *rig) sampled(m *arch.Model, rng *rand.Rand, seqs [][]int32) [][]float32 {
	const most = 4 // pages of a sequence
	out, done := make([][]float32, len(seqs)), make([]int, len(seqs))
	dims := ir.Dims{P: most * len(seqs), B: most, L: len(seqs) + 2}
	for _, id := range m.Graph.Named(ir.ClassState) {
		v := m.Graph.Value(id)
		x := make([]float32, v.Type.Shape.Elements(dims))
		for i := range x {
			x[i] = float32(math.NaN())
		}
		r.set(v.Name, x)
	}
	free := rng.Perm(dims.P)
	slots := rng.Perm(dims.L)
	for left := true; left; {
		var pieces, tables [][]int32
		var start, slot, rows, of []int32
		total := 0
		left = false
		for s, ids := range seqs {
			n := len(ids) - done[s]
			if n == 0 {
				continue
			}
			left = true
			if rng.IntN(3) == 0 {
				continue
			}
			n = 1 + rng.IntN(min(n, []int{1, 6, 200}[rng.IntN(3)]))
			pieces = append(pieces, ids[done[s]:done[s]+n])
			var table []int32
			for _, p := range free[s*most : (s+1)*most] {
				table = append(table, int32(p))
			}
			tables, start, slot, of = append(tables, table), append(start, int32(done[s])), append(slot, int32(slots[s])), append(of, int32(s))
			for i := range n {
				rows = append(rows, int32(total+i))
			}
			total += n
		}
		if total == 0 {
			continue
		}
		r.decodeInputs(pieces, start, tables, rows)
		r.setI("slot", slot...)
		dims.T, dims.S, dims.R = total, len(pieces), len(rows)
		r.run(m.Graph, dims)
		logits, lse := r.floats("logits"), r.floats("lse")
		row := 0
		for i, p := range pieces {
			s := of[i]
			for j := range p {
				if next := done[s] + j + 1; next < len(seqs[s]) {
					out[s] = append(out[s], logits[row*m.Vocab+int(seqs[s][next])]-lse[row])
				}
				row++
			}
			done[s] += len(p)
		}
	}
	return out
}

// Several samples of one prompt go on from copies of its state.
func TestForkedStates(t *testing.T) {
	dir := unpack(t, "qwen3_5_moe")
	ck, src := describe(t, dir, "config.json")
	m, err := arch.Build(ck, arch.Decode)
	if err != nil {
		t.Fatal(err)
	}
	if want := int64(4 * (2*64 + 4*8*8)); m.StateBytes != want {
		t.Errorf("%d bytes of state, want %d", m.StateBytes, want)
	}
	if m.KVBytesPerToken != 2*4*2*16 {
		t.Errorf("%d bytes of cache a token; one layer of two has a cache", m.KVBytesPerToken)
	}
	onBoth(t, func(t *testing.T, dev kernels.Device) {
		runnable(t, dev, m.Graph)
		r := newRigOn(t, dev)
		r.load(m, ck, src)
		prompt, next := []int32{3, 9, 27, 81, 5, 15}, []int32{40, 41}
		run := func(dims ir.Dims, ids [][]int32, start, slot []int32, tables [][]int32, rows ...int32) []float32 {
			r.decodeInputs(ids, start, tables, rows)
			r.setI("slot", slot...)
			for _, ids := range ids {
				dims.T += len(ids)
			}
			dims.S, dims.R, dims.P, dims.B, dims.L = len(ids), len(rows), 4, 1, 3
			r.run(m.Graph, dims)
			return r.floats("logits")
		}
		var whole [2][]float32
		for i, id := range next {
			whole[i] = run(ir.Dims{}, [][]int32{append(prompt[:len(prompt):len(prompt)], id)}, []int32{0}, []int32{0}, [][]int32{{3}}, int32(len(prompt)))
		}
		run(ir.Dims{}, [][]int32{prompt}, []int32{0}, []int32{1}, [][]int32{{0}}, 0)
		for _, id := range m.Graph.Named(ir.ClassState) {
			v := m.Graph.Value(id)
			row := v.Type.Bytes(ir.Dims{P: 1, L: 1})
			to := int64(2) // slot of the other sample, and the page of its cache
			from := int64(1)
			if v.Type.Shape[0].Sym == ir.P {
				from = 0
			}
			if err := dev.Copy(r.bufs[v.Name], to*row, r.bufs[v.Name], from*row, row); err != nil {
				t.Fatal(err)
			}
		}
		at := int32(len(prompt))
		both := run(ir.Dims{}, [][]int32{next[:1], next[1:]}, []int32{at, at}, []int32{1, 2}, [][]int32{{0}, {2}}, 0, 1)
		if got, want := fmt.Sprint(both), fmt.Sprint(append(append([]float32{}, whole[0]...), whole[1]...)); got != want {
			t.Error("forked samples differ from whole ones")
		}
	})
}

// A model with states is planned for as many slots as it is given.
func TestStateMemory(t *testing.T) {
	dir := unpack(t, "qwen3_5_moe")
	ck, _ := describe(t, dir, "config.json")
	m, err := arch.Build(ck, arch.Decode)
	if err != nil {
		t.Fatal(err)
	}
	states := func(slots int) int64 {
		d := ir.Dims{T: 4, S: 2, R: 2, P: 3, B: 1, L: slots}
		p, err := plan.Build(m.Graph, d)
		if err != nil {
			t.Fatal(err)
		}
		return plan.Memory(p, d).States
	}
	if got, want := states(5)-states(3), 2*m.StateBytes; got != want {
		t.Errorf("two more slots take %d bytes, want %d", got, want)
	}
}
