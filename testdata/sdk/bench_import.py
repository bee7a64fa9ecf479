"""Import and merged export of a 1.2 GB model against a plain copy plus hashing of the same bytes, in one run.

    make bench-import [ARGS="--runs 3 --dir DIR"]

The folder is random: the shape of a 0.6B Qwen3 (tied head) in bf16. Each run makes, one after the other in turn,
  copy     what anybody would do: read each file, write it beside, fsync, then sha256 of the copy;
  import   `smolgym model add` into a new data folder, from the command's start to its end;
  export   `smolgym checkpoint export --form merged` of a LoRA (rank 32, every linear) over it, fsync included;
  copy     of what was exported.
All of it is on one disk, sources in the page cache. Seconds are of wall time and, in brackets, of CPU time (server and client
together): on a machine that others use too, wall time says how busy they were as well. Memory is the largest RssAnon (page cache and the mapped
file excluded) that /proc/PID/status showed of the server, looked at every 5 ms. Prints a table and exits 1 when a
median of the ratios is over 2 or memory is over 512 MB.
"""
import argparse
import hashlib
import json
import os
import resource
import shutil
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

sys.dont_write_bytecode = True
import numpy as np  # noqa: E402

import harness  # noqa: E402

HIDDEN, INNER, LAYERS, HEADS, KV, HEAD, VOCAB, RANK = 1024, 3072, 28, 16, 8, 128, 151936, 32
LIMIT_RATIO, LIMIT_BYTES = 2.0, 512 << 20
LINEARS = {"self_attn.q_proj": (HEADS * HEAD, HIDDEN), "self_attn.k_proj": (KV * HEAD, HIDDEN),
           "self_attn.v_proj": (KV * HEAD, HIDDEN), "self_attn.o_proj": (HIDDEN, HEADS * HEAD),
           "mlp.gate_proj": (INNER, HIDDEN), "mlp.up_proj": (INNER, HIDDEN), "mlp.down_proj": (HIDDEN, INNER)}


def shapes(layers):
    out = {"model.embed_tokens.weight": (VOCAB, HIDDEN), "model.norm.weight": (HIDDEN,)}
    for i in range(layers):
        p = f"model.layers.{i}."
        out.update({p + k + ".weight": v for k, v in LINEARS.items()})
        out.update({p + "input_layernorm.weight": (HIDDEN,), p + "post_attention_layernorm.weight": (HIDDEN,),
                    p + "self_attn.q_norm.weight": (HEAD,), p + "self_attn.k_norm.weight": (HEAD,)})
    return out


def safetensors(path, tensors, dtype, size, values):
    """Writes tensors {name: shape} one at a time; values(shape) gives an array."""
    head, at = {"__metadata__": {"format": "pt"}}, 0
    for name in sorted(tensors):
        n = size * int(np.prod(tensors[name]))
        head[name] = dict(dtype=dtype, shape=list(tensors[name]), data_offsets=[at, at + n])
        at += n
    text = json.dumps(head).encode()
    text += b" " * (-len(text) % 8)
    with open(path, "wb") as f:
        f.write(len(text).to_bytes(8, "little") + text)
        for name in sorted(tensors):
            f.write(values(tensors[name]).tobytes())


def make_model(folder, layers):
    folder.mkdir()
    g = np.random.default_rng(1)

    def bf16(shape):
        """Random signs and mantissas, exponents of weights: nothing that a disk could compress or share."""
        bits = g.integers(0, 1 << 16, int(np.prod(shape)), np.uint16)
        return bits & np.uint16(0x81ff) | np.uint16(0x3c00)

    safetensors(folder / "model.safetensors", shapes(layers), "BF16", 2, bf16)
    (folder / "config.json").write_text(json.dumps(dict(
        architectures=["Qwen3ForCausalLM"], model_type="qwen3", vocab_size=VOCAB, hidden_size=HIDDEN,
        intermediate_size=INNER, num_hidden_layers=layers, num_attention_heads=HEADS, num_key_value_heads=KV,
        head_dim=HEAD, max_position_embeddings=40960, rms_norm_eps=1e-6, rope_theta=1e6, hidden_act="silu",
        attention_bias=False, tie_word_embeddings=True, torch_dtype="bfloat16")))


def make_adapter(folder, layers):
    folder.mkdir()
    g = np.random.default_rng(2)
    tensors = {}
    for i in range(layers):
        for name, (rows, cols) in LINEARS.items():
            p = f"base_model.model.model.layers.{i}.{name}."
            tensors[p + "lora_A.weight"], tensors[p + "lora_B.weight"] = (RANK, cols), (rows, RANK)
    safetensors(folder / "adapter_model.safetensors", tensors, "F32", 4,
                lambda shape: (g.standard_normal(shape) * 0.01).astype(np.float32))
    (folder / "adapter_config.json").write_text(json.dumps(dict(
        peft_type="LORA", task_type="CAUSAL_LM", r=RANK, lora_alpha=RANK, lora_dropout=0.0, bias="none",
        target_modules=sorted({n.split(".")[1] for n in LINEARS}), base_model_name_or_path="bench/base")))


