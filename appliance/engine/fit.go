package engine

import "slices"

// StepBytes is what the run needs for forward_backward and the optimizer's step
// of a batch, beside the loaded base: parameters, moments and gradients, and the
// work areas, which runs and micro-batches share. The sampler's copy is not in
// it.
func (t *Trainer) StepBytes(batch Batch) (int64, error) {
	limit, err := t.tokenLimit(batch)
	if err != nil {
		return 0, err
	}
	var need, body, head int64
	for _, b := range t.buffers {
		need += b.Size()
	}
	for _, part := range split(batch.Data, limit) {
		n := tokensOf(part)
		p, err := t.body(batch.ForwardOnly, capacity(n, part[0].columns()))
		if err != nil {
			return 0, err
		}
		body = max(body, p.ArenaBytes+2*int64(4*n*t.width)) // the hidden states and their gradient
		for _, chunk := range split(part, t.headLimit) {
			h, err := t.head(t.headKey(chunk, batch))
			if err != nil {
				return 0, err
			}
			head = max(head, h.ArenaBytes+2*int64(4*tokensOf(chunk)*t.width))
		}
	}
	update := max(t.norm.ArenaBytes, t.update.ArenaBytes)
	return need + slices.Max([]int64{body, update}) + head, nil
}
