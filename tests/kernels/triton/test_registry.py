"""Every kernel is compiled ahead of time, and the README's table is of these kernels."""

from __future__ import annotations

import importlib
import re
from pathlib import Path

import pytest
from triton.runtime.interpreter import InterpretedFunction

from orchestra.kernels import aot

KERNELS = Path(aot.__file__).parent


@pytest.mark.parametrize("name", aot.triton_modules())
def test_every_kernel_is_compiled_for_some_shape(name: str) -> None:
    """A function is a kernel if it is called so; the others are parts of kernels."""
    module = importlib.import_module(name)
    functions = [value for value in vars(module).values() if isinstance(value, InterpretedFunction)]
    kernels = {kernel.__name__ for kernel in functions if kernel.__name__.endswith("_kernel")}
    assert kernels <= {case.kernel.__name__ for case in aot.all_cases()}


def test_each_operation_has_a_case_in_the_quick_subset() -> None:
    folders = {name.split(".")[-2] for name in aot.triton_modules()}
    quick = {case.kernel.fn.__module__.split(".")[-2] for case in aot.all_cases() if case.quick}
    assert quick == folders


def test_the_table_has_a_row_for_each_case() -> None:
    table = re.search(r"<!-- AOT TABLE.*?<!-- END", (KERNELS / "README.md").read_text(encoding="utf-8"), re.S)
    assert table is not None
    named = re.findall(r"^\| (.+?) \|", table.group(), re.M)[1:]  # the first row is the head
    expected = dict.fromkeys(case.name for case in aot.all_cases())
    assert named == list(expected), "make kernels-aot ARGS='--write kernels/README.md'"
