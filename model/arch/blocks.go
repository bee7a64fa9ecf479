package arch

import (
	"fmt"
	"strings"

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

	ids, positions, offsets ir.ID
	targets                 ir.ID // Train
	start, table, rows      ir.ID // Decode
	cos, sin                ir.ID // [context, headdim/2]
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
	half := ir.Const(b.c.HeadDim / 2)
	b.cos = g.Declare(ir.ClassConst, ropeCos, ir.F32, ir.Const(b.context), half)
	b.sin = g.Declare(ir.ClassConst, ropeSin, ir.F32, ir.Const(b.context), half)
}

func (b *builder) embedding() ir.ID {
	return b.g.Weight(embedName, ir.F32, ir.Const(b.c.VocabSize), ir.Const(b.c.HiddenSize))
}

// embed is ids [T] -> [T,D].
func (b *builder) embed() ir.ID {
	return b.g.SetName(b.g.Op1(ir.OpEmbed, ir.Attrs{Layer: -1, Module: "model.embed_tokens"}, b.ids, b.embedding()), "embed")
}

// norm is RMSNorm over groups of size columns each, weight [size].
func (b *builder) norm(layer int, module string, x ir.ID, groups, size int) ir.ID {
	w := b.g.Weight(module+".weight", ir.F32, ir.Const(size))
	return b.g.Op1(ir.OpRMSNorm, ir.Attrs{Layer: layer, Module: module, Eps: b.eps, Heads: groups}, x, w)
}

// linear is x [T,in] -> [T,out] by the weight [out,in] of a module.
func (b *builder) linear(layer int, module string, part ir.Part, x ir.ID, in, out int, bias bool) ir.ID {
	args := []ir.ID{x, b.g.Weight(module+".weight", ir.F32, ir.Const(out), ir.Const(in))}
	if bias {
		args = append(args, b.g.Weight(module+".bias", ir.F32, ir.Const(out)))
	}
	return b.g.Op1(ir.OpLinear, ir.Attrs{Layer: layer, Module: module, Part: part}, args...)
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
}

// attention is one self-attention block, without norm and residual: [T,D] -> [T,D].
func (b *builder) attention(i int, x ir.ID, o attentionOptions) ir.ID {
	c, module := b.c, fmt.Sprintf("model.layers.%d.self_attn.", i)
	qSize, kvSize := c.Heads*c.HeadDim, c.KVHeads*c.HeadDim
	q := b.linear(i, module+"q_proj", ir.PartAttention, x, c.HiddenSize, qSize, o.qkvBias)
	k := b.linear(i, module+"k_proj", ir.PartAttention, x, c.HiddenSize, kvSize, o.qkvBias)
	v := b.linear(i, module+"v_proj", ir.PartAttention, x, c.HiddenSize, kvSize, o.qkvBias)
	if o.qkNorm {
		q = b.norm(i, module+"q_norm", q, c.Heads, c.HeadDim)
		k = b.norm(i, module+"k_norm", k, c.KVHeads, c.HeadDim)
	}
	if !o.noRope {
		q, k = b.rotate(i, q, c.Heads), b.rotate(i, k, c.KVHeads)
	}
	return b.linear(i, module+"o_proj", ir.PartAttention, b.mix(i, q, k, v, o.window), qSize, c.HiddenSize, o.outBias)
}

func (b *builder) rotate(layer int, x ir.ID, heads int) ir.ID {
	a := ir.Attrs{Layer: layer, Heads: heads, HeadDim: b.c.HeadDim, Rotary: b.c.HeadDim}
	return b.g.Op1(ir.OpRope, a, x, b.positions, b.cos, b.sin)
}

// mix is causal attention within each sequence: over the batch itself when
// training, over the cache, which the batch enters first, when decoding.
func (b *builder) mix(i int, q, k, v ir.ID, window int) ir.ID {
	c := b.c
	a := ir.Attrs{Layer: i, Scale: b.scale, Heads: c.Heads, KVHeads: c.KVHeads, HeadDim: c.HeadDim, Window: window}
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

// mlp is the gated feed-forward block, without norm and residual: [T,D] -> [T,D].
func (b *builder) mlp(i int, x ir.ID, bias bool) ir.ID {
	c, module := b.c, fmt.Sprintf("model.layers.%d.mlp.", i)
	gate := b.linear(i, module+"gate_proj", ir.PartMLP, x, c.HiddenSize, c.IntermediateSize, bias)
	up := b.linear(i, module+"up_proj", ir.PartMLP, x, c.HiddenSize, c.IntermediateSize, bias)
	y := b.g.Op1(ir.OpSiLUMul, ir.Attrs{Layer: i}, gate, up)
	return b.linear(i, module+"down_proj", ir.PartMLP, y, c.IntermediateSize, c.HiddenSize, bias)
}

// preNormLayer is h + attention(norm(h)), then h + mlp(norm(h)).
func (b *builder) preNormLayer(i int, h ir.ID, o attentionOptions, mlpBias bool) ir.ID {
	module, d := fmt.Sprintf("model.layers.%d.", i), b.c.HiddenSize
	h = b.add(i, h, b.attention(i, b.norm(i, module+"input_layernorm", h, 1, d), o))
	return b.add(i, h, b.mlp(i, b.norm(i, module+"post_attention_layernorm", h, 1, d), mlpBias))
}

// head is the final norm, the output head and the mode's outputs.
func (b *builder) head(h ir.ID) {
	if b.mode == Decode {
		h = b.g.Op1(ir.OpGatherRows, ir.Attrs{Layer: -1}, h, b.rows)
	}
	h = b.norm(-1, "model.norm", h, 1, b.c.HiddenSize)
	a := ir.Attrs{Layer: -1, Module: "lm_head", Part: ir.PartUnembed}
	w := b.embedding()
	if !b.tied {
		w = b.g.Weight(headName, ir.F32, ir.Const(b.c.VocabSize), ir.Const(b.c.HiddenSize))
	}
	b.logits = b.g.SetName(b.g.Op1(ir.OpLinear, a, h, w), "logits")
	if b.mode == Train {
		b.g.Output("logprobs", b.g.Add(ir.OpLogProb, ir.Attrs{Layer: -1}, b.logits, b.targets)[0])
		return
	}
	b.g.Output("logits", b.logits)
	b.g.Output("lse", b.g.Op1(ir.OpLSE, ir.Attrs{Layer: -1}, b.logits))
}

// unused lists the stored tensors that the graph does not declare.
func (b *builder) unused(ck *hf.Checkpoint) []string {
	var names []string
	for _, n := range ck.Names {
		if _, used := b.g.ByName(n); !used {
			names = append(names, n)
		}
	}
	return names
}

// ignorable says of a stored tensor that the graph does not read that it changes
// no number: the reference computes these tables itself.
func ignorable(name string) bool { return strings.HasSuffix(name, ".rotary_emb.inv_freq") }
