package wire

import (
	"encoding/base64"
	"encoding/json"
	"errors"
	"reflect"
	"slices"
	"strings"
	"testing"

	"google.golang.org/protobuf/encoding/protowire"
)

// capture is one recorded request and response of the SDK.
type capture struct {
	Method       string          `json:"method"`
	Path         string          `json:"path"`
	RequestBody  json.RawMessage `json:"request_body"`
	Status       int             `json:"status"`
	ResponseBody json.RawMessage `json:"response_body"`
}

func loadCaptures(t testing.TB) map[string]capture {
	t.Helper()
	var c map[string]capture
	if err := json.Unmarshal(readGolden(t, "captures.json"), &c); err != nil {
		t.Fatal(err)
	}
	return c
}

// bodies gives the request and response type of each captured route; nil has no JSON body of ours.
var bodies = map[string][2]func() any{
	"asample":                  {newOf[SampleRequest], newOf[FutureResponse]},
	"audit":                    {nil, newOf[AuditResponse]},
	"auth/token":               {nil, newOf[AuthTokenResponse]},
	"billing/events":           {nil, newOf[BillingEventsResponse]},
	"billing/storage":          {nil, newOf[BillingStorageResponse]},
	"checkpoints":              {nil, newOf[CheckpointsResponse]},
	"client/config":            {newOf[ConfigRequest], newOf[ConfigResponse]},
	"client/dynamic_config":    {newOf[ConfigRequest], newOf[DynamicConfigResponse]},
	"copy_weights":             {newOf[CopyWeightsRequest], newOf[CopyWeightsResponse]},
	"create_custom_loss":       {newOf[CreateCustomLossRequest], newOf[FutureResponse]},
	"create_model":             {newOf[CreateModelRequest], newOf[FutureResponse]},
	"create_sampling_session":  {newOf[CreateSamplingSessionRequest], newOf[CreateSamplingSessionResponse]},
	"create_session":           {newOf[CreateSessionRequest], newOf[CreateSessionResponse]},
	"delete":                   {nil, nil},
	"external_weights_urls":    {nil, newOf[ExternalWeightsURLsResponse]},
	"finish":                   {newOf[FinishSessionRequest], nil},
	"forward_backward":         {nil, newOf[FutureResponse]},
	"get_info":                 {newOf[GetInfoRequest], newOf[GetInfoResponse]},
	"get_server_capabilities":  {nil, newOf[CapabilitiesResponse]},
	"join_sampling_session":    {newOf[JoinSamplingSessionRequest], newOf[JoinSamplingSessionResponse]},
	"load_weights":             {newOf[LoadWeightsRequest], newOf[FutureResponse]},
	"optim_step":               {newOf[OptimStepRequest], newOf[FutureResponse]},
	"project":                  {newOf[AssignProjectRequest], nil},
	"publish":                  {nil, nil},
	"retrieve_futures":         {newOf[RetrieveFuturesRequest], newOf[RetrieveFuturesResponse]},
	"run":                      {nil, newOf[TrainingRun]},
	"runs":                     {nil, newOf[TrainingRunsResponse]},
	"samplers":                 {nil, newOf[SamplerResponse]},
	"save_weights":             {newOf[SaveWeightsRequest], newOf[FutureResponse]},
	"save_weights_external":    {newOf[SaveWeightsExternalRequest], newOf[FutureResponse]},
	"save_weights_for_sampler": {newOf[SaveWeightsForSamplerRequest], newOf[FutureResponse]},
	"search":                   {newOf[SessionSearchRequest], newOf[SessionSearchResponse]},
	"session":                  {nil, newOf[SessionResponse]},
	"session_heartbeat":        {newOf[HeartbeatRequest], newOf[HeartbeatResponse]},
	"sessions":                 {nil, newOf[SessionsResponse]},
	"telemetry":                {newOf[TelemetryRequest], newOf[TelemetryResponse]},
	"trace_export":             {nil, newOf[TraceExportResponse]},
	"ttl":                      {newOf[SetTTLRequest], nil},
	"weights_info":             {newOf[WeightsInfoRequest], newOf[WeightsInfoResponse]},

	"retrieve_future create_model":     {newOf[RetrieveFutureRequest], newOf[CreateModelResponse]},
	"retrieve_future optim_step":       {newOf[RetrieveFutureRequest], newOf[OptimStepResponse]},
	"retrieve_future metadata_only":    {newOf[RetrieveFutureRequest], newOf[MetadataResponse]},
	"retrieve_future sample":           {newOf[RetrieveFutureRequest], nil},
	"retrieve_future forward_backward": {newOf[RetrieveFutureRequest], nil},
}

