package engine

import (
	"errors"
	"time"

	"smolgym/model/ir"
)

// The errors of the engine. Every error that is the caller's fault wraps
// ErrRequest; its text names the item, the field and the remedy.
var (
	ErrRequest   = errors.New("invalid request")
	ErrNoFit     = errors.New("does not fit in memory")
	ErrNonFinite = errors.New("non-finite gradient")
	ErrCanceled  = errors.New("canceled") // the request's own client gave it up
	ErrClosed    = errors.New("engine is closed")
)

// LoRA is the adapter a run trains. A nil *LoRA in TrainerConfig means full
// update of the parts that are on.
type LoRA struct {
	Rank  int
	Alpha float64
	Seed  uint64
}

// TrainerConfig says what a run trains.
type TrainerConfig struct {
	LoRA      *LoRA // nil: full update, every parameter
	Attention bool  // LoRA only: adapters on attention projections
	MLP       bool  // LoRA only: adapters on feed-forward projections
	Unembed   bool  // LoRA only: adapter on the output head
}

// Tensor is one named input of a datum: float32 or int64 values in row-major
// order of Shape. A nil Shape means one axis.
type Tensor struct {
	Shape []int
	F32   []float32
	I64   []int64
}

// Datum is one sequence of a batch: input position i predicts target i.
type Datum struct {
	Tokens []int32 // model input, already shifted by the caller
	Inputs map[string]Tensor
}

// Batch is the input of one forward or forward_backward.
type Batch struct {
	Data        []Datum
	Loss        string             // a name of package loss
	Config      map[string]float64 // loss settings; missing ones take the loss's defaults
	ForwardOnly bool               // leave the accumulated gradient alone
}

// Output is the result of one forward or forward_backward.
type Output struct {
	Logprobs [][]float32 // per datum, row-major in the shape of its target_tokens
	Shapes   [][]int     // per datum: [N] or [N,K]
	Loss     float64     // sum over datums of the per-datum float32 losses, in datum order
	Tokens   int         // input tokens
	Scored   int         // targets with a weight (or advantage) other than 0
	Passes   []Pass      // through the model, in order

	began time.Time
}

// AdamParams are one step's optimizer settings.
type AdamParams struct {
	LearningRate float64
	Beta1        float64
	Beta2        float64
	Eps          float64
	WeightDecay  float64
	GradClipNorm float64 // 0: no clipping
}

// StepResult tells what one optimizer step did.
type StepResult struct {
	Step     int64   // steps taken by this run so far
	GradNorm float64 // global norm before clipping
}

// TensorInfo names a tensor of a run's state. Parameters have the names of the
// checkpoint or of PEFT; moments are "m:"+name and "v:"+name. All are float32.
type TensorInfo struct {
	Name      string
	Shape     []int64
	Bytes     int64
	Optimizer bool
}

// SampleParams are the options of one sample request.
type SampleParams struct {
	MaxTokens   int    // 0: until a stop or the end of the context
	Seed        uint64 // sample i of a request draws from stream (Seed, i)
	Temperature float64
	TopK        int      // <= 0: off
	TopP        float64  // >= 1: off
	StopStrings []string // text at which a sample ends
	StopIDs     []int32  // tokens at which a sample ends
	NoEOS       bool     // do not stop at the model's end tokens
}

// SampleRequest is a prompt and how to go on from it.
type SampleRequest struct {
	Weights        *Weights
	Prompt         []int32
	Count          int // samples wanted, sharing the prompt's prefill
	Params         SampleParams
	PromptLogprobs bool
	TopKPrompt     int     // best tokens per prompt position, 0: none
	TopKSample     int     // best tokens per sampled position, 0: none
	LastN          int     // score only the last LastN prompt tokens, 0: all
	Targets        []int32 // [len(Prompt)-1,K]: tokens to score after each prompt position, -1: none
	AltTokens      int     // draws per prompt position at the request's temperature, 0: none
	// Done is called once, on the owner: it must not block.
	Done func(*SampleResult, error)
}

// Sequence is one finished sample. Logprobs are those of the distribution at
// temperature 1 over the full vocabulary, the trainer's.
type Sequence struct {
	Tokens   []int32
	Logprobs []float32
	Stopped  bool // a stop was met; otherwise the length limit
	TopK     *TopK
}

// TopK is a [Rows,K] table of the best tokens, best first. Missing cells hold
// id 0 and -99999.
type TopK struct {
	K        int
	IDs      []int32
	Logprobs []float32
}

// SampleResult is the answer to a SampleRequest.
type SampleResult struct {
	Sequences      []Sequence
	PromptLogprobs []float32 // NaN at position 0 and before the last LastN; nil when not asked for
	TopKPrompt     *TopK
	TargetLogprobs []float32 // in the shape of Targets, 0 where nothing was asked; nil when not asked for
	AltTokens      []int32   // [len(Prompt)-1,AltTokens]; nil when not asked for
	AltLogprobs    []float32 // of AltTokens, at temperature 1
	CachedTokens   int       // prompt tokens whose keys and values were already there
}

// Stats counts the owner's work since the start.
type Stats struct {
	DecodeSteps     int64 // batches decoded
	DecodeSequences int64 // sequences in those batches, summed
	MaxDecodeBatch  int   // most sequences in one batch
	MaxDecodeMix    int   // most sets of weights in one batch
	SampledTokens   int64
	LongestHold     time.Duration // longest that other work kept the device without asking whether decoding is due
	PrefillTokens   int64
	TrainTokens     int64
	OptimSteps      int64
}

// BaseInfo describes a loaded base model.
type BaseInfo struct {
	Name    string
	Family  string
	Context int // tokens of prompt and sample together
	Vocab   int // rows of the output head
	Params  int64
	EOS     []int32
	Bytes   int64 // device memory of the weights, counted once for all runs
	DType   ir.DType
}
