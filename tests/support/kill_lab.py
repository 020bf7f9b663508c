"""A job of 300 lines whose process is killed again and again, until it ends; and what must hold of it then."""

from __future__ import annotations

import json
import os
import random
import signal
import sqlite3
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from http.client import HTTPConnection
from pathlib import Path
from typing import Any, Literal
from urllib.parse import urlsplit

__all__ = ["KillLab", "Run", "Variant", "kill_lab"]

LINES = 300
RIDING = 240
"""How many of them are for a model that has batches."""
AT_ONCE = 8
UPLOADS_AT_ONCE = 2
LONGEST_RUN = 200.0
"""Seconds for a run, with all of its starts."""
ARGUMENTS = ("run", "in.jsonl", "--out", "out.jsonl", "--job", "j", "--deadline")

SETTINGS = """
[providers.cloud]
kind = "{kind}"
base_url = "{base_url}"
api_key = "sk-batches"
limits = [{{max_concurrency = {at_once}}}]
[providers.cloud.batch]
max_requests = {max_requests}
poll_seconds = 0.05
poll_max_seconds = 0.2
expected_seconds = 1.0
cancelling_seconds = 3.0
[providers.plain]
kind = "openai-compatible"
base_url = "{plain_url}"
api_key = "sk-plain"
limits = [{{max_concurrency = {at_once}}}]
[models.fast]
routes = ["cloud/fast"]
[models.plain]
routes = ["plain/plain"]
[observe]
status = false
"""


@dataclass(frozen=True, slots=True)
class Variant:
    """What the provider does. ``script`` and ``faults`` are as its control takes them, ``options`` as its command
    line does. ``faulty`` lines are refused in batches."""

    name: str
    kind: Literal["openai", "anthropic"] = "openai"
    deadline: str = "24h"
    script: Mapping[str, Any] = field(default_factory=dict)
    faults: Mapping[str, float] = field(default_factory=dict)
    options: Sequence[str] = ()
    faulty: int = 0

    @property
    def is_served(self) -> bool:
        """Whether all batches are taken and answered, whatever goes wrong meanwhile."""
        return not self.options and self.script.get("end", "completed") == "completed"


@dataclass(slots=True)
class Run:
    """What was seen of one run: where each batch stood when the process was killed, how often there was one that
    the ledger did not know of, and what the provider was paid for in the end."""

    seed: int
    kills: int = 0
    unrecorded: int = 0
    stages: Counter[str] = field(default_factory=Counter)
    seconds: float = 0.0
    bills: dict[str, Any] = field(default_factory=dict)

    @property
    def ids_paid_twice(self) -> int:
        return len(self.bills["ids_paid_twice"])

    @property
    def sync_again(self) -> int:
        """How many answers of lines that went by themselves were paid once more."""
        return sum(max(0, bill["sync"] - 1) for bill in self.bills["requests_paid_twice"].values())

    @property
    def both_ways(self) -> int:
        """How many requests were answered in a batch and by themselves."""
        return sum(1 for bill in self.bills["requests_paid_twice"].values() if bill["sync"] and bill["batch"])


class Provider:
    """A scripted provider in a process of its own."""

    def __init__(self, options: Sequence[str]) -> None:
        command = [sys.executable, "-m", "orchestra.testing", "--echo", "--service-time", "0.01", *options]
        self._process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        assert self._process.stdout is not None
        told = json.loads(self._process.stdout.readline())
        self.base_url, self.origin = told["base_url"], told["origin"]
        self._http = HTTPConnection(urlsplit(self.origin).netloc, timeout=120)

    def tell(self, what: str, told: Mapping[str, Any] | None = None) -> None:
        self._ask("POST", what, json.dumps(told or {}))

    def bills(self) -> dict[str, Any]:
        return self._ask("GET", "bills")

    def close(self) -> None:
        self._http.close()
        self._process.kill()
        self._process.wait()
        assert self._process.stdout is not None
        self._process.stdout.close()

    def _ask(self, method: str, what: str, body: str | None = None) -> dict[str, Any]:
        self._http.request(method, f"/__orchestra/{what}", body)
        answer = self._http.getresponse()
        told: dict[str, Any] = json.loads(answer.read())
        assert answer.status == 200, told
        return told


