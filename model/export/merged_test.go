package export

import (
	"bytes"
	"encoding/binary"
	"encoding/json"
	"errors"
	"maps"
	"math"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"smolgym/model/arch"
	"smolgym/model/gguf"
	"smolgym/model/hf"
	"smolgym/model/lora"
	"smolgym/model/safetensors"
)

// readAll reads a tensor of a folder as float32.
func readAll(t testing.TB, src hf.Source, name string) []float32 {
	t.Helper()
	ck, err := hf.Describe(src)
	if err != nil {
		t.Fatal(err)
	}
	w := ck.Weights(src)
	defer w.Close()
	x := make([]float32, ck.Tensors[name].Elements())
	if err := w.Float32s(x, name); err != nil {
		t.Fatal(err)
	}
	return x
}

// sideFiles are what people have beside their weights, in layouts that a rewrite would not keep.
var sideFiles = memory{
	"tokenizer.json": []byte("{ \"version\":\"1.0\" , \"model\": {}}\r\n"), "tokenizer_config.json": []byte("{\n\t\"chat_template\": \"{{ a }}\"}"),
	"chat_template.jinja": []byte("{% for m in messages %}\n{% endfor %}"), "generation_config.json": []byte("{\"eos_token_id\": [2,3],\"temperature\":0.70}"),
	"special_tokens_map.json": []byte("{}"), "README.md": []byte("# mine\n"), "LICENSE": []byte("free\n"),
}

func TestMergedSideFiles(t *testing.T) {
	g := openGolden(t, "steps_llama_tied")
	base := sharded(t, g.base, 2)
	maps.Copy(base, sideFiles)
	maps.Copy(base, memory{"pytorch_model.bin": []byte("old"), "consolidated.safetensors": g.base["model.safetensors"], "model.gguf": []byte("old")})
	before := map[string]string{}
	for name, b := range base {
		before[name] = string(b)
	}
	all := pair(t, g.tensors("lora.step3.", lora.Prefix), 8)
	body := slices.DeleteFunc(slices.Clone(all), func(m Module) bool { return m.Module == "lm_head" })

	p, err := Merged(base, Weights{Adapters: body}, MergedOptions{})
	out := build(t, p, err)
	if want := []string{"consolidated.safetensors", "model.gguf", "pytorch_model.bin"}; !slices.Equal(p.Skipped, want) {
		t.Errorf("left out %v, want %v", p.Skipped, want)
	}
	for name, b := range base {
		switch {
		case slices.Contains(p.Skipped, name):
			if out[name] != nil {
				t.Errorf("%s was exported", name)
			}
		case strings.HasSuffix(name, ".safetensors"):
			if bytes.Equal(out[name], b) || len(out[name]) == 0 {
				t.Errorf("%s has the old weights", name)
			}
		case !bytes.Equal(out[name], b):
			t.Errorf("%s is not byte-equal", name)
		}
		if string(b) != before[name] {
			t.Errorf("the base's %s was changed", name)
		}
	}

	p, err = Merged(base, Weights{Adapters: all}, MergedOptions{})
	out = build(t, p, err)
	want := strings.Replace(string(base["config.json"]), `"tie_word_embeddings": true`, `"tie_word_embeddings": false`, 1)
	if string(out["config.json"]) != want || want == string(base["config.json"]) {
		t.Errorf("config.json is\n%s\nwant\n%s", out["config.json"], want)
	}
	if len(p.Notes) != 2 || !strings.Contains(p.Notes[0], "lm_head.weight is written") {
		t.Errorf("notes %q", p.Notes)
	}
	checkIndex(t, base, out)
	ck, err := hf.Describe(out)
	if err != nil {
		t.Fatal(err)
	}
	if len(ck.Warnings) > 0 || ck.Tensors["lm_head.weight"].DType != safetensors.F32 {
		t.Errorf("warnings %q, head %v", ck.Warnings, ck.Tensors["lm_head.weight"])
	}
	if !slices.Equal(readAll(t, out, "model.embed_tokens.weight"), readAll(t, base, "model.embed_tokens.weight")) {
		t.Error("the adapter of the head changed the embedding")
	}
}

