"""Makes the wire goldens with the official SDK, and checks our encoders with the SDK's own readers.

Recipe (Python 3.11, tinker 0.38.0, numpy):

    python make_goldens.py make             # writes requests/*.pb, responses/*.pb and goldens.json beside this file
    python make_goldens.py captures DIR     # condenses recorded request/response pairs into captures.json
    python make_goldens.py check            # reads encoded/*.pb, written by `go test ./httpapi/wire -update`,
                                            # with the SDK and compares with goldens.json; needs no network

requests/ are ForwardBackwardRequest bodies as the SDK builds them (plus some only another client could send), and
goldens.json says what they hold. responses/ are result messages from the SDK's protobuf module.
"""

import glob
import json
import math
import os
import sys

import numpy as np
import tinker
from tinker import types
from tinker.proto import request_conv, response_conv
from tinker.proto import tinker_public_pb2 as pb
from tinker.types.forward_backward_input import ForwardBackwardInput
from tinker.types.forward_backward_request import ForwardBackwardRequest

HERE = os.path.dirname(os.path.abspath(__file__))


def tensor(values, dtype, shape=None):
    return types.TensorData(data=values, dtype=dtype, shape=shape)


def plain(values):
    """Numbers as JSON can carry them."""
    return [str(v) if isinstance(v, float) and not math.isfinite(v) else v for v in values]


def describe(arr):
    arr = np.asarray(arr)
    kind = "float32" if arr.dtype.kind == "f" else "int64"
    return {"dtype": kind, "shape": list(arr.shape), "data": plain(arr.flatten().tolist())}


def csr(dense, dtype):
    dense = np.asarray(dense)
    crow, col, values = [0], [], []
    for row in dense:
        for j, v in enumerate(row):
            if v != 0:
                col.append(j)
                values.append(v.item())
        crow.append(len(col))
    return types.TensorData(data=values, dtype=dtype, shape=list(dense.shape),
                            sparse_crow_indices=crow, sparse_col_indices=col)


def sdk_request(data, loss_fn, config=None, seq_id=1, forward_only=False):
    req = ForwardBackwardRequest(
        forward_backward_input=ForwardBackwardInput(data=data, loss_fn=loss_fn, loss_fn_config=config),
        model_id="sess-1:train:0", seq_id=seq_id)
    msg = request_conv.forward_backward_request_to_proto(req)
    msg.forward_only = forward_only
    return msg


