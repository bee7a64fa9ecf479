package store

import (
	"encoding/json"
	"fmt"
	"io/fs"
	"math"
	"regexp"
	"strings"
	"time"
	"unicode/utf8"

	"smolgym/store/blob"
)

// Model is a base model: its original files, byte for byte, and what was read from them.
type Model struct {
	Name       string            `json:"name"` // org/name or org/name:variant
	Aliases    []string          `json:"aliases,omitempty"`
	Created    time.Time         `json:"created"`
	Files      []File            `json:"files"`
	Family     string            `json:"family"`
	Parameters int64             `json:"parameters"`
	DType      string            `json:"dtype"`
	Context    int               `json:"context"` // tokens
	Meta       map[string]string `json:"meta,omitempty"`
}

// File is one original file of a model.
type File struct {
	Path   string   `json:"path"` // relative, with slashes
	Size   int64    `json:"size"` // bytes
	SHA256 blob.Sum `json:"sha256"`
	Blob   blob.ID  `json:"blob"`
}

// File returns the model's file of that path.
func (m *Model) File(path string) (File, bool) {
	for _, f := range m.Files {
		if f.Path == path {
			return f, true
		}
	}
	return File{}, false
}

// Session is a client's connection in the wire's sense.
type Session struct {
	ID           string            `json:"id"`
	Created      time.Time         `json:"created"`
	LastSeen     time.Time         `json:"last_seen,omitzero"`
	Tags         []string          `json:"tags,omitempty"`
	UserMetadata map[string]string `json:"user_metadata,omitempty"`
	ProjectID    string            `json:"project_id,omitempty"`
	DisplayName  string            `json:"display_name,omitempty"`
	SDKVersion   string            `json:"sdk_version,omitempty"`
	Finished     *Finish           `json:"finished,omitempty"`
	NextModelSeq int64             `json:"next_model_seq,omitempty"`
}

// Finish is how a session ended; the first reason wins.
type Finish struct {
	Reason string    `json:"reason"` // success, errored or interrupted
	Detail string    `json:"detail,omitempty"`
	Time   time.Time `json:"time,omitzero"`
}

// Adapter is the shape of what a run trains, part of Run and Checkpoint.
type Adapter struct {
	Rank         int     `json:"rank"`
	Alpha        float64 `json:"alpha"`
	Seed         int64   `json:"seed"`
	TrainAttn    bool    `json:"train_attn"`
	TrainMLP     bool    `json:"train_mlp"`
	TrainUnembed bool    `json:"train_unembed"`
	Full         bool    `json:"full"` // every parameter; Rank is 0
}

// Run is a training run.
type Run struct {
	ID           string            `json:"id"` // <session>:train:<n>
	SessionID    string            `json:"session_id"`
	ModelSeq     int64             `json:"model_seq"`
	BaseModel    string            `json:"base_model"`
	Adapter                        // inlined
	Created      time.Time         `json:"created"`
	LastRequest  time.Time         `json:"last_request,omitzero"`
	LastSeq      int64             `json:"last_seq"`
	UserMetadata map[string]string `json:"user_metadata,omitempty"`
	Corrupted    bool              `json:"corrupted,omitempty"`
	Passing      bool              `json:"passing,omitempty"`   // made to export a checkpoint: lists leave it out
	FromPath     string            `json:"from_path,omitempty"` // checkpoint it was created from
	Numerics     string            `json:"numerics,omitempty"`  // instruction family, precision, numerics version
}

// Kind is the second part of a checkpoint's path.
type Kind string

const (
	KindWeights  Kind = "weights"          // weights and optimizer
	KindSampler  Kind = "sampler_weights"  // weights
	KindExternal Kind = "external_weights" // an export
)

// CheckpointKey names a checkpoint.
type CheckpointKey struct {
	RunID string `json:"run_id"`
	Kind  Kind   `json:"kind"`
	Name  string `json:"name"`
}