// checkIndex holds an index with a new head against the old one.
func checkIndex(t *testing.T, base, out memory) {
	t.Helper()
	type index struct {
		Metadata  map[string]any
		WeightMap map[string]string `json:"weight_map"`
	}
	var was, is index
	if err := errors.Join(json.Unmarshal(base[indexName], &was), json.Unmarshal(out[indexName], &is)); err != nil {
		t.Fatal(err)
	}
	head := 64 * 32.0
	if is.Metadata["total_size"] != was.Metadata["total_size"].(float64)+4*head || is.Metadata["total_parameters"] != was.Metadata["total_parameters"].(float64)+head || is.Metadata["note"] != "kept" {
		t.Errorf("index metadata %v, was %v", is.Metadata, was.Metadata)
	}
	if is.WeightMap["lm_head.weight"] != shardName(1, 2) {
		t.Errorf("the head is in %q", is.WeightMap["lm_head.weight"])
	}
	delete(is.WeightMap, "lm_head.weight")
	if !maps.Equal(is.WeightMap, was.WeightMap) {
		t.Error("other tensors moved")
	}
}

// A shard without a trained tensor is the old file, not a new one with the same tensors.
func TestMergedKeepsUntouchedShards(t *testing.T) {
	g := openGolden(t, "steps_llama")
	base := sharded(t, g.base, 4)
	modules := pair(t, g.tensors("lora.step3.model.layers.0.self_attn.q_proj.", lora.Prefix+"model.layers.0.self_attn.q_proj."), 8)
	p, err := Merged(base, Weights{Adapters: modules}, MergedOptions{})
	out := build(t, p, err)
	changed := 0
	for name, b := range base {
		if !bytes.Equal(out[name], b) {
			changed++
		}
	}
	if changed != 1 {
		t.Errorf("%d files changed, want 1", changed)
	}
}

// What the merge computes is lora.Merge's numbers, rounded once.
func TestMergedValues(t *testing.T) {
	for _, name := range []string{"steps_llama", "qwen3"} {
		g := openGolden(t, name)
		prefix := map[string]string{"steps_llama": "lora.step3.", "qwen3": "lora.init."}[name]
		modules := pair(t, g.tensors(prefix, lora.Prefix), 8)
		b, err := openBase(g.base)
		if err != nil {
			t.Fatal(err)
		}
		for _, dtype := range []safetensors.DType{safetensors.F32, safetensors.F16, safetensors.BF16} {
			p, err := Merged(g.base, Weights{Adapters: modules}, MergedOptions{DType: dtype})
			out := build(t, p, err)
			for _, m := range modules {
				at := b.byName[m.Module]
				at.Rank = m.Rank
				want := roundedOnce(t, readAll(t, g.base, at.Weight), valuesOf(t, m.A), valuesOf(t, m.B), at, m.Scale(), dtype)
				if d := distance(readAll(t, out, at.Weight), want); d > 0 {
					t.Errorf("%s %s %s: off by %g", name, dtype, m.Module, d)
				}
			}
			if ck, err := hf.Describe(out); err != nil || ck.Config.DType != torchName[dtype] {
				t.Errorf("dtype %q, %v", ck.Config.DType, err)
			}
		}
	}
}

