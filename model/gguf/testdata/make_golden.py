"""Writes golden.gguf.gz and golden.safetensors.gz: a file made by the gguf package, and what that package reads from it.

Needs numpy and gguf (0.19 was used). Run in this folder: python make_golden.py
The file has metadata of every type and tensors of every encoding that is read; blocks are random bytes with sane scales,
so that every bit pattern of the packed scales occurs. The safetensors file holds the values as float32 by name, and
q8_0.input with q8_0.blocks, the reference quantisation of it.
"""

import gzip
import json
import struct

import gguf
import numpy as np

rng = np.random.default_rng(7)
Q = gguf.GGMLQuantizationType


def blocks(kind, rows, columns, halves):
    """Random blocks whose float16 fields, at the byte offsets halves, are small and finite."""
    n, size = gguf.GGML_QUANT_SIZES[kind]
    raw = rng.integers(0, 256, (rows * columns // n, size), dtype=np.uint8)
    for at in halves:
        raw[:, at : at + 2] = rng.normal(0, 0.02, (len(raw), 1)).astype("<f2").view(np.uint8)
    return raw.reshape(rows, columns // n * size)


plain = rng.normal(0, 1, (3, 5)).astype(np.float32)
tensors = {
    "f32": (Q.F32, plain),
    "f16": (Q.F16, np.concatenate([plain, [[np.inf, -0.0, 6e-8, 65504, 1e-5]]]).astype(np.float16)),
    "bf16": (Q.BF16, gguf.quants.quantize(rng.normal(0, 1, (4, 6)).astype(np.float32), Q.BF16)),
    "q8_0": (Q.Q8_0, blocks(Q.Q8_0, 3, 96, [0])),
    "q4_0": (Q.Q4_0, blocks(Q.Q4_0, 3, 96, [0])),
    "q4_k": (Q.Q4_K, blocks(Q.Q4_K, 4, 512, [0, 2])),
    "q6_k": (Q.Q6_K, blocks(Q.Q6_K, 4, 512, [208])),
}
w = gguf.GGUFWriter("golden.gguf", "golden")
w.add_uint8("t.u8", 200)
w.add_int8("t.i8", -100)
w.add_uint16("t.u16", 60000)
w.add_int16("t.i16", -30000)
w.add_uint32("t.u32", 4000000000)
w.add_int32("t.i32", -2000000000)
w.add_uint64("t.u64", 2**63 + 5)
w.add_int64("t.i64", -(2**62))
w.add_float32("t.f32", 1e-6)
w.add_float64("t.f64", 0.1)
w.add_bool("t.bool", True)
w.add_string("t.text", "grüße ▁ 語")
w.add_array("t.texts", ["a", "", "▁b", "x" * 300])
w.add_array("t.ints", [-3, 0, 7])
w.add_array("t.floats", [0.5, -2.25])
w.add_array("t.bools", [True, False])
w.add_custom_alignment(64)
for name, (kind, data) in tensors.items():
    w.add_tensor(name, data, raw_dtype=kind)
w.write_header_to_file()
w.write_kv_data_to_file()
w.write_tensors_to_file()
w.close()

out = {}
for t in gguf.GGUFReader("golden.gguf").tensors:
    out[t.name] = np.ascontiguousarray(gguf.quants.dequantize(t.data, t.tensor_type), np.float32)
x = rng.normal(0, 1, (8, 64)).astype(np.float32)
x[0, :32] = 0
x[1, :32] = np.arange(-16, 16) / 2  # halves, and a scale that is not a power of two
x[2, :32] = np.concatenate([[127], np.arange(31) + 0.5])  # exact halves after scaling: away from 0
x[3, :32] *= 1e-9  # the scale is 0 as float16
x[4, :32] *= 1e-5  # a subnormal scale
out["q8_0.input"] = x
out["q8_0.blocks"] = gguf.quants.quantize(x, Q.Q8_0)

header, body = {}, b""
for name, a in sorted(out.items(), key=lambda kv: (kv[1].dtype == np.uint8, kv[0])):
    kind = "U8" if a.dtype == np.uint8 else "F32"
    header[name] = {"dtype": kind, "shape": list(a.shape), "data_offsets": [len(body), len(body) + a.nbytes]}
    body += a.tobytes()
text = json.dumps(header).encode()
with gzip.GzipFile("golden.safetensors.gz", "wb", 9, mtime=0) as f:
    f.write(struct.pack("<Q", len(text)) + text + body)
with gzip.GzipFile("golden.gguf.gz", "wb", 9, mtime=0) as f:
    f.write(open("golden.gguf", "rb").read())
