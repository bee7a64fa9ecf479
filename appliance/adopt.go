package appliance

import (
	"context"
	"errors"
	"fmt"

	"github.com/google/uuid"

	"smolgym/model/export"
	"smolgym/store"
)

// BeginImport announces the files of an adapter (PEFT's folder) for a stored model.
// The upload goes on like a model's, and ends with CommitImport.
func (a *Appliance) BeginImport(baseModel string, files []ManifestFile) (UploadState, error) {
	m, err := a.model(baseModel)
	if err != nil {
		return UploadState{}, err
	}
	if err := checkManifest(files); err != nil {
		return UploadState{}, err
	}
	return a.beginUpload(m.Name, true, files)
}

// Imported is an adapter that became a checkpoint.
type Imported struct {
	store.Checkpoint
	Notes []string // what was odd, or folded to fit a run's one rank and scale
}

// CommitImport stores the adapter as a checkpoint of kind weights, to sample from
// and to train on. It belongs to a run of its own that has ended.
func (a *Appliance) CommitImport(id, name string) (Imported, error) {
	u, err := a.upload(id)
	if err != nil {
		return Imported{}, err
	}
	if err := checkCheckpointName(name); err != nil {
		return Imported{}, err
	}
	u.mu.Lock()
	defer u.mu.Unlock()
	u.used = a.now()
	if !u.adapter {
		return Imported{}, Problemf(CodeUser, "upload %s is of a model", u.id).WithHint("end it with commit")
	}
	files, err := u.complete()
	if err != nil {
		return Imported{}, err
	}
	m, err := a.model(u.model)
	if err != nil {
		return Imported{}, err
	}
	base, err := a.folder(m.Files)
	if err != nil {
		return Imported{}, refusal(m.Name, err)
	}
	im, err := export.ReadAdapter(stored{a.db.Blobs(), files}, base)
	if err != nil {
		return Imported{}, adapterProblem(m.Name, err)
	}
	uni := im.Uniform()
	out := Imported{Notes: append(im.Warnings, uni.Notes...)}
	if out.Checkpoint, err = a.adopt(m.Name, name, uni); err != nil {
		return Imported{}, adapterProblem(m.Name, err)
	}
	a.dropUpload(u)
	a.noteSave(out.CheckpointKey, out.Checkpoint)
	a.log.Info("adapter imported", "checkpoint", out.Path(), "model", m.Name, "rank", out.Rank)
	return out, nil
}

// adapterProblem is an error about an adapter for the user.
func adapterProblem(model string, err error) *Problem {
	var mismatch *export.MismatchError
	if errors.As(err, &mismatch) || errors.Is(err, export.ErrAdapter) || errors.Is(err, export.ErrWeights) || errors.Is(err, export.ErrValue) {
		return Problemf(CodeUnsupported, "the adapter can't be taken over %s: %v", model, err).Because(err)
	}
	return refusal(model, err)
}

// adopt writes an adapter's tensors and the records that list them.
func (a *Appliance) adopt(model, name string, uni *export.Uniform) (store.Checkpoint, error) {
	now, c := a.now(), uni.Config
	session := store.Session{ID: uuid.NewString(), Created: now, LastSeen: now, Tags: []string{"import"},
		Finished: &store.Finish{Reason: "success", Detail: "an adapter was imported", Time: now}}
	cp := store.Checkpoint{CheckpointKey: store.CheckpointKey{RunID: RunID(session.ID, 0), Kind: store.KindWeights, Name: name},
		Adapter: store.Adapter{Rank: c.Rank, Alpha: c.Alpha, TrainAttn: c.Attention, TrainMLP: c.MLP, TrainUnembed: c.Unembed},
		Created: now, BaseModel: model, Numerics: a.numerics(model)}
	infos, err := a.db.Blobs().PutAll(context.Background(), len(uni.Tensors), func(i int) ([]byte, error) { return read(uni.Tensors[i]) })
	if err != nil {
		return cp, err
	}
	defer func() {
		for _, info := range infos {
			a.db.Blobs().Release(info.ID)
		}
		a.garbage.Store(true)
	}()
	for i, t := range uni.Tensors {
		cp.Tensors = append(cp.Tensors, store.Tensor{Name: t.Name, DType: "F32", Shape: t.Shape, Blob: infos[i].ID, Bytes: infos[i].Size})
		cp.SizeBytes += infos[i].Size
	}
	if err := a.db.AddSession(session); err != nil {
		return cp, err
	}
	rec := store.Run{ID: cp.RunID, SessionID: session.ID, BaseModel: model, Adapter: cp.Adapter, Created: now, LastRequest: now, Numerics: cp.Numerics,
		UserMetadata: map[string]string{"imported": name}}
	if err := a.db.AddRun(rec); err != nil {
		return cp, err
	}
	return cp, a.db.AddCheckpoint(cp)
}

// read reads a tensor whole: those of adapters are small.
func read(t export.Tensor) (data []byte, err error) {
	r, err := t.Open()
	if err != nil {
		return nil, fmt.Errorf("tensor %s: %w", t.Name, err)
	}
	defer r.Close() // only read from
	data = make([]byte, r.Size())
	if n, err := r.ReadAt(data, 0); n < len(data) {
		return nil, fmt.Errorf("tensor %s: %w", t.Name, err)
	}
	return data, nil
}