// roundedOnce merges in float64 and picks the value of the type that is nearest, of two the even one.
func roundedOnce(t *testing.T, w, a, b []float32, at lora.Adapter, scale float64, dtype safetensors.DType) []float32 {
	t.Helper()
	merged, err := lora.Merge(w, a, b, at, scale)
	if err != nil || dtype == safetensors.F32 {
		return must(merged, err)
	}
	for i, v := range merged {
		sum := 0.0
		for r := range at.Rank {
			sum += float64(b[i/at.In*at.Rank+r]) * float64(a[r*at.In+i%at.In])
		}
		exact := float64(w[i]) + scale*sum
		var code [2]byte
		if err := safetensors.PutFloat32s(code[:], dtype, []float32{v}); err != nil {
			t.Fatal(err)
		}
		best, bits := math.Inf(1), binary.LittleEndian.Uint16(code[:])
		for _, near := range []uint16{bits - 1, bits, bits + 1} {
			var value [1]float32
			if err := safetensors.Float32s(value[:], dtype, binary.LittleEndian.AppendUint16(nil, near)); err != nil {
				t.Fatal(err)
			}
			if d := math.Abs(float64(value[0]) - exact); d < best || d == best && near&1 == 0 {
				best, merged[i] = d, value[0]
			}
		}
	}
	return merged
}

// Rounding to float32 and on to a shorter type must be rounding once. big.Float would be slower and no surer: the half-way
// cases are made here.
func TestOddRounding(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	for range 200000 {
		// A bfloat16, half of its last place, and a little that float32 does not hold.
		short := math.Float32frombits(uint32(r.Uint64())&0x7fff0000%0x70000000 + 0x08000000)
		step := float64(math.Float32frombits(math.Float32bits(short)+0x10000)) - float64(short)
		little := float64(short) * 0x1p-40 * float64(r.IntN(3)-1)
		x := float64(short) + step/2 + little
		var b [2]byte
		if err := safetensors.PutFloat32s(b[:], safetensors.BF16, []float32{odd(x)}); err != nil {
			t.Fatal(err)
		}
		var got [1]float32
		if err := safetensors.Float32s(got[:], safetensors.BF16, b[:]); err != nil {
			t.Fatal(err)
		}
		up := little > 0 || little == 0 && math.Float32bits(short)&0x10000 != 0
		want := float64(short)
		if up {
			want += step
		}
		if float64(got[0]) != want {
			t.Fatalf("%x rounds to %x, want %x", x, got[0], want)
		}
		if n := odd(-x); n != -odd(x) {
			t.Fatalf("%x and its negative round differently", x)
		}
	}
	for range 100000 { // the fast and the slow way agree where both are right
		x := math.Ldexp(r.Float64()-0.5, r.IntN(200)-100)
		if odd(x) != oddSubnormal(x) {
			t.Fatalf("%x becomes %x and %x", x, odd(x), oddSubnormal(x))
		}
	}
	if v := odd(math.NaN()); v == v {
		t.Error("a NaN becomes a number")
	}
	if odd(1) != 1 || odd(0) != 0 || !math.IsInf(float64(odd(1e300)), 1) || odd(1e-60) != math.SmallestNonzeroFloat32 {
		t.Error("special values")
	}
}

