"""Exports of trained checkpoints, loaded by transformers and peft: their log-probabilities against the server's.

    make build torch-env
    ~/.cache/smolgym/torch-venv/bin/python testdata/sdk/check_export.py

LoRA and full update, tied and untied output heads, forms merged and adapter. Prints a line a case and exits 1
when one differs by more than 1e-4.
"""
import json
import os
import sys
import tempfile
from pathlib import Path

os.environ.update(TINKER_TELEMETRY="0", TINKER_API_KEY="tml-test", HF_HUB_OFFLINE="1", TRANSFORMERS_VERBOSITY="error")
sys.dont_write_bytecode = True
sys.path.insert(0, str(Path(__file__).resolve().parent))

import numpy as np  # noqa: E402
import peft  # noqa: E402
import torch  # noqa: E402
import transformers  # noqa: E402
from tinker import types  # noqa: E402

import harness  # noqa: E402
import tiny_model  # noqa: E402

TOLERANCE = 1e-4
PROMPT = [int(x) for x in np.random.default_rng(5).integers(3, tiny_model.VOCAB, 24)]


def tied(folder):
    """tiny_model without an output head of its own."""
    tiny_model.write(str(folder))
    config = tiny_model.config()
    config["tie_word_embeddings"] = True
    (folder / "config.json").write_text(json.dumps(config))
    tensors = tiny_model.weights()
    del tensors["lm_head.weight"]
    tiny_model.write_safetensors(str(folder / "model.safetensors"), tensors)
    return folder


def train(server, name, rank):
    """The path of a checkpoint after three steps, and the server's log-probabilities of PROMPT under it."""
    service = server.client()
    trainer = service.create_lora_training_client(base_model=name, rank=rank, seed=1)
    tokens = [int(x) for x in np.random.default_rng(6).integers(3, tiny_model.VOCAB, 32)]
    datum = types.Datum(model_input=types.ModelInput.from_ints(tokens[:-1]),
                        loss_fn_inputs={"target_tokens": tokens[1:], "weights": [1.0] * (len(tokens) - 1)})
    for _ in range(3):
        trainer.forward_backward([datum], "cross_entropy").result()
        trainer.optim_step(types.AdamParams(learning_rate=1e-2)).result()
    path = trainer.save_weights_for_sampler("final").result().path
    sampler = service.create_sampling_client(model_path=path)
    return path, np.array(sampler.compute_logprobs(types.ModelInput.from_ints(PROMPT)).result()[1:], np.float64)


def logprobs(model):
    with torch.no_grad():
        logits = model(torch.tensor([PROMPT])).logits[0].double()
    return torch.log_softmax(logits, -1)[:-1].gather(1, torch.tensor(PROMPT[1:])[:, None])[:, 0].numpy()


def load(folder):
    model, info = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, output_loading_info=True)
    odd = {k: v for k, v in info.items() if v and k in ("missing_keys", "unexpected_keys", "mismatched_keys")}
    assert not odd, odd
    return model.eval()


def cases(server, models, out):
    for name, folder in models.items():
        for rank in (8, 0):
            path, want = train(server, name, rank)
            for form in ("merged", "adapter") if rank else ("merged",):
                to = out / f"{name.replace('/', '-')}-{rank}-{form}"
                server.cli("checkpoint", "export", path, "--to", to, "--form", form)
                if form == "merged":
                    model = load(to)
                else:
                    model = peft.PeftModel.from_pretrained(load(folder), to).eval()
                moved = np.abs(want - logprobs(load(folder))).max()
                yield f"{name} rank {rank} {form}", np.abs(logprobs(model) - want).max(), moved


def main():
    bad = 0
    with tempfile.TemporaryDirectory() as d:
        root = Path(d)
        (root / "tied").mkdir()
        models = {"test/untied": Path(tiny_model.write(str(root / "untied"))), "test/tied": tied(root / "tied")}
        server = harness.Server(root / "box").start()
        try:
            for name, folder in models.items():
                server.add_model(name, folder)
            for what, error, moved in cases(server, models, root):
                ok = error <= TOLERANCE and moved > 100 * TOLERANCE
                bad += not ok
                print(f"{what:30} largest difference {error:.2e}, moved by training {moved:.2f}  {'ok' if ok else 'WRONG'}", flush=True)
        finally:
            server.stop()
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
