"""Sampling: the same bits however a token is scored, prompts, limits, stops, seeds."""
import numpy as np
import pytest
from harness import (adam, bits, datum, forward, get, lora, policy_datum, prompt, sampler_of, scores, train,
                     user_error, values)
from tinker import types


def params(n, **kw):
    return types.SamplingParams(max_tokens=n, **dict(dict(stop=[]), **kw))


@pytest.mark.parametrize("rank", [8, 0], ids=["lora", "full"])
@pytest.mark.parametrize("temperature", [1.0, 0.6])
def test_fr07_sampled_scored_and_trained_agree_to_the_bit(service, model, rank, temperature):
    """The log-probability of a sampled token is the same 32 bits from the sampler alone and among 15
    others, as a prompt, by forward and by forward_backward with other data."""
    run = get(service.create_lora_training_client(base_model=model.name, rank=rank, seed=2))
    train(run, [datum(model.encode("The cat sat on the mat."))], 5)
    sampler, start = sampler_of(run), model.encode("Once upon")
    ask = params(48, seed=17, temperature=temperature)
    alone = get(sampler.sample(prompt(start), 1, ask)).sequences[0]
    assert len(alone.tokens) == 48

    others = [sampler.sample(prompt(model.encode("A" * (1 + i) + " word")), 1 + i % 2,
                             params(20 + 3 * i, seed=100 + i, temperature=0.3 + 0.1 * i)) for i in range(8)]
    among = sampler.sample(prompt(start), 1, ask)
    others += [sampler.sample(prompt(model.encode("B" * (20 + i))), 1, params(50 - i)) for i in range(7)]
    among = get(among).sequences[0]
    for o in others:
        assert all(np.isfinite(s.logprobs).all() for s in get(o).sequences)
    assert among.tokens == alone.tokens
    assert bits(among.logprobs) == bits(alone.logprobs)

    tokens, at = start + alone.tokens, len(start) - 1
    assert bits(scores(sampler, tokens)[at:]) == bits(alone.logprobs)
    assert bits(forward(run, [datum(tokens)])[0][at:]) == bits(alone.logprobs)
    batch = [datum(model.encode("x" * n)) for n in (2, 30, 7)]
    batch.insert(2, policy_datum(start, alone.tokens, alone.logprobs, [1.0] * 48))
    for d in batch:  # one loss for all: the others get advantages of zero
        if "advantages" not in d.loss_fn_inputs:
            n = d.model_input.length
            d.loss_fn_inputs.pop("weights")
            for k in ("logprobs", "advantages"):
                d.loss_fn_inputs[k] = types.TensorData.from_numpy(np.zeros(n, np.float32))
    out = get(run.forward_backward(batch, "importance_sampling"))
    assert bits(values(out)[2][at:]) == bits(alone.logprobs)
    # Every ratio is exactly one.
    assert abs(out.metrics["loss:sum"] + 48) < 1e-5
    assert np.count_nonzero(alone.logprobs) > 40


def test_same_run_twice_gives_the_same_bits(service, model):
    ends = []
    for _ in range(2):
        run = lora(service, model.name)
        train(run, [datum(model.encode("the same again"))], 3)
        r = get(sampler_of(run).sample(prompt(model.encode("the")), 3, params(10, seed=1)))
        ends.append([(s.tokens, bits(s.logprobs)) for s in r.sequences])
    assert ends[0] == ends[1]


# FR-05: seeds and greedy.

def test_fr05_seeds(service, model):
    base, p = get(service.create_sampling_client(base_model=model.name)), prompt(model.encode("One"))
    got = [[tuple(s.tokens) for s in get(base.sample(p, 4, params(16, seed=7))).sequences] for _ in range(2)]
    assert got[0] == got[1] and len(set(got[0])) == 4
    free = [tuple(s.tokens) for _ in range(2) for s in get(base.sample(p, 2, params(16))).sequences]
    assert len(set(free)) == 4


