"""Writes the folder rack/small begins as: configuration, tokenizer, chat template and random weights.

    python start.py DIR [--seed N]

Qwen3 form, 2.7 M parameters, tied head. The tokenizer is byte-level BPE over the text of tasks.py; digits and blanks before
letters are pieces of their own. The same arguments give the same bytes (numpy's RandomState is frozen by its own policy).
"""
import argparse
import json
import os

import numpy as np
from safetensors.numpy import save_file
from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, trainers

import tasks

VOCAB, HIDDEN, INNER, LAYERS, HEADS, KV, HEAD, CONTEXT = 512, 256, 576, 4, 8, 4, 32, 1024
SPECIALS = ["<|pad|>", "<|end|>", "<|system|>", "<|user|>", "<|assistant|>"]
PAD, END = 0, 1

TEMPLATE = (
    "{%- for message in messages -%}\n"
    "{%- if message.role not in ['system', 'user', 'assistant'] -%}\n"
    "{{- raise_exception('roles are system, user and assistant, not ' + message.role) -}}\n"
    "{%- endif -%}\n"
    "{{- '<|' + message.role + '|>' + message.content + '<|end|>' -}}\n"
    "{%- endfor -%}\n"
    "{%- if add_generation_prompt -%}{{- '<|assistant|>' -}}{%- endif -%}\n")


def config():
    return dict(
        architectures=["Qwen3ForCausalLM"], model_type="qwen3", vocab_size=VOCAB, hidden_size=HIDDEN, intermediate_size=INNER,
        num_hidden_layers=LAYERS, num_attention_heads=HEADS, num_key_value_heads=KV, head_dim=HEAD,
        max_position_embeddings=CONTEXT, rms_norm_eps=1e-6, rope_theta=10000.0, rope_scaling=None, hidden_act="silu",
        attention_bias=False, attention_dropout=0.0, tie_word_embeddings=True, use_sliding_window=False, sliding_window=None,
        max_window_layers=LAYERS, bos_token_id=None, eos_token_id=END, pad_token_id=PAD, initializer_range=0.02,
        torch_dtype="float32", use_cache=True)


def tokenizer():
    t = Tokenizer(models.BPE())
    t.pre_tokenizer = pre_tokenizers.Sequence([
        pre_tokenizers.Split(Regex(r"\d| ?[A-Za-z]+| ?[^\sA-Za-z\d]+|\s+"), "isolated"),
        pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])
    t.decoder = decoders.ByteLevel()
    text = [s for _, prompt, answer in tasks.examples(0, 20_000) for s in (prompt, answer)]
    t.train_from_iterator(text, trainers.BpeTrainer(
        vocab_size=VOCAB, special_tokens=SPECIALS, initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), show_progress=False))
    return t


def weights(seed):
    g = np.random.RandomState(seed)

    def w(rows, columns, scale):
        return (g.standard_normal((rows, columns)) * scale).astype(np.float32)

    out = {"model.embed_tokens.weight": w(VOCAB, HIDDEN, HIDDEN ** -0.5)}
    deep = (2 * LAYERS) ** -0.5  # what is added to the residual stream starts small
    for i in range(LAYERS):
        p = f"model.layers.{i}."
        out[p + "input_layernorm.weight"] = np.ones(HIDDEN, np.float32)
        out[p + "self_attn.q_proj.weight"] = w(HEADS * HEAD, HIDDEN, HIDDEN ** -0.5)
        out[p + "self_attn.k_proj.weight"] = w(KV * HEAD, HIDDEN, HIDDEN ** -0.5)
        out[p + "self_attn.v_proj.weight"] = w(KV * HEAD, HIDDEN, HIDDEN ** -0.5)
        out[p + "self_attn.o_proj.weight"] = w(HIDDEN, HEADS * HEAD, deep * (HEADS * HEAD) ** -0.5)
        out[p + "self_attn.q_norm.weight"] = np.ones(HEAD, np.float32)
        out[p + "self_attn.k_norm.weight"] = np.ones(HEAD, np.float32)
        out[p + "post_attention_layernorm.weight"] = np.ones(HIDDEN, np.float32)
        out[p + "mlp.gate_proj.weight"] = w(INNER, HIDDEN, HIDDEN ** -0.5)
        out[p + "mlp.up_proj.weight"] = w(INNER, HIDDEN, HIDDEN ** -0.5)
        out[p + "mlp.down_proj.weight"] = w(HIDDEN, INNER, deep * INNER ** -0.5)
    out["model.norm.weight"] = np.ones(HIDDEN, np.float32)
    return out


def write(folder, seed=0):
    os.makedirs(folder, exist_ok=True)

    def dump(name, value):
        with open(os.path.join(folder, name), "w", encoding="utf-8") as f:
            json.dump(value, f, indent=2, ensure_ascii=False)
            f.write("\n")

    dump("config.json", config())
    dump("generation_config.json", dict(eos_token_id=END, pad_token_id=PAD))
    dump("tokenizer_config.json", dict(
        tokenizer_class="PreTrainedTokenizerFast", pad_token="<|pad|>", eos_token="<|end|>", model_max_length=CONTEXT,
        clean_up_tokenization_spaces=False))
    with open(os.path.join(folder, "chat_template.jinja"), "w", encoding="utf-8") as f:
        f.write(TEMPLATE)
    tokenizer().save(os.path.join(folder, "tokenizer.json"))
    tensors = weights(seed)
    save_file(tensors, os.path.join(folder, "model.safetensors"), metadata={"format": "pt"})
    return sum(t.size for t in tensors.values())


if __name__ == "__main__":
    a = argparse.ArgumentParser()
    a.add_argument("dir")
    a.add_argument("--seed", type=int, default=0)
    a = a.parse_args()
    print(f"{write(a.dir, a.seed):,} parameters in {a.dir}")
