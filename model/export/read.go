package export

import (
	"fmt"
	"slices"
	"strings"

	"smolgym/model/hf"
	"smolgym/model/ir"
	"smolgym/model/lora"
	"smolgym/model/safetensors"
)

// Imported is an adapter that was read.
type Imported struct {
	BaseModel string   // what the adapter says it was trained on
	Modules   []Module // in the model's order, each with its own rank and alpha; tensors under our names, read from the source
	Warnings  []string // what was odd and has no effect on the values, a sentence each

	base *base
}

// MismatchError lists everything about an adapter's tensors that does not fit its base model.
type MismatchError struct {
	Missing    []string // tensors, by name
	Unexpected []string // tensors, by name and reason
	Wrong      []string // tensors of another shape or type, by name and reason
}

func (e *MismatchError) Error() string {
	var parts []string
	for _, p := range []struct {
		what  string
		names []string
	}{{"missing", e.Missing}, {"unexpected", e.Unexpected}, {"wrong", e.Wrong}} {
		if len(p.names) > 0 {
			parts = append(parts, fmt.Sprintf("%d %s: %s", len(p.names), p.what, several(p.names)))
		}
	}
	return fmt.Sprintf("%s: its tensors do not fit the base model: %s", ErrAdapter, strings.Join(parts, "; "))
}

func (e *MismatchError) Unwrap() error { return ErrAdapter }

// ReadAdapter reads PEFT's folder and checks it against the base model. The folder has to stay readable: tensors are read
// when they are opened, and given as float32, which holds every F16 and BF16 exactly.
func ReadAdapter(folder, baseModel hf.Source) (*Imported, error) {
	c, err := readPEFT(folder)
	if err != nil {
		return nil, fmt.Errorf("import adapter: %w", err)
	}
	b, err := openBase(baseModel)
	if err != nil {
		return nil, fmt.Errorf("import adapter: %w", err)
	}
	file, err := readHeader(folder)
	if err != nil {
		return nil, fmt.Errorf("import adapter: %w", err)
	}
	x := &importer{folder: folder, c: c, b: b, found: map[string]*Module{}, single: map[string][]Module{}, slots: b.slots()}
	x.stacks = x.stackedNames()
	for _, t := range file.Tensors() {
		x.tensor(t)
	}
	im, err := x.finish()
	if err != nil {
		return nil, fmt.Errorf("import adapter: %w", err)
	}
	return im, nil
}

// readPEFT reads the configuration, and refuses a folder without weights in the form that is read.
func readPEFT(folder hf.Source) (*peftConfig, error) {
	names := folder.Names()
	if !slices.Contains(names, adapterConfigName) {
		return nil, fmt.Errorf("%w: there is no %s; name a folder that PEFT has saved", ErrAdapter, adapterConfigName)
	}
	text, err := readSmall(folder, adapterConfigName, maxConfigBytes)
	if err != nil {
		return nil, err
	}
	c, err := parsePEFT(text)
	if err != nil {
		return nil, err
	}
	if !slices.Contains(names, adapterWeightsName) {
		if slices.Contains(names, "adapter_model.bin") {
			return nil, fmt.Errorf("%w: adapter_model.bin is a pickle, which can run code; save it again with safe_serialization as %s", ErrAdapter, adapterWeightsName)
		}
		return nil, fmt.Errorf("%w: there is no %s; add it", ErrAdapter, adapterWeightsName)
	}
	return c, nil
}

func readHeader(folder hf.Source) (*safetensors.File, error) {
	r, err := folder.Open(adapterWeightsName)
	if err != nil {
		return nil, fmt.Errorf("open %s: %w", adapterWeightsName, err)
	}
	defer r.Close() // only the header is kept
	f, err := safetensors.Parse(r, r.Size())
	if err != nil {
		return nil, fmt.Errorf("read %s: %w: %w", adapterWeightsName, ErrAdapter, err)
	}
	return f, nil
}

type importer struct {
	folder hf.Source
	c      *peftConfig
	b      *base
	found  map[string]*Module
	single map[string][]Module // adapters of single experts, by the module of them all
	slots  map[string]slot
	stacks map[string]string
	bad    MismatchError
}

