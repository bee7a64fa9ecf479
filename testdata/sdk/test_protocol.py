"""The unmodified SDK against the wire: first steps, repeats, order, lists, samplers."""
import json

import pytest
import tinker
from harness import (Wire, adam, bits, capabilities, datum, forward, get, lora, pb, probe_data, prompt,
                     raw_user_error, sampler_of, scores, sgd, train)
from tinker import types


def test_fr01_stock_client(server, service, model):
    names = [m.model_name for m in capabilities(server).supported_models]
    assert model.name in names
    run = get(service.create_lora_training_client(base_model=model.name, rank=8))
    info = run.get_info()
    assert info.model_data.model_name == model.name and info.is_lora and info.lora_rank == 8
    assert run.model_id == f"{service.holder.get_session_id()}:train:0"
    data = [datum(model.encode("Once upon a time"))]
    out = get(run.forward_backward(data, "cross_entropy"))
    assert "loss:sum" in out.metrics
    for key in out.metrics:
        name, colon, reduction = key.partition(":")
        assert colon and name and reduction in ("mean", "sum", "min", "max", "slack", "hash2", "unique"), key
    assert len(out.loss_fn_outputs) == 1
    assert len(out.loss_fn_outputs[0]["logprobs"].tolist()) == data[0].model_input.length
    get(run.optim_step(adam(1e-3)))
    path = get(run.save_weights_for_sampler("first")).path
    assert path == f"tinker://{run.model_id}/sampler_weights/first"
    sampler = get(service.create_sampling_client(model_path=path))
    assert sampler.get_base_model() == model.name
    res = get(sampler.sample(prompt(model.encode("Once")), 2, types.SamplingParams(max_tokens=5, stop=[])))
    assert len(res.sequences) == 2
    for s in res.sequences:
        assert len(s.tokens) == len(s.logprobs) == 5 and s.stop_reason == "length" and s.sequence_id


def test_fr01_unknown_route(server):
    for path in ("/api/v1/no_such_route", "/nowhere"):
        status, kind, raw = Wire(server.url).send("POST", path, b"{}")
        assert status == 404 and kind.startswith("application/json"), (status, kind)
        assert path.rsplit("/", 1)[1] in json.dumps(json.loads(raw))


def test_fr02_repeats_count_once(server, tiny):
    """Posting forward_backward and optim_step twice equals posting them once, to the bit."""
    wire = Wire(server.url)
    data, ends = probe_data(tiny.vocab, seed=3), []
    for twice in (False, True):
        run = wire.model(tiny.name)
        first = wire.forward_backward(run, 1, data)
        assert first[0] == 200, first
        if twice:
            again = wire.forward_backward(run, 1, data)
            assert again[0] == 200 and again[1]["request_id"] == first[1]["request_id"]
        wire.retrieve(first[1]["request_id"], pb.ForwardBackwardOutput)
        if twice:  # and after it ran
            again = wire.forward_backward(run, 1, data)
            assert again[0] == 200 and again[1]["request_id"] == first[1]["request_id"]
        step = wire.optim(run, 2)
        assert step[0] == 200, step
        wire.retrieve(step[1]["request_id"])
        if twice:
            again = wire.optim(run, 2)
            assert again[0] == 200 and again[1]["request_id"] == step[1]["request_id"]
            assert "error" not in wire.retrieve(again[1]["request_id"])
        ends.append(wire.probe(run, 3, probe_data(tiny.vocab)))
        if twice:  # the same number with another body is the user's mistake
            raw_user_error(wire, wire.forward_backward(run, 1, probe_data(tiny.vocab, seed=4)),
                           parse=pb.ForwardBackwardOutput)
            raw_user_error(wire, wire.optim(run, 2, learning_rate=0.5))
            assert wire.probe(run, 4, probe_data(tiny.vocab)) == ends[-1]
    assert ends[0] == ends[1]


