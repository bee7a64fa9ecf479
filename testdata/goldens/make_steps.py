#!/usr/bin/env python3
"""Makes the goldens that SmolGym adds to the import goldens: optimizer steps with the
gradients of every step, own-gradient steps, policy losses, tied heads, rope geometry.

Usage: make_steps.py OUT        (run in the torch environment; see README.md beside this file)

Writes OUT/steps_llama.tar.gz, steps_llama_tied.tar.gz, steps_qwen3.tar.gz,
optimizer.tar.gz, tied_head.tar.gz, geometry.tar.gz and losses.json. Everything is float32 on
one CPU thread with eager attention and fixed seeds, except the losses, which are float64 on
inputs that float32 holds exactly.
"""
import argparse
import gzip
import io
import json
import math
import os
import shutil
import tarfile
import tempfile

os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
os.environ.setdefault("USE_HUB_KERNELS", "0")

import peft
import torch
import transformers
from safetensors.torch import load_file, save_file
from transformers import AutoConfig, AutoModelForCausalLM

transformers.utils.logging.disable_progress_bar()

VERSIONS = dict(torch=torch.__version__.split("+")[0], transformers=transformers.__version__,
                peft=peft.__version__)
V, H = 64, 32
SMALL = dict(vocab_size=V, hidden_size=H, intermediate_size=40, num_hidden_layers=2,
             num_attention_heads=4, num_key_value_heads=2, max_position_embeddings=64,
             rms_norm_eps=1e-5, bos_token_id=1, eos_token_id=2, pad_token_id=0,
             rope_parameters=dict(rope_type="default", rope_theta=10000.0))
VARIANTS = {
    "steps_llama": ("llama", dict(SMALL)),
    "steps_llama_tied": ("llama", dict(SMALL, tie_word_embeddings=True)),
    "steps_qwen3": ("qwen3", dict(SMALL, rms_norm_eps=1e-6, head_dim=16, tie_word_embeddings=True)),
}
# One entry a step: everything that AdamParams carries may change between steps.
FED = [
    dict(learning_rate=1e-2, beta1=0.9, beta2=0.95, eps=1e-12, weight_decay=0.1, grad_clip_norm=0.5),
    dict(learning_rate=3e-3, beta1=0.9, beta2=0.95, eps=1e-12, weight_decay=0.0, grad_clip_norm=0.0),
    dict(learning_rate=2e-2, beta1=0.9, beta2=0.95, eps=1e-12, weight_decay=0.01, grad_clip_norm=0.5),
]
# eps far above the rounding noise of a gradient, so that a gradient whose true value is 0 moves
# its weight by nothing instead of by the learning rate.
OWN = dict(learning_rate=1e-2, beta1=0.9, beta2=0.95, eps=1e-3, weight_decay=0.1, grad_clip_norm=0.0)
LORA_RANK, LORA_ALPHA = 4, 8


def gen(seed):
    return torch.Generator().manual_seed(seed)


def randomise(model, seed, embed_scale):
    """Weights large enough that every path matters; norms away from 1."""
    g = gen(seed)
    with torch.no_grad():
        for name, p in sorted(model.named_parameters()):
            n = torch.randn(p.shape, generator=g)
            if p.dim() >= 2:
                p.copy_(n * (embed_scale if "embed" in name else 0.2))
            elif "norm" in name:
                p.add_(n * 0.2)
            else:
                p.copy_(n * 0.1)


def build(model_type, kw, seed, d, dtype, embed_scale=None):
    cfg = AutoConfig.for_model(model_type, **kw)
    cfg._attn_implementation = "eager"
    torch.manual_seed(seed)
    model = AutoModelForCausalLM.from_config(cfg, dtype=torch.float32)
    model.tie_weights()
    if embed_scale is None:
        embed_scale = 0.15 if getattr(cfg, "tie_word_embeddings", False) else 0.5
    randomise(model, seed, embed_scale)
    model.to(dtype).eval()
    model.save_pretrained(d)
    gc = os.path.join(d, "generation_config.json")
    if os.path.exists(gc):
        os.remove(gc)
    return load(d)


def load(d):
    return AutoModelForCausalLM.from_pretrained(d, dtype=torch.float32, attn_implementation="eager").eval()


