package export

import (
	"io"
	"math"

	"smolgym/model/hf"
)

// nothing are zeros.
type nothing struct{}

func (nothing) read(dst []float32, _ int64) error { clear(dst); return nil }
func (nothing) Close() error                      { return nil }

func zeros(t Tensor) func() (hf.ReaderAtSized, error) {
	return func() (hf.ReaderAtSized, error) { return &computed{nothing{}, t.elements()}, nil }
}

// padded gives rows of t of n elements as rows of wide ones, the rest zero, all times factor.
func padded(t Tensor, n, wide, total int64, factor float64) func() (hf.ReaderAtSized, error) {
	return func() (hf.ReaderAtSized, error) {
		v, err := t.values()
		if err != nil {
			return nil, err
		}
		return &computed{&wider{v, n, wide, factor}, total}, nil
	}
}

type wider struct {
	elements
	n, wide int64
	factor  float64
}

func (w *wider) read(dst []float32, first int64) error {
	for len(dst) > 0 {
		row, col := first/w.wide, first%w.wide
		count := min(int64(len(dst)), w.wide-col)
		part := dst[:count]
		clear(part)
		if col < w.n {
			part = part[:min(count, w.n-col)]
			if err := w.elements.read(part, row*w.n+col); err != nil {
				return err
			}
			if w.factor != 1 {
				for i, v := range part {
					part[i] = float32(float64(v) * w.factor)
				}
			}
		}
		dst, first = dst[count:], first+count
	}
	return nil
}

func powerOfTwo(f float64) bool {
	mantissa, _ := math.Frexp(f)
	return mantissa == 0.5
}

var _ io.ReaderAt = (*computed)(nil)
