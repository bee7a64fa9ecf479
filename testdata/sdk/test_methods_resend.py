"""Every numbered request sent twice and again at the end, with gaps between the numbers: the bits are those of the plain run.
Another body under a number that is taken, and a number that comes too late, are the user's mistakes and change nothing."""
import itertools
import json

import pytest
from harness import Wire, pb, probe_data, raw_user_error

FUTURES = ("create_model", "load_weights", "forward_backward", "optim_step", "save_weights", "save_weights_for_sampler",
           "save_weights_external", "create_sampling_session", "asample", "create_custom_loss")


class Resending(Wire):
    """Sends every numbered request twice, and remembers it."""

    def __init__(self, url, times):
        super().__init__(url)
        self.times, self.sent = times, []

    def send(self, method, path, body=None, kind="application/json", accept="application/json"):
        route = path.removeprefix("/api/v1/")
        if route not in FUTURES:
            return super().send(method, path, body, kind, accept)
        answers = [super(Resending, self).send(method, path, body, kind, accept) for _ in range(self.times)]
        assert answers[0][0] == 200, answers
        assert len({a[2] for a in answers}) == 1, f"{route}: a repeat was answered otherwise: {answers}"
        self.sent.append((route, body, kind, answers[0]))
        return answers[0]

    def again(self):
        for route, body, kind, answer in self.sent:
            got = Wire(self.url).send("POST", "/api/v1/" + route, body, kind)
            assert got[0] == 200 and got[2] == answer[2], (route, got, answer)

    def done(self, answer, parse=None):
        status, body = answer
        assert status == 200, body
        out = self.retrieve(body["request_id"], parse)
        assert not (isinstance(out, dict) and "error" in out), out
        return out


LOSS = dict(format=1, nodes=[
    dict(op="placeholder", name="logprobs", target="logprobs", args=[], kwargs={}),
    dict(op="call_method", name="mean", target="mean", args=[dict(ref="logprobs")], kwargs={}),
    dict(op="output", name="output", target="output", args=[dict(tuple=[dict(ref="mean"), dict(dict={})])], kwargs={})])


def story(wire, tiny):
    """A run with every kind of request: what its weights, samples and lists say at the end."""
    data = [probe_data(tiny.vocab, seed=s) for s in (1, 2, 3)]
    session = wire.session()
    run = wire.model(tiny.name, session)

    def learn(run, seq, data):
        wire.done(wire.forward_backward(run, seq, data), pb.ForwardBackwardOutput)
        wire.done(wire.optim(run, seq + 1))
    learn(run, 1, data[0])
    saved = wire.done(wire.post("save_weights", model_id=run, path="a", seq_id=7, overwrite=False, type="save_weights"))["path"]
    named = wire.done(wire.post("save_weights_for_sampler", model_id=run, path="b", seq_id=8, kind="snapshot",
                                type="save_weights_for_sampler"))["path"]
    ephemeral = wire.done(wire.post("save_weights_for_sampler", model_id=run, sampling_session_seq_id=0, seq_id=12, kind="snapshot",
                                    type="save_weights_for_sampler"))["sampling_session_id"]
    wire.done(wire.post("save_weights_external", model_id=run, path="c", seq_id=13, type="save_weights_external"))
    learn(run, 20, data[1])
    says = [wire.probe(run, 25, probe_data(tiny.vocab))]
    wire.done(wire.post("load_weights", model_id=run, seq_id=30, path=saved, optimizer=True, type="load_weights"))
    learn(run, 31, data[2])
    second = f"{session}:train:3"
    wire.done(wire.post("load_weights", session_id=session, model_seq_id=3, path=saved, optimizer=True, type="load_weights"))
    learn(second, 4, data[2])
    says += [wire.probe(run, 40, probe_data(tiny.vocab)), wire.probe(second, 9, probe_data(tiny.vocab))]
    assert says[1] == says[2] != says[0], "both forms of load_weights continue alike"
    status, body = wire.post("create_sampling_session", session_id=session, sampling_session_seq_id=5, model_path=named,
                             type="create_sampling_session")
    assert status == 200, body
    for n, sampler in ((0, ephemeral), (6, body["sampling_session_id"]), (10 ** 9, body["sampling_session_id"])):
        m = wire.done(wire.post("asample", sampling_session_id=sampler, seq_id=n, num_samples=2, prompt_logprobs=True, type="sample",
                                prompt=dict(chunks=[dict(type="encoded_text", tokens=tiny.encode("once more"))]),
                                sampling_params=dict(max_tokens=6, seed=3, temperature=1.0, stop=[])), pb.SampleResponse)
        says.append(m.prompt_logprobs + b"".join(s.tokens + s.logprobs for s in m.sequences))
    assert says[-1] == says[-2] == says[-3], "the same weights, seed and prompt"
    wire.done(wire.post("create_custom_loss", session_id=session, custom_loss_seq_id=2, name="mean",
                        inputs=[dict(name="logprobs", rank=1)], graph=LOSS, type="create_custom_loss"))
    status, _, raw = wire.send("GET", f"/api/v1/training_runs/{run}/checkpoints")
    listed = json.loads(raw)["checkpoints"]
    assert status == 200 and len(listed) == 3
    return says, sorted(c["checkpoint_id"] for c in listed), run