// A head that is stored as a copy of the embedding stays a copy.
func TestMergedStoredTiedHead(t *testing.T) {
	g := openGolden(t, "steps_llama_tied")
	text := g.base["model.safetensors"]
	f, err := safetensors.Parse(bytes.NewReader(text), int64(len(text)))
	if err != nil {
		t.Fatal(err)
	}
	embed, _ := f.Tensor("model.embed_tokens.weight")
	withHead := maps.Clone(g.base)
	withHead["model.safetensors"] = appended(t, text, "lm_head.weight", embed)
	full := Weights{Full: g.tensors("own.step3.", "")}
	p, err := Merged(withHead, full, MergedOptions{})
	out := build(t, p, err)
	if d := distance(readAll(t, out, "lm_head.weight"), readAll(t, out, "model.embed_tokens.weight")); d != 0 {
		t.Errorf("the stored head is %g off the trained embedding", d)
	}
	if !bytes.Equal(out["config.json"], withHead["config.json"]) {
		t.Error("the tie flag was touched")
	}
	all := Weights{Adapters: pair(t, g.tensors("lora.step3.", lora.Prefix), 8)}
	p, err = Merged(withHead, all, MergedOptions{})
	out = build(t, p, err)
	if d := distance(logits(t, out, g.ids(), Weights{}), logits(t, g.base, g.ids(), all)); d > 2e-5 {
		t.Errorf("with an adapter on the head, logits are %g off", d)
	}
	// The file brings another head beside the flag: it is used, and the export says so.
	other := appended(t, text, "lm_head.weight", embed)
	parsed := must(safetensors.Parse(bytes.NewReader(other), int64(len(other))))
	head, _ := parsed.Tensor("lm_head.weight")
	other[head.Offset] ^= 0x10
	withHead["model.safetensors"] = other
	p, err = Merged(withHead, Weights{}, MergedOptions{})
	out = build(t, p, err)
	if ck, err := hf.Describe(out); err != nil || ck.Config.TieWordEmbeddings == nil || *ck.Config.TieWordEmbeddings || len(p.Notes) != 1 {
		t.Errorf("flag %v, notes %q, %v", ck.Config.TieWordEmbeddings, p.Notes, err)
	}
}

