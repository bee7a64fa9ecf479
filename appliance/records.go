package appliance

import "smolgym/store"

// Records that callers may look at without knowing the store.
type (
	// ModelRecord describes a stored model.
	ModelRecord = store.Model
	// CheckpointRecord describes a checkpoint.
	CheckpointRecord = store.Checkpoint
)