def test_repeat_of_create_model(server, tiny):
    wire = Wire(server.url)
    session = wire.session()
    body = dict(session_id=session, model_seq_id=0, base_model=tiny.name, type="create_model",
                optimizer_config=dict(type="adamw"),
                lora_config=dict(rank=4, train_mlp=True, train_attn=True, train_unembed=True))
    a, b = wire.post("create_model", **body), wire.post("create_model", **body)
    assert a[0] == b[0] == 200 and a[1]["request_id"] == b[1]["request_id"]
    assert wire.retrieve(a[1]["request_id"])["model_id"] == wire.retrieve(a[1]["request_id"])["model_id"]


def test_gaps_are_normal_and_old_numbers_refused(server, tiny):
    wire = Wire(server.url)
    run, data = wire.model(tiny.name), probe_data(tiny.vocab)
    wire.probe(run, 5, data)
    assert wire.probe(run, 9, data) == wire.probe(run, 12, data)
    raw_user_error(wire, wire.forward_backward(run, 7, data), parse=pb.ForwardBackwardOutput)
    wire.probe(run, 13, data)


def test_client_config_and_heartbeat(server):
    wire = Wire(server.url)
    status, config = wire.post("client/config", sdk_version="0.38.0")
    assert status == 200 and config.get("parallel_fwdbwd_chunks") is False
    assert config["pjwt_auth_enabled"] is True and config["custom_loss_server_side"] is True
    assert config["sample_use_retrieve_futures"] is True and config["sample_join_sampling_session"] is True
    assert config["proto_compress_fwdbwd"] is False  # this client is on the server's machine
    assert wire.post("client/dynamic_config", sdk_version="0.38.0")[1]["sample_cancel_enabled"] is True
    session = wire.session()
    assert "/" not in session
    assert wire.post("session_heartbeat", session_id=session, type="session_heartbeat")[0] == 200


def test_pending_result_is_held(server):
    """An unknown request id is final at once, never an endless wait nor a 5xx."""
    status, body = Wire(server.url).post("retrieve_future", request_id="nonsense", allow_metadata_only=False)
    assert status in (200, 404, 410), (status, body)
    if status == 200:
        assert body["category"] == "user"


def test_many_chunks(server, service, tiny):
    """More than 1,024 data travel as several requests; outputs in order, losses summed."""
    run = lora(service, tiny.name)
    data = [datum([3 + (i * 7 + j) % 250 for j in range(4)]) for i in range(1100)]
    out = get(run.forward_backward(data, "cross_entropy"))
    assert len(out.loss_fn_outputs) == 1100
    few = forward(run, [data[0], data[1023], data[1024], data[1099]])
    for got, i in zip(few, (0, 1023, 1024, 1099)):
        assert bits(out.loss_fn_outputs[i]["logprobs"].tolist()) == got.tobytes(), i


def test_runs_and_checkpoints_are_listed(server, service, tiny):
    rest = server.rest()
    run = lora(service, tiny.name, rank=4)
    train(run, [datum(tiny.encode("listed"))], 1)
    a = get(run.save_state("one")).path
    b = get(run.save_weights_for_sampler("two")).path
    assert a == f"tinker://{run.model_id}/weights/one"
    listed = get(rest.list_checkpoints(run.model_id)).checkpoints
    assert {c.tinker_path: c.checkpoint_type for c in listed} == {a: "training", b: "sampler"}
    assert {c.checkpoint_id for c in listed} == {"weights/one", "sampler_weights/two"}
    got = get(rest.get_training_run_by_tinker_path(a))
    assert got.training_run_id == run.model_id and got.base_model == tiny.name
    assert got.is_lora and got.lora_rank == 4
    runs = get(rest.list_training_runs(limit=100))
    assert run.model_id in [r.training_run_id for r in runs.training_runs]
    assert runs.cursor.total_count >= len(runs.training_runs)


def test_same_name_again(service, tiny):
    run = lora(service, tiny.name)
    get(run.save_state("again"))
    with pytest.raises((tinker.RequestFailedError, tinker.APIStatusError)) as e:
        get(run.save_state("again"))
    assert getattr(e.value, "status_code", 400) != 409
    get(run.save_state("again", overwrite=True))


