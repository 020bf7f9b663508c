"""What loading sets for the whole process."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

_SIZES_OF_STEPS = """
from orchestra.localengine.service.loading import prepare_torch
prepare_torch()
import torch
from orchestra.kernels.linear import linear, pack

def resident() -> int:
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * 4096 >> 20

weights = [pack(torch.randn(out, 576)) for out in (960, 1536)]
if not weights[0].is_mkldnn:
    raise SystemExit("nothing is packed here")
x = torch.randn(400, 576)
with torch.inference_mode():
    for rows in range(1, 61):
        sizes = [linear(x[:rows], weight) for weight in weights]
    before = resident()
    for rows in range(61, 361):
        sizes = [linear(x[:rows], weight) for weight in weights]
print(resident() - before)
"""


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="it reads /proc")
def test_steps_of_many_sizes_leave_no_memory_behind():
    """pytorch/pytorch#27971: each product compiled for a number of rows is kept, a megabyte and more."""
    variables = {name: value for name, value in os.environ.items() if "CACHE_CAPACITY" not in name}
    told = subprocess.run(
        [sys.executable, "-c", _SIZES_OF_STEPS], env=variables, capture_output=True, text=True, timeout=100
    )
    if "nothing is packed" in told.stderr:
        pytest.skip("this torch packs no weights")
    assert told.returncode == 0, told.stderr
    assert int(told.stdout) < 200, "megabytes, for 300 sizes of two matrices"  # 450 where all are kept
