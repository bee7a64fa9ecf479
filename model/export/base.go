package export

import (
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"

	"smolgym/model/arch"
	"smolgym/model/hf"
	"smolgym/model/ir"
	"smolgym/model/lora"
)

// base is an opened base model.
type base struct {
	src      hf.Source
	ck       *hf.Checkpoint
	stored   map[string]hf.Tensor // all that the files hold
	family   string
	tied     bool               // the output head is the embedding
	params   map[string][]int64 // shapes of the model's parameters
	modules  []lora.Adapter     // what can have an adapter, in the order of the graph; their Rank is 1
	byName   map[string]lora.Adapter
	reflag   bool // the configuration says tied and the head is not
	stack    bool // adapters of experts go out as those of the parameters that hold them all
	headName string
}

func openBase(src hf.Source) (*base, error) {
	ck, err := hf.Describe(src)
	if err != nil {
		return nil, fmt.Errorf("base model: %w", err)
	}
	b := &base{src: src, ck: ck, stored: maps.Clone(ck.Tensors), params: map[string][]int64{}, byName: map[string]lora.Adapter{}}
	flag := ck.Config.TieWordEmbeddings
	if err := arch.Resolve(ck, src); err != nil {
		return nil, fmt.Errorf("base model: %w", err)
	}
	b.reflag = flag != ck.Config.TieWordEmbeddings
	model, err := arch.Build(ck, arch.Train) // not kept: its tables are large, and plans live as long as a download
	if err != nil {
		return nil, fmt.Errorf("base model: %w", err)
	}
	g := model.Graph
	b.family, b.tied = model.Family, model.Tied
	for _, id := range g.Named(ir.ClassWeight) {
		v := g.Value(id)
		var shape []int64
		for _, d := range v.Type.Shape {
			shape = append(shape, int64(d.N))
		}
		b.params[v.Name] = shape
	}
	if _, b.modules, err = lora.Apply(g, lora.Config{Rank: 1, Alpha: 1, Attention: true, MLP: true, Unembed: true}); err != nil {
		return nil, fmt.Errorf("base model: %w", err)
	}
	for _, m := range b.modules {
		b.byName[m.Module] = m
		if m.Part == ir.PartUnembed {
			b.headName = m.Module + ".weight"
		}
	}
	return b, nil
}

// tiedHead says whether an adapter of this module needs a head of its own to be merged into.
func (b *base) tiedHead(m lora.Adapter) bool { return b.tied && m.Part == ir.PartUnembed }

// check holds trained tensors against the model and puts the adapters in its order.
func (b *base) check(w Weights) (Weights, error) {
	var wrong []string
	problem := func(format string, args ...any) { wrong = append(wrong, fmt.Sprintf(format, args...)) }
	full := map[string]bool{}
	for _, t := range w.Full {
		shape, known := b.params[t.Name]
		if t.Name == b.headName && b.tied {
			known, shape = true, b.params[b.byName[strings.TrimSuffix(b.headName, ".weight")].Weight]
		}
		switch {
		case full[t.Name]:
			problem("%s appears twice", t.Name)
		case !known:
			problem("%s is no parameter", t.Name)
		case !slices.Equal(shape, t.Shape):
			problem("%s is %v, the model has %v", t.Name, t.Shape, shape)
		}
		full[t.Name] = true
	}
	if len(w.Full) > 0 {
		for _, name := range slices.Sorted(maps.Keys(b.params)) {
			if !full[name] {
				problem("%s is missing", name)
			}
		}
	}
	sorted, problems := b.sortModules(w.Adapters)
	if wrong = append(wrong, problems...); len(wrong) > 0 {
		return w, fmt.Errorf("%w: %s", ErrWeights, several(wrong))
	}
	return Weights{w.Full, sorted}, nil
}

// sortModules checks modules and puts them in the order of the graph.
func (b *base) sortModules(modules []Module) (sorted []Module, wrong []string) {
	given := map[string]Module{}
	for _, m := range modules {
		at, known := b.byName[m.Module]
		_, twice := given[m.Module]
		switch wantA, wantB := shapesOf(at, m.Rank); {
		case twice:
			wrong = append(wrong, fmt.Sprintf("the adapter of %s appears twice", m.Module))
		case !known:
			wrong = append(wrong, fmt.Sprintf("%s is no module that can have an adapter", m.Module))
		case m.Rank < 1 || m.Rank > lora.MaxRank || !(m.Alpha > 0) || m.Alpha > maxAlpha:
			wrong = append(wrong, fmt.Sprintf("the adapter of %s has rank %d and alpha %g", m.Module, m.Rank, m.Alpha))
		case !slices.Equal(m.A.Shape, wantA) || !slices.Equal(m.B.Shape, wantB):
			wrong = append(wrong, fmt.Sprintf("the adapter of %s has A %v and B %v; rank %d needs %v and %v", m.Module, m.A.Shape, m.B.Shape, m.Rank, wantA, wantB))
		}
		given[m.Module] = m
	}
	for _, at := range b.modules {
		if m, ok := given[at.Module]; ok {
			sorted = append(sorted, m)
		}
	}
	return sorted, wrong
}

// shapesOf gives the shapes of a module's A and B; of experts they have one more axis.
func shapesOf(at lora.Adapter, rank int) (a, b []int64) {
	a, b = []int64{int64(rank), int64(at.In)}, []int64{int64(at.Out), int64(rank)}
	if at.Experts > 0 {
		a, b = slices.Insert(a, 0, int64(at.Experts)), slices.Insert(b, 0, int64(at.Experts))
	}
	return a, b
}

// maxAlpha bounds what a scale can be, as package lora does.
const maxAlpha = 1e6

// several joins the first of many texts.
func several(texts []string) string {
	const most = 12
	more := ""
	if n := len(texts) - most; n > 0 {
		more = fmt.Sprintf("; and %d more", n)
	}
	return strings.Join(texts[:min(len(texts), most)], "; ") + more
}

// shorten keeps foreign text from flooding a message.
func shorten(s string) string {
	if len(s) > 120 {
		return s[:120] + "…"
	}
	return s
}

// readSmall reads a small file whole.
func readSmall(src hf.Source, name string, limit int64) ([]byte, error) {
	f, err := src.Open(name)
	if err != nil {
		return nil, fmt.Errorf("read %s: %w", name, err)
	}
	defer f.Close() // only read from: closing cannot lose anything
	if f.Size() > limit {
		return nil, fmt.Errorf("read %s: %w: %d bytes, at most %d are allowed", name, hf.ErrLimit, f.Size(), limit)
	}
	text := make([]byte, f.Size())
	if err := readFull(f, text, 0); err != nil {
		return nil, fmt.Errorf("read %s: %w", name, err)
	}
	return text, nil
}

// readFull is ReadAt with its one licence taken away: an io.EOF on a complete read is no error, a short read always is.
func readFull(r io.ReaderAt, p []byte, off int64) error {
	n, err := r.ReadAt(p, off)
	if n == len(p) {
		return nil
	}
	if err == nil || err == io.EOF {
		return io.ErrUnexpectedEOF
	}
	return err
}
