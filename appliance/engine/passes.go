package engine

import (
	"time"

	"smolgym/model/ir"
)

// Pass is one way of a micro-batch through the model, told to within a layer: what
// the output head does before and after the loss counts as forward.
type Pass struct {
	Backward bool
	After    time.Duration // since the batch was begun
	Took     time.Duration // decoding steps in between included
}

// forwardYields is how many times a program yields until its loss is known and the
// layer it is in is done; 0 if it doesn't yield after that.
func forwardYields(p *ir.Program) int {
	loss, n, known := p.Slot("loss"), 0, false
	for _, s := range p.Steps {
		for _, r := range s.Out {
			known = known || r.Space == ir.External && r.Slot == loss
		}
		if s.Yield {
			n++
			if known {
				return n
			}
		}
	}
	return 0
}

// watch is yield that also tells the passes of one run of a program, once done is
// called.
func watch(p *ir.Program, began time.Time, yield func(between bool) error) (watched func(between bool) error, done func() []Pass) {
	at, turn, left := time.Now(), time.Time{}, forwardYields(p)
	watched = func(between bool) error {
		if between {
			if left--; left == 0 {
				turn = time.Now()
			}
		}
		return yield(between)
	}
	done = func() []Pass {
		end := time.Now()
		if turn.IsZero() {
			return []Pass{{After: at.Sub(began), Took: end.Sub(at)}}
		}
		return []Pass{{After: at.Sub(began), Took: turn.Sub(at)}, {Backward: true, After: turn.Sub(began), Took: end.Sub(turn)}}
	}
	return watched, done
}