// Path is the wire's form, tinker://<run>/<kind>/<name>.
func (k CheckpointKey) Path() string {
	return "tinker://" + k.RunID + "/" + string(k.Kind) + "/" + k.Name
}

// ParsePath reads the wire's form.
func ParsePath(path string) (CheckpointKey, error) {
	rest, ok := strings.CutPrefix(path, "tinker://")
	parts := strings.Split(rest, "/")
	if !ok || len(parts) != 3 {
		return CheckpointKey{}, fmt.Errorf("checkpoint path %s: %w; expected tinker://<run>/<kind>/<name>", quote(path), ErrInvalid)
	}
	k := CheckpointKey{RunID: parts[0], Kind: Kind(parts[1]), Name: parts[2]}
	return k, k.check()
}

func (k CheckpointKey) check() error {
	if err := checkID("checkpoint: run", k.RunID); err != nil {
		return err
	}
	switch k.Kind {
	case KindWeights, KindSampler, KindExternal:
	default:
		return fmt.Errorf("checkpoint: kind %s: %w; it is weights, sampler_weights or external_weights", quote(string(k.Kind)), ErrInvalid)
	}
	if !checkpointName.MatchString(k.Name) || k.Name == "." || strings.Contains(k.Name, "..") {
		return fmt.Errorf("checkpoint: name %s: %w; use 1 to 255 of A-Z a-z 0-9 . _ - without \"..\"", quote(k.Name), ErrInvalid)
	}
	return nil
}

var checkpointName = regexp.MustCompile(`^[A-Za-z0-9._-]{1,255}$`)

// Checkpoint is saved weights. Lists leave Tensors and Optimizer nil: a page of
// checkpoints would else read megabytes.
type Checkpoint struct {
	CheckpointKey
	Adapter
	Created      time.Time         `json:"created"`
	Expires      *time.Time        `json:"expires,omitempty"`
	UserMetadata map[string]string `json:"user_metadata,omitempty"`
	Public       bool              `json:"public,omitempty"`
	BaseModel    string            `json:"base_model"`
	Step         int64             `json:"step"`       // optimizer steps taken
	SizeBytes    int64             `json:"size_bytes"` // of tensors and optimizer
	Numerics     string            `json:"numerics,omitempty"`
	Tensors      []Tensor          `json:"-"`
	Optimizer    []Tensor          `json:"-"`
}

// Tensor is where the bytes of one tensor are.
type Tensor struct {
	Name   string  `json:"name"`
	DType  string  `json:"dtype"`
	Shape  []int64 `json:"shape"`
	Blob   blob.ID `json:"blob"`
	Offset int64   `json:"offset,omitempty"` // of the first byte in the blob
	Bytes  int64   `json:"bytes"`
}

// Sampler is a set of weights that clients sample from.
type Sampler struct {
	ID        string    `json:"id"`
	SessionID string    `json:"session_id"`
	Seq       int64     `json:"seq"`
	BaseModel string    `json:"base_model"`
	ModelPath string    `json:"model_path,omitempty"` // tinker://…, or empty for the base model
	RunID     string    `json:"run_id,omitempty"`
	Ephemeral bool      `json:"ephemeral,omitempty"`
	Created   time.Time `json:"created"`
	Clients   int64     `json:"clients,omitempty"`  // that joined; each got the next number
	Accepted  []Span    `json:"accepted,omitempty"` // one a clone
}

// Span bounds the request numbers of one clone of a sampler that may have been
// accepted and not been fetched yet: Low to High-1.
type Span struct {
	Clone int64 `json:"clone"`
	Low   int64 `json:"low"`
	High  int64 `json:"high"`
}

// FutureState is how far a request has come.
type FutureState string

const (
	FuturePending FutureState = "pending"
	FutureDone    FutureState = "done"
	FutureFailed  FutureState = "failed"
)

