package appliance

import (
	"fmt"
	"io"
	"slices"

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

// read returns a small file whole; ok is false when there is none.
func (s stored) read(name string, limit int64) (text []byte, ok bool, err error) {
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
