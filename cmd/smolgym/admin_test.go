package main

import (
	"crypto/sha1"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"testing"

	"smolgym/httpapi"
)

// TestDoctor: a box and a model on it are examined.
func TestDoctor(t *testing.T) {
	url, _ := serve(t, t.TempDir())
	env := []string{"TINKER_BASE_URL=" + url}
	cli(t, "", env, "model", "add", "tiny", folder(t, "steps_llama")).want(t, 0)
	_, path := sdk{t, url}.train("tiny", 4)
	cli(t, "", env, "doctor").want(t, 0, "device", "dispatch", "memory", "disk", "ok")
	for _, name := range []string{"tiny", path} {
		cli(t, "", env, "doctor", "--model", name).want(t, 0, "forward_backward", "largest difference 0 over")
	}
	var d httpapi.Doctor
	if err := json.Unmarshal([]byte(cli(t, "", env, "doctor", "--model", "tiny", "--json").out), &d); err != nil || d.Agreement == nil || d.Agreement.Tokens == 0 || d.Disk.File == 0 {
		t.Fatalf("%+v: %v", d, err)
	}
	cli(t, "", env, "doctor", "--model", "nobody").want(t, exitNotFound, "nobody")
	cli(t, "", env, "doctor", "extra").want(t, exitUsage, "extra", "for example: smolgym doctor")
}

// fakeHub serves a folder as the one model org/tiny.
func fakeHub(t *testing.T, dir string) string {
	t.Helper()
	const commit = "0123456789abcdef0123456789abcdef01234567"
	entries, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	var list []map[string]any
	mux := http.NewServeMux()
	for _, e := range entries {
		raw, err := os.ReadFile(filepath.Join(dir, e.Name()))
		if err != nil {
			t.Fatal(err)
		}
		sum := sha1.Sum(append(fmt.Appendf(nil, "blob %d\x00", len(raw)), raw...))
		oid := hex.EncodeToString(sum[:])
		list = append(list, map[string]any{"type": "file", "path": e.Name(), "size": len(raw), "oid": oid})
		mux.HandleFunc("/org/tiny/resolve/"+commit+"/"+e.Name(), func(w http.ResponseWriter, r *http.Request) {
			w.Header().Set("ETag", `"`+oid+`"`)
			_, _ = w.Write(raw) // a client that left is the test's failure
		})
	}
	answer := func(v any) http.HandlerFunc {
		return func(w http.ResponseWriter, _ *http.Request) { _ = json.NewEncoder(w).Encode(v) }
	}
	mux.HandleFunc("/api/models/org/tiny/revision/main", answer(map[string]any{"id": "org/tiny", "sha": commit}))
	mux.HandleFunc("/api/models/org/tiny/tree/"+commit, answer(list))
	s := httptest.NewServer(mux)
	t.Cleanup(s.Close)
	return s.URL
}

// TestPull: a model comes from a hub, under its name or another.
func TestPull(t *testing.T) {
	url, _ := serve(t, t.TempDir())
	env := []string{"TINKER_BASE_URL=" + url}
	from := fakeHub(t, folder(t, "steps_llama"))
	cli(t, "", env, "model", "pull", "org/tiny", "--from", from).want(t, 0, "pulled org/tiny", "llama", "note:")
	cli(t, "", env, "model", "pull", "org/tiny", "--from", from, "--as", "me/mine").want(t, 0, "pulled me/mine")
	cli(t, "", env, "model", "list").want(t, 0, "org/tiny", "me/mine")
	cli(t, "", env, "model", "pull", "org/tiny", "--from", from).wantFailure(t, "exists")
	cli(t, "", env, "model", "pull", "org/none", "--from", from).want(t, exitNotFound, "org/none")
	cli(t, "", env, "model", "pull", "org/tiny", "--from", "nonsense").want(t, exitUsage, "nonsense", "for example: smolgym model pull")
	cli(t, "", env, "model", "pull").want(t, exitUsage, "ORG/NAME")
	cli(t, "", nil, "model", "pull", "org/tiny", "--server", "http://127.0.0.1:9").want(t, exitUnreachable, "smolgym serve")
}
