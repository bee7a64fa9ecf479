package export

// Sums of products of an adapter's factors, four rows at a time over strips of eight columns:
//
//	sum[k,c] = Σ_r left[r,k]·right[s,r,c%8], s = c/8
//
// sum is [4,8·strips]; left is [rank,4]; right is [strips,rank,8]. Products are rounded before they are added, and added in
// the order of r, so that every way to compute them gives the same bits.
const (
	stripRows = 4
	stripCols = 8
)

// sums is the fastest way on this machine; sumsPlain is what it has to equal.
var sums = sumsPlain

func sumsPlain(sum, left, right []float64, rank, strips int) {
	cols := strips * stripCols
	for s := range strips {
		strip := right[s*rank*stripCols:][:rank*stripCols]
		for k := range stripRows {
			var c0, c1, c2, c3, c4, c5, c6, c7 float64
			for r, at := 0, strip; r < rank; r, at = r+1, at[stripCols:] {
				b, a := left[r*stripRows+k], (*[stripCols]float64)(at)
				c0 += float64(b * a[0]) // the conversions keep a compiler from fusing product and sum
				c1 += float64(b * a[1])
				c2 += float64(b * a[2])
				c3 += float64(b * a[3])
				c4 += float64(b * a[4])
				c5 += float64(b * a[5])
				c6 += float64(b * a[6])
				c7 += float64(b * a[7])
			}
			*(*[stripCols]float64)(sum[k*cols+s*stripCols:]) = [stripCols]float64{c0, c1, c2, c3, c4, c5, c6, c7}
		}
	}
}
