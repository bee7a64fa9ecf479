package export

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"

	"smolgym/model/hf"
	"smolgym/model/ir"
	"smolgym/model/lora"
	"smolgym/model/safetensors"
)

const (
	adapterConfigName  = "adapter_config.json"
	adapterWeightsName = "adapter_model.safetensors"
	readmeName         = "README.md"
)

// AdapterOptions are those of [Adapter].
type AdapterOptions struct {
	BaseModel string            // base_model_name_or_path: what the adapter is loaded over
	DType     safetensors.DType // F32 if empty; F16 or BF16 round
}

// adapterFile is adapter_config.json. The patterns are there only where modules differ.
type adapterFile struct {
	adapterConfig
	TargetParameters []string           `json:"target_parameters,omitempty"`
	RankPattern      map[string]int     `json:"rank_pattern,omitempty"`
	AlphaPattern     map[string]float64 `json:"alpha_pattern,omitempty"`
}

// Adapter plans PEFT's folder: adapter_config.json, adapter_model.safetensors and a README.md that says who can load it.
func Adapter(src hf.Source, modules []Module, o AdapterOptions) (*Plan, error) {
	if o.DType == "" {
		o.DType = safetensors.F32
	}
	if !o.DType.IsWeight() {
		return nil, fmt.Errorf("export adapter: %w: an adapter can be F32, F16 or BF16, not %q", ErrValue, o.DType)
	}
	if len(modules) == 0 {
		return nil, fmt.Errorf("export adapter: %w: there is no adapter; a run of full update is exported merged", ErrWeights)
	}
	b, err := openBase(src)
	if err != nil {
		return nil, fmt.Errorf("export adapter: %w", err)
	}
	w, err := b.check(Weights{Adapters: modules})
	if err != nil {
		return nil, fmt.Errorf("export adapter: %w", err)
	}
	modules = w.Adapters
	if b.stack, err = b.checkExperts(modules); err != nil {
		return nil, fmt.Errorf("export adapter: %w", err)
	}
	config := b.adapterConfig(modules, o.BaseModel)
	text, err := json.MarshalIndent(config, "", "  ")
	if err != nil {
		return nil, fmt.Errorf("export adapter: %s: %w", adapterConfigName, err)
	}
	entries := make([]safetensors.Entry, 0, 2*len(modules))
	for _, m := range modules {
		if b.stack && b.byName[m.Module].Experts > 0 {
			entries = append(entries, b.stackedEntries(m, modules, o.DType)...)
			continue
		}
		for _, t := range b.tensors(m.Module, m.Rank) {
			whole := m.A
			if t.B {
				whole = m.B
			}
			entries = append(entries, entryOf(t, whole, o.DType))
		}
	}
	metadata := map[string]string{"format": "pt"}
	size, err := safetensors.Size(entries, metadata)
	if err != nil {
		return nil, fmt.Errorf("export adapter: %w", err)
	}
	p := &Plan{Notes: []string{b.whoLoads(modules)}}
	p.addText(adapterConfigName, append(text, '\n'))
	p.add(adapterWeightsName, size, func(w io.Writer) error { return safetensors.Write(w, entries, metadata) })
	p.addText(readmeName, []byte(b.readme(modules, o, config)))
	p.sort()
	return p, nil
}

// checkExperts says in which form adapters on experts go out: one by one, or, where that would not be loaded, as adapters of
// the parameters that hold them all. It refuses them where PEFT would load them in part and say nothing: in families whose
// experts it knows as modules it finds them by the last part of a name, for the whole model at once.
func (b *base) checkExperts(modules []Module) (stack bool, err error) {
	adapted, leaves := map[string]bool{}, map[string]bool{}
	for _, m := range modules {
		if adapted[m.Module] = true; b.byName[m.Module].Experts > 0 {
			for _, name := range b.peftModules(m.Module) {
				leaves[lora.Leaf(name)] = true
			}
		}
	}
	if len(leaves) == 0 {
		return false, nil
	}
	for _, at := range b.modules {
		switch {
		case at.Experts > 0 && len(b.ck.Parts(at.Weight)) < at.Experts, at.Experts > 0 && !adapted[at.Module]:
			stack = true
		case at.Experts == 0 && adapted[at.Module] && leaves[lora.Leaf(at.Module)] && slices.Contains(convertedFamilies, b.family):
			return false, fmt.Errorf("%w: PEFT can't load adapters on experts of this model: %s has the name of an expert's module; export merged", ErrWeights, at.Module)
		case at.Experts == 0 && leaves[lora.Leaf(at.Module)]:
			stack = true
		}
	}
	return stack, nil
}

// convertedFamilies are those in which PEFT takes the names of single experts' modules, wherever they stand, for experts.
var convertedFamilies = []string{"mixtral", "qwen3_moe", "qwen3_next"}

// tensors lists a module's tensors as PEFT has them: those of experts are modules of their own.
func (b *base) tensors(module string, rank int) []lora.Tensor {
	at := b.byName[module]
	at.Rank = rank
	var stored []string
	for _, t := range b.ck.Parts(at.Weight) {
		stored = append(stored, t.Name)
	}
	return at.Tensors(stored)
}

// peftModules lists what PEFT calls a module: itself, or one a projection of each expert.
func (b *base) peftModules(module string) []string {
	var names []string
	for _, t := range b.tensors(module, 1) {
		if name, side, ok := cutName(t.Name); ok && side == 'A' {
			names = append(names, name)
		}
	}
	return names
}