// Future is a request and, once it is done, its answer. Lists leave Result nil.
type Future struct {
	ID          string      `json:"id"`
	Kind        string      `json:"kind"`
	RunID       string      `json:"run_id,omitempty"`
	SamplerID   string      `json:"sampler_id,omitempty"`
	Seq         int64       `json:"seq"`
	BodyHash    string      `json:"body_hash,omitempty"` // tells a repeat from another request
	State       FutureState `json:"state"`
	ContentType string      `json:"content_type,omitempty"`
	Result      []byte      `json:"-"`
	Error       string      `json:"error,omitempty"`
	Category    string      `json:"category,omitempty"` // user, server or unknown
	Created     time.Time   `json:"created"`
	Done        time.Time   `json:"done,omitzero"`
}

// Owner is what orders the request: the run, else the sampler.
func (f *Future) Owner() string {
	if f.RunID != "" {
		return f.RunID
	}
	return f.SamplerID
}

// recordVersion is the first byte of every record and body.
const recordVersion = 1

// encode writes the version byte and the JSON form.
func encode(v any) ([]byte, error) {
	b, err := json.Marshal(v)
	if err != nil {
		return nil, err
	}
	return append([]byte{recordVersion}, b...), nil
}

// decode reads what encode wrote.
func decode(b []byte, v any) error {
	raw, err := unwrap(b)
	if err != nil {
		return err
	}
	if err := json.Unmarshal(raw, v); err != nil {
		return fmt.Errorf("%w: %w", ErrDamaged, err)
	}
	return nil
}

// unwrap checks and drops the version byte.
func unwrap(b []byte) ([]byte, error) {
	if len(b) == 0 {
		return nil, fmt.Errorf("%w: empty record", ErrDamaged)
	}
	if b[0] > recordVersion {
		return nil, fmt.Errorf("%w: record version %d, this program reads up to %d; use a newer smolgym", ErrNewer, b[0], recordVersion)
	}
	if b[0] == 0 {
		return nil, fmt.Errorf("%w: record version 0", ErrDamaged)
	}
	return b[1:], nil
}

// tensors is the body of a checkpoint's record.
type tensors struct {
	Tensors   []Tensor `json:"tensors"`
	Optimizer []Tensor `json:"optimizer,omitempty"`
}

// maxName bounds names and ids, in bytes.
const maxName = 512

// checkID refuses names that can't be keys: empty, long, not text, or with a
// control character (NUL separates the parts of keys).
func checkID(what, id string) error {
	switch {
	case id == "":
		return fmt.Errorf("%s: empty name: %w", what, ErrInvalid)
	case len(id) > maxName:
		return fmt.Errorf("%s: name %s of %d bytes: %w; at most %d", what, quote(id), len(id), ErrInvalid, maxName)
	case !utf8.ValidString(id) || strings.ContainsFunc(id, isControl):
		return fmt.Errorf("%s: name %s: %w; control characters and broken UTF-8 aren't allowed", what, quote(id), ErrInvalid)
	}
	return nil
}

func isControl(r rune) bool { return r < 0x20 || r == 0x7f }

// checkModelName also refuses what would mislead anyone who joins the name to a path.
func checkModelName(what, name string) error {
	if err := checkID(what, name); err != nil {
		return err
	}
	if !fs.ValidPath(name) || name == "." || strings.Contains(name, "..") || strings.Contains(name, `\`) {
		return fmt.Errorf("%s: name %s: %w; use org/name without \"..\", \"\\\" or a leading slash", what, quote(name), ErrInvalid)
	}
	return nil
}

// quote shows a foreign name without letting it flood the message.
func quote(s string) string {
	if len(s) > 80 {
		s = s[:80] + "…"
	}
	return fmt.Sprintf("%q", s)
}

// nanos is a time as an ordered key; times outside 1970 to 2262 are clamped.
func nanos(t time.Time) uint64 {
	if t.Unix() <= 0 {
		return 0
	}
	if t.Unix() >= math.MaxInt64/int64(time.Second) {
		return math.MaxInt64
	}
	return uint64(t.UnixNano())
}
