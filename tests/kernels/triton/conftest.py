"""Here kernels are interpreted: their source runs as Python, one program after another, so that no GPU is needed.

Triton decides when a kernel is defined, its own library's included, whether it is interpreted, and now and then
asks again while one runs. So the flag stands while the modules are imported, which is here and once, and during
each test. It stands nowhere else: processes that other tests start would inherit it, and could compile no kernels.
"""

from __future__ import annotations

import importlib
import importlib.util
from collections.abc import Iterator

import pytest

HAS_TRITON = importlib.util.find_spec("triton") is not None
FLAG = "TRITON_INTERPRET"

# tests/kernels/test_aot.py reports that Triton is missing
collect_ignore_glob = [] if HAS_TRITON else ["test_*.py"]


def _import_interpreted() -> None:
    from orchestra.kernels.aot import triton_modules

    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(FLAG, "1")
        import triton.language
        from triton.runtime.interpreter import InterpretedFunction

        if not isinstance(triton.language.cdiv, InterpretedFunction):
            raise RuntimeError(f"something imported Triton before these tests could set {FLAG}")
        for name in triton_modules():
            importlib.import_module(name)


if HAS_TRITON:
    _import_interpreted()


@pytest.fixture(autouse=True)
def interpreted(calm: None, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Interpret, and like a GPU say nothing of an overflow: its infinity is what the result shows."""
    import numpy

    monkeypatch.setenv(FLAG, "1")
    with numpy.errstate(all="ignore"):
        yield
