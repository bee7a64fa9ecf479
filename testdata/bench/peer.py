"""The peer: torch and transformers, doing what the server is asked to do."""
import time

import torch
from peft import LoraConfig, get_peft_model
from transformers import AutoModelForCausalLM, DynamicCache

TARGETS = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj", "lm_head"]


class Trainer:
    """LoRA of a rank on every projection and the head through a frozen base, or with rank 0 every parameter; AdamW.
    A batch is worked in micro-batches of a few sequences, which is faster here than all at once."""

    def __init__(self, folder, dtype, rank, sequences):
        model = AutoModelForCausalLM.from_pretrained(folder, dtype=dtype, attn_implementation="sdpa")
        if rank:
            model = get_peft_model(model, LoraConfig(r=rank, lora_alpha=32, target_modules=TARGETS, bias="none"),
                                   autocast_adapter_dtype=False)
        self.model, self.sequences = model.train(), sequences
        self.params = [p for p in model.parameters() if p.requires_grad]
        self.optimizer = torch.optim.AdamW(self.params, lr=1e-4, betas=(0.9, 0.95), eps=1e-8, weight_decay=0)

    def step(self, ids):
        """Seconds of one forward, backward and update over ids [N, L+1]."""
        began = time.perf_counter()
        for part in ids.split(self.sequences):
            logits = self.model(input_ids=part[:, :-1], use_cache=False).logits
            loss = torch.nn.functional.cross_entropy(logits.float().flatten(0, 1), part[:, 1:].flatten(), reduction="sum")
            loss.backward()
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        return time.perf_counter() - began


class Decoder:
    """A plain loop with a key-value cache."""

    def __init__(self, folder, dtype):
        self.model = AutoModelForCausalLM.from_pretrained(folder, dtype=dtype, attn_implementation="sdpa").eval()

    @torch.inference_mode()
    def run(self, prompts, new):
        """Seconds of `new` steps behind the prompts [B, L]; the prompts' own pass isn't counted."""
        cache = DynamicCache()
        logits = self.model(input_ids=prompts, past_key_values=cache, use_cache=True, logits_to_keep=1).logits[:, -1]
        began = time.perf_counter()
        for _ in range(new):
            token = torch.multinomial(torch.softmax(logits.float(), -1), 1)
            logits = self.model(input_ids=token, past_key_values=cache, use_cache=True).logits[:, -1]
        return time.perf_counter() - began


def product(m, k, n, dtype, seconds=0.3):
    """GF/s of x[m,k] times w[n,k] transposed, the best of what fits in some time."""
    x, w = torch.randn(m, k).to(dtype), torch.randn(n, k).to(dtype)
    times, end = [], time.perf_counter() + seconds
    with torch.inference_mode():
        while len(times) < 4 or time.perf_counter() < end:
            began = time.perf_counter()
            torch.nn.functional.linear(x, w)
            times.append(time.perf_counter() - began)
    return 2 * m * k * n / min(times) / 1e9
