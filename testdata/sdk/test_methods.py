"""Every public method of the SDK's clients, with values; the last test counts them.

What is called is recorded, not declared: each method of the classes is wrapped, and a call from these
tests counts once it came back. A method of the installed SDK that is neither called nor in HOSTED fails the count.

    python test_methods.py tokenizer|custom URL MODEL     the calls that need another environment: transformers
                                                          with HF_ENDPOINT set, torch; prints one JSON object
"""
import asyncio
import functools
import inspect
import json
import logging
import os
import subprocess
import sys
import urllib.request
import warnings
from datetime import datetime, timedelta, timezone
from pathlib import Path

import numpy as np
import pytest
import tinker
import tiny_model
from harness import (HERE, KEY, WAIT, adam, bits, datum, forward, get, lora, probe, probe_data, prompt, same_sdk, sampler_of,
                     scores, user_error, values)
from tinker import types

CLIENTS = ("ServiceClient", "TrainingClient", "SamplingClient", "RestClient", "AdminClient")
CONSOLE = "https://tinker.thinkingmachines.ai/"
HOSTED = {"ServiceClient.get_console_url": "answers a page of the hosted console, whatever the base URL",
          "TrainingClient.get_console_url": "answers a page of the hosted console, whatever the base URL"}
LOSS = 2e-3  # of a loss of about 200, float32 against float64
TEXT = "every method, once"


def public_methods():
    """Class.name of every public method of the installed SDK."""
    return {f"{c}.{n}" for c in CLIENTS if hasattr(tinker, c) for n in dir(getattr(tinker, c))
            if not n.startswith("_") and callable(getattr(getattr(tinker, c), n))}


def recording(called):
    """Wraps every public method to note its calls from this folder; gives what undoes it."""
    undo = []

    def wrap(cls, name):
        raw = inspect.getattr_static(cls, name)
        fn = raw.__func__ if isinstance(raw, staticmethod) else raw

        @functools.wraps(fn)
        def noted(*args, **kw):
            ours = os.path.dirname(os.path.abspath(sys._getframe(1).f_code.co_filename)) == str(HERE)
            out = fn(*args, **kw)
            if not inspect.iscoroutine(out):
                if ours:
                    called.add(f"{cls.__name__}.{name}")
                return out

            async def finish():
                answer = await out
                if ours:
                    called.add(f"{cls.__name__}.{name}")
                return answer
            return finish()
        undo.append((cls, name, raw, name in vars(cls)))
        setattr(cls, name, staticmethod(noted) if isinstance(raw, staticmethod) else noted)

    for full in sorted(public_methods()):
        cls, name = full.split(".")
        wrap(getattr(tinker, cls), name)

    def restore():
        for cls, name, raw, own in undo:
            setattr(cls, name, raw) if own else delattr(cls, name)
    return restore


def wait(coroutine):
    """The answer of an _async method; some answer a future of the answer."""
    async def go():
        out = await asyncio.wait_for(coroutine, WAIT)
        return await asyncio.wait_for(out, WAIT) if inspect.isawaitable(out) else out
    return asyncio.run(go())


@pytest.fixture(scope="module", autouse=True)
def called():
    names = set()
    restore = recording(names)
    yield names
    restore()


@pytest.fixture(scope="module")
def rest(server):
    return server.rest()


@pytest.fixture(scope="module")
def admin(server):
    return tinker.AdminClient(base_url=server.url, api_key=KEY)


@pytest.fixture(scope="module")
def boss(server):
    """A service client that says everything about itself."""
    c = tinker.ServiceClient(base_url=server.url, api_key=KEY, project_id="suite", display_name="Every Method Once",
                             user_metadata={"suite": "methods"})
    yield c
    get(c.close("success", detail="all called"))


@pytest.fixture(scope="module")
def trained(boss):
    """A run after two steps, with a training and a sampler checkpoint, and what it says then."""
    run = get(boss.create_lora_training_client(base_model="test/tiny", rank=4, seed=11, user_metadata={"run": "trained"}))
    for _ in range(2):
        f, o = run.forward_backward(pair(), "cross_entropy"), run.optim_step(adam(1e-2))
        get(f), get(o)
    run.state = get(run.save_state("state", user_metadata={"step": "2"})).path
    run.weights = get(run.save_weights_for_sampler("weights", user_metadata={"for": "sampling"})).path
    run.says = probe(run, tiny_model.VOCAB)
    return run


