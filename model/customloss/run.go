package customloss

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
)

// Tensor is an input of a run: Int64 when it is set, else Float32, of that shape.
type Tensor struct {
	Shape   []int
	Float32 []float32
	Int64   []int64
}

// Result is what one datum gives.
type Result struct {
	Value   float64            // the loss
	Grad    []float32          // its gradient with respect to logprobs, of their shape
	Metrics map[string]float64 // by full name, suffix included
}

var (
	// ErrDatum is returned when a datum lacks an input, or has one of another rank.
	ErrDatum = errors.New("datum does not fit the custom loss")
	// ErrRun is returned when an operation of the loss fails on a datum, as it would in torch.
	ErrRun = errors.New("custom loss failed")
	// ErrNoGradient is returned when the loss of a datum does not depend on logprobs.
	ErrNoGradient = errors.New("custom loss does not depend on logprobs")
)

// Run computes the loss of one datum within DefaultLimits. inputs holds at least
// the declared inputs other than logprobs; more are ignored.
func (l *Loss) Run(logprobs Tensor, inputs map[string]Tensor) (Result, error) {
	return l.RunWithin(context.Background(), logprobs, inputs, DefaultLimits)
}

// RunWithin is Run under other limits. It stops between two operations when ctx
// ends, with its error.
func (l *Loss) RunWithin(ctx context.Context, logprobs Tensor, inputs map[string]Tensor, limits Limits) (Result, error) {
	m := &machine{ctx: ctx, left: limits}
	env := make([]any, len(l.nodes))
	var leaf *tensor
	for k, in := range l.inputs {
		given, ok := logprobs, true
		if k > 0 {
			given, ok = inputs[in.Name]
		}
		if !ok {
			return Result{}, fmt.Errorf("run custom loss: no loss_fn_inputs[%q]: %w", in.Name, ErrDatum)
		}
		t, err := load1(given, in)
		if err != nil {
			return Result{}, fmt.Errorf("run custom loss: %w", err)
		}
		env[k] = t
		if k == 0 {
			if !t.dt.floating() {
				return Result{}, fmt.Errorf("run custom loss: logprobs are integers: %w", ErrDatum)
			}
			t.node = &node{dt: t.dt}
			leaf = t
		}
	}
	if err := l.forward(m, env, leaf); err != nil {
		return Result{}, err
	}
	return l.finish(m, env, leaf)
}

// load1 copies an input of a datum into a tensor.
func load1(given Tensor, in Input) (*tensor, error) {
	if len(given.Shape) != in.Rank {
		return nil, fmt.Errorf("%q has rank %d, the loss declared %d: %w", in.Name, len(given.Shape), in.Rank, ErrDatum)
	}
	t := &tensor{dt: float32s, shape: slices.Clone(given.Shape), store: new(storage)}
	n := len(given.Float32)
	if given.Int64 != nil {
		t.dt, n = int64s, len(given.Int64)
		t.i = slices.Clone(given.Int64)
	} else {
		t.f = make([]float64, n)
		for k, x := range given.Float32 {
			t.f[k] = float64(x)
		}
	}
	if size, ok := sizeOf(t.shape); !ok || size != n {
		return nil, fmt.Errorf("%q has shape %v and %d elements: %w", in.Name, given.Shape, n, ErrDatum)
	}
	return t, nil
}

// forward runs every step in order.
func (l *Loss) forward(m *machine, env []any, leaf *tensor) (err error) {
	current := 0
	defer func() {
		// A broken invariant of ours must fail one request, not the server.
		if p := recover(); p != nil {
			err = fmt.Errorf("run custom loss: node %q (%.60s): internal error: %v: %w", l.nodes[current].name, l.nodes[current].target, p, ErrRun)
		}
	}()
	// The last use of each step, as a list by the step that makes it.
	drop := make([][]int, len(l.nodes)+1)
	for k, last := range l.lastUse {
		drop[max(last, k)] = append(drop[max(last, k)], k)
	}
	for k := range l.nodes {
		current = k
		s := &l.nodes[k]
		if err := m.ctx.Err(); err != nil {
			return fmt.Errorf("run custom loss: node %q: %w", s.name, err)
		}
		if len(s.forms) > 0 {
			v := s.run(m, env)
			if t, ok := env[max(s.first, 0)].(*tensor); ok && s.inPlace && m.err == nil {
				v = l.assign(m, env, k, t, v, leaf)
			}
			env[k] = v
		}
		if m.err != nil {
			return l.explain(m, s)
		}
		for _, done := range drop[k] {
			env[done] = nil
		}
	}
	return nil
}

