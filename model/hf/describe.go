package hf

import (
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"

	"smolgym/model/safetensors"
)

const (
	configName     = "config.json"
	generationName = "generation_config.json"
)

// Describe reads and checks everything about a checkpoint but its weights' values.
func Describe(src Source) (*Checkpoint, error) {
	names := slices.Sorted(slices.Values(src.Names()))
	for _, name := range names {
		if err := CheckName(name); err != nil {
			return nil, fmt.Errorf("describe checkpoint: %w", err)
		}
	}
	c := &Checkpoint{Tensors: map[string]Tensor{}}
	if err := c.readConfigs(src, names); err != nil {
		return nil, fmt.Errorf("describe checkpoint: %w", err)
	}
	if err := c.readWeights(src, names); err != nil {
		return nil, fmt.Errorf("describe checkpoint: %w", err)
	}
	if err := c.supported(); err != nil {
		return nil, fmt.Errorf("describe checkpoint: %w", err)
	}
	c.noteUnread(names)
	return c, nil
}

func (c *Checkpoint) readConfigs(src Source, names []string) error {
	if !slices.Contains(names, configName) {
		return fmt.Errorf("%w: there is no %s; add the one that the model was published with", ErrMissing, configName)
	}
	text, err := readAll(src, configName, maxConfigBytes)
	if err != nil {
		return err
	}
	config, err := ParseConfig(text)
	if err != nil {
		return err
	}
	c.Config = *config
	c.Warnings = append(c.Warnings, config.Warnings...)
	if slices.Contains(names, generationName) {
		if text, err = readAll(src, generationName, maxConfigBytes); err != nil {
			return err
		}
		generation, err := ParseGenerationConfig(text)
		if err != nil {
			return err
		}
		c.GenerationConfig = *generation
	}
	c.EOS = slices.Concat(c.Config.EOS, c.GenerationConfig.EOS)
	slices.Sort(c.EOS)
	c.EOS = slices.Compact(c.EOS)
	for _, id := range c.EOS {
		if id >= c.Config.VocabSize {
			c.Warnings = append(c.Warnings, fmt.Sprintf("end-of-sequence id %d is outside of the vocabulary of %d and never occurs", id, c.Config.VocabSize))
		}
	}
	return nil
}

func (c *Checkpoint) readWeights(src Source, names []string) error {
	files, index, err := weightFiles(src, names)
	if err != nil {
		return err
	}
	c.Files = files
	var total int64
	for _, name := range files {
		bytes, err := c.readHeader(src, name)
		if err != nil {
			return err
		}
		total += bytes
	}
	if len(c.Tensors) == 0 {
		return fmt.Errorf("%w: %s holds no tensors", ErrMissing, several(files))
	}
	c.Names = slices.Sorted(maps.Keys(c.Tensors))
	if index == nil {
		return nil
	}
	c.indexed = true
	return c.checkIndex(index, total)
}

// readHeader adds one file's tensors and gives their bytes.
func (c *Checkpoint) readHeader(src Source, name string) (bytes int64, err error) {
	r, err := src.Open(name)
	if err != nil {
		return 0, fmt.Errorf("read %s: %w", name, err)
	}
	defer r.Close() // only read from: closing cannot lose anything
	f, err := safetensors.Parse(r, r.Size())
	if err != nil {
		return 0, fmt.Errorf("read %s: %w", name, err)
	}
	if len(c.Tensors)+len(f.Tensors()) > maxTensors {
		return 0, fmt.Errorf("read %s: %w: more than %d tensors", name, ErrLimit, maxTensors)
	}
	for _, t := range f.Tensors() {
		if other, twice := c.Tensors[t.Name]; twice {
			return 0, fmt.Errorf("%w: tensor %q is in %s and in %s; keep one of them", ErrInvalid, shorten(t.Name), other.File, name)
		}
		c.Tensors[t.Name] = Tensor{Name: t.Name, DType: t.DType, Shape: t.Shape, File: name, Offset: t.Offset, Bytes: t.Bytes}
		bytes += t.Bytes
	}
	return bytes, nil
}

// checkIndex holds the index against what the shards contain.
func (c *Checkpoint) checkIndex(index *Index, total int64) error {
	var missing, moved, extra []string
	for _, name := range slices.Sorted(maps.Keys(index.Files)) {
		t, ok := c.Tensors[name]
		switch {
		case !ok:
			missing = append(missing, name)
		case t.File != index.Files[name]:
			moved = append(moved, name)
		}
	}
	for _, name := range c.Names {
		if _, ok := index.Files[name]; !ok {
			extra = append(extra, name)
		}
	}
	if len(missing) > 0 {
		return fmt.Errorf("%w: %s names tensors that its files don't hold: %s (%s); upload that file again",
			ErrMissing, indexName, several(missing), index.Files[missing[0]])
	}
	if len(moved) > 0 {
		return fmt.Errorf("%w: %s looks in the wrong file for %s; index and files are of different versions",
			ErrInvalid, indexName, several(moved))
	}
	if len(extra) > 0 {
		c.Warnings = append(c.Warnings, fmt.Sprintf("%s does not name %s, which its files hold; they are used", indexName, several(extra)))
	}
	if index.TotalSize != 0 && index.TotalSize != total {
		c.Warnings = append(c.Warnings, fmt.Sprintf("%s speaks of %d bytes in all, its files hold %d", indexName, index.TotalSize, total))
	}
	return nil
}

