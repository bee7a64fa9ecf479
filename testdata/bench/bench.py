"""SmolGym against torch in one run, interleaved: what a user of the SDK gets, over what torch does in the same minute.

    python bench.py [--only CASE,...] [--rounds N] [--threads N] [--out FILE.json] [--go FOLDER] [--quick]

Cases:
  small    full update of a 4-layer, 256-wide Qwen3, in 256 sequences of 24 tokens and in 8 of 256
  gemm     matrix products by shape; needs FOLDER/cpu.test, the kernels' benchmarks (the makefile builds it)
  decode   decoding of the Qwen3-0.6B shape at batch 1, 8 and 32
  train    LoRA training of the Qwen3-0.6B shape, rank 32, 8 x 256 tokens
  memory   anonymous memory of that step over idle, next to the planner's figure; needs FOLDER/engine.test
  llama    prefill of 512 tokens and decoding at batch 1, 8 and 32, next to llama.cpp with the same model as an F16 GGUF file, which
           `smolgym checkpoint export` writes; LLAMA_BIN is the folder of llama.cpp's programs

SmolGym's times are taken around calls of the Tinker SDK to `smolgym serve` on this machine (SMOLGYM_BIN or bin/smolgym), HTTP
and all; torch's around its own calls, in this process. Rates are the best of the rounds, ratios those of the best; a round is
SmolGym, then torch, first in fp32, then in bf16; or llama.cpp, then SmolGym in both. llama.cpp's times are those of its own
llama-batched-bench, which draws no tokens and has no server around it. Progress goes to stderr, a table to stdout, everything
to the JSON file.

llama.cpp comes with the source of its Python package (cmake and a C++ compiler are needed; 15 minutes on two cores):
    pip download --no-deps --no-binary :all: llama-cpp-python && tar xf llama_cpp_python-*.tar.gz
    cmake -S llama_cpp_python-*/vendor/llama.cpp -B llama -DCMAKE_BUILD_TYPE=Release -DGGML_NATIVE=ON -DBUILD_SHARED_LIBS=OFF
    cmake --build llama -j2 --target llama-batched-bench
    make bench BENCH="--only llama --rounds 2" LLAMA_BIN=$PWD/llama/bin
"""
import argparse
import gc
import json
import os
import platform
import re
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.request
from pathlib import Path

REPO = Path(__file__).resolve().parent.parent.parent
a = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
a.add_argument("--only", default="small,gemm,decode,train,memory,llama")
a.add_argument("--rounds", type=int, default=3)
a.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
a.add_argument("--out", default="")
a.add_argument("--go", default=str(REPO / "bin" / "bench"))
a.add_argument("--quick", action="store_true", help="one round, few tokens: shows that it runs, measures nothing")
a = a.parse_args()
rounds = 1 if a.quick else a.rounds
for name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ.setdefault(name, str(a.threads))
os.environ["TINKER_TELEMETRY"], os.environ["HF_HUB_OFFLINE"], os.environ["TOKENIZERS_PARALLELISM"] = "0", "1", "false"

import tinker  # noqa: E402
import torch  # noqa: E402
from tinker import types  # noqa: E402

import llama  # noqa: E402
import models  # noqa: E402
import peer  # noqa: E402

torch.set_num_threads(a.threads)
DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16}
KEY = "tml-bench"
rows, skipped = [], []


def note(*words):
    print(time.strftime("[%H:%M:%S]"), *words, file=sys.stderr, flush=True)


def anonymous(pid):
    for line in open(f"/proc/{pid}/status"):
        if line.startswith("RssAnon:"):
            return int(line.split()[1]) << 10
    raise RuntimeError(f"process {pid} has no RssAnon")


class Server:
    def __init__(self, root, precision):
        root = Path(root) / precision
        root.mkdir()
        binary = os.environ.get("SMOLGYM_BIN", str(REPO / "bin" / "smolgym"))
        with socket.socket() as s:
            s.bind(("127.0.0.1", 0))
            port = s.getsockname()[1]
        self.binary, self.url, self.log = binary, f"http://127.0.0.1:{port}", root / "serve.log"
        with open(self.log, "wb") as log:
            self.proc = subprocess.Popen(
                [binary, "serve", "--addr", f"127.0.0.1:{port}", "--data", str(root / "data"), "--threads", str(a.threads), "--precision", precision],
                stdout=log, stderr=log)
        for _ in range(600):
            try:
                urllib.request.urlopen(self.url + "/healthz", timeout=2)
                return
            except OSError:
                if self.proc.poll() is not None:
                    raise RuntimeError(self.log.read_text())
                time.sleep(0.05)
        raise RuntimeError("server not healthy after 30 s:\n" + self.log.read_text())

    def cli(self, *args):
        p = subprocess.run([self.binary, *map(str, args)], capture_output=True, text=True,
                           env=dict(os.environ, TINKER_BASE_URL=self.url, TINKER_API_KEY=KEY))
        if p.returncode:
            raise RuntimeError(f"smolgym {args}: {p.stderr or p.stdout}")

    def client(self):
        return tinker.ServiceClient(base_url=self.url, api_key=KEY)

    def stop(self):
        self.proc.send_signal(signal.SIGTERM)
        self.proc.wait(60)


