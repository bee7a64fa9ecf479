"""Training numerics by number: FR-10 to FR-15, SFT, full update."""
import math

import numpy as np
import pytest
import tinker
from harness import (adam, bits, datum, forward, get, lora, policy_datum, probe, probe_data, sampler_of, scores, sgd,
                     train, user_error, values)
from tinker import types

STORIES_TEXT = ["Once upon a time there was a red robot.", "The robot liked to count to ten.",
                "One day it met a small blue bird.", "The bird said: please sing with me!",
                "They sang until the sun went down.", "The robot was happy and went to sleep."]


def full(service, name):
    return get(service.create_lora_training_client(base_model=name, rank=0))


@pytest.mark.parametrize("rank", [8, 0], ids=["lora", "full"])
def test_sft_loss_falls(service, model, rank):
    """At least 30 % in 20 steps."""
    run = get(service.create_lora_training_client(base_model=model.name, rank=rank, seed=1))
    assert run.get_info().is_lora == (rank > 0)
    data = [datum(model.encode(t)) for t in STORIES_TEXT]
    losses = train(run, data, 20, lr=1e-2 if rank else 2e-3)
    end = get(run.forward(data, "cross_entropy")).metrics["loss:sum"]
    assert all(math.isfinite(x) for x in losses)
    assert end <= 0.7 * losses[0], losses + [end]
    # The metric is the sum that the outputs say.
    out = get(run.forward(data, "cross_entropy"))
    total = -sum(float(v.astype(np.float64).sum()) for v in values(out))
    assert abs(out.metrics["loss:sum"] - total) <= 1e-4 * abs(total)


# FR-10: nothing to learn.

@pytest.mark.parametrize("rank", [8, 0], ids=["lora", "full"])
def test_fr10_all_masked(service, tiny, rank):
    run = get(service.create_lora_training_client(base_model=tiny.name, rank=rank, seed=1))
    start = probe(run, tiny.vocab)
    tokens = tiny.encode("nothing here counts")
    out = get(run.forward_backward([datum(tokens, [0.0] * (len(tokens) - 1))], "cross_entropy"))
    assert out.metrics["loss:sum"] == 0
    counts = {k: v for k, v in out.metrics.items() if "token" in k or "supervised" in k or "target" in k}
    assert any(v == 0 for v in counts.values()), f"no metric shows 0 supervised tokens: {out.metrics}"
    step = get(run.optim_step(adam(1e-1)))
    assert all(math.isfinite(v) for v in (step.metrics or {}).values())
    assert probe(run, tiny.vocab) == start


def test_fr10_masked_item_adds_nothing(service, tiny):
    good, tokens = datum(tiny.encode("a good item")), tiny.encode("a masked item")
    masked, ends = datum(tokens, [0.0] * (len(tokens) - 1)), []
    for data in ([good], [good, masked], [masked, good]):
        run = lora(service, tiny.name)
        train(run, data, 2)
        ends.append(probe(run, tiny.vocab))
    assert ends[0] == ends[1] == ends[2]


def test_optim_step_without_gradient(service, tiny):
    run = lora(service, tiny.name)
    start = probe(run, tiny.vocab)
    get(run.optim_step(adam(1e-2)))
    assert probe(run, tiny.vocab) == start
    assert train(run, [datum(tiny.encode("still works"))], 2)[1] > 0


def test_forward_leaves_gradients_alone(service, tiny):
    ends = []
    for extra in (False, True):
        run = lora(service, tiny.name)
        get(run.forward_backward(probe_data(tiny.vocab), "cross_entropy"))
        if extra:
            get(run.forward(probe_data(tiny.vocab, seed=5), "cross_entropy"))
        get(run.optim_step(adam(1e-2)))
        ends.append(probe(run, tiny.vocab))
    assert ends[0] == ends[1]


# FR-11: losses are sums.

@pytest.mark.parametrize("rank", [8, 0], ids=["lora", "full"])
def test_fr11_sums(service, rank, tiny, tiny_weights):
    import tiny_model
    g = np.random.default_rng(11)
    lengths = [3, 5, 50, 120]
    data, want = [], 0.0
    for n in lengths:
        tokens = [int(t) for t in g.integers(3, tiny.vocab, n + 1)]
        w = np.round(g.random(n) * 2, 3).astype(np.float32)
        data.append(datum(tokens, [float(x) for x in w]))
        lp = tiny_model.logprobs(tiny_weights, tokens[:-1])[np.arange(n), tokens[1:]]
        want -= float((w * lp).sum())
    ends = []
    for cut in (4, 1, 2, 3):  # one call, four calls, two of two, three and one
        run = get(service.create_lora_training_client(base_model=tiny.name, rank=rank, seed=5))
        parts = [get(run.forward_backward(data[i:i + cut], "cross_entropy")) for i in range(0, 4, cut)]
        total = sum(p.metrics["loss:sum"] for p in parts)
        assert abs(total - want) < 1e-4 * want, (cut, total, want)
        for v, p in zip((v for p in parts for v in values(p)), data):
            assert len(v) == p.model_input.length
        get(run.optim_step(sgd(1e-4)))
        ends.append(probe(run, tiny.vocab))
    assert ends.count(ends[0]) == len(ends), "the split of a batch shows in the weights"


