package export

import (
	"bytes"
	"errors"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"

	"smolgym/model/gguf"
	"smolgym/model/hf"
	"smolgym/model/lora"
	"smolgym/model/safetensors"
)

func writeBytes(b []byte) func(io.Writer) error {
	return func(w io.Writer) error {
		_, err := w.Write(b)
		return err
	}
}

func TestWriteRange(t *testing.T) {
	g := openGolden(t, "steps_llama")
	p, err := Merged(g.base, Weights{Adapters: pair(t, g.tensors("lora.step3.", lora.Prefix), 8)}, MergedOptions{})
	out := build(t, p, err)
	f, ok := p.File("model.safetensors")
	if !ok {
		t.Fatal("no weights")
	}
	whole := out[f.Path]
	for _, r := range [][2]int64{{0, 1}, {0, f.Size}, {f.Size, 0}, {7, 0}, {8, 1000}, {5001, 30000}, {f.Size - 3, 3}} {
		var b bytes.Buffer
		if err := f.WriteRange(&b, r[0], r[1]); err != nil || !bytes.Equal(b.Bytes(), whole[r[0]:r[0]+r[1]]) {
			t.Errorf("range %v: %d bytes, %v", r, b.Len(), err)
		}
	}
	for _, r := range [][2]int64{{-1, 1}, {0, f.Size + 1}, {f.Size + 1, 0}, {1, 1<<63 - 1}} {
		if err := f.WriteRange(io.Discard, r[0], r[1]); !errors.Is(err, ErrValue) {
			t.Errorf("range %v: %v", r, err)
		}
	}
	if err := f.WriteRange(failing{}, 5, 5); !errors.Is(err, io.ErrClosedPipe) {
		t.Errorf("a writer that fails: %v", err)
	}
	if err := f.Write(failing{}); !errors.Is(err, io.ErrClosedPipe) {
		t.Errorf("a writer that fails: %v", err)
	}
}

type failing struct{}

func (failing) Write([]byte) (int, error) { return 0, io.ErrClosedPipe }

func TestWriteDir(t *testing.T) {
	g := openGolden(t, "steps_llama")
	p, err := Merged(g.base, Weights{}, MergedOptions{})
	out := build(t, p, err)
	dir := filepath.Join(t.TempDir(), "a", "b")
	if err := p.WriteDir(dir); err != nil {
		t.Fatal(err)
	}
	names, err := os.ReadDir(dir)
	if err != nil || len(names) != len(p.Files) {
		t.Errorf("%d files, %v", len(names), err)
	}
	for name, want := range out {
		if got, err := os.ReadFile(filepath.Join(dir, name)); err != nil || !bytes.Equal(got, want) || !bytes.Equal(want, g.base[name]) {
			t.Errorf("%s differs: %v", name, err)
		}
	}
	if err := p.WriteDir(dir); !errors.Is(err, fs.ErrExist) {
		t.Errorf("over existing files: %v", err)
	}
	p.Files[1].Write = func(io.Writer) error { return io.ErrClosedPipe }
	fresh := t.TempDir()
	if err := p.WriteDir(fresh); !errors.Is(err, io.ErrClosedPipe) {
		t.Errorf("a failing file: %v", err)
	}
	if names, _ := os.ReadDir(fresh); len(names) != 1 {
		t.Errorf("a failed export leaves %v", names)
	}
}

