package export

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"

	"smolgym/model/hf"
	"smolgym/model/safetensors"
)

const (
	configName    = "config.json"
	indexName     = "model.safetensors.index.json"
	weightSuffix  = ".safetensors"
	maxSmallBytes = 16 << 20 // configurations and indices

	tieFlag = "tie_word_embeddings"
)

// MergedOptions are those of [Merged].
type MergedOptions struct {
	// DType is the element type of all weights; each keeps that of the base model if it is empty. A base model in BF16
	// rounds what was trained, one in F32 doesn't.
	DType safetensors.DType
}

// Merged plans a folder in the layout of the base model with the trained weights in it: W + scale·B·A in float64, rounded
// once. Other files are those of the base model byte for byte, but for the tie flag where the output head has become a
// tensor of its own, and dtype where one is asked for.
func Merged(src hf.Source, w Weights, o MergedOptions) (*Plan, error) {
	if o.DType != "" && !o.DType.IsWeight() {
		return nil, fmt.Errorf("export merged: %w: weights can be F32, F16 or BF16, not %q", ErrValue, o.DType)
	}
	m, err := openMerger(src, w)
	if err != nil {
		return nil, fmt.Errorf("export merged: %w", err)
	}
	m.dtype = o.DType
	p := &Plan{Notes: m.notes}
	if err := m.weightFiles(p); err != nil {
		return nil, fmt.Errorf("export merged: %w", err)
	}
	if err := m.sideFiles(p); err != nil {
		return nil, fmt.Errorf("export merged: %w", err)
	}
	p.sort()
	return p, nil
}

// merger knows what becomes of each tensor.
type merger struct {
	*base
	dtype   safetensors.DType
	changed map[string]change // by the name of the written tensor
	head    *safetensors.Entry
	newHead string // the name of a head that is written for a tied model
	untied  bool   // the tie flag has to go off
	notes   []string
}

// change is how a tensor gets its new values.
type change struct {
	stored hf.Tensor // the old values, where there is no full tensor
	full   *Tensor
	first  int64 // of the parameter's elements, the first in this tensor
	module *Module
}

// openMerger checks the trained weights against the base model and settles what becomes of its tensors.
func openMerger(src hf.Source, w Weights) (*merger, error) {
	b, err := openBase(src)
	if err != nil {
		return nil, err
	}
	if w, err = b.check(w); err != nil {
		return nil, err
	}
	return b.merger(w)
}

// merger settles which stored tensors change.
func (b *base) merger(w Weights) (*merger, error) {
	m := &merger{base: b, changed: map[string]change{}, untied: b.reflag}
	full := map[string]*Tensor{}
	for i := range w.Full {
		full[w.Full[i].Name] = &w.Full[i]
	}
	adapters := map[string]*Module{} // by the parameter they are merged into
	var head *Module
	for i := range w.Adapters {
		at := b.byName[w.Adapters[i].Module]
		if b.tiedHead(at) {
			head = &w.Adapters[i]
		} else {
			adapters[at.Weight] = &w.Adapters[i]
		}
	}
	for _, name := range slices.Sorted(maps.Keys(b.params)) {
		if full[name] == nil && adapters[name] == nil {
			continue
		}
		first := int64(0)
		for _, t := range b.ck.Parts(name) {
			shape := b.params[name]
			if cols := shape[len(shape)-1]; adapters[name] != nil && (first%cols != 0 || t.Elements()%cols != 0) {
				return nil, fmt.Errorf("%w: tensor %s holds no whole rows of %s", ErrWeights, t.Name, name)
			}
			m.changed[t.Name] = change{stored: t, full: full[name], first: first, module: adapters[name]}
			first += t.Elements()
		}
		if first != product(b.params[name]) {
			return nil, fmt.Errorf("%w: %s is not stored as it is trained; export the adapter", ErrWeights, name)
		}
	}
	if b.reflag {
		m.notes = append(m.notes, fmt.Sprintf("the base model stores a head of its own beside %s: the flag is off", tieFlag))
	}
	if b.tied {
		if err := m.tiedModel(full, head); err != nil {
			return nil, err
		}
	}
	return m, nil
}

