"""The demo's parts that need no model: what it asks, what it computes, what it draws."""

from __future__ import annotations

import asyncio
import io
import json
from dataclasses import replace

import pytest
from rich.console import Console

from orchestra.cli.demo.measure import Plan, _Feed
from orchestra.cli.demo.plot import save_plot
from orchestra.cli.demo.recording import Answer, BulkLoad, Recording, Step, figures_of
from orchestra.cli.demo.report import save_numbers, table
from orchestra.cli.demo.workload import QUESTIONS, TASKS, bulk_requests, load_tickets
from orchestra.jobs.intake.line_parser import LineParser
from orchestra.jobs.ledger.line import Line

TICKETS = load_tickets()


def answer(ttft: float, *, at: float = 0.0, tokens: int = 11) -> Answer:
    return Answer("why?", "because", intended=at, ttft=ttft, total=ttft + 1.0, tokens=tokens)


def recording(alone: list[float], loaded: list[float]) -> Recording:
    steps = [Step(at / 2, 0.5, interactive=at % 3 == 0, bulk=4 if at >= 20 else 0) for at in range(60)]
    return Recording(
        model="smollm2-135m",
        threads=2,
        seed=1,
        rate=1.0,
        alone=[answer(ttft, at=float(at)) for at, ttft in enumerate(alone)],
        loaded=[answer(ttft, at=10.0 + at) for at, ttft in enumerate(loaded)],
        bulk=BulkLoad(lines=5, answered=4, output_tokens=300, start=10.0, end=30.0),
        window=(10.0, 25.0),
        steps=steps,
    )


def test_tickets_are_many_varied_and_of_a_realistic_length():
    assert len(TICKETS) >= 40
    assert len({ticket.id for ticket in TICKETS}) == len({ticket.text for ticket in TICKETS}) == len(TICKETS)
    assert len({ticket.subject for ticket in TICKETS}) == len(TICKETS)
    for ticket in TICKETS:
        assert 40 <= len(ticket.text.split()) <= 150, ticket.id


def test_questions_are_distinct_and_enough():
    plan = Plan(TICKETS)
    assert len(set(QUESTIONS)) == len(QUESTIONS) >= plan.alone + plan.loaded
    assert plan.alone >= 12
    assert plan.loaded >= 30


def test_bulk_requests_are_lines_that_a_job_takes():
    requests = [request for task in TASKS for request in bulk_requests(TICKETS, task)]
    lines = [LineParser().from_object(number, request) for number, request in enumerate(requests, 1)]
    assert all(isinstance(line, Line) for line in lines)
    assert len({request["custom_id"] for request in requests}) == len(requests)


async def test_the_feed_gives_every_ticket_then_only_what_keeps_the_load_full():
    feed = _Feed(Plan(TICKETS, backlog=10))
    lines = feed.lines()
    ids = [(await anext(lines))["custom_id"] for _ in TICKETS]
    waiting = asyncio.ensure_future(anext(lines))
    for _ in range(len(TICKETS) - 10 + 1):
        await asyncio.sleep(0)
        assert not waiting.done()
        feed.note_ended()
    ids.append((await waiting)["custom_id"])
    waiting = asyncio.ensure_future(anext(lines))
    await asyncio.sleep(0)
    assert not waiting.done()
    feed.stop()
    with pytest.raises(StopAsyncIteration):
        await waiting
    assert len(set(ids)) == len(ids) == feed.given


async def test_the_feed_has_distinct_ids_for_as_long_as_it_is_asked():
    feed = _Feed(Plan(TICKETS[:3], backlog=10**9))
    lines = feed.lines()
    ids = [(await anext(lines))["custom_id"] for _ in range(200)]
    assert len(set(ids)) == 200


async def test_a_feed_stopped_early_still_gives_every_ticket():
    feed = _Feed(Plan(TICKETS))
    feed.stop()
    assert len([line async for line in feed.lines()]) == len(TICKETS)


def test_figures():
    figures = figures_of(recording([0.1, 0.2, 0.3], [0.2, 0.4, 0.6]))
    assert figures.ttft_median_alone == pytest.approx(0.2)
    assert figures.ttft_p95_ratio == pytest.approx(0.58 / 0.29)
    assert figures.tpot_median_alone == pytest.approx(0.1)
    assert figures.bulk_tokens_per_second == pytest.approx(15.0)
    assert figures.bulk_rows_mean == pytest.approx(4.0)
    assert figures.rows_most == 5
    assert figures.promise_kept


def shown(run: Recording) -> str:
    console = Console(width=300, file=io.StringIO())
    console.print(table(run))
    return console.file.getvalue()


def test_a_broken_promise_is_shown_as_such():
    broken = recording([0.1] * 20, [0.4] * 20)
    assert not figures_of(broken).promise_kept
    assert "Not kept" in shown(broken)
    assert "Kept:" in shown(recording([0.1] * 20, [0.2] * 20))


def test_nothing_is_claimed_from_too_few_questions():
    for few in (recording([0.1] * 20, [0.4] * 19), recording([0.1] * 4, [0.1] * 30)):
        assert "too few for a p95" in shown(few)
        assert "ept:" not in shown(few)


def test_the_price_is_named_where_there_is_one():
    run = recording([0.1] * 20, [0.2] * 20)
    assert "tpot_target_ms" not in shown(run)
    dearer = [replace(each, total=each.total + 1.0) for each in run.loaded]
    assert "tpot_target_ms" in shown(replace(run, loaded=dearer))


def test_numbers_hold_what_the_figures_come_from(tmp_path):
    path = tmp_path / "demo.json"
    save_numbers(recording([0.1, 0.2], [0.3, 0.4]), path)
    numbers = json.loads(path.read_text())
    assert numbers["figures"]["promise_kept"] is True
    assert [answer["ttft"] for answer in numbers["loaded"]] == [0.3, 0.4]
    assert numbers["alone"][0]["tpot"] == pytest.approx(0.1)
    assert len(numbers["steps"]) == 60


def test_the_plot_is_a_picture_with_something_on_it(tmp_path):
    from matplotlib import image

    path = tmp_path / "demo.png"
    save_plot(recording([0.1, 0.2], [0.3, 0.4]), path)
    picture = image.imread(path)
    assert picture.shape[0] > 600
    assert picture.shape[1] > 1000
    assert 0.5 < picture[..., :3].mean() < 0.99
