package httpapi

import (
	"bytes"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/klauspost/compress/zstd"

	"smolgym/httpapi/wire"
)

// scenario is one request and what its answer must and must not be.
type scenario struct {
	name    string
	method  string
	path    string
	body    any
	headers []string
	status  int
	has     []string
	lacks   []string
}

func (s scenario) check(t *testing.T, w *httptest.ResponseRecorder) {
	t.Helper()
	body := w.Body.String()
	if w.Code != s.status {
		t.Errorf("status %d, want %d: %s", w.Code, s.status, body)
	}
	if w.Code >= 400 && !strings.HasPrefix(body, `{"detail":"`) {
		t.Errorf("not an error body: %q", body)
	}
	for _, x := range s.has {
		if !strings.Contains(body, x) {
			t.Errorf("body lacks %q: %s", x, body)
		}
	}
	for _, x := range append(s.lacks, "goroutine", "/work", "panic") {
		if strings.Contains(body, x) {
			t.Errorf("body has %q: %s", x, body)
		}
	}
}

func TestRefusals(t *testing.T) {
	r := newRig(t, Options{})
	r.upload("tiny")
	session := r.session()
	run := r.lora(session, 0)
	long := strings.Repeat("a", 4096)
	sample := func(id string, more string) string {
		return fmt.Sprintf(`{"sampling_session_id":%q,"seq_id":0,"prompt":{"chunks":[{"type":"encoded_text","tokens":[1]}]},"sampling_params":{}%s}`, id, more)
	}
	for _, s := range []scenario{
		{name: "unknown route", method: "GET", path: "/api/v1/forward", status: 404, has: []string{"/api/v1/forward", "GET"}},
		{name: "unknown root", method: "GET", path: "/nothing", status: 404, has: []string{"/nothing"}},
		{name: "wrong method", method: "GET", path: "/api/v1/create_model", status: 405, has: []string{"GET", "create_model"}},
		{name: "empty body", method: "POST", path: "/api/v1/create_session", status: 400, has: []string{"empty"}},
		{name: "not JSON", method: "POST", path: "/api/v1/create_session", body: "{", status: 400},
		{name: "a list", method: "POST", path: "/api/v1/create_session", body: "[]", status: 400, has: []string{"an object"}},
		{name: "missing field", method: "POST", path: "/api/v1/create_model", body: `{"session_id":"x"}`, status: 400, has: []string{"model_seq_id"}},
		{name: "no such session", method: "POST", path: "/api/v1/create_model", body: `{"session_id":"nobody","model_seq_id":0,"base_model":"tiny"}`, status: 404, has: []string{"nobody"}},
		{name: "dead heartbeat", method: "POST", path: "/api/v1/session_heartbeat", body: `{"session_id":"nobody"}`, status: 410, has: []string{"nobody"}},
		{name: "finish nobody", method: "POST", path: "/api/v1/sessions/nobody/finish", body: `{"reason":{"type":"success"}}`, status: 404, has: []string{"nobody"}},
		{name: "finish for no reason", method: "POST", path: "/api/v1/sessions/" + session + "/finish", body: `{"reason":{"type":"bored"}}`, status: 400, has: []string{"bored"}},
		{name: "no such run", method: "POST", path: "/api/v1/get_info", body: `{"model_id":"x:train:0"}`, status: 404, has: []string{"x:train:0"}},
		{name: "step of no run", method: "POST", path: "/api/v1/optim_step", body: `{"model_id":"x:train:0","seq_id":1,"adam_params":{}}`, status: 404},
		{name: "JSON forward_backward", method: "POST", path: "/api/v1/forward_backward", body: `{}`, status: 415, has: []string{"protobuf"}},
		{name: "garbage forward_backward", method: "POST", path: "/api/v1/forward_backward", body: "\xff\xff\xff", headers: asProtobuf, status: 400},
		{name: "unknown encoding", method: "POST", path: "/api/v1/forward_backward", body: "x", headers: append([]string{"Content-Encoding", "br"}, asProtobuf...), status: 415, has: []string{"br"}},
		{name: "save with a slash", method: "POST", path: "/api/v1/save_weights", body: object{"model_id": run, "path": "a/b", "seq_id": 1}, status: 400, has: []string{"path"}},
		{name: "save outside", method: "POST", path: "/api/v1/save_weights", body: object{"model_id": run, "path": "../x", "seq_id": 1}, status: 400, has: []string{"path"}},
		{name: "save absolute", method: "POST", path: "/api/v1/save_weights", body: object{"model_id": run, "path": "/etc/passwd", "seq_id": 1}, status: 400},
		{name: "save NUL", method: "POST", path: "/api/v1/save_weights", body: object{"model_id": run, "path": "a\x00b", "seq_id": 1}, status: 400},
		{name: "save long", method: "POST", path: "/api/v1/save_weights", body: object{"model_id": run, "path": long, "seq_id": 1}, status: 400},
		{name: "short ttl", method: "POST", path: "/api/v1/save_weights", body: object{"model_id": run, "path": "x", "seq_id": 1, "ttl_seconds": 5}, status: 400, has: []string{"ttl_seconds"}},
		{name: "load outside", method: "POST", path: "/api/v1/load_weights", body: object{"model_id": run, "path": "tinker://a/weights/..", "seq_id": 1, "optimizer": false}, status: 400},
		{name: "sampler of nothing", method: "POST", path: "/api/v1/create_sampling_session", body: object{"session_id": session, "sampling_session_seq_id": 0, "model_path": "tinker://" + run + "/sampler_weights/none"}, status: 404, has: []string{"none"}},
		{name: "sampler of a bad path", method: "POST", path: "/api/v1/create_sampling_session", body: object{"session_id": session, "sampling_session_seq_id": 0, "model_path": "/etc/passwd"}, status: 400},
		{name: "sampler of no model", method: "POST", path: "/api/v1/create_sampling_session", body: object{"session_id": session, "sampling_session_seq_id": 0, "base_model": "org/absent"}, status: 404, has: []string{"org/absent", "model list"}},
		{name: "sample of nobody", method: "POST", path: "/api/v1/asample", body: sample("nobody", ""), status: 404, has: []string{"nobody"}},
		{name: "sample without a sampler", method: "POST", path: "/api/v1/asample", body: `{"base_model":"tiny","prompt":{"chunks":[]},"sampling_params":{}}`, status: 400, has: []string{"sampling_session_id"}},
		{name: "mixed stop", method: "POST", path: "/api/v1/asample", body: `{"sampling_session_id":"x","seq_id":0,"prompt":{"chunks":[{"type":"encoded_text","tokens":[1]}]},"sampling_params":{"stop":["a",1]}}`, status: 400, has: []string{"stop[1]"}},
		{name: "result of nobody", method: "POST", path: "/api/v1/retrieve_future", body: `{"request_id":"nobody"}`, status: 404},
		{name: "result of another life", method: "POST", path: "/api/v1/retrieve_future", body: `{"request_id":"7f3e7a62-6b8c-4d1a-9d59-4c7d9f0b2a11"}`, status: 410},
		{name: "run list page", method: "GET", path: "/api/v1/training_runs?limit=x", status: 400, has: []string{"limit"}},
		{name: "no such run in lists", method: "GET", path: "/api/v1/training_runs/x:train:9", status: 404, has: []string{"x:train:9"}},
		{name: "checkpoint kind", method: "DELETE", path: "/api/v1/training_runs/" + run + "/checkpoints/other/x", status: 400, has: []string{"other"}},
		{name: "checkpoint name", method: "DELETE", path: "/api/v1/training_runs/" + run + "/checkpoints/weights/..%00", status: 400},
		{name: "checkpoint of nobody", method: "DELETE", path: "/api/v1/training_runs/x:train:9/checkpoints/weights/x", status: 404},
		{name: "no such model", method: "GET", path: "/smolgym/v1/models/org/none", status: 404, has: []string{"org/none"}},
		{name: "model outside", method: "GET", path: "/smolgym/v1/models/..%2f..%2fetc%2fpasswd", status: 400},
		{name: "model in use", method: "DELETE", path: "/smolgym/v1/models/tiny", status: 400, has: []string{"in use", run}},
		{name: "upload outside", method: "POST", path: "/smolgym/v1/uploads", body: announce("../../x", map[string][]byte{"a": nil}), status: 400, has: []string{"model name"}},
		{name: "upload of a file outside", method: "POST", path: "/smolgym/v1/uploads", body: announce("x", map[string][]byte{"../a": nil}), status: 400, has: []string{"../a"}},
		{name: "upload of a long name", method: "POST", path: "/smolgym/v1/uploads", body: announce(long, map[string][]byte{"a": nil}), status: 400, lacks: []string{long}},
		{name: "upload again", method: "POST", path: "/smolgym/v1/uploads", body: announce("tiny", tinyModel(t)), status: 400, has: []string{"exists", "local/tiny"}},
		{name: "upload without hashes", method: "POST", path: "/smolgym/v1/uploads", body: `{"name":"x","files":[{"path":"a","size":1,"sha256":"zz"}]}`, status: 400, has: []string{"sha256"}},
		{name: "no such upload", method: "PUT", path: "/smolgym/v1/uploads/x/files/a", body: "x", status: 404, has: []string{"begin it again"}},
		{name: "tokenize nothing", method: "POST", path: "/smolgym/v1/tokenize", body: `{"model":"tiny"}`, status: 400},
	} {
		t.Run(s.name, func(t *testing.T) { s.check(t, r.do(s.method, s.path, s.body, s.headers...)) })
	}
	// The server is alive and the run's gradient and numbers are as they were.
	w := r.future("forward_backward", batch(t, run, 1, nil), asProtobuf...)
	if _, err := wire.DecodeForwardBackwardOutput(w.Body.Bytes()); err != nil || w.Header().Get("Content-Type") != protobuf {
		t.Errorf("after the refusals: %v, %s", err, w.Body)
	}
}

