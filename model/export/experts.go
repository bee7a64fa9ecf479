package export

import (
	"fmt"
	"io"
	"slices"
	"strings"

	"smolgym/model/hf"
	"smolgym/model/lora"
	"smolgym/model/safetensors"
)

// Adapters on experts come in two forms. Where experts are linear modules of their own, each has an A and a B under the name
// of its weight: "…experts.3.w1.lora_A.weight". Where a loaded model holds them as one parameter, PEFT (target_parameters)
// has one pair for all of them: A [experts*rank,in] and B [out,rank*experts], the expert changing fastest, under the name of
// the module around the parameters: gate and up innermost, then down. The graph has what is stored as the second, in
// the order of A: A [experts,rank,in], B [experts,out,rank].

// slot is where the adapter of one projection of one expert goes.
type slot struct {
	module string // of all experts: "model.layers.0.mlp.experts.gate_up_proj"
	index  int    // expert by expert, projection by projection
	each   int    // projections of an expert
}

// stackedNames gives, by what PEFT calls it, the module of all experts whose parameter an adapter is of.
func (x *importer) stackedNames() map[string]string {
	names := map[string]string{}
	for _, at := range x.b.modules { // gate and up come before down
		if at.Experts == 0 || !x.c.onParameter(at.Module) {
			continue
		}
		block := strings.TrimSuffix(at.Module, "."+lora.Leaf(at.Module))
		if inner, taken := names[block]; taken { // the wrapper before is inside of this one
			names[block+".base_layer"] = inner
		}
		names[block] = at.Module
	}
	return names
}

// onParameter says whether target_parameters names a module of all experts.
func (c *peftConfig) onParameter(module string) bool {
	return slices.ContainsFunc(c.parameters, func(p string) bool { return module == p || strings.HasSuffix(module, "."+p) })
}

// targetable lists what target_modules can name of a module.
func (b *base) targetable(module string) []string {
	if b.stack && b.byName[module].Experts > 0 {
		return nil
	}
	return b.peftModules(module)
}

// configured lists by which names a configuration speaks of a module.
func (b *base) configured(module string) []string {
	if b.stack && b.byName[module].Experts > 0 {
		return []string{module}
	}
	return b.peftModules(module)
}

// targetParameters lists the parameters of experts as PEFT finds them: by the end of their names, or by whole names where
// that would also find some without an adapter.
func (b *base) targetParameters(modules []Module) []string {
	if !b.stack {
		return nil
	}
	adapted, partial := map[string]bool{}, map[string]bool{}
	for _, m := range modules {
		adapted[m.Module] = true
	}
	end := func(module string) string { return "experts." + lora.Leaf(module) }
	for _, at := range b.modules {
		if at.Experts > 0 && !adapted[at.Module] {
			partial[end(at.Module)] = true
		}
	}
	var list []string
	for _, m := range modules {
		switch {
		case b.byName[m.Module].Experts == 0:
		case partial[end(m.Module)]:
			list = append(list, m.Module)
		default:
			list = append(list, end(m.Module))
		}
	}
	slices.Sort(list)
	return slices.Compact(list)
}

// stackedEntries are A and B of all experts as PEFT stores them for the parameter that holds them all: inside of the
// other's wrapper for gate and up, if down has an adapter too.
func (b *base) stackedEntries(m Module, modules []Module, dtype safetensors.DType) []safetensors.Entry {
	at := b.byName[m.Module]
	block := strings.TrimSuffix(m.Module, "."+lora.Leaf(m.Module))
	if lora.Leaf(m.Module) != "down_proj" && slices.ContainsFunc(modules, func(o Module) bool { return o.Module == block+".down_proj" }) {
		block += ".base_layer"
	}
	nameA, nameB := lora.Names(block)
	wide := m.Rank * at.Experts
	a := entryOf(lora.Tensor{Name: nameA, Rows: wide, Columns: at.In}, m.A, dtype)
	down := safetensors.Entry{Name: nameB, DType: dtype, Shape: []int64{int64(at.Out), int64(wide)}, Data: func(w io.Writer) error {
		whole := make([]float32, m.B.elements())
		if err := m.B.whole(whole); err != nil {
			return err
		}
		sorted := make([]float32, len(whole))
		for i, v := range whole {
			e, o, r := i/(at.Out*m.Rank), i/m.Rank%at.Out, i%m.Rank
			sorted[o*wide+r*at.Experts+e] = v
		}
		return convert(w, listed(sorted), int64(len(sorted)), dtype)
	}}
	return []safetensors.Entry{a, down}
}

// slots lists the places of single experts by the names of their modules.
func (b *base) slots() map[string]slot {
	slots := map[string]slot{}
	for _, at := range b.modules {
		if at.Experts > 0 {
			names := b.peftModules(at.Module)
			for i, name := range names {
				slots[name] = slot{at.Module, i, len(names) / at.Experts}
			}
		}
	}
	return slots
}

// stacked is a stored tensor of all experts' adapters in the order of the graph.
func (x *importer) stacked(t Tensor, at lora.Adapter, rank int, side byte) Tensor {
	shapeA, shapeB := shapesOf(at, rank)
	if side == 'A' {
		return Tensor{t.Name, shapeA, t.Open} // the same bytes
	}
	open := func() (hf.ReaderAtSized, error) {
		all := make([]float32, t.elements())
		if err := t.whole(all); err != nil {
			return nil, err
		}
		sorted := make([]float32, len(all))
		for i, v := range all {
			o, r, e := i/(rank*at.Experts), i/at.Experts%rank, i%at.Experts
			sorted[(e*at.Out+o)*rank+r] = v
		}
		return &computed{listed(sorted), int64(len(sorted))}, nil
	}
	return Tensor{t.Name, shapeB, open}
}

