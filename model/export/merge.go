package export

import (
	"errors"
	"fmt"
	"io"
	"math"
	"runtime"
	"sync"

	"smolgym/model/safetensors"
)

// factors is an adapter that is being merged: A whole, B read with the rows it belongs to.
type factors struct {
	a     []float64 // [rank,in]
	b     elements
	rank  int
	in    int
	scale float64
}

func openFactors(m Module) (*factors, error) {
	f := &factors{rank: m.Rank, in: int(m.A.Shape[1]), scale: m.Scale()}
	v, err := m.A.values()
	if err != nil {
		return nil, err
	}
	defer v.Close() // only read from
	row := make([]float32, f.in)
	f.a = make([]float64, 0, f.rank*f.in)
	for r := range f.rank {
		if err := v.read(row, int64(r)*int64(f.in)); err != nil {
			return nil, fmt.Errorf("read tensor %q: %w", m.A.Name, err)
		}
		for _, x := range row {
			f.a = append(f.a, float64(x))
		}
	}
	if f.b, err = m.B.values(); err != nil {
		return nil, err
	}
	return f, nil
}

// merge writes rows [first,first+rows) of W + scale·B·A. Sums run in float64 in the order of the rank, and a value is
// rounded once, to dtype.
func (f *factors) merge(out io.Writer, w elements, wFirst int64, first, rows int, dtype safetensors.DType) (err error) {
	per := max(1, block/f.in)
	size := int(dtype.Size())
	values, b := make([]float32, min(per, rows)*f.in), make([]float32, min(per, rows)*f.rank)
	ahead := &writer{w: out}
	defer func() { err = errors.Join(err, ahead.wait()) }()
	for done := 0; done < rows; done += per {
		n := min(per, rows-done)
		if err := w.read(values[:n*f.in], wFirst+int64(done)*int64(f.in)); err != nil {
			return err
		}
		if err := f.b.read(b[:n*f.rank], int64(first+done)*int64(f.rank)); err != nil {
			return fmt.Errorf("read B: %w", err)
		}
		bytes := ahead.buffer(n * f.in * size)
		if err := f.block(values[:n*f.in], b, bytes, n, dtype); err != nil {
			return fmt.Errorf("rows %d to %d: %w", first+done, first+done+n-1, err)
		}
		if err := ahead.write(bytes); err != nil {
			return err
		}
	}
	return nil
}

// writer writes one buffer while the next is filled.
type writer struct {
	w       io.Writer
	buffers [2][]byte
	next    int
	pending chan error // of the write that is under way
}

// buffer gives room that no write is reading.
func (w *writer) buffer(n int) []byte {
	b := &w.buffers[w.next]
	if cap(*b) < n {
		*b = make([]byte, n)
	}
	w.next = 1 - w.next
	return (*b)[:n]
}

// write starts writing b, once the write before it is done.
func (w *writer) write(b []byte) error {
	if err := w.wait(); err != nil {
		return err
	}
	done := make(chan error, 1)
	w.pending = done
	go func() {
		_, err := w.w.Write(b)
		done <- err
	}()
	return nil
}

func (w *writer) wait() error {
	if w.pending == nil {
		return nil
	}
	err := <-w.pending
	w.pending = nil
	return err
}

// block merges and rounds n rows. Rows don't depend on each other: the number of goroutines changes no bit.
func (f *factors) block(values, b []float32, out []byte, n int, dtype safetensors.DType) error {
	workers := max(1, min(runtime.GOMAXPROCS(0), n, 8))
	per := (n + workers - 1) / workers
	errs := make([]error, workers)
	size := int(dtype.Size())
	var wg sync.WaitGroup
	for k := range workers {
		lo, hi := min(k*per, n), min((k+1)*per, n)
		wg.Go(func() {
			sum := make([]float64, f.in)
			for o := lo; o < hi && errs[k] == nil; o++ {
				row := values[o*f.in : (o+1)*f.in]
				f.row(row, b[o*f.rank:(o+1)*f.rank], sum, dtype)
				errs[k] = put(out[o*f.in*size:(o+1)*f.in*size], dtype, row)
			}
		})
	}
	wg.Wait()
	for _, err := range errs {
		if err != nil {
			return err
		}
	}
	return nil
}

// row adds scale·b·A to w. The conversions of products keep a compiler from fusing them, so that every machine gives the
// same bits.
func (f *factors) row(w, b []float32, sum []float64, dtype safetensors.DType) {
	clear(sum)
	r := 0
	for ; r+4 <= f.rank; r += 4 { // four at a time: one load and store of the sum for four products, in the same order
		a0, a1, a2, a3 := f.a[r*f.in:][:len(sum)], f.a[(r+1)*f.in:][:len(sum)], f.a[(r+2)*f.in:][:len(sum)], f.a[(r+3)*f.in:][:len(sum)]
		b0, b1, b2, b3 := float64(b[r]), float64(b[r+1]), float64(b[r+2]), float64(b[r+3])
		for i, s := range sum {
			s += float64(b0 * a0[i])
			s += float64(b1 * a1[i])
			s += float64(b2 * a2[i])
			sum[i] = s + float64(b3*a3[i])
		}
	}
	for ; r < f.rank; r++ {
		a0, b0 := f.a[r*f.in:][:len(sum)], float64(b[r])
		for i, s := range sum {
			sum[i] = s + float64(b0*a0[i])
		}
	}
	if dtype == safetensors.F32 {
		for i, s := range sum {
			w[i] = float32(float64(w[i]) + float64(f.scale*s))
		}
		return
	}
	for i, s := range sum {
		w[i] = odd(float64(w[i]) + float64(f.scale*s))
	}
}

// odd rounds to float32 towards zero, with the last bit set if anything was lost: rounding that again to a shorter type
// gives what rounding once would have given.
func odd(x float64) float32 {
	const lost = 1<<29 - 1 // the bits of a float64 that a float32 hasn't
	b := math.Float64bits(x)
	if b<<1 < (1023-126)<<53 {
		return oddSubnormal(x)
	}
	return float32(math.Float64frombits(b&^lost | (b&lost+lost)&(lost+1)))
}

// oddSubnormal is odd below float32's normal range, where fewer bits are left.
func oddSubnormal(x float64) float32 {
	v := float32(x)
	if float64(v) == x {
		return v
	}
	bits := math.Float32bits(v)
	if math.Abs(float64(v)) > math.Abs(x) {
		bits-- // one towards zero, whatever the sign
	}
	return math.Float32frombits(bits | 1)
}
