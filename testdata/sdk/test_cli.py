"""Every command of the official `tinker` command line against a server of its own."""
import base64
import http.server
import json
import os
import subprocess
import sys
import threading
from datetime import datetime, timedelta, timezone
from pathlib import Path

import harness
import pytest
import tinker
from harness import adam, datum, get, lora
from safetensors.numpy import load_file

TINKER = Path(sys.executable).with_name("tinker")
TINY = "test/tiny"
TOKENS = [1, 5, 9, 13, 7, 11, 3, 8]


class Box:
    """A server with one run that took a step, saved twice, and was sampled from."""

    def __init__(self, server):
        self.server = server
        service = tinker.ServiceClient(base_url=server.url, api_key=harness.KEY, user_metadata={"team": "red"})
        self.session = service.holder.get_session_id()
        run = lora(service, TINY, rank=4, user_metadata={"purpose": "cli"})
        get(run.forward_backward([datum(TOKENS)] * 2, "cross_entropy"))
        get(run.optim_step(adam()))
        self.path = get(run.save_state("step-1")).path
        self.sampler_path = get(run.save_weights_for_sampler("final")).path
        sampler = service.create_sampling_client(model_path=self.sampler_path)
        params = tinker.SamplingParams(max_tokens=3, seed=1, stop=[])
        for _ in range(2):  # the second finds the prompt's keys and values
            get(sampler.sample(harness.prompt(TOKENS), num_samples=2, sampling_params=params))
        self.run = run.model_id
        service.close("success").result(timeout=harness.WAIT)

    def tinker(self, *args, check=True, **env):
        p = subprocess.run([TINKER, *map(str, args)], capture_output=True, text=True, timeout=120, cwd=self.server.root,
                           env=dict(os.environ, TINKER_BASE_URL=self.server.url, TINKER_API_KEY=harness.KEY,
                                    COLUMNS="400", HOME=str(self.server.root), **env))
        if check:
            assert harness.ended(p), f"tinker {args}: exit {p.returncode}\n{p.stdout}\n{p.stderr}"
        harness.check_text(p.stdout + p.stderr)
        return p

    def json(self, *args):
        return json.loads(self.tinker("-f", "json", *args).stdout)

    def table(self, *args):
        """Rows of cells, the header first."""
        lines = [line for line in self.tinker(*args).stdout.splitlines() if "│" in line or "┃" in line]
        return [[c.strip() for c in line.strip("│┃ ").replace("┃", "│").split("│")] for line in lines]


@pytest.fixture(scope="module")
def box(tmp_path_factory, folders):
    s = harness.Server(tmp_path_factory.mktemp("cli") / "box").start()
    s.add_model(TINY, folders["tiny"])
    yield Box(s)
    s.alive()
    s.stop()


def test_version(box):
    assert box.tinker("version").stdout.startswith("tinker ")


def test_auth(box):
    assert box.tinker("auth", "status").stdout.split("\n")[:2] == ["Credentials available: yes", "Tinker accessible: yes"]
    assert box.json("auth", "whoami") == {"user_urn": "tml:user:local", "org_urn": "tml:organization:local", "email": "local@localhost"}
    assert ["User", "tml:user:local"] in box.table("auth", "whoami")


def test_models(box):
    assert [m["model_name"] for m in box.json("model", "list")["models"]] == ["rack/small", TINY]
    assert box.table("model", "list", "TINY")[1][0] == TINY
    p = box.tinker("model", "list", "nothing", check=False)
    assert p.returncode != 0 and "tml:organization:local" in p.stderr


def test_runs(box):
    runs = box.json("run", "list")["runs"]
    assert [r["training_run_id"] for r in runs] == [box.run]
    assert runs[0]["base_model"] == TINY and runs[0]["lora_rank"] == 4 and runs[0]["user_metadata"] == {"purpose": "cli"}
    rows = box.table("run", "list", "--columns", "id,model,owner,lora,status,checkpoint")
    assert rows == [["Run ID", "Base Model", "Owner", "LoRA", "Status", "Last Checkpoint"],
                    [box.run, TINY, "local", "Rank 4", "OK", "weights/step-1"]]
    info = box.json("run", "info", box.run)
    assert info["last_checkpoint"]["tinker_path"] == box.path
    assert info["last_sampler_checkpoint"]["tinker_path"] == box.sampler_path
    p = box.tinker("run", "info", "nobody:train:0", check=False)
    assert p.returncode != 0 and "nobody" in p.stderr


def test_checkpoints(box):
    listed = box.json("checkpoint", "list")["checkpoints"]
    assert [c["tinker_path"] for c in listed] == [box.sampler_path, box.path]
    assert [c["checkpoint_type"] for c in listed] == ["sampler", "training"]
    assert all(c["size_bytes"] > 1000 and not c["public"] and c["expires_at"] is None for c in listed)
    assert box.json("checkpoint", "list", "--run-id", box.run)["checkpoints"] == listed
    info = box.json("checkpoint", "info", box.path)
    assert info["checkpoint_id"] == "weights/step-1" and info["is_lora"] and info["lora_rank"] == 4
    assert ["LoRA", "Yes (Rank 4)"] in box.table("checkpoint", "info", box.path)


