"""The file of results."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from orchestra.call import Outcome
from orchestra.errors import InputError, JobError
from orchestra.jobs import JobManager, output
from orchestra.jobs.ledger.record import JobRecord

if TYPE_CHECKING:
    from tests.jobs.conftest import FakeProvider

Make = Callable[..., Any]


async def test_output_is_openais_batch_format(
    manager: JobManager, provider: FakeProvider, batch_file: Make, outcome: Make, tmp_path: Path
) -> None:
    def script(prompt: str, asked: int) -> Outcome | Exception | None:
        if prompt == "b":
            return outcome(400, {"error": {"code": "bad", "message": "no"}})
        return InputError("too long") if prompt == "ç" else None

    provider.script = script
    job = await manager.submit(batch_file("a", "b", "ç"), job="j")
    await job.wait()
    out = tmp_path / "out.jsonl"
    out.write_text("old")
    output.write_output(manager.store, job.record, out)
    first, second, third = [json.loads(line) for line in out.read_text().splitlines()]
    usual = json.loads(await outcome().read())
    assert first["custom_id"] == "id-a"
    assert first["response"] == {"status_code": 200, "request_id": "req-1", "body": usual}
    assert first["error"] is None
    assert second["response"]["status_code"] == 400
    assert second["response"]["body"]["error"]["code"] == "bad"
    assert second["error"] is None
    assert (third["custom_id"], third["response"]) == ("id-ç", None)
    assert third["error"] == {"code": "invalid_request", "message": "too long"}
    assert len({first["id"], second["id"], third["id"]}) == 3
    before = out.read_bytes()
    output.write_output(manager.store, job.record, out)
    assert out.read_bytes() == before
    assert not [name for name in os.listdir(tmp_path) if name.endswith(".tmp")]


def test_output_paths_are_checked(tmp_path: Path) -> None:
    source = tmp_path / "in.jsonl"
    source.write_text("x")
    (tmp_path / "link").symlink_to(source)
    for path, told in [
        (tmp_path, "a folder"),
        (source, "would overwrite the input"),
        (tmp_path / "link", "would overwrite the input"),
        (tmp_path / "none" / "out.jsonl", "there is no folder"),
        (source / "out.jsonl", "there is no folder"),
        (Path("/dev/null"), "not a regular file"),
        (Path("-"), "name a file"),
        (tmp_path / "jobs.db", "would overwrite the store"),
        (tmp_path / ("x" * 300), "File name too long"),
    ]:
        with pytest.raises(InputError, match=told):
            output.check_output(path, input=source, store=tmp_path / "jobs.db")
    output.check_output(tmp_path / "out.jsonl", input=source)
    output.check_output(source)


async def test_an_output_that_cannot_be_written_leaves_the_old_one(
    manager: JobManager, batch_file: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = await manager.submit(batch_file(1))
    await job.wait()
    out = tmp_path / "out.jsonl"
    out.write_text("old")

    def full(store: object, record: JobRecord) -> Iterator[bytes]:
        yield b"half"
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(output, "output_lines", full)
    with pytest.raises(JobError, match="No space left"):
        output.write_output(manager.store, job.record, out)
    assert out.read_text() == "old"
    assert not [name for name in os.listdir(tmp_path) if name.endswith(".tmp")]


def test_a_pipe_behind_a_link_is_no_file(tmp_path: Path) -> None:
    reading, writing = os.pipe()
    try:
        with pytest.raises(InputError, match="not a regular file"):
            output.check_output(Path(f"/dev/fd/{writing}"))
    finally:
        os.close(reading)
        os.close(writing)


async def test_a_name_as_long_as_names_can_be(manager: JobManager, batch_file: Make, tmp_path: Path) -> None:
    job = await manager.submit(batch_file(1))
    await job.wait()
    out = tmp_path / ("x" * 255)
    output.check_output(out)
    output.write_output(manager.store, job.record, out)
    assert len(out.read_text().splitlines()) == 1
