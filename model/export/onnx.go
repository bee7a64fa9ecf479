package export

import (
	"fmt"
	"io"
	"maps"

	"smolgym/model/arch"
	"smolgym/model/hf"
	"smolgym/model/ir"
	"smolgym/model/onnx"
	"smolgym/model/safetensors"
)

// ONNXOptions are those of [ONNX].
type ONNXOptions struct {
	File   string // the file's name; "model.onnx" if empty
	Inline int64  // bytes of weights above which they go into a file of their own; onnx.MaxInline if 0
}

// ONNX plans the forward graph with the trained weights merged, or the base model's where there are none: one file, or two
// for a large model. The error for a model that has no such form wraps [onnx.ErrUnsupported].
func ONNX(src hf.Source, w Weights, o ONNXOptions) (*Plan, error) {
	if o.File == "" {
		o.File = "model.onnx"
	}
	if o.Inline == 0 {
		o.Inline = onnx.MaxInline
	}
	if err := hf.CheckName(o.File); err != nil {
		return nil, fmt.Errorf("export onnx: %w", err)
	}
	m, err := openMerger(src, w)
	if err != nil {
		return nil, fmt.Errorf("export onnx: %w", err)
	}
	ck := m.described()
	model, err := arch.Build(ck, arch.Train)
	if err != nil {
		return nil, fmt.Errorf("export onnx: %w", err)
	}
	translated, err := onnx.Translate(onnx.Forward{Family: model.Family, Graph: model.Graph, Logits: model.Logits,
		Metadata: map[string]string{"family": model.Family, "context": fmt.Sprint(model.Context)},
		Values: func(class ir.Class, name string) func(io.Writer) error {
			if class == ir.ClassConst {
				return func(w io.Writer) error { return writeTable(w, ck, name) }
			}
			return m.weight(ck, name)
		}})
	if err != nil {
		return nil, fmt.Errorf("export onnx: %w", err)
	}
	p := &Plan{Notes: append(m.notes, fmt.Sprintf("positions from 0 to %d: a longer text is refused by the file's tables", model.Context-1))}
	for _, f := range translated.Files(o.File, o.Inline) {
		p.add(f.Path, f.Size, f.Write)
	}
	return p, nil
}

// described is the checkpoint that will be written: with a head of its own where the trained one is not the embedding.
func (m *merger) described() *hf.Checkpoint {
	if m.newHead == "" {
		return m.ck
	}
	ck, untied := *m.ck, false
	ck.Config.TieWordEmbeddings = &untied
	ck.Tensors = maps.Clone(ck.Tensors)
	head := m.changed[m.newHead].stored
	head.Name = m.headName
	ck.Tensors[m.headName] = head
	return &ck
}

// writeTable makes a constant anew: a plan lives as long as a download, and tables can be large.
func writeTable(w io.Writer, ck *hf.Checkpoint, name string) error {
	tables, err := arch.Tables(ck)
	if err != nil {
		return err
	}
	return onnx.Floats(w, tables[name])
}

// weight is what writes a parameter of the merged model in float32.
func (m *merger) weight(ck *hf.Checkpoint, name string) func(io.Writer) error {
	if name == m.headName && m.newHead != "" {
		return m.data(m.newHead, safetensors.F32)
	}
	parts := ck.Parts(name)
	return func(w io.Writer) error {
		for _, t := range parts {
			if err := m.data(t.Name, safetensors.F32)(w); err != nil {
				return err
			}
		}
		return nil
	}
}
