package engine

import (
	"fmt"
	"maps"
	"math"
	"math/bits"
	"slices"
	"time"

	"smolgym/model/grad"
	"smolgym/model/ir"
	"smolgym/model/loss"
)

// CheckBatch finds everything that can be wrong with a batch before it is
// queued. Its errors wrap ErrRequest and name the datum and the field. Any
// goroutine.
func (b *Base) CheckBatch(batch Batch) error {
	spec, ok := loss.Lookup(batch.Loss)
	if !ok {
		return fmt.Errorf("%w: loss_fn %q is unknown; this server has %v", ErrRequest, batch.Loss, loss.Names())
	}
	if len(batch.Data) == 0 {
		return fmt.Errorf("%w: data is empty: send at least one datum", ErrRequest)
	}
	for _, key := range slices.Sorted(maps.Keys(batch.Config)) {
		if !slices.Contains(spec.ConfigKeys(), key) {
			return fmt.Errorf("%w: loss_fn_config %q is not a setting of %s, which has %v", ErrRequest, key, batch.Loss, spec.ConfigKeys())
		}
		if v := batch.Config[key]; math.IsNaN(v) || math.IsInf(v, 0) {
			return fmt.Errorf("%w: loss_fn_config %q is %v, takes a finite number", ErrRequest, key, v)
		}
	}
	for i, d := range batch.Data {
		if err := b.checkDatum(d, spec); err != nil {
			return fmt.Errorf("%w: datum %d: %w", ErrRequest, i, err)
		}
	}
	return nil
}

func (b *Base) checkDatum(d Datum, spec loss.Spec) error {
	n := len(d.Tokens)
	if n == 0 {
		return fmt.Errorf("model_input is empty: give it at least one token")
	}
	if n > b.info.Context {
		return fmt.Errorf("model_input has %d tokens, the context of %s is %d", n, b.info.Name, b.info.Context)
	}
	for i, id := range d.Tokens {
		if id < 0 || int(id) >= b.info.Vocab {
			return fmt.Errorf("model_input: token %d at position %d is outside the vocabulary of %d", id, i, b.info.Vocab)
		}
	}
	targets, ok := d.Inputs["target_tokens"]
	if !ok {
		return fmt.Errorf("loss_fn_inputs lacks target_tokens")
	}
	shape, err := targets.shape(n, "target_tokens", spec.Targets2D)
	if err != nil {
		return err
	}
	if targets.I64 == nil {
		return fmt.Errorf("target_tokens is float32, takes int64")
	}
	for i, id := range targets.I64 {
		if id < 0 || id >= int64(b.info.Vocab) {
			return fmt.Errorf("target_tokens: token %d at %d is outside the vocabulary of %d", id, i, b.info.Vocab)
		}
	}
	for _, in := range spec.Inputs {
		name := in.Field
		t, ok := d.Inputs[name]
		if !ok && slices.Contains(spec.Required, name) {
			return fmt.Errorf("loss_fn_inputs lacks %s, which %s needs", name, spec.Name)
		}
		if !ok {
			continue
		}
		got, err := t.shape(n, name, spec.Targets2D)
		if err != nil {
			return err
		}
		if !slices.Equal(got, shape) {
			return fmt.Errorf("%s has shape %v, target_tokens %v", name, got, shape)
		}
		if t.F32 == nil {
			return fmt.Errorf("%s is int64, takes float32", name)
		}
		for i, v := range t.F32 {
			if v != v || (name != "logprobs" && math.IsInf(float64(v), 0)) {
				return fmt.Errorf("%s: value %v at %d is not finite", name, v, i)
			}
		}
	}
	return nil
}

// shape is the tensor's shape, checked against n positions.
func (t Tensor) shape(n int, name string, twoD bool) ([]int, error) {
	have := max(len(t.F32), len(t.I64))
	shape := t.Shape
	if len(shape) == 0 {
		shape = []int{have}
	}
	if len(shape) > 2 || (len(shape) == 2 && !twoD) {
		return nil, fmt.Errorf("%s has %d axes, takes one", name, len(shape))
	}
	if shape[0] != n {
		return nil, fmt.Errorf("%s has %d positions, model_input %d", name, shape[0], n)
	}
	total := 1
	for _, d := range shape {
		total *= d
	}
	if total != have || total == 0 {
		return nil, fmt.Errorf("%s has shape %v and %d values", name, shape, have)
	}
	return shape, nil
}

// columns is the number of targets at each position.
func (d Datum) columns() int {
	return len(d.Inputs["target_tokens"].I64) / len(d.Tokens)
}

// split cuts a batch into micro-batches: whole datums in order, at most limit
// tokens together (one datum may be longer), one number of targets a row.
func split(data []Datum, limit int) [][]Datum {
	var parts [][]Datum
	start, tokens := 0, 0
	for i, d := range data {
		if i > start && (tokens+len(d.Tokens) > limit || d.columns() != data[start].columns()) {
			parts = append(parts, data[start:i])
			start, tokens = i, 0
		}
		tokens += len(d.Tokens)
	}
	return append(parts, data[start:])
}

// bucket rounds up to a power of two, at least 16: programs are planned for
// bucket sizes and used for every batch that fits.
func bucket(n int) int {
	if n <= 16 {
		return 16
	}
	return 1 << bits.Len(uint(n-1))
}

