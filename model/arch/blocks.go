package arch

import (
	"fmt"

	"smolgym/model/hf"
	"smolgym/model/ir"
)

// builder makes one graph out of the blocks below. D is the hidden size, T the
// packed tokens.
type builder struct {
	f       *family
	c       *hf.Config
	mode    Mode
	g       *ir.Graph
	tied    bool
	context int
	eps     float64
	scale   float64 // of attention scores
	inner   int     // of the feed-forward block
	rotary  int     // elements of a head that rotate

	activation                       string
	embedScale, residual, logitScale float64 // factors of the embedding, of what layers add, of the logits
	scoreCap, logitCap               float64 // soft bounds, 0 = none
	cached, recurrent                int     // layers with a key-value cache, with a recurrent state

	ids, positions, offsets ir.ID
	targets                 ir.ID // Train
	start, table, rows      ir.ID // Decode
	slot                    ir.ID // Decode, recurrent layers
	cos, sin                ir.ID // [context, rotary/2]
	localCos, localSin      ir.ID
	logits                  ir.ID
}

func (b *builder) inputs() {
	g := b.g
	b.ids = g.Input("ids", ir.I32, ir.Of(ir.T))
	b.positions = g.Input("positions", ir.I32, ir.Of(ir.T))
	b.offsets = g.Input("offsets", ir.I32, ir.Of(ir.S1))
	if b.mode == Train {
		b.targets = g.Input("targets", ir.I32, ir.Of(ir.T), ir.Of(ir.C))
	} else {
		b.start = g.Input("start", ir.I32, ir.Of(ir.S))
		b.table = g.Input("table", ir.I32, ir.Of(ir.S), ir.Of(ir.B))
		b.rows = g.Input("rows", ir.I32, ir.Of(ir.R))
	}
	if b.f.noRope {
		return
	}
	half := ir.Const(b.rotary / 2)
	table := func(name string) ir.ID { return g.Declare(ir.ClassConst, name, ir.F32, ir.Const(b.context), half) }
	b.cos, b.sin = table(ropeCos), table(ropeSin)
	if b.f.localRope {
		b.localCos, b.localSin = table(localCos), table(localSin)
	}
}

// tables are the values of the graph's constants.
func (b *builder) tables() map[string][]float32 {
	t := map[string][]float32{}
	most := b.f.maxPositions(b.c)
	if b.cos != 0 {
		t[ropeCos], t[ropeSin] = ropeTables(b.f.rope(b.c), b.rotary, b.context, most)
	}
	if b.localCos != 0 {
		t[localCos], t[localSin] = ropeTables(b.f.local(b.c), b.rotary, b.context, most)
	}
	b.linearTables(t)
	return t
}

func (b *builder) embedding() ir.ID {
	return b.g.Weight(b.f.embed(), ir.F32, ir.Const(b.c.VocabSize), ir.Const(b.c.HiddenSize))
}

// embed is ids [T] -> [T,D].
func (b *builder) embed() ir.ID {
	names := b.f.paths()
	h := b.g.SetName(b.g.Op1(ir.OpEmbed, ir.Attrs{Layer: -1, Module: names.embed}, b.ids, b.embedding()), "embed")
	if names.positions != "" {
		w := b.g.Weight(names.positions+".weight", ir.F32, ir.Const(b.f.maxPositions(b.c)), ir.Const(b.c.HiddenSize))
		h = b.add(-1, h, b.g.Op1(ir.OpEmbed, ir.Attrs{Layer: -1, Module: names.positions}, b.positions, w))
	}
	return b.times(-1, h, b.embedScale)
}

// times is factor*x.
func (b *builder) times(layer int, x ir.ID, factor float64) ir.ID {
	if factor == 1 {
		return x
	}
	return b.g.Op1(ir.OpScale, ir.Attrs{Layer: layer, Scale: factor}, x)
}

