import os
import re
import shutil
import sys
from pathlib import Path

os.environ["TINKER_TELEMETRY"] = "0"
os.environ["TINKER_API_KEY"] = "tml-test"
os.environ.pop("TINKER_BASE_URL", None)
os.environ.setdefault("HF_HUB_OFFLINE", "1")
sys.dont_write_bytecode = True
sys.path.insert(0, str(Path(__file__).resolve().parent))

import pytest  # noqa: E402

import harness  # noqa: E402
import tiny_model  # noqa: E402

TINY, STORIES = "test/tiny", "test/stories"


def shared():
    """The folder of shared material, or None."""
    named = os.environ.get("SMOLGYM_SHARED")
    path = Path(named) if named else harness.REPO.parent / "shared"
    return path if path.is_dir() else None


def stories_folder():
    s = shared()
    return s / "data" / "models" / "stories260k" if s and (s / "data" / "models" / "stories260k").is_dir() else None


def pytest_configure(config):
    if not harness.BINARY.exists():
        pytest.exit(f"{harness.BINARY} is not there: run make build, or set SMOLGYM_BIN", returncode=2)


@pytest.fixture(scope="session")
def folders(tmp_path_factory):
    """Model folders: tiny, and tiny with an attention or a feed-forward part that is zero."""
    d = tmp_path_factory.mktemp("models")
    return dict(tiny=tiny_model.write(str(d / "tiny")),
                no_attention=tiny_model.write(str(d / "no_attention"), attention=False),
                no_mlp=tiny_model.write(str(d / "no_mlp"), mlp=False))


@pytest.fixture(scope="session")
def server(tmp_path_factory, folders):
    """The server most tests share, with every model on it."""
    s = harness.Server(tmp_path_factory.mktemp("server") / "box").start()
    s.add_model(TINY, folders["tiny"])
    s.add_model("test/no-attention", folders["no_attention"])
    s.add_model("test/no-mlp", folders["no_mlp"])
    if stories_folder():
        s.add_model(STORIES, stories_folder())
    yield s
    s.stop()


@pytest.fixture
def own_server(tmp_path, folders):
    """A server of the test's own, that it may stop, kill and start again."""
    s = harness.Server(tmp_path / "box").start()
    s.add_model(TINY, folders["tiny"])
    yield s
    s.stop()


@pytest.fixture
def service(server):
    c = server.client()
    yield c
    c.close("success").result(timeout=harness.WAIT)
    server.alive()


class Model:
    """A base model of the tests: its name, sizes, and text to ids."""

    def __init__(self, name, vocab, context, encode):
        self.name, self.vocab, self.context, self.encode = name, vocab, context, encode


def make_model(kind):
    if kind == "tiny":
        return Model(TINY, tiny_model.VOCAB, tiny_model.CONTEXT, lambda t: [tiny_model.BOS] + tiny_model.encode(t))
    folder = stories_folder()
    if folder is None:
        pytest.skip("stories260k is not there: set SMOLGYM_SHARED to the folder of shared material")
    from tokenizers import Tokenizer
    tok = Tokenizer.from_file(str(folder / "tokenizer.json"))
    return Model(STORIES, 512, 512, lambda t: tok.encode(t).ids)


@pytest.fixture(params=["tiny", "stories"])
def model(request):
    """Each test with this fixture runs on both models; stories260k is skipped where absent."""
    return make_model(request.param)


@pytest.fixture
def tiny():
    return make_model("tiny")


@pytest.fixture(scope="session")
def tiny_weights():
    return tiny_model.weights()


@pytest.fixture(scope="session")
def torch_python():
    """The python of the optional torch environment."""
    venv = Path(os.environ.get("SMOLGYM_TORCH_VENV", Path.home() / ".cache" / "smolgym" / "torch-venv"))
    python = venv / "bin" / "python"
    if not (venv / ".requirements").exists():
        pytest.skip("the torch environment is not there: testdata/sdk/torch_env.sh makes it (540 MB)")
    return str(python)


@pytest.fixture
def scratch(tmp_path):
    """A copy of a model folder to spoil."""
    def copy(src, name="spoilt"):
        dst = tmp_path / re.sub(r"\W", "_", name)
        shutil.copytree(src, dst)
        return dst
    return copy
