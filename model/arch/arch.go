package arch

import (
	"errors"
	"fmt"
	"math"
	"slices"

	"smolgym/model/hf"
	"smolgym/model/ir"
)

// ErrUnsupported is wrapped by the error of Build for a checkpoint with gaps.
var ErrUnsupported = errors.New("model can't be taken")

// Mode says what a graph is for.
type Mode uint8

// The modes.
const (
	Train  Mode = iota // scores every token
	Decode             // continues sequences from a key-value cache
)

// Page is the number of tokens in a page of the key-value cache.
const Page = ir.KeyBlock

// MaxContext bounds the rows of the rotary tables, and with them the context;
// heads larger than 256 get fewer, so that a table stays within 64 MiB.
const (
	MaxContext  = 1 << 17
	maxRopeSize = 1 << 24 // elements of one table
)

func contextOf(positions, headDim int) int {
	return max(1, min(positions, MaxContext, maxRopeSize/max(headDim/2, 1)))
}

// Model is a graph with what belongs to it.
type Model struct {
	Graph   *ir.Graph
	Consts  map[string][]float32 // rotary tables "rope.cos" and "rope.sin" [Context, headdim/2], by name
	Logits  ir.ID                // [T,V] when training, [R,V] when decoding
	Family  string
	Tied    bool // the output head is the embedding
	Context int  // most positions
	Vocab   int
	Layers  int
	Hidden  int
	Heads   int
	KVHeads int
	HeadDim int
	EOS     []int // end-of-sequence ids, ascending

	// KVBytesPerToken is the cache of one token over all layers.
	KVBytesPerToken int64
	// StateBytes is the recurrent state of one sequence over all layers, 0 for
	// models of attention alone. The graph of such a model has the input "slot"
	// [S]: each sequence's row of the states whose first axis is [L].
	StateBytes int64
	// Stored lists, for each weight that is not one stored tensor of the same
	// name, the stored tensors that make it up, laid end to end: experts kept
	// one by one, and other prefixes than the loaded model's.
	Stored map[string][]string
	// Unused names stored tensors that the graph does not read and that change
	// no number.
	Unused []string
	// Warnings are sentences a user should see.
	Warnings []string
}

// Build makes the graph of a checkpoint. Its error for one with gaps is an
// [*UnsupportedError]. Weights are declared as f32: the caller widens them, or
// see Narrow.
func Build(ck *hf.Checkpoint, mode Mode) (*Model, error) {
	if gaps := Check(ck); len(gaps) > 0 {
		return nil, &UnsupportedError{Gaps: gaps}
	}
	f := families[ck.Config.ModelType]
	b, err := f.build(ck, mode)
	if err != nil {
		return nil, fmt.Errorf("build %s: %w", f.name, err)
	}
	g, err := b.g.Finish()
	if err != nil {
		return nil, fmt.Errorf("build %s: %w", f.name, err)
	}
	c := b.c
	m := &Model{
		Graph: g, Consts: b.tables(), Logits: b.logits,
		Family: f.name, Tied: b.tied, Context: b.context, Vocab: c.VocabSize, Layers: c.Layers, Hidden: c.HiddenSize,
		Heads: c.Heads, KVHeads: c.KVHeads, HeadDim: c.HeadDim, EOS: slices.Clone(ck.EOS),
		KVBytesPerToken: 2 * int64(b.cached) * int64(c.KVHeads) * int64(c.HeadDim) * int64(ir.F32.Size()),
		StateBytes:      b.stateBytes(),
		Stored:          b.compose(ck),
		Unused:          b.unused(ck),
		Warnings:        slices.Clone(ck.Warnings),
	}
	if w := f.stretchWarning(c, b.rotary, b.context); w != "" {
		m.Warnings = append(m.Warnings, w)
	} else if most := f.maxPositions(c); most > b.context {
		m.Warnings = append(m.Warnings, fmt.Sprintf("max_position_embeddings is %d; at most %d are used", most, b.context))
	}
	if c.Wrapper != "" {
		m.Warnings = append(m.Warnings, fmt.Sprintf("the %s has parts for images: its text decoder alone is used", c.Wrapper))
	}
	if !b.tied && or(c.TieWordEmbeddings, f.tied) {
		m.Warnings = append(m.Warnings, fmt.Sprintf("tie_word_embeddings is true, but %s is stored too and was not compared: it is used as a head of its own", f.head()))
	}
	return m, nil
}

