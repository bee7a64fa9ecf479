package appliance

import (
	"cmp"
	"slices"
	"time"
)

// Loaded is what is in device memory, each list by name.
type Loaded struct {
	Models   []LoadedModel
	Runs     []LoadedRun
	Samplers []LoadedSampler
}

type (
	// LoadedModel is a base model.
	LoadedModel struct {
		Name      string
		Bytes     int64  // of its weights
		Precision string // of its matrix products: fp32 or bf16
	}
	// LoadedRun is a run with its training state.
	LoadedRun struct {
		ID        string
		BaseModel string
		Full      bool
		Rank      int
		Waiting   int // requests whose turn has not come
	}
	// LoadedSampler is a set of weights that clients sample from.
	LoadedSampler struct {
		ID        string
		BaseModel string
		Path      string // the checkpoint they were read from, empty for none
		Active    int    // requests that use them now
		LastUse   time.Time
	}
)

// Loaded lists what is in device memory now.
func (a *Appliance) Loaded() Loaded {
	a.mu.Lock()
	var l Loaded
	for _, b := range a.bases {
		l.Models = append(l.Models, LoadedModel{b.name, b.eng.Info().Bytes, precisionOf(b.eng.Info().DType)})
	}
	runs := make([]*run, 0, len(a.runs))
	for _, r := range a.runs {
		runs = append(runs, r)
	}
	samplers := make([]*sampler, 0, len(a.samplers))
	for _, s := range a.samplers {
		samplers = append(samplers, s)
	}
	a.mu.Unlock()
	for _, r := range runs {
		if !r.live() {
			continue
		}
		rec := r.record()
		r.mu.Lock()
		waiting := len(r.waiting)
		r.mu.Unlock()
		l.Runs = append(l.Runs, LoadedRun{ID: rec.ID, BaseModel: rec.BaseModel, Full: rec.Full, Rank: rec.Rank, Waiting: waiting})
	}
	for _, s := range samplers {
		s.mu.Lock()
		if s.weights != nil {
			l.Samplers = append(l.Samplers, LoadedSampler{s.rec.ID, s.rec.BaseModel, s.rec.ModelPath, s.busy, s.used})
		}
		s.mu.Unlock()
	}
	slices.SortFunc(l.Models, func(x, y LoadedModel) int { return cmp.Compare(x.Name, y.Name) })
	slices.SortFunc(l.Runs, func(x, y LoadedRun) int { return cmp.Compare(x.ID, y.ID) })
	slices.SortFunc(l.Samplers, func(x, y LoadedSampler) int { return cmp.Compare(x.ID, y.ID) })
	return l
}