def test_publish_and_ttl(box):
    box.tinker("checkpoint", "publish", box.path)
    assert box.json("checkpoint", "info", box.path)["public"] is True
    box.tinker("checkpoint", "unpublish", box.path)
    assert box.json("checkpoint", "info", box.path)["public"] is False
    box.tinker("checkpoint", "set-ttl", box.path, "--ttl", 7200)
    expires = datetime.fromisoformat(box.json("checkpoint", "info", box.path)["expires_at"])
    assert timedelta(hours=1.9) < expires - datetime.now(timezone.utc) <= timedelta(hours=2)
    box.tinker("checkpoint", "set-ttl", box.path, "--remove")
    assert box.json("checkpoint", "info", box.path)["expires_at"] is None


def test_download(box, tmp_path):
    out = box.json("checkpoint", "download", box.path, "--output", str(tmp_path))
    folder = Path(out["destination"])
    config = json.loads((folder / "adapter_config.json").read_text())
    assert config["peft_type"] == "LORA" and config["r"] == 4 and config["lora_alpha"] == 32
    assert config["base_model_name_or_path"] == TINY
    tensors = load_file(folder / "adapter_model.safetensors")
    ups = [k for k in tensors if k.endswith("lora_B.weight")]
    assert len(ups) * 2 == len(tensors) and all(k.startswith("base_model.model.model.layers.") or ".lm_head." in k for k in tensors)
    assert all(tensors[k].shape[1] == 4 for k in ups) and any(abs(tensors[k]).max() > 0 for k in ups)
    assert out["file_size_bytes"] == sum(f.stat().st_size for f in folder.iterdir())
    # Nothing of it is left: neither the run that it made nor the export.
    assert [r["training_run_id"] for r in box.json("run", "list")["runs"]] == [box.run]
    assert len(box.json("checkpoint", "list")["checkpoints"]) == 2
    p = box.tinker("checkpoint", "download", box.sampler_path, "--output", str(tmp_path / "no"), check=False)
    assert p.returncode != 0 and "cannot be downloaded" in p.stderr


def test_download_external(box, tmp_path):
    """An export that stays, plain and encrypted."""
    service = box.server.client()
    run = get(service.create_training_client_from_state(box.path))
    path = get(run.save_weights_external("kept")).path
    sealed = get(run.save_weights_external("sealed", age_encryption_recipients=[
        "age1ql3z7hjy54pw3hyww5ayyfg7zqgvc7w3j2elw8zmrj2kg5sfn9aqmcac8p"])).path
    out = box.json("checkpoint", "download", path, "--output", str(tmp_path / "a"))
    assert (Path(out["destination"]) / "adapter_model.safetensors").stat().st_size > 1000
    out = box.json("checkpoint", "download", sealed, "--output", str(tmp_path / "b"))
    files = list(Path(out["destination"]).iterdir())
    assert files and all(f.name.endswith(".age") and f.read_bytes().startswith(b"age-encryption.org/v1\n-> X25519 ") for f in files)
    assert {c["checkpoint_type"] for c in box.json("checkpoint", "list", "--run-id", run.model_id)["checkpoints"]} == {"external"}
    box.tinker("checkpoint", "delete", "--yes", path, sealed)
    assert box.json("checkpoint", "list", "--run-id", run.model_id)["checkpoints"] == []
    service.close("success").result(timeout=harness.WAIT)


class Hub(http.server.BaseHTTPRequestHandler):
    """As much of a model hub as an upload needs."""
    files = {}

    def do_GET(self):
        if self.path.endswith("/whoami-v2"):
            return self.reply(200, {"name": "me", "type": "user"})
        self.reply(404, {"error": "not found"})

    do_HEAD = do_GET

    def do_POST(self):
        size = self.headers.get("Content-Length")
        if size is not None:
            body = self.rfile.read(int(size))
        else:
            body = b""
            while n := int(self.rfile.readline(), 16):
                body += self.rfile.read(n)
                self.rfile.readline()
            self.rfile.readline()
        if self.path.endswith("/repos/create"):
            return self.reply(200, {"url": f"http://{self.headers['Host']}/me/adapter", "name": "me/adapter", "id": "1"})
        if "/preupload/" in self.path:
            return self.reply(200, {"files": [{"path": f["path"], "uploadMode": "regular", "shouldIgnore": False}
                                              for f in json.loads(body)["files"]]})
        if "/commit/" in self.path:
            for line in body.splitlines():
                entry = json.loads(line)
                if entry["key"] == "file":
                    Hub.files[entry["value"]["path"]] = base64.b64decode(entry["value"]["content"])
            return self.reply(200, {"success": True, "commitOid": "0" * 40, "commitUrl": f"http://{self.headers['Host']}/me/adapter/commit/" + "0" * 40})
        self.reply(200, {})

    def reply(self, status, body):
        raw = json.dumps(body).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(raw)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(raw)

    def log_message(self, *_):
        pass


