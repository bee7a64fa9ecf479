"""HF_ENDPOINT at the server: the official hub client, tokenizers and configurations by transformers, names, hostile paths.

SMOLGYM_HUB_PYTHON runs the client's checks with another environment's client; testdata/hub/versions.sh does so for each.
"""
import hashlib
import http.client
import http.server
import json
import os
import subprocess
import sys
import threading
import time
import urllib.parse

import harness
import pytest
import tiny_model
from harness import KEY, REPO, datum, get, lora

CLIENT = REPO / "testdata" / "hub" / "client.py"
CHECKS = ["repos", "upload", "large", "many_bytes", "download", "command", "resume"]


class Upstream:
    """A hub that the box asks, with one repository; its bytes are at another address."""

    REPO, COMMIT = "far/away", "f" * 40
    FILES = {"config.json": b'{"model_type": "llama"}', "model.safetensors": os.urandom(1 << 16)}

    def __init__(self):
        up = self

        class Handler(http.server.BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def log_message(self, *_):
                pass

            def reply(self, status, body=b"", **head):
                self.send_response(status)
                for k, v in head.items():
                    self.send_header(k.replace("_", "-"), v)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                if self.command != "HEAD":
                    self.wfile.write(body)

            def do_GET(self):
                up.seen.append((self.command, self.path, dict(self.headers)))
                name = self.path.rsplit("/", 1)[-1]
                if self.path.startswith("/bytes/"):
                    return self.reply(200, up.FILES[name])
                if self.path.startswith(f"/{up.REPO}/resolve/main/") and name in up.FILES:
                    body, etag = up.FILES[name], '"' + hashlib.sha1(up.FILES[name]).hexdigest() + '"'
                    if name == "config.json":
                        return self.reply(200, body, ETag=etag, X_Repo_Commit=up.COMMIT)
                    return self.reply(302, b"", Location=f"http://localhost:{up.port}/bytes/{name}", ETag='"x"', X_Linked_ETag=etag,
                                      X_Linked_Size=str(len(body)), X_Repo_Commit=up.COMMIT, X_Xet_Hash="0" * 64)
                if self.path.startswith("/far/old/resolve/"):
                    return self.reply(307, b"", Location=self.path.replace("/far/old/", "/far/away/"))
                if self.path.startswith(f"/{up.REPO}/"):
                    return self.reply(404, b"{}", X_Error_Code="EntryNotFound", X_Repo_Commit=up.COMMIT)
                if self.path.startswith("/api/datasets/far/data"):
                    return self.reply(200, json.dumps(dict(id="far/data", sha=up.COMMIT, tags=[], siblings=[])).encode(), Content_Type="application/json")
                return self.reply(404, b"{}", X_Error_Code="RepoNotFound")

            do_HEAD = do_GET

        self.seen = []
        self.server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.port = self.server.server_address[1]
        self.url = f"http://127.0.0.1:{self.port}"
        threading.Thread(target=self.server.serve_forever, daemon=True).start()

    def close(self):
        self.server.shutdown()
        self.server.server_close()


def write_sharded(folder, shards=3):
    """The tiny model, wider, in shards above a mebibyte."""
    os.makedirs(folder)
    hidden, inner = 256, 768
    w = tiny_model.weights(seed=3, hidden=hidden, inner=inner)
    c = dict(tiny_model.config(), hidden_size=hidden, intermediate_size=inner, head_dim=hidden // tiny_model.HEADS)
    tiny_model.dump(folder / "config.json", c)
    tiny_model.dump(folder / "tokenizer.json", tiny_model.tokenizer())
    tiny_model.dump(folder / "tokenizer_config.json", dict(tokenizer_class="PreTrainedTokenizerFast", bos_token="<s>", eos_token="</s>", pad_token="<pad>"))
    names, index = sorted(w), {}
    for i in range(shards):
        file, part = f"model-{i + 1:05d}-of-{shards:05d}.safetensors", names[i::shards]
        tiny_model.write_safetensors(folder / file, {n: w[n] for n in part})
        assert os.path.getsize(folder / file) > 1 << 20
        index.update({n: file for n in part})
    tiny_model.dump(folder / "model.safetensors.index.json", dict(metadata={}, weight_map=index))


@pytest.fixture(scope="module")
def material(tmp_path_factory, folders):
    d = tmp_path_factory.mktemp("hub")
    write_sharded(d / "sharded")
    os.symlink(folders["tiny"], d / "plain")
    (d / "work").mkdir()
    return d


@pytest.fixture(scope="module")
def upstream():
    u = Upstream()
    yield u
    u.close()


@pytest.fixture(scope="module")
def hub(tmp_path_factory, folders, upstream):
    s = harness.Server(tmp_path_factory.mktemp("hubserver") / "box", "--hub-upstream", upstream.url).start()
    s.add_model("test/tiny", folders["tiny"])
    yield s
    s.stop()


def environment(server, home, **more):
    env = {k: v for k, v in os.environ.items() if not k.startswith("HF_")}
    return dict(env, HF_ENDPOINT=server.url, HF_TOKEN=KEY, HF_HOME=str(home), TOKENIZERS_PARALLELISM="false", **more)


def run(python, code, env, *args):
    p = subprocess.run([python, "-c", code, *map(str, args)], env=env, capture_output=True, text=True, timeout=240)
    assert harness.ended(p), (p.returncode, p.stdout + p.stderr[-6000:])
    return p.stdout


@pytest.mark.parametrize("check", CHECKS)
def test_client(tmp_path_factory, material, check):
    """Each on a box of its own, with no network but the box."""
    root = tmp_path_factory.mktemp(check)
    python = os.environ.get("SMOLGYM_HUB_PYTHON", sys.executable)
    s = harness.Server(root / "box", "--hub-upstream", "").start()
    try:
        p = subprocess.run([python, str(CLIENT), check, str(material)], env=environment(s, root / "home"), capture_output=True, text=True, timeout=240)
        assert p.returncode == 0, p.stdout + p.stderr[-6000:] + s.tail()
        assert p.stdout.startswith("ok " + check)
        s.alive()
        assert not any((root / "box" / "data" / "scratch").rglob("*")) or check in ("large", "many_bytes", "download", "resume")
    finally:
        s.stop()
    assert sorted(os.listdir(s.data)) in (["smolgym.db"], ["scratch", "smolgym.db"])
    assert not any((s.data / "scratch").rglob("*")), "a stop leaves nothing of uploads under way"


def test_all_checks_run():
    text = CLIENT.read_text()
    assert CHECKS == [l.split("(")[0].removeprefix("def check_") for l in text.splitlines() if l.startswith("def check_")]


def test_transformers(hub, tmp_path):
    out = run(sys.executable, """if True:
        from transformers import AutoConfig, AutoTokenizer
        t = AutoTokenizer.from_pretrained("test/tiny")
        print(t.encode("hello", add_special_tokens=False), AutoConfig.from_pretrained("test/tiny").hidden_size)""", environment(hub, tmp_path))
    assert out.strip() == f"{tiny_model.encode('hello')} {tiny_model.HIDDEN}"


def test_uploaded_model_trains(hub, material, tmp_path):
    """hf upload of a sharded folder makes a model that trains; its tokenizer is found by the SDK through the hub."""
    run(sys.executable, """if True:
        import sys; from huggingface_hub import HfApi
        HfApi().create_repo("me/trains"); HfApi().upload_folder(repo_id="me/trains", folder_path=sys.argv[1])""",
        environment(hub, tmp_path), material / "sharded")
    service = hub.client()
    try:
        client = lora(service, "me/trains", rank=4)
        data = [datum(tiny_model.encode("a lesson to learn by heart"))]
        losses = harness.train(client, data, 4, lr=1e-2)
        assert losses[-1] < losses[0] * 0.8, losses
        info = get(client.get_info()) if hasattr(client.get_info(), "result") else client.get_info()
        assert info.model_data.tokenizer_id == "me/trains"
    finally:
        service.close("success").result(timeout=harness.WAIT)
    out = run(sys.executable, """if True:
        import sys, tinker
        service = tinker.ServiceClient(base_url=sys.argv[1])
        run = service.create_lora_training_client(base_model="me/trains", rank=4).result(timeout=60)
        print(run.get_tokenizer().encode("hi", add_special_tokens=False))
        service.close("success").result(timeout=60)""", dict(environment(hub, tmp_path), TINKER_API_KEY=KEY), hub.url)
    assert out.strip().endswith(str(tiny_model.encode("hi")))


SCORE = """if True:
    import json, sys, torch
    from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer
    repo, tokens, ours = sys.argv[1], json.loads(sys.argv[2]), json.loads(sys.argv[3])
    AutoTokenizer.from_pretrained(repo); AutoConfig.from_pretrained(repo)
    def score(m):
        with torch.no_grad():
            lp = torch.log_softmax(m(torch.tensor([tokens])).logits[0].double(), -1)
        return [lp[i, t].item() for i, t in enumerate(tokens[1:])]
    def worst(m):
        return max(abs(a - b) for a, b in zip(score(m), ours))
    base = AutoModelForCausalLM.from_pretrained(repo, dtype=torch.float32)
    print(worst(base))
"""


def test_uploaded_model_loads(hub, material, tmp_path, torch_python):
    """An upload loads elsewhere as what it is here: to the log-probabilities that we compute."""
    run(torch_python, """if True:
        import sys; from huggingface_hub import HfApi
        HfApi().create_repo("me/loads"); HfApi().upload_folder(repo_id="me/loads", folder_path=sys.argv[1])""",
        environment(hub, tmp_path), material / "sharded")
    tokens = tiny_model.encode("what is it to you")
    service = hub.client()
    try:
        ours = [float(v) for v in harness.scores(service.create_sampling_client(base_model="me/loads"), tokens)]
    finally:
        service.close("success").result(timeout=harness.WAIT)
    out = run(torch_python, SCORE, environment(hub, tmp_path / "other"), "me/loads", json.dumps(tokens), json.dumps(ours))
    assert float(out.split()[-1]) < 1e-4, out


def test_embedded_model_loads(hub, tmp_path, torch_python):
    """The model that comes with the program, tokenizer, template, configuration and weights, to the log-probabilities we compute."""
    message = [dict(role="user", content="Reverse: k d a z")]
    ids = run(sys.executable, """if True:
        import json, sys; from transformers import AutoTokenizer
        t = AutoTokenizer.from_pretrained("rack/small")
        print(t.apply_chat_template(json.loads(sys.argv[1]), tokenize=False, add_generation_prompt=True))
        print(t.encode(t.apply_chat_template(json.loads(sys.argv[1]), tokenize=False, add_generation_prompt=True)))""",
              environment(hub, tmp_path), json.dumps(message)).splitlines()
    assert ids[0] == "<|user|>Reverse: k d a z<|end|><|assistant|>"
    tokens = json.loads(ids[1])
    service = hub.client()
    try:
        ours = [float(v) for v in harness.scores(get(service.create_sampling_client(base_model="rack/small")), tokens)]
    finally:
        service.close("success").result(timeout=harness.WAIT)
    out = run(torch_python, SCORE, environment(hub, tmp_path / "other"), "rack/small", json.dumps(tokens), json.dumps(ours))
    assert float(out.split()[-1]) < 1e-4, out


def test_variant(hub, folders, tmp_path):
    """Only a variant is here: it answers for the tokenizer, and its weights are nobody else's."""
    hub.add_model("known/base:mine", folders["tiny"])
    out = run(sys.executable, """if True:
        from transformers import AutoTokenizer
        from huggingface_hub import hf_hub_download, HfApi
        print(AutoTokenizer.from_pretrained("known/base").encode("hi", add_special_tokens=False))
        try:
            hf_hub_download("known/base", "model.safetensors")
        except Exception as e:
            print(type(e).__name__)
        print([f for f in HfApi().list_repo_files("known/base") if f.endswith("safetensors")])""", environment(hub, tmp_path))
    assert out.splitlines() == [str(tiny_model.encode("hi")), "RepositoryNotFoundError", "[]"], out


def test_upstream(hub, upstream, tmp_path):
    """What isn't here is found upstream, with its commit and sizes; our token stays here."""
    upstream.seen.clear()
    code = """if True:
        import sys
        from huggingface_hub import hf_hub_download, HfApi, get_hf_file_metadata, hf_hub_url
        from huggingface_hub.errors import EntryNotFoundError, RepositoryNotFoundError
        for name in ("config.json", "model.safetensors"):
            print(hf_hub_download("far/away", name))
        print(hf_hub_download("far/old", "config.json"))
        m = get_hf_file_metadata(hf_hub_url("far/away", "model.safetensors"))
        print(m.commit_hash, m.size, m.xet_file_data if hasattr(m, "xet_file_data") else None)
        for repo, name, kind in (("far/away", "nope", EntryNotFoundError), ("far/nope", "config.json", RepositoryNotFoundError)):
            try:
                hf_hub_download(repo, name)
            except kind:
                print("right")
        print(HfApi().dataset_info("far/data").sha)"""
    lines = run(sys.executable, code, environment(hub, tmp_path)).splitlines()
    for path, name in zip(lines, ("config.json", "model.safetensors", "config.json")):
        assert open(path, "rb").read() == Upstream.FILES[name]
        assert Upstream.COMMIT in path
    assert lines[3] == f"{Upstream.COMMIT} {1 << 16} None"
    assert lines[4:] == ["right", "right", Upstream.COMMIT]
    assert upstream.seen and not any(KEY in str(h) for method, _, h in upstream.seen if method == "HEAD")


def test_checkpoints(hub, tmp_path, torch_python):
    """A run's checkpoint by its hub name: merged on main, PEFT's form on adapter, to the log-probabilities we compute."""
    service = hub.client()
    try:
        client = lora(service, "test/tiny", rank=4)
        harness.train(client, [datum(tiny_model.encode("a lesson to learn by heart"))], 5, lr=1e-2)
        path = get(client.save_weights_for_sampler("final--1")).path
        tokens = tiny_model.encode("a lesson to learn")
        sampler = service.create_sampling_client(model_path=path)
        ours = [float(v) for v in harness.scores(sampler, tokens)]
        run_id, n = path.removeprefix("tinker://").split("/")[0].split(":train:")
    finally:
        service.close("success").result(timeout=harness.WAIT)
    import base64
    name = "x-" + base64.b32encode(b"final--1").decode().rstrip("=").lower()
    repo = f"runs/{run_id}.{n}.s.{name}"
    assert repo in hub.cli("checkpoint", "show", path).stdout
    code = SCORE + """
    from peft import PeftModel
    plain = AutoModelForCausalLM.from_pretrained("test/tiny", dtype=torch.float32)
    print(worst(plain), worst(PeftModel.from_pretrained(plain, repo, revision="adapter")))"""
    out = run(torch_python, code, environment(hub, tmp_path), repo, json.dumps(tokens), json.dumps(ours))
    merged, untrained, adapter = map(float, out.split()[-3:])
    assert merged < 1e-4 and adapter < 1e-4 and untrained > 1e-2, out


def test_gguf(hub, folders, tmp_path, torch_python):
    """A model that came as a GGUF file is a folder to hub clients too, and loads to the log-probabilities that we compute."""
    service = hub.client()
    try:
        client = lora(service, "test/tiny", rank=4)
        harness.train(client, [datum(tiny_model.encode("a lesson to learn by heart"))], 5, lr=1e-2)
        path = get(client.save_weights_for_sampler("for-gguf")).path
        hub.cli("checkpoint", "export", path, "--to", tmp_path / "small.gguf", "--form", "gguf", "--dtype", "q8_0")
        for name in ("me/gguf", "known/gguf:mine"):
            hub.add_model(name, tmp_path / "small.gguf")
        tokens = tiny_model.encode("a lesson to learn")
        ours = [float(v) for v in harness.scores(service.create_sampling_client(base_model="me/gguf"), tokens)]
    finally:
        service.close("success").result(timeout=harness.WAIT)
    code = SCORE + """
    from huggingface_hub import HfApi, snapshot_download
    import hashlib, pathlib
    print(AutoTokenizer.from_pretrained(repo).encode("hello", add_special_tokens=False))
    print(AutoTokenizer.from_pretrained("known/gguf").encode("hello", add_special_tokens=False))
    print(sorted(f for f in HfApi().list_repo_files(repo)))
    print(sorted(f for f in HfApi().list_repo_files("known/gguf")))
    files = {s.rfilename: s for s in HfApi().model_info(repo, files_metadata=True).siblings}
    for f in pathlib.Path(snapshot_download(repo)).iterdir():
        raw = f.read_bytes()
        assert len(raw) == files[f.name].size, f.name
        assert not files[f.name].lfs or hashlib.sha256(raw).hexdigest() == files[f.name].lfs.sha256, f.name
    print(hashlib.sha256((pathlib.Path(snapshot_download(repo)) / "small.gguf").read_bytes()).hexdigest())"""
    out = run(torch_python, code, environment(hub, tmp_path / "home"), "me/gguf", json.dumps(tokens), json.dumps(ours)).splitlines()
    assert float(out[0]) < 1e-4, out
    side = ["config.json", "generation_config.json"]
    assert out[1:3] == [str(tiny_model.encode("hello"))] * 2, out
    assert out[3:5] == [str(side + ["model.safetensors", "small.gguf", "tokenizer.json", "tokenizer_config.json"]),
                        str(side + ["tokenizer.json", "tokenizer_config.json"])], out
    assert out[5] == hashlib.sha256((tmp_path / "small.gguf").read_bytes()).hexdigest()


# Requests that no client sends.

def ask(server, method, path, body=None, **head):
    """(status, headers, body) of a request whose path goes out as it is."""
    c = http.client.HTTPConnection("127.0.0.1", server.port, timeout=30)
    try:
        c.putrequest(method, path, skip_accept_encoding=True)
        for k, v in dict({"Authorization": "Bearer " + KEY}, **head).items():
            c.putheader(k.replace("_", "-"), v)
        if body is not None:
            c.putheader("Content-Length", str(len(body)))
        c.endheaders(body)
        r = c.getresponse()
        try:
            return r.status, r.headers, r.read()
        except ConnectionResetError:  # it answers what isn't HTTP at once, and reads no body
            return r.status, r.headers, b""
    finally:
        c.close()


HOSTILE = ["..", ".", "%2e%2e", "..%2f..%2fetc%2fpasswd", "a%2f..%2fb", "%00", "a%00b", "a%0ab", "%5c..%5c", "", "%c3%28", "a" * 4096,
           "%2fetc%2fpasswd", "....//", "config.json%2f..", "~", "%", "%zz"]


@pytest.mark.parametrize("part", HOSTILE)
def test_hostile(hub, part):
    before = sorted(os.listdir(hub.root.parent)), sorted(os.listdir(hub.data))
    for method, path, body in [
            ("GET", f"/test/tiny/resolve/main/{part}", None), ("HEAD", f"/test/tiny/resolve/{part}/config.json", None),
            ("GET", f"/{part}/tiny/resolve/main/config.json", None), ("GET", f"/test/{part}/resolve/main/config.json", None),
            ("GET", f"/api/models/test/tiny/tree/main/{part}/x", None), ("GET", f"/api/models/{part}/x", None),
            ("POST", f"/api/models/test/{part}/preupload/main", b"{}"), ("POST", f"/api/models/test/tiny/branch/{part}", b"{}"),
            ("POST", f"/test/{part}.git/info/lfs/objects/batch", b"{}"), ("PUT", f"/test/tiny.git/info/lfs/objects/{part}/1-2-3", b"x"),
            ("GET", f"/xet/{part}/v1/x", None), ("POST", f"/xet/x/v1/xorbs/default/{part}", b"x")]:
        status, _, raw = ask(hub, method, path, body)
        assert 400 <= status < 500, (method, path, status, raw[:200])
    name = urllib.parse.unquote(part, errors="replace")
    if part not in ("~", "%", "%zz", "%c3%28", "..%2f..%2fetc%2fpasswd"[:0]):
        lines = [dict(key="header", value=dict(summary="x")), dict(key="file", value=dict(path=name, encoding="base64", content="eA=="))]
        status, _, raw = ask(hub, "POST", "/api/models/test/tiny/commit/main", b"\n".join(json.dumps(l).encode() for l in lines))
        assert status == 400, (name, status, raw)
        status, _, raw = ask(hub, "POST", "/api/repos/create", json.dumps(dict(name=name, organization="me")).encode())
        assert 400 <= status < 500, (name, status, raw)
    assert (sorted(os.listdir(hub.root.parent)), sorted(os.listdir(hub.data))) == before
    hub.alive()


def test_tokens(hub):
    """Reading needs none while there are no keys; writing always does."""
    assert ask(hub, "GET", "/test/tiny/resolve/main/config.json", Authorization="")[0] == 200
    for method, path, body in [("POST", "/api/repos/create", b'{"name":"x","organization":"me"}'), ("POST", "/api/models/test/tiny/commit/main", b"{}"),
                               ("DELETE", "/api/repos/delete", b'{"name":"tiny","organization":"test"}'), ("GET", "/api/whoami-v2", None),
                               ("POST", "/api/models/test/tiny/preupload/main", b'{"files":[]}'), ("GET", "/api/models/test/tiny/xet-write-token/main", None),
                               ("POST", "/test/tiny.git/info/lfs/objects/batch", b"{}"), ("POST", "/test/tiny.git/info/lfs/verify", b"{}")]:
        status, _, raw = ask(hub, method, path, body, Authorization="")
        assert status == 401 and b"HF_TOKEN" in raw, (path, status, raw)


def test_interrupted_upload(hub):
    """An object whose sender broke off: what came is kept, and the next attempt makes it whole."""
    raw = os.urandom(3 << 20)
    oid = hashlib.sha256(raw).hexdigest()
    ask(hub, "POST", "/api/repos/create", b'{"name":"cut","organization":"me"}')

    def batch():
        status, _, body = ask(hub, "POST", "/me/cut.git/info/lfs/objects/batch", json.dumps(dict(
            operation="upload", transfers=["basic"], objects=[dict(oid=oid, size=len(raw))], hash_algo="sha256")).encode())
        assert status == 200, body
        return json.loads(body)["objects"][0].get("actions")

    href = batch()["upload"]["href"].removeprefix(hub.url)
    c = http.client.HTTPConnection("127.0.0.1", hub.port, timeout=30)
    c.putrequest("PUT", href)
    c.putheader("Content-Length", str(len(raw)))
    c.endheaders()
    c.send(raw[:2 << 20])
    c.close()
    wrong = bytes(len(raw))
    assert ask(hub, "PUT", href + "x", raw)[0] == 403
    assert ask(hub, "PUT", href, raw[:10])[0] == 400
    end = time.monotonic() + 20
    while (answer := ask(hub, "PUT", href, raw))[0] == 503 and time.monotonic() < end:
        assert b"in progress" in answer[2]  # until the server has seen that the first sender is gone; clients try again
    assert answer[0] == 200, answer
    assert batch() is None
    other = hashlib.sha256(b"other").hexdigest()
    oid = other
    raw = wrong
    href = batch()["upload"]["href"].removeprefix(hub.url)
    status, _, body = ask(hub, "PUT", href, wrong)
    assert status == 400 and b"mismatch" in body, (status, body)


def test_killed_server_keeps_uploads(own_server, material, tmp_path):
    """An incomplete repository survives a kill; the rest makes it a model."""
    s = own_server
    env = environment(s, tmp_path / "home")
    upload = """if True:
        import sys; from huggingface_hub import HfApi
        api = HfApi(); api.create_repo("me/half", exist_ok=True)
        api.upload_folder(repo_id="me/half", folder_path=sys.argv[1], allow_patterns=sys.argv[2:] or None)"""
    run(sys.executable, upload, env, material / "sharded", "*.json", "model-00001*")
    s.restart(harness.signal.SIGKILL)
    status, _, raw = ask(s, "GET", "/api/models/me/half")
    info = json.loads(raw)
    assert not info["smolgym"]["model"] and "model-00002" in info["smolgym"]["missing"], info
    assert "me/half" not in s.cli("model", "list").stdout
    run(sys.executable, upload, env, material / "sharded")
    assert "me/half" in s.cli("model", "list").stdout
    s.restart()
    assert "me/half" in s.cli("model", "list").stdout
    s.cli("model", "rm", "me/half")
    assert ask(s, "GET", "/api/models/me/half", X="")[0] == 404


def test_in_use(hub, folders, tmp_path):
    """A model that is trained on can't be changed or deleted under the run; notes about it can."""
    hub.add_model("me/used", folders["tiny"])
    service = hub.client()
    try:
        lora(service, "me/used", rank=4)

        def commit(path, content):
            lines = [dict(key="header", value=dict(summary="x")), dict(key="file", value=dict(path=path, encoding="utf-8", content=content))]
            return ask(hub, "POST", "/api/models/me/used/commit/main", b"\n".join(json.dumps(l).encode() for l in lines))

        status, _, raw = commit("config.json", json.dumps(dict(tiny_model.config(), rope_theta=1.0)))
        assert status == 409 and b"in use" in raw, (status, raw)
        assert commit("README.md", "hello")[0] == 200
        status, _, raw = ask(hub, "DELETE", "/api/repos/delete", b'{"name":"used","organization":"me"}')
        assert status == 409 and b"in use" in raw, (status, raw)
    finally:
        service.close("success").result(timeout=harness.WAIT)
