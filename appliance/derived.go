package appliance

import (
	"io"
	"slices"

	"smolgym/model/export"
)

// Derived are the files that a model shows beside those that are stored: of a GGUF file the folder that it stands for,
// config.json, tokenizer and weights. A model that is stored as a folder has none. Files are made when they are written, as
// long as the model is here; of equal stored files they are equal.
func (a *Appliance) Derived(name string) ([]export.File, error) {
	m, err := a.model(name)
	if err != nil {
		return nil, err
	}
	stored := make([]string, len(m.Files))
	for i, f := range m.Files {
		stored[i] = f.Path
	}
	if _, ok := ggufFile(stored); !ok {
		return nil, nil
	}
	src, err := a.folder(m.Files)
	if err != nil {
		return nil, refusal(m.Name, err)
	}
	var list []export.File
	for _, path := range src.Names() {
		if slices.Contains(stored, path) {
			continue
		}
		f, err := src.Open(path)
		if err != nil {
			return nil, refusal(m.Name, err)
		}
		size := f.Size()
		_ = f.Close() // only its size was wanted
		list = append(list, export.File{Path: path, Size: size, Write: func(w io.Writer) error {
			f, err := src.Open(path)
			if err != nil {
				return err
			}
			defer f.Close() // only read from
			_, err = io.CopyBuffer(struct{ io.Writer }{w}, struct{ io.Reader }{io.NewSectionReader(f, 0, size)}, make([]byte, 1<<20))
			return err
		}})
	}
	return list, nil
}
