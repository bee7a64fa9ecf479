package wire

import "errors"

// FutureResponse accepts work whose result is fetched later.
type FutureResponse struct {
	RequestID string `json:"request_id"`
	ModelID   string `json:"model_id,omitempty"`
	// SampleSequenceIDs is for asample only, which fails without one unique string per sample.
	SampleSequenceIDs []string `json:"sample_sequence_ids,omitempty"`
}

// RetrieveFutureRequest fetches a result.
type RetrieveFutureRequest struct {
	RequestID         string `json:"request_id" wire:"required"`
	AllowMetadataOnly bool   `json:"allow_metadata_only"`
}

type tryAgain struct{}

func (tryAgain) kind() string { return "try_again" }

// QueueState says why a result is not there yet.
type QueueState string

// States of waiting work.
const (
	QueueActive          QueueState = "active"
	QueuePausedCapacity  QueueState = "paused_capacity"
	QueuePausedRateLimit QueueState = "paused_rate_limit"
)

// TryAgainResponse goes with status 408, after holding the poll.
type TryAgainResponse struct {
	Type             Const[tryAgain] `json:"type"`
	RequestID        string          `json:"request_id"`
	QueueState       QueueState      `json:"queue_state"`
	QueueStateReason string          `json:"queue_state_reason,omitempty"` // shown to the user
}

// Category says whose mistake a failure is.
type Category string

// Categories of failures.
const (
	CategoryUser    Category = "user"
	CategoryServer  Category = "server"
	CategoryUnknown Category = "unknown"
)

// FailedResponse is the final failure of a future. It goes with status 200: the client polls a 5xx forever.
type FailedResponse struct {
	Error    string   `json:"error"`
	Category Category `json:"category"`
}

type completeMetadata struct{}

func (completeMetadata) kind() string { return "complete_metadata" }

// MetadataResponse announces the size of a result; only for a request that allowed it.
type MetadataResponse struct {
	Status              Const[completeMetadata] `json:"status"`
	ResponsePayloadSize int64                   `json:"response_payload_size"` // bytes
}

// RetrieveFuturesRequest polls all futures of a sampler.
type RetrieveFuturesRequest struct {
	Target              FuturesTarget `json:"target" wire:"required"`
	PrevCursor          int64         `json:"prev_cursor"`
	Timeout             *float64      `json:"timeout,omitempty"` // seconds; absent holds the poll, 0 answers now
	RetrievedRequestIDs List[string]  `json:"retrieved_request_ids"`
}

// FuturesTarget is one clone of a sampler.
type FuturesTarget struct {
	Type              string `json:"type"`
	SamplingSessionID string `json:"sampling_session_id" wire:"required"`
	ClonedSamplerID   int64  `json:"cloned_sampler_id"` // seq_id / CloneStride
}

// CloneStride is the distance between the sequence numbers of two clones of a sampler.
const CloneStride = 1_000_000_000

func (t *FuturesTarget) setDefaults() { t.Type = "sampling_session" }

func (t *FuturesTarget) check() error {
	if t.Type != "sampling_session" {
		return at(".type", errors.New("want sampling_session"))
	}
	return nil
}

// RetrieveFuturesResponse lists what has finished since a cursor.
type RetrieveFuturesResponse struct {
	Completions List[Completion] `json:"completions"`
	Cursor      int64            `json:"cursor"`
}

// Completion is a finished or failed future.
type Completion struct {
	State                           string `json:"state"` // "finished" or "failed"
	RequestID                       string `json:"request_id"`
	ResponsePayloadUncompressedSize *int64 `json:"response_payload_uncompressed_size,omitempty"` // bytes, of a finished one
}

// CancelFutureRequest gives up on a future.
type CancelFutureRequest struct {
	RequestID string `json:"request_id" wire:"required"`
}