// Tables are the Consts of the graph that Build makes of a checkpoint. Unlike Build it leaves the checkpoint as it is, so that
// several may ask at once.
func Tables(ck *hf.Checkpoint) (map[string][]float32, error) {
	f, ok := families[ck.Config.ModelType]
	if !ok {
		return nil, fmt.Errorf("tables of %q: %w: it is no family", ck.Config.ModelType, ErrUnsupported)
	}
	b, err := f.build(ck, Train)
	if err != nil {
		return nil, fmt.Errorf("tables of %s: %w", f.name, err)
	}
	return b.tables(), nil
}

const (
	ropeCos  = "rope.cos"
	ropeSin  = "rope.sin"
	localCos = "rope.local.cos"
	localSin = "rope.local.sin"
)

// family is what sets one architecture apart from the shared decoder.
type family struct {
	name         string // model_type
	architecture string // the class with an output head
	wrapper      string // the class of several parts whose decoder this is
	eps          float64
	positions    int     // max_position_embeddings where the file has none
	theta        float64 // rope_theta where the file has none
	rotary       float64 // partial_rotary_factor where the file has none; 0 = 1
	tied         bool    // tie_word_embeddings where the file has none
	mlpBias      bool    // the family reads mlp_bias
	unitNorm     bool    // norms' weights are stored as their difference from one
	layerNorm    bool    // norms subtract the mean and have a bias
	partial      bool    // partial_rotary_factor is read
	noRope       bool    // positions are learned
	localRope    bool    // windowed layers have a rotary embedding of their own
	names        moduleNames
	experts      *expertNames
	activations  []string // what hidden_act may be, the first where the file has none; nil = silu
	layerKinds   []string // what layer_types may hold; nil = the field is not read
	consumes     []string
	ignores      []string                               // beginnings of stored tensors' names that are no part of the decoder
	inner        func(c *hf.Config) int                 // intermediate_size where the file has none
	setup        func(b *builder)                       // scales and caps
	check        func(k *checker)                       // what only this family can't take
	layer        func(b *builder, i int, h ir.ID) ir.ID // one transformer layer [T,D] -> [T,D]
}

// moduleNames are the paths of what stands around the layers.
type moduleNames struct{ embed, positions, norm, head string }

func (f *family) paths() moduleNames {
	if f.names.embed != "" {
		return f.names
	}
	return moduleNames{embed: "model.embed_tokens", norm: "model.norm", head: "lm_head"}
}

// head and embed are tensor names.
func (f *family) head() string  { return f.paths().head + ".weight" }
func (f *family) embed() string { return f.paths().embed + ".weight" }

var families = func() map[string]*family {
	m := map[string]*family{}
	for _, f := range []*family{&llama, &mistral, &qwen2, &qwen3, &smollm3, &gemma2, &gemma3, &olmo2, &olmo3, &phi3, &granite, &gpt2, &gptNeoX,
		&qwen3MoE, &mixtral, &qwen3Next, &qwen35, &qwen35MoE} {
		m[f.name] = f
	}
	return m
}()

// Families lists the model types that can be taken.
func Families() []string {
	names := make([]string, 0, len(families))
	for n := range families {
		names = append(names, n)
	}
	slices.Sort(names)
	return names
}

// commonFields are the configuration fields that every family honours.
var commonFields = []string{
	"vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads", "num_key_value_heads", "head_dim",
	"max_position_embeddings", "hidden_act", "tie_word_embeddings",
}

