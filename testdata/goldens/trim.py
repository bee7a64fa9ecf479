#!/usr/bin/env python3
"""Copies import goldens, leaving out what no test reads: trim.py DATA OUT NAME...

DATA holds the NAME.tar.gz of the import goldens. Dropped: step3.* (fully stepped weights at
eps 1e-8: where a true gradient is 0 they hold rounding noise times the learning rate, and the
reference does not agree with itself). Everything else is kept byte for byte.
"""
import gzip
import io
import json
import os
import struct
import sys
import tarfile


def trimmed(raw):
    n = struct.unpack("<Q", raw[:8])[0]
    head, body = json.loads(raw[8:8 + n]), raw[8 + n:]
    out, parts, at = {}, [], 0
    for k in sorted((k for k in head if k != "__metadata__"), key=lambda k: head[k]["data_offsets"]):
        if k.startswith("step3."):
            continue
        a, b = head[k]["data_offsets"]
        out[k] = dict(head[k], data_offsets=[at, at + b - a])
        parts.append(body[a:b])
        at += b - a
    if "__metadata__" in head:
        out["__metadata__"] = head["__metadata__"]
    text = json.dumps(out, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    return struct.pack("<Q", len(text)) + text + b"".join(parts)


def main(data, dest, *names):
    for name in names:
        raw = io.BytesIO()
        with tarfile.open(os.path.join(data, name + ".tar.gz")) as src, \
                tarfile.open(fileobj=raw, mode="w", format=tarfile.USTAR_FORMAT) as dst:
            for m in sorted(src.getmembers(), key=lambda m: m.name):
                if not m.isfile():
                    continue
                body = src.extractfile(m).read()
                if m.name.endswith("/golden.safetensors"):
                    body = trimmed(body)
                info = tarfile.TarInfo(m.name)
                info.size, info.mode = len(body), 0o644
                dst.addfile(info, io.BytesIO(body))
        with open(os.path.join(dest, name + ".tar.gz"), "wb") as f, gzip.GzipFile("", "wb", 9, f, mtime=0) as z:
            z.write(raw.getvalue())


if __name__ == "__main__":
    main(*sys.argv[1:])
