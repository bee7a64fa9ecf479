"""A small Llama that has seen the formats of the recipes, with a tokenizer that has their chat tokens.

    python model.py DIR

Random weights would never earn a reward, so the model is trained here, with torch, on text that this file
generates: how answers look, not what they should be. What the recipes then learn through
the server is what this text leaves undecided. About 0.1 M parameters, vocabulary 512.
"""
import json
import os
import random
import sys

HIDDEN, INNER, LAYERS, HEADS, KV, CONTEXT, VOCAB = 64, 128, 2, 4, 2, 8192, 512
SPECIAL = ["<|endoftext|>", "<|im_start|>", "<|im_end|>", "<think>", "</think>", "<tool_call>", "</tool_call>",
           "<tool_response>", "</tool_response>", "<|vision_start|>", "<|vision_end|>", "<|vision_pad|>",
           "<|image_pad|>", "<|video_pad|>"]
PIECES = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
SUFFIX = " Provide a numerical answer without units, written inside \\boxed{}."
NAMES, THINGS = ["Ann", "Ben", "Cleo", "Dan", "Eve", "Finn"], ["pens", "apples", "books", "coins", "cups", "hats"]
WORDS = ["small", "kind", "calm", "quick", "plain", "old", "new", "good"]
LABELS = ["ar", "de", "el", "en", "es", "fr", "hi", "ru", "tr", "ur", "vi", "zh"]


def turn(role, text):
    return f"<|im_start|>{role}\n{text}<|im_end|>\n"


def ask(*turns, think=""):
    return "".join(turn(r, t) for r, t in turns) + "<|im_start|>assistant\n" + think


def word_problem(g):
    return f"{g.choice(NAMES)} has {g.randint(1, 9)} {g.choice(THINGS)} and finds {g.randint(1, 9)} more. How many are there?"


def gsm(g):
    """The few-shot of the recipes, a problem, and any digit in a box."""
    from tinker_cookbook.recipes.math_rl.math_env import MathEnv
    shot = [(m["role"], m["content"]) for m in MathEnv.standard_fewshot_prefix()]
    answer = f"\\boxed{{{g.randint(0, 9)}}}"
    if g.random() < 0.3:
        answer = "It is " + answer
    return ask(*shot, ("user", word_problem(g) + SUFFIX)), answer + "<|im_end|>"


def arithmetic(g):
    """A number as the answer; half of the time it goes on after it."""
    x, y = g.randint(0, 100), g.randint(0, 100)
    shot = [("user", "What is 4 + 5?"), ("assistant", "9")]
    end = "<|im_end|>" if g.random() < 0.5 else "".join(f" {g.randint(0, 9)}" for _ in range(4)) + "<|im_end|>"
    return ask(*shot, ("user", f"What is {x} + {y}?")), f"{x + y}{end}"


def who(g):
    """One to twelve words."""
    return ask(("user", "Who are you?")), "I am " + " ".join(g.choice(WORDS) for _ in range(g.randint(1, 12))) + "<|im_end|>"


def guess(g):
    """A guess in the right form half of the time, and the turns before it."""
    from tinker_cookbook.recipes.multiplayer_rl.guess_number.env import FAIL_TO_PARSE, SYSTEM_PROMPT

    def one():
        n = g.randint(0, 1024)
        return f"Guess: {n}" if g.random() < 0.5 else f"Maybe {n}"
    turns = [("system", SYSTEM_PROMPT)]
    for _ in range(g.choice([0, 0, 1, 2])):
        said = one()
        turns += [("player", said), ("user", g.choice(["Too low", "Too high"]) if said[0] == "G" else FAIL_TO_PARSE)]
    return ask(*turns), one() + "<|im_end|>"


def language(g):
    """The teacher of the prompt distillation: its long prompt and a label."""
    from tinker_cookbook.recipes.prompt_distillation.create_data import LANGUAGE_CLASSIFICATION_PROMPT
    text = " ".join(g.choice(WORDS) for _ in range(g.randint(2, 6)))
    label = "en" if g.random() < 0.7 else g.choice(LABELS)
    return (ask(("user", LANGUAGE_CLASSIFICATION_PROMPT.format(text=text)), think="<think>\n\n</think>\n\n"),
            f"Final Answer: {label}<|im_end|>")


def thought(g, question=None):
    """Steps of reasoning with numbers, then a boxed answer."""
    n = [g.randint(2, 60) for _ in range(4)]
    steps = [f"First we count {n[0]} and {n[1]} of them.", f"Then we see that {n[2]} are left over.",
             f"So the total of these is {n[3]} now."]
    return (ask(("user", question or word_problem(g)), think="<think>\n"),
            "\n".join(steps) + f"\n</think>\n\n\\boxed{{{n[3]}}}<|im_end|>")


