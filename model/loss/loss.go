package loss

import (
	"errors"
	"fmt"

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
	Field    string  // its name in a request's loss_fn_inputs
	Name     string  // its name in the graph
	Required bool    // a request must send the tensor
	Config   bool    // a number of the same name in loss_fn_config stands for a tensor of it
	Default  float64 // what fills the tensor where the request says nothing
}

// Spec is one row of the table: what a loss reads.
type Spec struct {
	Name    string
	Inputs  []Input // in a fixed order, beside target_tokens
	Targets bool    // several targets a token are allowed (C > 1)

	build func(b *builder) ir.ID // per-token loss [T,C]
}

// ConfigKeys lists the numbers that loss_fn_config may set.
func (s Spec) ConfigKeys() []string {
	var keys []string
	for _, in := range s.Inputs {
		if in.Config {
			keys = append(keys, in.Field)
		}
	}
	return keys
}

// The tensors losses read. Weights multiply a token's loss; the policy losses
// do without unless a request sends them.
func weights(required bool) Input {
	return Input{Field: "weights", Name: "loss.weights", Required: required, Default: 1}
}

var (
	sampled    = Input{Field: "logprobs", Name: "loss.logprobs", Required: true}
	advantages = Input{Field: "advantages", Name: "loss.advantages", Required: true}
	ratioMask  = Input{Field: "sequence_ratio_mask", Name: "loss.sequence_ratio_mask", Required: true}
)

func clip(low, high float64) []Input {
	return []Input{
		{Field: "clip_low_threshold", Name: "loss.clip_low", Config: true, Default: low},
		{Field: "clip_high_threshold", Name: "loss.clip_high", Config: true, Default: high},
	}
}

// table is in the order of Names. Clip thresholds bound the ratio itself.
var table = []Spec{
	{Name: "cross_entropy", Inputs: []Input{weights(true)}, Targets: true, build: crossEntropy},
	{Name: "importance_sampling", Inputs: policy(), build: importanceSampling},
	{Name: "ppo", Inputs: policy(clip(0.8, 1.2)...), build: ppo},
	{Name: "cispo", Inputs: policy(clip(0, 4)...), build: cispo},
	{Name: "dro", Inputs: policy(Input{Field: "beta", Name: "loss.beta", Config: true, Default: 0.05}), build: dro},
	{Name: "gspo", Inputs: policy(append([]Input{ratioMask}, clip(1-3e-4, 1+4e-4)...)...), build: gspo},
}

func policy(more ...Input) []Input {
	return append([]Input{sampled, advantages, weights(false)}, more...)
}

// Names lists the losses.
func Names() []string {
	names := make([]string, len(table))
	for i, s := range table {
		names[i] = s.Name
	}
	return names
}

// Find gives a loss's row.
func Find(name string) (Spec, error) {
	for _, s := range table {
		if s.Name == name {
			return s, nil
		}
	}
	return Spec{}, fmt.Errorf("loss %q: %w; known are %v", name, ErrUnknown, Names())
}

// Append adds a loss to a graph with the output [LogProbs]. The graph gets the
// row's inputs, and the output [Output].
func Append(g *ir.Graph, name string) error {
	s, err := Find(name)
	if err != nil {
		return err
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

// dro is -(p·A - β/2·(p-q)²).
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