func entryOf(t lora.Tensor, whole Tensor, dtype safetensors.DType) safetensors.Entry {
	return safetensors.Entry{Name: t.Name, DType: dtype, Shape: []int64{int64(t.Rows), int64(t.Columns)}, Data: func(w io.Writer) (err error) {
		v, err := whole.values()
		if err != nil {
			return err
		}
		defer func() { err = errors.Join(err, v.Close()) }()
		return convert(w, &from{v, int64(t.Offset)}, int64(t.Rows)*int64(t.Columns), dtype)
	}}
}

// adapterConfig describes modules that are in the model's order.
func (b *base) adapterConfig(modules []Module, name string) adapterFile {
	rank, alpha := common(modules)
	f := adapterFile{adapterConfig: adapterConfig{PeftType: "LORA", TaskType: "CAUSAL_LM", BaseModel: name, Rank: rank, Alpha: alpha,
		Bias: "none", TargetModules: b.targets(modules), InferenceMode: true}, TargetParameters: b.targetParameters(modules)}
	for _, m := range modules {
		f.FanInFanOut = f.FanInFanOut || b.byName[m.Module].Transposed
		if m.Rank != rank {
			if f.RankPattern == nil {
				f.RankPattern = map[string]int{}
			}
			for _, name := range b.configured(m.Module) {
				f.RankPattern[name] = m.Rank
			}
		}
		if m.Alpha != alpha {
			if f.AlphaPattern == nil {
				f.AlphaPattern = map[string]float64{}
			}
			for _, name := range b.configured(m.Module) {
				f.AlphaPattern[name] = m.Alpha
			}
		}
	}
	return f
}

// common finds the rank and the alpha that most modules have; of equals, that which comes first.
func common(modules []Module) (rank int, alpha float64) {
	ranks, alphas := make([]int, len(modules)), make([]float64, len(modules))
	for i, m := range modules {
		ranks[i], alphas[i] = m.Rank, m.Alpha
	}
	return most(ranks), most(alphas)
}

func most[E comparable](list []E) E {
	counts := map[E]int{}
	for _, v := range list {
		counts[v]++
	}
	best := list[0]
	for _, v := range list {
		if counts[v] > counts[best] {
			best = v
		}
	}
	return best
}

// targets lists the modules as PEFT finds them: by the last part of their names, sorted, or by whole names where a last
// part would also find modules without an adapter.
func (b *base) targets(modules []Module) []string {
	adapted := map[string]bool{}
	for _, m := range modules {
		adapted[m.Module] = true
	}
	partial := map[string]bool{}
	for _, at := range b.modules {
		for _, name := range b.targetable(at.Module) {
			partial[lora.Leaf(name)] = partial[lora.Leaf(name)] || !adapted[at.Module]
		}
	}
	list := []string{}
	for _, m := range modules {
		for _, name := range b.targetable(m.Module) {
			if leaf := lora.Leaf(name); partial[leaf] {
				list = append(list, name)
			} else {
				list = append(list, leaf)
			}
		}
	}
	slices.Sort(list)
	return slices.Compact(list)
}

// whoLoads says whether a stock inference server can serve the adapter over its base model.
func (b *base) whoLoads(modules []Module) string {
	rank, alpha := common(modules)
	uniform, head, experts := true, false, false
	for _, m := range modules {
		uniform = uniform && m.Rank == rank && m.Alpha == alpha
		experts = experts || b.byName[m.Module].Experts > 0
		head = head || b.byName[m.Module].Part == ir.PartUnembed
	}
	switch {
	case head && b.tied:
		return "stock inference servers can't load it as an adapter: it has one on the output head, which this model shares with its embedding; PEFT can, and the merged export loads everywhere"
	case head:
		return "not every stock inference server can load it as an adapter: it has one on the output head, which some refuse; PEFT can, and the merged export loads everywhere"
	case experts:
		return "not every server and library can load it as an adapter: it has some on experts, " + map[bool]string{false: "one by one", true: "as adapters of parameters"}[b.stack] + "; PEFT can, and the merged export loads everywhere"
	case !uniform:
		return "stock inference servers can't load it as an adapter: its modules differ in rank or alpha, and they read one of each; PEFT can, and the merged export loads everywhere"
	}
	return fmt.Sprintf("stock inference servers can load it as an adapter, where they allow rank %d", rank)
}

func (b *base) readme(modules []Module, o AdapterOptions, c adapterFile) string {
	var s strings.Builder
	s.WriteString("---\nlibrary_name: peft\n")
	if o.BaseModel != "" {
		text, _ := json.Marshal(o.BaseModel) // a string can't fail, and YAML reads JSON's
		fmt.Fprintf(&s, "base_model: %s\n", text)
	}
	fmt.Fprintf(&s, "---\n\n# LoRA adapter\n\nTrained with SmolGym on `%s` (%s).\n\n", strings.ReplaceAll(o.BaseModel, "`", "'"), b.family)
	if c.RankPattern == nil && c.AlphaPattern == nil {
		fmt.Fprintf(&s, "- rank %d, alpha %g, scale %g\n", c.Rank, c.Alpha, c.Alpha/float64(c.Rank))
	} else {
		fmt.Fprintf(&s, "- rank %d, alpha %g, but for the modules in `rank_pattern` and `alpha_pattern`\n", c.Rank, c.Alpha)
	}
	leaves := make([]string, len(modules))
	for i, m := range modules {
		leaves[i] = "`" + lora.Leaf(m.Module) + "`"
	}
	slices.Sort(leaves)
	fmt.Fprintf(&s, "- %d modules: %s\n- element type %s\n\n", len(modules), strings.Join(slices.Compact(leaves), ", "), o.DType)
	note := b.whoLoads(modules)
	s.WriteString(strings.ToUpper(note[:1]) + note[1:] + ".\n")
	return s.String()
}