def test_fr05_greedy_is_argmax(service, model):
    base, start = get(service.create_sampling_client(base_model=model.name)), model.encode("The dog")
    r = get(base.sample(prompt(start), 2, params(12, temperature=0.0), topk_sample_logprobs=3))
    assert r.sequences[0].tokens == r.sequences[1].tokens
    s = r.sequences[0]
    for token, lp, top in zip(s.tokens, s.logprobs, s.topk_logprobs):
        assert top[0][0] == token and bits(top[0][1]) == bits(lp)
        assert [x for _, x in top] == sorted((x for _, x in top), reverse=True)
    greedy = get(base.sample(prompt(start), 1, params(12, temperature=1.0, top_k=1))).sequences[0]
    assert greedy.tokens == s.tokens and bits(greedy.logprobs) == bits(s.logprobs)
    nucleus = get(base.sample(prompt(start), 1, params(12, temperature=1.0, top_p=1e-6))).sequences[0]
    assert nucleus.tokens == s.tokens


def test_top_k_and_top_p_cut(service, tiny):
    base, start = get(service.create_sampling_client(base_model=tiny.name)), tiny.encode("cut")
    top = get(base.sample(prompt(start), 1, params(1, temperature=0.0), topk_sample_logprobs=20)).sequences[0]
    ids = [t for t, _ in top.topk_logprobs[0]]
    mass = np.cumsum(np.exp([x for _, x in top.topk_logprobs[0]]))
    drawn = {s.tokens[0] for s in get(base.sample(prompt(start), 64, params(1, seed=1, top_k=5))).sequences}
    assert drawn <= set(ids[:5]) and len(drawn) > 1
    p = float((mass[3] + mass[4]) / 2)  # needs five tokens
    drawn = {s.tokens[0] for s in get(base.sample(prompt(start), 64, params(1, seed=1, top_p=p))).sequences}
    assert drawn <= set(ids[:5]) and len(drawn) > 1
    off = params(8, seed=3, top_k=-1, top_p=1.0)
    assert (get(base.sample(prompt(start), 1, off)).sequences[0].tokens
            == get(base.sample(prompt(start), 1, params(8, seed=3))).sequences[0].tokens)


def test_the_draws_follow_the_distribution(service, tiny):
    """2,000 first tokens against the model's own probabilities, at two temperatures."""
    base, start = get(service.create_sampling_client(base_model=tiny.name)), tiny.encode("fair")
    top = get(base.sample(prompt(start), 1, params(1, temperature=0.0), topk_sample_logprobs=8)).sequences[0]
    table = {t: np.exp(x) for t, x in top.topk_logprobs[0]}
    for temperature in (1.0, 0.5):
        seqs = [s for i in range(8) for s in get(base.sample(
            prompt(start), 250, params(1, seed=i, temperature=temperature))).sequences]
        counts = np.array([sum(s.tokens[0] == t for s in seqs) for t in table], float)
        if temperature == 1.0:
            want = np.array(list(table.values()))
            sd = np.sqrt(want * (1 - want) / len(seqs))
            assert (np.abs(counts / len(seqs) - want) < 5 * sd).all(), (counts, want * len(seqs))
            flat = counts[:2].sum()
        else:
            assert counts[:2].sum() > flat  # colder: the best two are drawn more often
        for s in seqs[:50]:  # the reported log-probability is the one at temperature 1
            if s.tokens[0] in table:
                assert abs(np.exp(s.logprobs[0]) - table[s.tokens[0]]) < 1e-6


# FR-06: prompt log-probabilities.

