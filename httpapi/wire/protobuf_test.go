package wire

import (
	"errors"
	"fmt"
	"math"
	"reflect"
	"runtime"
	"strings"
	"testing"

	"google.golang.org/protobuf/encoding/protowire"
)

// small builds messages by hand, so that broken ones can be built too.
func request(fields ...[]byte) []byte {
	b := appendTextField(nil, 1, "m")
	b = appendVarintField(b, 2, 1)
	b = appendTextField(b, 4, "cross_entropy")
	for _, f := range fields {
		b = append(b, f...)
	}
	return b
}

func datumField(parts ...[]byte) []byte {
	var msg []byte
	for _, p := range parts {
		msg = append(msg, p...)
	}
	return appendBytesField(nil, 3, msg)
}

func inputField(name string, tensor []byte) []byte {
	return appendBytesField(nil, 2, appendBytesField(appendTextField(nil, 1, name), 2, tensor))
}

func tensorMessage(dense []byte, dtype DType, shape ...int) []byte {
	b := appendBytesField(nil, 1, dense)
	return appendPackedField(appendVarintField(b, 3, int64(dtype)), 4, shape)
}

func csrMessage(values []float32, crow, col []int64, shape ...int) []byte {
	csr := appendBytesField(nil, 1, float32Bytes(values))
	csr = appendBytesField(appendBytesField(csr, 2, int64Bytes(crow)), 3, int64Bytes(col))
	b := appendBytesField(nil, 2, csr)
	return appendPackedField(appendVarintField(b, 3, int64(Float32)), 4, shape)
}

func TestForwardBackwardRequestErrors(t *testing.T) {
	three := datumField()
	three = append(three, append(datumField(), datumField()...)...) // datums 0, 1, 2
	weights := func(tensor []byte) []byte { return request(three, datumField(inputField("weights", tensor))) }
	manyInputs := make([][]byte, MaxInputs+1)
	for i := range manyInputs {
		manyInputs[i] = inputField(fmt.Sprint("k", i), tensorMessage(nil, Int64, 0))
	}
	for _, c := range []struct {
		name, want string
		body       []byte
	}{
		{"bytes", `datum 3: loss_fn_inputs["weights"]: shape [3] wants 12 bytes of float32, got 8`, weights(tensorMessage(make([]byte, 8), Float32, 3))},
		{"partial element", `datum 3: loss_fn_inputs["weights"]: 7 bytes are not a whole number of int64 values`, weights(appendVarintField(appendBytesField(nil, 1, make([]byte, 7)), 3, 2))},
		{"huge shape", `loss_fn_inputs["weights"]: shape [65536 65536] has too many elements`, weights(tensorMessage(nil, Float32, 65536, 65536))},
		{"overflowing shape", `too many elements`, weights(tensorMessage(nil, Float32, math.MaxInt32, math.MaxInt32, math.MaxInt32))},
		{"negative shape", `dimension 0 of shape [-1] is out of range`, weights(tensorMessage(nil, Float32, -1))},
		{"zero hides huge", `dimension 1 of shape [0 1099511627776] is out of range`, weights(tensorMessage(nil, Float32, 0, 1<<40))},
		{"rank", `shape: more than 8 elements`, weights(tensorMessage(nil, Float32, make([]int, 9)...))},
		{"dtype", `dtype(9) is not known`, weights(tensorMessage(make([]byte, 4), 9, 1))},
		{"no dtype", `dtype(0) is not known`, weights(tensorMessage(make([]byte, 4), 0, 1))},
		{"no data", `holds neither dense nor sparse_csr data`, weights(appendVarintField(nil, 3, 1))},
		{"crow length", `crow_indices has 2 entries, 2 rows want 3`, weights(csrMessage(nil, []int64{0, 0}, nil, 2, 2))},
		{"crow end", `crow_indices runs from 0 to 2, want 0 to 1`, weights(csrMessage([]float32{1}, []int64{0, 1, 2}, []int64{0}, 2, 2))},
		{"crow falls", `crow_indices[2] is 0 after 1`, weights(csrMessage([]float32{1}, []int64{0, 1, 0, 1}, []int64{0}, 3, 2))},
		{"crow jumps", `crow_indices[1] is 9 after 0`, weights(csrMessage([]float32{1}, []int64{0, 9, 1}, []int64{0}, 2, 2))},
		{"column", `col_indices[0] is 2, outside the 2 columns`, weights(csrMessage([]float32{1}, []int64{0, 1, 1}, []int64{2}, 2, 2))},
		{"column negative", `col_indices[0] is -1, outside`, weights(csrMessage([]float32{1}, []int64{0, 1, 1}, []int64{-1}, 2, 2))},
		{"column twice", `col_indices[1] is 1 after 1 in row 0`, weights(csrMessage([]float32{1, 2}, []int64{0, 2, 2}, []int64{1, 1}, 2, 2))},
		{"sparse rank", `sparse tensor needs a shape [rows, columns], got [4]`, weights(csrMessage(nil, []int64{0, 0, 0}, nil, 4))},
		{"sparse bomb", `expands to 2000000000 elements`, weights(csrMessage(nil, []int64{0, 0}, nil, 1, 2000000000))},
		{"tokens", `datum 0: model_input[1]: encoded_text: tokens: 3 bytes are not a whole number`, request(datumField(
			appendBytesField(nil, 1, appendBytesField(nil, 1, nil)), appendBytesField(nil, 1, appendBytesField(nil, 1, appendBytesField(nil, 1, []byte("abc"))))))},
		{"inputs", "datum has more than 32 inputs", request(datumField(manyInputs...))},
		{"model id", "model_id: missing", appendTextField(nil, 4, "x")},
		{"loss", "loss_fn: missing", appendTextField(nil, 1, "x")},
		{"utf-8", "model_id: not valid UTF-8", appendTextField(nil, 1, "\xff")},
		{"wire type", "model_id: want a length-delimited value, got varint", protowire.AppendVarint(protowire.AppendTag(nil, 1, protowire.VarintType), 1)},
		{"config", `loss_fn_config_v2: ["beta"]: holds neither a number nor a text`, request(appendBytesField(nil, 7, appendTextField(nil, 1, "beta")))},
		{"config type", `loss_fn_config: ["beta"]: want a fixed64 value`, request(appendBytesField(nil, 5, appendVarintField(appendTextField(nil, 1, "beta"), 2, 1)))},
	} {
		req, err := DecodeForwardBackwardRequest(c.body)
		if err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: got %v, want %s", c.name, err, c.want)
		}
		if !errors.Is(err, ErrMalformed) || req != nil {
			t.Errorf("%s: want ErrMalformed and no request, got %v and %v", c.name, err, req)
		}
	}
}

