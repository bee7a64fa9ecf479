package export

import "golang.org/x/sys/cpu"

func init() {
	if cpu.X86.HasAVX2 {
		sums = sumsVector
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
