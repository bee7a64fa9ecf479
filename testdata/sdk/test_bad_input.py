"""FR-09 and the rest: each mistake fails soon, in words, as the user's; nothing else changes."""
import json

import numpy as np
import pytest
from harness import (WAIT, Server, Wire, adam, datum, get, lora, pb, probe, probe_data, prompt, raw_user_error,
                     user_error)
from tinker import types

LONG = "n" * 4096
NAMES = ["/etc/passwd", "../../escape", "a/../../b", "nul\x00byte", LONG, "", ".", "..", "a b", "white\nline"]


def inputs(tokens, **change):
    """A cross-entropy datum with some inputs changed or, with None, left out."""
    d = datum(tokens)
    for k, v in change.items():
        d.loss_fn_inputs.pop(k, None)
        if v is not None:
            d.loss_fn_inputs[k] = v
    return d


def f32(x):
    return types.TensorData.from_numpy(np.asarray(x, np.float32))


def i64(x):
    return types.TensorData.from_numpy(np.asarray(x, np.int64))


GOOD = [5, 6, 7, 8, 9, 10]
# label -> (data, loss, config, words that the message must have)
MISTAKES = {
    "missing input": ([inputs(GOOD, target_tokens=None)], "cross_entropy", None, ["target_tokens"]),
    "missing logprobs": ([inputs(GOOD, weights=None, advantages=f32([1] * 5))], "importance_sampling", None,
                         ["logprobs"]),
    "missing advantages": ([inputs(GOOD, weights=None, logprobs=f32([-1] * 5))], "ppo", None, ["advantages"]),
    "short weights": ([inputs(GOOD, weights=f32([1, 1]))], "cross_entropy", None, ["weights"]),
    "short targets": ([inputs(GOOD, target_tokens=i64([1, 2]), weights=f32([1, 1]))], "cross_entropy", None,
                      ["target_tokens"]),
    "wrong type": ([inputs(GOOD, target_tokens=f32([1] * 5))], "cross_entropy", None, ["target_tokens"]),
    "target out of range": ([inputs(GOOD, target_tokens=i64([1, 2, 3, 4, 99999]))], "cross_entropy", None,
                            ["99999", "target_tokens"]),
    "negative target": ([inputs(GOOD, target_tokens=i64([1, 2, 3, 4, -5]))], "cross_entropy", None, ["-5"]),
    "input token out of range": ([datum([5, 70000, 6])], "cross_entropy", None, ["70000"]),
    "negative input token": ([datum([5, -3, 6])], "cross_entropy", None, ["-3"]),
    "weights that are not finite": ([inputs(GOOD, weights=f32([1, np.nan, 1, 1, 1]))], "cross_entropy", None,
                                    ["weights"]),
    "unknown loss": ([datum(GOOD)], "no_such_loss", None, ["no_such_loss"]),
    "loss not served": ([datum(GOOD)], "stable_reinforce", None, ["stable_reinforce"]),
    "no tokens": ([types.Datum(model_input=types.ModelInput.from_ints([]), loss_fn_inputs=dict(
        target_tokens=i64([]), weights=f32([])))], "cross_entropy", None, []),
    "too long": ([datum([3 + i % 200 for i in range(300)])], "cross_entropy", None, ["299", "128"]),
    "second item bad": ([datum(GOOD), datum([5, 70000, 6])], "cross_entropy", None, ["70000", "1"]),
}


@pytest.mark.parametrize("label", MISTAKES)
def test_fr09_forward_backward(server, service, tiny, label):
    """The failed request leaves the gradient that was there: the step after it is to the bit the
    step without it. Sent raw too, since the SDK refuses some of these itself."""
    data, loss, config, words = MISTAKES[label]
    wire, ends = Wire(server.url), []
    for bad in (False, True):
        run = wire.model(tiny.name)
        status, body = wire.forward_backward(run, 1, probe_data(tiny.vocab))
        assert status == 200, body
        wire.retrieve(body["request_id"], pb.ForwardBackwardOutput)
        if bad:
            raw_user_error(wire, wire.forward_backward(run, 2, data, loss, config=config), *words,
                           parse=pb.ForwardBackwardOutput)
        status, body = wire.optim(run, 3)
        assert status == 200 and "error" not in wire.retrieve(body["request_id"])
        ends.append(wire.probe(run, 4, probe_data(tiny.vocab)))
    assert ends[0] == ends[1]
    run = lora(service, tiny.name)
    try:
        future = run.forward_backward(data, loss, config)
    except Exception:  # the SDK's own check, before anything is sent
        return
    if loss in types.LossFnType.__args__:
        user_error(lambda: get(future), *words)


