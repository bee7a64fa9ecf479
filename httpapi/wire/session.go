package wire

import (
	"encoding/json"
	"errors"
	"fmt"
)

// ErrorResponse is the body of every error status.
type ErrorResponse struct {
	Detail string `json:"detail"`
}

// HealthResponse answers healthz.
type HealthResponse struct {
	Status string `json:"status"` // "ok"
}

// CapabilitiesResponse lists the models that can be trained or sampled.
type CapabilitiesResponse struct {
	SupportedModels List[SupportedModel] `json:"supported_models"`
}

// SupportedModel is one of them.
type SupportedModel struct {
	ModelName        string `json:"model_name"`
	MaxContextLength int    `json:"max_context_length"` // tokens
	Trainable        bool   `json:"trainable"`
	Sampleable       bool   `json:"sampleable"`
}

// ConfigRequest is the body of client/config and client/dynamic_config.
type ConfigRequest struct {
	SDKVersion string `json:"sdk_version"`
}

// ConfigResponse sets client behaviour; a nil field leaves the client's default, given in the comments.
type ConfigResponse struct {
	PJWTAuthEnabled                     *bool   `json:"pjwt_auth_enabled,omitempty"`                        // false
	CredentialDefaultSource             *string `json:"credential_default_source,omitempty"`                // "api_key"
	SampleDispatchBytesSemaphoreSize    *int64  `json:"sample_dispatch_bytes_semaphore_size,omitempty"`     // 10485760
	InflightResponseBytesSemaphoreSize  *int64  `json:"inflight_response_bytes_semaphore_size,omitempty"`   // 52428800
	ParallelFwdbwdChunks                *bool   `json:"parallel_fwdbwd_chunks,omitempty"`                   // true
	ProtoCompressFwdbwd                 *bool   `json:"proto_compress_fwdbwd,omitempty"`                    // false
	FwdbwdMaxChunkLen                   *int    `json:"fwdbwd_max_chunk_len,omitempty"`                     // 1024 datums
	FwdbwdMaxChunkBytesCount            *int64  `json:"fwdbwd_max_chunk_bytes_count,omitempty"`             // 5000000
	FwdbwdDispatchBytesSemaphoreSize    *int64  `json:"fwdbwd_dispatch_bytes_semaphore_size,omitempty"`     // 50000000
	BillingExceptionMaxPauseDurationSec *int64  `json:"billing_exception_max_pause_duration_sec,omitempty"` // 3600
	SampleNoRetries                     *bool   `json:"sample_no_retries,omitempty"`                        // false
	SampleEnableStuckDetection          *bool   `json:"sample_enable_stuck_detection,omitempty"`            // true
	SampleMaxConcurrentRequests         *int    `json:"sample_max_concurrent_requests,omitempty"`           // 2000
	UsePyqwestTransport                 *bool   `json:"use_pyqwest_transport,omitempty"`                    // true
	SampleUseRetrieveFutures            *bool   `json:"sample_use_retrieve_futures,omitempty"`              // false
	CustomLossServerSide                *bool   `json:"custom_loss_server_side,omitempty"`                  // false
	SampleJoinSamplingSession           *bool   `json:"sample_join_sampling_session,omitempty"`             // false
	CreateModelViaLoadWeights           *bool   `json:"create_model_via_load_weights,omitempty"`            // false; read by SDKs before 0.38, which load in one request when told to
}

// DynamicConfigResponse sets client behaviour that is asked for again and again.
type DynamicConfigResponse struct {
	RefreshIntervalSec       *int  `json:"refresh_interval_sec,omitempty"`         // 300
	SampleCancelEnabled      *bool `json:"sample_cancel_enabled,omitempty"`        // false
	SampleCancelMaxBatchSize *int  `json:"sample_cancel_max_batch_size,omitempty"` // 64
}

// AuthTokenResponse answers auth/token, whose body is an empty object.
type AuthTokenResponse struct {
	JWT string `json:"jwt"`
}

// APIKeyResponse answers auth/apikey/me.
type APIKeyResponse struct {
	KeyID   int64         `json:"key_id"`
	Name    string        `json:"name"`
	Note    string        `json:"note"`
	Details APIKeyDetails `json:"details"`
}

// APIKeyDetails say whose key it is.
type APIKeyDetails struct {
	OrgDetails struct {
		Name string `json:"name"`
	} `json:"org_details"`
	UserDetails struct {
		Email string `json:"email"`
	} `json:"user_details"`
}

type (
	createSession    struct{}
	sessionHeartbeat struct{}
	accepted         struct{}
)

func (createSession) kind() string    { return "create_session" }
func (sessionHeartbeat) kind() string { return "session_heartbeat" }
func (accepted) kind() string         { return "accepted" }

// CreateSessionRequest begins a session.
type CreateSessionRequest struct {
	Tags         List[string] `json:"tags"`
	UserMetadata Metadata     `json:"user_metadata,omitempty"`
	SDKVersion   string       `json:"sdk_version"`
	ProjectID    string       `json:"project_id,omitempty"`
	DisplayName  string       `json:"display_name,omitempty"`
}

// CreateSessionResponse names the session; the client logs the messages.
type CreateSessionResponse struct {
	Type           Const[createSession] `json:"type"`
	SessionID      string               `json:"session_id"`
	InfoMessage    string               `json:"info_message,omitempty"`
	WarningMessage string               `json:"warning_message,omitempty"`
	ErrorMessage   string               `json:"error_message,omitempty"`
}

// HeartbeatRequest says that a session is alive.
type HeartbeatRequest struct {
	SessionID string `json:"session_id" wire:"required"`
}

