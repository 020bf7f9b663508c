"""What a dry run counts."""

from __future__ import annotations

import io
import json
from pathlib import Path

import pytest

from orchestra.errors import InputError
from orchestra.jobs.intake.line_parser import LineParser
from orchestra.jobs.intake.sources import JsonlFile
from orchestra.jobs.intake.survey import survey


def line(custom_id: str, **body: object) -> bytes:
    return json.dumps({"custom_id": custom_id, "model": "m", "prompt": "hi", **body}).encode() + b"\n"


GOOD = line("a", max_tokens=10, n=2) + b"\n" + line("b", model="other") + line("c", max_tokens=5)


async def test_a_file_is_counted(tmp_path: Path) -> None:
    (tmp_path / "in").write_bytes(GOOD)
    with JsonlFile.open(tmp_path / "in") as file:
        counted = await survey(file, LineParser())
        assert (counted.lines, counted.faulty, counted.unbounded) == (3, 0, 1)
        assert (counted.models, counted.output_tokens) == ({"m": 2, "other": 1}, 25)
        assert counted.input_tokens > 0
        assert (await survey(file, LineParser(model="all"))).models == {"all": 3}


async def test_a_bad_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "in").write_bytes(GOOD + line("b"))
    twice = "line 5: custom_id 'b' is that of line 3 too"
    with JsonlFile.open(tmp_path / "in") as file, pytest.raises(InputError, match=twice):
        await survey(file, LineParser())


async def test_of_a_stream_the_good_lines_are_counted() -> None:
    with JsonlFile.spool(io.BytesIO(GOOD + b"{\n" + line("b") + line("a") + line("d") + b"[]")) as file:
        counted = await survey(file, LineParser())
    assert (counted.lines, counted.faulty) == (4, 4)


@pytest.mark.parametrize("content", [b"", b"\n \n"])
async def test_nothing_is_refused(content: bytes) -> None:
    with JsonlFile.spool(io.BytesIO(content)) as file, pytest.raises(InputError, match="stdin: holds no lines"):
        await survey(file, LineParser())