// ForwardBackward computes the loss of a checked batch and, unless it is
// forward-only, adds its gradient to the run's. Owner.
func (t *Trainer) ForwardBackward(batch Batch) (*Output, error) {
	if err := t.b.CheckBatch(batch); err != nil {
		return nil, err
	}
	spec, _ := loss.Lookup(batch.Loss) // CheckBatch has found it
	out := &Output{began: time.Now()}
	limit, err := t.tokenLimit(batch)
	if err != nil {
		return nil, err
	}
	parts := split(batch.Data, limit)
	// Everything that may not fit is asked for first: after the first
	// micro-batch has added to the gradient nothing may fail.
	for _, part := range parts {
		if err := t.reserve(part, batch); err != nil {
			return nil, err
		}
	}
	for _, part := range parts {
		if err := t.microBatch(part, batch, spec, out); err != nil {
			return nil, err
		}
	}
	return out, nil
}

// tokenLimit is the size of a batch's micro-batches: the largest whose
// activations can be kept for the way back, else the largest allowed.
func (t *Trainer) tokenLimit(batch Batch) (int, error) {
	most := t.b.e.opt.TrainTokens
	if batch.ForwardOnly {
		return most, nil
	}
	for n := min(most, bucket(tokensOf(batch.Data))); n >= leastTokens; n /= 2 {
		p, err := t.body(false, capacity(n, batch.Data[0].columns()))
		if err != nil {
			return 0, err
		}
		if !p.again {
			return n, nil
		}
	}
	return most, nil
}

// capacity is that of the programs for a number of tokens.
func capacity(tokens, columns int) ir.Dims {
	n := bucket(tokens)
	return ir.Dims{T: n, S: n, R: 1, C: columns, P: 1, B: 1}
}

// reserve asks for the memory that a micro-batch needs.
func (t *Trainer) reserve(part []Datum, batch Batch) error {
	e := t.b.e
	n := tokensOf(part)
	body, err := t.body(batch.ForwardOnly, capacity(n, part[0].columns()))
	if err != nil {
		return err
	}
	if err := e.train.reserve(body.ArenaBytes); err != nil {
		return err
	}
	for _, name := range []string{hiddenName, hiddenGradName} {
		if _, err := e.train.buffer(name, int64(4*n*t.width)); err != nil {
			return err
		}
	}
	for _, chunk := range split(part, t.headLimit) {
		head, err := t.head(t.headKey(chunk, batch))
		if err == nil {
			err = e.head.reserve(head.ArenaBytes)
		}
		for _, name := range []string{hiddenName, grad.OfInput(hiddenName)} {
			if err == nil {
				_, err = e.head.buffer(name, int64(4*tokensOf(chunk)*t.width))
			}
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// packed is a micro-batch laid end to end.
type packed struct {
	ids, positions, offsets, targets []int32
	inputs                           map[string][]float32 // loss.* inputs
	columns                          int
}

func pack(part []Datum, batch Batch, spec loss.Spec) packed {
	p := packed{columns: part[0].columns(), offsets: []int32{0}, inputs: map[string][]float32{}}
	for _, d := range part {
		for i, id := range d.Tokens {
			p.ids = append(p.ids, id)
			p.positions = append(p.positions, int32(i))
		}
		p.offsets = append(p.offsets, int32(len(p.ids)))
		for _, id := range d.Inputs["target_tokens"].I64 {
			p.targets = append(p.targets, int32(id))
		}
	}
	for _, in := range spec.Inputs {
		values := make([]float32, 0, len(p.targets))
		for _, d := range part {
			if v, ok := d.Inputs[in.Field]; ok {
				values = append(values, v.F32...)
				continue
			}
			fill := float32(in.Default)
			if v, ok := batch.Config[in.Config]; ok && in.Config != "" {
				fill = float32(v)
			}
			for range d.Inputs["target_tokens"].I64 {
				values = append(values, fill)
			}
		}
		p.inputs[in.Name] = values
	}
	return p
}

func (t *Trainer) microBatch(part []Datum, batch Batch, spec loss.Spec, out *Output) error {
	e := t.b.e
	p := pack(part, batch, spec)
	dims := ir.Dims{T: len(p.ids), S: len(part), R: 1, C: p.columns, P: 1, B: 1}
	body, err := t.body(batch.ForwardOnly, capacity(dims.T, p.columns))
	if err != nil {
		return err
	}
	for name, v := range map[string][]int32{"ids": p.ids, "positions": p.positions, loss.Offsets: p.offsets} {
		if err := e.train.setI32(name, v); err != nil {
			return err
		}
	}
	var res headResult
	left := body.stop
	yield, done := watch(body.Program, out.began, func(between bool) error {
		if between {
			if left--; left == 0 {
				if err := t.runHead(part, p, batch, &res); err != nil {
					return err
				}
			}
		}
		return e.yield(between)
	})
	if err := e.train.run(body.Program, dims, t.lookup, yield); err != nil {
		return err
	}
	if body.stop == 0 { // nothing before the head is trained, or nothing at all
		if err := t.runHead(part, p, batch, &res); err != nil {
			return err
		}
	}
	out.Passes = append(out.Passes, done()...)
	logprobs, losses := res.logprobs, res.losses
	e.count(func(s *Stats) { s.TrainTokens += int64(dims.T) })
	for i, d := range part {
		n := len(d.Inputs["target_tokens"].I64)
		out.Logprobs = append(out.Logprobs, logprobs[:n:n])
		logprobs = logprobs[n:]
		shape, err := d.Inputs["target_tokens"].shape(len(d.Tokens), "target_tokens", true)
		if err != nil {
			return err
		}
		out.Shapes = append(out.Shapes, shape)
		out.Loss += float64(losses[i])
		out.Tokens += len(d.Tokens)
		out.Scored += scored(d, spec, n)
	}
	return nil
}

// scored counts the targets that have a say in the loss.
func scored(d Datum, spec loss.Spec, n int) int {
	count := n
	for i := range n {
		for _, in := range spec.Inputs {
			if v, ok := d.Inputs[in.Field]; ok && (in.Field == "weights" || in.Field == "advantages") && v.F32[i] == 0 {
				count--
				break
			}
		}
	}
	return count
}
