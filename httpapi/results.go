package httpapi

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"time"

	"github.com/gin-gonic/gin"

	"smolgym/appliance"
	"smolgym/httpapi/wire"
)

const protobuf = "application/x-protobuf"

func withTimeout(ctx context.Context, d time.Duration) (context.Context, context.CancelFunc) {
	return context.WithTimeout(ctx, d)
}

func asError[T error](err error, target *T) bool { return errors.As(err, target) }

// result answers with a finished result, in the form that its kind has on the wire.
func (s *server) result(c *gin.Context, id string, ans *appliance.Answer) {
	var raw []byte
	var err error
	switch r := ans.Result.(type) {
	case *appliance.ForwardBackwardResult:
		raw, err = encodeOutput(r)
	case *appliance.SampleResult:
		raw, err = encodeSamples(r)
	case *appliance.CreateModelResult:
		c.JSON(http.StatusOK, wire.CreateModelResponse{ModelID: r.ModelID})
		return
	case *appliance.OptimResult:
		c.JSON(http.StatusOK, wire.OptimStepResponse{Metrics: r.Metrics})
		return
	case *appliance.SaveResult:
		c.JSON(http.StatusOK, wire.SaveWeightsResponse{Path: r.Path})
		return
	case *appliance.SaveSamplerResult:
		c.JSON(http.StatusOK, wire.SaveWeightsForSamplerResponse{Path: r.Path, SamplingSessionID: r.SamplerID})
		return
	case *appliance.ExportResult:
		c.JSON(http.StatusOK, wire.SaveWeightsExternalResponse{Path: r.Path, SizeBytes: &r.SizeBytes})
		return
	case *appliance.CustomLossResult:
		c.JSON(http.StatusOK, wire.CreateCustomLossResponse{LossID: r.LossID})
		return
	case *appliance.LoadResult:
		c.JSON(http.StatusOK, wire.LoadWeightsResponse{Path: r.Path, ModelID: r.ModelID})
		return
	case *appliance.UnloadResult:
		c.JSON(http.StatusOK, wire.UnloadModelResponse{ModelID: r.ModelID})
		return
	default:
		err = fmt.Errorf("result of type %T has no form on the wire", ans.Result)
	}
	if err != nil {
		s.log.Error("encode result", "request", id, "error", err)
		c.JSON(http.StatusOK, wire.FailedResponse{Error: "the server failed to encode the result; its log has the cause", Category: wire.CategoryServer})
		return
	}
	c.Data(http.StatusOK, protobuf, raw)
}

func encodeOutput(r *appliance.ForwardBackwardResult) ([]byte, error) {
	out := &wire.ForwardBackwardOutput{Metrics: r.Metrics}
	for i, lp := range r.Logprobs {
		out.Outputs = append(out.Outputs, map[string]wire.Tensor{"logprobs": wire.FloatTensor(lp, r.Shapes[i]...)})
	}
	return wire.EncodeForwardBackwardOutput(out)
}

func encodeSamples(r *appliance.SampleResult) ([]byte, error) {
	out := &wire.SampleResponse{PromptLogprobs: r.PromptLogprobs, TopkPromptLogprobs: table(r.TopKPrompt), PromptCacheHitTokens: int32(r.CachedTokens)}
	if t := r.Targets; t != nil {
		tensor := wire.FloatTensor(t.Logprobs, t.Rows, t.Columns)
		if t.Crow != nil {
			tensor.CSR = &wire.CSR{Crow: t.Crow, Col: t.Col}
		}
		out.TargetPromptLogprobs = &tensor
	}
	if k := r.AltK; k > 0 {
		ids := make([]int64, len(r.AltTokens))
		for i, id := range r.AltTokens {
			ids[i] = int64(id)
		}
		out.PromptAltTokens = &wire.PromptAltTokens{Tokens: wire.IntTensor(ids, len(ids)/k, k), Logprobs: wire.FloatTensor(r.AltLogprobs, len(ids)/k, k)}
	}
	for _, q := range r.Sequences {
		s := wire.SampledSequence{StopReason: wire.StopLength, Tokens: q.Tokens, Logprobs: q.Logprobs, TopkLogprobs: table(q.TopK)}
		if q.Stopped {
			s.StopReason = wire.StopStop
		}
		out.Sequences = append(out.Sequences, s)
	}
	return wire.EncodeSampleResponse(out)
}

// table is a table of best tokens, nil if none was asked for.
func table(t *appliance.TopK) *wire.TopkLogprobs {
	if t == nil || t.K == 0 {
		return nil
	}
	return &wire.TopkLogprobs{Length: len(t.IDs) / t.K, K: t.K, TokenIDs: t.IDs, Logprobs: t.Logprobs}
}
