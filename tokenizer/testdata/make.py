"""Makes this folder's tokenizers and goldens with the reference (PyPI tokenizers 0.22.2).

    python make.py                     own_bytes, own_fallback: tokenizer and golden of 2,000 fuzzed strings each
    python make.py golden FILE N SEED  prints N golden lines for another tokenizer.json (.gz)

unicode.json: for every code point of the planes 0 to 2, SHA-256 over what the reference's components make of it.

own_bytes is a byte-level BPE (NFC, Llama 3's pattern, added tokens of several kinds, a template); own_fallback a
BPE with byte fallback behind Metaspace. Both are trained on the text below and the licence of the repository.
"""
import gzip
import hashlib
import json
import random
import sys
from pathlib import Path

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers

HERE = Path(__file__).parent
LLAMA3 = (r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*"
          r"|\s*[\r\n]+|\s+(?!\S)|\s+")
TEXT = """The little robot counts its tokens. It's late, they're tired, we'll see; I'd say you've won.
def add(a, b):\n    return a + b\n\nfor i in range(10):\n    print(i, add(i, 1))
東京は日本の首都です。今日はいい天気ですね。 Привет, мир! Как дела? 안녕하세요 세계 naïve café déjà vu
1 + 1 = 2, 10 + 10 = 20, 123456789 😀😃👍🏽 👩‍👩‍👧‍👦 don't DON'T can't
""" * 20


def corpus():
    licence = (HERE / ".." / ".." / "LICENSE").read_text()
    return [line for line in (TEXT + licence).splitlines(keepends=True)]


def own_bytes():
    t = Tokenizer(models.BPE())
    t.normalizer = normalizers.NFC()
    t.pre_tokenizer = pre_tokenizers.Sequence([pre_tokenizers.Split(Regex(LLAMA3), "isolated"),
                                               pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])
    t.decoder = decoders.ByteLevel()
    t.train_from_iterator(corpus(), trainers.BpeTrainer(
        vocab_size=800, initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), show_progress=False,
        special_tokens=["<|bos|>", "<|eos|>", "<|im_start|>", "<|im_end|>"]))
    t.add_tokens([AddedToken("<tool>", normalized=False), AddedToken("<tool>x", normalized=False),
                  AddedToken("<left>", lstrip=True, normalized=False), AddedToken("<right>", rstrip=True),
                  AddedToken("<both>", lstrip=True, rstrip=True), AddedToken("cat", single_word=True)])
    t.post_processor = processors.TemplateProcessing("<|bos|> $A <|eos|>", special_tokens=[
        ("<|bos|>", t.token_to_id("<|bos|>")), ("<|eos|>", t.token_to_id("<|eos|>"))])
    return t


def own_fallback():
    t = Tokenizer(models.BPE(unk_token="<unk>", fuse_unk=True, byte_fallback=True))
    t.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="first", split=True)
    special = ["<unk>", "<s>", "</s>"] + [f"<0x{b:02X}>" for b in range(256)]
    t.train_from_iterator([line.encode("ascii", "ignore").decode() for line in corpus()], trainers.BpeTrainer(
        vocab_size=700, special_tokens=special, show_progress=False))
    d = json.loads(t.to_str())
    d["added_tokens"] = d["added_tokens"][:3]
    d["pre_tokenizer"]["split"] = False
    d["model"]["merges"] = [" ".join(m) for m in d["model"]["merges"]]  # the older spelling
    t = Tokenizer.from_str(json.dumps(d))
    t.decoder = decoders.Sequence([decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(),
                                   decoders.Strip(" ", 1, 0)])
    t.post_processor = processors.TemplateProcessing("<s> $A", special_tokens=[("<s>", 1)])
    text = json.loads(t.to_str())
    text["model"]["merges"] = d["model"]["merges"]
    return t, json.dumps(text, ensure_ascii=False)


PARTS = [
    " ", "  ", "   ", "\t", "\n", "\r\n", "\r", "\n\n", " \n ", "\u00a0", "\u3000", "\u2028", "\u0085", "\x1c",
    "'s", "'S", "'\u017f", "'re", "'RE", "'rE", "'ll", "'LL", "'l", "'ve", "'D", "'m", "don't", "DON'T", "'",
    "1", "12", "123", "1234", "12345678901", "½", "٣٤", "Ⅷ", "𝟘𝟙", "東京", "日本語", "カタカナ", "が", "か\u3099", "中", "龥", "〇",
    "한국", "\u1112\u1161\u11ab", "각", "😀", "👩\u200d👩\u200d👧\u200d👦", "👍🏽", "🏴\U000e0067\U000e0062\U000e007f", "❤\ufe0f",
    "e\u0301", "é", "\u0301", "a\u0323\u0307", "q\u0307\u0323", "\u0340", "Å", "\u212b", "\u0958", "z" + "\u0300" * 33, "ﬁ", "İ", "ß", "ẞ",
    "ǅ", "ʰ", "ª", "hello", "World", " the", "café", "ΑΣ", "שלום", "مرحبا", "हिन्दी", "ไทย", "!", "?!", "...", " $", "€", "//", "/*",
    "_", "__", "<", ">", "|", "<|", "|>", "<|bos|>", "<|eos|>", "<|im_start|>", "<|im_end|", "<tool>", "<tool>x", "<tool",
    "<left>", "<right>", "<both>", "cat", "cats", "(cat)", "▁", "▁▁", "<s>", "</s>", "<unk>", "<0x41>", "<|endoftext|>",
    "\u0000", "\ufffd", "\ue000", "\U0010ffff", "\U00016d40", "\U00010d4a", "\U00010d40", "\U000113d4", "\u1c89", "\u2e5c",
]


