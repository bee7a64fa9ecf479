package httpapi

import (
	"bytes"
	"encoding/base64"
	"encoding/json"
	"io"
	"math"
	"net/http"
	"net/http/httptest"
	"net/url"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"filippo.io/age"

	"smolgym/httpapi/wire"
	"smolgym/model/safetensors"
)

// plain fetches a URL as a downloader without a key does.
func (r *rig) plain(method, at string, headers ...string) *httptest.ResponseRecorder {
	r.t.Helper()
	u, err := url.Parse(at)
	if err != nil {
		r.t.Fatal(err)
	}
	if u.Scheme != "http" || u.Host != "example.com" {
		r.t.Errorf("URL %s does not lead back to the host of the request", at)
	}
	req := httptest.NewRequest(method, u.RequestURI(), nil)
	for i := 0; i < len(headers); i += 2 {
		req.Header.Set(headers[i], headers[i+1])
	}
	w := httptest.NewRecorder()
	r.h.ServeHTTP(w, req)
	return w
}

// trained is a session with a run that has taken a step and saved it.
func (r *rig) trained() (session, run, path string) {
	r.t.Helper()
	session = r.session()
	run = r.lora(session, 0)
	r.future("forward_backward", batch(r.t, run, 1, nil), asProtobuf...)
	var opt wire.OptimStepResponse
	r.want("optim_step", object{"model_id": run, "seq_id": 2, "adam_params": object{"learning_rate": 0.01}, "type": "optim_step"}, &opt)
	var save wire.SaveWeightsResponse
	r.want("save_weights", object{"model_id": run, "path": "step-1", "seq_id": 3, "type": "save_weights"}, &save)
	return session, run, save.Path
}

// What "tinker checkpoint download" does, call by call.
func TestDownload(t *testing.T) {
	r := newRig(t, Options{})
	r.upload("tiny")
	_, run, path := r.trained()
	session := r.session()
	var load wire.LoadWeightsResponse
	r.want("load_weights", object{"session_id": session, "model_seq_id": 0, "path": path, "optimizer": false, "user_metadata": object{"created_by": "tinker checkpoint download"}, "type": "load_weights"}, &load)
	twin := session + ":train:0"
	var info wire.GetInfoResponse
	r.must("POST", "/api/v1/get_info", object{"model_id": twin}, &info)
	if info.ModelData.ModelName != "local/tiny" || !info.IsLora || *info.LoraRank != 4 {
		t.Errorf("info %+v", info)
	}
	var saved wire.SaveWeightsExternalResponse
	r.want("save_weights_external", object{"model_id": twin, "path": "download", "seq_id": 1, "ttl_seconds": 3600, "type": "save_weights_external"}, &saved)
	if want := "tinker://" + twin + "/external_weights/download"; saved.Path != want || *saved.SizeBytes == 0 {
		t.Fatalf("saved %+v", saved)
	}
	route := "/api/v1/training_runs/" + twin + "/checkpoints/external_weights/download"
	var urls wire.ExternalWeightsURLsResponse
	r.must("GET", route+"/external_weights_urls", nil, &urls)
	if urls.Expires.Before(time.Now().Add(6 * time.Minute)) {
		t.Errorf("expires %v", urls.Expires)
	}
	r.must("PUT", route+"/ttl", object{"ttl_seconds": 3600}, nil)
	files := map[string][]byte{}
	total := int64(0)
	for name, at := range urls.URLs {
		w := r.plain("GET", at)
		if w.Code != http.StatusOK || w.Header().Get("Content-Length") == "" {
			t.Fatalf("%s: %d %v %s", name, w.Code, w.Header(), w.Body)
		}
		files[name] = w.Body.Bytes()
		total += int64(w.Body.Len())
		part := r.plain("GET", at, "Range", "bytes=3-9")
		if part.Code != http.StatusPartialContent || !bytes.Equal(part.Body.Bytes(), files[name][3:10]) {
			t.Errorf("%s: range: %d %q", name, part.Code, part.Body)
		}
		if head := r.plain("HEAD", at); head.Code != http.StatusOK || head.Body.Len() != 0 || head.Header().Get("Content-Length") != w.Header().Get("Content-Length") {
			t.Errorf("%s: HEAD: %d %v", name, head.Code, head.Header())
		}
		for _, bad := range []string{strings.Replace(at, "signature=", "signature=A", 1), strings.Replace(at, "expires=1", "expires=2", 1), strings.Split(at, "?")[0],
			strings.Replace(at, "download/", "other/", 1)} {
			if w := r.plain("GET", bad); w.Code != http.StatusUnauthorized {
				t.Errorf("%s: %d", bad, w.Code)
			}
		}
	}
	if total != *saved.SizeBytes {
		t.Errorf("files have %d bytes, announced were %d", total, *saved.SizeBytes)
	}
	r.adapterIs(files, path)

	// Lists don't show the run.
	var runs wire.TrainingRunsResponse
	r.must("GET", "/api/v1/training_runs", nil, &runs)
	if runs.Cursor.TotalCount != 1 || runs.TrainingRuns[0].TrainingRunID != run {
		t.Errorf("runs %+v", runs)
	}
	r.must("DELETE", route, nil, nil)
	r.must("DELETE", route, nil, nil)
	if w := r.do("GET", route+"/external_weights_urls", nil); w.Code != http.StatusNotFound {
		t.Errorf("urls of a deleted export: %d %s", w.Code, w.Body)
	}
	for _, at := range urls.URLs {
		if w := r.plain("GET", at); w.Code != http.StatusNotFound {
			t.Errorf("file of a deleted export: %d", w.Code)
		}
	}
	r.must("POST", "/api/v1/sessions/"+session+"/finish", object{"reason": object{"type": "success"}}, nil)
}

