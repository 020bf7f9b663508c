"""However a batch ends, and whatever goes wrong with reading it, its lines end right, and are paid once."""

from __future__ import annotations

import logging
import sqlite3
from collections import Counter
from contextlib import closing
from pathlib import Path

import pytest
from diversion_lab import KEY, assert_answers, diversion_lab, eventually, over, provided, settings
from virtual_time import virtual

from orchestra.errors import JobError
from orchestra.testing import BatchScript, Reply

HOUR = 3600.0
KINDS = pytest.mark.parametrize("kind", ["openai", "anthropic"])
SEEDS = pytest.mark.parametrize("seed", range(3))


@SEEDS
@KINDS
@virtual
async def test_a_batch_that_goes_well(tmp_path: Path, kind: str, seed: int):
    script = BatchScript(validating=5.0, running=HOUR, finalizing=5.0)
    async with diversion_lab(tmp_path, {"kind": kind}, batch_default=script) as lab:
        began = lab.now()
        job = await lab.submit(10, kind=kind)
        results = await lab.done(job)
        assert_answers(results)
        assert lab.via(results) == {"batch": 10}
        assert lab.creates() == 1
        assert lab.states(job) == ["ended"]
        assert HOUR < lab.now() - began < HOUR + 120
        lab.assert_paid_once()


@KINDS
@pytest.mark.parametrize("end", ["expired", "cancelled"])
@pytest.mark.parametrize(("answered", "again"), [(0.6, "batch"), (1, "sync")])
@virtual
async def test_what_was_done_before_the_end_counts_and_the_rest_is_sent_again(
    tmp_path: Path, kind: str, end: str, answered: float, again: str
):
    """Where most was served the rest rides again; where hardly anything was, it goes by itself."""
    script = BatchScript(running=HOUR, end=end, answered=answered)
    async with diversion_lab(tmp_path, {"kind": kind}, batch_script=[script]) as lab:
        job = await lab.submit(10, kind=kind, deadline="3d")
        results = await lab.done(job)
        assert_answers(results)
        done = round(10 * answered) if isinstance(answered, float) else answered
        assert lab.via(results) == Counter({"batch": done}) + Counter({again: 10 - done})
        assert Counter(result.attempts for result in results) == {1: done, 2: 10 - done}
        lab.assert_paid_once()


@virtual
async def test_an_error_file_only_gives_each_line_its_own_error(tmp_path: Path):
    refused = {
        at: Reply.error(400, f"code_{at}", kind="invalid_request_error", message=f"no, {at}") for at in range(10)
    }
    async with diversion_lab(tmp_path, batch_script=[BatchScript(running=HOUR, replies=refused)]) as lab:
        job = await lab.submit(10)
        results = await lab.done(job)
        assert [(one.error_code, one.status_code) for one in results] == [(f"code_{at}", 400) for at in range(10)]
        assert all(f"no, {at}" in (one.error_message or "") for at, one in enumerate(results))
        assert (lab.calls(), lab.creates()) == (0, 1), "what was refused would be refused again"


@KINDS
@virtual
async def test_a_line_of_which_nothing_is_said_is_not_a_failed_one(tmp_path: Path, kind: str):
    script = BatchScript(running=HOUR, missing=[3, 7])
    async with diversion_lab(tmp_path, {"kind": kind}, batch_script=[script]) as lab:
        results = await lab.done(await lab.submit(10, kind=kind))
        assert_answers(results)
        lab.assert_paid_once()


@KINDS
@virtual
async def test_a_fault_of_the_providers_in_one_line_is_tried_again(tmp_path: Path, kind: str):
    broken = (
        Reply.anthropic_error(500, "api_error")
        if kind == "anthropic"
        else Reply.error(500, "server_error", message="broke")
    )
    script = BatchScript(running=HOUR, replies={2: broken})
    async with diversion_lab(tmp_path, {"kind": kind}, batch_script=[script]) as lab:
        results = await lab.done(await lab.submit(10, kind=kind))
        assert_answers(results)
        lab.assert_paid_once()