func newOf[T any]() any { return new(T) }

// route names the row of bodies that a capture belongs to.
func route(name string, c capture) string {
	path, _, _ := strings.Cut(strings.TrimPrefix(c.Path, "/api/v1/"), "?")
	last := path[strings.LastIndex(path, "/")+1:]
	switch {
	case path == "retrieve_future":
		return path + " " + strings.TrimPrefix(name, "retrieve_future_")
	case path == "training_runs":
		return "runs"
	case c.Method == "DELETE":
		return "delete"
	case strings.HasPrefix(path, "billing"):
		return map[string]string{"events": "billing/events", "current": "billing/storage"}[last]
	case strings.HasPrefix(path, "samplers/"):
		return "samplers"
	case strings.HasPrefix(path, "training_runs/") && strings.Count(path, "/") == 1:
		return "run"
	case strings.HasPrefix(path, "sessions/") && strings.Count(path, "/") == 1 && last != "search":
		return "session"
	case strings.HasPrefix(path, "client/"), strings.HasPrefix(path, "auth/"):
		return path
	}
	return last
}

// TestCapturesRoundTrip reads every recorded body and writes it again. Nothing sent may be lost but the "type" of
// requests, and nothing may be added but what a comment in the structs calls a default.
func TestCapturesRoundTrip(t *testing.T) {
	seen := map[string]bool{}
	for name, c := range loadCaptures(t) {
		row := route(name, c)
		types, ok := bodies[row]
		if !ok {
			t.Errorf("%s: no body types for route %q", name, row)
			continue
		}
		seen[row] = true
		if types[0] != nil {
			v := types[0]()
			if err := DecodeJSON(c.RequestBody, v); err != nil {
				t.Errorf("%s: request: %v", name, err)
				continue
			}
			compareJSON(t, name+": request", v, c.RequestBody)
		}
		if types[1] != nil {
			v := types[1]()
			if err := DecodeJSON(c.ResponseBody, v); err != nil {
				t.Errorf("%s: response: %v", name, err)
				continue
			}
			compareJSON(t, name+": response", v, c.ResponseBody)
		}
	}
	for row := range bodies {
		if !seen[row] {
			t.Errorf("no capture reached route %q", row)
		}
	}
}

func compareJSON(t *testing.T, name string, got any, raw []byte) {
	t.Helper()
	b, err := json.Marshal(got)
	if err != nil {
		t.Fatalf("%s: %v", name, err)
	}
	g, w := normal(t, b), normal(t, raw)
	if !reflect.DeepEqual(g, w) {
		t.Errorf("%s:\n got %s\nwant %s", name, b, raw)
	}
}

// normal drops what may differ: nulls, which mean absent, and "type" at the top, which the route says already.
func normal(t *testing.T, raw []byte) any {
	t.Helper()
	dec := json.NewDecoder(strings.NewReader(string(raw)))
	dec.UseNumber()
	var v any
	if err := dec.Decode(&v); err != nil {
		t.Fatal(err)
	}
	if m, ok := v.(map[string]any); ok {
		delete(m, "type")
	}
	return denull(v)
}

func denull(v any) any {
	switch v := v.(type) {
	case map[string]any:
		for k, x := range v {
			if x == nil {
				delete(v, k)
			} else {
				v[k] = denull(x)
			}
		}
	case []any:
		for i := range v {
			v[i] = denull(v[i])
		}
	case json.Number:
		if f, err := v.Float64(); err == nil {
			return f // 1.0 and 1 are the same number
		}
	}
	return v
}

