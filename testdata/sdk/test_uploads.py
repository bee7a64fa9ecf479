"""Model folders that must be refused, each by name, and the server goes on."""
import hashlib
import json
import os
import struct

import numpy as np
import pytest
import tiny_model
from harness import Wire, get, scores


def edit(folder, **change):
    path = folder / "config.json"
    c = json.loads(path.read_text())
    for k, v in change.items():
        if v is None:
            c.pop(k, None)
        else:
            c[k] = v
    path.write_text(json.dumps(c))


def put(folder, head, body=b"", length=None):
    text = head if isinstance(head, bytes) else json.dumps(head).encode()
    (folder / "model.safetensors").write_bytes(
        struct.pack("<Q", len(text) if length is None else length) + text + body)


def tensor(**kw):
    return dict(dict(dtype="F32", shape=[2], data_offsets=[0, 8]), **kw)


def missing_shard(f):
    w = tiny_model.weights()
    names = sorted(w)
    parts = [names[:7], names[7:14], names[14:]]
    os.remove(f / "model.safetensors")
    index = {}
    for i, part in enumerate(parts, 1):
        file = f"model-{i:05d}-of-00003.safetensors"
        index.update({n: file for n in part})
        if i != 3:
            tiny_model.write_safetensors(str(f / file), {n: w[n] for n in part})
    tiny_model.dump(str(f / "model.safetensors.index.json"), dict(metadata={}, weight_map=index))


def without(name):
    def change(f):
        w = tiny_model.weights()
        del w[name]
        tiny_model.write_safetensors(str(f / "model.safetensors"), w)
    return change


def wrong_shape(f):
    w = tiny_model.weights()
    w["model.layers.1.mlp.up_proj.weight"] = w["model.layers.1.mlp.up_proj.weight"][:-1]
    tiny_model.write_safetensors(str(f / "model.safetensors"), w)


def wrong_dtype(f):
    w = {k: v.astype(np.int32) if k == "lm_head.weight" else v for k, v in tiny_model.weights().items()}
    tiny_model.write_safetensors(str(f / "model.safetensors"), w)
    raw = (f / "model.safetensors").read_bytes()
    n = struct.unpack("<Q", raw[:8])[0]
    head = json.loads(raw[8:8 + n])
    head["lm_head.weight"]["dtype"] = "F8_E4M3"
    head["lm_head.weight"]["shape"] = [tiny_model.VOCAB, tiny_model.HIDDEN * 4]
    put(f, head, raw[8 + n:])


