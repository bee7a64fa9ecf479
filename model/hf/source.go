package hf

import (
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"unicode/utf8"
)

// Source is where a checkpoint's files are. All names are plain: no folders.
type Source interface {
	// Names lists the files, in any order.
	Names() []string
	// Open opens a listed file. The caller closes it.
	Open(name string) (ReaderAtSized, error)
}

// ReaderAtSized is an open file.
type ReaderAtSized interface {
	io.ReaderAt
	io.Closer
	Size() int64 // bytes
}

const maxFileName = 255 // bytes

// CheckName refuses a name that could mean a file outside of its folder, or one that no file system would take.
func CheckName(name string) error {
	var why string
	switch {
	case name == "" || name == ".":
		why = "it is empty"
	case len(name) > maxFileName:
		why = fmt.Sprintf("it has %d bytes, at most %d are allowed", len(name), maxFileName)
	case strings.ContainsRune(name, 0):
		why = "it contains NUL"
	case strings.Contains(name, ".."):
		why = `it contains ".."`
	case strings.ContainsAny(name, `/\`) || filepath.IsAbs(name) || filepath.VolumeName(name) != "":
		why = "it names a folder; only files beside each other are read"
	case !utf8.ValidString(name):
		why = "it is not UTF-8"
	default:
		return nil
	}
	return fmt.Errorf("file name %q: %w: %s", shorten(name), ErrName, why)
}

// folder is a Source over files of one directory.
type folder struct {
	path  string
	names []string // sorted
}

// Dir is the folder at path: its regular files, and links to such, as a hub's download cache has them.
func Dir(path string) (Source, error) {
	entries, err := os.ReadDir(path)
	if err != nil {
		return nil, fmt.Errorf("open checkpoint: %w", err)
	}
	f := &folder{path: path}
	for _, e := range entries {
		if CheckName(e.Name()) != nil {
			continue
		}
		// Stat follows links: a link to a folder, or one that leads nowhere, is not a file.
		if info, err := os.Stat(filepath.Join(path, e.Name())); err == nil && info.Mode().IsRegular() {
			f.names = append(f.names, e.Name())
		}
	}
	return f, nil
}

// companions are the files that a single weight file may have beside it.
var companions = []string{
	"config.json", "generation_config.json", "tokenizer.json", "tokenizer_config.json", "special_tokens_map.json",
	"added_tokens.json", "vocab.json", "merges.txt", "chat_template.jinja", "chat_template.json",
}

// SingleFile is one .safetensors file with its config.json, and what else describes the model, beside it. Other weight
// files of that folder are left out.
func SingleFile(path string) (Source, error) {
	name := filepath.Base(path)
	if !strings.HasSuffix(name, weightSuffix) {
		return nil, fmt.Errorf("open checkpoint %s: %w: the name does not end in %s", path, ErrUnsupported, weightSuffix)
	}
	if err := CheckName(name); err != nil {
		return nil, fmt.Errorf("open checkpoint: %w", err)
	}
	info, err := os.Stat(path)
	if err != nil {
		return nil, fmt.Errorf("open checkpoint: %w", err)
	}
	if !info.Mode().IsRegular() {
		return nil, fmt.Errorf("open checkpoint %s: %w: not a file", path, ErrInvalid)
	}
	all, err := Dir(filepath.Dir(path))
	if err != nil {
		return nil, err
	}
	names := slices.DeleteFunc(all.Names(), func(n string) bool { return n != name && !slices.Contains(companions, n) })
	return &folder{path: filepath.Dir(path), names: names}, nil
}

// OpenPath is Dir for a folder and SingleFile for a file.
func OpenPath(path string) (Source, error) {
	info, err := os.Stat(path)
	if err != nil {
		return nil, fmt.Errorf("open checkpoint: %w", err)
	}
	if info.IsDir() {
		return Dir(path)
	}
	return SingleFile(path)
}

func (f *folder) Names() []string { return slices.Clone(f.names) }

func (f *folder) Open(name string) (ReaderAtSized, error) {
	if err := CheckName(name); err != nil {
		return nil, err
	}
	if !slices.Contains(f.names, name) {
		return nil, fmt.Errorf("open %s: %w: %w", name, ErrMissing, fs.ErrNotExist)
	}
	file, err := os.Open(filepath.Join(f.path, name))
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

type diskFile struct {
	*os.File
	size int64
}

func (d *diskFile) Size() int64 { return d.size }

// readAll reads a small file whole, if it has at most limit bytes.
func readAll(src Source, name string, limit int64) (text []byte, err error) {
	f, err := src.Open(name)
	if err != nil {
		return nil, fmt.Errorf("read %s: %w", name, err)
	}
	defer f.Close() // only read from: closing cannot lose anything
	if f.Size() > limit {
		return nil, fmt.Errorf("read %s: %w: %d bytes, at most %d are allowed", name, ErrLimit, f.Size(), limit)
	}
	text, err = io.ReadAll(io.NewSectionReader(f, 0, f.Size()))
	if err != nil {
		return nil, fmt.Errorf("read %s: %w", name, err)
	}
	if int64(len(text)) != f.Size() {
		return nil, fmt.Errorf("read %s: %w", name, io.ErrUnexpectedEOF)
	}
	return text, nil
}
