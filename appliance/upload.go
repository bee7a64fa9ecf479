package appliance

import (
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/google/uuid"

	"smolgym/model/hf"
	"smolgym/store"
	"smolgym/store/blob"
)

// Limits of one upload.
const (
	maxUploadFiles = 10000
	maxUploadBytes = 4 << 40
	uploadIdle     = time.Hour // after which an upload without a sign of life is forgotten; its bytes can be resumed for days
)

// ManifestFile is a file of a model to be added.
type ManifestFile struct {
	Path   string
	Size   int64    // bytes
	SHA256 blob.Sum // of the whole file
}

// NewManifestFile reads the hash as 64 hexadecimal digits.
func NewManifestFile(path string, size int64, sha256 string) (ManifestFile, error) {
	sum, err := blob.ParseSum(sha256)
	if err != nil {
		return ManifestFile{}, Problemf(CodeUser, "file %q: sha256 %q: want 64 hexadecimal digits", clip(path), clip(sha256)).Because(err)
	}
	return ManifestFile{Path: path, Size: size, SHA256: sum}, nil
}

// UploadState is how far an upload has come.
type UploadState struct {
	ID    string
	Model string
	Files []UploadFile
}

// UploadFile is how far one file has come.
type UploadFile struct {
	ManifestFile
	Have int64 // bytes that are here: the next one to send
	Done bool
}

// upload is a model, or an adapter of one, on its way in.
type upload struct {
	id      string
	model   string // the model, or the adapter's base model
	adapter bool
	files   []ManifestFile

	mu   sync.Mutex // guards what follows
	used time.Time
	held map[blob.Sum]blob.Info // files that are here, each held
	over bool
}

// BeginUpload announces a model's files. Files that are here already, from this or
// an earlier attempt, needn't be sent again.
func (a *Appliance) BeginUpload(name string, files []ManifestFile) (UploadState, error) {
	full, err := newModelName(name)
	if err != nil {
		return UploadState{}, err
	}
	if err := checkManifest(files); err != nil {
		return UploadState{}, err
	}
	if _, err := a.db.Model(full); err == nil {
		return UploadState{}, modelExists(full)
	} else if !errors.Is(err, store.ErrNotFound) {
		return UploadState{}, problemOf("add model", err)
	}
	return a.beginUpload(full, false, files)
}

// beginUpload holds what is here already of files that were checked.
func (a *Appliance) beginUpload(name string, adapter bool, files []ManifestFile) (UploadState, error) {
	u := &upload{id: uuid.NewString(), model: name, adapter: adapter, files: slices.Clone(files), used: a.now(), held: map[blob.Sum]blob.Info{}}
	for _, f := range files {
		if _, ok := u.held[f.SHA256]; ok {
			continue
		}
		info, ok, err := a.db.Blobs().Known(f.SHA256)
		if err != nil {
			a.closeUpload(u)
			return UploadState{}, problemOf("add model", err)
		}
		if ok {
			u.held[f.SHA256] = info
		}
	}
	a.mu.Lock()
	a.uploads[u.id] = u
	a.mu.Unlock()
	return a.uploadState(u)
}

func modelExists(name string) *Problem {
	return Problemf(CodeConflict, "model %s exists", name).WithHint("choose another name, org/name:variant for one, or remove it first with \"smolgym model rm %s\"", name)
}

func checkManifest(files []ManifestFile) error {
	if len(files) == 0 {
		return Problemf(CodeUser, "add model: no files").WithHint("send at least config.json and a .safetensors file")
	}
	if len(files) > maxUploadFiles {
		return Problemf(CodeTooLarge, "add model: %d files; at most %d are taken", len(files), maxUploadFiles)
	}
	seen := map[string]bool{}
	var total int64
	for _, f := range files {
		if err := checkFilePath(f.Path); err != nil {
			return err
		}
		if err := hf.CheckName(f.Path); err != nil {
			return Problemf(CodeUser, "add model: %v", err).Because(err)
		}
		switch {
		case seen[f.Path]:
			return Problemf(CodeUser, "file %q is listed twice", f.Path)
		case f.Size < 0 || f.Size > maxUploadBytes || total+f.Size > maxUploadBytes:
			return Problemf(CodeTooLarge, "file %q: %d bytes; a model may have at most %d in all", f.Path, f.Size, int64(maxUploadBytes))
		case f.SHA256.IsZero():
			return Problemf(CodeUser, "file %q: no sha256", f.Path)
		}
		seen[f.Path] = true
		total += f.Size
	}
	return nil
}