class KillLab:
    """Starts, kills and starts again."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._providers: dict[tuple[str, ...], Provider] = {}
        command = [sys.executable, str(Path(__file__).with_name("kill_server.py")), "--hurry"]
        self._server = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def close(self) -> None:
        for provider in self._providers.values():
            provider.close()
        self._server.communicate()

    def run(self, variant: Variant, seed: int, *, most_kills: int = 5) -> Run:
        """Run one job to its end. Raises AssertionError where what must hold does not."""
        dice = random.Random(f"{variant.name} {seed}")
        folder = self._folder / f"{variant.name}-{seed}".replace(" ", "-")
        folder.mkdir()
        provider = self._provider(variant)
        asked = _write(folder, variant, provider, dice)
        run, began = Run(seed), time.monotonic()
        try:
            for _ in range(dice.randint(2, most_kills)):
                if self._killed(folder, variant, provider, dice):
                    run.kills += 1
                    stages, known = _batches(folder)
                    run.stages.update(stages)
                    run.unrecorded += provider.bills()["batches"] > known
            code = self._ended(self._start(folder, variant), began + LONGEST_RUN)
            run.seconds = time.monotonic() - began
            run.bills = provider.bills()
            _check(folder, variant, asked, code, run)
            # what has ended is not asked, and nothing of it uploaded, again
            before = (folder / "out.jsonl").read_bytes()
            assert self._ended(self._start(folder, variant), time.monotonic() + LONGEST_RUN) == code
            assert provider.bills() == run.bills
            assert (folder / "out.jsonl").read_bytes() == before
        except AssertionError as wrong:
            log = folder / "log"
            said = log.read_text()[-3000:] if log.exists() else ""
            wrong.add_note(f"{variant.name}, seed {seed}: {run}\n{folder}\n{said}")
            raise
        return run

    def _provider(self, variant: Variant) -> Provider:
        key = tuple(variant.options)
        if key not in self._providers:
            self._providers[key] = Provider(key)
        return self._providers[key]

    def _killed(self, folder: Path, variant: Variant, provider: Provider, dice: random.Random) -> bool:
        """Start the job and kill it at some instant. Returns False where it had ended by then."""
        before = provider.bills()
        pid = self._start(folder, variant)
        at = dice.choice(
            ["files" if variant.kind == "openai" else "batches", "batches", "batches", "batch", "any"]
        )
        until = time.monotonic() + dice.uniform(0.05, 1.0)
        while at != "any" and time.monotonic() < until and provider.bills()[at] <= before[at]:
            time.sleep(0.001)
        time.sleep(max(0.0, until - time.monotonic()) if at == "any" else dice.uniform(0.0, 0.015))
        os.kill(pid, signal.SIGKILL)
        return self._wait(pid) == -signal.SIGKILL

    def _start(self, folder: Path, variant: Variant) -> int:
        arguments = [*ARGUMENTS, variant.deadline]
        files = {"folder": str(folder), "out": "log", "err": "log"}
        return int(self._told({"run": arguments, **files, "environment": dict(os.environ)})["pid"])

    def _ended(self, pid: int, until: float) -> int:
        """Return the exit code of a process that ends in time."""
        code = self._wait(pid, max(0.0, until - time.monotonic()))
        if code is None:
            os.kill(pid, signal.SIGKILL)
            self._wait(pid)
            raise AssertionError("the job did not end in time")
        return code

    def _wait(self, pid: int, seconds: float = 60.0) -> int | None:
        code: int | None = self._told({"wait": pid, "seconds": seconds})["code"]
        return code

    def _told(self, what: Mapping[str, Any]) -> dict[str, Any]:
        assert self._server.stdin is not None
        assert self._server.stdout is not None
        self._server.stdin.write(json.dumps(what) + "\n")
        self._server.stdin.flush()
        told: dict[str, Any] = json.loads(self._server.stdout.readline())
        return told


@contextmanager
def kill_lab(folder: Path) -> Iterator[KillLab]:
    lab = KillLab(folder)
    try:
        yield lab
    finally:
        lab.close()


def _write(folder: Path, variant: Variant, provider: Provider, dice: random.Random) -> dict[str, str]:
    """Write settings and input, and tell the provider what to do. Returns what each line asks, in order."""
    script = {
        "validating": dice.uniform(0.0, 0.1),
        "running": dice.uniform(0.05, 0.5),
        "finalizing": dice.uniform(0.0, 0.05),
        "cancelling": 0.05,
        "end": "completed",
        "answered": None,
        "shuffle": dice.choice([None, 1]),
        "code": "server_error",
        # so that it is often killed when the batch is there and its answer is not
        "on_create": None if variant.faults else {"delay": dice.choice([0.0, 0.03, 0.3])},
        **variant.script,
    }
    if script["end"] in ("expired", "cancelled", None):
        script["answered"] = dice.uniform(0.2, 0.9)
    faults = {"lost_creations": 0.0, "refused_polls": 0.0, "lost_uploads": 0.0, "cut_results": 0.0}
    provider.tell("reset")
    provider.tell("batches", script)
    provider.tell("faults", {**faults, **variant.faults, "seed": dice.randrange(1 << 30)})
    base_url = provider.base_url if variant.kind == "openai" else provider.origin
    settings = {"kind": variant.kind, "base_url": base_url, "plain_url": provider.base_url, "at_once": AT_ONCE}
    text = SETTINGS.format(max_requests=dice.choice([60, 100, 250]), **settings)
    (folder / "orchestra.toml").write_text(text)
    models = ["fast"] * RIDING + ["plain"] * (LINES - RIDING)
    dice.shuffle(models)
    faulty = set(dice.sample([number for number, model in enumerate(models) if model == "fast"], variant.faulty))
    asked: dict[str, str] = {}
    with (folder / "in.jsonl").open("w") as file:
        for number, model in enumerate(models):
            content = f"line {number} of {variant.name}"
            body = {"model": model, "messages": [{"role": "user", "content": content}], "max_tokens": 9}
            if number in faulty:
                body["speed"] = "fast"
            url = "/v1/messages" if model == "fast" and variant.kind == "anthropic" else "/v1/chat/completions"
            line = {"custom_id": f"id {number}", "method": "POST", "url": url, "body": body}
            file.write(json.dumps(line) + "\n")
            asked[f"id {number}"] = "" if number in faulty else content
    return asked


def _batches(folder: Path) -> tuple[Counter[str], int]:
    """Return how many batches the ledger has at each stage, and of how many it knows the provider's name."""
    path = folder / ".orchestra" / "jobs.db"
    if not path.exists():
        return Counter(["no ledger"]), 0
    with closing(sqlite3.connect(f"file:{path}?mode=ro", uri=True)) as db:
        try:
            rows = db.execute("SELECT state, batch_id IS NOT NULL FROM batches").fetchall()
        except sqlite3.OperationalError:  # it was killed before its tables were made
            return Counter(["no ledger"]), 0
    return Counter(state for state, _ in rows) or Counter(["no batches"]), sum(known for _, known in rows)


