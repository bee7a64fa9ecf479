"""A small Llama with random weights in Hugging Face layout, and its forward pass in numpy.

    python tiny_model.py DIR [--no-attention | --no-mlp] [--seed N]

Hidden 64, 2 layers, 4 heads, 2 key-value heads, context 128, vocabulary 259: <pad>, <s>, </s>, and the
256 bytes (id 3 + byte) by a byte-level tokenizer without merges. --no-attention sets the value
and output projections to zero, so that every gradient inside attention is exactly zero;
--no-mlp does the same to the up and down projections.
"""
import argparse
import json
import os

import numpy as np

VOCAB, HIDDEN, INNER, LAYERS, HEADS, KV, CONTEXT = 259, 64, 128, 2, 4, 2, 128
THETA, EPS = 10000.0, 1e-5
PAD, BOS, EOS = 0, 1, 2


def config():
    return dict(
        architectures=["LlamaForCausalLM"], model_type="llama", vocab_size=VOCAB, hidden_size=HIDDEN,
        intermediate_size=INNER, num_hidden_layers=LAYERS, num_attention_heads=HEADS,
        num_key_value_heads=KV, head_dim=HIDDEN // HEADS, max_position_embeddings=CONTEXT, rms_norm_eps=EPS,
        rope_theta=THETA, rope_scaling=None, hidden_act="silu", attention_bias=False, mlp_bias=False,
        tie_word_embeddings=False, torch_dtype="float32", bos_token_id=BOS, eos_token_id=EOS,
        pad_token_id=PAD, attention_dropout=0.0, initializer_range=0.02, pretraining_tp=1, use_cache=True)


def weights(seed=0, attention=True, mlp=True, inner=INNER, hidden=HIDDEN):
    g = np.random.default_rng(seed)
    head = hidden // HEADS

    def w(rows, cols, scale):
        return (g.standard_normal((rows, cols)) * scale).astype(np.float32)

    out = {"model.embed_tokens.weight": w(VOCAB, hidden, 0.5)}
    for i in range(LAYERS):
        p = f"model.layers.{i}."
        s = hidden ** -0.5
        out[p + "self_attn.q_proj.weight"] = w(HEADS * head, hidden, s)
        out[p + "self_attn.k_proj.weight"] = w(KV * head, hidden, s)
        out[p + "self_attn.v_proj.weight"] = w(KV * head, hidden, s) * np.float32(attention)
        out[p + "self_attn.o_proj.weight"] = w(hidden, HEADS * head, s) * np.float32(attention)
        out[p + "mlp.gate_proj.weight"] = w(inner, hidden, s)
        out[p + "mlp.up_proj.weight"] = w(inner, hidden, s) * np.float32(mlp)
        out[p + "mlp.down_proj.weight"] = w(hidden, inner, inner ** -0.5) * np.float32(mlp)
        out[p + "input_layernorm.weight"] = 1 + w(1, hidden, 0.1)[0]
        out[p + "post_attention_layernorm.weight"] = 1 + w(1, hidden, 0.1)[0]
    out["model.norm.weight"] = 1 + w(1, hidden, 0.1)[0]
    out["lm_head.weight"] = w(VOCAB, hidden, hidden ** -0.5)
    return out


def write_safetensors(path, tensors, dtype="F32"):
    head, parts, at = {}, [], 0
    for k in sorted(tensors):
        b = np.ascontiguousarray(tensors[k]).tobytes()
        head[k] = dict(dtype=dtype, shape=list(tensors[k].shape), data_offsets=[at, at + len(b)])
        parts.append(b)
        at += len(b)
    text = json.dumps(dict(head, __metadata__={"format": "pt"})).encode()
    text += b" " * (-len(text) % 8)
    with open(path, "wb") as f:
        f.write(len(text).to_bytes(8, "little") + text + b"".join(parts))


def byte_alphabet():
    """The printable stand-in of each byte in byte-level tokenizers."""
    keep = [*range(33, 127), *range(161, 173), *range(174, 256)]
    out, n = {b: chr(b) for b in keep}, 0
    for b in range(256):
        if b not in out:
            out[b] = chr(256 + n)
            n += 1
    return out


