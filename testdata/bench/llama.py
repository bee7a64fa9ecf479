"""llama.cpp on the same machine, as its llama-batched-bench measures it."""
import json
import subprocess
from pathlib import Path


class Bench:
    """A model file under the programs of a folder."""

    def __init__(self, folder, model, threads):
        self.binary, self.model, self.threads = Path(folder) / "llama-batched-bench", model, threads
        if not self.binary.exists():
            raise RuntimeError(f"LLAMA_BIN: no {self.binary}; bench.py --help says how it is built")

    def version(self):
        p = subprocess.run([self.binary, "--version"], capture_output=True, text=True, check=True)
        return next(line.removeprefix("version: ") for line in (p.stdout + p.stderr).splitlines() if line.startswith("version"))

    def run(self, prompt, new, batch):
        """Tokens a second of the pass over a prompt, and of `new` decoding steps of `batch` sequences behind it. Each sequence
        has keys and values of its own (-pps copies them), so that a step's work is that of as many different prompts."""
        out = subprocess.run(
            [str(x) for x in (
                self.binary, "-m", self.model, "-t", self.threads, "-tb", self.threads, "-c", batch * (prompt + new),
                "-npp", prompt, "-ntg", new, "-npl", batch, "-pps", "--output-format", "jsonl")],
            capture_output=True, text=True, check=True)
        found = [json.loads(line) for line in out.stdout.splitlines() if line.startswith("{")]
        if len(found) != 1 or (found[0]["pp"], found[0]["tg"], found[0]["pl"]) != (prompt, new, batch):
            raise RuntimeError(f"llama-batched-bench gave no figure:\n{out.stdout}\n{out.stderr[-2000:]}")
        return found[0]["speed_pp"], found[0]["speed_tg"]
