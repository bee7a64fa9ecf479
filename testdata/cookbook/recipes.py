"""The cookbook's recipes, unmodified, against a server of their own: python recipes.py [NAME...]

Each runs as `python -m tinker_cookbook.recipes...` in a folder where data sets stand in for the hub's
(data.py) and tokenizers come from the server by HF_ENDPOINT, and is judged by its own metrics.jsonl. Prints the table of docs/cookbook.md.
"""
import json
import os
import random
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from importlib.util import find_spec
from pathlib import Path

HERE = Path(__file__).resolve().parent
os.environ.update(TINKER_TELEMETRY="0", TINKER_API_KEY="tml-test", HF_HUB_OFFLINE="1", OMP_NUM_THREADS="2",
                  TOKENIZERS_PARALLELISM="false", PYTHONDONTWRITEBYTECODE="1")
os.environ.pop("TINKER_BASE_URL", None)
sys.dont_write_bytecode = True
sys.path[:0] = [str(HERE), str(HERE.parent / "sdk")]

import data  # noqa: E402
import harness  # noqa: E402
import model  # noqa: E402

MODEL, TEACHER, THINKER = "Qwen/Qwen3-4B-Instruct-2507:tiny", "Qwen/Qwen3.6-35B-A3B", "Qwen/Qwen3.5-4B"
RENDERER = "qwen3_instruct"
LIMIT = 420  # seconds a recipe may take


class Ran:
    """A finished recipe: its folder and metrics."""

    def __init__(self, box, log):
        self.box, self.log = box, log

    def series(self, name):
        path = self.log / "metrics.jsonl"
        out = [r[name] for r in map(json.loads, path.read_text().splitlines()) if name in r]
        assert len(out) >= 3, f"{name} was logged {len(out)} times in {path}"
        return out

    def ends(self, name, k=2):
        """The means of the first and of the last k values."""
        s = self.series(name)
        return sum(s[:k]) / k, sum(s[-k:]) / k


def falls(name, factor, k=1):
    def check(ran):
        a, b = ran.ends(name, k)
        return b <= factor * a, f"{name} {a:.3f} → {b:.3f}", f"at most {factor} of the first"
    return check


def rises(name, by, k=2):
    def check(ran):
        a, b = ran.ends(name, k)
        return b >= a + by, f"{name} {a:.3f} → {b:.3f}", f"by at least {by}"
    return check


def dpo(ran):
    loss, accuracy = ran.series("dpo_loss"), ran.series("accuracy")
    ok = loss[-1] <= 0.8 * loss[0] and accuracy[-1] >= 0.9
    return ok, f"dpo_loss {loss[0]:.3f} → {loss[-1]:.3f}, accuracy {accuracy[-1]:.2f}", "at most 0.8 of the first, accuracy 0.9"


def created(ran):
    lines = [json.loads(x) for x in (ran.box.work / "languages.jsonl").read_text().splitlines()]
    labels = {x["messages"][1]["content"] for x in lines}
    return len(lines) >= 40, f"{len(lines)} of 48 sentences labelled, {len(labels)} labels", "at least 40"


def true_thinking(ran):
    out = json.loads((ran.box.work / "runs/tts-experiment/tts_results.json").read_text())
    errors = [p["error"] for p in out["problems"] if "error" in p]
    scores = [s for p in out["problems"] for s in p.get("per_step_tts", [])]
    ok = not errors and len(out["problems"]) == 3 and scores and all(0 <= s <= 1 for s in scores)
    return ok, f"{len(out['problems'])} problems, {len(scores)} steps scored{'; ' + errors[0][:200] if errors else ''}", "every step in [0, 1]"