// TestCapturedProtobufResponses reads and rewrites the recorded binary answers.
func TestCapturedProtobufResponses(t *testing.T) {
	captures := loadCaptures(t)
	binary := func(name string) []byte {
		var body struct {
			Bytes string `json:"_bytes_b64"`
		}
		if err := json.Unmarshal(captures[name].ResponseBody, &body); err != nil || body.Bytes == "" {
			t.Fatalf("%s: no bytes (%v)", name, err)
		}
		b, err := base64.StdEncoding.DecodeString(body.Bytes)
		if err != nil {
			t.Fatal(err)
		}
		return b
	}
	want := binary("retrieve_future_forward_backward")
	out, err := DecodeForwardBackwardOutput(want)
	if err != nil {
		t.Fatal(err)
	}
	half := FloatTensor([]float32{-0.5, -0.5, -0.5})
	if len(out.Outputs) != 2 || !reflect.DeepEqual(out.Outputs[1]["logprobs"], half) || out.Metrics["loss:sum"] != 1.5 {
		t.Fatalf("got %+v", out)
	}
	if got, err := EncodeForwardBackwardOutput(out); err != nil || !slices.Equal(got, want) {
		t.Fatalf("re-encoded %x (%v), want %x", got, err, want)
	}
	want = binary("retrieve_future_sample")
	r, err := DecodeSampleResponse(want)
	if err != nil {
		t.Fatal(err)
	}
	if len(r.Sequences) != 2 || r.Sequences[0].StopReason != StopLength || !slices.Equal(r.Sequences[1].Tokens, []int32{5, 6, 7}) {
		t.Fatalf("got %+v", r)
	}
	if got, err := EncodeSampleResponse(r); err != nil || !slices.Equal(got, want) {
		t.Fatalf("re-encoded %x (%v), want %x", got, err, want)
	}
}

// protoJSON is the recorded form of a forward_backward request, which this file turns into bytes by itself.
type protoJSON struct {
	ModelID string `json:"model_id"`
	SeqID   int64  `json:"seq_id"`
	Data    []struct {
		ModelInput []struct {
			Text *struct {
				Tokens []byte `json:"tokens"`
			} `json:"encoded_text"`
			Image *struct {
				Data   []byte `json:"data"`
				Format string `json:"format"`
			} `json:"image"`
		} `json:"model_input"`
		Inputs map[string]struct {
			Dense []byte `json:"dense"`
			CSR   *struct {
				Values []byte `json:"values"`
				Crow   []byte `json:"crow_indices"`
				Col    []byte `json:"col_indices"`
			} `json:"sparse_csr"`
			DType string        `json:"dtype"`
			Shape []json.Number `json:"shape"`
		} `json:"loss_fn_inputs"`
	} `json:"data"`
	LossFn      string             `json:"loss_fn"`
	Config      map[string]float64 `json:"loss_fn_config"`
	ForwardOnly bool               `json:"forward_only"`
	ConfigV2    map[string]struct {
		Number *float64 `json:"number"`
		Text   *string  `json:"text"`
	} `json:"loss_fn_config_v2"`
}

// bytes writes maps in Go's random order and shapes unpacked: a reader must take both.
func (p protoJSON) bytes(t *testing.T) []byte {
	t.Helper()
	b := appendTextField(nil, 1, p.ModelID)
	b = appendVarintField(b, 2, p.SeqID)
	for _, d := range p.Data {
		var msg []byte
		for _, c := range d.ModelInput {
			if c.Text != nil {
				msg = appendBytesField(msg, 1, appendBytesField(nil, 1, appendBytesField(nil, 1, c.Text.Tokens)))
			} else {
				image := appendTextField(appendBytesField(nil, 1, c.Image.Data), 2, c.Image.Format)
				msg = appendBytesField(msg, 1, appendBytesField(nil, 2, image))
			}
		}
		for name, in := range d.Inputs {
			var tensor []byte
			if in.CSR != nil {
				csr := appendBytesField(nil, 1, in.CSR.Values)
				csr = appendBytesField(appendBytesField(csr, 2, in.CSR.Crow), 3, in.CSR.Col)
				tensor = appendBytesField(tensor, 2, csr)
			} else {
				tensor = appendBytesField(tensor, 1, in.Dense)
			}
			tensor = appendVarintField(tensor, 3, map[string]int64{"DTYPE_FLOAT32": 1, "DTYPE_INT64": 2}[in.DType])
			for _, dim := range in.Shape {
				n, err := dim.Int64()
				if err != nil {
					t.Fatal(err)
				}
				tensor = protowire.AppendVarint(protowire.AppendTag(tensor, 4, protowire.VarintType), uint64(n))
			}
			msg = appendBytesField(msg, 2, appendBytesField(appendTextField(nil, 1, name), 2, tensor))
		}
		msg = appendBytesField(msg, 99, []byte("a field of a later version"))
		b = appendBytesField(b, 3, msg)
	}
	b = appendTextField(b, 4, p.LossFn)
	for name, v := range p.Config {
		b = appendBytesField(b, 5, appendDoubleField(appendTextField(nil, 1, name), 2, v))
	}
	if p.ForwardOnly {
		b = appendVarintField(b, 6, 1)
	}
	for name, v := range p.ConfigV2 {
		var value []byte
		if v.Number != nil {
			value = appendDoubleField(nil, 1, *v.Number)
		} else {
			value = appendTextField(nil, 2, *v.Text)
		}
		b = appendBytesField(b, 7, appendBytesField(appendTextField(nil, 1, name), 2, value))
	}
	return b
}

