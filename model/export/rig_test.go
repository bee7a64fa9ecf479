package export

import (
	"bytes"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"math"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"smolgym/kernels"
	"smolgym/kernels/reference"
	"smolgym/model/arch"
	goldens "smolgym/model/golden"
	"smolgym/model/hf"
	"smolgym/model/ir"
	"smolgym/model/lora"
	"smolgym/model/plan"
	"smolgym/model/safetensors"
)

// memory is a folder in memory.
type memory map[string][]byte

type memoryFile struct{ *bytes.Reader }

func (memoryFile) Close() error { return nil }

func (m memory) Names() []string { return slices.Sorted(maps.Keys(m)) }

func (m memory) Open(name string) (hf.ReaderAtSized, error) {
	text, ok := m[name]
	if !ok {
		return nil, hf.ErrMissing
	}
	return memoryFile{bytes.NewReader(text)}, nil
}

// golden is one of the repository's model archives.
type golden struct {
	t       testing.TB
	base    memory // the model's files
	numbers *safetensors.File
}

func openGolden(t testing.TB, name string) *golden {
	t.Helper()
	g := &golden{t: t, base: goldens.Files(t, goldens.Path(t, name))}
	text := g.base["golden.safetensors"]
	var err error
	if g.numbers, err = safetensors.Parse(bytes.NewReader(text), int64(len(text))); err != nil {
		t.Fatal(err)
	}
	for _, other := range []string{"golden.safetensors", "golden.json", "config_v4.json"} {
		delete(g.base, other)
	}
	return g
}

// tensors gives the numbers whose names begin with prefix, under the rest of their names.
func (g *golden) tensors(prefix, rename string) []Tensor {
	g.t.Helper()
	var list []Tensor
	for _, info := range g.numbers.Tensors() {
		if rest, ok := strings.CutPrefix(info.Name, prefix); ok {
			values := make([]float32, info.Elements())
			if err := g.numbers.ReadFloat32s(values, info.Name); err != nil {
				g.t.Fatal(err)
			}
			list = append(list, tensorOf(rename+rest, info.Shape, values))
		}
	}
	if len(list) == 0 {
		g.t.Fatalf("no numbers %s", prefix)
	}
	return list
}

func (g *golden) ids() []int32 {
	values := valuesOf(g.t, g.tensors("input_ids", "")[0])
	ids := make([]int32, len(values))
	for i, v := range values {
		ids[i] = int32(v)
	}
	return ids
}

func tensorOf(name string, shape []int64, values []float32) Tensor {
	b := make([]byte, 4*len(values))
	for i, v := range values {
		binary.LittleEndian.PutUint32(b[4*i:], math.Float32bits(v))
	}
	return Tensor{name, slices.Clone(shape), func() (hf.ReaderAtSized, error) { return memoryFile{bytes.NewReader(b)}, nil }}
}

func valuesOf(t testing.TB, x Tensor) []float32 {
	t.Helper()
	v, err := x.values()
	if err != nil {
		t.Fatal(err)
	}
	values := make([]float32, x.elements())
	if err := errors.Join(v.read(values, 0), v.Close()); err != nil {
		t.Fatal(err)
	}
	return values
}

// noise is a tensor of normal values.
func noise(name string, shape []int64, spread float64, seed uint64) Tensor {
	r := rand.New(rand.NewPCG(seed, uint64(len(name))))
	values := make([]float32, product(shape))
	for i := range values {
		values[i] = float32(r.NormFloat64() * spread)
	}
	return tensorOf(name, shape, values)
}

// pair makes modules, or fails.
func pair(t testing.TB, tensors []Tensor, alpha float64) []Module {
	t.Helper()
	modules, err := Pair(tensors, alpha)
	if err != nil {
		t.Fatal(err)
	}
	return modules
}

// build makes a plan's files, each twice, and holds their sizes.
func build(t testing.TB, p *Plan, err error) memory {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
	m := memory{}
	for _, f := range p.Files {
		var a, b bytes.Buffer
		if err := errors.Join(f.Write(&a), f.Write(&b)); err != nil {
			t.Fatal(err)
		}
		if int64(a.Len()) != f.Size {
			t.Errorf("%s has %d bytes, %d were planned", f.Path, a.Len(), f.Size)
		}
		if !bytes.Equal(a.Bytes(), b.Bytes()) {
			t.Errorf("%s differs when it is written again", f.Path)
		}
		m[f.Path] = a.Bytes()
	}
	return m
}

// logits runs the train graph on the reference device: two sequences of equal length, trained weights in place, adapters on
// the graph.
func logits(t testing.TB, src hf.Source, ids []int32, w Weights) []float32 {
	t.Helper()
	ck, err := hf.Describe(src)
	if err == nil {
		err = arch.Resolve(ck, src)
	}
	if err != nil {
		t.Fatal(err)
	}
	m, err := arch.Build(ck, arch.Train)
	if err != nil {
		t.Fatal(err)
	}
	r := &rig{t, reference.Open(reference.Options{}), map[string]kernels.Buffer{}}
	weights := ck.Weights(src)
	defer weights.Close()
	for _, id := range m.Graph.Named(ir.ClassWeight) {
		v := m.Graph.Value(id)
		x := make([]float32, v.Type.Shape.Elements(ir.Dims{}))
		if err := weights.Float32s(x, v.Name); err != nil {
			t.Fatal(err)
		}
		r.floats(v.Name, x)
	}
	for _, x := range w.Full {
		r.floats(x.Name, valuesOf(t, x))
	}
	for name, x := range m.Consts {
		r.floats(name, x)
	}
	g := m.Graph.Clone()
	g.Output("logits", m.Logits)
	if len(w.Adapters) > 0 {
		g = r.adapt(g, w.Adapters)
	}
	n := len(ids) / 2
	var positions []int32
	for i := range ids {
		positions = append(positions, int32(i%n))
	}
	r.ints("ids", ids)
	r.ints("positions", positions)
	r.ints("offsets", []int32{0, int32(n), int32(2 * n)})
	return r.run(g, ir.Dims{T: len(ids), S: 2, C: 1})
}