class Box:
    """The server, its models, the checkpoints the recipes start from, and the folder they run in."""

    def __init__(self, root):
        self.root, self.work = root, root / "work"
        self.server = harness.Server(root / "box")

    def start(self):
        folder = base_model()
        self.server.start()
        for name in (MODEL, TEACHER, THINKER):
            self.server.add_model(name, folder)
        self.work.mkdir()
        package = Path(find_spec("tinker_cookbook").origin).parent
        data.write(self.work, package / "example_data/multilingual.txt")
        from tokenizers import Tokenizer
        tok = Tokenizer.from_file(str(Path(folder) / "tokenizer.json"))
        g = random.Random(11)

        def encode(pair):
            p, a = (tok.encode(x).ids for x in pair)
            return harness.datum(p + a, start=len(p) - 1)
        tasks = (model.gsm, rambling, model.who, model.guess, model.calculator)
        # The format, by a short fine-tune through the server: every recipe of reinforcement starts from it.
        self.warm, _ = self.tune("warm", [[encode(tasks[i % 5](g)) for i in range(20)] for _ in range(8)], 2e-3)
        # A teacher that prefers one of the answers the student gives to the questions of the distillation.
        said = [(model.ask(("user", data.question(i))), "\\boxed{7}<|im_end|>") for i in range(64, 80)]
        _, self.teacher = self.tune("teacher", [[encode(s) for s in said]] * 6, 5e-3)

    def tune(self, name, batches, rate):
        """(checkpoint to train from, checkpoint to sample from)"""
        service = self.server.client()
        run = harness.get(service.create_lora_training_client(
            base_model=MODEL, rank=16, seed=3, user_metadata=dict(renderer_name=RENDERER)))
        loss = []
        for batch in batches:
            f, o = run.forward_backward(batch, "cross_entropy"), run.optim_step(harness.adam(rate))
            loss.append(harness.get(f).metrics["loss:sum"])
            harness.get(o)
        paths = harness.get(run.save_state(name)).path, harness.get(run.save_weights_for_sampler(name)).path
        service.close("success").result(timeout=harness.WAIT)
        print(f"cookbook: {name}: loss {loss[0]:.1f} to {loss[-1]:.1f} in {len(loss)} steps", file=sys.stderr, flush=True)
        return paths

    def run(self, name):
        """(ok, result, margin, seconds, command)"""
        module, args, start, check = RECIPES[name]
        log = self.work / "runs" / name
        if start:
            log.mkdir(parents=True)
            # The recipe has no option for it, so it goes on from its own list of checkpoints.
            (log / "checkpoints.jsonl").write_text(json.dumps(dict(name="warm", batch=0, epoch=0, state_path=self.warm)) + "\n")
        args = [a.format(log=log, warm=self.warm, teacher=self.teacher, model=MODEL, renderer=RENDERER, work=self.work)
                for a in args]
        script = [module] if module.endswith(".py") else ["-m", "tinker_cookbook.recipes." + module]
        if script[0] != "-m":
            script = [str(HERE / module)]
        # Tokenizers come from the server, as from a hub; each recipe starts with an empty cache.
        env = dict(os.environ, TINKER_BASE_URL=self.server.url, HF_ENDPOINT=self.server.url, HF_HUB_OFFLINE="0",
                   HF_HOME=str(self.root / "hf" / name), HF_HUB_DISABLE_TELEMETRY="1",
                   TINKER_COOKBOOK_RUNS_DIR=str(self.work / "runs"), COLUMNS="100")
        began, out = time.monotonic(), self.root / f"{name}.out"
        with open(out, "wb") as f:
            try:
                code = subprocess.run([sys.executable, *script, *args], cwd=self.work, env=env, stdout=f, stderr=f,
                                      stdin=subprocess.DEVNULL, timeout=LIMIT).returncode
            except subprocess.TimeoutExpired:
                code = f"none within {LIMIT} s"
        took = time.monotonic() - began
        command = " ".join([script[-1] if script[0] == "-m" else module,
                            *(a for a in args if "log_path" not in a)]).replace(str(self.work) + "/", "")
        for path, word in ((self.warm, "WARM"), (self.teacher, "TEACHER")):
            command = command.replace(path, word)
        if code != 0:
            tail = "\n".join(out.read_text(errors="replace").splitlines()[-25:])
            return False, f"exit {code}:\n{tail}", "finishes", took, command
        try:
            return *check(Ran(self, log)), took, command
        except (AssertionError, OSError, KeyError) as e:
            return False, f"{type(e).__name__}: {e}", "metrics", took, command


def rambling(g):
    """An answer that goes on after the number, for the recipe whose reward asks the policy to stop."""
    while True:
        prompt, answer = model.arithmetic(g)
        if " " in answer:
            return prompt, answer


def base_model():
    """The folder of the model, cached by the text of the script that makes it."""
    import hashlib
    key = hashlib.sha256((HERE / "model.py").read_bytes()).hexdigest()[:16]
    cache = Path(os.environ.get("SMOLGYM_COOKBOOK_CACHE", Path.home() / ".cache/smolgym/cookbook-model"))
    folder = cache / key
    if not folder.exists():
        cache.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=cache) as tmp:
            subprocess.run([sys.executable, str(HERE / "model.py"), tmp + "/m"], check=True)
            os.rename(tmp + "/m", folder)
    return folder


GSM = "tinker_cookbook.recipes.math_rl.math_env:Gsm8kDatasetBuilder"
ROBOTS = "tinker_cookbook.recipes.chat_sl.chat_datasets:NoRobotsBuilder"
COMMON = ["dataset_builder.common_config.model_name_for_tokenizer={model}",
          "dataset_builder.common_config.renderer_name={renderer}", "dataset_builder.common_config.max_length=256"]
HERE_LOG = ["model_name={model}", "log_path={log}"]
GO_ON = "behavior_if_log_dir_exists=resume"

