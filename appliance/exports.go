package appliance

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"time"

	"smolgym/store"
)

// ExportKey is when a checkpoint was made and a hash of all that decides the bytes of its export in a form.
func (a *Appliance) ExportKey(path, form string) (made time.Time, key string, err error) {
	cp, err := a.Checkpoint(path)
	if err != nil {
		return made, "", err
	}
	m, err := a.model(cp.BaseModel)
	if err != nil {
		return made, "", err
	}
	return cp.Created, exportKey(cp, m, form), nil
}

func exportKey(cp store.Checkpoint, m store.Model, form string) string {
	h := sha256.New()
	fmt.Fprintf(h, "export %d %s base %q alpha %v full %t\n", exportVersion, form, cp.BaseModel, cp.Alpha, cp.Full)
	for _, f := range m.Files {
		fmt.Fprintf(h, "file %q %s\n", f.Path, f.SHA256)
	}
	for _, t := range cp.Tensors {
		fmt.Fprintf(h, "tensor %q %v blob %d at %d\n", t.Name, t.Shape, t.Blob, t.Offset)
	}
	return hex.EncodeToString(h.Sum(nil))
}

// exportVersion goes up when the same checkpoint is exported to other bytes.
const exportVersion = 1

// CheckpointNames lists the names of a run's checkpoints of a kind.
func (a *Appliance) CheckpointNames(run, kind string) ([]string, error) {
	list, _, err := a.db.CheckpointsOf(run, store.Page{Limit: -1})
	if err != nil {
		return nil, problemOf("list checkpoints", err)
	}
	var names []string
	for _, c := range list {
		if string(c.Kind) == kind {
			names = append(names, c.Name)
		}
	}
	return names, nil
}
