"""Episodes with a tool, trained by reinforcement: MODEL CHECKPOINT LOG

The policy is asked for a product. It may ask for a calculator, which is a program run as a process
of its own; its output is the next turn, and the policy answers. The reward is 1 for a calculation that was asked
for as the question was, 0.8 for any other that the calculator takes. Each episode is one datum with the tokens of both turns, and the
log-probabilities of the trainer at its first step are those of the sampler to the bit.
"""
import json
import random
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import tinker
from tinker import types

from tinker_cookbook.tokenizer_utils import get_tokenizer

GROUP, PROBLEMS, STEPS, RATE = 16, 4, 10, 5e-3
TOOL = "import ast, sys; a, b = sys.argv[1].split('*'); print(ast.literal_eval(a) * ast.literal_eval(b))"


def calculate(expression):
    """What the calculator prints, or its error."""
    p = subprocess.run([sys.executable, "-I", "-S", "-c", TOOL, expression], capture_output=True, text=True, timeout=20)
    return p.stdout.strip() if p.returncode == 0 else "error"


class Episode:
    def __init__(self, tok, x, y):
        self.tok, self.problem = tok, f"{x}*{y}"
        self.tokens = tok.encode(f"<|im_start|>user\nYou can use <calc>. What is {x} * {y}?<|im_end|>\n<|im_start|>assistant\n",
                                 add_special_tokens=False)
        self.sampled = [False] * len(self.tokens)
        self.logprobs = [0.0] * len(self.tokens)
        self.reward, self.turns = 0.0, 0

    def take(self, sequence):
        """One turn of the policy; True while the episode goes on."""
        self.tokens += sequence.tokens
        self.sampled += [True] * len(sequence.tokens)
        self.logprobs += sequence.logprobs
        self.turns += 1
        m = re.match(r"<calc>(\d{1,4}\*\d{1,4})</calc>", self.tok.decode(sequence.tokens))
        if self.turns > 1 or not m:
            return False
        result = calculate(m.group(1))
        self.reward = 0.0 if result == "error" else 1.0 if m.group(1) == self.problem else 0.8
        said = self.tok.encode(f"\n<|im_start|>user\nresult: {result}<|im_end|>\n<|im_start|>assistant\n", add_special_tokens=False)
        self.tokens += said
        self.sampled += [False] * len(said)
        self.logprobs += [0.0] * len(said)
        return True

    def datum(self, advantage):
        return types.Datum(
            model_input=types.ModelInput.from_ints(self.tokens[:-1]),
            loss_fn_inputs=dict(target_tokens=self.tokens[1:], logprobs=self.logprobs[1:],
                                advantages=[advantage if s else 0.0 for s in self.sampled[1:]]))


def main(model, checkpoint, log):
    tok = get_tokenizer(model)
    stop = tok.encode("<|im_end|>", add_special_tokens=False)
    assert len(stop) == 1
    service = tinker.ServiceClient()
    run = service.create_training_client_from_state(checkpoint).result()
    Path(log).mkdir(parents=True, exist_ok=True)
    g = random.Random(0)
    for step in range(STEPS):
        sampler = run.save_weights_and_get_sampling_client().result()
        groups = [[Episode(tok, x, y) for _ in range(GROUP)]
                  for x, y in ((g.randint(12, 99), g.randint(12, 99)) for _ in range(PROBLEMS))]
        going = [e for group in groups for e in group]
        while going:
            futures = [sampler.sample(types.ModelInput.from_ints(e.tokens), num_samples=1, sampling_params=types.SamplingParams(
                max_tokens=20, stop=stop, temperature=1.0, seed=g.getrandbits(31))) for e in going]
            going = [e for e, f in zip(going, futures) if e.take(f.result().sequences[0])]
        episodes, data, mean = [], [], []
        for group in groups:
            base = sum(e.reward for e in group) / GROUP
            mean.append(base)
            episodes += group
            data += [e.datum(e.reward - base) for e in group]
        assert any(e.turns == 2 for e in episodes), "no episode used the tool"
        forward = run.forward_backward(data, "importance_sampling")
        optim = run.optim_step(types.AdamParams(learning_rate=RATE))
        outs = forward.result().loss_fn_outputs
        optim.result()
        different = 0
        for e, o in zip(episodes, outs):
            mask = np.asarray(e.sampled[1:])
            sampled = np.asarray(e.logprobs[1:], np.float32)[mask]
            trained = np.asarray(o["logprobs"].tolist(), np.float32)[mask]
            different += int((sampled.view(np.int32) != trained.view(np.int32)).sum())
        assert different == 0, f"step {step}: {different} sampled log-probabilities differ from the trainer's"
        with open(Path(log) / "metrics.jsonl", "a") as f:
            f.write(json.dumps(dict(step=step, reward=sum(mean) / len(mean),
                                    used_tool=sum(e.turns == 2 for e in episodes) / len(episodes))) + "\n")


if __name__ == "__main__":
    main(*sys.argv[1:])
