package wire

import (
	"encoding/json"
	"errors"
	"fmt"
)

type (
	createModel         struct{}
	getInfo             struct{}
	saveWeights         struct{}
	saveForSampler      struct{}
	saveWeightsExternal struct{}
	loadWeights         struct{}
	unloadModel         struct{}
	createCustomLoss    struct{}
)

func (createModel) kind() string         { return "create_model" }
func (getInfo) kind() string             { return "get_info" }
func (saveWeights) kind() string         { return "save_weights" }
func (saveForSampler) kind() string      { return "save_weights_for_sampler" }
func (saveWeightsExternal) kind() string { return "save_weights_external" }
func (loadWeights) kind() string         { return "load_weights" }
func (unloadModel) kind() string         { return "unload_model" }
func (createCustomLoss) kind() string    { return "create_custom_loss" }

// CreateModelRequest starts a training run; no LoraConfig means all parameters are trained.
type CreateModelRequest struct {
	SessionID       string          `json:"session_id" wire:"required"`
	ModelSeqID      int64           `json:"model_seq_id" wire:"required"` // from 0 in a session
	BaseModel       string          `json:"base_model" wire:"required"`
	LoraConfig      *LoraConfig     `json:"lora_config,omitempty"`
	OptimizerConfig OptimizerConfig `json:"optimizer_config"`
	UserMetadata    Metadata        `json:"user_metadata,omitempty"`
}

func (r *CreateModelRequest) setDefaults() { r.OptimizerConfig.setDefaults() }

// LoraConfig shapes an adapter.
type LoraConfig struct {
	Rank         int   `json:"rank" wire:"required"`
	Seed         *Seed `json:"seed,omitempty"` // absent: drawn by the server
	TrainUnembed bool  `json:"train_unembed"`
	TrainMLP     bool  `json:"train_mlp"`
	TrainAttn    bool  `json:"train_attn"`
}

func (c *LoraConfig) setDefaults() { c.TrainUnembed, c.TrainMLP, c.TrainAttn = true, true, true }

func (c *LoraConfig) check() error {
	if c.Rank < 0 {
		return at(".rank", fmt.Errorf("want 0 or more, got %d", c.Rank))
	}
	return nil
}

// OptimizerConfig names the optimizer of a run.
type OptimizerConfig struct {
	Type    string `json:"type"`              // "adamw" or "dimuon"
	Version int    `json:"version,omitempty"` // of dimuon
}

func (c *OptimizerConfig) setDefaults() { c.Type = "adamw" }

// CreateModelResponse is the result of create_model.
type CreateModelResponse struct {
	Type    Const[createModel] `json:"type"`
	ModelID string             `json:"model_id"` // <session_id>:train:<model_seq_id>
}

// GetInfoRequest asks about a run.
type GetInfoRequest struct {
	ModelID string `json:"model_id" wire:"required"`
}

// GetInfoResponse describes a run. The client finds the tokenizer by it, so ModelData.ModelName must not be empty.
type GetInfoResponse struct {
	Type            Const[getInfo]   `json:"type"`
	ModelID         string           `json:"model_id"`
	ModelData       ModelData        `json:"model_data"`
	IsLora          bool             `json:"is_lora"`
	LoraRank        *int             `json:"lora_rank,omitempty"`
	ModelName       string           `json:"model_name,omitempty"`
	OptimizerConfig *OptimizerConfig `json:"optimizer_config,omitempty"`
}

// ModelData names the model under a run.
type ModelData struct {
	Arch        string `json:"arch,omitempty"`
	ModelName   string `json:"model_name,omitempty"`
	TokenizerID string `json:"tokenizer_id,omitempty"`
}

// OptimStepRequest applies the accumulated gradient. Exactly one kind of parameters is set.
type OptimStepRequest struct {
	ModelID         string           `json:"model_id" wire:"required"`
	SeqID           int64            `json:"seq_id" wire:"required"`
	AdamParams      *AdamParams      `json:"adam_params,omitempty"`
	OptimizerParams *OptimizerParams `json:"optimizer_params,omitempty"`
}

func (r *OptimStepRequest) check() error {
	if r.AdamParams == nil && r.OptimizerParams == nil {
		return at(".adam_params", errors.New("missing"))
	}
	if r.AdamParams != nil && r.OptimizerParams != nil {
		return at(".optimizer_params", errors.New("sent beside adam_params; send one of them"))
	}
	return nil
}

