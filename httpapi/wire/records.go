package wire

import "errors"

// Cursor tells where in a list an answer lies.
type Cursor struct {
	Offset     int `json:"offset"`
	Limit      int `json:"limit"`
	TotalCount int `json:"total_count"`
}

// TrainingRun describes a run in lists.
type TrainingRun struct {
	TrainingRunID         string      `json:"training_run_id"`
	BaseModel             string      `json:"base_model"`
	ModelOwner            string      `json:"model_owner"`
	IsLora                bool        `json:"is_lora"`
	Corrupted             bool        `json:"corrupted"`
	LoraRank              *int        `json:"lora_rank,omitempty"`
	LastRequestTime       Time        `json:"last_request_time"`
	LastCheckpoint        *Checkpoint `json:"last_checkpoint,omitempty"`
	LastSamplerCheckpoint *Checkpoint `json:"last_sampler_checkpoint,omitempty"`
	UserMetadata          Metadata    `json:"user_metadata,omitempty"`
}

// TrainingRunsResponse is a page of runs, newest first.
type TrainingRunsResponse struct {
	TrainingRuns List[TrainingRun] `json:"training_runs"`
	Cursor       Cursor            `json:"cursor"`
}

// Checkpoint describes a checkpoint in lists.
type Checkpoint struct {
	CheckpointID   string   `json:"checkpoint_id"`   // Path.CheckpointID
	CheckpointType string   `json:"checkpoint_type"` // Kind.Type
	Time           Time     `json:"time"`
	TinkerPath     string   `json:"tinker_path"` // Path.String
	SizeBytes      *int64   `json:"size_bytes,omitempty"`
	Public         bool     `json:"public"`
	UserMetadata   Metadata `json:"user_metadata,omitempty"`
	ExpiresAt      *Time    `json:"expires_at,omitempty"`
}

// CheckpointsResponse lists the checkpoints of a run (no cursor) or of all runs (with one), newest first.
type CheckpointsResponse struct {
	Checkpoints List[Checkpoint] `json:"checkpoints"`
	Cursor      *Cursor          `json:"cursor,omitempty"`
}

// ExternalWeightsURLsResponse says where an export can be fetched, by relative file name.
type ExternalWeightsURLsResponse struct {
	URLs    Dict[string] `json:"urls"`
	Expires Time         `json:"expires"`
}

// SetTTLRequest changes when a checkpoint goes; null keeps it.
type SetTTLRequest struct {
	TTLSeconds Nullable[int64] `json:"ttl_seconds"`
}

func (r *SetTTLRequest) check() error {
	if !r.TTLSeconds.Present {
		return at(".ttl_seconds", errors.New("missing; send null to keep the checkpoint"))
	}
	if r.TTLSeconds.Null {
		return nil
	}
	return checkTTL(&r.TTLSeconds.Value)
}

// WeightsInfoRequest asks what a checkpoint is of.
type WeightsInfoRequest struct {
	TinkerPath string `json:"tinker_path" wire:"required"`
}

func (r *WeightsInfoRequest) check() error {
	_, err := ParsePath(r.TinkerPath)
	return at(".tinker_path", err)
}

// WeightsInfoResponse says it.
type WeightsInfoResponse struct {
	BaseModel       string           `json:"base_model"`
	IsLora          bool             `json:"is_lora"`
	LoraRank        *int             `json:"lora_rank,omitempty"`
	TrainUnembed    *bool            `json:"train_unembed,omitempty"`
	TrainMLP        *bool            `json:"train_mlp,omitempty"`
	TrainAttn       *bool            `json:"train_attn,omitempty"`
	OptimizerConfig *OptimizerConfig `json:"optimizer_config,omitempty"`
}

// CopyWeightsRequest copies a checkpoint into a new run of a project or of a session.
type CopyWeightsRequest struct {
	SourcePath           string `json:"source_path" wire:"required"`
	DestinationProjectID string `json:"destination_project_id,omitempty"`
	SessionID            string `json:"session_id,omitempty"`
	ModelSeqID           *int64 `json:"model_seq_id,omitempty"`
	TTLSeconds           *int64 `json:"ttl_seconds,omitempty"`
	WeightsAccessToken   string `json:"weights_access_token,omitempty"`
}

func (r *CopyWeightsRequest) check() error {
	if _, err := ParsePath(r.SourcePath); err != nil {
		return at(".source_path", err)
	}
	if r.DestinationProjectID == "" && (r.SessionID == "" || r.ModelSeqID == nil) {
		return at(".destination_project_id", errors.New("missing; send it, or session_id and model_seq_id"))
	}
	return checkTTL(r.TTLSeconds)
}

// CopyWeightsResponse names the copy.
type CopyWeightsResponse struct {
	TinkerPath string `json:"tinker_path"`
}

// AuditResponse lists events by time.
type AuditResponse struct {
	Entries List[AuditEntry] `json:"entries"`
}

// AuditEntry is one event.
type AuditEntry struct {
	Timestamp    Time      `json:"timestamp"`
	Event        string    `json:"event"` // <resource>_<action>
	EventDetails Dict[any] `json:"event_details"`
}

// BillingEventsResponse lists usage by the hour.
type BillingEventsResponse struct {
	Data            List[BillingEvent]   `json:"data"`
	Sessions        Dict[BillingSession] `json:"sessions"`
	CostDataThrough *Time                `json:"cost_data_through"`
}

// BillingEvent is what one hour used.
type BillingEvent struct {
	BucketStart      Time             `json:"bucket_start"`
	BucketEnd        Time             `json:"bucket_end"`
	EventInfo        BillingEventInfo `json:"event_info"`
	BaseModel        string           `json:"base_model,omitempty"`
	UserID           string           `json:"user_id,omitempty"`
	UserName         string           `json:"user_name,omitempty"`
	SessionID        string           `json:"session_id,omitempty"`
	ProjectID        string           `json:"project_id,omitempty"`
	EstimatedCostUSD *float64         `json:"estimated_cost_usd,omitempty"`
}

// BillingEventInfo is the kind of usage and its amount: TokenCount for "training", "sampling_sample" and
// "sampling_prefill" (with Cached), Count for "checkpoint", GigabyteHours (with Free) for "storage".
type BillingEventInfo struct {
	Type          string   `json:"type"`
	TokenCount    *int64   `json:"token_count,omitempty"`
	Cached        *bool    `json:"cached,omitempty"`
	Count         *int64   `json:"count,omitempty"`
	GigabyteHours *float64 `json:"gigabyte_hours,omitempty"`
	Free          *bool    `json:"free,omitempty"`
}

// BillingSession is what is known of a session in the list.
type BillingSession struct {
	UserMetadata Metadata `json:"user_metadata,omitempty"`
}

// BillingStorageResponse lists what checkpoints occupy.
type BillingStorageResponse struct {
	Data                             List[BillingStorageItem] `json:"data"`
	EffectiveRateUSDPerGigabyteMonth *float64                 `json:"effective_rate_usd_per_gigabyte_month,omitempty"`
}

// BillingStorageItem is the part of one project.
type BillingStorageItem struct {
	ProjectID       string  `json:"project_id,omitempty"`
	CheckpointCount int     `json:"checkpoint_count"`
	SizeBytes       int64   `json:"size_bytes"`
	SizeGigabytes   float64 `json:"size_gigabytes"`
}
