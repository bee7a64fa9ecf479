"""What the official hub client does against our server, whatever its version.

    HF_ENDPOINT=URL HF_TOKEN=KEY HF_HOME=EMPTY python client.py CHECK FOLDER

FOLDER holds `plain` (a small model in one file, below a mebibyte), `sharded` (one in shards above it) and `work` (to
write to). Each check uses repositories of its own and ends with 0 if all is as it should be. Needs huggingface_hub alone.
"""
import filecmp
import os
import subprocess
import sys
from pathlib import Path

import huggingface_hub as hub
from huggingface_hub import HfApi
from huggingface_hub.errors import EntryNotFoundError, HfHubHTTPError, RepositoryNotFoundError, RevisionNotFoundError

FOLDER = Path(sys.argv[2]) if len(sys.argv) > 2 else None
api = HfApi()


def same(a, b, ignore=(".cache", ".gitattributes")):
    """Two folders have the same files with the same bytes."""
    def files(d):
        return sorted(str(p.relative_to(d)) for p in Path(d).rglob("*")
                      if p.is_file() and not str(p.relative_to(d)).startswith(ignore))
    assert files(a) == files(b), (files(a), files(b))
    for f in files(a):
        assert filecmp.cmp(Path(a) / f, Path(b) / f, shallow=False), f


def fails(kind, call, *words):
    try:
        out = call()
    except kind as e:
        text = str(e)
        for w in words:
            assert w.lower() in text.lower(), (w, text)
        return e
    raise AssertionError(f"no {kind.__name__}, but {out!r}")


def cli(*args):
    hf = Path(sys.executable).with_name("hf")
    p = subprocess.run([hf, *map(str, args)], capture_output=True, text=True, timeout=120)
    assert p.returncode == 0, (args, p.stdout, p.stderr)
    return p.stdout


def box(repo):
    """What the server says the repository is to it."""
    import json
    import urllib.request
    req = urllib.request.Request(f"{os.environ['HF_ENDPOINT']}/api/models/{repo}", headers={"Authorization": "Bearer " + os.environ["HF_TOKEN"]})
    with urllib.request.urlopen(req, timeout=30) as r:
        return json.load(r)["smolgym"]


def check_repos():
    assert api.whoami()["name"] == "local"
    url = api.create_repo("me/repos")
    assert url.repo_id == "me/repos", url
    fails(HfHubHTTPError, lambda: api.create_repo("me/repos"), "exists")
    assert api.create_repo("me/repos", exist_ok=True).repo_id == "me/repos"
    assert api.create_repo("repos").repo_id == "local/repos"
    assert api.repo_exists("me/repos") and not api.repo_exists("me/other")
    api.auth_check("me/repos")
    info = box("me/repos")
    assert not info["model"] and "config.json" in info["missing"], info
    for org in ("runs", "rack", "v1", "api"):
        fails(HfHubHTTPError, lambda: api.create_repo(org + "/x"), org)
    fails(HfHubHTTPError, lambda: api.create_repo("me/data", repo_type="dataset"), "dataset")
    api.delete_repo("me/repos")
    assert not api.repo_exists("me/repos")
    fails(RepositoryNotFoundError, lambda: api.delete_repo("me/repos"))
    api.delete_repo("me/repos", missing_ok=True)


def check_upload():
    api.create_repo("me/upload")
    first = api.model_info("me/upload").sha
    commit = api.upload_folder(repo_id="me/upload", folder_path=FOLDER / "plain")
    info = api.model_info("me/upload", files_metadata=True)
    assert commit.oid == info.sha != first
    assert box("me/upload") == {"model": True}, box("me/upload")
    names = sorted(os.listdir(FOLDER / "plain"))
    assert sorted(api.list_repo_files("me/upload")) == names
    for s in info.siblings:
        assert s.size == (FOLDER / "plain" / s.rfilename).stat().st_size
    # Unchanged: nothing is committed.
    api.upload_folder(repo_id="me/upload", folder_path=FOLDER / "plain")
    assert api.model_info("me/upload").sha == info.sha
    # A note may change, and goes away again.
    api.upload_file(path_or_fileobj=b"---\ntags:\n- tiny\n---\n# a model\n", path_in_repo="README.md", repo_id="me/upload")
    assert api.model_info("me/upload").sha != info.sha
    assert box("me/upload") == {"model": True}
    api.delete_file("README.md", repo_id="me/upload")
    assert api.model_info("me/upload").sha == info.sha
    commits = [c.commit_id for c in api.list_repo_commits("me/upload")]
    assert commits[0] == info.sha and first in commits
    # Odd names.
    api.upload_file(path_or_fileobj=b"{}", path_in_repo="sub dir/c+fg é.json", repo_id="me/upload")
    assert Path(hub.hf_hub_download("me/upload", "sub dir/c+fg é.json")).read_bytes() == b"{}"
    fails(HfHubHTTPError, lambda: api.upload_file(path_or_fileobj=b"x", path_in_repo="pytorch_model.bin", repo_id="me/upload"), "safetensors")
    fails(HfHubHTTPError, lambda: api.upload_file(path_or_fileobj=b"x", path_in_repo="y.json", repo_id="me/upload", create_pr=True), "pull requests")
    fails(HfHubHTTPError, lambda: api.create_commit("me/upload", operations=[hub.CommitOperationAdd("y.json", b"y")],
                                                    commit_message="late", parent_commit=first), "moved on")