def old_config(d, probe, want, rope_key="rope_type"):
    """config_v4.json: the same model in the field names of published checkpoints; checked."""
    with open(os.path.join(d, "config.json")) as f:
        c = json.load(f)
    c["torch_dtype"] = c.pop("dtype")
    c["transformers_version"] = "4.46.0"
    rp = c.pop("rope_parameters")
    c["rope_theta"] = rp.pop("rope_theta")
    if rp == {"rope_type": "default"}:
        c["rope_scaling"] = None
    else:
        rp[rope_key] = rp.pop("rope_type")
        c["rope_scaling"] = rp
    write_json(os.path.join(d, "config_v4.json"), c)
    t = tempfile.mkdtemp()
    shutil.copy(os.path.join(d, "model.safetensors"), t)
    write_json(os.path.join(t, "config.json"), c)
    with torch.no_grad():
        got = load(t)(input_ids=probe, use_cache=False).logits.float()
    shutil.rmtree(t)
    if (got - want).abs().max().item() > 1e-5:
        raise SystemExit(f"{d}: config_v4.json does not describe the same model")


def write_json(path, v):
    with open(path, "w") as f:
        json.dump(v, f, indent=1, sort_keys=True)
        f.write("\n")


def pack(d, out):
    """A tar.gz whose bytes depend on the contents alone."""
    name = os.path.basename(d)
    raw = io.BytesIO()
    with tarfile.open(fileobj=raw, mode="w", format=tarfile.USTAR_FORMAT) as t:
        for f in sorted(os.listdir(d)):
            info = t.gettarinfo(os.path.join(d, f), arcname=f"{name}/{f}")
            info.mtime, info.uid, info.gid, info.uname, info.gname, info.mode = 0, 0, 0, "", "", 0o644
            with open(os.path.join(d, f), "rb") as fh:
                t.addfile(info, fh)
    path = os.path.join(out, name + ".tar.gz")
    with open(path, "wb") as f, gzip.GzipFile("", "wb", 9, f, mtime=0) as z:
        z.write(raw.getvalue())
    print(f"{name}: {os.path.getsize(path) / 1e3:.0f} kB", flush=True)


def mean_ce(model, ids, mask):
    logits = model(input_ids=ids, use_cache=False).logits.float()
    lp = torch.log_softmax(logits[:, :-1], -1).gather(-1, ids[:, 1:, None])[..., 0]
    return -(lp * mask).sum() / mask.sum(), logits, lp


def settings(opt, s):
    for group in opt.param_groups:
        group.update(lr=s["learning_rate"], betas=(s["beta1"], s["beta2"]), eps=s["eps"],
                     weight_decay=s["weight_decay"])


def adamw(params):
    return torch.optim.AdamW(params, lr=1.0, foreach=False, fused=False)


def clip(params, s):
    """The global norm before clipping; gradients clipped in place where asked."""
    norm = torch.linalg.vector_norm(torch.stack([torch.linalg.vector_norm(p.grad) for p in params]))
    if s["grad_clip_norm"] > 0:
        torch.nn.utils.clip_grad_norm_(params, s["grad_clip_norm"])
    return norm.item()


def three(params, backward, steps, out=None, prefix=""):
    """Runs the steps; with out, stores the gradients as they are before clipping."""
    opt, losses, norms = adamw([p for _, p in params]), [], []
    for i, s in enumerate(steps, 1):
        opt.zero_grad()
        losses.append(backward())
        if out is not None:
            for n, p in params:
                out[f"{prefix}grad{i}.{n}"] = p.grad.detach().clone()
        settings(opt, s)
        norms.append(clip([p for _, p in params], s))
        opt.step()
    return losses, norms


