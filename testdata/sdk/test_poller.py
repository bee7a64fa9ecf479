"""Sampling under load and trouble: one poll per sampler or one per request, clones, cancelling, restarts, clients that vanish;
and batches whose parts come in any order."""
import asyncio
import http.client
import json
import math
import os
import signal
import socket
import subprocess
import sys
import threading
import time

import numpy as np
import pytest
import tinker
from harness import HERE, KEY, WAIT, Server, Wire, adam, bits, datum, get, lora, plain, probe, probe_data, prompt, scores, user_error
from tinker import types
from tinker.proto import tinker_public_pb2 as pb
from tinker.resources.futures import AsyncFuturesResource

OPEN = 2000
TENSOR = types.TensorData


def params(n, **kw):
    return types.SamplingParams(max_tokens=n, **dict(dict(stop=[]), **kw))


def client(server, **config):
    """A client that takes the server's configuration except for what is given."""
    c = server.client()
    c.holder._client_config = c.holder._client_config.model_copy(update=config)
    return c


@pytest.fixture
def polls(monkeypatch):
    """The polls for futures that the SDK makes, as (one or many, timeout of the body)."""
    seen = []
    one, many = AsyncFuturesResource.retrieve, AsyncFuturesResource.retrieve_multi

    async def count_one(self, *a, **kw):
        seen.append(("one", None))
        return await one(self, *a, **kw)

    async def count_many(self, *a, **kw):
        seen.append(("many", kw["request"].timeout))
        return await many(self, *a, **kw)

    monkeypatch.setattr(AsyncFuturesResource, "retrieve", count_one)
    monkeypatch.setattr(AsyncFuturesResource, "retrieve_multi", count_many)
    return seen


def hold(wire, sampler, took):
    """One poll of a sampler that has nothing to tell."""
    began = time.monotonic()
    took.append(wire.post("retrieve_futures", target=dict(type="sampling_session", sampling_session_id=sampler, cloned_sampler_id=9),
                          prev_cursor=0, retrieved_request_ids=[]))
    took.append(time.monotonic() - began)


def beat(server, session, stop, took):
    """Heartbeats over one connection, as the SDK sends them, but more often."""
    c = http.client.HTTPConnection("127.0.0.1", server.port, timeout=WAIT)
    body = json.dumps(dict(session_id=session, type="session_heartbeat"))
    while not stop.wait(0.05):
        began = time.monotonic()
        c.request("POST", "/api/v1/session_heartbeat", body, {"X-API-Key": KEY, "Content-Type": "application/json"})
        r = c.getresponse()
        r.read()
        assert r.status == 200
        took.append(time.monotonic() - began)


@pytest.mark.parametrize("poller", [True, False], ids=["one poll a sampler", "one poll a request"])
def test_fr29_two_thousand_open_samples(own_server, tiny, polls, poller):
    """No result is lost, heartbeats are quick, and a poll that has nothing to tell is held."""
    c = client(own_server, sample_use_retrieve_futures=poller)
    assert c.holder.get_client_config().sample_join_sampling_session
    sampler = get(c.create_sampling_client(base_model=tiny.name))
    wire, idle, took, stop = Wire(own_server.url), [], [], threading.Event()
    start = prompt(tiny.encode("many"))
    few = [get(sampler.sample(start, 1, params(8, seed=i))).sequences[0] for i in range(5)]
    threads = [threading.Thread(target=beat, args=(own_server, c.holder.get_session_id(), stop, took))]
    if poller:
        threads.append(threading.Thread(target=hold, args=(wire, sampler._sampling_session_id, idle)))
    for t in threads:
        t.start()
    open_ = [sampler.sample(start, 1, params(8, seed=i)) for i in range(OPEN)]
    seen = set()
    for i, f in enumerate(open_):
        s = f.result(timeout=180).sequences[0]
        assert len(s.tokens) == len(s.logprobs) == 8
        if i < len(few):
            assert list(s.tokens) == list(few[i].tokens) and bits(s.logprobs) == bits(few[i].logprobs)
        seen.add(s.sequence_id)
    stop.set()
    assert len(seen) == OPEN
    p95 = sorted(took)[int(len(took) * 0.95)]
    print(f"{len(took)} heartbeats, p95 {p95 * 1000:.0f} ms; {sum(k == 'many' for k, _ in polls)} polls for many")
    assert len(took) > 10 and p95 < 0.25, (len(took), p95)
    for t in threads:
        t.join()
    if poller:
        (status, body), held = idle
        assert status == 200 and body["completions"] == [] and 25 < held < 40, idle
    assert any(k == "many" for k, _ in polls) == poller
    quiet = len(polls)  # the last acknowledgements went out long ago
    time.sleep(2)
    assert len(polls) == quiet, polls[quiet:]
    get(c.close("success"))


