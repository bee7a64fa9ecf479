package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"smolgym/httpapi"
	"smolgym/httpapi/wire"
	"smolgym/model/gguf"
	"smolgym/model/hf"
)

// folder unpacks a tiny model of the repository.
func folder(t *testing.T, name string) string {
	t.Helper()
	dir := t.TempDir()
	found, err := filepath.Glob(filepath.Join("..", "..", "testdata", "*", name+".tar.gz")) // goldens or families
	if err != nil || len(found) != 1 {
		t.Fatalf("archives %v: %v", found, err)
	}
	tarred, err := filepath.Abs(found[0])
	if err != nil {
		t.Fatal(err)
	}
	if out, err := exec.Command("tar", "xzf", tarred, "-C", dir).CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	model := filepath.Join(dir, name)
	for _, extra := range []string{"golden.json", "golden.safetensors", "config_v4.json"} {
		if err := os.Remove(filepath.Join(model, extra)); err != nil && !errors.Is(err, os.ErrNotExist) {
			t.Fatal(err)
		}
	}
	return model
}

// sdk speaks the wire as a script would.
type sdk struct {
	t   *testing.T
	url string
}

func (s sdk) post(path, kind string, body []byte, into any) int {
	s.t.Helper()
	req, err := http.NewRequest(http.MethodPost, s.url+path, bytes.NewReader(body))
	if err != nil {
		s.t.Fatal(err)
	}
	req.Header.Set("X-API-Key", "tml-test")
	req.Header.Set("Content-Type", kind)
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		s.t.Fatal(err)
	}
	defer resp.Body.Close()
	data, err := io.ReadAll(resp.Body)
	if err != nil {
		s.t.Fatal(err)
	}
	if resp.StatusCode == http.StatusRequestTimeout {
		return resp.StatusCode
	}
	if resp.StatusCode != http.StatusOK || bytes.Contains(data, []byte(`"category"`)) {
		s.t.Fatalf("%s: %d %s", path, resp.StatusCode, data)
	}
	if into != nil {
		if err := json.Unmarshal(data, into); err != nil {
			s.t.Fatalf("%s: %v in %s", path, err, data)
		}
	}
	return resp.StatusCode
}

func (s sdk) json(path string, body map[string]any, into any) {
	s.t.Helper()
	raw, err := json.Marshal(body)
	if err != nil {
		s.t.Fatal(err)
	}
	s.post("/api/v1/"+path, "application/json", raw, into)
}

func (s sdk) result(id string, into any) {
	s.t.Helper()
	raw := fmt.Appendf(nil, `{"request_id":%q}`, id)
	for deadline := time.Now().Add(time.Minute); time.Now().Before(deadline); {
		if s.post("/api/v1/retrieve_future", "application/json", raw, into) == http.StatusOK {
			return
		}
	}
	s.t.Fatal("no result after a minute")
}

func (s sdk) future(path string, body map[string]any, into any) {
	s.t.Helper()
	var f wire.FutureResponse
	s.json(path, body, &f)
	s.result(f.RequestID, into)
}

// create makes a run, LoRA or with rank 0 a full update.
func (s sdk) create(model string, rank int) (run string) {
	s.t.Helper()
	var session wire.CreateSessionResponse
	s.json("create_session", map[string]any{"tags": []string{}, "sdk_version": "test"}, &session)
	var m wire.CreateModelResponse
	s.future("create_model", map[string]any{"session_id": session.SessionID, "model_seq_id": 0, "base_model": model,
		"lora_config": map[string]any{"rank": rank, "seed": 1, "train_unembed": true, "train_mlp": true, "train_attn": true}}, &m)
	return m.ModelID
}

