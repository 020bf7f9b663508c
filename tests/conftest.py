"""What all tests share."""

from __future__ import annotations

import atexit
import gc
import os
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from hypothesis import settings

if TYPE_CHECKING:
    from orchestra.localengine.weights.files import ModelFiles, Placing

# Two processes of tests share the processors, so threads must not spin for long while they wait. torch reads it.
os.environ.setdefault("GOMP_SPINCOUNT", "2000")
# Modules that are installed are compiled once, so ours are as well, whatever the machine is set to: many tests
# start a Python of their own, and some say how long that may take.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
sys.dont_write_bytecode = False


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--soak", action="store_true", help="run the long randomised tests whole, not a seeded tenth")
    parser.addoption(
        "--device",
        choices=("cpu", "lab", "cuda"),
        default="cpu",
        help="where the engine's tests run a model: `lab` is the GPU's runner on a stand-in, `cuda` a GPU",
    )


def pytest_configure(config: pytest.Config) -> None:
    """Let hypothesis draw the same examples in every run, however slowly; under ``--soak`` it draws others."""
    if config.getoption("--device") == "cuda":
        import torch

        if not torch.cuda.is_available():
            raise pytest.UsageError("--device cuda needs a GPU that torch sees; `--device lab` needs none")
    else:  # a GPU that is there is seen by nobody
        os.environ.setdefault("CUDA_VISIBLE_DEVICES", "")
    if config.getoption("--hypothesis-profile", None) is None:
        settings.register_profile("soak", settings.get_profile("ci"), derandomize=False)
        settings.load_profile("soak" if config.getoption("--soak") else "ci")


_DEAR = (
    "test_examples.py",
    "kernels/test_aot.py",
    "benchmarks/test_engine.py",
    "test_killed.py",
    "test_packaging.py",
)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Begin with the files that take longest: who began one of them last would be alone with it at the end."""
    items.sort(key=lambda item: not item.path.as_posix().endswith(_DEAR))


def pytest_collection_finish() -> None:
    """Let garbage collections pass over what was imported: they are many, and took half a second each."""
    gc.collect()
    gc.freeze()
    atexit.register(gc.unfreeze)  # some extensions complain where the interpreter leaves theirs behind


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture(scope="session")
def soak(request: pytest.FixtureRequest) -> Callable[[int], int]:
    """Return how many rounds of ``whole`` to run: all under ``--soak``, else a tenth."""
    everything = request.config.getoption("--soak")
    return lambda whole: whole if everything else max(1, whole // 10)


@pytest.fixture(scope="session")
def model_path() -> Path:
    """The small model's file. `make test` has fetched it; by hand: orchestra model pull smollm2-135m."""
    from orchestra.localengine.weights import registry

    return registry.resolve("smollm2-135m")


@pytest.fixture(scope="session")
def model_files(model_path: Path) -> ModelFiles:
    """The small model, read once for all tests. A runner takes its weights over: give it a copy of the dict."""
    from orchestra.localengine.weights.opening import load_model

    return load_model(model_path)


@pytest.fixture(scope="module")
def model_read_once(model_path: Path, model_files: ModelFiles) -> Iterator[None]:
    """Whoever opens the small model gets what was read already."""
    from orchestra.localengine.weights import opening

    load_model = opening.load_model

    def load(path: Path, placing: Placing | None = None) -> ModelFiles:
        if path != model_path or placing is not None:
            return load_model(path, placing)
        return replace(model_files, weights=dict(model_files.weights))

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(opening, "load_model", load)
        yield
