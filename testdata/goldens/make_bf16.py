#!/usr/bin/env python3
"""Measures the reference framework's own bf16 errors against the float32 goldens: the yardstick that
SmolGym's bf16 mode is held to.

Usage: make_bf16.py DATA OUT [NAME ...]    (run in the torch environment; see README.md beside this file)

DATA holds the NAME.tar.gz of the import goldens. Every model is loaded as people load it, with
from_pretrained(dtype=torch.bfloat16), eager attention, one thread, and compared with its float32 golden: logits,
log-probabilities, gradients, LoRA (PEFT as it comes: adapters float32 on a bf16 base); of what a compact golden keeps
rows of, those rows. All of it
once for each instruction set below, in a process of its own, since oneDNN and ATen read their choice at start; of
the results the smallest is kept for each number. Writes OUT/bf16.json.gz.
"""
import gzip
import json
import os
import platform
import subprocess
import sys
import tarfile
import tempfile

os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
os.environ.setdefault("USE_HUB_KERNELS", "0")

# What a processor without the newer instructions computes with; the first is the machine's own choice.
SETTINGS = {
    "native": {},
    "avx512_core": {"ONEDNN_MAX_CPU_ISA": "AVX512_CORE"},
    "avx2": {"ONEDNN_MAX_CPU_ISA": "AVX2", "ATEN_CPU_CAPABILITY": "avx2"},
}


def main():
    if sys.argv[1] == "--worker":
        return worker(*sys.argv[2:])
    data, out, *names = sys.argv[1:]
    names = names or sorted(f.removesuffix(".tar.gz") for f in os.listdir(data) if f.endswith(".tar.gz"))
    results = {}
    for setting, env in SETTINGS.items():
        with tempfile.NamedTemporaryFile("r", suffix=".json") as f:
            subprocess.run([sys.executable, __file__, "--worker", data, f.name, *names], check=True,
                           env={**os.environ, **env})
            results[setting] = json.load(f)
        print(f"{setting}: {results[setting]['capability']}", flush=True)
    write(os.path.join(out, "bf16.json.gz"), results, names)


def write(path, results, names):
    settings = {k: dict(environment=SETTINGS[k], aten=r["capability"]) for k, r in results.items()}
    models = {n: smallest([r["models"][n] for r in results.values()]) for n in names}
    spread = {n: {k: spans([r["models"][n][k] for r in results.values()]) for k in models[n]} for n in names}
    for n in names:
        print(n, " ".join(f"{k} {v['mean']:.3g}/{v['max']:.3g} (x{spread[n][k][0]:.2f}/{spread[n][k][1]:.2f})"
                          for k, v in models[n].items()))
    worst = {k: [max(spread[n][k][i] for n in names) for i in (0, 1)] for k in models[names[0]]}
    facts = dict(processor=processor(), settings=settings, spread=worst, **results["native"]["versions"])
    text = json.dumps(dict(facts, models=models), indent=1, sort_keys=True) + "\n"
    with open(path, "wb") as f, gzip.GzipFile("", "wb", 9, f, mtime=0) as z:
        z.write(text.encode())
    print(f"{path}: {os.path.getsize(path) / 1e3:.0f} kB", flush=True)


def processor():
    """Name and the flags that choose bf16 kernels."""
    with open("/proc/cpuinfo") as f:
        lines = dict(line.split(":", 1) for line in f if ":" in line)
    facts = {k.strip(): v.strip() for k, v in lines.items()}
    flags = [f for f in facts["flags"].split() if f.startswith(("avx", "amx", "fma"))]
    return dict(machine=platform.machine(), name=facts["model name"], family=int(facts["cpu family"]),
                model=int(facts["model"]), flags=flags)


def smallest(runs):
    """The least of each number over runs of equal form."""
    if isinstance(runs[0], dict):
        return {k: smallest([r[k] for r in runs]) for k in runs[0]}
    if isinstance(runs[0], list):
        return [smallest(list(x)) for x in zip(*runs)]
    return min(runs)


def spans(runs):
    """Largest over smallest of the mean and of the largest error."""
    return [round(max(r[k] for r in runs) / max(min(r[k] for r in runs), 1e-30), 3) for k in ("mean", "max")]


# ---- the worker: one process, one instruction set

def worker(data, out, *names):
    import peft
    import torch
    import transformers
    transformers.utils.logging.disable_progress_bar()
    transformers.utils.logging.set_verbosity_error()
    torch.set_num_threads(1)
    torch.use_deterministic_algorithms(True, warn_only=True)
    models = {}
    for name in names:
        with tempfile.TemporaryDirectory() as d:
            with tarfile.open(os.path.join(data, name + ".tar.gz")) as t:
                t.extractall(d, filter="data")
            models[name] = measure(os.path.join(d, name))
    versions = dict(torch=torch.__version__.split("+")[0], transformers=transformers.__version__, peft=peft.__version__)
    with open(out, "w") as f:
        json.dump(dict(versions=versions, capability=torch.backends.cpu.get_cpu_capability(), models=models), f)