def pair():
    return [datum([tiny_model.BOS] + tiny_model.encode(t)) for t in (TEXT, "and again, with a value")]


def tokens():
    return [tiny_model.BOS] + tiny_model.encode(TEXT)


def step(run):
    """One more optimiser step, and what the run says after it."""
    f, o = run.forward_backward(pair(), "cross_entropy"), run.optim_step(adam(1e-2))
    get(f), get(o)
    return probe(run, tiny_model.VOCAB)


def base_scores(weights, ids):
    return tiny_model.logprobs(weights, ids)[np.arange(len(ids) - 1), ids[1:]]


# ServiceClient.

def test_service_creates(boss, server, tiny_weights):
    want = base_scores(tiny_weights, tokens())
    a = get(boss.create_lora_training_client(base_model="test/tiny", rank=3, seed=1, train_mlp=False))
    b = wait(boss.create_lora_training_client_async("test/tiny", rank=3, seed=1, train_mlp=False))
    session = boss.holder.get_session_id()
    for run in (a, b):
        assert run.model_id.startswith(session + ":train:")
        assert run.get_info().lora_rank == 3 and np.abs(forward(run, [datum(tokens())])[0] - want).max() < 1e-4
    assert a.model_id != b.model_id
    assert step(a) == step(b), "the same seed and the same steps are the same bits"
    c = get(boss.create_sampling_client(base_model="test/tiny"))
    d = wait(boss.create_sampling_client_async(base_model="test/tiny"))
    assert np.abs(scores(c, tokens()) - want).max() < 1e-4 and bits(scores(c, tokens())) == bits(scores(d, tokens()))


def test_service_capabilities(boss, server):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for out in (boss.get_server_capabilities(), wait(boss.get_server_capabilities_async()),
                    *([get(server.rest().get_server_capabilities())] if hasattr(tinker.RestClient, "get_server_capabilities") else [])):
            tiny = {m.model_name: m for m in out.supported_models}["test/tiny"]
            if hasattr(tiny, "max_context_length"):
                assert tiny.max_context_length == tiny_model.CONTEXT
            assert getattr(tiny, "trainable", True) is True and getattr(tiny, "sampleable", True) is True


def test_service_from_state(boss, trained):
    """Both forms give the weights to the bit; with the optimiser the next step too, without it another."""
    fresh = [get(boss.create_training_client_from_state(trained.state, user_metadata={"from": "state"})),
             wait(boss.create_training_client_from_state_async(trained.state))]
    exact = [get(boss.create_training_client_from_state_with_optimizer(trained.state)),
             wait(boss.create_training_client_from_state_with_optimizer_async(trained.state))]
    for run in fresh + exact:
        assert run.get_info().lora_rank == 4 and run.model_id != trained.model_id
        assert probe(run, tiny_model.VOCAB) == trained.says
    a, b, c, d = map(step, fresh + exact)
    assert a == b and c == d and a != c
    assert step(get(boss.create_training_client_from_state_with_optimizer(trained.state))) == c


def test_service_copies(boss, trained, rest):
    path = get(boss.copy_weights(trained.state, ttl_seconds=7200))
    run, kind, name = path.removeprefix("tinker://").split("/")
    assert (kind, name) == ("weights", "state") and run != trained.model_id
    assert probe(get(boss.create_training_client_from_state(path)), tiny_model.VOCAB) == trained.says
    (listed,) = get(rest.list_checkpoints(run)).checkpoints
    assert listed.tinker_path == path and listed.expires_at is not None


def test_service_the_rest(server, rest):
    c = tinker.ServiceClient(base_url=server.url, api_key=KEY)
    assert c.get_console_url().startswith(CONSOLE + "sessions")
    session = c.holder.get_session_id()
    assert c.get_console_url() == f"{CONSOLE}sessions/{session}"
    assert c.get_telemetry() is None, "TINKER_TELEMETRY=0 is set"
    assert get(c.create_rest_client().get_session(session)).training_run_ids == []
    assert get(c.close("errored", detail="on purpose")) is None
    (found,) = get(rest.search_sessions(types.SessionSearchRequest(session_id=session))).sessions
    assert found.status.type == "client_finished" and found.status.reason.type == "errored"