// TestTruncated cuts a good request everywhere: each cut is an error or, between fields, a shorter request.
func TestTruncated(t *testing.T) {
	body := readGolden(t, "requests", "config.pb")
	whole, err := DecodeForwardBackwardRequest(body)
	if err != nil {
		t.Fatal(err)
	}
	for n := range len(body) {
		if req, err := DecodeForwardBackwardRequest(body[:n]); err == nil && reflect.DeepEqual(req, whole) {
			t.Errorf("cut at %d of %d bytes went unnoticed", n, len(body))
		}
	}
}

func TestDatumBound(t *testing.T) {
	datums := strings.Repeat("\x1a\x00", MaxDatums)
	if req, err := DecodeForwardBackwardRequest(request([]byte(datums))); err != nil || len(req.Data) != MaxDatums {
		t.Fatalf("%d datums: %v", MaxDatums, err)
	}
	_, err := DecodeForwardBackwardRequest(request([]byte(datums + "\x1a\x00")))
	if err == nil || !strings.Contains(err.Error(), "more than 8192 datums") {
		t.Fatalf("got %v", err)
	}
}

// TestDensifyBudget shows that many sparse tensors, each within bounds, cannot pass the bound together, and that what
// is refused was not allocated.
func TestDensifyBudget(t *testing.T) {
	const quarter = MaxDenseElements / 4
	bomb := inputField("weights", csrMessage(nil, []int64{0, 0}, nil, 1, quarter+1))
	body := request(datumField(bomb), datumField(bomb), datumField(bomb), datumField(bomb))
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	_, err := DecodeForwardBackwardRequest(body)
	runtime.ReadMemStats(&after)
	if err == nil || !strings.Contains(err.Error(), `datum 3: loss_fn_inputs["weights"]: sparse tensor of shape`) {
		t.Fatalf("got %v", err)
	}
	if spent := after.TotalAlloc - before.TotalAlloc; spent > 4*MaxDenseElements {
		t.Fatalf("allocated %d bytes, the bound on float32 elements is %d", spent, 4*MaxDenseElements)
	}
}

func TestConfigPrefersNewer(t *testing.T) {
	old := appendBytesField(nil, 5, appendDoubleField(appendTextField(nil, 1, "beta"), 2, 1))
	onlyOld := appendBytesField(nil, 5, appendDoubleField(appendTextField(nil, 1, "gamma"), 2, 3))
	newer := appendBytesField(nil, 7, appendBytesField(appendTextField(nil, 1, "beta"), 2, appendDoubleField(nil, 1, 2)))
	want := map[string]ConfigValue{"beta": {Number: 2}, "gamma": {Number: 3}}
	for _, body := range [][]byte{request(old, onlyOld, newer), request(newer, onlyOld, old)} {
		req, err := DecodeForwardBackwardRequest(body)
		if err != nil || !reflect.DeepEqual(req.Config, want) {
			t.Fatalf("got %v, %v", req, err)
		}
	}
}

