package reference

import (
	"fmt"
	"sync/atomic"
	"unsafe"

	"smolgym/kernels"
	"smolgym/model/ir"
)

// Options configure a device.
type Options struct {
	MemoryBytes int64 // most memory to allocate in all; 0 for no limit
}

// Device implements kernels.Device.
type Device struct {
	limit int64
	used  atomic.Int64 // bytes; Info reads it from other goroutines
	table map[ir.Op]kernel[float32]
}

var _ kernels.Device = (*Device)(nil)

// Open makes a device.
func Open(o Options) *Device {
	return &Device{limit: o.MemoryBytes, table: table[float32]()}
}

// Info says what the device is.
func (d *Device) Info() kernels.Info {
	i := kernels.Info{Kind: "reference", Name: "reference", Family: "reference", Why: "the oracle: float32 storage, float64 sums, one thread", Threads: 1}
	if d.limit > 0 {
		i.MemoryBytes = d.limit
		i.FreeBytes = d.limit - d.used.Load()
	}
	return i
}

// alignment of a buffer's first byte.
const alignment = 64

type buffer struct {
	dev   *Device
	mem   []byte    // aligned; nil once freed
	group []*buffer // of a group; nil entries are empty parts
}

func (b *buffer) Size() int64 { return int64(len(b.mem)) }

func (b *buffer) Free() {
	if b.mem != nil {
		b.dev.used.Add(-int64(len(b.mem)))
		b.mem, b.group = nil, nil
	}
}

// Alloc gives zeroed memory.
func (d *Device) Alloc(bytes int64) (kernels.Buffer, error) {
	if bytes < 0 {
		return nil, fmt.Errorf("allocate %d bytes: %w: negative size", bytes, kernels.ErrInput)
	}
	if free := d.limit - d.used.Add(bytes) + bytes; d.limit > 0 && bytes > free {
		d.used.Add(-bytes)
		return nil, fmt.Errorf("allocate on reference device: %d bytes needed, %d free: %w", bytes, free, kernels.ErrMemory)
	}
	raw := make([]byte, bytes+alignment)
	skip := -uintptr(unsafe.Pointer(&raw[0])) % alignment
	return &buffer{dev: d, mem: raw[skip : skip+uintptr(bytes) : skip+uintptr(bytes)]}, nil
}

// Group makes several buffers one.
func (d *Device) Group(parts []kernels.Buffer) (kernels.Buffer, error) {
	b, err := d.Alloc(0)
	if err != nil {
		return nil, err
	}
	g := b.(*buffer)
	g.group = make([]*buffer, len(parts))
	for i, p := range parts {
		if p == nil {
			continue
		}
		if _, err := d.span("group", p, 0, p.Size()); err != nil {
			return nil, fmt.Errorf("part %d: %w", i, err)
		}
		g.group[i] = p.(*buffer)
	}
	return g, nil
}

// span checks that [offset, offset+n) lies inside b and gives it.
func (d *Device) span(op string, b kernels.Buffer, offset, n int64) ([]byte, error) {
	rb, ok := b.(*buffer)
	if !ok || rb == nil || rb.dev != d {
		return nil, fmt.Errorf("%s buffer: %w: not a live buffer of this device", op, kernels.ErrInput)
	}
	if offset < 0 || n < 0 || offset > rb.Size() || n > rb.Size()-offset {
		return nil, fmt.Errorf("%s buffer: %w: %d bytes at %d, the buffer has %d", op, kernels.ErrInput, n, offset, rb.Size())
	}
	return rb.mem[offset : offset+n], nil
}

// Write copies src into dst.
func (d *Device) Write(dst kernels.Buffer, offset int64, src []byte) error {
	to, err := d.span("write", dst, offset, int64(len(src)))
	copy(to, src)
	return err
}

// Read copies out of src.
func (d *Device) Read(dst []byte, src kernels.Buffer, offset int64) error {
	from, err := d.span("read", src, offset, int64(len(dst)))
	copy(dst, from)
	return err
}

// Copy copies between buffers; the ranges may overlap.
func (d *Device) Copy(dst kernels.Buffer, dstOffset int64, src kernels.Buffer, srcOffset, bytes int64) error {
	to, err := d.span("copy to", dst, dstOffset, bytes)
	if err != nil {
		return err
	}
	from, err := d.span("copy from", src, srcOffset, bytes)
	copy(to, from)
	return err
}

// Zero clears a buffer.
func (d *Device) Zero(dst kernels.Buffer) error {
	if dst == nil {
		return fmt.Errorf("zero buffer: %w: nil", kernels.ErrInput)
	}
	to, err := d.span("zero", dst, 0, dst.Size())
	clear(to)
	return err
}

// Supports reports whether the op can run with weights of the given type.
func (d *Device) Supports(op ir.Op, weights ir.DType) bool {
	if weights == ir.BF16 {
		return op == ir.OpEmbed || op == ir.OpNarrow || products[op]
	}
	return d.table[op] != nil && weights == ir.F32
}

// Close does nothing: the collector owns the memory.
func (d *Device) Close() error { return nil }

