package engine

import (
	"encoding/binary"
	"fmt"
	"math"

	"smolgym/kernels"
	"smolgym/model/ir"
	"smolgym/model/safetensors"
)

// workspace is the memory of one kind of program: an arena and one buffer for
// each named input and output, grown as needed. Training and decoding have one
// each, since a decoding program may run while a training program yields.
type workspace struct {
	dev     kernels.Device
	arena   kernels.Buffer
	touched []bool // pieces of the arena, see touch
	named   map[string]kernels.Buffer
	slots   []kernels.Buffer
}

func newWorkspace(dev kernels.Device) *workspace {
	return &workspace{dev: dev, named: map[string]kernels.Buffer{}}
}

func (w *workspace) free() {
	if w.arena != nil {
		w.arena.Free()
		w.arena = nil
	}
	for name, b := range w.named {
		b.Free()
		delete(w.named, name)
	}
}

// reserve makes the arena at least bytes large.
func (w *workspace) reserve(bytes int64) error {
	if w.arena != nil && w.arena.Size() >= bytes {
		return nil
	}
	if w.arena != nil {
		w.arena.Free()
		w.arena = nil
	}
	var err error
	w.arena, err = alloc(w.dev, max(bytes, 64), "work area")
	w.touched = make([]bool, (bytes+touchPiece-1)/touchPiece)
	return err
}

// buffer is the named buffer with room for bytes.
func (w *workspace) buffer(name string, bytes int64) (kernels.Buffer, error) {
	b := w.named[name]
	if b != nil && b.Size() >= bytes {
		return b, nil
	}
	if b != nil {
		b.Free()
		delete(w.named, name)
	}
	b, err := alloc(w.dev, max(bytes, 64), name)
	if err != nil {
		return nil, err
	}
	w.named[name] = b
	return b, nil
}

// setI32 writes an int32 input.
func (w *workspace) setI32(name string, v []int32) error {
	raw := make([]byte, 4*len(v))
	for i, x := range v {
		binary.LittleEndian.PutUint32(raw[4*i:], uint32(x))
	}
	return w.set(name, raw)
}

// setF32 writes a float32 input.
func (w *workspace) setF32(name string, v []float32) error {
	return w.set(name, floatBytes(v))
}

func (w *workspace) set(name string, raw []byte) error {
	b, err := w.buffer(name, int64(len(raw)))
	if err != nil {
		return err
	}
	return w.dev.Write(b, 0, raw)
}

// getF32 reads the first n elements of an output.
func (w *workspace) getF32(name string, n int) ([]float32, error) {
	b := w.named[name]
	if b == nil {
		return nil, fmt.Errorf("read output %q: the program has none of that name", name)
	}
	raw := make([]byte, 4*n)
	if err := w.dev.Read(raw, b, 0); err != nil {
		return nil, err
	}
	return decodeF32(raw), nil
}

func floatBytes(v []float32) []byte {
	raw := make([]byte, 4*len(v))
	for i, x := range v {
		binary.LittleEndian.PutUint32(raw[4*i:], math.Float32bits(x))
	}
	return raw
}

// encode is v in memory, as float32 or rounded to bfloat16; then denormals become
// zeros, in v too, as the device has it.
func encode(dtype ir.DType, v []float32) ([]byte, error) {
	if dtype == ir.F32 {
		return floatBytes(v), nil
	}
	for i, x := range v {
		if math.Float32bits(x)&0x7f800000 == 0 {
			v[i] = float32(math.Copysign(0, float64(x)))
		}
	}
	raw := make([]byte, dtype.Size()*len(v))
	return raw, safetensors.PutFloat32s(raw, safetensors.BF16, v)
}

// run binds p's slots — inputs and outputs from the workspace, everything else
// from resolve — and runs it. yield is asked between the device's steps, and while
// memory is touched for the first time; nil: never.
func (w *workspace) run(p *ir.Program, dims ir.Dims, resolve func(ir.Slot) kernels.Buffer, yield func(between bool) error) error {
	if err := w.reserve(p.ArenaBytes); err != nil {
		return err
	}
	if yield != nil {
		if err := w.touchArena(p, dims, yield); err != nil {
			return err
		}
	}
	slots := w.slots[:0]
	for _, s := range p.Slots {
		var b kernels.Buffer
		if s.Class == ir.ClassInput || s.Output {
			var err error
			old, bytes := w.named[s.Name], s.Type.Bytes(dims)
			if b, err = w.buffer(s.Name, bytes); err != nil {
				return err
			}
			if b != old && yield != nil {
				if err = clearPieces(w.dev, b, 0, bytes, yield); err != nil {
					return err
				}
			}
		} else if b = resolve(s); b == nil {
			return fmt.Errorf("run %s: no buffer for %s %q", p.Graph.Name, s.Class, s.Name)
		}
		slots = append(slots, b)
	}
	w.slots = slots
	return w.dev.Run(p, dims, slots, w.arena, yield)
}

// alloc wraps the device's refusal so that callers can tell it from faults.
func alloc(dev kernels.Device, bytes int64, what string) (kernels.Buffer, error) {
	b, err := dev.Alloc(bytes)
	if err != nil {
		return nil, fmt.Errorf("allocate %s: %w: %w", what, ErrNoFit, err)
	}
	return b, nil
}

func decodeF32(raw []byte) []float32 {
	v := make([]float32, len(raw)/4)
	fillF32(v, raw)
	return v
}

func fillF32(v []float32, raw []byte) {
	for i := range v {
		v[i] = math.Float32frombits(binary.LittleEndian.Uint32(raw[4*i:]))
	}
}