# TrainingClient.

def test_training_passes(boss, tiny_weights):
    """The loss of a fresh adapter is the base's by numpy; both forms of every pass give the same bits."""
    want = [base_scores(tiny_weights, d.model_input.to_ints() + [d.loss_fn_inputs["target_tokens"].tolist()[-1]]) for d in pair()]
    runs = [get(boss.create_lora_training_client(base_model="test/tiny", rank=4, seed=2)) for _ in range(2)]
    outs = [get(runs[0].forward(pair(), "cross_entropy")), wait(runs[1].forward_async(pair(), "cross_entropy")),
            get(runs[0].forward_backward(pair(), "cross_entropy")), wait(runs[1].forward_backward_async(pair(), "cross_entropy"))]
    for out in outs:
        assert abs(out.metrics["loss:sum"] + sum(w.sum() for w in want)) < LOSS
        for got, w in zip(values(out), want):
            assert np.abs(got - w).max() < 1e-4
    steps = [get(runs[0].optim_step(adam(1e-2))), wait(runs[1].optim_step_async(adam(1e-2)))]
    assert steps[0].metrics == steps[1].metrics and all(np.isfinite(v) for v in (steps[0].metrics or {}).values())
    says = [probe(r, tiny_model.VOCAB) for r in runs]
    assert says[0] == says[1]
    after = get(runs[0].forward(pair(), "cross_entropy")).metrics["loss:sum"]
    assert after < outs[0].metrics["loss:sum"] - 1, "a step along the gradient"


def test_training_saves(boss, trained, rest):
    run = trained
    a = get(run.save_state("one", ttl_seconds=3600, user_metadata={"a": "1"})).path
    b = wait(run.save_state_async("two", overwrite=True)).path
    c = get(run.save_weights_for_sampler("three", ttl_seconds=86400)).path
    d = wait(run.save_weights_for_sampler_async("four", user_metadata={"d": "4"})).path
    stem = f"tinker://{run.model_id}/"
    assert [a, b, c, d] == [stem + "weights/one", stem + "weights/two", stem + "sampler_weights/three", stem + "sampler_weights/four"]
    listed = {x.tinker_path: x for x in get(rest.list_checkpoints(run.model_id)).checkpoints}
    assert listed[a].user_metadata == {"a": "1"} and listed[d].user_metadata == {"d": "4"}
    for path, life in ((a, 3600), (c, 86400)):
        assert abs((listed[path].expires_at - listed[path].time).total_seconds() - life) < 5
    assert listed[b].expires_at is None and listed[b].size_bytes > 0 and listed[b].public is False
    want = forward(run, [datum(tokens())])[0]
    kind = {"kind": "inflight"} if "kind" in inspect.signature(run.save_weights_and_get_sampling_client).parameters else {}
    for path, client in ((c, get(run.create_sampling_client(c))), (d, wait(run.create_sampling_client_async(d))),
                         ("now", get(run.save_weights_and_get_sampling_client())),
                         ("inflight", wait(run.save_weights_and_get_sampling_client_async(**kind)))):
        assert bits(scores(client, tokens())) == bits(want), path


def test_training_loads(boss, trained):
    def fresh():
        return get(boss.create_lora_training_client(base_model="test/tiny", rank=4, seed=77))
    exact = step(get(boss.create_training_client_from_state_with_optimizer(trained.state)))
    for load, optimizer in ((lambda r: get(r.load_state(trained.state)), False),
                            (lambda r: wait(r.load_state_async(trained.state)), False),
                            (lambda r: get(r.load_state_with_optimizer(trained.state)), True),
                            (lambda r: wait(r.load_state_with_optimizer_async(trained.state)), True)):
        run = fresh()
        assert probe(run, tiny_model.VOCAB) != trained.says
        load(run)
        assert probe(run, tiny_model.VOCAB) == trained.says
        assert (step(run) == exact) is optimizer


