package httpapi

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"
	"time"

	"smolgym/appliance"
	"smolgym/httpapi/wire"
	"smolgym/model/golden"
)

// rig is a real appliance in a throw-away folder behind the handler.
type rig struct {
	t   *testing.T
	box *appliance.Appliance
	h   http.Handler
}

func newRig(t *testing.T, opt Options) *rig {
	t.Helper()
	return newRigWith(t, opt, appliance.Options{})
}

// newRigWith is newRig with options of the appliance; those of newRig win.
func newRigWith(t *testing.T, opt Options, own appliance.Options) *rig {
	t.Helper()
	log := slog.New(slog.NewTextHandler(io.Discard, nil))
	own.Data, own.Device, own.Context, own.Log = t.TempDir(), "reference", 32, log
	box, err := appliance.Open(own)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := box.Close(); err != nil {
			t.Error(err)
		}
	})
	opt.Log = log
	return &rig{t, box, New(box, opt)}
}

// do sends a request with a key; a body that isn't bytes is sent as JSON.
func (r *rig) do(method, path string, body any, headers ...string) *httptest.ResponseRecorder {
	r.t.Helper()
	var raw []byte
	switch b := body.(type) {
	case nil:
	case []byte:
		raw = b
	case string:
		raw = []byte(b)
	default:
		var err error
		if raw, err = json.Marshal(b); err != nil {
			r.t.Fatal(err)
		}
	}
	req := httptest.NewRequest(method, path, bytes.NewReader(raw))
	req.Header.Set("X-API-Key", "tml-test")
	req.Header.Set("Content-Type", "application/json")
	for i := 0; i < len(headers); i += 2 {
		req.Header.Set(headers[i], headers[i+1])
	}
	w := httptest.NewRecorder()
	r.h.ServeHTTP(w, req)
	return w
}

// must sends a request that has to go well and reads its answer.
func (r *rig) must(method, path string, body, into any, headers ...string) {
	r.t.Helper()
	w := r.do(method, path, body, headers...)
	if w.Code != http.StatusOK {
		r.t.Fatalf("%s %s: %d %s", method, path, w.Code, w.Body)
	}
	if into != nil {
		if err := json.Unmarshal(w.Body.Bytes(), into); err != nil {
			r.t.Fatalf("%s %s: %v in %s", method, path, err, w.Body)
		}
	}
}

type object map[string]any

// poll fetches the result of a request.
func (r *rig) poll(id string) *httptest.ResponseRecorder {
	r.t.Helper()
	for deadline := time.Now().Add(time.Minute); time.Now().Before(deadline); {
		w := r.do("POST", "/api/v1/retrieve_future", object{"request_id": id, "allow_metadata_only": false})
		if w.Code != http.StatusRequestTimeout {
			return w
		}
	}
	r.t.Fatal("no result after a minute")
	return nil
}

// future sends a request and fetches its result.
func (r *rig) future(path string, body any, headers ...string) *httptest.ResponseRecorder {
	r.t.Helper()
	var f wire.FutureResponse
	r.must("POST", "/api/v1/"+path, body, &f, headers...)
	w := r.poll(f.RequestID)
	if w.Code != http.StatusOK {
		r.t.Fatalf("%s: result: %d %s", path, w.Code, w.Body)
	}
	return w
}

// want is future for a result in JSON that has to be a success.
func (r *rig) want(path string, body, into any) {
	r.t.Helper()
	w := r.future(path, body)
	if strings.Contains(w.Body.String(), `"error"`) {
		r.t.Fatalf("%s failed: %s", path, w.Body)
	}
	if err := json.Unmarshal(w.Body.Bytes(), into); err != nil {
		r.t.Fatalf("%s: %v in %s", path, err, w.Body)
	}
}

func tinyModel(t *testing.T) map[string][]byte {
	t.Helper()
	return golden.Files(t, golden.Path(t, "steps_llama"), "config.json", "model.safetensors")
}

