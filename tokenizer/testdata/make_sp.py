"""Makes this folder's sp_*.model.gz and sp_*.golden.jsonl.gz with SentencePiece itself (PyPI sentencepiece 0.2.3):
small models trained on make.py's text and the licence of the repository, and 700 fuzzed strings each.

    python make_sp.py                    the models and their goldens
    python make_sp.py golden MODEL OUT   a golden for another model file

A line has text, ids (encode), and decoded (decode of ids; left out where there is an unknown piece).
"""
import gzip
import importlib.util
import json
import random
import sys
import types
from pathlib import Path

import sentencepiece as spm

HERE = Path(__file__).parent
if importlib.util.find_spec("tokenizers") is None:  # make.py needs it for other things
    stub = types.ModuleType("tokenizers")
    for name in "AddedToken Regex Tokenizer decoders models normalizers pre_tokenizers processors trainers".split():
        setattr(stub, name, None)
    sys.modules["tokenizers"] = stub
sys.path.insert(0, str(HERE))
import make  # noqa: E402

SP_PARTS = ["ab", "abc", "<sep>", "<sep", "[x]", "[x]y", "<s>", "</s>", "<cls>", "<unk>", " <sep> ", "▁", "▁▁a", "  a  b",
            "\uff21\uff22", "ｶﾞ", "㍿", "①", "ﷺ", "e\u0301a", "\u200b", "\u00ad", "x\u0301\u0302", "the the", " little robot"]

# A few rules in place of the 250 KB of nmt_nfkc.
RULES = {"A": "a", "B": "b", "\t": " ", "\n": " ", "\u3000": " ", "\u00a0": " ", "\uff21": "A", "\uff22": "B", "\u338f": "kg",
         "\uff76\uff9e": "\u30ac", "\uff76": "\u30ab", "\u337f": "\u682a\u5f0f\u4f1a\u793e", "\u2460": "1", "e\u0301": "\u00e9",
         "e\u0301a": "ea", "\u200b": "", "\u00ad": "", "\ufb01": "fi", "...": " \u2026 ", "\u0301": "", "don't": "do not"}
MODELS = {
    "sp_bpe": dict(model_type="bpe", vocab_size=800, byte_fallback=True, normalization_rule_name="identity",
                   remove_extra_whitespaces=False, user_defined_symbols=["<sep>", "[x]", "[x]y", "\n"],
                   control_symbols=["<cls>"]),
    "sp_bpe_rules": dict(model_type="bpe", vocab_size=500, character_coverage=0.98, normalization_rule_tsv=RULES),
    "sp_unigram": dict(model_type="unigram", vocab_size=500, byte_fallback=False, character_coverage=0.98,
                       normalization_rule_tsv=RULES, user_defined_symbols=["<sep>", "[x]"],
                       control_symbols=["<cls>"]),
    "sp_unigram_suffix": dict(model_type="unigram", vocab_size=700, byte_fallback=True,
                              normalization_rule_name="identity", treat_whitespace_as_suffix=True,
                              split_by_whitespace=False, allow_whitespace_only_pieces=True, bos_id=-1),
}


def golden(model, lines, seed):
    rng = random.Random(seed)
    sp = spm.SentencePieceProcessor(model_file=str(model))
    for _ in range(lines):
        text = make.fuzzed(rng)
        for _ in range(rng.randrange(4)):
            text += rng.choice(SP_PARTS)
        ids = sp.encode(text)
        g = {"text": text, "ids": ids}
        if sp.unk_id() not in ids:
            g["decoded"] = sp.decode(ids)
        yield json.dumps(g, separators=(",", ":"))


def write(model, out, lines, seed=1):
    out.write_bytes(gzip.compress(("\n".join(golden(model, lines, seed)) + "\n").encode(), 9, mtime=0))


if sys.argv[1:2] == ["golden"]:
    write(Path(sys.argv[2]), Path(sys.argv[3]), 3000)
else:
    for name, options in MODELS.items():
        prefix = HERE / name
        rules = options.get("normalization_rule_tsv")
        if rules:
            tsv = HERE / "rules.tsv"
            tsv.write_text("".join(" ".join(f"{ord(c):x}" for c in k) + "\t" + " ".join(f"{ord(c):x}" for c in v) + "\n"
                                   for k, v in rules.items()))
            options["normalization_rule_tsv"] = str(tsv)
        spm.SentencePieceTrainer.train(
            sentence_iterator=iter(line.rstrip("\n") for line in make.corpus() if line.strip()), model_prefix=str(prefix),
            num_threads=1, hard_vocab_limit=False, minloglevel=2, **options)
        path = Path(f"{prefix}.model")
        write(path, Path(f"{prefix}.golden.jsonl.gz"), 700)
        Path(f"{prefix}.model.gz").write_bytes(gzip.compress(path.read_bytes(), 9, mtime=0))
        path.unlink()
        Path(f"{prefix}.vocab").unlink()
        (HERE / "rules.tsv").unlink(missing_ok=True)
