package engine

import (
	"fmt"
	"io"
	"math"
	"slices"

	"smolgym/kernels"
	"smolgym/model/ir"
	"smolgym/model/lora"
	"smolgym/model/optim"
	"smolgym/model/plan"
	"smolgym/model/safetensors"
)

// param is a trained parameter with all that belongs to it.
type param struct {
	paramSpec
	value, m, v kernels.Buffer
	copy        kernels.Buffer // bfloat16, for the graph; nil where it reads value
	grads       []kernels.Buffer
}

// Trainer is one run: parameters, accumulated gradient, optimizer state.
type Trainer struct {
	b       *Base
	cfg     TrainerConfig
	params  []*param
	buffers map[string]kernels.Buffer // parameters, copies, moments, gradients by slot name
	bodies  map[bodyKey]*bodyProgram
	heads   map[headKey]*ir.Program
	uses    map[string]int // of each parameter in the body
	keep    int64          // bytes: see keepActivations
	width   int            // of the hidden states

	headLimit int // tokens of one chunk of the head; one datum is never cut
	norm      *ir.Program
	update    *ir.Program
	copies    *ir.Program // nil if no parameter has a copy
	step      int64
	released  bool
}

// FitTrainer is what a run with cfg needs beside the loaded base — parameters,
// gradients, moments, the sampler's copy and the work area of a small batch —
// and what is free.
func (b *Base) FitTrainer(cfg TrainerConfig) (need, free int64, err error) {
	specs, err := b.params(cfg)
	if err != nil {
		return 0, 0, err
	}
	for _, s := range specs {
		need += s.bytes()*int64(3+len(s.grads)) + s.read() // value, m, v, gradients; the sampler's copy
		if s.half {
			need += s.read()
		}
	}
	tokens := bucket(min(max(b.info.Context, 1), 64))
	body, _, err := b.bodyGraph(cfg, false)
	if err != nil {
		return 0, 0, err
	}
	head, err := b.headGraph(cfg, "cross_entropy", false)
	if err != nil {
		return 0, 0, err
	}
	for _, g := range []*ir.Graph{body, head} {
		p, err := plan.Build(g, capacity(tokens, 1))
		if err != nil {
			return 0, 0, err
		}
		need += p.ArenaBytes
	}
	return need, b.e.dev.Info().FreeBytes, nil
}

// NewTrainer is a run at its start: a fresh adapter, or a copy of the base's
// parameters. Owner.
func (b *Base) NewTrainer(cfg TrainerConfig) (*Trainer, error) {
	specs, err := b.params(cfg)
	if err != nil {
		return nil, err
	}
	need, free, err := b.FitTrainer(cfg)
	if err != nil {
		return nil, err
	}
	if need > free {
		return nil, fmt.Errorf("train %s: %w: %s needs %s, %s are free; %s", b.info.Name, ErrNoFit, cfg.words(), size(need), size(free), cfg.smaller())
	}
	b.refs++
	t := &Trainer{b: b, cfg: cfg, buffers: map[string]kernels.Buffer{}, bodies: map[bodyKey]*bodyProgram{}, heads: map[headKey]*ir.Program{}, keep: b.keepActivations(), headLimit: b.headTokens()}
	if err := t.init(specs); err != nil {
		t.Release()
		return nil, err
	}
	return t, nil
}

func (c TrainerConfig) words() string {
	if c.LoRA == nil {
		return "a full update of every parameter"
	}
	return fmt.Sprintf("a LoRA of rank %d", c.LoRA.Rank)
}

func (c TrainerConfig) smaller() string {
	if c.LoRA == nil {
		return "a LoRA run (rank > 0) needs far less, or unload runs and models that are not in use"
	}
	return "use a smaller rank, or unload runs and models that are not in use"
}

