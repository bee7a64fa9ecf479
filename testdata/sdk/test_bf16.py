"""Matrices in bf16: the same promises as in fp32, in half the memory, through the official SDK."""
import json
import sys

import tinker
from tinker import types

import harness
from harness import get

sys.path.insert(0, str(harness.REPO / "appliance" / "rack" / "recipe"))

import start  # noqa: E402
import train  # noqa: E402

BASE = "rack/small"
SAMPLING = types.SamplingParams(max_tokens=12, temperature=0.0)


def datum(ids):
    return types.Datum(model_input=types.ModelInput.from_ints(ids[:-1]),
                       loss_fn_inputs=dict(target_tokens=ids[1:], weights=[1.0] * (len(ids) - 1)))


def test_bf16(tmp_path):
    """Answers as in fp32; sampled, scored and trained alike to the bit; LoRA and full update learn, are saved and go on."""
    server = harness.Server(tmp_path / "box", "--precision", "bf16").start()
    try:
        client, text = server.client(), start.tokenizer()
        ids = train.prompt_ids(text, "Reverse: k d a z")
        for rank in (8, 0):  # a full update is rank 0
            run = get(client.create_lora_training_client(base_model=BASE, rank=rank, seed=1))
            sampler = run.save_weights_and_get_sampling_client("start")
            said = get(sampler.sample(types.ModelInput.from_ints(ids), 1, SAMPLING)).sequences[0]
            assert text.decode(said.tokens).startswith("z a d k")
            whole = ids + list(said.tokens)
            out = get(run.forward_backward([datum(whole)], "cross_entropy"))
            trained = out.loss_fn_outputs[0]["logprobs"].data[len(ids) - 1:]
            assert list(said.logprobs) == list(trained)
            losses = [out.metrics["loss:sum"]]
            for _ in range(4):
                get(run.optim_step(types.AdamParams(learning_rate=1e-3)))
                losses.append(get(run.forward_backward([datum(whole)], "cross_entropy")).metrics["loss:sum"])
            assert losses[-1] < losses[0], losses
            path = get(run.save_state("here")).path
            get(run.optim_step(types.AdamParams(learning_rate=1e-3)))
            want = get(run.forward([datum(whole)], "cross_entropy")).metrics["loss:sum"]
            again = client.create_training_client_from_state_with_optimizer(path)
            get(again.forward_backward([datum(whole)], "cross_entropy"))
            get(again.optim_step(types.AdamParams(learning_rate=1e-3)))
            assert get(again.forward([datum(whole)], "cross_entropy")).metrics["loss:sum"] == want
        doctor = json.loads(server.cli("doctor", "--model", BASE, "--json").stdout)
        assert doctor["status"]["precision"] == "bf16" and doctor["agreement"]["largest"] == 0, doctor
        loaded = json.loads(server.cli("ps", "--json").stdout)["models"]
        assert [(m["name"], m["precision"]) for m in loaded] == [(BASE, "bf16")]
        assert loaded[0]["bytes"] < 2.2 * 2_689_536, loaded
    finally:
        server.stop()
