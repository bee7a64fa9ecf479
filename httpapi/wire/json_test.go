package wire

import (
	"encoding/json"
	"errors"
	"math"
	"net/url"
	"reflect"
	"strings"
	"testing"
	"time"
)

const sampleHead = `"sampling_session_id":"s","seq_id":0,"prompt":{"chunks":[{"type":"encoded_text","tokens":[1,2,3]}]}`

func decodeSample(t *testing.T, params string) (*SampleRequest, error) {
	t.Helper()
	r := &SampleRequest{}
	return r, DecodeJSON([]byte(`{`+sampleHead+`,"sampling_params":`+params+`}`), r)
}

func TestStopForms(t *testing.T) {
	for raw, want := range map[string]StopSpec{
		`{}`:                       {},
		`{"stop":null}`:            {},
		`{"stop":[]}`:              {Kind: StopAtNothing},
		`{"stop":"x"}`:             {Kind: StopAtStrings, Strings: []string{"x"}},
		`{"stop":["x","\n"]}`:      {Kind: StopAtStrings, Strings: []string{"x", "\n"}},
		`{"stop":[7, 2147483647]}`: {Kind: StopAtTokens, Tokens: []int32{7, math.MaxInt32}},
	} {
		r, err := decodeSample(t, raw)
		if err != nil || !reflect.DeepEqual(r.SamplingParams.Stop, want) {
			t.Errorf("%s: got %+v, %v", raw, r.SamplingParams.Stop, err)
		}
	}
	for raw, want := range map[string]string{
		`{"stop":["a",7]}`:      "sampling_params.stop[1]: want a string (all elements must be strings, or all token ids), got the number 7",
		`{"stop":[7,"a"]}`:      "sampling_params.stop[1]: want a token id (all elements must be ids, or all strings), got a string",
		`{"stop":[7,1.5]}`:      "sampling_params.stop[1]: want a token id",
		`{"stop":[true]}`:       "sampling_params.stop[0]: want a token id",
		`{"stop":[-1]}`:         "sampling_params.stop[0]: want a token id",
		`{"stop":[2147483648]}`: "sampling_params.stop[0]: want a token id",
		`{"stop":["a",null]}`:   "sampling_params.stop[1]: want a string",
		`{"stop":[""]}`:         "sampling_params.stop[0]: want a string that is not empty",
		`{"stop":7}`:            "sampling_params.stop: want a string, a list of strings or a list of token ids, got the number 7",
	} {
		_, err := decodeSample(t, raw)
		if err == nil || !strings.Contains(err.Error(), want) || !errors.Is(err, ErrMalformed) {
			t.Errorf("%s: got %v\nwant %s", raw, err, want)
		}
	}
}

func TestSamplingDefaults(t *testing.T) {
	r, err := decodeSample(t, `{}`)
	if err != nil {
		t.Fatal(err)
	}
	if want := (SamplingParams{Temperature: 1, TopK: -1, TopP: 1}); !reflect.DeepEqual(r.SamplingParams, want) || r.NumSamples != 1 {
		t.Fatalf("got %+v", r)
	}
	r, err = decodeSample(t, `{"seed":18446744073709551615,"max_tokens":3,"temperature":0}`)
	if err != nil || *r.SamplingParams.Seed != -1 || *r.SamplingParams.MaxTokens != 3 || r.SamplingParams.Temperature != 0 {
		t.Fatalf("got %+v, %v", r.SamplingParams, err)
	}
}

func TestSequenceNumbersSurvive(t *testing.T) {
	const big = int64(999_999_999_000_000_007)
	r := &SampleRequest{}
	body := strings.Replace(`{`+sampleHead+`,"sampling_params":{}}`, `"seq_id":0`, `"seq_id":999999999000000007`, 1)
	if err := DecodeJSON([]byte(body), r); err != nil || *r.SeqID != big {
		t.Fatalf("got %v, %v", r.SeqID, err)
	}
	if b, err := json.Marshal(r); err != nil || !strings.Contains(string(b), `"seq_id":999999999000000007`) {
		t.Fatalf("got %s, %v", b, err)
	}
}

