"""Makes fr22.jsonl.gz and fr23.jsonl.gz here with the reference (PyPI tokenizers 0.22.2), for the tests of field reports.

    python make_fr.py

fr22: one byte-level BPE behind the split patterns of GPT-2, Llama 3 and Qwen. It is trained here on strings of the same
kinds that nothing has split, so that its merges cross whatever a pattern cuts. The first line has its file, merges as
pairs, and the parts that the three replace; each line after it a fuzzed string and the ids by each pattern. Before they
are written both spellings of merges, pairs and strings, gave the same ids.

fr23: a line for each small tokenizer: its file, and strings with their ids and the text that the ids decode to. Added
tokens that strip blanks, that contain each other and that stand in words; Metaspace in every spelling of its scheme.
"""
import gzip
import itertools
import json
import random
from pathlib import Path

from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

HERE = Path(__file__).parent
LETTERS = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|"
LLAMA3 = LETTERS + r"\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
QWEN = LETTERS + r"\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"


def split(pattern):
    return dict(type="Sequence", pretokenizers=[
        dict(type="Split", pattern=dict(Regex=pattern), behavior="Isolated", invert=False),
        dict(type="ByteLevel", add_prefix_space=False, trim_offsets=False, use_regex=False)])


PATTERNS = dict(
    gpt2=dict(normalizer=None, pre_tokenizer=dict(type="ByteLevel", add_prefix_space=False, trim_offsets=True, use_regex=True),
              ignore_merges=False),
    llama3=dict(normalizer=None, pre_tokenizer=split(LLAMA3), ignore_merges=True),
    qwen=dict(normalizer=dict(type="NFC"), pre_tokenizer=split(QWEN), ignore_merges=False))

# The kinds of text that trip splitters up, each drawn as often as the others.
KINDS = [
    lambda r: r.choice(" \t\u00a0\u3000") * r.randrange(1, 9),  # runs of blanks
    lambda r: r.choice(["\r\n", "\n", "\r", "\r\n\r\n", " \r\n ", "\n\n\n", "\n ", "\u2028", "\u0085"]) * r.randrange(1, 3),
    lambda r: r.choice("DON I WE THEY she it ſhe".split()) + r.choice("'S 'T 'RE 'VE 'M 'LL 'D 's 't 'Re 'vE 'lL 'ſ ’s 'x '".split()),
    lambda r: "".join(r.choice("0123456789٣½Ⅷ𝟘") for _ in range(r.randrange(1, 12))),  # digits
    lambda r: "".join(chr(r.choice([r.randrange(0x4E00, 0x9FFF), r.randrange(0x3041, 0x30FF), r.randrange(0xAC00, 0xD7A3)]))
                      for _ in range(r.randrange(1, 6))),
    lambda r: r.choice(["👩\u200d👩\u200d👧\u200d👦", "👨🏽\u200d🚀", "🏴\U000e0067\U000e0062\U000e0065\U000e007f", "❤\ufe0f", "🇯🇵🇪🇺", "👍🏽"]),
    lambda r: r.choice("aeoqnЯกא") + "".join(chr(r.randrange(0x300, 0x36F)) for _ in range(r.randrange(1, 4))),  # marks
    lambda r: r.choice(["e\u0301", "\u1112\u1161\u11ab", "\u212b", "か\u3099", "\u0958", "ﬁ", "İ", "ẞ"]),
    lambda r: r.choice([" the", "hello", "World", "robot", " tokens", "naïve", "Привет", "def", "print", "add"]),
    lambda r: "".join(r.choice("!?.,;:-_()[]{}<>|/\\@#$%^&*+=~`\"'") for _ in range(r.randrange(1, 6))),
    lambda r: chr(r.choice([*range(0x20, 0x250), 0xFFFD, 0xE000, 0x10FFFF, 0x1F600, 0x10330, 0x0])),
]


def fuzzed(r):
    text = "".join(r.choice(KINDS)(r) for _ in range(r.choice([1, 2, 3, 4, 6, 10])))
    return text + r.choice(["", "", " ", "   ", "\t ", "\n", " \r\n"])  # trailing blanks


def pattern_tokenizer(base, parts, pairs):
    d = json.loads(json.dumps(base))
    d["normalizer"], d["pre_tokenizer"] = parts["normalizer"], parts["pre_tokenizer"]
    d["model"]["ignore_merges"] = parts["ignore_merges"]
    if not pairs:
        d["model"]["merges"] = [" ".join(m) for m in d["model"]["merges"]]
    return Tokenizer.from_str(json.dumps(d))


