package httpapi

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"maps"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"testing"

	"smolgym/httpapi/wire"
)

// savedRun trains a run for a step and saves it; it gives the run and the route of the checkpoint.
func (r *rig) savedRun() (run, route string) {
	r.t.Helper()
	run = r.lora(r.session(), 0)
	r.future("forward_backward", batch(r.t, run, 1, nil), asProtobuf...)
	r.want("optim_step", object{"model_id": run, "seq_id": 2, "adam_params": object{"learning_rate": 0.01}}, new(wire.OptimStepResponse))
	var out wire.SaveWeightsResponse
	r.want("save_weights", object{"model_id": run, "seq_id": 3, "path": "w"}, &out)
	return run, "/smolgym/v1/checkpoints/" + url.PathEscape(run) + "/weights/w"
}

// TestInventory: what was trained is listed, expires and goes.
func TestInventory(t *testing.T) {
	r := newRig(t, Options{})
	r.upload("tiny")
	var none Runs
	r.must("GET", "/smolgym/v1/runs", nil, &none)
	run, route := r.savedRun()
	var runs Runs
	r.must("GET", "/smolgym/v1/runs?limit=1", nil, &runs)
	if none.Total != 0 || runs.Total != 1 || len(runs.Runs) != 1 || runs.Runs[0].ID != run || !runs.Runs[0].Live || runs.Runs[0].Rank == 0 {
		t.Fatalf("runs %+v", runs)
	}
	var one Run
	r.must("GET", "/smolgym/v1/runs/"+url.PathEscape(run), nil, &one)
	if len(one.Checkpoints) != 1 || one.Checkpoints[0].Step != 1 || one.BaseModel != "local/tiny" {
		t.Fatalf("run %+v", one)
	}
	var all Checkpoints
	r.must("GET", "/smolgym/v1/checkpoints?run="+url.QueryEscape(run), nil, &all)
	var cp Checkpoint
	r.must("GET", route, nil, &cp)
	if all.Total != 1 || all.Checkpoints[0].Path != cp.Path || cp.Kind != "weights" || len(cp.Tensors) == 0 || cp.SizeBytes == 0 || cp.Expires != nil {
		t.Fatalf("checkpoint %+v of %+v", cp, all)
	}
	r.must("PUT", route+"/ttl", TTLRequest{3600}, &cp)
	if cp.Expires == nil {
		t.Fatal("no expiry was set")
	}
	session, _, _ := strings.Cut(run, ":")
	if cp.Hub != "runs/"+session+".0.w.w" {
		t.Errorf("hub name %q of %s", cp.Hub, cp.Path)
	}
	cp = Checkpoint{}
	r.must("PUT", route+"/ttl", TTLRequest{0}, &cp)
	if cp.Expires != nil {
		t.Fatal("the expiry stayed")
	}
	var l Loaded
	r.must("GET", "/smolgym/v1/ps", nil, &l)
	if len(l.Models) != 1 || l.Models[0].Bytes == 0 || len(l.Runs) != 1 || l.Runs[0].ID != run {
		t.Fatalf("loaded %+v", l)
	}
	for _, c := range []scenario{
		{name: "no run", method: "GET", path: "/smolgym/v1/runs/nope", status: http.StatusNotFound, has: []string{"nope"}},
		{name: "runs of no run", method: "GET", path: "/smolgym/v1/checkpoints?run=nope", status: http.StatusNotFound, has: []string{"nope"}},
		{name: "page", method: "GET", path: "/smolgym/v1/runs?limit=-1", status: http.StatusBadRequest, has: []string{"limit"}},
		{name: "kind", method: "GET", path: "/smolgym/v1/checkpoints/x/odd/y", status: http.StatusBadRequest, has: []string{"odd"}},
		{name: "ttl", method: "PUT", path: route + "/ttl", body: TTLRequest{-1}, status: http.StatusBadRequest, has: []string{"seconds"}},
		{name: "gone", method: "GET", path: "/smolgym/v1/checkpoints/x/weights/y", status: http.StatusNotFound, has: []string{"tinker://x/weights/y"}},
	} {
		t.Run(c.name, func(t *testing.T) { c.check(t, r.do(c.method, c.path, c.body)) })
	}
	r.must("DELETE", route, nil, nil)
	if w := r.do("GET", route, nil); w.Code != http.StatusNotFound {
		t.Fatalf("a deleted checkpoint: %d %s", w.Code, w.Body)
	}
}

