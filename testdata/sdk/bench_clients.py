"""Sixteen sampling and four training SDK clients on one server, against one request for sixteen samples, in one run.

    SMOLGYM_BIN=bin/smolgym .venv/bin/python testdata/sdk/bench_clients.py [--seconds 20] [--rounds 1] [--clients 16] [--hidden 1024]

The model is random, wide and shallow, so that the server's work outweighs the clients'. Four runs of different
rank train without a pause in every phase; what differs is who asks for samples:
  alone    one client, one request for as many samples as there will be clients: the rate of the engine at that batch;
  clients  as many clients, each with a session and a sampler of its own, one sample a request;
  mixed    the same, but every second one samples from a snapshot of a run of its own: the adapters' own products are work
           that one sampler does not have;
  alone    again, so that a change in how busy the machine is shows.
With more rounds the last three come again; each phase is compared with the rates alone before and after it, and the median counts.
Rates are sampled tokens a second by the server's counter. A process of its own sends a heartbeat every 50 ms all the while.
Prints a table and exits 1 when the clients have less than 0.8 of the rate alone, the heartbeat's 95th percentile is 250 ms
or more, or anything failed.
"""
import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

sys.dont_write_bytecode = True
os.environ.setdefault("TINKER_TELEMETRY", "0")
os.environ.setdefault("TINKER_API_KEY", "tml-test")
import numpy as np  # noqa: E402
from tinker import types  # noqa: E402

import harness  # noqa: E402
import tiny_model  # noqa: E402
from harness import adam, datum, get, prompt  # noqa: E402

MODEL, TOKENS, LIMIT_RATIO, LIMIT_MS = "test/wide", 96, 0.8, 250

PULSE = """
import sys, time, urllib.request
url, seconds = sys.argv[1], float(sys.argv[2])
took, end = [], time.monotonic() + seconds
while time.monotonic() < end:
    at = time.monotonic()
    with urllib.request.urlopen(url + "/api/v1/healthz", timeout=30) as r:
        assert r.status == 200
    took.append(time.monotonic() - at)
    time.sleep(0.05)
took.sort()
print(1000 * took[int(0.95 * len(took))], 1000 * took[-1], len(took))
"""