// capped is bound*tanh(x/bound).
func (b *builder) capped(layer int, x ir.ID, bound float64) ir.ID {
	if bound == 0 {
		return x
	}
	return b.times(layer, b.g.Op1(ir.OpTanh, ir.Attrs{Layer: layer}, b.times(layer, x, 1/bound)), bound)
}

// norm is the family's norm over groups of size columns each, weight [size].
func (b *builder) norm(layer int, module string, x ir.ID, groups, size int) ir.ID {
	if b.f.layerNorm {
		x = b.g.Op1(ir.OpCenter, ir.Attrs{Layer: layer, Module: module}, x)
		y := b.rms(layer, module, x, groups, size, false)
		return b.g.Op1(ir.OpAddRow, ir.Attrs{Layer: layer, Module: module}, y, b.g.Weight(module+".bias", ir.F32, ir.Const(size)))
	}
	return b.rms(layer, module, x, groups, size, b.f.unitNorm)
}

func (b *builder) rms(layer int, module string, x ir.ID, groups, size int, unit bool) ir.ID {
	w := b.g.Weight(module+".weight", ir.F32, ir.Const(size))
	return b.g.Op1(ir.OpRMSNorm, ir.Attrs{Layer: layer, Module: module, Eps: b.eps, Heads: groups, Unit: unit}, x, w)
}

// linear is x [T,in] -> [T,out] by the weight [out,in] of a module.
func (b *builder) linear(layer int, module string, part ir.Part, x ir.ID, in, out int, bias bool) ir.ID {
	args := []ir.ID{x, b.g.Weight(module+".weight", ir.F32, ir.Const(out), ir.Const(in))}
	if bias {
		args = append(args, b.g.Weight(module+".bias", ir.F32, ir.Const(out)))
	}
	return b.g.Op1(ir.OpLinear, ir.Attrs{Layer: layer, Module: module, Part: part}, args...)
}

// linearT is linear with a weight that is stored [in,out], and a bias.
func (b *builder) linearT(layer int, module string, part ir.Part, x ir.ID, in, out int) ir.ID {
	w := b.g.Weight(module+".weight", ir.F32, ir.Const(in), ir.Const(out))
	y := b.g.Op1(ir.OpLinearT, ir.Attrs{Layer: layer, Module: module, Part: part}, x, w)
	return b.g.Op1(ir.OpAddRow, ir.Attrs{Layer: layer, Module: module}, y, b.g.Weight(module+".bias", ir.F32, ir.Const(out)))
}

// slice takes columns [from, from+size) of each of groups of x.
func (b *builder) slice(layer int, x ir.ID, groups, of, from, size int) ir.ID {
	return b.g.Op1(ir.OpSlice, ir.Attrs{Layer: layer, Heads: groups, Of: of, Offset: from, HeadDim: size}, x)
}

// residualAdd is h + residual*y.
func (b *builder) residualAdd(layer int, h, y ir.ID) ir.ID {
	if b.residual == 1 {
		return b.add(layer, h, y)
	}
	return b.g.Op1(ir.OpScaleAdd, ir.Attrs{Layer: layer, Scale: b.residual}, h, y)
}

func (b *builder) add(layer int, x, y ir.ID) ir.ID {
	return b.g.Op1(ir.OpAdd, ir.Attrs{Layer: layer}, x, y)
}

// attentionOptions are where families differ.
type attentionOptions struct {
	qkNorm  bool // RMSNorm over each query and key head
	qkvBias bool
	outBias bool
	noRope  bool // no rotary embedding
	window  int  // tokens a query sees, itself included; 0 = all
	local   bool // the windowed layers' rotary embedding
	wide    bool // the norms of qkNorm go over all heads at once
	gated   bool // each query head brings a gate for its output
}

