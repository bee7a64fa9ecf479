"""A restart, gentle or not, loses nothing that was saved; the next step is the same bits."""
import os
import signal

import pytest
from harness import (Server, Wire, bits, datum, get, lora, probe, probe_data, prompt, sampler_of, scores, train)
from tinker import types


@pytest.mark.parametrize("how", [signal.SIGTERM, signal.SIGKILL], ids=["term", "kill"])
@pytest.mark.parametrize("rank", [8, 0], ids=["lora", "full"])
def test_fr14_resume_after_a_restart(own_server, tiny, rank, how):
    data, s = probe_data(tiny.vocab, seed=21), own_server
    c = s.client()
    run = get(c.create_lora_training_client(base_model=tiny.name, rank=rank, seed=4))
    train(run, data, 3)
    path = get(run.save_state("three")).path
    named = get(run.save_weights_for_sampler("named")).path
    at_save = probe(run, tiny.vocab)
    tokens = tiny.encode("remember me")
    was = scores(get(c.create_sampling_client(model_path=named)), tokens)
    base = scores(get(c.create_sampling_client(base_model=tiny.name)), tokens)
    train(run, data, 1)
    want = probe(run, tiny.vocab)

    s.restart(how)
    c = s.client()
    again = get(c.create_training_client_from_state_with_optimizer(path))
    assert probe(again, tiny.vocab) == at_save
    train(again, data, 1)
    assert probe(again, tiny.vocab) == want
    fresh = get(c.create_training_client_from_state(path))
    assert probe(fresh, tiny.vocab) == at_save
    train(fresh, data, 1)
    assert probe(fresh, tiny.vocab) != want
    assert bits(scores(get(c.create_sampling_client(model_path=named)), tokens)) == bits(was)
    assert bits(scores(get(c.create_sampling_client(base_model=tiny.name)), tokens)) == bits(base)
    paths = {x.tinker_path for x in get(s.rest().list_user_checkpoints()).checkpoints}
    assert {path, named} <= paths
    # New runs have new names: nothing old is overwritten.
    other = lora(c, tiny.name)
    assert other.model_id != run.model_id
    c.close("success").result(timeout=20)


def test_the_number_of_threads_is_not_seen(tmp_path, folders, server, tiny):
    """Weights and samples are the same bits on one processor as on all."""
    if len(os.sched_getaffinity(0)) < 2:
        pytest.skip("one processor here: nothing to compare")
    one, ends = Server(tmp_path / "one", cpus={min(os.sched_getaffinity(0))}).start(), []
    try:
        one.add_model(tiny.name, folders["tiny"])
        for s in (one, server):
            c = s.client()
            for rank in (8, 0):
                run = get(c.create_lora_training_client(base_model=tiny.name, rank=rank, seed=4))
                train(run, probe_data(tiny.vocab, 6, 100), 3)
                seqs = get(sampler_of(run).sample(prompt(tiny.encode("threads")), 4, types.SamplingParams(
                    max_tokens=30, seed=2, stop=[]))).sequences
                ends.append((probe(run, tiny.vocab), [(q.tokens, bits(q.logprobs)) for q in seqs]))
            c.close("success").result(timeout=20)
    finally:
        one.stop()
    assert ends[:2] == ends[2:]


def test_starts_fast_and_keeps_to_its_folder(own_server):
    own_server.restart()
    assert own_server.start_seconds < 2  # "under a second" on a quiet machine
    assert [p.name for p in own_server.root.iterdir()] == ["data"]


def test_one_process_holds_the_data(own_server):
    import subprocess
    from harness import BINARY
    p = subprocess.run([BINARY, "serve", "--addr", "127.0.0.1:0", "--data", str(own_server.data)], capture_output=True,
                       text=True, timeout=20)
    assert p.returncode == 1 and str(own_server.data) in p.stderr, (p.returncode, p.stderr)
    own_server.alive()


def test_saved_results_outlive_a_restart(own_server, tiny):
    """The answer of a save can be fetched again after a restart."""
    wire = Wire(own_server.url)
    run = wire.model(tiny.name)
    wire.probe(run, 1, [datum(tiny.encode("abc"))])
    status, body = wire.post("save_weights", model_id=run, path="kept", seq_id=2, overwrite=False,
                             type="save_weights")
    assert status == 200, body
    path = wire.retrieve(body["request_id"])["path"]
    own_server.restart(signal.SIGKILL)
    assert wire.retrieve(body["request_id"])["path"] == path


def test_samples_in_flight_come_back_after_a_restart(own_server, tiny):
    """A request whose result went with the process is lost (410), which makes the SDK ask again."""
    c = own_server.client()
    base = get(c.create_sampling_client(base_model=tiny.name))
    ask = types.SamplingParams(max_tokens=100, seed=3, stop=[])
    want = get(base.sample(prompt(tiny.encode("again")), 1, ask)).sequences[0]
    futures = [base.sample(prompt(tiny.encode("again")), 4, ask) for _ in range(300)]
    get(futures[0])
    own_server.restart(signal.SIGKILL)
    for f in futures:
        s = get(f).sequences[0]
        assert s.tokens == want.tokens and bits(s.logprobs) == bits(want.logprobs)
    c.close("success").result(timeout=20)
