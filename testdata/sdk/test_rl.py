"""The front page's loop: sample, reward, importance_sampling, step, save."""
import numpy as np
import pytest
from harness import adam, get, policy_datum, prompt
from tinker import types

STEPS, GROUP, LENGTH = 12, 16, 8


def reward_of(tokens, liked):
    """The share of tokens from a set the model does not favour."""
    return sum(t in liked for t in tokens) / len(tokens)


def loop(service, model, seed, shuffled):
    """The mean reward before every step."""
    g = np.random.default_rng(seed)
    liked = set(int(t) for t in g.permutation(np.arange(3, model.vocab))[:model.vocab // 4])
    prompts = [model.encode(t) for t in ("Once upon a time", "The cat", "One day", "She was")]
    run = get(service.create_lora_training_client(base_model=model.name, rank=8, seed=seed))
    curve = []
    for step in range(STEPS):
        sampler = get(run.save_weights_and_get_sampling_client())
        asked = [sampler.sample(prompt(p), num_samples=GROUP, sampling_params=types.SamplingParams(
            max_tokens=LENGTH, temperature=1.0, seed=1000 * seed + 10 * step + i, stop=[])) for i, p in enumerate(prompts)]
        data = []
        rows = [(p, s) for p, f in zip(prompts, asked) for s in get(f).sequences]
        rewards = np.array([reward_of(s.tokens, liked) for _, s in rows])
        curve.append(float(rewards.mean()))
        paid = g.permutation(rewards) if shuffled else rewards
        paid = paid.reshape(len(prompts), GROUP)
        advantages = (paid - paid.mean(1, keepdims=True)).ravel() / (paid.std() + 1e-6)
        for (p, s), a in zip(rows, advantages):
            data.append(policy_datum(p, s.tokens, s.logprobs, [float(a) / LENGTH] * len(s.tokens)))
        loss = get(run.forward_backward(data, "importance_sampling")).metrics["loss:sum"]
        # On policy every ratio is 1, so the loss is minus the sum of the advantages.
        assert abs(loss + float(advantages.sum())) < 1e-3
        get(run.optim_step(adam(1e-2)))
    path = get(run.save_state(f"rl-{seed}")).path
    assert path == f"tinker://{run.model_id}/weights/rl-{seed}"
    return curve


def rise(curve):
    return float(np.mean(curve[-3:]) - np.mean(curve[:2]))


def test_reward_rises_in_five_of_five_seeds_and_not_when_shuffled(service, model):
    true = [rise(loop(service, model, seed, False)) for seed in range(1, 6)]
    null = [rise(loop(service, model, seed, True)) for seed in range(1, 6)]
    print("rise", np.round(true, 3), "shuffled", np.round(null, 3))
    assert min(true) > 0.15, (true, null)
    # Without the link from reward to sample the steps are a random walk, at times upwards.
    assert max(null) < 0.5 * min(true), (true, null)
    assert np.mean(null) < 0.2 * np.mean(true), (true, null)


@pytest.mark.parametrize("loss", ["ppo", "cispo"])
def test_other_policy_losses_learn(service, tiny, loss):
    liked = set(range(3, 67))
    run = get(service.create_lora_training_client(base_model=tiny.name, rank=8, seed=1))
    curve = []
    for step in range(8):
        sampler = get(run.save_weights_and_get_sampling_client())
        seqs = get(sampler.sample(prompt(tiny.encode("go")), 32, types.SamplingParams(
            max_tokens=LENGTH, seed=step, stop=[]))).sequences
        r = np.array([reward_of(s.tokens, liked) for s in seqs])
        curve.append(float(r.mean()))
        a = (r - r.mean()) / (r.std() + 1e-6) / LENGTH
        data = [policy_datum(tiny.encode("go"), s.tokens, s.logprobs, [float(x)] * LENGTH) for s, x in zip(seqs, a)]
        for _ in range(2):  # the second time off policy
            get(run.forward_backward(data, loss))
            get(run.optim_step(adam(1e-2)))
    assert rise(curve) > 0.15, curve
