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
	// Unused names stored tensors that the graph does not read and that change
	// no number.
	Unused []string
	// Warnings are sentences a user should see.
	Warnings []string
}

// Build makes the graph of a checkpoint. Its error for one with gaps is an
// [*UnsupportedError]. Weights are declared as f32: the caller widens them.
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
	cos, sin := ropeTables(c.Rope, c.HeadDim, b.context, f.maxPositions(c))
	m := &Model{
		Graph: g, Consts: map[string][]float32{ropeCos: cos, ropeSin: sin}, Logits: b.logits,
		Family: f.name, Tied: b.tied, Context: b.context, Vocab: c.VocabSize, Layers: c.Layers, Hidden: c.HiddenSize,
		Heads: c.Heads, KVHeads: c.KVHeads, HeadDim: c.HeadDim, EOS: slices.Clone(ck.EOS),
		KVBytesPerToken: 2 * int64(c.Layers) * int64(c.KVHeads) * int64(c.HeadDim) * int64(ir.F32.Size()),
		Unused:          b.unused(ck),
		Warnings:        slices.Clone(ck.Warnings),
	}
	if most := f.maxPositions(c); most > b.context {
		m.Warnings = append(m.Warnings, fmt.Sprintf("max_position_embeddings is %d; at most %d are used", most, b.context))
	}
	if !b.tied && or(c.TieWordEmbeddings, f.tied) {
		m.Warnings = append(m.Warnings, fmt.Sprintf("tie_word_embeddings is true, but %s is stored too and was not compared: it is used as a head of its own", headName))
	}
	return m, nil
}

const (
	ropeCos   = "rope.cos"
	ropeSin   = "rope.sin"
	embedName = "model.embed_tokens.weight"
	headName  = "lm_head.weight"
)

// family is what sets one architecture apart from the shared decoder.
type family struct {
	name         string // model_type
	architecture string // the class with an output head
	eps          float64
	positions    int  // max_position_embeddings where the file has none
	tied         bool // tie_word_embeddings where the file has none
	mlpBias      bool // the family reads mlp_bias
	qkNorm       bool // query and key heads are normalised before rotation
	consumes     []string
	layer        func(b *builder, i int, h ir.ID) ir.ID // one transformer layer [T,D] -> [T,D]
}

var families = func() map[string]*family {
	m := map[string]*family{}
	for _, f := range []*family{&llama, &mistral, &qwen2, &qwen3, &smollm3} {
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
	"max_position_embeddings", "rms_norm_eps", "hidden_act", "tie_word_embeddings", "rope_parameters",
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
	return or(ck.Config.TieWordEmbeddings, f.tied) && !ck.Has(headName)
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
	b := &builder{f: f, c: c, mode: mode, g: ir.New(f.name), tied: f.isTied(ck), context: contextOf(f.maxPositions(c), c.HeadDim)}
	b.eps = or(c.RMSNormEps, f.eps)
	b.scale = 1 / math.Sqrt(float64(c.HeadDim))
	b.inputs()
	h := b.embed()
	for i := range c.Layers {
		h = f.layer(b, i, h)
	}
	b.head(h)
	return b, b.g.Err()
}
