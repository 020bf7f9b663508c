"""The table of launches as data: its rows, and how they are read and written.

A row holds where every bound that it names is at least the shape's number, and of an operation's rows the first
that holds is taken.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

__all__ = ["ANY", "ARCHITECTURES", "LaunchConfig", "LaunchRow", "LaunchTable", "read_table", "written_table"]

ARCHITECTURES = ("sm_80", "sm_90", "sm_100", "sm_120", "gfx942", "interpreter")
ANY = "any"  # the rows of architectures that have none of their own


@dataclass(frozen=True, slots=True, kw_only=True)
class LaunchConfig:
    """``blocks`` are the kernel's constexpr block sizes by name, ``num_warps`` and ``num_stages`` the compiler's.

    A launch is ``kernel[grid](..., **config.blocks, **config.options)``.
    """

    blocks: Mapping[str, int] = field(default_factory=dict)
    num_warps: int = 4
    num_stages: int = 2

    @property
    def options(self) -> Mapping[str, int | bool]:
        """What the compiler is told. Fused multiply-adds are asked for by name: Triton's default is to change."""
        return {"num_warps": self.num_warps, "num_stages": self.num_stages, "enable_fp_fusion": True}


@dataclass(frozen=True, slots=True, kw_only=True)
class LaunchRow:
    """``config``, for shapes whose numbers are at most those of ``up_to``; ``tuned`` names the GPU it is from."""

    up_to: Mapping[str, int]
    config: LaunchConfig
    tuned: str | None = None

    def holds(self, shape: Mapping[str, int]) -> bool:
        """Whether the row is for ``shape``; raises KeyError where a number that it depends on is missing."""
        return all(shape[name] <= bound for name, bound in self.up_to.items())


LaunchTable = dict[str, dict[str, tuple[LaunchRow, ...]]]  # by operation and architecture, or ANY


def read_table(text: str) -> LaunchTable:
    """The rows of a table in JSON; raises ValueError where one is not as :class:`LaunchRow` has it."""
    table: LaunchTable = {}
    for op, by_arch in json.loads(text).items():
        table[op] = {}
        for arch, rows in by_arch.items():
            if arch not in (ANY, *ARCHITECTURES):
                raise ValueError(f"{op}: unknown architecture {arch!r}")
            table[op][arch] = tuple(_read_row(op, arch, row) for row in rows)
            if not rows or table[op][arch][-1].up_to:
                raise ValueError(f"{op} on {arch}: the last row must be for all shapes")
        if ANY not in by_arch:
            raise ValueError(f"{op}: there are no rows for {ANY!r} architecture")
    return table


def _read_row(op: str, arch: str, row: Mapping[str, Any]) -> LaunchRow:
    if unknown := row.keys() - {"up_to", "blocks", "warps", "stages", "tuned"}:
        raise ValueError(f"{op} on {arch}: a row has no {', '.join(sorted(unknown))}")
    numbers = (
        row.get("warps"),
        row.get("stages"),
        *row.get("blocks", {}).values(),
        *row.get("up_to", {}).values(),
    )
    if not all(type(number) is int and number > 0 for number in numbers):
        raise ValueError(
            f"{op} on {arch}: warps, stages, blocks and up_to are whole numbers above 0, not in {row}"
        )
    blocks = MappingProxyType(dict(row.get("blocks", {})))
    return LaunchRow(
        up_to=MappingProxyType(dict(row.get("up_to", {}))),
        config=LaunchConfig(blocks=blocks, num_warps=row["warps"], num_stages=row["stages"]),
        tuned=row.get("tuned"),
    )


def written_table(table: LaunchTable) -> str:
    """The table in JSON, a row a line, as :func:`read_table` reads it."""
    ops = []
    for op, by_arch in table.items():
        arches = []
        for arch, rows in by_arch.items():
            lines = ",\n".join(f"      {json.dumps(_written_row(row))}" for row in rows)
            arches.append(f'    "{arch}": [\n{lines}\n    ]')
        ops.append(f'  "{op}": {{\n' + ",\n".join(arches) + "\n  }")
    return "{\n" + ",\n".join(ops) + "\n}\n"


def _written_row(row: LaunchRow) -> dict[str, object]:
    bounds = {"up_to": dict(row.up_to)} if row.up_to else {}
    blocks = {"blocks": dict(row.config.blocks)} if row.config.blocks else {}
    tuned = {"tuned": row.tuned} if row.tuned else {}
    return {**bounds, **blocks, "warps": row.config.num_warps, "stages": row.config.num_stages, **tuned}