// A base file that was exchanged since planning is an error, not an export of two halves.
func TestChangedBase(t *testing.T) {
	g := openGolden(t, "steps_llama")
	base := memory{}
	for n, b := range g.base {
		base[n] = b
	}
	base["notes.txt"] = []byte("abc")
	p, err := Merged(base, Weights{Full: g.tensors("own.step3.", "")}, MergedOptions{})
	if err != nil {
		t.Fatal(err)
	}
	base["notes.txt"] = []byte("abcd")
	f, _ := p.File("notes.txt")
	if err := f.Write(io.Discard); !errors.Is(err, ErrChanged) {
		t.Errorf("longer side file: %v", err)
	}
	p, err = Merged(base, Weights{Adapters: pair(t, g.tensors("lora.step3.", lora.Prefix), 8)}, MergedOptions{})
	if err != nil {
		t.Fatal(err)
	}
	base["model.safetensors"] = base["model.safetensors"][:len(base["model.safetensors"])/2]
	f, _ = p.File("model.safetensors")
	if err := f.Write(io.Discard); !errors.Is(err, ErrChanged) {
		t.Errorf("shorter weights: %v", err)
	}
}

func TestPair(t *testing.T) {
	a, b := noise(lora.Prefix+"m.lora_A.weight", []int64{2, 3}, 1, 1), noise(lora.Prefix+"m.lora_B.weight", []int64{5, 2}, 1, 2)
	modules, err := Pair([]Tensor{b, a}, 6)
	if err != nil || len(modules) != 1 || modules[0].Module != "m" || modules[0].Rank != 2 || modules[0].Scale() != 3 {
		t.Errorf("%+v, %v", modules, err)
	}
	for want, list := range map[string][]Tensor{
		"is no adapter's name": {noise("m.lora_A.weight", []int64{2, 3}, 1, 1)}, "appears twice": {a, a},
		"has A [2 3] and B []": {a}, "has A [2 3] and B [5 3]": {a, noise(b.Name, []int64{5, 3}, 1, 1)},
	} {
		if _, err := Pair(list, 1); !errors.Is(err, ErrWeights) || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v", want, err)
		}
	}
	short := Tensor{a.Name, []int64{4, 3}, func() (hf.ReaderAtSized, error) { return a.Open() }}
	if _, err := short.values(); !errors.Is(err, ErrWeights) {
		t.Errorf("24 bytes for 12 values: %v", err)
	}
}

func TestSetField(t *testing.T) {
	for _, c := range [][2]string{
		{`{"tie_word_embeddings":true}`, `{"tie_word_embeddings":false}`},
		{"{\n  \"a\": 1,\n  \"tie_word_embeddings\" :  null ,\n \"b\": [ true ]\n}\n", "{\n  \"a\": 1,\n  \"tie_word_embeddings\" :  false ,\n \"b\": [ true ]\n}\n"},
		{"{\n    \"a\": {\"tie_word_embeddings\": true}\n}", "{\n    \"tie_word_embeddings\": false,\n    \"a\": {\"tie_word_embeddings\": true}\n}"},
		{`{"text_config": {"x":"}", "tie_word_embeddings":true},"tie_word_embeddings": true }`, `{"text_config": {"x":"}", "tie_word_embeddings":false},"tie_word_embeddings": false }`},
		{`{"text_config":{"x":1}}`, `{"tie_word_embeddings": false,"text_config":{"x":1}}`},
		{`{}`, `{"tie_word_embeddings": false}`},
		{"{ }", "{ \"tie_word_embeddings\": false }"},
		{`{"\u0074ie_word_embeddings": true}`, `{"\u0074ie_word_embeddings": false}`},
	} {
		got, err := setField([]byte(c[0]), "false", true, tieFlag)
		if err != nil || string(got) != c[1] {
			t.Errorf("%s\nbecomes %s\nwant    %s (%v)", c[0], got, c[1], err)
		}
	}
	if got, err := setField([]byte(`{"dtype": "a"}`), `"b"`, true, "torch_dtype", "dtype"); err != nil || string(got) != `{"dtype": "b"}` {
		t.Errorf("%s, %v", got, err)
	}
	for _, bad := range []string{``, `[]`, `{"a":1`, `{"a":1}x`, `{"a":1,"a":2}`, `{"a"}`, `{"a":}`} {
		if got, err := setField([]byte(bad), "false", true, "b"); err == nil {
			t.Errorf("%s becomes %s", bad, got)
		}
	}
}