// adapterIs compares an exported adapter with the checkpoint it is of.
func (r *rig) adapterIs(files map[string][]byte, path string) {
	t := r.t
	t.Helper()
	var config struct {
		Type  string  `json:"peft_type"`
		Base  string  `json:"base_model_name_or_path"`
		R     int     `json:"r"`
		Alpha float64 `json:"lora_alpha"`
	}
	if err := json.Unmarshal(files["adapter_config.json"], &config); err != nil || config.Type != "LORA" || config.Base != "local/tiny" || config.R != 4 || config.Alpha != 32 {
		t.Errorf("config %+v, %v", config, err)
	}
	raw := files["adapter_model.safetensors"]
	f, err := safetensors.Parse(bytes.NewReader(raw), int64(len(raw)))
	if err != nil {
		t.Fatal(err)
	}
	cp, err := r.box.Checkpoint(path)
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for _, x := range f.Tensors() {
		names = append(names, x.Name)
	}
	if len(names) != len(cp.Tensors) || len(names) == 0 {
		t.Errorf("%d tensors exported, %d saved", len(names), len(cp.Tensors))
	}
	for _, w := range cp.Tensors {
		if !slices.Contains(names, w.Name) {
			t.Errorf("tensor %s is missing in %v", w.Name, names)
		}
	}
}

// Files are encrypted to all recipients; what can't be one is refused by name.
func TestDownloadEncrypted(t *testing.T) {
	r := newRig(t, Options{})
	r.upload("tiny")
	_, run, path := r.trained()
	a, err := age.GenerateX25519Identity()
	if err != nil {
		t.Fatal(err)
	}
	b, err := age.GenerateHybridIdentity()
	if err != nil {
		t.Fatal(err)
	}
	seq := 4
	for _, k := range []struct {
		id  age.Identity
		key string
	}{{a, a.Recipient().String()}, {b, b.Recipient().String()}} {
		var saved wire.SaveWeightsExternalResponse
		r.want("save_weights_external", object{"model_id": run, "path": "e", "seq_id": seq, "age_encryption_recipients": []string{k.key}}, &saved)
		seq++
		var urls wire.ExternalWeightsURLsResponse
		r.must("GET", "/api/v1/training_runs/"+run+"/checkpoints/external_weights/e/external_weights_urls", nil, &urls)
		files := map[string][]byte{}
		for name, at := range urls.URLs {
			base, ok := strings.CutSuffix(name, ".age")
			if !ok {
				t.Fatalf("file %s isn't encrypted", name)
			}
			clear, err := age.Decrypt(r.plain("GET", at).Body, k.id)
			if err != nil {
				t.Fatal(err)
			}
			if files[base], err = io.ReadAll(clear); err != nil {
				t.Fatal(err)
			}
		}
		r.adapterIs(files, path)
	}
	refused := func(keys []string, words ...string) {
		t.Helper()
		w := r.future("save_weights_external", object{"model_id": run, "path": "e", "seq_id": seq, "age_encryption_recipients": keys})
		seq++
		for _, word := range append(words, `"category":"user"`) {
			if !strings.Contains(w.Body.String(), word) {
				t.Errorf("refusal lacks %s: %s", word, w.Body)
			}
		}
	}
	refused([]string{"nonsense"}, "nonsense")
	refused([]string{a.Recipient().String(), b.Recipient().String()}, "one export for each kind")
	refused(slices.Repeat([]string{a.Recipient().String()}, 11), "at most 10")
}