def test_fr09_empty_batch(server, tiny):
    wire = Wire(server.url)
    run = wire.model(tiny.name)
    raw_user_error(wire, wire.forward_backward(run, 1, []), ("empty", "no data", "no datum"),
                   parse=pb.ForwardBackwardOutput)


def test_fr09_unknown_model(server, service):
    wire = Wire(server.url)
    raw_user_error(wire, wire.forward_backward("nobody:train:0", 1, [datum(GOOD)]), "nobody:train:0",
                   parse=pb.ForwardBackwardOutput)
    raw_user_error(wire, wire.optim("nobody:train:0", 1), "nobody:train:0")
    user_error(lambda: get(service.create_lora_training_client(base_model="test/absent")), "test/absent",
               ("model add", "model pull"))
    user_error(lambda: get(service.create_training_client_from_state("tinker://no:train:0/weights/x")),
               "tinker://no:train:0/weights/x")


def test_fr09_bytes_that_are_not_a_message(server, tiny):
    wire = Wire(server.url)
    for raw in (b"\xff" * 100, b"", b"\x1a\xff\xff\xff\xff\x0f", b"{}"):
        raw_user_error(wire, wire.forward_backward_bytes(raw), parse=pb.ForwardBackwardOutput)
    for path in ("create_model", "optim_step", "asample", "save_weights", "load_weights", "retrieve_future"):
        for raw in (b"", b"[1]", b"{", b'{"model_id": 7}', b"nul\x00"):
            status, _, out = wire.send("POST", "/api/v1/" + path, raw)
            assert 400 <= status < 500 and status not in (402, 408, 409, 429), (path, raw, status, out)
            assert out, "an empty 400 is resent by the client"
    server.alive()


def test_fr09_tensor_that_lies_about_its_shape(server, tiny):
    wire = Wire(server.url)
    run = wire.model(tiny.name)
    for n, (shape, raw) in enumerate([([2 ** 40, 2 ** 40], b"\0" * 40), ([5], b"\0" * 39), ([-5], b"\0" * 40),
                                      ([4], b"\0" * 40), ([5, 1, 1], b"\0" * 40)]):
        data = [(GOOD[:-1], dict(target_tokens=(pb.DTYPE_INT64, shape, raw),
                                 weights=(pb.DTYPE_FLOAT32, [5], b"\0" * 20)))]
        raw_user_error(wire, wire.forward_backward(run, n + 1, data), "target_tokens",
                       parse=pb.ForwardBackwardOutput)


def test_optim_step_settings(server, service, tiny):
    """Settings that make no sense are refused, and the gradient waits for a sensible step."""
    wire, ends = Wire(server.url), []
    for bad in ({}, dict(learning_rate=-1.0), dict(beta1=1.0), dict(beta2=-0.1), dict(eps=-1.0),
                dict(weight_decay=-1.0), dict(grad_clip_norm=-1.0)):
        run = wire.model(tiny.name)
        status, body = wire.forward_backward(run, 1, probe_data(tiny.vocab))
        assert status == 200, body
        if bad:
            raw_user_error(wire, wire.optim(run, 2, **bad), next(iter(bad)))
        status, body = wire.optim(run, 3)
        assert status == 200 and "error" not in wire.retrieve(body["request_id"])
        ends.append(wire.probe(run, 4, probe_data(tiny.vocab)))
    assert len(set(ends)) == 1


def test_sampling_settings(service, tiny):
    base = get(service.create_sampling_client(base_model=tiny.name))
    p = prompt(tiny.encode("x"))
    for change, word in ((dict(temperature=-1.0), "temperature"), (dict(top_p=0.0), "top_p"), (dict(top_p=1.5), "top_p"),
                         (dict(max_tokens=-3), "max_tokens"), (dict(top_k=-7), "top_k")):
        ask = types.SamplingParams(**dict(dict(max_tokens=4, stop=[]), **change))
        user_error(lambda: get(base.sample(p, 1, ask)), word)
    user_error(lambda: get(base.sample(prompt([5, 99999]), 1, types.SamplingParams(max_tokens=4))), "99999")
    user_error(lambda: get(base.sample(prompt([]), 1, types.SamplingParams(max_tokens=4))), "prompt")
    user_error(lambda: get(base.sample(p, 0, types.SamplingParams(max_tokens=4))), "num_samples")
    user_error(lambda: get(base.sample(p, 1, types.SamplingParams(max_tokens=4, stop=[99999]))), "99999")
    image = types.ModelInput(chunks=[types.ImageChunk(data=b"x", format="png", expected_tokens=3)])
    user_error(lambda: get(base.sample(image, 1, types.SamplingParams(max_tokens=4))), "image")


