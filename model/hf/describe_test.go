package hf

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"smolgym/model/safetensors"
)

// memory is a Source over files in memory; it counts the open ones.
type memory struct {
	files map[string][]byte
	open  int
}

func (m *memory) Names() []string { return slices.Collect(maps.Keys(m.files)) }

func (m *memory) Open(name string) (ReaderAtSized, error) {
	b, ok := m.files[name]
	if !ok {
		return nil, fs.ErrNotExist
	}
	m.open++
	return &memoryFile{bytes.NewReader(b), m}, nil
}

type memoryFile struct {
	*bytes.Reader
	m *memory
}

func (f *memoryFile) Close() error { f.m.open--; return nil }

func values(dtype safetensors.DType, name string, shape ...int64) safetensors.Entry {
	n := dtype.Size()
	for _, d := range shape {
		n *= d
	}
	return safetensors.Entry{Name: name, DType: dtype, Shape: shape, Data: func(w io.Writer) error {
		_, err := w.Write(make([]byte, n))
		return err
	}}
}

func weights(t testing.TB, entries ...safetensors.Entry) []byte {
	t.Helper()
	var b bytes.Buffer
	if err := safetensors.Write(&b, entries, map[string]string{"format": "pt"}); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

// sharded is a sound checkpoint of three shards.
func sharded(t testing.TB) *memory {
	m := &memory{files: map[string][]byte{configName: []byte(base)}}
	index := map[string]string{}
	for i, tensor := range []string{"a", "b", "c"} {
		file := fmt.Sprintf("model-%05d-of-00003.safetensors", i+1)
		m.files[file] = weights(t, values(safetensors.BF16, tensor, 2, 2))
		index[tensor] = file
	}
	text, err := json.Marshal(map[string]any{"weight_map": index, "metadata": map[string]any{"total_size": 24}})
	if err != nil {
		t.Fatal(err)
	}
	m.files[indexName] = text
	return m
}

func TestDescribeSharded(t *testing.T) {
	m := sharded(t)
	c, err := Describe(m)
	if err != nil {
		t.Fatal(err)
	}
	if m.open != 0 {
		t.Errorf("%d files are still open", m.open)
	}
	if !slices.Equal(c.Names, []string{"a", "b", "c"}) || len(c.Files) != 3 || len(c.Warnings) != 0 || !c.Has("b") || c.Has("lm_head.weight") {
		t.Errorf("%+v", c)
	}
	b := c.Tensors["b"]
	if b.File != "model-00002-of-00003.safetensors" || b.DType != safetensors.BF16 || !slices.Equal(b.Shape, []int64{2, 2}) || b.Bytes != 8 ||
		b.Offset != int64(len(m.files[b.File]))-8 || b.Elements() != 4 {
		t.Errorf("%+v", b)
	}
}

func TestFR19MissingShard(t *testing.T) {
	m := sharded(t)
	delete(m.files, "model-00003-of-00003.safetensors")
	_, err := Describe(m)
	if !errors.Is(err, ErrMissing) || !strings.Contains(err.Error(), "model-00003-of-00003.safetensors") || strings.Contains(err.Error(), "00002") {
		t.Errorf("error %v, want the third file named", err)
	}
	m = sharded(t)
	cut := m.files["model-00002-of-00003.safetensors"]
	m.files["model-00002-of-00003.safetensors"] = cut[:len(cut)/2]
	if _, err = Describe(m); !errors.Is(err, safetensors.ErrHeader) && !errors.Is(err, safetensors.ErrTensor) || !strings.Contains(err.Error(), "model-00002-of-00003") {
		t.Errorf("error %v, want the cut file named", err)
	}
	if m.open != 0 {
		t.Errorf("%d files are still open", m.open)
	}
	m = sharded(t)
	m.files["model-00002-of-00003.safetensors"] = weights(t, values(safetensors.BF16, "other", 1))
	if _, err = Describe(m); !errors.Is(err, ErrMissing) || !strings.Contains(err.Error(), `"b"`) {
		t.Errorf("error %v, want the lost tensor named", err)
	}
}

func TestFR19WhatCountsAsACheckpoint(t *testing.T) {
	one := weights(t, values(safetensors.F32, "a", 1))
	tests := []struct {
		name  string
		files map[string][]byte
		is    error // nil: accepted
		text  string
	}{
		{"nothing", map[string][]byte{}, ErrMissing, "config.json"},
		{"no weights", map[string][]byte{configName: []byte(base)}, ErrMissing, "no weights"},
		{"another form", map[string][]byte{configName: []byte(base), "pytorch_model.bin": nil}, ErrMissing, "pytorch_model.bin"},
		{"no config", map[string][]byte{singleName: one}, ErrMissing, "config.json"},
		{"one file", map[string][]byte{configName: []byte(base), singleName: one}, nil, ""},
		{"one file of another name", map[string][]byte{configName: []byte(base), "mine.safetensors": one}, nil, ""},
		{"the only file of its set", map[string][]byte{configName: []byte(base), "model-00001-of-00001.safetensors": one}, nil, ""},
		{"one of a set", map[string][]byte{configName: []byte(base), "model-00001-of-00002.safetensors": one}, ErrMissing, "model-00001-of-00002"},
		{"two without an index", map[string][]byte{configName: []byte(base), "a.safetensors": one, "b.safetensors": one}, ErrMissing, `"a.safetensors", "b.safetensors"`},
		{"no tensors", map[string][]byte{configName: []byte(base), singleName: weights(t)}, ErrMissing, "no tensors"},
		{"broken config", map[string][]byte{configName: []byte("{"), singleName: one}, ErrInvalid, configName},
		{"broken generation config", map[string][]byte{configName: []byte(base), singleName: one, generationName: []byte("[]")}, ErrInvalid, generationName},
		{"empty index", map[string][]byte{configName: []byte(base), indexName: []byte(`{"weight_map":{}}`), "a.safetensors": one}, ErrInvalid, indexName},
		{"broken index", map[string][]byte{configName: []byte(base), indexName: []byte(`{`), "a.safetensors": one}, ErrInvalid, indexName},
	}
	for _, tt := range tests {
		_, err := Describe(&memory{files: tt.files})
		if !errors.Is(err, tt.is) || err != nil && !strings.Contains(err.Error(), tt.text) {
			t.Errorf("%s: error %v, want %v with %q", tt.name, err, tt.is, tt.text)
		}
	}
}

func TestOddChoicesAreWarnedOf(t *testing.T) {
	m := sharded(t)
	m.files["consolidated.safetensors"] = []byte("not read")
	m.files["model-00001-of-00003.safetensors"] = weights(t, values(safetensors.BF16, "a", 2, 2), values(safetensors.BF16, "extra", 1))
	m.files[generationName] = []byte(`{"eos_token_id":[600,2]}`)
	m.files[configName] = with(t, `{"eos_token_id":5,"rope_scaling":{"type":"default","factor":2}}`)
	c, err := Describe(m)
	if err != nil {
		t.Fatal(err)
	}
	if !slices.Equal(c.EOS, []int{2, 5, 600}) || !slices.Equal(c.GenerationConfig.EOS, []int{600, 2}) {
		t.Errorf("end-of-sequence ids %v", c.EOS)
	}
	for i, want := range []string{"rope_scaling.factor", "id 600", `"extra"`, "26", `"consolidated.safetensors"`} {
		if i >= len(c.Warnings) || !strings.Contains(c.Warnings[i], want) {
			t.Errorf("warnings %q, want %q as number %d", c.Warnings, want, i)
		}
	}
	m.files[singleName] = weights(t, values(safetensors.F32, "only", 1))
	if c, err = Describe(m); err != nil || !slices.Equal(c.Names, []string{"only"}) || !strings.Contains(c.Warnings[len(c.Warnings)-1], indexName) {
		t.Errorf("beside an index: %v, %+v", err, c)
	}
}

func TestContradictionsAreRefused(t *testing.T) {
	m := sharded(t)
	m.files["model-00001-of-00003.safetensors"] = weights(t, values(safetensors.BF16, "a", 1), values(safetensors.BF16, "b", 1))
	if _, err := Describe(m); !errors.Is(err, ErrInvalid) || !strings.Contains(err.Error(), `"b"`) {
		t.Errorf("a tensor in two files: %v", err)
	}
	m = sharded(t)
	m.files[indexName] = bytes.Replace(m.files[indexName], []byte(`"a":"model-00001`), []byte(`"a":"model-00002`), 1)
	m.files[indexName] = bytes.Replace(m.files[indexName], []byte(`"b":"model-00002`), []byte(`"b":"model-00001`), 1)
	if _, err := Describe(m); !errors.Is(err, ErrInvalid) || !strings.Contains(err.Error(), `"a", "b"`) {
		t.Errorf("tensors in the wrong files: %v", err)
	}
}

func TestFR18QuantisedIsRefusedByName(t *testing.T) {
	m := &memory{files: map[string][]byte{
		configName: with(t, `{"quantization_config":{"quant_method":"fp8","weight_block_size":[128,128]}}`),
		singleName: weights(t, values(safetensors.F8E4M3, "q_proj.weight", 2), values(safetensors.F64, "norm.weight", 2),
			values(safetensors.BF16, "k_proj.weight", 2), values(safetensors.U8, "h.0.attn.bias", 2), values(safetensors.I64, "packed", 1)),
	}}
	_, err := Describe(m)
	if !errors.Is(err, ErrUnsupported) {
		t.Fatalf("error %v", err)
	}
	for _, want := range []string{"quantization_config", `"fp8"`, "F8_E4M3", `"q_proj.weight"`, "F64", `"norm.weight"`, "I64", `"packed"`} {
		if !strings.Contains(err.Error(), want) {
			t.Errorf("error %q does not contain %q", err, want)
		}
	}
	if strings.Contains(err.Error(), "attn.bias") || strings.Contains(err.Error(), "k_proj") {
		t.Errorf("error %q names what is fine", err)
	}
}

var badNames = []string{
	"", ".", "..", "/etc/passwd", "/abs.safetensors", "../up.safetensors", "a/../../b.safetensors", "sub/model.safetensors", `..\up.safetensors`,
	`sub\model.safetensors`, "a..b.safetensors", "nul\x00.safetensors", strings.Repeat("n", 4096) + ".safetensors", strings.Repeat("n", 256), "\xff.safetensors",
}

func TestHostileFileNames(t *testing.T) {
	for _, name := range badNames {
		if err := CheckName(name); !errors.Is(err, ErrName) || len(err.Error()) > 400 {
			t.Errorf("%.40q: %v", name, err)
		}
		text, err := json.Marshal(map[string]any{"weight_map": map[string]string{"the.tensor": name}})
		if err != nil {
			t.Fatal(err)
		}
		m := &memory{files: map[string][]byte{configName: []byte(base), indexName: text, name: []byte("secret")}}
		if _, err := Describe(m); !errors.Is(err, ErrName) {
			t.Errorf("a source with %.40q: %v", name, err)
		}
		delete(m.files, name)
		m.files["a.safetensors"] = nil
		if name == "\xff.safetensors" {
			continue // JSON cannot carry it: it arrives as a replacement character
		}
		if _, err := Describe(m); !errors.Is(err, ErrName) || !strings.Contains(err.Error(), "the.tensor") {
			t.Errorf("an index with %.40q: %v", name, err)
		}
	}
	for _, name := range []string{"model.safetensors", "a b.safetensors", "κ.json", ".gitattributes", strings.Repeat("n", 255)} {
		if err := CheckName(name); err != nil {
			t.Errorf("%.40q: %v", name, err)
		}
	}
}

// writeFiles puts a source's files into a folder.
func writeFiles(t *testing.T, dir string, files map[string][]byte) {
	t.Helper()
	for name, text := range files {
		if err := os.WriteFile(filepath.Join(dir, name), text, 0o600); err != nil {
			t.Fatal(err)
		}
	}
}

func TestDir(t *testing.T) {
	dir, outside := t.TempDir(), t.TempDir()
	writeFiles(t, dir, sharded(t).files)
	writeFiles(t, outside, map[string][]byte{"secret": []byte("secret"), "blob": []byte(`{"eos_token_id":7}`)})
	// A download cache is made of links, so a link to a file counts; one to a folder, or to nothing, does not.
	for link, target := range map[string]string{generationName: filepath.Join(outside, "blob"), "folder": outside, "dead.safetensors": "nowhere"} {
		if err := os.Symlink(target, filepath.Join(dir, link)); err != nil {
			t.Skipf("no symbolic links here: %v", err)
		}
	}
	if err := os.Mkdir(filepath.Join(dir, "sub.safetensors"), 0o700); err != nil {
		t.Fatal(err)
	}
	src, err := OpenPath(dir)
	if err != nil {
		t.Fatal(err)
	}
	if names := src.Names(); len(names) != 6 || slices.Contains(names, "folder") {
		t.Errorf("names %q", names)
	}
	c, err := Describe(src)
	if err != nil || !slices.Equal(c.EOS, []int{7}) || len(c.Warnings) != 0 {
		t.Errorf("%v, %+v", err, c)
	}
	for _, name := range append([]string{filepath.Join("..", filepath.Base(outside), "secret"), filepath.Join(outside, "secret")}, badNames...) {
		if f, err := src.Open(name); !errors.Is(err, ErrName) {
			t.Errorf("opened %.40q: %v, %v", name, f, err)
		}
	}
	for _, name := range []string{"sub.safetensors", "folder", "absent"} {
		if _, err := src.Open(name); !errors.Is(err, ErrMissing) {
			t.Errorf("opened %q: %v", name, err)
		}
	}
	if _, err := Dir(filepath.Join(dir, "absent")); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("absent folder: %v", err)
	}
}