func announce(name string, files map[string][]byte) UploadRequest {
	req := UploadRequest{Name: name}
	for _, path := range slices.Sorted(maps.Keys(files)) {
		sum := sha256.Sum256(files[path])
		req.Files = append(req.Files, File{path, int64(len(files[path])), hex.EncodeToString(sum[:])})
	}
	return req
}

// upload adds the tiny model under a name.
func (r *rig) upload(name string) Model {
	r.t.Helper()
	files := tinyModel(r.t)
	var u Upload
	r.must("POST", "/smolgym/v1/uploads", announce(name, files), &u)
	for _, f := range u.Files {
		r.must("PUT", fmt.Sprintf("/smolgym/v1/uploads/%s/files/%s?offset=%d", u.ID, f.Path, f.Have), files[f.Path][f.Have:], nil)
	}
	var m Model
	r.must("POST", "/smolgym/v1/uploads/"+u.ID+"/commit", nil, &m)
	return m
}

// session begins a session.
func (r *rig) session() string {
	r.t.Helper()
	var s wire.CreateSessionResponse
	r.must("POST", "/api/v1/create_session", object{"tags": []string{}, "user_metadata": object{"k": "v", "n": 3}, "sdk_version": "0.38.0", "type": "create_session"}, &s)
	return s.SessionID
}

// lora creates a run of the tiny model.
func (r *rig) lora(session string, n int) string {
	r.t.Helper()
	var m wire.CreateModelResponse
	r.want("create_model", object{"session_id": session, "model_seq_id": n, "base_model": "tiny",
		"lora_config": object{"rank": 4, "seed": 1, "train_unembed": true, "train_mlp": true, "train_attn": true}, "type": "create_model"}, &m)
	return m.ModelID
}

// batch is a forward_backward request.
func batch(t *testing.T, run string, seq int64, change func(*wire.ForwardBackwardRequest)) []byte {
	t.Helper()
	req := &wire.ForwardBackwardRequest{ModelID: run, SeqID: seq, LossFn: "cross_entropy"}
	for k := range 2 {
		d := wire.Datum{Chunks: []wire.ChunkKind{wire.TextChunk}, Inputs: map[string]wire.Tensor{}}
		var targets []int64
		var weights []float32
		for i := range 5 + k {
			d.Tokens = append(d.Tokens, int32(i*7%61))
			targets = append(targets, int64((i+1)*7%61))
			weights = append(weights, 1)
		}
		d.Inputs["target_tokens"], d.Inputs["weights"] = wire.IntTensor(targets), wire.FloatTensor(weights)
		req.Data = append(req.Data, d)
	}
	if change != nil {
		change(req)
	}
	raw, err := wire.EncodeForwardBackwardRequest(req)
	if err != nil {
		t.Fatal(err)
	}
	return raw
}

var asProtobuf = []string{"Content-Type", protobuf}

