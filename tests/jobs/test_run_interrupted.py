"""``orchestra run``, interrupted and killed: the same command goes on."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from run_lab import COMMAND, prompts, read, start, wait_for

from orchestra.jobs import JobStore, is_locked
from orchestra.testing import ScriptedProvider

Make = Callable[..., Any]


def test_an_interrupt_leaves_a_resumable_job(
    server: ScriptedProvider, orchestra: Make, batch_file: Make, tmp_path: Path
) -> None:
    server.service_time = 0.05
    batch_file(*range(200))
    process = start("run", "in.jsonl", "--out", "out.jsonl", "--job", "j")
    wait_for(lambda: len(server.log) > 20)
    server.service_time = 60.0  # so that it is still at work when it is looked at, and interrupted
    assert is_locked(tmp_path / ".orchestra" / "jobs.db", "j")
    code, out, err = orchestra("jobs", "list")
    assert "running" in out
    code, _, err = orchestra("run", "in.jsonl", "--out", "out.jsonl", "--job", "j")
    assert code == 2
    assert "being run by another process" in err
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=50)
    assert process.returncode == 130
    assert "the same command goes on with job 'j'" in err
    assert "Traceback" not in err
    assert not Path("out.jsonl").exists()
    with closing(JobStore(tmp_path / ".orchestra" / "jobs.db")) as store:
        assert 0 < store.tally(1).ended < 200
    server.service_time = 0.0
    code, out, err = orchestra("run", "in.jsonl", "--out", "out.jsonl", "--job", "j")
    assert code == 0, err
    assert "going on" in err
    assert len(read("out.jsonl")) == 200


@pytest.mark.timeout(600)
def test_twenty_kills(server: ScriptedProvider, batch_file: Make, tmp_path: Path) -> None:
    """Killed at random instants, the same command answers every line once, and asks none again that had ended."""
    seed = random.randrange(1 << 32)
    rand = random.Random(seed)
    lines, kills = 500, 20
    server.service_time = 0.06
    batch_file(*range(lines))
    store_path = tmp_path / ".orchestra" / "jobs.db"
    command = ("run", "in.jsonl", "--out", "out.jsonl")
    ended: set[str] = set()
    asked_before: list[int] = []
    while_running = 0

    for _ in range(kills):
        process = start(*command)
        if rand.random() < 0.8:
            hits = len(server.log)
            wait_for(lambda hits=hits, process=process: len(server.log) > hits or process.poll() is not None)
            time.sleep(rand.uniform(0, 0.15))
        else:
            time.sleep(rand.uniform(0, 0.3))
        while_running += process.poll() is None
        process.kill()
        process.communicate()
        wait_for(lambda: server.in_flight == 0)
        again = ended.intersection(prompts(server)[asked_before[-1] if asked_before else 0 :])
        assert not again, f"seed {seed}: asked again though ended: {again}"
        if store_path.exists():
            with closing(JobStore(store_path)) as store:
                job = next(iter(store.jobs()), None)
                results = store.results(job.id, 0, max_lines=lines, max_bytes=1 << 30) if job else []
            assert ended <= {result.custom_id.removeprefix("id-") for result in results}, f"seed {seed}: lost"
            ended = {result.custom_id.removeprefix("id-") for result in results}
        asked_before.append(len(server.log))

    process = start(*command)
    _, err = process.communicate(timeout=240)
    assert process.returncode == 0, f"seed {seed}: {err}"
    assert not ended.intersection(prompts(server)[asked_before[-1] :]), f"seed {seed}"
    answered = read("out.jsonl")
    assert [line["custom_id"] for line in answered] == [f"id-{n}" for n in range(lines)], f"seed {seed}"
    assert all(line["response"]["status_code"] == 200 for line in answered)
    asked = Counter(prompts(server))
    assert set(asked) == {str(n) for n in range(lines)}
    # only what was under way at a kill may be asked again: at most the concurrency limit each time
    assert sum(asked.values()) - lines <= 8 * kills
    assert while_running >= kills // 2, f"seed {seed}: too few kills hit a running command to mean anything"
    assert not list(tmp_path.glob("out.jsonl.*"))


def test_an_interrupt_ends_the_wait_for_a_pipe(server: ScriptedProvider) -> None:
    os.mkfifo("pipe")
    for source in ("-", "pipe"):
        reading, writing = os.pipe()
        process = subprocess.Popen(
            [*COMMAND, "run", source, "--out", "out.jsonl"], stdin=reading, stderr=subprocess.PIPE
        )
        assert process.stderr is not None
        began = b"settings: orchestra.toml; ledger: .orchestra/jobs.db\n"
        assert process.stderr.readline() == began  # the next it does is read
        time.sleep(0.3)
        process.send_signal(signal.SIGINT)
        _, err = process.communicate(timeout=30)
        os.close(reading)
        os.close(writing)
        assert (process.returncode, err) == (130, b"interrupted before anything was sent\n")


def test_an_interrupt_ends_the_start_of_an_engine() -> None:
    script = (
        "import time\nfrom orchestra.cli.engine_start import leaving_at_once\n"
        "with leaving_at_once('interrupted'):\n print('loading', flush=True)\n time.sleep(600)\n"
    )
    process = subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    assert process.stdout is not None
    assert process.stdout.readline() == b"loading\n"
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=50)
    assert (process.returncode, err) == (130, b"interrupted\n")
