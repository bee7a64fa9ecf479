package gguf

import (
	"bytes"
	"fmt"
	"io"
	"io/fs"
	"os"
	"slices"
	"strings"

	"smolgym/model/hf"
	"smolgym/model/safetensors"
)

// Options are those of a Source.
type Options struct {
	// As is the type that quantised tensors are given in: F32, their exact values, if empty; or F16 or BF16, rounded.
	// Tensors stored in one of the three keep theirs.
	As safetensors.DType
}

// Source shows a GGUF file as a checkpoint's folder. It implements [hf.Source].
type Source struct {
	Tokenizer bool     // there is a tokenizer.json
	Warnings  []string // what was odd and let pass, a sentence each

	texts   map[string][]byte
	tensors *virtual
	open    func() (hf.ReaderAtSized, error)
}

const weightsName = "model.safetensors"

// NewSource shows f, which must stay readable, as a folder.
func NewSource(f *File, o Options) (*Source, error) {
	s, err := newSource(f, o)
	if err != nil {
		return nil, fmt.Errorf("import gguf: %w", err)
	}
	s.open = func() (hf.ReaderAtSized, error) { return readerAt{f.r, f.size}, nil }
	return s, nil
}

// OpenPath shows the file at path as a folder; the file is open only while it is read.
func OpenPath(path string, o Options) (*Source, error) {
	open := func() (*diskFile, error) {
		file, err := os.Open(path)
		if err != nil {
			return nil, err
		}
		info, err := file.Stat()
		if err != nil {
			_ = file.Close() // the first error is the one to tell
			return nil, err
		}
		return &diskFile{file, info.Size()}, nil
	}
	file, err := open()
	if err != nil {
		return nil, fmt.Errorf("open gguf: %w", err)
	}
	defer file.Close() // only read from: closing cannot lose anything
	parsed, err := Parse(file, file.size)
	if err != nil {
		return nil, fmt.Errorf("open %s: %w", path, err)
	}
	s, err := newSource(parsed, o)
	if err != nil {
		return nil, fmt.Errorf("import %s: %w", path, err)
	}
	s.open = func() (hf.ReaderAtSized, error) {
		again, err := open()
		if err != nil {
			return nil, err
		}
		if again.size != parsed.size {
			_ = again.Close()
			return nil, fmt.Errorf("open %s: %w: it had %d bytes and has %d now; import it again", path, ErrHeader, parsed.size, again.size)
		}
		return again, nil
	}
	return s, nil
}

func newSource(f *File, o Options) (*Source, error) {
	if o.As == "" {
		o.As = safetensors.F32
	}
	if !o.As.IsWeight() {
		return nil, fmt.Errorf("%w: quantised tensors can be given as F32, F16 or BF16, not as %q", ErrUnsupported, o.As)
	}
	var g gaps
	set, err := readSettings(f, &g)
	if err != nil {
		return nil, err
	}
	s := &Source{texts: map[string][]byte{}}
	s.tensors = newVirtual(set, o.As)
	if len(g) == 0 {
		if err := s.readTokenizer(f, set); err != nil {
			g.add("%v", err)
		}
	}
	if err := g.err(); err != nil {
		return nil, err
	}
	if s.texts["config.json"], err = set.configJSON(); err != nil {
		return nil, err
	}
	s.texts["generation_config.json"], err = set.generationJSON()
	return s, err
}

func (s *Source) readTokenizer(f *File, set *settings) error {
	model, err := f.Text(modelKey, 64)
	if !f.Has(modelKey) || err == nil && (model == noTokenizer || model == "none") {
		s.Warnings = append(s.Warnings, fmt.Sprintf("the file has no tokenizer (metadata %q)", modelKey))
		return nil
	}
	text, config, err := tokenizerOf(f, set.vocab, set.context)
	if err != nil {
		return err
	}
	s.Tokenizer = true
	s.texts["tokenizer.json"], s.texts["tokenizer_config.json"] = text, config
	for _, key := range f.Keys() {
		if strings.HasPrefix(key, templateKey+".") {
			s.Warnings = append(s.Warnings, fmt.Sprintf("the chat template %q is not used", shorten(key)))
		}
	}
	return nil
}

// Names lists the files.
func (s *Source) Names() []string {
	names := []string{weightsName}
	for name := range s.texts {
		names = append(names, name)
	}
	slices.Sort(names)
	return names
}

// Open opens a listed file.
func (s *Source) Open(name string) (hf.ReaderAtSized, error) {
	if text, ok := s.texts[name]; ok {
		return readerAt{bytes.NewReader(text), int64(len(text))}, nil
	}
	if name != weightsName {
		return nil, fmt.Errorf("open %s: %w: %w", shorten(name), hf.ErrMissing, fs.ErrNotExist)
	}
	r, err := s.open()
	if err != nil {
		return nil, err
	}
	return &virtualFile{virtual: s.tensors, r: r}, nil
}

type diskFile struct {
	*os.File
	size int64
}

func (d *diskFile) Size() int64 { return d.size }

// readerAt is a file that needs no closing.
type readerAt struct {
	io.ReaderAt
	size int64
}

func (r readerAt) Size() int64  { return r.size }
func (r readerAt) Close() error { return nil }
