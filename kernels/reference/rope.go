package reference

// rope: x[T,Heads*HeadDim], pos[T], cos[X,Rotary/2], sin[X,Rotary/2] -> the
// first Rotary elements of each head rotated as two halves; Inverse rotates
// backwards, which is the gradient.
func rope[F real](c *call[F]) {
	x, pos, y, half, d := c.in[0], c.in[1].i, c.out[0], c.attr.Rotary/2, c.attr.HeadDim
	for t := range x.rows() {
		cos, sin := c.in[2].row(int(pos[t])), c.in[3].row(int(pos[t]))
		for h := range c.attr.Heads {
			a, b := x.row(t)[h*d:(h+1)*d], y.row(t)[h*d:(h+1)*d]
			for k := range half {
				co, si := float64(cos[k]), float64(sin[k])
				if c.attr.Inverse {
					si = -si
				}
				lo, hi := float64(a[k]), float64(a[k+half])
				b[k] = F(lo*co - hi*si)
				b[k+half] = F(hi*co + lo*si)
			}
			copy(b[2*half:], a[2*half:])
		}
	}
}