def requests():
    """name -> (message, what it holds)"""
    out = {}
    rng = np.random.default_rng(7)

    def datum(n):
        tokens = rng.integers(0, 2**31 - 1, n).tolist()
        target = rng.integers(0, 2**40, n)
        weights = rng.standard_normal(n).astype(np.float32)
        half = n // 2
        d = types.Datum(
            model_input=types.ModelInput(chunks=[
                types.EncodedTextChunk(tokens=tokens[:half]), types.EncodedTextChunk(tokens=tokens[half:])]),
            loss_fn_inputs={"target_tokens": types.TensorData.from_numpy(target),
                            "weights": types.TensorData.from_numpy(weights)})
        return d, {"tokens": tokens, "chunks": 2,
                   "inputs": {"target_tokens": describe(target), "weights": describe(weights)}}

    pairs = [datum(n) for n in (1, 2, 5, 300)]
    want = {"loss_fn": "cross_entropy", "seq_id": 1, "forward_only": False, "config": {}}
    out["text"] = (sdk_request([p[0] for p in pairs], "cross_entropy"), {**want, "data": [p[1] for p in pairs]})

    dense_i = np.zeros((6, 4), np.int64)
    dense_i[1, 2], dense_i[4, 0], dense_i[4, 3] = 9, 2**33, 5
    dense_f = np.zeros((6, 4), np.float32)
    dense_f[2, 1], dense_f[5, 3] = -0.5, 1.25
    d = types.Datum(model_input=types.ModelInput.from_ints([1, 2, 3, 4, 5, 6]),
                    loss_fn_inputs={"target_tokens": csr(dense_i, "int64"), "weights": csr(dense_f, "float32")})
    out["sparse"] = (sdk_request([d], "cross_entropy", seq_id=2147483647, forward_only=True), {
        "loss_fn": "cross_entropy", "seq_id": 2147483647, "forward_only": True, "config": {},
        "data": [{"tokens": [1, 2, 3, 4, 5, 6], "chunks": 1,
                  "inputs": {"target_tokens": describe(dense_i), "weights": describe(dense_f)}}]})

    odd = np.array([[np.nan, np.inf], [-np.inf, -0.0], [1e-45, 3.4028235e38]], np.float32)
    d = types.Datum(model_input=types.ModelInput.from_ints([7, 8, 9]),
                    loss_fn_inputs={"advantages": types.TensorData.from_numpy(odd),
                                    "logprobs": types.TensorData(data=[-1.5, -2.5, 0.0], dtype="float32"),
                                    "extra": types.TensorData(data=[], dtype="int64", shape=[0])})
    config = {"clip_low_threshold": 0.8, "clip_high_threshold": 1.2, "zero": 0.0, "loss_id": "loss-1", "empty": ""}
    out["config"] = (sdk_request([d], "ppo", config, seq_id=3), {
        "loss_fn": "ppo", "seq_id": 3, "forward_only": False, "config": config,
        "data": [{"tokens": [7, 8, 9], "chunks": 1, "inputs": {
            "advantages": describe(odd), "logprobs": describe(np.array([-1.5, -2.5, 0], np.float32)),
            "extra": describe(np.zeros(0, np.int64))}}]})

    msg = sdk_request([pairs[0][0]], "importance_sampling", seq_id=0)
    msg.loss_fn_config["beta"] = 0.05  # only the older encoding
    half = msg.data[0].loss_fn_inputs["half"]
    half.dtype, half.dense = pb.DTYPE_BFLOAT16, np.array([0x3F80, 0xC020, 0x7F80], np.uint16).tobytes()
    narrow = msg.data[0].loss_fn_inputs["narrow"]
    narrow.dtype, narrow.dense = pb.DTYPE_INT32, np.array([-1, 7], np.int32).tobytes()
    narrow.shape.extend([2, 1])
    span = msg.data[0].model_input_spans.add()
    span.sampled_tokens.sequence_id, span.sampled_tokens.length = "s", 4
    inputs = {**pairs[0][1]["inputs"], "half": describe(np.array([1.0, -2.5, np.inf], np.float32)),
              "narrow": describe(np.array([[-1], [7]], np.int64))}
    out["widened"] = (msg, {"loss_fn": "importance_sampling", "seq_id": 0, "forward_only": False,
                            "config": {"beta": 0.05}, "data": [{**pairs[0][1], "inputs": inputs}]})

    image = types.Datum(
        model_input=types.ModelInput(chunks=[types.EncodedTextChunk(tokens=[1]),
                                             types.ImageChunk(data=b"\x89PNG", format="png", expected_tokens=4)]),
        loss_fn_inputs={"target_tokens": tensor([1, 1, 1, 1, 2], "int64", [5])})
    out["image"] = (sdk_request([pairs[1][0], image], "cross_entropy", seq_id=9), {"unsupported": [1, 1, "image"]})
    dmel = types.Datum(model_input=types.ModelInput(chunks=[types.DmelChunk(dmel=b"\x00\x01")]),
                       loss_fn_inputs={"target_tokens": tensor([1], "int64", [1])})
    out["dmel"] = (sdk_request([dmel], "cross_entropy", seq_id=10), {"unsupported": [0, 0, "dmel"]})
    return out


def read_output(body):
    r = response_conv.deserialize_forward_backward_output(body)
    return {"outputs": [{k: {"dtype": t.dtype, "shape": t.shape, "data": plain(t.data)} for k, t in d.items()}
                        for d in r.loss_fn_outputs],
            "metrics": {k: plain([v])[0] for k, v in r.metrics.items()}}