// step takes one step of a run, from sequence number seq on, saves it and gives its path.
func (s sdk) step(run string, seq int64) (path string) {
	s.t.Helper()
	d := wire.Datum{Chunks: []wire.ChunkKind{wire.TextChunk}, Inputs: map[string]wire.Tensor{
		"target_tokens": wire.IntTensor([]int64{2, 3, 4}), "weights": wire.FloatTensor([]float32{1, 1, 1})}, Tokens: []int32{1, 2, 3}}
	raw, err := wire.EncodeForwardBackwardRequest(&wire.ForwardBackwardRequest{ModelID: run, SeqID: seq, LossFn: "cross_entropy", Data: []wire.Datum{d}})
	if err != nil {
		s.t.Fatal(err)
	}
	var f wire.FutureResponse
	s.post("/api/v1/forward_backward", "application/x-protobuf", raw, &f)
	s.future("optim_step", map[string]any{"model_id": run, "seq_id": seq + 1, "adam_params": map[string]any{"learning_rate": 0.01}}, nil)
	var saved wire.SaveWeightsResponse
	s.future("save_weights", map[string]any{"model_id": run, "seq_id": seq + 2, "path": "final"}, &saved)
	return saved.Path
}

// train makes a run that takes one step and is saved, and gives its path.
func (s sdk) train(model string, rank int) (run, path string) {
	s.t.Helper()
	run = s.create(model, rank)
	return run, s.step(run, 1)
}

