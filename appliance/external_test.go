package appliance

import (
	"io"
	"slices"
	"testing"
	"time"

	"smolgym/store"
)

// A run that is only made to export a checkpoint brings nothing to the device, is
// left out of lists, and goes with its export. The checkpoint may go before.
func TestPassingRun(t *testing.T) {
	clock := newClock()
	dir := t.TempDir()
	a, session := ready(t, Options{Data: dir, Now: clock.Now})
	ticket, err := a.CreateModel(lora(session, 0))
	run := result[CreateModelResult](t, a, ticket, err).ModelID
	step(t, a, run, 1)
	ticket, err = a.SaveWeights(SaveRequest{RunID: run, Seq: 3, Name: "x"})
	path := result[SaveResult](t, a, ticket, err).Path
	shut(t, a)

	b := open(t, Options{Data: dir, Now: clock.Now})
	session, err = b.CreateSession(SessionRequest{})
	if err != nil {
		t.Fatal(err)
	}
	ticket, err = b.LoadWeights(LoadRequest{SessionID: session, Path: path})
	twin := result[LoadResult](t, b, ticket, err).ModelID
	if err := b.DeleteCheckpoint(path); err != nil {
		t.Fatal(err)
	}
	b.sweep(t.Context()) // the bytes are held
	ticket, err = b.SaveExternal(ExportRequest{RunID: twin, Seq: 1, Name: "download", TTL: time.Hour})
	out := result[ExportResult](t, b, ticket, err)
	files, err := b.ExportFiles(out.Path)
	if err != nil || !slices.Equal(files, []string{"adapter_config.json", "adapter_model.safetensors"}) {
		t.Fatalf("files %v, %v", files, err)
	}
	total := int64(0)
	for _, name := range files {
		f, err := b.OpenExport(out.Path, name)
		if err != nil {
			t.Fatal(err)
		}
		raw, err := io.ReadAll(f)
		if err != nil || int64(len(raw)) != f.Size() {
			t.Errorf("%s: %d of %d bytes, %v", name, len(raw), f.Size(), err)
		}
		total += f.Size()
		if err := f.Close(); err != nil {
			t.Error(err)
		}
	}
	if total != out.SizeBytes {
		t.Errorf("files have %d bytes, the result says %d", total, out.SizeBytes)
	}
	if s, err := b.Status(); err != nil || s.BasesLoaded != 0 {
		t.Errorf("models in memory: %+v, %v", s, err)
	}
	if _, total, err := b.Runs(Page{}); err != nil || total != 1 {
		t.Errorf("%d runs are listed, %v", total, err)
	}
	if err := b.FinishSession(session, "success", ""); err != nil {
		t.Fatal(err)
	}
	b.sweep(t.Context())
	if _, err := b.db.Run(twin); err != nil {
		t.Errorf("the run is gone before its export: %v", err)
	}
	clock.advance(2 * time.Hour)
	b.sweep(t.Context()) // the export expires
	b.sweep(t.Context())
	if rec, err := b.db.Run(twin); err == nil {
		t.Errorf("the run is still there: %+v", rec)
	}
	if _, left, err := b.db.CheckpointsOf(twin, store.Page{}); err != nil || left != 0 {
		t.Errorf("%d exports are left, %v", left, err)
	}
}

// What was to pass stays once it is trained.
func TestPassingRunIsTrained(t *testing.T) {
	a, session := ready(t, Options{})
	ticket, err := a.CreateModel(lora(session, 0))
	run := result[CreateModelResult](t, a, ticket, err).ModelID
	step(t, a, run, 1)
	want := state(t, a, run, 3, "x")
	ticket, err = a.LoadWeights(LoadRequest{SessionID: session, ModelSeq: 1, Path: "tinker://" + run + "/weights/x", Optimizer: true})
	twin := result[LoadResult](t, a, ticket, err).ModelID
	ticket, err = a.SaveExternal(ExportRequest{RunID: twin, Seq: 1, Name: "download", TTL: time.Hour})
	result[ExportResult](t, a, ticket, err)
	if _, total, err := a.Runs(Page{}); err != nil || total != 1 {
		t.Errorf("%d runs are listed, %v", total, err)
	}
	if got := state(t, a, twin, 2, "y"); len(got) != len(want) {
		t.Errorf("state %v, want %v", got, want)
	} else {
		for name, id := range want {
			if got[name] != id {
				t.Errorf("tensor %s differs", name)
			}
		}
	}
	if _, total, err := a.Runs(Page{}); err != nil || total != 2 {
		t.Errorf("%d runs are listed, %v", total, err)
	}
}
