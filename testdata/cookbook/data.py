"""Folders that stand in for the hub's data sets: in the folder where a recipe runs, ORG/NAME is one.

`datasets.load_dataset("openai/gsm8k")` takes a folder of that name before it asks a hub, streamed or not, so no
recipe changes. All rows are generated here.
"""
import json
import random
from pathlib import Path

from model import NAMES, THINGS, WORDS, word_problem


def rows(folder, config, splits):
    """A data set with one config and a JSONL file for each split."""
    folder.mkdir(parents=True, exist_ok=True)
    files = ""
    for split, lines in splits.items():
        (folder / f"{split}.jsonl").write_text("".join(json.dumps(r) + "\n" for r in lines))
        files += f"  - split: {split}\n    path: {split}.jsonl\n"
    (folder / "README.md").write_text(f"---\nconfigs:\n- config_name: {config}\n  data_files:\n{files}---\n")


def chat(g):
    thing = g.choice(THINGS)
    return dict(messages=[
        dict(role="user", content=f"Tell {g.choice(NAMES)} about {thing}."),
        dict(role="assistant", content=f"Here is a {g.choice(WORDS)} line on {thing}. Keep them dry.")])


def gsm(g):
    """Problems whose answers are mostly 4: what a policy that knows only the form can learn in a few steps."""
    answer = 4 if g.random() < 0.9 else g.randint(0, 9)
    return dict(question=word_problem(g), answer=f"They have {answer}.\n#### {answer}")


def preference(g):
    ask = f"\n\nHuman: Do you like {g.choice(THINGS)}?\n\nAssistant:"
    return dict(chosen=f"{ask} Yes, they are {g.choice(WORDS)}.", rejected=f"{ask} Go away, {g.choice(NAMES)}.")


def thoughts(g):
    n = g.randint(10, 99)
    return dict(conversations=[
        {"from": "human", "value": f"Think about {n} {g.choice(THINGS)}."},
        {"from": "gpt", "value": f"Let us think. There are {n} of them. Each one is {g.choice(WORDS)}."}])


def many(row, n, seed):
    g = random.Random(seed)
    return [row(g) for _ in range(n)]


def write(work, sentences):
    """work: the folder to run in; sentences: the package's example text."""
    rows(work / "HuggingFaceH4/no_robots", "default", dict(train=many(chat, 256, 1), test=many(chat, 16, 2)))
    rows(work / "openai/gsm8k", "main", dict(train=many(gsm, 64, 3), test=many(gsm, 8, 4)))
    # The recipe takes 1,024 rows of the test split.
    rows(work / "Anthropic/hh-rlhf", "default", dict(train=many(preference, 128, 5), test=many(preference, 1024, 6)))
    rows(work / "open-thoughts/OpenThoughts3-1.2M", "default", dict(train=many(thoughts, 128, 7)))
    rows(work / "zwhe99/DeepMath-103K", "default", dict(train=[dict(question=question(i)) for i in range(64)]))
    example = work / "tinker_cookbook/example_data"
    example.mkdir(parents=True, exist_ok=True)
    lines = Path(sentences).read_text().splitlines()
    (example / "multilingual.txt").write_text("\n".join(lines[:48]) + "\n")


def question(i):
    return f"What is the limit of series {i}?"
