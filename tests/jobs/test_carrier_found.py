"""What runs that were killed, and slow providers, have brought to light."""

from __future__ import annotations

from pathlib import Path

import pytest
from diversion_lab import MemoryWire, assert_answers, over, provided, settings
from virtual_time import virtual

from orchestra.testing import BatchScript


@virtual
@pytest.mark.parametrize("latency", [1.5, 3.0])
async def test_a_stuck_batch_is_cancelled_though_looks_take_longer_than_the_pause_between_them(
    tmp_path: Path, latency: float
):
    stuck = BatchScript(running=20.0, end=None, answered=0.6, cancelling=4.0)
    batch = {"poll_seconds": 1.0, "poll_max_seconds": 5.0, "expected_seconds": 20.0, "cancelling_seconds": 40.0}
    async with provided(batch_default=stuck) as provider:
        wire = MemoryWire(provider, latency=latency)
        config = settings(provider, tmp_path, batch=batch, limits={"requests_per_minute": 600})
        async with over(provider, config, wire=wire) as lab:
            began = lab.now()
            results = await lab.done(await lab.submit(100, deadline="120s"))
            assert_answers(results)
            assert lab.now() - began < 120
            assert lab.via(results) == {"batch": 60, "sync": 40}
            lab.assert_paid_once()


@virtual
async def test_a_batch_that_was_opened_and_got_no_lines_is_not_handed_in(tmp_path: Path):
    async with provided() as provider:
        config = settings(provider, tmp_path)
        async with over(provider, config) as lab:
            job = await lab.submit(10)
            await job.cancel()
        async with over(provider, config) as lab:
            ledger = lab.manager.store.batches
            batch = {"provider": "one", "account": "a", "route": "one/m", "model": "m", "headers": ()}
            ledger.open(job.record.id, **batch, path="/v1/chat/completions", window=86400.0, now=lab.desk.wall())
            job = await lab.submit(10)
            results = await lab.done(job)
            assert_answers(results)
            assert lab.via(results) == {"batch": 10}
            assert lab.creates() == 1
            assert sorted(lab.states(job))[0] == "abandoned"
