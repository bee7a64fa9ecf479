package appliance

import (
	"crypto/sha256"
	"errors"
	"fmt"
	"io/fs"
	"slices"

	"smolgym/store"
)

// Embedded is a model that comes with the program.
type Embedded struct {
	Name  string // org/name; the organisation may be a reserved one
	Files fs.FS  // a Hugging Face folder
}

// addEmbedded puts the models that come with the program into the store, where they are like all others: their
// bytes travel with the file, and a newer program doesn't change what a checkpoint was trained on. One that the
// program has in another form than the store replaces it only while no run was made from it.
func (a *Appliance) addEmbedded() error {
	for _, e := range a.opt.Embedded {
		if err := a.addOne(e); err != nil {
			return fmt.Errorf("add embedded model %s: %w", e.Name, err)
		}
	}
	return nil
}

func (a *Appliance) addOne(e Embedded) error {
	manifest, err := manifestOf(e.Files)
	if err != nil {
		return err
	}
	old, err := a.db.Model(e.Name)
	switch {
	case err == nil && sameFiles(&old, manifest):
		return nil
	case err == nil:
		trained, err := a.trainedFrom(e.Name)
		if err != nil {
			return err
		}
		if trained {
			a.log.Info("embedded model kept as it was: there are runs from it", "model", e.Name)
			return nil
		}
		if err := a.db.DeleteModel(e.Name); err != nil {
			return err
		}
	case !errors.Is(err, store.ErrNotFound):
		return err
	}
	state, err := a.beginUpload(e.Name, false, manifest)
	if err != nil {
		return err
	}
	for _, f := range manifest {
		if err := a.putEmbedded(state.ID, e.Files, f.Path); err != nil {
			return errors.Join(err, a.AbortUpload(state.ID))
		}
	}
	if _, err := a.CommitUpload(state.ID); err != nil {
		return errors.Join(err, a.AbortUpload(state.ID))
	}
	return a.db.UpdateModel(e.Name, func(m *store.Model) error {
		m.Aliases = old.Aliases // the user gave them
		return nil
	})
}

func (a *Appliance) putEmbedded(upload string, files fs.FS, name string) error {
	f, err := files.Open(name)
	if err != nil {
		return err
	}
	_, err = a.PutFile(upload, name, 0, f)
	return errors.Join(err, f.Close())
}

// trainedFrom says whether any run on record was made from the model.
func (a *Appliance) trainedFrom(model string) (bool, error) {
	runs, _, err := a.db.Runs(store.Page{})
	if err != nil {
		return false, err
	}
	return slices.ContainsFunc(runs, func(r store.Run) bool { return r.BaseModel == model }), nil
}

// isEmbedded says whether a model comes with the program.
func (a *Appliance) isEmbedded(model string) bool {
	return slices.ContainsFunc(a.opt.Embedded, func(e Embedded) bool { return e.Name == model })
}

func manifestOf(files fs.FS) (list []ManifestFile, err error) {
	err = fs.WalkDir(files, ".", func(name string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		data, err := fs.ReadFile(files, name)
		if err != nil {
			return err
		}
		list = append(list, ManifestFile{Path: name, Size: int64(len(data)), SHA256: sha256.Sum256(data)})
		return nil
	})
	return list, err
}

// sameFiles says whether a stored model has just the files of a manifest.
func sameFiles(m *store.Model, want []ManifestFile) bool {
	for _, f := range want {
		if have, ok := m.File(f.Path); !ok || have.SHA256 != f.SHA256 {
			return false
		}
	}
	return len(m.Files) == len(want)
}
