"""Jobs whose lines are responses in the background, in virtual time before a scripted provider."""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from diversion_lab import AwaitLab, DiversionLab, awaiting, diversion_lab, over, provided, settings
from virtual_time import virtual

from orchestra.call import Call
from orchestra.jobs import Job, Result
from orchestra.policies.traffic import TrafficClass
from orchestra.testing import BatchScript, Limits, Reply

HOUR = 3600.0
LINE_FIELD = "orchestra_line"
PRICES = {"input": 10.0, "output": 10.0}


def asks(payload: Mapping[str, Any]) -> str:
    return str(payload["input"])


def lines(count: int, prefix: str = "q", **fields: Any) -> list[dict[str, Any]]:
    return [
        {
            "custom_id": f"{prefix}{number}",
            "method": "POST",
            "url": "/v1/responses",
            "body": {"model": "fast", "input": f"{prefix}{number}", "max_output_tokens": 8, **fields},
        }
        for number in range(count)
    ]


async def submit(lab: DiversionLab, count: int = 5, *, deadline: Any = "9h", job: str = "j", **fields: Any) -> Job:
    return await lab.manager.submit(lines(count, **fields), job=job, deadline=deadline)


def texts(results: list[Result]) -> list[str]:
    return [result.body["output"][0]["content"][0]["text"] for result in results]


def creations(lab: DiversionLab) -> list[Any]:
    """Return the bodies of the responses that were asked for."""
    hits = [hit for hit in lab.provider.log if (hit.method, hit.path) == ("POST", "/v1/responses")]
    return [json.loads(hit.body) for hit in hits]


def windows(lab: DiversionLab) -> Counter[str | None]:
    return Counter(asked.get("background_options", {}).get("completion_window") for asked in creations(lab))


@pytest.mark.parametrize(
    ("deadline", "via", "window", "route", "factor"),
    [
        ("24h", "batch", None, "one/m", 0.5),
        ("9h", "background", "8h", "one/m background 8h", 0.6),
        ("3h", "background", "2h", "one/m background 2h", 0.7),
        ("1h", "sync", None, "one/m", 1.0),
    ],
)
@virtual
async def test_the_deadline_says_which_way_lines_go(
    tmp_path: Path, deadline: str, via: str, window: str | None, route: str, factor: float
) -> None:
    course = BatchScript(validating=60.0, running=HOUR)
    config = {"prices": PRICES}
    async with diversion_lab(tmp_path, config, text=asks, background_default=course, batch_script=[course]) as lab:
        started = lab.now()
        results = await lab.done(await submit(lab, deadline=deadline))
        assert texts(results) == [f"q{number}" for number in range(5)]
        assert {(result.via, result.route) for result in results} == {(via, route)}
        assert windows(lab) == ({} if via == "batch" else {window: 5})
        assert lab.uploads() == (via == "batch")
        for result in results:
            assert LINE_FIELD not in json.dumps(result.body)
            used = result.input_tokens + result.output_tokens
            assert result.usd == pytest.approx(factor * used * PRICES["input"] / 1e6)
        if via == "background":
            assert HOUR < lab.now() - started < 1.2 * HOUR
            (told,) = lab.manager.store.outlets(1)
            assert (told.via, told.route, told.lines) == ("background", route, 5)
        lab.assert_paid_once()


@virtual
async def test_without_it_in_the_settings_lines_go_by_themselves(tmp_path: Path) -> None:
    for batch in ({"background": False}, {"enabled": False}):
        folder = tmp_path / next(iter(batch))
        folder.mkdir()
        async with diversion_lab(folder, {"batch": batch}, text=asks) as lab:
            results = await lab.done(await submit(lab))
            assert {result.via for result in results} == {"sync"}
            assert windows(lab) == {None: 5}


@virtual
async def test_lines_that_cannot_ride_go_by_themselves(tmp_path: Path) -> None:
    full = {str(number): "x" for number in range(16)}
    async with diversion_lab(tmp_path, text=asks) as lab:
        results = await lab.done(await submit(lab, 2, metadata=full))
        assert {result.via for result in results} == {"sync"}
        results = await lab.done(await submit(lab, 2, job="other", store=False, prefix="o"))
        assert {result.via for result in results} == {"sync"}
        assert [asked["store"] for asked in creations(lab)[2:]] == [False, False]


