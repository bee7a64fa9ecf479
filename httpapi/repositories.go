package httpapi

import (
	"context"
	"io"
	"strings"

	"smolgym/appliance"
	"smolgym/httpapi/hub"
)

// newHub is the handler of hub-shaped requests.
func (s *server) newHub() *hub.Handler {
	return hub.New(s.box, hub.Options{Upstream: s.opt.Upstream, Allow: s.allowed, Export: exporter{s.box}, Log: s.log, Now: s.now})
}

// allowed lets in hub clients: while no keys were made anybody to read, and any token to write.
func (s *server) allowed(token string) bool {
	if _, needed, err := s.keyHashes(); err != nil || !needed {
		return err == nil
	}
	if strings.HasPrefix(token, "eyJ") {
		return s.checkToken(token) == nil
	}
	known, err := s.knownKey(token)
	return err == nil && known
}

// exporter makes the hub's repositories of checkpoints.
type exporter struct{ box *appliance.Appliance }

func (e exporter) Export(_ context.Context, path string, adapter bool) (hub.Export, error) {
	form := appliance.FormMerged
	if adapter {
		form = appliance.FormAdapter
	}
	made, key, err := e.box.ExportKey(path, form)
	if err != nil {
		return hub.Export{}, err
	}
	plan := func() (*appliance.Files, error) { return e.box.Export(path, appliance.ExportOptions{Form: form}) }
	files, err := plan()
	if err != nil {
		return hub.Export{}, err
	}
	defer files.Close()
	out := hub.Export{Created: made, Key: key}
	for i, f := range files.Plan.Files {
		// Planned anew, so that the checkpoint is held while a file is made and no longer.
		out.Files = append(out.Files, hub.ExportFile{Path: f.Path, Size: f.Size, Write: func(w io.Writer) error {
			files, err := plan()
			if err != nil {
				return err
			}
			defer files.Close()
			return files.Plan.Files[i].Write(w)
		}})
	}
	return out, nil
}

func (e exporter) CheckpointNames(run, kind string) ([]string, error) {
	return e.box.CheckpointNames(run, kind)
}

func (e exporter) Derived(model string) ([]hub.ExportFile, error) {
	files, err := e.box.Derived(model)
	if err != nil {
		return nil, err
	}
	out := make([]hub.ExportFile, len(files))
	for i, f := range files {
		out[i] = hub.ExportFile(f)
	}
	return out, nil
}
