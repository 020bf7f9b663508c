"""A provider that forbids something is believed where it says so again and again, and no batch is paid twice."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
from diversion_lab import DiversionLab, assert_answers, diversion_lab, eventually, over, provided, settings
from virtual_time import virtual

from orchestra.batches import BatchRoute
from orchestra.batches.client import BatchClient
from orchestra.call import Call
from orchestra.errors import JobError
from orchestra.providers.batches import BatchState
from orchestra.testing import BatchScript, Reply
from orchestra.testing.openai_form import invalid

HOUR = 3600.0
FORBIDDEN = Reply.error(403)
CAPPED = {"limits": {"usd_per_day": 1.2}, "prices": {"input": 0.0, "output": 12_500.0}}


def route_of(lab: DiversionLab) -> BatchRoute:
    return lab.desk.routes(Call.originate("/v1/chat/completions", {"model": "fast"}))[0]


def used_usd(lab: DiversionLab) -> float:
    (pool,) = [pool for pool in lab.budget.snapshot() if pool["kind"] == "online"]
    return float(pool["dimensions"]["usd_per_day"]["used"])


@virtual
async def test_looks_that_are_forbidden_shut_a_route_while_they_are_and_not_at_once(tmp_path: Path):
    scripts = [BatchScript(running=60.0, on_poll=[FORBIDDEN] * times) for times in (2, 3)]
    async with diversion_lab(tmp_path, batch_script=scripts) as lab:
        for job, shut in (("twice", False), ("thrice", True)):
            results = await lab.done(await lab.submit(10, job=job))
            assert_answers(results)
            assert lab.via(results) == {"batch": 10}
            assert lab.desk.is_open(route_of(lab)) is not shut
        await asyncio.sleep(HOUR)
        assert lab.desk.is_open(route_of(lab)), "it has been allowed since"


@virtual
async def test_a_route_is_shut_for_the_longest_that_was_said(tmp_path: Path):
    async with diversion_lab(tmp_path) as lab:
        lab.desk.shut(route_of(lab), HOUR)
        lab.desk.shut(route_of(lab), 0.0)
        assert not lab.desk.is_open(route_of(lab))


@pytest.mark.parametrize("path", ["POST /v1/files", "POST /v1/batches"])
@virtual
async def test_a_gateway_that_forbids_by_mistake_costs_no_discount(tmp_path: Path, path: str):
    async with diversion_lab(tmp_path, routes={path: [FORBIDDEN] * 3}) as lab:
        results = await lab.done(await lab.submit(10))
        assert_answers(results)
        assert lab.via(results) == {"batch": 10}
        assert lab.provider.counts()["batches"] == 1


@pytest.mark.parametrize("refusal", [FORBIDDEN, Reply.error(401)])
@virtual
async def test_a_batch_that_may_be_there_and_cannot_be_looked_for_is_kept(tmp_path: Path, refusal: Reply):
    """Its creation ended in a 503. Neither its dollars are given back, nor its lines sent again."""
    script = BatchScript(running=60.0, on_create=Reply.error(503))
    async with provided(batch_script=[script]) as provider:
        config = settings(provider, tmp_path, **CAPPED)
        for _ in ("at first", "started again"):
            provider.routes["GET /v1/batches"] = deque([refusal] * 99)
            async with over(provider, config) as lab:
                job = await lab.submit(10)
                with pytest.raises(JobError, match=r"GET /v1/batches answered 40.*run the job again"):
                    await job.wait()
                assert lab.states(job) == ["creating"]
                assert (lab.creates(), lab.calls()) == (1, 0)
        del provider.routes["GET /v1/batches"]
        async with over(provider, config) as lab:
            results = await lab.done(await lab.submit(10))
            assert_answers(results)
            assert lab.via(results) == {"batch": 10}
            assert lab.creates() == 1
            lab.assert_paid_once()


@virtual
async def test_a_job_that_is_left_before_its_batch_is_made_gives_its_dollars_back(tmp_path: Path):
    async with diversion_lab(tmp_path, CAPPED, routes={"POST /v1/files": [Reply.error(503)] * 99}) as lab:
        job = await lab.submit(10)
        await eventually(lambda: lab.uploads() > 2)
        assert used_usd(lab) == pytest.approx(0.5)
        await job.cancel()
        assert used_usd(lab) == 0


@virtual
async def test_dollars_of_a_batch_that_failed_after_its_first_lines_stay_spent(tmp_path: Path):
    """Gemini and Mistral say how many of its lines they have answered."""
    poll = BatchClient.poll

    async def tell(client: BatchClient, batch_id: str) -> BatchState:
        return replace(await poll(client, batch_id), finished=4)

    script = BatchScript(end="failed", code="odd")
    with mock.patch.object(BatchClient, "poll", tell):
        async with diversion_lab(tmp_path, CAPPED, batch_script=[script]) as lab:
            job = await lab.submit(5)
            assert lab.via(await lab.done(job)) == {"sync": 5}
            assert used_usd(lab) == pytest.approx((job.progress().usd or 0.0) + 0.25)


@pytest.mark.parametrize(("forbidden", "most"), [(1, 1), (99, 40)])
@virtual
async def test_a_background_creation_may_be_forbidden_for_its_text(tmp_path: Path, forbidden: int, most: int):
    """One is its line's own affair; when all are, the others are not asked for."""
    async with diversion_lab(
        tmp_path, text=lambda payload: str(payload["input"]), background_default=BatchScript(running=60.0)
    ) as lab:
        start, refused = lab.provider._background.start, list[str]()

        def begin(payload: Mapping[str, Any], answer: Any, account: str) -> Any:
            if len(refused) == forbidden:
                return start(payload, answer, account)
            refused.append(payload["input"])
            return invalid(403, "not this one")

        with mock.patch.object(lab.provider._background, "start", begin):
            asked = {"method": "POST", "url": "/v1/responses"}
            bodies = [{"model": "fast", "input": f"q{at}", "max_output_tokens": 8} for at in range(60)]
            lines = [{**asked, "custom_id": body["input"], "body": body} for body in bodies]
            job = await lab.manager.submit(lines, job="j", deadline="9h")
            via = lab.via(await lab.done(job))
        assert len(refused) <= most
        assert via == ({"sync": 1, "background": 59} if forbidden == 1 else {"sync": 60})