def record(case, unit, rates, peer="torch {}"):
    """rates: {"smolgym bf16": [a rate for each round], ...}; peer is whom ratios are to, {} the type of numbers"""
    best = {who: max(r) for who, r in rates.items()}
    row = dict(case=case, unit=unit, best=best, median={who: statistics.median(r) for who, r in rates.items()},
               ratio={dtype: best["smolgym " + dtype] / best[peer.format(dtype)] for dtype in DTYPES})
    rows.append(row)
    note(case, {who: round(r, 1) for who, r in best.items()}, {who: round(r, 2) for who, r in row["ratio"].items()})


def ids_of(vocab, sequences, length, seed):
    return torch.randint(0, vocab, (sequences, length), generator=torch.Generator().manual_seed(seed))


def data_of(ids):
    return [types.Datum(model_input=types.ModelInput.from_ints(x[:-1]),
                        loss_fn_inputs=dict(target_tokens=x[1:], weights=[1.0] * (len(x) - 1))) for x in ids.tolist()]


def train(servers, name, case, folder, vocab, rank, sequences, length, at_once):
    adam = types.AdamParams(learning_rate=1e-4, beta1=0.9, beta2=0.95, eps=1e-8)

    def ours(run, ids):
        data, began = data_of(ids), time.perf_counter()
        fb, opt = run.forward_backward(data, "cross_entropy"), run.optim_step(adam)
        fb.result(), opt.result()
        return time.perf_counter() - began

    tokens, rates = sequences * length, {}
    warm = ids_of(vocab, sequences, length + 1, 99)
    for who, dtype in DTYPES.items():
        run = done(servers[who].client().create_lora_training_client(base_model=name, rank=rank, seed=1))
        ours(run, warm)
        theirs = peer.Trainer(folder, dtype, rank, at_once)
        theirs.step(warm[:at_once])
        for i in range(rounds):
            ids = ids_of(vocab, sequences, length + 1, i)
            rates.setdefault("smolgym " + who, []).append(tokens / ours(run, ids))
            rates.setdefault("torch " + who, []).append(tokens / theirs.step(ids))
            note(case, who, {k: round(v[-1], 1) for k, v in rates.items()})
        del theirs
        gc.collect()
    record(case, "tok/s", rates)


def done(client):
    """What a call gave, whether the SDK's version gives it at once or as a future."""
    return client.result() if hasattr(client, "result") else client


def sample(sampler, ids, n):
    """Seconds until n tokens have come behind each of the prompts ids [B, L]."""
    began = time.perf_counter()
    params = types.SamplingParams(max_tokens=n, temperature=1.0, seed=1)
    for f in [sampler.sample(prompt=types.ModelInput.from_ints(x), num_samples=1, sampling_params=params) for x in ids.tolist()]:
        got = len(f.result().sequences[0].tokens)
        if got != n:
            raise RuntimeError(f"asked for {n} tokens, got {got}")
    return time.perf_counter() - began


def continuing(sampler, ids, new):
    """Seconds of `new` decoding steps behind the prompts ids [B, L], whose own pass isn't counted."""
    sample(sampler, ids, 1)  # that pass, kept in the cache
    once = sample(sampler, ids, 1)
    return sample(sampler, ids, 1 + new) - once


def decode(servers, name, folder, vocab, batch, prompt, new):
    rates = {}
    for who, dtype in DTYPES.items():
        sampler = done(servers[who].client().create_sampling_client(base_model=name))
        theirs = peer.Decoder(folder, dtype)
        theirs.run(ids_of(vocab, batch, prompt, 98), 1)
        for i in range(rounds):
            ids = ids_of(vocab, batch, prompt, i)
            rates.setdefault("smolgym " + who, []).append(batch * new / continuing(sampler, ids, new))
            rates.setdefault("torch " + who, []).append(batch * new / theirs.run(ids, new))
        del theirs
        gc.collect()
    record(f"decode, Qwen3-0.6B shape, batch {batch}, behind {prompt} tokens", "tok/s", rates)


