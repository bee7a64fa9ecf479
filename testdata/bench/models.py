"""Checkpoint folders with random weights: the same files for both sides."""
import json
from pathlib import Path

import torch
from safetensors.torch import save_file

SMALL = dict(hidden=256, layers=4, heads=4, kv=2, head=64, inner=768, vocab=512)
Q06 = dict(hidden=1024, layers=28, heads=16, kv=8, head=128, inner=3072, vocab=151936)  # Qwen3-0.6B


def config(s):
    return dict(
        architectures=["Qwen3ForCausalLM"], model_type="qwen3", hidden_size=s["hidden"], num_hidden_layers=s["layers"],
        num_attention_heads=s["heads"], num_key_value_heads=s["kv"], head_dim=s["head"], intermediate_size=s["inner"],
        vocab_size=s["vocab"], max_position_embeddings=4096, rms_norm_eps=1e-6, rope_theta=1e6, tie_word_embeddings=True,
        attention_bias=False, hidden_act="silu", torch_dtype="bfloat16")


def write(folder, s, seed=0):
    """A Qwen3 of sizes s in bfloat16, which both sides widen to float32."""
    folder = Path(folder)
    folder.mkdir(parents=True)
    (folder / "config.json").write_text(json.dumps(config(s)))
    g = torch.Generator().manual_seed(seed)

    def w(*shape):
        return (torch.randn(*shape, generator=g) * 0.02).bfloat16()

    h, q, kv = s["hidden"], s["heads"] * s["head"], s["kv"] * s["head"]
    t = {"model.embed_tokens.weight": w(s["vocab"], h), "model.norm.weight": torch.ones(h).bfloat16()}
    for i in range(s["layers"]):
        p = f"model.layers.{i}."
        t |= {p + "self_attn.q_proj.weight": w(q, h), p + "self_attn.k_proj.weight": w(kv, h),
              p + "self_attn.v_proj.weight": w(kv, h), p + "self_attn.o_proj.weight": w(h, q),
              p + "mlp.gate_proj.weight": w(s["inner"], h), p + "mlp.up_proj.weight": w(s["inner"], h),
              p + "mlp.down_proj.weight": w(h, s["inner"]),
              p + "self_attn.q_norm.weight": torch.ones(s["head"]).bfloat16(),
              p + "self_attn.k_norm.weight": torch.ones(s["head"]).bfloat16(),
              p + "input_layernorm.weight": torch.ones(h).bfloat16(),
              p + "post_attention_layernorm.weight": torch.ones(h).bfloat16()}
    save_file(t, folder / "model.safetensors", metadata={"format": "pt"})
    return folder
