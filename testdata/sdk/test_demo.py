"""make demo: what a new user runs first."""
import json
import os
import shutil
import subprocess

import pytest

import harness

DEMO = harness.REPO / "gym" / "demo.sh"


def processes():
    out = subprocess.run(["ps", "-eo", "args"], capture_output=True, text=True).stdout
    return [line for line in out.splitlines() if "serve" in line and "demo-box" in line]


def test_demo(tmp_path):
    """A model learns from rewards and not from shuffled ones; the checkpoint is there afterwards; no process stays."""
    data = tmp_path / "demo-box"
    p = subprocess.run(["bash", DEMO], env=dict(os.environ, DEMO_DATA=str(data), SEED="0"), capture_output=True, text=True, timeout=600)
    assert p.returncode == 0, p.stdout + p.stderr
    result = json.loads((data / "demo.json").read_text())
    assert 0.15 <= result["warm"] <= 0.6 and result["after"] >= result["warm"] + 0.2 and result["shuffled"] < result["warm"] + 0.1
    assert result["checkpoint"] in p.stdout and "smolgym chat" in p.stdout and "checkpoint export" in p.stdout
    assert (data / "demo.svg").read_text().startswith("<svg")
    assert not processes()
    box = harness.Server(tmp_path / "again")
    box.data = data
    box.start()
    try:  # what it said to go on with
        said = box.cli("chat", result["checkpoint"], "-m", "Backwards in capitals: d k a", "--temperature", 0).stdout.strip()
        assert said == "A K D", said
        box.cli("checkpoint", "export", result["checkpoint"], "--to", tmp_path / "sorted", "--form", "merged")
        assert (tmp_path / "sorted" / "model.safetensors").stat().st_size > 4_000_000
    finally:
        box.stop()


@pytest.mark.parametrize("lacks, says", [("go", "Go 1.26"), ("cc", "a C compiler"), ("python3", "Python 3.11")])
def test_demo_says_what_is_missing(tmp_path, lacks, says):
    tools = tmp_path / "bin"
    tools.mkdir()
    for name in ("bash", "dirname", "go", "cc", "python3", "make", "mkdir"):
        if name != lacks:
            os.symlink(shutil.which(name), tools / name)
    p = subprocess.run([tools / "bash", DEMO], env=dict(PATH=str(tools), HOME=str(tmp_path)), capture_output=True, text=True, timeout=60)
    assert p.returncode == 1 and f"needs {says}" in p.stderr, p.stderr