def tokenizer():
    special = ["<pad>", "<s>", "</s>"]
    vocab = {t: i for i, t in enumerate(special)}
    vocab.update({c: 3 + b for b, c in byte_alphabet().items()})
    return dict(
        version="1.0", truncation=None, padding=None,
        added_tokens=[dict(id=i, content=t, single_word=False, lstrip=False, rstrip=False, normalized=False,
                           special=True) for i, t in enumerate(special)],
        normalizer=None,
        pre_tokenizer=dict(type="ByteLevel", add_prefix_space=False, trim_offsets=True, use_regex=True),
        post_processor=None,
        decoder=dict(type="ByteLevel", add_prefix_space=True, trim_offsets=True, use_regex=True),
        model=dict(type="BPE", dropout=None, unk_token=None, continuing_subword_prefix=None,
                   end_of_word_suffix=None, fuse_unk=False, byte_fallback=False, ignore_merges=False,
                   vocab=dict(sorted(vocab.items(), key=lambda kv: kv[1])), merges=[]))


def dump(path, v):
    with open(path, "w") as f:
        json.dump(v, f, indent=1)
        f.write("\n")


def write(folder, seed=0, attention=True, mlp=True, tied=False):
    """tied: without an output head of its own."""
    os.makedirs(folder, exist_ok=True)
    dump(os.path.join(folder, "config.json"), dict(config(), tie_word_embeddings=tied))
    dump(os.path.join(folder, "generation_config.json"), dict(bos_token_id=BOS, eos_token_id=EOS))
    dump(os.path.join(folder, "tokenizer.json"), tokenizer())
    dump(os.path.join(folder, "tokenizer_config.json"),
         dict(tokenizer_class="PreTrainedTokenizerFast", bos_token="<s>", eos_token="</s>", pad_token="<pad>"))
    tensors = weights(seed, attention, mlp)
    if tied:
        del tensors["lm_head.weight"]
    write_safetensors(os.path.join(folder, "model.safetensors"), tensors)
    return folder


def encode(text):
    return [3 + b for b in text.encode()]


def _norm(x, w):
    return x / np.sqrt((x * x).mean(-1, keepdims=True) + EPS) * w


def _rope(x):
    """x [T, heads, head]: rotates the two halves of each head."""
    t, _, d = x.shape
    inv = THETA ** (-np.arange(0, d, 2) / d)
    ang = np.arange(t)[:, None] * inv[None]
    cos, sin = np.cos(ang)[:, None], np.sin(ang)[:, None]
    a, b = x[..., : d // 2], x[..., d // 2:]
    return np.concatenate([a * cos - b * sin, b * cos + a * sin], -1)


def logprobs(w, ids):
    """Log-probabilities [T, VOCAB] of every next token, in float64."""
    w = {k: v.astype(np.float64) for k, v in w.items()}
    t, head = len(ids), HIDDEN // HEADS
    x = w["model.embed_tokens.weight"][ids]
    mask = np.triu(np.full((t, t), -np.inf), 1)
    for i in range(LAYERS):
        p = f"model.layers.{i}."
        h = _norm(x, w[p + "input_layernorm.weight"])
        q = _rope((h @ w[p + "self_attn.q_proj.weight"].T).reshape(t, HEADS, head))
        k = _rope((h @ w[p + "self_attn.k_proj.weight"].T).reshape(t, KV, head))
        v = (h @ w[p + "self_attn.v_proj.weight"].T).reshape(t, KV, head)
        k, v = (np.repeat(z, HEADS // KV, 1) for z in (k, v))
        s = np.einsum("qhd,khd->hqk", q, k) / np.sqrt(head) + mask
        s = np.exp(s - s.max(-1, keepdims=True))
        s /= s.sum(-1, keepdims=True)
        ctx = np.einsum("hqk,khd->qhd", s, v).reshape(t, HEADS * head)
        x = x + ctx @ w[p + "self_attn.o_proj.weight"].T
        h = _norm(x, w[p + "post_attention_layernorm.weight"])
        gate = h @ w[p + "mlp.gate_proj.weight"].T
        up = h @ w[p + "mlp.up_proj.weight"].T
        x = x + (gate / (1 + np.exp(-gate)) * up) @ w[p + "mlp.down_proj.weight"].T
    z = _norm(x, w["model.norm.weight"]) @ w["lm_head.weight"].T
    z = z - z.max(-1, keepdims=True)
    return z - np.log(np.exp(z).sum(-1, keepdims=True))


if __name__ == "__main__":
    ap = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    ap.add_argument("dir")
    ap.add_argument("--seed", type=int, default=0)
    ap.add_argument("--no-attention", action="store_true")
    ap.add_argument("--no-mlp", action="store_true")
    a = ap.parse_args()
    write(a.dir, a.seed, not a.no_attention, not a.no_mlp)