// Run executes the program's steps in order, after checking every integer
// input, so that a refused batch has changed nothing.
func (d *Device) Run(p *ir.Program, dims ir.Dims, slots []kernels.Buffer, arena kernels.Buffer, yield func(between bool) error) error {
	calls, err := d.bind(p, dims, slots, arena)
	if err != nil {
		return fmt.Errorf("run %s: %w", p.Graph.Name, err)
	}
	for i, c := range calls {
		if err := c.check(); err != nil {
			return fmt.Errorf("run %s: step %d %s: %w", p.Graph.Name, i, c.op, err)
		}
	}
	for i, c := range calls {
		c.widen()
		d.table[c.op](c)
		c.narrow()
		if p.Steps[i].Yield && yield != nil {
			if err := yield(true); err != nil {
				return err
			}
		}
	}
	return nil
}

// bind finds the memory of every operand.
func (d *Device) bind(p *ir.Program, dims ir.Dims, slots []kernels.Buffer, arena kernels.Buffer) ([]*call[float32], error) {
	for s := ir.T; s <= ir.L; s++ {
		if n := dims.Of(s); n < 0 || n > p.Capacity.Of(s) {
			return nil, fmt.Errorf("%w: %s is %d, the program was planned for %d", kernels.ErrInput, s, n, p.Capacity.Of(s))
		}
	}
	if len(slots) != len(p.Slots) {
		return nil, fmt.Errorf("%w: %d buffers bound, the program has %d slots", kernels.ErrInput, len(slots), len(p.Slots))
	}
	for i, s := range p.Slots {
		if _, err := d.span("bind "+s.Name, slots[i], 0, s.Type.Bytes(dims)); err != nil {
			return nil, err
		}
	}
	calls := make([]*call[float32], len(p.Steps))
	for i, step := range p.Steps {
		n := &p.Graph.Nodes[step.Node]
		if d.table[n.Op] == nil {
			return nil, fmt.Errorf("step %d %s: %w", i, n.Op, kernels.ErrUnsupported)
		}
		c := &call[float32]{op: n.Op, attr: n.Attr}
		for k, ids := range [2][]ir.ID{n.In, n.Out} {
			refs := [2][]ir.Ref{step.In, step.Out}[k]
			if len(refs) != len(ids) {
				return nil, fmt.Errorf("step %d %s: %w: %d places for %d values", i, n.Op, kernels.ErrInput, len(refs), len(ids))
			}
			for j, id := range ids {
				t, err := d.operand(p.Graph.Value(id).Type, p.Graph.Value(id).Class, refs[j], dims, slots, arena)
				if err != nil {
					return nil, fmt.Errorf("step %d %s: %w", i, n.Op, err)
				}
				if k == 0 {
					c.in = append(c.in, t)
				} else {
					c.out = append(c.out, t)
				}
			}
		}
		if c.halves() && !d.Supports(n.Op, ir.BF16) {
			return nil, fmt.Errorf("step %d %s: %w for %s", i, n.Op, kernels.ErrUnsupported, ir.BF16)
		}
		calls[i] = c
	}
	return calls, nil
}

// partsOf is the memory of a group's parts.
func (d *Device) partsOf(b kernels.Buffer) ([][]float32, error) {
	group := b.(*buffer).group
	if group == nil {
		return nil, fmt.Errorf("%w: a buffer is bound where a group belongs", kernels.ErrInput)
	}
	parts := make([][]float32, len(group))
	for i, p := range group {
		if p != nil && p.mem == nil {
			return nil, fmt.Errorf("%w: part %d of the group was freed", kernels.ErrInput, i)
		}
		if p != nil && len(p.mem) > 0 {
			parts[i] = unsafe.Slice((*float32)(unsafe.Pointer(&p.mem[0])), len(p.mem)/4)
		}
	}
	return parts, nil
}

func (d *Device) operand(t ir.Type, class ir.Class, ref ir.Ref, dims ir.Dims, slots []kernels.Buffer, arena kernels.Buffer) (tensor[float32], error) {
	var out tensor[float32]
	for _, dim := range t.Shape {
		out.shape = append(out.shape, dim.Size(dims))
	}
	buf, offset := arena, ref.Offset
	out.computed = ref.Space == ir.Arena
	if ref.Space == ir.External {
		if ref.Slot < 0 || ref.Slot >= len(slots) {
			return out, fmt.Errorf("%w: slot %d of %d", kernels.ErrInput, ref.Slot, len(slots))
		}
		buf, offset = slots[ref.Slot], 0
	}
	mem, err := d.span("use", buf, offset, t.Bytes(dims))
	if err != nil {
		return out, err
	}
	if class == ir.ClassGroup {
		out.parts, err = d.partsOf(buf)
		return out, err
	}
	n := len(mem) / 4
	switch {
	case t.DType == ir.BF16 && len(mem) > 0:
		out.half = unsafe.Slice((*uint16)(unsafe.Pointer(&mem[0])), len(mem)/2)
		out.f = make([]float32, len(out.half))
	case t.DType == ir.BF16:
	case t.DType != ir.F32 && t.DType != ir.I32:
		return out, fmt.Errorf("%w for %s", kernels.ErrUnsupported, t.DType)
	case n == 0:
	case t.DType == ir.I32:
		out.i = unsafe.Slice((*int32)(unsafe.Pointer(&mem[0])), n)
	default:
		out.f = unsafe.Slice((*float32)(unsafe.Pointer(&mem[0])), n)
	}
	return out, nil
}
