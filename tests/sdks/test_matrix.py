"""The parts of the SDK matrix fit together, and the README tells the versions that are tried."""

from __future__ import annotations

import re
from pathlib import Path

HERE = Path(__file__).parent
RUN = (HERE / "run.py").read_text(encoding="utf-8")
ROWS = re.findall(r'Row\("([\w-]+)(?:\[\w+\])?==([\d.]+)", "(\w+)"', RUN)


def test_every_row_has_its_adapter():
    adapters = (HERE / "adapters.py").read_text(encoding="utf-8")
    assert len(ROWS) == RUN.count("    Row(")
    listed = adapters[adapters.index("ADAPTERS = {") :]
    assert {adapter for _, _, adapter in ROWS} == set(re.findall(r"^        (\w+),$", listed, flags=re.M))


def test_the_table_has_a_column_for_every_behaviour():
    probe = (HERE / "probe.py").read_text(encoding="utf-8")
    columns = re.findall(r'"(\w+)"', re.search(r"^BEHAVIOURS = \((.*)\)$", RUN, flags=re.M).group(1))
    tried = re.search(r"^BEHAVIOURS: .* = \((.*)\)$", probe, flags=re.M).group(1)
    assert columns == tried.split(", ")


def test_the_readme_tells_the_versions():
    readme = (HERE.parents[1] / "README.md").read_text(encoding="utf-8")
    table = "\n".join(line for line in readme.splitlines() if line.startswith("|"))
    missing = {f"{name} {version}" for name, version, _ in ROWS if f" {version}" not in table}
    assert missing == set()