func TestSingleFile(t *testing.T) {
	dir := t.TempDir()
	files := sharded(t).files
	files["mine.safetensors"] = weights(t, values(safetensors.F16, "x", 3))
	files["tokenizer.json"] = []byte("{}")
	files["notes.txt"] = nil
	writeFiles(t, dir, files)
	src, err := OpenPath(filepath.Join(dir, "mine.safetensors"))
	if err != nil {
		t.Fatal(err)
	}
	if names := src.Names(); !slices.Equal(names, []string{configName, "mine.safetensors", "tokenizer.json"}) {
		t.Errorf("names %q", names)
	}
	c, err := Describe(src)
	if err != nil || !slices.Equal(c.Files, []string{"mine.safetensors"}) || !slices.Equal(c.Names, []string{"x"}) {
		t.Errorf("%v, %+v", err, c)
	}
	if src, err = SingleFile(filepath.Join(dir, "model-00001-of-00003.safetensors")); err != nil {
		t.Fatal(err)
	}
	if _, err = Describe(src); !errors.Is(err, ErrMissing) {
		t.Errorf("one shard alone: %v", err)
	}
	if _, err := SingleFile(filepath.Join(dir, "notes.txt")); !errors.Is(err, ErrUnsupported) {
		t.Errorf("no weight file: %v", err)
	}
	if _, err := OpenPath(filepath.Join(dir, "absent.safetensors")); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("absent: %v", err)
	}
}

