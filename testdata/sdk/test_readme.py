"""README's scripts run as printed."""
import os
import re
import subprocess
import sys

import pytest

import harness

README = (harness.REPO / "README.md").read_text(encoding="utf-8")


def script(name):
    m = re.search(rf"<!-- script: {name} -->\n```python\n(.*?)```", README, re.S)
    assert m, f"README has no script {name!r}"
    return m.group(1)


def run(server, code, home):
    env = dict(os.environ, TINKER_BASE_URL=server.url, TINKER_API_KEY="tml-local", HF_ENDPOINT=server.url, HF_HOME=str(home))
    env.pop("HF_HUB_OFFLINE", None)
    return subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True, timeout=300)


@pytest.mark.parametrize("rank", [8, 0])
def test_rl_loop_as_printed(server, service, rank, tmp_path):
    """With LoRA as printed, and with rank=0, the full update README speaks of."""
    code = script("rl")
    assert "rank=8" in code
    code = code.replace("rank=8", f"rank={rank}")
    if not hasattr(service.create_lora_training_client(base_model="rack/small", rank=1), "result"):
        code = code.replace("seed=1).result()", "seed=1)").replace("client().result()", "client()")  # SDKs before 0.38
    if rank == 0:
        code = code.replace("learning_rate=1e-3", "learning_rate=2e-4")
    p = run(server, code, tmp_path)
    assert harness.ended(p), p.stderr
    rewards = [float(x) for x in re.findall(r"reward (\S+)", p.stdout)]
    assert len(rewards) == 10, p.stdout
    assert sum(rewards[-3:]) / 3 >= sum(rewards[:2]) / 2 + 0.3, p.stdout
    assert "Warning" not in p.stderr, p.stderr
    assert re.search(r"^saved tinker://\S+:train:0/weights/after-rl$", p.stdout, re.M), p.stdout
