package hf

import (
	"encoding/json"
	"errors"

	"smolgym/model/safetensors"
)

// Reasons for a refusal, to be told apart with errors.Is.
var (
	ErrMissing     = errors.New("checkpoint is incomplete")     // a file, shard or tensor that is named isn't there
	ErrInvalid     = errors.New("checkpoint is malformed")      // a file contradicts itself or another one
	ErrUnsupported = errors.New("checkpoint is not supported")  // sound, but of a kind that can't be taken
	ErrName        = errors.New("file name is not allowed")     // a name that could leave the folder
	ErrLimit       = errors.New("checkpoint beyond the limits") // larger than this package allows
)

// Checkpoint is the checked description of a model's files. Nothing in it holds a file open.
type Checkpoint struct {
	Config           Config
	GenerationConfig GenerationConfig
	Tensors          map[string]Tensor
	Names            []string // the keys of Tensors, sorted
	Files            []string // the weight files, sorted
	EOS              []int    // all end-of-sequence ids of both configurations, ascending, without repeats
	Warnings         []string // what was odd and let pass, a sentence each

	indexed  bool                // the weight files are those of a shard index
	composed map[string][]string // stored tensors of a parameter, see Compose
}

// Has says whether the checkpoint stores a tensor of that name; whether an output head has one of its own, for example.
func (c *Checkpoint) Has(name string) bool {
	_, ok := c.Tensors[name]
	return ok
}

// Tensor says where a parameter lies.
type Tensor struct {
	Name   string
	DType  safetensors.DType
	Shape  []int64
	File   string // the weight file that holds it
	Offset int64  // first byte, counted from the start of that file
	Bytes  int64  // length in bytes
}

// Elements is the product of the shape, 1 for a scalar.
func (t Tensor) Elements() int64 { return t.stored().Elements() }

func (t Tensor) stored() safetensors.Tensor {
	return safetensors.Tensor{Name: t.Name, DType: t.DType, Shape: t.Shape, Offset: t.Offset, Bytes: t.Bytes}
}

// GenerationConfig is what generation_config.json says about ending a text; the zero value when there is no such file.
type GenerationConfig struct {
	BOS []int
	EOS []int
	Pad []int
	Raw map[string]json.RawMessage // every field, by name
}

// Config is a decoder's configuration in one spelling. A pointer is nil, a slice empty and a string "" where the file
// says nothing (or null); which default then holds is for the model family to say, except where a field states one.
type Config struct {
	ModelType     string
	Wrapper       string // model_type of the model of several parts that the decoder was taken out of, "" if none
	Architectures []string
	DType         string // "bfloat16", "float32", …: the type the weights were meant for; the tensors carry their own

	VocabSize        int
	HiddenSize       int
	IntermediateSize int // 0 if absent
	Layers           int
	Heads            int
	KVHeads          int // Heads if absent; always divides Heads
	HeadDim          int // HiddenSize/Heads if absent
	MaxPositions     int // 0 if absent

	RMSNormEps   *float64
	LayerNormEps *float64
	HiddenAct    string

	AttentionBias     *bool
	MLPBias           *bool
	TieWordEmbeddings *bool

	Rope      Rope
	RopeLocal *Rope // of the windowed layers, where these have their own

	SlidingWindow    *int // tokens; see Window for the one in force
	UseSlidingWindow *bool
	MaxWindowLayers  *int
	WindowPattern    *int     // every n-th layer is without window
	LayerTypes       []string // one per layer, or empty
	NoRopeLayers     []int    // one per layer, 1 = rotary embedding on; or empty
	NoRopeInterval   *int

	AttentionSoftcap    *float64
	FinalSoftcap        *float64
	QueryPreAttnScalar  *float64
	AttentionMultiplier *float64
	EmbeddingMultiplier *float64
	ResidualMultiplier  *float64
	LogitsScaling       *float64

	ParallelResidual *bool

	Experts          *int
	ExpertsPerToken  *int
	ExpertSize       *int // moe_intermediate_size
	SharedExpertSize *int
	NormTopKProb     *bool
	SparseStep       *int
	DenseLayers      []int // mlp_only_layers

	LinearConvKernel *int
	LinearKeyDim     *int
	LinearValueDim   *int
	LinearKeyHeads   *int
	LinearValueHeads *int
	FullInterval     *int // full_attention_interval: every n-th layer attends to everything, the others are linear

	BOS []int // usually one
	EOS []int // of config.json alone; Checkpoint.EOS is the union
	Pad []int

	// Raw is every field of the file as it stood, by its name there.
	Raw map[string]json.RawMessage

	// Warnings tell what was odd and has no effect, a sentence each.
	Warnings []string

	ropeRest map[string]json.RawMessage // of the rotary object what Rope doesn't hold, as "rope_parameters.NAME"
}

// Rope describes the rotary position embedding.
type Rope struct {
	Type   string  // "default", "linear", "dynamic", "yarn", "longrope" or "llama3"
	Theta  float64 // 10000 if absent in the families that default to it; 0 if absent elsewhere: a builder must not use that
	Factor float64 // 0 if absent; never absent in linear, dynamic, yarn and llama3

	LowFreqFactor        float64 // llama3 only
	HighFreqFactor       float64 // llama3 only
	OriginalMaxPositions int     // 0 if absent

	BetaFast        *float64 // yarn
	BetaSlow        *float64 // yarn
	AttentionFactor *float64 // yarn, longrope
	MScale          *float64 // yarn
	MScaleAllDim    *float64 // yarn
	Truncate        *bool    // yarn

	PartialRotaryFactor *float64  // the part of HeadDim that is rotated; all of it if absent
	ShortFactor         []float64 // longrope, rotated dimensions / 2
	LongFactor          []float64 // longrope, rotated dimensions / 2
}