def steps_variant(name, outdir):
    model_type, kw = VARIANTS[name]
    seed = 4000 + list(VARIANTS).index(name)
    d = os.path.join(outdir, name)
    os.makedirs(d)
    model = build(model_type, kw, seed, d, torch.float32)
    ids = torch.randint(3, V, (2, 16), generator=gen(seed + 1))
    mask = torch.ones(2, 15)
    mask[0, :4] = 0
    mask[1, 12:] = 0
    out = {"input_ids": ids, "loss_mask": mask}
    loss, logits, lp = mean_ce(model, ids, mask)
    out["logprobs"] = lp.detach().clone()
    old_config(d, ids, logits.detach())
    meta = dict(VERSIONS, model_type=model_type, loss=loss.item(), loss_targets=int(mask.sum()),
                tied=bool(kw.get("tie_word_embeddings")))

    def runner(m):
        def backward():
            l, _, _ = mean_ce(m, ids, mask)
            l.backward()
            return l.item()
        return backward

    # fed: settings change at each step; gradients of all three steps are stored.
    model = load(d)
    params = sorted(model.named_parameters())
    losses, norms = three(params, runner(model), FED, out, "fed.")
    for n, p in params:
        out["fed.step3." + n] = p.detach().clone()
    meta["fed"] = dict(steps=FED, losses_before_step=losses, grad_norm=norms)

    # own: the same settings three times with a large eps, for an implementation's own gradients.
    model = load(d)
    params = sorted(model.named_parameters())
    losses, norms = three(params, runner(model), [OWN] * 3)
    for n, p in params:
        out["own.step3." + n] = p.detach().clone()
    after, _, _ = mean_ce(model, ids, mask)
    meta["own"] = dict(steps=[OWN] * 3, losses_before_step=losses, loss_after=after.item(), grad_norm=norms)

    # lora: PEFT on every linear layer and the head, the base frozen.
    model = load(d)
    targets = sorted(n for n, m in model.named_modules() if isinstance(m, torch.nn.Linear))
    pm = peft.get_peft_model(model, peft.LoraConfig(
        r=LORA_RANK, lora_alpha=LORA_ALPHA, lora_dropout=0.0, bias="none", task_type="CAUSAL_LM",
        target_modules=targets))
    params = sorted((n, p) for n, p in pm.named_parameters() if "lora_" in n)
    g = gen(seed + 2)
    with torch.no_grad():
        for n, p in params:
            p.copy_(torch.randn(p.shape, generator=g) * (0.05 if "lora_B" in n else 0.1))
    params = [(n.removeprefix("base_model.model.").replace(".default.", "."), p) for n, p in params]
    for n, p in params:
        out["lora.init." + n] = p.detach().clone()
    losses, norms = three(params, runner(pm), [OWN] * 3)
    for n, p in params:
        out["lora.step3." + n] = p.detach().clone()
    after, _, _ = mean_ce(pm, ids, mask)
    meta["lora"] = dict(steps=[OWN] * 3, losses_before_step=losses, loss_after=after.item(), grad_norm=norms,
                        rank=LORA_RANK, alpha=LORA_ALPHA, scaling=LORA_ALPHA / LORA_RANK, targets=targets)
    finish(d, out, meta, outdir)


def finish(d, out, meta, outdir, golden="golden.safetensors"):
    for k, v in out.items():
        if v.is_floating_point() and not torch.isfinite(v).all():
            raise SystemExit(f"{d}: {k} has a value that is not finite")
    save_file({k: v.contiguous() for k, v in out.items()}, os.path.join(d, golden), metadata={"format": "pt"})
    write_json(os.path.join(d, "golden.json"), meta)
    pack(d, outdir)


def optimizer_alone(outdir):
    """Five steps on tensors of odd shapes with made-up gradients: no model needed."""
    d = os.path.join(outdir, "optimizer")
    os.makedirs(d)
    g, out = gen(4100), {}
    shapes = {"matrix": (7, 13), "vector": (19,), "one": (1,), "wide": (3, 65)}
    params = []
    for n, s in shapes.items():
        p = torch.nn.Parameter(torch.randn(s, generator=g))
        params.append((n, p))
        out["init." + n] = p.detach().clone()
    steps = [dict(learning_rate=lr, beta1=0.9, beta2=0.95, eps=1e-12, weight_decay=0.01, grad_clip_norm=0.5)
             for lr in (1e-2, 5e-3, 2e-2, 1e-3, 0.0)]
    # The size of the gradient spans the clip: above it, far above, below, a zero gradient, above.
    sizes = [1.0, 30.0, 1e-3, 0.0, 1.0]
    it = iter(sizes)

    def backward():
        size = next(it)
        for n, p in params:
            p.grad = torch.randn(p.shape, generator=g) * size
        return 0.0

    opt, norms = adamw([p for _, p in params]), []
    for i, s in enumerate(steps, 1):
        backward()
        for n, p in params:
            out[f"grad{i}.{n}"] = p.grad.detach().clone()
        settings(opt, s)
        norms.append(clip([p for _, p in params], s))
        opt.step()
        for n, p in params:
            out[f"step{i}.{n}"] = p.detach().clone()
    finish(d, out, dict(VERSIONS, steps=steps, grad_norm=norms), outdir)


