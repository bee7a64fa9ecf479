package export

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"smolgym/model/hf"
	"smolgym/model/lora"
)

// Reasons for a refusal, to be told apart with errors.Is.
var (
	ErrWeights = errors.New("trained tensors do not fit the base model")
	ErrAdapter = errors.New("adapter can't be taken")           // sound, but of a kind that isn't done here, or malformed
	ErrValue   = errors.New("value can't be written")           // not finite, or not in the range of the element type
	ErrChanged = errors.New("file changed while it was in use") // a source's file has another length than when planned
)

// Tensor is a trained tensor.
type Tensor struct {
	Name  string
	Shape []int64
	// Open gives the values, row-major little-endian float32. The reader is closed after use.
	Open func() (hf.ReaderAtSized, error)
}

func (t Tensor) elements() int64 {
	n := int64(1)
	for _, d := range t.Shape {
		n *= d
	}
	return n
}

// open opens the tensor and checks its length.
func (t Tensor) open() (hf.ReaderAtSized, error) {
	r, err := t.Open()
	if err != nil {
		return nil, fmt.Errorf("open tensor %q: %w", t.Name, err)
	}
	if r.Size() != 4*t.elements() {
		_ = r.Close() // the first error is the one to tell
		return nil, fmt.Errorf("open tensor %q: %w: %d bytes for %v float32", t.Name, ErrWeights, r.Size(), t.Shape)
	}
	return r, nil
}

// Module is the adapter of one module.
type Module struct {
	Module string  // "model.layers.0.self_attn.q_proj"
	Rank   int     // rows of A, columns of B
	Alpha  float64 // the factor of the adapter's output is Alpha/Rank
	A      Tensor  // [Rank,in]; of the modules of all experts [experts,Rank,in]
	B      Tensor  // [out,Rank]; [experts,out,Rank]
}

// Scale is the factor of the adapter's output.
func (m Module) Scale() float64 { return m.Alpha / float64(m.Rank) }

// Weights are what a run has trained: every parameter, or adapters, or adapters over parameters.
type Weights struct {
	Full     []Tensor // under the names of the model's parameters; empty or complete
	Adapters []Module
}

// Pair makes modules of adapter tensors under PEFT's names, in the order of their first appearance.
func Pair(tensors []Tensor, alpha float64) ([]Module, error) {
	var modules []Module
	at := map[string]int{}
	for _, t := range tensors {
		name, side, ok := cutName(t.Name)
		if !ok {
			return nil, fmt.Errorf("pair adapter tensors: %w: %q is no adapter's name", ErrWeights, t.Name)
		}
		i, seen := at[name]
		if !seen {
			i = len(modules)
			at[name] = i
			modules = append(modules, Module{Module: name, Alpha: alpha})
		}
		into := &modules[i].A
		if side == 'B' {
			into = &modules[i].B
		}
		if into.Open != nil {
			return nil, fmt.Errorf("pair adapter tensors: %w: %q appears twice", ErrWeights, t.Name)
		}
		*into = t
	}
	for i := range modules {
		m := &modules[i]
		n := len(m.A.Shape)
		if m.A.Open == nil || m.B.Open == nil || n < 2 || n > 3 || len(m.B.Shape) != n || m.A.Shape[n-2] != m.B.Shape[n-1] {
			return nil, fmt.Errorf("pair adapter tensors: %w: module %s has A %v and B %v; [rank,in] and [out,rank] are needed",
				ErrWeights, m.Module, m.A.Shape, m.B.Shape)
		}
		m.Rank = int(m.A.Shape[n-2])
	}
	return modules, nil
}

// cutName takes PEFT's name of an adapter tensor apart; side is 'A' or 'B'.
func cutName(name string) (module string, side byte, ok bool) {
	rest, ok := strings.CutPrefix(name, lora.Prefix)
	if !ok {
		return "", 0, false
	}
	if module, ok = strings.CutSuffix(rest, ".lora_A.weight"); ok && module != "" {
		return module, 'A', true
	}
	module, ok = strings.CutSuffix(rest, ".lora_B.weight")
	return module, 'B', ok && module != ""
}

// Plan is an export before it is written.
type Plan struct {
	Files   []File   // by path
	Notes   []string // what a user should know, a sentence each
	Skipped []string // files of the base model that are left out: other forms of the old weights
}

