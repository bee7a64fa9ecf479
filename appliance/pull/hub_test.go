package pull_test

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"smolgym/appliance"
	"smolgym/appliance/pull"
	"smolgym/httpapi"
	"smolgym/model/golden"
)

// server is an appliance behind its routes.
func server(t *testing.T) (*appliance.Appliance, *httptest.Server, *flaky) {
	t.Helper()
	log := slog.New(slog.NewTextHandler(io.Discard, nil))
	box, err := appliance.Open(appliance.Options{Data: t.TempDir(), Device: "reference", Log: log})
	if err != nil {
		t.Fatal(err)
	}
	f := &flaky{next: httpapi.New(box, httpapi.Options{Log: log})}
	s := httptest.NewServer(f)
	t.Cleanup(func() {
		s.Close()
		if err := box.Close(); err != nil {
			t.Error(err)
		}
	})
	return box, s, f
}

// flaky breaks answers of weights after some bytes.
type flaky struct {
	next http.Handler
	cut  int
	asks int
}

func (f *flaky) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if f.cut > 0 && strings.Contains(r.URL.Path, "/resolve/") && strings.HasSuffix(r.URL.Path, ".safetensors") {
		f.asks++
		w = &cutter{w, f.cut}
	}
	f.next.ServeHTTP(w, r)
}

type cutter struct {
	http.ResponseWriter
	left int
}

func (c *cutter) Write(b []byte) (int, error) {
	if len(b) > c.left {
		_, _ = c.ResponseWriter.Write(b[:c.left])
		c.ResponseWriter.(http.Flusher).Flush()
		panic(http.ErrAbortHandler)
	}
	c.left -= len(b)
	return c.ResponseWriter.Write(b)
}

// llama are the files of a small model.
func llama(t *testing.T) map[string][]byte {
	t.Helper()
	return golden.Files(t, golden.Path(t, "llama"), "config.json", "model.safetensors", "generation_config.json")
}

// TestFromOurOwnHub: from one box to another, over connections that break.
func TestFromOurOwnHub(t *testing.T) {
	from, fromServer, f := server(t)
	to, toServer, _ := server(t)
	files := llama(t)
	// Above a mebibyte it is known by its sha256 and streamed: padding in the header makes it so.
	weights := files["model.safetensors"]
	head := int(weights[0]) | int(weights[1])<<8 | int(weights[2])<<16
	pad := bytes.Repeat([]byte(" "), 3<<20-head)
	weights = append(append([]byte{0, 0, 48, 0, 0, 0, 0, 0}, append(bytes.Clone(weights[8:8+head]), pad...)...), weights[8+head:]...)
	files["model.safetensors"] = weights
	if err := add(from, "org/m", files); err != nil {
		t.Fatal(err)
	}
	f.cut = 1 << 20
	var last pull.Progress
	r, err := pull.Model(context.Background(), &pull.Server{URL: toServer.URL, Key: "tml-test"}, pull.Options{Name: "org/m", As: "me/copy", From: fromServer.URL,
		Progress: func(p pull.Progress) { last = p }, Wait: func(context.Context, time.Duration) error { return nil }})
	if err != nil {
		t.Fatal(err)
	}
	if f.asks < 3 || last.Have != last.Total {
		t.Errorf("%d requests for the weights, at last %+v", f.asks, last)
	}
	a, err := from.Model("org/m")
	if err != nil {
		t.Fatal(err)
	}
	b, err := to.Model("me/copy")
	if err != nil || len(r.Files) != len(a.Files) {
		t.Fatal(err)
	}
	for _, x := range a.Files {
		if y, ok := b.File(x.Path); !ok || y.SHA256 != x.SHA256 {
			t.Errorf("%s: %v, want %v", x.Path, y.SHA256, x.SHA256)
		}
	}
	_, err = pull.Model(context.Background(), &pull.Server{URL: toServer.URL, Key: "tml-test"}, pull.Options{Name: "org/m", As: "me/copy", From: fromServer.URL})
	var refused *pull.RefusedError
	if !errors.As(err, &refused) || !strings.Contains(err.Error(), "exists") {
		t.Errorf("again: %v", err)
	}
	_, err = pull.Model(context.Background(), &pull.Server{URL: toServer.URL, Key: "tml-test"}, pull.Options{Name: "org/none", From: fromServer.URL})
	if !errors.Is(err, pull.ErrNotFound) {
		t.Errorf("absent: %v", err)
	}
}

func add(box *appliance.Appliance, name string, files map[string][]byte) error {
	s := sink{box}
	var list []pull.File
	for p, b := range files {
		list = append(list, pull.File{Path: p, Size: int64(len(b)), SHA256: sumOf(b)})
	}
	id, _, err := s.Begin(context.Background(), name, list)
	if err != nil {
		return err
	}
	for p, b := range files {
		if _, err := box.PutFile(id, p, 0, bytes.NewReader(b)); err != nil {
			return err
		}
	}
	_, err = box.CommitUpload(id)
	return err
}

func sumOf(b []byte) string {
	s := sha256.Sum256(b)
	return hex.EncodeToString(s[:])
}

// sink is an appliance in this process.
type sink struct{ box *appliance.Appliance }

func (s sink) Begin(_ context.Context, name string, files []pull.File) (string, []pull.State, error) {
	var manifest []appliance.ManifestFile
	for _, f := range files {
		m, err := appliance.NewManifestFile(f.Path, f.Size, f.SHA256)
		if err != nil {
			return "", nil, err
		}
		manifest = append(manifest, m)
	}
	u, err := s.box.BeginUpload(name, manifest)
	return u.ID, nil, err
}
