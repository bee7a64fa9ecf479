"""GGUF exports of trained checkpoints, loaded by transformers' gguf_file= : their log-probabilities against the server's.

    make build torch-env
    ~/.cache/smolgym/torch-venv/bin/python testdata/sdk/check_gguf.py

Five steps of LoRA on a llama, a qwen2 (tied head) and a qwen3 (no tied head), each exported in f32, f16, bf16 and q8_0. What
transformers computes from the file must be what the server computes from the same file, imported again, to 1e-4; in f32 also
what the checkpoint itself says. Prints a line a case and exits 1 when one differs by more.
"""
import os
import sys
from pathlib import Path

os.environ.update(TINKER_TELEMETRY="0", TINKER_API_KEY="tml-test", HF_HUB_OFFLINE="1", TRANSFORMERS_VERBOSITY="error")
sys.dont_write_bytecode = True
sys.path.insert(0, str(Path(__file__).resolve().parent))

import numpy as np  # noqa: E402
import torch  # noqa: E402
import transformers  # noqa: E402

import check_export  # noqa: E402
import tiny_model  # noqa: E402
from check_export import TOLERANCE, logprobs, scores  # noqa: E402

DTYPES = ("f32", "f16", "bf16", "q8_0")
TEXT = "What is it to you, in 2026?"
MERGES = [["a", "t"], ["i", "n"], ["o", "u"]]  # transformers' reader of a qwen's tokenizer wants some


def random_model(folder, config):
    """A folder of a random model of the size of tiny_model's, by transformers."""
    torch.manual_seed(7)
    model = transformers.AutoModelForCausalLM.from_config(config, dtype=torch.float32)
    with torch.no_grad():
        for name, p in model.named_parameters():
            if p.ndim == 1 and "norm" in name:
                p.add_(torch.randn_like(p) * 0.1)
            elif p.ndim == 2:
                p.copy_(torch.randn_like(p) * p.shape[1] ** -0.5)
    model.save_pretrained(folder)
    tokenizer = tiny_model.tokenizer()
    for i, pair in enumerate(MERGES):
        tokenizer["model"]["vocab"]["".join(pair)] = tiny_model.VOCAB + i
        tokenizer["model"]["merges"].append(pair)
    tiny_model.dump(folder / "tokenizer.json", tokenizer)
    tiny_model.dump(folder / "tokenizer_config.json", dict(
        tokenizer_class="PreTrainedTokenizerFast", bos_token="<s>", eos_token="</s>", pad_token="<pad>"))


def make(root):
    shape = dict(vocab_size=tiny_model.VOCAB + len(MERGES), hidden_size=64, intermediate_size=128, num_hidden_layers=2, num_attention_heads=4,
                 num_key_value_heads=2, max_position_embeddings=128, bos_token_id=1, eos_token_id=2, pad_token_id=0)
    for name in ("llama", "qwen2", "qwen3"):
        (root / name).mkdir()
    tiny_model.write(str(root / "llama"))
    random_model(root / "qwen2", transformers.Qwen2Config(**shape, tie_word_embeddings=True))
    # transformers reads no head size from a file of a qwen3 and takes 128, as all published ones have
    random_model(root / "qwen3", transformers.Qwen3Config(**shape, head_dim=128, tie_word_embeddings=False))
    return {f"gguf/{n}": root / n for n in ("llama", "qwen2", "qwen3")}


def load(folder, file):
    model, info = transformers.AutoModelForCausalLM.from_pretrained(folder, gguf_file=file, dtype=torch.float32, output_loading_info=True)
    odd = {k: sorted(v) for k, v in info.items() if v and k in ("missing_keys", "unexpected_keys", "mismatched_keys")}
    if model.config.tie_word_embeddings:
        odd.pop("missing_keys", None)  # the head is the embedding
    assert not odd, odd
    return model.eval()


def cases(server, models, out):
    for name, folder in models.items():
        bare = logprobs(check_export.load(folder))
        _, path, trained = check_export.train(server, name, 8)
        ids = transformers.AutoTokenizer.from_pretrained(folder).encode(TEXT, add_special_tokens=False)
        for dtype in DTYPES:
            to = out / f"{folder.name}-{dtype}"
            to.mkdir()
            server.cli("checkpoint", "export", path, "--to", to / "model.gguf", "--form", "gguf", "--dtype", dtype)
            again = f"{name}:{dtype}"
            server.add_model(again, to / "model.gguf")
            want = scores(server.client().create_sampling_client(base_model=again))
            got = logprobs(load(to, "model.gguf"))
            assert transformers.AutoTokenizer.from_pretrained(to, gguf_file="model.gguf").encode(TEXT, add_special_tokens=False) == ids
            error, off = np.abs(got - want).max(), np.abs(got - trained).max()
            if dtype == "f32":
                error = max(error, off)
            yield f"{folder.name} {dtype}", error, off, np.abs(want - bare).max()


def verdict(what, error, off, moved):
    return (error <= TOLERANCE and off < moved / 4 and moved > 100 * TOLERANCE,
            f"{what:12} largest difference {error:.2e}, by rounding {off:.2e}, moved by training {moved:.2f}")


if __name__ == "__main__":
    transformers.utils.logging.disable_progress_bar()
    sys.exit(check_export.judge(make, cases, verdict))
