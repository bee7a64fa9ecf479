"""Fuzzes each parser of foreign bytes until it has had an hour of processor time, over as many calls as it takes.

    python3 .ci/fuzz_hour.py [--seconds 3600] [--slice 300] [--jobs 1] [--keep]

The state and the inputs found are under ~/.cache/smolgym/fuzz. Each line of the closing table is one target: processor and
wall seconds, executions, inputs found, and by how much the worker's memory grew after its first ten seconds. --keep
copies the smallest inputs into the packages' testdata/fuzz, where `go test` runs them.
"""
import argparse
import concurrent.futures
import json
import os
import pathlib
import re
import shutil
import subprocess
import threading
import time

TARGETS = [("model/safetensors", "FuzzParse"), ("model/gguf", "FuzzImport"), ("model/hf", "FuzzConfig"),
           ("tokenizer", "FuzzLoad"), ("tokenizer", "FuzzLoadSentencePiece"), ("tokenizer/chat", "FuzzTemplate")]
ROOT = pathlib.Path(__file__).resolve().parent.parent
HOME = pathlib.Path(os.environ.get("XDG_CACHE_HOME", pathlib.Path.home() / ".cache")) / "smolgym" / "fuzz"
PAGE, TICK = os.sysconf("SC_PAGE_SIZE"), os.sysconf("SC_CLK_TCK")
KEPT, KEPT_BYTES = 60, 4096  # inputs of a target that are committed, and the size of each at most
lock = threading.Lock()


def workers(pid):
    """The processes a fuzzing coordinator started."""
    found = []
    for thread in pathlib.Path(f"/proc/{pid}/task").glob("*/children"):  # any thread may have started one
        try:
            found += map(int, thread.read_text().split())
        except OSError:
            pass  # it has ended
    return found


def usage(pid):
    """Processor seconds and resident bytes of a process, or None when it is gone."""
    try:
        stat = pathlib.Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
        return (int(stat[11]) + int(stat[12])) / TICK, int(stat[21]) * PAGE
    except OSError:
        return None


def run(state, package, target, seconds):
    """One slice; the state is added to and saved."""
    name = f"{package}.{target}"
    binary, cache = HOME / (name.replace("/", "-") + ".test"), HOME / "corpus" / package.replace("/", "-")
    cache.mkdir(parents=True, exist_ok=True)
    began = time.monotonic()
    process = subprocess.Popen(
        [binary, "-test.run=^$", f"-test.fuzz=^{target}$", f"-test.fuzztime={seconds}s", "-test.parallel=1",
         "-test.timeout=0", f"-test.fuzzcachedir={cache}"],
        cwd=ROOT / package, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    used, first, most = {}, {}, {}

    def watch():
        while process.poll() is None:
            for pid in workers(process.pid):
                now = usage(pid)
                if now:
                    used[pid] = now[0]
                    if now[0] > 10:
                        first.setdefault(pid, now[1])
                        most[pid] = max(most.get(pid, 0), now[1])
            time.sleep(1)

    watcher = threading.Thread(target=watch)
    watcher.start()
    text = process.communicate()[0]
    watcher.join()
    execs = [int(n) for n in re.findall(r"execs: (\d+)", text)]
    with lock:
        row = state.setdefault(name, dict(cpu=0.0, execs=0, grown_mb=0.0))
        row["cpu"] += sum(used.values())
        row["wall"] = row.get("wall", 0) + time.monotonic() - began
        row["execs"] += execs[-1] if execs else 0
        row["grown_mb"] = max([row["grown_mb"], *[(most[p] - first[p]) / 2**20 for p in first]])
        row["inputs"] = len(list((cache / target).glob("*"))) if (cache / target).exists() else 0
        if process.returncode != 0:
            row["failed"] = text[-4000:]
        (HOME / "state.json").write_text(json.dumps(state, indent=1))
    print(f"{name}: {row['cpu']:.0f} s, {row['execs']:,} executions" + (", FAILED" if "failed" in row else ""), flush=True)


def keep():
    """The smallest inputs of each target, written where `go test` runs them."""
    for package, target in TARGETS:
        found = HOME / "corpus" / package.replace("/", "-") / target
        files = sorted((f for f in found.glob("*") if f.stat().st_size <= KEPT_BYTES), key=lambda f: (f.stat().st_size, f.name))
        into = ROOT / package / "testdata" / "fuzz" / target
        into.mkdir(parents=True, exist_ok=True)
        for f in files[:: max(1, len(files) // KEPT)][:KEPT]:
            shutil.copy(f, into / f.name)


def main():
    a = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    a.add_argument("--seconds", type=int, default=3600)
    a.add_argument("--slice", type=int, default=300)
    a.add_argument("--jobs", type=int, default=1)
    a.add_argument("--keep", action="store_true")
    a = a.parse_args()
    HOME.mkdir(parents=True, exist_ok=True)
    state = json.loads((HOME / "state.json").read_text()) if (HOME / "state.json").exists() else {}
    for package, target in TARGETS:
        out = HOME / (f"{package}.{target}".replace("/", "-") + ".test")
        subprocess.run(["go", "test", "-c", f"-fuzz=^{target}$", "-o", out, "./" + package], cwd=ROOT, check=True)

    def behind():
        rows = [(state.get(f"{p}.{t}", {}).get("cpu", 0), p, t) for p, t in TARGETS
                if "failed" not in state.get(f"{p}.{t}", {})]
        return [r[1:] for r in sorted(rows) if r[0] < a.seconds]

    with concurrent.futures.ThreadPoolExecutor(a.jobs) as pool:
        while todo := behind()[:a.jobs]:
            list(pool.map(lambda x: run(state, *x, a.slice), todo))
    if a.keep:
        keep()
    print(f"\n{'target':38} {'cpu s':>6} {'wall s':>6} {'executions':>12} {'inputs':>6} {'grown MiB':>9}")
    for name, row in sorted(state.items()):
        print(f"{name:38} {row['cpu']:6.0f} {row['wall']:6.0f} {row['execs']:12,} {row['inputs']:6} {row['grown_mb']:9.1f}")
        if "failed" in row:
            print(row["failed"])
    raise SystemExit(any("failed" in row for row in state.values()))


if __name__ == "__main__":
    main()