// Accepted work that fails is a normal answer with error and category.
func TestFailures(t *testing.T) {
	r := newRig(t, Options{})
	r.upload("tiny")
	session := r.session()
	run := r.lora(session, 0)
	fails := func(name, path string, body any, headers []string, words ...string) {
		t.Helper()
		w := r.future(path, body, headers...)
		text := w.Body.String()
		if w.Code != 200 || !strings.Contains(text, `"category":"user"`) || !strings.HasPrefix(text, `{"error":"`) {
			t.Errorf("%s: %d %s", name, w.Code, text)
		}
		for _, x := range words {
			if !strings.Contains(text, x) {
				t.Errorf("%s: lacks %q: %s", name, x, text)
			}
		}
	}
	fails("base model", "create_model", object{"session_id": session, "model_seq_id": 1, "base_model": "org/absent", "lora_config": object{"rank": 4}}, nil, "org/absent", "model add", "model pull")
	fails("rank 0", "create_model", object{"session_id": session, "model_seq_id": 2, "base_model": "tiny", "lora_config": object{"rank": 0, "train_mlp": false}}, nil, "train_mlp")
	fails("optimizer", "create_model", object{"session_id": session, "model_seq_id": 3, "base_model": "tiny", "optimizer_config": object{"type": "dimuon", "version": 1}}, nil, "dimuon")
	for i, c := range []struct {
		name   string
		change func(*wire.ForwardBackwardRequest)
		words  []string
	}{
		{"empty batch", func(q *wire.ForwardBackwardRequest) { q.Data = nil }, []string{"empty"}},
		{"unknown loss", func(q *wire.ForwardBackwardRequest) { q.LossFn = "mse" }, []string{"mse"}},
		{"token", func(q *wire.ForwardBackwardRequest) { q.Data[1].Tokens[0] = 99 }, []string{"datum 1", "99"}},
		{"missing input", func(q *wire.ForwardBackwardRequest) { delete(q.Data[0].Inputs, "target_tokens") }, []string{"datum 0", "target_tokens"}},
		{"text setting", func(q *wire.ForwardBackwardRequest) {
			q.Config = map[string]wire.ConfigValue{"mode": {Text: "x", IsText: true}}
		}, []string{"mode"}},
	} {
		fails(c.name, "forward_backward", batch(t, run, int64(i+1), c.change), asProtobuf, c.words...)
	}
	var made wire.CreateSamplingSessionResponse
	r.must("POST", "/api/v1/create_sampling_session", object{"session_id": session, "sampling_session_seq_id": 0, "base_model": "tiny"}, &made)
	prompt := func(n int) object {
		return object{"chunks": []object{{"type": "encoded_text", "tokens": make([]int, n)}}}
	}
	fails("context", "asample", object{"sampling_session_id": made.SamplingSessionID, "seq_id": 0, "prompt": prompt(25), "sampling_params": object{"max_tokens": 10}}, nil, "25", "10", "32")
	fails("alternatives", "asample", object{"sampling_session_id": made.SamplingSessionID, "seq_id": 1, "prompt": prompt(5), "sampling_params": object{"max_tokens": 1}, "prompt_alt_tokens_k": 300}, nil, "prompt_alt_tokens_k")
	for i, part := range []object{{"type": "image", "data": "", "format": "png"}, {"type": "image_asset_pointer", "location": "x", "format": "png"}, {"type": "dmel", "dmel": ""}} {
		fails("part", "asample", object{"sampling_session_id": made.SamplingSessionID, "seq_id": 10 + i, "prompt": object{"chunks": []object{part}}, "sampling_params": object{}}, nil, part["type"].(string))
	}
	fails("load", "load_weights", object{"model_id": run, "seq_id": 50, "path": "tinker://" + run + "/weights/none", "optimizer": true}, nil, "none")
}

