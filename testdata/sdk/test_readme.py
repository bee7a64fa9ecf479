"""README's scripts run as printed."""
import os
import re
import subprocess
import sys

import pytest

import conftest
import harness

README = (harness.REPO / "README.md").read_text(encoding="utf-8")


def script(name):
    m = re.search(rf"<!-- script: {name} -->\n```python\n(.*?)```", README, re.S)
    assert m, f"README has no script {name!r}"
    return m.group(1)


def run(server, code, folder, name):
    env = dict(os.environ, TINKER_BASE_URL=server.url, TINKER_API_KEY="tml-local", MODEL=str(folder), MODEL_NAME=name)
    return subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True, timeout=300)


@pytest.mark.parametrize("rank", [8, 0])
def test_rl_loop_as_printed(server, rank):
    """With LoRA as printed, and with rank=0, the full update README speaks of."""
    folder = conftest.stories_folder()
    if folder is None:
        pytest.skip("stories260k is not there: set SMOLGYM_SHARED to the folder of shared material")
    code = script("rl")
    assert "rank=8" in code
    p = run(server, code.replace("rank=8", f"rank={rank}"), folder, conftest.STORIES)
    assert harness.ended(p), p.stderr
    rewards = [float(x) for x in re.findall(r"reward (\S+)", p.stdout)]
    assert len(rewards) == 10, p.stdout
    assert sum(rewards[-3:]) / 3 > 1.2 * sum(rewards[:2]) / 2, p.stdout
    assert re.search(r"^saved tinker://\S+:train:0/weights/after-rl$", p.stdout, re.M), p.stdout
