"""Losses that users write: through a handle the server runs what the client would, and refuses what it must.

    python test_custom_loss.py URL MODEL      in the torch environment: runs each loss on both sides and prints one JSON object
"""
import json
import os
import subprocess
import sys
import time
import traceback
import urllib.request

import numpy as np
import pytest
import tinker
import tiny_model
from harness import HERE, KEY, WAIT, Wire, datum, get, lora, raw_user_error, same_sdk, sgd
from tinker import types

RELATIVE = 1e-5
RATE = 1e-3  # of the step by which gradients are read

# Each takes log-probabilities and inputs of one datum, by name, and gives its loss and metrics.


def clipped_surrogate(logprobs, old, advantages):
    ratio = (logprobs - old).exp()
    loss = -torch.minimum(ratio * advantages, torch.clamp(ratio, 0.8, 1.2) * advantages).sum()
    return loss, {"custom/clipped:mean": ((ratio < 0.8) | (ratio > 1.2)).float().mean(), "custom/ratio:mean": ratio.mean()}


def kl_regularised(logprobs, old, advantages):
    d = old - logprobs
    kl = torch.exp(d) - 1 - d
    return (0.2 * kl - logprobs * advantages).sum(), {"custom/kl:sum": kl.sum()}


def entropy_bonus(logprobs, weights):
    p = torch.nn.functional.softmax(logprobs, dim=-1)
    entropy = -(p * torch.nn.functional.log_softmax(logprobs, dim=-1)).sum(dim=-1)
    return -(weights * logprobs).sum() - 0.05 * entropy.sum(), {"custom/entropy:mean": entropy.mean()}


def huber_on_logprob(logprobs, old, mask):
    d = logprobs - old
    each = torch.where(d.abs() < 0.3, 0.5 * d * d, 0.3 * (d.abs() - 0.15))
    return (each * mask).sum(), {"custom/inside:sum": (d.abs() < 0.3).float().sum()}


def length_normalised(logprobs, mask):
    n = mask.sum().clamp(min=1.0)
    mean = (logprobs * mask).sum() / n
    return -mean, {"custom/length:mean": n, "custom/perplexity:mean": torch.exp(-mean)}


def token_masked(logprobs, mask, advantages):
    keep = mask > 0.5
    return -(logprobs[keep] * advantages[keep]).sum(), {"custom/kept:sum": keep.sum()}


def truncated_is(logprobs, old, advantages):
    rho = torch.clamp(torch.exp(logprobs - old), max=1.1).detach()
    return -(rho * advantages * logprobs).sum(), {"custom/size:mean": rho.sum() ** 2 / rho.pow(2).sum()}


def unlikelihood(logprobs, mask):
    against = torch.log1p(-torch.exp(logprobs).clamp(max=1 - 1e-6))
    return -(mask * logprobs + (1 - mask) * against).sum(), {"custom/against:sum": ((1 - mask) * against).sum()}


def label_smoothed(logprobs):
    first, rest = logprobs[:, 0], logprobs[:, 1:].mean(dim=1)
    return -(0.9 * first + 0.1 * rest).sum(), {"custom/first:mean": first.mean()}


def grpo_scaled(logprobs, old, advantages, scale):
    centred = (advantages - advantages.mean()) / (advantages.std() + 1e-4)
    ratio = torch.exp(logprobs - old)
    surrogate = torch.min(ratio * centred, ratio.clamp(0.8, 1.28) * centred)
    return -scale * surrogate.mean() + 0.04 * scale * ((old - logprobs).exp() - (old - logprobs) - 1).mean(), {"custom/scale:mean": scale}


LOSSES = {
    "clipped_surrogate": ("old", "advantages"), "kl_regularised": ("old", "advantages"), "entropy_bonus": ("weights",),
    "huber_on_logprob": ("old", "mask"), "length_normalised": ("mask",), "token_masked": ("mask", "advantages"),
    "truncated_is": ("old", "advantages"), "unlikelihood": ("mask",), "label_smoothed": (), "grpo_scaled": ("old", "advantages", "scale")}
TWO_D = ("entropy_bonus", "label_smoothed")


# The losses on both sides.

@pytest.fixture(scope="module")
def result(server, torch_python, tmp_path_factory):
    p = subprocess.run([torch_python, __file__, server.url, "test/tiny"], capture_output=True, text=True, timeout=300,
                       env=dict(os.environ, TINKER_TELEMETRY="0", PYTHONPATH=same_sdk(tmp_path_factory.mktemp("sdk"))))
    assert p.returncode == 0, p.stderr[-4000:]
    out = json.loads(p.stdout.splitlines()[-1])
    assert out["sdk"] == os.path.realpath(tinker.__file__)
    return out