func (l *Loss) explain(m *machine, s *step) error {
	if errors.Is(m.err, ErrLimit) {
		return fmt.Errorf("run custom loss: node %q (%.60s): %w", s.name, s.target, m.err)
	}
	return fmt.Errorf("run custom loss: node %q (%.60s): %w: %w", s.name, s.target, ErrRun, m.err)
}

// run tries the forms whose arguments fit what the references turned out to be.
func (s *step) run(m *machine, env []any) any {
	var why error
	for _, f := range s.forms {
		args := make([]any, len(f.args))
		fits := true
		for k, a := range f.args {
			var err error
			if args[k], err = f.op.params[k].coerce(resolve(a, env)); err != nil {
				why, fits = err, false
				break
			}
		}
		if fits {
			return f.op.run(m, args)
		}
	}
	return m.fail("%w", why)
}

// assign gives the tensor of an in-place call its new value, under every name it
// goes by. What torch would change through a view can't be followed, so it fails.
func (l *Loss) assign(m *machine, env []any, at int, t *tensor, v any, leaf *tensor) any {
	out, ok := v.(*tensor)
	switch {
	case !ok:
		return m.fail("an in-place call that gives no tensor")
	case t.node != nil && t.node == leaf.node:
		return m.fail("an in-place call on logprobs, which need a gradient; write x = x + ... instead")
	case !slices.Equal(out.shape, t.shape):
		return m.fail("an in-place call gives shape %v to a tensor of shape %v", out.shape, t.shape)
	case out.dt.floating() && !t.dt.floating() || out.dt != boolean && t.dt == boolean:
		return m.fail("an in-place call gives %v to a tensor of %v", out.dt, t.dt)
	}
	out = fresh(m.reshaped(m.cast(out, t.dt), t.shape))
	for k, e := range env {
		if e == any(t) {
			env[k] = out
			continue
		}
		if l.lastUse[k] > at && shares(e, t.store) {
			return m.fail("an in-place call on a tensor that %q still sees through a view; write it without the in-place call", l.nodes[k].name)
		}
	}
	return out
}

func shares(v any, store *storage) bool {
	switch v := v.(type) {
	case *tensor:
		return v.store == store
	case list:
		return slices.ContainsFunc(v.items, func(item any) bool { return shares(item, store) })
	}
	return false
}

// finish reads the loss and metrics and differentiates.
func (l *Loss) finish(m *machine, env []any, leaf *tensor) (Result, error) {
	name := l.nodes[l.value].name
	value, ok := env[l.value].(*tensor)
	if !ok || len(value.shape) != 0 {
		return Result{}, fmt.Errorf("run custom loss: node %q: %w: the loss must be a scalar tensor, it is %s", name, ErrRun, kindOf(env[l.value]))
	}
	if value.node == nil {
		return Result{}, fmt.Errorf("run custom loss: node %q: %w", name, ErrNoGradient)
	}
	out := Result{Value: value.at(0), Metrics: make(map[string]float64, len(l.metrics))}
	for _, key := range sortedKeys(l.metrics) {
		v := env[l.metrics[key]]
		if t, ok := v.(*tensor); ok && t.len() == 1 {
			out.Metrics[key] = t.at(0)
			continue
		}
		t := scalar(v)
		if t == nil {
			return Result{}, fmt.Errorf("run custom loss: metric %q: %w: it must be one number, it is %s", key, ErrRun, kindOf(v))
		}
		out.Metrics[key] = t.at(0)
	}
	m.backward(value)
	if m.err != nil {
		return Result{}, fmt.Errorf("run custom loss: gradient: %w", m.err)
	}
	if leaf.node.grad == nil {
		return Result{}, fmt.Errorf("run custom loss: node %q: %w", name, ErrNoGradient)
	}
	out.Grad = make([]float32, len(leaf.f))
	for k, g := range leaf.node.grad {
		out.Grad[k] = float32(g)
	}
	return out, nil
}

// Combine reduces the metrics of a batch as the SDK does: sums, and for names
// that end in ":mean" divided by the number of datums.
func Combine(perDatum []map[string]float64) map[string]float64 {
	out := map[string]float64{}
	for _, metrics := range perDatum {
		for key, v := range metrics {
			out[key] += v
		}
	}
	for key, v := range out {
		if strings.HasSuffix(key, ":mean") {
			out[key] = v / float64(len(perDatum))
		}
	}
	return out
}
