"""Both attention operations as they are called: as on a CPU, with the same meaning."""

from __future__ import annotations

import inspect

import pytest
import torch

from orchestra.kernels.attention import torch_cpu, triton_


@pytest.mark.parametrize("name", ["plan_decode", "decode", "plan_extend", "extend"])
def test_what_can_be_called_on_a_cpu_can_be_called_alike(name: str) -> None:
    ours = inspect.signature(getattr(triton_, name)).parameters
    theirs = inspect.signature(getattr(torch_cpu, name)).parameters
    assert [(p.name, p.kind, p.default) for p in ours.values()][: len(theirs)] == [
        (p.name, p.kind, p.default) for p in theirs.values()
    ]
    more = list(ours.values())[len(theirs) :]
    assert all(p.kind is p.KEYWORD_ONLY and p.default is not p.empty for p in more)


def test_a_prompt_in_runs_and_rows_comes_out_as_on_a_cpu() -> None:
    """Of 40 tokens 24 are one run, 15 another, and the last is a row; each sees what is written so far."""
    pool = torch.full((5, 2, 8, 2 * 16), float("nan"))
    table = [3, 0, 4, 1, 2]
    keys_values = torch.randn(40, 2, 32)
    q = torch.randn(40, 4, 16)
    results = []
    for start, count in ((0, 24), (24, 15), (39, 1)):
        for position in range(start, start + count):
            pool[table[position // 8], :, position % 8] = keys_values[position]
        queries = q[start : start + count]
        for module in (torch_cpu, triton_):
            if count == 1:
                decode_plan = module.plan_decode([table], [start + 1], pool)
                results.append(module.decode(queries, pool, decode_plan, 0.25))
            else:
                extend_plan = module.plan_extend([table], [start], [count], pool, 4)
                results.append(module.extend(queries, pool, extend_plan, 0.25))
    torch.testing.assert_close(torch.cat(results[1::2]), torch.cat(results[::2]), atol=1e-5, rtol=1e-5)
