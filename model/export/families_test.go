package export

import (
	"errors"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	goldens "smolgym/model/golden"
	"smolgym/model/hf"
	"smolgym/model/lora"
)

// familyArchives are the goldens of every family, those of the shared folder too where there is one.
func familyArchives(t *testing.T) []string {
	t.Helper()
	root := os.Getenv("SMOLGYM_SHARED")
	if root == "" {
		root = filepath.Join("..", "..", "..", "shared")
	}
	var list []string
	for _, dir := range []string{filepath.Join("..", "..", "testdata", "families"), filepath.Join(root, "goldens", "data")} {
		found, err := filepath.Glob(filepath.Join(dir, "*.tar.gz"))
		if err != nil {
			t.Fatal(err)
		}
		if len(found) == 0 {
			t.Logf("no goldens in %s; set SMOLGYM_SHARED to the shared folder", dir)
		}
		list = append(list, found...)
	}
	return list
}

// openFamily is the model of an archive.
func openFamily(t testing.TB, path string) memory {
	t.Helper()
	m := unpacked(t, path)
	maps.DeleteFunc(m, func(name string, _ []byte) bool {
		return strings.HasPrefix(name, "golden.") || name == "config_v4.json"
	})
	return m
}

// unpacked is all that an archive holds.
func unpacked(t testing.TB, path string) memory {
	t.Helper()
	return goldens.Files(t, path)
}

// TestFamilies: of every family, the merged model computes what the adapters on the graph do, and every parameter goes out
// and comes back, heads of tied models, experts and transposed weights included.
func TestFamilies(t *testing.T) {
	ids := make([]int32, 32)
	for i := range ids {
		ids[i] = int32(i*37%101 + 3)
	}
	for _, path := range familyArchives(t) {
		name := strings.TrimSuffix(filepath.Base(path), ".tar.gz")
		t.Run(name, func(t *testing.T) {
			base := openFamily(t, path)
			b, err := openBase(base)
			if err != nil {
				t.Fatal(err)
			}
			var adapters []Module
			for i, at := range b.modules {
				shapeA, shapeB := shapesOf(at, 3)
				adapters = append(adapters, Module{Module: at.Module, Rank: 3, Alpha: 4, A: noise(at.A, shapeA, 0.1, uint64(i)), B: noise(at.B, shapeB, 0.1, uint64(1000+i))})
			}
			w := Weights{Adapters: adapters}
			p, err := Merged(base, w, MergedOptions{DType: "F32"})
			out := build(t, p, err)
			bare, want := logits(t, base, ids, Weights{}), logits(t, base, ids, w)
			if d := distance(logits(t, out, ids, Weights{}), want); d > 1e-4 || distance(bare, want) < 0.01 {
				t.Errorf("merged logits are %g off, the adapters change %g", d, distance(bare, want))
			}
			wasTied := b.tied
			if ck := must(hf.Describe(out)); wasTied && (ck.Config.TieWordEmbeddings == nil || *ck.Config.TieWordEmbeddings || !ck.Has(b.headName)) {
				t.Errorf("tie flag %v, head %v", ck.Config.TieWordEmbeddings, ck.Has(b.headName))
			}
			var full []Tensor
			for name, shape := range b.params {
				full = append(full, noise(name, shape, 0.1, uint64(len(name))))
			}
			p, err = Merged(base, Weights{Full: full}, MergedOptions{DType: "F32"})
			out = build(t, p, err)
			if d := distance(logits(t, out, ids, Weights{}), logits(t, base, ids, Weights{Full: full})); d != 0 {
				t.Errorf("full update: logits are %g off", d)
			}
			if string(out["config.json"]) == "" || len(out) != len(maps.Clone(base)) {
				t.Errorf("%d files of %d", len(out), len(base))
			}
			p, err = Adapter(base, adapters, AdapterOptions{BaseModel: name})
			if slices.ContainsFunc(b.modules, func(m lora.Adapter) bool { return m.Experts > 0 }) {
				if loads := name == "mixtral" || name == "qwen3_moe" || name == "qwen3_5_moe"; loads != (err == nil) || !loads && !errors.Is(err, ErrWeights) {
					t.Errorf("adapters on experts: %v", err)
				}
				if err != nil {
					return
				}
			}
			im, err := ReadAdapter(build(t, p, err), base)
			if err != nil {
				t.Fatal(err)
			}
			u := im.Uniform()
			if len(u.Notes) > 0 || len(im.Warnings) > 1 {
				t.Errorf("notes %q, warnings %q", u.Notes, im.Warnings)
			}
			if d := distance(logits(t, base, ids, Weights{Adapters: pair(t, u.Tensors, u.Config.Alpha)}), want); d != 0 {
				t.Errorf("read again: logits are %g off", d)
			}
		})
	}
}

// TestTransposed merges into weights [in,out] and into experts as package lora does.
func TestTransposed(t *testing.T) {
	for _, at := range []lora.Adapter{{In: 7, Out: 5, Rank: 6, Transposed: true}, {In: 7, Out: 5, Rank: 5, Experts: 3}, {In: 1, Out: 1, Rank: 1}} {
		shapeA, shapeB := shapesOf(at, at.Rank)
		m := Module{Rank: at.Rank, Alpha: 3, A: noise("a", shapeA, 1, 1), B: noise("b", shapeB, 1, 2)}
		w := noise("w", []int64{int64(max(at.Experts, 1) * at.In * at.Out)}, 1, 3)
		want := must(lora.Merge(valuesOf(t, w), valuesOf(t, m.A), valuesOf(t, m.B), at, m.Scale()))
		f := must(openFactors(m, at))
		v := must(w.values())
		got := memoryWriter{}
		if err := f.merge(&got, v, 0, 0, len(want)/f.cols, "F32"); err != nil {
			t.Fatal(err)
		}
		x := tensorOf("x", []int64{int64(len(want))}, want)
		b := must(x.open())
		text := make([]byte, b.Size())
		if err := readFull(b, text, 0); err != nil || string(text) != string(got) {
			t.Errorf("%+v: differs (%v)", at, err)
		}
	}
}

type memoryWriter []byte

func (m *memoryWriter) Write(p []byte) (int, error) {
	*m = append(*m, p...)
	return len(p), nil
}