def merged(weights, config, adapter):
    """The base's weights with an exported adapter put in, as PEFT does."""
    out, scale = dict(weights), config["lora_alpha"] / config["r"]
    for key, a in adapter.items():
        if key.endswith(".lora_A.weight"):
            module = key.removeprefix("base_model.model.").removesuffix(".lora_A.weight")
            b = adapter[key.replace("lora_A", "lora_B")]
            out[module + ".weight"] = weights[module + ".weight"] + scale * (b @ a).astype(np.float32)
    return out


def test_training_exports(trained, rest, tiny_weights):
    """The exported files, merged into the base in numpy, say what the run says."""
    from safetensors.numpy import load
    plain = get(trained.save_weights_external("plain", ttl_seconds=3600)).path
    assert plain == f"tinker://{trained.model_id}/external_weights/plain"
    urls = get(rest.get_external_weights_urls(plain))
    again = wait(rest.get_external_weights_urls_async(plain))
    assert set(urls.urls) == set(again.urls) >= {"adapter_config.json", "adapter_model.safetensors"}
    assert urls.expires > datetime.now(timezone.utc) + timedelta(minutes=5)
    files = {name: urllib.request.urlopen(u, timeout=WAIT).read() for name, u in urls.urls.items()}
    config = json.loads(files["adapter_config.json"])
    assert config["r"] == 4 and config["peft_type"] == "LORA" and config["base_model_name_or_path"] == "test/tiny"
    got = base_scores(merged(tiny_weights, config, load(files["adapter_model.safetensors"])), tokens())
    assert np.abs(got - forward(trained, [datum(tokens())])[0]).max() < 1e-3
    recipient = "age1ql3z7hjy54pw3hyww5ayyfg7zqgvc7w3j2elw8zmrj2kg5sfn9aqmcac8p"
    sealed = wait(trained.save_weights_external_async("sealed", age_encryption_recipients=[recipient])).path
    urls = get(rest.get_external_weights_urls(sealed)).urls
    assert set(urls) == {name + ".age" for name in files}
    for name, u in urls.items():
        body = urllib.request.urlopen(u, timeout=WAIT).read()
        assert body.startswith(b"age-encryption.org/v1\n-> X25519 ") and len(body) > len(files[name.removesuffix(".age")])
    user_error(lambda: get(trained.save_weights_external("bad", age_encryption_recipients=["age1nonsense"])), "recipient")


def test_training_says_what_it_is(trained):
    for info in (trained.get_info(), wait(trained.get_info_async())):
        assert info.model_id == trained.model_id and info.is_lora and info.lora_rank == 4
        assert info.model_data.model_name == "test/tiny"
    assert trained.get_console_url() == f"{CONSOLE}training_runs/{trained.model_id}"
    assert trained.get_telemetry() is None


# SamplingClient.

def test_sampling(trained):
    s = sampler_of(trained)
    want = forward(trained, [datum(tokens())])[0]
    params = types.SamplingParams(max_tokens=7, seed=5, stop=[])
    a = get(s.sample(prompt(tokens()), 2, params, include_prompt_logprobs=True, topk_prompt_logprobs=3))
    b = wait(s.sample_async(prompt(tokens()), 2, params))
    assert [q.tokens for q in a.sequences] == [q.tokens for q in b.sequences]
    assert [bits(q.logprobs) for q in a.sequences] == [bits(q.logprobs) for q in b.sequences]
    assert bits(a.prompt_logprobs[1:]) == bits(want) and b.prompt_logprobs is None
    assert all(len(row) == 3 and row[0][1] >= row[1][1] >= row[2][1] for row in a.topk_prompt_logprobs[1:])
    full = [*tokens(), *a.sequences[0].tokens]
    assert bits(forward(trained, [datum(full)])[0][-7:]) == bits(a.sequences[0].logprobs)
    assert bits(wait(s.compute_logprobs_async(prompt(tokens())))[1:]) == bits(want)
    last = get(s.compute_logprobs(prompt(tokens()), prompt_logprobs_last_n=3))
    assert last[:-3] == [None] * (len(tokens()) - 3) and bits(last[-3:]) == bits(want[-3:])