// A key becomes a token; a token that has expired, was tampered with, or whose key
// is gone is refused so that clients fetch another.
func TestToken(t *testing.T) {
	var ahead atomic.Int64
	r := newRig(t, Options{Keys: []string{"tml-test"}, Now: func() time.Time { return time.Now().Add(time.Duration(ahead.Load())) }})
	var tok wire.AuthTokenResponse
	r.must("POST", "/api/v1/auth/token", object{}, &tok)
	parts := strings.Split(tok.JWT, ".")
	if len(parts) != 3 || !strings.HasPrefix(tok.JWT, "eyJ") {
		t.Fatalf("token %q", tok.JWT)
	}
	raw, err := base64.RawURLEncoding.DecodeString(parts[1])
	if err != nil {
		t.Fatal(err)
	}
	var c claims
	if err := json.Unmarshal(raw, &c); err != nil || c.Subject == "" || c.Org == "" || c.Email == "" || c.Expires-c.Issued < 3600 {
		t.Errorf("claims %+v, %v", c, err)
	}
	list := func(key string) *httptest.ResponseRecorder {
		return r.do("GET", "/api/v1/training_runs", nil, "X-API-Key", key)
	}
	for _, good := range []string{tok.JWT, "tml-test"} {
		if w := list(good); w.Code != http.StatusOK {
			t.Errorf("key %q: %d %s", good, w.Code, w.Body)
		}
	}
	refused := func(h http.Handler, key string) {
		t.Helper()
		req := httptest.NewRequest("GET", "/api/v1/training_runs", nil)
		req.Header.Set("X-API-Key", key)
		w := httptest.NewRecorder()
		h.ServeHTTP(w, req)
		if w.Code != http.StatusUnauthorized || !strings.Contains(w.Header().Get("WWW-Authenticate"), `error="invalid_token"`) {
			t.Errorf("token %q: %d %v", key, w.Code, w.Header())
		}
	}
	none := base64.RawURLEncoding.EncodeToString([]byte(`{"alg":"none"}`))
	for _, bad := range []string{"eyJ", "eyJ.eyJ.x", tok.JWT + "A", parts[0] + "." + parts[1] + ".", none + "." + parts[1] + ".", none + "." + parts[1] + "." + parts[2]} {
		refused(r.h, bad)
	}
	refused(New(r.box, Options{Keys: []string{"tml-other"}}), tok.JWT)
	ahead.Store(int64(tokenLife + time.Second))
	refused(r.h, tok.JWT)
	if w := r.do("POST", "/api/v1/auth/token", object{}, "X-API-Key", "tml-wrong"); w.Code != http.StatusUnauthorized || w.Header().Get("WWW-Authenticate") != "" {
		t.Errorf("exchange of an unknown key: %d %v", w.Code, w.Header())
	}
}