func TestEncodingTellsRequestsApart(t *testing.T) {
	base := func() *ForwardBackwardRequest {
		return &ForwardBackwardRequest{ModelID: "m", SeqID: 1, LossFn: "ppo", Config: map[string]ConfigValue{"a": {Number: 1}},
			Data: []Datum{{Tokens: []int32{1, 2}, Inputs: map[string]Tensor{"w": FloatTensor([]float32{1, 2})}}}}
	}
	seen := map[string]string{}
	for name, change := range map[string]func(*ForwardBackwardRequest){
		"same":   func(*ForwardBackwardRequest) {},
		"token":  func(r *ForwardBackwardRequest) { r.Data[0].Tokens[1] = 3 },
		"weight": func(r *ForwardBackwardRequest) { r.Data[0].Inputs["w"].F32[0] = 1.5 },
		"shape":  func(r *ForwardBackwardRequest) { r.Data[0].Inputs["w"] = FloatTensor([]float32{1, 2}, 2, 1) },
		"config": func(r *ForwardBackwardRequest) { r.Config["a"] = ConfigValue{Number: 2} },
		"text":   func(r *ForwardBackwardRequest) { r.Config["a"] = ConfigValue{IsText: true} },
		"loss":   func(r *ForwardBackwardRequest) { r.LossFn = "cispo" },
		"only":   func(r *ForwardBackwardRequest) { r.ForwardOnly = true },
		"datum":  func(r *ForwardBackwardRequest) { r.Data = append(r.Data, r.Data[0]) },
	} {
		r := base()
		change(r)
		b, err := EncodeForwardBackwardRequest(r)
		if err != nil {
			t.Fatal(err)
		}
		if other, ok := seen[string(b)]; ok {
			t.Errorf("%s and %s have one encoding", name, other)
		}
		seen[string(b)] = name
	}
}

func TestOutputRules(t *testing.T) {
	one := []map[string]Tensor{{"logprobs": FloatTensor([]float32{-1})}}
	for metric, want := range map[string]string{
		"loss": "exactly one colon", "a:b:c": "exactly one colon", ":sum": "<name>:<reduction>", "loss:average": "<name>:<reduction>",
	} {
		_, err := EncodeForwardBackwardOutput(&ForwardBackwardOutput{Outputs: one, Metrics: map[string]float64{"loss:sum": 1, metric: 1}})
		if err == nil || !strings.Contains(err.Error(), want) || !strings.Contains(err.Error(), metric) {
			t.Errorf("%s: got %v", metric, err)
		}
	}
	if _, err := EncodeForwardBackwardOutput(&ForwardBackwardOutput{Outputs: one}); err == nil || !strings.Contains(err.Error(), "loss:sum") {
		t.Errorf("no loss:sum: got %v", err)
	}
	metrics := map[string]float64{"loss:sum": math.NaN()}
	for name, out := range map[string][]map[string]Tensor{
		"fields differ": {one[0], {"ratio": FloatTensor(nil)}},
		"field missing": {one[0], {}},
		"shape":         {{"logprobs": FloatTensor([]float32{1}, 2)}},
		"scalar":        {{"logprobs": {DType: Float32, Shape: []int{}, F32: []float32{1}}}},
	} {
		if _, err := EncodeForwardBackwardOutput(&ForwardBackwardOutput{Outputs: out, Metrics: metrics}); err == nil {
			t.Errorf("%s: no error", name)
		}
	}
	var first []byte
	for range 20 { // map order must not show
		out := &ForwardBackwardOutput{Metrics: map[string]float64{"loss:sum": 1, "a:sum": 2, "b:mean": 3, "c:max": 4},
			Outputs: []map[string]Tensor{{"logprobs": FloatTensor([]float32{-1}), "ratio": FloatTensor([]float32{1}), "ids": IntTensor([]int64{4})}}}
		b, err := EncodeForwardBackwardOutput(out)
		if err != nil {
			t.Fatal(err)
		}
		if first == nil {
			first = b
		}
		if string(first) != string(b) {
			t.Fatal("the same output gave different bytes")
		}
		if again, err := DecodeForwardBackwardOutput(b); err != nil || !reflect.DeepEqual(again, out) {
			t.Fatalf("got %+v, %v", again, err)
		}
	}
}

func TestSampleResponseRules(t *testing.T) {
	for name, r := range map[string]*SampleResponse{
		"logprobs":      {Sequences: []SampledSequence{{Tokens: []int32{1, 2}, Logprobs: []float32{-1}}}},
		"reason":        {Sequences: []SampledSequence{{StopReason: 2}}},
		"topk":          {TopkPromptLogprobs: &TopkLogprobs{Length: 2, K: 2, TokenIDs: []int32{1}, Logprobs: []float32{1}}},
		"topk sequence": {Sequences: []SampledSequence{{TopkLogprobs: &TopkLogprobs{Length: -1, K: 2}}}},
		"target":        {TargetPromptLogprobs: &Tensor{DType: Float32, Shape: []int{3}}},
		"alt":           {PromptAltTokens: &PromptAltTokens{}},
	} {
		if _, err := EncodeSampleResponse(r); err == nil {
			t.Errorf("%s: no error", name)
		}
	}
}