func (a *Appliance) upload(id string) (*upload, error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	u := a.uploads[id]
	if u == nil {
		return nil, Problemf(CodeNotFound, "no upload %q", clip(id)).WithHint("begin it again: what was sent is kept and found by its hash")
	}
	return u, nil
}

// Upload says how far an upload has come.
func (a *Appliance) Upload(id string) (UploadState, error) {
	u, err := a.upload(id)
	if err != nil {
		return UploadState{}, err
	}
	return a.uploadState(u)
}

func (a *Appliance) uploadState(u *upload) (UploadState, error) {
	u.mu.Lock()
	defer u.mu.Unlock()
	u.used = a.now()
	s := UploadState{ID: u.id, Model: u.model, Files: make([]UploadFile, len(u.files))}
	for i, f := range u.files {
		s.Files[i] = UploadFile{ManifestFile: f}
		if _, ok := u.held[f.SHA256]; ok {
			s.Files[i].Have, s.Files[i].Done = f.Size, true
			continue
		}
		have, size, err := a.db.Blobs().Partial(f.SHA256)
		switch {
		case err == nil && size == f.Size:
			s.Files[i].Have = have
		case err != nil && !errors.Is(err, blob.ErrNotFound):
			return s, problemOf("upload of "+u.model, err)
		}
	}
	return s, nil
}

// PutFile takes bytes of one file from an offset on, which must be what Have says.
// What arrived before an error is kept.
func (a *Appliance) PutFile(id, path string, offset int64, r io.Reader) (UploadFile, error) {
	u, err := a.upload(id)
	if err != nil {
		return UploadFile{}, err
	}
	i := slices.IndexFunc(u.files, func(f ManifestFile) bool { return f.Path == path })
	if i < 0 {
		return UploadFile{}, Problemf(CodeNotFound, "upload of %s: file %q was not announced", u.model, clip(path))
	}
	f := u.files[i]
	u.mu.Lock()
	u.used = a.now()
	_, done := u.held[f.SHA256]
	u.mu.Unlock()
	if done {
		return UploadFile{f, f.Size, true}, nil
	}
	w, have, err := a.db.Blobs().OpenPartial(f.SHA256, f.Size)
	if err != nil {
		return UploadFile{ManifestFile: f}, uploadProblem(u, f, err)
	}
	defer w.Close() // keeps what was written for the next attempt
	if offset != have {
		return UploadFile{f, have, false}, Problemf(CodeConflict, "upload of %s: file %q: %d bytes are here, the next ones were sent for offset %d", u.model, f.Path, have, offset).
			WithHint("go on at offset %d", have)
	}
	n, err := io.Copy(w, io.LimitReader(r, f.Size-have+1))
	if err != nil {
		return UploadFile{f, have + n, false}, uploadProblem(u, f, err)
	}
	if have += n; have < f.Size {
		return UploadFile{f, have, false}, nil
	}
	info, err := w.Commit()
	if err != nil {
		return UploadFile{ManifestFile: f}, uploadProblem(u, f, err)
	}
	u.mu.Lock()
	defer u.mu.Unlock()
	u.used = a.now()
	if _, twice := u.held[f.SHA256]; twice || u.over {
		a.db.Blobs().Release(info.ID)
	} else {
		u.held[f.SHA256] = info
	}
	return UploadFile{f, f.Size, true}, nil
}

func uploadProblem(u *upload, f ManifestFile, err error) *Problem {
	doing := fmt.Sprintf("upload of %s: file %q", u.model, f.Path)
	for _, known := range []error{blob.ErrMismatch, blob.ErrTooLong, blob.ErrShort, blob.ErrBusy} {
		if errors.Is(err, known) {
			return Problemf(CodeUser, "%s: %v", doing, err).Because(err)
		}
	}
	var read *readError
	if errors.As(err, &read) {
		return Problemf(CodeUser, "%s: the connection broke; what arrived is kept: go on from there", doing).Because(err)
	}
	return problemOf(doing, err)
}

