package appliance

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	"smolgym/model/gguf"
	"smolgym/model/hf"
	"smolgym/model/safetensors"
	"smolgym/store"
	"smolgym/tokenizer"
)

// maxTokenizerBytes bounds a tokenizer.json; the largest published ones have 35 MB.
const maxTokenizerBytes = 128 << 20

// model finds a stored model by any of its names.
func (a *Appliance) model(name string) (store.Model, error) {
	full, err := ModelName(name)
	if err != nil {
		return store.Model{}, err
	}
	m, err := a.db.Model(full)
	if errors.Is(err, store.ErrNotFound) {
		p := Problemf(CodeNotFound, "base model %q is not on this box", full)
		if near := a.near(full); near != "" {
			return m, p.WithHint("did you mean %q? \"smolgym model list\" shows all", near)
		}
		return m, p.WithHint("see the models it has with \"smolgym model list\"; add one with \"smolgym model add %s DIR\" or \"smolgym model pull %s\"", full, full)
	}
	if err != nil {
		return m, problemOf("find model", err)
	}
	return m, nil
}

// near is the stored name or alias that a misspelt one may have meant: at most two letters apart, or the same but for case.
func (a *Appliance) near(name string) string {
	all, err := a.db.Models()
	if err != nil {
		return "" // a hint less; the error that matters is the caller's
	}
	best, least := "", 3
	for _, m := range onlyModels(all) {
		for _, s := range append([]string{m.Name}, m.Aliases...) {
			d := distance(strings.ToLower(name), strings.ToLower(s))
			if d < least || d == least && s < best {
				best, least = s, d
			}
		}
	}
	return best
}

// distance is Levenshtein's: how many bytes must be put in, taken out or changed.
func distance(a, b string) int {
	row := make([]int, len(b)+1)
	for j := range row {
		row[j] = j
	}
	for i := range len(a) {
		diagonal := row[0]
		row[0] = i + 1
		for j := range len(b) {
			cost := 1
			if a[i] == b[j] {
				cost = 0
			}
			diagonal, row[j+1] = row[j+1], min(diagonal+cost, row[j]+1, row[j+1]+1)
		}
	}
	return row[len(b)]
}

// Model describes one stored model.
func (a *Appliance) Model(name string) (store.Model, error) { return a.model(name) }

// modelFolder finds a stored model by any of its names, and its files.
func (a *Appliance) modelFolder(name string) (store.Model, folder, error) {
	m, err := a.model(name)
	if err != nil {
		return m, folder{}, err
	}
	src, err := a.folder(m.Files)
	if err != nil {
		return m, folder{}, refusal(m.Name, err)
	}
	return m, src, nil
}

// Models lists the stored models by name.
func (a *Appliance) Models() ([]store.Model, error) {
	all, err := a.db.Models()
	if err != nil {
		return nil, problemOf("list models", err)
	}
	all = onlyModels(all)
	slices.SortFunc(all, func(x, y store.Model) int { return strings.Compare(x.Name, y.Name) })
	for i := range all {
		all[i].Context = a.capped(all[i].Context)
	}
	return all, nil
}

// capped is a model's context under the appliance's cap.
func (a *Appliance) capped(context int) int {
	if c := a.opt.Context; c > 0 && (context == 0 || c < context) {
		return c
	}
	return context
}

// RemoveModel deletes a stored model. Its bytes go with the next collection.
func (a *Appliance) RemoveModel(name string) error {
	m, err := a.model(name)
	if full, bad := ModelName(name); err != nil && bad == nil && a.RemoveRepository(full) == nil {
		return nil // it was an upload that is no model yet
	}
	if err != nil {
		return err
	}
	if a.isEmbedded(m.Name) {
		return Problemf(CodeUser, "model %s comes with the program and can't be removed", m.Name)
	}
	if users := a.usersOf(m.Name); len(users) > 0 {
		return Problemf(CodeConflict, "model %s is in use by %s", m.Name, strings.Join(users, ", ")).
			WithHint("finish their sessions first")
	}
	if err := a.db.DeleteModel(m.Name); err != nil {
		return problemOf("remove model "+m.Name, err)
	}
	a.garbage.Store(true)
	a.forgetBase(m.Name)
	if err := a.RemoveRepository(m.Name); err != nil && problemOf("", err).Code != CodeNotFound {
		return err
	}
	return nil
}

