package kerneltest

import (
	"errors"
	"math"
	"math/rand/v2"
	"slices"
	"testing"

	"smolgym/kernels"
	"smolgym/model/ir"
)

// Bits checks that two devices give equal bits for every case.
func Bits(t *testing.T, oracle, a, b kernels.Device, weights ...ir.DType) {
	for _, op := range tested() {
		cs, err := Cases(oracle, op)
		if err != nil {
			t.Error(err)
		}
		for _, c := range cs {
			if len(weights) > 0 && !slices.Contains(weights, c.Weights()) {
				continue
			}
			x, err1 := Exec(a, c)
			y, err2 := Exec(b, c)
			if err := errors.Join(err1, err2); err != nil {
				t.Errorf("%s: %v", c, err)
				continue
			}
			for i := range x {
				if err := sameAll(y[i], x[i]); err != nil {
					t.Errorf("%s: output %d: %v", c, i, err)
				}
			}
		}
	}
}

// isRows reports whether the operand has a row for each token.
func (o Operand) isRows() bool { return len(o.Type.Shape) > 0 && o.Type.Shape[0].Sym == ir.T }

// offsetsAt is the index of the offsets among the operands, -1 without.
func (c Case) offsetsAt() int {
	return slices.IndexFunc(c.In, func(o Operand) bool { return o.Type.Shape.Equal(ir.Shape{ir.Of(ir.S1)}) })
}

// part is the case with tokens [from, to) only, or with sequences [from, to)
// if it has offsets.
func (c Case) part(from, to int) Case {
	c.In = slices.Clone(c.In)
	if at := c.offsetsAt(); at >= 0 {
		o := slices.Clone(c.In[at].I[from : to+1])
		c.Dims.S = to - from
		for i, in := range c.In {
			if s := in.Type.Shape; len(s) > 0 && s[0].Sym == ir.S {
				c.In[i] = in.rows(from, to, c.Dims)
			}
		}
		from, to = int(o[0]), int(o[len(o)-1])
		for i := range o {
			o[i] -= int32(from)
		}
		c.In[at].I = o
	}
	c.Dims.T = to - from
	for i, o := range c.In {
		if o.isRows() {
			c.In[i] = o.rows(from, to, c.Dims)
		}
	}
	return c
}

// rows is the part of an operand that belongs to tokens or sequences [from, to).
func (o Operand) rows(from, to int, d ir.Dims) Operand {
	width := o.Type.Shape[0].N * int(ir.Shape(o.Type.Shape[1:]).Elements(d))
	if o.F != nil {
		o.F = o.F[from*width : to*width]
	}
	if o.I != nil {
		o.I = o.I[from*width : to*width]
	}
	return o
}

// Batches checks that the rows of an output have the same bits whatever rows
// or sequences share the batch: each part alone against the whole.
func Batches(t *testing.T, oracle, dev kernels.Device) {
	for _, op := range tested() {
		cs, err := Cases(oracle, op)
		if err != nil {
			t.Error(err)
		}
		for _, c := range cs {
			if op.Spec().InPlace > 0 || op == ir.OpGatherRows || c.Dims.T == 0 {
				continue // accumulators: see MicroBatches; the rest has no rows
			}
			batchCase(t, dev, c)
		}
	}
}

func batchCase(t *testing.T, dev kernels.Device, c Case) {
	whole, err := Exec(dev, c)
	if err != nil {
		t.Errorf("%s: %v", c, err)
		return
	}
	n, r := c.Dims.T, rand.New(rand.NewPCG(5, 6))
	if c.offsetsAt() >= 0 {
		n = c.Dims.S
	}
	for from := 0; from < n; {
		to := min(n, from+1+r.IntN(1+n/4)) // a few parts, often of one row
		p := c.part(from, to)
		alone, err := Exec(dev, p)
		if err != nil {
			t.Errorf("%s: rows %d to %d alone: %v", c, from, to, err)
			return
		}
		for i := range whole {
			// Rows are tokens, or sequences where the output has one for each.
			first, all, some := from, n, to-from
			if at := c.offsetsAt(); at >= 0 && c.Op != ir.OpSegmentSum {
				first, all, some = int(c.In[at].I[from]), c.Dims.T, p.Dims.T
			}
			width := len(whole[i]) / max(all, 1)
			if err := sameAll(alone[i], whole[i][first*width:(first+some)*width]); err != nil {
				t.Errorf("%s: output %d, rows from %d alone: %v", c, i, first, err)
			}
		}
		from = to
	}
}

// MicroBatches checks that an accumulator has the same bits when the datums
// come in one run or in several.
func MicroBatches(t *testing.T, oracle, dev kernels.Device) {
	seen := 0
	for _, op := range tested() {
		cs, err := Cases(oracle, op)
		if err != nil {
			t.Error(err)
		}
		for _, c := range cs {
			if op.Spec().InPlace != 1 || op == ir.OpKVWrite || c.Dims.S < 2 {
				continue
			}
			seen++
			want, err := Exec(dev, c)
			for cut := 1; cut < c.Dims.S && err == nil; cut++ {
				var first, second [][]float32
				if first, err = Exec(dev, c.part(0, cut)); err != nil {
					break
				}
				rest := c.part(cut, c.Dims.S)
				rest.In[0].F = first[0]
				if second, err = Exec(dev, rest); err == nil {
					err = sameAll(second[0], want[0])
				}
			}
			if err != nil {
				t.Errorf("%s: %v", c, err)
			}
		}
	}
	if seen == 0 {
		t.Error("no accumulator was tested")
	}
}