// readError is a failure of the sender's side; see FromClient.
type readError struct{ error }

func (e *readError) Unwrap() error { return e.error }

// FromClient marks the reader's failures as the sender's.
func FromClient(r io.Reader) io.Reader { return clientReader{r} }

type clientReader struct{ r io.Reader }

func (c clientReader) Read(p []byte) (int, error) {
	n, err := c.r.Read(p)
	if err != nil && !errors.Is(err, io.EOF) {
		err = &readError{err}
	}
	return n, err
}

// CommitUpload lists the model once all of its files are here and it can be taken.
// A refusal is the complete list of reasons, and the upload stays as it is.
func (a *Appliance) CommitUpload(id string) (store.Model, error) {
	u, err := a.upload(id)
	if err != nil {
		return store.Model{}, err
	}
	u.mu.Lock()
	defer u.mu.Unlock()
	u.used = a.now()
	if u.adapter {
		return store.Model{}, Problemf(CodeUser, "upload %s is of an adapter", u.id).WithHint("end it with import")
	}
	files, err := u.complete()
	if err != nil {
		return store.Model{}, err
	}
	src, err := a.folder(files)
	if err != nil {
		return store.Model{}, refusal(u.model, err)
	}
	x, err := examine(u.model, src)
	if err != nil {
		return store.Model{}, err
	}
	m := a.modelRecord(u.model, files, x)
	if err := a.db.AddModel(m); errors.Is(err, store.ErrExists) {
		return m, modelExists(u.model)
	} else if err != nil {
		return m, problemOf("add model "+u.model, err)
	}
	a.dropUpload(u)
	a.log.Info("model added", "model", m.Name, "family", m.Family, "parameters", m.Parameters)
	return m, nil
}

// complete lists the files once all of them are here. u.mu is held.
func (u *upload) complete() ([]store.File, error) {
	var missing []string
	files := make([]store.File, len(u.files))
	for i, f := range u.files {
		info, ok := u.held[f.SHA256]
		switch {
		case !ok:
			missing = append(missing, f.Path)
		case info.Size != f.Size:
			return nil, Problemf(CodeUser, "upload of %s: file %q has %d bytes, announced were %d", u.model, f.Path, info.Size, f.Size)
		}
		files[i] = store.File{Path: f.Path, Size: f.Size, SHA256: f.SHA256, Blob: info.ID}
	}
	if len(missing) > 0 {
		return nil, Problemf(CodeUser, "upload of %s: not all here: %s", u.model, strings.Join(missing, ", ")).WithHint("send the rest, then commit")
	}
	return files, nil
}

// AbortUpload forgets an upload. Its bytes go with a later collection.
func (a *Appliance) AbortUpload(id string) error {
	u, err := a.upload(id)
	if err != nil {
		return err
	}
	a.closeUpload(u)
	return nil
}

func (a *Appliance) closeUpload(u *upload) {
	u.mu.Lock()
	defer u.mu.Unlock()
	a.dropUpload(u)
}

// dropUpload is called with u.mu held.
func (a *Appliance) dropUpload(u *upload) {
	for _, info := range u.held {
		a.db.Blobs().Release(info.ID)
	}
	a.garbage.Store(true)
	u.held, u.over = map[blob.Sum]blob.Info{}, true
	a.mu.Lock()
	defer a.mu.Unlock()
	delete(a.uploads, u.id)
}

func (a *Appliance) sweepUploads(now time.Time) { a.dropUploads(now.Add(-uploadIdle)) }

func (a *Appliance) closeUploads() { a.dropUploads(a.now().Add(time.Second)) }

func (a *Appliance) dropUploads(before time.Time) {
	a.mu.Lock()
	all := make([]*upload, 0, len(a.uploads))
	for _, u := range a.uploads {
		all = append(all, u)
	}
	a.mu.Unlock()
	for _, u := range all {
		u.mu.Lock()
		if u.used.Before(before) {
			a.dropUpload(u)
		}
		u.mu.Unlock()
	}
}