def check_large():
    """Files above a mebibyte go the way that the client's version prefers."""
    api.create_repo("me/large")
    api.upload_folder(repo_id="me/large", folder_path=FOLDER / "sharded", allow_patterns=["*.json"])
    info = box("me/large")
    assert not info["model"] and "safetensors" in info["missing"], info
    shards = sorted(p.name for p in (FOLDER / "sharded").glob("*.safetensors"))
    api.upload_folder(repo_id="me/large", folder_path=FOLDER / "sharded", allow_patterns=shards[:1])
    info = box("me/large")
    assert not info["model"] and shards[-1] in info["missing"], info
    api.upload_folder(repo_id="me/large", folder_path=FOLDER / "sharded")
    assert box("me/large") == {"model": True}, box("me/large")
    got = hub.snapshot_download("me/large")
    same(FOLDER / "sharded", got)
    entries = {e.path: e for e in api.get_paths_info("me/large", [shards[0], "config.json", "nope"])}
    assert sorted(entries) == sorted([shards[0], "config.json"])
    import hashlib
    raw = (FOLDER / "sharded" / shards[0]).read_bytes()
    assert entries[shards[0]].lfs["sha256"] == hashlib.sha256(raw).hexdigest() and entries["config.json"].lfs is None
    meta = api.get_safetensors_metadata("me/large")
    assert meta.sharded and len(meta.files_metadata) == len(shards)
    # The same content under another name isn't sent again.
    api.create_repo("me/large-copy")
    api.upload_folder(repo_id="me/large-copy", folder_path=FOLDER / "sharded")
    assert api.model_info("me/large-copy").sha == api.model_info("me/large").sha


def check_many_bytes():
    """A file of many chunks, and one that repeats itself."""
    api.create_repo("me/bytes")
    import random
    g = random.Random(7)
    files = {"random.npy": g.randbytes(20 << 20), "same.npy": b"smolgym " * (1 << 20), "mixed.npy": g.randbytes(1 << 20) * 3 + bytes(2 << 20)}
    for name, raw in files.items():
        (FOLDER / "work" / name).write_bytes(raw)
        api.upload_file(path_or_fileobj=FOLDER / "work" / name, path_in_repo=name, repo_id="me/bytes")
    for name, raw in files.items():
        assert Path(hub.hf_hub_download("me/bytes", name)).read_bytes() == raw, name


def check_download():
    api.create_repo("me/down")
    api.upload_folder(repo_id="me/down", folder_path=FOLDER / "sharded")
    sha = api.model_info("me/down").sha
    snap = hub.snapshot_download("me/down")
    same(FOLDER / "sharded", snap)
    assert hub.snapshot_download("me/down", revision=sha) == snap
    same(FOLDER / "sharded", hub.snapshot_download("me/down", local_dir=FOLDER / "work" / "local"))
    assert hub.snapshot_download("me/down") == snap
    cli("download", "me/down", "--local-dir", FOLDER / "work" / "cli")
    same(FOLDER / "sharded", FOLDER / "work" / "cli")
    assert api.file_exists("me/down", "config.json") and not api.file_exists("me/down", "nope.json")
    fails(EntryNotFoundError, lambda: hub.hf_hub_download("me/down", "nope.json"))
    fails(RevisionNotFoundError, lambda: hub.hf_hub_download("me/down", "config.json", revision="nope"))
    fails(RepositoryNotFoundError, lambda: hub.hf_hub_download("me/nope", "config.json"))
    fails(RepositoryNotFoundError, lambda: hub.snapshot_download("me/nope"))
    refs = api.list_repo_refs("me/down")
    assert [(b.name, b.target_commit) for b in refs.branches] == [("main", sha)]
    assert "me/down" in [m.id for m in api.list_models(author="me")]
    tree = {e.path for e in api.list_repo_tree("me/down", recursive=True)}
    assert tree == {p.name for p in (FOLDER / "sharded").iterdir()}
    fs = hub.HfFileSystem()
    assert fs.read_bytes("me/down/config.json") == (FOLDER / "sharded" / "config.json").read_bytes()


def check_command():
    cli("upload", "me/command", FOLDER / "plain")
    assert box("me/command") == {"model": True}
    cli("upload", "me/command", FOLDER / "plain")
    cli("upload", "me/command", FOLDER / "plain" / "config.json", "extra/config.json", "--revision", "exp/1")
    assert "extra/config.json" in api.list_repo_files("me/command", revision="exp/1")
    assert "extra/config.json" not in api.list_repo_files("me/command")
    assert Path(hub.hf_hub_download("me/command", "extra/config.json", revision="exp/1")).exists()


def check_resume():
    """A download that was cut short goes on, and is whole."""
    api.create_repo("me/resume")
    raw = os.urandom(12 << 20)
    (FOLDER / "work" / "resume.npy").write_bytes(raw)
    api.upload_file(path_or_fileobj=FOLDER / "work" / "resume.npy", path_in_repo="resume.npy", repo_id="me/resume")
    import hashlib
    cache = Path(os.environ["HF_HOME"]) / "hub" / "models--me--resume" / "blobs"
    cache.mkdir(parents=True)
    (cache / (hashlib.sha256(raw).hexdigest() + ".incomplete")).write_bytes(raw[:10 << 20])
    assert Path(hub.hf_hub_download("me/resume", "resume.npy")).read_bytes() == raw


CHECKS = {k.removeprefix("check_"): v for k, v in globals().items() if k.startswith("check_")}

if __name__ == "__main__":
    CHECKS[sys.argv[1]]()
    print("ok", sys.argv[1], hub.__version__)