// appended adds a copy of a tensor to a file.
func appended(t *testing.T, text []byte, name string, copied safetensors.Tensor) []byte {
	t.Helper()
	f, err := safetensors.Parse(bytes.NewReader(text), int64(len(text)))
	if err != nil {
		t.Fatal(err)
	}
	var entries []safetensors.Entry
	for _, x := range append(slices.Clone(f.Tensors()), safetensors.Tensor{Name: name, DType: copied.DType, Shape: copied.Shape, Offset: copied.Offset, Bytes: copied.Bytes}) {
		entries = append(entries, safetensors.Entry{Name: x.Name, DType: x.DType, Shape: x.Shape, Data: writeBytes(text[x.Offset:][:x.Bytes])})
	}
	var b bytes.Buffer
	if err := safetensors.Write(&b, entries, map[string]string{"format": "pt"}); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

func TestMergedRefusals(t *testing.T) {
	g := openGolden(t, "steps_llama")
	full := g.tensors("own.step3.", "")
	modules := pair(t, g.tensors("lora.step3.", lora.Prefix), 8)
	change := func(edit func(m *Module)) Weights {
		list := slices.Clone(modules)
		edit(&list[0])
		return Weights{Adapters: list}
	}
	for want, w := range map[string]Weights{
		"is missing":               {Full: full[1:]},
		"is no parameter":          {Full: append(slices.Clone(full), noise("model.extra.weight", []int64{2}, 1, 1))},
		"appears twice":            {Full: append(slices.Clone(full), full[0])},
		"the model has":            {Full: append(slices.Clone(full[1:]), noise(full[0].Name, []int64{3, 3}, 1, 1))},
		"is no module":             change(func(m *Module) { m.Module = "model.layers.7.self_attn.q_proj" }),
		"has rank 4 and alpha 0":   change(func(m *Module) { m.Alpha = 0 }),
		"rank 3 needs":             change(func(m *Module) { m.Rank = 3 }),
		"of lm_head appears twice": {Adapters: append(slices.Clone(modules), modules[0])},
	} {
		if _, err := Merged(g.base, w, MergedOptions{}); !errors.Is(err, ErrWeights) || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v", want, err)
		}
	}
	if _, err := Merged(g.base, Weights{}, MergedOptions{DType: safetensors.I8}); !errors.Is(err, ErrValue) {
		t.Errorf("I8: %v", err)
	}
	// Values that can't be written are found while writing: nothing is known about them before.
	for name, c := range map[string]struct {
		value float32
		dtype safetensors.DType
		want  string
	}{"nan": {float32(math.NaN()), "", "is NaN"}, "large": {7e4, safetensors.F16, "too large for F16; export as F32"}} {
		list := slices.Clone(full)
		bad := valuesOf(t, list[0])
		bad[5] = c.value
		list[0] = tensorOf(list[0].Name, list[0].Shape, bad)
		p, err := Merged(g.base, Weights{Full: list}, MergedOptions{DType: c.dtype})
		if err != nil {
			t.Fatal(err)
		}
		f, _ := p.File("model.safetensors")
		if err := f.Write(&bytes.Buffer{}); !errors.Is(err, ErrValue) || !strings.Contains(err.Error(), c.want) || !strings.Contains(err.Error(), list[0].Name) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func TestGGUF(t *testing.T) {
	for _, name := range []string{"steps_llama", "steps_llama_tied", "steps_qwen3"} {
		g := openGolden(t, name)
		ids := g.ids()
		for label, w := range map[string]Weights{"lora": {Adapters: pair(t, g.tensors("lora.step3.", lora.Prefix), 8)}, "full": {Full: g.tensors("own.step3.", "")}} {
			want := logits(t, g.base, ids, w)
			for _, c := range []struct {
				encoding gguf.Type
				within   float64
			}{{gguf.F32, 2e-5}, {gguf.F16, 2e-2}, {gguf.BF16, 1e-1}} {
				p, err := GGUF(g.base, w, GGUFOptions{Name: name, Type: c.encoding})
				b := build(t, p, err)["model.gguf"]
				f, err := gguf.Parse(bytes.NewReader(b), int64(len(b)))
				if err != nil {
					t.Fatal(err)
				}
				src, err := gguf.NewSource(f, gguf.Options{})
				if err != nil {
					t.Fatal(err)
				}
				if d := distance(logits(t, src, ids, Weights{}), want); d > c.within {
					t.Errorf("%s %s %s: logits are %g off", name, label, c.encoding, d)
				}
			}
		}
	}
}

func TestGGUFQuantised(t *testing.T) {
	g := openGolden(t, "llama_tied")
	w := Weights{Adapters: pair(t, g.tensors("lora.init.", lora.Prefix), 8)}
	p, err := GGUF(g.base, w, GGUFOptions{File: "small.gguf", Type: gguf.Q8_0})
	b := build(t, p, err)["small.gguf"]
	src := must(gguf.NewSource(must(gguf.Parse(bytes.NewReader(b), int64(len(b)))), gguf.Options{}))
	want := logits(t, g.base, g.ids(), w)
	if d := distance(logits(t, src, g.ids(), Weights{}), want); d > 0.2 {
		t.Errorf("logits are %g off", d)
	}
	if _, err := GGUF(openGolden(t, "steps_llama").base, Weights{}, GGUFOptions{Type: gguf.Q8_0}); !errors.Is(err, gguf.ErrUnsupported) {
		t.Errorf("rows of 40 as Q8_0: %v", err)
	}
}

// A model that came as GGUF goes out merged, too.
func TestMergedFromGGUF(t *testing.T) {
	g := openGolden(t, "steps_llama")
	p, err := GGUF(g.base, Weights{}, GGUFOptions{Type: gguf.F32})
	b := build(t, p, err)["model.gguf"]
	f, err := gguf.Parse(bytes.NewReader(b), int64(len(b)))
	if err != nil {
		t.Fatal(err)
	}
	src, err := gguf.NewSource(f, gguf.Options{})
	if err != nil {
		t.Fatal(err)
	}
	w := Weights{Adapters: pair(t, g.tensors("lora.step3.", lora.Prefix), 8)}
	p, err = Merged(src, w, MergedOptions{})
	out := build(t, p, err)
	if d := distance(logits(t, out, g.ids(), Weights{}), logits(t, g.base, g.ids(), w)); d > 2e-5 {
		t.Errorf("logits are %g off", d)
	}
	if _, err := arch.Build(must(hf.Describe(out)), arch.Decode); err != nil {
		t.Error(err)
	}
}

func must[T any](v T, err error) T {
	if err != nil {
		panic(err)
	}
	return v
}
