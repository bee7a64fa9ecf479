package httpapi

import (
	"errors"
	"fmt"
	"maps"
	"mime"
	"net/http"
	"slices"
	"time"

	"github.com/gin-gonic/gin"

	"smolgym/appliance"
	"smolgym/httpapi/wire"
)

// future answers with the receipt of accepted work.
func future(t appliance.Ticket, err error) (any, error) {
	if err != nil {
		return nil, err
	}
	return wire.FutureResponse{RequestID: t.RequestID, ModelID: t.ModelID, SampleSequenceIDs: t.Sequences}, nil
}

func (s *server) createModel(_ *gin.Context, req *wire.CreateModelRequest) (any, error) {
	q := appliance.CreateModelRequest{SessionID: req.SessionID, ModelSeq: req.ModelSeqID, BaseModel: req.BaseModel,
		Optimizer: req.OptimizerConfig.Type, UserMetadata: req.UserMetadata}
	if l := req.LoraConfig; l != nil {
		q.LoRA = &appliance.LoRAConfig{Rank: l.Rank, Seed: (*int64)(l.Seed), Attention: l.TrainAttn, MLP: l.TrainMLP, Unembed: l.TrainUnembed}
	}
	return future(s.box.CreateModel(q))
}

func (s *server) getInfo(_ *gin.Context, req *wire.GetInfoRequest) (any, error) {
	info, err := s.box.RunInfo(req.ModelID)
	if err != nil {
		return nil, err
	}
	out := wire.GetInfoResponse{ModelID: info.ID, ModelName: info.BaseModel, IsLora: info.IsLoRA,
		ModelData:       wire.ModelData{Arch: info.Family, ModelName: info.BaseModel, TokenizerID: info.BaseModel},
		OptimizerConfig: &wire.OptimizerConfig{Type: "adamw"}}
	if info.IsLoRA {
		out.LoraRank = &info.Rank
	}
	return out, nil
}

// forwardBackward is the one request in protobuf.
func (s *server) forwardBackward(c *gin.Context) (any, error) {
	if kind, _, err := mime.ParseMediaType(c.GetHeader("Content-Type")); err != nil || kind != protobuf {
		return nil, errorf(http.StatusUnsupportedMediaType, "forward_backward takes %s, got %s; use the SDK 0.38 or newer", protobuf, clip(c.GetHeader("Content-Type")))
	}
	body, err := s.body(c, maxBatch)
	if err != nil {
		return nil, err
	}
	req, err := wire.DecodeForwardBackwardRequest(body)
	var chunk *wire.UnsupportedChunkError
	if err != nil && (!errors.As(err, &chunk) || req == nil) {
		return nil, err
	}
	q := appliance.ForwardBackwardRequest{RunID: req.ModelID, Seq: req.SeqID,
		Batch: appliance.Batch{Loss: req.LossFn, ForwardOnly: req.ForwardOnly, Config: map[string]float64{}}}
	if chunk != nil {
		q.Refusal = chunk
	}
	for _, name := range slices.Sorted(maps.Keys(req.Config)) {
		v := req.Config[name]
		if req.LossFn == "custom" && name == "loss_id" && v.IsText {
			q.LossID = v.Text
			continue
		}
		if v.IsText && q.Refusal == nil {
			q.Refusal = fmt.Errorf("loss_fn_config %q is a text; %s takes numbers", name, req.LossFn)
		}
		q.Batch.Config[name] = v.Number
	}
	if req.LossFn == "custom" && q.LossID == "" && q.Refusal == nil {
		q.Refusal = errors.New("loss_fn custom needs loss_id in loss_fn_config; create the loss with create_custom_loss")
	}
	for _, d := range req.Data {
		datum := appliance.Datum{Tokens: d.Tokens, Inputs: make(map[string]appliance.Tensor, len(d.Inputs))}
		for name, t := range d.Inputs {
			datum.Inputs[name] = appliance.Tensor{Shape: t.Shape, F32: t.F32, I64: t.I64}
		}
		q.Batch.Data = append(q.Batch.Data, datum)
	}
	return future(s.box.ForwardBackward(q))
}

func (s *server) optimStep(_ *gin.Context, req *wire.OptimStepRequest) (any, error) {
	q := appliance.OptimStepRequest{RunID: req.ModelID, Seq: req.SeqID}
	if p := req.AdamParams; p != nil {
		q.Adam = appliance.AdamParams{LearningRate: p.LearningRate, Beta1: p.Beta1, Beta2: p.Beta2, Eps: p.Eps,
			WeightDecay: p.WeightDecay, GradClipNorm: p.GradClipNorm}
	} else {
		q.Optimizer = req.OptimizerParams.Type
		if q.Optimizer == "adamw" {
			return nil, errorf(http.StatusBadRequest, "optim_step: adamw takes its settings in adam_params")
		}
	}
	return future(s.box.OptimStep(q))
}

func ttl(seconds *int64) time.Duration {
	if seconds == nil {
		return 0
	}
	return time.Duration(*seconds) * time.Second
}

func (s *server) saveWeights(_ *gin.Context, req *wire.SaveWeightsRequest) (any, error) {
	return future(s.box.SaveWeights(appliance.SaveRequest{RunID: req.ModelID, Seq: req.SeqID, Name: req.Path,
		TTL: ttl(req.TTLSeconds), Overwrite: req.Overwrite, UserMetadata: req.UserMetadata}))
}

func (s *server) saveForSampler(_ *gin.Context, req *wire.SaveWeightsForSamplerRequest) (any, error) {
	if n := req.SamplingSessionSeqID; n != nil {
		return future(s.box.Snapshot(appliance.SnapshotRequest{RunID: req.ModelID, Seq: req.SeqID, SamplerSeq: *n}))
	}
	return future(s.box.SaveSamplerWeights(appliance.SaveRequest{RunID: req.ModelID, Seq: req.SeqID, Name: req.Path,
		TTL: ttl(req.TTLSeconds), UserMetadata: req.UserMetadata}))
}

func (s *server) loadWeights(_ *gin.Context, req *wire.LoadWeightsRequest) (any, error) {
	q := appliance.LoadRequest{Path: req.Path, Optimizer: req.Optimizer, BaseModel: req.BaseModel, UserMetadata: req.UserMetadata}
	if req.OptimizerConfig != nil {
		q.OptimizerFor = req.OptimizerConfig.Type
	}
	if req.Creates() {
		q.SessionID, q.ModelSeq = req.SessionID, *req.ModelSeqID
	} else {
		q.RunID, q.Seq = req.ModelID, *req.SeqID
	}
	return future(s.box.LoadWeights(q))
}

func (s *server) unloadModel(_ *gin.Context, req *wire.UnloadModelRequest) (any, error) {
	return future(s.box.UnloadModel(req.ModelID))
}

func (s *server) createSampling(_ *gin.Context, req *wire.CreateSamplingSessionRequest) (any, error) {
	id, err := s.box.CreateSampler(appliance.SamplerRequest{SessionID: req.SessionID, Seq: req.SamplingSessionSeqID, BaseModel: req.BaseModel, ModelPath: req.ModelPath})
	if err != nil {
		return nil, err
	}
	return wire.CreateSamplingSessionResponse{SamplingSessionID: id}, nil
}

func (s *server) sampler(c *gin.Context) (any, error) {
	v, err := s.box.Sampler(c.Param("id"))
	if err != nil {
		return nil, err
	}
	return wire.SamplerResponse{SamplerID: v.ID, BaseModel: v.BaseModel, ModelPath: v.ModelPath}, nil
}
