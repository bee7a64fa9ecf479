package gguf

import (
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	goldens "smolgym/model/golden"
	"smolgym/model/hf"
	"smolgym/model/safetensors"
)

// checkpoint is a folder in memory.
type checkpoint map[string][]byte

func (c checkpoint) Names() []string {
	var names []string
	for n := range c {
		names = append(names, n)
	}
	return names
}

func (c checkpoint) Open(name string) (hf.ReaderAtSized, error) {
	return readerAt{bytes.NewReader(c[name]), int64(len(c[name]))}, nil
}

// goldenCheckpoint unpacks one of the repository's checkpoints.
func goldenCheckpoint(tb testing.TB, name string) checkpoint {
	tb.Helper()
	return goldens.Files(tb, goldens.Path(tb, name), "config.json", "generation_config.json", "model.safetensors")
}

// modelOf makes a checkpoint ready for an export; data is written in pieces of odd lengths.
func modelOf(tb testing.TB, c checkpoint) Model {
	tb.Helper()
	b := c["model.safetensors"]
	f, err := safetensors.Parse(bytes.NewReader(b), int64(len(b)))
	if err != nil {
		tb.Fatal(err)
	}
	m := Model{Name: "golden", Config: c["config.json"], GenerationConfig: c["generation_config.json"]}
	for _, t := range f.Tensors() {
		m.Tensors = append(m.Tensors, safetensors.Entry{Name: t.Name, DType: t.DType, Shape: t.Shape, Data: func(w io.Writer) error {
			for at, n := int64(0), int64(1); at < t.Bytes; at += n {
				n = min(7*n%9973+1, t.Bytes-at)
				if _, err := w.Write(b[t.Offset+at:][:n]); err != nil {
					return err
				}
			}
			return nil
		}})
	}
	return m
}

func exported(tb testing.TB, m Model, t Type) []byte {
	tb.Helper()
	var b, again bytes.Buffer
	if err := Export(&b, m, t); err != nil {
		tb.Fatal(err)
	}
	if err := Export(&again, m, t); err != nil || !bytes.Equal(b.Bytes(), again.Bytes()) {
		tb.Errorf("a second export differs (%v)", err)
	}
	if n, err := ExportSize(m, t); err != nil || n != int64(b.Len()) {
		tb.Errorf("size %d, %v; %d bytes were written", n, err, b.Len())
	}
	return b.Bytes()
}

// values reads a tensor of a checkpoint.
func values(tb testing.TB, src hf.Source, c *hf.Checkpoint, name string) []float32 {
	tb.Helper()
	w := c.Weights(src)
	defer w.Close()
	v := make([]float32, c.Tensors[name].Elements())
	if err := w.Float32s(v, name); err != nil {
		tb.Fatal(err)
	}
	return v
}

var roundTrips = []string{"llama", "llama_tied", "llama_bias_headdim", "llama_linear_rope", "llama3_rope", "llama_yarn_rope", "qwen3"}

// A checkpoint, written and read again, is the checkpoint: every value within the rounding of the encoding, every setting.
func TestExportRoundTrip(t *testing.T) {
	for _, name := range roundTrips {
		src := goldenCheckpoint(t, name)
		want, err := hf.Describe(src)
		if err != nil {
			t.Fatal(err)
		}
		for _, encoding := range writable {
			t.Run(name+"/"+encoding.String(), func(t *testing.T) {
				m := modelOf(t, src)
				b := exported(t, m, encoding)
				f, err := parse(b)
				if err != nil {
					t.Fatal(err)
				}
				back, err := NewSource(f, Options{})
				if err != nil {
					t.Fatal(err)
				}
				got, err := hf.Describe(back)
				if err != nil {
					t.Fatal(err)
				}
				sameSettings(t, want, got)
				if !slices.Equal(got.Names, want.Names) {
					t.Fatalf("tensors %v, want %v", got.Names, want.Names)
				}
				for _, tensor := range want.Names {
					close(t, tensor, values(t, back, got, tensor), values(t, src, want, tensor), encoding)
				}
			})
		}
	}
}