// TestWeightVerbs: a trained run is listed, exported in all forms, re-read, imported,
// expires and goes.
func TestWeightVerbs(t *testing.T) {
	url, _ := serve(t, t.TempDir())
	env := []string{"TINKER_BASE_URL=" + url}
	cli(t, "", env, "checkpoint", "list").want(t, 0, "PATH")
	cli(t, "", env, "run", "list").want(t, 0, "RUN")
	cli(t, "", env, "model", "add", "me/tied", folder(t, "steps_llama_tied"), "--as", "org/known").want(t, 0, "added me/tied")
	cli(t, "", env, "model", "show", "org/known").want(t, 0, "me/tied", "alias", "org/known")
	cli(t, "", env, "model", "show", "me/tied", "--graph").want(t, 0, "RMSNorm")
	cli(t, "", env, "model", "show", "me/tied", "--graph", "-v").want(t, 0, "# train", "# decode")
	cli(t, "", env, "model", "show", "me/nope", "--graph").want(t, exitNotFound, "me/nope")
	base := filepath.Join(t.TempDir(), "base.onnx")
	cli(t, "", env, "model", "show", "me/tied", "--onnx", base).want(t, 0, "wrote me/tied to "+base+": 1 file")
	cli(t, "", env, "model", "show", "me/tied", "--onnx", base).wantFailure(t, "is there already")
	cli(t, "", env, "model", "show", "me/nope", "--onnx", base).want(t, exitNotFound, "me/nope")
	cli(t, "", env, "model", "add", "me/experts", folder(t, "mixtral")).want(t, 0, "added me/experts")
	cli(t, "", env, "model", "show", "me/experts", "--onnx", base+".onnx").wantFailure(t, "me/experts", "mixtral", "ExpertLinear")
	cli(t, "", env, "model", "rm", "me/experts").want(t, 0, "removed")
	run, path := sdk{t, url}.train("org/known", 4)
	_, whole := sdk{t, url}.train("me/tied", 0)

	cli(t, "", env, "run", "list").want(t, 0, run, "lora 4", "live", "all")
	cli(t, "", env, "run", "show", run).want(t, 0, run, path, "LoRA of rank 4")
	cli(t, "", env, "run", "show", "nope").want(t, exitNotFound, "nope")
	cli(t, "", env, "checkpoint", "list", "--run", run).want(t, 0, path, "me/tied")
	cli(t, "", env, "checkpoint", "show", path).want(t, 0, path, "step", "LoRA of rank 4")
	cli(t, "", env, "ps").want(t, 0, "model", "me/tied", run)
	cli(t, "", env, "status").want(t, 0, "2 stored", "2 live")
	var st httpapi.Status
	if err := json.Unmarshal([]byte(cli(t, "", env, "status", "--json").out), &st); err != nil || st.RunsLive != 2 {
		t.Fatalf("%+v: %v", st, err)
	}

	out := t.TempDir()
	adapter, merged, full, file := filepath.Join(out, "adapter"), filepath.Join(out, "merged"), filepath.Join(out, "full"), filepath.Join(out, "out.gguf")
	export := func(path, to, form string) result {
		t.Helper()
		return cli(t, "", env, "checkpoint", "export", path, "--to", to, "--form", form)
	}
	export(path, adapter, "adapter").want(t, 0, "wrote "+path)
	export(path, adapter, "adapter").wantFailure(t, "is there already")
	export(path, merged, "merged").want(t, 0, "wrote "+path)
	export(whole, full, "merged").want(t, 0, "wrote "+whole)
	export(whole, file, "gguf").want(t, 0, "wrote "+whole)
	export(whole, out+"/x", "adapter").wantFailure(t, "full update")
	export(path, out+"/lora", "onnx").want(t, 0, "wrote "+path)
	export(whole, out+"/whole.onnx", "onnx").want(t, 0, "wrote "+whole)
	cli(t, "", env, "checkpoint", "export", path, "--to", out+"/x", "--form", "onnx", "--dtype", "bf16").wantFailure(t, "bf16", "f32")
	seen := map[string]bool{}
	for _, name := range []string{base, out + "/lora/model.onnx", out + "/whole.onnx"} { // package export holds their bytes
		b, err := os.ReadFile(name)
		if err != nil || !bytes.Contains(b, []byte("input_ids")) || seen[string(b)] {
			t.Errorf("%s: %d bytes, %v", name, len(b), err)
		}
		seen[string(b)] = true
	}
	for _, dir := range []string{merged, full} {
		src, err := hf.Dir(dir)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := hf.Describe(src); err != nil {
			t.Errorf("%s: %v", dir, err)
		}
		cli(t, "", nil, "model", "check", dir).want(t, 0, "can be taken")
	}
	if _, err := gguf.OpenPath(file, gguf.Options{}); err != nil {
		t.Error(err)
	}
	if parts, err := filepath.Glob(filepath.Join(out, "*", ".part-*")); err != nil || len(parts) > 0 {
		t.Errorf("left over: %v, %v", parts, err)
	}

	got := cli(t, "", env, "checkpoint", "import", adapter, "--model", "me/tied", "--as", "start", "--json")
	got.want(t, 0)
	var im httpapi.Imported
	if err := json.Unmarshal([]byte(got.out), &im); err != nil || im.Rank != 4 || !strings.HasSuffix(im.Path, "/weights/start") {
		t.Fatalf("%+v: %v", im, err)
	}
	cli(t, "", env, "checkpoint", "import", merged, "--model", "me/tied:tuned").want(t, 0, "added me/tied:tuned")
	on := sdk{t, url}.create("org/known", 4) // what came in is trained on: the adapter as a state, the merged folder as a model
	sdk{t, url}.future("load_weights", map[string]any{"model_id": on, "seq_id": 1, "path": im.Path, "optimizer": false}, nil)
	cli(t, "", env, "checkpoint", "show", sdk{t, url}.step(on, 2)).want(t, 0, "me/tied", "LoRA of rank 4", "hub name", "runs/")
	_, tuned := sdk{t, url}.train("me/tied:tuned", 4)
	cli(t, "", env, "checkpoint", "show", tuned).want(t, 0, "me/tied:tuned")
	cli(t, "", env, "checkpoint", "import", adapter, "--model", "me/nope").want(t, exitNotFound, "me/nope")
	cli(t, "", env, "model", "add", "file", file).want(t, 0, "added local/file: llama")
	cli(t, "", env, "model", "add", "other", file, "--as", "me/tied").wantFailure(t, "local/other", "me/tied")

	cli(t, "", env, "checkpoint", "ttl", path, "7d").want(t, 0, "expires")
	cli(t, "", env, "checkpoint", "ttl", path, "never").want(t, 0, "kept")
	cli(t, "", env, "checkpoint", "rm", path).want(t, 0, "removed "+path)
	cli(t, "", env, "checkpoint", "rm", path).want(t, exitNotFound, path)
}