func TestJSONErrors(t *testing.T) {
	for _, c := range []struct {
		into       func() any
		body, want string
	}{
		{newOf[SampleRequest], ``, "body is empty; want a JSON object"},
		{newOf[SampleRequest], `[1]`, "want an object, got a list"},
		{newOf[SampleRequest], `{"a":1} x`, "not valid JSON at byte 9"},
		{newOf[SampleRequest], `{` + sampleHead + `,"sampling_params":{"temperature":NaN}}`, "not valid JSON"},
		{newOf[SampleRequest], `{` + sampleHead + `}`, "sampling_params: missing"},
		{newOf[SampleRequest], `{` + sampleHead + `,"sampling_params":{"max_tokens":"3"}}`, "sampling_params.max_tokens: want an integer of 64 bits, got a string"},
		{newOf[SampleRequest], `{` + sampleHead + `,"sampling_params":{"max_tokens":0}}`, "sampling_params.max_tokens: want 1 or more, got 0"},
		{newOf[SampleRequest], `{` + sampleHead + `,"sampling_params":{"top_p":1.5}}`, "sampling_params.top_p: want more than 0 and at most 1"},
		{newOf[SampleRequest], `{` + sampleHead + `,"sampling_params":{"seed":1.5}}`, "sampling_params.seed: want an integer of 64 bits, got the number 1.5"},
		{newOf[SampleRequest], `{` + sampleHead + `,"sampling_params":{},"prompt_logprobs_last_n":3}`, "prompt_logprobs_last_n: want 1 to 2"},
		{newOf[SampleRequest], `{` + sampleHead + `,"sampling_params":{},"num_samples":0}`, "num_samples: want 1 or more"},
		{newOf[SampleRequest], `{` + sampleHead + `,"sampling_params":{},"target_prompt_logprobs":{"data":[1,2],"dtype":"int64","shape":[1,2]}}`, "target_prompt_logprobs: want int64 of shape [2,K]"},
		{newOf[SampleRequest], `{` + sampleHead + `,"sampling_params":{},"target_prompt_logprobs":{"data":[1,null],"dtype":"int64","shape":[2,1]}}`, "target_prompt_logprobs.data[1]: want an integer of 64 bits, got null"},
		{newOf[SampleRequest], `{"seq_id":1,"prompt":{"chunks":[]},"sampling_params":{}}`, "sampling_session_id: missing"},
		{newOf[SampleRequest], `{"sampling_session_id":"s","prompt":{"chunks":[]},"sampling_params":{}}`, "seq_id: missing"},
		{newOf[SampleRequest], `{"prompt":{"chunks":[{"type":"encoded_text","tokens":[1,2.5]}]}}`, "prompt.chunks[0].tokens[1]: want a token id, got the number 2.5"},
		{newOf[SampleRequest], `{"prompt":{"chunks":[{"type":"encoded_text","tokens":[[1,2],3]}]}}`, "prompt.chunks[0].tokens[0]: want a token id, got a list"},
		{newOf[SampleRequest], `{"prompt":{"chunks":[{"tokens":[1]}]}}`, "prompt.chunks[0].type: missing"},
		{newOf[SampleRequest], `{"prompt":{"chunks":[{"type":"encoded_text","tokens":[1]},{"type":"dmel","dmel":""}]}}`, `prompt.chunks[1]: chunk kind "dmel" is not supported`},
		{newOf[SampleRequest], `{"prompt":{}}`, "prompt.chunks: missing"},
		{newOf[OptimStepRequest], `{"model_id":"m","seq_id":1}`, "adam_params: missing"},
		{newOf[OptimStepRequest], `{"model_id":"m","seq_id":1,"adam_params":{"beta1":"x"}}`, "adam_params.beta1: want a number, got a string"},
		{newOf[OptimStepRequest], `{"model_id":"m","seq_id":1e3,"adam_params":{}}`, "seq_id: want an integer of 64 bits, got the number 1e3"},
		{newOf[OptimStepRequest], `{"model_id":7,"seq_id":1}`, "model_id: want a string, got the number 7"},
		{newOf[CreateModelRequest], `{"session_id":"s","model_seq_id":null}`, "model_seq_id: missing"},
		{newOf[CreateModelRequest], `{"session_id":"s","model_seq_id":0,"base_model":"b","lora_config":{"rank":-1}}`, "lora_config.rank: want 0 or more"},
		{newOf[CreateSessionRequest], `{"tags":["a",1]}`, "tags[1]: want a string, got the number 1"},
		{newOf[CreateSessionRequest], `{"tags":["a",null]}`, "tags[1]: want a string, got null"},
		{newOf[SaveWeightsRequest], `{"model_id":"m","seq_id":1,"path":"a/b"}`, `path: checkpoint name "a/b" contains "/"`},
		{newOf[SaveWeightsRequest], `{"model_id":"m","seq_id":1,"path":"a","ttl_seconds":1}`, "ttl_seconds: want 3600"},
		{newOf[SaveWeightsForSamplerRequest], `{"model_id":"m","seq_id":1}`, "path: missing"},
		{newOf[SaveWeightsForSamplerRequest], `{"model_id":"m","seq_id":1,"path":"a","sampling_session_seq_id":0}`, "path: sent beside"},
		{newOf[LoadWeightsRequest], `{"path":"tinker://r/weights/a","optimizer":false}`, "model_id: missing"},
		{newOf[LoadWeightsRequest], `{"session_id":"s","model_seq_id":0,"path":"tinker://r/weights/../a","optimizer":false}`, "path: checkpoint path"},
		{newOf[LoadWeightsRequest], `{"session_id":"s","model_seq_id":0,"path":"tinker://r/weights/a"}`, "optimizer: missing"},
		{newOf[SetTTLRequest], `{}`, "ttl_seconds: missing"},
		{newOf[SetTTLRequest], `{"ttl_seconds":"x"}`, "ttl_seconds: want an integer or null, got a string"},
		{newOf[CreateCustomLossRequest], `{"session_id":"s","custom_loss_seq_id":0,"name":"n","inputs":[{"name":"a","rank":1},{"name":"b"}]}`, "inputs[1].rank: missing"},
		{newOf[SessionSearchRequest], `{"owner":{"type":"user"}}`, "owner.owner_urns: missing"},
		{newOf[FinishSessionRequest], `{"reason":{"type":"bored"}}`, `reason.type: want success, errored or interrupted, got "bored"`},
	} {
		err := DecodeJSON([]byte(c.body), c.into())
		if err == nil || !strings.Contains(err.Error(), "decode request: "+c.want) || !errors.Is(err, ErrMalformed) {
			t.Errorf("%s:\n got %v\nwant %s", c.body, err, c.want)
		}
	}
	var unsupported *UnsupportedChunkError
	err := DecodeJSON([]byte(`{"prompt":{"chunks":[{"type":"image","data":""}]}}`), &SampleRequest{})
	if !errors.As(err, &unsupported) || *unsupported != (UnsupportedChunkError{Datum: -1, Kind: "image"}) {
		t.Errorf("got %v", err)
	}
}