def wide(folder, hidden):
    os.makedirs(folder)
    inner = 4 * hidden
    config = dict(tiny_model.config(), hidden_size=hidden, intermediate_size=inner, head_dim=hidden // tiny_model.HEADS)
    tiny_model.dump(os.path.join(folder, "config.json"), config)
    tiny_model.dump(os.path.join(folder, "tokenizer.json"), tiny_model.tokenizer())
    tiny_model.dump(os.path.join(folder, "tokenizer_config.json"), dict(tokenizer_class="PreTrainedTokenizerFast"))
    tiny_model.write_safetensors(os.path.join(folder, "model.safetensors"), tiny_model.weights(0, inner=inner, hidden=hidden))
    return folder


class Trainers:
    """Four runs that train until they are told to stop."""

    def __init__(self, server):
        self.stop, self.steps, self.failed, self.runs = threading.Event(), [0] * 4, [], []
        for i, rank in enumerate((4, 8, 16, 32)):
            client = server.client()
            self.runs.append((client, get(client.create_lora_training_client(base_model=MODEL, rank=rank, seed=i))))
        self.threads = [threading.Thread(target=self.work, args=(i,)) for i in range(4)]
        for t in self.threads:
            t.start()

    def work(self, i):
        data = [datum([3 + (i + 7 * k * j) % 250 for j in range(60)]) for k in range(1, 5)]
        try:
            while not self.stop.is_set():
                futures = [self.runs[i][1].forward_backward(data, "cross_entropy"), self.runs[i][1].optim_step(adam())]
                for f in futures:
                    get(f)
                self.steps[i] += 1
        except Exception as e:  # told of at the end
            self.failed.append(f"training client {i}: {e}")

    def end(self):
        self.stop.set()
        for t in self.threads:
            t.join()


def rate(server, samplers, each, seconds, failed):
    """Sampled tokens a second while every sampler has a request for `each` samples open."""
    stop = threading.Event()

    def work(i, s):
        n = 0
        try:
            while not stop.is_set():
                n += 1
                get(s.sample(prompt([5, 6 + i % 200]), each, types.SamplingParams(max_tokens=TOKENS, seed=n, stop=[])))
        except Exception as e:
            failed.append(f"sampling client {i}: {e}")

    threads = [threading.Thread(target=work, args=(i, s)) for i, s in enumerate(samplers)]
    for t in threads:
        t.start()
    time.sleep(2)
    before, began = server.stats(), time.monotonic()
    time.sleep(seconds)
    after, took = server.stats(), time.monotonic() - began
    stop.set()
    for t in threads:
        t.join()
    steps = max(1, after["decode_steps"] - before["decode_steps"])
    return (after["sampled_tokens"] - before["sampled_tokens"]) / took, (after["decode_sequences"] - before["decode_sequences"]) / steps


def main():
    p = argparse.ArgumentParser()
    p.add_argument("--seconds", type=float, default=20)
    p.add_argument("--rounds", type=int, default=1)
    p.add_argument("--clients", type=int, default=16)
    p.add_argument("--hidden", type=int, default=1024)
    a = p.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        server = harness.Server(Path(folder) / "box").start()
        try:
            server.add_model(MODEL, wide(os.path.join(folder, "wide"), a.hidden))
            return run(server, a)
        finally:
            server.stop()


def run(server, a):
    failed = []
    trainers = Trainers(server)
    one = server.client()
    alone = get(one.create_sampling_client(base_model=MODEL))
    clients = [server.client() for _ in range(a.clients)]
    plain, samplers = [get(c.create_sampling_client(base_model=MODEL)) for c in clients], []
    for i, c in enumerate(clients):
        if i % 2:
            path = get(trainers.runs[i // 2 % 4][1].save_weights_for_sampler(f"s{i}")).path
            samplers.append(get(c.create_sampling_client(model_path=path)))
        else:
            samplers.append(plain[i])
    for s in samplers:  # brings the weights in
        get(s.sample(prompt([5]), 1, types.SamplingParams(max_tokens=1)))
    phases = dict(alone=([alone], a.clients), clients=(plain, 1), mixed=(samplers, 1))
    order = ["alone"] + ["clients", "mixed", "alone"] * a.rounds
    pulse = subprocess.Popen([sys.executable, "-c", PULSE, server.url, str(len(order) * a.seconds)], stdout=subprocess.PIPE, text=True)
    rows = [(name, rate(server, *phases[name], a.seconds, failed)) for name in order]
    p95, most, beats = map(float, pulse.communicate()[0].split())
    trainers.end()
    failed += trainers.failed
    for name, (tokens, batch) in rows:
        print(f"{name:8} {tokens:8.0f} tokens/s, {batch:5.1f} sequences a step")
    tokens = [r[0] for _, r in rows]
    ratio, mixed = (statistics.median(2 * tokens[i + k] / (tokens[i] + tokens[i + 3]) for i in range(0, 3 * a.rounds, 3)) for k in (1, 2))
    stats = server.stats()
    print(f"ratio {ratio:.2f}, mixed {mixed:.2f}; heartbeat p95 {p95:.0f} ms, longest {most:.0f} ms of {beats:.0f}; steps of the four runs {trainers.steps}; "
          f"longest hold {stats['longest_hold_ms']} ms, {stats['max_decode_mix']} sets of weights in a batch")
    if ratio < LIMIT_RATIO:
        failed.append(f"the clients have {ratio:.2f} of the rate alone, under {LIMIT_RATIO}")
    if p95 >= LIMIT_MS:
        failed.append(f"the heartbeat's 95th percentile is {p95:.0f} ms")
    if min(trainers.steps) == 0:
        failed.append(f"a run took no step: {trainers.steps}")
    print(json.dumps(dict(ratio=ratio, mixed=mixed, alone=tokens[::3], clients=tokens[1::3], mixed_clients=tokens[2::3], heartbeat_p95_ms=p95)))
    for text in failed:
        print("FAILED:", text)
    return 1 if failed else 0


if __name__ == "__main__":
    np.seterr(all="raise")
    sys.exit(main())