FR = dict(vocab_size=64, hidden_size=64, intermediate_size=48, num_hidden_layers=1, num_attention_heads=4,
          num_key_value_heads=2, rms_norm_eps=1e-5, bos_token_id=1, eos_token_id=2, pad_token_id=0)


def tied_head(outdir):
    """One trunk, three heads (none, equal to the embedding, another one), three flags."""
    d = os.path.join(outdir, "tied_head")
    os.makedirs(d)
    kw = dict(FR, max_position_embeddings=64, rope_parameters=dict(rope_type="default", rope_theta=10000.0))
    t = tempfile.mkdtemp()
    model = build("llama", dict(kw, tie_word_embeddings=False), 4200, t, torch.bfloat16)
    ids = torch.randint(3, 64, (1, 12), generator=gen(4201))
    state = {k: v.to(torch.bfloat16) for k, v in model.state_dict().items()}
    head = state.pop("lm_head.weight")
    meta = {"format": "pt"}
    save_file(state, os.path.join(d, "trunk.safetensors"), metadata=meta)
    save_file({"lm_head.weight": state["model.embed_tokens.weight"].clone()},
              os.path.join(d, "head_equal.safetensors"), metadata=meta)
    save_file({"lm_head.weight": head}, os.path.join(d, "head_other.safetensors"), metadata=meta)
    with open(os.path.join(t, "config.json")) as f:
        c = json.load(f)
    write_json(os.path.join(d, "config.json"), c)
    with torch.no_grad():
        own = model(input_ids=ids, use_cache=False).logits.float()
        model.lm_head.weight.copy_(model.model.embed_tokens.weight)
        tied = model(input_ids=ids, use_cache=False).logits.float()
    shutil.rmtree(t)
    default = bool(getattr(AutoConfig.for_model("llama"), "tie_word_embeddings"))
    cases = []
    for flag in (True, False, None):
        for h in (None, "head_equal.safetensors", "head_other.safetensors"):
            eff = default if flag is None else flag
            case = dict(tie_word_embeddings=flag, head=h)
            if h is None:
                case["expect"] = "logits.tied" if eff else "refused"
            elif h == "head_equal.safetensors":
                case["expect"] = "logits.tied"
            else:
                case["expect"] = "warning" if eff else "logits.own_head"
            cases.append(case)
            loaded = tied_logits(d, c, flag, h, ids)
            want = dict(warning=own, refused=None).get(case["expect"], own if case["expect"] == "logits.own_head" else tied)
            if want is not None and not torch.equal(loaded, want):
                raise SystemExit(f"tied_head: the reference loads {case} to other logits")
    out = {"input_ids": ids, "logits.tied": tied, "logits.own_head": own}
    finish(d, out, dict(VERSIONS, family_default=default, cases=cases), outdir)


def tied_logits(d, config, flag, head, ids):
    """The logits of one combination as the reference loads it; of a head that it leaves at random too."""
    with tempfile.TemporaryDirectory() as t:
        c = {k: v for k, v in config.items() if k != "tie_word_embeddings"}
        write_json(os.path.join(t, "config.json"), c if flag is None else dict(c, tie_word_embeddings=flag))
        state = load_file(os.path.join(d, "trunk.safetensors"))
        if head:
            state.update(load_file(os.path.join(d, head)))
        save_file(state, os.path.join(t, "model.safetensors"), metadata={"format": "pt"})
        model = AutoModelForCausalLM.from_pretrained(t, dtype=torch.float32, attn_implementation="eager").eval()
        with torch.no_grad():
            return model(input_ids=ids, use_cache=False).logits.float()


