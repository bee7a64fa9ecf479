#!/usr/bin/env python3
"""Makes the goldens of this folder: tiny random checkpoints of what the import
goldens leave out, in the same layout, and the numbers of the reference
framework for them.

Usage: make.py OUT [NAME ...]     writes OUT/NAME.tar.gz; without names all of them

See README.md beside this script for what is in an archive. Everything is
float32 on the CPU with one thread and eager attention; seeds are fixed.
"""
import gzip
import io
import json
import os
import shutil
import sys
import tarfile
import tempfile

os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("USE_HUB_KERNELS", "0")

import torch
import transformers
from peft import LoraConfig, get_peft_model
from safetensors.torch import save_file
from transformers import AutoConfig, AutoModelForCausalLM
from transformers.pytorch_utils import Conv1D

transformers.utils.logging.disable_progress_bar()

V, D, HEADS, KV, INNER, LAYERS = 128, 32, 4, 2, 48, 2
ADAMW = dict(lr=1e-3, betas=(0.9, 0.95), eps=1e-8, weight_decay=0.1)
RANK, ALPHA = 2, 6
IDS = dict(vocab_size=V, bos_token_id=1, eos_token_id=2, pad_token_id=0)
BASE = dict(IDS, hidden_size=D, intermediate_size=INNER, num_hidden_layers=LAYERS, num_attention_heads=HEADS,
            num_key_value_heads=KV, max_position_embeddings=128)
ROPE = dict(rope_type="default", rope_theta=10000.0)
EXPERTS = ["experts.gate_up_proj", "experts.down_proj"]
LINEAR = dict(linear_num_key_heads=2, linear_num_value_heads=4, linear_key_head_dim=8, linear_value_head_dim=8,
              linear_conv_kernel_dim=3)

