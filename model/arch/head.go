package arch

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"slices"

	"smolgym/model/hf"
)

// Resolve settles what a stored head of a model means that says it is tied, as
// the reference framework does: a head equal to the embedding is the embedding
// and is taken off the checkpoint's list; one that differs is used, the model
// counts as not tied, and the checkpoint gets a warning. It reads both tensors,
// so it comes after Check; every other checkpoint is left as it is.
func Resolve(ck *hf.Checkpoint, src hf.Source) error {
	f, ok := families[ck.Config.ModelType]
	if !ok || !or(ck.Config.TieWordEmbeddings, f.tied) {
		return nil
	}
	heads, embeds := f.stored(ck, f.head()), f.stored(ck, f.embed())
	if len(heads) == 0 || len(embeds) == 0 {
		return nil
	}
	headName, embedName := heads[0], embeds[0]
	head, embed := ck.Tensors[headName], ck.Tensors[embedName]
	same, err := equal(src, head, embed)
	if err != nil {
		return fmt.Errorf("compare %s with %s: %w", headName, embedName, err)
	}
	if same {
		delete(ck.Tensors, headName)
		ck.Names = slices.DeleteFunc(slices.Clone(ck.Names), func(n string) bool { return n == headName })
		return nil
	}
	no := false
	ck.Config.TieWordEmbeddings = &no
	ck.Warnings = append(ck.Warnings, fmt.Sprintf("tie_word_embeddings is true, but %s differs from %s: it is used as a head of its own; set the flag to false if that is meant", headName, embedName))
	return nil
}

// equal compares two stored tensors byte by byte. Tensors of different types
// count as different: using the head as it is gives the right numbers.
func equal(src hf.Source, a, b hf.Tensor) (same bool, err error) {
	if a.DType != b.DType || !slices.Equal(a.Shape, b.Shape) {
		return false, nil
	}
	var bufs [2][]byte
	var files [2]hf.ReaderAtSized
	for i, t := range []hf.Tensor{a, b} {
		file, err := src.Open(t.File)
		if err != nil {
			return false, err
		}
		defer func() { err = errors.Join(err, file.Close()) }()
		files[i], bufs[i] = file, make([]byte, min(t.Bytes, 1<<20))
	}
	for at := int64(0); at < a.Bytes; at += int64(len(bufs[0])) {
		n := min(int64(len(bufs[0])), a.Bytes-at)
		for i, t := range []hf.Tensor{a, b} {
			if got, err := files[i].ReadAt(bufs[i][:n], t.Offset+at); err != nil && !(errors.Is(err, io.EOF) && int64(got) == n) {
				return false, fmt.Errorf("read %s: %w", t.Name, err)
			}
		}
		if !bytes.Equal(bufs[0][:n], bufs[1][:n]) {
			return false, nil
		}
	}
	return true, nil
}