// TestExportImport: files leave with their announced length, and an adapter comes back.
func TestExportImport(t *testing.T) {
	r := newRig(t, Options{})
	r.upload("tiny")
	_, route := r.savedRun()
	var x Export
	r.must("GET", route+"/export?form=adapter", nil, &x)
	files := map[string][]byte{}
	for _, f := range x.Files {
		w := r.do("GET", route+"/export/"+f.Path+"?form=adapter", nil)
		if w.Code != http.StatusOK || int64(w.Body.Len()) != f.Size || w.Header().Get("Content-Length") != strconv.FormatInt(f.Size, 10) {
			t.Fatalf("file %s of %d bytes: %d, %d bytes, Content-Length %s", f.Path, f.Size, w.Code, w.Body.Len(), w.Header().Get("Content-Length"))
		}
		files[f.Path] = w.Body.Bytes()
	}
	if files["adapter_model.safetensors"] == nil || files["adapter_config.json"] == nil {
		t.Fatalf("files %v", slices.Sorted(maps.Keys(files)))
	}
	req := ImportRequest{Model: "local/tiny"}
	for _, name := range slices.Sorted(maps.Keys(files)) {
		sum := sha256.Sum256(files[name])
		req.Files = append(req.Files, File{name, int64(len(files[name])), hex.EncodeToString(sum[:])})
	}
	var up Upload
	r.must("POST", "/smolgym/v1/imports", req, &up)
	for _, f := range up.Files {
		if !f.Done {
			r.must("PUT", "/smolgym/v1/uploads/"+up.ID+"/files/"+f.Path+"?offset=0", files[f.Path], nil)
		}
	}
	var im Imported
	r.must("POST", "/smolgym/v1/uploads/"+up.ID+"/import", ImportName{"again"}, &im)
	if im.Kind != "weights" || im.BaseModel != "local/tiny" || !strings.HasPrefix(im.Path, "tinker://") || len(im.Tensors) == 0 {
		t.Fatalf("imported %+v", im)
	}
	again := "/smolgym/v1/checkpoints/" + url.PathEscape(im.Run) + "/weights/again"
	if w := r.do("GET", again+"/export/adapter_model.safetensors?form=adapter", nil); !bytes.Equal(w.Body.Bytes(), files["adapter_model.safetensors"]) {
		t.Fatalf("the adapter changed on its way: %d", w.Code)
	}
	graph := "/smolgym/v1/graphs/local/tiny?form=onnx&name=t.onnx"
	var onnx Export
	r.must("GET", graph, nil, &onnx)
	if len(onnx.Files) != 1 || onnx.Files[0].Path != "t.onnx" || onnx.Path != "local/tiny" || onnx.Form != "onnx" {
		t.Fatalf("a model as ONNX: %+v", onnx)
	}
	if w := r.do("GET", graph+"&file=t.onnx", nil); w.Code != http.StatusOK || int64(w.Body.Len()) != onnx.Files[0].Size {
		t.Fatalf("its file: %d, %d bytes of %d", w.Code, w.Body.Len(), onnx.Files[0].Size)
	}
	for _, c := range []scenario{
		{name: "file of no model", method: "GET", path: "/smolgym/v1/graphs/no/model?form=onnx", status: http.StatusNotFound, has: []string{"no/model"}},
		{name: "form of a model", method: "GET", path: "/smolgym/v1/graphs/local/tiny?form=gguf", status: http.StatusBadRequest, has: []string{"gguf", "onnx"}},
		{name: "file of a model", method: "GET", path: graph + "&file=nope", status: http.StatusNotFound, has: []string{"nope"}},
		{name: "name of a file", method: "GET", path: "/smolgym/v1/graphs/local/tiny?form=onnx&name=../x.onnx", status: http.StatusBadRequest, has: []string{"../x.onnx"}},
		{name: "form", method: "GET", path: route + "/export?form=x", status: http.StatusBadRequest, has: []string{"merged"}},
		{name: "file", method: "GET", path: route + "/export/nope?form=merged", status: http.StatusNotFound, has: []string{"nope"}},
		{name: "base model", method: "POST", path: "/smolgym/v1/imports", body: ImportRequest{Model: "no/model", Files: req.Files}, status: http.StatusNotFound, has: []string{"no/model"}},
	} {
		t.Run(c.name, func(t *testing.T) { c.check(t, r.do(c.method, c.path, c.body)) })
	}
}