GEMM = [(2048, 1024, 3072), (2048, 1024, 1024), (256, 256, 768), (32, 1024, 3072), (8, 1024, 3072), (1, 1024, 3072)]


def gemm():
    binary = Path(a.go) / "cpu.test"
    if not binary.exists():
        skipped.append(f"gemm: no {binary}; `make bench` builds it")
        return
    for m, k, n in GEMM:
        rates = {}
        for _ in range(rounds):
            for who, dtype in DTYPES.items():
                # The slashes part the pattern by levels of the benchmark's name; the first level that runs is the fastest.
                out = subprocess.run([binary, "-test.run", "^$", "-test.bench", f"^BenchmarkGEMM$/^{who.replace('fp', 'f')}$/^{m}x{k}x{n}$", "-test.benchtime", "300ms"],
                                     capture_output=True, text=True, env=dict(os.environ, SMOLGYM_BENCH_THREADS=str(a.threads)), check=True).stdout
                found = re.findall(r"([\d.]+) GF/s", out)
                if len(found) != 1:
                    raise RuntimeError(f"no figure in:\n{out}")
                rates.setdefault("smolgym " + who, []).append(float(found[0]))
                rates.setdefault("torch " + who, []).append(peer.product(m, k, n, dtype))
        record(f"matrix product {m} x {k} x {n}", "GF/s", rates)


def memory():
    binary = Path(a.go) / "engine.test"
    if not binary.exists():
        skipped.append(f"memory: no {binary}; `make bench` builds it")
        return
    for who in DTYPES:
        out = subprocess.run([binary, "-test.run", "^$", "-test.bench", f"^BenchmarkQ06LoRA$/^{who.replace('fp', 'f')}$", "-test.benchtime", "1x"],
                             capture_output=True, text=True, check=True).stdout
        peak, planned = (float(re.search(r"([\d.e+]+) " + unit, out)[1]) for unit in ("MB-peak-over-idle", "MB-planned"))
        rows.append(dict(case=f"memory of a LoRA step, Qwen3-0.6B shape in {who}, 8 x 256 tokens, rank 32", unit="MB",
                         best={"peak over idle": peak, "planned": planned}, ratio={"planned": peak / planned}))
        note(rows[-1])


def versus_llama(servers, name, vocab, theirs):
    """theirs has the same model. Prompts are new in every round where their pass is measured, so that no cache has them."""
    samplers = {who: done(server.client().create_sampling_client(base_model=name)) for who, server in servers.items()}

    def rounds_of(case, ours, peers):
        rates = {}
        for i in range(rounds):
            rates.setdefault("llama.cpp f16", []).append(peers())
            for who, sampler in samplers.items():
                rates.setdefault("smolgym " + who, []).append(ours(sampler, i))
            note(case, {k: round(v[-1], 1) for k, v in rates.items()})
        record(case, "tok/s", rates, peer="llama.cpp f16")

    prompt, new = (64, 4) if a.quick else (512, 32)
    for sampler in samplers.values():
        sample(sampler, ids_of(vocab, 1, prompt, 97), 1)
    rounds_of(f"prefill, Qwen3-0.6B shape, {prompt} tokens", lambda sampler, i: prompt / sample(sampler, ids_of(vocab, 1, prompt, i), 1),
              lambda: theirs.run(prompt, 1, 1)[0])
    prompt //= 4
    for batch in (1, 8, 32):
        ids = ids_of(vocab, batch, prompt, 98)
        for sampler in samplers.values():  # before the first round: as many sequences at once behind one prompt
            sampler.sample(prompt=types.ModelInput.from_ints(ids[0].tolist()), num_samples=batch,
                           sampling_params=types.SamplingParams(max_tokens=2, temperature=1.0, seed=1)).result()
        rounds_of(f"decode, Qwen3-0.6B shape, batch {batch}, behind {prompt} tokens",
                  lambda sampler, _: batch * new / continuing(sampler, ids, new), lambda: theirs.run(prompt, new, batch)[1])


def as_gguf(server, name, file):
    """The model as an F16 file: a checkpoint of an adapter that has not been trained, and so adds nothing."""
    run = done(server.client().create_lora_training_client(base_model=name, rank=1, seed=1, train_unembed=False))
    server.cli("checkpoint", "export", run.save_weights_for_sampler("start").result().path, "--to", file, "--form", "gguf", "--dtype", "f16")
    return file