// AdamParams are the settings of one AdamW step.
type AdamParams struct {
	LearningRate float64 `json:"learning_rate"`
	Beta1        float64 `json:"beta1"`
	Beta2        float64 `json:"beta2"`
	Eps          float64 `json:"eps"`
	WeightDecay  float64 `json:"weight_decay"`   // decoupled
	GradClipNorm float64 `json:"grad_clip_norm"` // of the global norm; 0 is off
}

func (p *AdamParams) setDefaults() {
	*p = AdamParams{LearningRate: 1e-4, Beta1: 0.9, Beta2: 0.95, Eps: 1e-12}
}

// OptimizerParams are the settings of one step of another optimizer.
type OptimizerParams struct {
	Type         string  `json:"type" wire:"required"`
	LearningRate float64 `json:"learning_rate" wire:"required"`
	GradClipNorm float64 `json:"grad_clip_norm"`
	Beta1        float64 `json:"beta1"`
}

func (p *OptimizerParams) setDefaults() { p.Beta1 = 0.9 }

// OptimStepResponse is the result of optim_step.
type OptimStepResponse struct {
	Metrics FiniteMetrics `json:"metrics,omitempty"`
}

// Bounds of ttl_seconds: one hour and ten years.
const (
	MinTTLSeconds = 3600
	MaxTTLSeconds = 3653 * 24 * 3600
)

func checkTTL(seconds *int64) error {
	if seconds != nil && (*seconds < MinTTLSeconds || *seconds > MaxTTLSeconds) {
		return at(".ttl_seconds", fmt.Errorf("want %d (an hour) to %d (ten years), got %d", MinTTLSeconds, MaxTTLSeconds, *seconds))
	}
	return nil
}

// SaveWeightsRequest saves weights and optimizer under a name.
type SaveWeightsRequest struct {
	ModelID      string   `json:"model_id" wire:"required"`
	Path         string   `json:"path" wire:"required"` // the name
	SeqID        int64    `json:"seq_id" wire:"required"`
	TTLSeconds   *int64   `json:"ttl_seconds,omitempty"` // absent: kept
	Overwrite    bool     `json:"overwrite"`
	UserMetadata Metadata `json:"user_metadata,omitempty"`
}

func (r *SaveWeightsRequest) check() error {
	if err := CheckName(r.Path); err != nil {
		return at(".path", err)
	}
	return checkTTL(r.TTLSeconds)
}

// SaveWeightsResponse is the result of save_weights.
type SaveWeightsResponse struct {
	Type Const[saveWeights] `json:"type"`
	Path string             `json:"path"`
}

// SaveWeightsForSamplerRequest saves weights for sampling, under a name or as a new sampler that is not listed.
type SaveWeightsForSamplerRequest struct {
	ModelID              string   `json:"model_id" wire:"required"`
	Path                 string   `json:"path,omitempty"`                    // the name, or
	SamplingSessionSeqID *int64   `json:"sampling_session_seq_id,omitempty"` // the number of the sampler, from 0
	Kind                 string   `json:"kind"`                              // "snapshot" or "inflight"
	SeqID                int64    `json:"seq_id" wire:"required"`
	TTLSeconds           *int64   `json:"ttl_seconds,omitempty"`
	UserMetadata         Metadata `json:"user_metadata,omitempty"`
}

func (r *SaveWeightsForSamplerRequest) setDefaults() { r.Kind = "snapshot" }

func (r *SaveWeightsForSamplerRequest) check() error {
	if r.Kind != "snapshot" && r.Kind != "inflight" {
		return at(".kind", fmt.Errorf("want snapshot or inflight, got %q", clip(r.Kind)))
	}
	if r.SamplingSessionSeqID != nil {
		if r.Path != "" {
			return at(".path", errors.New("sent beside sampling_session_seq_id; send one of them"))
		}
		return checkTTL(r.TTLSeconds)
	}
	if r.Path == "" {
		return at(".path", errors.New("missing; name the checkpoint or send sampling_session_seq_id"))
	}
	if err := CheckName(r.Path); err != nil {
		return at(".path", err)
	}
	return checkTTL(r.TTLSeconds)
}

// SaveWeightsForSamplerResponse is the result: Path for the named form, SamplingSessionID for the other.
type SaveWeightsForSamplerResponse struct {
	Type              Const[saveForSampler] `json:"type"`
	Path              string                `json:"path,omitempty"`
	SamplingSessionID string                `json:"sampling_session_id,omitempty"`
}

// SaveWeightsExternalRequest exports weights as files for other tools.
type SaveWeightsExternalRequest struct {
	ModelID                 string   `json:"model_id" wire:"required"`
	Path                    string   `json:"path" wire:"required"` // the name
	SeqID                   int64    `json:"seq_id" wire:"required"`
	TTLSeconds              *int64   `json:"ttl_seconds,omitempty"`
	AgeEncryptionRecipients []string `json:"age_encryption_recipients,omitempty"`
}