# name -> (model_type, configuration, length of the batch's two sequences, parameters with adapters beside the linear modules)
VARIANTS = {
    # Windows that end inside, at and beyond a block of 32 keys.
    "mistral_window40": ("mistral", dict(BASE, sliding_window=40, rope_parameters=ROPE), 72, []),
    "mistral_window32": ("mistral", dict(BASE, sliding_window=32, head_dim=16, rope_parameters=ROPE), 68, []),
    "gemma2_uncapped": ("gemma2", dict(BASE, head_dim=16, sliding_window=35, query_pre_attn_scalar=7,
                                       attn_logit_softcapping=None, final_logit_softcapping=None, attention_bias=True,
                                       layer_types=["full_attention", "sliding_attention"], rope_parameters=ROPE), 70, []),
    "gemma3_scaled": ("gemma3_text", dict(BASE, num_hidden_layers=3, head_dim=8, sliding_window=9, query_pre_attn_scalar=12,
                                          final_logit_softcapping=4.0, attn_logit_softcapping=None,
                                          layer_types=["sliding_attention", "full_attention", "sliding_attention"],
                                          rope_parameters=dict(
                                              full_attention=dict(rope_type="linear", factor=8.0, rope_theta=50000.0),
                                              sliding_attention=dict(rope_type="default", rope_theta=3000.0))), 24, []),
    "olmo3": ("olmo3", dict(BASE, num_hidden_layers=4, sliding_window=7, rope_parameters=dict(
        rope_type="yarn", rope_theta=5000.0, factor=8.0, original_max_position_embeddings=16, beta_fast=16.0, beta_slow=2.0,
        attention_factor=1.2)), 24, []),
    "phi3_longrope": ("phi3", dict(BASE, sliding_window=11, original_max_position_embeddings=64, max_position_embeddings=256,
                                   rope_parameters=dict(rope_type="longrope", rope_theta=10000.0, partial_rotary_factor=0.5,
                                                        short_factor=[1.0, 1.3], long_factor=[2.0, 5.0])), 24, []),
    "llama_longrope": ("llama", dict(BASE, rope_parameters=dict(
        rope_type="longrope", rope_theta=10000.0, factor=4.0, attention_factor=0.9, original_max_position_embeddings=64,
        short_factor=[1.0, 1.1, 1.5, 2.0], long_factor=[2.0, 3.0, 4.0, 5.0])), 24, []),
    # The same factors for short and long texts: one rotary table for every length, here on both sides of the original one.
    "phi3_longrope_even": ("phi3", dict(BASE, original_max_position_embeddings=16, max_position_embeddings=256,
                                        rope_parameters=dict(rope_type="longrope", rope_theta=10000.0, partial_rotary_factor=0.5,
                                                             short_factor=[2.0, 5.0], long_factor=[2.0, 5.0])), 72, []),
    "llama_dynamic": ("llama", dict(BASE, rope_parameters=dict(rope_type="dynamic", rope_theta=10000.0, factor=4.0)), 24, []),
    "granite_biases": ("granite", dict(BASE, attention_bias=True, mlp_bias=True, tie_word_embeddings=True, embedding_multiplier=3.0,
                                       residual_multiplier=0.5, attention_multiplier=0.2, logits_scaling=0.7, rope_parameters=ROPE), 24, []),
    "gpt2_scaled": ("gpt2", dict(IDS, n_embd=D, n_layer=LAYERS, n_head=HEADS, n_positions=96, n_inner=40, activation_function="gelu",
                                 scale_attn_by_inverse_layer_idx=True, resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0,
                                 tie_word_embeddings=False), 24, []),
    "gpt_neox_serial": ("gpt_neox", dict({k: v for k, v in BASE.items() if k != "num_key_value_heads"}, hidden_act="gelu_new",
                                         use_parallel_residual=False, attention_bias=False, attention_dropout=0.0, hidden_dropout=0.0,
                                         rope_parameters=dict(ROPE, partial_rotary_factor=0.5)), 24, []),
    # A layer without experts between layers with; weights that do not sum to 1.
    "qwen3_moe_mixed": ("qwen3_moe", dict(BASE, num_hidden_layers=3, head_dim=8, num_experts=5, num_experts_per_tok=3,
                                          moe_intermediate_size=12, decoder_sparse_step=1, mlp_only_layers=[1],
                                          norm_topk_prob=False, rope_parameters=ROPE), 24, EXPERTS),
    "mixtral": ("mixtral", dict(BASE, num_local_experts=4, num_experts_per_tok=2, intermediate_size=20, sliding_window=6,
                                rope_parameters=ROPE), 24, EXPERTS),
    "qwen3_next_dense": ("qwen3_next", dict(BASE, head_dim=16, **LINEAR, num_experts=4, num_experts_per_tok=1, moe_intermediate_size=12,
                                            shared_expert_intermediate_size=20, mlp_only_layers=[1], norm_topk_prob=False,
                                            layer_types=["full_attention", "linear_attention"],
                                            rope_parameters=dict(ROPE, partial_rotary_factor=0.5)), 40, []),
    "qwen3_5_moe": ("qwen3_5_moe_text", dict({k: v for k, v in BASE.items() if k != "intermediate_size"}, head_dim=16, **LINEAR,
                                             num_experts=4, num_experts_per_tok=2, moe_intermediate_size=12,
                                             shared_expert_intermediate_size=16, layer_types=["linear_attention", "full_attention"],
                                             rope_parameters=dict(ROPE, partial_rotary_factor=0.25, mrope_interleaved=True,
                                                                  mrope_section=[1, 1, 0])), 24, EXPERTS),
    # Windows that a flag switches on: from a layer on, in layers without rotary embedding, in all.
    "qwen2_window": ("qwen2", dict(BASE, use_sliding_window=True, sliding_window=9, max_window_layers=1, rope_parameters=ROPE), 24, []),
    "smollm3_window": ("smollm3", dict(BASE, use_sliding_window=True, sliding_window=6, no_rope_layer_interval=2,
                                       rope_parameters=ROPE), 24, []),
    "qwen3_moe_window": ("qwen3_moe", dict(BASE, head_dim=8, use_sliding_window=True, sliding_window=7, num_experts=3, num_experts_per_tok=2,
                                           moe_intermediate_size=12, decoder_sparse_step=2, norm_topk_prob=True,
                                           rope_parameters=ROPE), 24, EXPERTS),
}


# Of variants that came later: the others keep theirs, which go by their order.
SEEDS = {"phi3_longrope_even": 7800}