def geometry(outdir):
    """Heads wider than hidden/heads, grouped keys; llama3 scaling at every position to 255."""
    d = os.path.join(outdir, "geometry")
    os.makedirs(d)
    kw = dict(FR, head_dim=32, max_position_embeddings=512, tie_word_embeddings=True)
    ids = torch.randint(3, 64, (1, 256), generator=gen(4301))
    out, meta = {"input_ids": ids}, dict(VERSIONS, cases=[])
    plain = dict(rope_type="default", rope_theta=10000.0)
    scaled = [dict(rope_type="llama3", rope_theta=10000.0, factor=f, low_freq_factor=1.0, high_freq_factor=4.0,
                   original_max_position_embeddings=16) for f in (8.0, 32.0)]
    for name, rope in (("plain", plain), ("factor8", scaled[0]), ("factor32", scaled[1])):
        t = tempfile.mkdtemp()
        model = build("llama", dict(kw, rope_parameters=rope), 4300, t, torch.bfloat16)
        with torch.no_grad():
            logits = model(input_ids=ids, use_cache=False).logits.float()
        old_config(t, ids, logits, "rope_type" if name != "factor32" else "type")
        if name == "plain":
            shutil.copy(os.path.join(t, "model.safetensors"), d)
        files = [f"config_{name}.json", f"config_{name}_v4.json"]
        shutil.copy(os.path.join(t, "config.json"), os.path.join(d, files[0]))
        shutil.copy(os.path.join(t, "config_v4.json"), os.path.join(d, files[1]))
        if name != "plain":  # and the older spelling of the older fields, for both factors
            with open(os.path.join(t, "config_v4.json")) as f:
                c = json.load(f)
            r = c["rope_scaling"]
            key = "type" if "rope_type" in r else "rope_type"
            r[key] = r.pop("rope_type" if key == "type" else "type")
            files.append(f"config_{name}_v4_{key}.json")
            write_json(os.path.join(d, files[-1]), c)
        shutil.rmtree(t)
        # The first 24 positions, where scaling hides, and every third after.
        rows = torch.tensor(list(range(24)) + list(range(24, 256, 3)) + [255])
        out["rows"] = rows
        out["logits." + name] = logits[0, rows]
        meta["cases"].append(dict(name=name, configs=files, logits="logits." + name))
    apart = (out["logits.factor8"] - out["logits.factor32"]).abs().max().item()
    if apart < 1e-2:
        raise SystemExit("geometry: the two factors give the same logits")
    finish(d, out, meta, outdir)


def policy_loss(name, p, q, a, w, cfg):
    """The sums of the wire contract; w is a per-token factor, None where not sent."""
    w = torch.ones_like(p) if w is None else w
    if name == "cross_entropy":
        return -(w * p).sum()
    r = torch.exp(p - q)
    if name == "importance_sampling":
        return -(w * r * a).sum()
    if name == "ppo":
        lo, hi = cfg.get("clip_low_threshold", 0.8), cfg.get("clip_high_threshold", 1.2)
        return -(w * torch.minimum(r * a, r.clamp(lo, hi) * a)).sum()
    if name == "cispo":
        lo, hi = cfg.get("clip_low_threshold", 0.0), cfg.get("clip_high_threshold", 4.0)
        return -(w * r.clamp(lo, hi).detach() * p * a).sum()
    if name == "dro":
        return -(w * (p * a - 0.5 * cfg["beta"] * (p - q) ** 2)).sum()
    raise ValueError(name)


def f32(t):
    """float64 values that float32 holds exactly, so that a reader may store them in either."""
    return t.to(torch.float32).to(torch.float64)


