"""Makes ../graphemes.txt.gz: 4,000 random texts and where their grapheme clusters end (a line of hexadecimal code
points, a line of ends), and after them the SHA-256 of the ends for every code point in six contexts.

    python make.py PROGRAM      PROGRAM is main.rs, built
"""
import gzip
import hashlib
import random
import subprocess
import sys
from pathlib import Path

PARTS = [0x0D, 0x0A, 0x20, 0x61, 0x301, 0x200D, 0x200C, 0x1F1E6, 0x1F1E7, 0x600, 0x903, 0x1100, 0x1161, 0x11A8, 0xAC00,
         0xAC01, 0x1F469, 0x2764, 0xFE0F, 0x1F3FD, 0x915, 0x937, 0x94D, 0x93C, 0x9CD, 0x995, 0xE33, 0x110BD, 0xAD, 0x0,
         0x1F468, 0xD4D, 0xD15, 0x20E3, 0x23, 0xE0061]
CONTEXTS = [[0x61], [0x1F469, 0x200D], [0x915, 0x94D], [0x1100], [0xAC00], [0xAC01]]


def main(program):
    def ends(lines):
        done = subprocess.run([program], input="\n".join(lines) + "\n", text=True, capture_output=True, check=True)
        return done.stdout.splitlines()

    rng = random.Random(16)
    texts = []
    while len(texts) < 4000:
        text = []
        for _ in range(rng.randrange(1, 12)):
            c = rng.choice(PARTS) if rng.random() < 0.9 else rng.randrange(0x110000)
            text.append(0x61 if 0xD800 <= c < 0xE000 else c)
        texts.append(" ".join(f"{c:x}" for c in text))
    h = hashlib.sha256()
    points = [c for c in range(0x110000) if not 0xD800 <= c < 0xE000]
    for context in CONTEXTS:
        for after in ([], [0x300, 0x200D, 0x1F469], [0x94D, 0x915]):
            lines = [" ".join(f"{x:x}" for x in [*context, c, *after]) for c in points]
            h.update(("\n".join(ends(lines)) + "\n").encode())
    rows = [x for pair in zip(texts, ends(texts)) for x in pair] + [h.hexdigest()]
    out = Path(__file__).parent / ".." / "graphemes.txt.gz"
    out.write_bytes(gzip.compress(("\n".join(rows) + "\n").encode(), 9, mtime=0))


main(sys.argv[1])