def test_sampling_client_made_and_remade(boss, trained, caplog):
    s = get(tinker.SamplingClient.create(boss.holder, model_path=trained.weights))
    want = bits(forward(trained, [datum(tokens())])[0])
    handle = s.get_sampler_handle()
    assert KEY not in handle
    for client in (s, tinker.SamplingClient.from_sampler_handle(handle, api_key=KEY),
                   tinker.SamplingClient.from_sampler_handle(handle, api_key=KEY)):
        assert bits(scores(client, tokens())) == want
        assert client.get_base_model() == wait(client.get_base_model_async()) == "test/tiny"
        assert client.get_telemetry() is None
    from tinker.lib.api_future_impl import QueueState
    with caplog.at_level(logging.WARNING):
        s.on_queue_state_change(QueueState.ACTIVE, "nothing to say")
        assert not caplog.messages
        s.on_queue_state_change(QueueState.PAUSED_CAPACITY, "the queue is full")
    assert "the queue is full" in caplog.text


def elsewhere(python, what, server, called, **env):
    """The calls of main() below in another environment; its answers, its calls counted."""
    p = subprocess.run([python, __file__, what, server.url, "test/tiny"], capture_output=True, text=True, timeout=240,
                       env=dict(os.environ, TINKER_TELEMETRY="0", **env))
    assert p.returncode == 0, p.stdout + p.stderr[-4000:]
    out = json.loads(p.stdout.splitlines()[-1])
    assert out["sdk"] == os.path.realpath(tinker.__file__) or "PYTHONPATH" not in env
    called |= set(out["called"])
    return out


def test_tokenizers(server, called, tmp_path):
    """By the server's own hub, as HF_ENDPOINT."""
    out = elsewhere(sys.executable, "tokenizer", server, called, HF_ENDPOINT=server.url, HF_HUB_OFFLINE="0", HF_TOKEN=KEY,
                    HF_HOME=str(tmp_path), TOKENIZERS_PARALLELISM="false")
    assert out["training"] == out["sampling"] == tiny_model.encode("hello")


def test_custom_losses(server, called, torch_python, tmp_path):
    """A user's cross-entropy has the built-in one's loss and moves the weights as it does: to the bit where the SDK computes it."""
    out = elsewhere(torch_python, "custom", server, called, PYTHONPATH=same_sdk(tmp_path))
    for name in ("plain", "plain_async", "handle", "handle_async"):
        assert abs(out[name]["loss:sum"] - out["loss"]) < LOSS, name
    assert out["plain"]["half"] == out["plain_async"]["half"] == out["plain"]["loss:sum"] / 2
    assert abs(out["handle"]["custom/tokens:sum"] - 18) < 1e-3 and out["handle"] == out["handle_async"]
    assert out["same"]["plain"] and out["same"]["plain_async"] and out["near"]["handle"] < 1e-4 and out["near"]["handle_async"] < 1e-4


# RestClient.

def test_rest_runs(rest, boss, trained):
    for run in (get(rest.get_training_run(trained.model_id)), wait(rest.get_training_run_async(trained.model_id)),
                get(rest.get_training_run_by_tinker_path(trained.state)), wait(rest.get_training_run_by_tinker_path_async(trained.weights))):
        assert (run.training_run_id, run.base_model, run.is_lora, run.lora_rank) == (trained.model_id, "test/tiny", True, 4)
        assert run.user_metadata == {"run": "trained"} and not run.corrupted
        assert run.last_checkpoint is not None and run.last_sampler_checkpoint is not None
    for out in (get(rest.list_training_runs(limit=200)), wait(rest.list_training_runs_async(limit=200))):
        ids = [r.training_run_id for r in out.training_runs]
        assert trained.model_id in ids and out.cursor.total_count >= len(ids) == len(set(ids))
    one = get(rest.list_training_runs(limit=1, offset=1, project_id="suite"))
    assert len(one.training_runs) == 1 and one.cursor.offset == 1 and one.cursor.limit == 1
    assert one.training_runs[0].training_run_id.startswith(boss.holder.get_session_id())
    info = get(rest.get_weights_info_by_tinker_path(trained.state))
    assert info.base_model == "test/tiny" and info.is_lora and info.lora_rank == 4 and info.train_mlp and info.train_attn


