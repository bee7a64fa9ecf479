package engine

import (
	"fmt"
	"strings"

	"smolgym/kernels"
	"smolgym/model/grad"
	"smolgym/model/ir"
	"smolgym/model/loss"
	"smolgym/model/plan"
)

// A training pass is two programs, so that the logits of a micro-batch,
// f32[T,V], never exist as a whole. The body's goes through the layers to the
// hidden states, stops, and goes back through the layers from the gradient of
// the hidden states. At the stop the head's runs over chunks of a few datums:
// output head, log-probabilities, loss, and their gradients. Whatever stands
// between the head's matrix and the log-probabilities (caps, scales, an adapter)
// is the head's. A chunk is to the head what a micro-batch is to the model, so
// no bit depends on the cut.

// Names of what passes between the two.
const (
	hiddenName     = "hidden"      // f32[T,D], behind the last norm
	hiddenGradName = "hidden.grad" // f32[T,D]
)

// cutLayer marks the nodes behind the stop: a layer of its own makes the device
// yield there.
const cutLayer = -2

// halves is a training graph cut before the output head, both without gradients.
type halves struct{ body, head *ir.Graph }

// cut parts a training graph at the input of its output head.
func cut(g *ir.Graph) (halves, error) {
	at := -1
	for i := range g.Nodes {
		if g.Nodes[i].Attr.Part == ir.PartUnembed {
			at = i
			break
		}
	}
	if at < 0 {
		return halves{}, fmt.Errorf("cut graph %s: it has no output head", g.Name)
	}
	hidden := g.Nodes[at].In[0]
	h := halves{ir.New(g.Name), ir.New(g.Name + " head")}
	inBody, inHead := make([]ir.ID, len(g.Values)), make([]ir.ID, len(g.Values))
	for i := 1; i < len(g.Values); i++ {
		if v := &g.Values[i]; v.Class != ir.ClassNode {
			inBody[i] = h.body.Declare(v.Class, v.Name, v.Type.DType, v.Type.Shape...)
			inHead[i] = h.head.Declare(v.Class, v.Name, v.Type.DType, v.Type.Shape...)
		}
	}
	inHead[hidden] = h.head.Input(hiddenName, ir.F32, g.Value(hidden).Type.Shape...)
	behind := make([]bool, len(g.Values))
	behind[hidden] = true
	for i := range g.Nodes {
		n := &g.Nodes[i]
		to, ids := h.body, inBody
		for _, id := range n.In {
			if behind[id] {
				to, ids = h.head, inHead
			}
		}
		in := make([]ir.ID, len(n.In))
		for k, id := range n.In {
			if in[k] = ids[id]; id != 0 && in[k] == 0 {
				return halves{}, fmt.Errorf("cut graph %s: the output head reads %s, which a layer makes", g.Name, g.Value(id).Name)
			}
		}
		out := to.Add(n.Op, n.Attr, in...)
		for k, id := range n.Out {
			ids[id] = to.SetName(out[k], g.Value(id).Name)
			behind[id] = behind[id] || to == h.head
		}
	}
	p, ok := g.OutputByName(loss.LogProbs)
	if !ok || !behind[p] {
		return halves{}, fmt.Errorf("cut graph %s: no output %q behind the output head", g.Name, loss.LogProbs)
	}
	h.body.Output(hiddenName, inBody[hidden])
	h.head.Output(loss.LogProbs, inHead[p])
	return h, nil
}

// halves is the cut training graph of a configuration.
func (b *Base) halves(cfg TrainerConfig) (halves, error) {
	g, _, err := b.variant(b.train.Graph, cfg)
	if err != nil {
		return halves{}, err
	}
	return cut(g)
}

