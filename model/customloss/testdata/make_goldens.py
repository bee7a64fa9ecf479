"""Makes goldens.json.gz: losses traced by the SDK's own tracer, run by torch.

    pip install torch tinker==0.38.0     # the SDK and any torch 2.x for CPU
    python make_goldens.py               # writes goldens.json.gz beside this file

Each case is a function, its declared inputs, its traced graph as it goes over the
wire, one datum, and what torch gives: loss, gradient of logprobs, metrics.
"""

import gzip
import json
import math
import pathlib
import re
import sys
import warnings

import torch
import torch.nn.functional as F
from tinker.lib.public_interfaces.custom_loss import encode_graph, trace_loss

from losses import LOSSES
from operations import AT_EDGES, OPERATIONS

warnings.filterwarnings("ignore")
torch.manual_seed(0)


def datum(kind):
    """The tensors a case may read, by name. Values avoid kinks unless they are the point."""
    g = torch.Generator().manual_seed(kind)
    n, k = 7, 3
    lp = -torch.rand(n, generator=g) * 2 - 0.05
    d = {
        "logprobs": lp,
        "q": (lp + torch.randn(n, generator=g) * 0.3),
        "w": torch.randn(n, generator=g),
        "p": torch.rand(n, generator=g) * 0.8 + 0.1,
        "adv": torch.randn(n, generator=g),
        "mask": torch.tensor([0.0, 1, 1, 0, 1, 1, 1]),
        "t": torch.tensor([3, 0, 2, 6, 1, 1, 5]),
        "s": torch.tensor(0.7),
        "n": torch.tensor(4),
        "ties": torch.tensor([1.0, 3, 3, -2, 0, -2, 3]),
    }
    two = -torch.rand(n, k, generator=g) * 3 - 0.05
    d["two"] = two
    d["w2"] = torch.rand(n, k, generator=g)
    d["t2"] = torch.randint(0, k, (n, k), generator=g)
    return d


def number(x):
    x = float(x)
    if math.isnan(x):
        return "nan"
    if math.isinf(x):
        return "inf" if x > 0 else "-inf"
    return x


def run(name, fn, ranks, values):
    handle = trace_loss(fn, ranks, "session")
    graph = encode_graph(handle).model_dump(mode="json")
    logprobs = values["logprobs"].clone().requires_grad_(True)
    inputs = [values[x.name].clone() for x in handle.inputs[1:]]
    loss, metrics = handle.graph(logprobs, *inputs)
    assert loss.ndim == 0, name
    loss.backward()
    assert logprobs.grad is not None, name
    return {
        "name": name,
        "inputs": [{"name": x.name, "rank": x.rank} for x in handle.inputs],
        "graph": graph,
        "data": {
            x.name: {
                "shape": list(values[x.name].shape),
                "dtype": str(values[x.name].dtype).removeprefix("torch."),
                "values": [v if isinstance(v, int) else number(v) for v in values[x.name].reshape(-1).tolist()],
            }
            for x in handle.inputs
        },
        "value": number(loss.detach()),
        "grad": [number(v) for v in logprobs.grad.reshape(-1).tolist()],
        "metrics": {k: number(v.detach() if isinstance(v, torch.Tensor) else v) for k, v in metrics.items()},
    }


def edges():
    """Values where functions have kinks, poles and no value."""
    inf, nan = float("inf"), float("nan")
    return datum(1) | {
        "logprobs": torch.tensor([0.0, -0.0, inf, -inf, nan, -200.0, 1.0]),
        "w": torch.tensor([0.0, 1.0, inf, 0.0, 2.0, -1.0, 1.0]),
        "p": torch.tensor([0.0, 1.0, 0.5, 0.0, 1.0, 0.5, 1.0]),
    }


def operation(expression, values=None):
    """A loss of an expression of any shape: its elements weighted unevenly, plus a
    term that always depends on logprobs."""
    at_edges = values is not None
    names = [n for n in datum(0) if n != "logprobs" and n != "two" and re.search(rf"\b{n}\b", expression)]
    wide = re.search(r"\btwo\b", expression) is not None
    body = "two" if wide else "x"
    source = f"""
def loss(logprobs{''.join(', ' + n for n in names)}):
    {body} = logprobs
    out = ({expression})
    total = (logprobs * {'0.01' if at_edges else 'logprobs * 0.01'}).sum()
    metric = total.new_zeros(())
    for r in out if isinstance(out, tuple) else (out,):
        r = total.new_zeros(1) + r
        r = r.double().reshape(-1)
        total = total + (r * torch.cos(torch.arange(r.shape[0]))).sum()
        metric = metric + torch.nan_to_num(r, nan=7.0, posinf=11.0, neginf=-13.0).abs().sum().detach()
    return total, {{"custom/v:sum": metric}}
"""
    scope = {"torch": torch, "F": F, "math": math}
    exec(source, scope)
    values = values or datum(len(expression))
    if wide:
        values["logprobs"] = values["two"]
    ranks = {"logprobs": values["logprobs"].ndim} | {n: values[n].ndim for n in names}
    return scope["loss"], ranks, values


def main():
    cases, failed = [], 0
    for expression in OPERATIONS:
        try:
            fn, ranks, values = operation(expression)
            cases.append(run(expression, fn, ranks, values))
            if expression in AT_EDGES:
                fn, ranks, values = operation(expression, edges())
                cases.append(run("edges " + expression, fn, ranks, values))
        except Exception as e:  # noqa: BLE001 every refusal is listed
            failed += 1
            print(f"not made: {expression}: {type(e).__name__}: {str(e)[:200]}", file=sys.stderr)
    for fn in LOSSES:
        values = datum(len(fn.__name__))
        parameters = fn.__code__.co_varnames[: fn.__code__.co_argcount]
        if "w2" in parameters or "t2" in parameters or fn.__name__.endswith("_2d"):
            values["logprobs"] = values["two"]
        ranks = {p: values[p].ndim for p in parameters}
        cases.append(run("loss " + fn.__name__, fn, ranks, values))
        one = {k: v[:1] if v.ndim else v for k, v in values.items()} | {"n": torch.tensor(0), "t": torch.tensor([0])}
        try:
            cases.append(run("one token " + fn.__name__, fn, ranks, one))
        except RuntimeError:
            pass  # torch refuses one token too
    text = json.dumps({"torch": torch.__version__.split("+")[0], "sdk": "0.38.0", "cases": cases}, separators=(",", ":"))
    path = pathlib.Path(__file__).parent / "goldens.json.gz"
    path.write_bytes(gzip.compress(text.encode(), 9, mtime=0))
    print(f"{len(cases)} cases, {failed} not made, {path.stat().st_size} bytes")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