func sameSettings(t *testing.T, want, got *hf.Checkpoint) {
	t.Helper()
	a, b := want.Config, got.Config
	for _, c := range []*hf.Config{&a, &b} {
		if c.Rope.LowFreqFactor > 0 { // only the ratios count
			c.Rope.OriginalMaxPositions = int(float64(c.Rope.OriginalMaxPositions) / c.Rope.LowFreqFactor)
			c.Rope.HighFreqFactor /= c.Rope.LowFreqFactor
			c.Rope.LowFreqFactor = 1
		}
	}
	pick := func(c hf.Config) string {
		text, err := json.Marshal([]any{c.ModelType, c.Architectures, c.VocabSize, c.HiddenSize, c.IntermediateSize, c.Layers, c.Heads, c.KVHeads,
			c.HeadDim, c.MaxPositions, c.RMSNormEps, c.HiddenAct, c.TieWordEmbeddings, c.Rope,
			c.AttentionBias != nil && *c.AttentionBias, c.MLPBias != nil && *c.MLPBias})
		if err != nil {
			t.Fatal(err)
		}
		return string(text)
	}
	if pick(a) != pick(b) {
		t.Errorf("settings\n%s, want\n%s", pick(b), pick(a))
	}
}

// close compares with what the encoding can hold.
func close(t *testing.T, name string, got, want []float32, encoding Type) {
	t.Helper()
	bound := map[Type]float64{F32: 0, F16: 1.0 / 2048, BF16: 1.0 / 256}[encoding]
	for i := range got {
		limit := bound*math.Abs(float64(want[i])) + 6e-8*min(bound*1e9, 1)
		if encoding == Q8_0 && len(got) >= 1024 { // half a step of the block, and the rounding of its scale
			var most float64
			for _, v := range want[i/32*32:][:32] {
				most = math.Max(most, math.Abs(float64(v)))
			}
			limit = most/127*0.5 + most/1024
		}
		if math.Abs(float64(got[i])-float64(want[i])) > limit {
			t.Fatalf("%s: element %d is %v, want %v", name, i, got[i], want[i])
		}
	}
}

// Any part of the virtual file is the same part of the whole.
func TestVirtualFileInParts(t *testing.T) {
	for _, as := range []safetensors.DType{safetensors.F32, safetensors.F16, safetensors.BF16} {
		for _, encoding := range []Type{BF16, Q8_0} {
			f, err := parse(exported(t, modelOf(t, goldenCheckpoint(t, "llama")), encoding))
			if err != nil {
				t.Fatal(err)
			}
			s, err := NewSource(f, Options{As: as})
			if err != nil {
				t.Fatal(err)
			}
			r, err := s.Open(weightsName)
			if err != nil {
				t.Fatal(err)
			}
			whole := make([]byte, r.Size())
			if n, err := r.ReadAt(whole, 0); n != len(whole) || err != nil {
				t.Fatalf("%d bytes of %d, %v", n, len(whole), err)
			}
			if _, err := safetensors.Parse(bytes.NewReader(whole), int64(len(whole))); err != nil {
				t.Fatal(err)
			}
			part := make([]byte, 1<<16)
			for at, n := int64(0), int64(1); at < r.Size(); at += n/2 + 1 {
				n = 13*n%60013 + 1
				got, err := r.ReadAt(part[:n], at)
				if want := min(n, r.Size()-at); int64(got) != want || (err == io.EOF) != (want < n) {
					t.Fatalf("%d bytes at %d: %d, %v", n, at, got, err)
				}
				if !bytes.Equal(part[:got], whole[at:][:got]) {
					t.Fatalf("%d bytes at %d differ", got, at)
				}
			}
			if n, err := r.ReadAt(part, r.Size()); n != 0 || err != io.EOF {
				t.Errorf("after the end: %d, %v", n, err)
			}
		}
	}
}

