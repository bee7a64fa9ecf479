package arch

import (
	"fmt"
	"slices"
	"strings"

	"smolgym/model/hf"
	"smolgym/model/ir"
)

// GapKind groups what can't be taken.
type GapKind string

// The kinds of gaps.
const (
	GapArchitecture GapKind = "architecture"
	GapConfig       GapKind = "config"     // a field that is not honoured, or a value that can't be
	GapMissing      GapKind = "missing"    // a tensor that the graph needs
	GapUnexpected   GapKind = "unexpected" // a tensor that the graph does not read and that would change numbers
	GapShape        GapKind = "shape"
	GapDType        GapKind = "dtype"
)

// Gap is one thing about a checkpoint that can't be taken.
type Gap struct {
	Kind   GapKind
	Name   string // config field or tensor
	Detail string // what is wrong, and what would do
}

func (g Gap) String() string { return fmt.Sprintf("%s %s: %s", g.Kind, g.Name, g.Detail) }

// UnsupportedError carries the complete list.
type UnsupportedError struct{ Gaps []Gap }

func (e *UnsupportedError) Error() string {
	const most = 12 // of them in the text; Gaps has all
	lines := make([]string, 0, most)
	for _, g := range e.Gaps[:min(len(e.Gaps), most)] {
		lines = append(lines, g.String())
	}
	more := ""
	if n := len(e.Gaps) - most; n > 0 {
		more = fmt.Sprintf("; and %d more", n)
	}
	return fmt.Sprintf("%s: %s%s", ErrUnsupported, strings.Join(lines, "; "), more)
}

func (e *UnsupportedError) Unwrap() error { return ErrUnsupported }

// Check lists everything about a checkpoint that can't be taken, in the order
// architecture, configuration, tensors by name. An empty list means that Build
// works. Nothing of the checkpoint's size is allocated.
func Check(ck *hf.Checkpoint) []Gap {
	c := &ck.Config
	f, ok := families[c.ModelType]
	if !ok {
		return []Gap{{GapArchitecture, c.ModelType, fmt.Sprintf("unknown model_type; known are %s", strings.Join(Families(), ", "))}}
	}
	k := &checker{f: f, c: c}
	k.config()
	if k.sizes() {
		k.tensors(ck)
	}
	return k.gaps
}

type checker struct {
	f    *family
	c    *hf.Config
	gaps []Gap
}

func (k *checker) gap(kind GapKind, name, format string, args ...any) {
	k.gaps = append(k.gaps, Gap{kind, name, fmt.Sprintf(format, args...)})
}

func (k *checker) config() {
	c := k.c
	if len(c.Architectures) > 0 && !slices.Contains(c.Architectures, k.f.architecture) {
		k.gap(GapArchitecture, strings.Join(c.Architectures, ","), "of the family %s only %s is supported", k.f.name, k.f.architecture)
	}
	if a := c.HiddenAct; a != "" && a != "silu" && a != "swish" {
		k.gap(GapConfig, "hidden_act", "%q is not supported; silu is", a)
	}
	k.rope()
	for _, field := range c.Unused(append(slices.Clone(commonFields), k.f.consumes...)...) {
		k.gap(GapConfig, field.Name, "%s is not supported by the family %s", field.Value, k.f.name)
	}
}

// sizes reports whether a graph can be made at all.
func (k *checker) sizes() bool {
	c, before := k.c, len(k.gaps)
	if c.IntermediateSize == 0 {
		k.gap(GapConfig, "intermediate_size", "is missing")
	}
	if c.HeadDim%2 != 0 {
		k.gap(GapConfig, "head_dim", "%d is odd; the rotary embedding needs pairs", c.HeadDim)
	}
	return len(k.gaps) == before
}

func (k *checker) rope() {
	r := k.c.Rope
	if !slices.Contains(ropeTypes, r.Type) {
		k.gap(GapConfig, "rope_parameters.rope_type", "%q is not supported; %s are", r.Type, strings.Join(ropeTypes, ", "))
	}
	if !(r.Theta > 0) {
		k.gap(GapConfig, "rope_parameters.rope_theta", "is missing")
	}
	if p := r.PartialRotaryFactor; p != nil && *p != 1 {
		k.gap(GapConfig, "partial_rotary_factor", "%g is not supported by the family %s", *p, k.f.name)
	}
	if k.c.RopeLocal != nil {
		k.gap(GapConfig, "rope_parameters.sliding_attention", "a rotary embedding of windowed layers is not supported by the family %s", k.f.name)
	}
	if r.Type == "yarn" && r.Theta == 1 {
		k.gap(GapConfig, "rope_parameters.rope_theta", "yarn has no frequencies for a base of 1")
	}
}

// tensors compares what the graph declares with what is stored.
func (k *checker) tensors(ck *hf.Checkpoint) {
	b, err := k.f.build(ck, Train)
	if err != nil {
		k.gap(GapConfig, "sizes", "%v", err)
		return
	}
	for _, name := range k.names(b, ck) {
		id, wanted := b.g.ByName(name)
		t, stored := ck.Tensors[name]
		switch v := b.g.Value(id); {
		case wanted && !stored && name == headName:
			k.gap(GapMissing, name, "tie_word_embeddings is false, so the head needs a tensor of its own %s", v.Type.Shape)
		case wanted && !stored:
			k.gap(GapMissing, name, "the family %s needs it, shape %s", k.f.name, v.Type.Shape)
		case !wanted && !ignorable(name):
			k.gap(GapUnexpected, name, "the family %s does not read it", k.f.name)
		case wanted:
			if !sameShape(v.Type.Shape, t.Shape) {
				k.gap(GapShape, name, "is %v, the configuration says %s", t.Shape, v.Type.Shape)
			}
			if !t.DType.IsWeight() {
				k.gap(GapDType, name, "%s is not supported; F32, BF16 and F16 are", t.DType)
			}
		}
	}
}

// names is every wanted and every stored tensor, sorted.
func (k *checker) names(b *builder, ck *hf.Checkpoint) []string {
	var names []string
	for _, id := range b.g.Named(ir.ClassWeight) {
		names = append(names, b.g.Value(id).Name)
	}
	for n := range ck.Tensors {
		names = append(names, n)
	}
	slices.Sort(names)
	return slices.Compact(names)
}

func sameShape(want ir.Shape, got []int64) bool {
	if len(want) != len(got) {
		return false
	}
	for i, d := range want {
		if int64(d.N) != got[i] {
			return false
		}
	}
	return true
}
