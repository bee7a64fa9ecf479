"""forward_backward_custom, in the torch environment (skipped where it is not there)."""
import json
import math
import os
import subprocess

import pytest
from harness import HERE, ended


@pytest.fixture(scope="module")
def result(server, torch_python):
    p = subprocess.run([torch_python, str(HERE / "dpo.py"), server.url, "test/tiny"], capture_output=True, text=True,
                       timeout=180, env=dict(os.environ, TINKER_TELEMETRY="0"))
    assert ended(p), p.stderr[-4000:]
    return json.loads(p.stdout.splitlines()[-1])


def test_dpo_learns(result):
    curve = result["curve"]
    first, last = curve[0], curve[-1]
    # A fresh adapter is the reference: every margin is 0, to the bit, so the loss is log 2.
    assert abs(first["loss:sum"] - math.log(2)) < 1e-6 and first["margin"] == 0
    assert last["loss:sum"] < 0.2 and last["accuracy"] == 1.0
    assert last["margin"] > 1 and "surrogate_loss:sum" in last


def test_custom_loss_equals_the_built_in(result):
    """The same loss written by the user gives the same weights, to the bit."""
    assert result["same"]
    assert abs(result["losses"][0] - result["losses"][1]) < 1e-3


def test_sparse_rows(result):
    assert result["sparse"], "the SDK sent dense tensors; the test needs a sparser one"
    assert result["table_shape"] == [5, 40] and result["table_right"]
    assert abs(result["table_loss"] - result["dense_loss"]) < 1e-4