def read_tensor(t):
    out = {"dtype": t.dtype, "shape": t.shape, "data": plain(t.data)}
    if t.sparse_crow_indices is not None:
        out["crow"], out["col"] = t.sparse_crow_indices, t.sparse_col_indices
    return out


def read_topk(t):
    return None if t is None else {"token_ids": t.token_ids.tolist(),
                                   "logprobs": [plain(row) for row in t.logprobs.tolist()]}


def read_sample(body):
    r = response_conv.deserialize_sample_response(body)
    sequences = [{"stop_reason": s.stop_reason, "tokens": s.tokens_np.tolist(),
                  "logprobs": None if s.logprobs_np is None else plain(s.logprobs_np.tolist()),
                  "topk": read_topk(s.topk_logprobs_np)} for s in r.sequences]
    prompt, alt = r.prompt_logprobs_np, r.prompt_alt_tokens
    return {"sequences": sequences, "topk": read_topk(r.topk_prompt_logprobs_np),
            "prompt_logprobs": None if prompt is None else plain(prompt.tolist()),
            "cache_hits": r.prompt_cache_hit_tokens,
            "target": None if r.target_prompt_logprobs is None else read_tensor(r.target_prompt_logprobs),
            "alt": None if alt is None else [read_tensor(alt.tokens), read_tensor(alt.logprobs)]}


def read_request(body):
    """A request as our encoder writes it (dense tensors), in the form of goldens.json."""
    r = pb.ForwardBackwardRequest()
    r.ParseFromString(body)
    config = {k: getattr(v, v.WhichOneof("value")) for k, v in r.loss_fn_config_v2.items()}
    data = []
    for d in r.data:
        tokens = np.frombuffer(b"".join(c.encoded_text.tokens for c in d.model_input), np.int32).tolist()
        data.append({"tokens": tokens, "inputs": {
            k: read_tensor(response_conv._tensor_data_from_proto(t)) for k, t in d.loss_fn_inputs.items()}})
    return {"loss_fn": r.loss_fn, "seq_id": r.seq_id, "forward_only": r.forward_only, "config": config, "data": data}


def f32(*values):
    return np.array(values, np.float32).tobytes()


def i32(*values):
    return np.array(values, np.int32).tobytes()


def responses():
    """name -> message"""
    out = {}
    msg = pb.ForwardBackwardOutput(loss_fn_output_type="pkg.mod:ArrayRecord")
    for lengths, trailing in (((2, 0, 3), ()), ((1, 2), (2,))):
        rec = msg.loss_fn_outputs.add(type_tag="ArrayRecord", num_datums=len(lengths))
        row = int(np.prod(trailing)) if trailing else 1
        bt = rec.fields["logprobs"]
        bt.dtype = pb.DTYPE_FLOAT32
        bt.data = (-np.arange(sum(lengths) * row, dtype=np.float32) / 4).tobytes()
        bt.offsets = (np.concatenate([[0], np.cumsum(lengths)]) * row * 4).astype(np.int64).tobytes()
        bt.trailing_shape.extend(trailing)
    msg.metrics["loss:sum"] = 1.5
    msg.metrics["tokens:sum"] = math.nan
    out["output_ragged"] = msg

    out["output_none"] = pb.ForwardBackwardOutput(loss_fn_output_type="ArrayRecord", metrics={"loss:sum": 0.0})

    msg = pb.SampleResponse(prompt_logprobs=f32(math.nan, math.nan, -0.5, -math.inf), prompt_cache_hit_tokens=3)
    msg.sequences.add(stop_reason=pb.STOP_REASON_LENGTH, tokens=i32(1, 2, 2**31 - 1), logprobs=f32(-1, -math.inf, -0.25))
    seq = msg.sequences.add(stop_reason=pb.STOP_REASON_STOP, tokens=i32(5), logprobs=f32(0))
    seq.topk_sampled_logprobs.CopyFrom(pb.TopkLogprobs(token_ids=i32(5, 0), logprobs=f32(0, -99999), k=2, length=1))
    msg.sequences.add(stop_reason=pb.STOP_REASON_LENGTH)
    msg.topk_prompt_logprobs.CopyFrom(pb.TopkLogprobs(
        token_ids=i32(0, 0, 3, 4, 5, 6, 7, 8), logprobs=f32(-99999, -99999, -1, -2, -1, -2, -1, -2), k=2, length=4))
    t = msg.target_prompt_logprobs
    t.dtype = pb.DTYPE_FLOAT32
    t.shape.extend([3, 2])
    t.sparse_csr.values, t.sparse_csr.col_indices = f32(-0.5, -1.5), np.array([1, 0], np.int64).tobytes()
    t.sparse_csr.crow_indices = np.array([0, 1, 1, 2], np.int64).tobytes()
    msg.prompt_alt_tokens.tokens.CopyFrom(pb.Tensor(dense=np.array([4, 5, 6], np.int64).tobytes(),
                                                    dtype=pb.DTYPE_INT64, shape=[3, 1]))
    msg.prompt_alt_tokens.logprobs.CopyFrom(pb.Tensor(dense=f32(-1, -2, -3), dtype=pb.DTYPE_FLOAT32, shape=[3, 1]))
    out["sample_full"] = msg
    out["sample_empty"] = pb.SampleResponse()
    return out


