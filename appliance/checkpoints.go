package appliance

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"time"

	"smolgym/appliance/engine"
	"smolgym/store"
	"smolgym/store/blob"
)

// SaveRequest asks for a checkpoint of a run as of its number.
type SaveRequest struct {
	RunID        string
	Seq          int64
	Name         string
	TTL          time.Duration // 0: kept until deleted
	Overwrite    bool
	UserMetadata map[string]string
}

func (req SaveRequest) digest(kind Kind) digest {
	h := hashOf(kind)
	h.text(req.Name)
	h.int(int64(req.TTL))
	h.bool(req.Overwrite)
	h.textMap(req.UserMetadata)
	return h.sum()
}

// SaveWeights asks for a checkpoint with optimizer state.
func (a *Appliance) SaveWeights(req SaveRequest) (Ticket, error) {
	return a.save(KindSaveWeights, store.KindWeights, req, func(path string) any { return &SaveResult{Path: path} })
}

// SaveSamplerWeights asks for a checkpoint to sample from. One of the same name is
// replaced: the wire has no overwrite flag here.
func (a *Appliance) SaveSamplerWeights(req SaveRequest) (Ticket, error) {
	req.Overwrite = true
	return a.save(KindSaveSampler, store.KindSampler, req, func(path string) any { return &SaveSamplerResult{Path: path} })
}

func (a *Appliance) save(kind Kind, part store.Kind, req SaveRequest, result func(path string) any) (Ticket, error) {
	if err := checkCheckpointName(req.Name); err != nil {
		return Ticket{}, err
	}
	if req.TTL < 0 {
		return Ticket{}, Problemf(CodeUser, "%s: ttl_seconds is negative", kind)
	}
	r, err := a.run(req.RunID)
	if err != nil {
		return Ticket{}, err
	}
	r.touch(req.Seq)
	return r.submit(kind, req.Seq, req.digest(kind), nil, func() (any, error) {
		t, err := r.training()
		if err != nil {
			return nil, err
		}
		key := store.CheckpointKey{RunID: r.name, Kind: part, Name: req.Name}
		if err := a.writeCheckpoint(r, t, key, req); err != nil {
			return nil, err
		}
		return result(key.Path()), nil
	})
}

// writeCheckpoint stores the run's tensors and then the record that lists them.
// Owner: the weights can't change meanwhile.
func (a *Appliance) writeCheckpoint(r *run, t *engine.Trainer, key store.CheckpointKey, req SaveRequest) error {
	if !req.Overwrite {
		if _, err := a.db.Checkpoint(key); err == nil {
			return taken(key)
		} else if !errors.Is(err, store.ErrNotFound) {
			return err
		}
	}
	tensors, err := a.writeTensors(t, t.Tensors(key.Kind == store.KindWeights))
	if err != nil {
		return err
	}
	defer func() {
		for _, w := range tensors {
			a.db.Blobs().Release(w.Blob)
		}
	}()
	rec := r.record()
	cp := store.Checkpoint{CheckpointKey: key, Adapter: rec.Adapter, Created: a.now(), UserMetadata: req.UserMetadata,
		BaseModel: rec.BaseModel, Step: t.StepCount(), Numerics: a.numerics(rec.BaseModel)}
	if req.TTL > 0 {
		at := cp.Created.Add(req.TTL)
		cp.Expires = &at
	}
	for _, w := range tensors {
		cp.SizeBytes += w.Bytes
		if w.optimizer {
			cp.Optimizer = append(cp.Optimizer, w.Tensor)
		} else {
			cp.Tensors = append(cp.Tensors, w.Tensor)
		}
	}
	if req.Overwrite {
		a.garbage.Store(true)
		err = a.db.PutCheckpoint(cp)
	} else if err = a.db.AddCheckpoint(cp); errors.Is(err, store.ErrExists) {
		return taken(key)
	}
	if err == nil {
		a.noteSave(key, cp)
	}
	return err
}

func taken(key store.CheckpointKey) *Problem {
	return Problemf(CodeConflict, "checkpoint %s exists", key.Path()).WithHint("save under another name or with overwrite=True")
}

// written is a stored tensor; its blob is held.
type written struct {
	store.Tensor
	optimizer bool
}

// wholeTensor is up to which size, in bytes, a tensor passes through memory at once.
// Small ones share transactions, each of which waits for the disk.
const wholeTensor = 4 << 20