// HeartbeatResponse answers it.
type HeartbeatResponse struct {
	Type Const[sessionHeartbeat] `json:"type"`
}

// FinishSessionRequest ends a session.
type FinishSessionRequest struct {
	Reason FinishReason `json:"reason" wire:"required"`
	Detail string       `json:"detail,omitempty"`
}

// FinishReason is how a session ended.
type FinishReason struct {
	Type string `json:"type" wire:"required"` // "success", "errored" or "interrupted"
}

func (r *FinishReason) check() error {
	switch r.Type {
	case "success", "errored", "interrupted":
		return nil
	}
	return at(".type", fmt.Errorf("want success, errored or interrupted, got %q", clip(r.Type)))
}

// SessionResponse describes a session.
type SessionResponse struct {
	TrainingRunIDs List[string] `json:"training_run_ids"`
	SamplerIDs     List[string] `json:"sampler_ids"`
	UserMetadata   Metadata     `json:"user_metadata,omitempty"`
	DisplayName    string       `json:"display_name,omitempty"`
}

// SessionsResponse lists session ids.
type SessionsResponse struct {
	Sessions List[string] `json:"sessions"`
}

// AssignProjectRequest moves a session to a project.
type AssignProjectRequest struct {
	ProjectID string `json:"project_id" wire:"required"`
}

// TraceExportResponse is the state of a trace: "pending", "ready" with a URL, or "failed" with an error.
type TraceExportResponse struct {
	Status string `json:"status"`
	URL    string `json:"url,omitempty"`
	Error  string `json:"error,omitempty"`
}

// SessionSearchRequest looks for sessions.
type SessionSearchRequest struct {
	SessionID    string               `json:"session_id,omitempty"`
	ProjectIDs   []string             `json:"project_ids,omitempty"`
	UserMetadata Metadata             `json:"user_metadata"`
	DisplayName  string               `json:"display_name,omitempty"`
	Owner        SearchOwner          `json:"owner"`
	Statuses     []SessionStatusQuery `json:"statuses,omitempty"`
	Limit        int                  `json:"limit"`
	Cursor       *SessionSearchCursor `json:"cursor,omitempty"`
}

func (r *SessionSearchRequest) setDefaults() { r.Owner.Type, r.Limit = "own", 50 }

func (r *SessionSearchRequest) check() error {
	if r.Limit < 1 || r.Limit > 200 {
		return at(".limit", fmt.Errorf("want 1 to 200, got %d", r.Limit))
	}
	return nil
}

// SearchOwner says whose sessions to look at.
type SearchOwner struct {
	Type      string   `json:"type" wire:"required"` // "own", "accessible" or "user"
	OwnerURNs []string `json:"owner_urns,omitempty"`
}

func (o *SearchOwner) check() error {
	switch o.Type {
	case "own", "accessible":
		return nil
	case "user":
		if len(o.OwnerURNs) == 0 {
			return at(".owner_urns", errors.New("missing"))
		}
		return nil
	}
	return at(".type", fmt.Errorf("want own, accessible or user, got %q", clip(o.Type)))
}

// SessionStatusQuery matches a status; Reasons narrow "client_finished".
type SessionStatusQuery struct {
	Type    string   `json:"type" wire:"required"`
	Reasons []string `json:"reasons,omitempty"`
}

// SessionSearchCursor is where the next page starts.
type SessionSearchCursor struct {
	LastCreatedAt Time   `json:"last_created_at" wire:"required"`
	LastSessionID string `json:"last_session_id" wire:"required"`
}

// SessionSearchResponse is one page, newest first.
type SessionSearchResponse struct {
	Sessions   List[SessionSummary] `json:"sessions"`
	NextCursor *SessionSearchCursor `json:"next_cursor,omitempty"`
}

// SessionSummary describes a session in a page.
type SessionSummary struct {
	SessionID              string         `json:"session_id"`
	CreatedAt              Time           `json:"created_at"`
	Owner                  string         `json:"owner"`
	ProjectID              string         `json:"project_id"`
	Status                 *SessionStatus `json:"status,omitempty"`
	CheckpointsCount       int            `json:"checkpoints_count"`
	DisplayName            string         `json:"display_name,omitempty"`
	UserMetadata           Metadata       `json:"user_metadata,omitempty"`
	CheckpointStorageBytes *int64         `json:"checkpoint_storage_bytes,omitempty"`
}

// SessionStatus is how a session is: "active", "cancelled", "client_finished" (Reason, Detail) or "failed" (all of it).
type SessionStatus struct {
	Type     string               `json:"type"`
	Detail   string               `json:"detail,omitempty"`
	Category string               `json:"category,omitempty"` // "user" or "internal"
	Reason   *SessionStatusReason `json:"reason,omitempty"`
	Message  string               `json:"message,omitempty"`
}

// SessionStatusReason is what ended a session: how the client finished, or which request, run or sampler failed.
type SessionStatusReason struct {
	Type              string `json:"type"`
	RequestID         string `json:"request_id,omitempty"`
	RequestType       string `json:"request_type,omitempty"`
	TrainingRunID     string `json:"training_run_id,omitempty"`
	SamplingSessionID string `json:"sampling_session_id,omitempty"`
}

// TelemetryRequest carries client events. They may hold keys and file paths: count them, do not store them.
type TelemetryRequest struct {
	Events      []json.RawMessage `json:"events"`
	Platform    string            `json:"platform"`
	SDKVersion  string            `json:"sdk_version"`
	SessionID   string            `json:"session_id"`
	ProcessUUID string            `json:"process_uuid"`
}

// TelemetryResponse accepts them.
type TelemetryResponse struct {
	Status Const[accepted] `json:"status"`
}