def test_rest_checkpoints(rest, trained):
    for out in (get(rest.list_checkpoints(trained.model_id)), wait(rest.list_checkpoints_async(trained.model_id)),
                get(rest.list_user_checkpoints(limit=500)), wait(rest.list_user_checkpoints_async(limit=500))):
        by_path = {c.tinker_path: c for c in out.checkpoints}
        assert by_path[trained.state].checkpoint_id == "weights/state" and by_path[trained.state].checkpoint_type == "training"
        assert by_path[trained.weights].checkpoint_type == "sampler" and by_path[trained.state].user_metadata == {"step": "2"}
    times = [c.time for c in get(rest.list_user_checkpoints(limit=500)).checkpoints]
    assert times == sorted(times, reverse=True), "newest first"

    def seen(path):
        return {c.tinker_path: c for c in get(rest.list_checkpoints(trained.model_id)).checkpoints}.get(path)
    for publish, unpublish in ((lambda: get(rest.publish_checkpoint_from_tinker_path(trained.state)),
                                lambda: get(rest.unpublish_checkpoint_from_tinker_path(trained.state))),
                               (lambda: wait(rest.publish_checkpoint_from_tinker_path_async(trained.state)),
                                lambda: wait(rest.unpublish_checkpoint_from_tinker_path_async(trained.state)))):
        publish()
        assert seen(trained.state).public is True
        unpublish()
        assert seen(trained.state).public is False
    for life, ttl in ((7200, lambda: get(rest.set_checkpoint_ttl_from_tinker_path(trained.state, 7200))),
                      (None, lambda: wait(rest.set_checkpoint_ttl_from_tinker_path_async(trained.state, None)))):
        began = datetime.now(timezone.utc)
        ttl()
        at = seen(trained.state).expires_at
        assert at is None if life is None else abs((at - began).total_seconds() - life) < 5
    deletes = [lambda i: get(rest.delete_checkpoint(trained.model_id, i)), lambda i: wait(rest.delete_checkpoint_async(trained.model_id, i)),
               lambda i: get(rest.delete_checkpoint_from_tinker_path(f"tinker://{trained.model_id}/{i}")),
               lambda i: wait(rest.delete_checkpoint_from_tinker_path_async(f"tinker://{trained.model_id}/{i}"))]
    for n, delete in enumerate(deletes):
        path = get(trained.save_state(f"gone-{n}")).path
        assert seen(path)
        delete(f"weights/gone-{n}")
        assert seen(path) is None
        delete(f"weights/gone-{n}")  # a repeat is no error
        user_error(lambda p=path: get(trained.create_sampling_client(p)), f"gone-{n}")
    user_error(lambda: get(rest.delete_checkpoint("never-was:train:0", "weights/x")), "never-was")


def test_rest_copies(rest, trained, boss):
    for path in (get(rest.copy_weights(trained.weights, "elsewhere")),
                 wait(rest.copy_weights_async(trained.weights, destination_project_id="elsewhere", ttl_seconds=3600))):
        assert path.endswith("/sampler_weights/weights") and trained.model_id not in path
        assert bits(scores(get(boss.create_sampling_client(model_path=path)), tokens())) == bits(forward(trained, [datum(tokens())])[0])
        run = path.removeprefix("tinker://").split("/")[0]
        assert run in [r.training_run_id for r in get(rest.list_training_runs(limit=100, project_id="elsewhere")).training_runs]
    user_error(lambda: get(rest.copy_weights(f"tinker://{trained.model_id}/weights/never-was", "elsewhere")), "never-was")