func (x *importer) warn(format string, args ...any) {
	x.c.warnings = append(x.c.warnings, fmt.Sprintf(format, args...))
}

// hostedHead is what the hosted service calls the output head.
const hostedHead = "model.unembed_tokens"

// foreign says why a tensor that is neither A nor B is refused.
var foreign = []struct{ part, why string }{
	{".lora_magnitude_vector", "DoRA is not supported"},
	{".lora_embedding_", "an adapter on the embedding is not supported"},
	{".lora_A.bias", "a bias of an adapter is not supported"},
	{".lora_B.bias", "a bias of an adapter is not supported"},
	{".lora_A.", "the adapter's own name is in it: save the adapter with save_pretrained"},
	{".lora_B.", "the adapter's own name is in it: save the adapter with save_pretrained"},
	{".bias", "a trained bias is not supported"},
	{".weight", "a whole trained tensor (modules_to_save) is not supported"},
}

func (x *importer) unexpected(name, format string, args ...any) {
	x.bad.Unexpected = append(x.bad.Unexpected, shorten(name)+" ("+fmt.Sprintf(format, args...)+")")
}

func (x *importer) tensor(t safetensors.Tensor) {
	module, side, ok := cutName(t.Name)
	if !ok {
		why := "no adapter's tensor"
		for _, f := range foreign {
			if strings.Contains(t.Name, f.part) {
				why = f.why
				break
			}
		}
		x.unexpected(t.Name, "%s", why)
		return
	}
	p, known := x.place(module)
	if !known {
		x.unexpected(t.Name, "the base model has no such linear module")
		return
	}
	want := p.a
	if side == 'B' {
		want = p.b
	}
	if !slices.Equal(t.Shape, want) {
		x.bad.Wrong = append(x.bad.Wrong, fmt.Sprintf("%s is %v, the base model and rank %d need %v", t.Name, t.Shape, p.m.Rank, want))
		return
	}
	if !t.DType.IsWeight() {
		x.bad.Wrong = append(x.bad.Wrong, fmt.Sprintf("%s is %s; F32, F16 and BF16 are read", t.Name, t.DType))
		return
	}
	a, b := lora.Names(p.m.Module)
	into, name := &p.m.A, a
	if side == 'B' {
		into, name = &p.m.B, b
	}
	if into.Open != nil {
		x.unexpected(t.Name, "the module has another one")
		return
	}
	*into = Tensor{name, t.Shape, func() (hf.ReaderAtSized, error) { return x.open(t) }}
	if p.stacked {
		*into = x.stacked(*into, p.at, p.m.Rank, side)
	}
}

// place is what a pair of tensors belongs to.
type place struct {
	m       *Module
	at      lora.Adapter
	a, b    []int64 // shapes as they are stored
	stacked bool    // PEFT's form of all experts' adapters
}

// place finds the module of a name as PEFT has it.
func (x *importer) place(module string) (p place, known bool) {
	if s, ok := x.slots[module]; ok { // one expert's
		p.at = x.b.byName[s.module]
		if x.single[s.module] == nil {
			x.single[s.module] = make([]Module, s.each*p.at.Experts)
		}
		p.m = &x.single[s.module][s.index]
		*p.m = x.named(*p.m, module)
		p.a, p.b = []int64{int64(p.m.Rank), int64(p.at.In)}, []int64{int64(p.at.Out / s.each), int64(p.m.Rank)}
		return p, true
	}
	if all, ok := x.stacks[module]; ok {
		module, p.stacked = all, true
	}
	if _, known := x.b.byName[module]; !known && module == hostedHead {
		module = strings.TrimSuffix(x.b.headName, ".weight")
	}
	if p.at, known = x.b.byName[module]; !known {
		return p, false
	}
	if p.m = x.found[module]; p.m == nil {
		p.m = &Module{}
		x.found[module] = p.m
	}
	*p.m = x.named(*p.m, module)
	p.a, p.b = shapesOf(p.at, p.m.Rank)
	if p.stacked {
		p.a, p.b = []int64{int64(p.at.Experts * p.m.Rank), int64(p.at.In)}, []int64{int64(p.at.Out), int64(p.m.Rank * p.at.Experts)}
	}
	return p, true
}

