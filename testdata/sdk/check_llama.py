"""GGUF exports computed by llama.cpp: token ids, log-probabilities and best tokens against the server's for the same file.

    make build torch-env
    LLAMA_BIN=llama/bin ~/.cache/smolgym/torch-venv/bin/python testdata/sdk/check_llama.py

LLAMA_BIN is a folder with llama.cpp's llama-results, built as `testdata/bench/bench.py --help` says (--target llama-results).
The models are those of check_gguf.py after five steps of LoRA, rack/small, and the small trained llama of the shared material where
that is there. The server continues a text greedily; llama.cpp reads the whole as text. Its token ids are ours, the best token at
every place is the server's, and the log-probabilities of the text's tokens are to a tolerance: in f32 1e-4, in f16 and bf16 what
may come of rounding the other operand of every product too, as llama.cpp does. Prints a line a case and exits 1 when one is wrong.

rack/small has a tokenizer that splits runs of spaces as none of llama.cpp's does, so that its export is refused; here it gets the
nearest that has a name, with the same ids for this text. Its special tokens are written as plain ones, which llama-results reads,
but for <|end|>, which it never does.
"""
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

os.environ.update(TINKER_TELEMETRY="0", TINKER_API_KEY="tml-test", HF_HUB_OFFLINE="1", TRANSFORMERS_VERBOSITY="error")
sys.dont_write_bytecode = True
sys.path.insert(0, str(Path(__file__).resolve().parent))

import gguf  # noqa: E402
import numpy as np  # noqa: E402
from tinker import types  # noqa: E402
from tokenizers import Tokenizer  # noqa: E402

import check_export  # noqa: E402
import check_gguf  # noqa: E402
import harness  # noqa: E402

TOLERANCE = dict(f32=1e-4, f16=2e-2, bf16=2e-1)
TEXTS = {"trained/rack-small": "<|user|>Repeat: q w e r t y u i<|assistant|>", "trained/stories260k": "Once upon a time"}
TEXT, NEW = "What is it to you, in 2026?", 48


def make(root):
    models = {name: folder for name, folder in check_gguf.make(root).items()}
    models["trained/rack-small"] = shutil.copytree(harness.REPO / "appliance" / "rack" / "small", root / "rack-small")
    file = models["trained/rack-small"] / "tokenizer.json"
    tokenizer = json.loads(file.read_text())
    tokenizer["pre_tokenizer"]["pretokenizers"] = [dict(type="Digits", individual_digits=True),
                                                   dict(type="ByteLevel", add_prefix_space=False, trim_offsets=True, use_regex=True)]
    for token in tokenizer["added_tokens"]:
        token["special"] = False
    file.write_text(json.dumps(tokenizer))
    stories = Path(os.environ.get("SMOLGYM_SHARED", harness.REPO.parent / "shared")) / "data" / "models" / "stories260k"
    if stories.is_dir():
        models["trained/stories260k"] = stories
    else:
        print(f"skipped: stories260k, which is not in {stories}")
    return models


def by_llama(file, text, out):
    """Token ids of a text and the log-probabilities [tokens, vocabulary] behind each of them."""
    p = subprocess.run([Path(os.environ["LLAMA_BIN"]) / "llama-results", "-m", file, "-p", text, "-o", out, "-c", "512", "-t", "2",
                        "-fa", "off", "-ctk", "f32", "-ctv", "f32"], capture_output=True, text=True)
    if p.returncode:
        raise RuntimeError(f"llama-results: exit {p.returncode}\n{p.stdout}{p.stderr}")
    tensors = {t.name: t.data for t in gguf.GGUFReader(out).tensors}
    ids = tensors["tokens"].ravel().tolist()
    logits = tensors["logits"].astype(np.float64).ravel().reshape(len(ids), -1)
    return ids, logits - np.log(np.exp(logits - logits.max(-1, keepdims=True)).sum(-1, keepdims=True)) - logits.max(-1, keepdims=True)


def continued(sampler, tokenizer, text):
    """The text with as much of its greedy continuation as the tokenizer reads back with the same ids, those, and how many are new.
    A multiple of four in all: llama-results allocates no room for the padding of others, and aborts."""
    ids = tokenizer.encode(text).ids
    params = types.SamplingParams(max_tokens=NEW, temperature=0.0)
    new = sampler.sample(prompt=types.ModelInput.from_ints(ids), num_samples=1, sampling_params=params).result().sequences[0].tokens
    for n in range(len(new), 0, -1):
        whole = text + tokenizer.decode(ids + new[:n], False)[len(tokenizer.decode(ids, False)):]
        if tokenizer.encode(whole).ids == ids + new[:n] and (len(ids) + n) % 4 == 0:
            return whole, ids + new[:n], n
    while len(ids) % 4:
        text = text[:-1]
        ids = tokenizer.encode(text).ids
    return text, ids, 0


def cases(server, models, out):
    for name, folder in models.items():
        if name.startswith("gguf/"):
            _, path, _ = check_export.train(server, name, 8)
        else:  # an adapter that adds nothing
            trainer = harness.get(server.client().create_lora_training_client(base_model=name, rank=1, seed=1))
            path = trainer.save_weights_for_sampler("start").result().path
        tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
        for dtype in TOLERANCE:
            file = out / f"{name.replace('/', '-')}-{dtype}.gguf"
            server.cli("checkpoint", "export", path, "--to", file, "--form", "gguf", "--dtype", dtype)
            server.add_model(f"{name}:{dtype}", file)
            sampler = harness.get(server.client().create_sampling_client(base_model=f"{name}:{dtype}"))
            text, ids, new = continued(sampler, tokenizer, TEXTS.get(name, TEXT))
            seen = sampler.sample(prompt=types.ModelInput.from_ints(ids), num_samples=1, include_prompt_logprobs=True, topk_prompt_logprobs=1,
                                  sampling_params=types.SamplingParams(max_tokens=1)).result()
            want, first = np.array(seen.prompt_logprobs[1:], np.float64), [top[0][0] for top in seen.topk_prompt_logprobs[1:]]
            got_ids, got = by_llama(file, text, file.with_suffix(".results"))
            error, best = None, 0
            if got_ids == ids:
                error = np.abs(got[np.arange(len(ids) - 1), ids[1:]] - want).max()
                best = int((got.argmax(-1)[:-1] == first).sum())
            yield name, dtype, error, best, len(ids) - 1, new


def verdict(name, dtype, error, best, places, new):
    if error is None:
        return False, f"{name} {dtype}: other token ids"
    return (error <= TOLERANCE[dtype] and best == places and (new >= 3 or name.startswith("gguf/")),
            f"{name + ' ' + dtype:26} largest difference {error:.2e}; best token the same at {best} of {places} places, {new} of them the server's own")


if __name__ == "__main__":
    sys.exit(check_export.judge(make, cases, verdict))