func (f *family) honours() []string {
	fields := append(slices.Clone(commonFields), f.consumes...)
	if !f.noRope {
		fields = append(fields, "rope_parameters")
	}
	if f.layerKinds != nil {
		fields = append(fields, "layer_types")
	}
	if f.layerNorm {
		return append(fields, "layer_norm_eps")
	}
	return append(fields, "rms_norm_eps")
}

func (f *family) maxPositions(c *hf.Config) int {
	if c.MaxPositions > 0 {
		return c.MaxPositions
	}
	return f.positions
}

// isTied decides as the reference does: a head that the file brings is used,
// whatever the flag says. See [Resolve] for one that equals the embedding.
func (f *family) isTied(ck *hf.Checkpoint) bool {
	return or(ck.Config.TieWordEmbeddings, f.tied) && len(f.stored(ck, f.head())) == 0
}

// contextLimit is the most positions that one rotary table serves.
func (f *family) contextLimit(c *hf.Config) int {
	limit := f.maxPositions(c)
	for _, r := range f.ropes(c) {
		if n := r.OriginalMaxPositions; r.Type == "longrope" && n > 0 && !sameFactors(r) {
			limit = min(limit, n)
		}
	}
	return limit
}

// ropes are the rotary embeddings of a model.
func (f *family) ropes(c *hf.Config) []hf.Rope {
	switch {
	case f.noRope:
		return nil
	case f.localRope:
		return []hf.Rope{f.rope(c), f.local(c)}
	}
	return []hf.Rope{f.rope(c)}
}

// rotaryDims is how many elements of a head rotate.
func (f *family) rotaryDims(c *hf.Config) int {
	part := or(c.Rope.PartialRotaryFactor, f.rotary)
	if !f.partial || part == 0 {
		return c.HeadDim
	}
	return int(float64(c.HeadDim) * part)
}

func (f *family) allowed() []string {
	if f.activations == nil {
		return []string{"silu", "swish"}
	}
	return f.activations
}

func (f *family) activation(c *hf.Config) string {
	if c.HiddenAct == "" {
		return f.allowed()[0]
	}
	return c.HiddenAct
}

// rope is the rotary embedding with the family's defaults.
func (f *family) rope(c *hf.Config) hf.Rope {
	r := c.Rope
	if r.Theta == 0 {
		r.Theta = f.theta
	}
	return r
}

// local is that of windowed layers.
func (f *family) local(c *hf.Config) hf.Rope {
	if c.RopeLocal == nil || c.RopeLocal.Theta == 0 && c.RopeLocal.Type == "default" {
		return hf.Rope{Type: "default", Theta: 10000}
	}
	return *c.RopeLocal
}

func or[T any](p *T, absent T) T {
	if p != nil {
		return *p
	}
	return absent
}

// build makes the graph, without looking at what the checkpoint stores.
func (f *family) build(ck *hf.Checkpoint, mode Mode) (*builder, error) {
	if mode != Train && mode != Decode {
		return nil, fmt.Errorf("mode %d: %w: it is Train or Decode", mode, ErrUnsupported)
	}
	c := &ck.Config
	b := &builder{f: f, c: c, mode: mode, g: ir.New(f.name), tied: f.isTied(ck), context: contextOf(f.contextLimit(c), c.HeadDim)}
	b.eps = or(c.RMSNormEps, f.eps)
	if f.layerNorm {
		b.eps = or(c.LayerNormEps, f.eps)
	}
	b.scale = 1 / math.Sqrt(float64(c.HeadDim))
	b.rotary = f.rotaryDims(c)
	b.activation = f.activation(c)
	if b.inner = c.IntermediateSize; b.inner == 0 && f.inner != nil {
		b.inner = f.inner(c)
	}
	b.embedScale, b.residual, b.logitScale = 1, 1, 1
	if f.setup != nil {
		f.setup(b)
	}
	b.inputs()
	h := b.embed()
	for i := range c.Layers {
		h = f.layer(b, i, h)
	}
	b.head(h)
	return b, b.g.Err()
}