def test_fr11_weights_scale_and_sign(service, tiny):
    """Gradients are linear in the weights: any sign and size, exactly for powers of two."""
    tokens = tiny.encode("linear in the weights")
    n = len(tokens) - 1

    def after(*batches):
        run = lora(service, tiny.name)
        for w in batches:
            get(run.forward_backward([datum(tokens, [w] * n)], "cross_entropy"))
        get(run.optim_step(sgd(1e-3)))
        return forward(run, [datum(tokens)])[0]
    base = forward(lora(service, tiny.name), [datum(tokens)])[0]
    assert bits(after(2.0)) == bits(after(1.0, 1.0))
    assert bits(after(1.0, -1.0)) == bits(base)
    up, down = after(0.5).sum() - base.sum(), after(-0.5).sum() - base.sum()
    assert up > 0 > down


def test_cross_entropy_with_several_targets(service, tiny):
    """(N, K) targets: every target of a row is scored against the same distribution."""
    run = lora(service, tiny.name)
    tokens = tiny.encode("rows of targets")
    n, k = len(tokens), tiny.vocab
    table = np.tile(np.arange(k, dtype=np.int64), (n, 1))
    d = types.Datum(model_input=types.ModelInput.from_ints(tokens), loss_fn_inputs=dict(
        target_tokens=types.TensorData.from_numpy(table),
        weights=types.TensorData.from_numpy(np.full((n, k), 1 / 8, np.float32))))
    out = get(run.forward_backward([d], "cross_entropy"))
    got = np.asarray(out.loss_fn_outputs[0]["logprobs"].tolist(), np.float32)
    assert got.shape == (n, k)
    assert np.abs(np.exp(got.astype(np.float64)).sum(1) - 1).max() < 1e-5
    assert abs(out.metrics["loss:sum"] + got.astype(np.float64).sum() / 8) < 1e-4 * abs(out.metrics["loss:sum"])
    one = forward(run, [datum(tokens)])[0]
    assert bits(got[np.arange(n - 1), tokens[1:]]) == bits(one)


# FR-12: optimizer settings come with each step.

def test_fr12_settings_per_step(service, tiny):
    data = probe_data(tiny.vocab)
    settings = [dict(lr=lr, beta1=0.9, beta2=0.95, eps=1e-12, weight_decay=0.01, grad_clip_norm=0.5)
                for lr in (1e-2, 5e-3, 2e-2, 1e-3, 1e-2)]

    def end(steps):
        run = lora(service, tiny.name)
        for s in steps:
            get(run.forward_backward(data, "cross_entropy"))
            get(run.optim_step(adam(**s)))
        return probe(run, tiny.vocab)
    base = end(settings)
    assert end(settings) == base
    for change in (dict(lr=4e-3), dict(beta1=0.5), dict(beta2=0.5), dict(eps=1e-1), dict(weight_decay=0.5)):
        other = list(settings)
        other[2] = dict(settings[2], **change)
        assert end(other) != base, f"{change} in step 3 changed nothing"


def test_fr12_rate_zero_changes_nothing(service, tiny):
    for rank in (8, 0):
        run = get(service.create_lora_training_client(base_model=tiny.name, rank=rank, seed=1))
        train(run, probe_data(tiny.vocab), 1)
        start = probe(run, tiny.vocab)
        train(run, probe_data(tiny.vocab), 1, lr=0.0, weight_decay=0.3)
        assert probe(run, tiny.vocab) == start


def test_fr12_clip(service, tiny):
    """0 clips nothing, a huge norm neither; half the norm halves a plain gradient step."""
    data = probe_data(tiny.vocab, 1)

    def step(clip):
        run = full(service, tiny.name)
        get(run.forward_backward(data, "cross_entropy"))
        out = get(run.optim_step(types.AdamParams(learning_rate=1e3, eps=1e8, grad_clip_norm=clip)))
        return probe(run, tiny.vocab), forward(run, data)[0].astype(np.float64).sum(), out.metrics
    start = forward(full(service, tiny.name), data)[0].astype(np.float64).sum()
    free, up, metrics = step(0.0)
    assert step(1e9)[0] == free
    norm = metrics["grad_norm"]
    assert norm > 0 and up > start
    # The loss falls by rate times the squared norm, to first order.
    assert abs((up - start) / (1e-5 * norm ** 2) - 1) < 0.2, (up - start, norm)
    clipped, half, _ = step(norm / 2)
    assert clipped != free and 0.4 < (half - start) / (up - start) < 0.6