def test_clones_of_a_sampler_have_numbers_of_their_own(server, tiny):
    c = client(server)
    sampler = get(c.create_sampling_client(base_model=tiny.name))
    handle = sampler.get_sampler_handle()
    clones = [tinker.SamplingClient.from_sampler_handle(handle, api_key=KEY) for _ in range(3)]
    ids, p = set(), prompt(tiny.encode("clone"))
    want = get(sampler.sample(p, 2, params(6, seed=3)))
    for s in (sampler, *clones):
        out = [get(f) for f in [s.sample(p, 2, params(6, seed=3)) for _ in range(3)]]
        for r in out:
            assert [list(q.tokens) for q in r.sequences] == [list(q.tokens) for q in want.sequences]
            ids |= {q.sequence_id for q in r.sequences}
    assert len(ids) == 4 * 3 * 2
    blocks = {int(i.split(":")[-2]) // 10**9 for i in ids}
    assert blocks == {0, 1, 2, 3}
    get(c.close("success"))


def test_a_sample_given_up_stops_on_the_server(own_server, tiny):
    c = client(own_server)
    sampler = get(c.create_sampling_client(base_model=tiny.name))
    get(sampler.sample(prompt([5]), 1, params(1)))

    async def give_up():
        many = [sampler.sample_async(prompt([5]), 1024, params(100)) for _ in range(8)]
        with pytest.raises(asyncio.TimeoutError):
            await asyncio.wait_for(asyncio.gather(*many), 0.5)

    before = own_server.stats()["sampled_tokens"]
    asyncio.run(give_up())
    end, last = time.monotonic() + 20, -1
    while time.monotonic() < end:
        now = own_server.stats()["sampled_tokens"]
        if now == last:
            break
        last = now
        time.sleep(0.5)
    assert 0 < last - before < 8 * 1024 * 100 / 2, last - before
    assert len(get(sampler.sample(prompt([5]), 1, params(4))).sequences[0].tokens) == 4
    get(c.close("success"))


@pytest.mark.parametrize("how", [signal.SIGTERM, signal.SIGKILL], ids=["stop", "kill"])
def test_a_restart_loses_no_sample(own_server, tiny, how):
    """Requests that were open when the server ended are answered after it is back."""
    c = client(own_server)
    sampler = get(c.create_sampling_client(base_model=tiny.name))
    p = prompt(tiny.encode("again"))
    alone = [get(sampler.sample(p, 1, params(100, seed=i))).sequences[0] for i in range(3)]
    open_ = [sampler.sample(p, 1, params(100, seed=i)) for i in range(300)]
    while sum(f.done() for f in open_) < 5:
        time.sleep(0.005)
    assert not all(f.done() for f in open_)
    own_server.restart(how)
    for i, f in enumerate(open_):
        s = f.result(timeout=120).sequences[0]
        assert len(s.tokens) == 100
        if i < 3:
            assert list(s.tokens) == list(alone[i].tokens) and bits(s.logprobs) == bits(alone[i].logprobs)
    get(c.close("success"))


# Every sampling option.

def test_targets_and_draws(service, tiny):
    base, tokens = get(service.create_sampling_client(base_model=tiny.name)), tiny.encode("options")
    n = len(tokens)
    plain = scores(base, tokens)
    ids = np.full((n - 1, 2), -1, np.int64)
    ids[:, 0] = tokens[1:]
    ids[-1, 1] = 9
    r = get(base.sample(prompt(tokens), 1, params(1), include_prompt_logprobs=True, target_prompt_logprobs=TENSOR.from_numpy(ids),
                        prompt_alt_tokens_k=64, prompt_logprobs_last_n=2, topk_prompt_logprobs=3))
    got = np.asarray(r.target_prompt_logprobs.data, np.float32).reshape(n - 1, 2)
    assert bits(got[:, 0]) == bits(plain) and (got[:-1, 1] == 0).all() and got[-1, 1] < 0
    assert r.prompt_logprobs[:-2] == [None] * (n - 2) and bits(r.prompt_logprobs[-2:]) == bits(plain[-2:])
    assert r.topk_prompt_logprobs[:-2] == [None] * (n - 2) and len(r.topk_prompt_logprobs[-1]) == 3
    alt = np.asarray(r.prompt_alt_tokens.tokens.data).reshape(n - 1, 64)
    lps = np.asarray(r.prompt_alt_tokens.logprobs.data, np.float32).reshape(n - 1, 64)
    top = get(base.sample(prompt(tokens), 1, params(1), topk_prompt_logprobs=20)).topk_prompt_logprobs
    for i in range(n - 1):
        table = {t: lp for t, lp in top[i + 1]}
        known = [j for j in range(64) if alt[i, j] in table]
        assert known and all(bits(lps[i, j]) == bits(table[alt[i, j]]) for j in known)
        assert len(set(alt[i])) > 1 or math.exp(top[i + 1][0][1]) > 0.9
    # The draws follow the distribution: the mass of the best 20, over all positions, within five deviations.
    mass = np.array([sum(math.exp(lp) for _, lp in row) for row in top[1:]])
    drawn = np.array([sum(alt[i, j] in {t for t, _ in top[i + 1]} for j in range(64)) for i in range(n - 1)])
    sd = math.sqrt(64 * (mass * (1 - mass)).sum()) + 1
    assert abs(drawn.sum() - 64 * mass.sum()) < 5 * sd

    sparse = TENSOR(data=[tokens[3], 9, tokens[-1]], dtype="int64", shape=[n - 1, 50], sparse_crow_indices=[0, 0, 0] + [2] * (n - 4) + [3],
                    sparse_col_indices=[7, 49, 0])
    t = get(base.sample(prompt(tokens), 1, params(1), target_prompt_logprobs=sparse)).target_prompt_logprobs
    assert list(t.shape) == [n - 1, 50] and t.sparse_col_indices == [7, 49, 0] and t.sparse_crow_indices == sparse.sparse_crow_indices
    assert bits([t.data[0], t.data[2]]) == bits([plain[2], plain[-1]]) and t.data[1] < 0
    user_error(lambda: get(base.sample(prompt(tokens), 1, params(1), target_prompt_logprobs=TENSOR.from_numpy(ids[:-1]))), "target_prompt_logprobs")
    user_error(lambda: get(base.sample(prompt(tokens), 1, params(1), target_prompt_logprobs=TENSOR.from_numpy(np.full((n - 1, 1), 10**6)))), "1000000")


def test_a_short_suffix_comes_from_the_prefix_cache(service, tiny):
    base, tokens = get(service.create_sampling_client(base_model=tiny.name)), [3 + i % 200 for i in range(100)]
    whole = get(base.sample(prompt(tokens), 1, params(1), include_prompt_logprobs=True))
    short = get(base.sample(prompt(tokens), 1, params(1), include_prompt_logprobs=True, prompt_logprobs_last_n=3))
    assert short.prompt_cache_hit_tokens > 50
    assert bits(short.prompt_logprobs[-3:]) == bits(whole.prompt_logprobs[-3:])
    assert bits(get(base.compute_logprobs(prompt(tokens), prompt_logprobs_last_n=3))[-3:]) == bits(whole.prompt_logprobs[-3:])


def test_parts_of_a_prompt_that_are_not_text_are_refused_by_name(service, tiny):
    base = get(service.create_sampling_client(base_model=tiny.name))
    image = types.ImageChunk(data=b"\x89PNG", format="png")
    with pytest.raises(tinker.RequestFailedError) as e:
        get(base.sample(types.ModelInput(chunks=[types.EncodedTextChunk(tokens=[5]), image]), 1, params(1)))
    assert "image" in str(e.value) and "user" in str(e.value.category).lower()


# Clients that vanish, resend and leave gaps.

def batches():
    return [[datum([3 + (i * j + b) % 250 for j in range(40)]) for i in range(1, 4)] for b in range(3)]


def request(run, seq, data):
    m = pb.ForwardBackwardRequest(model_id=run, seq_id=seq, loss_fn="cross_entropy")
    for tokens, inputs in map(plain, data):
        d = m.data.add()
        d.model_input.add().encoded_text.tokens = np.asarray(tokens, np.int32).tobytes()
        for name, (dtype, shape, raw) in inputs.items():
            t = d.loss_fn_inputs[name]
            t.dense, t.dtype = raw, dtype
            t.shape.extend(shape)
    return m.SerializeToString()


def cut(server, path, body, kind, send):
    """A client that dies after sending a share of a request, or without reading its answer."""
    head = (f"POST {path} HTTP/1.1\r\nHost: x\r\nX-API-Key: {KEY}\r\nContent-Type: {kind}\r\nContent-Length: {len(body)}\r\n\r\n").encode()
    with socket.create_connection(("127.0.0.1", server.port)) as s:
        s.sendall(head + body[:int(len(body) * send)])


def weights(wire, run, seq, vocab):
    """What a run says of fixed sequences, to the bit."""
    status, f = wire.forward_backward(run, seq, probe_data(vocab), forward_only=True)
    assert status == 200, f
    out = wire.retrieve(f["request_id"], pb.ForwardBackwardOutput)
    return b"".join(r.fields["logprobs"].data for r in out.loss_fn_outputs)


def optim(wire, run, seq):
    status, f = wire.post("optim_step", model_id=run, seq_id=seq, type="optim_step", adam_params=dict(
        learning_rate=1e-2, beta1=0.9, beta2=0.95, eps=1e-12, weight_decay=0.0, grad_clip_norm=0.0))
    assert status == 200, f
    return f["request_id"]


def plain_run(wire, name, vocab):
    run, ids = wire.model(name), []
    for seq, b in enumerate(batches(), 1):
        ids.append(wire.forward_backward(run, seq, b)[1]["request_id"])
    ids.append(optim(wire, run, 4))
    for i in ids[:3]:
        assert not isinstance(wire.retrieve(i, pb.ForwardBackwardOutput), dict)
    assert "error" not in wire.retrieve(ids[3])
    return weights(wire, run, 5, vocab)


def test_dropped_connections_repeats_and_gaps_change_nothing(own_server, tiny):
    wire = Wire(own_server.url)
    want = plain_run(wire, tiny.name, tiny.vocab)
    run, g = wire.model(tiny.name), np.random.default_rng(1)
    seq = 0
    for b in batches():
        seq += int(g.integers(1, 9))  # a gap
        body = request(run, seq, b)
        for share in g.permutation([0.0, 0.3, 0.99, 1.0]):  # the last is a whole request whose answer nobody reads
            cut(own_server, "/api/v1/forward_backward", body, "application/x-protobuf", share)
        ids = {wire.forward_backward(run, seq, b)[1]["request_id"] for _ in range(3)}
        assert len(ids) == 1
    seq += 5
    assert len({optim(wire, run, seq) for _ in range(3)}) == 1
    assert weights(wire, run, seq + 7, tiny.vocab) == want
    status, body = wire.forward_backward(run, seq, batches()[0])  # used by another request
    assert status == 400 and "number" in body["detail"]
    status, body = wire.forward_backward(run, seq - 1, batches()[0])  # comes too late
    assert status == 400 and "number" in body["detail"]
    assert weights(wire, run, seq + 8, tiny.vocab) == want


CHILD = """
import sys, tinker
from tinker import types
sys.path.insert(0, {here!r})
import test_poller, harness
url, model = sys.argv[1:]
c = tinker.ServiceClient(base_url=url, api_key=harness.KEY)
c.holder._client_config = c.holder._client_config.model_copy(update=dict(fwdbwd_max_chunk_len=1))
run = harness.lora(c, model, rank=4, seed=1)
print(run.model_id, flush=True)
data = [d for b in test_poller.batches() for d in b]
for n in range(1000):
    f = run.forward_backward(data, "cross_entropy")
    print("sent", flush=True)
"""


def test_a_client_killed_in_the_middle_of_a_batch(own_server, tiny):
    """Whatever of its requests arrived, each counts once: another client that sends all of them again, and then a step,
    gets the weights of a run that nothing happened to."""
    wire = Wire(own_server.url)
    data = [d for b in batches() for d in b]
    env = dict(os.environ, PYTHONDONTWRITEBYTECODE="1")
    child = subprocess.Popen([sys.executable, "-c", CHILD.format(here=str(HERE)), own_server.url, tiny.name], stdout=subprocess.PIPE, text=True, env=env)
    run = child.stdout.readline().strip()
    assert ":train:" in run
    child.stdout.readline()
    time.sleep(0.02)
    child.kill()
    child.wait()
    # How far it came: the first number that was never seen takes any content.
    last = 0
    while True:
        status, f = wire.forward_backward(run, last + 1, [data[last % len(data)]])
        assert status == 200, (last, f)
        last += 1
        if last >= 3 * len(data) and last % len(data) == 0:
            break
    optim(wire, run, last + 1)
    got = weights(wire, run, last + 2, tiny.vocab)

    other = wire.model(tiny.name)
    for seq in range(1, last + 1):
        assert wire.forward_backward(other, seq, [data[(seq - 1) % len(data)]])[0] == 200
    optim(wire, other, last + 1)
    assert weights(wire, other, last + 2, tiny.vocab) == got
    own_server.alive()


# FR-03: with --parallel-chunks.

@pytest.fixture
def any_order(tmp_path, folders, tiny):
    s = Server(tmp_path / "any", "--parallel-chunks").start()
    s.add_model(tiny.name, folders["tiny"])
    yield s
    s.stop()


def test_fr03_parts_in_any_order(any_order, tiny):
    wire = Wire(any_order.url)
    assert wire.post("client/config", sdk_version="0.38.0")[1]["parallel_fwdbwd_chunks"] is True
    want = plain_run(wire, tiny.name, tiny.vocab)
    run, parts = wire.model(tiny.name), batches()
    ids = {seq: wire.forward_backward(run, seq, parts[seq - 1])[1]["request_id"] for seq in (2, 3, 1)}
    optim(wire, run, 4)
    assert weights(wire, run, 5, tiny.vocab) == want
    for i in ids.values():
        assert wire.retrieve(i, pb.ForwardBackwardOutput).metrics["loss:sum"] > 0
    # A number that never comes: a clear error in the stated time, and the run goes on.
    began = time.monotonic()
    status, f = wire.forward_backward(run, 7, parts[0])
    body = wire.retrieve(f["request_id"], pb.ForwardBackwardOutput)
    assert body["category"] == "user" and "number 6 did not arrive" in body["error"], body
    assert 9 < time.monotonic() - began < 15
    assert weights(wire, run, 8, tiny.vocab) == want


def test_fr03_the_sdk_sends_parts_at_once(any_order, tiny):
    data = [d for b in batches() for d in b]
    ends = []
    for size in (1024, 2):
        c = client(any_order, fwdbwd_max_chunk_len=size)
        run = lora(c, tiny.name)
        for _ in range(3):
            f, o = run.forward_backward(data, "cross_entropy"), run.optim_step(adam())
            out = get(f)
            get(o)
            assert len(out.loss_fn_outputs) == len(data)
        ends.append(probe(run, tiny.vocab))
        get(c.close("success"))
    assert ends[0] == ends[1]
