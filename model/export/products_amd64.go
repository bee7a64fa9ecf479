package export

import "golang.org/x/sys/cpu"

func init() {
	if cpu.X86.HasAVX2 {
		sums, addFours = sumsVector, addVector
	}
}

func sumsVector(sum, left, right []float64, rank, strips int) {
	if rank < 1 || strips < 1 {
		clear(sum)
		return
	}
	_, _, _ = sum[stripRows*stripCols*strips-1], left[stripRows*rank-1], right[stripCols*rank*strips-1] // the limits, checked
	sumsAVX2(&sum[0], &left[0], &right[0], rank, strips)
}

//go:noescape
func sumsAVX2(sum, left, right *float64, rank, strips int)

func addVector(dst []byte, w []float32, sum []float64, scale float64) int {
	fours := len(sum) / 4
	if fours == 0 {
		return 0
	}
	_, _ = dst[8*fours-1], w[4*fours-1] // the limits, checked
	return 4 * addBF16AVX2(&dst[0], &w[0], &sum[0], scale, fours)
}

//go:noescape
func addBF16AVX2(dst *byte, w *float32, sum *float64, scale float64, fours int) (done int)