# name: module, arguments, starts from the warm checkpoint by its list, check
RECIPES = {
    "sl_basic": ("sl_basic", [
        *HERE_LOG, f"dataset_builder={ROBOTS}", *COMMON, "dataset_builder.common_config.batch_size=16",
        "learning_rate=5e-3", "max_steps=8", "eval_every=4"], False, falls("train_mean_nll", 0.7)),
    "sl_loop": ("sl_loop", [*HERE_LOG, "batch_size=16", "learning_rate=5e-3", "max_steps=8", "save_every=4",
                            "max_length=256"], False, falls("train_mean_nll", 0.7)),
    "rl_basic": ("rl_basic", [
        *HERE_LOG, "load_checkpoint_path={warm}", f"dataset_builder={GSM}", "dataset_builder.batch_size=4",
        "dataset_builder.group_size=8", "dataset_builder.renderer_name={renderer}",
        "dataset_builder.model_name_for_tokenizer={model}", "learning_rate=5e-3", "max_tokens=12", "max_steps=12"],
        False, rises("env/all/reward/total", 0.25)),
    "rl_loop": ("rl_loop", [*HERE_LOG, "batch_size=4", "group_size=16", "learning_rate=5e-3", "max_tokens=12",
                            "max_steps=12", "loss_fn=importance_sampling"], True, rises("reward/total", 0.25)),
    "math_rl": ("math_rl.train", [
        *HERE_LOG, "env=arithmetic", "load_checkpoint_path={warm}", "group_size=8", "groups_per_batch=6", "max_tokens=8",
        "learning_rate=5e-3", "loss_fn=importance_sampling", "max_steps=8", GO_ON], False,
        rises("env/all/reward/total", 0.02)),
    "dpo": ("preference.dpo.train", [*HERE_LOG, "dataset=hhh", "load_checkpoint_path={warm}", "batch_size=16",
                                     "learning_rate=2e-3", "max_length=256", "max_steps=8", GO_ON], False, dpo),
    "shorter": ("preference.shorter.train", [
        *HERE_LOG, "renderer_name={renderer}", "batch_size=4", "group_size=8", "learning_rate=5e-3", "max_tokens=40",
        "eval_every=0", "max_steps=8", GO_ON], True, falls("env/all/ac_tokens_per_turn", 0.75, 2)),
    "on_policy": ("distillation.on_policy_distillation", [
        *HERE_LOG, "teacher_model={model}", "teacher_checkpoint={teacher}", "load_checkpoint_path={warm}", "dataset=deepmath",
        "group_size=16", "groups_per_batch=4", "learning_rate=3e-3", "max_tokens=12", "lora_rank=16", "eval_every=0",
        "max_steps=16", GO_ON], False, falls("teacher_kl", 0.7, 2)),
    "off_policy": ("distillation.off_policy_reasoning", [
        *HERE_LOG, "renderer_name={renderer}", "batch_size=16", "max_prompts=128", "buffer_size=64", "learning_rate=5e-3",
        "lora_rank=16", "max_length=256", "eval_every=0", "max_steps=8", GO_ON], False, falls("train_mean_nll", 0.7)),
    "off_policy_topk": ("off_policy_topk.py", ["{model}", "{renderer}", "{teacher}", "{log}"], False,
                        falls("train/loss:sum", 0.8)),
    "guess_number": ("multiplayer_rl.guess_number.train", [
        *HERE_LOG, "renderer_name={renderer}", "group_size=8", "batch_size=2", "learning_rate=5e-3", "max_tokens=8",
        "eval_every=0", "save_every=0", "max_steps=6", GO_ON], True, rises("env/all/reward/total", 1.0)),
    "prompt_data": ("prompt_distillation.create_data", ["output_file={work}/languages.jsonl"], False, created),
    "prompt_train": ("prompt_distillation.train", [
        f"model_name={TEACHER}", "log_path={log}", "file_path={work}/languages.jsonl", "learning_rate=5e-3", "batch_size=8",
        "num_epochs=3", "max_length=512", "eval_every=0", "save_every=0", "max_steps=12", GO_ON], False,
        falls("train_mean_nll", 0.7, 2)),
    "true_thinking": ("true_thinking_score.run_small_experiment", [], False, true_thinking),
    "tool_episode": ("tool_episode.py", ["{model}", "{warm}", "{log}"], False, rises("reward", 0.2)),
}


def main():
    names = sys.argv[1:] or list(RECIPES)
    with tempfile.TemporaryDirectory(prefix="cookbook-") as tmp:
        root = Path(os.environ.get("SMOLGYM_COOKBOOK_KEEP", tmp)).resolve()
        root.mkdir(parents=True, exist_ok=True)
        box = Box(root)
        failed = 0
        try:
            box.start()
            print("| recipe | command | result | margin | seconds |\n| --- | --- | --- | --- | --- |", flush=True)

            def go(name):
                out = {name: box.run(name)}
                if name == "prompt_data" and "prompt_train" in names and out[name][0]:
                    out["prompt_train"] = box.run("prompt_train")
                return out
            with ThreadPoolExecutor(2) as pool:
                first = [n for n in names if n != "prompt_train" or "prompt_data" not in names]
                for outs in pool.map(go, first):
                    for name, (ok, result, margin, took, command) in outs.items():
                        failed += not ok
                        print(f"| {name} | `{command}` | {result if ok else 'FAILED: ' + result} | {margin} | {took:.0f} |", flush=True)
            box.server.alive()
        finally:
            box.server.stop()
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