// Writing allocates a few blocks, whatever the size of the tensors: TotalAlloc counts all that was ever allocated.
func TestBoundedMemory(t *testing.T) {
	const vocab, hidden = 120_000, 64 // 31 MB as float32
	config := `{"model_type": "llama", "vocab_size": 120000, "hidden_size": 64, "intermediate_size": 64, "num_hidden_layers": 1,
		"num_attention_heads": 2, "max_position_embeddings": 64, "rms_norm_eps": 1e-6, "rope_theta": 10000, "tie_word_embeddings": true}`
	var entries []safetensors.Entry
	for name, shape := range map[string][]int64{"model.embed_tokens.weight": {vocab, hidden}, "model.norm.weight": {hidden}, "model.layers.0.input_layernorm.weight": {hidden},
		"model.layers.0.post_attention_layernorm.weight": {hidden}, "model.layers.0.self_attn.q_proj.weight": {hidden, hidden}, "model.layers.0.self_attn.k_proj.weight": {hidden, hidden},
		"model.layers.0.self_attn.v_proj.weight": {hidden, hidden}, "model.layers.0.self_attn.o_proj.weight": {hidden, hidden}, "model.layers.0.mlp.gate_proj.weight": {hidden, hidden},
		"model.layers.0.mlp.up_proj.weight": {hidden, hidden}, "model.layers.0.mlp.down_proj.weight": {hidden, hidden}} {
		entries = append(entries, safetensors.Entry{Name: name, DType: safetensors.F32, Shape: shape, Data: writeBytes(make([]byte, 4*product(shape)))})
	}
	var b bytes.Buffer
	if err := safetensors.Write(&b, entries, nil); err != nil {
		t.Fatal(err)
	}
	base := memory{configName: []byte(config), "model.safetensors": b.Bytes()}
	head := []Tensor{noise(lora.Prefix+"lm_head.lora_A.weight", []int64{8, hidden}, 1, 1), noise(lora.Prefix+"lm_head.lora_B.weight", []int64{vocab, 8}, 1, 2)}
	w := Weights{Adapters: pair(t, head, 8)}
	merged, err := Merged(base, w, MergedOptions{})
	if err != nil {
		t.Fatal(err)
	}
	converted, err := Merged(base, w, MergedOptions{DType: safetensors.BF16})
	if err != nil {
		t.Fatal(err)
	}
	quantised, err := GGUF(base, w, GGUFOptions{Type: gguf.Q8_0})
	if err != nil {
		t.Fatal(err)
	}
	for name, p := range map[string]*Plan{"merged": merged, "converted": converted, "gguf": quantised} {
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		for _, f := range p.Files {
			if err := f.Write(io.Discard); err != nil {
				t.Fatal(err)
			}
		}
		runtime.ReadMemStats(&after)
		if got := after.TotalAlloc - before.TotalAlloc; got > 16<<20 {
			t.Errorf("%s: writing %d bytes allocated %d", name, p.Bytes(), got)
		}
	}
}

// BenchmarkMerge merges a matrix of 1024 rows and columns with rank 32 into bfloat16.
func BenchmarkMerge(b *testing.B) {
	const n, rank = 1024, 32
	f, err := openFactors(Module{Rank: rank, Alpha: 32, A: noise("a", []int64{rank, n}, 1, 1), B: noise("b", []int64{n, rank}, 1, 2)}, lora.Adapter{In: n, Out: n})
	if err != nil {
		b.Fatal(err)
	}
	w, err := noise("w", []int64{n, n}, 1, 3).values()
	if err != nil {
		b.Fatal(err)
	}
	b.SetBytes(2 * n * n)
	for b.Loop() {
		if err := f.merge(io.Discard, w, 0, 0, n, safetensors.BF16); err != nil {
			b.Fatal(err)
		}
	}
}