@SEEDS
@KINDS
@virtual
async def test_results_are_known_by_their_ids(tmp_path: Path, kind: str, seed: int):
    strangers = ["a-stranger", "0" * 12 + "-3", "5"]
    script = BatchScript(running=HOUR, shuffle=seed, doubled=[1, 4], strangers=strangers)
    async with diversion_lab(tmp_path, {"kind": kind}, batch_script=[script]) as lab:
        job = await lab.submit(10, kind=kind)
        results = await lab.done(job)
        assert_answers(results)
        assert job.progress().total == 10
        assert lab.calls() == 0
        assert len({result.ended for result in results}) == 10


@KINDS
@virtual
async def test_polls_that_fail_delay_nothing_but_the_look(tmp_path: Path, kind: str):
    polls = [Reply.error(503), Reply(drop=True), Reply(body="<html>"), Reply.error(500), Reply.error(429)]
    async with diversion_lab(
        tmp_path, {"kind": kind}, batch_script=[BatchScript(running=60.0, on_poll=polls)]
    ) as lab:
        began = lab.now()
        results = await lab.done(await lab.submit(10, kind=kind))
        assert_answers(results)
        assert lab.via(results) == {"batch": 10}
        assert lab.creates() == 1
        assert lab.now() - began < 180


@virtual
async def test_results_that_break_off_are_read_again(tmp_path: Path):
    cuts = [Reply(cut_after=700), Reply(drop=True), Reply.error(503), Reply.error(404)]
    script = BatchScript(running=60.0, on_results=cuts)
    async with diversion_lab(tmp_path, batch_script=[script]) as lab:
        results = await lab.done(await lab.submit(40))
        assert_answers(results)
        assert lab.via(results) == {"batch": 40}
        lab.assert_paid_once()


@virtual
async def test_results_that_come_in_two_parts_still_count_as_served(tmp_path: Path):
    """The share that was served is of the whole batch, however often its results had to be read."""
    script = BatchScript(running=60.0, end="expired", answered=0.9, on_results=[Reply(cut_after=25_000)])
    async with diversion_lab(tmp_path, batch_script=[script]) as lab:
        results = await lab.done(await lab.submit(100, deadline="3d"))
        assert_answers(results)
        assert lab.via(results) == {"batch": 100}
        assert lab.creates() == 2


@virtual
async def test_results_that_never_can_be_read_are_given_up(tmp_path: Path):
    script = BatchScript(running=60.0, on_results=[Reply.error(403)] * 500)
    async with diversion_lab(tmp_path, batch_script=[script]) as lab:
        began = lab.now()
        results = await lab.done(await lab.submit(10))
        assert_answers(results)
        assert lab.via(results) == {"sync": 10}
        assert lab.now() - began < 2 * HOUR


@virtual
async def test_results_elsewhere_are_read_without_our_key(tmp_path: Path):
    """Anthropic tells where the results are; that may be another host."""
    script = BatchScript(running=60.0, results_origin="http://elsewhere.test")
    async with diversion_lab(tmp_path, {"kind": "anthropic"}, batch_script=[script]) as lab:
        results = await lab.done(await lab.submit(10, kind="anthropic"))
        assert_answers(results)
        foreign = [headers for _, url, headers in lab.wire.sent if "elsewhere.test" in url]
        assert not any(KEY in value for headers in foreign for value in headers.values())
        lab.assert_paid_once()


@pytest.mark.parametrize("kind", ["openai"])
@virtual
async def test_a_batch_that_vanishes_lets_its_lines_go(tmp_path: Path, kind: str):
    script = BatchScript(running=10 * HOUR, vanishes_after=HOUR)
    async with diversion_lab(tmp_path, {"kind": kind}, batch_script=[script]) as lab:
        began = lab.now()
        job = await lab.submit(10, kind=kind)
        results = await lab.done(job)
        assert_answers(results)
        assert lab.via(results) == {"sync": 10}
        assert lab.states(job) == ["abandoned"]
        assert "does not know it" in (lab.notes(job)[0] or "")
        assert lab.now() - began < 2 * HOUR


