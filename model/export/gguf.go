package export

import (
	"fmt"
	"io"
	"slices"

	"smolgym/model/gguf"
	"smolgym/model/hf"
	"smolgym/model/safetensors"
)

// GGUFOptions are those of [GGUF].
type GGUFOptions struct {
	File string    // the file's name; "model.gguf" if empty
	Name string    // general.name; may be empty
	Type gguf.Type // of the matrices: F16, BF16, F32 or Q8_0; its zero value is F32
}

// GGUF plans one file with the trained weights merged. They are rounded once, to the encoding asked for.
func GGUF(src hf.Source, w Weights, o GGUFOptions) (*Plan, error) {
	m, err := openMerger(src, w)
	if err != nil {
		return nil, fmt.Errorf("export gguf: %w", err)
	}
	model, err := m.ggufModel(o.Name)
	if err != nil {
		return nil, fmt.Errorf("export gguf: %w", err)
	}
	size, err := gguf.ExportSize(model, o.Type)
	if err != nil {
		return nil, err
	}
	if o.File == "" {
		o.File = "model.gguf"
	}
	p := &Plan{Notes: m.notes}
	if model.Tokenizer == nil {
		p.Notes = append(p.Notes, "the base model has no tokenizer.json: the file has no tokenizer")
	}
	p.add(o.File, size, func(w io.Writer) error { return gguf.Export(w, model, o.Type) })
	return p, nil
}

// ggufModel is the merged model in the words of package gguf.
func (m *merger) ggufModel(name string) (gguf.Model, error) {
	g := gguf.Model{Name: name}
	names := m.src.Names()
	text := func(file string) (text []byte, err error) {
		if slices.Contains(names, file) {
			text, err = readSmall(m.src, file, 256<<20)
		}
		return text, err
	}
	var err error
	if g.Config, err = m.config(); err != nil {
		return g, err
	}
	for _, f := range []struct {
		name string
		into *[]byte
	}{{"generation_config.json", &g.GenerationConfig}, {"tokenizer.json", &g.Tokenizer}, {"tokenizer_config.json", &g.TokenizerConfig}} {
		if *f.into, err = text(f.name); err != nil {
			return g, err
		}
	}
	template, err := text("chat_template.jinja")
	if err != nil {
		return g, err
	}
	g.ChatTemplate = string(template)
	for _, n := range m.ck.Names { // without a copy of the embedding that is stored as a head
		t := m.ck.Tensors[n]
		dtype := t.DType
		if _, changed := m.changed[n]; changed {
			dtype = safetensors.F32 // the format's encoding is the only rounding
		}
		g.Tensors = append(g.Tensors, safetensors.Entry{Name: n, DType: dtype, Shape: t.Shape, Data: m.data(n, dtype)})
	}
	if m.newHead != "" {
		t := m.changed[m.newHead].stored
		g.Tensors = append(g.Tensors, safetensors.Entry{Name: m.newHead, DType: safetensors.F32, Shape: t.Shape, Data: m.data(m.newHead, safetensors.F32)})
	}
	return g, nil
}