func TestWeights(t *testing.T) {
	m := sharded(t)
	m.files["model-00002-of-00003.safetensors"] = weights(t, safetensors.Entry{Name: "b", DType: safetensors.BF16, Shape: []int64{2, 2}, Data: func(w io.Writer) error {
		b := make([]byte, 8)
		if err := safetensors.PutFloat32s(b, safetensors.BF16, []float32{1, -2, 0.5, 3.140625}); err != nil {
			return err
		}
		_, err := w.Write(b)
		return err
	}})
	c, err := Describe(m)
	if err != nil {
		t.Fatal(err)
	}
	w := c.Weights(m)
	got := make([]float32, 4)
	if err := w.Float32s(got, "b"); err != nil || !slices.Equal(got, []float32{1, -2, 0.5, 3.140625}) {
		t.Errorf("b = %v, %v", got, err)
	}
	if err := w.Bytes(make([]byte, 8), "a"); err != nil {
		t.Error(err)
	}
	if err := w.Bytes(make([]byte, 7), "a"); !errors.Is(err, safetensors.ErrLength) {
		t.Errorf("short buffer: %v", err)
	}
	if err := w.Float32s(got, "gone"); !errors.Is(err, ErrMissing) {
		t.Errorf("absent: %v", err)
	}
	if m.open != 2 {
		t.Errorf("%d files are open, want 2", m.open)
	}
	if err := w.Close(); err != nil || m.open != 0 {
		t.Errorf("close: %v, %d files open", err, m.open)
	}
}