def test_fr06_prompt_logprobs(service, tiny, tiny_weights):
    import tiny_model
    tokens = tiny.encode("ten tokens")[:10]
    base = get(service.create_sampling_client(base_model=tiny.name))
    r = get(base.sample(prompt(tokens), 1, params(1), include_prompt_logprobs=True, topk_prompt_logprobs=5))
    assert len(r.prompt_logprobs) == 10 and r.prompt_logprobs[0] is None
    assert np.isnan(r.prompt_logprobs_np[0]) and np.isfinite(r.prompt_logprobs_np[1:]).all()
    table = tiny_model.logprobs(tiny_weights, tokens)
    want = table[np.arange(9), tokens[1:]]
    assert np.abs(np.array(r.prompt_logprobs[1:]) - want).max() < 1e-4
    run = lora(service, tiny.name)
    aligned = forward(run, [datum(tokens)])[0]
    assert len(aligned) == 9 and bits(aligned) == bits(r.prompt_logprobs[1:])
    top = r.topk_prompt_logprobs_np
    assert top.token_ids.shape == top.logprobs.shape == (10, 5)
    assert (top.token_ids[0] == 0).all() and (top.logprobs[0] == np.float32(-99999.0)).all()
    assert r.topk_prompt_logprobs[0] is None
    for i in range(1, 10):
        best = np.argsort(-table[i - 1])[:5]
        assert list(top.token_ids[i]) == list(best)
        assert np.abs(top.logprobs[i] - table[i - 1][best]).max() < 1e-4
    assert get(base.sample(prompt(tokens), 1, params(1))).prompt_logprobs is None


def test_fr06_one_token_prompt(service, tiny):
    base = get(service.create_sampling_client(base_model=tiny.name))
    assert get(base.compute_logprobs(prompt([1]))) == [None]


# FR-08: the context.

def test_fr08_context(service, tiny):
    base = get(service.create_sampling_client(base_model=tiny.name))
    long = [3 + i % 200 for i in range(100)]
    user_error(lambda: get(base.sample(prompt(long), 1, params(50))), "100", "50", "128")
    user_error(lambda: get(base.sample(prompt([3] * 128), 1, params(1))), "128")
    user_error(lambda: get(base.sample(prompt([3] * 500), 1, params(1))), "500", "128")
    s = get(base.sample(prompt(long), 1, types.SamplingParams(stop=[]))).sequences[0]
    assert len(s.tokens) == 28 and s.stop_reason == "length"
    s = get(base.sample(prompt(long), 1, params(28))).sequences[0]
    assert len(s.tokens) == 28 and s.stop_reason == "length"
    s = get(base.sample(prompt([1]), 1, params(5))).sequences[0]
    assert len(s.tokens) == 5 and s.stop_reason == "length"
    run = lora(service, tiny.name)
    get(run.forward([datum([3] * 129)], "cross_entropy"))  # 128 inputs fit
    user_error(lambda: get(run.forward([datum([3] * 130)], "cross_entropy")), "129", "128")


# FR-04: stopping.

def test_fr04_stop(service, model):
    base, start = get(service.create_sampling_client(base_model=model.name)), model.encode("She said")
    ask = dict(seed=5)
    free = get(base.sample(prompt(start), 1, params(30, **ask))).sequences[0]
    third = free.tokens[7]
    cut = free.tokens.index(third) + 1
    s = get(base.sample(prompt(start), 1, params(30, **dict(ask, stop=[third])))).sequences[0]
    assert s.tokens == free.tokens[:cut] and s.stop_reason == "stop"
    assert bits(s.logprobs) == bits(free.logprobs[:cut])
    user_error(lambda: get(base.sample(prompt(start), 1, params(0))), "max_tokens")


def test_fr04_stop_string(service, tiny):
    """A string over three byte tokens ends the sample with its last byte; alone or in a list."""
    base, start = get(service.create_sampling_client(base_model=tiny.name)), tiny.encode("text")
    free = None
    for seed in range(200):  # a sample with three plain letters in a row that come once
        s = get(base.sample(prompt(start), 1, params(60, seed=seed, temperature=0.8))).sequences[0]
        text = bytes(t - 3 if 35 <= t < 130 else 0 for t in s.tokens)
        at = next((i for i in range(10, 57) if 0 not in text[i:i + 3]
                   and text.index(text[i:i + 3]) == i), None)
        if at is not None:
            free, needle = s, text[at:at + 3].decode()
            break
    assert free is not None
    for stop in (needle, [needle], ["never seen", needle]):
        s = get(base.sample(prompt(start), 1, params(60, seed=seed, temperature=0.8, stop=stop))).sequences[0]
        assert s.stop_reason in ("stop", "length")
        if 2 not in free.tokens[:at + 3]:  # the end token stops too
            assert s.tokens == free.tokens[:at + 3] and s.stop_reason == "stop", (needle, stop)
            assert bits(s.logprobs) == bits(free.logprobs[:at + 3])