// bodyGraph is the body of cfg, with or without its gradient.
func (b *Base) bodyGraph(cfg TrainerConfig, forwardOnly bool) (*ir.Graph, grad.Accumulators, error) {
	h, err := b.halves(cfg)
	if err != nil {
		return nil, nil, err
	}
	g := h.body
	if forwardOnly {
		g, err = g.Finish()
		return g, nil, err
	}
	// The gradient of sum(hidden * its gradient) is what the chain rule asks
	// for, and to the bit: the factors on the way are ones.
	hidden, _ := g.OutputByName(hiddenName)
	d := g.Input(hiddenGradName, ir.F32, g.Value(hidden).Type.Shape...)
	offsets := g.Input(loss.Offsets, ir.I32, ir.Of(ir.S1))
	a := ir.Attrs{Layer: cutLayer}
	g.Output(loss.Output, g.Op1(ir.OpSegmentSum, a, g.Op1(ir.OpMul, a, hidden, d), offsets))
	return grad.Backward(g, loss.Output, cfg.trains)
}

// headGraph is the output head of cfg with one loss, with or without its
// gradient by the parameters and by the hidden states.
func (b *Base) headGraph(cfg TrainerConfig, name string, forwardOnly bool) (*ir.Graph, error) {
	h, err := b.halves(cfg)
	if err != nil {
		return nil, err
	}
	if err := loss.Append(h.head, name); err != nil {
		return nil, err
	}
	if forwardOnly {
		return h.head.Finish()
	}
	g, _, err := grad.Backward(h.head, loss.Output, cfg.trains, hiddenName)
	return g, err
}

// keepActivations is the largest work area of a body program, in bytes, that
// keeps all activations for the way back: an eighth of what is free, within
// bounds. What doesn't fit into it is cut into smaller micro-batches or, where
// that doesn't help, computed again; neither changes a bit.
func (b *Base) keepActivations() int64 {
	if b.e.opt.keepActivations > 0 {
		return b.e.opt.keepActivations
	}
	return min(max(b.e.dev.Info().FreeBytes/8, 256<<20), 2<<30)
}

// leastTokens is the size of micro-batches below which computing activations
// again is cheaper than a smaller batch.
const leastTokens = 512

// body gives the program for a capacity; again says that it computes
// activations twice.
func (t *Trainer) body(forwardOnly bool, capacity ir.Dims) (*bodyProgram, error) {
	key := bodyKey{forwardOnly, capacity}
	if p, ok := t.bodies[key]; ok {
		return p, nil
	}
	g, _, err := t.b.bodyGraph(t.cfg, forwardOnly)
	if err != nil {
		return nil, err
	}
	p, err := plan.Build(g, capacity)
	if err != nil {
		return nil, err
	}
	made := &bodyProgram{Program: p}
	if p.ArenaBytes > t.keep && !forwardOnly {
		if g, err = plan.Recompute(g, func(int) bool { return true }); err != nil {
			return nil, err
		}
		if made.Program, err = plan.Build(g, capacity); err != nil {
			return nil, err
		}
		made.again = true
	}
	made.stop = stopOf(made.Program)
	t.bodies[key] = made
	return made, nil
}

type bodyKey struct {
	forwardOnly bool
	capacity    ir.Dims
}

type bodyProgram struct {
	*ir.Program
	again bool
	stop  int // the yield at which the head runs, counted from 1; 0: it runs at the end
}

// stopOf counts the yields up to the one before the nodes behind the stop.
func stopOf(p *ir.Program) int {
	n := 0
	for _, s := range p.Steps {
		if p.Graph.Nodes[s.Node].Attr.Layer == cutLayer {
			return n
		}
		if s.Yield {
			n++
		}
	}
	return 0
}

type headKey struct {
	loss        string
	forwardOnly bool
	capacity    ir.Dims
}

func (t *Trainer) head(key headKey) (*ir.Program, error) {
	if p, ok := t.heads[key]; ok {
		return p, nil
	}
	g, err := t.b.headGraph(t.cfg, key.loss, key.forwardOnly)
	if err != nil {
		return nil, err
	}
	p, err := plan.Build(g, key.capacity)
	if err != nil {
		return nil, err
	}
	t.heads[key] = p
	return p, nil
}