def test_push(box):
    hub = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Hub)
    threading.Thread(target=hub.serve_forever, daemon=True).start()
    try:
        env = dict(HF_ENDPOINT=f"http://127.0.0.1:{hub.server_port}", HF_TOKEN="hf_x", HF_HUB_OFFLINE="0", HF_HUB_DISABLE_XET="1")
        box.tinker("checkpoint", "push-hf", box.path, "--repo", "me/adapter", **env)
    finally:
        hub.shutdown()
    assert {"adapter_config.json", "adapter_model.safetensors", "README.md"} <= set(Hub.files)
    assert len(Hub.files["adapter_model.safetensors"]) > 1000
    assert box.path in Hub.files["README.md"].decode() and TINY in Hub.files["README.md"].decode()


def test_trace(box, tmp_path):
    out = box.json("session", "export-trace", box.session, "--output", str(tmp_path / "t.json"))
    raw = (tmp_path / "t.json").read_bytes()
    assert out["file_size_bytes"] == len(raw)
    events = json.loads(raw)["traceEvents"]
    names = {e["name"] for e in events}
    assert {"queue", "optimizer", "save", "sample"} <= names and names & {"forward", "forward_backward"}
    threads = {e["args"]["name"]: e["tid"] for e in events if e["name"] == "thread_name"}
    assert box.run in threads
    mine = sorted((e for e in events if e["ph"] == "X" and e["tid"] == threads[box.run]), key=lambda e: e["ts"])
    assert all(e["dur"] > 0 for e in mine)
    order = [e["args"]["seq_id"] for e in mine if "args" in e]
    assert order == sorted(order) and {1, 2, 3, 4} <= set(order)
    assert sum(e["ph"] == "b" for e in events) == sum(e["ph"] == "e" for e in events) > 0
    url = box.tinker("session", "export-trace", box.session, "--url-only").stdout.strip()
    assert url.startswith(box.server.url + "/")
    assert box.tinker("session", "export-trace", "nobody", check=False).returncode != 0


def test_billing(box):
    hour = datetime.now(timezone.utc).replace(minute=0, second=0, microsecond=0)
    window = [t.isoformat().replace("+00:00", "Z") for t in (hour - timedelta(hours=2), hour + timedelta(hours=1))]
    out = box.json("billing", "usage", *window)
    used = {}
    for e in out["data"]:
        info = e["event_info"]
        if e["session_id"] == box.session:
            assert e["base_model"] == TINY and e["project_id"] == "default" and e["estimated_cost_usd"] in (0, None)
            key = info["type"], info.get("cached")
            used[key] = used.get(key, 0) + info.get("token_count", info.get("count", 0))
    n = len(TOKENS)
    assert used["training", None] == 2 * (n - 1)
    assert used["sampling_sample", None] == 2 * 2 * 3
    assert used["sampling_prefill", False] + used.get(("sampling_prefill", True), 0) == 2 * n
    assert used["checkpoint", None] == 2
    assert out["sessions"][box.session] == {"user_metadata": {"team": "red"}}
    header = box.table("billing", "usage", *window)[0]
    assert {"type", "token_count", "session_id"} <= set(header)

    stored = box.json("billing", "checkpoint-storage")
    sizes = [c["size_bytes"] for c in box.json("checkpoint", "list", "--limit", 0)["checkpoints"]]
    assert stored["effective_rate_usd_per_gigabyte_month"] == 0
    assert stored["data"][0]["checkpoint_count"] == len(sizes) and stored["data"][0]["size_bytes"] == sum(sizes)
    assert abs(stored["data"][0]["size_gigabytes"] * 1e9 - sum(sizes)) < 1
    assert box.json("billing", "checkpoint-storage", "--project-id", "other")["data"] == []
    assert box.table("billing", "checkpoint-storage")[1][2] == str(len(sizes)) or str(sum(sizes)) in str(box.table("billing", "checkpoint-storage"))


def test_delete(box):
    """Last: it takes what the other tests look at."""
    box.tinker("checkpoint", "delete", "--yes", box.sampler_path)
    assert [c["tinker_path"] for c in box.json("checkpoint", "list")["checkpoints"]] == [box.path]
    box.tinker("checkpoint", "delete", "--yes", "--run-id", box.run, "--type", "weights")
    assert box.json("checkpoint", "list")["checkpoints"] == []
    p = box.tinker("checkpoint", "info", box.path, check=False)
    assert p.returncode != 0 and "not found" in (p.stdout + p.stderr).lower()