def fr22():
    t = Tokenizer(models.BPE())
    t.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    t.decoder = decoders.ByteLevel()
    r = random.Random(21)
    t.train_from_iterator([fuzzed(r) for _ in range(6000)], trainers.BpeTrainer(
        vocab_size=1500, initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), show_progress=False))
    base = json.loads(t.to_str())
    both = {n: [pattern_tokenizer(base, p, pairs) for pairs in (True, False)] for n, p in PATTERNS.items()}
    yield dict(file=base, parts=PATTERNS)
    r, apart = random.Random(22), {}
    for _ in range(2000):
        text = fuzzed(r)
        line = dict(text=text)
        for name, (one, other) in both.items():
            line[name] = one.encode(text, add_special_tokens=False).ids
            assert line[name] == other.encode(text, add_special_tokens=False).ids, (name, text)
        for one, other in itertools.combinations(PATTERNS, 2):
            apart[one, other] = apart.get((one, other), 0) + (line[one] != line[other])
        yield line
    assert min(apart.values()) > 200, f"patterns hardly differ on these strings: {apart}"
    print(apart)


def added(i, content, **kw):
    return dict(dict(id=i, content=content, single_word=False, lstrip=False, rstrip=False, normalized=False, special=False), **kw)


def small(pre_tokenizer, decoder, tokens, normalizer=None):
    vocab = {t: i for i, t in enumerate(["<unk>", *"abcdxy", "▁", " ", "ab", "abc", "▁ab", "▁abc", "▁a", "cd", "\n"])}
    merges = [["a", "b"], ["ab", "c"], ["▁", "ab"], ["▁ab", "c"], ["▁", "a"], ["c", "d"]]
    n = len(vocab)
    return dict(version="1.0", truncation=None, padding=None, normalizer=normalizer, pre_tokenizer=pre_tokenizer, post_processor=None,
                decoder=decoder, added_tokens=[added(n + i, **t) for i, t in enumerate(tokens)],
                model=dict(type="BPE", dropout=None, unk_token="<unk>", continuing_subword_prefix=None, end_of_word_suffix=None,
                           fuse_unk=False, byte_fallback=False, ignore_merges=False, vocab=vocab, merges=merges))


STRIPPING = [dict(content="<l>", lstrip=True), dict(content="<r>", rstrip=True), dict(content="<b>", lstrip=True, rstrip=True),
             dict(content="<t>"), dict(content="<t>x"), dict(content="<t>xy", special=True), dict(content="cab", single_word=True),
             dict(content="<s>", special=True, lstrip=True)]
PARTS = ["a", "ab", "abc", "abcd", "cab", "x", "xy", " ", "  ", "\n", " \n ", "<l>", "<r>", "<b>", "<t>", "<t>x", "<t>xy", "<t", ">", "<s>", "é"]


def metaspace(**kw):
    return dict(dict(type="Metaspace", replacement="▁", split=True), **kw)


def cases():
    for normalized in (False, True):
        tokens = [dict(t, normalized=normalized) for t in STRIPPING]
        yield f"strip, normalized {normalized}", small(None, dict(type="Fuse"), tokens)
        for scheme in ("always", "first", "never"):
            m = metaspace(prepend_scheme=scheme)
            yield f"{scheme}, normalized {normalized}", small(m, m, tokens)
        for field in (True, False):  # the older field; where it is false the reference wants the newer one to agree
            m = dict(type="Metaspace", replacement="▁", add_prefix_space=field, **({} if field else dict(prepend_scheme="never")))
            yield f"add_prefix_space {field}, normalized {normalized}", small(m, m, tokens)
    for scheme in ("always", "first", "never"):
        m = metaspace(prepend_scheme=scheme, split=False)
        yield f"{scheme}, not split", small(m, m, [dict(content="<t>")])


def fr23():
    r = random.Random(23)
    for name, file in cases():
        t = Tokenizer.from_str(json.dumps(file))
        lines = []
        for _ in range(250):
            text = "".join(r.choice(PARTS) for _ in range(r.choice([1, 2, 3, 4, 6, 9])))
            ids = t.encode(text, add_special_tokens=False).ids
            lines.append(dict(text=text, ids=ids, decoded=t.decode(ids, skip_special_tokens=False)))
        yield dict(name=name, file=file, lines=lines)


def write(name, lines):
    with open(HERE / name, "wb") as f, gzip.GzipFile("", "wb", 9, f, mtime=0) as z:
        z.write("".join(json.dumps(line, separators=(",", ":")) + "\n" for line in lines).encode())


if __name__ == "__main__":
    write("fr22.jsonl.gz", fr22())
    write("fr23.jsonl.gz", fr23())
