package appliance

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/google/uuid"

	"smolgym/store"
	"smolgym/store/blob"
)

// Repositories are what a hub keeps: a document and the content it speaks of. The store holds one as a model's record
// under a name that no model can have, so that its content is counted, checked and copied like that of models.
const (
	repositoryPrefix = ".repository/"
	repositoryMeta   = "repository"
)

// isRepository says whether a model's record is a repository's.
func isRepository(m store.Model) bool { return strings.HasPrefix(m.Name, repositoryPrefix) }

// onlyModels leaves out repositories.
func onlyModels(all []store.Model) []store.Model { return slices.DeleteFunc(all, isRepository) }

// Content is stored bytes.
type Content = interface {
	io.ReaderAt
	io.Closer
	Size() int64
}

func parseSum(sha256 string) (blob.Sum, error) {
	sum, err := blob.ParseSum(sha256)
	if err != nil {
		return sum, Problemf(CodeUser, "sha256 %q: want 64 hexadecimal digits", clip(sha256)).Because(err)
	}
	return sum, nil
}

func noContent(sum blob.Sum) *Problem {
	return Problemf(CodeNotFound, "no content with sha256 %s", sum).WithHint("send it first")
}

// OpenContent reads content by its hash.
func (a *Appliance) OpenContent(sha256 string) (Content, error) {
	sum, err := parseSum(sha256)
	if err != nil {
		return nil, err
	}
	info, ok, err := a.db.Blobs().Known(sum)
	if err != nil {
		return nil, problemOf("read content", err)
	}
	if !ok {
		return nil, noContent(sum)
	}
	defer a.db.Blobs().Release(info.ID) // the reader holds it too
	r, err := a.db.Blobs().Open(info.ID)
	if err != nil {
		return nil, problemOf("read content", err)
	}
	return r, nil
}

// ContentState says how many bytes of how many are here.
func (a *Appliance) ContentState(sha256 string) (have, size int64, err error) {
	sum, err := parseSum(sha256)
	if err != nil {
		return 0, 0, err
	}
	have, size, err = a.db.Blobs().Partial(sum)
	if errors.Is(err, blob.ErrNotFound) {
		return 0, 0, noContent(sum)
	}
	if err != nil {
		return 0, 0, problemOf("find content", err)
	}
	return have, size, nil
}

// PutContent takes bytes from an offset on. Those before the offset must be here; those that are here already are read
// past. What arrived before an error is kept. Complete content is held for an hour, for whoever needs it to name it.
func (a *Appliance) PutContent(sha256 string, size, offset int64, r io.Reader) (int64, error) {
	sum, err := parseSum(sha256)
	if err != nil {
		return 0, err
	}
	if size < 0 || size > maxUploadBytes || offset < 0 || offset > size {
		return 0, Problemf(CodeTooLarge, "content %s: %d bytes from %d on; at most %d are taken", sum, size, offset, int64(maxUploadBytes))
	}
	f := ManifestFile{Path: sum.String()[:12], Size: size, SHA256: sum}
	u := &upload{id: uuid.NewString(), model: "a repository", files: []ManifestFile{f}, used: a.now(), held: map[blob.Sum]blob.Info{}}
	info, ok, err := a.db.Blobs().Known(sum)
	if err != nil {
		return 0, problemOf("store content", err)
	}
	if !ok {
		var have int64
		if info, have, err = a.receive(u, f, offset, r); err != nil || have < size {
			return have, err
		}
	}
	u.held[sum] = info
	a.mu.Lock()
	a.uploads[u.id] = u // swept an hour later
	a.mu.Unlock()
	if info.Size != size {
		return info.Size, Problemf(CodeUser, "content %s has %d bytes, not %d", sum, info.Size, size)
	}
	return size, nil
}

