package appliance

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	"filippo.io/age"
	"filippo.io/age/agessh"

	"smolgym/model/export"
	"smolgym/model/hf"
	"smolgym/store"
	"smolgym/store/blob"
)

// ExportRequest asks for a run's weights as files for other tools, as of its number.
type ExportRequest struct {
	RunID      string
	Seq        int64
	Name       string
	TTL        time.Duration // 0: kept until deleted
	Recipients []string      // age or SSH public keys; with any, every file is encrypted to all of them
}

// ExportResult names the export and says how many bytes its files have together.
type ExportResult struct {
	Path      string `json:"path"`
	SizeBytes int64  `json:"size_bytes"`
}

// fileType is the dtype in the record of a file of an export.
const fileType = "FILE"

// later is a task's work that needs neither the owner nor its turn any more.
type later func() (any, error)

// SaveExternal asks for an export: PEFT's folder for an adapter, the whole model
// for a full update. One of the same name is replaced.
func (a *Appliance) SaveExternal(req ExportRequest) (Ticket, error) {
	if err := checkCheckpointName(req.Name); err != nil {
		return Ticket{}, err
	}
	if req.TTL < 0 {
		return Ticket{}, Problemf(CodeUser, "%s: ttl_seconds is negative", KindExport)
	}
	r, err := a.run(req.RunID)
	if err != nil {
		return Ticket{}, err
	}
	r.touch(req.Seq)
	h := hashOf(KindExport)
	h.text(req.Name)
	h.int(int64(req.TTL))
	h.texts(req.Recipients)
	var to []age.Recipient
	check := func() (err error) {
		to, err = recipients(req.Recipients)
		return err
	}
	return r.submit(KindExport, req.Seq, h.sum(), check, func() (any, error) {
		from, err := r.exportable(req.TTL > 0)
		if err != nil {
			return nil, err
		}
		return later(func() (any, error) {
			defer from.release()
			return a.export(from, store.CheckpointKey{RunID: r.name, Kind: store.KindExternal, Name: req.Name}, req.TTL, to)
		}), nil
	})
}

// maxRecipients is the wire's limit.
const maxRecipients = 10

// recipients reads public keys.
func recipients(keys []string) ([]age.Recipient, error) {
	if len(keys) > maxRecipients {
		return nil, Problemf(CodeUser, "age_encryption_recipients: %d keys; at most %d", len(keys), maxRecipients)
	}
	var list []age.Recipient
	for i, key := range keys {
		var r age.Recipient
		var err error
		switch {
		case strings.HasPrefix(key, "age1pq1"):
			r, err = age.ParseHybridRecipient(key)
		case strings.HasPrefix(key, "age1"):
			r, err = age.ParseX25519Recipient(key)
		case strings.HasPrefix(key, "ssh-"):
			r, err = agessh.ParseRecipient(key)
		default:
			err = errors.New("not an age public key")
		}
		if err != nil {
			return nil, Problemf(CodeUser, "age_encryption_recipients: key %d (%q): %v", i, clip(key), err).
				WithHint("give age public keys, age1…, as age-keygen makes them, or SSH public keys (ssh-ed25519, ssh-rsa)")
		}
		list = append(list, r)
	}
	if len(list) > 0 {
		// Some kinds of keys exclude others.
		if _, err := age.Encrypt(io.Discard, list...); err != nil {
			return nil, Problemf(CodeUser, "age_encryption_recipients: %v", err).WithHint("make one export for each kind of key")
		}
	}
	return list, nil
}

// exported is a run's weights at one moment, in the store and held there.
type exported struct {
	adapter   store.Adapter
	baseModel string
	step      int64
	tensors   []store.Tensor
	release   func()
}