def test_rest_sessions(rest, server, boss, trained):
    id = boss.holder.get_session_id()
    for s in (get(rest.get_session(id)), wait(rest.get_session_async(id))):
        assert trained.model_id in s.training_run_ids and s.user_metadata == {"suite": "methods"} and s.display_name == "Every Method Once"
    for out in (get(rest.list_sessions(limit=200)), wait(rest.list_sessions_async(limit=200))):
        assert id in out.sessions
    other = server.client()
    session = other.holder.get_session_id()
    assert get(rest.list_sessions(limit=1)).sessions == [session], "newest first"
    for project, assign in (("first", lambda p: get(rest.assign_session_project(session, p))),
                            ("second", lambda p: wait(rest.assign_session_project_async(session, p)))):
        assign(project)
        (found,) = get(rest.search_sessions(types.SessionSearchRequest(project_ids=[project]))).sessions
        assert found.session_id == session and found.project_id == project and found.status.type == "active"
    found = get(rest.search_sessions(types.SessionSearchRequest(display_name="once METHOD", user_metadata={"suite": "methods"}))).sessions
    assert [s.session_id for s in found] == [id] and found[0].checkpoints_count >= 2 and found[0].project_id == "suite"
    page, ids = types.SessionSearchRequest(limit=1), []
    while len(ids) < 3:
        out = get(rest.search_sessions(page))
        ids += [s.session_id for s in out.sessions]
        page = types.SessionSearchRequest(limit=1, cursor=out.next_cursor)
    assert len(set(ids)) == 3 and ids[0] == session
    if hasattr(tinker.RestClient, "search_sessions_async"):
        assert wait(rest.search_sessions_async(types.SessionSearchRequest(session_id=id))).sessions[0].session_id == id
    get(other.close("success"))


def test_rest_samplers(rest, boss, trained):
    get(boss.create_sampling_client(model_path=trained.weights))
    ids = get(rest.get_session(boss.holder.get_session_id())).sampler_ids
    assert ids
    known = [get(rest.get_sampler(i)) for i in ids]
    assert [k.sampler_id for k in known] == ids and {k.base_model for k in known} == {"test/tiny"}
    assert trained.weights in [k.model_path for k in known]
    assert wait(rest.get_sampler_async(ids[0])) == known[0]


def test_rest_trace(rest, boss, trained):
    """A timeline of what ran, for Perfetto, by a URL that needs no key."""
    id = boss.holder.get_session_id()
    for url in (get(rest.export_session_trace(id)), wait(rest.export_session_trace_async(id))):
        events = json.loads(urllib.request.urlopen(url, timeout=WAIT).read())["traceEvents"]
        names = {e["name"] for e in events}
        assert {"queue", "forward", "backward", "optimizer", "sample", "save"} <= names, names
        assert all(e["ts"] >= 0 and e["dur"] >= 0 for e in events if e["ph"] == "X")
    user_error(lambda: get(rest.export_session_trace("no-such-session")), "no-such-session")


def test_rest_whoami(rest):
    me = get(rest.whoami())
    assert me.user_urn.startswith("tml:") and me.org_urn.startswith("tml:organization:") and "@" in me.email
    assert rest.get_telemetry() is None


# AdminClient, and its methods as RestClient still has them.

def test_admin(rest, admin, trained):
    """The log's _async form runs in the SDK's own loop: 0.36 has it work in no other."""
    now = datetime.now(timezone.utc)
    since = (now - timedelta(hours=2)).replace(minute=0, second=0, microsecond=0)
    until = since + timedelta(hours=4)
    audits, bills, stores = [], [], []
    for c in (admin, rest):
        audits += [get(c.get_audit_log("checkpoints")), get(c.holder.run_coroutine_threadsafe(c.get_audit_log_async("checkpoints", day=now.date())))]
        bills += [get(c.get_billing_usage(since, until)), wait(c.get_billing_usage_async(since.isoformat(), until))]
        stores += [get(c.get_current_checkpoint_storage_usage("suite")), wait(c.get_current_checkpoint_storage_usage_async())]
    for out in audits:
        made = [e for e in out.entries if e.event == "checkpoint_create" and e.event_details.get("tinker_path") == trained.state]
        assert len(made) == 1 and abs((now - made[0].timestamp).total_seconds()) < 600
        assert all(e.event.startswith("checkpoint_") for e in out.entries)
    assert get(admin.get_audit_log("all", day=now.date() - timedelta(days=400))).entries == []
    for out in bills:
        kinds = {e.event_info.type for e in out.data}
        assert {"training", "sampling_prefill", "sampling_sample"} <= kinds, kinds
        assert all(not e.estimated_cost_usd and since <= e.bucket_start < e.bucket_end <= until for e in out.data)
        ours = [e.event_info.token_count for e in out.data if e.event_info.type == "training" and e.session_id == trained.model_id.split(":")[0]]
        assert sum(ours) >= 2 * sum(d.model_input.length for d in pair())
        assert out.sessions[trained.model_id.split(":")[0]].user_metadata == {"suite": "methods"}
    for out in stores:
        item = {i.project_id: i for i in out.data}["suite"]
        assert item.checkpoint_count >= 2 and item.size_bytes > 0 and abs(item.size_gigabytes * 1e9 - item.size_bytes) < item.size_bytes * 0.1
    assert [i.project_id for i in stores[0].data] == ["suite"]
    assert admin.get_telemetry() is None