type rig struct {
	t    testing.TB
	dev  kernels.Device
	bufs map[string]kernels.Buffer
}

// adapt puts adapters on the graph, each with its own rank and scale.
func (r *rig) adapt(g *ir.Graph, modules []Module) *ir.Graph {
	r.t.Helper()
	given := map[string]Module{}
	for _, m := range modules {
		given[m.Module] = m
		r.floats(m.A.Name, valuesOf(r.t, m.A))
		r.floats(m.B.Name, valuesOf(r.t, m.B))
	}
	c := lora.Config{Rank: 1, Alpha: 1, Attention: true, MLP: true, Unembed: true}
	c.Of = func(module string) (int, float64) { return given[module].Rank, given[module].Alpha }
	g, adapters, err := lora.Apply(g, c)
	if err != nil || len(adapters) != len(modules) {
		r.t.Fatalf("%d adapters, want %d: %v", len(adapters), len(modules), err)
	}
	return g
}

func (r *rig) set(name string, b []byte) {
	r.t.Helper()
	buf, err := r.dev.Alloc(int64(len(b)))
	if err == nil {
		err = r.dev.Write(buf, 0, b)
	}
	if err != nil {
		r.t.Fatal(err)
	}
	r.bufs[name] = buf
}

func (r *rig) floats(name string, x []float32) {
	b := make([]byte, 4*len(x))
	for i, v := range x {
		binary.LittleEndian.PutUint32(b[4*i:], math.Float32bits(v))
	}
	r.set(name, b)
}

func (r *rig) ints(name string, x []int32) {
	b := make([]byte, 4*len(x))
	for i, v := range x {
		binary.LittleEndian.PutUint32(b[4*i:], uint32(v))
	}
	r.set(name, b)
}

// run gives the logits.
func (r *rig) run(g *ir.Graph, dims ir.Dims) []float32 {
	r.t.Helper()
	// Only what the logits need: the other outputs ask for targets.
	g.Outputs = slices.DeleteFunc(slices.Clone(g.Outputs), func(o ir.Output) bool { return o.Name != "logits" })
	p, err := plan.Build(g, dims)
	if err != nil {
		r.t.Fatal(err)
	}
	slots := make([]kernels.Buffer, len(p.Slots))
	for i, s := range p.Slots {
		if buf := r.bufs[s.Name]; buf == nil {
			r.set(s.Name, make([]byte, s.Type.Bytes(dims)))
		}
		slots[i] = r.bufs[s.Name]
	}
	arena, err := r.dev.Alloc(p.ArenaBytes)
	if err == nil {
		err = r.dev.Run(p, dims, slots, arena, nil)
	}
	if err != nil {
		r.t.Fatal(err)
	}
	b := make([]byte, r.bufs["logits"].Size())
	if err := r.dev.Read(b, r.bufs["logits"], 0); err != nil {
		r.t.Fatal(err)
	}
	x := make([]float32, len(b)/4)
	for i := range x {
		x[i] = math.Float32frombits(binary.LittleEndian.Uint32(b[4*i:]))
	}
	return x
}

// distance is the largest difference.
func distance(a, b []float32) float64 {
	if len(a) != len(b) {
		return math.Inf(1)
	}
	worst := 0.0
	for i := range a {
		d := math.Abs(float64(a[i]) - float64(b[i]))
		if !(d <= worst) {
			worst = d
		}
	}
	return worst
}

// sharded cuts a model of one file into n with an index, and gives it side files.
func sharded(t testing.TB, base memory, n int) memory {
	t.Helper()
	out := maps.Clone(base)
	text := out["model.safetensors"]
	delete(out, "model.safetensors")
	f, err := safetensors.Parse(bytes.NewReader(text), int64(len(text)))
	if err != nil {
		t.Fatal(err)
	}
	files := make([][]safetensors.Entry, n)
	index := struct {
		Metadata  map[string]any    `json:"metadata"`
		WeightMap map[string]string `json:"weight_map"`
	}{map[string]any{"total_size": 0, "note": "kept"}, map[string]string{}}
	var total, params int64
	for i, x := range f.Tensors() {
		k := i * n / len(f.Tensors())
		files[k] = append(files[k], safetensors.Entry{Name: x.Name, DType: x.DType, Shape: x.Shape, Data: func(w io.Writer) error {
			_, err := w.Write(text[x.Offset:][:x.Bytes])
			return err
		}})
		index.WeightMap[x.Name] = shardName(k, n)
		total, params = total+x.Bytes, params+x.Elements()
	}
	index.Metadata["total_size"], index.Metadata["total_parameters"] = total, params
	for k, entries := range files {
		var b bytes.Buffer
		if err := safetensors.Write(&b, entries, map[string]string{"format": "pt"}); err != nil {
			t.Fatal(err)
		}
		out[shardName(k, n)] = b.Bytes()
	}
	if out[indexName], err = json.Marshal(index); err != nil {
		t.Fatal(err)
	}
	return out
}

func shardName(k, n int) string { return fmt.Sprintf("model-%05d-of-%05d.safetensors", k+1, n) }