def _check(folder: Path, variant: Variant, asked: Mapping[str, str], code: int, run: Run) -> None:
    answers = [json.loads(line) for line in (folder / "out.jsonl").read_text().splitlines()]
    assert [answer["custom_id"] for answer in answers] == list(asked), "each line once, in input order"
    wrong = [answer for answer in answers if _said(answer) != asked[answer["custom_id"]]]
    assert not wrong, wrong[:3]
    assert code == (1 if variant.faulty else 0)
    lost = run.stages["creating"] + run.bills["faults"].get("lost_creations", 0)
    if variant.kind == "openai" or not lost:
        assert not run.bills["ids_paid_twice"], "a batch's line was paid twice"
    assert run.sync_again <= 2 * AT_ONCE * run.kills, "more than were under way when it was killed"
    if variant.script.get("end", "") is not None:
        assert not run.both_ways, "a line was paid in a batch and by itself"
    uploads_lost = UPLOADS_AT_ONCE * run.kills + run.bills["faults"].get("lost_uploads", 0)
    assert run.bills["files"] <= run.bills["batches"] + uploads_lost, "a file was uploaded that was there already"
    if variant.is_served:
        assert run.bills["sync"] - run.sync_again == LINES - RIDING, "no line of a batch went by itself"
        if variant.kind == "openai" or not lost:
            assert run.bills["lines"] == RIDING, "each line was put into one batch, once"


def _said(answer: Mapping[str, Any]) -> str:
    """Return what an answer says: an empty text where it is a refusal."""
    if answer["response"] is None:
        return f"error: {answer['error']}"
    body = answer["response"]["body"]
    if answer["response"]["status_code"] == 400:
        return ""
    content = body["choices"][0]["message"]["content"] if "choices" in body else body["content"][0]["text"]
    return str(content)
