"""Exports of trained checkpoints, loaded by transformers and peft: their log-probabilities against the server's.

    make build torch-env
    ~/.cache/smolgym/torch-venv/bin/python testdata/sdk/check_export.py

FR-25 and FR-26: five steps of LoRA and full update, tied and untied output heads, forms merged and adapter. No key may be
missing or unexpected, the log-probabilities are the server's and not the base's, a second export gives the same bytes, side
files are those that were uploaded, and the live model says what it said before. Prints a line a case and exits 1 when one
differs by more than 1e-4.
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
from safetensors.torch import load_file  # noqa: E402
from tinker import types  # noqa: E402

import harness  # noqa: E402
import tiny_model  # noqa: E402

TOLERANCE = 1e-4
PROMPT = [int(x) for x in np.random.default_rng(5).integers(3, tiny_model.VOCAB, 24)]


def side_files(folder):
    """What goes along with the weights, in spellings that a rewriter would lose."""
    (folder / "chat_template.jinja").write_bytes(b"{% for m in messages %}<s>{{ m['content'] }}</s>\r\n{% endfor %}")
    (folder / "generation_config.json").write_bytes(b'{"eos_token_id":  2,\n\n "do_sample": true, "temperature": 0.70}')
    return folder


def train(server, name, rank):
    """A sampler of a checkpoint after five steps, its path, and the server's log-probabilities of PROMPT under it."""
    service = server.client()
    trainer = service.create_lora_training_client(base_model=name, rank=rank, seed=1)
    tokens = [int(x) for x in np.random.default_rng(6).integers(3, tiny_model.VOCAB, 32)]
    datum = types.Datum(model_input=types.ModelInput.from_ints(tokens[:-1]),
                        loss_fn_inputs={"target_tokens": tokens[1:], "weights": [1.0] * (len(tokens) - 1)})
    for _ in range(5):
        trainer.forward_backward([datum], "cross_entropy").result()
        trainer.optim_step(types.AdamParams(learning_rate=1e-2)).result()
    path = trainer.save_weights_for_sampler("final").result().path
    sampler = service.create_sampling_client(model_path=path)
    return sampler, path, scores(sampler)


def scores(sampler):
    return np.array(sampler.compute_logprobs(types.ModelInput.from_ints(PROMPT)).result()[1:], np.float64)


def logprobs(model):
    with torch.no_grad():
        logits = model(torch.tensor([PROMPT])).logits[0].double()
    return torch.log_softmax(logits, -1)[:-1].gather(1, torch.tensor(PROMPT[1:])[:, None])[:, 0].numpy()


def load(folder):
    model, info = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, output_loading_info=True)
    odd = {k: v for k, v in info.items() if v and k in ("missing_keys", "unexpected_keys", "mismatched_keys")}
    assert not odd, odd
    return model.eval()


def adapted(base, folder):
    """The adapter over its base, after peft has said which of its tensors it wanted and which of ours it took."""
    model = peft.PeftModel.from_pretrained(load(base), folder)
    result = model.load_adapter(folder, adapter_name="again")
    stored = load_file(folder / "adapter_model.safetensors")
    own = peft.get_peft_model_state_dict(model, adapter_name="default", save_embedding_layers=False)
    odd = [k for k in result.missing_keys if "lora_" in k] + list(result.unexpected_keys) + sorted(set(stored) ^ set(own))
    assert not odd, odd
    assert all(torch.equal(stored[k], own[k]) for k in stored)
    model.set_adapter("default")
    return model.eval()


def export(server, path, form, to):
    server.cli("checkpoint", "export", path, "--to", to, "--form", form)
    return {p.name: p.read_bytes() for p in sorted(to.iterdir())}


def cases(server, models, out):
    for name, folder in models.items():
        bare = logprobs(load(folder))
        for rank in (8, 0):
            sampler, path, want = train(server, name, rank)
            for form in ("merged", "adapter") if rank else ("merged",):
                to = out / f"{name.replace('/', '-')}-{rank}-{form}"
                files = export(server, path, form, to)
                assert files == export(server, path, form, to.with_name(to.name + "-again")), "a second export differs"
                if form == "merged":
                    model = load(to)
                    flag = json.loads(files["config.json"])["tie_word_embeddings"]
                    own = not torch.equal(model.get_output_embeddings().weight, model.get_input_embeddings().weight)
                    shared = name == "test/tied" and rank == 0  # a full update trains the one tensor that both are
                    assert flag == shared and own != shared, f"tie flag {flag}, a head of its own {own}"
                    for file in folder.iterdir():
                        if file.name not in ("config.json", "model.safetensors"):
                            assert files[file.name] == file.read_bytes(), f"{file.name} is not the upload's"
                else:
                    model = adapted(folder, to)
                    assert b"inference server" in files["README.md"]
                assert np.array_equal(scores(sampler), want), "the export changed the live model"
                yield f"{name} rank {rank} {form}", np.abs(logprobs(model) - want).max(), np.abs(want - bare).max()


def judge(make, cases, verdict):
    """The exit code: whether any case of a server with the models that make writes is wrong by its verdict, (ok, line)."""
    bad = 0
    with tempfile.TemporaryDirectory() as d:
        root = Path(d)
        models = make(root)
        server = harness.Server(root / "box").start()
        try:
            for name, folder in models.items():
                server.add_model(name, folder)
            for case in cases(server, models, root):
                ok, line = verdict(*case)
                bad += not ok
                print(f"{line}  {'ok' if ok else 'WRONG'}", flush=True)
        finally:
            server.stop()
    return 1 if bad else 0


def make(root):
    return {f"test/{n}": side_files(Path(tiny_model.write(str(root / n), tied=n == "tied"))) for n in ("untied", "tied")}


def verdict(what, error, moved):
    return (error <= TOLERANCE and moved > 100 * TOLERANCE,
            f"{what:30} largest difference {error:.2e}, moved by training {moved:.2f}")


if __name__ == "__main__":
    sys.exit(judge(make, cases, verdict))
