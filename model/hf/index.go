package hf

import (
	"bytes"
	"encoding/json"
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strings"

	"smolgym/model/safetensors"
)

const (
	weightSuffix  = ".safetensors"
	singleName    = "model.safetensors"
	indexName     = "model.safetensors.index.json"
	maxIndexBytes = 16 << 20
	maxTensors    = 1 << 18 // in all shards together
)

// shardName matches the files of a set, which say how many there are.
var shardName = regexp.MustCompile(`-(\d{5})-of-(\d{5})\.safetensors$`)

// Index is a shard index: which file holds which tensor.
type Index struct {
	Files     map[string]string // by tensor name
	TotalSize int64             // bytes of all tensors, 0 if the index doesn't say
}

// ParseIndex reads a model.safetensors.index.json. A shard whose name is not a plain file name is refused.
func ParseIndex(text []byte) (*Index, error) {
	if len(text) > maxIndexBytes {
		return nil, fmt.Errorf("parse %s: %w: %d bytes, at most %d are allowed", indexName, ErrLimit, len(text), maxIndexBytes)
	}
	members, err := object(text)
	if err != nil {
		return nil, fmt.Errorf("parse %s: %w", indexName, err)
	}
	index := &Index{}
	if index.Files, err = weightMap(members["weight_map"]); err != nil {
		return nil, fmt.Errorf("parse %s: weight_map: %w", indexName, err)
	}
	var about struct {
		TotalSize json.Number `json:"total_size"`
	}
	if err := json.Unmarshal(members["metadata"], &about); err == nil {
		index.TotalSize, _ = about.TotalSize.Int64() // a hint only: one that isn't a number is as good as none
	}
	return index, nil
}

// weightMap streams the map, so that file names, of which there are few, are held once and not per tensor.
func weightMap(text json.RawMessage) (map[string]string, error) {
	dec := json.NewDecoder(bytes.NewReader(text))
	if t, err := dec.Token(); err != nil || t != json.Delim('{') {
		return nil, fmt.Errorf("%w: an object of tensor and file names is needed", ErrInvalid)
	}
	files, known := map[string]string{}, map[string]string{}
	for dec.More() {
		t, err := dec.Token()
		if err != nil {
			return nil, fmt.Errorf("%w: %w", ErrInvalid, err)
		}
		tensor, _ := t.(string) // a member's name is always a string
		if t, err = dec.Token(); err != nil {
			return nil, fmt.Errorf("%w: %w", ErrInvalid, err)
		}
		file, ok := t.(string)
		if !ok {
			return nil, fmt.Errorf("%w: tensor %q: a file name is needed", ErrInvalid, shorten(tensor))
		}
		if err := CheckName(file); err != nil {
			return nil, fmt.Errorf("tensor %q: %w", shorten(tensor), err)
		}
		if _, twice := files[tensor]; twice {
			return nil, fmt.Errorf("%w: tensor %q appears twice", ErrInvalid, shorten(tensor))
		}
		if !strings.HasSuffix(file, weightSuffix) {
			return nil, fmt.Errorf("%w: tensor %q is in %q; only %s files are read", ErrUnsupported, shorten(tensor), file, weightSuffix)
		}
		if len(tensor) > safetensors.MaxNameBytes || len(files) == maxTensors {
			return nil, fmt.Errorf("%w: more than %d tensors, or a name above %d bytes", ErrLimit, maxTensors, safetensors.MaxNameBytes)
		}
		if known[file] == "" {
			known[file] = file
		}
		files[tensor] = known[file]
	}
	if len(files) == 0 {
		return nil, fmt.Errorf("%w: it names no tensor", ErrInvalid)
	}
	return files, nil
}

// weightFiles decides which files hold the weights. index is nil where a single file does.
func weightFiles(src Source, names []string) (files []string, index *Index, err error) {
	var weights []string
	for _, n := range names {
		if strings.HasSuffix(n, weightSuffix) {
			weights = append(weights, n)
		}
	}
	single := slices.Contains(weights, singleName)
	switch {
	case slices.Contains(names, indexName):
		text, err := readAll(src, indexName, maxIndexBytes)
		if err != nil {
			return nil, nil, err
		}
		if index, err = ParseIndex(text); err != nil {
			return nil, nil, err
		}
		files = slices.Compact(slices.Sorted(maps.Values(index.Files)))
		if single && !slices.Contains(files, singleName) {
			return []string{singleName}, nil, nil // the reference looks for this name before it looks for an index
		}
		missing := slices.DeleteFunc(slices.Clone(files), func(f string) bool { return slices.Contains(names, f) })
		if len(missing) > 0 {
			return nil, nil, fmt.Errorf("%w: %s names %d weight files and %d of them are not there: %s; add them",
				ErrMissing, indexName, len(files), len(missing), several(missing))
		}
		return files, index, nil
	case single:
		return []string{singleName}, nil, nil
	case len(weights) == 0:
		return nil, nil, noWeights(names)
	case len(weights) > 1:
		return nil, nil, fmt.Errorf("%w: %d weight files (%s) and no %s that says what is where; add it, or name one file",
			ErrMissing, len(weights), several(weights), indexName)
	}
	if m := shardName.FindStringSubmatch(weights[0]); m != nil && m[2] != "00001" {
		return nil, nil, fmt.Errorf("%w: %q is one file of a set of %s; add the others and %s", ErrMissing, weights[0], m[2], indexName)
	}
	return weights, nil, nil
}

// noWeights says what there is instead of weights.
func noWeights(names []string) error {
	for _, n := range names {
		for _, other := range []string{".bin", ".gguf", ".pt", ".pth", ".ckpt", ".h5", ".msgpack", ".onnx"} {
			if strings.HasSuffix(n, other) {
				return fmt.Errorf("%w: there are no weights in safetensors form, only %q; convert it to %s", ErrMissing, n, singleName)
			}
		}
	}
	return fmt.Errorf("%w: there are no weights; add %s, or shards with %s", ErrMissing, singleName, indexName)
}
