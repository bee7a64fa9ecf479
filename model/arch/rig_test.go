package arch_test

import (
	"bytes"
	"encoding/binary"
	"encoding/json"
	"errors"
	"math"
	"os"
	"path/filepath"
	"testing"

	"smolgym/kernels"
	"smolgym/kernels/reference"
	"smolgym/model/arch"
	goldens "smolgym/model/golden"
	"smolgym/model/hf"
	"smolgym/model/ir"
	"smolgym/model/plan"
	"smolgym/model/safetensors"
)

// unpack lays out one archive of testdata/goldens, testdata/families or the shared folder's,
// and returns its folder.
func unpack(t *testing.T, name string) string {
	t.Helper()
	return goldens.Lay(t, name)
}

// golden is golden.json and golden.safetensors of one archive.
type golden struct {
	t    *testing.T
	name string

	experts int // of the model, for the layout of their adapters
	file    *safetensors.File
	data    []byte
}

func openGolden(t *testing.T, dir string, info any) *golden {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(dir, "golden.json"))
	if err != nil {
		t.Fatal(err)
	}
	if err := json.Unmarshal(text, info); err != nil {
		t.Fatal(err)
	}
	data, err := os.ReadFile(filepath.Join(dir, "golden.safetensors"))
	if err != nil {
		t.Fatal(err)
	}
	f, err := safetensors.Parse(bytes.NewReader(data), int64(len(data)))
	if err != nil {
		t.Fatal(err)
	}
	return &golden{t: t, name: filepath.Base(dir), file: f, data: data}
}

func (g *golden) floats(name string) []float32 {
	g.t.Helper()
	info, ok := g.file.Tensor(name)
	if !ok {
		g.t.Fatalf("golden has no %s", name)
	}
	x := make([]float32, info.Elements())
	if err := g.file.ReadFloat32s(x, name); err != nil {
		g.t.Fatal(err)
	}
	return x
}

func (g *golden) ids(name string) []int32 {
	x := g.floats(name) // ids are small: float32 holds them
	ids := make([]int32, len(x))
	for i, v := range x {
		ids[i] = int32(v)
	}
	return ids
}

func (g *golden) shape(name string) []int64 {
	info, ok := g.file.Tensor(name)
	if !ok {
		g.t.Fatalf("golden has no %s", name)
	}
	return info.Shape
}

// describe reads a checkpoint folder, with another config.json if one is named.
func describe(t *testing.T, dir, config string) (*hf.Checkpoint, hf.Source) {
	t.Helper()
	if config != "config.json" {
		text, err := os.ReadFile(filepath.Join(dir, config))
		if err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(dir, "config.json"), text, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	for _, extra := range []string{"golden.safetensors"} { // no part of the model
		if err := os.Remove(filepath.Join(dir, extra)); err != nil && !errors.Is(err, os.ErrNotExist) {
			t.Fatal(err)
		}
	}
	src, err := hf.Dir(dir)
	if err != nil {
		t.Fatal(err)
	}
	ck, err := hf.Describe(src)
	if err != nil {
		t.Fatal(err)
	}
	if err := arch.Resolve(ck, src); err != nil {
		t.Fatal(err)
	}
	return ck, src
}

// rig runs programs on the reference device with buffers by name.
type rig struct {
	t    *testing.T
	dev  kernels.Device
	bufs map[string]kernels.Buffer
}

func newRig(t *testing.T) *rig { return newRigOn(t, reference.Open(reference.Options{})) }

func newRigOn(t *testing.T, dev kernels.Device) *rig {
	return &rig{t, dev, map[string]kernels.Buffer{}}
}

// load binds a model's weights and tables.
func (r *rig) load(m *arch.Model, ck *hf.Checkpoint, src hf.Source) {
	r.t.Helper()
	w := ck.Weights(src)
	defer w.Close()
	for _, id := range m.Graph.Named(ir.ClassWeight) {
		v := m.Graph.Value(id)
		x := make([]float32, v.Type.Shape.Elements(ir.Dims{}))
		if err := w.Float32s(x, v.Name); err != nil {
			r.t.Fatal(err)
		}
		if v.Type.DType == ir.BF16 {
			r.setHalf(v.Name, x)
			continue
		}
		r.set(v.Name, x)
	}
	for name, x := range m.Consts {
		r.set(name, x)
	}
}

func (r *rig) setBytes(name string, b []byte) {
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

func (r *rig) set(name string, x []float32) {
	b := make([]byte, 4*len(x))
	for i, v := range x {
		binary.LittleEndian.PutUint32(b[4*i:], math.Float32bits(v))
	}
	r.setBytes(name, b)
}

// setHalf rounds to bfloat16.
func (r *rig) setHalf(name string, x []float32) {
	r.t.Helper()
	b := make([]byte, 2*len(x))
	if err := safetensors.PutFloat32s(b, safetensors.BF16, x); err != nil {
		r.t.Fatal(err)
	}
	r.setBytes(name, b)
}

func (r *rig) setI(name string, x ...int32) {
	b := make([]byte, 4*len(x))
	for i, v := range x {
		binary.LittleEndian.PutUint32(b[4*i:], uint32(v))
	}
	r.setBytes(name, b)
}

// run plans and runs a graph. States that have no buffer yet start at zero;
// outputs get a buffer each time.
func (r *rig) run(g *ir.Graph, dims ir.Dims) {
	r.t.Helper()
	p, err := plan.Build(g, dims)
	if err == nil {
		err = plan.Verify(p)
	}
	if err != nil {
		r.t.Fatal(err)
	}
	slots := make([]kernels.Buffer, len(p.Slots))
	for i, s := range p.Slots {
		if buf := r.bufs[s.Name]; buf == nil || s.Output {
			if s.Class != ir.ClassState && !s.Output {
				r.t.Fatalf("no buffer for %s %s", s.Class, s.Name)
			}
			r.setBytes(s.Name, make([]byte, s.Type.Bytes(dims)))
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
	arena.Free()
}

func (r *rig) floats(name string) []float32 {
	r.t.Helper()
	buf := r.bufs[name]
	if buf == nil {
		r.t.Fatalf("no buffer %s", name)
	}
	b := make([]byte, buf.Size())
	if err := r.dev.Read(b, buf, 0); err != nil {
		r.t.Fatal(err)
	}
	x := make([]float32, len(b)/4)
	for i := range x {
		x[i] = math.Float32frombits(binary.LittleEndian.Uint32(b[4*i:]))
	}
	return x
}

func (r *rig) zero(names ...string) {
	for _, n := range names {
		if err := r.dev.Zero(r.bufs[n]); err != nil {
			r.t.Fatal(err)
		}
	}
}

// within fails unless got is want at rtol, with an atol of share times the
// largest value of want.
func within(t *testing.T, what string, got, want []float32, rtol, share float64) {
	t.Helper()
	if len(got) != len(want) {
		t.Errorf("%s: %d elements, want %d", what, len(got), len(want))
		return
	}
	top := 0.0
	for _, v := range want {
		top = math.Max(top, math.Abs(float64(v)))
	}
	worst, at := 0.0, -1
	for i := range want {
		d := math.Abs(float64(got[i])-float64(want[i])) / (rtol*math.Abs(float64(want[i])) + share*top)
		if d > worst || d != d {
			worst, at = d, i
		}
		if d != d {
			break
		}
	}
	if at >= 0 && !(worst <= 1) {
		t.Errorf("%s: element %d is %g, want %g: %.2f times the tolerance", what, at, got[at], want[at], worst)
	}
}