func (r *SaveWeightsExternalRequest) check() error {
	if err := CheckName(r.Path); err != nil {
		return at(".path", err)
	}
	return checkTTL(r.TTLSeconds)
}

// SaveWeightsExternalResponse is the result of save_weights_external.
type SaveWeightsExternalResponse struct {
	Type      Const[saveWeightsExternal] `json:"type"`
	Path      string                     `json:"path"`
	SizeBytes *int64                     `json:"size_bytes,omitempty"`
}

// LoadWeightsRequest loads a checkpoint, into an existing run (ModelID, SeqID) or as the first act of a new one
// (SessionID, ModelSeqID, and what CreateModelRequest says about it).
type LoadWeightsRequest struct {
	ModelID            string           `json:"model_id,omitempty"`
	SeqID              *int64           `json:"seq_id,omitempty"`
	SessionID          string           `json:"session_id,omitempty"`
	ModelSeqID         *int64           `json:"model_seq_id,omitempty"`
	BaseModel          string           `json:"base_model,omitempty"`
	UserMetadata       Metadata         `json:"user_metadata,omitempty"`
	OptimizerConfig    *OptimizerConfig `json:"optimizer_config,omitempty"`
	Path               string           `json:"path" wire:"required"`
	Optimizer          bool             `json:"optimizer" wire:"required"` // also load the optimizer's state
	WeightsAccessToken string           `json:"weights_access_token,omitempty"`
}

// Creates tells whether the load makes a new run.
func (r *LoadWeightsRequest) Creates() bool { return r.SessionID != "" }

func (r *LoadWeightsRequest) check() error {
	switch {
	case r.ModelID != "" && r.SessionID != "":
		return at(".session_id", errors.New("sent beside model_id; send model_id and seq_id, or session_id and model_seq_id"))
	case r.ModelID == "" && r.SessionID == "":
		return at(".model_id", errors.New("missing; send model_id and seq_id, or session_id and model_seq_id"))
	case r.ModelID != "" && r.SeqID == nil:
		return at(".seq_id", errors.New("missing"))
	case r.SessionID != "" && r.ModelSeqID == nil:
		return at(".model_seq_id", errors.New("missing"))
	}
	if _, err := ParsePath(r.Path); err != nil {
		return at(".path", err)
	}
	return nil
}

// LoadWeightsResponse is the result of load_weights.
type LoadWeightsResponse struct {
	Type    Const[loadWeights] `json:"type"`
	Path    string             `json:"path,omitempty"`
	ModelID string             `json:"model_id,omitempty"`
}

// UnloadModelRequest ends a run's claim on memory; older clients send it.
type UnloadModelRequest struct {
	ModelID string `json:"model_id" wire:"required"`
}

// UnloadModelResponse is the result of unload_model.
type UnloadModelResponse struct {
	Type    Const[unloadModel] `json:"type"`
	ModelID string             `json:"model_id"`
}

// CreateCustomLossRequest stores a traced loss. The graph's arguments stay JSON until the graph is rebuilt.
type CreateCustomLossRequest struct {
	SessionID       string            `json:"session_id" wire:"required"`
	CustomLossSeqID int64             `json:"custom_loss_seq_id" wire:"required"`
	Name            string            `json:"name" wire:"required"`
	Inputs          []CustomLossInput `json:"inputs" wire:"required"`
	Graph           CustomLossGraph   `json:"graph" wire:"required"`
}

// CustomLossInput is an input of a traced loss: "logprobs" or the name of a loss input.
type CustomLossInput struct {
	Name string `json:"name" wire:"required"`
	Rank int    `json:"rank" wire:"required"` // 0 scalar, 1 [T], 2 [T,K]
}

// CustomLossGraph is a traced loss in execution order.
type CustomLossGraph struct {
	Format int              `json:"format"`
	Nodes  []CustomLossNode `json:"nodes" wire:"required"`
}

func (g *CustomLossGraph) setDefaults() { g.Format = 1 }

// CustomLossNode is one operation of a traced loss.
type CustomLossNode struct {
	Op     string                `json:"op" wire:"required"`
	Name   string                `json:"name" wire:"required"`
	Target string                `json:"target" wire:"required"`
	Args   List[json.RawMessage] `json:"args"`
	Kwargs Dict[json.RawMessage] `json:"kwargs"`
}

// CreateCustomLossResponse is the result of create_custom_loss.
type CreateCustomLossResponse struct {
	Type   Const[createCustomLoss] `json:"type"`
	LossID string                  `json:"loss_id"`
}
