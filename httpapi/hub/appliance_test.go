package hub

import (
	"io"
	"log/slog"
	"testing"

	"smolgym/appliance"
)

func init() {
	boxes["appliance"] = func(t *testing.T) Box {
		log := slog.New(slog.NewTextHandler(io.Discard, nil))
		box, err := appliance.Open(appliance.Options{Data: t.TempDir(), Device: "reference", Log: log})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() {
			if err := box.Close(); err != nil {
				t.Error(err)
			}
		})
		return box
	}
}