def test_every_public_method_is_called(called, request, capsys, pytestconfig):
    ran = [i.name for i in request.session.items if i.fspath == request.node.fspath]
    if len(ran) != sum(n.startswith("test_") for n in globals()):
        pytest.skip("counts only when the whole file runs")
    every, torch = public_methods(), set()
    if not torch_is_there():
        torch = {n for n in every if "custom" in n}
    missing = sorted(every - called - set(HOSTED) - torch)
    with capsys.disabled():
        print(f"\ntinker {tinker.__version__}: {len(called & every - set(HOSTED))} of {len(every)} public methods called; "
              f"{len(HOSTED)} belong to the hosted service; {len(torch)} need torch, which is not there; {len(missing)} missing")
    assert not missing, missing
    assert set(HOSTED) <= called & every, "what is listed is still there, and its answer was checked"


def torch_is_there():
    venv = os.environ.get("SMOLGYM_TORCH_VENV", Path.home() / ".cache" / "smolgym" / "torch-venv")
    return (Path(venv) / ".requirements").exists()


# In another environment.

def tokenizer_calls(url, model):
    service = tinker.ServiceClient(base_url=url, api_key=KEY)
    run, sampler = lora(service, model, rank=2), get(service.create_sampling_client(base_model=model))
    out = {k: c.get_tokenizer().encode("hello", add_special_tokens=False) for k, c in (("training", run), ("sampling", sampler))}
    get(service.close("success"))
    return out


def custom_calls(url, model):
    """Cross-entropy as a plain function and through a handle, beside the built-in one."""
    service = tinker.ServiceClient(base_url=url, api_key=KEY)
    data = [datum(tokens())]

    def plain(data, logprobs):
        loss = -sum((lp * d.loss_fn_inputs["weights"].to_torch()).sum() for d, lp in zip(data, logprobs))
        return loss, {"half": loss.item() / 2}

    def handle(logprobs, weights):
        return -(logprobs * weights).sum(), {"custom/tokens:sum": weights.sum()}
    losses = {"plain": plain, "handle": get(service.create_custom_loss(handle, input_ranks={"logprobs": 1, "weights": 1}))}
    calls = {"built in": lambda r: get(r.forward_backward(data, "cross_entropy"))}
    for name, fn in losses.items():
        calls[name] = lambda r, fn=fn: get(r.forward_backward_custom(data, fn))
        calls[name + "_async"] = lambda r, fn=fn: wait(r.forward_backward_custom_async(data, fn))
    out, after = {}, {}
    for name, call in calls.items():
        run = lora(service, model, rank=4, seed=4)
        out[name] = dict(call(run).metrics)
        get(run.optim_step(adam(1e-2)))
        after[name] = forward(run, probe_data(tiny_model.VOCAB))
    want = after.pop("built in")
    out["loss"] = out.pop("built in")["loss:sum"]
    out["same"] = {n: all(bits(x) == bits(y) for x, y in zip(a, want)) for n, a in after.items()}
    out["near"] = {n: max(float(np.abs(x - y).max()) for x, y in zip(a, want)) for n, a in after.items()}
    get(service.close("success"))
    return out


def main(what, url, model):
    warnings.simplefilter("ignore")
    names = set()
    recording(names)
    out = {"tokenizer": tokenizer_calls, "custom": custom_calls}[what](url, model)
    print(json.dumps(dict(out, called=sorted(names), sdk=os.path.realpath(tinker.__file__))))


if __name__ == "__main__":
    main(*sys.argv[1:])
    sys.stdout.flush()
    os._exit(0)  # the SDK's threads may outlive the interpreter and abort it
