package engine

import (
	"fmt"
	"math"
	"slices"
)

// decodeKey names a decoding graph: of any adapters on the parts that are on, or
// of one with a rank.
type decodeKey struct {
	rank                    int
	alpha                   float64
	attention, mlp, unembed bool
}

// decoder runs samples by continuous batching: each step feeds one token of
// every decoding sequence and pieces of the prompts, in one pass over the base
// model's weights for all of its adapters. Weights that need a pass of their own
// (other parameters, adapters of experts) take turns with it.
type decoder struct {
	e     *Engine
	queue []*job      // waiting for pages, in order of arrival
	jobs  []*job      // admitted, samples still to begin
	run   []*sequence // in batches
	turn  any         // pass of the last step, see Weights.key
	steps int

	raw    []byte    // of the logits of the last step
	logits []float32 // [rows,V]
}

// due reports whether there is anything to decode.
func (d *decoder) due() bool {
	e := d.e
	e.mu.Lock()
	d.queue = append(d.queue, e.incoming...)
	e.incoming = nil
	e.mu.Unlock()
	d.drop()
	e.mu.Lock()
	e.active, e.queued = len(d.run), len(d.queue)
	e.mu.Unlock()
	if len(d.run)+len(d.queue)+len(d.jobs) > 0 {
		return true
	}
	d.raw, d.logits = nil, nil // a hundred megabytes for many rows of a large vocabulary
	return false
}

// abort fails everything.
func (d *decoder) abort(err error) {
	d.due()
	for _, j := range append(append([]*job{}, d.queue...), d.jobs...) {
		d.fail(j, err)
	}
	for len(d.run) > 0 {
		d.fail(d.run[0].j, err)
	}
}

// fail ends a job with an error and frees what it holds.
func (d *decoder) fail(j *job, err error) {
	keep := d.run[:0]
	for _, s := range d.run {
		if s.j == j {
			d.free(s)
		} else {
			keep = append(keep, s)
		}
	}
	d.run = keep
	d.end(j, nil, err)
}

// free gives back what a sequence holds.
func (d *decoder) free(s *sequence) {
	c := s.j.weights.b.cache
	c.drop(s.pages)
	c.dropSlot(s.slot)
	s.pages, s.slot = nil, noSlot
}

// end answers a job.
func (d *decoder) end(j *job, result *SampleResult, err error) {
	j.ended = true
	d.letGo(j)
	d.queue, d.jobs = without(d.queue, j), without(d.jobs, j)
	j.Done(result, err)
	j.weights.Release()
}

func without(list []*job, j *job) []*job {
	keep := list[:0]
	for _, x := range list {
		if x != j {
			keep = append(keep, x)
		}
	}
	return keep
}

// admit begins samples of prefilled prompts, then prompts from the queue, as
// far as there are pages. A prompt enters only together with the pages of one
// of its samples, and its later samples come before newcomers: so every
// admitted job can always go on.
func (d *decoder) admit() {
	for _, j := range append([]*job{}, d.jobs...) {
		for j.prompt == nil && j.begun < j.Count && d.room() {
			if !d.begin(j) {
				break
			}
		}
	}
	for len(d.queue) > 0 && d.room() {
		j := d.queue[0]
		ok, err := d.enter(j)
		if err != nil {
			d.fail(j, err)
			continue
		}
		if !ok {
			return
		}
		d.queue = d.queue[1:]
	}
}

func (d *decoder) room() bool { return len(d.run) < 4*d.e.opt.DecodeSequences }

// enter starts a job's prefill. The pages of its first sample are taken at
// once, behind those of the prompt.
func (d *decoder) enter(j *job) (bool, error) {
	b := j.weights.b
	if b.cache == nil {
		tokens := max(d.e.opt.CacheTokens, b.info.Context+pageTokens)
		c, err := newCache(d.e.dev, b.decode.Graph, tokens, min(leastCache, b.info.Context)+pageTokens)
		if err != nil {
			return false, err
		}
		b.cache = c
	}
	want, n := pagesFor(len(j.Prompt)+j.limit), len(j.Prompt)
	if j.Count > 1 && n%pageTokens > 0 {
		want++ // a copy of the prompt's last, partial page
	}
	if want > b.cache.pages {
		return false, fmt.Errorf("%w: the prompt of %d tokens and %d new ones do not fit the key-value cache of %d tokens: lower max_tokens, or give the server more memory", ErrRequest, n, j.limit, b.cache.pages*pageTokens)
	}
	slot, ok := b.cache.takeSlot()
	if !ok || (j.Count > 1 && b.cache.slots > 0 && len(b.cache.freeSlots) == 0) {
		b.cache.dropSlot(slot)
		return false, nil
	}
	reused := b.cache.find(j.weights.id(), j.Prompt[:j.reusable()])
	own := b.cache.take(want - len(reused))
	if own == nil {
		b.cache.drop(reused)
		b.cache.dropSlot(slot)
		return false, nil
	}
	if j.Count > 1 {
		j.saved, _ = b.cache.takeSlot() // one is free, see above
	}
	if j.Count > 1 && n%pageTokens > 0 {
		j.partial, own = own[len(own)-1], own[:len(own)-1]
	}
	cached := len(reused) * pageTokens
	j.prompt = &sequence{j: j, index: -1, feed: j.Prompt[cached:], cached: cached, pages: append(reused, own...), slot: slot}
	j.result.CachedTokens = cached
	d.run = append(d.run, j.prompt)
	d.jobs = append(d.jobs, j)
	j.started.Store(true)
	return true, nil
}

