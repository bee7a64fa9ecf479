"""Loads the exports that `go test ./model/export -run TestCrossCheck -write DIR` has written, with peft and transformers,
and writes what they make of them.

    python check.py DIR verdict.json

An adapter is loaded over its base model, a merged folder alone, both in float32 and offline. A case is ok if no key is
missing or unexpected, if every logit is ours to 1e-4 (of the largest, where that is above 1), and if the logits are not
those of the base model. The verdict keeps the hash of each judged file: the Go test holds later exports to them.
"""

import hashlib
import json
import os
import sys
import warnings
from pathlib import Path

os.environ["HF_HUB_OFFLINE"] = "1"
import peft
import torch
import transformers
from safetensors import safe_open
from safetensors.torch import load_file

transformers.logging.set_verbosity_error()


def load_merged(case):
    model, info = transformers.AutoModelForCausalLM.from_pretrained(
        case / "export", dtype=torch.float32, output_loading_info=True)
    return model, sorted(info["missing_keys"]), sorted(info["unexpected_keys"]) + sorted(map(str, info["mismatched_keys"]))


def load_adapter(case):
    base, info = transformers.AutoModelForCausalLM.from_pretrained(
        case / "base", dtype=torch.float32, output_loading_info=True)
    assert not info["missing_keys"] and not info["unexpected_keys"], info
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        model = peft.PeftModel.from_pretrained(base, case / "export")
        again = model.load_adapter(case / "export", adapter_name="again")  # the result of loading, key by key
    missing = [k for k in again.missing_keys if "lora_" in k]
    missing += [str(w.message) for w in caught if "missing" in str(w.message).lower()]
    own = {k: v for k, v in peft.get_peft_model_state_dict(model, adapter_name="default", save_embedding_layers=False).items()}
    stored = load_file(case / "export" / "adapter_model.safetensors")
    # peft turns adapters of single experts into ones of the loaded model's fused parameters: the logits judge those.
    names = lambda keys: {k for k in keys if ".experts." not in k}
    missing += sorted(names(own) - names(stored))
    unexpected = list(again.unexpected_keys) + sorted(names(stored) - names(own))
    unexpected += [f"{k} has other values" for k in sorted(set(stored) & set(own)) if not torch.equal(stored[k].float(), own[k].float())]
    model.set_adapter("default")
    return model, missing, unexpected


def judge(case):
    numbers = load_file(case / "numbers.safetensors")
    with safe_open(case / "numbers.safetensors", "pt") as f:
        kind = f.metadata()["kind"]
    model, missing, unexpected = (load_adapter if kind == "adapter" else load_merged)(case)
    model.eval()
    with torch.no_grad():
        got = model(input_ids=numbers["ids"].long()).logits
    scale = max(1.0, numbers["logits"].abs().max().item())
    error = (got - numbers["logits"]).abs().max().item() / scale
    change = (got - numbers["base_logits"]).abs().max().item() / scale
    files = {f.name: hashlib.sha256(f.read_bytes()).hexdigest() for f in sorted((case / "export").iterdir())}
    flag = json.loads((case / "export" / "config.json").read_text()).get("tie_word_embeddings") if kind == "merged" else None
    stored = [k for f in (case / "export").glob("*.safetensors") for k in safe_open(f, "pt").keys()]
    if flag and "lm_head.weight" in stored:
        unexpected.append("lm_head.weight beside a flag that says tied")
    ok = not missing and not unexpected and error <= 1e-4 and change >= 1e-2
    tied = getattr(model.get_base_model() if kind == "adapter" else model, "config").tie_word_embeddings
    return {"ok": ok, "kind": kind, "tied": bool(tied), "missing": missing, "unexpected": unexpected, "max_error": float(f"{error:.1e}"),
            "max_change": float(f"{change:.1e}"), "files": files}


def main():
    torch.set_num_threads(1)
    root, out = Path(sys.argv[1]), Path(sys.argv[2])
    cases = {case.name: judge(case) for case in sorted(root.iterdir()) if case.is_dir()}
    versions = {"torch": torch.__version__, "transformers": transformers.__version__, "peft": peft.__version__}
    out.write_text(json.dumps({"versions": versions, "cases": cases}, indent=1, sort_keys=True) + "\n")
    for name, c in cases.items():
        print("ok  " if c["ok"] else "FAIL", name, "error", c["max_error"], "change", c["max_change"], *c["missing"][:3], *c["unexpected"][:3])
    sys.exit(0 if cases and all(c["ok"] for c in cases.values()) else 1)


main()