def test_stop_of_mixed_kinds(server, tiny):
    wire = Wire(server.url)
    session = wire.session()
    status, body = wire.post("create_sampling_session", session_id=session, sampling_session_seq_id=0,
                             base_model=tiny.name, type="create_sampling_session")
    assert status == 200, body
    raw_user_error(wire, wire.post(
        "asample", sampling_session_id=body["sampling_session_id"], seq_id=0, num_samples=1,
        prompt=dict(chunks=[dict(type="encoded_text", tokens=[5, 6])]),
        sampling_params=dict(max_tokens=4, temperature=1, top_k=-1, top_p=1, stop=["a", 5])), "stop", parse=pb.SampleResponse)


@pytest.mark.parametrize("name", NAMES, ids=lambda n: repr(n)[:16])
def test_checkpoint_names(server, service, tiny, name):
    """Absolute, with .., NUL, 4 KB: refused, and nothing is written outside the data folder."""
    before = sorted(p.name for p in server.root.iterdir())
    run = lora(service, tiny.name)
    user_error(lambda: get(run.save_state(name)))
    run2 = lora(service, tiny.name)
    user_error(lambda: get(run2.save_weights_for_sampler(name)))
    get(run.save_state("good-name_1.0"))
    assert sorted(p.name for p in server.root.iterdir()) == before


# An argument cannot hold NUL: test_uploads.py sends that by HTTP.
@pytest.mark.parametrize("name", [n for n in NAMES if "\0" not in n] + ["a--b/c", "a/b/c/d"], ids=lambda n: repr(n)[:16])
def test_model_names(server, folders, name):
    before = sorted(p.name for p in server.root.iterdir())
    p = server.cli("model", "add", name, folders["tiny"], check=False)
    assert p.returncode in (1, 2), (p.stdout, p.stderr)
    assert "name" in p.stderr.lower() and "goroutine" not in p.stderr
    assert sorted(p.name for p in server.root.iterdir()) == before
    server.alive()


def test_loads_of_odd_paths(server, service, tiny):
    run = lora(service, tiny.name)
    start = probe(run, tiny.vocab)
    for path in ("/etc/passwd", "tinker://../../etc/weights/x", "tinker://a:train:0/weights/../x", "tinker://" + LONG,
                 "tinker://a:train:0/other/x", "file:///etc/passwd"):
        user_error(lambda: get(run.load_state(path)))
        user_error(lambda: get(service.create_training_client_from_state(path)))
    assert probe(run, tiny.vocab) == start
    get(run.forward_backward([datum(GOOD)], "cross_entropy"))
    get(run.optim_step(adam()))


def test_full_update_with_a_part_off(service, tiny):
    """rank=0 with a flag off trains only those parts (test_training.py shows that) or is refused in words."""
    try:
        run = get(service.create_lora_training_client(base_model=tiny.name, rank=0, train_mlp=False))
    except Exception:
        user_error(lambda: get(service.create_lora_training_client(base_model=tiny.name, rank=0, train_mlp=False)),
                   "train_mlp")
        return
    get(run.forward_backward([datum(GOOD)], "cross_entropy"))


def test_full_update_that_does_not_fit(tmp_path, tiny):
    """A wide model in little memory: the refusal has the bytes needed and free; LoRA still works."""
    import tiny_model
    hidden, inner = 512, 2048
    folder = tiny_model.write(str(tmp_path / "wide"))
    config = dict(tiny_model.config(), hidden_size=hidden, intermediate_size=inner, head_dim=hidden // 4)
    tiny_model.dump(str(tmp_path / "wide" / "config.json"), config)
    w = tiny_model.weights(inner=inner, hidden=hidden)
    tiny_model.write_safetensors(str(tmp_path / "wide" / "model.safetensors"), w)
    size = sum(x.nbytes for x in w.values())  # about 34 MB; a full update keeps at least four times that
    s = Server(tmp_path / "box", "--memory", str(3 * size)).start()
    try:
        s.add_model("test/wide", folder)
        c = s.client()
        text = user_error(lambda: get(c.create_lora_training_client(base_model="test/wide", rank=0)),
                          ("memory", "bytes", "MB", "MiB"), ("free", "available"), seconds=10)
        assert sum(ch.isdigit() for ch in text) >= 2, text
        run = get(c.create_lora_training_client(base_model="test/wide", rank=4))
        get(run.forward_backward([datum(GOOD)], "cross_entropy"))
        c.close("success").result(timeout=WAIT)
        s.alive()
    finally:
        s.stop()


def test_an_error_is_json_with_a_text(server):
    status, kind, raw = Wire(server.url).send("POST", "/api/v1/create_model", b"{}")
    assert 400 <= status < 500 and kind.startswith("application/json")
    body = json.loads(raw)
    assert isinstance(body.get("detail") or body.get("error"), str), body