def test_resending_and_gaps_change_nothing(server, tiny):
    plain, twice = Resending(server.url, 1), Resending(server.url, 2)
    want, got = story(plain, tiny), story(twice, tiny)
    assert got[:2] == want[:2]
    assert {route for route, *_ in twice.sent} == set(FUTURES)
    twice.again()
    probe = twice.probe(got[2], 50, probe_data(tiny.vocab))
    assert probe == plain.probe(want[2], 50, probe_data(tiny.vocab)) == want[0][1]


OTHER = {"create_model": dict(lora_config=dict(rank=8, train_mlp=True, train_attn=True, train_unembed=True)),
         "load_weights": dict(optimizer=False), "optim_step": dict(adam_params=dict(learning_rate=0.5, beta1=0.9, beta2=0.95, eps=1e-12)),
         "save_weights": dict(path="other"), "save_weights_for_sampler": dict(path="other"), "save_weights_external": dict(path="other"),
         "asample": dict(num_samples=3), "create_custom_loss": dict(name="other")}


@pytest.fixture(scope="module")
def told(server):
    """A story that is over: its requests, its run and what the run says."""
    from conftest import make_model
    tiny = make_model("tiny")
    wire = Resending(server.url, 1)
    says, names, run = story(wire, tiny)
    return wire.sent, says, names, run, tiny, itertools.count(100)


def unchanged(url, told):
    wire, (_, says, names, run, tiny, numbers) = Wire(url), told
    assert wire.probe(run, next(numbers), probe_data(tiny.vocab)) == says[1]
    listed = json.loads(wire.send("GET", f"/api/v1/training_runs/{run}/checkpoints")[2])["checkpoints"]
    assert sorted(c["checkpoint_id"] for c in listed) == names


@pytest.mark.parametrize("route", [*OTHER, "create_sampling_session"])
def test_a_number_with_another_body_is_refused(server, told, route):
    wire, seen = Wire(server.url), 0
    for r, body, *_ in told[0]:
        if r == route:
            body = json.loads(body)
            if route in OTHER:
                other = dict(sampling_session_seq_id=77) if "sampling_session_seq_id" in body else OTHER[route]
            else:
                other = dict(model_path=f"tinker://{told[3]}/weights/a")
            answer = wire.post(route, **dict(body, **other))
            raw_user_error(wire, answer, ("number", "seq", "used"))
            seen += 1
    assert seen
    unchanged(server.url, told)


LATE = ("forward_backward", "optim_step", "load_weights", "save_weights", "save_weights_for_sampler", "save_weights_external")


@pytest.mark.parametrize("route", LATE)
def test_a_number_that_comes_too_late_is_refused(server, told, route):
    wire, (_, _, _, run, tiny, _) = Wire(server.url), told
    late = 14 + LATE.index(route)  # in a gap that the run has passed
    body = dict(type=route, model_id=run, seq_id=late)
    if route == "forward_backward":
        answer = wire.forward_backward(run, late, probe_data(tiny.vocab, seed=9))
    elif route == "optim_step":
        answer = wire.optim(run, late)
    elif route == "load_weights":
        answer = wire.post(route, path=f"tinker://{run}/weights/a", optimizer=False, **body)
    else:
        answer = wire.post(route, path="late", **body)
    raw_user_error(wire, answer, str(late), ("late", "number", "seq", "after"), parse=pb.ForwardBackwardOutput if "forward" in route else None)
    unchanged(server.url, told)
