"""Makes testdata/peft.tar.gz and peft_experts.tar.gz: adapters as peft saves them, over the repository's golden models, with
their logits.

    python make_peft.py ../../../testdata/goldens peft.tar.gz
    python make_peft.py ../../../testdata/families peft_experts.tar.gz

The second are adapters on experts: of the loaded model's fused parameters (target_parameters), which peft saves, and of
single experts, as adapters that were trained on models of separate experts have them; peft converts those when it loads
them, and these are its logits.

One folder a case: adapter_config.json, adapter_model.safetensors and, where the case can be taken, numbers.safetensors with
ids [2,T] and logits [2,T,V] in float32. case.json has the golden's name. The same versions give the same bytes.
"""

import io
import json
import os
import sys
import tarfile
import tempfile
import gzip
from pathlib import Path

os.environ["HF_HUB_OFFLINE"] = "1"
import peft
import torch
import transformers
from safetensors.torch import load_file, save_file

ATTENTION = ["q_proj", "k_proj", "v_proj", "o_proj"]
ALL = ATTENTION + ["gate_proj", "up_proj", "down_proj"]

CASES = {
    "plain": dict(r=4, lora_alpha=8, target_modules=ALL, lora_dropout=0.05),
    "rslora": dict(r=8, lora_alpha=12, target_modules=ATTENTION, use_rslora=True),
    "patterns": dict(r=4, lora_alpha=8, target_modules=ALL, rank_pattern={"q_proj": 2, "model.layers.1.mlp.up_proj": 6, r"layers\.0\..*k_proj": 3},
                     alpha_pattern={"q_proj": 4, "up_proj": 3, r".*\.1\..*(gate|down)_proj": 16}),
    "patterns_rslora": dict(r=4, lora_alpha=3, target_modules=["q_proj", "v_proj"], use_rslora=True, rank_pattern={"v_proj": 8}, alpha_pattern={"layers.0.self_attn.q_proj": 5}),
    "expression": dict(r=3, lora_alpha=7, target_modules=r".*\.(self_attn|mlp)\.(q|v|up)_proj"),
    "layers": dict(r=2, lora_alpha=8, target_modules=["q_proj", "down_proj"], layers_to_transform=[1]),
    "excluded": dict(r=2, lora_alpha=8, target_modules=ATTENTION, exclude_modules=["model.layers.0.self_attn.o_proj"]),
    "head": dict(r=4, lora_alpha=8, target_modules=ALL + ["lm_head"]),
    "head_only": dict(r=4, lora_alpha=8, target_modules=["lm_head"]),
    "bf16": dict(r=4, lora_alpha=8, target_modules=ALL),
    # refused:
    "dora": dict(r=2, lora_alpha=4, target_modules=["q_proj"], use_dora=True),
    "bias": dict(r=2, lora_alpha=4, target_modules=["q_proj"], bias="lora_only"),
    "lora_bias": dict(r=2, lora_alpha=4, target_modules=["q_proj"], lora_bias=True),
    "saved": dict(r=2, lora_alpha=4, target_modules=["q_proj"], modules_to_save=["lm_head"]),
    "embedding": dict(r=2, lora_alpha=4, target_modules=["q_proj", "embed_tokens"]),
    "tokens": dict(r=2, lora_alpha=4, target_modules=["q_proj"], trainable_token_indices=[1, 2]),
    "pissa": dict(r=2, lora_alpha=4, target_modules=["q_proj"], init_lora_weights="pissa"),
}
EXPERTS = ["mlp.experts.gate_up_proj", "mlp.experts.down_proj"]
ON_EXPERTS = {  # name -> (goldens, configuration); target_modules that are a dict's "single" are experts'
    "fused": (["mixtral", "qwen3_moe_mixed", "qwen3_5_moe"], dict(r=2, lora_alpha=6, target_modules=["q_proj", "o_proj"], target_parameters=EXPERTS)),
    "fused_only": (["qwen3_5_moe"], dict(r=3, lora_alpha=4, target_modules=[], target_parameters=EXPERTS)),
    "fused_down": (["mixtral"], dict(r=2, lora_alpha=6, target_modules=["v_proj"], target_parameters=EXPERTS[1:])),
    "fused_up": (["qwen3_moe_mixed"], dict(r=2, lora_alpha=6, target_modules=["v_proj"], use_rslora=True, target_parameters=EXPERTS[:1])),
    "fused_patterns": (["mixtral"], dict(r=2, lora_alpha=6, target_modules=["k_proj"], target_parameters=EXPERTS, rank_pattern={"gate_up_proj": 3},
                                         alpha_pattern={r".*layers\.1\..*down_proj": 5})),
    "single": (["mixtral"], dict(r=2, lora_alpha=6, target_modules=["q_proj", "w1", "w2", "w3"])),
    "single_down": (["mixtral"], dict(r=3, lora_alpha=5, target_modules=["v_proj", "w2"])),
    "single_qwen": (["qwen3_moe_window"], dict(r=2, lora_alpha=5, target_modules=["q_proj", "gate_proj", "up_proj", "down_proj"])),
}

REFUSED = {"dora", "bias", "lora_bias", "saved", "embedding", "tokens", "pissa"}


