"""Fuzzes each parser of foreign bytes for an hour, over as many calls as it takes.

    python3 .ci/fuzz_hour.py [--seconds 3600] [--clock wall|cpu] [--slice 3600] [--jobs 1] [--keep] [TARGET ...]

The hour is of wall time, or with --clock cpu of the worker's processor time; the closing table has both. TARGET is part
of the name of a target; without one all take part. A slice is one run of the fuzz engine: long ones, since a leak shows
in a process that lives long. An interrupt ends the running slices; what they did counts. The state and the inputs found
are under ~/.cache/smolgym/fuzz.

The engine ends a target whose input took ten seconds, which happens to any input when the machine gives the worker no
processor. Such a stop counts as starved, and the target goes on, if the worker's threads had waited for a processor for
most of these seconds and the input alone passes in a second or two of processor time. Anything else has failed, and
stays so until its state file is removed.

"live MiB" is by how much live memory grew in one process since its first executions (package model/growth, which fails a
target past 50), "resident MiB" by how much the system's view of the same process grew after its first ten processor
seconds, garbage included. --keep copies the smallest inputs to testdata/fuzz, where `go test` runs them.
"""
import argparse
import collections
import concurrent.futures
import json
import os
import pathlib
import re
import shutil
import signal
import subprocess
import threading
import time

TARGETS = [("model/safetensors", "FuzzParse"), ("model/gguf", "FuzzImport"), ("model/hf", "FuzzConfig"),
           ("tokenizer", "FuzzLoad"), ("tokenizer", "FuzzLoadSentencePiece"), ("tokenizer/chat", "FuzzTemplate")]
ROOT = pathlib.Path(__file__).resolve().parent.parent
HOME = pathlib.Path(os.environ.get("XDG_CACHE_HOME", pathlib.Path.home() / ".cache")) / "smolgym" / "fuzz"
PAGE, TICK = os.sysconf("SC_PAGE_SIZE"), os.sysconf("SC_CLK_TCK")
KEPT, KEPT_BYTES = 60, 4096  # inputs of a target that are committed, and the size of each at most
COLLECT = "20"  # GOGC: the engine holds 100 MiB itself, so that by default garbage would come to as much
HANG = 10  # seconds after which the engine calls an input hung
stopping = threading.Event()
Usage = collections.namedtuple("Usage", "at cpu resident waited")  # seconds, seconds, bytes, seconds


class Target:
    def __init__(self, package, function):
        self.package, self.function, self.name = package, function, f"{package}.{function}"
        flat = self.name.replace("/", "-")
        self.binary, self.state, self.log = HOME / f"{flat}.test", HOME / f"{flat}.json", HOME / f"{flat}.growth"
        self.cache = HOME / "corpus" / package.replace("/", "-")
        self.cache.mkdir(parents=True, exist_ok=True)
        self.row = dict(wall=0.0, cpu=0.0, execs=0, slices=0, starved=0, inputs=0, live_mb=0.0, resident_mb=0.0)
        if self.state.exists():
            self.row.update(json.loads(self.state.read_text()))


def children(pid):
    """The processes a fuzzing coordinator started."""
    found = []
    for thread in pathlib.Path(f"/proc/{pid}/task").glob("*/children"):  # any thread may have started one
        try:
            found += map(int, thread.read_text().split())
        except OSError:
            pass  # it has ended
    return found


def usage(pid):
    """What a process used until now, or None when it is gone. Its threads' waiting is that for a processor."""
    try:
        stat = pathlib.Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
        waited = sum(int(f.read_text().split()[1]) for f in pathlib.Path(f"/proc/{pid}/task").glob("*/schedstat"))
        return Usage(time.monotonic(), (int(stat[11]) + int(stat[12])) / TICK, int(stat[21]) * PAGE, waited / 1e9)
    except (OSError, IndexError):
        return None