// attention is one self-attention block, without norm and residual: [T,D] -> [T,D].
func (b *builder) attention(i int, x ir.ID, o attentionOptions) ir.ID {
	c, module := b.c, fmt.Sprintf("model.layers.%d.self_attn.", i)
	qSize, kvSize := c.Heads*c.HeadDim, c.KVHeads*c.HeadDim
	var q, gate ir.ID
	if o.gated {
		both := b.linear(i, module+"q_proj", ir.PartAttention, x, c.HiddenSize, 2*qSize, o.qkvBias)
		q = b.slice(i, both, c.Heads, 2*c.HeadDim, 0, c.HeadDim)
		gate = b.slice(i, both, c.Heads, 2*c.HeadDim, c.HeadDim, c.HeadDim)
	} else {
		q = b.linear(i, module+"q_proj", ir.PartAttention, x, c.HiddenSize, qSize, o.qkvBias)
	}
	k := b.linear(i, module+"k_proj", ir.PartAttention, x, c.HiddenSize, kvSize, o.qkvBias)
	v := b.linear(i, module+"v_proj", ir.PartAttention, x, c.HiddenSize, kvSize, o.qkvBias)
	switch {
	case o.wide:
		q = b.norm(i, module+"q_norm", q, 1, qSize)
		k = b.norm(i, module+"k_norm", k, 1, kvSize)
	case o.qkNorm:
		q = b.norm(i, module+"q_norm", q, c.Heads, c.HeadDim)
		k = b.norm(i, module+"k_norm", k, c.KVHeads, c.HeadDim)
	}
	y := b.attend(i, q, k, v, o)
	if o.gated {
		y = b.g.Op1(ir.OpMul, ir.Attrs{Layer: i}, y, b.g.Op1(ir.OpSigmoid, ir.Attrs{Layer: i}, gate))
	}
	return b.linear(i, module+"o_proj", ir.PartAttention, y, qSize, c.HiddenSize, o.outBias)
}

// attend rotates queries and keys and mixes the values.
func (b *builder) attend(i int, q, k, v ir.ID, o attentionOptions) ir.ID {
	if !o.noRope {
		q, k = b.rotate(i, q, b.c.Heads, o.local), b.rotate(i, k, b.c.KVHeads, o.local)
	}
	return b.mix(i, q, k, v, o.window)
}

func (b *builder) rotate(layer int, x ir.ID, heads int, local bool) ir.ID {
	a := ir.Attrs{Layer: layer, Heads: heads, HeadDim: b.c.HeadDim, Rotary: b.rotary}
	cos, sin := b.cos, b.sin
	if local {
		cos, sin = b.localCos, b.localSin
	}
	return b.g.Op1(ir.OpRope, a, x, b.positions, cos, sin)
}

// mix is causal attention within each sequence: over the batch itself when
// training, over the cache, which the batch enters first, when decoding.
func (b *builder) mix(i int, q, k, v ir.ID, window int) ir.ID {
	c := b.c
	b.cached++
	a := ir.Attrs{Layer: i, Scale: b.scale, Heads: c.Heads, KVHeads: c.KVHeads, HeadDim: c.HeadDim, Window: window, Softcap: b.scoreCap}
	if b.mode == Train {
		return b.g.Add(ir.OpAttention, a, q, k, v, b.offsets)[0]
	}
	kc := b.cache("kv.k", i, k)
	vc := b.cache("kv.v", i, v)
	a.Page = Page
	return b.g.Op1(ir.OpPagedAttention, a, q, kc, vc, b.offsets, b.start, b.table)
}

// cache writes x [T,kvheads*headdim] into a layer's pages and returns them.
func (b *builder) cache(name string, i int, x ir.ID) ir.ID {
	state := b.g.Declare(ir.ClassState, fmt.Sprintf("%s.%d", name, i), ir.F32, ir.Of(ir.P), ir.Const(Page*b.c.KVHeads*b.c.HeadDim))
	return b.g.Op1(ir.OpKVWrite, ir.Attrs{Layer: i, Page: Page}, state, x, b.offsets, b.start, b.table)
}

// activate is the family's activation of x.
func (b *builder) activate(layer int, x ir.ID) ir.ID {
	op := ir.OpGELUTanh
	if b.activation == "gelu" {
		op = ir.OpGELU
	}
	return b.g.Op1(op, ir.Attrs{Layer: layer}, x)
}

