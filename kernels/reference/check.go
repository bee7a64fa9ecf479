package reference

import (
	"fmt"
	"math"

	"smolgym/kernels"
	"smolgym/model/ir"
)

// check validates the integer operands: ids inside their table, offsets rising
// from 0 to the number of rows, pages inside the cache. Errors wrap
// kernels.ErrInput and name the operand and the index.
func (c *call[F]) check() error {
	switch c.op {
	case ir.OpEmbed:
		return inRange("ids", c.in[0].i, c.in[1].shape[0])
	case ir.OpRope:
		return inRange("pos", c.in[1].i, min(c.in[2].shape[0], c.in[3].shape[0]))
	case ir.OpAttention:
		return offsetsRise(c.in[3].i, c.in[0].rows())
	case ir.OpKVWrite:
		return c.checkPages(c.in[1].rows(), c.in[2].i, c.in[3].i, c.in[4], c.in[0].shape[0], 0, true)
	case ir.OpPagedAttention:
		return c.checkPages(c.in[0].rows(), c.in[3].i, c.in[4].i, c.in[5], c.in[1].shape[0], c.attr.Window, false)
	case ir.OpGatherRows:
		return inRange("rows", c.in[1].i, c.in[0].shape[0])
	case ir.OpLogProb:
		return inRange("targets", c.in[1].i, c.in[0].cols())
	case ir.OpLogProbGrad:
		return inRange("targets", c.in[2].i, c.in[0].cols())
	case ir.OpSegmentSum:
		return offsetsRise(c.in[1].i, c.in[0].shape[0])
	case ir.OpSegmentExpand:
		return offsetsRise(c.in[1].i, c.in[2].shape[0])
	case ir.OpLinearGradW, ir.OpRMSNormGradW:
		return offsetsRise(c.in[3].i, c.in[1].rows())
	case ir.OpBiasGrad:
		return offsetsRise(c.in[2].i, c.in[1].rows())
	case ir.OpEmbedGrad:
		if err := inRange("ids", c.in[1].i, c.in[0].shape[0]); err != nil {
			return err
		}
		return offsetsRise(c.in[3].i, c.in[2].rows())
	case ir.OpAttentionGrad, ir.OpDeltaGrad:
		return offsetsRise(c.in[6].i, c.in[0].rows())
	case ir.OpConv, ir.OpConvGrad:
		return offsetsRise(c.in[2].i, c.in[0].rows())
	case ir.OpConvGradW:
		return offsetsRise(c.in[3].i, c.in[1].rows())
	case ir.OpDelta:
		return offsetsRise(c.in[5].i, c.in[0].rows())
	case ir.OpConvState:
		return checkSlots(c.in[1].rows(), c.in[3].i, c.in[4].i, c.in[5].i, c.in[0].shape[0])
	case ir.OpDeltaState:
		return checkSlots(c.in[1].rows(), c.in[6].i, c.in[7].i, c.in[8].i, c.in[0].shape[0])
	case ir.OpExpertLinear, ir.OpExpertGradX:
		return c.checkExperts(2, c.in[1].shape[0])
	case ir.OpTopKGrad:
		return c.checkExperts(1, c.in[0].cols())
	case ir.OpAdapt:
		return c.checkAdapters()
	case ir.OpExpertGradW:
		if err := c.checkExperts(3, c.in[0].shape[0]); err != nil {
			return err
		}
		return offsetsRise(c.in[4].i, c.in[3].shape[0])
	}
	return nil
}

// checkAdapters: places are those of the group, whose parts fit y and x.
func (c *call[F]) checkAdapters() error {
	parts, n, k := c.in[2].parts, c.in[0].cols(), c.in[1].cols()
	if err := inRange("place", c.in[3].i, len(parts)/(2*c.attr.Of)+1); err != nil {
		return err
	}
	for i, place := range c.in[3].i {
		if a, b := c.adapter(int(place)); len(a)%k != 0 || len(b) != len(a)/k*n {
			return fmt.Errorf("%w: place[%d] is %d, whose adapter has %d and %d elements, module %d takes [r,%d] and [%d,r]", kernels.ErrInput, i, place, len(a), len(b), c.attr.Offset, k, n)
		}
	}
	return nil
}

func (c *call[F]) checkExperts(k, n int) error {
	if c.in[k].computed {
		return nil
	}
	return inRange("experts", c.in[k].i, n)
}

// checkSlots: sequences have states of their own, inside the state tensor.
func checkSlots(rows int, offsets, start, slot []int32, n int) error {
	if err := offsetsRise(offsets, rows); err != nil {
		return err
	}
	if err := inRange("slot", slot, n); err != nil {
		return err
	}
	taken := make(map[int32]bool, len(slot))
	for s, at := range start {
		if at < 0 || at == math.MaxInt32 {
			return fmt.Errorf("%w: start[%d] is %d, must be from 0 to %d", kernels.ErrInput, s, at, math.MaxInt32-1)
		}
		if taken[slot[s]] {
			return fmt.Errorf("%w: slot[%d] is %d, which another sequence of the batch has", kernels.ErrInput, s, slot[s])
		}
		taken[slot[s]] = true
	}
	return nil
}

func inRange(name string, ids []int32, n int) error {
	for i, id := range ids {
		if id < 0 || int(id) >= n {
			return fmt.Errorf("%w: %s[%d] is %d, must be from 0 to %d", kernels.ErrInput, name, i, id, n-1)
		}
	}
	return nil
}

// offsetsRise accepts empty sequences: equal neighbours.
func offsetsRise(offsets []int32, rows int) error {
	last := int32(0)
	for i, o := range offsets {
		if o < last || int(o) > rows || (i == 0 && o != 0) {
			return fmt.Errorf("%w: offsets[%d] is %d, must rise from 0 to %d", kernels.ErrInput, i, o, rows)
		}
		last = o
	}
	if n := len(offsets); n > 0 && int(last) != rows {
		return fmt.Errorf("%w: offsets[%d] is %d, must be the number of rows %d", kernels.ErrInput, n-1, last, rows)
	}
	return nil
}

// checkPages checks the table entries that will be touched: those of the new
// tokens for a write, those of every key the queries see for a read.
func (c *call[F]) checkPages(rows int, offsets, start []int32, table tensor[F], pages, window int, write bool) error {
	if err := offsetsRise(offsets, rows); err != nil {
		return err
	}
	columns := table.cols()
	for s, at := range start {
		n := int(offsets[s+1] - offsets[s])
		if at < 0 || int(at)+n > columns*c.attr.Page {
			return fmt.Errorf("%w: start[%d] is %d with %d new tokens, the table holds %d", kernels.ErrInput, s, at, n, columns*c.attr.Page)
		}
		first := 0
		if write {
			first = int(at)
		} else if window > 0 {
			first = max(0, int(at)-window+1)
		}
		for b := first / c.attr.Page; n > 0 && b <= (int(at)+n-1)/c.attr.Page; b++ {
			if page := table.i[s*columns+b]; page < 0 || int(page) >= pages {
				return fmt.Errorf("%w: table[%d] is %d, must be from 0 to %d", kernels.ErrInput, s*columns+b, page, pages-1)
			}
		}
	}
	return nil
}
