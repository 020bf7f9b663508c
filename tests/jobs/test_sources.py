"""Sources: chunks bounded in number and bytes, from files and from programs."""

from __future__ import annotations

import asyncio
import io
import json
import os
import threading
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from orchestra.errors import InputError
from orchestra.jobs.intake import sources
from orchestra.jobs.intake.line_parser import LineParser
from orchestra.jobs.intake.sources import JsonlFile, file_chunks, object_chunks
from orchestra.jobs.ledger.line import Fault

LINE = {"model": "m", "prompt": "hi"}
RAW = json.dumps(LINE).encode()


def write(tmp_path: Path, content: bytes) -> JsonlFile:
    path = tmp_path / "in.jsonl"
    path.write_bytes(content)
    return JsonlFile.open(path)


def entries(file: JsonlFile) -> list[tuple[int, bool]]:
    with file:
        return [(entry.number, isinstance(entry, Fault)) for chunk in file.chunks(LineParser()) for entry in chunk]


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        (b"", []),
        (b"\n \n\t\n", []),
        (RAW, [(1, False)]),
        (RAW + b"\r\n" + RAW + b"\r\n", [(1, False), (2, False)]),
        (b"\n\n" + RAW + b"\n\n" + RAW + b"\n\n", [(3, False), (5, False)]),
        (b"\xef\xbb\xbf" + RAW + b"\n", [(1, False)]),
        (RAW + b"\n{\n" + RAW, [(1, False), (2, True), (3, False)]),
        (RAW + RAW, [(1, True)]),
        (RAW.decode().encode("utf-16"), [(1, True)]),
    ],
)
def test_lines_keep_their_numbers(tmp_path: Path, content: bytes, expected: list[tuple[int, bool]]) -> None:
    assert entries(write(tmp_path, content)) == expected


def test_a_line_without_end_is_not_read_into_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sources, "MAX_LINE_BYTES", 1000)
    pieces = [len(raw) for raw in sources._raw_lines(io.BytesIO(RAW + b"\n" + b"x" * 10_500 + b"\n" + RAW))]
    assert pieces == [len(RAW) + 1, 1000, len(RAW)]
    assert [len(raw) for raw in sources._raw_lines(io.BytesIO(b"x" * 10_000))] == [1000]


def test_chunks_are_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with write(tmp_path, (RAW + b"\n") * 2500) as file:
        assert [len(chunk) for chunk in file.chunks(LineParser())] == [1000, 1000, 500]
        monkeypatch.setattr(sources, "CHUNK_BYTES", 10 * len(RAW))
        assert {len(chunk) for chunk in file.chunks(LineParser())} == {10}


def test_missing_and_unreadable_files(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"nowhere\.jsonl: no such file"):
        JsonlFile.open(tmp_path / "nowhere.jsonl")
    with pytest.raises(InputError, match="a folder"):
        JsonlFile.open(tmp_path)


def test_digest_is_of_content_and_model(tmp_path: Path) -> None:
    with write(tmp_path, RAW) as file, JsonlFile.spool(io.BytesIO(RAW), folder=tmp_path) as spooled:
        assert file.digest() == file.digest() == spooled.digest()
        assert len({file.digest(), file.digest(model="a"), file.digest(model="None")}) == 3
        assert (file.strict, spooled.strict, spooled.name) == (True, False, "stdin")
    assert list(tmp_path.iterdir()) == [tmp_path / "in.jsonl"], "a spooled stream leaves no file behind"


