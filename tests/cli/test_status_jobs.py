"""What `orchestra status` says of jobs and their batches, of literal reports."""

from __future__ import annotations

from orchestra.cli.status_view import describe
from orchestra.jobs import OutletTally, Progress


def told(**snapshot):
    report = {"processes": [{"pid": 4242, "snapshot": snapshot}], "accounts": []}
    return "\n".join(text for text, _ in describe(report))


def batch(**more):
    told = {"provider": "openai", "account": "0123456789ab", "route": "openai/gpt-5", "job": "nightly\x1b[2J"}
    told |= {"state": "submitted", "status": "in_progress", "batch_id": "batch_1", "lines": 40, "riding": 30}
    return {**told, "age": 245.0, "deadline": 0.0, "expires": None, **more}


def test_open_batches_by_account():
    mine = [batch(), *[batch(state="sealed", status=None, deadline=None)] * 6]
    lines = told(batches=[*mine, batch(provider="groq", account="key-2")]).splitlines()
    at = lines.index("  open batches")
    assert lines[at + 1] == "    openai  key 0123456789ab: 7 batches, 210 lines on their way"
    first = "      openai/gpt-5: 30 of 40 lines, at the provider (in_progress), 4m05s old, job nightly?[2J"
    assert lines[at + 2].startswith(f"{first}, wanted by 1970-01-01")
    assert lines[at + 3].endswith("30 of 40 lines, about to be handed in, 4m05s old, job nightly?[2J")
    assert lines[at + 7] == "      ... and 2 more: --json tells of all"
    assert lines[at + 8] == "    groq  key key-2: 1 batch, 30 lines on their way"
    assert "open batches" not in told(batches=[])


def test_a_job_tells_its_outlets():
    outlets = (
        OutletTally("openai/gpt-5", "batch", 30, 1, 300, 90, 0.5, 0),
        OutletTally("openai/gpt-5", "sync", 5, 0, 50, 15, 0.25, 0),
    )
    lines = told(jobs={"j": Progress(40, 34, 1, 350, 105, whole=True, outlets=outlets).plain()}).splitlines()
    at = lines.index("  jobs")
    assert lines[at + 1] == "    j  35 of 40 lines, 1 failed"
    assert lines[at + 2].endswith("openai/gpt-5 by batch  30 lines (1 failed)  300 tokens in, 90 out  $0.50")
    assert lines[at + 3].endswith("openai/gpt-5           5 lines              50 tokens in, 15 out   $0.25")