// tiedModel settles the head of a tied model. A head that was trained on its own, or has an adapter, becomes a tensor. A copy
// of the embedding that is stored as a head stays one.
func (m *merger) tiedModel(full map[string]*Tensor, adapter *Module) error {
	embed := m.byName[strings.TrimSuffix(m.headName, ".weight")].Weight
	parts := m.ck.Parts(embed)
	if len(parts) != 1 {
		return fmt.Errorf("%w: %s is stored in %d parts; a head can't be made of it", ErrWeights, embed, len(parts))
	}
	from := full[m.headName]
	own := from != nil || adapter != nil
	if from == nil {
		from = full[embed]
	}
	copied := m.headName
	for name := range m.stored {
		if !m.ck.Has(name) {
			copied = name // Resolve takes off the list only a head that equals the embedding
		}
	}
	_, isCopied := m.stored[copied]
	if !own && (!isCopied || from == nil) {
		return nil
	}
	m.changed[copied] = change{stored: parts[0], full: from, module: adapter}
	if !own {
		return nil
	}
	m.untied, m.newHead = true, copied
	m.notes = append(m.notes, fmt.Sprintf("the output head was trained apart from the embedding: %s is written and %s is off", copied, tieFlag))
	if !isCopied {
		m.head = &safetensors.Entry{Name: m.headName, Shape: parts[0].Shape} // the rest when it is planned
	}
	return nil
}

func product(shape []int64) int64 { return Tensor{Shape: shape}.elements() }

// target is the element type that a stored tensor is written in.
func (m *merger) target(t hf.Tensor) safetensors.DType {
	if m.dtype != "" && t.DType.IsWeight() {
		return m.dtype
	}
	return t.DType
}

// weightFiles plans the files that the base model has, and their index.
func (m *merger) weightFiles(p *Plan) error {
	files := m.ck.Files
	headFile := files[len(files)-1]
	for _, name := range files {
		entries, changed := m.entries(name)
		if m.head != nil && name == headFile {
			e := *m.head
			e.DType = m.target(m.changed[m.headName].stored)
			e.Data = m.data(m.headName, e.DType)
			entries, changed = append(entries, e), true
		}
		if !changed {
			if err := m.copyFile(p, name); err != nil {
				return err
			}
			continue
		}
		metadata, err := m.metadata(name)
		if err != nil {
			return err
		}
		size, err := safetensors.Size(entries, metadata)
		if err != nil {
			return fmt.Errorf("%s: %w", name, err)
		}
		p.add(name, size, func(w io.Writer) error { return safetensors.Write(w, entries, metadata) })
	}
	return m.index(p, headFile)
}

// entries lists the tensors of a file; changed says whether the file has to be written anew.
func (m *merger) entries(file string) (entries []safetensors.Entry, changed bool) {
	for _, name := range slices.Sorted(maps.Keys(m.stored)) {
		t := m.stored[name]
		if t.File != file {
			continue
		}
		dtype := m.target(t)
		_, c := m.changed[name]
		changed = changed || c || dtype != t.DType
		entries = append(entries, safetensors.Entry{Name: name, DType: dtype, Shape: t.Shape, Data: m.data(name, dtype)})
	}
	return entries, changed
}

// data writes one tensor's bytes.
func (m *merger) data(name string, dtype safetensors.DType) func(io.Writer) error {
	c, changed := m.changed[name]
	if !changed {
		c.stored = m.stored[name]
	}
	return func(w io.Writer) (err error) {
		if !changed && dtype == c.stored.DType {
			return copyBytes(w, m.src, c.stored)
		}
		var v elements
		first := int64(0)
		if c.full != nil {
			v, err = c.full.values()
			first = c.first
		} else {
			v, err = openStored(m.src, c.stored)
		}
		if err != nil {
			return err
		}
		defer func() { err = errors.Join(err, v.Close()) }()
		n := c.stored.Elements()
		if c.module == nil {
			return convert(w, &from{v, first}, n, dtype)
		}
		f, err := openFactors(*c.module, m.byName[c.module.Module])
		if err != nil {
			return err
		}
		defer func() { err = errors.Join(err, f.Close()) }()
		return f.merge(w, v, first, int(c.first/int64(f.cols)), int(n/int64(f.cols)), dtype)
	}
}

// from are elements counted from a later one on.
type from struct {
	elements
	first int64
}

func (f *from) read(dst []float32, first int64) error { return f.elements.read(dst, f.first+first) }

// metadata is that of a file. Loaders want to read there which framework the layout is for.
func (m *merger) metadata(name string) (map[string]string, error) {
	r, err := m.src.Open(name)
	if err != nil {
		return nil, fmt.Errorf("open %s: %w", name, err)
	}
	defer r.Close() // only read from: closing cannot lose anything
	f, err := safetensors.Parse(r, r.Size())
	if err != nil {
		return nil, fmt.Errorf("read %s: %w", name, err)
	}
	metadata := maps.Clone(f.Metadata)
	if metadata == nil {
		metadata = map[string]string{}
	}
	if metadata["format"] == "" {
		metadata["format"] = "pt"
	}
	return metadata, nil
}

