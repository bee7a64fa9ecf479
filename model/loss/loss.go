package loss

import (
	"errors"
	"fmt"
	"maps"
	"slices"

	"smolgym/model/ir"
)

// ErrUnknown is wrapped when a loss is not in the table.
var ErrUnknown = errors.New("unknown loss")

// Names of graph values that the losses read and make.
const (
	LogProbs = "logprobs" // output of the model's graph, f32[T,C]
	Output   = "loss"     // f32[S], the sum over each datum's tokens
	Offsets  = "offsets"  // i32[S1]
)

// Input is one f32[T,C] tensor of a loss.
type Input struct {
	Field   string  // its name in a request's loss_fn_inputs
	Name    string  // its name in the graph
	Config  string  // the loss_fn_config key whose number stands for a whole tensor; "" for none
	Default float64 // what fills the tensor where a request says nothing of an optional one
}

// Spec is one row of the table: what a loss reads.
type Spec struct {
	Name      string
	Required  []string           // fields a request must send beside target_tokens
	Optional  []string           // fields it may send
	Config    map[string]float64 // loss_fn_config keys with their defaults
	Inputs    []Input            // every tensor of the graph, required ones first
	Targets2D bool               // several targets a token are allowed (C > 1)

	build func(b *builder) ir.ID // per-token loss [T,C]
}

// ConfigKeys lists the keys of Config in order.
func (s Spec) ConfigKeys() []string { return slices.Sorted(maps.Keys(s.Config)) }

// The tensors losses read. Weights multiply a token's loss; the policy losses do
// without unless a request sends them.
var (
	weights    = Input{Field: "weights", Name: "loss.weights", Default: 1}
	sampled    = Input{Field: "logprobs", Name: "loss.logprobs"}
	advantages = Input{Field: "advantages", Name: "loss.advantages"}
	ratioMask  = Input{Field: "sequence_ratio_mask", Name: "loss.sequence_ratio_mask"}
)

func setting(key, name string, value float64) Input {
	return Input{Field: key, Name: name, Config: key, Default: value}
}

func clip(low, high float64) []Input {
	return []Input{setting("clip_low_threshold", "loss.clip_low", low), setting("clip_high_threshold", "loss.clip_high", high)}
}

// table is in the order of Names. Clip thresholds bound the ratio itself.
var table = []Spec{
	row("cross_entropy", crossEntropy, []Input{weights}).targets2D(),
	row("importance_sampling", importanceSampling, policy, weights),
	row("ppo", ppo, policy, append(clip(0.8, 1.2), weights)...),
	row("cispo", cispo, policy, append(clip(0, 4), weights)...),
	row("dro", dro, policy, setting("beta", "loss.beta", 0.05), weights),
	row("gspo", gspo, append(slices.Clone(policy), ratioMask), append(clip(1-3e-4, 1+4e-4), weights)...),
}

var policy = []Input{sampled, advantages}

func row(name string, build func(b *builder) ir.ID, required []Input, optional ...Input) Spec {
	s := Spec{Name: name, Config: map[string]float64{}, Inputs: slices.Concat(required, optional), build: build}
	for _, in := range required {
		s.Required = append(s.Required, in.Field)
	}
	for _, in := range optional {
		s.Optional = append(s.Optional, in.Field)
		if in.Config != "" {
			s.Config[in.Config] = in.Default
		}
	}
	return s
}

func (s Spec) targets2D() Spec {
	s.Targets2D = true
	return s
}

// Names lists the losses.
func Names() []string {
	names := make([]string, len(table))
	for i, s := range table {
		names[i] = s.Name
	}
	return names
}

// Lookup gives a loss's row, which the caller must not change.
func Lookup(name string) (Spec, bool) {
	for _, s := range table {
		if s.Name == name {
			return s, true
		}
	}
	return Spec{}, false
}

// Append adds a loss to a graph with the output [LogProbs]. The graph gets the
// row's inputs, and the output [Output].
func Append(g *ir.Graph, name string) error {
	s, ok := Lookup(name)
	if !ok {
		return fmt.Errorf("loss %q: %w; known are %v", name, ErrUnknown, Names())
	}
	p, ok := g.OutputByName(LogProbs)
	if !ok {
		return fmt.Errorf("append loss %s to graph %s: it has no output %q", name, g.Name, LogProbs)
	}
	b := &builder{g: g, p: p, in: map[string]ir.ID{}, shape: g.Value(p).Type.Shape}
	b.offsets = g.Input(Offsets, ir.I32, ir.Of(ir.S1))
	for _, in := range s.Inputs {
		b.in[in.Field] = g.Input(in.Name, ir.F32, b.shape...)
	}
	perToken := s.build(b)
	g.Output(Output, b.op(ir.OpSegmentSum, perToken, b.offsets))
	if err := g.Err(); err != nil {
		return fmt.Errorf("append loss %s: %w", name, err)
	}
	if err := ir.Verify(g); err != nil {
		return fmt.Errorf("append loss %s: %w", name, err)
	}
	return nil
}

