package engine

import (
	"fmt"
	"io"
	"sync/atomic"

	"smolgym/kernels"
	"smolgym/model/ir"
	"smolgym/model/lora"
)

// Weights are what a sampler reads: the base model as it is, with an adapter's
// snapshot, or a snapshot of every parameter. They never change.
type Weights struct {
	b    *Base
	cfg  TrainerConfig
	base bool // the base model itself
	// alone: other parameters than the base's, or adapters of experts, so that
	// nothing else can share a pass.
	alone bool
	own   map[string]kernels.Buffer // snapshot: adapter tensors, or all parameters
	name  uint64                    // unlike any other weights'; 0 for the base model
	refs  atomic.Int32
}

// names counts the snapshots of all engines.
var names atomic.Uint64

// id names the weights in the prefix cache of their base.
func (w *Weights) id() uint64 { return w.name }

// Weights is the base model as a sampler's weights. Owner.
func (b *Base) Weights() *Weights {
	b.refs++
	w := &Weights{b: b, base: true}
	w.refs.Store(1)
	return w
}

// Base is the model these weights belong to.
func (w *Weights) Base() *Base { return w.b }

// key is equal for weights that share a decoding pass.
func (w *Weights) key() any {
	if w.alone {
		return w
	}
	return w.b
}

// Retain takes a hold; any goroutine that has one may.
func (w *Weights) Retain() *Weights {
	w.refs.Add(1)
	return w
}

// Release gives a hold up; the owner frees the memory after the last.
func (w *Weights) Release() {
	if w.refs.Add(-1) == 0 {
		w.b.e.later(func() {
			for _, buf := range w.own {
				buf.Free()
			}
			w.own = nil
			w.b.Release()
		})
	}
}

// lookup finds the buffer of a weight, adapter or constant.
func (w *Weights) lookup(name string) kernels.Buffer {
	if buf, ok := w.own[name]; ok {
		return buf
	}
	return w.b.weights[name]
}

// newWeights takes over own.
func (b *Base) newWeights(cfg TrainerConfig, own map[string]kernels.Buffer) *Weights {
	b.refs++
	w := &Weights{b: b, cfg: cfg, own: own, name: names.Add(1), alone: !b.mixable(cfg)}
	w.refs.Store(1)
	return w
}

// LoadWeights reads a sampler's weights from a stored checkpoint: open gives
// the bytes of each tensor, raw little-endian float32. Owner.
func (b *Base) LoadWeights(cfg TrainerConfig, open func(TensorInfo) (io.ReaderAt, error)) (*Weights, error) {
	specs, err := b.params(cfg)
	if err != nil {
		return nil, err
	}
	own := map[string]kernels.Buffer{}
	fail := func(err error) (*Weights, error) {
		for _, buf := range own {
			buf.Free()
		}
		return nil, err
	}
	for _, s := range specs {
		buf, err := alloc(b.e.dev, s.read(), s.name)
		if err != nil {
			return fail(err)
		}
		own[s.name] = buf
		if err := b.e.fill(buf, s.dtype(), s.info(""), open); err != nil {
			return fail(err)
		}
	}
	return b.newWeights(cfg, own), nil
}

// fill copies a stored tensor, float32, into buf piece by piece, as dtype.
func (e *Engine) fill(buf kernels.Buffer, dtype ir.DType, info TensorInfo, open func(TensorInfo) (io.ReaderAt, error)) error {
	r, err := open(info)
	if err != nil {
		return fmt.Errorf("tensor %s: %w", info.Name, err)
	}
	piece := make([]byte, min(info.Bytes, 4<<20))
	for at := int64(0); at < info.Bytes; at += int64(len(piece)) {
		part := piece[:min(int64(len(piece)), info.Bytes-at)]
		if n, err := r.ReadAt(part, at); n < len(part) {
			return fmt.Errorf("tensor %s: %w", info.Name, err)
		}
		if dtype != ir.F32 {
			if part, err = encode(dtype, decodeF32(part)); err != nil {
				return fmt.Errorf("tensor %s: %w", info.Name, err)
			}
		}
		if err := e.dev.Write(buf, at/4*int64(dtype.Size()), part); err != nil {
			return err
		}
		if err := e.yield(true); err != nil {
			return err
		}
	}
	return nil
}

// loraConfig is cfg in the words of package lora.
func (c TrainerConfig) loraConfig() lora.Config {
	return lora.Config{Rank: c.LoRA.Rank, Alpha: c.LoRA.Alpha, Attention: c.Attention, MLP: c.MLP, Unembed: c.Unembed}
}