@virtual
async def test_a_status_that_nobody_knows_is_said_and_waited_for_up_to_the_deadline(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
):
    caplog.set_level(logging.WARNING)
    async with diversion_lab(tmp_path, batch_script=[BatchScript(running=60.0, end="weird", answered=0.6)]) as lab:
        began = lab.now()
        job = await lab.submit(10)
        results = await lab.done(job)
        assert_answers(results)
        assert lab.via(results) == {"batch": 6, "sync": 4}, "it can be cancelled, whatever it is"
        assert 23 * HOUR < lab.now() - began < 24 * HOUR
        assert sum("'weird'" in one.getMessage() for one in caplog.records) == 1
        polls = sum(hit.method == "GET" and "/batches/" in hit.path for hit in lab.provider.log)
        assert polls < 24 * 60 + 60, "a poll a minute at most"


@virtual
async def test_a_batch_that_never_ends_is_left_in_time(tmp_path: Path):
    async with diversion_lab(
        tmp_path, batch_script=[BatchScript(end=None, answered=0.6, cancelling=300.0)]
    ) as lab:
        began = lab.now()
        job = await lab.submit(10)
        results = await lab.done(job)
        assert_answers(results)
        assert lab.via(results) == {"batch": 6, "sync": 4}
        assert lab.now() - began < 24 * HOUR
        assert sum(hit.path.endswith("/cancel") for hit in lab.provider.log) == 1
        lab.assert_paid_once()


@pytest.mark.parametrize(
    ("code", "ends"), [("model_not_found", "refused"), ("invalid_json_line", "sync"), ("server_error", "sync")]
)
@virtual
async def test_a_batch_that_fails_as_a_whole(tmp_path: Path, code: str, ends: str):
    script = BatchScript(validating=5.0, end="failed", code=code, message="it is so")
    async with diversion_lab(tmp_path, batch_script=[script]) as lab:
        job = await lab.submit(10)
        results = await lab.done(job)
        if ends == "sync":
            assert_answers(results)
            assert lab.via(results) == {"sync": 10}
            assert lab.creates() == 1
        else:
            assert {(one.error_code, one.error_message) for one in results} == {(code, "it is so")}
            assert lab.calls() == 0


@virtual
async def test_where_lines_are_answered_a_batch_that_knows_no_such_model_refuses_none(tmp_path: Path):
    """Azure has deployments that answer and take no batches."""
    script = BatchScript(validating=5.0, end="failed", code="model_not_found", message="no batches of it")
    async with diversion_lab(tmp_path, {"batch": {"max_bytes": 600}}, batch_script=[script]) as lab:
        lines = [{"messages": [{"role": "user", "content": "q" * 1000}]}]
        lines += [{"messages": [{"role": "user", "content": "short"}]}]
        job = await lab.manager.submit(lines, model="fast", job="j", deadline="24h")
        results = await lab.done(job)
        assert [result.ok for result in results] == [True, True]
        assert lab.via(results) == {"sync": 2}
        assert lab.creates() == 1


@virtual
async def test_a_failed_batch_is_not_counted_in_how_long_batches_take(tmp_path: Path):
    scripts = [BatchScript(running=60.0)] * 3 + [BatchScript(validating=1.0, end="failed", code="server_error")]
    async with diversion_lab(tmp_path, batch_script=scripts) as lab:
        for number in range(4):
            await lab.done(await lab.submit(3, job=f"j{number}", prefix=f"p{number}-"))
        p90 = lab.manager.store.batches.p90("one/m|/chat/completions", least=1)
        assert p90 is None or 59 < p90 < 180
        seconds = [
            record.ended_at - record.submitted_at
            for job in lab.manager.list()
            for record in lab.manager.store.batches.of_job(job.id)
            if record.state == "ended" and record.ended_at and record.submitted_at
        ]
        assert len(seconds) == 3