@virtual
async def test_a_program_that_is_started_again_asks_for_nothing_twice(tmp_path: Path) -> None:
    course = BatchScript(running=2 * HOUR)
    async with provided(text=asks, background_default=course) as provider:
        config = settings(provider, tmp_path)
        async with over(provider, config) as lab:
            job = await submit(lab, 6)
            waiting = asyncio.ensure_future(job.wait())
            await asyncio.sleep(HOUR)
            waiting.cancel()
            assert windows(lab) == {"8h": 6}
            assert lab.states(job) == ["submitted"] * 6
        # the settings of now want no more of them, but what there is is paid for
        async with over(provider, settings(provider, tmp_path, batch={"background": False})) as lab:
            results = await lab.done(await submit(lab, 6))
            assert texts(results) == [f"q{number}" for number in range(6)]
            assert {result.via for result in results} == {"background"}
            assert windows(lab) == {"8h": 6}
            lab.assert_paid_once()


@virtual
async def test_a_creation_is_an_ordinary_call_to_the_limits(tmp_path: Path) -> None:
    limits = {"requests_per_minute": 6, "burst_seconds": 10, "enqueued_batch_tokens": 1}
    async with diversion_lab(
        tmp_path, {"limits": limits}, text=asks, background_default=BatchScript(running=60.0)
    ) as lab:
        results = await lab.done(await submit(lab, 20))
        assert {result.via for result in results} == {"background"}  # the queue of batches is no matter of theirs
        at = [hit.at for hit in lab.provider.log if (hit.method, hit.path) == ("POST", "/v1/responses")]
        assert len(at) == 20
        assert at[-1] - at[0] > 170.0  # nineteen, one every ten seconds


@virtual
async def test_a_creation_that_the_provider_turns_away_is_made_later(tmp_path: Path) -> None:
    limits = Limits(requests_per_minute=30, burst_seconds=2.0)
    async with diversion_lab(
        tmp_path, text=asks, limits=limits, background_default=BatchScript(running=60.0)
    ) as lab:
        results = await lab.done(await submit(lab, 40))
        assert {result.via for result in results} == {"background"}
        statuses = Counter(hit.status for hit in lab.provider.log if hit.method == "POST")
        assert statuses[200] == 40
        assert 0 < statuses[429] < 40  # the first ones; then the budget knows
        lab.assert_paid_once()


@virtual
async def test_one_that_fails_is_sent_again_and_one_that_is_refused_is_not(tmp_path: Path) -> None:
    course = BatchScript(running=60.0, end="failed", message="no luck")
    async with diversion_lab(tmp_path, text=asks, background_default=course) as lab:
        results = await lab.done(await submit(lab, 3))
        assert texts(results) == ["q0", "q1", "q2"]
        assert {result.via for result in results} == {"sync"}
        assert windows(lab) == {"8h": 3, None: 3}


@virtual
async def test_what_is_late_is_cancelled_and_goes_by_itself(tmp_path: Path) -> None:
    async with diversion_lab(tmp_path, text=asks, background_default=BatchScript(end=None)) as lab:
        started = lab.now()
        results = await lab.done(await submit(lab, 2, deadline="7.9h"))
        assert texts(results) == [f"q{number}" for number in range(2)]
        assert {result.via for result in results} == {"sync"}
        assert 7.8 * HOUR < lab.now() - started < 7.9 * HOUR
        await asyncio.sleep(60.0)
        cancelled = [hit for hit in lab.provider.log if hit.path.endswith("/cancel")]
        assert len(cancelled) == 2
        assert lab.provider.billed.all.background == 0


