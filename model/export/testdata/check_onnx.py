"""Judges the files that `go test ./model/export -run TestONNXCheck -write DIR` has written.

    python check_onnx.py DIR [verdict.json]

A case is ok if the checker accepts the file with full shape inference, if ONNX Runtime gives our logits to 1e-4, and if it
gives the same for a part of the batch alone: one row, fewer tokens. Prints a line a case and exits 1 when one is not; the verdict keeps
the hash of each judged file: the Go test holds later files to them.
"""

import hashlib
import json
import sys
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
from safetensors import safe_open

TOLERANCE = 1e-4


def judge(case):
    with safe_open(case / "numbers.safetensors", "np") as f:
        ids, want = f.get_tensor("ids").astype(np.int64), f.get_tensor("logits")
        shared = f.metadata()["shared"] == "yes"
    path = next(case.glob("*.onnx"))
    onnx.checker.check_model(path, full_check=True)
    model = onnx.load(path)
    onnx.shape_inference.infer_shapes(model, check_type=True, strict_mode=True, data_prop=True)
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    session = onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])
    run = lambda x: session.run(["logits"], {"input_ids": x})[0]
    got = run(ids)
    assert got.shape == want.shape, (got.shape, want.shape)
    short = ids.shape[1] // 2
    error = max(np.abs(got - want).max(), np.abs(run(ids[1:, :short]) - want[1:, :short]).max(), np.abs(run(ids[:1, :1]) - want[:1, :1]).max())
    files = {f.name: hashlib.sha256(f.read_bytes()).hexdigest() for f in sorted(case.glob("*.onnx*"))}
    spread = float(want.std())
    return {"ok": bool(error <= TOLERANCE and spread > 100 * TOLERANCE), "max_error": float(f"{error:.1e}"), "largest_logit": float(f"{np.abs(want).max():.2g}"),
            "nodes": len(model.graph.node), "shared": shared, "files": files}


def main():
    onnxruntime.set_default_logger_severity(3)
    root = Path(sys.argv[1])
    cases = {case.name: judge(case) for case in sorted(root.iterdir()) if case.is_dir()}
    for name, c in cases.items():
        print("ok  " if c["ok"] else "FAIL", f"{name:26} error {c['max_error']:.1e} of logits to {c['largest_logit']}, {c['nodes']} nodes")
    if len(sys.argv) > 2:
        out = Path(sys.argv[2])
        before = json.loads(out.read_text())["cases"] if out.exists() else {}
        cases |= {name: c for name, c in before.items() if c["shared"] and name not in cases}  # not there to be judged
        versions = {"onnx": onnx.__version__, "onnxruntime": onnxruntime.__version__}
        out.write_text(json.dumps({"versions": versions, "cases": cases}, indent=1, sort_keys=True) + "\n")
    return 0 if cases and all(c["ok"] for c in cases.values()) else 1


sys.exit(main())
