package export

import (
	"encoding/binary"
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
	right []float64 // in strips, [strips,rank,8]; columns beyond the last are zero
	whole []float32 // [rows,rank], where the weight is transposed
}

// strips is the number of strips that hold a row.
func (f *factors) strips() int { return (f.cols + stripCols - 1) / stripCols }

// setRight puts one value of the right factor in its place.
func (f *factors) setRight(r, col int, x float32) {
	f.right[(col/stripCols*f.rank+r)*stripCols+col%stripCols] = float64(x)
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
	n := f.strips() * f.rank * stripCols
	f.right = slices.Grow(f.right[:0], n)[:n]
	clear(f.right)
	row := make([]float32, max(f.rows, f.cols, f.rank))
	if !f.transposed {
		row = row[:f.cols]
		for r := range f.rank {
			if err := f.a.read(row, (int64(group)*int64(f.rank)+int64(r))*int64(f.cols)); err != nil {
				return fmt.Errorf("read A: %w", err)
			}
			for i, x := range row {
				f.setRight(r, i, x)
			}
		}
		return nil
	}
	for o := range f.cols { // B is [out,rank]
		if err := f.b.read(row[:f.rank], (int64(group)*int64(f.cols)+int64(o))*int64(f.rank)); err != nil {
			return fmt.Errorf("read B: %w", err)
		}
		for r, x := range row[:f.rank] {
			f.setRight(r, o, x)
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
// and a value is rounded once, to dtype. w holds the old rows from element wFirst on. Blocks are read, merged and written at
// the same time.
func (f *factors) merge(out io.Writer, w elements, wFirst int64, first, rows int, dtype safetensors.DType) (err error) {
	per := max(1, block/f.cols)
	size := int(dtype.Size())
	b := make([]float32, min(per, rows)*f.rank)
	next := func(done int) int { return min(per, rows-done, f.rows-(first+done)%f.rows) }
	from := &reader{w: w}
	defer from.stop()
	ahead := &writer{w: out}
	defer func() { err = errors.Join(err, ahead.wait()) }()
	from.start(next(0)*f.cols, wFirst)
	for done, n := 0, 0; done < rows; done += n {
		group, row := (first+done)/f.rows, (first+done)%f.rows
		n = next(done)
		values, err := from.wait()
		if err != nil {
			return err
		}
		if after := done + n; after < rows {
			from.start(next(after)*f.cols, wFirst+int64(after)*int64(f.cols))
		}
		if err := f.load(group); err != nil {
			return err
		}
		if err := f.left(b[:n*f.rank], row); err != nil {
			return err
		}
		bytes := ahead.buffer(n * f.cols * size)
		if err := f.block(values, b, bytes, n, dtype); err != nil {
			return fmt.Errorf("rows %d to %d: %w", first+done, first+done+n-1, err)
		}
		if err := ahead.write(bytes); err != nil {
			return err
		}
	}
	return nil
}

// reader reads one buffer while the one before is used.
type reader struct {
	w       elements
	buffers [2][]float32
	next    int
	pending chan error // of the read that is under way
	into    []float32
}

// start begins to read n values, once those that wait gave are out of use.
func (r *reader) start(n int, first int64) {
	b := &r.buffers[r.next]
	if cap(*b) < n {
		*b = make([]float32, n)
	}
	r.next = 1 - r.next
	r.into = (*b)[:n]
	done, into := make(chan error, 1), r.into
	r.pending = done
	go func() { done <- r.w.read(into, first) }()
}

// wait gives the values that are being read.
func (r *reader) wait() ([]float32, error) {
	err := <-r.pending
	r.pending = nil
	return r.into, err
}

// stop ends a read whose values nobody wants any more, and so its error neither.
func (r *reader) stop() {
	if r.pending != nil {
		_, _ = r.wait()
	}
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
	groups := (n + stripRows - 1) / stripRows
	workers := max(1, min(runtime.GOMAXPROCS(0), groups, 8))
	per := (groups + workers - 1) / workers * stripRows
	errs := make([]error, workers)
	size := int(dtype.Size())
	var wg sync.WaitGroup
	for k := range workers {
		lo, hi := min(k*per, n), min((k+1)*per, n)
		wg.Go(func() {
			wide := f.strips() * stripCols
			sum, left := make([]float64, stripRows*wide), make([]float64, f.rank*stripRows)
			for o := lo; o < hi; o += stripRows {
				rows := min(stripRows, hi-o)
				f.gather(left, b[o*f.rank:(o+rows)*f.rank])
				sums(sum, left, f.right, f.rank, f.strips())
				for i := range rows {
					at := (o + i) * f.cols
					if err := add(out[at*size:(at+f.cols)*size], values[at:at+f.cols], sum[i*wide:], f.scale, dtype); err != nil {
						errs[k] = fmt.Errorf("row %d: %w", o+i, err)
						return
					}
				}
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

// gather turns up to four rows of the left factor, [rows,rank], into [rank,4]; rows that aren't there are zero.
func (f *factors) gather(left []float64, b []float32) {
	clear(left)
	for i, x := range b {
		left[i%f.rank*stripRows+i/f.rank] = float64(x)
	}
}

// add writes w + scale·sum, rounded once, and overwrites w. The conversions of products keep a compiler from fusing them, so
// that every machine gives the same bits.
func add(dst []byte, w []float32, sum []float64, scale float64, dtype safetensors.DType) error {
	sum = sum[:len(w)]
	switch dtype {
	case safetensors.F32:
		for i, s := range sum {
			w[i] = float32(float64(w[i]) + float64(scale*s))
		}
	case safetensors.BF16:
		return addBF16(dst, w, sum, scale)
	default:
		for i, s := range sum {
			w[i] = odd(float64(w[i]) + float64(scale*s))
		}
	}
	return put(dst, dtype, w)
}

// addBF16 rounds to the nearest bfloat16, ties to even, by the bits of the float64; what isn't a normal number in both types
// goes the long way.
func addBF16(dst []byte, w []float32, sum []float64, scale float64) error {
	for at := 0; at < len(sum); {
		end := len(sum)
		if addFours != nil {
			at += addFours(dst[2*at:], w[at:], sum[at:], scale)
			end = min(at+4, len(sum)) // where it stopped
		}
		for ; at < end; at++ {
			x := float64(w[at]) + float64(scale*sum[at])
			if bits, ok := bf16(x); ok {
				binary.LittleEndian.PutUint16(dst[2*at:], bits)
				continue
			}
			w[at] = odd(x)
			if err := put(dst[2*at:2*at+2], safetensors.BF16, w[at:at+1]); err != nil {
				return fmt.Errorf("column %d: %w", at, err)
			}
		}
	}
	return nil
}

// addFours does what addBF16 does, four numbers at a time, and says how many it did: it stops at four that hold one for the
// long way, and before the last that are fewer. nil where the machine has no such way.
var addFours func(dst []byte, w []float32, sum []float64, scale float64) int

// bf16 are the bits of x as a bfloat16; ok is false where it isn't normal in both types.
func bf16(x float64) (bits uint16, ok bool) {
	const (
		cut  = 52 - 7     // mantissa bits that a bfloat16 hasn't
		bias = 1023 - 127 // between the exponents
	)
	b := math.Float64bits(x)
	r := (b + 1<<(cut-1) - 1 + b>>cut&1) >> cut // sign, 11 bits of exponent, 7 of mantissa
	e := r>>7&0x7ff - bias
	return uint16(b>>63<<15 | e<<7 | r&0x7f), e-1 < 254
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