def test_unload_twice_is_fine(server, tiny):
    wire = Wire(server.url)
    run = wire.model(tiny.name)
    for _ in range(2):
        status, body = wire.post("unload_model", model_id=run, type="unload_model")
        assert status == 200, body
        if "request_id" in body:
            assert "error" not in wire.retrieve(body["request_id"])


# Samplers.

def test_sampler_keeps_its_snapshot(service, model):
    """A sampler made before optim_step answers the same bits after it; one made after does not."""
    run = lora(service, model.name)
    data = [datum(model.encode("Once upon a time there was"))]
    train(run, data, 1)
    before, tokens = sampler_of(run), model.encode("Once upon a time")

    def ask(s):
        r = get(s.sample(prompt(tokens), 2, types.SamplingParams(max_tokens=12, seed=3, stop=[])))
        return bits(scores(s, tokens)), [(q.tokens, bits(q.logprobs)) for q in r.sequences]
    first = ask(before)
    train(run, data, 2)
    assert ask(before) == first
    assert ask(sampler_of(run)) != first


def test_base_sampler_beside_a_run(service, model):
    """Base and fresh adapter are the same bits; training moves the adapter and not the base."""
    tokens = model.encode("Lily and Tom went to the park.")
    base = get(service.create_sampling_client(base_model=model.name))
    run = lora(service, model.name)
    start = scores(base, tokens)
    assert bits(start) == bits(scores(sampler_of(run), tokens))
    assert bits(start) == bits(forward(run, [datum(tokens)])[0])
    train(run, [datum(tokens)], 3)
    assert bits(scores(base, tokens)) == bits(start)
    assert bits(scores(sampler_of(run), tokens)) != bits(start)


def test_base_is_right(service, tiny, tiny_weights):
    """The tiny model's log-probabilities against a forward pass in numpy."""
    import numpy as np
    import tiny_model
    for n in (2, 17, tiny.context - 1):
        tokens = [tiny_model.BOS] + [3 + (i * 37) % 256 for i in range(n - 1)]
        got = scores(get(service.create_sampling_client(base_model=tiny.name)), tokens)
        want = tiny_model.logprobs(tiny_weights, tokens)[np.arange(n - 1), tokens[1:]]
        assert np.abs(got - want).max() < 1e-4


def test_own_weights_while_training(server, service, folders, tiny):
    """A model added while a run goes on; the run is not disturbed and the model can be used at once."""
    run = lora(service, tiny.name)
    f = [run.forward_backward(probe_data(tiny.vocab, 8), "cross_entropy") for _ in range(5)]
    server.add_model("late", folders["tiny"])
    assert len({bits(get(x).loss_fn_outputs[0]["logprobs"].tolist()) for x in f}) == 1
    names = [m.model_name for m in capabilities(server).supported_models]
    assert "local/late" in names
    tokens = tiny.encode("late")
    late = get(service.create_sampling_client(base_model="local/late"))
    base = get(service.create_sampling_client(base_model=tiny.name))
    assert bits(scores(late, tokens)) == bits(scores(base, tokens))
    assert "late" in server.cli("model", "list").stdout
    listed = json.loads(server.cli("model", "list", "--json").stdout)
    assert "local/late" in json.dumps(listed)
    assert "llama" in server.cli("model", "show", "local/late").stdout
    assert server.cli("model", "show", "local/absent", check=False).returncode == 3


def test_sgd_helper_moves_by_the_gradient(service, tiny):
    """Two rates far apart: the loss changes in proportion, which the gradient tests rely on."""
    data, drops = [datum(tiny.encode("proportional"))], []
    for rate in (1e-4, 2e-4):
        run = lora(service, tiny.name)
        start = get(run.forward_backward(data, "cross_entropy")).metrics["loss:sum"]
        get(run.optim_step(sgd(rate)))
        drops.append(start - get(run.forward(data, "cross_entropy")).metrics["loss:sum"])
    assert drops[0] > 0 and 1.8 < drops[1] / drops[0] < 2.2, drops
