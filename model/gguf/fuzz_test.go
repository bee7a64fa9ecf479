package gguf

import (
	"bytes"
	"errors"
	"io"
	"path/filepath"
	"testing"

	archive "smolgym/model/golden"
	"smolgym/model/growth"
	"smolgym/model/hf"
)

// fuzzSeeds are files of every kind, sound and not.
func fuzzSeeds(f *testing.F) {
	f.Add(archive.Gunzip(f, filepath.Join("testdata", "golden.gguf.gz")))
	for _, h := range hostileFiles {
		f.Add(h.file)
	}
	tokens := []KV{{preKey, "llama-bpe"}, {tokensKey, []string{"a", "b", "ab", "<s>"}}, {typesKey, []int32{1, 1, 1, 3}},
		{scoresKey, []float32{-1, -2, 0, 0}}, {mergesKey, []string{"a b"}}}
	for _, arch := range Architectures() {
		model := "gpt2"
		if arch == "llama" {
			model = "llama"
		}
		kvs := append([]KV{{modelKey, model}, {arch + ".attention.sliding_window", uint32(8)}}, tokens...)
		if arch == "llama" || arch == "qwen2" || arch == "qwen3" {
			kvs = append(kvs[:1], kvs[2:]...)
		}
		t := tiny(f, arch, kvs)
		b := make([]byte, t.size)
		if err := readFull(t.r, b, 0); err != nil {
			f.Fatal(err)
		}
		f.Add(b)
	}
}

// FuzzImport: no file makes the package panic or hold much; what is taken can be described and read to its end.
func FuzzImport(f *testing.F) {
	fuzzSeeds(f)
	var live growth.Watch
	f.Fuzz(func(t *testing.T, b []byte) {
		live.Check(t)
		const limit = 50 << 20
		var err error
		if grown := allocated(func() { err = importAll(t, b) }); grown > limit+40*uint64(len(b)) {
			t.Errorf("%d bytes were allocated for a file of %d (%v)", grown, len(b), err)
		}
	})
}

func importAll(t *testing.T, b []byte) error {
	f, err := parse(b)
	if err != nil {
		return err
	}
	var values [100]float32
	for _, tensor := range f.Tensors() {
		n := min(tensor.Elements(), int64(len(values)))
		if err := f.ReadFloat32s(values[:n], tensor, tensor.Elements()-n); err != nil && !errors.Is(err, ErrUnsupported) {
			t.Errorf("tensor %q: %v", tensor.Name, err)
		}
	}
	for _, key := range f.Keys() {
		_ = f.EachText(key, func(int, string) error { return nil }) // a refusal is fine, a panic is not
		_ = f.EachNumber(key, func(int, float64) error { return nil })
	}
	s, err := NewSource(f, Options{})
	if err != nil {
		return err
	}
	c, err := hf.Describe(s)
	if err != nil {
		return err // of a configuration, which hf judges
	}
	r, err := s.Open(weightsName)
	if err != nil {
		t.Error(err)
		return err
	}
	if r.Size() < 1<<20 {
		n, err := io.Copy(io.Discard, io.NewSectionReader(r, 0, r.Size()))
		if err != nil || n != r.Size() {
			t.Errorf("%d bytes of %d, %v (%d tensors)", n, r.Size(), err, len(c.Names))
		}
	}
	return nil
}

// FuzzExportTokenizer: what a tokenizer.json becomes can be read, or is refused.
func FuzzExportTokenizer(f *testing.F) {
	f.Add(smallTokenizer(byteLevel(true), endToken))
	f.Add([]byte(`{"normalizer":{"type":"Replace","pattern":{"String":" "},"content":"▁"},"model":{"type":"BPE","byte_fallback":true,"unk_token":"u",` +
		`"vocab":{"u":0,"a":1,"b":2,"ab":3,"<0x0A>":4},"merges":["a b"]},"added_tokens":[{"id":5,"content":"<s>","special":true}],` +
		`"post_processor":{"type":"TemplateProcessing","single":[{"SpecialToken":{"id":"<s>"}},{"Sequence":{"id":"A"}}],"special_tokens":{"<s>":{"ids":[5]}}}}`))
	f.Fuzz(func(t *testing.T, text []byte) {
		kvs, err := vocabularyOf(text, &hf.Config{VocabSize: 200}, nil)
		if err != nil {
			return
		}
		var b bytes.Buffer
		if err := Write(&b, kvs, nil); err != nil {
			return // a token too long
		}
		file, err := parse(b.Bytes())
		if err != nil {
			t.Fatal(err)
		}
		if _, _, err := tokenizerOf(file, 200, 64); err != nil {
			t.Fatal(err)
		}
	})
}
