package appliance

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	"smolgym/model/arch"
	"smolgym/model/hf"
	"smolgym/tokenizer"
)

// Verdict is what was found out about a model's files. Of the weights only an output head that may be the embedding is read.
type Verdict struct {
	Checkpoint *hf.Checkpoint
	Context    int                  // most positions; known once there are no gaps
	Tokenizer  *tokenizer.Tokenizer // nil if there is none
	Gaps       []string             // everything that can't be taken; empty: the model can be
	Unused     []string             // stored tensors that the model doesn't read, by name; known once there are no gaps
	Warnings   []string
}

// Size is the number of weights, and their types, the most frequent first.
func (v *Verdict) Size() (parameters int64, dtype string) {
	types := map[string]int64{}
	for _, t := range v.Checkpoint.Tensors {
		parameters += t.Elements()
		types[fmt.Sprint(t.DType)] += t.Elements()
	}
	names := slices.Sorted(maps.Keys(types))
	slices.SortStableFunc(names, func(p, q string) int { return int(min(1, max(-1, types[q]-types[p]))) })
	return parameters, strings.Join(names, "+")
}

// Examine reads everything about a model but its weights' values: of those it compares a head with the embedding where
// the one may stand for the other. The error is for files that can't be read at all; what can't be taken is in the verdict.
func Examine(name string, src hf.Source) (*Verdict, error) {
	ck, err := hf.Describe(src)
	if err != nil {
		return nil, refusal(name, err)
	}
	v := &Verdict{Checkpoint: ck, Warnings: slices.Clone(ck.Warnings)}
	for _, g := range arch.Check(ck) {
		v.Gaps = append(v.Gaps, fmt.Sprint(g))
	}
	if len(v.Gaps) == 0 {
		if err := arch.Resolve(ck, src); err != nil {
			return nil, refusal(name, err)
		}
		m, err := arch.Build(ck, arch.Train)
		if err != nil {
			return nil, refusal(name, err)
		}
		v.Context, v.Warnings = m.Context, m.Warnings // the checkpoint's are among them
		if v.Unused = m.Unused; len(v.Unused) > 0 {
			v.Warnings = append(v.Warnings, fmt.Sprintf("%s in the files and not used: %s", count(len(v.Unused), "tensor"), some(v.Unused)))
		}
	}
	tok, file, load, err := folder{src}.tokenizer()
	v.Tokenizer = tok
	var missing *tokenizer.UnsupportedError
	switch {
	case err != nil:
		return nil, problemOf("add model "+name, err)
	case file == "":
		v.Warnings = append(v.Warnings, "there is no tokenizer.json or tokenizer.model: text can't be encoded and stop strings are refused")
	case errors.As(load, &missing):
		for _, c := range missing.Components {
			v.Gaps = append(v.Gaps, file+": "+c)
		}
	case load != nil:
		v.Gaps = append(v.Gaps, file+": "+load.Error())
	}
	return v, nil
}

// some is the start of a list.
func some(list []string) string {
	const most = 5
	if len(list) <= most {
		return strings.Join(list, ", ")
	}
	return fmt.Sprintf("%s and %d more", strings.Join(list[:most], ", "), len(list)-most)
}