def table():
    def cell(x):
        return f"{x:.3g}" if x < 100 else f"{x:.0f}"

    lines = []
    for peers, head in ((("torch fp32", "torch bf16"), "SmolGym fp32 | torch fp32 | ratio | SmolGym bf16 | torch bf16 | ratio"),
                        (("llama.cpp f16", ""), "SmolGym fp32 | llama.cpp F16 | ratio | SmolGym bf16 | ratio")):
        chosen = [r for r in rows if peers[0] in r["best"]]
        if chosen:
            lines += [f"| case | unit | {head} |", "| --- | --- |" + " ---: |" * (head.count("|") + 1)]
        for r in chosen:
            cells = [r["case"], r["unit"]]
            for dtype, peer in zip(DTYPES, peers):
                cells += [cell(r["best"][who]) for who in ("smolgym " + dtype, peer) if who] + [f"{r['ratio'][dtype]:.2f}"]
            lines.append("| " + " | ".join(cells) + " |")
        lines += [""] if chosen else []
    for r in rows:
        if "smolgym fp32" not in r["best"]:
            lines += [f"{r['case']}: " + ", ".join(f"{who} {v:.4g} {r['unit']}" for who, v in r["best"].items()), ""]
    return "\n".join(lines + [f"Skipped: {s}" for s in skipped])


def main():
    only, programs, extra = a.only.split(","), os.environ.get("LLAMA_BIN", ""), {}
    if "llama" in only and not programs:
        only.remove("llama")
        skipped.append("llama: LLAMA_BIN names no folder of llama.cpp's programs; --help says how they are built")
    with tempfile.TemporaryDirectory(prefix="smolgym-bench-") as root:
        servers, folders = {}, {}
        try:
            if {"small", "train", "decode", "llama"} & set(only):
                servers = {precision: Server(root, precision) for precision in DTYPES}
            for name, sizes, cases in (("small", models.SMALL, {"small"}), ("q06", models.Q06, {"train", "decode", "llama"})):
                if cases & set(only):
                    folders[name] = models.write(Path(root) / name, sizes)
                    for server in servers.values():
                        server.cli("model", "add", f"bench/{name}", folders[name])
            if "small" in only:
                for n, length in ((256, 24), (8, 256)):
                    train(servers, "bench/small", f"full update, 4 x 256, {n} x {length} tokens", folders["small"], 512, 0, n, length, n)
            if "gemm" in only:
                gemm()
            if "decode" in only:
                for batch in (1, 8, 32):
                    decode(servers, "bench/q06", folders["q06"], models.Q06["vocab"], batch, 32 if a.quick else 128, 4 if a.quick else 32)
            if "train" in only:
                n = 2 if a.quick else 8
                train(servers, "bench/q06", f"LoRA rank 32, Qwen3-0.6B shape, {n} x 256 tokens", folders["q06"], models.Q06["vocab"], 32, n, 256, 2)
            if "llama" in only:
                theirs = llama.Bench(programs, as_gguf(servers["fp32"], "bench/q06", Path(root) / "q06.gguf"), a.threads)
                extra["llama.cpp"] = theirs.version()
                versus_llama(servers, "bench/q06", models.Q06["vocab"], theirs)
        finally:
            for server in servers.values():
                server.stop()
        if "memory" in only:
            memory()
    flags = next(line for line in open("/proc/cpuinfo") if line.startswith(("flags", "Features"))).split()
    machine = dict(processor=next((line.split(":")[1].strip() for line in open("/proc/cpuinfo") if line.startswith("model name")), platform.machine()),
                   threads=a.threads, flags=[f for f in ("avx2", "avx512f", "avx512_bf16", "amx_bf16") if f in flags], load=os.getloadavg(),
                   torch=torch.__version__, **extra, date=time.strftime("%Y-%m-%d"))
    print(table())
    print(f"\n{machine['processor']}, {a.threads} threads, {' '.join(machine['flags'])}; load average at the end {machine['load'][0]:.1f}; torch {machine['torch']}; {', '.join(' '.join(x) for x in extra.items()) or 'no llama.cpp'}; {machine['date']}")
    if a.out:
        Path(a.out).write_text(json.dumps(dict(machine=machine, rounds=rounds, quick=a.quick, rows=rows, skipped=skipped), indent=1) + "\n")


main()