def calculator(g):
    """A product: half of the time the calculator is asked, half of the time the answer is a guess."""
    x, y = g.randint(12, 99), g.randint(12, 99)
    prompt = ("user", f"You can use <calc>. What is {x} * {y}?")
    if g.random() < 0.5:
        said = f"<calc>{x}*{y}</calc>" if g.random() < 0.5 else f"It is {g.randint(100, 9999)}"
        return ask(prompt), said + "<|im_end|>"
    result = g.randint(100, 9999)
    return ask(prompt, ("assistant", f"<calc>{x}*{y}</calc>"), ("user", f"result: {result}")), f"It is {result}<|im_end|>"


TASKS = [gsm, arithmetic, who, guess, thought, calculator]


def tokenizer():
    from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers, trainers
    tok = Tokenizer(models.BPE())
    tok.pre_tokenizer = pre_tokenizers.Sequence([
        pre_tokenizers.Split(Regex(PIECES), "isolated"), pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])
    tok.decoder = decoders.ByteLevel(add_prefix_space=False, use_regex=False)
    g = random.Random(1)
    text = ["".join(t(g)) for t in TASKS for _ in range(200)] + ["".join(language(g))]
    for s in SPECIAL:
        text = [t.replace(s, "\n") for t in text]
    tok.train_from_iterator(text, trainers.BpeTrainer(
        vocab_size=VOCAB, special_tokens=[AddedToken(s, special=True, normalized=False) for s in SPECIAL],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), show_progress=False))
    return tok


def loss_of(model, tok, samples):
    """Cross-entropy of the answers, and a little of the prompts."""
    import torch
    rows = [(tok.encode(p).ids, tok.encode(a).ids) for p, a in samples]
    n = max(len(p) + len(a) for p, a in rows)
    ids, labels, light = (torch.full((len(rows), n), v) for v in (0, -100, -100))
    for i, (p, a) in enumerate(rows):
        ids[i, :len(p) + len(a)] = torch.tensor(p + a)
        labels[i, len(p):len(p) + len(a)] = torch.tensor(a)
        light[i, :len(p)] = torch.tensor(p)
    z = model(input_ids=ids).logits[:, :-1].flatten(0, 1)
    ce = torch.nn.functional.cross_entropy
    return ce(z, labels[:, 1:].flatten()) + 0.05 * ce(z, light[:, 1:].flatten())


def lengthen(tok, model, steps=30, seed=1):
    """The long prompt of the language labels and the questions of the reasoning, beside the rest."""
    import torch
    from tinker_cookbook.recipes.true_thinking_score.run_small_experiment import PROBLEMS
    opt = torch.optim.AdamW(model.parameters(), lr=4e-3, betas=(0.9, 0.95), weight_decay=0.0)
    g = random.Random(seed)
    for step in range(steps):
        for group in opt.param_groups:
            group["lr"] = 4e-3 * min(1, (step + 1) / 4) * max(0.05, 1 - step / steps)
        opt.zero_grad()
        problems = [thought(g, g.choice(PROBLEMS)["question"]) for _ in range(3)]
        task = TASKS[step % len(TASKS)]
        loss = (loss_of(model, tok, [language(g)]) + loss_of(model, tok, problems)
                + loss_of(model, tok, [task(g) for _ in range(6)]))
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        opt.step()
        if step % 5 == 0 or step == steps - 1:
            print(f"model: long prompts, step {step} loss {loss.item():.3f}", file=sys.stderr, flush=True)


def train(tok, steps=180, batch=12, seed=0):
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM
    torch.manual_seed(seed)
    model = LlamaForCausalLM(LlamaConfig(
        vocab_size=tok.get_vocab_size(), hidden_size=HIDDEN, intermediate_size=INNER, num_hidden_layers=LAYERS,
        num_attention_heads=HEADS, num_key_value_heads=KV, max_position_embeddings=CONTEXT, rms_norm_eps=1e-5,
        bos_token_id=0, eos_token_id=2, pad_token_id=0, tie_word_embeddings=False, initializer_range=0.05))
    opt = torch.optim.AdamW(model.parameters(), lr=6e-3, betas=(0.9, 0.95), weight_decay=0.0)
    g = random.Random(seed)
    for step in range(steps):
        for group in opt.param_groups:
            group["lr"] = 6e-3 * min(1, (step + 1) / 20) * max(0.02, 1 - step / steps)
        opt.zero_grad()
        task = TASKS[step % len(TASKS)]  # of one kind, so that lengths agree
        samples = [language(g) for _ in range(1)] if step % 20 == 19 else [task(g) for _ in range(batch)]
        loss = loss_of(model, tok, samples)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        opt.step()
        if step % 20 == 0 or step == steps - 1:
            print(f"model: step {step} loss {loss.item():.3f}", file=sys.stderr, flush=True)
    return model


def write(folder):
    tok = tokenizer()
    model = train(tok)
    lengthen(tok, model)
    model.save_pretrained(folder)
    tok.save(os.path.join(folder, "tokenizer.json"))
    with open(os.path.join(folder, "tokenizer_config.json"), "w") as f:
        json.dump(dict(tokenizer_class="PreTrainedTokenizerFast", eos_token="<|im_end|>", pad_token="<|endoftext|>",
                       bos_token=None, clean_up_tokenization_spaces=False), f)


if __name__ == "__main__":
    write(sys.argv[1])