@virtual
async def test_each_of_several_batches_goes_its_own_way(tmp_path: Path):
    """One that cannot be looked at delays none of the others."""
    stuck = BatchScript(running=60.0, on_poll=[Reply(delay=110.0)] + [Reply.error(503)] * 12)
    scripts = [stuck, BatchScript(running=120.0), BatchScript(running=60.0)]
    async with diversion_lab(tmp_path, {"batch": {"max_requests": 10}}, batch_script=scripts) as lab:
        began, ends = lab.now(), {}
        job = await lab.submit(30)
        async for result in job:
            ends[result.number] = lab.now() - began
        first, second, third = ([ends[n] for n in range(at, at + 10)] for at in (1, 11, 21))
        by_script = sorted((max(one), at) for at, one in enumerate((first, second, third)))
        assert by_script[0][0] < 130
        assert by_script[1][0] < 200
        assert by_script[2][0] > 300
        lab.assert_paid_once()


@virtual
async def test_a_job_goes_on_under_another_key_or_says_why_not(tmp_path: Path):
    async with provided(
        batch_default=BatchScript(running=HOUR),
        accounts={KEY: "us", "sk-new-0123456789": "us", "sk-foreign": "they"},
    ) as provider:
        config = settings(provider, tmp_path)
        async with over(provider, config) as lab:
            job = await lab.submit(10)
            await eventually(lambda: "submitted" in lab.states(job))
        config["providers"]["one"]["api_key"] = "sk-foreign"
        async with over(provider, config) as lab:
            job = await lab.submit(10)
            with pytest.raises(JobError, match="made with another key"):
                await job.wait()
        config["providers"]["one"]["api_key"] = "sk-new-0123456789"
        async with over(provider, config) as lab:
            results = await lab.done(await lab.submit(10))
            assert_answers(results)
            assert lab.via(results) == {"batch": 10}
            assert lab.uploads() == 1
            lab.assert_paid_once()


@pytest.mark.parametrize("change", ["off", "gone"])
@virtual
async def test_a_batch_outlives_the_wish_for_batches(tmp_path: Path, change: str):
    async with provided(batch_default=BatchScript(running=HOUR)) as provider:
        async with over(provider, settings(provider, tmp_path)) as lab:
            job = await lab.submit(10)
            await eventually(lambda: "submitted" in lab.states(job))
        config = settings(provider, tmp_path, batch={"enabled": False})
        if change == "gone":
            config["providers"]["other"] = config["providers"].pop("one")
            config["models"] = {"fast": {"routes": ["other/m"]}}
        async with over(provider, config) as lab:
            job = await lab.submit(10)
            if change == "gone":
                with pytest.raises(JobError, match=r"\[providers\.one\]"):
                    await job.wait()
                return
            results = await lab.done(job)
            assert_answers(results)
            assert lab.via(results) == {"batch": 10}
            assert lab.creates() == 1
            lab.assert_paid_once()


@virtual
async def test_a_batch_that_cannot_be_followed_stops_no_other(tmp_path: Path, caplog: pytest.LogCaptureFixture):
    """The key is one of another project now: what else there is of the job is done, and then it is said."""
    keys = {KEY: "us", "sk-foreign": "they"}
    async with provided(batch_default=BatchScript(running=HOUR), accounts=keys) as provider:
        config = settings(provider, tmp_path, batch={"max_requests": 10})
        async with over(provider, config) as lab:
            job = await lab.submit(20)
            await eventually(lambda: lab.states(job) == ["submitted"] * 2)
            first = lab.manager.store.batches.of_job(job.record.id)[0]
        with closing(sqlite3.connect(tmp_path / "jobs.db", isolation_level=None)) as db:
            # as if the first had come to its end before, and its lines had to be sent anew
            db.execute("UPDATE batches SET state = 'abandoned', ended_at = 1.0 WHERE id = ?", (first.id,))
            db.execute("UPDATE lines SET outlet = NULL WHERE outlet = ?", (first.id,))
        config["providers"]["one"]["api_key"] = "sk-foreign"
        async with over(provider, config) as lab:
            job = await lab.submit(20)
            with pytest.raises(JobError, match="made with another key"):
                await job.wait()
            tally = lab.manager.store.tally(job.record.id)
            assert (tally.done, tally.pending) == (10, 10)
            assert lab.states(job) == ["abandoned", "submitted", "ended"]
            said = [one for one in caplog.messages if "made with another key" in one]
            assert len(said) == 1
