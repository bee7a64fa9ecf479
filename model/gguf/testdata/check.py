"""Checks an exported file with the gguf package, and with transformers where it is installed.

    python check.py FILE.gguf CHECKPOINT_FOLDER

Needs numpy and gguf; torch, transformers and safetensors for the second part. First every tensor of the file is compared
with the folder's, in numpy: equal for F32 (and for F16 and BF16 what rounding gives), the reference's own blocks for Q8_0.
Then transformers loads both: the logits of the file must be those of the folder, to 1e-4 where the encoding is exact.
Exits 1 on a difference.
"""

import json
import pathlib
import struct
import sys

import gguf
import numpy as np

path, folder = pathlib.Path(sys.argv[1]), pathlib.Path(sys.argv[2])
config = json.loads((folder / "config.json").read_text())
reader = gguf.GGUFReader(path)
arch = reader.fields["general.architecture"].contents()
layers = config["num_hidden_layers"]
names = gguf.get_tensor_name_map(next(a for a, n in gguf.MODEL_ARCH_NAMES.items() if n == arch), layers)


def checkpoint():
    raw = (folder / "model.safetensors").read_bytes()
    (n,) = struct.unpack("<Q", raw[:8])
    header = json.loads(raw[8 : 8 + n])
    for name, t in header.items():
        if name == "__metadata__":
            continue
        a, b = t["data_offsets"]
        data = np.frombuffer(raw[8 + n + a : 8 + n + b], {"F32": "<f4", "F16": "<f2", "BF16": "<u2"}[t["dtype"]])
        if t["dtype"] == "BF16":
            data = (data.astype(np.uint32) << 16).view(np.float32)
        yield name, data.astype(np.float32).reshape(t["shape"])


def permuted(w, heads):
    return w.reshape(heads, 2, w.shape[0] // heads // 2, *w.shape[1:]).swapaxes(1, 2).reshape(w.shape)


tensors = {t.name: t for t in reader.tensors}
kinds = set()
for name, want in checkpoint():
    base, suffix = name.rsplit(".", 1)
    t = tensors.pop(names.get_name(base) + "." + suffix)
    if arch == "llama" and ".q_proj." in name:
        want = permuted(want, config["num_attention_heads"])
    if arch == "llama" and ".k_proj." in name:
        want = permuted(want, config.get("num_key_value_heads", config["num_attention_heads"]))
    got = np.ascontiguousarray(t.data)
    blocks = np.ascontiguousarray(gguf.quants.quantize(want, t.tensor_type))
    kinds.add(t.tensor_type.name)
    if got.tobytes() != blocks.tobytes():
        sys.exit(f"{t.name} ({t.tensor_type.name}) differs from {name}")
tensors.pop("rope_freqs.weight", None)
if tensors:
    sys.exit(f"not in the checkpoint: {sorted(tensors)}")
print(f"{path.name}: {len(reader.tensors)} tensors as the gguf package would write them ({', '.join(sorted(kinds))})")

if (folder / "tokenizer.json").exists() and "tokenizer.ggml.tokens" in reader.fields:
    model = json.loads((folder / "tokenizer.json").read_text())
    want = dict(model["model"]["vocab"])
    want |= {a["content"]: a["id"] for a in model["added_tokens"]}
    got = reader.fields["tokenizer.ggml.tokens"].contents()
    if any(got[i] != token for token, i in want.items()) or len(got) != config["vocab_size"]:
        sys.exit("the tokens differ")
    if "tokenizer.ggml.merges" in reader.fields:
        merges = [m if isinstance(m, str) else " ".join(m) for m in model["model"]["merges"]]
        if reader.fields["tokenizer.ggml.merges"].contents() != merges:
            sys.exit("the merges differ")
    print(f"{path.name}: {len(want)} tokens as tokenizer.json has them")

try:
    import torch
    from tokenizers import Tokenizer
    from transformers import AutoModelForCausalLM, AutoTokenizer
except ImportError:
    print("transformers is not installed: logits were not compared")
    sys.exit()

# transformers 5.5 does not take the head size of qwen3 from the file, nor any rotary scaling.
extra = {} if arch == "llama" else {"head_dim": config["head_dim"]}
scaling = {k: v for k, v in config.items() if k in ("rope_scaling", "rope_parameters")}
if any((v or {}).get("rope_type", "default") != "default" for v in scaling.values()):
    extra |= scaling
ours = AutoModelForCausalLM.from_pretrained(path.parent, gguf_file=path.name, dtype=torch.float32, **extra)
theirs = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
ids = torch.arange(48).reshape(2, 24) * 7 % config["vocab_size"]
with torch.no_grad():
    a, b = ours(ids).logits, theirs(ids).logits
worst = (a - b).abs().max().item()
print(f"{path.name}: logits differ by {worst:.2e} at most, the largest is {b.abs().max().item():.2f}")
exact = kinds == {"F32"} or "Q8_0" not in kinds and config.get("dtype", config.get("torch_dtype")) == "bfloat16" and "BF16" in kinds
if exact and worst > 1e-4 or worst > 0.1 * b.abs().max().item():
    sys.exit("the logits differ")
if (folder / "tokenizer.json").exists() and "tokenizer.ggml.tokens" in reader.fields:
    ours = AutoTokenizer.from_pretrained(path.parent, gguf_file=path.name)
    theirs = Tokenizer.from_file(str(folder / "tokenizer.json"))
    for text in "hello world", "The 12 cats' whiskers, don't!", "a\n\n b 123456":
        if ours(text, add_special_tokens=False)["input_ids"] != theirs.encode(text, add_special_tokens=False).ids:
            sys.exit(f"the ids of {text!r} differ")
    print(f"{path.name}: transformers makes the same ids of it")