def near(a, b):
    return abs(a - b) <= RELATIVE * max(abs(a), abs(b), 1e-3)


@pytest.mark.parametrize("name", LOSSES)
def test_the_server_runs_what_the_client_would(result, name):
    r = result["losses"][name]
    assert "error" not in r, r["error"]
    here, there = r["client"], r["server"]
    assert here["id"] is None and there["id"], "the server's flag is on, and the client's was turned off"
    assert near(here["metrics"]["loss:sum"], there["metrics"]["loss:sum"]), r
    assert here["metrics"]["loss:sum"] != 0
    custom = {k for k in here["metrics"] if k.startswith("custom/")}
    assert custom and custom == {k for k in there["metrics"] if k.startswith("custom/")}, r
    for k in custom:
        assert near(here["metrics"][k], there["metrics"][k]), (k, r)
    assert r["logprobs_same"], "the outputs are the model's log-probabilities on both sides"
    assert r["modules"] == 15 and r["gradient"] > 0 and r["apart"] <= RELATIVE * r["gradient"], r


@pytest.mark.parametrize("name", ["dpo", "contrastive"])
def test_plain_functions(result, name):
    """A loss over several data: its value, and the weights moved by its gradient as derived by hand."""
    r = result["plain"][name]
    assert "error" not in r, r["error"]
    assert near(r["loss"], r["want"]), r
    assert r["gradient"] > 0 and r["apart"] <= RELATIVE * r["gradient"], r


def test_a_loss_belongs_to_its_session_and_inputs_are_checked(result):
    assert "user" in result["missing input"] and "old" in result["missing input"]
    assert "session" in result["other session"]


# Graphs that no tracer made.

def node(op, name, target, *args):
    return dict(op=op, name=name, target=target, args=list(args), kwargs={})


def ref(name):
    return dict(ref=name)


def graph(*nodes, loss="loss"):
    return dict(format=1, nodes=[node("placeholder", "logprobs", "logprobs"), *nodes,
                                 node("output", "output", "output", dict(tuple=[ref(loss), dict(dict={})]))])


def total(name):
    return node("call_method", "loss", "sum", ref(name))


