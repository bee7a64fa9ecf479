"""DPO by forward_backward_custom; run by test_dpo.py with the python that has torch.

    dpo.py URL MODEL      prints one JSON object
"""
import json
import os
import sys

os.environ.setdefault("TINKER_TELEMETRY", "0")
sys.dont_write_bytecode = True
sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))

import tinker  # noqa: E402
import torch  # noqa: E402
from harness import adam, datum, forward, get, probe, prompt  # noqa: E402

PAIRS = [([10, 11, 12], [20, 21, 22, 23], [30, 31, 32, 33]), ([40, 41], [50, 51, 52], [60, 61, 62, 63, 64]),
         ([70, 71, 72, 73], [80, 81], [90, 91]), ([100], [110, 111, 112], [120, 121, 122])]
BETA = 0.5


def main(url, model):
    service = tinker.ServiceClient(base_url=url, api_key="tml-test")
    run = get(service.create_lora_training_client(base_model=model, rank=8, seed=1))
    base = get(service.create_sampling_client(base_model=model))
    data, reference = [], []
    for start, good, bad in PAIRS:
        for end in (good, bad):
            tokens = start + end
            data.append(datum(tokens, start=len(start) - 1))
            scored = torch.tensor(get(base.compute_logprobs(prompt(tokens)))[1:])
            reference.append((scored * data[-1].loss_fn_inputs["weights"].to_torch()).sum())

    def dpo(data, logprobs):
        score = [(lp * d.loss_fn_inputs["weights"].to_torch()).sum() for d, lp in zip(data, logprobs)]
        margin = torch.stack([BETA * ((score[i] - reference[i]) - (score[i + 1] - reference[i + 1]))
                              for i in range(0, len(score), 2)])
        loss = -torch.nn.functional.logsigmoid(margin).mean()
        return loss, {"margin": margin.mean().item(), "accuracy": (margin > 0).float().mean().item()}

    curve = []
    for _ in range(12):
        f, o = run.forward_backward_custom(data, dpo), run.optim_step(adam(1e-2))
        curve.append(dict(get(f).metrics))
        get(o)

    def weighted(data, logprobs):
        loss = -sum((lp * d.loss_fn_inputs["weights"].to_torch()).sum() for d, lp in zip(data, logprobs))
        return loss, {}

    ends = []
    for custom in (False, True):
        r = get(service.create_lora_training_client(base_model=model, rank=8, seed=2))
        out = get(r.forward_backward_custom(data, weighted) if custom else r.forward_backward(data, "cross_entropy"))
        get(r.optim_step(adam(1e-2)))
        ends.append((probe(r, 259).hex(), out.metrics["loss:sum"]))

    # Top-k distillation: rows of targets and weights travel sparse where that is smaller.
    r = get(service.create_lora_training_client(base_model=model, rank=8, seed=3))
    targets, weights = torch.zeros(5, 40, dtype=torch.int64), torch.zeros(5, 40)
    targets[:, 0], weights[:, 0] = torch.tensor([11, 12, 13, 14, 15]), 1.0
    d = tinker.Datum(model_input=tinker.ModelInput.from_ints([10, 11, 12, 13, 14]),
                     loss_fn_inputs=dict(target_tokens=targets, weights=weights))
    sparse = d.loss_fn_inputs["target_tokens"].sparse_crow_indices is not None
    got = get(r.forward([d], "cross_entropy"))
    one = forward(r, [datum([10, 11, 12, 13, 14, 15])])[0]
    table = got.loss_fn_outputs[0]["logprobs"].to_torch()
    print(json.dumps(dict(
        curve=curve, same=ends[0][0] == ends[1][0], losses=[ends[0][1], ends[1][1]], sparse=sparse,
        table_shape=list(table.shape), table_right=table[:, 0].numpy().tobytes() == one.tobytes(),
        table_loss=got.metrics["loss:sum"], dense_loss=-float(one.astype("float64").sum()))))
    service.close("success").result(timeout=60)


if __name__ == "__main__":
    main(*sys.argv[1:])