// lookupHead is lookup for the head's program.
func (t *Trainer) lookupHead(s ir.Slot) kernels.Buffer {
	name, isGrad := strings.CutPrefix(s.Name, "grad:")
	if s.Class != ir.ClassState || !isGrad {
		return t.lookup(s)
	}
	name, number, again := strings.Cut(name, "#")
	use := t.uses[name]
	if again {
		var k int
		if _, err := fmt.Sscan(number, &k); err != nil {
			return nil
		}
		use += k
	}
	if use > 0 {
		return t.buffers[fmt.Sprintf("grad:%s#%d", name, use)]
	}
	return t.buffers["grad:"+name]
}

// headTokens keeps the logits of a chunk near 128 MiB, and a chunk of whole
// datums large enough for the matrix kernels.
func (b *Base) headTokens() int {
	if b.e.opt.headTokens > 0 {
		return b.e.opt.headTokens
	}
	return max(256, (32<<20)/max(b.info.Vocab, 1))
}

// runHead computes log-probabilities, losses and the hidden states' gradient of
// a micro-batch, a chunk of datums after the other.
func (t *Trainer) runHead(part []Datum, p packed, batch Batch, out *headResult) error {
	e := t.b.e
	width := t.width * 4 // bytes of a row
	row, datum := 0, 0
	for _, chunk := range split(part, t.headLimit) {
		if row > 0 {
			if err := e.yield(true); err != nil {
				return err
			}
		}
		key := t.headKey(chunk, batch)
		prog, err := t.head(key)
		if err != nil {
			return err
		}
		n := tokensOf(chunk)
		dims := ir.Dims{T: n, S: len(chunk), R: 1, C: p.columns, P: 1, B: 1}
		hidden, err := e.head.buffer(hiddenName, int64(n*width))
		if err != nil {
			return err
		}
		if err := e.dev.Copy(hidden, 0, e.train.named[hiddenName], int64(row*width), int64(n*width)); err != nil {
			return err
		}
		if err := t.setHead(p, row, n, datum, len(chunk)); err != nil {
			return err
		}
		if err := e.head.run(prog, dims, t.lookupHead, e.yield); err != nil {
			return err
		}
		if !batch.ForwardOnly {
			if err := e.dev.Copy(e.train.named[hiddenGradName], int64(row*width), e.head.named[grad.OfInput(hiddenName)], 0, int64(n*width)); err != nil {
				return err
			}
		}
		logprobs, err := e.head.getF32(loss.LogProbs, n*p.columns)
		if err != nil {
			return err
		}
		losses, err := e.head.getF32(loss.Output, len(chunk))
		if err != nil {
			return err
		}
		out.logprobs, out.losses = append(out.logprobs, logprobs...), append(out.losses, losses...)
		row, datum = row+n, datum+len(chunk)
	}
	return nil
}

// headResult is in datum order.
type headResult struct{ logprobs, losses []float32 }

func (t *Trainer) headKey(chunk []Datum, batch Batch) headKey {
	return headKey{batch.Loss, batch.ForwardOnly, capacity(tokensOf(chunk), chunk[0].columns())}
}

// setHead writes the inputs of a chunk: n tokens from row on, count datums.
func (t *Trainer) setHead(p packed, row, n, datum, count int) error {
	w := t.b.e.head
	offsets := make([]int32, count+1)
	for i := range offsets {
		offsets[i] = p.offsets[datum+i] - int32(row)
	}
	if err := w.setI32(loss.Offsets, offsets); err != nil {
		return err
	}
	from, to := row*p.columns, (row+n)*p.columns
	if err := w.setI32("targets", p.targets[from:to]); err != nil {
		return err
	}
	for name, v := range p.inputs {
		if err := w.setF32(name, v[from:to]); err != nil {
			return err
		}
	}
	return nil
}

func tokensOf(data []Datum) int {
	n := 0
	for _, d := range data {
		n += len(d.Tokens)
	}
	return n
}