func TestNullableTTL(t *testing.T) {
	for body, want := range map[string]Nullable[int64]{
		`{"ttl_seconds":null}`: {Present: true, Null: true},
		`{"ttl_seconds":7200}`: {Present: true, Value: 7200},
	} {
		r := &SetTTLRequest{}
		if err := DecodeJSON([]byte(body), r); err != nil || r.TTLSeconds != want {
			t.Errorf("%s: got %+v, %v", body, r, err)
		}
	}
}

func TestPromptConcatenates(t *testing.T) {
	r := &SampleRequest{}
	err := DecodeJSON([]byte(`{"sampling_session_id":"s","seq_id":1,"sampling_params":{},"prompt":{"chunks":[
		{"type":"encoded_text","tokens":[1, 2 ]},{"tokens":[],"type":"encoded_text"},{"type":"encoded_text","tokens":[3]}]}}`), r)
	if err != nil || !reflect.DeepEqual(r.Prompt, Prompt{Tokens: []int32{1, 2, 3}, Chunks: 3}) {
		t.Fatalf("got %+v, %v", r.Prompt, err)
	}
}

func TestSparseTargetsKeepTheirLayout(t *testing.T) {
	r := &SampleRequest{}
	err := DecodeJSON([]byte(`{`+sampleHead+`,"sampling_params":{},"target_prompt_logprobs":{"data":[5,6],"dtype":"int64",
		"shape":[2,4],"sparse_crow_indices":[0,1,2],"sparse_col_indices":[3,0]}}`), r)
	want := &Tensor{DType: Int64, Shape: []int{2, 4}, I64: []int64{5, 6}, CSR: &CSR{Crow: []int64{0, 1, 2}, Col: []int64{3, 0}}}
	if err != nil || !reflect.DeepEqual(r.TargetPromptLogprobs, want) {
		t.Fatalf("got %+v, %v", r.TargetPromptLogprobs, err)
	}
}

