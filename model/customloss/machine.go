package customloss

import (
	"context"
	"errors"
	"fmt"
	"math"
)

// Limits bounds one run, whatever the graph says.
type Limits struct {
	// Elements is how many tensor elements all operations of one run may produce
	// together, index maps counted; each takes 8 bytes until the gradient is done,
	// and as much again while it is computed.
	Elements int64
	// Work is how many element steps one run may take forward, those inside
	// reductions, products and sorts counted: some 5 ns each with the gradient.
	Work int64
}

// DefaultLimits lets a loss over 32,768 tokens run some 1,000 operations, or one
// over 2,048 tokens some ten with all pairs, in at most 1 GiB.
var DefaultLimits = Limits{Elements: 1 << 26, Work: 1 << 31}

// ErrLimit is returned when a run would pass its limits.
var ErrLimit = errors.New("custom loss too large")

// machine is the state of one run. Operations report through fail, the first
// failure stays, and every primitive does nothing after it.
type machine struct {
	ctx  context.Context
	left Limits
	tape []*node
	err  error
}

// node is one tensor on the tape: where its gradient gathers and how it flows on.
type node struct {
	dt   dtype
	grad []float64
	back func(grad []float64)
}

func (m *machine) fail(format string, args ...any) *tensor {
	if m.err == nil {
		m.err = fmt.Errorf(format, args...)
	}
	return dead
}

// dead stands for the result of a failed operation: one element, so that code
// that looks at it before the failure is noticed finds something.
var dead = &tensor{dt: float32s, shape: nil, f: []float64{0}}

// work charges n element steps.
func (m *machine) work(n int) bool {
	if m.err != nil {
		return false
	}
	m.left.Work -= int64(n)
	if m.left.Work < 0 {
		m.fail("%w: more than the allowed element steps; use fewer or smaller operations", ErrLimit)
		return false
	}
	return true
}

// overhead is what a tensor costs beside its elements, in elements.
const overhead = 32

// charge takes n elements off what is left.
func (m *machine) charge(n int) bool {
	if m.err != nil {
		return false
	}
	m.left.Elements -= int64(n)
	if m.left.Elements < 0 {
		m.fail("%w: more than the allowed tensor elements; use fewer or smaller operations", ErrLimit)
		return false
	}
	return true
}

func (m *machine) tooLarge(shape []int) *tensor {
	return m.fail("%w: a tensor of shape %v passes what is left of the element limit of a run; use smaller sizes", ErrLimit, shape)
}

// sizeOf multiplies a shape without overflow.
func sizeOf(shape []int) (int, bool) {
	n := 1
	for _, d := range shape {
		if d < 0 {
			return 0, false
		}
		if d != 0 && n > math.MaxInt32/d {
			n = math.MaxInt32 // the zero that may follow still makes it empty
			continue
		}
		n *= d
	}
	return n, n < math.MaxInt32
}

// alloc charges and makes a tensor of zeros.
func (m *machine) alloc(dt dtype, shape []int) *tensor {
	if m.err != nil {
		return dead
	}
	n, ok := sizeOf(shape)
	if !ok || int64(n) > m.left.Elements || len(shape) > maxRank {
		return m.tooLarge(shape)
	}
	if !m.charge(n+overhead) || !m.work(n+1) {
		return dead
	}
	t := &tensor{dt: dt, shape: shape, store: new(storage)}
	if dt.floating() {
		t.f = make([]float64, n)
	} else {
		t.i = make([]int64, n)
	}
	return t
}

// track puts t on the tape when any of its inputs is on it; back receives the
// gradient of t and pushes to the inputs.
func (m *machine) track(t *tensor, back func(g []float64), inputs ...*tensor) *tensor {
	if m.err != nil || !t.dt.floating() {
		return t
	}
	for _, in := range inputs {
		if in.node != nil {
			t.node = &node{dt: t.dt, back: back}
			m.tape = append(m.tape, t.node)
			return t
		}
	}
	return t
}

// push adds d, which it takes over, to the gradient of t.
func (t *tensor) push(d []float64) {
	n := t.node
	if n == nil {
		return
	}
	if n.grad == nil {
		for k, x := range d {
			d[k] = n.dt.round(x)
		}
		n.grad = d
		return
	}
	for k, x := range d {
		n.grad[k] = n.dt.round(n.grad[k] + n.dt.round(x))
	}
}

// backward differentiates out, a scalar, through the tape.
func (m *machine) backward(out *tensor) {
	out.push([]float64{1})
	for k := len(m.tape) - 1; k >= 0; k-- {
		if m.err = m.ctx.Err(); m.err != nil {
			return
		}
		n := m.tape[k]
		if n.grad != nil && n.back != nil {
			n.back(n.grad)
			n.grad = nil
		}
		m.tape[k] = nil
	}
}
