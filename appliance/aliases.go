package appliance

import (
	"bytes"
	"errors"
	"slices"

	"smolgym/model/arch"
	"smolgym/model/hf"
	"smolgym/model/ir"
	"smolgym/store"
)

// AddAlias lets a stored model answer to another name, a well-known one say. Doing
// it again is fine.
func (a *Appliance) AddAlias(model, alias string) (store.Model, error) {
	m, err := a.model(model)
	if err != nil {
		return m, err
	}
	full, err := newModelName(alias)
	if err != nil {
		return m, err
	}
	if full == m.Name || slices.Contains(m.Aliases, full) {
		return m, nil
	}
	err = a.db.UpdateModel(m.Name, func(rec *store.Model) error {
		rec.Aliases = append(rec.Aliases, full)
		m = *rec
		return nil
	})
	if errors.Is(err, store.ErrExists) {
		return m, Problemf(CodeConflict, "alias %s: a model answers to that name already", full).
			WithHint("see \"smolgym model show %s\"; choose another alias, or remove that model first", full)
	}
	if err != nil {
		return m, problemOf("add alias "+full, err)
	}
	return m, nil
}

// Graph is the text of a stored model's graph: the one it is trained by, or, with
// decode, the one it is sampled by.
func (a *Appliance) Graph(name string, decode bool) ([]byte, error) {
	m, src, err := a.modelFolder(name)
	if err != nil {
		return nil, err
	}
	return GraphText(m.Name, src, decode)
}

// GraphText is the text of the graph of a checkpoint's files.
func GraphText(name string, src hf.Source, decode bool) ([]byte, error) {
	ck, err := hf.Describe(src)
	if err == nil {
		err = arch.Resolve(ck, src)
	}
	if err != nil {
		return nil, refusal(name, err)
	}
	mode := arch.Train
	if decode {
		mode = arch.Decode
	}
	g, err := arch.Build(ck, mode)
	if err != nil {
		return nil, Problemf(CodeUnsupported, "model %s: %v", name, err).Because(err)
	}
	var text bytes.Buffer
	if err := ir.Dump(&text, g.Graph); err != nil {
		return nil, problemOf("print the graph of "+name, err)
	}
	return text.Bytes(), nil
}