func TestAnswersAreValidForTheClient(t *testing.T) {
	when := Time{time.Date(2026, 1, 2, 4, 4, 5, 6000, time.FixedZone("", 3600))}
	for want, v := range map[string]any{
		`{"metrics":{"grad_norm":0.25}}`: OptimStepResponse{Metrics: FiniteMetrics{"grad_norm": 0.25, "lr": math.NaN(), "x": math.Inf(-1)}},
		`{}`:                             OptimStepResponse{},
		`{"completions":[],"cursor":0}`:  RetrieveFuturesResponse{},
		`{"data":[],"sessions":{},"cost_data_through":null}`:           BillingEventsResponse{},
		`{"urls":{},"expires":"2026-01-02T03:04:05.000006Z"}`:          ExternalWeightsURLsResponse{Expires: when},
		`{"type":"try_again","request_id":"r","queue_state":"active"}`: TryAgainResponse{RequestID: "r", QueueState: QueueActive},
		`{"status":"complete_metadata","response_payload_size":9}`:     MetadataResponse{ResponsePayloadSize: 9},
		`{"status":"accepted"}`:                                        TelemetryResponse{},
		`{"error":"x","category":"user"}`:                              FailedResponse{Error: "x", Category: CategoryUser},
		`{"supported_models":[]}`:                                      CapabilitiesResponse{},
		`{"parallel_fwdbwd_chunks":false}`:                             ConfigResponse{ParallelFwdbwdChunks: new(bool)},
	} {
		if b, err := json.Marshal(v); err != nil || string(b) != want {
			t.Errorf("got %s (%v), want %s", b, err, want)
		}
	}
	if got := (FiniteMetrics{"b": math.NaN(), "a": math.Inf(1), "c": 1}).Dropped(); !reflect.DeepEqual(got, []string{"a", "b"}) {
		t.Errorf("dropped %v", got)
	}
}

func TestMetadataBecomesText(t *testing.T) {
	var m Metadata
	if err := json.Unmarshal([]byte(`{"a":"b","n":1.50,"l":[1, 2],"t":true}`), &m); err != nil {
		t.Fatal(err)
	}
	if want := (Metadata{"a": "b", "n": "1.50", "l": "[1,2]", "t": "true"}); !reflect.DeepEqual(m, want) {
		t.Fatalf("got %v", m)
	}
}

func TestParsePage(t *testing.T) {
	for query, want := range map[string]Page{
		"":                 {Limit: 20, AccessScope: "owned"},
		"limit=5&offset=7": {Limit: 5, Offset: 7, AccessScope: "owned"},
		"limit=99999&access_scope=accessible&project_id=p": {Limit: MaxPage, AccessScope: "accessible", ProjectID: "p"},
	} {
		q, _ := url.ParseQuery(query)
		if got, err := ParsePage(q, 20); err != nil || got != want {
			t.Errorf("%q: got %+v, %v", query, got, err)
		}
	}
	for _, query := range []string{"limit=0", "limit=x", "offset=-1", "offset=99999999999", "access_scope=all"} {
		q, _ := url.ParseQuery(query)
		if _, err := ParsePage(q, 20); !errors.Is(err, ErrMalformed) {
			t.Errorf("%q: got %v", query, err)
		}
	}
}

func TestParsePath(t *testing.T) {
	for s, want := range map[string]Path{
		"tinker://sess-1:train:0/weights/step-1":                        {"sess-1:train:0", KindWeights, "step-1"},
		"tinker://a/sampler_weights/000010":                             {"a", KindSamplerWeights, "000010"},
		"tinker://a/external_weights/A.b_c-" + strings.Repeat("x", 200): {"a", KindExternalWeights, "A.b_c-" + strings.Repeat("x", 200)},
	} {
		got, err := ParsePath(s)
		if err != nil || got != want || got.String() != s {
			t.Errorf("%s: got %+v, %v", s, got, err)
		}
	}
	for _, s := range []string{
		"", "tinker://", "tinker://a/weights", "tinker://a/weights/", "tinker:///weights/x", "tinker://a/weights/x/y",
		"tinker://a/weights/..", "tinker://a/weights/.", "tinker://../weights/x", "tinker://a/weights/x..y", "tinker://a/other/x",
		"tinker://a/weights/x\x00", "tinker://a/weights/x y", "tinker://a/weights/ü", "tinker://a/weights/x:y", "file://a/weights/x",
		"tinker://a/weights/" + strings.Repeat("x", MaxName+1), "tinker://a/weights/x\\y",
	} {
		if got, err := ParsePath(s); err == nil || !errors.Is(err, ErrMalformed) {
			t.Errorf("%q: got %+v, %v", s, got, err)
		}
	}
	if KindSamplerWeights.Type() != "sampler" || KindWeights.Type() != "training" || KindExternalWeights.Type() != "external" {
		t.Error("types of kinds")
	}
}
