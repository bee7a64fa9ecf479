package export

import (
	"errors"
	"fmt"
	"io"
	"math"
	"runtime"
	"slices"
	"sync"

	"smolgym/model/lora"
	"smolgym/model/safetensors"
)

// factors is an adapter that is being merged into a weight of groups (experts; one for any other module) of rows of
// columns. A row gets scale·Σ left[row,r]·right[r]. For a weight [out,in], left is B and right is A; for one stored [in,out],
// left is A's transpose and right is B's.
type factors struct {
	a, b       elements
	transposed bool
	rank       int
	rows, cols int
	scale      float64

	group int       // the one that right and whole are of, -1 before the first
	right []float64 // [rank,cols]
	whole []float32 // [rows,rank], where the weight is transposed
}

func openFactors(m Module, at lora.Adapter) (*factors, error) {
	f := &factors{transposed: at.Transposed, rank: m.Rank, rows: at.Out, cols: at.In, scale: m.Scale(), group: -1}
	if at.Transposed {
		f.rows, f.cols = at.In, at.Out
	}
	var err error
	if f.a, err = m.A.values(); err != nil {
		return nil, err
	}
	if f.b, err = m.B.values(); err != nil {
		return nil, errors.Join(err, f.a.Close())
	}
	return f, nil
}

func (f *factors) Close() error { return errors.Join(f.a.Close(), f.b.Close()) }

// load reads what all rows of a group need.
func (f *factors) load(group int) error {
	if group == f.group {
		return nil
	}
	f.group = group
	f.right = slices.Grow(f.right[:0], f.rank*f.cols)[:f.rank*f.cols]
	row := make([]float32, max(f.rows, f.cols, f.rank))
	if !f.transposed {
		row = row[:f.cols]
		for r := range f.rank {
			if err := f.a.read(row, (int64(group)*int64(f.rank)+int64(r))*int64(f.cols)); err != nil {
				return fmt.Errorf("read A: %w", err)
			}
			for i, x := range row {
				f.right[r*f.cols+i] = float64(x)
			}
		}
		return nil
	}
	for o := range f.cols { // B is [out,rank]
		if err := f.b.read(row[:f.rank], (int64(group)*int64(f.cols)+int64(o))*int64(f.rank)); err != nil {
			return fmt.Errorf("read B: %w", err)
		}
		for r, x := range row[:f.rank] {
			f.right[r*f.cols+o] = float64(x)
		}
	}
	f.whole = slices.Grow(f.whole[:0], f.rows*f.rank)[:f.rows*f.rank]
	for r := range f.rank { // A is [rank,in]
		if err := f.a.read(row[:f.rows], (int64(group)*int64(f.rank)+int64(r))*int64(f.rows)); err != nil {
			return fmt.Errorf("read A: %w", err)
		}
		for i, x := range row[:f.rows] {
			f.whole[i*f.rank+r] = x
		}
	}
	return nil
}

// left reads the factors of rows of the loaded group.
func (f *factors) left(dst []float32, first int) error {
	if f.transposed {
		copy(dst, f.whole[first*f.rank:])
		return nil
	}
	if err := f.b.read(dst, (int64(f.group)*int64(f.rows)+int64(first))*int64(f.rank)); err != nil {
		return fmt.Errorf("read B: %w", err)
	}
	return nil
}

// merge writes rows [first,first+rows) of the weight, counted over all groups. Sums run in float64 in the order of the rank,
// and a value is rounded once, to dtype. w holds the old rows from element wFirst on.
func (f *factors) merge(out io.Writer, w elements, wFirst int64, first, rows int, dtype safetensors.DType) (err error) {
	per := max(1, block/f.cols)
	size := int(dtype.Size())
	values, b := make([]float32, min(per, rows)*f.cols), make([]float32, min(per, rows)*f.rank)
	ahead := &writer{w: out}
	defer func() { err = errors.Join(err, ahead.wait()) }()
	for done, n := 0, 0; done < rows; done += n {
		group, row := (first+done)/f.rows, (first+done)%f.rows
		n = min(per, rows-done, f.rows-row)
		if err := f.load(group); err != nil {
			return err
		}
		if err := w.read(values[:n*f.cols], wFirst+int64(done)*int64(f.cols)); err != nil {
			return err
		}
		if err := f.left(b[:n*f.rank], row); err != nil {
			return err
		}
		bytes := ahead.buffer(n * f.cols * size)
		if err := f.block(values[:n*f.cols], b, bytes, n, dtype); err != nil {
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
			sum := make([]float64, f.cols)
			for o := lo; o < hi && errs[k] == nil; o++ {
				row := values[o*f.cols : (o+1)*f.cols]
				f.row(row, b[o*f.rank:(o+1)*f.rank], sum, dtype)
				errs[k] = put(out[o*f.cols*size:(o+1)*f.cols*size], dtype, row)
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

// row adds scale·b·right to w. The conversions of products keep a compiler from fusing them, so that every machine gives the
// same bits.
func (f *factors) row(w, b []float32, sum []float64, dtype safetensors.DType) {
	clear(sum)
	r := 0
	for ; r+4 <= f.rank; r += 4 { // four at a time: one load and store of the sum for four products, in the same order
		a0, a1, a2, a3 := f.right[r*f.cols:][:len(sum)], f.right[(r+1)*f.cols:][:len(sum)], f.right[(r+2)*f.cols:][:len(sum)], f.right[(r+3)*f.cols:][:len(sum)]
		b0, b1, b2, b3 := float64(b[r]), float64(b[r+1]), float64(b[r+2]), float64(b[r+3])
		for i, s := range sum {
			s += float64(b0 * a0[i])
			s += float64(b1 * a1[i])
			s += float64(b2 * a2[i])
			sum[i] = s + float64(b3*a3[i])
		}
	}
	for ; r < f.rank; r++ {
		a0, b0 := f.right[r*f.cols:][:len(sum)], float64(b[r])
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