// writeTensors stores tensors of the device. On error nothing stays held. Owner.
func (a *Appliance) writeTensors(t *engine.Trainer, infos []engine.TensorInfo) (list []written, err error) {
	list = make([]written, len(infos))
	var held []blob.ID
	defer func() {
		if err != nil {
			a.db.Blobs().Release(held...)
		}
	}()
	var small []int
	for i, info := range infos {
		list[i] = written{store.Tensor{Name: info.Name, DType: "F32", Shape: info.Shape, Bytes: info.Bytes}, info.Optimizer}
		if info.Bytes <= wholeTensor {
			small = append(small, i)
			continue
		}
		id, err := a.streamTensor(t, info)
		if err != nil {
			return nil, fmt.Errorf("tensor %s: %w", info.Name, err)
		}
		list[i].Blob = id
		held = append(held, id)
	}
	buf := make([]byte, wholeTensor)
	blobs, err := a.db.Blobs().PutAll(context.Background(), len(small), func(k int) ([]byte, error) {
		info := infos[small[k]]
		part := buf[:info.Bytes]
		return part, t.Read(info.Name, 0, part)
	})
	if err != nil {
		return nil, err
	}
	for k, b := range blobs {
		list[small[k]].Blob = b.ID
	}
	return list, nil
}

// streamTensor stores one tensor in pieces. Owner.
func (a *Appliance) streamTensor(t *engine.Trainer, info engine.TensorInfo) (blob.ID, error) {
	w := a.db.Blobs().NewWriter()
	defer w.Close()
	piece := make([]byte, blob.ChunkSize)
	for at := int64(0); at < info.Bytes; at += int64(len(piece)) {
		part := piece[:min(int64(len(piece)), info.Bytes-at)]
		if err := t.Read(info.Name, at, part); err != nil {
			return 0, err
		}
		if _, err := w.Write(part); err != nil {
			return 0, err
		}
	}
	done, err := w.Commit()
	return done.ID, err
}

// opener finds the stored bytes of a checkpoint's tensors, and closes what it opened.
type opener struct {
	blobs *blob.Store
	path  string
	byN   map[string]store.Tensor
	open  []io.Closer
}

func (a *Appliance) opener(cp store.Checkpoint) *opener {
	o := &opener{blobs: a.db.Blobs(), path: cp.Path(), byN: map[string]store.Tensor{}}
	for _, t := range slices.Concat(cp.Tensors, cp.Optimizer) {
		o.byN[t.Name] = t
	}
	return o
}

// tensor is the engine's way in; a shape that differs is the user's error.
func (o *opener) tensor(info engine.TensorInfo) (io.ReaderAt, error) {
	t, ok := o.byN[info.Name]
	if !ok {
		return nil, Problemf(CodeUser, "checkpoint %s has no tensor %s, which the run needs", o.path, info.Name).
			WithHint("load it into a run of the same base model and adapter")
	}
	if !slices.Equal(t.Shape, info.Shape) || t.Bytes != info.Bytes {
		return nil, Problemf(CodeUser, "checkpoint %s: tensor %s has shape %v, the run's has %v", o.path, info.Name, t.Shape, info.Shape).
			WithHint("load it into a run of the same base model and rank")
	}
	r, err := o.blobs.Open(t.Blob)
	if err != nil {
		return nil, err
	}
	o.open = append(o.open, r)
	return io.NewSectionReader(r, t.Offset, t.Bytes), nil
}

func (o *opener) close() {
	for _, c := range o.open {
		_ = c.Close() // only read from
	}
}

// LoadRequest asks to load a checkpoint into a run, or to create a run from it:
// then SessionID is set and RunID is not.
type LoadRequest struct {
	RunID        string
	Seq          int64
	SessionID    string
	ModelSeq     int64
	BaseModel    string // creation: overrides the checkpoint's
	Path         string
	Optimizer    bool // moments and step count too
	OptimizerFor string
	UserMetadata map[string]string
}

// LoadWeights asks to load a checkpoint.
func (a *Appliance) LoadWeights(req LoadRequest) (Ticket, error) {
	key, err := parsePath(req.Path)
	if err != nil {
		return Ticket{}, err
	}
	h := hashOf(KindLoadWeights)
	h.text(req.Path)
	h.bool(req.Optimizer)
	h.text(req.BaseModel)
	h.textMap(req.UserMetadata)
	if req.SessionID != "" {
		return a.createFrom(req, key, h.sum())
	}
	r, err := a.run(req.RunID)
	if err != nil {
		return Ticket{}, err
	}
	r.touch(req.Seq)
	check := func() error {
		_, err := a.loadable(key, req.Optimizer)
		return err
	}
	return r.submit(KindLoadWeights, req.Seq, h.sum(), check, func() (any, error) {
		t, err := r.training()
		if err != nil {
			return nil, err
		}
		cp, err := a.loadable(key, req.Optimizer)
		if err != nil {
			return nil, err
		}
		if err := sameShape(r.record(), cp); err != nil {
			return nil, err
		}
		a.note("checkpoint_read", map[string]string{"tinker_path": req.Path})
		return &LoadResult{Path: req.Path, ModelID: r.name}, a.load(t, cp, req.Optimizer)
	})
}