func TestKeys(t *testing.T) {
	open, closed := newRig(t, Options{}), newRig(t, Options{Keys: []string{"tml-right"}})
	for _, c := range []struct {
		r      *rig
		key    string
		status int
	}{
		{open, "tml-anything", 200}, {open, "eyJx.y.z", 401}, {open, "", 401}, {open, "sk-x", 401},
		{closed, "tml-right", 200}, {closed, "tml-wrong", 401}, {closed, "", 401},
	} {
		w := c.r.do("GET", "/api/v1/get_server_capabilities", nil, "X-API-Key", c.key)
		scenario{status: c.status}.check(t, w)
	}
	for _, path := range []string{"/healthz", "/api/v1/healthz"} {
		w := closed.do("GET", path, nil, "X-API-Key", "")
		scenario{status: 200, has: []string{`"status":"ok"`, `"device":`}}.check(t, w)
	}
	if w := closed.do("GET", "/smolgym/v1/models", nil, "X-API-Key", ""); w.Code != 401 {
		t.Errorf("our routes without a key: %d", w.Code)
	}
}

// FR-29: a body at the limit passes, one byte more is 413 with the limit named,
// whether or not its length was announced, and decompressed bytes count.
func TestBodyLimits(t *testing.T) {
	r := newRig(t, Options{})
	padded := func(n int) []byte {
		body := []byte(`{"session_id":"nobody"}`)
		return append(body, bytes.Repeat([]byte{' '}, n-len(body))...)
	}
	at := "/api/v1/session_heartbeat"
	scenario{status: 410}.check(t, r.do("POST", at, padded(maxJSON)))
	large := scenario{status: 413, has: []string{fmt.Sprint(maxJSON)}}
	large.check(t, r.do("POST", at, padded(maxJSON+1)))
	req := httptest.NewRequest("POST", at, io.MultiReader(bytes.NewReader(padded(maxJSON+1)))) // no length
	req.ContentLength = -1
	req.Header.Set("X-API-Key", "tml-x")
	w := httptest.NewRecorder()
	r.h.ServeHTTP(w, req)
	large.check(t, w)

	z, err := zstd.NewWriter(nil)
	if err != nil {
		t.Fatal(err)
	}
	bomb := z.EncodeAll(make([]byte, maxBatch+1), nil)
	if len(bomb) > 1<<20 {
		t.Fatalf("the bomb has %d bytes", len(bomb))
	}
	w = r.do("POST", "/api/v1/forward_backward", bomb, append([]string{"Content-Encoding", "zstd"}, asProtobuf...)...)
	scenario{status: 413, has: []string{fmt.Sprint(maxBatch)}}.check(t, w)
}

