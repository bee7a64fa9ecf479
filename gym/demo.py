"""A model learns a task it was never taught, in front of you. `make demo` runs this.

rack/small can reverse letters, and it can write them in capitals; it was never asked for both. A few supervised steps show it the
form of an answer, then reinforcement learning does the rest. The script holds the task, the reward and the loop; the server
holds the model. Everything below is the official Tinker SDK.
"""
import argparse
import json
import os
import random
import statistics
import sys
import time
import urllib.request
import warnings

import plot
import tinker
from tinker import types
from tokenizers import Tokenizer

BASE, LETTERS = "rack/small", "abcdefghijklmnopqrstuvwxyz"
RANK, BATCH = 16, 32                          # of the adapter; examples in a supervised step
WARM_RATE, WARM_ENOUGH, WARM_MOST = 5e-4, 0.35, 40
PROMPTS, GROUP, RATE, STEPS = 32, 8, 5e-4, 40  # of a step of reinforcement learning, and how many


def problem(r):
    """One prompt and its answer."""
    letters = [r.choice(LETTERS) for _ in range(r.randint(3, 7))]
    return "Backwards in capitals: " + " ".join(letters), " ".join(reversed(letters)).upper()


def problems(r, n, apart=frozenset()):
    """n different problems, none of them in apart."""
    found = {}
    while len(found) < n:
        prompt, answer = problem(r)
        if prompt not in apart:
            found[prompt] = answer
    return list(found.items())


def reward(said, answer):
    return float(said == answer)


class Task:
    """The SDK's objects for one seed, and what is the same for both phases."""

    def __init__(self, service, tokenizer, seed):
        self.service, self.text, self.seed = service, tokenizer, seed
        self.end = tokenizer.token_to_id("<|end|>")
        self.test = problems(random.Random(f"test/{seed}"), 64)
        self.dev = problems(random.Random(f"dev/{seed}"), 128, apart=dict(self.test))
        self.apart = dict(self.test) | dict(self.dev)

    def prompt(self, prompt):
        """The ids of the chat template around one message."""
        t = self.text
        return [t.token_to_id("<|user|>"), *t.encode(prompt).ids, self.end, t.token_to_id("<|assistant|>")]

    def said(self, tokens):
        return self.text.decode([t for t in tokens if t != self.end])

    def params(self, **more):
        return types.SamplingParams(max_tokens=16, stop=[self.end], **more)

    def exact(self, sampler, problems):
        """The share of problems whose greedy answer is exactly right."""
        waiting = [sampler.sample(prompt=types.ModelInput.from_ints(self.prompt(p)), num_samples=1,
                                  sampling_params=self.params(temperature=0.0)) for p, _ in problems]
        return statistics.mean(self.said(w.result().sequences[0].tokens) == a for w, (_, a) in zip(waiting, problems))

    def step(self, trainer, data, loss, rate):
        """forward_backward and optim_step, sent together."""
        backward = trainer.forward_backward(data, loss)
        update = trainer.optim_step(types.AdamParams(learning_rate=rate))
        update.result()
        return backward.result()


def datum(prompt, tokens, **each):
    """Position i predicts token i+1; what is said of the prompt's positions is 0."""
    n, whole = len(prompt) - 1, prompt + tokens
    return types.Datum(model_input=types.ModelInput.from_ints(whole[:-1]),
                       loss_fn_inputs=dict(target_tokens=whole[1:], **{k: [0.0] * n + v for k, v in each.items()}))


def warm_up(task, trainer, report):
    """Supervised steps until one in three greedy answers is right."""
    r = random.Random(f"warm/{task.seed}")
    for step in range(WARM_MOST):
        data = []
        for prompt, answer in problems(r, BATCH, task.apart):
            tokens = task.text.encode(answer).ids + [task.end]
            data.append(datum(task.prompt(prompt), tokens, weights=[1.0] * len(tokens)))
        loss = task.step(trainer, data, "cross_entropy", WARM_RATE).metrics["loss:sum"] / sum(
            sum(d.loss_fn_inputs["weights"].data) for d in data)
        share = task.exact(trainer.save_weights_and_get_sampling_client().result(), task.dev)
        report(step, loss, share)
        if share >= WARM_ENOUGH:
            return step + 1
    return WARM_MOST


def learn(task, trainer, report, shuffled=False, steps=STEPS):
    """Sample a group per prompt, score it, compare within the group, learn. Returns the mean rewards."""
    r, means = random.Random(f"learn/{task.seed}"), []
    for step in range(steps):
        sampler = trainer.save_weights_and_get_sampling_client().result()
        batch = problems(r, PROMPTS, task.apart)
        waiting = [sampler.sample(prompt=types.ModelInput.from_ints(task.prompt(p)), num_samples=GROUP,
                                  sampling_params=task.params(temperature=1.0, seed=r.randrange(1 << 30)))
                   for p, _ in batch]
        groups = [w.result().sequences for w in waiting]
        rewards = [[reward(task.said(s.tokens), a) for s in group] for group, (_, a) in zip(groups, batch)]
        means.append(statistics.mean(map(statistics.mean, rewards)))
        if shuffled:  # the control: the same rewards, given to the wrong answers
            flat = [x for row in rewards for x in row]
            r.shuffle(flat)
            rewards = [flat[i:i + GROUP] for i in range(0, len(flat), GROUP)]
        data = []
        for group, row, (prompt, _) in zip(groups, rewards, batch):
            mean = statistics.mean(row)
            for s, x in zip(group, row):
                if advantage := x - mean:
                    data.append(datum(task.prompt(prompt), s.tokens, logprobs=s.logprobs,
                                      advantages=[advantage] * len(s.tokens)))
        if data:  # not when every group agrees
            task.step(trainer, data, "importance_sampling", RATE * (1 - step / steps))
        report(step, means[-1])
    return means