def test_a_pipe_is_read_to_its_end_first(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    writer = threading.Thread(target=lambda: (tmp_path / "pipe").write_bytes(RAW))
    writer.start()
    with JsonlFile.open(tmp_path / "pipe") as file:
        assert not file.strict
        assert entries(file) == [(1, False)]
    writer.join()


def test_a_file_that_changes_meanwhile_is_refused(tmp_path: Path) -> None:
    with write(tmp_path, (RAW + b"\n") * 1500) as file:
        chunks = file.chunks(LineParser())
        next(chunks)
        with (tmp_path / "in.jsonl").open("ab") as other:
            other.write(RAW)
        with pytest.raises(InputError, match="changed while it was read"):
            list(chunks)


def test_no_chunk_comes_from_a_file_that_has_changed(tmp_path: Path) -> None:
    with write(tmp_path, (RAW + b"\n") * 3500) as file:
        chunks = file.chunks(LineParser())
        next(chunks)
        os.utime(tmp_path / "in.jsonl", ns=(1, 1))
        with pytest.raises(InputError, match="changed while it was read"):
            next(chunks)


def test_a_file_is_read_from_any_line_and_by_several_at_once(tmp_path: Path) -> None:
    with write(tmp_path, b"".join(b'{"model": "m", "prompt": "%d"}\n' % n for n in range(3000))) as file:
        first, second = file.lines(), file.lines(after=2000)
        assert next(first)[0] == 1
        assert next(second) == (2001, b'{"model": "m", "prompt": "2000"}\n')
        digest = file.digest()
        assert [number for number, _ in first] == [*range(2, 3001)]
        assert file.digest() == digest
        assert [number for number, _ in second] == [*range(2002, 3001)]
        assert list(file.lines(after=3000)) == []


def test_how_far_it_was_read_is_told(tmp_path: Path) -> None:
    with write(tmp_path, (RAW + b"\n") * 20_000) as file:
        assert (file.digest(), file.read_bytes)[1] == 0, "that is not the check"
        lines = file.lines()
        next(lines)
        assert 0 < file.read_bytes < file.size
        assert sum(1 for _ in lines) == 19_999
        assert file.read_bytes == file.size


def test_opened_again_it_outlives_the_first_and_knows_what_it_was(tmp_path: Path) -> None:
    with write(tmp_path, RAW) as file:
        again, changed = file.again(), file.again()
    (tmp_path / "in.jsonl").rename(tmp_path / "elsewhere")
    assert entries(again) == [(1, False)]
    with (tmp_path / "elsewhere").open("ab") as other:
        other.write(b"\n" + RAW)
    with changed, pytest.raises(InputError, match="changed while it was read"):
        changed.check_unchanged()


async def test_file_chunks_go_on_when_the_file_is_closed(tmp_path: Path) -> None:
    with write(tmp_path, (RAW + b"\n") * 2500) as file:
        chunks = file_chunks(file, LineParser(), after=200)
        assert [line.number for line in await anext(chunks)] == [*range(201, 1201)]
    assert [len(chunk) async for chunk in chunks] == [1000, 300]


async def test_file_chunks_are_the_same(tmp_path: Path) -> None:
    with write(tmp_path, (RAW + b"\n") * 1500) as file:
        assert [len(chunk) async for chunk in file_chunks(file, LineParser())] == [1000, 500]


async def test_objects_come_in_order_and_bounded_ahead() -> None:
    made = 0

    def requests() -> Iterator[dict[str, str]]:
        nonlocal made
        for _ in range(20_000):
            made += 1
            yield LINE

    seen = 0
    async for chunk in object_chunks(requests(), LineParser()):
        assert [entry.number for entry in chunk] == list(range(seen + 1, seen + 1 + len(chunk)))
        seen += len(chunk)
        assert made - seen <= 2 * sources.CHUNK_LINES
    assert seen == 20_000


async def test_a_slow_programs_request_does_not_wait_for_the_next() -> None:
    more = asyncio.Event()

    async def requests() -> AsyncIterator[dict[str, str]]:
        yield LINE
        await more.wait()
        yield LINE

    chunks = object_chunks(requests(), LineParser())
    assert len(await anext(chunks)) == 1
    more.set()
    assert len(await anext(chunks)) == 1
    assert await anext(chunks, None) is None


async def test_a_programs_own_error_comes_through() -> None:
    def requests() -> Iterator[object]:
        yield LINE
        raise ZeroDivisionError

    chunks = object_chunks(requests(), LineParser())
    assert len(await anext(chunks)) == 1
    with pytest.raises(ZeroDivisionError):
        await anext(chunks)


async def test_closing_early_stops_the_program() -> None:
    stopped = asyncio.Event()

    async def requests() -> AsyncIterator[dict[str, str]]:
        try:
            while True:
                yield LINE
                await asyncio.sleep(0)
        finally:
            stopped.set()

    chunks = object_chunks(requests(), LineParser())
    await anext(chunks)
    await chunks.aclose()
    await asyncio.wait_for(stopped.wait(), 30)