def test_fr12_decay_is_decoupled(service, tiny):
    """Full update, a zero gradient, decay: weights shrink although there is nothing to learn."""
    run = full(service, tiny.name)
    start, tokens = probe(run, tiny.vocab), tiny.encode("decay")
    masked = [datum(tokens, [0.0] * (len(tokens) - 1))]
    get(run.forward_backward(masked, "cross_entropy"))
    get(run.optim_step(adam(1e-1, weight_decay=0.1)))
    assert probe(run, tiny.vocab) != start


# FR-13: policy losses.

RATIOS, SIGNS = (0.5, 0.5, 1.0, 1.0, 1.6, 1.6), (1.0, -1.0) * 3
PPO = (-0.5, 0.8, -1.0, 1.0, -1.2, 1.6)


def ratio_data(run, tokens):
    """One datum per (ratio, advantage): everything else in it has advantage 0."""
    p = forward(run, [datum(tokens)])[0]
    at = len(p) - 1
    for r, a in zip(RATIOS, SIGNS):
        q = np.array(p, np.float32)
        q[at] = np.float32(np.float64(p[at]) - math.log(r))
        adv = np.zeros(len(p))
        adv[at] = a
        yield policy_datum(tokens[:1], tokens[1:], q.tolist(), adv.tolist()), p[at]


@pytest.mark.parametrize("name,config,want", [
    ("importance_sampling", None, (-0.5, 0.5, -1, 1, -1.6, 1.6)),
    ("ppo", None, PPO),
    ("ppo", dict(clip_low_threshold=0.25, clip_high_threshold=1.5), (-0.5, 0.5, -1, 1, -1.5, 1.6)),
])
def test_fr13_values(service, tiny, name, config, want):
    run = lora(service, tiny.name)
    data = [d for d, _ in ratio_data(run, tiny.encode("policy losses are exact"))]
    each = [get(run.forward([d], name, config)).metrics["loss:sum"] for d in data]
    assert np.abs(np.array(each) - want).max() < 1e-5, each
    assert abs(get(run.forward(data, name, config)).metrics["loss:sum"] - sum(want)) < 2e-5


def test_fr13_cispo_and_dro_values(service, tiny):
    run = lora(service, tiny.name)
    pairs = list(ratio_data(run, tiny.encode("policy losses are exact")))
    for config, clip in ((None, (0.0, 4.0)), (dict(clip_low_threshold=0.8, clip_high_threshold=1.2), (0.8, 1.2))):
        for (d, p), r, a in zip(pairs, RATIOS, SIGNS):
            got = get(run.forward([d], "cispo", config)).metrics["loss:sum"]
            assert abs(got + min(max(r, clip[0]), clip[1]) * float(p) * a) < 1e-4, (config, r, a)
    for (d, p), r, a in zip(pairs, RATIOS, SIGNS):
        # Every other token has ratio 1 and advantage 0, so adds nothing.
        got = get(run.forward([d], "dro", dict(beta=0.05))).metrics["loss:sum"]
        assert abs(got + float(p) * a - 0.025 * math.log(r) ** 2) < 1e-4, (r, a)


@pytest.mark.parametrize("name", ["importance_sampling", "ppo"])
def test_fr13_where_the_gradient_vanishes(service, tiny, name):
    """PPO has no gradient only at (0.5, -1) and (1.6, +1); importance sampling never."""
    tokens = tiny.encode("policy losses are exact")
    start = probe(lora(service, tiny.name), tiny.vocab)
    for i, (r, a) in enumerate(zip(RATIOS, SIGNS)):
        run = lora(service, tiny.name)
        d = list(ratio_data(run, tokens))[i][0]
        at, before = d.model_input.length - 1, forward(run, [datum(tokens)])[0]
        get(run.forward_backward([d], name))
        get(run.optim_step(sgd(1e-2)))
        vanishes = name == "ppo" and (r, a) in ((0.5, -1.0), (1.6, 1.0))
        assert (probe(run, tiny.vocab) == start) == vanishes, (r, a)
        if not vanishes:  # and it moves the token the way of the advantage
            moved = float(forward(run, [datum(tokens)])[0][at]) - float(before[at])
            assert moved * a > 0, (r, a, moved)


