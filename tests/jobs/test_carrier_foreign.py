"""A batch that may be somebody else's is not touched, and one that is elsewhere not looked for here."""

from __future__ import annotations

import asyncio
import tempfile
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from diversion_lab import MemoryWire, assert_answers, eventually, over, provided, settings
from virtual_time import virtual

from orchestra.errors import ConnectionFailed, JobError
from orchestra.testing import BatchScript, ScriptedProvider

HOUR = 3600.0
ALL_DAY = BatchScript(running=20 * HOUR)
SELDOM = {"poll_max_seconds": 600}
"""A day of looks at batches, ten minutes apart."""


def one_that_loses(provider: ScriptedProvider, times: float) -> MemoryWire:
    """Return a wire on which so many creations do not arrive, though nobody can know."""
    wire, lost = MemoryWire(provider), Counter[str]()

    def fails(method: str, path: str) -> ConnectionFailed | None:
        if method != "POST" or not path.endswith("/batches") or lost["creations"] >= times:
            return None
        lost["creations"] += 1
        return ConnectionFailed("broke", sent=True)

    wire.fails = fails
    return wire


def sent(wire: MemoryWire, ending: str) -> int:
    return sum(method == "POST" and path.endswith(ending) for method, path, *_ in wire.sent)


def folders(tmp_path: Path) -> tuple[Path, Path]:
    ours, theirs = tmp_path / "ours", tmp_path / "theirs"
    ours.mkdir()
    theirs.mkdir()
    return ours, theirs


@virtual
@pytest.mark.parametrize("deadline", ["12h", "30h", "72h"])
async def test_a_batch_of_the_same_size_is_left_alone(tmp_path: Path, deadline: str):
    ours, theirs = folders(tmp_path)
    async with (
        provided(batch_default=ALL_DAY) as provider,
        over(provider, settings(provider, theirs, kind="anthropic", batch=SELDOM)) as other,
    ):
        foreign = await other.submit(10, kind="anthropic", prefix="b", deadline="48h")
        await asyncio.sleep(600)
        wire = one_that_loses(provider, 1)
        limits = {"requests_per_minute": 600}
        config = settings(provider, ours, kind="anthropic", limits=limits, batch=SELDOM)
        async with over(provider, config, wire=wire) as lab:
            results = await lab.done(await lab.submit(10, kind="anthropic", deadline=deadline))
            assert_answers(results)
            assert sent(wire, "/cancel") == 0 or deadline == "30h"  # there it is our own
            names = {record.batch_id for record in other.manager.store.batches.of_job(foreign.record.id)}
            assert not any(name in path for name in names for _, path, *_ in wire.sent if path.endswith("/cancel"))
            if deadline == "72h":  # known not to be it, ours was made after all
                assert lab.via(results) == {"batch": 10}
                assert sent(wire, "/batches") == 2
        results = await other.done(foreign)
        assert_answers(results, "b")
        assert other.via(results) == {"batch": 10}


@virtual
async def test_cancelling_a_job_leaves_it_alone(tmp_path: Path):
    ours, theirs = folders(tmp_path)
    async with (
        provided(batch_default=ALL_DAY) as provider,
        over(provider, settings(provider, theirs, kind="anthropic")) as other,
    ):
        foreign = await other.submit(10, kind="anthropic", prefix="b", deadline="48h")
        await asyncio.sleep(600)
        config = settings(provider, ours, kind="anthropic")
        async with over(provider, config, wire=one_that_loses(provider, 1e9)) as lab:
            job = await lab.submit(10, kind="anthropic", deadline="30h")
            await eventually(lambda: lab.states(job) == ["creating"])
            await job.cancel()
        wire = MemoryWire(provider)
        async with over(provider, config, wire=wire) as lab:
            (batch,) = (await lab.manager.cancel("j", collect=False)).batches
            assert (batch.outcome, batch.batch_id) == ("left", None)
            assert "somebody else's" in (batch.note or "")
            assert sent(wire, "/cancel") == 0
        await foreign.cancel()


@virtual
async def test_a_base_url_that_changed(tmp_path: Path):
    async with provided(batch_default=ALL_DAY) as provider, provided() as another:
        before = settings(provider, tmp_path)
        async with over(provider, before) as lab:
            job = await lab.submit(10)
            await eventually(lambda: lab.states(job) == ["submitted"])
            await job.cancel()
        after = settings(another, tmp_path)
        after["providers"]["one"]["base_url"] = "http://another.test/v1"
        async with over(another, after) as lab:
            job = await lab.submit(10)
            with pytest.raises(
                JobError, match=r"set base_url back, or give its lines up by `orchestra jobs cancel j`"
            ):
                await lab.done(job)
            assert lab.states(job) == ["submitted"]
            assert not another.log
        async with over(provider, before) as lab:
            results = await lab.done(await lab.submit(10))
            assert_answers(results)
            assert lab.via(results) == {"batch": 10}
            assert lab.creates() == 1


@virtual
async def test_a_job_whose_batch_is_elsewhere_can_be_cancelled(tmp_path: Path):
    async with provided(batch_default=ALL_DAY) as provider, provided() as another:
        async with over(provider, settings(provider, tmp_path)) as lab:
            job = await lab.submit(10)
            await eventually(lambda: lab.states(job) == ["submitted"])
            await job.cancel()
        after = settings(another, tmp_path)
        after["providers"]["one"]["base_url"] = "http://another.test/v1"
        async with over(another, after) as lab:
            (batch,) = (await lab.manager.cancel("j", collect=True)).batches
            assert batch.outcome == "left"
            assert "another.test" in (batch.note or "")
            assert not another.log


@virtual
async def test_a_disk_without_room_for_the_upload(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    def full(**_: Any) -> Any:
        raise OSError(28, "No space left on device")

    async with provided() as provider, over(provider, settings(provider, tmp_path)) as lab:
        with monkeypatch.context() as patch:
            patch.setattr(tempfile, "TemporaryFile", full)
            with pytest.raises(JobError, match=r"No space left on device.*make room"):
                await lab.done(await lab.submit(3))
        assert_answers(await lab.done(await lab.submit(3)))
