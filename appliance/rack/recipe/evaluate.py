"""Greedy exact match on prompts that were never trained on, task by task.

    TINKER_BASE_URL=... python evaluate.py NAME|tinker://... [--prompts N] [--to FILE] [--wrong]

A prompt is asked once; a task that has fewer held-out prompts than asked for is measured on those it has.
"""
import argparse
import json

import tinker
from tinker import types

import start
import tasks
import train


def prompts(task, n, seed=1):
    """Up to n different held-out examples."""
    found, seen = [], set()
    for _, prompt, answer in tasks.examples(seed, 20 * n, [task], held=True):
        if prompt not in seen and len(found) < n:
            seen.add(prompt)
            found.append((prompt, answer))
    return found


def answers(sampler, text, asked):
    """What it says to each prompt, greedily."""
    params = types.SamplingParams(max_tokens=32, temperature=0.0, stop=[start.END])
    waiting = [sampler.sample(prompt=types.ModelInput.from_ints(train.prompt_ids(text, p)), num_samples=1,
                              sampling_params=params) for p, _ in asked]
    return [text.decode([t for t in w.result().sequences[0].tokens if t != start.END]) for w in waiting]


def main():
    a = argparse.ArgumentParser()
    a.add_argument("model")
    a.add_argument("--prompts", type=int, default=500)
    a.add_argument("--to")
    a.add_argument("--wrong", action="store_true", help="show three wrong answers of each task")
    a = a.parse_args()

    text = start.tokenizer()
    service = tinker.ServiceClient()
    path = a.model.startswith("tinker://")
    sampler = service.create_sampling_client(**{"model_path" if path else "base_model": a.model}).result()
    result = {}
    for task in tasks.TASKS:
        asked = prompts(task, a.prompts)
        said = answers(sampler, text, asked)
        right = sum(s == want for s, (_, want) in zip(said, asked))
        result[task] = dict(exact=round(right / len(asked), 4), prompts=len(asked))
        print(f"{task:9} {right:4} of {len(asked):4}  {right / len(asked):.3f}", flush=True)
        if a.wrong:
            for (p, want), s in [x for x in zip(asked, said) if x[0][1] != x[1]][:3]:
                print(f"          {p!r} -> {s!r}, not {want!r}")
    if a.to:
        with open(a.to, "w", encoding="utf-8") as f:
            json.dump(result, f, indent=2)
            f.write("\n")


if __name__ == "__main__":
    main()
