"""The server under test as a process, raw requests to it, and what the tests say about answers."""
import json
import os
import signal
import socket
import struct
import subprocess
import time
import urllib.error
import urllib.request
from pathlib import Path

import numpy as np
import tinker
from tinker import types
from tinker.proto import tinker_public_pb2 as pb

HERE = Path(__file__).resolve().parent
REPO = HERE.parent.parent
BINARY = Path(os.environ.get("SMOLGYM_BIN", REPO / "bin" / "smolgym")).resolve()
KEY = "tml-test"
WAIT = 60  # seconds: no single answer in these tests may take longer


class Server:
    """One `smolgym serve` on a free port and a data folder of its own."""

    def __init__(self, root, *flags, cpus=None):
        self.root, self.flags, self.cpus = Path(root), flags, cpus
        self.root.mkdir(parents=True, exist_ok=True)
        self.data, self.log = self.root / "data", self.root.parent / (self.root.name + ".log")
        with socket.socket() as s:  # the same port after a restart, so that clients find it again
            s.bind(("127.0.0.1", 0))
            self.port = s.getsockname()[1]
        self.url = f"http://127.0.0.1:{self.port}"
        self.proc = None

    def start(self):
        began = time.monotonic()
        with open(self.log, "ab") as log:
            self.proc = subprocess.Popen(
                [BINARY, "serve", "--addr", f"127.0.0.1:{self.port}", "--data", str(self.data), *self.flags],
                stdout=log, stderr=log, cwd=self.root.parent,
                preexec_fn=(lambda: os.sched_setaffinity(0, self.cpus)) if self.cpus else None)
        while time.monotonic() - began < 30:
            if self.proc.poll() is not None:
                raise RuntimeError(f"server exited with {self.proc.returncode} at start:\n{self.tail()}")
            try:
                with urllib.request.urlopen(self.url + "/api/v1/healthz", timeout=2) as r:
                    assert json.load(r)["status"] == "ok"
                self.start_seconds = time.monotonic() - began
                return self
            except OSError:
                time.sleep(0.02)
        raise RuntimeError(f"server not healthy after 30 s:\n{self.tail()}")

    def stop(self, how=signal.SIGTERM):
        if self.proc is None or self.proc.poll() is not None:
            return
        self.proc.send_signal(how)
        try:
            self.proc.wait(15)
        except subprocess.TimeoutExpired:
            self.proc.kill()
            self.proc.wait()
            raise RuntimeError(f"server did not stop within 15 s of signal {how}:\n{self.tail()}")

    def restart(self, how=signal.SIGTERM):
        self.stop(how)
        return self.start()

    def resident(self):
        """Bytes of memory the server holds."""
        for line in open(f"/proc/{self.proc.pid}/status"):
            if line.startswith("VmRSS:"):
                return int(line.split()[1]) << 10
        raise AssertionError("no VmRSS")

    def alive(self):
        assert self.proc.poll() is None, f"the server died:\n{self.tail()}"
        with urllib.request.urlopen(self.url + "/api/v1/healthz", timeout=5) as r:
            assert r.status == 200

    def stats(self):
        """The engine's counters since the start."""
        request = urllib.request.Request(self.url + "/smolgym/v1/stats", headers={"X-API-Key": KEY})
        with urllib.request.urlopen(request, timeout=5) as r:
            return json.load(r)

    def tail(self, n=40):
        return "\n".join(self.log.read_text(errors="replace").splitlines()[-n:])

    def cli(self, *args, check=True):
        """A client command; answers the finished process."""
        env = dict(os.environ, TINKER_BASE_URL=self.url, TINKER_API_KEY=KEY)
        p = subprocess.run([BINARY, *map(str, args)], env=env, capture_output=True, text=True, timeout=WAIT,
                           cwd=self.root.parent)
        if check and p.returncode != 0:
            raise AssertionError(f"smolgym {args}: exit {p.returncode}\n{p.stdout}\n{p.stderr}")
        return p

    def add_model(self, name, folder):
        return self.cli("model", "add", name, folder)

    def client(self):
        return tinker.ServiceClient(base_url=self.url, api_key=KEY)

    def rest(self):
        return tinker.RestClient(base_url=self.url, api_key=KEY)


def ended(p):
    """Whether a client process did its work: exit 0, or the SDK's transport aborting (SIGABRT, with nothing said) while the
    interpreter ends, which it now and then does on a busy machine after everything was answered. What it printed is
    judged by the caller."""
    return p.returncode == 0 or (p.returncode == -signal.SIGABRT and bool(p.stdout.strip()) and "Traceback" not in p.stderr)


def get(future):
    """The result of any SDK future, with a limit; older SDKs give clients at once."""
    return future.result(timeout=WAIT) if hasattr(future, "result") else future


def same_sdk(folder):
    """A PYTHONPATH by which another environment's python uses the SDK that is tested here."""
    link = Path(folder) / "sdk" / "tinker"
    link.parent.mkdir()
    link.symlink_to(Path(tinker.__file__).parent)
    return str(link.parent)


