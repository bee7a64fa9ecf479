package arch

import (
	"fmt"
	"slices"
	"strings"

	"smolgym/model/hf"
	"smolgym/model/ir"
)

// roots are other beginnings under which published files keep what the loaded
// decoder calls by the first: inside a model of several parts, or saved without
// an output head.
var roots = [][2]string{
	{"model.", "model.language_model."}, {"model.", "language_model.model."}, {"lm_head.", "language_model.lm_head."},
	{"model.", ""}, {"transformer.", ""}, {"gpt_neox.", ""},
}

// expertNames is how a family stores experts one by one.
type expertNames struct {
	block          string // what stands for ".mlp."
	gate, up, down string
}

// stored gives the stored tensors that make up a weight, none if it is absent.
func (f *family) stored(ck *hf.Checkpoint, name string) []string {
	for _, candidate := range f.candidates(name, ck) {
		if ck.Has(candidate[0]) {
			return candidate
		}
	}
	return nil
}

// candidates lists the ways in which a weight may be stored, the loaded model's first.
func (f *family) candidates(name string, ck *hf.Checkpoint) [][]string {
	ways := [][]string{{name}}
	if f.experts != nil {
		if parts := f.experts.parts(name, or(ck.Config.Experts, 0)); parts != nil {
			ways = append(ways, parts)
		}
		if other := strings.Replace(name, ".mlp.", f.experts.block, 1); other != name {
			ways = append(ways, []string{other})
		}
	}
	for _, way := range slices.Clone(ways) {
		for _, root := range roots {
			if !strings.HasPrefix(way[0], root[0]) {
				continue
			}
			moved := make([]string, len(way))
			for i, n := range way {
				moved[i] = root[1] + strings.TrimPrefix(n, root[0])
			}
			ways = append(ways, moved)
		}
	}
	return ways
}

// parts are the tensors of all experts, expert by expert.
func (e *expertNames) parts(name string, experts int) []string {
	block, leaf, ok := strings.Cut(name, ".experts.")
	if !ok {
		return nil
	}
	leaves := []string{e.gate, e.up}
	if leaf == "down_proj" {
		leaves = []string{e.down}
	}
	block = strings.Replace(block+".", ".mlp.", e.block, 1)
	var parts []string
	for i := range experts {
		for _, l := range leaves {
			parts = append(parts, fmt.Sprintf("%sexperts.%d.%s.weight", block, i, l))
		}
	}
	return parts
}

// compose tells the checkpoint which of the graph's weights are stored otherwise, and gives the list.
func (b *builder) compose(ck *hf.Checkpoint) map[string][]string {
	m := map[string][]string{}
	for _, id := range b.g.Named(ir.ClassWeight) {
		name := b.g.Value(id).Name
		if parts := b.f.stored(ck, name); len(parts) > 1 || len(parts) == 1 && parts[0] != name {
			m[name] = parts
			ck.Compose(name, parts...)
		}
	}
	return m
}

// part is what one stored tensor has to be.
type part struct {
	weight string // the graph's
	shape  []int64
}

// wanted gives, by stored name, what the graph reads.
func (b *builder) wanted(ck *hf.Checkpoint) map[string]part {
	m := map[string]part{}
	for _, id := range b.g.Named(ir.ClassWeight) {
		v := b.g.Value(id)
		names := b.f.stored(ck, v.Name)
		if names == nil {
			names = []string{v.Name}
		}
		shape := make([]int64, 0, 3)
		for _, d := range v.Type.Shape {
			shape = append(shape, int64(d.N))
		}
		if n := int64(len(names)); n > 1 { // experts' matrices
			shape = []int64{shape[0] * shape[1] / n, shape[2]}
		}
		for _, name := range names {
			m[name] = part{v.Name, shape}
		}
	}
	return m
}

// unused lists the stored tensors that the graph does not read.
func (b *builder) unused(ck *hf.Checkpoint) []string {
	want := b.wanted(ck)
	var names []string
	for _, n := range ck.Names {
		if _, used := want[n]; !used {
			names = append(names, n)
		}
	}
	return names
}

// ignorable says of a stored tensor that the graph does not read that it changes
// no number: the reference computes these tables itself, or they belong to parts
// that take no part in a text's numbers.
func (f *family) ignorable(c *hf.Config, name string) bool {
	if strings.HasSuffix(name, ".rotary_emb.inv_freq") {
		return true
	}
	for _, begin := range f.ignores {
		if strings.HasPrefix(name, begin) {
			return true
		}
	}
	if f.noRope || f.layerNorm { // causal masks that GPT checkpoints carry along
		for _, end := range []string{".attn.bias", ".attn.masked_bias", ".attention.bias", ".attention.masked_bias"} {
			if strings.HasSuffix(name, end) {
				return true
			}
		}
	}
	if c.Wrapper == "" {
		return false
	}
	for _, begin := range []string{"visual.", "vision_tower.", "multi_modal_projector."} {
		if strings.HasPrefix(strings.TrimPrefix(name, "model."), begin) {
			return true
		}
	}
	return false
}