// buffers end the names of tensors that hold no parameter: masks, positions and frequencies that older files carry along.
var buffers = []string{".attn.bias", ".attn.masked_bias", ".attention.bias", ".attention.masked_bias", "position_ids", ".inv_freq", "num_batches_tracked"}

// supported refuses what no family could use: quantised weights, and element types other than the three.
func (c *Checkpoint) supported() error {
	var gaps []string
	if q := c.Config.quantization(); q != "" {
		gaps = append(gaps, fmt.Sprintf("config.json has a %s: quantised weights can't be trained", q))
	}
	byType := map[safetensors.DType][]string{}
	for _, name := range c.Names {
		isBuffer := slices.ContainsFunc(buffers, func(end string) bool { return strings.HasSuffix(name, end) })
		if t := c.Tensors[name]; !t.DType.IsWeight() && !isBuffer {
			byType[t.DType] = append(byType[t.DType], name)
		}
	}
	for _, dtype := range slices.Sorted(maps.Keys(byType)) {
		gaps = append(gaps, fmt.Sprintf("%d tensors are %s: %s", len(byType[dtype]), dtype, several(byType[dtype])))
	}
	if len(gaps) == 0 {
		return nil
	}
	return fmt.Errorf("%w: %s; weights must be BF16, F16 or F32: use the unquantised checkpoint", ErrUnsupported, strings.Join(gaps, "; "))
}

// noteUnread tells of weight files that nothing refers to.
func (c *Checkpoint) noteUnread(names []string) {
	var unread []string
	for _, n := range names {
		isWeights := strings.HasSuffix(n, weightSuffix) && !slices.Contains(c.Files, n)
		if isWeights || n == indexName && !c.indexed {
			unread = append(unread, n)
		}
	}
	if len(unread) > 0 {
		c.Warnings = append(c.Warnings, fmt.Sprintf("not read, since %s holds the weights: %s", several(c.Files), several(unread)))
	}
}

// Compose says that a parameter of the loaded model is several stored tensors laid end to end, or one under another name.
// Parts and Weights answer for it from then on.
func (c *Checkpoint) Compose(name string, stored ...string) {
	if c.composed == nil {
		c.composed = map[string][]string{}
	}
	c.composed[name] = stored
}

// Parts lists the stored tensors that make a parameter up, in order: itself, or what Compose said. It is empty if one of
// them is missing.
func (c *Checkpoint) Parts(name string) []Tensor {
	stored, ok := c.composed[name]
	if !ok {
		stored = []string{name}
	}
	parts := make([]Tensor, 0, len(stored))
	for _, n := range stored {
		t, ok := c.Tensors[n]
		if !ok {
			return nil
		}
		parts = append(parts, t)
	}
	return parts
}

// Weights reads tensors' values; it keeps the files it has touched open until Close. It is for one goroutine.
type Weights struct {
	src  Source
	c    *Checkpoint
	open map[string]ReaderAtSized
}

// Weights gives access to the values behind the description.
func (c *Checkpoint) Weights(src Source) *Weights {
	return &Weights{src: src, c: c, open: map[string]ReaderAtSized{}}
}

// Float32s fills dst, one value per element, with the parameter's exact values.
func (w *Weights) Float32s(dst []float32, name string) error {
	return each(w, name, dst, Tensor.Elements, safetensors.ReadFloat32s)
}

// Bytes fills dst, as long as the parameter, with its bytes as stored.
func (w *Weights) Bytes(dst []byte, name string) error {
	return each(w, name, dst, func(t Tensor) int64 { return t.Bytes }, safetensors.ReadInto)
}

// each reads the parts of a parameter into dst, one behind the other.
func each[E any](w *Weights, name string, dst []E, length func(Tensor) int64, read func([]E, io.ReaderAt, safetensors.Tensor) error) error {
	parts := w.c.Parts(name)
	if len(parts) == 0 {
		return fmt.Errorf("read tensor %q: %w: the checkpoint has none of that name", shorten(name), ErrMissing)
	}
	for i, t := range parts {
		r, err := w.file(t)
		if err != nil {
			return err
		}
		n := min(length(t), int64(len(dst)))
		if i == len(parts)-1 {
			n = int64(len(dst)) // whatever does not fit is for the reader to refuse
		}
		if err := read(dst[:n], r, t.stored()); err != nil {
			return err
		}
		dst = dst[n:]
	}
	return nil
}

func (w *Weights) file(t Tensor) (ReaderAtSized, error) {
	r, ok := w.open[t.File]
	if !ok {
		var err error
		if r, err = w.src.Open(t.File); err != nil {
			return nil, fmt.Errorf("read tensor %q: %w", shorten(t.Name), err)
		}
		w.open[t.File] = r
	}
	return r, nil
}

// Close closes the files.
func (w *Weights) Close() error {
	var errs []error
	for _, name := range slices.Sorted(maps.Keys(w.open)) {
		errs = append(errs, w.open[name].Close())
	}
	clear(w.open)
	return errors.Join(errs...)
}