def randomise(model, seed, embed):
    """Weights large enough that every path matters; norms and biases away from where they start."""
    g = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, p in sorted(model.named_parameters()):
            n, leaf = torch.randn(p.shape, generator=g), name.rsplit(".", 1)[-1]
            if p.dim() >= 2:
                p.copy_(n * (embed if any(w in name for w in ("embed", "wte", "wpe")) else 0.2))
            elif leaf in ("A_log", "dt_bias"):
                p.copy_(n * 0.3)
            elif leaf == "weight":
                p.add_(n * 0.2)
            else:
                p.copy_(n * 0.1)


def cross_entropy(model, ids, mask):
    logits = model(input_ids=ids, use_cache=False).logits.float()
    lp = torch.log_softmax(logits[:, :-1], -1).gather(-1, ids[:, 1:, None])[..., 0]
    return -(lp * mask).sum() / mask.sum(), logits, lp


def greedy(model, prompt, n, cache):
    ids, rows, past = prompt.clone(), [], None
    feed = prompt
    with torch.no_grad():
        for _ in range(n):
            out = model(input_ids=feed, past_key_values=past, use_cache=cache)
            rows.append(out.logits[:, -1].float())
            new = rows[-1].argmax(-1, keepdim=True)
            ids = torch.cat([ids, new], 1)
            past = out.past_key_values if cache else None
            feed = new if cache else ids
    return ids, torch.stack(rows, 1)


def thin(t):
    """Of more than 1,024 elements every eighth row, or every second where there are fewer than 16."""
    if t.numel() > 1024:
        t = t[:: (8 if t.shape[0] >= 16 else 2)]
    return t.detach().clone().contiguous()


def older(folder, ids, want):
    """config_v4.json: the same model as files published before transformers 5 describe it; checked by loading it."""
    with open(os.path.join(folder, "config.json")) as f:
        c = json.load(f)
    c["torch_dtype"], c["transformers_version"] = c.pop("dtype"), "4.46.0"
    r = c.pop("rope_parameters", None)
    if c["model_type"] == "gemma3_text":
        full = r["full_attention"]
        c["rope_theta"], c["rope_local_base_freq"] = full.pop("rope_theta"), r["sliding_attention"]["rope_theta"]
        c["rope_scaling"] = full
    elif c["model_type"] == "gpt_neox":
        c["rotary_emb_base"], c["rotary_pct"] = r["rope_theta"], r["partial_rotary_factor"]
        c.pop("rope_theta", None), c.pop("partial_rotary_factor", None)
    elif r:
        c["rope_theta"] = r.pop("rope_theta")
        if "partial_rotary_factor" in r:
            c["partial_rotary_factor"] = r.pop("partial_rotary_factor")
        c["rope_scaling"] = None if r == {"rope_type": "default"} else r
    with open(os.path.join(folder, "config_v4.json"), "w") as f:
        json.dump(c, f, indent=2, sort_keys=True)
    with tempfile.TemporaryDirectory() as t:
        for n in os.listdir(folder):
            shutil.copy(os.path.join(folder, n), t)
        os.replace(os.path.join(t, "config_v4.json"), os.path.join(t, "config.json"))
        m = AutoModelForCausalLM.from_pretrained(t, dtype=torch.float32, attn_implementation="eager").eval()
    with torch.no_grad():
        got = m(input_ids=ids, use_cache=False).logits.float()
    if (got - want).abs().max().item() > 1e-5:
        raise SystemExit(f"{folder}: config_v4.json describes another model")