// exportable holds the run's weights. A run that only stands for a checkpoint
// gives that one's; if its export is to pass, so is the run. Owner.
func (r *run) exportable(passes bool) (exported, error) {
	if p := r.pending; p != nil {
		if passes && !r.record().Passing && r.unused() {
			r.setPassing(true)
		}
		r.a.mu.Lock()
		p.users++
		r.a.mu.Unlock()
		x := exported{p.cp.Adapter, p.cp.BaseModel, p.cp.Step, p.cp.Tensors, nil}
		x.release = func() { r.a.letGo(p) }
		return x, nil
	}
	t, err := r.training()
	if err != nil {
		return exported{}, err
	}
	list, err := r.a.writeTensors(t, t.Tensors(false))
	if err != nil {
		return exported{}, err
	}
	r.setPassing(false)
	rec := r.record()
	x := exported{adapter: rec.Adapter, baseModel: rec.BaseModel, step: t.StepCount()}
	for _, w := range list {
		x.tensors = append(x.tensors, w.Tensor)
	}
	x.release = func() {
		for _, w := range list {
			r.a.db.Blobs().Release(w.Blob)
		}
		r.a.garbage.Store(true)
	}
	return x, nil
}

// export writes the files and then the record that lists them.
func (a *Appliance) export(from exported, key store.CheckpointKey, ttl time.Duration, to []age.Recipient) (*ExportResult, error) {
	plan, err := a.exportPlan(from)
	if err != nil {
		return nil, err
	}
	cp := store.Checkpoint{CheckpointKey: key, Adapter: from.adapter, Created: a.now(), BaseModel: from.baseModel, Step: from.step, Numerics: a.numerics(from.baseModel)}
	if ttl > 0 {
		at := cp.Created.Add(ttl)
		cp.Expires = &at
	}
	defer func() {
		for _, t := range cp.Tensors {
			a.db.Blobs().Release(t.Blob)
		}
	}()
	for _, f := range plan.Files {
		t, err := a.writeFile(f, to)
		if err != nil {
			return nil, fmt.Errorf("export %s: file %s: %w", key.Path(), f.Path, err)
		}
		cp.Tensors = append(cp.Tensors, t)
		cp.SizeBytes += t.Bytes
	}
	a.garbage.Store(true)
	if err := a.db.PutCheckpoint(cp); err != nil {
		return nil, err
	}
	a.noteSave(key, cp)
	return &ExportResult{Path: key.Path(), SizeBytes: cp.SizeBytes}, nil
}

// exportPlan says which files there will be.
func (a *Appliance) exportPlan(from exported) (*export.Plan, error) {
	m, err := a.model(from.baseModel)
	if err != nil {
		return nil, err
	}
	tensors := make([]export.Tensor, len(from.tensors))
	for i, t := range from.tensors {
		tensors[i] = export.Tensor{Name: t.Name, Shape: t.Shape, Open: func() (hf.ReaderAtSized, error) { return a.openTensor(t) }}
	}
	src, err := a.folder(m.Files)
	if err != nil {
		return nil, exportProblem(m.Name, err)
	}
	if from.adapter.Full {
		plan, err := export.Merged(src, export.Weights{Full: tensors}, export.MergedOptions{})
		return plan, exportProblem(m.Name, err)
	}
	modules, err := export.Pair(tensors, from.adapter.Alpha)
	if err != nil {
		return nil, err
	}
	plan, err := export.Adapter(src, modules, export.AdapterOptions{BaseModel: m.Name})
	if err != nil {
		return nil, exportProblem(m.Name, err)
	}
	// Clients that publish an adapter write a card of their own, which names the
	// checkpoint, if there is none.
	plan.Files = slices.DeleteFunc(plan.Files, func(f export.File) bool { return f.Path == "README.md" })
	return plan, nil
}

// exportProblem is an error of package export for the user.
func exportProblem(model string, err error) error {
	switch {
	case err == nil:
		return nil
	case errors.Is(err, export.ErrWeights), errors.Is(err, export.ErrValue), errors.Is(err, export.ErrAdapter):
		return Problemf(CodeUser, "export over %s: %v", model, err).Because(err)
	}
	return refusal(model, err)
}

// part is a range of a blob as a file.
type part struct {
	*io.SectionReader
	blob io.Closer
}

func (p part) Close() error { return p.blob.Close() }

func (a *Appliance) openTensor(t store.Tensor) (hf.ReaderAtSized, error) {
	r, err := a.db.Blobs().Open(t.Blob)
	if err != nil {
		return nil, err
	}
	return part{io.NewSectionReader(r, t.Offset, t.Bytes), r}, nil
}

