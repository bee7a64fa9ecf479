package wire

import (
	"bytes"
	"encoding/json"
	"errors"
	"flag"
	"math"
	"os"
	"path/filepath"
	"reflect"
	"strconv"
	"strings"
	"testing"
)

// With -update the encoders' output is written to testdata; testdata/wire/make_goldens.py check then has the SDK read it.
var update = flag.Bool("update", false, "rewrite testdata/wire/encoded")

var testdata = filepath.Join("..", "..", "testdata", "wire")

func readGolden(t testing.TB, parts ...string) []byte {
	t.Helper()
	b, err := os.ReadFile(filepath.Join(append([]string{testdata}, parts...)...))
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// goldens is what the SDK says the binary goldens hold.
type goldens struct {
	SDK       string                     `json:"sdk"`
	Requests  map[string]goldenRequest   `json:"requests"`
	Responses map[string]json.RawMessage `json:"responses"`
}

type goldenRequest struct {
	Unsupported []any          `json:"unsupported"` // datum, chunk, kind
	LossFn      string         `json:"loss_fn"`
	SeqID       int64          `json:"seq_id"`
	ForwardOnly bool           `json:"forward_only"`
	Config      map[string]any `json:"config"`
	Data        []goldenDatum  `json:"data"`
}

type goldenDatum struct {
	Tokens []int32                 `json:"tokens"`
	Chunks int                     `json:"chunks"`
	Inputs map[string]goldenTensor `json:"inputs"`
}

type goldenTensor struct {
	DType string        `json:"dtype"`
	Shape []int         `json:"shape"`
	Data  []goldenFloat `json:"data"`
	Crow  []int64       `json:"crow,omitempty"`
	Col   []int64       `json:"col,omitempty"`
}

// goldenFloat is a number, or "nan", "inf", "-inf"; it prints so that equal text means equal value.
type goldenFloat string

func (g *goldenFloat) UnmarshalJSON(raw []byte) error {
	text := strings.Trim(string(raw), `"`)
	if v, err := strconv.ParseInt(text, 10, 64); err == nil {
		*g = goldenFloat(strconv.FormatInt(v, 10))
		return nil
	}
	v, err := strconv.ParseFloat(text, 64)
	*g = floatText(float32(v))
	return err
}

func floatText(v float32) goldenFloat {
	if v == float32(int32(v)) && !(v == 0 && math.Signbit(float64(v))) {
		return goldenFloat(strconv.FormatInt(int64(v), 10))
	}
	return goldenFloat(strconv.FormatFloat(float64(v), 'g', -1, 32))
}

func floatTexts(v []float32) []goldenFloat {
	out := make([]goldenFloat, len(v))
	for i, x := range v {
		out[i] = floatText(x)
	}
	return out
}

func golden(t Tensor) goldenTensor {
	g := goldenTensor{DType: t.DType.String(), Shape: t.Shape, Data: []goldenFloat{}}
	for _, x := range t.I64 {
		g.Data = append(g.Data, goldenFloat(strconv.FormatInt(x, 10)))
	}
	g.Data = append(g.Data, floatTexts(t.F32)...)
	if t.CSR != nil {
		g.Crow, g.Col = t.CSR.Crow, t.CSR.Col
	}
	return g
}

func loadGoldens(t testing.TB) goldens {
	t.Helper()
	var g goldens
	if err := json.Unmarshal(readGolden(t, "goldens.json"), &g); err != nil {
		t.Fatal(err)
	}
	if g.SDK != "0.38.0" || len(g.Requests) < 6 || len(g.Responses) < 4 {
		t.Fatalf("goldens.json of SDK %q holds %d requests and %d responses", g.SDK, len(g.Requests), len(g.Responses))
	}
	return g
}

func TestRequestsFromSDK(t *testing.T) {
	for name, want := range loadGoldens(t).Requests {
		t.Run(name, func(t *testing.T) {
			body := readGolden(t, "requests", name+".pb")
			req, err := DecodeForwardBackwardRequest(body)
			if want.Unsupported != nil {
				var unsupported *UnsupportedChunkError
				if !errors.As(err, &unsupported) || !errors.Is(err, ErrMalformed) {
					t.Fatalf("want UnsupportedChunkError, got %v", err)
				}
				got := []any{float64(unsupported.Datum), float64(unsupported.Chunk), unsupported.Kind}
				if !reflect.DeepEqual(got, want.Unsupported) || !strings.Contains(err.Error(), strconv.Quote(unsupported.Kind)) {
					t.Fatalf("got %v (%v), want %v", got, err, want.Unsupported)
				}
				if req == nil || req.ModelID != "sess-1:train:0" || req.SeqID == 0 || req.LossFn == "" {
					t.Fatalf("request beside the error is incomplete: %+v", req)
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			compareRequest(t, req, want, true)

			encoded, err := EncodeForwardBackwardRequest(req)
			if err != nil {
				t.Fatal(err)
			}
			compareEncoded(t, name, encoded)
			again, err := DecodeForwardBackwardRequest(encoded)
			if err != nil {
				t.Fatal(err)
			}
			compareRequest(t, again, want, false)
			twice, err := EncodeForwardBackwardRequest(again)
			if err != nil || !bytes.Equal(encoded, twice) {
				t.Fatalf("bytes differ after a round trip: %x %x (%v)", encoded, twice, err)
			}
		})
	}
}

func compareRequest(t *testing.T, got *ForwardBackwardRequest, want goldenRequest, chunks bool) {
	t.Helper()
	if got.ModelID != "sess-1:train:0" || got.SeqID != want.SeqID || got.LossFn != want.LossFn || got.ForwardOnly != want.ForwardOnly {
		t.Fatalf("got %q %d %q %v", got.ModelID, got.SeqID, got.LossFn, got.ForwardOnly)
	}
	config := map[string]any{}
	for name, v := range got.Config {
		if config[name] = v.Number; v.IsText {
			config[name] = v.Text
		}
	}
	if !reflect.DeepEqual(config, want.Config) {
		t.Fatalf("config: got %v, want %v", config, want.Config)
	}
	if len(got.Data) != len(want.Data) {
		t.Fatalf("got %d datums, want %d", len(got.Data), len(want.Data))
	}
	for i, d := range got.Data {
		if !reflect.DeepEqual(d.Tokens, want.Data[i].Tokens) {
			t.Fatalf("datum %d: tokens %v, want %v", i, d.Tokens, want.Data[i].Tokens)
		}
		if chunks && len(d.Chunks) != want.Data[i].Chunks {
			t.Fatalf("datum %d: %d chunks, want %d", i, len(d.Chunks), want.Data[i].Chunks)
		}
		inputs := map[string]goldenTensor{}
		for name, tensor := range d.Inputs {
			inputs[name] = golden(tensor)
		}
		if !reflect.DeepEqual(inputs, want.Data[i].Inputs) {
			t.Fatalf("datum %d: inputs\n got %v\nwant %v", i, inputs, want.Data[i].Inputs)
		}
	}
}

// compareEncoded holds an encoder to the bytes that the SDK has read and approved.
func compareEncoded(t *testing.T, name string, got []byte) {
	t.Helper()
	if *update {
		if err := os.MkdirAll(filepath.Join(testdata, "encoded"), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(testdata, "encoded", name+".pb"), got, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	if want := readGolden(t, "encoded", name+".pb"); !bytes.Equal(got, want) {
		t.Fatalf("encoder wrote %x\nthe approved bytes are %x\n(run with -update, then make_goldens.py check)", got, want)
	}
}

func TestResponsesFromSDK(t *testing.T) {
	for name, raw := range loadGoldens(t).Responses {
		t.Run(name, func(t *testing.T) {
			body := readGolden(t, "responses", name+".pb")
			var got, want any
			var encoded []byte
			var err error
			if strings.HasPrefix(name, "output") {
				var out *ForwardBackwardOutput
				if out, err = DecodeForwardBackwardOutput(body); err == nil {
					got, want = goldenOutputOf(out), &goldenOutput{}
					encoded, err = EncodeForwardBackwardOutput(out)
				}
			} else {
				var r *SampleResponse
				if r, err = DecodeSampleResponse(body); err == nil {
					got, want = goldenSampleOf(r), &goldenSample{}
					if encoded, err = EncodeSampleResponse(r); err == nil && !bytes.Equal(encoded, body) {
						t.Fatalf("re-encoded %x\nwant the SDK's bytes %x", encoded, body)
					}
				}
			}
			if err != nil {
				t.Fatal(err)
			}
			if err := json.Unmarshal(raw, want); err != nil {
				t.Fatal(err)
			}
			if !reflect.DeepEqual(got, want) {
				g, _ := json.Marshal(got)
				w, _ := json.Marshal(want)
				t.Fatalf("got  %s\nwant %s", g, w)
			}
			compareEncoded(t, name, encoded)
		})
	}
}

type goldenOutput struct {
	Outputs []map[string]goldenTensor `json:"outputs"`
	Metrics map[string]goldenFloat    `json:"metrics"`
}

func goldenOutputOf(out *ForwardBackwardOutput) *goldenOutput {
	g := &goldenOutput{Outputs: []map[string]goldenTensor{}, Metrics: map[string]goldenFloat{}}
	for _, fields := range out.Outputs {
		tensors := map[string]goldenTensor{}
		for name, t := range fields {
			tensors[name] = golden(t)
		}
		g.Outputs = append(g.Outputs, tensors)
	}
	for name, v := range out.Metrics {
		g.Metrics[name] = floatText(float32(v))
	}
	return g
}

type goldenSample struct {
	Sequences      []goldenSequence `json:"sequences"`
	PromptLogprobs []goldenFloat    `json:"prompt_logprobs"`
	Topk           *goldenTopk      `json:"topk"`
	CacheHits      int32            `json:"cache_hits"`
	Target         *goldenTensor    `json:"target"`
	Alt            []goldenTensor   `json:"alt"`
}

type goldenSequence struct {
	StopReason string        `json:"stop_reason"`
	Tokens     []int32       `json:"tokens"`
	Logprobs   []goldenFloat `json:"logprobs"`
	Topk       *goldenTopk   `json:"topk"`
}

type goldenTopk struct {
	TokenIDs [][]int32       `json:"token_ids"`
	Logprobs [][]goldenFloat `json:"logprobs"`
}

func goldenTopkOf(t *TopkLogprobs) *goldenTopk {
	if t == nil {
		return nil
	}
	g := &goldenTopk{}
	for i := range t.Length {
		g.TokenIDs = append(g.TokenIDs, t.TokenIDs[i*t.K:(i+1)*t.K])
		g.Logprobs = append(g.Logprobs, floatTexts(t.Logprobs[i*t.K:(i+1)*t.K]))
	}
	return g
}

func goldenSampleOf(r *SampleResponse) *goldenSample {
	g := &goldenSample{CacheHits: r.PromptCacheHitTokens, Topk: goldenTopkOf(r.TopkPromptLogprobs)}
	g.Sequences = make([]goldenSequence, len(r.Sequences))
	for i, s := range r.Sequences {
		out := &g.Sequences[i]
		out.StopReason = map[StopReason]string{StopStop: "stop", StopLength: "length"}[s.StopReason]
		out.Tokens = append([]int32{}, s.Tokens...)
		if s.Logprobs != nil {
			out.Logprobs = floatTexts(s.Logprobs)
		}
		out.Topk = goldenTopkOf(s.TopkLogprobs)
	}
	if r.PromptLogprobs != nil {
		g.PromptLogprobs = floatTexts(r.PromptLogprobs)
	}
	if r.TargetPromptLogprobs != nil {
		target := golden(*r.TargetPromptLogprobs)
		g.Target = &target
	}
	if r.PromptAltTokens != nil {
		g.Alt = []goldenTensor{golden(r.PromptAltTokens.Tokens), golden(r.PromptAltTokens.Logprobs)}
	}
	return g
}