// createFrom makes a run that starts from a checkpoint.
func (a *Appliance) createFrom(req LoadRequest, key store.CheckpointKey, sum digest) (Ticket, error) {
	r, err := a.newRun(req.SessionID, req.ModelSeq)
	if err != nil {
		return Ticket{}, err
	}
	check := func() error {
		if err := checkOptimizer(req.OptimizerFor); err != nil {
			return err
		}
		cp, err := a.loadable(key, req.Optimizer)
		if err == nil {
			_, err = a.model(pick(req.BaseModel, cp.BaseModel))
		}
		return err
	}
	return r.submit(KindLoadWeights, creation, sum, r.brokenBy(check), func() (any, error) {
		cp, err := a.loadable(key, req.Optimizer)
		if err != nil {
			return nil, err
		}
		// Another base model has to prove at once that the checkpoint fits it.
		if base := pick(req.BaseModel, cp.BaseModel); base == cp.BaseModel {
			err = r.startLater(cp, req.Optimizer)
		} else if err = r.makeTrainer(base, cp.Adapter); err == nil {
			err = a.load(r.trainer, cp, req.Optimizer)
		}
		if err == nil {
			err = r.keep(req.UserMetadata, req.Path)
		}
		if err != nil {
			r.drop()
			return nil, err
		}
		a.note("checkpoint_read", map[string]string{"tinker_path": req.Path})
		return &LoadResult{Path: req.Path, ModelID: r.name}, nil
	})
}

func pick(first, second string) string {
	if first != "" {
		return first
	}
	return second
}

// loadable finds a checkpoint to train on from.
func (a *Appliance) loadable(key store.CheckpointKey, optimizer bool) (store.Checkpoint, error) {
	cp, err := a.checkpoint(key)
	if err != nil {
		return cp, err
	}
	if key.Kind == store.KindExternal {
		return cp, Problemf(CodeUser, "checkpoint %s is an export and can't be loaded", key.Path()).WithHint("load one of kind weights")
	}
	if optimizer && len(cp.Optimizer) == 0 {
		return cp, Problemf(CodeUser, "checkpoint %s has no optimizer state", key.Path()).
			WithHint("load it without optimizer state, or load one made by save_state")
	}
	return cp, nil
}

// checkpoint finds a checkpoint with its tensors.
func (a *Appliance) checkpoint(key store.CheckpointKey) (store.Checkpoint, error) {
	cp, err := a.db.Checkpoint(key)
	if errors.Is(err, store.ErrNotFound) {
		return cp, Problemf(CodeNotFound, "no checkpoint %s", key.Path()).WithHint("it was never saved, was deleted, or has expired")
	}
	if err != nil {
		return cp, problemOf("find checkpoint "+key.Path(), err)
	}
	return cp, nil
}

// sameShape refuses a checkpoint of another model or adapter before a tensor is read.
func sameShape(r store.Run, cp store.Checkpoint) error {
	if r.BaseModel != cp.BaseModel {
		return Problemf(CodeUser, "checkpoint %s is of base model %s, run %s trains %s", cp.Path(), cp.BaseModel, r.ID, r.BaseModel).
			WithHint("load it into a run of %s", cp.BaseModel)
	}
	shape := func(ad store.Adapter) string {
		if ad.Full {
			return "a full update"
		}
		return fmt.Sprintf("a LoRA of rank %d (attention %t, mlp %t, unembed %t)", ad.Rank, ad.TrainAttn, ad.TrainMLP, ad.TrainUnembed)
	}
	if mine, its := shape(r.Adapter), shape(cp.Adapter); mine != its {
		return Problemf(CodeUser, "checkpoint %s is of %s, run %s is %s", cp.Path(), its, r.ID, mine).
			WithHint("load it with create_training_client_from_state, which takes the checkpoint's shape")
	}
	return nil
}

// load sets a trainer to a checkpoint. Owner.
func (a *Appliance) load(t *engine.Trainer, cp store.Checkpoint, optimizer bool) error {
	o := a.opener(cp)
	defer o.close()
	return t.Load(o.tensor, cp.Step, optimizer)
}