def fuzzed(rng):
    out = []
    for _ in range(rng.choice([1, 2, 3, 5, 8, 13, 30])):
        kind = rng.random()
        if kind < 0.8:
            out.append(rng.choice(PARTS))
        elif kind < 0.9:
            out.append(chr(rng.randrange(0x20, 0x250)))
        else:
            c = rng.randrange(0x110000)
            out.append("" if 0xD800 <= c < 0xE000 else chr(c))
    return "".join(out)


def golden(t, n, seed, plain=None):
    """Golden lines; plain is the same tokenizer with encode_special_tokens set."""
    rng = random.Random(seed)
    for _ in range(n):
        text = fuzzed(rng)
        ids = t.encode(text, add_special_tokens=False).ids
        special = t.encode(text).ids
        g = {"text": text, "ids": ids, "decoded": t.decode(ids, skip_special_tokens=False)}
        skip = t.decode(special, skip_special_tokens=True)
        if special != ids:
            g["ids_special"] = special
        if skip != g["decoded"]:
            g["decoded_skip"] = skip
        if plain is not None:
            ordinary = plain.encode(text, add_special_tokens=False).ids
            if ordinary != ids:
                g["ids_ordinary"] = ordinary
        yield json.dumps(g, separators=(",", ":"))


def every_code_point():
    for c in range(1, 0x30000):
        if not 0xD800 <= c < 0xE000:
            yield chr(c)


def unicode_digests():
    """SHA-256 of the results for all code points, each with a newline after it."""
    nfc, nfkc, lower = normalizers.NFC(), normalizers.NFKC(), normalizers.Lowercase()
    marks = [("{}"), ("a{}\u0301"), ("{}\u0301\u0323"), ("{}\u0323\u05b0\u0301"), ("\u0323\u0301{}"),
             ("\u0301\u0300{}\u0300")]

    def cut(p):
        return lambda c: str(int(len(p.pre_tokenize_str("a" + c + "a")) > 1))

    single = Tokenizer(models.BPE(vocab={"q": 0}, merges=[]))
    single.add_tokens([AddedToken("Q", single_word=True, normalized=False)])
    kinds = {f"nfc {m}": (lambda c, m=m: nfc.normalize_str(m.format(c))) for m in marks}
    kinds["nfkc"] = lambda c: nfkc.normalize_str(c + "\u0301")
    kinds["lower"] = lower.normalize_str
    kinds["punctuation"] = cut(pre_tokenizers.Punctuation())
    kinds["digit"] = cut(pre_tokenizers.Digits(True))
    kinds["space"] = cut(pre_tokenizers.WhitespaceSplit())
    kinds["word"] = lambda c: str(int(1 not in single.encode("Q" + c).ids))
    out = {}
    for name, f in kinds.items():
        h = hashlib.sha256()
        for c in every_code_point():
            h.update(f(c).encode() + b"\n")
        out[name] = h.hexdigest()
    return out


def write(name, text):
    with open(HERE / name, "wb") as f, gzip.GzipFile("", "wb", 9, f, mtime=0) as z:
        z.write(text.encode())


def main():
    if sys.argv[1:2] == ["golden"]:
        data = Path(sys.argv[2]).read_bytes()
        data = gzip.decompress(data) if sys.argv[2].endswith(".gz") else data
        for line in golden(Tokenizer.from_str(data.decode()), int(sys.argv[3]), int(sys.argv[4])):
            print(line)
        return
    t = own_bytes()
    write("own_bytes.json.gz", t.to_str())
    plain = Tokenizer.from_str(t.to_str())
    plain.encode_special_tokens = True
    write("own_bytes.golden.jsonl.gz", "\n".join(golden(t, 2000, 1, plain)))
    t, text = own_fallback()
    plain = Tokenizer.from_str(text)
    plain.encode_special_tokens = True
    write("own_fallback.json.gz", text)
    write("own_fallback.golden.jsonl.gz", "\n".join(golden(Tokenizer.from_str(text), 2000, 2, plain)))
    (HERE / "unicode.json").write_text(json.dumps(unicode_digests(), indent=1) + "\n")


if __name__ == "__main__":
    main()