def starved(t, text, last):
    """Whether a slice ended only because the machine gave its worker no processor; its input then goes."""
    found = re.search(r"(?:Failing input written to testdata/fuzz/|failure while testing seed corpus entry: )\w+/(\S+)", text)
    if not found or "hung or terminated unexpectedly" not in text or len(last) < 2:
        return False
    kept, cached = (d / found[1] for d in (ROOT / t.package / "testdata" / "fuzz" / t.function, t.cache / t.function))
    temporary = "Failing input" in found[0] or cached.exists()
    if cached.exists():
        kept.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(cached, kept)
    waited = last[-1].waited - last[0].waited
    alone = subprocess.Popen([t.binary, f"-test.run=^{t.function}$/^{found[1]}$", "-test.timeout=60s"], cwd=ROOT / t.package,
                             stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    _, status, used = os.wait4(alone.pid, 0)
    seconds = used.ru_utime + used.ru_stime
    print(f"{t.name}: {found[1]} ended the slice; its worker had waited {waited:.1f} s for a processor; alone: status {status}, "
          f"{seconds:.1f} processor seconds", flush=True)
    if waited < HANG / 2 or status != 0 or seconds > 3:
        return False
    if temporary:
        shutil.move(kept, HOME / f"starved-{found[1]}")
    return True


def run(t, seconds):
    """One slice; the state is added to and saved."""
    t.log.unlink(missing_ok=True)
    began = time.monotonic()
    process = subprocess.Popen(
        [t.binary, "-test.run=^$", f"-test.fuzz=^{t.function}$", f"-test.fuzztime={max(1, round(seconds))}s", "-test.parallel=1",
         "-test.timeout=0", "-test.fuzzminimizetime=200x", f"-test.fuzzcachedir={t.cache}"],  # by time, shrinking big inputs takes all of it
        cwd=ROOT / t.package, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
        env={**os.environ, "SMOLGYM_GROWTH_LOG": str(t.log), "GOGC": COLLECT}, process_group=0)  # an interrupt is passed on by us, to the coordinator
    used, first, most, last = {}, {}, {}, collections.deque(maxlen=HANG + 3)

    def watch():
        told = False
        while process.poll() is None:
            if stopping.is_set() and not told:
                told = True
                process.send_signal(signal.SIGINT)
            for pid in children(process.pid):
                if now := usage(pid):
                    if pid not in used:
                        last.clear()  # of the worker before it
                    last.append(now)
                    used[pid] = now.cpu
                    if now.cpu > 10:
                        first.setdefault(pid, now.resident)
                        most[pid] = max(most.get(pid, 0), now.resident)
            time.sleep(1)

    watcher = threading.Thread(target=watch)
    watcher.start()
    text = process.communicate()[0]
    watcher.join()
    row, live = t.row, collections.defaultdict(list)
    for line in t.log.read_text().splitlines() if t.log.exists() else []:
        pid, _, size = map(int, line.split())
        live[pid].append(size)
    execs = [int(n) for n in re.findall(r"execs: (\d+)", text)]
    row["cpu"] += sum(used.values())
    row["wall"] += time.monotonic() - began
    row["execs"] += execs[-1] if execs else 0
    row["slices"] += 1
    row["live_mb"] = max([row["live_mb"], *[(max(x) - x[0]) / 2**20 for x in live.values()]])
    row["resident_mb"] = max([row["resident_mb"], *[(most[p] - first[p]) / 2**20 for p in first]])
    row["inputs"] = len(list((t.cache / t.function).glob("*")))
    # Before Go 1.27 the engine's own deadline can come out as a failure (go.dev/issue/75804); it names no input.
    deadline = text.rstrip().endswith("context deadline exceeded\nFAIL") and "Failing input" not in text and "seed corpus entry" not in text
    if process.returncode != 0 and not stopping.is_set() and not deadline:
        if starved(t, text, last):
            row["starved"] += 1
        else:
            row["failed"] = text[-4000:]
    t.state.write_text(json.dumps(row, indent=1))
    print(f"{t.name}: {row['wall']:.0f} s, {row['execs']:,} executions" + (", FAILED" if "failed" in row else ""), flush=True)


def fuzz(t, clock, seconds, slice_seconds):
    """Slices until the target has its hour, has failed, or all is interrupted."""
    while "failed" not in t.row and t.row[clock] < seconds - 1 and not stopping.is_set():
        run(t, min(slice_seconds, seconds - t.row[clock]))


def keep(targets):
    """The smallest inputs of each target, written where `go test` runs them."""
    for t in targets:
        files = sorted((f for f in (t.cache / t.function).glob("*") if f.stat().st_size <= KEPT_BYTES),
                       key=lambda f: (f.stat().st_size, f.name))
        into = ROOT / t.package / "testdata" / "fuzz" / t.function
        into.mkdir(parents=True, exist_ok=True)
        for f in into.iterdir():  # of an earlier call
            if (t.cache / t.function / f.name).exists():
                f.unlink()
        for f in files[:: max(1, len(files) // KEPT)][:KEPT]:
            shutil.copy(f, into / f.name)


def main():
    a = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    a.add_argument("targets", nargs="*", metavar="TARGET")
    a.add_argument("--seconds", type=int, default=3600)
    a.add_argument("--clock", choices=["wall", "cpu"], default="wall")
    a.add_argument("--slice", type=int, default=3600)
    a.add_argument("--jobs", type=int, default=1)
    a.add_argument("--keep", action="store_true")
    a = a.parse_args()
    HOME.mkdir(parents=True, exist_ok=True)
    targets = [Target(*x) for x in TARGETS]
    targets = [t for t in targets if not a.targets or any(part in t.name for part in a.targets)]
    todo = [t for t in targets if "failed" not in t.row and t.row[a.clock] < a.seconds - 1]
    for t in todo:
        subprocess.run(["go", "test", "-c", f"-fuzz=^{t.function}$", "-o", t.binary, "./" + t.package], cwd=ROOT, check=True)
    for s in (signal.SIGINT, signal.SIGTERM):
        signal.signal(s, lambda *_: stopping.set())
    with concurrent.futures.ThreadPoolExecutor(a.jobs) as pool:
        for done in [pool.submit(fuzz, t, a.clock, a.seconds, a.slice) for t in sorted(todo, key=lambda t: t.row[a.clock])]:
            done.result()
    if a.keep:
        keep(targets)
    print(f"\n{'target':38} {'wall s':>6} {'cpu s':>6} {'executions':>12} {'slices':>6} {'starved':>7} {'inputs':>6} {'live MiB':>8} {'resident MiB':>12}")
    for t in targets:
        r = t.row
        print(f"{t.name:38} {r['wall']:6.0f} {r['cpu']:6.0f} {r['execs']:12,} {r['slices']:6} {r['starved']:7} {r['inputs']:6} "
              f"{r['live_mb']:8.1f} {r['resident_mb']:12.1f}")
        if "failed" in r:
            print(r["failed"])
    raise SystemExit(any("failed" in t.row for t in targets))


if __name__ == "__main__":
    main()