// usersOf names the live runs and loaded samplers of a model, at most five.
func (a *Appliance) usersOf(model string) []string {
	a.mu.Lock()
	defer a.mu.Unlock()
	users := map[string]bool{}
	for id, r := range a.runs {
		if r.live() && r.record().BaseModel == model {
			users["run "+id] = true
		}
	}
	for id, s := range a.samplers {
		if s.rec.BaseModel == model && s.loaded() {
			users["sampler "+id] = true
		}
	}
	names := slices.Sorted(maps.Keys(users))
	if len(names) > 5 {
		names = append(names[:5], fmt.Sprintf("%d more", len(users)-5))
	}
	return names
}

// examine reads everything about a model but its weights' values, and refuses
// with the complete list of what can't be taken.
func examine(name string, src folder) (*Verdict, error) {
	x, err := Examine(name, src)
	if err != nil {
		return nil, err
	}
	if gaps := x.Gaps; len(gaps) > 0 {
		return nil, Problemf(CodeUnsupported, "model %s can't be taken: %s: %s", name, count(len(gaps), "reason"), strings.Join(gaps, "; "))
	}
	return x, nil
}

// refusal is an error of the packages that read models for the user: it names file
// and tensor.
func refusal(name string, err error) *Problem {
	for _, known := range []error{hf.ErrMissing, hf.ErrInvalid, hf.ErrUnsupported, hf.ErrName, hf.ErrLimit,
		safetensors.ErrHeader, safetensors.ErrTensor, safetensors.ErrDType, safetensors.ErrLimit, safetensors.ErrAbsent,
		gguf.ErrHeader, gguf.ErrTensor, gguf.ErrUnsupported, gguf.ErrLimit, gguf.ErrAbsent, gguf.ErrKind} {
		if errors.Is(err, known) {
			return Problemf(CodeUnsupported, "model %s can't be taken: %v", name, err).Because(err)
		}
	}
	return problemOf("add model "+name, err)
}

// modelRecord is the record of an examined model.
func (a *Appliance) modelRecord(name string, files []store.File, x *Verdict) store.Model {
	m := store.Model{Name: name, Created: a.now(), Files: files, Family: x.Checkpoint.Config.ModelType,
		Context: x.Context, Meta: map[string]string{}}
	m.Parameters, m.DType = x.Size()
	if len(x.Warnings) > 0 {
		m.Meta["warnings"] = strings.Join(x.Warnings, "\n")
	}
	return m
}

// Capability is a model that can be trained and sampled.
type Capability struct {
	Name    string
	Context int // tokens
}

// Capabilities lists every stored model.
func (a *Appliance) Capabilities() ([]Capability, error) {
	models, err := a.Models()
	if err != nil {
		return nil, err
	}
	list := make([]Capability, len(models))
	for i, m := range models {
		list[i] = Capability{m.Name, m.Context}
	}
	return list, nil
}

// Tokenize gives the ids of a text by a stored model's tokenizer.
func (a *Appliance) Tokenize(model, text string, special bool) ([]int32, error) {
	tok, err := a.tokenizerOf(model)
	if err != nil {
		return nil, err
	}
	return tok.Encode(text, special), nil
}

// Detokenize gives the text of ids.
func (a *Appliance) Detokenize(model string, ids []int32, skipSpecial bool) (string, error) {
	tok, err := a.tokenizerOf(model)
	if err != nil {
		return "", err
	}
	return tok.Decode(ids, skipSpecial), nil
}

// tokenizerOf is that of the loaded base, or read anew.
func (a *Appliance) tokenizerOf(name string) (*tokenizer.Tokenizer, error) {
	m, err := a.model(name)
	if err != nil {
		return nil, err
	}
	a.mu.Lock()
	b := a.bases[m.Name]
	a.mu.Unlock()
	if b != nil && b.tok != nil {
		return b.tok, nil
	}
	src, err := a.folder(m.Files)
	if err != nil {
		return nil, refusal(m.Name, err)
	}
	tok, file, load, err := src.tokenizer()
	switch {
	case err != nil:
		return nil, problemOf("read tokenizer of "+m.Name, err)
	case file == "":
		return nil, Problemf(CodeUser, "model %s has no tokenizer.json or tokenizer.model", m.Name).WithHint("add it again with one")
	case load != nil:
		return nil, Problemf(CodeUnsupported, "model %s: %s: %v", m.Name, file, load).Because(load)
	}
	return tok, nil
}