def capabilities(server):
    """What the server offers; in older SDKs the service client says it."""
    rest = server.rest()
    return get(rest.get_server_capabilities()) if hasattr(rest, "get_server_capabilities") else server.client().get_server_capabilities()


# Requests without the SDK, for what it refuses to send and to send things twice.

class Wire:
    def __init__(self, url):
        self.url = url

    def send(self, method, path, body=None, kind="application/json", accept="application/json"):
        """(status, content type, body bytes)"""
        req = urllib.request.Request(self.url + path, data=body, method=method, headers={
            "X-API-Key": KEY, "Content-Type": kind, "Accept": accept})
        try:
            with urllib.request.urlopen(req, timeout=WAIT) as r:
                return r.status, r.headers.get("Content-Type", ""), r.read()
        except urllib.error.HTTPError as e:
            return e.code, e.headers.get("Content-Type", ""), e.read()

    def post(self, route, /, **body):
        """(status, decoded JSON)"""
        status, _, raw = self.send("POST", "/api/v1/" + route, json.dumps(body).encode())
        return status, (json.loads(raw) if raw else None)

    def forward_backward(self, model_id, seq_id, data, loss_fn="cross_entropy", forward_only=False, config=None):
        """(status, decoded JSON); data is a list of SDK data or of (tokens, {name: (dtype, shape, bytes)})."""
        m = pb.ForwardBackwardRequest(model_id=model_id, seq_id=seq_id, loss_fn=loss_fn, forward_only=forward_only)
        for k, v in (config or {}).items():
            m.loss_fn_config[k] = v
            m.loss_fn_config_v2[k].number = v
        for tokens, inputs in map(plain, data):
            d = m.data.add()
            d.model_input.add().encoded_text.tokens = np.asarray(tokens, np.int32).tobytes()
            for name, (dtype, shape, raw) in inputs.items():
                t = d.loss_fn_inputs[name]
                t.dense, t.dtype = raw, dtype
                t.shape.extend(shape)
        return self.forward_backward_bytes(m.SerializeToString())

    def forward_backward_bytes(self, raw):
        status, _, out = self.send("POST", "/api/v1/forward_backward", raw, "application/x-protobuf")
        return status, (json.loads(out) if out else None)

    def retrieve(self, request_id, parse=None):
        """Polls until done: a dict, or with parse the decoded message."""
        end = time.monotonic() + WAIT
        while time.monotonic() < end:
            status, kind, raw = self.send(
                "POST", "/api/v1/retrieve_future",
                json.dumps(dict(request_id=request_id, allow_metadata_only=False)).encode(),
                accept="application/x-protobuf" if parse else "application/json")
            if status == 408:
                continue
            assert status == 200, (status, raw)
            if kind.startswith("application/x-protobuf"):
                assert parse is not None, "protobuf where JSON is due"
                m = parse()
                m.ParseFromString(raw)
                return m
            return json.loads(raw)
        raise AssertionError(f"{request_id} not done after {WAIT} s")

    def session(self):
        status, body = self.post("create_session", tags=[], sdk_version="0.38.0", type="create_session")
        assert status == 200, body
        return body["session_id"]

    def model(self, base, session=None, seq=0, **lora):
        """The id of a new LoRA run."""
        session = session or self.session()
        lora = dict(dict(rank=4, seed=1, train_mlp=True, train_attn=True, train_unembed=True), **lora)
        status, body = self.post("create_model", session_id=session, model_seq_id=seq, base_model=base,
                                 lora_config=lora, optimizer_config=dict(type="adamw"), type="create_model")
        assert status == 200, body
        out = self.retrieve(body["request_id"])
        assert "error" not in out, out
        assert out["model_id"] == f"{session}:train:{seq}"
        return out["model_id"]

    def optim(self, model_id, seq_id, **params):
        p = dict(dict(learning_rate=1e-2, beta1=0.9, beta2=0.95, eps=1e-12, weight_decay=0.0, grad_clip_norm=0.0),
                 **params)
        return self.post("optim_step", model_id=model_id, seq_id=seq_id, adam_params=p, type="optim_step")

    def probe(self, model_id, seq_id, data):
        """Log-probabilities by a forward-only request, as bytes that differ in any bit."""
        status, body = self.forward_backward(model_id, seq_id, data, forward_only=True)
        assert status == 200, body
        m = self.retrieve(body["request_id"], pb.ForwardBackwardOutput)
        assert isinstance(m, pb.ForwardBackwardOutput), m
        return b"".join(r.fields["logprobs"].data for r in m.loss_fn_outputs)


DTYPES = {"float32": pb.DTYPE_FLOAT32, "int64": pb.DTYPE_INT64}