def test_end_token_stops_unless_told_not_to(service, tiny):
    run = lora(service, tiny.name)
    tokens = tiny.encode("hi") + [2]
    train(run, [datum(tokens)], 15, lr=3e-2)
    sampler = sampler_of(run)
    s = get(sampler.sample(prompt(tokens[:-1]), 1, types.SamplingParams(max_tokens=10, temperature=0.0)))
    assert s.sequences[0].tokens == [2] and s.sequences[0].stop_reason == "stop"
    s = get(sampler.sample(prompt(tokens[:-1]), 1, params(10, temperature=0.0))).sequences[0]
    assert len(s.tokens) == 10 and s.tokens[0] == 2 and s.stop_reason == "length"


def test_a_sampler_path_that_is_not_there(service, tiny):
    for path in ("tinker://nobody:train:0/sampler_weights/x", "tinker://a/b"):
        user_error(lambda: get(service.create_sampling_client(model_path=path)))
    user_error(lambda: get(service.create_sampling_client(base_model="test/absent")), "test/absent", "model add")


def test_samples_beside_training(service, tiny):
    """Samples of a group come back while a run trains; both are right."""
    run = lora(service, tiny.name)
    base = get(service.create_sampling_client(base_model=tiny.name))
    alone = get(base.sample(prompt(tiny.encode("x")), 1, params(40, seed=9))).sequences[0]
    data = [datum([3 + (i * j) % 250 for j in range(100)]) for i in range(1, 17)]
    queue = [f for _ in range(5) for f in (run.forward_backward(data, "cross_entropy"), run.optim_step(adam()))]
    got = [base.sample(prompt(tiny.encode("x")), 1, params(40, seed=9)) for _ in range(8)]
    for g in got:
        s = get(g).sequences[0]
        assert s.tokens == alone.tokens and bits(s.logprobs) == bits(alone.logprobs)
    for q in queue:
        get(q)


def test_sampler_of_a_closed_session_is_refused_or_works(server, tiny):
    """Finishing a session is final for its own client and harmless to others."""
    c = server.client()
    s = get(c.create_sampling_client(base_model=tiny.name))
    get(s.compute_logprobs(prompt(tiny.encode("bye"))))
    c.close("success").result(timeout=20)
    with pytest.raises(RuntimeError):
        c.create_sampling_client(base_model=tiny.name)
    server.alive()


def test_decode_batches_are_shared(own_server, tiny):
    """Sixteen requests at once share decoding steps, as the server's counters show, and each has the bits it has alone."""
    client = own_server.client()
    sampler = client.create_sampling_client(base_model=tiny.name)

    def ask(i):
        return sampler.sample(prompt(tiny.encode("go")), 4, params(100, seed=i))

    start = own_server.stats()
    alone = [get(ask(i)).sequences for i in range(16)]
    before = own_server.stats()
    crowd = [get(f).sequences for f in [ask(i) for i in range(16)]]
    after = own_server.stats()
    for group, other in zip(alone, crowd):
        for a, c in zip(group, other):
            assert list(a.tokens) == list(c.tokens) and bits(a.logprobs) == bits(c.logprobs)
    assert before["max_decode_batch"] <= 4 < after["max_decode_batch"], (before, after)
    # The same tokens in fewer steps: requests shared them.
    steps = [y["decode_steps"] - x["decode_steps"] for x, y in ((start, before), (before, after))]
    assert steps[1] < 0.9 * steps[0], steps
    get(client.close("success"))