func (t *Trainer) init(specs []paramSpec) error {
	optParams := make([]optim.Param, 0, len(specs))
	for _, s := range specs {
		p := &param{paramSpec: s}
		t.params = append(t.params, p)
		op := optim.Param{Name: s.name, Class: s.class, Grads: s.grads, Narrow: s.half}
		for _, d := range s.shape {
			op.Shape = append(op.Shape, ir.Const(int(d)))
		}
		optParams = append(optParams, op)
		for _, part := range []struct {
			name string
			dst  *kernels.Buffer
		}{{s.name, &p.value}, {"m:" + s.name, &p.m}, {"v:" + s.name, &p.v}} {
			buf, err := alloc(t.b.e.dev, s.bytes(), part.name)
			if err != nil {
				return err
			}
			*part.dst, t.buffers[part.name] = buf, buf
		}
		if s.half {
			buf, err := alloc(t.b.e.dev, s.read(), optim.Copy(s.name))
			if err != nil {
				return err
			}
			p.copy, t.buffers[optim.Copy(s.name)] = buf, buf
		}
		for _, name := range s.grads {
			buf, err := alloc(t.b.e.dev, s.bytes(), name)
			if err != nil {
				return err
			}
			p.grads = append(p.grads, buf)
			t.buffers[name] = buf
		}
	}
	body, acc, err := t.b.bodyGraph(t.cfg, false)
	if err != nil {
		return err
	}
	hidden, _ := body.OutputByName(hiddenName)
	t.width = body.Value(hidden).Type.Shape[1].N
	t.uses = map[string]int{}
	for name, uses := range acc {
		t.uses[name] = len(uses)
	}
	if err := t.start(); err != nil {
		return err
	}
	return t.planOptimizer(optParams)
}

// start sets the parameters to where a new run begins.
func (t *Trainer) start() error {
	if t.cfg.LoRA == nil {
		for _, p := range t.params {
			if err := t.startFrom(p, t.b.weights[p.name]); err != nil {
				return err
			}
		}
		return nil
	}
	_, adapters, err := t.b.variant(t.b.train.Graph, t.cfg)
	if err != nil {
		return err
	}
	for name, values := range lora.Init(adapters, t.cfg.LoRA.Seed) {
		buf := t.buffers[name]
		if buf == nil {
			return fmt.Errorf("adapter tensor %s: not among the parameters", name)
		}
		if err := t.b.e.dev.Write(buf, 0, floatBytes(values)); err != nil {
			return err
		}
	}
	return nil
}

// startFrom copies a weight of the base.
func (t *Trainer) startFrom(p *param, w kernels.Buffer) error {
	dev := t.b.e.dev
	if !p.half {
		return copyPieces(dev, p.value, w, p.bytes(), t.b.e.yield)
	}
	piece := make([]byte, min(p.read(), 4<<20))
	wide := make([]float32, len(piece)/2)
	for at := int64(0); at < p.read(); at += int64(len(piece)) {
		part := piece[:min(int64(len(piece)), p.read()-at)]
		if err := dev.Read(part, w, at); err != nil {
			return err
		}
		if err := safetensors.Float32s(wide[:len(part)/2], safetensors.BF16, part); err != nil {
			return err
		}
		if err := dev.Write(p.value, 2*at, floatBytes(wide[:len(part)/2])); err != nil {
			return err
		}
		if err := t.b.e.yield(true); err != nil {
			return err
		}
	}
	return copyPieces(dev, p.copy, w, p.read(), t.b.e.yield)
}

func (t *Trainer) planOptimizer(params []optim.Param) error {
	halves := slices.ContainsFunc(params, func(p optim.Param) bool { return p.Narrow })
	for _, o := range []struct {
		build func([]optim.Param) (*ir.Graph, error)
		dst   **ir.Program
		skip  bool
	}{{optim.Norm, &t.norm, false}, {optim.AdamW, &t.update, false}, {optim.Copies, &t.copies, !halves}} {
		if o.skip {
			continue
		}
		g, err := o.build(params)
		if err != nil {
			return err
		}
		if *o.dst, err = plan.Build(g, ir.Dims{T: 1, S: 1, R: 1, C: 1, P: 1, B: 1}); err != nil {
			return err
		}
	}
	return nil
}

