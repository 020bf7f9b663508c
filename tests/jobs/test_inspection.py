"""The check of a whole file: what it finds, in how much memory, and that it can be left."""

from __future__ import annotations

import asyncio
import json
import threading
import tracemalloc
from collections.abc import Iterable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orchestra.errors import InputError
from orchestra.jobs.intake import inspection
from orchestra.jobs.intake.inspection import Inspection, inspect_file
from orchestra.jobs.intake.line_parser import LineParser
from orchestra.jobs.intake.sources import JsonlFile


def line(custom_id: object) -> str:
    return json.dumps({"custom_id": str(custom_id), "model": "m", "prompt": "hi"})


def write(path: Path, lines: Iterable[str]) -> None:
    path.write_text("".join(f"{line}\n" for line in lines))


async def inspected(path: Path, *lines: str) -> Inspection:
    write(path, lines)
    with JsonlFile.open(path) as file:
        return await inspect_file(file, LineParser())


async def test_a_good_file(tmp_path: Path) -> None:
    found = await inspected(tmp_path / "in", line("a"), "", line("b"), "  ", line("c"))
    assert (found.lines, found.fault_count, list(found.twice)) == (3, 0, [])
    found.refuse("in")


async def test_an_empty_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="in: holds no lines"):
        (await inspected(tmp_path / "in", "", "")).refuse("in")


@pytest.mark.parametrize("value", [[{"prompt": "a"}, {"prompt": "b"}], {"prompt": "a"}, [{"prompt": "a"}] * 9])
async def test_json_over_several_lines_is_told_once(tmp_path: Path, value: object) -> None:
    with pytest.raises(InputError) as caught:
        await inspected(tmp_path / "in", "", json.dumps(value, indent=2))
    (told,) = str(caught.value).splitlines()
    assert "one object a line (jq -c" in told


async def test_faults_of_both_kinds_are_told_in_their_order(tmp_path: Path) -> None:
    found = await inspected(tmp_path / "in", line("a"), "{", line("b"), line("a"), "[]", line("b"), line("a"))
    assert (found.lines, found.fault_count, list(found.twice)) == (7, 5, [4, 6, 7])
    with pytest.raises(InputError) as caught:
        found.refuse("in")
    assert str(caught.value).splitlines() == [
        "in: 5 lines cannot be used",
        "  line 2: not valid JSON: Expecting property name enclosed in double quotes at column 2; "
        "each line must be one JSON object",
        "  line 4: custom_id 'a' is that of line 1 too; each must be unique",
        "  line 5: a line must be a JSON object, not a list",
        "  line 6: custom_id 'b' is that of line 3 too; each must be unique",
        "  line 7: custom_id 'a' is that of line 1 too; each must be unique",
    ]


async def test_of_many_faults_the_first_are_told(tmp_path: Path) -> None:
    found = await inspected(tmp_path / "in", *[line("a")] * 15, *["{"] * 15)
    assert (found.fault_count, [fault.number for fault in found.faults]) == (29, [*range(2, 12)])


async def test_a_faulty_line_bears_no_name(tmp_path: Path) -> None:
    bad = json.dumps({"custom_id": "a", "prompt": "names no model"})
    found = await inspected(tmp_path / "in", bad, line("a"))
    assert (found.fault_count, list(found.twice)) == (1, [])


@pytest.mark.parametrize("hashed", [lambda name: 7, lambda name: len(name)])
async def test_names_of_one_hash_are_not_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, hashed: object
) -> None:
    monkeypatch.setattr(inspection, "hash", hashed, raising=False)
    assert (await inspected(tmp_path / "in", *map(line, range(300)))).fault_count == 0
    found = await inspected(tmp_path / "in", *map(line, range(300)), line(17), line(5), line(17))
    assert list(found.twice) == [301, 302, 303]
    assert found.faults[2].message == "custom_id '17' is that of line 18 too; each must be unique"


@given(names=st.lists(st.integers(0, 30)))
def test_each_name_but_its_first_is_found(tmp_path_factory: pytest.TempPathFactory, names: list[int]) -> None:
    path = tmp_path_factory.mktemp("in") / "in"
    found = asyncio.run(inspected(path, *map(line, names)))
    expected = [place + 1 for place, name in enumerate(names) if name in names[:place]]
    assert list(found.twice) == expected
    assert (found.lines, found.fault_count) == (len(names), len(expected))


async def test_a_good_line_is_remembered_in_a_few_bytes(tmp_path: Path) -> None:
    path, lines = tmp_path / "in", 40_000
    write(path, (line(f"{number:060}") for number in range(lines)))
    with JsonlFile.open(path) as file:
        tracemalloc.start()
        try:
            assert (await inspect_file(file, LineParser())).lines == lines
            peak = tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()
    assert peak < lines * 16 + (2 << 20), "the names alone are 2.4 MB, and a set of them 6"


async def test_cancelled_it_ends_soon(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(inspection, "_STEP_LINES", 10)
    path, lines, seen, began = tmp_path / "in", 20_000, 0, threading.Event()

    class Parser(LineParser):
        def check(self, number: int, raw: bytes) -> object:  # type: ignore[override]
            nonlocal seen
            seen = number
            began.set()
            return super().check(number, raw)

    write(path, map(line, range(lines)))
    with JsonlFile.open(path) as file:
        checking = asyncio.create_task(inspect_file(file, Parser()))
        await asyncio.to_thread(began.wait)
        checking.cancel()
        with pytest.raises(asyncio.CancelledError):
            await checking
        assert seen < lines
        then = seen
        await asyncio.sleep(0.01)
        assert seen == then


async def test_a_file_that_changes_meanwhile_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "in"
    write(path, [line("a")])
    with JsonlFile.open(path) as file:
        write(path, [line("a"), line("b")])
        with pytest.raises(InputError, match="changed while it was read"):
            await inspect_file(file, LineParser())