// The whole loop over HTTP, in the forms that the SDK sends.
func TestLoop(t *testing.T) {
	r := newRig(t, Options{Version: "test"})
	if m := r.upload("tiny"); m.Name != "local/tiny" || m.Family != "llama" {
		t.Fatalf("model %+v", m)
	}
	var config map[string]any
	r.must("POST", "/api/v1/client/config", object{"sdk_version": "0.38.0"}, &config)
	want := map[string]any{"parallel_fwdbwd_chunks": false, "proto_compress_fwdbwd": true, "sample_use_retrieve_futures": true, "sample_join_sampling_session": true}
	for k, v := range want {
		if config[k] != v {
			t.Errorf("config: %s is %v, want %v", k, config[k], v)
		}
	}
	r.must("POST", "/api/v1/client/dynamic_config", object{"sdk_version": "0.38.0"}, &config)
	if config["sample_cancel_enabled"] != true {
		t.Errorf("dynamic config %v", config)
	}
	var caps wire.CapabilitiesResponse
	r.must("GET", "/api/v1/get_server_capabilities", nil, &caps)
	if len(caps.SupportedModels) != 1 || caps.SupportedModels[0] != (wire.SupportedModel{ModelName: "local/tiny", MaxContextLength: 32, Trainable: true, Sampleable: true}) {
		t.Errorf("capabilities %+v", caps)
	}
	session := r.session()
	r.must("POST", "/api/v1/session_heartbeat", object{"session_id": session, "type": "session_heartbeat"}, nil)
	run := r.lora(session, 0)
	if run != session+":train:0" {
		t.Errorf("run %q", run)
	}
	var info wire.GetInfoResponse
	r.must("POST", "/api/v1/get_info", object{"model_id": run, "type": "get_info"}, &info)
	if info.ModelData.ModelName != "local/tiny" || info.ModelData.TokenizerID != "local/tiny" || !info.IsLora || *info.LoraRank != 4 {
		t.Errorf("info %+v", info)
	}

	w := r.future("forward_backward", batch(t, run, 1, nil), asProtobuf...)
	if got := w.Header().Get("Content-Type"); got != protobuf {
		t.Fatalf("content type %q: %s", got, w.Body)
	}
	out, err := wire.DecodeForwardBackwardOutput(w.Body.Bytes())
	if err != nil {
		t.Fatal(err)
	}
	if len(out.Outputs) != 2 || len(out.Outputs[1]["logprobs"].F32) != 6 || out.Metrics["loss:sum"] <= 0 || out.Metrics["supervised_tokens:sum"] != 11 {
		t.Errorf("output %+v", out)
	}
	var opt wire.OptimStepResponse
	r.want("optim_step", object{"model_id": run, "seq_id": 2, "adam_params": object{"learning_rate": 0.01, "beta1": 0.9, "beta2": 0.95, "eps": 1e-12, "weight_decay": 0, "grad_clip_norm": 0}, "type": "optim_step"}, &opt)
	if opt.Metrics["grad_norm"] <= 0 {
		t.Errorf("metrics %v", opt.Metrics)
	}
	var save wire.SaveWeightsResponse
	r.want("save_weights", object{"model_id": run, "path": "step-1", "seq_id": 3, "overwrite": false, "user_metadata": object{"a": "b"}, "type": "save_weights"}, &save)
	if save.Path != "tinker://"+run+"/weights/step-1" {
		t.Errorf("path %q", save.Path)
	}
	r.samplers(session, run)
	r.lists(session, run, save.Path)
	r.must("POST", "/api/v1/sessions/"+session+"/finish", object{"reason": object{"type": "success"}, "detail": nil}, nil)
	if w := r.do("POST", "/api/v1/session_heartbeat", object{"session_id": session}); w.Code != http.StatusGone {
		t.Errorf("heartbeat of a finished session: %d %s", w.Code, w.Body)
	}
}

func (r *rig) samplers(session, run string) {
	t := r.t
	t.Helper()
	var named wire.SaveWeightsForSamplerResponse
	r.want("save_weights_for_sampler", object{"model_id": run, "path": "s", "seq_id": 4, "kind": "snapshot", "type": "save_weights_for_sampler"}, &named)
	var unnamed wire.SaveWeightsForSamplerResponse
	r.want("save_weights_for_sampler", object{"model_id": run, "sampling_session_seq_id": 0, "seq_id": 5, "kind": "snapshot", "type": "save_weights_for_sampler"}, &unnamed)
	var made wire.CreateSamplingSessionResponse
	r.must("POST", "/api/v1/create_sampling_session", object{"session_id": session, "sampling_session_seq_id": 1, "model_path": named.Path, "type": "create_sampling_session"}, &made)
	var desc wire.SamplerResponse
	r.must("GET", "/api/v1/samplers/"+made.SamplingSessionID, nil, &desc)
	if desc.BaseModel != "local/tiny" || desc.ModelPath != named.Path {
		t.Errorf("sampler %+v", desc)
	}
	var tokens []int32
	for _, id := range []string{made.SamplingSessionID, unnamed.SamplingSessionID} {
		body := object{"sampling_session_id": id, "seq_id": int64(3e18), "num_samples": 2, "prompt": object{"chunks": []object{{"type": "encoded_text", "tokens": []int{1, 2}}, {"type": "encoded_text", "tokens": []int{3}}}},
			"sampling_params": object{"max_tokens": 4, "seed": 5, "temperature": 1.0, "top_k": -1, "top_p": 1.0, "stop": []string{}},
			"prompt_logprobs": true, "topk_prompt_logprobs": 2, "topk_sample_logprobs": 3, "prompt_alt_tokens_k": 0, "record_stability_info": false, "type": "sample"}
		var f wire.FutureResponse
		r.must("POST", "/api/v1/asample", body, &f)
		if len(f.SampleSequenceIDs) != 2 || f.SampleSequenceIDs[0] == f.SampleSequenceIDs[1] {
			t.Errorf("sequence ids %v", f.SampleSequenceIDs)
		}
		res, err := wire.DecodeSampleResponse(r.poll(f.RequestID).Body.Bytes())
		if err != nil {
			t.Fatal(err)
		}
		q := res.Sequences[0]
		if len(res.Sequences) != 2 || len(q.Tokens) != 4 || len(q.Logprobs) != 4 || q.StopReason != wire.StopLength || len(res.PromptLogprobs) != 3 ||
			res.TopkPromptLogprobs.Length != 3 || q.TopkLogprobs.K != 3 {
			t.Errorf("samples %+v", res)
		}
		if tokens == nil {
			tokens = q.Tokens
		} else if !slices.Equal(tokens, q.Tokens) {
			t.Error("the named and the unnamed sampler of the same weights differ")
		}
	}
}