// Paged checks that sequences read back from a paged cache in random chunks,
// others beside them, have the bits of Attention over the packed batch.
func Paged(t *testing.T, dev kernels.Device) {
	r := rand.New(rand.NewPCG(8, 9))
	m := &maker{r: r}
	for i, a := range heads {
		lengths := []int{70 + 9*i, 1, 33, 100}
		o, d := offsets(lengths)
		q, kv := ir.Const(a.Heads*a.HeadDim), ir.Const(a.KVHeads*a.HeadDim)
		packed := Case{Op: ir.OpAttention, Attr: a, Dims: d, In: []Operand{m.floats(d, tokens, q), m.floats(d, tokens, kv), m.floats(d, tokens, kv), o}}
		want, err := Exec(dev, packed)
		if err != nil {
			t.Fatalf("%s: %v", packed, err)
		}
		a.Page = 32 * (1 + i%2)
		got, err := m.chunked(dev, packed, a, lengths)
		if err == nil {
			err = sameAll(got, want[0])
		}
		if err != nil {
			t.Errorf("heads %d, window %d: %v", i, a.Window, err)
		}
	}
}

// chunked computes the packed case's output from a cache, a random number of
// tokens of random sequences at a time.
func (m *maker) chunked(dev kernels.Device, packed Case, a ir.Attrs, lengths []int) ([]float32, error) {
	none := make([]int, len(lengths))
	_, _, table, d := m.cacheOf(none, lengths, a.Page)
	kv, width := ir.Const(a.KVHeads*a.HeadDim), a.Heads*a.HeadDim
	caches := [2]Operand{m.floats(d, ir.Of(ir.P), ir.Const(a.Page*kv.N)), m.floats(d, ir.Of(ir.P), ir.Const(a.Page*kv.N))}
	for i := range caches[0].F { // what was never written must not be seen
		caches[0].F[i], caches[1].F[i] = float32(math.NaN()), float32(math.Inf(1))
	}
	out, done := make([]float32, packed.Dims.T*width), none
	for !slices.Equal(done, lengths) {
		var start, chunk, rows []int32
		var pages []int32
		for s, n := range lengths {
			if done[s] == n || m.r.IntN(3) == 0 {
				continue
			}
			k := 1 + m.r.IntN(min(n-done[s], []int{1, 5, 200}[m.r.IntN(3)]))
			start, chunk = append(start, int32(done[s])), append(chunk, int32(k))
			pages = append(pages, table.I[s*d.B:(s+1)*d.B]...)
			for j := range k {
				rows = append(rows, packed.In[3].I[s]+int32(done[s]+j))
			}
			done[s] += k
		}
		if err := m.step(dev, packed, a, d, caches[:], start, chunk, rows, pages, out); err != nil {
			return nil, err
		}
	}
	return out, nil
}

// step writes a chunk's keys and values, then attends; rows are the chunk's rows of the packed batch.
func (m *maker) step(dev kernels.Device, packed Case, a ir.Attrs, d ir.Dims, caches []Operand, start, chunk, rows, pages []int32, out []float32) error {
	if len(start) == 0 {
		return nil
	}
	o := []int32{0}
	for _, n := range chunk {
		o = append(o, o[len(o)-1]+n)
	}
	d.T, d.S = len(rows), len(start)
	place := []Operand{integers(o, ir.Of(ir.S1)), integers(start, ir.Of(ir.S)), integers(pages, ir.Of(ir.S), ir.Of(ir.B))}
	for i := range caches {
		in := append([]Operand{caches[i], pick(packed.In[1+i], rows)}, place...)
		cache, err := Exec(dev, Case{Op: ir.OpKVWrite, Attr: ir.Attrs{Page: a.Page}, Dims: d, In: in})
		if err != nil {
			return err
		}
		caches[i].F = cache[0]
	}
	got, err := Exec(dev, Case{Op: ir.OpPagedAttention, Attr: a, Dims: d, In: append([]Operand{pick(packed.In[0], rows), caches[0], caches[1]}, place...)})
	if err != nil {
		return err
	}
	width := len(got[0]) / len(rows)
	for i, r := range rows {
		copy(out[int(r)*width:], got[0][i*width:(i+1)*width])
	}
	return nil
}

func pick(o Operand, rows []int32) Operand {
	width := o.Type.Shape[1].N
	var f []float32
	for _, r := range rows {
		f = append(f, o.F[int(r)*width:(int(r)+1)*width]...)
	}
	o.F = f
	return o
}

// Stretches checks a sum so long that a device takes it in stretches, which depend on how the rest is shared out: the
// gradient of 64 rows by 20,000 columns, on devices with different numbers of threads.
func Stretches(t *testing.T, oracle kernels.Device, devs ...kernels.Device) {
	m := &maker{rand.New(rand.NewPCG(3, 4)), oracle}
	d := ir.Dims{T: 64}
	long := Case{Op: ir.OpLinearGradX, Dims: d, In: []Operand{m.floats(d, tokens, ir.Const(20_000)), m.floats(d, ir.Const(20_000), ir.Const(256))}}
	for _, c := range []Case{long, inBF16(ir.OpLinearGradX, cases{long})[0]} {
		var first [][]float32
		for _, dev := range devs {
			got, err := Exec(dev, c)
			if err != nil {
				t.Fatalf("%s: %v", c, err)
			}
			if first == nil {
				first = got
			}
			if err := sameAll(got[0], first[0]); err != nil {
				t.Errorf("%s, %d threads against %d: %v", c, dev.Info().Threads, devs[0].Info().Threads, err)
			}
		}
	}
}