def measure(d):
    """The errors of one model, by what was computed."""
    import torch
    from safetensors.torch import load_file
    gold = load_file(os.path.join(d, "golden.safetensors"))
    with open(os.path.join(d, "golden.json")) as f:
        meta = json.load(f)
    want = everything(d, torch.float32, gold, meta)
    agree(want, gold, meta, d)
    got = everything(d, torch.bfloat16, gold, meta)
    errors = {}
    for key in ("logits", "logprobs"):
        errors[key] = error(got[key], want[key])
    errors["lora.logits"] = error(*[kept(x["lora.logits"].flatten(0, 1)) for x in (got, want)])
    errors["grad"] = gradient_errors(*[{n: kept(g) for n, g in x["grad"].items()} for x in (got, want)])
    errors["lora.grad"] = gradient_errors(got["lora.grad"], want["lora.grad"])
    return errors


def everything(d, dtype, gold, meta):
    """Forward, gradients and LoRA of a checkpoint loaded in a type."""
    import torch
    ids, mask = gold["input_ids"], gold["loss_mask"]
    model = load(d, dtype)
    loss, logits, lp = mean_ce(model, ids, mask)
    loss.backward()
    out = dict(loss=loss.item(), logits=logits.detach(), logprobs=lp.detach(), grad=gradients(model.named_parameters()))
    lora(load(d, dtype), gold, meta["lora"], ids, mask, out)
    return out


def load(d, dtype):
    from transformers import AutoModelForCausalLM
    return AutoModelForCausalLM.from_pretrained(d, dtype=dtype, attn_implementation="eager").eval()


def mean_ce(model, ids, mask):
    """Mean over the masked target positions of the next-token cross-entropy, from float32 logits."""
    import torch
    logits = model(input_ids=ids, use_cache=False).logits.float()
    lp = torch.log_softmax(logits[:, :-1], -1).gather(-1, ids[:, 1:, None])[..., 0]
    return -(lp * mask).sum() / mask.sum(), logits, lp


def gradients(params):
    import torch
    return {n: (torch.zeros_like(p) if p.grad is None else p.grad).float() for n, p in params}


def lora(model, gold, settings, ids, mask, out):
    """PEFT as it comes: adapters stay float32 whatever the base's type."""
    import peft
    import torch
    model = peft.get_peft_model(model, peft.LoraConfig(
        r=settings["rank"], lora_alpha=settings["alpha"], lora_dropout=0.0, bias="none", task_type="CAUSAL_LM",
        fan_in_fan_out=settings["fan_in_fan_out"], target_modules=settings["targets"]))
    params = [(n.removeprefix("base_model.model.").replace(".default.", "."), p)
              for n, p in model.named_parameters() if "lora_" in n]
    with torch.no_grad():
        for n, p in params:
            if p.dtype != torch.float32:
                raise SystemExit(f"{n} is {p.dtype}, not float32")
            p.copy_(gold["lora.init." + n])
    loss, logits, _ = mean_ce(model, ids, mask)
    loss.backward()
    out["lora.loss"], out["lora.logits"], out["lora.grad"] = loss.item(), logits.detach(), gradients(params)


def kept(t):
    """The rows of a tensor that a compact golden keeps."""
    return t[:: (8 if t.shape[0] >= 16 else 2)] if t.numel() > 1024 else t


def agree(want, gold, meta, d):
    """The float32 results must be the golden file's at the goldens' tolerance."""
    # Linear attention's own rounding: the same slack as in the tests of float32.
    slack = 3 if meta["model_type"] in ("qwen3_next", "qwen3_5_text") else 1

    def same(what, got, exp):
        tol = slack * (1e-4 * exp.abs() + 1e-5 * exp.abs().max())
        if got.shape != exp.shape or not bool(((got - exp).abs() <= tol).all()):
            raise SystemExit(f"{d}: {what} in float32 is not the golden's; were these made by other versions?")
    same("logits", want["logits"], gold["logits"])
    same("logprobs", want["logprobs"], gold["logprobs"])
    same("lora.logits", kept(want["lora.logits"].flatten(0, 1)), gold["lora.logits"])
    if abs(want["loss"] - meta["loss"]) > 1e-5 * meta["loss"]:
        raise SystemExit(f"{d}: the loss in float32 is not the golden's")
    for kind in ("grad", "lora.grad"):
        if {f"{kind}.{n}" for n in want[kind]} != {n for n in gold if n.startswith(kind + ".")}:
            raise SystemExit(f"{d}: {kind}: not the golden's parameters")
        for n, g in want[kind].items():
            same(f"{kind}.{n}", kept(g) if kind == "grad" else g, gold[f"{kind}.{n}"])


def error(got, want):
    e = (got.double() - want.double()).abs()
    return dict(mean=short(e.mean().item()), max=short(e.max().item()))


def gradient_errors(got, want):
    """Errors over all elements of all tensors, each as a share of its tensor's largest value; tensors without a
    gradient but rounding (under 1e-6 of the largest of all) are left out."""
    largest = max(w.abs().max().item() for w in want.values())
    total, count, top = 0.0, 0, 0.0
    for n, w in want.items():
        if w.abs().max().item() < 1e-6 * largest:
            continue
        e = (got[n].double() - w.double()).abs() / w.abs().max().item()
        total, count, top = total + e.sum().item(), count + e.numel(), max(top, e.max().item())
    return dict(mean=short(total / count), max=short(top))


def short(x):
    return float(f"{x:.5g}")


if __name__ == "__main__":
    main()
