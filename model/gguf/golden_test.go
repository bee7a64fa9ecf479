package gguf

import (
	"bytes"
	"math"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	archive "smolgym/model/golden"
	"smolgym/model/safetensors"
)

func parse(b []byte) (*File, error) { return Parse(bytes.NewReader(b), int64(len(b))) }

func goldenFile(tb testing.TB) (*File, *safetensors.File) {
	tb.Helper()
	f, err := parse(archive.Gunzip(tb, filepath.Join("testdata", "golden.gguf.gz")))
	if err != nil {
		tb.Fatal(err)
	}
	b := archive.Gunzip(tb, filepath.Join("testdata", "golden.safetensors.gz"))
	want, err := safetensors.Parse(bytes.NewReader(b), int64(len(b)))
	if err != nil {
		tb.Fatal(err)
	}
	return f, want
}

// Every type of metadata value, as the gguf package wrote it.
func TestGoldenMetadata(t *testing.T) {
	f, _ := goldenFile(t)
	for key, want := range map[string]uint64{"t.u8": 200, "t.u16": 60000, "t.u32": 4000000000, "general.alignment": 64} {
		if got, err := f.Uint(key); err != nil || got != want {
			t.Errorf("%s = %d, %v; want %d", key, got, err, want)
		}
	}
	for key, want := range map[string]float64{"t.i8": -100, "t.i16": -30000, "t.i32": -2000000000, "t.i64": -(1 << 62), "t.f32": 1e-6, "t.f64": 0.1} {
		if got, err := f.Float(key); err != nil || got != want {
			t.Errorf("%s = %v, %v; want %v", key, got, err, want)
		}
	}
	if _, err := f.Uint("t.u64"); err == nil { // above int64: no setting is
		t.Error("t.u64 was taken")
	}
	if got, err := f.Bool("t.bool"); err != nil || !got {
		t.Errorf("t.bool = %v, %v", got, err)
	}
	if got, err := f.Text("t.text", 100); err != nil || got != "grüße ▁ 語" {
		t.Errorf("t.text = %q, %v", got, err)
	}
	var texts []string
	if err := f.EachText("t.texts", func(_ int, s string) error { texts = append(texts, s); return nil }); err != nil {
		t.Error(err)
	}
	if want := []string{"a", "", "▁b", strings.Repeat("x", 300)}; !slices.Equal(texts, want) {
		t.Errorf("t.texts = %q", texts)
	}
	for key, want := range map[string][]float64{"t.ints": {-3, 0, 7}, "t.floats": {0.5, -2.25}, "t.bools": {1, 0}} {
		var got []float64
		if err := f.EachNumber(key, func(_ int, v float64) error { got = append(got, v); return nil }); err != nil || !slices.Equal(got, want) {
			t.Errorf("%s = %v, %v; want %v", key, got, err, want)
		}
	}
}

// Every encoding bit for bit as the gguf package decodes it, whole and from every element on.
func TestGoldenDequantise(t *testing.T) {
	f, golden := goldenFile(t)
	if len(f.Tensors()) != len(decoders) {
		t.Errorf("%d tensors for %d encodings", len(f.Tensors()), len(decoders))
	}
	for _, tensor := range f.Tensors() {
		about, _ := golden.Tensor(tensor.Name)
		if !slices.Equal(about.Shape, tensor.Shape) {
			t.Errorf("%s: shape %v, want %v", tensor.Name, tensor.Shape, about.Shape)
			continue
		}
		want, got := make([]float32, tensor.Elements()), make([]float32, tensor.Elements())
		if err := golden.ReadFloat32s(want, tensor.Name); err != nil {
			t.Fatal(err)
		}
		for first := range got {
			n := len(got) - first
			if first > 0 {
				n = min(n, 1+first%70)
			}
			clear(got)
			if err := f.ReadFloat32s(got[:n], tensor, int64(first)); err != nil {
				t.Fatal(err)
			}
			for i, v := range got[:n] {
				if math.Float32bits(v) != math.Float32bits(want[first+i]) {
					t.Fatalf("%s from %d: element %d is %v, want %v", tensor.Name, first, first+i, v, want[first+i])
				}
			}
		}
	}
}

func TestGoldenQ8_0(t *testing.T) {
	_, golden := goldenFile(t)
	about, _ := golden.Tensor("q8_0.input")
	input := make([]float32, about.Elements())
	about, _ = golden.Tensor("q8_0.blocks")
	want := make([]byte, about.Bytes)
	if err := golden.ReadFloat32s(input, "q8_0.input"); err != nil {
		t.Fatal(err)
	}
	if err := golden.ReadInto(want, "q8_0.blocks"); err != nil {
		t.Fatal(err)
	}
	got := make([]byte, len(want))
	if err := encode(got, Q8_0, input); err != nil {
		t.Fatal(err)
	}
	for i := range got {
		if got[i] != want[i] {
			t.Fatalf("block %d byte %d is %d, want %d", i/34, i%34, got[i], want[i])
		}
	}
	for _, bad := range []struct {
		t Type
		v float32
	}{{F16, 65520}, {BF16, math.MaxFloat32}, {Q8_0, 1e8 * 127}, {F32, float32(math.Inf(1))}, {Q8_0, float32(math.NaN())}} {
		if err := encode(make([]byte, 200), bad.t, append([]float32{bad.v}, make([]float32, 31)...)); err == nil {
			t.Errorf("%v as %s was written", bad.v, bad.t)
		}
	}
}