def test_fr13_gradients_of_the_losses(service, tiny):
    """dL/dp of each policy loss equals that of a cross_entropy with the weight it amounts to."""
    tokens = tiny.encode("the same gradient")

    def after(make):
        run = lora(service, tiny.name)
        make(run)
        get(run.optim_step(sgd(1e-3)))
        return np.concatenate(forward(run, probe_data(tiny.vocab)))
    base = np.concatenate(forward(lora(service, tiny.name), probe_data(tiny.vocab)))
    for i, (r, a) in enumerate(zip(RATIOS, SIGNS)):
        clip12 = min(max(r, 0.8), 1.2)
        for name, config, w in (("importance_sampling", None, r * a), ("cispo", None, r * a),
                                ("cispo", dict(clip_low_threshold=0.8, clip_high_threshold=1.2), clip12 * a),
                                ("dro", dict(beta=0.5), a - 0.5 * math.log(r))):
            def policy(run):
                get(run.forward_backward([list(ratio_data(run, tokens))[i][0]], name, config))

            def plain(run):
                ws = [0.0] * (len(tokens) - 2) + [w]
                get(run.forward_backward([datum(tokens, ws)], "cross_entropy"))
            got, want = after(policy) - base, after(plain) - base
            assert np.abs(got - want).max() <= 2e-3 * np.abs(want).max() + 1e-6, (name, config, r, a)


# FR-14: resume, in one process (after a restart: test_restart.py).

@pytest.mark.parametrize("rank", [8, 0], ids=["lora", "full"])
def test_fr14_resume_is_exact(service, model, rank):
    data = [datum(model.encode(t)) for t in STORIES_TEXT[:3]]
    run = get(service.create_lora_training_client(base_model=model.name, rank=rank, seed=3))
    train(run, data, 3)
    path = get(run.save_state("three")).path
    at_save = probe(run, model.vocab)
    train(run, data, 1)
    want = probe(run, model.vocab)
    assert want != at_save

    again = get(service.create_training_client_from_state_with_optimizer(path))
    info = again.get_info()
    assert info.is_lora == (rank > 0) and (not rank or info.lora_rank == rank)
    assert probe(again, model.vocab) == at_save
    train(again, data, 1)
    assert probe(again, model.vocab) == want

    fresh = get(service.create_training_client_from_state(path))
    assert probe(fresh, model.vocab) == at_save
    train(fresh, data, 1)
    first = probe(fresh, model.vocab)
    assert first != want, "loading without the optimizer kept its moments"
    fresh = get(service.create_training_client_from_state(path))
    train(fresh, data, 1)
    assert probe(fresh, model.vocab) == first


def test_fr14_load_into_a_run(service, tiny):
    """The older form: load_state on a client that exists; gradients pending there are dropped."""
    data = probe_data(tiny.vocab)
    run = lora(service, tiny.name)
    train(run, data, 2)
    path = get(run.save_state("two")).path
    train(run, data, 1)
    want = probe(run, tiny.vocab)
    other = lora(service, tiny.name)
    get(other.forward_backward(probe_data(tiny.vocab, seed=1), "cross_entropy"))
    get(other.load_state_with_optimizer(path))
    train(other, data, 1)
    assert probe(other, tiny.vocab) == want


def test_fr14_save_is_in_order(service, tiny):
    """A save queued between two steps holds the weights between them."""
    data, run = probe_data(tiny.vocab), lora(service, tiny.name)
    queue = []
    for name in ("a", "b"):
        queue += [run.forward_backward(data, "cross_entropy"), run.optim_step(adam(1e-2)), run.save_state(name)]
    done = [get(f) for f in queue]
    other = lora(service, tiny.name)
    for path in (done[2].path, done[5].path):
        train(other, data, 1)
        loaded = get(service.create_training_client_from_state(path))
        assert probe(loaded, tiny.vocab) == probe(other, tiny.vocab)


# FR-15: LoRA options.

def test_fr15_seed(service, tiny):
    ends = []
    for seed in (5, 5, 6):
        run = lora(service, tiny.name, seed=seed)
        train(run, probe_data(tiny.vocab), 1)
        ends.append(probe(run, tiny.vocab))
    assert ends[0] == ends[1] != ends[2]