// named fills in what the configuration says of a module.
func (x *importer) named(m Module, module string) Module {
	m.Module, m.Rank, m.Alpha = module, x.c.rankOf(module), x.c.alphaOf(module)
	return m
}

// open gives a stored tensor as float32.
func (x *importer) open(t safetensors.Tensor) (hf.ReaderAtSized, error) {
	v, err := openStored(x.folder, hf.Tensor{Name: t.Name, DType: t.DType, Shape: t.Shape, File: adapterWeightsName, Offset: t.Offset, Bytes: t.Bytes})
	if err != nil {
		return nil, err
	}
	return &computed{v, t.Elements()}, nil
}

func (x *importer) finish() (*Imported, error) {
	im := &Imported{BaseModel: x.c.base, base: x.b}
	for _, at := range x.b.modules {
		if parts := x.single[at.Module]; parts != nil && x.whole(at, parts) {
			m, err := x.gather(at, parts)
			if err != nil {
				return nil, err
			}
			x.found[at.Module] = &m
		}
		m, ok := x.found[at.Module]
		a, b := lora.Names(at.Module)
		switch {
		case ok && m.A.Open == nil:
			x.bad.Missing = append(x.bad.Missing, a)
		case ok && m.B.Open == nil:
			x.bad.Missing = append(x.bad.Missing, b)
		case ok:
			if m.Alpha > maxAlpha { // rslora's factor comes on top of what the configuration was checked for
				x.bad.Wrong = append(x.bad.Wrong, fmt.Sprintf("%s: alpha %g is above %g", at.Module, m.Alpha, float64(maxAlpha)))
			}
			im.Modules = append(im.Modules, *m)
		case x.single[at.Module] != nil: // what is missing of them has been said
		case at.Experts > 0 && !x.c.onParameter(at.Module):
			if !x.c.layered && x.expected(at) {
				x.whole(at, make([]Module, len(x.b.peftModules(at.Module)))) // none of them is there
			}
		case !x.c.layered && x.expected(at):
			x.bad.Missing = append(x.bad.Missing, a, b)
		}
	}
	im.Warnings = x.c.warnings
	if len(x.bad.Missing)+len(x.bad.Unexpected)+len(x.bad.Wrong) > 0 {
		return nil, &x.bad
	}
	if len(im.Modules) == 0 {
		return nil, fmt.Errorf("%w: %s holds no tensors", ErrAdapter, adapterWeightsName)
	}
	return im, nil
}

// whole says whether adapters of single experts are complete: each with A and B, none that the configuration asks for absent.
func (x *importer) whole(at lora.Adapter, parts []Module) bool {
	before := len(x.bad.Missing)
	if x.found[at.Module] != nil {
		x.unexpected(lora.Prefix+at.Module, "its experts have adapters of their own too")
	}
	for i, name := range x.b.peftModules(at.Module) {
		a, b := lora.Names(name)
		haveA, haveB := parts[i].A.Open != nil, parts[i].B.Open != nil
		asked := !x.c.layered && x.c.targeted(name)
		if !haveA && (haveB || asked) {
			x.bad.Missing = append(x.bad.Missing, a)
		}
		if !haveB && (haveA || asked) {
			x.bad.Missing = append(x.bad.Missing, b)
		}
	}
	given := slices.ContainsFunc(parts, func(m Module) bool { return m.A.Open != nil })
	return given && len(x.bad.Missing) == before && x.found[at.Module] == nil
}

// expected says whether the configuration asks for an adapter of a module of which there is none. Experts that are stored as
// one tensor are no modules that target_modules could mean.
func (x *importer) expected(at lora.Adapter) bool {
	if at.Experts == 0 {
		return x.c.targeted(at.Module)
	}
	if x.c.onParameter(at.Module) {
		return true
	}
	return len(x.b.ck.Parts(at.Weight)) >= at.Experts && slices.ContainsFunc(x.b.peftModules(at.Module), x.c.targeted)
}