def copy_and_hash(source, target):
    """Seconds for (copy with fsync, sha256), and of CPU time for both."""
    target.mkdir()
    began, cpu = time.perf_counter(), time.process_time()
    for f in sorted(source.iterdir()):
        with open(f, "rb") as r, open(target / f.name, "wb") as w:
            shutil.copyfileobj(r, w, 1 << 20)
            w.flush()
            os.fsync(w.fileno())
    copied = time.perf_counter()
    for f in sorted(target.iterdir()):
        with open(f, "rb") as r:
            hashlib.file_digest(r, "sha256")
    return copied - began, time.perf_counter() - copied, time.process_time() - cpu


class Watch:
    """The largest RssAnon of a process while it is watched, in bytes."""

    def __init__(self, pid):
        self.path, self.peak, self.over = f"/proc/{pid}/status", 0, threading.Event()
        self.thread = threading.Thread(target=self.loop)

    def loop(self):
        while not self.over.wait(0.005):
            for line in open(self.path):
                if line.startswith("RssAnon:"):
                    self.peak = max(self.peak, int(line.split()[1]) << 10)

    def __enter__(self):
        self.thread.start()
        return self

    def __exit__(self, *_):
        self.over.set()
        self.thread.join()


def cpu_of(pid):
    """Seconds of CPU time of a running process and of the children that have ended here."""
    fields = open(f"/proc/{pid}/stat").read().rsplit(")", 1)[1].split()
    ended = resource.getrusage(resource.RUSAGE_CHILDREN)
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK") + ended.ru_utime + ended.ru_stime


def command(server, *args):
    """What a client command prints, the seconds it takes, of CPU time with the server's, and the server's memory meanwhile."""
    env = dict(os.environ, TINKER_BASE_URL=server.url, TINKER_API_KEY=harness.KEY)
    with Watch(server.proc.pid) as watch:
        began, cpu = time.perf_counter(), cpu_of(server.proc.pid)
        p = subprocess.run([harness.BINARY, *map(str, args)], env=env, capture_output=True, text=True)
        seconds, cpu = time.perf_counter() - began, cpu_of(server.proc.pid) - cpu
    if p.returncode:
        raise SystemExit(f"smolgym {args}: exit {p.returncode}\n{p.stdout}\n{p.stderr}")
    return p.stdout, seconds, cpu, watch.peak


def one(root, source, adapter):
    """One run: [(what, (seconds, of CPU), (seconds of copying, of hashing, of CPU), peak bytes)]."""
    os.sync()
    server = harness.Server(root / "box").start()
    try:
        plain = copy_and_hash(source, root / "copy")
        _, took, cpu, peak = command(server, "model", "add", "bench/base", source)
        yield "import", (took, cpu), plain, peak
        shutil.rmtree(root / "copy")
        out, *_ = command(server, "checkpoint", "import", adapter, "--model", "bench/base", "--json")
        os.sync()
        _, took, cpu, peak = command(server, "checkpoint", "export", json.loads(out)["path"], "--to", root / "merged", "--form", "merged")
        yield "merged export", (took, cpu), copy_and_hash(root / "merged", root / "copy"), peak
    finally:
        server.stop()


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--runs", type=int, default=3)
    p.add_argument("--dir", help="where to work; needs 7 GB (default: the temporary folder)")
    p.add_argument("--layers", type=int, default=LAYERS, help="fewer for a quick look")
    a = p.parse_args()
    rows = {}
    with tempfile.TemporaryDirectory(dir=a.dir) as d:
        root = Path(d)
        make_model(root / "model", a.layers)
        make_adapter(root / "adapter", a.layers)
        size = sum(f.stat().st_size for f in (root / "model").iterdir())
        print(f"{size / 1e9:.2f} GB, {a.layers} layers, {os.cpu_count()} cores\n", flush=True)
        print("| what | seconds (CPU) | copy + sha256, seconds (CPU) | ratio | server's memory, MB |\n| --- | ---: | ---: | ---: | ---: |", flush=True)
        for n in range(a.runs):
            work = root / str(n)
            work.mkdir()
            for what, (took, cpu), (copied, hashed, plain), peak in one(work, root / "model", root / "adapter"):
                rows.setdefault(what, []).append((took / (copied + hashed), peak))
                print(f"| {what} {n + 1} | {took:.2f} ({cpu:.2f}) | {copied:.2f} + {hashed:.2f} ({plain:.2f}) | {rows[what][-1][0]:.2f} | {peak / 2**20:.0f} |", flush=True)
            shutil.rmtree(work)
    bad = False
    for what, runs in rows.items():
        ratio, peak = statistics.median(r for r, _ in runs), max(p for _, p in runs)
        bad |= ratio > LIMIT_RATIO or peak > LIMIT_BYTES
        print(f"| **{what}, median** | | | **{ratio:.2f}** | {peak / 2**20:.0f} |")
    print("\n" + ("MISSED" if bad else "held") + f": ratio at most {LIMIT_RATIO:g}, memory at most {LIMIT_BYTES >> 20} MB")
    return bad


if __name__ == "__main__":
    sys.exit(main())