func TestDescribeGoldens(t *testing.T) {
	archives := goldens(t)
	if len(archives) == 0 {
		t.Skip("shared goldens are absent; set SMOLGYM_SHARED")
	}
	if len(archives) != 20 {
		t.Errorf("%d archives, want 20", len(archives))
	}
	for _, archive := range archives {
		name := strings.TrimSuffix(filepath.Base(archive), ".tar.gz")
		t.Run(name, func(t *testing.T) {
			m := &memory{files: map[string][]byte{}}
			var golden struct {
				Shapes map[string][]int64 `json:"parameters"`
			}
			unpack(t, archive, func(path string, text []byte) {
				switch base := filepath.Base(path); base {
				case "golden.json":
					if err := json.Unmarshal(text, &golden); err != nil {
						t.Fatal(err)
					}
				case "golden.safetensors", "config_v4.json":
				default:
					m.files[base] = text
				}
			})
			c, err := Describe(m)
			if err != nil {
				t.Fatal(err)
			}
			if len(c.Warnings) > 0 || !slices.Equal(c.EOS, []int{2}) {
				t.Errorf("warnings %q, end-of-sequence ids %v", c.Warnings, c.EOS)
			}
			want := map[string]safetensors.DType{"llama": safetensors.F32, "gpt2": safetensors.F32, "gpt_neox": safetensors.F16}[name]
			if want == "" {
				want = safetensors.BF16
			}
			w := c.Weights(m)
			defer w.Close()
			for _, n := range c.Names {
				tensor := c.Tensors[n]
				values := make([]float32, tensor.Elements())
				if err := w.Float32s(values, n); err != nil || tensor.DType != want {
					t.Errorf("%s: %s, %v", n, tensor.DType, err)
				}
				if slices.Max(values) == 0 && slices.Min(values) == 0 {
					t.Errorf("%s is all zero", n)
				}
				// The file's names are those of the loaded model, but for some prefixes and per-expert tensors.
				if shape, ok := golden.Shapes[n]; ok && !slices.Equal(shape, tensor.Shape) {
					t.Errorf("%s has shape %v, want %v", n, tensor.Shape, shape)
				}
			}
			plain := []string{"llama", "qwen2", "qwen3", "mistral", "smollm3", "olmo2", "granite", "phi3", "gemma2", "gemma3_text", "gpt2", "gpt_neox"}
			if slices.Contains(plain, c.Config.ModelType) && !slices.Equal(c.Names, slices.Sorted(maps.Keys(golden.Shapes))) {
				t.Errorf("tensors %q", c.Names)
			}
			tied := c.Config.TieWordEmbeddings != nil && *c.Config.TieWordEmbeddings
			if head := c.Has("lm_head.weight") || c.Has("embed_out.weight"); head == tied {
				t.Errorf("tied %t, own head %t", tied, head)
			}
		})
	}
}

