package engine

import (
	"errors"
	"fmt"
	"io"

	"smolgym/kernels"
	"smolgym/model/arch"
	"smolgym/model/hf"
	"smolgym/model/ir"
	"smolgym/model/safetensors"
	"smolgym/tokenizer"
)

// Base is a loaded model that runs and samplers share.
type Base struct {
	e      *Engine
	info   BaseInfo
	train  *arch.Model
	decode *arch.Model
	tok    *tokenizer.Tokenizer

	// The owner's own.
	weights  map[string]kernels.Buffer // by tensor name, and constants by theirs
	cache    *cache                    // made at the first sample
	decoders map[decodeKey]*ir.Program
	mix      *mixture // of the last step
	refs     int
	gone     bool
}

// LoadBase reads a checkpoint's weights into device memory, its matrices as F32 or
// BF16; tok may be nil: then stop strings are refused. Any goroutine but the
// owner's: its work goes on.
func (e *Engine) LoadBase(name string, ck *hf.Checkpoint, src hf.Source, tok *tokenizer.Tokenizer, matrices ir.DType) (*Base, error) {
	if err := arch.Resolve(ck, src); err != nil {
		return nil, fmt.Errorf("load %s: %w", name, err)
	}
	train, err := arch.Build(ck, arch.Train)
	if err != nil {
		return nil, fmt.Errorf("load %s: %w", name, err)
	}
	decode, err := arch.Build(ck, arch.Decode)
	if err != nil {
		return nil, fmt.Errorf("load %s: %w", name, err)
	}
	if matrices == ir.BF16 {
		train.Narrow()
		decode.Narrow()
	}
	b := &Base{e: e, train: train, decode: decode, tok: tok, weights: map[string]kernels.Buffer{}, decoders: map[decodeKey]*ir.Program{}, refs: 1}
	b.info = BaseInfo{Name: name, Family: train.Family, Context: train.Context, Vocab: train.Vocab, DType: matrices}
	if e.opt.Context > 0 && (b.info.Context == 0 || e.opt.Context < b.info.Context) {
		b.info.Context = e.opt.Context
	}
	for _, id := range ck.EOS {
		b.info.EOS = append(b.info.EOS, int32(id))
	}
	for _, id := range train.Graph.Named(ir.ClassWeight) {
		t := train.Graph.Value(id).Type
		b.info.Params += t.Shape.Elements(ir.Dims{})
		b.info.Bytes += t.Bytes(ir.Dims{})
	}
	if free := e.dev.Info().FreeBytes; b.info.Bytes > free {
		return nil, fmt.Errorf("load %s: %w: the weights need %s, %s are free", name, ErrNoFit, size(b.info.Bytes), size(free))
	}
	if err := b.load(ck, src); err != nil {
		b.free()
		return nil, fmt.Errorf("load %s: %w", name, err)
	}
	return b, nil
}

func (b *Base) load(ck *hf.Checkpoint, src hf.Source) error {
	g := b.train.Graph
	for _, id := range g.Named(ir.ClassWeight) {
		v := g.Value(id)
		buf, err := alloc(b.e.dev, v.Type.Bytes(ir.Dims{}), v.Name)
		if err != nil {
			return err
		}
		b.weights[v.Name] = buf
		parts, ok := b.train.Stored[v.Name]
		if !ok {
			parts = []string{v.Name}
		}
		var at int64
		for _, part := range parts {
			n, err := b.loadTensor(ck, src, part, v.Type.DType, buf, at)
			if err != nil {
				return fmt.Errorf("tensor %s: %w", part, err)
			}
			at += n
		}
		if want := v.Type.Bytes(ir.Dims{}); at != want {
			return fmt.Errorf("tensor %s: %d bytes are stored, the model takes %d", v.Name, at, want)
		}
	}
	for name, values := range b.train.Consts {
		buf, err := alloc(b.e.dev, int64(4*len(values)), name)
		if err != nil {
			return err
		}
		b.weights[name] = buf
		if err := b.e.dev.Write(buf, 0, floatBytes(values)); err != nil {
			return err
		}
	}
	return nil
}

// loadTensor copies one stored tensor to byte at of buf, as dtype, and returns its
// length there.
func (b *Base) loadTensor(ck *hf.Checkpoint, src hf.Source, name string, dtype ir.DType, buf kernels.Buffer, at int64) (int64, error) {
	t, ok := ck.Tensors[name]
	if !ok {
		return 0, errors.New("not in the checkpoint")
	}
	bytes := int64(dtype.Size()) * t.Elements()
	if at+bytes > buf.Size() {
		return 0, fmt.Errorf("%d bytes at %d of a weight of %d", bytes, at, buf.Size())
	}
	file, err := src.Open(t.File)
	if err != nil {
		return 0, err
	}
	err = upload(b.e.dev, buf, at, dtype, file, t)
	return bytes, errors.Join(err, file.Close())
}

// upload copies a stored tensor piece by piece, widened to float32 or rounded to
// bfloat16, to byte start of dst.
func upload(dev kernels.Device, dst kernels.Buffer, start int64, dtype ir.DType, src io.ReaderAt, t hf.Tensor) error {
	const piece = 1 << 20 // elements
	width := t.DType.Size()
	total := t.Elements()
	raw := make([]byte, min(piece, total)*int64(width))
	values := make([]float32, min(piece, total))
	for at := int64(0); at < total; at += piece {
		n := min(piece, total-at)
		part := raw[:n*int64(width)]
		if _, err := src.ReadAt(part, t.Offset+at*int64(width)); err != nil && !(errors.Is(err, io.EOF)) {
			return err
		}
		if dtype == ir.BF16 && t.DType == safetensors.BF16 {
			if err := dev.Write(dst, start+at*2, part); err != nil {
				return err
			}
			continue
		}
		if err := safetensors.Float32s(values[:n], t.DType, part); err != nil {
			return err
		}
		encoded, err := encode(dtype, values[:n])
		if err != nil {
			return err
		}
		if err := dev.Write(dst, start+at*int64(dtype.Size()), encoded); err != nil {
			return err
		}
	}
	return nil
}

// Info describes the model.
func (b *Base) Info() BaseInfo { return b.info }

// Release gives up the loader's hold; memory is freed when no run or sampler
// uses the model. Owner.
func (b *Base) Release() {
	b.refs--
	if b.refs == 0 && !b.gone {
		b.gone = true
		b.free()
	}
}

func (b *Base) free() {
	b.dropMixture()
	for name, buf := range b.weights {
		buf.Free()
		delete(b.weights, name)
	}
	if b.cache != nil {
		b.cache.release()
		b.cache = nil
	}
}

// size is a number of bytes for people.
func size(n int64) string {
	switch {
	case n >= 1<<30:
		return fmt.Sprintf("%.1f GiB", float64(n)/(1<<30))
	case n >= 1<<20:
		return fmt.Sprintf("%.1f MiB", float64(n)/(1<<20))
	}
	return fmt.Sprintf("%d bytes", n)
}