// File is one file of an export.
type File struct {
	Path string // relative, with forward slashes
	Size int64  // bytes, exact
	// Write makes the file. It can be called again, and by several goroutines.
	Write func(w io.Writer) error
}

// Bytes is the size of all files together.
func (p *Plan) Bytes() int64 {
	var n int64
	for _, f := range p.Files {
		n += f.Size
	}
	return n
}

// File finds a file by its path.
func (p *Plan) File(path string) (File, bool) {
	i := slices.IndexFunc(p.Files, func(f File) bool { return f.Path == path })
	if i < 0 {
		return File{}, false
	}
	return p.Files[i], true
}

func (p *Plan) add(path string, size int64, write func(io.Writer) error) {
	p.Files = append(p.Files, File{path, size, func(w io.Writer) error {
		c := &counter{w: w}
		if err := write(c); err != nil {
			return fmt.Errorf("export %s: %w", path, err)
		}
		if c.n != size {
			return fmt.Errorf("export %s: %w: %d bytes were written, %d planned", path, ErrChanged, c.n, size)
		}
		return nil
	}})
}

func (p *Plan) addText(path string, text []byte) {
	p.add(path, int64(len(text)), func(w io.Writer) error {
		_, err := w.Write(text)
		return err
	})
}

func (p *Plan) sort() {
	slices.SortFunc(p.Files, func(a, b File) int { return strings.Compare(a.Path, b.Path) })
}

type counter struct {
	w io.Writer
	n int64
}

func (c *counter) Write(p []byte) (int, error) {
	n, err := c.w.Write(p)
	c.n += int64(n)
	return n, err
}

// errEnough stops a write whose range is complete.
var errEnough = errors.New("enough")

// WriteRange writes n bytes from off on. What lies before off is made and dropped.
func (f File) WriteRange(w io.Writer, off, n int64) error {
	if off < 0 || n < 0 || off > f.Size || n > f.Size-off {
		return fmt.Errorf("export %s: %w: bytes %d to %d of %d", f.Path, ErrValue, off, off+n, f.Size)
	}
	if n == 0 {
		return nil
	}
	err := f.Write(&window{w: w, skip: off, left: n})
	if errors.Is(err, errEnough) {
		return nil
	}
	return err
}

type window struct {
	w          io.Writer
	skip, left int64
}

func (v *window) Write(p []byte) (int, error) {
	skip := min(v.skip, int64(len(p)))
	v.skip -= skip
	part := p[skip:min(int64(len(p)), skip+v.left)]
	if len(part) > 0 {
		if n, err := v.w.Write(part); err != nil {
			return int(skip) + n, err
		}
		v.left -= int64(len(part))
	}
	if v.left == 0 {
		return int(skip) + len(part), errEnough
	}
	return len(p), nil
}

// WriteDir writes all files into a folder, which is made if there is none. A file is there whole or not at all; existing
// files are not touched: one under a name of the plan is refused before anything is written.
func (p *Plan) WriteDir(dir string) error {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return fmt.Errorf("export to folder: %w", err)
	}
	for _, f := range p.Files {
		if _, err := os.Lstat(filepath.Join(dir, filepath.FromSlash(f.Path))); err == nil {
			return fmt.Errorf("export to folder %s: %s: %w; choose an empty folder", dir, f.Path, os.ErrExist)
		}
	}
	for _, f := range p.Files {
		if err := writeFile(filepath.Join(dir, filepath.FromSlash(f.Path)), f); err != nil {
			return fmt.Errorf("export to folder: %w", err)
		}
	}
	d, err := os.Open(dir)
	if err != nil {
		return fmt.Errorf("export to folder: %w", err)
	}
	return errors.Join(d.Sync(), d.Close())
}

func writeFile(path string, f File) (err error) {
	tmp, err := os.CreateTemp(filepath.Dir(path), ".export-*")
	if err != nil {
		return err
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, tmp.Close(), os.Remove(tmp.Name()))
		}
	}()
	if err := f.Write(tmp); err != nil {
		return err
	}
	if err := errors.Join(tmp.Chmod(0o644), tmp.Sync()); err != nil {
		return err
	}
	if err := os.Rename(tmp.Name(), path); err != nil {
		return err
	}
	return tmp.Close()
}
