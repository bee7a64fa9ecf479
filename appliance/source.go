package appliance

import (
	"fmt"
	"io"
	"slices"
	"strings"

	"smolgym/model/gguf"
	"smolgym/model/hf"
	"smolgym/store"
	"smolgym/store/blob"
)

// stored is a model's files in the store as a checkpoint's source.
type stored struct {
	blobs *blob.Store
	files []store.File
}

func (s stored) Names() []string {
	names := make([]string, len(s.files))
	for i, f := range s.files {
		names[i] = f.Path
	}
	slices.Sort(names)
	return names
}

func (s stored) Open(name string) (hf.ReaderAtSized, error) {
	for _, f := range s.files {
		if f.Path == name {
			return s.blobs.Open(f.Blob)
		}
	}
	return nil, fmt.Errorf("open %s: %w", name, hf.ErrMissing)
}

// folder is a model's files as the packages that read models see them.
type folder struct{ hf.Source }

// folder shows a model's files as a checkpoint's folder: a GGUF file as the folder
// that it was made from, others as they are.
func (a *Appliance) folder(files []store.File) (folder, error) {
	raw := stored{a.db.Blobs(), files}
	name, ok := ggufFile(raw.Names())
	if !ok {
		return folder{raw}, nil
	}
	f, err := raw.Open(name)
	if err != nil {
		return folder{}, err
	}
	defer f.Close() // what comes later is read anew
	parsed, err := gguf.Parse(&reopened{raw, name}, f.Size())
	if err != nil {
		return folder{}, fmt.Errorf("file %s: %w", name, err)
	}
	src, err := gguf.NewSource(parsed, gguf.Options{})
	if err != nil {
		return folder{}, fmt.Errorf("file %s: %w", name, err)
	}
	return folder{src}, nil
}

// ggufFile finds the one GGUF file that makes up a model. With a config.json the
// folder is a model by itself.
func ggufFile(names []string) (name string, ok bool) {
	for _, n := range names {
		switch {
		case n == "config.json" || ok && strings.HasSuffix(n, ".gguf"):
			return "", false
		case strings.HasSuffix(n, ".gguf"):
			name, ok = n, true
		}
	}
	return name, ok
}

// reopened reads a stored file without holding it between reads: the record that
// lists the file keeps it.
type reopened struct {
	from stored
	name string
}

func (r *reopened) ReadAt(p []byte, off int64) (int, error) {
	f, err := r.from.Open(r.name)
	if err != nil {
		return 0, err
	}
	defer f.Close() // only read from
	return f.ReadAt(p, off)
}

// read returns a small file whole; ok is false when there is none.
func (s folder) read(name string, limit int64) (text []byte, ok bool, err error) {
	if !slices.Contains(s.Names(), name) {
		return nil, false, nil
	}
	f, err := s.Open(name)
	if err != nil {
		return nil, false, err
	}
	defer f.Close() // only read from
	if f.Size() > limit {
		return nil, false, Problemf(CodeTooLarge, "file %s has %d bytes; at most %d are read", name, f.Size(), limit)
	}
	text, err = io.ReadAll(io.NewSectionReader(f, 0, f.Size()))
	return text, err == nil, err
}