func (r *rig) lists(session, run, path string) {
	t := r.t
	t.Helper()
	var runs wire.TrainingRunsResponse
	r.must("GET", "/api/v1/training_runs?limit=20&offset=0&access_scope=owned", nil, &runs)
	if runs.Cursor.TotalCount != 1 || len(runs.TrainingRuns) != 1 || runs.TrainingRuns[0].TrainingRunID != run || runs.TrainingRuns[0].LastCheckpoint.TinkerPath != path {
		t.Errorf("runs %+v", runs)
	}
	var one wire.TrainingRun
	r.must("GET", "/api/v1/training_runs/"+run, nil, &one)
	if one.BaseModel != "local/tiny" || *one.LoraRank != 4 {
		t.Errorf("run %+v", one)
	}
	var cps wire.CheckpointsResponse
	r.must("GET", "/api/v1/training_runs/"+run+"/checkpoints", nil, &cps)
	if len(cps.Checkpoints) != 2 || cps.Checkpoints[0].CheckpointID != "sampler_weights/s" || cps.Checkpoints[1].UserMetadata["a"] != "b" {
		t.Errorf("checkpoints %+v", cps)
	}
	r.must("GET", "/api/v1/checkpoints?limit=1", nil, &cps)
	if cps.Cursor.TotalCount != 2 || len(cps.Checkpoints) != 1 {
		t.Errorf("checkpoints %+v", cps)
	}
	var weights wire.WeightsInfoResponse
	r.must("POST", "/api/v1/weights_info", object{"tinker_path": path}, &weights)
	if weights.BaseModel != "local/tiny" || *weights.LoraRank != 4 || !*weights.TrainMLP {
		t.Errorf("weights %+v", weights)
	}
	at := "/api/v1/training_runs/" + run + "/checkpoints/weights/step-1"
	r.must("PUT", at+"/ttl", object{"ttl_seconds": 3600}, nil)
	r.must("PUT", at+"/ttl", `{"ttl_seconds": null}`, nil)
	r.must("POST", at+"/publish", nil, nil)
	r.must("DELETE", at+"/publish", nil, nil)
	r.must("DELETE", at, nil, nil)
	r.must("DELETE", at, nil, nil)
	var desc wire.SessionResponse
	r.must("GET", "/api/v1/sessions/"+session, nil, &desc)
	if !slices.Equal(desc.TrainingRunIDs, []string{run}) || len(desc.SamplerIDs) != 2 || desc.UserMetadata["n"] != "3" {
		t.Errorf("session %+v", desc)
	}
	var stats Stats
	r.must("GET", "/smolgym/v1/stats", nil, &stats)
	if stats.OptimSteps != 1 || stats.SampledTokens != 16 {
		t.Errorf("stats %+v", stats)
	}
}