// receive writes content that isn't all here. The blob is held once have is all.
func (a *Appliance) receive(u *upload, f ManifestFile, offset int64, r io.Reader) (info blob.Info, have int64, err error) {
	w, have, err := a.db.Blobs().OpenPartial(f.SHA256, f.Size)
	if errors.Is(err, blob.ErrBusy) {
		return info, 0, Problemf(CodeBusy, "content %s: an upload of it is in progress", f.SHA256).WithHint("try again in a moment").Because(err)
	}
	if err != nil {
		return info, 0, uploadProblem(u, f, err)
	}
	defer func() { _ = w.Close() }() // keeps what was written for the next attempt
	if offset > have {
		return info, have, Problemf(CodeConflict, "content %s: %d bytes are here, the next ones were sent for offset %d", f.SHA256, have, offset).
			WithHint("go on at offset %d", have)
	}
	if n, err := io.CopyN(io.Discard, r, have-offset); errors.Is(err, io.EOF) {
		return info, max(have, offset+n), nil
	} else if err != nil {
		return info, have, uploadProblem(u, f, err)
	}
	n, err := io.Copy(w, io.LimitReader(r, f.Size-have+1))
	have += n
	if err != nil {
		return info, have, uploadProblem(u, f, err)
	}
	if have >= f.Size {
		if info, err = w.Commit(); err != nil {
			return info, 0, uploadProblem(u, f, err)
		}
	}
	return info, have, nil
}

// files finds the content of a manifest; every blob is held until release.
func (a *Appliance) files(doing string, manifest []ManifestFile) (files []store.File, release func(), err error) {
	var held []blob.ID
	release = func() { a.db.Blobs().Release(held...) }
	for _, f := range manifest {
		info, ok, err := a.db.Blobs().Known(f.SHA256)
		if err == nil && ok {
			held = append(held, info.ID)
		}
		switch {
		case err != nil:
			err = problemOf(doing, err)
		case !ok:
			err = noContent(f.SHA256)
		case info.Size != f.Size:
			err = Problemf(CodeUser, "%s: file %q has %d bytes, announced were %d", doing, f.Path, info.Size, f.Size)
		}
		if err != nil {
			release()
			return nil, func() {}, err
		}
		files = append(files, store.File{Path: f.Path, Size: f.Size, SHA256: f.SHA256, Blob: info.ID})
	}
	return files, release, nil
}

// SetModel lists the model of files that are here, in place of one of that name. Only notes about it may change while
// runs or checkpoints are of it.
func (a *Appliance) SetModel(name string, manifest []ManifestFile) error {
	full, err := newModelName(name)
	if err != nil {
		return err
	}
	if err := checkManifest(manifest); err != nil {
		return err
	}
	files, release, err := a.files("model "+full, manifest)
	if err != nil {
		return err
	}
	defer release()
	src, err := a.folder(files)
	if err != nil {
		return refusal(full, err)
	}
	x, err := examine(full, src)
	if err != nil {
		return err
	}
	m := a.modelRecord(full, files, x)
	old, err := a.db.Model(full)
	switch {
	case errors.Is(err, store.ErrNotFound):
		if err := a.db.AddModel(m); err != nil {
			return problemOf("add model "+full, err)
		}
		a.log.Info("model added", "model", full, "family", m.Family, "parameters", m.Parameters)
		return nil
	case err != nil:
		return problemOf("find model", err)
	case old.Name != full:
		return Problemf(CodeConflict, "%s is another name of model %s", full, old.Name).WithHint("write to %s", old.Name)
	}
	if !sameNumbers(old.Files, files) {
		if err := a.unused(full); err != nil {
			return err
		}
	}
	m.Aliases = old.Aliases
	if err := a.db.PutModel(m); err != nil {
		return problemOf("replace model "+full, err)
	}
	a.garbage.Store(true)
	if !sameNumbers(old.Files, files) {
		a.forgetBase(full)
	}
	a.log.Info("model replaced", "model", full)
	return nil
}