// listed are values that have been read.
type listed []float32

func (m listed) read(dst []float32, first int64) error { copy(dst, m[first:]); return nil }

func (listed) Close() error { return nil }

// whole reads all values.
func (t Tensor) whole(dst []float32) (err error) {
	v, err := t.values()
	if err != nil {
		return err
	}
	defer func() {
		if e := v.Close(); err == nil {
			err = e
		}
	}()
	return v.read(dst, 0)
}

// gathered are the adapters of single experts as that of their module.
type gathered struct {
	at    lora.Adapter
	parts []Module // expert by expert, projection by projection; one without an adapter has no A
	each  int      // projections of an expert
	same  []bool   // the expert's two projections have one A
	rank  int
	scale float64
}

// gather makes one adapter of those of single experts. Two projections that the graph has as one, gate and up, share an A
// where theirs are equal; else the rank is the sum of theirs, with B zero where the one does not reach the other. Experts
// with a smaller rank, or without an adapter, get zeros, and a scale that differs from the most common is multiplied into B.
func (x *importer) gather(at lora.Adapter, parts []Module) (Module, error) {
	g := &gathered{at: at, parts: parts, each: len(parts) / at.Experts, same: make([]bool, at.Experts)}
	var scales []float64
	for e := range at.Experts {
		need := 0
		for _, p := range g.expert(e) {
			if p.A.Open != nil {
				scales = append(scales, p.Scale())
				need += p.Rank
			}
		}
		if ps := g.expert(e); g.each == 2 && ps[0].A.Open != nil && ps[1].A.Open != nil && ps[0].Rank == ps[1].Rank {
			var err error
			if g.same[e], err = equalValues(ps[0].A, ps[1].A); err != nil {
				return Module{}, fmt.Errorf("%s: %w", at.Module, err)
			}
			if g.same[e] {
				need = ps[0].Rank
			}
		}
		g.rank = max(g.rank, need)
	}
	if g.rank > lora.MaxRank {
		return Module{}, fmt.Errorf("%s: %w: gate and up with an A each make a rank of %d, at most %d is supported", at.Module, ErrAdapter, g.rank, lora.MaxRank)
	}
	g.scale = most(scales)
	m := Module{Module: at.Module, Rank: g.rank, Alpha: g.scale * float64(g.rank)}
	for _, p := range parts {
		if p.A.Open != nil && p.Rank == m.Rank && p.Scale() == g.scale {
			m.Alpha = p.Alpha // not divided and multiplied again
		}
		if p.A.Open != nil && !powerOfTwo(p.Scale()/g.scale) {
			x.warn("%s: its scale %g as %g, B rounded once", p.Module, p.Scale(), g.scale)
		}
	}
	nameA, nameB := lora.Names(at.Module)
	shapeA, shapeB := shapesOf(at, g.rank)
	m.A, m.B = Tensor{Name: nameA, Shape: shapeA}, Tensor{Name: nameB, Shape: shapeB}
	m.A.Open = func() (hf.ReaderAtSized, error) {
		return &computed{&expertValues{g: g, size: m.A.elements() / int64(at.Experts), fill: g.fillA, at: -1}, m.A.elements()}, nil
	}
	m.B.Open = func() (hf.ReaderAtSized, error) {
		return &computed{&expertValues{g: g, size: m.B.elements() / int64(at.Experts), fill: g.fillB, at: -1}, m.B.elements()}, nil
	}
	return m, nil
}

func (g *gathered) expert(e int) []Module { return g.parts[e*g.each : (e+1)*g.each] }

func equalValues(a, b Tensor) (bool, error) {
	x, y := make([]float32, a.elements()), make([]float32, b.elements())
	if err := a.whole(x); err != nil {
		return false, err
	}
	if err := b.whole(y); err != nil {
		return false, err
	}
	return slices.Equal(x, y), nil
}

// fillA puts the projections' A [rank,in] under each other.
func (g *gathered) fillA(e int, dst []float32) error {
	row := 0
	for _, p := range g.expert(e) {
		if p.A.Open == nil || row > 0 && g.same[e] {
			continue
		}
		if err := p.A.whole(dst[row*g.at.In : (row+p.Rank)*g.at.In]); err != nil {
			return err
		}
		row += p.Rank
	}
	return nil
}

// fillB puts the projections' B [out,rank] below each other, each in the columns of its A.
func (g *gathered) fillB(e int, dst []float32) error {
	column, rows := 0, g.at.Out/g.each
	for i, p := range g.expert(e) {
		if p.A.Open == nil {
			continue
		}
		b := make([]float32, p.B.elements())
		if err := p.B.whole(b); err != nil {
			return err
		}
		if factor := p.Scale() / g.scale; factor != 1 {
			for k, v := range b {
				b[k] = float32(float64(v) * factor)
			}
		}
		for o := range rows {
			copy(dst[(i*rows+o)*g.rank+column:], b[o*p.Rank:(o+1)*p.Rank])
		}
		if !g.same[e] {
			column += p.Rank
		}
	}
	return nil
}

// expertValues are computed expert by expert; one is kept.
type expertValues struct {
	g    *gathered
	size int64 // of one expert's
	fill func(e int, dst []float32) error
	at   int64 // the expert that is kept
	kept []float32
}

func (v *expertValues) read(dst []float32, first int64) error {
	for len(dst) > 0 {
		e, off := first/v.size, first%v.size
		if e != v.at {
			v.kept, v.at = make([]float32, v.size), -1
			if err := v.fill(int(e), v.kept); err != nil {
				return err
			}
			v.at = e
		}
		n := copy(dst, v.kept[off:])
		dst, first = dst[n:], first+int64(n)
	}
	return nil
}

func (v *expertValues) Close() error { return nil }
