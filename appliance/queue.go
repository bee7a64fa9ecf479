package appliance

import (
	"fmt"
	"strconv"
	"strings"
	"time"

	"smolgym/appliance/engine"
)

// Limits of the sampling queue; over one of them a client is told to slow down.
// The SDK's clients don't limit themselves.
const (
	openSamples = 20000     // requests that aren't done
	openPrompts = 256 << 20 // bytes of their prompts, 4 a token
)

// sampleState is what a sample request's future has beside the others'. It is
// guarded by futures.mu, except for what doesn't change.
type sampleState struct {
	n        uint64 // in order of acceptance; doesn't change
	bytes    int64  // of its prompt; doesn't change
	pending  *engine.Pending
	canceled bool
}

// newSample accepts a sample request, or refuses it for the length of the queue.
func (a *Appliance) newSample(s *sampler, req SampleRequest, sum digest) (*future, error) {
	f := &future{id: sampleID(s.rec.ID, req.Seq), kind: KindSample, owner: s.rec.ID, seq: req.Seq, sum: sum, created: a.now(), done: make(chan struct{})}
	f.sample.bytes = 4 * int64(len(req.Prompt))
	f.expire = func() {
		s.forget(req.Seq)
		s.clone(req.Seq/cloneStride, a.now()).close(req.Seq)
	}
	f.told = func() { s.clone(req.Seq/cloneStride, a.now()).add(f.completion()) }
	t := a.futures
	t.mu.Lock()
	defer t.mu.Unlock()
	switch {
	case len(t.samples) >= a.opt.OpenSamples:
		return nil, Problemf(CodeBusy, "asample: %d requests are open, as many as this server takes", len(t.samples)).WithHint("wait for some to finish")
	case t.prompts > 0 && t.prompts+f.sample.bytes > a.opt.OpenPrompts:
		return nil, Problemf(CodeBusy, "asample: the prompts of the %d open requests have %d tokens, and this server takes %d", len(t.samples), t.prompts/4, a.opt.OpenPrompts/4).
			WithHint("wait for some to finish")
	}
	t.accepted++
	f.sample.n = t.accepted
	t.prompts += f.sample.bytes
	t.byID[f.id] = f
	t.samples[f] = struct{}{}
	return f, nil
}

// endSampleLocked takes a request out of the queue; futures.mu is held.
func (a *Appliance) endSampleLocked(f *future) {
	t := a.futures
	delete(t.samples, f)
	t.prompts -= f.sample.bytes
	f.sample.pending = nil
	t.pace.tick(f.finished, len(t.samples) > 0)
}

// completion tells of a finished sample request.
func (f *future) completion() Completion {
	c := Completion{RequestID: f.id, Failed: f.failure != nil}
	r, ok := f.result.(*SampleResult)
	if !ok {
		return c
	}
	c.Size = int64(64 + 4*len(r.PromptLogprobs) + 8*len(r.AltTokens) + 4*len(r.AltLogprobs) + tableBytes(r.TopKPrompt))
	for _, q := range r.Sequences {
		c.Size += int64(32 + 8*len(q.Tokens) + tableBytes(q.TopK))
	}
	if t := r.Targets; t != nil {
		c.Size += int64(4*len(t.Logprobs) + 8*(len(t.Crow)+len(t.Col)))
	}
	return c
}

// tableBytes is the size of a table of best tokens.
func tableBytes(t *TopK) int {
	if t == nil {
		return 0
	}
	return 16 + 8*len(t.IDs)
}

// begun notes the engine's hold on a request; one that was canceled before is
// canceled now.
func (a *Appliance) begun(f *future, p *engine.Pending) {
	t := a.futures
	t.mu.Lock()
	if !f.settled {
		f.sample.pending = p
	}
	canceled := f.sample.canceled
	t.mu.Unlock()
	if canceled {
		p.Cancel()
	}
}

// canceled says whether nobody waits for a request any more.
func (a *Appliance) canceled(f *future) bool {
	a.futures.mu.Lock()
	defer a.futures.mu.Unlock()
	return f.sample.canceled
}

// Cancel gives a sample request up, wherever it is: its future fails and what it
// holds comes back. For one that is done or unknown, and for other kinds, it does
// nothing: training requests have an order that others rely on.
func (a *Appliance) Cancel(id string) {
	t := a.futures
	t.mu.Lock()
	f := t.byID[id]
	if f == nil || f.kind != KindSample || f.settled {
		t.mu.Unlock()
		return
	}
	f.sample.canceled = true
	p := f.sample.pending
	t.mu.Unlock()
	if p != nil {
		p.Cancel()
	}
}

// wasSample says whether id may have been given to a sample request, by this
// process or an earlier one.
func (a *Appliance) wasSample(id string) bool {
	i := strings.LastIndexByte(id, ':')
	if i < 0 {
		return false
	}
	if _, err := strconv.ParseUint(id[i+1:], 10, 63); err != nil {
		return false
	}
	_, err := a.sampler(id[:i])
	return err == nil
}

// sampleWaits says what a sample request waits for: as a state, and in words with
// its position and an estimate.
func (a *Appliance) sampleWaits(f *future) (state, reason string) {
	t := a.futures
	t.mu.Lock()
	p, ahead, each := f.sample.pending, 0, t.pace.each
	for o := range t.samples {
		if o.sample.n < f.sample.n {
			ahead++
		}
	}
	t.mu.Unlock()
	q := a.eng.Queue()
	device := fmt.Sprintf("%s being sampled, %s waiting; %s", count(q.SamplesActive, "sequence"), count(q.SamplesWaiting, "request"), trainingBeside(q))
	switch {
	case p == nil && a.arrival() != "":
		return queueActive, a.arrival() + "; " + device
	case p == nil:
		return queueActive, "the sampler's weights are being brought to the device; " + device
	case p.Started():
		return queueActive, "this request is being sampled; " + device
	case ahead == 0:
		return queueActive, "this request is next; " + device
	}
	return queuePaused, fmt.Sprintf("%s %s first%s; %s", count(ahead, "sample request"), verb(ahead, "comes", "come"), about(time.Duration(ahead)*each), device)
}

// trainingBeside says whether training shares the device.
func trainingBeside(q engine.QueueInfo) string {
	if q.Training || q.LanesWaiting > 0 {
		return fmt.Sprintf("training of %s shares the device", count(max(1, q.LanesWaiting), "run"))
	}
	return "no run trains"
}

// pace is how fast things get done, one after another.
type pace struct {
	last time.Time     // when one was done, zero after a rest
	each time.Duration // between two, smoothed; 0 = not known
}

// tick notes that one is done; more says whether others wait.
func (p *pace) tick(now time.Time, more bool) {
	if !p.last.IsZero() {
		p.add(now.Sub(p.last))
	}
	if p.last = now; !more {
		p.last = time.Time{}
	}
}

// add notes how long one took.
func (p *pace) add(d time.Duration) {
	if p.each == 0 {
		p.each = d
		return
	}
	p.each += (d - p.each) / 8
}

// about says how long something will take, nothing if that isn't known.
func about(d time.Duration) string {
	switch {
	case d <= 0:
		return ""
	case d < time.Second:
		return ", about a second"
	case d < 100*time.Second:
		return fmt.Sprintf(", about %d s", int(d.Seconds()+0.5))
	case d < 100*time.Minute:
		return fmt.Sprintf(", about %d min", int(d.Minutes()+0.5))
	}
	return fmt.Sprintf(", about %d h", int(d.Hours()+0.5))
}