// sameNumbers says whether two lists differ at most in files about the model.
func sameNumbers(x, y []store.File) bool {
	count := map[string]int{}
	for _, f := range x {
		if !isNote(f.Path) {
			count[f.Path+"\x00"+f.SHA256.String()]++
		}
	}
	for _, f := range y {
		if !isNote(f.Path) {
			count[f.Path+"\x00"+f.SHA256.String()]--
		}
	}
	for _, n := range count {
		if n != 0 {
			return false
		}
	}
	return true
}

// isNote says whether a file is about a model and not part of it.
func isNote(path string) bool {
	return strings.HasSuffix(path, ".md") || strings.HasPrefix(path, "LICENSE") || path == ".gitattributes" || path == ".gitignore" ||
		strings.HasSuffix(path, ".png") || strings.HasSuffix(path, ".jpg")
}

// unused refuses to change a model that runs or checkpoints are of: their numbers would change with it.
func (a *Appliance) unused(model string) error {
	if users := a.usersOf(model); len(users) > 0 {
		return Problemf(CodeConflict, "model %s is in use by %s", model, strings.Join(users, ", ")).WithHint("finish their sessions first, or upload under another name")
	}
	list, _, err := a.db.Checkpoints(store.Page{Limit: -1})
	if err != nil {
		return problemOf("list checkpoints", err)
	}
	for _, c := range list {
		if c.BaseModel == model {
			return Problemf(CodeConflict, "model %s can't be replaced: checkpoint %s is of it", model, c.Path()).WithHint("upload under another name, or delete its checkpoints first")
		}
	}
	return nil
}

// Repository is the document that was put under a name.
func (a *Appliance) Repository(name string) ([]byte, error) {
	m, err := a.db.Model(repositoryPrefix + name)
	if errors.Is(err, store.ErrNotFound) || errors.Is(err, store.ErrInvalid) {
		return nil, Problemf(CodeNotFound, "no repository %q", clip(name))
	}
	if err != nil {
		return nil, problemOf("find repository", err)
	}
	return []byte(m.Meta[repositoryMeta]), nil
}

// Repositories lists the names.
func (a *Appliance) Repositories() ([]string, error) {
	all, err := a.db.Models()
	if err != nil {
		return nil, problemOf("list repositories", err)
	}
	var names []string
	for _, m := range all {
		if isRepository(m) {
			names = append(names, strings.TrimPrefix(m.Name, repositoryPrefix))
		}
	}
	slices.Sort(names)
	return names, nil
}

// PutRepository keeps a document and the content it speaks of.
func (a *Appliance) PutRepository(name string, doc []byte, content []string) error {
	full, err := newModelName(name)
	if err != nil {
		return err
	}
	manifest := make([]ManifestFile, len(content))
	for i, c := range content {
		sum, err := parseSum(c)
		if err != nil {
			return err
		}
		_, size, err := a.ContentState(c)
		if err != nil {
			return err
		}
		manifest[i] = ManifestFile{Path: c, Size: size, SHA256: sum}
	}
	files, release, err := a.files("repository "+full, manifest)
	if err != nil {
		return err
	}
	defer release()
	m := store.Model{Name: repositoryPrefix + full, Created: a.now(), Files: files, Meta: map[string]string{repositoryMeta: string(doc)}}
	if err := a.db.PutModel(m); err != nil {
		return problemOf("keep repository "+full, err)
	}
	a.garbage.Store(true) // what the former document spoke of
	return nil
}

// RemoveRepository forgets a repository, not the model that came of it.
func (a *Appliance) RemoveRepository(name string) error {
	if _, err := a.Repository(name); err != nil {
		return err
	}
	if err := a.db.DeleteModel(repositoryPrefix + name); err != nil {
		return problemOf("remove repository", err)
	}
	a.garbage.Store(true)
	return nil
}

// Scratch is a folder for files that nobody misses after a restart; Open empties it.
func (a *Appliance) Scratch() (string, error) {
	dir := a.scratch()
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return "", fmt.Errorf("make scratch folder: %w", err)
	}
	return dir, nil
}

func (a *Appliance) scratch() string { return filepath.Join(a.opt.Data, "scratch") }