// gate is activation(gate)*up.
func (b *builder) gate(layer int, gate, up ir.ID) ir.ID {
	if b.activation == "silu" || b.activation == "swish" {
		return b.g.Op1(ir.OpSiLUMul, ir.Attrs{Layer: layer}, gate, up)
	}
	return b.g.Op1(ir.OpMul, ir.Attrs{Layer: layer}, b.activate(layer, gate), up)
}

// mlp is the gated feed-forward block, without norm and residual: [T,D] -> [T,D].
func (b *builder) mlp(i int, x ir.ID, bias bool) ir.ID {
	return b.gatedMLP(i, fmt.Sprintf("model.layers.%d.mlp.", i), x, b.inner, bias)
}

func (b *builder) gatedMLP(i int, module string, x ir.ID, inner int, bias bool) ir.ID {
	d := b.c.HiddenSize
	gate := b.linear(i, module+"gate_proj", ir.PartMLP, x, d, inner, bias)
	up := b.linear(i, module+"up_proj", ir.PartMLP, x, d, inner, bias)
	return b.linear(i, module+"down_proj", ir.PartMLP, b.gate(i, gate, up), inner, d, bias)
}

// preNormLayer is h + attention(norm(h)), then h + mlp(norm(h)).
func (b *builder) preNormLayer(i int, h ir.ID, o attentionOptions, mlpBias bool) ir.ID {
	return b.preNorm(i, h, func(x ir.ID) ir.ID { return b.attention(i, x, o) }, func(x ir.ID) ir.ID { return b.mlp(i, x, mlpBias) })
}

// preNorm is a layer of any two blocks that get normalised input.
func (b *builder) preNorm(i int, h ir.ID, first, second func(x ir.ID) ir.ID) ir.ID {
	module, d := fmt.Sprintf("model.layers.%d.", i), b.c.HiddenSize
	h = b.residualAdd(i, h, first(b.norm(i, module+"input_layernorm", h, 1, d)))
	return b.residualAdd(i, h, second(b.norm(i, module+"post_attention_layernorm", h, 1, d)))
}

// window is sliding_window, or the family's default where the file does not
// state it; null in the file is none.
func (b *builder) window(absent int) int {
	if _, stated := b.c.Raw["sliding_window"]; !stated {
		return absent
	}
	return b.c.Window()
}

// windowed says whether layer i has a window: by layer_types, or else every
// layer but each n-th.
func (b *builder) windowed(i, n int) bool {
	if len(b.c.LayerTypes) > 0 {
		return b.c.LayerTypes[i] == slidingAttention
	}
	return (i+1)%n != 0
}

const (
	fullAttention    = "full_attention"
	slidingAttention = "sliding_attention"
	linearAttention  = "linear_attention"
)

// head is the final norm, the output head and the mode's outputs.
func (b *builder) head(h ir.ID) {
	names := b.f.paths()
	if b.mode == Decode {
		h = b.g.Op1(ir.OpGatherRows, ir.Attrs{Layer: -1}, h, b.rows)
	}
	h = b.norm(-1, names.norm, h, 1, b.c.HiddenSize)
	a := ir.Attrs{Layer: -1, Module: names.head, Part: ir.PartUnembed}
	w := b.embedding()
	if !b.tied {
		w = b.g.Weight(b.f.head(), ir.F32, ir.Const(b.c.VocabSize), ir.Const(b.c.HiddenSize))
	}
	logits := b.g.Op1(ir.OpLinear, a, h, w)
	b.logits = b.g.SetName(b.capped(-1, b.times(-1, logits, b.logitScale), b.logitCap), "logits")
	if b.mode == Train {
		b.g.Output("logprobs", b.g.Add(ir.OpLogProb, ir.Attrs{Layer: -1}, b.logits, b.targets)[0])
		return
	}
	b.g.Output("logits", b.logits)
	b.g.Output("lse", b.g.Op1(ir.OpLSE, ir.Attrs{Layer: -1}, b.logits))
}