def adapters(model, ids, mask, extra, out, meta):
    targets = sorted(n for n, m in model.named_modules()
                     if isinstance(m, (torch.nn.Linear, Conv1D)) and not n.endswith(("lm_head", "embed_out")))
    if "experts" in meta:  # peft would move these to the experts, which have adapters of their own here
        targets = [t for t in targets if "attn" in t or t.endswith("shared_expert_gate")]
    fan = any(isinstance(dict(model.named_modules())[t], Conv1D) for t in targets)
    peft = get_peft_model(model, LoraConfig(r=RANK, lora_alpha=ALPHA, lora_dropout=0.0, bias="none", task_type="CAUSAL_LM",
                                            fan_in_fan_out=fan, target_modules=targets, target_parameters=extra or None))
    g = torch.Generator().manual_seed(78)
    names = sorted((n, p) for n, p in peft.named_parameters() if "lora_" in n)
    with torch.no_grad():
        for n, p in names:
            p.copy_(torch.randn(p.shape, generator=g) * (0.05 if "lora_B" in n else 0.1))

    def short(n):
        return n.removeprefix("base_model.model.").replace(".default.", ".")

    for n, p in names:
        out["lora.init." + short(n)] = p.detach().clone()
    opt = torch.optim.AdamW([p for _, p in names], **ADAMW)
    for step in range(3):
        opt.zero_grad()
        loss, logits, _ = cross_entropy(peft, ids, mask)
        loss.backward()
        if step == 0:
            meta["lora"] = dict(rank=RANK, alpha=ALPHA, loss=loss.item(), targets=targets, target_parameters=extra)
            out["lora.logits"] = thin(logits.flatten(0, 1))
            for n, p in names:
                out["lora.grad." + short(n)] = (torch.zeros_like(p) if p.grad is None else p.grad).detach().clone()
        opt.step()
    for n, p in names:
        out["lora.step3." + short(n)] = p.detach().clone()


def make(name, outdir):
    kind, config, length, extra = VARIANTS[name]
    cfg = AutoConfig.for_model(kind, **config)
    for k, v in config.items():  # what a release does not know must not pass
        if k != "rope_parameters" and getattr(cfg, k, None) != v:
            raise SystemExit(f"{name}: field {k} is {getattr(cfg, k, None)!r}, wanted {v!r}")
    cfg._attn_implementation = "eager"
    seed = SEEDS.get(name) or 7000 + [n for n in VARIANTS if n not in SEEDS].index(name)
    torch.manual_seed(seed)
    model = AutoModelForCausalLM.from_config(cfg, dtype=torch.float32)
    model.tie_weights()
    randomise(model, seed, 0.15 if cfg.tie_word_embeddings else 0.6)
    work = tempfile.mkdtemp()
    folder = os.path.join(work, name)
    model.to(torch.bfloat16).save_pretrained(folder)
    if os.path.exists(os.path.join(folder, "generation_config.json")):
        os.remove(os.path.join(folder, "generation_config.json"))

    def load():
        return AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, attn_implementation="eager").eval()

    model = load()
    g = torch.Generator().manual_seed(seed + 1)
    ids = torch.randint(3, V, (2, length), generator=g)
    mask = torch.ones(2, length - 1)
    mask[0, :4] = 0
    mask[1, -3:] = 0
    prompt = torch.randint(3, V, (2, 12), generator=g)
    out = dict(input_ids=ids, loss_mask=mask, prompt_ids=prompt)
    meta = dict(torch=torch.__version__.split("+")[0], transformers=transformers.__version__, adamw=dict(ADAMW, betas=list(ADAMW["betas"])))
    if extra:
        meta["experts"] = True
    loss, logits, lp = cross_entropy(model, ids, mask)
    loss.backward()
    out["logits"], out["logprobs"], meta["loss"] = logits.detach().clone(), lp.detach().clone(), loss.item()
    older(folder, ids, out["logits"])
    meta["grad_norm"] = {}
    for n, p in model.named_parameters():
        grad = torch.zeros_like(p) if p.grad is None else p.grad
        meta["grad_norm"][n] = grad.norm().item()
        out["grad." + n] = thin(grad)
    out["cached_ids"], out["cached_logits"] = greedy(model, prompt, 16, True)
    full, rows = greedy(model, prompt, 16, False)
    top = rows.topk(2, -1).values
    meta["greedy_min_margin"] = (top[..., 0] - top[..., 1]).min().item()
    if not torch.equal(full, out["cached_ids"]) or meta["greedy_min_margin"] < 1e-4:
        raise SystemExit(f"{name}: greedy text is ambiguous (margin {meta['greedy_min_margin']:.2g}); take another seed")
    adapters(load(), ids, mask, extra, out, meta)
    bad = [k for k, v in out.items() if v.is_floating_point() and not torch.isfinite(v).all()]
    if bad:
        raise SystemExit(f"{name}: not finite: {bad}")
    save_file({k: v.contiguous() for k, v in out.items()}, os.path.join(folder, "golden.safetensors"))
    with open(os.path.join(folder, "golden.json"), "w") as f:
        json.dump(meta, f, indent=1, sort_keys=True)
    pack(folder, os.path.join(outdir, name + ".tar.gz"))
    shutil.rmtree(work)


