"""Two runs of different rank on one loaded base at once: each has the bits it has alone."""
import numpy as np

from harness import adam, bits, datum, get, prompt
from tinker import types

STEPS = 4


def params(n, **kw):
    return types.SamplingParams(max_tokens=n, **dict(dict(stop=[]), **kw))


def start(client, name, rank, seed):
    return get(client.create_lora_training_client(base_model=name, rank=rank, seed=seed, train_attn=True, train_mlp=rank != 3,
                                                  train_unembed=rank == 3))


def data(seed):
    g = np.random.default_rng(seed)
    return [datum([int(t) for t in g.integers(3, 259, n)]) for n in (9, 40, 23)]


def train(run, seed):
    """Queues the steps of a run; the futures of its log-probabilities."""
    out = []
    for i in range(STEPS):
        out.append(run.forward_backward(data(10 * seed + i), "cross_entropy"))
        run.optim_step(adam())
    return out


def logprobs(futures):
    return [[bits(o["logprobs"].data) for o in get(f).loss_fn_outputs] for f in futures]


def ask(sampler, seed):
    return [sampler.sample(prompt([5, 6, 7 + i]), 2, params(40, seed=seed + i)) for i in range(3)]


def samples(futures):
    return [(list(s.tokens), bits(s.logprobs)) for f in futures for s in get(f).sequences]


def test_each_as_alone(own_server, tiny):
    client = own_server.client()
    alone = []
    for rank in (3, 16):
        run = start(client, tiny.name, rank, seed=rank)
        scores = logprobs(train(run, rank))
        sampler = get(run.save_weights_and_get_sampling_client())
        alone.append((scores, samples(ask(sampler, rank))))
    assert alone[0][0] != alone[1][0] and alone[0][1] != alone[1][1]
    before = own_server.stats()
    assert before["max_decode_mix"] <= 1, before

    runs = [start(client, tiny.name, rank, seed=rank) for rank in (3, 16)]
    queued = [train(run, rank) for run, rank in zip(runs, (3, 16))]
    together = [logprobs(q) for q in queued]
    samplers = [get(run.save_weights_and_get_sampling_client()) for run in runs]
    base = get(client.create_sampling_client(base_model=tiny.name))
    # While the base model is asked too, and the runs train on.
    more = [run.forward_backward(data(1), "cross_entropy") for run in runs for _ in range(3)]
    asked = [ask(s, rank) for s, rank in zip(samplers, (3, 16))]
    others = ask(base, 1)
    for i, rank in enumerate((3, 16)):
        assert together[i] == alone[i][0], f"rank {rank}: trained log-probabilities differ from those alone"
        assert samples(asked[i]) == alone[i][1], f"rank {rank}: samples differ from those alone"
    for f in others + more:
        get(f)
    get(client.close("success"))


def test_samplers_share_steps(own_server, tiny):
    """Many requests of three samplers at once are decoded in the same steps."""
    client = own_server.client()
    samplers = [get(client.create_sampling_client(base_model=tiny.name))]
    for rank in (2, 9):
        run = start(client, tiny.name, rank, seed=rank)
        get(run.forward_backward(data(rank), "cross_entropy"))
        get(run.optim_step(adam()))
        samplers.append(get(run.save_weights_and_get_sampling_client()))
    futures = [s.sample(prompt([5, 6, 7 + i]), 4, params(100, seed=i)) for i in range(8) for s in samplers]
    for f in futures:
        get(f)
    assert own_server.stats()["max_decode_mix"] == 3, own_server.stats()
    get(client.close("success"))