// TestModelCheck: the verdict is complete and needs no server.
func TestModelCheck(t *testing.T) {
	dir := folder(t, "steps_llama")
	cli(t, "", nil, "model", "check", dir).want(t, 0, "llama", "can be taken", "warning", "tokenizer.json")
	config := filepath.Join(dir, "config.json")
	good, err := os.ReadFile(config)
	if err != nil {
		t.Fatal(err)
	}
	var fields map[string]any
	if err := json.Unmarshal(good, &fields); err != nil {
		t.Fatal(err)
	}
	fields["hidden_act"], fields["pretraining_tp"] = "frobnicate", 2
	bad, err := json.Marshal(fields)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(config, bad, 0o600); err != nil {
		t.Fatal(err)
	}
	r := cli(t, "", nil, "model", "check", dir, "--json")
	var v verdict
	if err := json.Unmarshal([]byte(r.out), &v); err != nil || r.code != exitFailed || v.Taken || len(v.Reasons) < 2 || !strings.Contains(r.out, "frobnicate") || !strings.Contains(r.out, "pretraining_tp") {
		t.Fatalf("code %d, %+v: %v", r.code, v, err)
	}
	if err := os.WriteFile(filepath.Join(dir, "x.gguf"), []byte("GGUF"), 0o600); err != nil {
		t.Fatal(err)
	}
	if r := cli(t, "", nil, "model", "check", filepath.Join(dir, "x.gguf")); r.code != exitFailed || !strings.Contains(r.out, "gguf") {
		t.Fatalf("%+v", r)
	}
	cli(t, "", nil, "model", "check", "no/such").want(t, exitNotFound, "no/such")
}

// TestWeightUsage: wrong calls end with 2 and a working example.
func TestWeightUsage(t *testing.T) {
	for _, c := range []struct {
		args  []string
		words []string
	}{
		{[]string{"checkpoint", "show"}, []string{"PATH", "for example: smolgym checkpoint show tinker://"}},
		{[]string{"checkpoint", "show", "x"}, []string{"tinker://RUN/weights/NAME", "for example"}},
		{[]string{"checkpoint", "export", "tinker://a/weights/b"}, []string{"--to", "for example: smolgym checkpoint export"}},
		{[]string{"checkpoint", "export", "tinker://a/weights/b", "--to", "x", "--form", "odd"}, []string{"odd", "merged", "onnx"}},
		{[]string{"checkpoint", "ttl", "tinker://a/weights/b", "soon"}, []string{"soon", "7d"}},
		{[]string{"checkpoint", "ttl", "tinker://a/weights/b", "-1h"}, []string{"for example: smolgym checkpoint ttl"}},
		{[]string{"checkpoint", "rm"}, []string{"PATH", "for example"}},
		{[]string{"checkpoint", "import", "."}, []string{"--model", "for example: smolgym checkpoint import"}},
		{[]string{"checkpoint", "list", "--limit", "-1"}, []string{"--limit", "for example"}},
		{[]string{"run", "show"}, []string{"ID", "for example: smolgym run show"}},
		{[]string{"run", "list", "extra"}, []string{"extra", "for example"}},
		{[]string{"status", "extra"}, []string{"extra", "for example: smolgym status"}},
		{[]string{"ps", "extra"}, []string{"extra", "for example: smolgym ps"}},
		{[]string{"model", "show", "x", "--onnx", "dir/"}, []string{".onnx", "for example: smolgym model show"}},
		{[]string{"model", "show", "x", "--onnx", "x.onnx", "--graph"}, []string{"one of them"}},
		{[]string{"model", "check"}, []string{"DIR or FILE", "for example: smolgym model check"}},
	} {
		t.Run(strings.Join(c.args, " "), func(t *testing.T) {
			cli(t, "", nil, c.args...).want(t, exitUsage, c.words...)
		})
	}
	for _, verb := range []string{"status", "ps", "run list", "checkpoint list"} {
		cli(t, "", nil, append(strings.Fields(verb), "--server", "http://127.0.0.1:9")...).want(t, exitUnreachable, "no server", "smolgym serve")
	}
	cli(t, "", nil, "checkpoint", "import", "no/such", "--model", "x").want(t, exitNotFound, "no/such")
}