@virtual
async def test_an_account_without_them_is_asked_a_few_times_only(tmp_path: Path) -> None:
    async with diversion_lab(tmp_path, text=asks) as lab:

        def refused(method: str, path: str) -> None:
            return None

        lab.wire.fails = refused
        start = lab.provider._background.start
        answers: list[str] = []

        def start_not(payload: Mapping[str, Any], answer: Any, account: str) -> Any:
            from orchestra.testing.openai_form import invalid

            answers.append(payload["background_options"]["completion_window"])
            return invalid(400, "Unknown parameter: 'background_options'.", param="background_options")

        lab.provider._background.start = start_not  # type: ignore[method-assign]
        try:
            results = await lab.done(await submit(lab, 200))
        finally:
            lab.provider._background.start = start  # type: ignore[method-assign]
        assert {result.via for result in results} == {"sync"}
        assert len(answers) <= 40  # as many as are under way at the same time, of each window


@virtual
async def test_hundreds_are_looked_at_in_turn(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    async with diversion_lab(tmp_path, text=asks, background_default=BatchScript(running=120.0)) as lab:
        job = await submit(lab, 650)
        waiting = asyncio.ensure_future(job.wait())
        await asyncio.sleep(100.0)
        looks = [hit for hit in lab.provider.log if hit.method == "GET"]
        assert windows(lab) == {"8h": 650}
        assert 240 < len(looks) <= 10 * 100 + 10
        per_second = Counter(int(hit.at) for hit in looks)
        assert max(per_second.values()) <= 20
        assert max(Counter(hit.path for hit in looks).values()) < 10  # none is looked at out of turn
        assert len(asyncio.all_tasks()) < 650 + 100
        await waiting
        results = await lab.done(job)
        assert texts(results) == [f"q{number}" for number in range(650)]
        assert {result.via for result in results} == {"background"}
        assert len({hit.path for hit in lab.provider.log if hit.method == "GET"}) == 650
        lab.assert_paid_once()
    assert "cannot be looked at" not in caplog.text  # a turn takes more than a minute


@virtual
async def test_a_creation_of_which_nothing_was_heard_is_made_again(tmp_path: Path) -> None:
    """There is no list in which it could be found: this is what may be paid twice."""
    unheard = BatchScript(running=60.0, on_create=Reply(drop=True))
    async with diversion_lab(tmp_path, text=asks, background_default=unheard) as lab:
        job = await submit(lab, 1)
        await asyncio.sleep(0.5)
        lab.provider.background_default = BatchScript(running=60.0)
        results = await lab.done(job)
        assert [result.via for result in results] == ["background"]
        assert windows(lab)["8h"] > 1
        assert sum(hit.method == "GET" and hit.path == "/v1/responses" for hit in lab.provider.log) == 0


async def awaited(program: AwaitLab, text: str) -> tuple[str, str]:
    """Make a call as an SDK would inside ``bulk(deadline="9h")``. Returns the answer's text, and its route."""
    payload = {"model": "fast", "input": text, "max_output_tokens": 8}
    until = program.lab.now() + 9 * HOUR
    call = Call.originate("/v1/responses", payload, traffic=TrafficClass.BULK, job="nightly", expires_at=until)
    outcome = await program.parking.send(call, program.parking.routes(call))
    body = json.loads(await outcome.read())
    assert LINE_FIELD not in json.dumps(body)
    return body["output"][0]["content"][0]["text"], outcome.route


@virtual
async def test_awaited_calls_ride_too_and_are_joined_by_the_next_run(tmp_path: Path) -> None:
    async with provided(text=asks, background_default=BatchScript(running=HOUR)) as provider:
        config = settings(provider, tmp_path)
        async with awaiting(provider, config) as program:
            calls = [asyncio.create_task(awaited(program, f"q{number}")) for number in range(4)]
            await asyncio.sleep(600.0)
            for call in calls:
                call.cancel()
            await asyncio.gather(*calls, return_exceptions=True)
            assert windows(program.lab) == {"8h": 4}
        async with awaiting(provider, config) as program:
            answers = await asyncio.gather(*(awaited(program, f"q{number}") for number in range(4)))
            assert answers == [(f"q{number}", "one/m background 8h") for number in range(4)]
            assert windows(program.lab) == {"8h": 4}
            program.lab.assert_paid_once()