// begin starts the next sample of a prefilled job from the prompt's logits.
func (d *decoder) begin(j *job) bool {
	c := j.weights.b.cache
	n := len(j.Prompt)
	slot, ok := c.takeSlot()
	if !ok {
		return false
	}
	own := c.take(pagesFor(n+j.limit) - len(j.shared))
	if own == nil {
		c.dropSlot(slot)
		return false
	}
	s := &sequence{j: j, index: j.begun, cached: n, slot: slot, stop: j.stopper(), out: j.blankSequence()}
	c.share(j.shared)
	s.pages = append(append([]int32{}, j.shared...), own...)
	err := c.copySlot(slot, j.saved)
	if j.partial >= 0 && err == nil {
		err = c.copyRows(own[0], j.partial, n%pageTokens)
	}
	if err != nil {
		d.free(s)
		d.fail(j, err)
		return false
	}
	d.start(s)
	return true
}

// start takes a sample's first token from the prompt's logits.
func (d *decoder) start(s *sequence) {
	j := s.j
	j.begun++
	d.run = append(d.run, s)
	d.token(s, s.choose(j.row), j.row, j.lse)
	if j.begun == j.Count && !j.ended {
		d.letGo(j)
		d.jobs = without(d.jobs, j)
		d.settle(j)
	}
}

// letGo gives the job's hold on the prompt's pages up.
func (d *decoder) letGo(j *job) {
	c := j.weights.b.cache
	if c == nil {
		return
	}
	c.drop(j.shared)
	if j.partial >= 0 {
		c.drop([]int32{j.partial})
	}
	c.dropSlot(j.saved)
	j.shared, j.partial, j.saved = nil, -1, noSlot
}

// settle answers a job whose samples are all finished.
func (d *decoder) settle(j *job) {
	if j.left == 0 && j.begun == j.Count && !j.ended {
		d.end(j, &j.result, nil)
	}
}

// prefilled is called when the prompt's last row is computed: the prompt's
// sequence becomes the first sample, its full pages are kept for the others and
// the rows of its last page are copied aside for them.
func (d *decoder) prefilled(s *sequence, row []float32, lse float32) {
	j := s.j
	j.prompt = nil
	j.row, j.lse = append([]float32{}, row...), lse
	c, n := j.weights.b.cache, len(j.Prompt)
	j.remember(j.Prompt, s.pages)
	if j.Count > 1 {
		j.shared = append([]int32{}, s.pages[:n/pageTokens]...)
		c.share(j.shared)
		err := c.copySlot(j.saved, s.slot)
		if j.partial >= 0 && err == nil {
			err = c.copyRows(j.partial, s.pages[n/pageTokens], n%pageTokens)
		}
		if err != nil {
			d.fail(j, err)
			return
		}
	}
	d.remove(s)
	d.start(&sequence{j: j, index: 0, cached: n, pages: s.pages, slot: s.slot, stop: j.stopper(), out: j.blankSequence()})
}

func (d *decoder) remove(s *sequence) {
	for i, x := range d.run {
		if x == s {
			d.run = append(d.run[:i], d.run[i+1:]...)
			return
		}
	}
}

// choose draws a sample's next token.
func (s *sequence) choose(logits []float32) int32 {
	p := s.j.Params
	return choose(logits, s.j.weights.b.drawable(), p, uniform(p.Seed, s.index, len(s.out.Tokens)))
}

// token takes a sample's next token and ends it when it is the last.
func (d *decoder) token(s *sequence, id int32, logits []float32, lse float32) {
	j := s.j
	if lse != lse || math.IsInf(float64(lse), 0) {
		d.fail(j, fmt.Errorf("sample from %s: the model's logits are not finite", j.weights.b.info.Name))
		return
	}
	d.e.count(func(c *Stats) { c.SampledTokens++ })
	s.out.Tokens = append(s.out.Tokens, id)
	s.out.Logprobs = append(s.out.Logprobs, logits[id]-lse)
	if j.watch != nil {
		j.watch(s.index, id)
	}
	if s.out.TopK != nil {
		s.out.TopK.best(logits, lse)
	}
	s.feed = s.out.Tokens[len(s.out.Tokens)-1:]
	if s.stops(id) {
		s.out.Stopped = true
	} else if len(s.out.Tokens) < j.limit {
		return
	}
	whole := append(append([]int32{}, j.Prompt...), s.out.Tokens...)
	j.remember(whole[:s.cached], s.pages)
	d.free(s)
	d.remove(s)
	j.result.Sequences[s.index] = s.out
	j.left--
	d.settle(j)
}

// drawable is how many tokens may be drawn: a padded vocabulary's rows beyond
// the tokenizer's last id are not.
func (b *Base) drawable() int {
	if b.tok == nil {
		return b.info.Vocab
	}
	return min(b.info.Vocab, b.tok.VocabSize())
}

// pick takes the sequences of the next step: those of one pass, the one that
// comes after the last step's in order of arrival.
func (d *decoder) pick() []*sequence {
	var order []any
	batches := map[any][]*sequence{}
	for _, s := range d.run {
		k := s.j.weights.key()
		if batches[k] == nil {
			order = append(order, k)
		}
		batches[k] = append(batches[k], s)
	}
	next := order[(slices.Index(order, d.turn)+1)%len(order)]
	d.turn = next
	return batches[next]
}