// A trailing slash gives the same answer and loses no body.
func TestTrailingSlash(t *testing.T) {
	r := newRig(t, Options{})
	var s wire.CreateSessionResponse
	r.must("POST", "/api/v1/create_session/", object{"sdk_version": "0.38.0"}, &s)
	r.must("POST", "/api/v1/session_heartbeat//", object{"session_id": s.SessionID}, nil)
	r.must("GET", "/healthz/", nil, nil)
}

// A poll without a result ends with 408, words about the queue, and no sooner than
// it is told to.
func TestPollHolds(t *testing.T) {
	r := newRig(t, Options{Hold: 50 * time.Millisecond})
	r.upload("tiny")
	run := r.lora(r.session(), 0)
	body := batch(t, run, 1, func(q *wire.ForwardBackwardRequest) {
		for range 10 {
			q.Data = append(q.Data, q.Data...)
		}
	})
	var f wire.FutureResponse
	r.must("POST", "/api/v1/forward_backward", body, &f, asProtobuf...)
	began := time.Now()
	w := r.do("POST", "/api/v1/retrieve_future", object{"request_id": f.RequestID})
	if w.Code != http.StatusRequestTimeout {
		t.Fatalf("%d: the batch was done too soon for this test", w.Code)
	}
	if took := time.Since(began); took < 50*time.Millisecond {
		t.Errorf("answered after %v", took)
	}
	for _, x := range []string{`"type":"try_again"`, `"queue_state":"active"`, `"queue_state_reason":"`, f.RequestID} {
		if !strings.Contains(w.Body.String(), x) {
			t.Errorf("lacks %s: %s", x, w.Body)
		}
	}
	if w := r.poll(f.RequestID); w.Header().Get("Content-Type") != protobuf {
		t.Errorf("result %s", w.Body)
	}
}