// Reading keeps a fixed amount of memory.
func TestVirtualFileMemory(t *testing.T) {
	f, err := parse(exported(t, modelOf(t, goldenCheckpoint(t, "llama")), Q8_0))
	if err != nil {
		t.Fatal(err)
	}
	s, err := NewSource(f, Options{})
	if err != nil {
		t.Fatal(err)
	}
	r, err := s.Open(weightsName)
	if err != nil {
		t.Fatal(err)
	}
	p := make([]byte, r.Size())
	if grown := allocated(func() { _, err = r.ReadAt(p, 0) }); grown > 1<<20 || err != nil {
		t.Errorf("%d bytes for %d, %v", grown, len(p), err)
	}
}

// A file on disk is opened only to be read, and noticed when it changes.
func TestOpenPath(t *testing.T) {
	path := filepath.Join(t.TempDir(), "m.gguf")
	b := exported(t, modelOf(t, goldenCheckpoint(t, "qwen3")), F16)
	if err := os.WriteFile(path, b, 0o600); err != nil {
		t.Fatal(err)
	}
	s, err := OpenPath(path, Options{})
	if err != nil {
		t.Fatal(err)
	}
	if want := []string{"config.json", "generation_config.json", "model.safetensors"}; !slices.Equal(s.Names(), want) || s.Tokenizer {
		t.Errorf("names %v", s.Names())
	}
	if len(s.Warnings) != 1 || !strings.Contains(s.Warnings[0], "no tokenizer") {
		t.Errorf("warnings %q", s.Warnings)
	}
	if f, err := parse(b); err != nil {
		t.Error(err)
	} else if model, err := f.Text(modelKey, 64); err != nil || model != "no_vocab" {
		t.Errorf("%s is %q, %v: llama.cpp loads no file without it", modelKey, model, err) // its loader requires the key
	}
	if _, err := hf.Describe(s); err != nil {
		t.Error(err)
	}
	if _, err := s.Open("other"); !errors.Is(err, hf.ErrMissing) {
		t.Errorf("other: %v", err)
	}
	if err := os.WriteFile(path, b[:len(b)-64], 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := s.Open(weightsName); !errors.Is(err, ErrHeader) {
		t.Errorf("changed file: %v", err)
	}
	if _, err := OpenPath(path, Options{}); !errors.Is(err, ErrTensor) {
		t.Errorf("cut file: %v", err)
	}
}

// What the format can't say is refused before a byte is written, all of it at once.
func TestExportRefusals(t *testing.T) {
	change := func(from, to string) func(*Model) {
		return func(m *Model) {
			if !bytes.Contains(m.Config, []byte(from)) {
				t.Fatalf("no %q in the configuration", from)
			}
			m.Config = bytes.Replace(m.Config, []byte(from), []byte(to), 1)
		}
	}
	tests := []struct {
		name   string
		t      Type
		change func(*Model)
		names  []string
	}{
		{"encoding", Q4_0, func(*Model) {}, []string{"Q4_0"}},
		{"family", F16, change(`"llama"`, `"gpt_neox"`), []string{"gpt_neox"}},
		{"activation", F16, change(`"silu"`, `"relu"`), []string{"hidden_act", "relu"}},
		{"scaling", F16, change(`"rope_type": "default"`, `"rope_type": "dynamic", "factor": 2.0`), []string{"dynamic"}},
		{"a field", F16, change(`"pretraining_tp": 1`, `"pretraining_tp": 2`), []string{"pretraining_tp"}},
		{"missing", F16, func(m *Model) { m.Tensors = m.Tensors[2:] }, []string{"lm_head.weight", "model.embed_tokens.weight"}},
		{"unknown", F16, func(m *Model) { m.Tensors[3].Name = "model.layers.7.x.weight" }, []string{"model.layers.7.x.weight"}},
		{"rows", Q8_0, func(m *Model) { m.Tensors[0].Shape = []int64{1024, 48} }, []string{"lm_head.weight", "48"}},
		{"heads", F16, change(`"num_attention_heads": 4`, `"num_attention_heads": 8`), []string{"q_proj.weight", "64 rows"}},
	}
	for _, tt := range tests {
		m := modelOf(t, goldenCheckpoint(t, "llama"))
		tt.change(&m)
		var b bytes.Buffer
		err := Export(&b, m, tt.t)
		if !errors.Is(err, ErrUnsupported) || b.Len() > 0 {
			t.Errorf("%s: %v, %d bytes", tt.name, err, b.Len())
			continue
		}
		for _, want := range tt.names {
			if !strings.Contains(err.Error(), want) {
				t.Errorf("%s: %v does not name %s", tt.name, err, want)
			}
		}
	}
	m := modelOf(t, goldenCheckpoint(t, "llama"))
	data := m.Tensors[0].Data
	m.Tensors[0].Data = func(w io.Writer) error { return data(io.Discard) }
	if err := Export(io.Discard, m, F16); !errors.Is(err, ErrLength) {
		t.Errorf("short data: %v", err)
	}
	m.Tensors[0].Data = func(w io.Writer) error { return errors.Join(data(w), data(w)) }
	if err := Export(io.Discard, m, F16); !errors.Is(err, ErrLength) {
		t.Errorf("long data: %v", err)
	}
}

func TestInterleavedIsAPermutation(t *testing.T) {
	for _, size := range []int64{2, 8, 64} {
		seen := map[int64]bool{}
		for row := range 3 * size {
			seen[interleaved(row, size)] = true
		}
		if len(seen) != int(3*size) {
			t.Errorf("heads of %d: %d rows of %d", size, len(seen), 3*size)
		}
	}
	// A head of 8 rows: rows 0 and 4 of the checkpoint are rotated together, and are rows 0 and 1 of the file.
	for row, want := range []int64{0, 2, 4, 6, 1, 3, 5, 7} {
		if got := interleaved(int64(row), 8); got != want {
			t.Errorf("row %d is stored as %d, want %d", row, got, want)
		}
	}
}

func TestSolveLlama3(t *testing.T) {
	for _, s := range []llama3Scaling{{8, 1, 4, 8192}, {32, 1, 4, 8192}, {4, 1, 8, 64}, {2, 2, 8, 8192}} {
		for _, dims := range []int{16, 64, 128} {
			want := s.factors(500000, dims)
			got, err := solveLlama3(want, 500000)
			if err != nil {
				t.Errorf("%v, %d: %v", s, dims, err)
				continue
			}
			for i, v := range got.factors(500000, dims) {
				if math.Abs(float64(v/want[i])-1) > 1e-6 {
					t.Errorf("%v, %d: factor %d is %v, want %v (%v)", s, dims, i, v, want[i], got)
				}
			}
		}
	}
	if _, err := solveLlama3([]float32{1, 2, 1, 9}, 10000); !errors.Is(err, ErrUnsupported) {
		t.Errorf("any factors: %v", err)
	}
}

// zeros writes n zero bytes.
func zeros(n int64) func(io.Writer) error {
	return func(w io.Writer) error {
		_, err := io.CopyN(w, zeroReader{}, n)
		return err
	}
}

type zeroReader struct{}

func (zeroReader) Read(p []byte) (int, error) {
	clear(p)
	return len(p), nil
}

// A tensor of 32 MB passes through a fixed amount of memory.
func TestExportMemory(t *testing.T) {
	m := modelOf(t, goldenCheckpoint(t, "llama"))
	const rows = 1 << 17
	m.Config = bytes.Replace(m.Config, []byte(`"vocab_size": 512`), []byte(`"vocab_size": 131072`), 1)
	for i := range m.Tensors {
		if e := &m.Tensors[i]; e.Shape[0] == 512 {
			e.Shape, e.Data = []int64{rows, 64}, zeros(rows*64*4)
		}
	}
	var err error
	if grown := allocated(func() { err = Export(io.Discard, m, Q8_0) }); grown > 4<<20 || err != nil {
		t.Errorf("%d bytes were allocated, %v", grown, err)
	}
}
