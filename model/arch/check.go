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
	class := k.f.architecture
	if c.Wrapper != "" || slices.Contains(c.Architectures, k.f.wrapper) {
		class = k.f.wrapper
	}
	if len(c.Architectures) > 0 && !slices.Contains(c.Architectures, class) {
		k.gap(GapArchitecture, strings.Join(c.Architectures, ","), "of the family %s only %s is supported", k.f.name, class)
	}
	if a := k.f.activation(c); !slices.Contains(k.f.allowed(), a) {
		k.gap(GapConfig, "hidden_act", "%q is not supported; %s is", a, strings.Join(k.f.allowed(), ", "))
	}
	if !k.f.noRope {
		k.rope()
	}
	for i, kind := range c.LayerTypes {
		if k.f.layerKinds != nil && !slices.Contains(k.f.layerKinds, kind) {
			k.gap(GapConfig, "layer_types", "layer %d is %q; the family %s has %s", i, kind, k.f.name, strings.Join(k.f.layerKinds, ", "))
		}
	}
	if k.f.check != nil {
		k.f.check(k)
	}
	for _, field := range c.Unused(k.f.honours()...) {
		k.gap(GapConfig, field.Name, "%s is not supported by the family %s", field.Value, k.f.name)
	}
}

// sizes reports whether a graph can be made at all.
func (k *checker) sizes() bool {
	c, before := k.c, len(k.gaps)
	if c.IntermediateSize == 0 && k.f.inner == nil {
		k.gap(GapConfig, "intermediate_size", "is missing")
	}
	if d := k.f.rotaryDims(c); !k.f.noRope && (d%2 != 0 || d < 2) {
		k.gap(GapConfig, "head_dim", "%d elements of a head would rotate; the rotary embedding needs pairs", d)
	}
	return len(k.gaps) == before
}

func (k *checker) rope() {
	k.ropeOf("rope_parameters", k.f.rope(k.c))
	if p := k.c.Rope.PartialRotaryFactor; p != nil && *p != 1 && !k.f.partial {
		k.gap(GapConfig, "partial_rotary_factor", "%g is not supported by the family %s", *p, k.f.name)
	}
	if k.c.RopeLocal == nil {
		return
	}
	if !k.f.localRope {
		k.gap(GapConfig, "rope_parameters.sliding_attention", "a rotary embedding of windowed layers is not supported by the family %s", k.f.name)
		return
	}
	k.ropeOf("rope_parameters.sliding_attention", k.f.local(k.c))
}

func (k *checker) ropeOf(where string, r hf.Rope) {
	if !slices.Contains(ropeTypes, r.Type) {
		k.gap(GapConfig, where+".rope_type", "%q is not supported; %s are", r.Type, strings.Join(ropeTypes, ", "))
	}
	if !(r.Theta > 0) {
		k.gap(GapConfig, where+".rope_theta", "is missing")
	}
	if r.Type == "yarn" && r.Theta == 1 {
		k.gap(GapConfig, where+".rope_theta", "yarn has no frequencies for a base of 1")
	}
	if r.Type != "longrope" {
		return
	}
	if half := k.f.rotaryDims(k.c) / 2; len(r.ShortFactor) != half || len(r.LongFactor) != half {
		k.gap(GapConfig, where+".short_factor", "%d factors and %d in long_factor; %d pairs of a head rotate", len(r.ShortFactor), len(r.LongFactor), half)
	}
	if r.OriginalMaxPositions < 2 {
		k.gap(GapConfig, where+".original_max_position_embeddings", "is %d; longrope needs the length that the model was first trained for", r.OriginalMaxPositions)
	}
}

// tensors compares what the graph declares with what is stored.
func (k *checker) tensors(ck *hf.Checkpoint) {
	b, err := k.f.build(ck, Train)
	if err != nil {
		k.gap(GapConfig, "sizes", "%v", err)
		return
	}
	want := b.wanted(ck)
	for _, name := range k.names(want, ck) {
		p, wanted := want[name]
		t, stored := ck.Tensors[name]
		switch {
		case wanted && !stored && name == k.f.head():
			k.gap(GapMissing, name, "tie_word_embeddings is false, so the head needs a tensor of its own %s", sizesOf(p.shape))
		case wanted && !stored:
			k.gap(GapMissing, name, "the family %s needs it, shape %s", k.f.name, sizesOf(p.shape))
		case !wanted && t.Elements() > 0 && !k.f.ignorable(k.c, name): // one without elements holds no number
			k.gap(GapUnexpected, name, "the family %s does not read it", k.f.name)
		case wanted:
			if !slices.Equal(p.shape, t.Shape) {
				k.gap(GapShape, name, "is %v, the configuration says %s", t.Shape, sizesOf(p.shape))
			}
			if !t.DType.IsWeight() {
				k.gap(GapDType, name, "%s is not supported; F32, BF16 and F16 are", t.DType)
			}
		}
	}
}

// names is every wanted and every stored tensor, sorted.
func (k *checker) names(want map[string]part, ck *hf.Checkpoint) []string {
	var names []string
	for n := range want {
		names = append(names, n)
	}
	for n := range ck.Tensors {
		names = append(names, n)
	}
	slices.Sort(names)
	return slices.Compact(names)
}

func sizesOf(shape []int64) ir.Shape {
	var s ir.Shape
	for _, n := range shape {
		s = append(s, ir.Const(int(n)))
	}
	return s
}