def pack(folder, to):
    """The same files give the same bytes."""
    raw = io.BytesIO()
    with tarfile.open(fileobj=raw, mode="w", format=tarfile.USTAR_FORMAT) as t:
        for n in sorted(os.listdir(folder)):
            info = tarfile.TarInfo(os.path.basename(folder) + "/" + n)
            with open(os.path.join(folder, n), "rb") as f:
                data = f.read()
            info.size, info.mode = len(data), 0o644
            t.addfile(info, io.BytesIO(data))
    with open(to, "wb") as f, gzip.GzipFile(fileobj=f, mode="wb", compresslevel=9, mtime=0, filename="") as z:
        z.write(raw.getvalue())
    print(f"{os.path.basename(to)}: {os.path.getsize(to) / 1e3:.0f} kB", flush=True)


def stretched(outdir):
    """rope_stretched: one Llama under the scalings that change with a text's length, on a text that is long enough for it."""
    length, configs = 128, {
        "longrope": dict(max_position_embeddings=256, rope_parameters=dict(
            rope_type="longrope", rope_theta=10000.0, original_max_position_embeddings=64, short_factor=[1.0, 1.1, 1.5, 2.0],
            long_factor=[2.0, 3.0, 4.0, 5.0])),
        "dynamic": dict(max_position_embeddings=32, rope_parameters=dict(rope_type="dynamic", rope_theta=10000.0, factor=4.0))}
    g = torch.Generator().manual_seed(7900)
    ids = torch.randint(3, V, (1, length), generator=g)
    work = tempfile.mkdtemp()
    folder = os.path.join(work, "rope_stretched")
    out, state = dict(input_ids=ids), None
    meta = dict(torch=torch.__version__.split("+")[0], transformers=transformers.__version__, configs={})
    for name, fields in configs.items():
        cfg = AutoConfig.for_model("llama", **dict(BASE, **fields))
        cfg._attn_implementation = "eager"
        model = AutoModelForCausalLM.from_config(cfg, dtype=torch.float32)
        if state is None:
            randomise(model, 7901, 0.6)
            state = {k: v.to(torch.bfloat16) for k, v in model.state_dict().items()}
            model.to(torch.bfloat16).save_pretrained(folder)
        model = AutoModelForCausalLM.from_config(cfg, dtype=torch.float32).eval()
        model.load_state_dict({k: v.float() for k, v in state.items()})
        cfg.save_pretrained(os.path.join(work, name))
        with open(os.path.join(work, name, "config.json")) as f:
            meta["configs"][name] = dict(json.load(f), architectures=["LlamaForCausalLM"])
        with torch.no_grad():
            short = model(input_ids=ids[:, :16], use_cache=False).logits.float()
            out["logits." + name] = model(input_ids=ids, use_cache=False).logits.float()
        apart = (out["logits." + name][:, :16] - short).abs().max().item()
        if apart < 0.05:
            raise SystemExit(f"rope_stretched: {name} does not depend on the length ({apart:.2g})")
    os.remove(os.path.join(folder, "generation_config.json"))
    save_file({k: v.contiguous() for k, v in out.items()}, os.path.join(folder, "golden.safetensors"))
    with open(os.path.join(folder, "golden.json"), "w") as f:
        json.dump(meta, f, indent=1, sort_keys=True)
    pack(folder, os.path.join(outdir, "rope_stretched.tar.gz"))
    shutil.rmtree(work)


def main():
    if len(sys.argv) < 2:
        raise SystemExit(__doc__)
    torch.set_num_threads(1)
    torch.use_deterministic_algorithms(True, warn_only=True)
    for name in sys.argv[2:] or [*VARIANTS, "rope_stretched"]:
        if name == "rope_stretched":
            stretched(sys.argv[1])
        else:
            make(name, sys.argv[1])


if __name__ == "__main__":
    main()