// writeFile stores one file of an export, encrypted if it is to be. The blob is held.
func (a *Appliance) writeFile(f export.File, to []age.Recipient) (store.Tensor, error) {
	w := a.db.Blobs().NewWriter()
	defer w.Close() // gives up what was not committed
	name, out := f.Path, io.WriteCloser(keepOpen{w})
	if len(to) > 0 {
		name += ".age"
		var err error
		if out, err = age.Encrypt(w, to...); err != nil {
			return store.Tensor{}, err
		}
	}
	err := f.Write(out)
	if err == nil {
		err = out.Close()
	}
	if err != nil {
		return store.Tensor{}, exportProblem(f.Path, err)
	}
	info, err := w.Commit()
	if err != nil {
		return store.Tensor{}, err
	}
	return store.Tensor{Name: name, DType: fileType, Shape: []int64{info.Size}, Blob: info.ID, Bytes: info.Size}, nil
}

// keepOpen is a writer whose Close does nothing.
type keepOpen struct{ io.Writer }

func (keepOpen) Close() error { return nil }

// ExportFiles lists the names of an export's files.
func (a *Appliance) ExportFiles(path string) ([]string, error) {
	cp, err := a.exportAt(path)
	if err != nil {
		return nil, err
	}
	names := make([]string, len(cp.Tensors))
	for i, t := range cp.Tensors {
		names[i] = t.Name
	}
	slices.Sort(names)
	a.note("checkpoint_read", map[string]string{"tinker_path": path})
	return names, nil
}

func (a *Appliance) exportAt(path string) (store.Checkpoint, error) {
	key, err := parsePath(path)
	if err != nil {
		return store.Checkpoint{}, err
	}
	if key.Kind != store.KindExternal {
		return store.Checkpoint{}, Problemf(CodeUser, "checkpoint %s is no export, so it has no files", path).
			WithHint("make one with save_weights_external; \"tinker checkpoint download\" does it for you")
	}
	return a.checkpoint(key)
}

// ExportFile is an open file of an export.
type ExportFile struct {
	*io.SectionReader
	Created time.Time
	Sum     blob.Sum // its SHA-256
	blob    io.Closer
}

// Close ends the hold on the bytes.
func (f *ExportFile) Close() error { return f.blob.Close() }

// OpenExport opens a file of an export. The caller closes it.
func (a *Appliance) OpenExport(path, name string) (*ExportFile, error) {
	cp, err := a.exportAt(path)
	if err != nil {
		return nil, err
	}
	for _, t := range cp.Tensors {
		if t.Name != name {
			continue
		}
		r, err := a.db.Blobs().Open(t.Blob)
		if err != nil {
			return nil, problemOf("open file "+name+" of "+path, err)
		}
		return &ExportFile{SectionReader: io.NewSectionReader(r, t.Offset, t.Bytes), Created: cp.Created, Sum: r.Info().Sum, blob: r}, nil
	}
	return nil, Problemf(CodeNotFound, "export %s has no file %q", path, clip(name))
}

// sweepPassing deletes the records of passing runs that nothing is left of.
func (a *Appliance) sweepPassing(ctx context.Context) {
	runs, err := a.db.PassingRuns()
	if err != nil {
		a.log.Error("list passing runs", "error", err)
	}
	for _, rec := range runs {
		a.mu.Lock()
		r := a.runs[rec.ID]
		a.mu.Unlock()
		if ctx.Err() != nil || r != nil && (r.live() || !r.idle()) {
			continue
		}
		if _, left, err := a.db.CheckpointsOf(rec.ID, store.Page{Limit: 1}); err != nil || left > 0 {
			continue
		}
		if err := a.db.DeleteRun(rec.ID); err != nil && !errors.Is(err, store.ErrNotFound) {
			a.log.Error("delete passing run", "run", rec.ID, "error", err)
			continue
		}
		a.mu.Lock()
		delete(a.runs, rec.ID)
		a.mu.Unlock()
	}
}
