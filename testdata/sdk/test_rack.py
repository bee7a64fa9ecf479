"""The embedded model: there on an empty box, does what it was taught, and comes out of its recipe to the bit."""
import json
import os
import subprocess
import sys

import pytest
import tinker
from tinker import types

import harness
from harness import get

RACK = harness.REPO / "appliance" / "rack"
sys.path.insert(0, str(RACK / "recipe"))

import evaluate  # noqa: E402
import start  # noqa: E402
import tasks  # noqa: E402
import train  # noqa: E402

BASE = "rack/small"
LOG = [json.loads(line) for line in (RACK / "recipe" / "log.jsonl").read_text().splitlines()]
EVALUATION = json.loads((RACK / "recipe" / "evaluation.json").read_text())


def test_is_there_on_an_empty_box(tmp_path):
    """Listed, counted small, sampled from and trained, with nothing added; the same file after a restart."""
    server = harness.Server(tmp_path / "box").start()
    try:
        listed = json.loads(server.cli("model", "list", "--json").stdout)["models"]
        assert [m["name"] for m in listed] == [BASE]
        assert listed[0]["parameters"] <= 3_000_000
        assert "rack/small (qwen3, 2.7 M parameters)" in server.tail()
        client = server.client()
        assert BASE in [m.model_name for m in client.get_server_capabilities().supported_models]
        run = get(client.create_lora_training_client(base_model=BASE, rank=4, seed=1))
        ids = train.prompt_ids(start.tokenizer(), "What is the capital of France?")
        data = [types.Datum(model_input=types.ModelInput.from_ints(ids[:-1]),
                            loss_fn_inputs=dict(target_tokens=ids[1:], weights=[1.0] * (len(ids) - 1)))]
        assert get(run.forward_backward(data, "cross_entropy")).metrics["loss:sum"] > 0
        refused = server.cli("model", "rm", BASE, check=False)
        assert refused.returncode != 0 and "comes with the program" in refused.stderr, refused.stderr
        server.restart()
        again = json.loads(server.cli("model", "list", "--json").stdout)["models"]
        assert again == listed
        said = server.cli("chat", BASE, "-m", "Reverse: k d a z", "--temperature", 0).stdout.strip()
        assert said == "z a d k"
    finally:
        server.stop()


def test_answers_held_out_prompts(service):
    """40 prompts a task, never trained on; the committed evaluation has 500."""
    sampler = get(service.create_sampling_client(base_model=BASE))
    text, good = start.tokenizer(), []
    for task in tasks.TASKS:
        asked = evaluate.prompts(task, 40, seed=2)
        assert all(tasks.held_out(p) for p, _ in asked)
        said = evaluate.answers(sampler, text, asked)
        exact = sum(s == want for s, (_, want) in zip(said, asked)) / len(asked)
        assert abs(exact - EVALUATION[task]["exact"]) < 0.25, f"{task}: {exact}, committed {EVALUATION[task]}"
        good.append(exact >= 0.6)
    assert sum(good) >= 4


def test_committed_evaluation():
    big = [t for t, e in EVALUATION.items() if e["prompts"] == 500 and e["exact"] >= 0.6]
    assert set(EVALUATION) == set(tasks.TASKS) and len(big) >= 4, EVALUATION


def test_tokenizer_is_the_recipes():
    assert start.tokenizer().to_str(pretty=True) == (RACK / "small" / "tokenizer.json").read_text()


@pytest.fixture
def recipe_sdk(service):
    """The recipe is written for SDKs whose clients are futures, 0.38 and newer."""
    if not hasattr(service.create_lora_training_client(base_model=BASE, rank=1), "result"):
        pytest.skip(f"the recipe needs tinker 0.38, this is {tinker.__version__}")


STEPS = int(os.environ.get("SMOLGYM_RACK_STEPS", 10))


@pytest.fixture
def recipe(server, recipe_sdk, tmp_path):
    """Runs the recipe from its random start up to a step; the log so far."""
    name = f"test/{tmp_path.name}"
    start.write(tmp_path / "start")
    server.add_model(name, tmp_path / "start")
    env = dict(os.environ, TINKER_BASE_URL=server.url, TINKER_API_KEY=harness.KEY, PYTHONDONTWRITEBYTECODE="1")

    def run(stop):
        log = tmp_path / "log.jsonl"
        p = subprocess.run([sys.executable, RACK / "recipe" / "train.py", name, "--log", log, "--stop", str(stop)], env=env,
                           capture_output=True, text=True, timeout=60 + 20 * stop)
        assert harness.ended(p), p.stderr
        return [json.loads(line) for line in log.read_text().splitlines()]

    return run


def test_training_reruns_to_the_bit(recipe):
    """The first steps of the committed log, from the random start: loss and gradient norm are the same doubles. SMOLGYM_RACK_STEPS
    says how many; make test-all runs 200."""
    got = recipe(STEPS)
    assert len(got) == STEPS
    for a, b in zip(got, LOG):
        assert [a[k] for k in ("step", "lr", "loss", "grad_norm")] == [b[k] for k in ("step", "lr", "loss", "grad_norm")]


def test_training_resumes_to_the_bit(recipe):
    """Stopped after four steps and started again, it is where an unbroken run is after eight."""
    recipe(4)
    got = recipe(8)
    assert [x["loss"] for x in got] == [x["loss"] for x in LOG[:8]]
