"""Trains rack/small: every parameter, from the random start of start.py, over the server's own API with the Tinker SDK.

    TINKER_BASE_URL=... python train.py BASE [--log log.jsonl] [--steps N] [--stop N] [--seed N]

BASE is the name the start folder was added by. One line of JSON per step goes to the log. Killed or stopped early, the same
command goes on after the last checkpoint (every 100 steps), and the weights come out as if it had never stopped: the
examples of a step depend on the seed and the step alone.
"""
import argparse
import json
import math
import os
import time

import tinker
from tinker import types

import start
import tasks

BATCH, EVERY, WARMUP, RATE, DECAY = 256, 100, 200, 2e-3, 0.01


def rate(step, steps):
    """Linear warm-up, then a half cosine down to a hundredth."""
    if step < WARMUP:
        return RATE * (step + 1) / WARMUP
    return RATE * (0.01 + 0.99 * 0.5 * (1 + math.cos(math.pi * (step - WARMUP) / max(1, steps - WARMUP))))


def prompt_ids(text, prompt):
    """What the chat template makes of one user message."""
    return [text.token_to_id("<|user|>"), *text.encode(prompt).ids, start.END, text.token_to_id("<|assistant|>")]


def batch(text, seed, step):
    pairs = [(prompt_ids(text, p), text.encode(a).ids + [start.END]) for _, p, a in tasks.examples(f"{seed}/{step}", BATCH)]
    each = 1 / sum(len(a) for _, a in pairs)  # the loss is the mean over the tokens of the answers
    return [types.Datum(
        model_input=types.ModelInput.from_ints((p + a)[:-1]),
        loss_fn_inputs=dict(target_tokens=(p + a)[1:], weights=[0.0] * (len(p) - 1) + [each] * len(a)))
        for p, a in pairs]


def begin(service, base, log, seed):
    """A new run, or the one the log's last checkpoint is of; and the step to go on with."""
    lines = []
    if os.path.exists(log):
        with open(log, encoding="utf-8") as f:
            lines = [json.loads(line) for line in f]
    saved = [i for i, line in enumerate(lines) if "saved" in line]
    if not saved:
        open(log, "w").close()
        return service.create_lora_training_client(base_model=base, rank=0, seed=seed).result(), 0
    lines = lines[:saved[-1] + 1]
    with open(log, "w", encoding="utf-8") as f:
        f.writelines(json.dumps(line) + "\n" for line in lines)
    return service.create_training_client_from_state_with_optimizer(lines[-1]["saved"]).result(), lines[-1]["step"] + 1


def main():
    a = argparse.ArgumentParser()
    a.add_argument("base")
    a.add_argument("--log", default="log.jsonl")
    a.add_argument("--steps", type=int, default=1600, help="length of the learning rate's schedule")
    a.add_argument("--stop", type=int, help="stop after this many steps all the same")
    a.add_argument("--seed", type=int, default=0)
    a = a.parse_args()

    text = start.tokenizer()
    service = tinker.ServiceClient()
    run, first = begin(service, a.base, a.log, a.seed)
    last = min(a.steps, a.stop or a.steps)
    began, waiting = time.monotonic(), []

    def note(log, **line):
        log.write(json.dumps(line) + "\n")
        log.flush()

    with open(a.log, "a", encoding="utf-8") as log:
        for step in range(first, last):
            lr = rate(step, a.steps)
            waiting.append((step, lr, run.forward_backward(batch(text, a.seed, step), "cross_entropy"), run.optim_step(
                types.AdamParams(learning_rate=lr, beta1=0.9, beta2=0.98, eps=1e-9, weight_decay=DECAY, grad_clip_norm=1.0))))
            save = (step + 1) % EVERY == 0 or step + 1 == last
            while waiting and (save or len(waiting) > 1):  # one step ahead, so that the server never waits for this script
                n, lr, backward, update = waiting.pop(0)
                loss, more = backward.result().metrics["loss:sum"], update.result().metrics or {}
                line = dict(more, step=n, loss=loss, lr=lr, seconds=round(time.monotonic() - began, 1))
                if save and not waiting:
                    line["saved"] = run.save_state(f"step-{n + 1}").result().path
                note(log, **line)
            if (step + 1) % 10 == 0:
                print(f"step {step + 1:5}  loss {loss:.4f}  {time.monotonic() - began:7.1f} s", flush=True)
    print("saved", line["saved"])


if __name__ == "__main__":
    main()
