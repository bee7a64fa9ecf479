package export

import (
	"bytes"
	"errors"
	"math"
	"math/rand/v2"
	"slices"
	"testing"

	"smolgym/model/safetensors"
)

// Every way to sum products gives the bits of the obvious one: products rounded, then added in the order of the rank.
func TestSums(t *testing.T) {
	r := rand.New(rand.NewPCG(3, 4))
	draw := func(n int) []float64 {
		v := make([]float64, n)
		for i := range v {
			v[i] = float64(float32(r.NormFloat64() * math.Pow(10, float64(r.IntN(9)-4))))
		}
		return v
	}
	for _, size := range []struct{ rank, strips int }{{1, 1}, {2, 3}, {3, 1}, {8, 5}, {17, 2}, {32, 16}} {
		cols := size.strips * stripCols
		left, right := draw(size.rank*stripRows), draw(size.strips*size.rank*stripCols)
		want := make([]float64, stripRows*cols)
		for k := range stripRows {
			for c := range cols {
				for i := range size.rank {
					want[k*cols+c] += float64(left[i*stripRows+k] * right[(c/stripCols*size.rank+i)*stripCols+c%stripCols])
				}
			}
		}
		for name, way := range map[string]func(sum, left, right []float64, rank, strips int){"plain": sumsPlain, "this machine's": sums} {
			got := draw(len(want)) // must be overwritten
			way(got, left, right, size.rank, size.strips)
			if !slices.Equal(got, want) {
				t.Errorf("rank %d, %d strips: %s way gives other sums", size.rank, size.strips, name)
			}
		}
	}
}

// Rounding to bfloat16 by bits is rounding by way of float32, refusals included, for every exponent.
func TestAddBF16(t *testing.T) {
	r := rand.New(rand.NewPCG(5, 6))
	const n = 1 << 17
	w, sum := make([]float32, n), make([]float64, n)
	for i := range w {
		w[i] = math.Float32frombits(r.Uint32() &^ 0xffff)
		for w[i]-w[i] != 0 {
			w[i] = math.Float32frombits(r.Uint32() &^ 0xffff)
		}
		sum[i] = float64(w[i]) * (r.Float64() - 0.5) * math.Pow(2, float64(r.IntN(40)-30))
		switch i % 16 {
		case 0: // half of the last place, to the bit or nearly
			up := math.Float32frombits(math.Float32bits(w[i]) + 0x10000)
			sum[i] = (float64(up) - float64(w[i])) / 2 * (1 + float64(r.IntN(3)-1)*0x1p-40)
		case 1:
			w[i], sum[i] = 0, math.Float64frombits(r.Uint64()>>12|uint64(860+r.IntN(60))<<52) // around the smallest
		case 2:
			sum[i] = -float64(w[i])
		}
	}
	refused := 0
	want := make([]byte, 2*n)
	for i := range w {
		long := []float32{odd(float64(w[i]) + sum[i])}
		wantErr := put(want[2*i:2*i+2], safetensors.BF16, long)
		got := make([]byte, 2)
		err := addBF16(got, []float32{w[i]}, sum[i:i+1], 1)
		if (err == nil) != (wantErr == nil) || err != nil && !errors.Is(err, ErrValue) {
			t.Fatalf("%g + %g: %v, want %v", w[i], sum[i], err, wantErr)
		}
		if err != nil {
			refused++
			w[i], sum[i] = 1, 0x1p-9 // for what follows
			if err := put(want[2*i:2*i+2], safetensors.BF16, []float32{1}); err != nil {
				t.Fatal(err)
			}
		} else if !bytes.Equal(got, want[2*i:2*i+2]) {
			t.Fatalf("%x + %x gives %x, want %x", w[i], sum[i], got, want[2*i:2*i+2])
		}
	}
	if refused == 0 || refused > n/20 {
		t.Errorf("%d of %d refused: the draw covers too little", refused, n)
	}
	// All in one go, four at a time where the machine can, with a scale and an odd end.
	for i := range sum {
		sum[i] /= 4
	}
	for at := 0; at < n; {
		end := min(n, at+1+r.IntN(700))
		got := make([]byte, 2*(end-at))
		if err := addBF16(got, slices.Clone(w[at:end]), sum[at:end], 4); err != nil || !bytes.Equal(got, want[2*at:2*end]) {
			t.Fatalf("elements %d to %d: other bits, %v", at, end, err)
		}
		at = end
	}
	fours := 0
	if addFours != nil {
		fours = addFours(make([]byte, 2*n), []float32{1, 2, 3, 4, 5, 6, 7, 8, 9}, make([]float64, 9), 1)
	}
	if fours != 0 && fours != 8 {
		t.Errorf("%d of nine good numbers were done", fours)
	}
}