func TestDescribeStories(t *testing.T) {
	dir := filepath.Join(sharedRoot(), "data", "models", "stories260k")
	if _, err := os.Stat(dir); err != nil {
		t.Skipf("shared models are absent; set SMOLGYM_SHARED: %v", err)
	}
	src, err := SingleFile(filepath.Join(dir, singleName))
	if err != nil {
		t.Fatal(err)
	}
	c, err := Describe(src)
	if err != nil {
		t.Fatal(err)
	}
	if len(c.Names) != 5*9+2 || c.Config.Layers != 5 || c.Config.HeadDim != 8 || !*c.Config.TieWordEmbeddings || len(c.Warnings) != 0 ||
		len(c.Config.Unused(plainBuilder...)) != 0 || !slices.Equal(c.EOS, []int{2}) {
		t.Errorf("%d tensors, %+v, unused %v", len(c.Names), c.Config, c.Config.Unused(plainBuilder...))
	}
	if _, err := Dir(dir); err != nil {
		t.Error(err)
	}
}

func FuzzIndex(f *testing.F) {
	f.Add(sharded(f).files[indexName])
	f.Add([]byte(`{"weight_map":{"a":"../x.safetensors"},"metadata":{"total_size":1e3}}`))
	f.Add([]byte(`{"metadata":null,"weight_map":{"a":"x.safetensors","a":"y.safetensors"}}`))
	f.Fuzz(func(t *testing.T, text []byte) {
		index, err := ParseIndex(text)
		if err != nil {
			return
		}
		if len(index.Files) == 0 {
			t.Fatal("accepted an index of nothing")
		}
		for tensor, file := range index.Files {
			if CheckName(file) != nil || filepath.Base(file) != file || len(tensor) > safetensors.MaxNameBytes {
				t.Fatalf("accepted %q in %q", tensor, file)
			}
		}
	})
}

func FuzzDescribe(f *testing.F) {
	f.Add([]byte(base), weights(f, values(safetensors.F32, "a", 2)), []byte(`{"eos_token_id":[1]}`))
	f.Add([]byte(`{}`), weights(f), []byte(`{}`))
	f.Fuzz(func(t *testing.T, config, file, generation []byte) {
		m := &memory{files: map[string][]byte{configName: config, singleName: file, generationName: generation}}
		c, err := Describe(m)
		if m.open != 0 {
			t.Fatalf("%d files are still open", m.open)
		}
		if err != nil {
			return
		}
		for _, name := range c.Names {
			if tensor := c.Tensors[name]; tensor.Offset+tensor.Bytes > int64(len(file)) {
				t.Fatalf("accepted %+v", tensor)
			}
		}
	})
}