BIG = 10 ** 9
HOSTILE = {
    "cycle": (graph(node("call_function", "a", "torch.exp", ref("b")), node("call_function", "b", "torch.exp", ref("a")), total("b")), ("a", "b")),
    "itself": (graph(node("call_function", "a", "torch.exp", ref("a")), total("a")), "a"),
    "expand": (graph(node("call_function", "a", "torch.zeros", BIG), total("a")), ("1000000000", "element")),
    "expand method": (graph(node("call_method", "s", "sum", ref("logprobs")), node("call_method", "a", "expand", ref("s"), BIG), total("a")),
                      ("element", "1000000000")),
    "product of sizes": (graph(node("call_method", "s", "sum", ref("logprobs")), node("call_method", "a", "expand", ref("s"), 1 << 40, 1 << 40), total("a")),
                         ("element", "size")),
    "unknown function": (graph(node("call_function", "a", "torch.no_such_thing", ref("logprobs")), total("a")), "torch.no_such_thing"),
    "code": (graph(node("call_function", "a", "os.system", "true"), total("a")), "os.system"),
    "unknown method": (graph(node("call_method", "a", "tolist", ref("logprobs")), total("a")), "tolist"),
    "unknown op": (graph(node("call_secret", "a", "torch.exp", ref("logprobs")), total("a")), "call_secret"),
    "attribute": (graph(node("call_function", "a", "getattr", ref("logprobs"), "__class__"), total("a")), "__class__"),
    "NaN": (graph(node("call_function", "a", "torch.mul", ref("logprobs"), dict(float="nan")), total("a")), "nan"),
    "no output": (dict(format=1, nodes=[node("placeholder", "logprobs", "logprobs")]), "output"),
    "another format": (dict(graph(total("logprobs")), format=99), "format"),
    "no graph": ([], ("graph", "node", "json")),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_graphs_are_refused(server, tiny, name):
    """At creation, or when it would run; soon, as the user's fault, with nothing allocated for it."""
    wire, (body, words) = Wire(server.url), HOSTILE[name]
    session, before, began = wire.session(), server.resident(), time.monotonic()
    answer = wire.post("create_custom_loss", session_id=session, custom_loss_seq_id=0, name="hostile", inputs=[dict(name="logprobs", rank=1)],
                       graph=body, type="create_custom_loss")
    created = wire.retrieve(answer[1]["request_id"]) if answer[0] == 200 else {}
    if "loss_id" in created:
        from harness import pb
        run = wire.model(tiny.name, session)
        m = pb.ForwardBackwardRequest(model_id=run, seq_id=1, loss_fn="custom")
        m.loss_fn_config_v2["loss_id"].text = created["loss_id"]
        d = m.data.add()
        d.model_input.add().encoded_text.tokens = np.asarray([1, 5, 6], np.int32).tobytes()
        t = d.loss_fn_inputs["target_tokens"]
        t.dense, t.dtype = np.asarray([5, 6, 7], np.int64).tobytes(), pb.DTYPE_INT64
        t.shape.extend([3])
        answer = wire.forward_backward_bytes(m.SerializeToString())
        raw_user_error(wire, answer, words if isinstance(words, tuple) else (words,), parse=pb.ForwardBackwardOutput)
    else:
        raw_user_error(wire, answer, words if isinstance(words, tuple) else (words,))
    assert time.monotonic() - began < 5 and server.resident() - before < 256 << 20
    server.alive()


def test_a_loss_is_created_once(server):
    """A repeat is answered alike; the number with another graph is the user's mistake."""
    wire = Wire(server.url)
    body = dict(session_id=wire.session(), custom_loss_seq_id=0, name="loss", inputs=[dict(name="logprobs", rank=1)], type="create_custom_loss")
    a, b = (wire.post("create_custom_loss", graph=graph(total("logprobs")), **body) for _ in range(2))
    assert a == b and wire.retrieve(a[1]["request_id"])["loss_id"]
    raw_user_error(wire, wire.post("create_custom_loss", graph=graph(node("call_method", "loss", "mean", ref("logprobs"))), **body), "number")


# What runs in the torch environment.

def sequences():
    g = np.random.default_rng(8)
    return [[tiny_model.BOS, *map(int, g.integers(3, 259, n))] for n in (9, 14, 6)]


def inputs_of(tokens, base, i, two_d):
    """The inputs of a datum, all of them; q near the model's log-probabilities, so that clips bite for some tokens only."""
    g = np.random.default_rng(100 + i)
    n = len(tokens) - 1
    out = dict(old=base + g.normal(0, 0.25, n), advantages=g.normal(0.3, 1, n), mask=(g.random(n) < 0.6).astype(float), scale=np.float64(0.5 + i))
    out["mask"][:2] = 1, 0
    out = {k: torch.tensor(np.asarray(v), dtype=torch.float32) for k, v in out.items()}
    out["target_tokens"] = torch.tensor(tokens[1:])
    if two_d:
        others = torch.tensor(g.integers(3, 259, (n, 3)))
        out["target_tokens"] = torch.cat([out["target_tokens"][:, None], others], 1)
        out["weights"] = torch.tensor(g.random((n, 4)), dtype=torch.float32)
    return out


def as_datum(tokens, inputs, names):
    return types.Datum(model_input=types.ModelInput.from_ints(tokens[:-1]),
                       loss_fn_inputs={k: types.TensorData.from_torch(inputs[k]) for k in ("target_tokens", *names)})


class Box:
    """A session; client_side turns the server's flag off in this client, whose losses then run here."""

    def __init__(self, url, model, client_side=False):
        self.model, self.saved = model, 0
        self.service, self.rest = (c(base_url=url, api_key=KEY) for c in (tinker.ServiceClient, tinker.RestClient))
        if client_side:
            holder = self.service.holder
            holder._client_config = holder.get_client_config().model_copy(update=dict(custom_loss_server_side=False))

    def run(self):
        return lora(self.service, self.model, rank=4, seed=6)

    def gradient(self, run):
        """That of every lora_B: it starts at 0, and the step is plain descent."""
        from safetensors.numpy import load
        get(run.optim_step(sgd(RATE)))
        self.saved += 1
        urls = get(self.rest.get_external_weights_urls(get(run.save_weights_external(f"g{self.saved}")).path)).urls
        raw = load(urllib.request.urlopen(urls["adapter_model.safetensors"], timeout=WAIT).read())
        assert all(v.dtype == np.float32 for v in raw.values())
        return {k: v / -RATE for k, v in raw.items() if "lora_B" in k}


def apart(a, b):
    size = lambda d: float(np.sqrt(sum((v.astype(np.float64) ** 2).sum() for v in d.values())))
    assert a.keys() == b.keys()
    return dict(apart=size({k: a[k] - b[k] for k in a}), gradient=size(a), modules=len(a))


def both_sides(boxes, name, data):
    """The loss by the client and by the server."""
    ranks = dict({k: 0 if k == "scale" else 2 if name in TWO_D else 1 for k in LOSSES[name]}, logprobs=2 if name in TWO_D else 1)
    out, grads, probs = {}, [], []
    for side, box in boxes.items():
        run = box.run()
        handle = get(box.service.create_custom_loss(globals()[name], input_ranks=ranks))
        got = get(run.forward_backward_custom(data, handle))
        out[side] = dict(id=handle.loss_id, metrics=dict(got.metrics))
        probs.append([np.asarray(o["logprobs"].tolist(), np.float32).tobytes() for o in got.loss_fn_outputs])
        grads.append(box.gradient(run))
    return dict(out, logprobs_same=probs[0] == probs[1], **apart(*grads))


def by_hand(box, data, plain, weights, want):
    """A plain function's gradient beside that of cross-entropy with the weights derived by hand."""
    run, hand = box.run(), box.run()
    loss = get(run.forward_backward_custom(data, plain)).metrics["loss:sum"]
    weighted = [types.Datum(model_input=d.model_input, loss_fn_inputs=dict(
        target_tokens=d.loss_fn_inputs["target_tokens"], weights=types.TensorData.from_torch(torch.tensor(w, dtype=torch.float32))))
        for d, w in zip(data, weights)]
    get(hand.forward_backward(weighted, "cross_entropy"))
    return dict(loss=loss, want=float(want), **apart(box.gradient(run), box.gradient(hand)))


def dpo(box, data, base):
    """Two pairs; the reference is the model's own scores moved by a constant."""
    beta, moved = 0.4, np.array([0.5, -1.0, 0.25, 2.0])
    data, base = data + data[:1], base + base[:1]
    reference = np.array([b.sum() for b in base]) + moved

    def loss(data, logprobs):
        s = torch.stack([lp.sum() for lp in logprobs]) - torch.tensor(reference, dtype=torch.float32)
        return -torch.nn.functional.logsigmoid(beta * (s[0::2] - s[1::2])).sum(), {}
    margin = beta * (-moved[0::2] + moved[1::2])
    pull = beta / (1 + np.exp(margin))
    signs = np.stack([pull, -pull], 1).ravel()
    return by_hand(box, data, loss, [np.full(len(b), s) for b, s in zip(base, signs)], np.log1p(np.exp(-margin)).sum())


def contrastive(box, data, base):
    """The first of the batch against the others, by mean log-probability."""
    def loss(data, logprobs):
        score = torch.stack([lp.mean() for lp in logprobs]) / 0.5
        return -torch.log_softmax(score, 0)[0], {"custom/first:mean": score[0].item()}
    score = np.array([b.astype(np.float64).mean() for b in base]) / 0.5
    p = np.exp(score - score.max()) / np.exp(score - score.max()).sum()
    pull = ((np.arange(len(p)) == 0) - p) / 0.5
    return by_hand(box, data, loss, [np.full(len(b), g / len(b)) for b, g in zip(base, pull)], -np.log(p[0]))


def failure(call):
    try:
        return f"no error: {call()!r}"
    except Exception as e:
        return f"{getattr(getattr(e, 'category', None), 'value', '')} {e}"


def main(url, model):
    boxes, tokens = dict(client=Box(url, model, client_side=True), server=Box(url, model)), sequences()
    box = boxes["server"]
    flat = [datum(t) for t in tokens]
    base = [np.asarray(o["logprobs"].tolist(), np.float32) for o in get(box.run().forward(flat, "cross_entropy")).loss_fn_outputs]
    out = dict(losses={}, plain={}, sdk=os.path.realpath(tinker.__file__))
    for name in LOSSES:
        try:
            data = [as_datum(t, inputs_of(t, b, i, name in TWO_D), LOSSES[name]) for i, (t, b) in enumerate(zip(tokens, base))]
            out["losses"][name] = both_sides(boxes, name, data)
        except Exception:
            out["losses"][name] = dict(error=traceback.format_exc()[-3000:])
    for name, fn in (("dpo", dpo), ("contrastive", contrastive)):
        try:
            out["plain"][name] = fn(box, flat, base)
        except Exception:
            out["plain"][name] = dict(error=traceback.format_exc()[-3000:])
    # What the client would refuse itself is sent past it.
    other = boxes["other"] = Box(url, model)
    id = get(other.service.create_custom_loss(clipped_surrogate, input_ranks=dict(logprobs=1, old=1, advantages=1))).loss_id
    out["missing input"] = failure(lambda: get(other.run().forward_backward(flat, "custom", {"loss_id": id})))
    out["other session"] = failure(lambda: get(box.run().forward_backward(flat, "custom", {"loss_id": id})))
    for b in boxes.values():
        get(b.service.close("success"))
    print(json.dumps(out))


if __name__ == "__main__":
    import torch
    assert str(HERE) == os.path.dirname(os.path.abspath(__file__))
    main(*sys.argv[1:])
    sys.stdout.flush()
    os._exit(0)  # the SDK's threads may outlive the interpreter and abort it