type builder struct {
	g       *ir.Graph
	p       ir.ID // log-probabilities under the current weights [T,C]
	in      map[string]ir.ID
	shape   ir.Shape
	offsets ir.ID
}

func (b *builder) op(op ir.Op, in ...ir.ID) ir.ID {
	return b.g.Op1(op, ir.Attrs{Layer: -1}, in...)
}

func (b *builder) fill(like ir.ID, value float64) ir.ID {
	return b.g.Op1(ir.OpFill, ir.Attrs{Layer: -1, Scale: value}, like)
}

// where is x where the mask is not 0, else 0.
func (b *builder) where(mask, x ir.ID) ir.ID {
	return b.op(ir.OpWhere, mask, x, b.fill(x, 0))
}

// negate is a token's loss from its objective: -(w·objective).
func (b *builder) negate(w, objective ir.ID) ir.ID {
	return b.op(ir.OpNeg, b.op(ir.OpMul, w, objective))
}

// crossEntropy is -w·p.
func crossEntropy(b *builder) ir.ID {
	w := b.in["weights"]
	return b.negate(w, b.where(b.op(ir.OpNonZero, w), b.p))
}

// tokens are the inputs of a policy loss with everything at tokens that do not
// count replaced by 0: log-probability, sampled log-probability, advantage,
// weight.
type tokens struct{ mask, p, q, a, w ir.ID }

func (b *builder) tokens() tokens {
	a, w := b.in["advantages"], b.in["weights"]
	t := tokens{mask: b.op(ir.OpMul, b.op(ir.OpNonZero, a), b.op(ir.OpNonZero, w))}
	t.p, t.q = b.where(t.mask, b.p), b.where(t.mask, b.in["logprobs"])
	t.a, t.w = b.where(t.mask, a), b.where(t.mask, w)
	return t
}

// ratio is exp(p-q).
func (b *builder) ratio(t tokens) ir.ID { return b.op(ir.OpExp, b.op(ir.OpSub, t.p, t.q)) }

func (b *builder) clamp(x ir.ID) ir.ID {
	return b.op(ir.OpClamp, x, b.in["clip_low_threshold"], b.in["clip_high_threshold"])
}

// importanceSampling is -r·A.
func importanceSampling(b *builder) ir.ID {
	t := b.tokens()
	return b.negate(t.w, b.op(ir.OpMul, b.ratio(t), t.a))
}

// ppo is -min(r·A, clip(r)·A).
func ppo(b *builder) ir.ID {
	t := b.tokens()
	return b.clipped(t, b.ratio(t))
}

func (b *builder) clipped(t tokens, r ir.ID) ir.ID {
	return b.negate(t.w, b.op(ir.OpMin, b.op(ir.OpMul, r, t.a), b.op(ir.OpMul, b.clamp(r), t.a)))
}

// cispo is -sg(clip(r))·p·A.
func cispo(b *builder) ir.ID {
	t := b.tokens()
	r := b.op(ir.OpDetach, b.clamp(b.ratio(t)))
	return b.negate(t.w, b.op(ir.OpMul, b.op(ir.OpMul, r, t.p), t.a))
}

// dro is -(p·A - β/2·(p-q)²). As in the other losses a token with advantage 0 does
// not count, so the penalty does not pull on a prompt's tokens.
func dro(b *builder) ir.ID {
	t := b.tokens()
	d := b.op(ir.OpSub, t.p, t.q)
	penalty := b.op(ir.OpMul, b.in["beta"], b.op(ir.OpMul, d, d))
	half := b.g.Op1(ir.OpScale, ir.Attrs{Layer: -1, Scale: 0.5}, penalty)
	return b.negate(t.w, b.op(ir.OpSub, b.op(ir.OpMul, t.p, t.a), half))
}

// gspo clips the ratio of the whole sequence, s = exp(mean over the mask of
// p-q). A token's ratio has the value s and the gradient of its own p:
// s·exp(p-sg(p)), the last factor being 1.
func gspo(b *builder) ir.ID {
	t := b.tokens()
	m := b.op(ir.OpNonZero, b.in["sequence_ratio_mask"])
	d := b.where(m, b.op(ir.OpSub, b.p, b.in["logprobs"]))
	count := b.op(ir.OpSegmentSum, m, b.offsets)
	count = b.op(ir.OpMax, count, b.fill(count, 1)) // an empty mask: mean 0, ratio 1
	mean := b.op(ir.OpDiv, b.op(ir.OpSegmentSum, d, b.offsets), count)
	s := b.op(ir.OpDetach, b.op(ir.OpSegmentExpand, b.op(ir.OpExp, mean), b.offsets, b.p))
	one := b.op(ir.OpExp, b.op(ir.OpSub, t.p, b.op(ir.OpDetach, t.p)))
	return b.clipped(t, b.op(ir.OpMul, b.ratioOr1(t.mask, s), one))
}

// ratioOr1 keeps the ratio 1 at tokens that do not count, since 0 times an
// infinite ratio would be NaN.
func (b *builder) ratioOr1(mask, s ir.ID) ir.ID {
	return b.op(ir.OpWhere, mask, s, b.fill(s, 1))
}