def make(goldens, folder, name, golden):
    torch.manual_seed(7)
    with tempfile.TemporaryDirectory() as tmp:
        with tarfile.open(goldens / f"{golden}.tar.gz") as tar:
            tar.extractall(tmp, filter="data")
        root = Path(tmp) / golden
        ids = load_file(root / "golden.safetensors")["input_ids"]
        (root / "golden.safetensors").unlink()
        model = transformers.AutoModelForCausalLM.from_pretrained(root, dtype=torch.float32)
        config = peft.LoraConfig(task_type="CAUSAL_LM", base_model_name_or_path="org/" + golden, **CASES[name])
        model = peft.get_peft_model(model, config)
        for n, p in sorted(model.named_parameters()):
            if "lora_" in n and "magnitude" not in n:
                p.data = torch.randn_like(p) * 0.15
        if name == "bf16":
            model = model.to(torch.bfloat16)
        model.save_pretrained(folder, save_embedding_layers=False)
        (folder / "README.md").unlink(missing_ok=True)
        saved = json.loads((folder / "adapter_config.json").read_text())
        saved["base_model_name_or_path"] = "org/" + golden
        for k, v in saved.items():
            if k in ("target_modules", "exclude_modules") and isinstance(v, list):
                saved[k] = sorted(v)  # peft writes a set in any order
        (folder / "adapter_config.json").write_text(json.dumps(saved, indent=2, sort_keys=True))
        (folder / "case.json").write_text(json.dumps({"golden": golden, "refused": name in REFUSED}))
        if name in REFUSED:
            return
        base = transformers.AutoModelForCausalLM.from_pretrained(root, dtype=torch.float32)
        loaded = peft.PeftModel.from_pretrained(base, folder, torch_dtype=torch.float32).eval()
        with torch.no_grad():
            logits = loaded(input_ids=ids.reshape(2, -1)).logits
        save_file({"ids": ids.reshape(2, -1), "logits": logits.contiguous()}, folder / "numbers.safetensors")


def make_experts(goldens, folder, name, golden):
    torch.manual_seed(8)
    _, fields = ON_EXPERTS[name]
    with tempfile.TemporaryDirectory() as tmp:
        with tarfile.open(goldens / f"{golden}.tar.gz") as tar:
            tar.extractall(tmp, filter="data")
        root = Path(tmp) / golden
        ids = load_file(root / "golden.safetensors")["input_ids"]
        (root / "golden.safetensors").unlink()

        def load():
            return transformers.AutoModelForCausalLM.from_pretrained(root, dtype=torch.float32, attn_implementation="eager")

        config = peft.LoraConfig(task_type="CAUSAL_LM", base_model_name_or_path="org/" + golden, lora_dropout=0.0, **fields)
        folder.mkdir()
        if name.startswith("single"):
            save_single(golden, root, config, folder)
        else:
            model = peft.get_peft_model(load(), config)
            for n, p in sorted(model.named_parameters()):
                if "lora_" in n:
                    p.data = torch.randn_like(p) * 0.3
            model.save_pretrained(folder, save_embedding_layers=False)
        (folder / "README.md").unlink(missing_ok=True)
        saved = json.loads((folder / "adapter_config.json").read_text())
        saved["base_model_name_or_path"] = "org/" + golden
        for k in ("target_modules", "target_parameters"):
            if isinstance(saved.get(k), list):
                saved[k] = sorted(saved[k])
        (folder / "adapter_config.json").write_text(json.dumps(saved, indent=2, sort_keys=True))
        (folder / "case.json").write_text(json.dumps({"golden": golden, "refused": False}))
        loaded = peft.PeftModel.from_pretrained(load(), folder, torch_dtype=torch.float32).eval()
        with torch.no_grad():
            logits, bare = loaded(input_ids=ids).logits, load()(input_ids=ids).logits
        if (logits - bare).abs().max() < 0.05:
            raise SystemExit(f"{name}.{golden}: the adapter changes nothing")
        save_file({"ids": ids, "logits": logits.contiguous()}, folder / "numbers.safetensors")


def save_single(golden, root, config, folder):
    """Files as peft writes them for a model whose experts are linear modules of their own: by the names of its weights."""
    tensors, weights, leaves, targets = {}, {}, set(config.target_modules), set()
    for f in root.glob("*.safetensors"):
        weights.update(load_file(f))
    for name, w in sorted(weights.items()):
        module = name.removesuffix(".weight")
        if module.rsplit(".", 1)[-1] in leaves and w.dim() == 2 and (".self_attn." in module or ".experts." in module):
            targets.add(module if golden == "qwen3_moe_window" else module.rsplit(".", 1)[-1])  # it has layers without experts too
            tensors[f"base_model.model.{module}.lora_A.weight"] = torch.randn(config.r, w.shape[1]) * 0.3
            tensors[f"base_model.model.{module}.lora_B.weight"] = torch.randn(w.shape[0], config.r) * 0.3
    config.target_modules, config.inference_mode = targets, True
    config.save_pretrained(folder)
    save_file(tensors, folder / "adapter_model.safetensors", metadata={"format": "pt"})


def main():
    torch.set_num_threads(1)
    goldens, out = Path(sys.argv[1]), Path(sys.argv[2])
    if goldens.name == "families":
        cases = [(make_experts, n, g) for n in sorted(ON_EXPERTS) for g in ON_EXPERTS[n][0]]
    else:
        cases = [(make, n, g) for n in sorted(CASES) for g in (["steps_llama", "steps_llama_tied"] if n.startswith("head") else ["steps_llama"])]
    raw = io.BytesIO()
    with tempfile.TemporaryDirectory() as tmp, tarfile.open(fileobj=raw, mode="w") as tar:
        for maker, name, golden in cases:
            folder = Path(tmp) / f"{name}.{golden}"
            maker(goldens, folder, name, golden)
            for f in sorted(folder.iterdir()):
                info = tarfile.TarInfo(f"{folder.name}/{f.name}")
                info.size = f.stat().st_size
                tar.addfile(info, io.BytesIO(f.read_bytes()))
    out.write_bytes(gzip.compress(raw.getvalue(), 9, mtime=0))


main()