def read_response(name, body):
    return read_output(body) if name.startswith("output") else read_sample(body)


def make():
    goldens = {"sdk": tinker.__version__, "requests": {}, "responses": {}}
    for folder, items in (("requests", requests()), ("responses", responses())):
        os.makedirs(os.path.join(HERE, folder), exist_ok=True)
        for name, item in items.items():
            msg = item[0] if folder == "requests" else item
            body = msg.SerializeToString(deterministic=True)
            with open(os.path.join(HERE, folder, name + ".pb"), "wb") as f:
                f.write(body)
            goldens[folder][name] = item[1] if folder == "requests" else read_response(name, body)
    with open(os.path.join(HERE, "goldens.json"), "w") as f:
        json.dump(goldens, f, indent=None, sort_keys=True)
        f.write("\n")


def captures(folder):
    out = {}
    for path in sorted(glob.glob(os.path.join(folder, "*.json"))):
        with open(path) as f:
            c = json.load(f)
        out[os.path.basename(path)[:-5]] = {k: c[k] for k in ("method", "path", "request_body", "status", "response_body")}
    with open(os.path.join(HERE, "captures.json"), "w") as f:
        lines = [f"{json.dumps(k)}: {json.dumps(v)}" for k, v in out.items()]
        f.write("{\n" + ",\n".join(lines) + "\n}\n")


def check():
    with open(os.path.join(HERE, "goldens.json")) as f:
        goldens = json.load(f)
    for request in goldens["requests"].values():
        for datum in request.get("data", []):
            del datum["chunks"]  # our encoder joins them
    bad = checked = 0
    for path in sorted(glob.glob(os.path.join(HERE, "encoded", "*.pb"))):
        name = os.path.basename(path)[:-3]
        with open(path, "rb") as f:
            body = f.read()
        if name in goldens["responses"]:
            got, want = read_response(name, body), goldens["responses"][name]
        else:
            got, want = read_request(body), goldens["requests"][name]
        checked += 1
        if got != want:
            bad += 1
            print("differs:", name)
    print(f"{checked} encoded bodies read by tinker {tinker.__version__}, {bad} differ")
    sys.exit(1 if bad or not checked else 0)


if __name__ == "__main__":
    command = sys.argv[1] if len(sys.argv) > 1 else ""
    if command == "make":
        make()
    elif command == "captures":
        captures(sys.argv[2])
    elif command == "check":
        check()
    else:
        sys.exit(__doc__)