def losses(outdir):
    cases = []

    def vector(label, name, p, q=None, a=None, w=None, cfg=None):
        cfg = cfg or {}
        p = f32(p).requires_grad_(True)
        q, a, w = (None if x is None else f32(x) for x in (q, a, w))
        loss = policy_loss(name, p, q, a, w, cfg)
        loss.backward()
        c = dict(label=label, loss_fn=name, config=cfg, logprob=p.tolist(), loss=loss.item(), grad=p.grad.tolist())
        for k, v in (("sampled_logprob", q), ("advantages", a), ("weights", w)):
            if v is not None:
                c[k] = v.tolist()
        cases.append(c)

    # Ratios 0.5, 1 and 1.6, each with advantage +1 and -1.
    r = torch.tensor([0.5, 0.5, 1.0, 1.0, 1.6, 1.6], dtype=torch.float64)
    q = f32(torch.full((6,), -1.25, dtype=torch.float64))
    p = q + torch.log(r)
    a = torch.tensor([1.0, -1.0] * 3, dtype=torch.float64)
    vector("ratios", "importance_sampling", p, q, a)
    vector("ratios", "ppo", p, q, a)
    vector("ratios", "ppo", p, q, a, cfg=dict(clip_low_threshold=0.25, clip_high_threshold=1.5))
    vector("ratios", "cispo", p, q, a)
    vector("ratios", "cispo", p, q, a, cfg=dict(clip_low_threshold=0.8, clip_high_threshold=1.2))
    vector("ratios", "dro", p, q, a, cfg=dict(beta=0.05))
    vector("ratios", "cross_entropy", p, w=torch.tensor([1.0, 0.5, 0.0, -2.0, 0.125, 3.0], dtype=torch.float64))
    g = gen(4400)
    for i in range(3):
        n = 17
        p = -torch.rand(n, generator=g, dtype=torch.float64) * 6
        q = p + torch.randn(n, generator=g, dtype=torch.float64) * 0.7
        a = torch.randn(n, generator=g, dtype=torch.float64)
        a[::5] = 0
        w = torch.randn(n, generator=g, dtype=torch.float64)
        vector(f"random{i}", "cross_entropy", p, w=w)
        for name, cfg in (("importance_sampling", {}), ("ppo", {}), ("cispo", {}), ("dro", dict(beta=0.5 / (i + 1)))):
            cfg = {k: f32(torch.tensor(v, dtype=torch.float64)).item() for k, v in cfg.items()}
            vector(f"random{i}", name, p, q, a, cfg=cfg)
            vector(f"random{i} weighted", name, p, q, a, w=w, cfg=cfg)
    cases += with_logits(g)
    write_json(os.path.join(outdir, "losses.json"), dict(VERSIONS, cases=cases))
    print(f"losses.json: {len(cases)} cases", flush=True)


def with_logits(g):
    """The same from logits: the log-softmax and its gradient are in it; also (N, K) targets."""
    cases, n, v = [], 5, 7
    for name in ("cross_entropy", "cross_entropy_topk", "importance_sampling", "ppo", "cispo", "dro"):
        logits = f32(torch.randn(n, v, generator=g, dtype=torch.float64) * 2).requires_grad_(True)
        k = 3 if name == "cross_entropy_topk" else 1
        target = torch.stack([torch.randperm(v, generator=g)[:k] for _ in range(n)])
        p = torch.log_softmax(logits, -1).gather(-1, target)
        q = f32(p.detach() + torch.randn(n, k, generator=g, dtype=torch.float64) * 0.5)
        a = f32(torch.randn(n, k, generator=g, dtype=torch.float64))
        w = f32(torch.randn(n, k, generator=g, dtype=torch.float64))
        fn = name.removesuffix("_topk")
        cfg = dict(beta=0.25) if fn == "dro" else {}
        loss = policy_loss(fn, p, q, a, w if fn == "cross_entropy" else None, cfg)
        loss.backward()

        def shape(t):
            return t.tolist() if k > 1 else t[:, 0].tolist()
        c = dict(label="logits", loss_fn=fn, config=cfg, logits=logits.tolist(), target_tokens=shape(target),
                 logprob=shape(p), loss=loss.item(), grad_logits=logits.grad.tolist())
        if fn == "cross_entropy":
            c["weights"] = shape(w)
        else:
            c["sampled_logprob"], c["advantages"] = shape(q), shape(a)
        cases.append(c)
    return cases


def main():
    ap = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    ap.add_argument("out")
    a = ap.parse_args()
    torch.set_num_threads(1)
    torch.use_deterministic_algorithms(True, warn_only=True)
    work = tempfile.mkdtemp()
    for name in VARIANTS:
        steps_variant(name, work)
    optimizer_alone(work)
    tied_head(work)
    geometry(work)
    losses(work)
    for f in sorted(os.listdir(work)):
        if os.path.isfile(os.path.join(work, f)):
            shutil.move(os.path.join(work, f), os.path.join(a.out, f))
    shutil.rmtree(work)


if __name__ == "__main__":
    main()
