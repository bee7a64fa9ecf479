package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"smolgym/httpapi"
	"smolgym/model/safetensors"
)

// request sends one of our own requests and decodes the answer.
func (s sdk) request(method, path string, body any, into any) {
	s.t.Helper()
	raw, err := json.Marshal(body)
	if err != nil {
		s.t.Fatal(err)
	}
	req, err := http.NewRequest(method, s.url+path, bytes.NewReader(raw))
	if err != nil {
		s.t.Fatal(err)
	}
	req.Header.Set("X-API-Key", "tml-test")
	req.Header.Set("Content-Type", "application/json")
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		s.t.Fatal(err)
	}
	defer resp.Body.Close()
	data, err := io.ReadAll(resp.Body)
	if err != nil || resp.StatusCode != http.StatusOK {
		s.t.Fatalf("%s %s: %d %s %v", method, path, resp.StatusCode, data, err)
	}
	if err := json.Unmarshal(data, into); err != nil {
		s.t.Fatalf("%s: %v in %s", path, err, data)
	}
}

// cut sends the start of a file over a connection that breaks.
func (s sdk) cut(route string, start []byte, size int64) {
	s.t.Helper()
	conn, err := net.Dial("tcp", strings.TrimPrefix(s.url, "http://"))
	if err != nil {
		s.t.Fatal(err)
	}
	head := fmt.Sprintf("PUT %s HTTP/1.1\r\nHost: box\r\nX-API-Key: tml-test\r\nContent-Type: application/octet-stream\r\nContent-Length: %d\r\n\r\n", route, size)
	if _, err := conn.Write(append([]byte(head), start...)); err != nil {
		s.t.Fatal(err)
	}
	if err := conn.Close(); err != nil {
		s.t.Fatal(err)
	}
}

// TestUploadCut: an upload that breaks off in the middle of a file lists nothing, what was taken of it survives a killed
// server, and the same command goes on from there and says so.
func TestUploadCut(t *testing.T) {
	dir, model := t.TempDir(), folder(t, "steps_llama")
	url, server := serve(t, dir)
	box := sdk{t, url}
	weights, err := os.ReadFile(filepath.Join(model, "model.safetensors"))
	if err != nil {
		t.Fatal(err)
	}
	manifest := httpapi.UploadRequest{Name: "me/cut"}
	for _, name := range []string{"config.json", "model.safetensors"} {
		f, err := describe(filepath.Join(model, name), name, &progress{out: io.Discard})
		if err != nil {
			t.Fatal(err)
		}
		manifest.Files = append(manifest.Files, f)
	}
	var up httpapi.Upload
	box.request(http.MethodPost, "/smolgym/v1/uploads", manifest, &up)
	half := int64(len(weights) / 2)
	box.cut("/smolgym/v1/uploads/"+up.ID+"/files/model.safetensors?offset=0", weights[:half], int64(len(weights)))
	have := func() int64 {
		for _, f := range up.Files {
			if f.Path == "model.safetensors" {
				return f.Have
			}
		}
		return -1
	}
	for deadline := time.Now().Add(30 * time.Second); have() < half && time.Now().Before(deadline); {
		box.request(http.MethodGet, "/smolgym/v1/uploads/"+up.ID, nil, &up)
	}
	if have() != half {
		t.Fatalf("%d bytes are there, %d were sent", have(), half)
	}

	if err := server.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	_ = server.Wait() // it was killed
	url, _ = serve(t, dir)
	box.url = url
	env := []string{"TINKER_BASE_URL=" + url}
	if list := cli(t, "", env, "model", "list"); list.code != 0 || strings.Contains(list.out, "me/cut") {
		t.Errorf("half a model is listed: %+v", list)
	}
	cli(t, "", env, "model", "show", "me/cut").want(t, exitNotFound, "me/cut")
	box.request(http.MethodPost, "/smolgym/v1/uploads", manifest, &up)
	if have() != half {
		t.Errorf("after a kill %d bytes are there, %d were acknowledged", have(), half)
	}
	added := cli(t, "", env, "model", "add", "me/cut", model)
	added.want(t, 0, "added me/cut: llama")
	if !strings.Contains(added.err, fmt.Sprintf("going on with model.safetensors: %s of %s are there", size(half), size(int64(len(weights))))) {
		t.Errorf("nothing is said of going on: %s", added.err)
	}
	var m httpapi.Model
	box.request(http.MethodGet, "/smolgym/v1/models/me/cut", nil, &m)
	for _, f := range m.Files {
		if f.Path == "model.safetensors" && f.SHA256 != manifest.Files[1].SHA256 {
			t.Errorf("the file became another: %s", f.SHA256)
		}
	}
	box.train("me/cut", 4)
}

// shards writes a model's weights into n files and an index.
func shards(t *testing.T, model string, n int) (names []string) {
	t.Helper()
	path := filepath.Join(model, "model.safetensors")
	raw, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	all, err := safetensors.Parse(bytes.NewReader(raw), int64(len(raw)))
	if err != nil {
		t.Fatal(err)
	}
	parts, where := map[string][]safetensors.Entry{}, map[string]string{}
	for i, x := range all.Tensors() {
		name := fmt.Sprintf("model-%05d-of-%05d.safetensors", i%n+1, n)
		where[x.Name] = name
		parts[name] = append(parts[name], safetensors.Entry{Name: x.Name, DType: x.DType, Shape: x.Shape, Data: func(w io.Writer) error {
			_, err := w.Write(raw[x.Offset : x.Offset+x.Bytes])
			return err
		}})
	}
	for name, entries := range parts {
		var b bytes.Buffer
		if err := safetensors.Write(&b, entries, map[string]string{"format": "pt"}); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(model, name), b.Bytes(), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	index, err := json.Marshal(map[string]any{"metadata": map[string]any{}, "weight_map": where})
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(model, "model.safetensors.index.json"), index, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Remove(path); err != nil {
		t.Fatal(err)
	}
	return slices.Sorted(maps.Keys(parts))
}

// TestMissingShard: a folder that lacks a shard is refused by the shard's name and not listed; with it, it trains.
func TestMissingShard(t *testing.T) {
	model := folder(t, "steps_llama")
	names := shards(t, model, 3)
	url, _ := serve(t, t.TempDir())
	env := []string{"TINKER_BASE_URL=" + url}
	missing, away := filepath.Join(model, names[1]), filepath.Join(t.TempDir(), "shard")
	if err := os.Rename(missing, away); err != nil {
		t.Fatal(err)
	}
	cli(t, "", env, "model", "add", "me/sharded", model).wantFailure(t, "me/sharded", names[1])
	if r := cli(t, "", nil, "model", "check", model); r.code != exitFailed || !strings.Contains(r.out+r.err, names[1]) {
		t.Errorf("check: %+v", r)
	}
	if list := cli(t, "", env, "model", "list"); list.code != 0 || strings.Contains(list.out, "sharded") {
		t.Errorf("half a model is listed: %+v", list)
	}
	if err := os.Rename(away, missing); err != nil {
		t.Fatal(err)
	}
	cli(t, "", env, "model", "add", "me/sharded", model).want(t, 0, "added me/sharded: llama")
	sdk{t, url}.train("me/sharded", 4)
}