// targeted says whether target_modules names a module.
func (c *peftConfig) targeted(module string) bool {
	return slices.ContainsFunc(c.targets, func(t string) bool { return module == t || strings.HasSuffix(module, "."+t) })
}

// Exact is the adapter as it is, each module with its own rank and alpha: what [lora.Apply] adapts with the configuration
// are the modules, in this order, and the tensors are their A and B.
func (im *Imported) Exact() (lora.Config, []Tensor) {
	u := im.Uniform()
	c := u.Config
	given := map[string]Module{}
	var tensors []Tensor
	for _, m := range im.Modules {
		given[m.Module] = m
		tensors = append(tensors, m.A, m.B)
	}
	c.Of = func(module string) (rank int, alpha float64) { m := given[module]; return m.Rank, m.Alpha }
	return c, tensors
}

// Uniform is an adapter in the form of a run: one rank and one scale, and every module of the parts that are on.
type Uniform struct {
	Config  lora.Config
	Tensors []Tensor // A and B of each module that [lora.Apply] adapts with Config, in its order
	// Notes tell what was folded. An adapter whose modules agree and cover their parts has none.
	Notes []string
	// Rounded names the modules whose B was multiplied by a factor that is no power of two: its values are rounded once.
	Rounded []string
}

// Uniform folds the modules into one rank and scale: the largest rank, with zeros in the rows and columns that a smaller
// one doesn't have, and the most common scale, with the others' factor multiplied into B. Modules of a part that has
// adapters only in places get zeros. All of it leaves the values as they are, and what is zero on both sides has no
// gradient either: training changes only what the adapter has.
func (im *Imported) Uniform() *Uniform {
	u := &Uniform{}
	given := map[string]*Module{}
	scales := make([]float64, len(im.Modules))
	for i := range im.Modules {
		m := &im.Modules[i]
		given[m.Module] = m
		scales[i] = m.Scale()
		u.Config.Rank = max(u.Config.Rank, m.Rank)
		switch im.base.byName[m.Module].Part {
		case ir.PartAttention:
			u.Config.Attention = true
		case ir.PartMLP:
			u.Config.MLP = true
		case ir.PartUnembed:
			u.Config.Unembed = true
		}
	}
	scale := most(scales)
	u.Config.Alpha = scale * float64(u.Config.Rank)
	if i := slices.IndexFunc(im.Modules, func(m Module) bool { return m.Rank == u.Config.Rank && m.Scale() == scale }); i >= 0 {
		u.Config.Alpha = im.Modules[i].Alpha // not divided and multiplied again
	}
	for _, at := range im.base.modules {
		if on := at.Part == ir.PartAttention && u.Config.Attention || at.Part == ir.PartMLP && u.Config.MLP || at.Part == ir.PartUnembed && u.Config.Unembed; on {
			u.module(at, given[at.Module], scale)
		}
	}
	return u
}

func (u *Uniform) module(at lora.Adapter, m *Module, scale float64) {
	rank, in := u.Config.Rank, int64(at.In)
	a, b := Tensor{Name: at.A}, Tensor{Name: at.B}
	a.Shape, b.Shape = shapesOf(at, rank)
	if m == nil {
		a.Open, b.Open = zeros(a), zeros(b)
		u.Notes = append(u.Notes, at.Module+" has no adapter: zeros that stay zero")
		u.Tensors = append(u.Tensors, a, b)
		return
	}
	factor := m.Scale() / scale
	switch {
	case m.Rank == rank && factor == 1:
		a.Open, b.Open = m.A.Open, m.B.Open
	default:
		a.Open = padded(m.A, int64(m.Rank)*in, int64(rank)*in, a.elements(), 1)
		b.Open = padded(m.B, int64(m.Rank), int64(rank), b.elements(), factor)
		note := fmt.Sprintf("%s: rank %d as %d, scale %g as %g", at.Module, m.Rank, rank, m.Scale(), scale)
		if !powerOfTwo(factor) {
			u.Rounded = append(u.Rounded, at.Module)
			note += ", B rounded once"
		}
		u.Notes = append(u.Notes, note)
	}
	u.Tensors = append(u.Tensors, a, b)
}
