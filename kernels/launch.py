"""How each Triton kernel is launched: block sizes, warps and pipeline stages, by architecture and shape.

A plain table, `launch.json`, and no autotuner: the same call is launched alike in every process, so results
repeat, the first call costs nothing more, and what is compiled ahead of time is what runs.
``python -m orchestra.kernels.tune`` writes rows that it measured, with the name of the GPU; those without one were
chosen by what compiles well.

What the blocks and bounds mean:

- ``attention.decode``: BLOCK_N tokens of the context a tile, by ``head_dim`` and ``key_bytes``, those of an
  element. Behind a block table, Triton's pipeline buffers one tile with 2 to 4 stages; 5 are the least for two.
- ``attention.extend``: BLOCK_M rows (queries times the heads of a group) and BLOCK_N tokens a tile, by
  ``head_dim``. Hopper's wgmma begins at 64 rows.
- ``sampling``: BLOCK tokens of the vocabulary (``vocab``) a pass.
- ``norm``: none. A row of ``hidden`` elements is held in the registers of a program, about 16 a thread.
- ``activation``: BLOCK elements of a row of ``width`` a program.
- ``rope_kv``: HEADS heads of a token a program, so that a thread loads 16 bytes of each half of a ``head_dim``.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from orchestra.kernels.launch_table import ANY, ARCHITECTURES, LaunchConfig, read_table

if TYPE_CHECKING:
    import torch

__all__ = [
    "ARCHITECTURES",
    "TABLE",
    "TABLE_FILE",
    "LaunchConfig",
    "arch_of",
    "launch_config",
    "trial",
]

TABLE_FILE = Path(__file__).with_name("launch.json")

TABLE = read_table(TABLE_FILE.read_text(encoding="utf-8"))
_trials: dict[str, LaunchConfig] = {}


@contextmanager
def trial(op: str, config: LaunchConfig) -> Iterator[None]:
    """Within, launch ``op`` with ``config`` whatever the table says, in this whole process: for tuning alone."""
    _trials[op] = config
    launch_config.cache_clear()
    try:
        yield
    finally:
        del _trials[op]
        launch_config.cache_clear()


@functools.cache
def launch_config(op: str, arch: str, **shape: int) -> LaunchConfig:
    """Return how to launch ``op`` (as ``"attention.decode"``) on ``arch`` for a ``shape`` (as ``head_dim=64``).

    An operation's rows name the numbers that they depend on; others may be given, and do not matter. Raises
    ValueError for an operation or an architecture that is not in the table, and KeyError where a number that a row
    depends on is missing.
    """
    if op not in TABLE:
        raise ValueError(f"no launch settings for {op!r}; there are those of {', '.join(sorted(TABLE))}")
    if arch not in ARCHITECTURES:
        raise ValueError(f"unknown architecture {arch!r}; known are {', '.join(ARCHITECTURES)}")
    if op in _trials:
        return _trials[op]
    rows = TABLE[op].get(arch) or TABLE[op][ANY]
    return next(row.config for row in rows if row.holds(shape))


# Architectures without rows of their own go by those with as much shared memory.
_LIKE = {
    "sm_86": "sm_120",
    "sm_87": "sm_80",
    "sm_89": "sm_120",
    "sm_103": "sm_100",
    "sm_110": "sm_100",
    "sm_121": "sm_120",
}


@functools.cache
def arch_of(device: torch.device) -> str:
    """Return the name by which `launch_config` knows a device's architecture; a CPU's is ``interpreter``.

    An NVIDIA GPU newer than the table goes by sm_120's rows, which ask for the least shared memory, and every AMD
    GPU by gfx942's. Raises ValueError for one older than sm_80.
    """
    import torch

    if device.type == "cpu":
        return "interpreter"
    if torch.version.hip is not None:
        return "gfx942"
    major, minor = torch.cuda.get_device_capability(device)
    if major < 8:
        name = torch.cuda.get_device_name(device)
        raise ValueError(f"{name} is sm_{major}{minor}; the kernels want sm_80 or newer")
    arch = f"sm_{major}{minor}"
    return arch if arch in ARCHITECTURES else _LIKE.get(arch, "sm_120")