func TestCapturedForwardBackward(t *testing.T) {
	captures := loadCaptures(t)
	decode := func(name string) (*ForwardBackwardRequest, error) {
		var body struct {
			Proto protoJSON `json:"_proto"`
		}
		if err := json.Unmarshal(captures[name].RequestBody, &body); err != nil || body.Proto.ModelID == "" {
			t.Fatalf("%s: %v", name, err)
		}
		return DecodeForwardBackwardRequest(body.Proto.bytes(t))
	}
	targets, weights := IntTensor([]int64{2, 3, 4}), FloatTensor([]float32{0, 1, 1})
	text := func(inputs map[string]Tensor) Datum {
		return Datum{Tokens: []int32{1, 2, 3}, Chunks: []ChunkKind{TextChunk}, Inputs: inputs}
	}
	plain := text(map[string]Tensor{"target_tokens": targets, "weights": weights})
	sparseTargets, sparseWeights := IntTensor(make([]int64, 48), 8, 6), FloatTensor(make([]float32, 48), 8, 6)
	sparseTargets.I64[42], sparseWeights.F32[42] = 5, 1
	number := func(v float64) ConfigValue { return ConfigValue{Number: v} }
	for name, want := range map[string]*ForwardBackwardRequest{
		"forward_backward_cross_entropy": {SeqID: 1, Data: []Datum{plain, plain}, LossFn: "cross_entropy"},
		"forward_only":                   {SeqID: 4, Data: []Datum{plain}, LossFn: "cross_entropy", ForwardOnly: true},
		"forward_backward_ppo": {SeqID: 3, LossFn: "ppo", Data: []Datum{text(map[string]Tensor{
			"target_tokens": targets, "advantages": weights, "logprobs": FloatTensor([]float32{0, -1, -1})})},
			Config: map[string]ConfigValue{"clip_low_threshold": number(0.8), "clip_high_threshold": number(1.2)}},
		"forward_backward_server_custom_loss": {SeqID: 4, LossFn: "custom", Data: []Datum{plain},
			Config: map[string]ConfigValue{"loss_id": {Text: "loss-1", IsText: true}}},
		"forward_backward_sparse_csr": {SeqID: 6, LossFn: "cross_entropy", Data: []Datum{{
			Tokens: []int32{1, 2, 3, 4, 5, 6, 7, 8}, Chunks: []ChunkKind{TextChunk},
			Inputs: map[string]Tensor{"target_tokens": sparseTargets, "weights": sparseWeights}}}},
	} {
		want.ModelID = "sess-1:train:0"
		got, err := decode(name)
		if err != nil {
			t.Errorf("%s: %v", name, err)
		} else if !reflect.DeepEqual(got, want) {
			t.Errorf("%s:\n got %+v\nwant %+v", name, got, want)
		}
	}
	_, err := decode("forward_backward_image")
	var unsupported *UnsupportedChunkError
	if !errors.As(err, &unsupported) || *unsupported != (UnsupportedChunkError{Datum: 0, Chunk: 0, Kind: "image"}) {
		t.Errorf("image: got %v", err)
	}
}