def plain(d):
    if isinstance(d, types.Datum):
        return d.model_input.to_ints(), {
            k: (DTYPES[t.dtype], list(t.shape or [len(t.data)]), t._numpy.tobytes())
            for k, t in d.loss_fn_inputs.items()}
    return d


# What goes in.

def datum(tokens, weights=None, start=0):
    """Next-token cross-entropy on tokens; targets before start have weight 0."""
    n = len(tokens) - 1
    if weights is None:
        weights = [0.0] * start + [1.0] * (n - start)
    return types.Datum(model_input=types.ModelInput.from_ints(list(tokens[:-1])),
                       loss_fn_inputs=dict(target_tokens=list(tokens[1:]), weights=list(weights)))


def policy_datum(prompt, completion, logprobs, advantages):
    """As the policy losses want it: only the completion has advantages."""
    tokens, pad = list(prompt) + list(completion), len(prompt) - 1
    return types.Datum(
        model_input=types.ModelInput.from_ints(tokens[:-1]),
        loss_fn_inputs=dict(target_tokens=tokens[1:], logprobs=[0.0] * pad + list(logprobs),
                            advantages=[0.0] * pad + list(advantages)))


def prompt(tokens):
    return types.ModelInput.from_ints(list(tokens))


def adam(lr=1e-2, **kw):
    return types.AdamParams(learning_rate=lr, **kw)


def sgd(lr):
    """AdamW whose first step is plain gradient descent: eps dwarfs every gradient."""
    return types.AdamParams(learning_rate=lr * 1e8, eps=1e8)


# What comes out.

def values(output):
    """Log-probabilities per datum, as float32 arrays."""
    return [np.asarray(o["logprobs"].tolist(), np.float32) for o in output.loss_fn_outputs]


def bits(x):
    """float32 bytes; equal only when every bit is."""
    return np.asarray(x, np.float32).tobytes()


def forward(run, data):
    return values(get(run.forward(data, "cross_entropy")))


def probe_data(vocab, n=3, length=40, seed=99):
    g = np.random.default_rng(seed)
    return [datum([int(t) for t in g.integers(3, vocab, length)]) for _ in range(n)]


def probe(run, vocab):
    """What the run's weights say about some fixed sequences, to the bit."""
    return b"".join(v.tobytes() for v in forward(run, probe_data(vocab)))


def scores(sampler, tokens):
    """Prompt log-probabilities without the first, as float32."""
    out = get(sampler.compute_logprobs(prompt(tokens)))
    assert len(out) == len(tokens) and out[0] is None
    return np.asarray(out[1:], np.float32)


def train(run, data, steps, lr=1e-2, loss_fn="cross_entropy", **kw):
    """Steps of forward_backward and optim_step; the loss sums before each."""
    losses = []
    for _ in range(steps):
        f, o = run.forward_backward(data, loss_fn), run.optim_step(adam(lr, **kw))
        losses.append(get(f).metrics["loss:sum"])
        get(o)
    return losses


def lora(service, model, **kw):
    kw = dict(dict(rank=8, seed=5), **kw)
    return get(service.create_lora_training_client(base_model=model, **kw))


def sampler_of(run):
    return get(run.save_weights_and_get_sampling_client())


LEAKS = ("goroutine ", "panic:", "runtime error", ".go:")


def check_text(text, *words):
    for leak in LEAKS:
        assert leak not in text, f"a trace in the message: {text}"
    for w in words:
        options = w if isinstance(w, tuple) else (w,)
        assert any(o.lower() in text.lower() for o in options), f"the message names none of {options}: {text}"


def user_error(call, *words, seconds=2.0):
    """call() must fail as the user's fault, soon, with a message that has the words."""
    began = time.monotonic()
    try:
        out = call()
    except tinker.RequestFailedError as e:
        category, text = str(getattr(e.category, "value", e.category)).lower(), str(e)
        assert category == "user", f"category {category}: {text}"
    except tinker.APIStatusError as e:
        text = str(e)
        assert 400 <= e.status_code < 500, f"status {e.status_code}: {text}"
        assert e.status_code not in (402, 408, 409, 429), f"status {e.status_code} is one the client retries"
    else:
        raise AssertionError(f"no error; got {out!r}")
    took = time.monotonic() - began
    assert took < seconds, f"took {took:.1f} s: {text}"
    check_text(text, *words)
    return text


def raw_user_error(wire, answer, *words, parse=None):
    """The same for the (status, body) of a raw request."""
    status, body = answer
    if status == 200 and "request_id" in (body or {}):
        body = wire.retrieve(body["request_id"], parse)
        assert isinstance(body, dict) and "error" in body, f"no error; got {body!r}"
        assert body["category"] == "user", body
    else:
        assert 400 <= status < 500 and status not in (402, 408, 409, 429), (status, body)
        assert body, "an error needs a body: an empty 400 is resent"
    check_text(json.dumps(body), *words)
    return body


def header(n, text, body=b""):
    return struct.pack("<Q", n) + text + body