// lookup finds a slot's buffer: the run's own, else the base's.
func (t *Trainer) lookup(s ir.Slot) kernels.Buffer {
	if s.Class == ir.ClassWeight && s.Type.DType == ir.BF16 {
		if buf, ok := t.buffers[optim.Copy(s.Name)]; ok {
			return buf
		}
	}
	if buf, ok := t.buffers[s.Name]; ok {
		return buf
	}
	return t.b.weights[s.Name]
}

// Config is what the run trains.
func (t *Trainer) Config() TrainerConfig { return t.cfg }

// Base is the model the run trains.
func (t *Trainer) Base() *Base { return t.b }

// StepCount is how many optimizer steps the run has taken.
func (t *Trainer) StepCount() int64 { return t.step }

// settings checks the parameters of a step. Its error wraps ErrRequest.
func (a AdamParams) settings() (optim.AdamParams, error) {
	s := optim.AdamParams{LR: a.LearningRate, Beta1: a.Beta1, Beta2: a.Beta2, Eps: a.Eps, WeightDecay: a.WeightDecay, ClipNorm: a.GradClipNorm}
	if err := s.Check(); err != nil {
		return s, fmt.Errorf("%w: adam_params: %w", ErrRequest, err)
	}
	if float32(a.Eps) == 0 { // 0/0 where a gradient has always been 0
		return s, fmt.Errorf("%w: adam_params: eps is %g, takes a positive float32", ErrRequest, a.Eps)
	}
	return s, nil
}

// Check finds settings that cannot be stepped with. Any goroutine.
func (a AdamParams) Check() error {
	_, err := a.settings()
	return err
}

// Step applies the accumulated gradient with AdamW and clears it. A gradient
// that is not finite is cleared and changes nothing else: ErrNonFinite. Owner.
func (t *Trainer) Step(a AdamParams) (*StepResult, error) {
	settings, err := a.settings()
	if err != nil {
		return nil, err
	}
	e := t.b.e
	dims := ir.Dims{T: 1, S: 1, R: 1, C: 1, P: 1, B: 1}
	if err := e.train.run(t.norm, dims, t.lookup, e.yield); err != nil {
		return nil, err
	}
	total := 0.0
	for _, p := range t.params {
		square, err := e.train.getF32(optim.NormOutput(p.name), 1)
		if err != nil {
			return nil, err
		}
		total += float64(square[0])
	}
	norm := math.Sqrt(total)
	if math.IsNaN(norm) || math.IsInf(norm, 0) {
		if err := t.ClearGradients(); err != nil {
			return nil, err
		}
		return nil, fmt.Errorf("optimizer step %d: %w: the gradient's norm is %v; the weights are unchanged and the gradient is cleared", t.step+1, ErrNonFinite, norm)
	}
	if err := e.train.setF32(optim.HyperInput, optim.Hyper(settings, int(t.step+1), settings.ClipFactor(norm))); err != nil {
		return nil, err
	}
	// Decoding may go on inside: samplers read copies, and whatever would read
	// the parameters themselves has a turn of its own.
	if err := e.train.run(t.update, dims, t.lookup, e.yield); err != nil {
		return nil, err
	}
	t.step++
	e.count(func(s *Stats) { s.OptimSteps++ })
	return &StepResult{Step: t.step, GradNorm: norm}, t.ClearGradients()
}

// ClearGradients forgets what forward_backward has accumulated. Owner.
func (t *Trainer) ClearGradients() error {
	for _, p := range t.params {
		for _, g := range p.grads {
			if err := clearPieces(t.b.e.dev, g, 0, g.Size(), t.b.e.yield); err != nil {
				return err
			}
		}
	}
	return nil
}