// index plans the shard index, where the base model has one: as it is if the tensors are the same.
func (m *merger) index(p *Plan, headFile string) error {
	if !m.indexed() {
		return nil
	}
	if m.head == nil && m.dtype == "" {
		return m.copyFile(p, indexName)
	}
	text, err := readSmall(m.src, indexName, maxSmallBytes)
	if err != nil {
		return err
	}
	var old struct {
		Metadata  map[string]json.RawMessage `json:"metadata"`
		WeightMap map[string]string          `json:"weight_map"`
	}
	if err := json.Unmarshal(text, &old); err != nil {
		return fmt.Errorf("read %s: %w", indexName, err)
	}
	var bytes int64
	for name, t := range m.stored {
		if old.WeightMap[name] != "" {
			bytes += t.Elements() * m.target(t).Size()
		}
	}
	if m.head != nil {
		old.WeightMap[m.headName] = headFile
		t := m.changed[m.headName].stored
		bytes += t.Elements() * m.target(t).Size()
		var params int64
		if json.Unmarshal(old.Metadata["total_parameters"], &params) == nil {
			old.Metadata["total_parameters"] = fmt.Append(nil, params+t.Elements())
		}
	}
	if old.Metadata == nil {
		old.Metadata = map[string]json.RawMessage{}
	}
	old.Metadata["total_size"] = fmt.Append(nil, bytes)
	if text, err = json.MarshalIndent(old, "", "  "); err != nil {
		return fmt.Errorf("write %s: %w", indexName, err)
	}
	p.addText(indexName, append(text, '\n'))
	return nil
}

// indexed says whether the weight files are those of the index.
func (m *merger) indexed() bool {
	if !slices.Contains(m.src.Names(), indexName) {
		return false
	}
	text, err := readSmall(m.src, indexName, maxSmallBytes)
	if err != nil {
		return false // Describe has read it: it isn't what holds the weights
	}
	index, err := hf.ParseIndex(text)
	return err == nil && slices.Equal(slices.Compact(slices.Sorted(maps.Values(index.Files))), m.ck.Files)
}

// stale are the endings of files that hold or list the old weights in another form.
var stale = []string{weightSuffix, ".safetensors.index.json", ".bin", ".bin.index.json", ".gguf", ".pt", ".pth", ".ckpt", ".h5",
	".msgpack", ".onnx", ".onnx_data", ".npz", ".ot", ".tflite", ".mlmodel"}

// sideFiles plans everything that isn't weights.
func (m *merger) sideFiles(p *Plan) error {
	for _, name := range slices.Sorted(slices.Values(m.src.Names())) {
		isStale := slices.ContainsFunc(stale, func(end string) bool { return strings.HasSuffix(name, end) })
		switch _, done := p.File(name); {
		case done:
		case isStale:
			p.Skipped = append(p.Skipped, name)
		case name == configName && (m.untied || m.dtype != ""):
			text, err := m.config()
			if err != nil {
				return err
			}
			p.addText(name, text)
		default:
			if err := m.copyFile(p, name); err != nil {
				return err
			}
		}
	}
	if len(p.Skipped) > 0 {
		p.Notes = append(p.Notes, "left out, since they hold the old weights: "+strings.Join(p.Skipped, ", "))
	}
	return nil
}

// config is the base model's config.json with the fields edited that no longer hold.
func (m *merger) config() ([]byte, error) {
	text, err := readSmall(m.src, configName, maxSmallBytes)
	if err != nil {
		return nil, err
	}
	if m.untied {
		if text, err = setField(text, "false", true, tieFlag); err != nil {
			return nil, fmt.Errorf("edit %s: %w", configName, err)
		}
	}
	if m.dtype != "" {
		if text, err = setField(text, `"`+torchName[m.dtype]+`"`, true, "torch_dtype", "dtype"); err != nil {
			return nil, fmt.Errorf("edit %s: %w", configName, err)
		}
	}
	if _, err := hf.ParseConfig(text); err != nil {
		return nil, fmt.Errorf("edit %s: %w", configName, err)
	}
	return text, nil
}

var torchName = map[safetensors.DType]string{safetensors.F32: "float32", safetensors.F16: "float16", safetensors.BF16: "bfloat16"}

// copyFile plans a file of the base model as it is.
func (m *merger) copyFile(p *Plan, name string) error {
	f, err := m.src.Open(name)
	if err != nil {
		return fmt.Errorf("open %s: %w", name, err)
	}
	size := f.Size()
	if err := f.Close(); err != nil {
		return fmt.Errorf("open %s: %w", name, err)
	}
	p.add(name, size, func(w io.Writer) error {
		f, err := m.src.Open(name)
		if err != nil {
			return err
		}
		defer f.Close() // only read from: closing cannot lose anything
		if f.Size() != size {
			return fmt.Errorf("%w: it has %d bytes, %d were planned", ErrChanged, f.Size(), size)
		}
		return copyRange(w, f, 0, size)
	})
	return nil
}