def cut(f):
    raw = (f / "model.safetensors").read_bytes()
    (f / "model.safetensors").write_bytes(raw[:len(raw) // 2])


def weight_map_escapes(f):
    index = {n: "../../../etc/passwd" for n in tiny_model.weights()}
    os.remove(f / "model.safetensors")
    tiny_model.dump(str(f / "model.safetensors.index.json"), dict(metadata={}, weight_map=index))


SPOILT = {
    "missing shard": (missing_shard, ["model-00003-of-00003.safetensors"]),
    "missing tensor": (without("model.layers.1.mlp.up_proj.weight"), ["model.layers.1.mlp.up_proj.weight"]),
    "untied without head": (without("lm_head.weight"), ["lm_head.weight"]),
    "wrong shape": (wrong_shape, ["model.layers.1.mlp.up_proj.weight"]),
    "wrong dtype": (wrong_dtype, ["lm_head.weight", "F8_E4M3"]),
    "file cut short": (cut, ["model.safetensors"]),
    "no weights": (lambda f: os.remove(f / "model.safetensors"), ["safetensors"]),
    "no config": (lambda f: os.remove(f / "config.json"), ["config.json"]),
    "config not json": (lambda f: (f / "config.json").write_text("{"), ["config.json"]),
    "unknown architecture": (lambda f: edit(f, model_type="mamba", architectures=["MambaForCausalLM"]), ["mamba"]),
    "unknown scaling": (lambda f: edit(f, rope_scaling=dict(rope_type="spiral", factor=2.0)), ["spiral"]),
    "unknown activation": (lambda f: edit(f, hidden_act="wobble"), ["wobble"]),
    "heads do not divide": (lambda f: edit(f, num_key_value_heads=3), ["num_key_value_heads"]),
    "negative size": (lambda f: edit(f, hidden_size=-64), ["hidden_size"]),
    "huge size": (lambda f: edit(f, vocab_size=2 ** 40), ["vocab_size"]),
    "quantized": (lambda f: edit(f, quantization_config=dict(quant_method="gptq", bits=4)), ["quantization"]),
    "weight map leaves the folder": (weight_map_escapes, [".."]),
    "header length 0": (lambda f: put(f, b"", length=0), ["model.safetensors"]),
    "header length 2^63": (lambda f: put(f, b"{}", length=2 ** 63), ["model.safetensors"]),
    "header above the file": (lambda f: put(f, b"{}", length=1000), ["model.safetensors"]),
    "header above 100 MB": (lambda f: put(f, b"{}", length=200 * 2 ** 20), ["model.safetensors"]),
    "header not json": (lambda f: put(f, b"nonsense"), ["model.safetensors"]),
    "header a list": (lambda f: put(f, b"[1, 2]"), ["model.safetensors"]),
    **{f"offsets {o}": (lambda f, o=o: put(f, {"bad.tensor": tensor(data_offsets=o)}, b"\0" * 8), ["bad.tensor"])
       for o in ([], [5], [-4, 8], [8, 4], [0, 4000], [0, 7])},
    "shape that wraps": (lambda f: put(f, {"bad.tensor": tensor(shape=[2 ** 40, 2 ** 40])}, b"\0" * 8),
                         ["bad.tensor"]),
    "overlap": (lambda f: put(f, {"a.first": tensor(), "bad.tensor": tensor(data_offsets=[4, 12])}, b"\0" * 12),
                [("a.first", "bad.tensor")]),
    "hole": (lambda f: put(f, {"a.first": tensor(), "bad.tensor": tensor(data_offsets=[12, 20])}, b"\0" * 20),
             [("a.first", "bad.tensor")]),
    "trailing bytes": (lambda f: put(f, {"a.first": tensor()}, b"\0" * 20), ["model.safetensors"]),
    "deep header": (lambda f: put(f, b'{"a":' * 5000 + b"1" + b"}" * 5000), ["model.safetensors"]),
    "tokenizer not json": (lambda f: (f / "tokenizer.json").write_text("[}"), ["tokenizer.json"]),
    "tokenizer of another kind": (lambda f: (f / "tokenizer.json").write_text(json.dumps(dict(
        tiny_model.tokenizer(), pre_tokenizer=dict(type="Abracadabra")))), ["Abracadabra"]),
}


@pytest.mark.parametrize("label", SPOILT)
def test_fr17_refused(server, folders, scratch, label):
    change, words = SPOILT[label]
    folder = scratch(folders["tiny"], label)
    change(folder)
    name, before = f"spoilt/n{list(SPOILT).index(label)}", server.resident()
    p = server.cli("model", "add", name, folder, check=False)
    assert server.resident() - before < 50 << 20
    assert p.returncode == 1, (p.returncode, p.stdout, p.stderr)
    for leak in ("goroutine ", "panic:", "runtime error"):
        assert leak not in p.stderr
    for w in words:
        options = w if isinstance(w, tuple) else (w,)
        assert any(o in p.stderr for o in options), f"none of {options} in: {p.stderr}"
    assert name not in server.cli("model", "list").stdout
    server.alive()


def test_every_gap_is_named_at_once(server, folders, scratch):
    """Three things wrong: three in the answer."""
    folder = scratch(folders["tiny"], "gaps")
    edit(folder, rope_scaling=dict(rope_type="spiral", factor=2.0), hidden_act="wobble")
    p = server.cli("model", "add", "spoilt/gaps", folder, check=False)
    assert p.returncode == 1 and "spiral" in p.stderr and "wobble" in p.stderr, p.stderr


def announce(name, *files):
    return json.dumps(dict(name=name, files=[
        dict(path=f, size=4, sha256=hashlib.sha256(b"data").hexdigest()) for f in files])).encode()


BAD_NAMES = ["/etc/passwd", "../escape", "a/../../b", "nul\x00byte", "n" * 4096, "", ".", "..", "a\\b", "line\nbreak"]


@pytest.mark.parametrize("bad", BAD_NAMES, ids=lambda n: repr(n)[:16])
def test_names_by_http(server, bad):
    """As the name of a model or of a file: refused at once, and nothing is written outside the data folder."""
    wire, before = Wire(server.url), sorted(p.name for p in server.root.iterdir())
    for body in (announce(bad, "config.json"), announce("spoilt/name", bad)):
        status, kind, raw = wire.send("POST", "/smolgym/v1/uploads", body)
        assert status == 400 and kind.startswith("application/json"), (status, raw)
        assert len(raw) < 2000, "the answer repeats a long name"
    assert sorted(p.name for p in server.root.iterdir()) == before
    server.alive()


def test_bytes_that_are_not_what_was_announced(server):
    """A wrong hash is refused; the upload is not offered as a model."""
    wire = Wire(server.url)
    status, _, raw = wire.send("POST", "/smolgym/v1/uploads", announce("spoilt/hash", "config.json"))
    assert status == 200, raw
    upload = json.loads(raw)["id"]
    status, _, raw = wire.send("PUT", f"/smolgym/v1/uploads/{upload}/files/config.json?offset=0", b"DATA",
                               "application/octet-stream")
    assert status == 400 and b"config.json" in raw, (status, raw)
    status, _, raw = wire.send("POST", f"/smolgym/v1/uploads/{upload}/commit")
    assert status == 400, (status, raw)
    assert "spoilt/hash" not in server.cli("model", "list").stdout


def test_no_folder(server, tmp_path):
    p = server.cli("model", "add", "spoilt/none", tmp_path / "nowhere", check=False)
    assert p.returncode in (1, 3) and "nowhere" in p.stderr


def test_accepted_forms(server, service, folders, scratch, tiny):
    """Shards with an index, bfloat16 and float16, tensors out of order, a padded header: the same model."""
    w = tiny_model.weights()
    names, want = sorted(w), None
    for kind in ("whole", "shards", "padded", "bf16", "f16"):
        f = scratch(folders["tiny"], kind)
        file = str(f / "model.safetensors")
        if kind == "shards":
            os.remove(file)
            index = {}
            for i, part in enumerate((names[:9], names[9:]), 1):
                tiny_model.write_safetensors(str(f / f"model-{i:05d}-of-00002.safetensors"), {n: w[n] for n in part})
                index.update({n: f"model-{i:05d}-of-00002.safetensors" for n in part})
            tiny_model.dump(str(f / "model.safetensors.index.json"), dict(metadata=dict(total_size=1), weight_map=index))
        elif kind == "padded":
            raw = open(file, "rb").read()
            n = struct.unpack("<Q", raw[:8])[0]
            head = raw[8:8 + n].rstrip() + b" " * 4096
            open(file, "wb").write(struct.pack("<Q", len(head)) + head + raw[8 + n:])
        elif kind == "bf16":
            tiny_model.write_safetensors(file, {k: (v.view(np.uint32) >> 16).astype(np.uint16) for k, v in w.items()},
                                         "BF16")
        elif kind == "f16":
            tiny_model.write_safetensors(file, {k: v.astype(np.float16) for k, v in w.items()}, "F16")
        server.add_model(f"form/{kind}", f)
        tokens = tiny.encode("the same model")
        got = scores(get(service.create_sampling_client(base_model=f"form/{kind}")), tokens)
        if kind == "bf16":
            cutw = {k: (v.view(np.uint32) >> 16 << 16).view(np.float32) for k, v in w.items()}
        elif kind == "f16":
            cutw = {k: v.astype(np.float16).astype(np.float32) for k, v in w.items()}
        else:
            cutw = w
        ref = tiny_model.logprobs(cutw, tokens)[np.arange(len(tokens) - 1), tokens[1:]]
        assert np.abs(got - ref).max() < 1e-4, kind
        if cutw is w:
            want = want or got.tobytes()
            assert got.tobytes() == want, kind


def test_remove(server, service, folders, tiny):
    server.add_model("short/lived", folders["tiny"])
    assert "short/lived" in server.cli("model", "list").stdout
    server.cli("model", "rm", "short/lived")
    assert "short/lived" not in server.cli("model", "list").stdout
    assert server.cli("model", "rm", "short/lived", check=False).returncode == 3


def test_same_name_again(server, folders, tmp_path, tiny):
    """The same files again are fine; other files under a name that is taken are refused."""
    server.add_model("twice/added", folders["tiny"])
    again = server.cli("model", "add", "twice/added", folders["tiny"], check=False)
    other = server.cli("model", "add", "twice/added", tiny_model.write(str(tmp_path / "other"), seed=9), check=False)
    assert other.returncode == 1 and "twice/added" in other.stderr
    assert again.returncode in (0, 1) and "twice/added" in again.stdout + again.stderr