// Snapshot copies the parameters as they are now for a sampler. Owner.
func (t *Trainer) Snapshot() (*Weights, error) {
	own := map[string]kernels.Buffer{}
	for _, p := range t.params {
		from := p.value
		if p.half {
			from = p.copy
		}
		buf, err := alloc(t.b.e.dev, p.read(), "sampler's copy of "+p.name)
		if err == nil {
			own[p.name] = buf
			err = copyPieces(t.b.e.dev, buf, from, p.read(), t.b.e.yield)
		}
		if err != nil {
			for _, b := range own {
				b.Free()
			}
			return nil, err
		}
	}
	return t.b.newWeights(t.cfg, own), nil
}

// Tensors lists the run's state, parameters first, then the moments.
func (t *Trainer) Tensors(optimizer bool) []TensorInfo {
	var list []TensorInfo
	for _, p := range t.params {
		list = append(list, p.info(""))
	}
	if optimizer {
		for _, prefix := range []string{"m:", "v:"} {
			for _, p := range t.params {
				list = append(list, p.info(prefix))
			}
		}
	}
	return list
}

// Read copies raw little-endian float32 bytes of a tensor, offset in bytes. Owner.
func (t *Trainer) Read(name string, offset int64, dst []byte) error {
	buf := t.buffers[name]
	if buf == nil {
		return fmt.Errorf("read tensor %q: the run has none of that name", name)
	}
	if err := t.b.e.dev.Read(dst, buf, offset); err != nil {
		return err
	}
	return t.b.e.yield(true)
}

// Load sets the run to a stored state: every tensor of Tensors(optimizer), the
// step count with it, or fresh moments when optimizer is false. Accumulated
// gradients are cleared. Everything is read before anything changes. Owner.
func (t *Trainer) Load(open func(TensorInfo) (io.ReaderAt, error), step int64, optimizer bool) error {
	e := t.b.e
	fresh := map[string]kernels.Buffer{}
	drop := func() {
		for _, b := range fresh {
			b.Free()
		}
	}
	for _, info := range t.Tensors(optimizer) {
		buf, err := alloc(e.dev, info.Bytes, info.Name)
		if err != nil {
			drop()
			return err
		}
		fresh[info.Name] = buf
		if err := e.fill(buf, ir.F32, info, open); err != nil {
			drop()
			return err
		}
	}
	for _, p := range t.params {
		t.swap(&p.value, p.name, fresh)
		if optimizer {
			t.swap(&p.m, "m:"+p.name, fresh)
			t.swap(&p.v, "v:"+p.name, fresh)
			continue
		}
		for _, b := range []kernels.Buffer{p.m, p.v} {
			if err := clearPieces(e.dev, b, 0, b.Size(), e.yield); err != nil {
				return err
			}
		}
	}
	t.step = 0
	if optimizer {
		t.step = step
	}
	if t.copies != nil {
		if err := e.train.run(t.copies, ir.Dims{T: 1, S: 1, R: 1, C: 1, P: 1, B: 1}, t.lookup, nil); err != nil {
			return err
		}
	}
	return t.ClearGradients()
}

func (t *Trainer) swap(dst *kernels.Buffer, name string, fresh map[string]kernels.Buffer) {
	(*dst).Free()
	*dst, t.buffers[name] = fresh[name], fresh[name]
}

// Gradient is the accumulated gradient of a parameter, the uses of a tied one
// summed. Owner.
func (t *Trainer) Gradient(name string) ([]float32, error) {
	for _, p := range t.params {
		if p.name != name {
			continue
		}
		sum := make([]float32, p.bytes()/4)
		raw := make([]byte, p.bytes())
		for _, g := range p.grads {
			if err := t.b.e.dev.Read(raw, g, 0); err != nil {
				return nil, err
			}
			for i, v := range decodeF32(raw) {
				sum[i] += v
			}
		}
		return sum, nil
	}
	return nil, fmt.Errorf("gradient of %q: the run trains no parameter of that name", name)
}

// Release frees the run's memory. Owner.
func (t *Trainer) Release() {
	if t.released {
		return
	}
	t.released = true
	for name, b := range t.buffers {
		b.Free()
		delete(t.buffers, name)
	}
	t.b.Release()
}
