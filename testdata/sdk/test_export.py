"""Exports of trained checkpoints, computed again in numpy from their files (FR-25, FR-26). check_export.py has torch's word."""
import json
import struct

import numpy as np
import pytest
import tiny_model
from harness import bits, datum, get, lora, probe, scores, train

RANK, STEPS, TOLERANCE = 8, 5, 1e-4
SIDE = {
    "chat_template.jinja": "{% for m in messages %}<s>{{ m.role }}: {{ m['content'] }}</s>\r\n{% endfor %}",
    "generation_config.json": '{"eos_token_id":  2, "bos_token_id": 1,\n\n "temperature": 0.70, "_from": "é"}',
    "special_tokens_map.json": '{"bos_token":"<s>" , "eos_token":"</s>"}\n\n',
    "LICENSE": "do as you like\n",
}


def read_safetensors(path):
    raw = path.read_bytes()
    n = struct.unpack("<Q", raw[:8])[0]
    head, out = json.loads(raw[8:8 + n]), {}
    for name, t in head.items():
        if name != "__metadata__":
            assert t["dtype"] == "F32", (name, t)
            begin, end = t["data_offsets"]
            out[name] = np.frombuffer(raw[8 + n + begin:8 + n + end], np.float32).reshape(t["shape"])
    return out


def files_of(folder):
    return {p.relative_to(folder).as_posix(): p.read_bytes() for p in sorted(folder.rglob("*")) if p.is_file()}


class Trained:
    """A run of five steps on a tied or untied model, its sampler's numbers, and what was exported."""

    def __init__(self, server, root, tied):
        self.server, self.tied, self.root = server, tied, root
        self.name, self.base = f"export/{'tied' if tied else 'untied'}", root / "base"
        tiny_model.write(str(self.base), tied=tied)
        for file, text in SIDE.items():
            (self.base / file).write_bytes(text.encode())
        server.add_model(self.name, self.base)
        self.client = server.client()
        self.tokens = [int(t) for t in np.random.default_rng(7).integers(3, tiny_model.VOCAB, 40)]
        text = [int(t) for t in np.random.default_rng(8).integers(3, tiny_model.VOCAB, 48)]
        self.run = lora(self.client, self.name, rank=RANK)
        losses = train(self.run, [datum(text)], STEPS)
        assert losses[-1] < losses[0]
        self.path = get(self.run.save_weights_for_sampler("final")).path
        self.sampler = self.client.create_sampling_client(model_path=self.path)
        self.before = scores(self.client.create_sampling_client(base_model=self.name), self.tokens)
        self.want = scores(self.sampler, self.tokens)
        self.live = probe(self.run, tiny_model.VOCAB)

    def export(self, form, label=""):
        to = self.root / f"{form}{label}"
        self.server.cli("checkpoint", "export", self.path, "--to", to, "--form", form)
        return to

    def reference(self, weights):
        """numpy's log-probabilities of the tokens."""
        if self.tied and "lm_head.weight" not in weights:
            weights = dict(weights, **{"lm_head.weight": weights["model.embed_tokens.weight"]})
        lp = tiny_model.logprobs(weights, self.tokens)
        return lp[np.arange(len(self.tokens) - 1), self.tokens[1:]]

    def weights(self):
        return read_safetensors(self.base / "model.safetensors")


@pytest.fixture(scope="module", params=[False, True], ids=["untied", "tied"])
def trained(request, server, tmp_path_factory):
    t = Trained(server, tmp_path_factory.mktemp("export"), request.param)
    yield t
    t.client.close("success").result(timeout=60)


def test_fr25_adapter(trained):
    """Every tensor is one of PEFT's, base plus scale times B A is what the server samples from, and it isn't the base."""
    folder = trained.export("adapter")
    c = json.loads((folder / "adapter_config.json").read_text())
    assert (c["peft_type"], c["r"], c["lora_alpha"], c["bias"]) == ("LORA", RANK, 32, "none"), c
    assert c["base_model_name_or_path"] == trained.name
    tensors, w = read_safetensors(folder / "adapter_model.safetensors"), trained.weights()
    linear = sorted({n for n in [*w, "lm_head.weight"] if n.endswith(("_proj.weight", "lm_head.weight"))})
    assert sorted(tensors) == sorted(f"base_model.model.{n[:-7]}.lora_{s}.weight" for n in linear for s in "AB")
    assert sorted({n.split(".")[-2] for n in linear}) == sorted(c["target_modules"])
    for n in linear:
        a, b = (tensors[f"base_model.model.{n[:-7]}.lora_{s}.weight"] for s in "AB")
        under = w.get(n, w["model.embed_tokens.weight"])
        w[n] = under + np.float32(c["lora_alpha"] / c["r"]) * (b @ a)
    assert np.abs(trained.reference(w) - trained.want).max() < TOLERANCE
    assert np.abs(trained.want - trained.before).max() > 100 * TOLERANCE
    assert np.abs(trained.reference(trained.weights()) - trained.before).max() < TOLERANCE
    note = (folder / "README.md").read_text()
    assert "inference server" in note and "PEFT can" in note, note
    assert "shares with its embedding" in note if trained.tied else "output head" in note


def test_fr26_merged(trained):
    """The folder alone gives the server's numbers; a tied head that was trained is written and the flag is off; side files
    are those that were uploaded, byte for byte."""
    folder = trained.export("merged")
    w = read_safetensors(folder / "model.safetensors")
    assert sorted(w) == sorted(tiny_model.weights())  # the head too, tied or not
    assert np.abs(trained.reference(w) - trained.want).max() < TOLERANCE
    config, base = (json.loads((f / "config.json").read_text()) for f in (folder, trained.base))
    assert config["tie_word_embeddings"] is False
    assert dict(config, tie_word_embeddings=None) == dict(base, tie_word_embeddings=None)
    assert np.array_equal(w["model.embed_tokens.weight"], trained.weights()["model.embed_tokens.weight"])
    assert not np.array_equal(w["lm_head.weight"], trained.weights().get("lm_head.weight", w["model.embed_tokens.weight"]))
    before, after = files_of(trained.base), files_of(folder)
    for file in ["tokenizer.json", "tokenizer_config.json", *SIDE]:
        assert after[file] == before[file], file
    trained.server.add_model(trained.name + "-merged", folder)
    again = scores(trained.client.create_sampling_client(base_model=trained.name + "-merged"), trained.tokens)
    assert np.abs(again - trained.want).max() < TOLERANCE


@pytest.mark.parametrize("form", ["adapter", "merged"])
def test_fr26_twice_and_live(trained, form):
    """Exporting twice gives identical files, and nothing about the live model changes by it."""
    one, other = files_of(trained.export(form, "-one")), files_of(trained.export(form, "-two"))
    assert one == other and len(one) >= 3
    assert probe(trained.run, tiny_model.VOCAB) == trained.live
    assert bits(scores(trained.sampler, trained.tokens)) == bits(trained.want)
    base = trained.client.create_sampling_client(base_model=trained.name)
    assert bits(scores(base, trained.tokens)) == bits(trained.before)
