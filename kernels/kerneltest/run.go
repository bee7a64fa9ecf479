package kerneltest

import (
	"fmt"
	"unsafe"

	"smolgym/kernels"
	"smolgym/model/ir"
)

// Operand is an input with its data: F or I by its type, Parts of a group.
type Operand struct {
	Type  ir.Type
	F     []float32
	I     []int32
	Parts [][]float32
}

// Case is one application of an op.
type Case struct {
	Name string
	Op   ir.Op
	Attr ir.Attrs
	Dims ir.Dims
	In   []Operand
}

func (c Case) String() string { return c.Op.String() + "/" + c.Name }

// Program wraps the op in a program of one step whose operands are all bound
// by the caller. Slots are the inputs, then the outputs that are not in place.
func (c Case) Program() (*ir.Program, error) {
	g := ir.New(c.String())
	var ids []ir.ID
	for i, o := range c.In {
		class := ir.ClassInput
		if i < c.Op.Spec().InPlace {
			class = ir.ClassState
		} else if o.Parts != nil {
			class = ir.ClassGroup
		}
		ids = append(ids, g.Declare(class, fmt.Sprintf("in%d", i), o.Type.DType, o.Type.Shape...))
	}
	outs := g.Add(c.Op, c.Attr, ids...)
	for i, id := range outs {
		g.Output(fmt.Sprintf("out%d", i), id)
	}
	if _, err := g.Finish(); err != nil {
		return nil, err
	}
	p := &ir.Program{Graph: g, Capacity: c.Dims, Steps: []ir.Step{{}}}
	step := &p.Steps[0]
	for i, id := range ids {
		v := g.Value(id)
		p.Slots = append(p.Slots, ir.Slot{Value: id, Name: v.Name, Class: v.Class, Type: v.Type})
		step.In = append(step.In, ir.Ref{Space: ir.External, Slot: i})
	}
	for i, id := range outs {
		if i < c.Op.Spec().InPlace {
			step.Out = append(step.Out, step.In[i])
			continue
		}
		step.Out = append(step.Out, ir.Ref{Space: ir.External, Slot: len(p.Slots)})
		p.Slots = append(p.Slots, ir.Slot{Value: id, Name: fmt.Sprintf("out%d", i), Type: g.Value(id).Type, Output: true})
	}
	p.Index()
	return p, nil
}

// Exec runs the case on a device and gives its outputs.
func Exec(dev kernels.Device, c Case) ([][]float32, error) { return ExecYielding(dev, c, nil) }

// ExecYielding is Exec that lets others in.
func ExecYielding(dev kernels.Device, c Case, yield func(between bool) error) ([][]float32, error) {
	p, err := c.Program()
	if err != nil {
		return nil, err
	}
	slots := make([]kernels.Buffer, len(p.Slots))
	for i, s := range p.Slots {
		if s.Class == ir.ClassGroup {
			parts, err := upload(dev, c.In[i].Parts)
			for _, b := range parts {
				if b != nil {
					defer b.Free()
				}
			}
			if err != nil {
				return nil, err
			}
			if slots[i], err = dev.Group(parts); err != nil {
				return nil, err
			}
			defer slots[i].Free()
			continue
		}
		if slots[i], err = dev.Alloc(s.Type.Bytes(c.Dims)); err != nil {
			return nil, err
		}
		defer slots[i].Free()
		if i < len(c.In) {
			if err := dev.Write(slots[i], 0, c.In[i].bytes()); err != nil {
				return nil, err
			}
		}
	}
	if err := dev.Run(p, c.Dims, slots, nil, yield); err != nil {
		return nil, err
	}
	var outs [][]float32
	for _, ref := range p.Steps[0].Out {
		t := p.Slots[ref.Slot].Type
		data := make([]byte, t.Bytes(c.Dims))
		if err := dev.Read(data, slots[ref.Slot], 0); err != nil {
			return nil, err
		}
		outs = append(outs, values(t.DType, data))
	}
	return outs, nil
}

// upload brings the parts of a group to the device.
func upload(dev kernels.Device, parts [][]float32) ([]kernels.Buffer, error) {
	list := make([]kernels.Buffer, len(parts))
	for i, data := range parts {
		if len(data) == 0 {
			continue
		}
		b, err := dev.Alloc(int64(4 * len(data)))
		if err != nil {
			return list, err
		}
		list[i] = b
		if err := dev.Write(b, 0, raw(data)); err != nil {
			return list, err
		}
	}
	return list, nil
}

func (o Operand) bytes() []byte {
	switch o.Type.DType {
	case ir.I32:
		return raw(o.I)
	case ir.BF16:
		return narrowed(o.F)
	}
	return raw(o.F)
}

func raw[E int32 | float32](data []E) []byte {
	return unsafe.Slice((*byte)(unsafe.Pointer(unsafe.SliceData(data))), 4*len(data))
}
