package reference

// embed: ids[T], table[V,D] -> [T,D].
func embed[F real](c *call[F]) {
	for t, id := range c.in[0].i {
		copy(c.out[0].row(t), c.in[1].row(int(id)))
	}
}

// gatherRows: x[T,D], rows[R] -> [R,D].
func gatherRows[F real](c *call[F]) {
	for r, t := range c.in[1].i {
		copy(c.out[0].row(r), c.in[0].row(int(t)))
	}
}

// embedGrad: acc[V,D], ids[T], dy[T,D], offsets[S1] -> acc, one datum after the
// other; a token's repeats inside a datum are summed before they are added.
func embedGrad[F real](c *call[F]) {
	acc, ids, dy := c.in[0], c.in[1].i, c.in[2]
	eachDatum(c.in[3].i, func(from, to int) {
		sums := make(map[int32][]float64)
		for t := from; t < to; t++ {
			if sums[ids[t]] == nil {
				sums[ids[t]] = make([]float64, acc.cols())
			}
			for k, g := range dy.row(t) {
				sums[ids[t]][k] += float64(g)
			}
		}
		for id, sum := range sums {
			accumulate(acc.row(int(id)), sum) // rows are distinct: the order doesn't matter
		}
	})
}