@pytest.mark.parametrize("rank", [4, 0], ids=["lora", "full"])
def test_fr15_only_the_parts_asked_for(service, tiny, rank):
    """On a model whose attention (or feed-forward) can have no gradient, training only that part
    moves nothing, to the bit; training only the other does."""
    flags = dict(train_attn=False, train_mlp=False, train_unembed=False)
    for name, dead, live in (("test/no-attention", "train_attn", "train_mlp"),
                             ("test/no-mlp", "train_mlp", "train_attn")):
        for part, moves in ((dead, False), (live, True), ("train_unembed", True)):
            try:
                run = get(service.create_lora_training_client(
                    base_model=name, rank=rank, seed=1, **dict(flags, **{part: True})))
            except (tinker.RequestFailedError, tinker.APIStatusError) as e:
                assert rank == 0, e  # a full update of some parts may be refused, in words
                assert "train_" in str(e)
                return
            start = probe(run, tiny.vocab)
            train(run, probe_data(tiny.vocab), 5)
            assert (probe(run, tiny.vocab) != start) == moves, (name, part)


def test_fr15_rank_of_the_head(service, tiny):
    """With the head alone trained, logits change by a matrix of rank r."""
    tokens = [3 + (i * 11) % 256 for i in range(48)]
    n, k = len(tokens), tiny.vocab
    table = types.Datum(model_input=types.ModelInput.from_ints(tokens), loss_fn_inputs=dict(
        target_tokens=types.TensorData.from_numpy(np.tile(np.arange(k, dtype=np.int64), (n, 1))),
        weights=types.TensorData.from_numpy(np.zeros((n, k), np.float32))))
    for rank in (2, 6):
        run = get(service.create_lora_training_client(base_model=tiny.name, rank=rank, seed=1, train_attn=False,
                                                      train_mlp=False))
        before = forward(run, [table])[0].astype(np.float64)
        train(run, probe_data(tiny.vocab), 10, lr=5e-2)
        delta = forward(run, [table])[0].astype(np.float64) - before
        delta -= delta.mean(1, keepdims=True)
        s = np.linalg.svd(delta, compute_uv=False)
        assert s[rank - 1] > 1e-2 and s[rank] < 1e-3 * s[0], (rank, s[:10])


def test_fr15_defaults_train_everything(service):
    """No flags: attention, feed-forward and head all learn."""
    run = get(service.create_lora_training_client(base_model="test/tiny", rank=4, seed=1))
    on = get(service.create_lora_training_client(base_model="test/tiny", rank=4, seed=1, train_attn=True,
                                                 train_mlp=True, train_unembed=True))
    ends = []
    for r in (run, on):
        train(r, probe_data(259), 2)
        ends.append(probe(r, 259))
    assert ends[0] == ends[1]
    for off in ("train_attn", "train_mlp", "train_unembed"):
        r = get(service.create_lora_training_client(base_model="test/tiny", rank=4, seed=1, **{off: False}))
        train(r, probe_data(259), 2)
        assert probe(r, 259) != ends[0], off


def test_fr15_unsupported_options_are_refused(service, tiny):
    user_error(lambda: get(service.create_lora_training_client(
        base_model=tiny.name, optimizer=types.DimuonOptimizerConfig())), "dimuon")
    user_error(lambda: get(service.create_lora_training_client(base_model=tiny.name, rank=-1)), "rank")
    user_error(lambda: get(service.create_lora_training_client(base_model=tiny.name, rank=10 ** 6)), "rank")


def test_base_is_untouched_by_a_full_update(service, tiny):
    tokens = tiny.encode("the base stays")
    base = get(service.create_sampling_client(base_model=tiny.name))
    start = scores(base, tokens)
    run = full(service, tiny.name)
    assert bits(forward(run, [datum(tokens)])[0]) == bits(start)
    train(run, [datum(tokens)], 3)
    moved = scores(sampler_of(run), tokens)
    assert bits(moved) == bits(forward(run, [datum(tokens)])[0]) != bits(start)
    assert bits(scores(base, tokens)) == bits(start)


def test_two_runs_share_a_base(service, tiny):
    """Two adapters of different rank, steps interleaved, end where each ends alone."""
    a_data, b_data = probe_data(tiny.vocab, seed=1), probe_data(tiny.vocab, seed=2)
    want = []
    for rank, data in ((4, a_data), (16, b_data)):
        r = lora(service, tiny.name, rank=rank)
        train(r, data, 3)
        want.append(probe(r, tiny.vocab))
    a, b = lora(service, tiny.name, rank=4), lora(service, tiny.name, rank=16)
    queue = []
    for _ in range(3):
        for r, data in ((a, a_data), (b, b_data)):
            queue += [r.forward_backward(data, "cross_entropy"), r.optim_step(adam(1e-2))]
    for f in queue:
        get(f)
    assert [probe(a, tiny.vocab), probe(b, tiny.vocab)] == want