def main():
    a = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    a.add_argument("--seed", type=int, default=0)
    a.add_argument("--picture", default="demo.svg", help="where the curves go")
    a.add_argument("--json", help="where the numbers go")
    a = a.parse_args()
    warnings.simplefilter("ignore", FutureWarning)
    began = time.monotonic()

    url = os.environ["TINKER_BASE_URL"]
    with urllib.request.urlopen(f"{url}/{BASE}/resolve/main/tokenizer.json") as f:
        tokenizer = Tokenizer.from_str(f.read().decode())
    service = tinker.ServiceClient()
    task = Task(service, tokenizer, a.seed)
    trainer = service.create_lora_training_client(base_model=BASE, rank=RANK, seed=a.seed).result()

    prompt, answer = task.test[0]
    print(f"The task: {prompt!r} -> {answer!r}. {BASE} has never seen it.\n")
    before = task.exact(trainer.save_weights_and_get_sampling_client().result(), task.test)
    print(f"Before          {bar(before)} of {len(task.test)} test prompts answered exactly")

    print("\nWarm-up: supervised, until one in three is right")
    warm_up(task, trainer, lambda step, loss, share: print(
        f"  step {step + 1:2}    loss {loss:.3f}    {bar(share)}", flush=True))
    warm = task.exact(trainer.save_weights_and_get_sampling_client().result(), task.test)
    print(f"After warm-up   {bar(warm)}")
    saved = trainer.save_state("after-warm-up").result().path

    print(f"\nReinforcement learning: {PROMPTS} prompts a step, {GROUP} samples each, group-relative advantages")
    rewards = learn(task, trainer, progress)
    after = task.exact(trainer.save_weights_and_get_sampling_client().result(), task.test)
    final = trainer.save_state("after-rl").result().path
    print(f"After learning  {bar(after)}")

    print("\nThe control: the same, but the rewards of each step are given to the wrong answers")
    control = service.create_training_client_from_state(saved).result()
    noise = learn(task, control, progress, shuffled=True)
    shuffled = task.exact(control.save_weights_and_get_sampling_client().result(), task.test)
    print(f"After that      {bar(shuffled)}\n")

    print(plot.lines({"rewards": rewards, "shuffled": noise}))
    print(f"      reward against step: * rewards, · rewards shuffled ({len(rewards)} steps)\n")
    plot.svg(a.picture, {"rewards": rewards, "shuffled (control)": noise},
             "rack/small learns to write backwards in capitals", "step of reinforcement learning", "mean reward",
             f"greedy exact match on 64 new prompts: {warm:.2f} → {after:.2f} (shuffled: {shuffled:.2f})")
    result = dict(seed=a.seed, before=before, warm=warm, after=after, shuffled=shuffled, rewards=rewards, control=noise,
                  seconds=round(time.monotonic() - began, 1), checkpoint=final)
    if a.json:
        with open(a.json, "w", encoding="utf-8") as f:
            json.dump(result, f)
    print(f"Greedy exact match on 64 prompts never trained on: {warm:.2f} after warm-up, {after:.2f} after learning, "
          f"{shuffled:.2f} with shuffled rewards.")
    print(f"{result['seconds']:.0f} s. The picture is {a.picture}; the checkpoint is\n  {final}")
    return verdict(warm, after, shuffled)


def bar(share, width=24):
    return f"{'█' * round(share * width):░<{width}} {share:.2f}"


def progress(step, reward):
    if step % 5 == 4 or step == 0:
        print(f"  step {step + 1:2}    reward {bar(reward)}", flush=True)


def verdict(warm, after, shuffled):
    """Exit code 1, and why, unless the model learned from the rewards."""
    wrong = []
    if not 0.15 <= warm <= 0.6:
        wrong.append(f"after the warm-up {warm:.2f} is not between 0.15 and 0.6")
    if after < warm + 0.2:
        wrong.append(f"learning gained {after - warm:.2f}, not 0.2")
    if shuffled >= warm + 0.1:
        wrong.append(f"shuffled rewards gained {shuffled - warm:.2f}, not less than 0.1")
    for line in wrong:
        print("This is not what should happen:", line, file=sys.stderr)
    return 1 if wrong else 0


if __name__ == "__main__":
    code = main()
    sys.stdout.flush()
    os._exit(code)  # the SDK's transport can hang on to its threads at exit