// A loss that a user wrote gives what the same loss gives by name.
func TestCustomLoss(t *testing.T) {
	r := newRig(t, Options{})
	r.upload("tiny")
	session := r.session()
	byName, custom := r.lora(session, 0), r.lora(session, 1)
	node := func(op, name, target string, args ...any) object {
		if args == nil {
			args = []any{}
		}
		return object{"op": op, "name": name, "target": target, "args": args, "kwargs": object{}}
	}
	ref := func(name string) object { return object{"ref": name} }
	nll := []object{node("placeholder", "logprobs", "logprobs"), node("placeholder", "weights", "weights"),
		node("call_function", "mul", "operator.mul", ref("logprobs"), ref("weights")), node("call_method", "sum_1", "sum", ref("mul")),
		node("call_function", "neg", "operator.neg", ref("sum_1")),
		node("output", "output", "output", object{"tuple": []any{ref("neg"), object{"dict": object{"custom/nll:sum": ref("neg"), "custom/nll:mean": ref("neg")}}}})}
	create := func(seq int, nodes []object) object {
		return object{"session_id": session, "custom_loss_seq_id": seq, "name": "nll", "type": "create_custom_loss",
			"inputs": []object{{"name": "logprobs", "rank": 1}, {"name": "weights", "rank": 1}}, "graph": object{"format": 1, "nodes": nodes}}
	}
	var made wire.CreateCustomLossResponse
	r.want("create_custom_loss", create(0, nll), &made)
	var first, again wire.FutureResponse
	r.must("POST", "/api/v1/create_custom_loss", create(0, nll), &first)
	r.must("POST", "/api/v1/create_custom_loss", create(0, nll), &again)
	if first.RequestID != again.RequestID {
		t.Error("a repeat is another request")
	}
	if w := r.do("POST", "/api/v1/create_custom_loss", create(0, nll[1:])); w.Code != http.StatusBadRequest {
		t.Errorf("another loss of the same number: %d %s", w.Code, w.Body)
	}
	hostile := slices.Clone(nll)
	hostile[4] = node("call_function", "neg", "torch.linalg.svd", ref("sum_1"))
	w := r.future("create_custom_loss", create(1, hostile))
	for _, word := range []string{`"category":"user"`, "torch.linalg.svd", "plain function"} {
		if !strings.Contains(w.Body.String(), word) {
			t.Errorf("refusal lacks %s: %s", word, w.Body)
		}
	}

	call := func(run string, seq int64, change func(*wire.ForwardBackwardRequest)) *wire.ForwardBackwardOutput {
		t.Helper()
		w := r.future("forward_backward", batch(t, run, seq, change), asProtobuf...)
		out, err := wire.DecodeForwardBackwardOutput(w.Body.Bytes())
		if err != nil {
			t.Fatalf("%v: %s", err, w.Body)
		}
		return out
	}
	asCustom := func(req *wire.ForwardBackwardRequest) {
		req.LossFn, req.Config = "custom", map[string]wire.ConfigValue{"loss_id": {Text: made.LossID, IsText: true}}
	}
	want, got := call(byName, 1, nil), call(custom, 1, asCustom)
	for name, of := range map[string]float64{"loss:sum": 1, "custom/nll:sum": 1, "custom/nll:mean": 0.5, "surrogate_loss:sum": 1} {
		if w, g := want.Metrics["loss:sum"]*of, got.Metrics[name]; math.Abs(w-g) > 1e-5*math.Abs(w) {
			t.Errorf("%s is %v, want %v", name, g, w)
		}
	}
	step := object{"seq_id": 2, "adam_params": object{"learning_rate": 0.01}}
	for _, run := range []string{byName, custom} {
		step["model_id"] = run
		var opt wire.OptimStepResponse
		r.want("optim_step", step, &opt)
	}
	want, got = call(byName, 3, nil), call(custom, 3, nil)
	for i := range want.Outputs {
		if w, g := want.Outputs[i]["logprobs"].F32, got.Outputs[i]["logprobs"].F32; !slices.Equal(w, g) {
			t.Errorf("datum %d after a step: %v, want %v", i, g, w)
		}
	}
	for _, bad := range []func(*wire.ForwardBackwardRequest){
		func(q *wire.ForwardBackwardRequest) {
			asCustom(q)
			q.Config["loss_id"] = wire.ConfigValue{Text: "x", IsText: true}
		},
		func(q *wire.ForwardBackwardRequest) { asCustom(q); q.Config = nil },
		func(q *wire.ForwardBackwardRequest) { asCustom(q); delete(q.Data[0].Inputs, "weights") },
	} {
		w := r.future("forward_backward", batch(t, custom, 4+int64(len(got.Outputs)), bad), asProtobuf...)
		if !strings.Contains(w.Body.String(), `"category":"user"`) {
			t.Errorf("went well: %s", w.Body)
		}
		got.Outputs = append(got.Outputs, nil)
	}
}
