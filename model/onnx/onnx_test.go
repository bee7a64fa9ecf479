package onnx

import (
	"bytes"
	"errors"
	"flag"
	"fmt"
	"io"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"smolgym/model/arch"
	"smolgym/model/golden"
	"smolgym/model/hf"
	"smolgym/model/ir"
)

var update = flag.Bool("update", false, "rewrite golden files")

// archives are the repository's tiny models. Three more hold other numbers, or a model in pieces.
func archives(t *testing.T) []string {
	t.Helper()
	var list []string
	other := []string{"geometry.tar.gz", "optimizer.tar.gz", "tied_head.tar.gz"}
	for _, dir := range []string{"goldens", "families"} {
		found, err := filepath.Glob(filepath.Join("..", "..", "testdata", dir, "*.tar.gz"))
		if err != nil {
			t.Fatal(err)
		}
		list = append(list, slices.DeleteFunc(found, func(path string) bool { return slices.Contains(other, filepath.Base(path)) })...)
	}
	return list
}

// unpack lays a model's files out.
func unpack(t *testing.T, path string) hf.Source {
	t.Helper()
	dir := t.TempDir()
	for name, data := range golden.Files(t, path, "config.json", "model.safetensors") {
		if err := os.WriteFile(filepath.Join(dir, name), data, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	src, err := hf.Dir(dir)
	if err != nil {
		t.Fatal(err)
	}
	return src
}

// open is the forward graph of a model's files.
func open(t *testing.T, src hf.Source) (Forward, *arch.Model) {
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
	return Forward{Family: m.Family, Graph: m.Graph, Logits: m.Logits, Metadata: map[string]string{"family": m.Family},
		Values: func(class ir.Class, name string) func(io.Writer) error {
			if class == ir.ClassConst {
				return func(w io.Writer) error { return Floats(w, m.Consts[name]) }
			}
			return func(w io.Writer) error {
				id, _ := m.Graph.ByName(name)
				x := make([]float32, m.Graph.Value(id).Type.Shape.Elements(ir.Dims{}))
				weights := ck.Weights(src)
				return errors.Join(weights.Float32s(x, name), Floats(w, x), weights.Close())
			}
		}}, m
}

// written are the files, each made twice.
func written(t *testing.T, files []File) map[string][]byte {
	t.Helper()
	m := map[string][]byte{}
	for _, f := range files {
		var a, b bytes.Buffer
		if err := errors.Join(f.Write(&a), f.Write(&b)); err != nil {
			t.Fatal(err)
		}
		if int64(a.Len()) != f.Size || !bytes.Equal(a.Bytes(), b.Bytes()) {
			t.Fatalf("%s: %d bytes, then %d; %d were announced", f.Path, a.Len(), b.Len(), f.Size)
		}
		m[f.Path] = a.Bytes()
	}
	return m
}

// arity is what the operators take, by the standard: least and most inputs.
var arity = map[string][2]int{"Add": {2, 2}, "And": {2, 2}, "Concat": {1, 9}, "Div": {2, 2}, "Erf": {1, 1}, "Expand": {2, 2}, "Gather": {2, 2}, "Gemm": {2, 3},
	"Greater": {2, 2}, "LessOrEqual": {2, 2}, "MatMul": {2, 2}, "Mul": {2, 2}, "Range": {3, 3}, "ReduceMean": {1, 1}, "Reshape": {2, 2}, "Shape": {1, 1},
	"Sigmoid": {1, 1}, "Slice": {3, 5}, "Softmax": {1, 1}, "Sqrt": {1, 1}, "Sub": {2, 2}, "Tanh": {1, 1}, "Transpose": {1, 1}, "Unsqueeze": {2, 2}, "Where": {3, 3}}

// check holds a file against what every reader expects.
func (m readModel) check(t *testing.T) {
	t.Helper()
	if m.ir != 8 || m.opset != 17 {
		t.Errorf("layout %d, operators %d", m.ir, m.opset)
	}
	defined, used := map[string]bool{Input: true}, map[string]bool{}
	for _, x := range m.tensors {
		if defined[x.name] {
			t.Errorf("two values %q", x.name)
		}
		defined[x.name] = true
		size := map[int64]int64{1: 4, 7: 8}[x.of] * product(x.dims)
		if len(x.external) == 0 {
			if int64(len(x.raw)) != size {
				t.Errorf("tensor %s %v has %d bytes", x.name, x.dims, len(x.raw))
			}
		} else if x.external["length"] != fmt.Sprint(size) {
			t.Errorf("tensor %s %v has %s bytes elsewhere", x.name, x.dims, x.external["length"])
		}
	}
	names := map[string]bool{}
	for _, n := range m.nodes {
		if a, known := arity[n.op]; !known || len(n.in) < a[0] || len(n.in) > a[1] || len(n.out) != 1 || names[n.name] {
			t.Errorf("node %s: %s of %d inputs and %d outputs", n.name, n.op, len(n.in), len(n.out))
		}
		names[n.name] = true
		for _, in := range n.in {
			if !defined[in] {
				t.Errorf("node %s: input %q is not there yet", n.name, in)
			}
			used[in] = true
		}
		if defined[n.out[0]] {
			t.Errorf("two values %q", n.out[0])
		}
		defined[n.out[0]] = true
	}
	used[Output] = true
	for name := range defined {
		if !used[name] {
			t.Errorf("value %q is not used", name)
		}
	}
	for name := range m.between {
		if !names[name] {
			t.Errorf("type of %q, which no node gives", name)
		}
	}
}

// TestFamilies: every tiny model of the repository becomes a sound file, or is refused by the names of its ops.
func TestFamilies(t *testing.T) {
	refused := map[string]string{"mixtral": "ExpertLinear, ScaleRows, SumRows, TopK", "qwen3_moe": "ExpertLinear, ScaleRows, SumRows, TopK",
		"qwen3_next": "Conv, Decay, Delta, ExpertLinear", "qwen3_5_moe_text": "Conv, Decay, Delta, ExpertLinear"}
	seen := map[string]bool{}
	for _, path := range archives(t) {
		t.Run(strings.TrimSuffix(filepath.Base(path), ".tar.gz"), func(t *testing.T) {
			f, model := open(t, unpack(t, path))
			m, err := Translate(f)
			if ops := refused[f.Family]; ops != "" {
				if !errors.Is(err, ErrUnsupported) || !strings.Contains(err.Error(), ops) || !strings.Contains(err.Error(), f.Family) {
					t.Fatalf("error %v, want the ops %s", err, ops)
				}
				seen[f.Family] = true
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			files := written(t, m.Files("m.onnx", MaxInline))
			got := read(t, files["m.onnx"])
			got.check(t)
			if in, out := got.inputs[Input], got.outputs[Output]; len(files) != 1 || len(got.inputs) != 1 || len(got.outputs) != 1 || in.of != 7 || out.of != 1 ||
				fmt.Sprint(in.dims) != "[batch sequence]" || fmt.Sprint(out.dims) != fmt.Sprintf("[batch sequence %d]", model.Vocab) {
				t.Errorf("inputs %v, outputs %v", got.inputs, got.outputs)
			}
			shapes := map[string][]int64{}
			for _, x := range got.tensors {
				shapes[x.name] = x.dims
			}
			for _, class := range []ir.Class{ir.ClassWeight, ir.ClassConst} {
				for _, id := range f.Graph.Named(class) {
					if v := f.Graph.Value(id); fmt.Sprint(shapes[v.Name]) != strings.ReplaceAll(v.Type.Shape.String(), ",", " ") {
						t.Errorf("%s %s is %v, want %v", class, v.Name, shapes[v.Name], v.Type.Shape)
					}
				}
			}
		})
	}
	for family := range refused {
		if !seen[family] {
			t.Errorf("no model of %s", family)
		}
	}
}

// TestTwoFiles: tensors in a file of their own are the same bytes, each on a page.
func TestTwoFiles(t *testing.T) {
	f, _ := open(t, unpack(t, filepath.Join("..", "..", "testdata", "goldens", "llama_tied.tar.gz")))
	m, err := Translate(f)
	if err != nil {
		t.Fatal(err)
	}
	one, two := written(t, m.Files("x.onnx", MaxInline)), written(t, m.Files("x.onnx", 1<<10))
	data := two["x.onnx.data"]
	if len(one) != 1 || len(two) != 2 || len(data) == 0 {
		t.Fatalf("files %v and %v", sorted(one), sorted(two))
	}
	whole, apart := read(t, one["x.onnx"]), read(t, two["x.onnx"])
	apart.check(t)
	if !slices.EqualFunc(whole.nodes, apart.nodes, func(a, b readNode) bool { return a.name == b.name && slices.Equal(a.in, b.in) }) || !maps.EqualFunc(whole.between, apart.between, func(a, b readValue) bool { return slices.Equal(a.dims, b.dims) }) {
		t.Error("the graphs differ")
	}
	end, elsewhere := 0, 0
	for i, x := range apart.tensors {
		b := x.raw
		if len(x.external) > 0 {
			offset, err := strconv.Atoi(x.external["offset"])
			length, err2 := strconv.Atoi(x.external["length"])
			if errors.Join(err, err2) != nil || x.external["location"] != "x.onnx.data" || offset%4096 != 0 || offset < end || offset+length > len(data) {
				t.Fatalf("tensor %s lies at %v", x.name, x.external)
			}
			b, end = data[offset:offset+length], offset+length
			elsewhere++
		} else if len(b) >= 1<<10 {
			t.Errorf("tensor %s of %d bytes lies in the model's file", x.name, len(b))
		}
		if !bytes.Equal(b, whole.tensors[i].raw) || x.name != whole.tensors[i].name {
			t.Errorf("tensor %s differs", x.name)
		}
	}
	if elsewhere == 0 || end != len(data) {
		t.Errorf("%d tensors elsewhere, up to byte %d of %d", elsewhere, end, len(data))
	}
}

// TestGolden: a change of what is written shows in review; -update rewrites the text.
func TestGolden(t *testing.T) {
	qwen3, _ := open(t, unpack(t, filepath.Join("..", "..", "testdata", "goldens", "qwen3.tar.gz")))
	for name, f := range map[string]Forward{"qwen3": qwen3, "ops": everyOp(t)} {
		m, err := Translate(f)
		if err != nil {
			t.Fatal(err)
		}
		got := read(t, written(t, m.Files("m.onnx", MaxInline))["m.onnx"])
		got.check(t)
		path := filepath.Join("testdata", name+".txt")
		if *update {
			if err := os.WriteFile(path, []byte(got.text()), 0o644); err != nil {
				t.Fatal(err)
			}
		}
		if want, err := os.ReadFile(path); err != nil || string(want) != got.text() {
			t.Errorf("%s is not what is written (%v); if that is meant, run go test ./model/onnx -run Golden -update, and make check-onnx VERDICT=write", path, err)
		}
	}
}

// everyOp is a graph with each op that has a rule.
func everyOp(t *testing.T) Forward {
	t.Helper()
	g := ir.New("ops")
	ids, positions, offsets := g.Input("ids", ir.I32, ir.Of(ir.T)), g.Input("positions", ir.I32, ir.Of(ir.T)), g.Input("offsets", ir.I32, ir.Of(ir.S1))
	weight := func(name string, dims ...int) ir.ID {
		var shape ir.Shape
		for _, d := range dims {
			shape = append(shape, ir.Const(d))
		}
		return g.Weight(name, ir.F32, shape...)
	}
	cos, sin := g.Declare(ir.ClassConst, "rope.cos", ir.F32, ir.Const(10), ir.Const(2)), g.Declare(ir.ClassConst, "rope.sin", ir.F32, ir.Const(10), ir.Const(2))
	at := ir.Attrs{Layer: 0}
	op := func(o ir.Op, a ir.Attrs, in ...ir.ID) ir.ID { return g.Op1(o, a, in...) }
	x := op(ir.OpEmbed, ir.Attrs{Layer: -1, Module: "embed"}, ids, weight("embed.weight", 12, 8))
	x = op(ir.OpAdd, at, x, op(ir.OpEmbed, ir.Attrs{Layer: -1, Module: "places"}, positions, weight("places.weight", 10, 8)))
	x = op(ir.OpRMSNorm, ir.Attrs{Module: "norm", Eps: 1e-6, Heads: 1, Unit: true}, op(ir.OpCenter, at, x), weight("norm.weight", 8))
	x = op(ir.OpAddRow, at, x, weight("norm.bias", 8))
	q := op(ir.OpLinear, ir.Attrs{Module: "q"}, x, weight("q.weight", 24, 8), weight("q.bias", 24))
	q = op(ir.OpSlice, ir.Attrs{Heads: 2, Of: 12, Offset: 3, HeadDim: 6}, q)
	q = op(ir.OpRMSNorm, ir.Attrs{Module: "q_norm", Eps: 1e-6, Heads: 2}, q, weight("q_norm.weight", 6))
	q = op(ir.OpRope, ir.Attrs{Heads: 2, HeadDim: 6, Rotary: 4}, q, positions, cos, sin)
	k := op(ir.OpLinearT, ir.Attrs{Module: "k"}, x, weight("k.weight", 8, 6))
	k = op(ir.OpRope, ir.Attrs{Heads: 1, HeadDim: 6, Rotary: 4, Inverse: true}, k, positions, cos, sin)
	v := op(ir.OpSlice, ir.Attrs{Heads: 1, Of: 8, Offset: 1, HeadDim: 6}, x)
	y := op(ir.OpAttention, ir.Attrs{Scale: 0.5, Heads: 2, KVHeads: 1, HeadDim: 6, Window: 3, Softcap: 20}, q, k, v, offsets)
	z := op(ir.OpAttention, ir.Attrs{Scale: 0.5, Heads: 1, KVHeads: 1, HeadDim: 6}, k, k, v, offsets)
	z = op(ir.OpLinear, ir.Attrs{Module: "z"}, z, weight("z.weight", 12, 6))
	y = op(ir.OpMul, at, op(ir.OpSigmoid, at, y), z)
	y = op(ir.OpScaleAdd, ir.Attrs{Scale: 0.25}, y, op(ir.OpScale, ir.Attrs{Scale: 3}, z))
	y = op(ir.OpSiLUMul, at, op(ir.OpGELU, at, y), op(ir.OpGELUTanh, at, y))
	logits := op(ir.OpTanh, ir.Attrs{Layer: -1}, y)
	if _, err := g.Finish(); err != nil {
		t.Fatal(err)
	}
	have := map[ir.Op]bool{}
	for _, n := range g.Nodes {
		have[n.Op] = true
	}
	for o := range rules {
		if !have[o] {
			t.Errorf("the graph lacks %s", o)
		}
	}
	return Forward{Family: "ops", Graph: g, Logits: logits, Values: func(_ ir.Class, name string) func(io.Writer) error {
		id, _ := g.ByName(name)
		return func(w io.Writer) error {
			return Floats(w, make([]float32, g.Value(id).Type.Shape.Elements(ir.Dims{})))
		}
	}}
}

// TestRules: an op that has no rule is left out on purpose.
func TestRules(t *testing.T) {
	reasons := map[string][]ir.Op{
		"sampling": {ir.OpKVWrite, ir.OpPagedAttention, ir.OpGatherRows, ir.OpLSE, ir.OpConvState, ir.OpDeltaState, ir.OpAdapt},
		"losses": {ir.OpLogProb, ir.OpSub, ir.OpDiv, ir.OpNeg, ir.OpExp, ir.OpMin, ir.OpMax, ir.OpClamp, ir.OpGreater, ir.OpNonZero, ir.OpWhere, ir.OpDetach, ir.OpFill,
			ir.OpSegmentSum, ir.OpSegmentExpand},
		"gradients": {ir.OpLinearGradX, ir.OpLinearGradW, ir.OpBiasGrad, ir.OpEmbedGrad, ir.OpRMSNormGrad, ir.OpRMSNormGradW, ir.OpAttentionGrad, ir.OpSiLUMulGrad,
			ir.OpLogProbGrad, ir.OpSliceGrad, ir.OpGELUGrad, ir.OpGELUTanhGrad, ir.OpTopKGrad, ir.OpExpertGradX, ir.OpExpertGradW, ir.OpConvGrad, ir.OpConvGradW, ir.OpDeltaGrad},
		"optimizers":       {ir.OpSumSquares, ir.OpAdamW, ir.OpNarrow},
		"experts":          {ir.OpTopK, ir.OpExpertLinear, ir.OpScaleRows, ir.OpSumRows, ir.OpRepeatRows, ir.OpRowDot},
		"linear attention": {ir.OpConv, ir.OpDelta, ir.OpDecay, ir.OpSoftplus, ir.OpJoin},
	}
	why := map[ir.Op]string{}
	for reason, ops := range reasons {
		for _, o := range ops {
			why[o] = reason
		}
	}
	for _, o := range ir.Ops() {
		if (rules[o] == nil) == (why[o] == "") {
			t.Errorf("%s: rule %t, left out for %q; have one of the two", o, rules[o] != nil, why[o])
		}
	}
}

// TestRefusals: what a graph needs beyond token ids is named.
func TestRefusals(t *testing.T) {
	g := ir.New("x")
	h := g.Input("hidden", ir.F32, ir.Of(ir.T), ir.Const(4))
	y := g.Op1(ir.OpTanh, ir.Attrs{}, h)
	if _, err := Translate(Forward{Family: "x", Graph: g, Logits: y}); !errors.Is(err, ErrUnsupported) || !strings.Contains(err.Error(), "hidden") {
		t.Errorf("an input: %v", err)
	}
	if _, err := Translate(Forward{Family: "x", Graph: g, Logits: h}); !errors.Is(err, ErrUnsupported) {
		t.Errorf("nothing computed: %v", err)
	}
	f := everyOp(t)
	m, err := Translate(f)
	if err != nil {
		t.Fatal(err)
	}
	broken := errors.New("broken")
	m.initializers[0].write = func(io.Writer) error { return broken }
	if err := m.Files("x.onnx", MaxInline)[0].Write(io.Discard); !errors.Is(err, broken) || !strings.Contains(err.Error(), m.initializers[0].name) {
		t.Errorf("a tensor that can't be read: %v", err)
	}
	m.initializers[0].write = func(io.Writer) error { return nil }
	if err := m.Files("x.onnx", MaxInline)[0].Write(io.Discard); err == nil || !strings.Contains(err.Error(), "0 bytes came") {
		t.Errorf("a tensor cut short: %v", err)
	}
}