// Uploads go on where they broke off.
func TestUpload(t *testing.T) {
	r := newRig(t, Options{})
	files := tinyModel(t)
	var u Upload
	r.must("POST", "/smolgym/v1/uploads", announce("me/tiny:v1", files), &u)
	put := func(query string, body []byte, headers ...string) *httptest.ResponseRecorder {
		return r.do("PUT", "/smolgym/v1/uploads/"+u.ID+"/files/model.safetensors"+query, body, headers...)
	}
	weights := files["model.safetensors"]
	scenario{status: 200, has: []string{`"have":100`, `"done":false`}}.check(t, put("", weights[:100]))
	scenario{status: 400, has: []string{"go on at offset 100"}}.check(t, put("?offset=50", weights[50:]))
	scenario{status: 400, has: []string{"offset"}}.check(t, put("?offset=-1", weights))
	scenario{status: 400, has: []string{"not all here", "config.json"}}.check(t, r.do("POST", "/smolgym/v1/uploads/"+u.ID+"/commit", nil))
	scenario{status: 200, has: []string{`"have":200`}}.check(t, put("", weights[100:200], "Content-Range", fmt.Sprintf("bytes 100-199/%d", len(weights))))
	scenario{status: 400, has: []string{"longer"}}.check(t, put("?offset=200", append(bytes.Clone(weights[200:]), 0)))
	var state Upload
	r.must("GET", "/smolgym/v1/uploads/"+u.ID, nil, &state)
	for _, f := range state.Files {
		scenario{status: 200, has: []string{`"done":true`}}.check(t, r.do("PUT", fmt.Sprintf("/smolgym/v1/uploads/%s/files/%s?offset=%d", u.ID, f.Path, f.Have), files[f.Path][f.Have:]))
	}
	scenario{status: 200, has: []string{`"name":"me/tiny:v1"`}}.check(t, r.do("POST", "/smolgym/v1/uploads/"+u.ID+"/commit", nil))
	scenario{status: 200, has: []string{`"me/tiny:v1"`, `"size_bytes"`}, lacks: []string{`"files"`}}.check(t, r.do("GET", "/smolgym/v1/models", nil))
	scenario{status: 200, has: []string{`"sha256"`}}.check(t, r.do("GET", "/smolgym/v1/models/me/tiny:v1", nil))
	scenario{status: 200}.check(t, r.do("DELETE", "/smolgym/v1/models/me/tiny:v1", nil))
	scenario{status: 200, has: []string{`"models":[]`}}.check(t, r.do("GET", "/smolgym/v1/models", nil))
	scenario{status: 200, has: []string{"reference"}}.check(t, r.do("GET", "/smolgym/v1/status", nil))
}
