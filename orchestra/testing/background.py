"""Responses that are made in the background, ``/v1/responses`` with ``background: true``.

Source: the guide "Background mode" of platform.openai.com/docs, and ``background_options`` as openai's own client
has them. Not documented, and so of our choice: a response that is not done when its window is over has ``failed``.
"""

from __future__ import annotations

import math
import re
import secrets
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from orchestra.testing.batch_life import BatchLife, Stage
from orchestra.testing.batch_script import BatchScript
from orchestra.testing.batches import Desk, taken
from orchestra.testing.content import Content
from orchestra.testing.openai_form import invalid
from orchestra.testing.responses_form import response
from orchestra.testing.script import Hit, Reply

__all__ = ["Background"]

_PATH = re.compile(r"/responses/([^/]+)(?:/(cancel))?/?$")
_WINDOWS = {"soonest": math.inf, "2h": 7200.0, "8h": 28800.0}
_FORGOTTEN_AFTER = 600.0
_STATUSES = {
    "validating": "queued",
    "finalizing": "in_progress",
    "cancelling": "in_progress",
    "expired": "failed",
}


@dataclass(slots=True)
class _Job:
    id: str
    account: str
    life: BatchLife
    payload: Mapping[str, Any]
    answer: Mapping[str, Any]
    polls: deque[Reply]
    ended_at: float = field(default=math.inf)


class Background:
    """Responses that are asked for now and fetched later. Each takes the course of a batch of one line: queued
    while that validates, in progress while it runs."""

    def __init__(self, desk: Desk, default: BatchScript) -> None:
        self.desk = desk
        self.default = default
        self._jobs: dict[str, _Job] = {}
        self._open: dict[str, _Job] = {}

    @staticmethod
    def serves(path: str) -> bool:
        return _PATH.search(path) is not None

    def start(self, payload: Mapping[str, Any], answer: Mapping[str, Any], account: str) -> Reply:
        """Take a request whose usual answer is this one."""
        options = payload.get("background_options") or {}
        window = (
            _WINDOWS.get(options.get("completion_window", "soonest")) if isinstance(options, Mapping) else None
        )
        if window is None:
            message = "completion_window must be 'soonest', '2h' or '8h'."
            return invalid(400, message, param="background_options.completion_window")
        if payload.get("stream") is True and window < math.inf:
            return invalid(400, "A response with a completion window cannot be streamed.", param="stream")
        life = BatchLife(self.default, 1, self.desk.clock(), window)
        name = f"resp_{secrets.token_hex(12)}"
        job = _Job(name, account, life, payload, answer, deque(self.default.on_poll))
        with self.desk.lock:
            self._jobs[name] = self._open[name] = job
        reply = Reply(body=self._told(job, life.created))
        scripted = life.script.on_create
        return self.desk.mishaps.creation(reply) if scripted is None else taken(scripted, reply)

    async def answer(self, hit: Hit, body: Content, account: str) -> Reply:
        match = _PATH.search(hit.path)
        assert match is not None
        name, verb = match.groups()
        now = self.desk.clock()
        job = self._jobs.get(name)
        if job is None or job.account != account or self._forgotten(job, now):
            return invalid(404, f"Response with id '{name}' not found.")
        match hit.method, verb:
            case "GET", None:
                reply = Reply(body=self._told(job, job.life.stage(now)))
                return taken(job.polls.popleft(), reply) if job.polls else self.desk.mishaps.poll(reply)
            case "POST", "cancel":
                if not job.life.stage(now).ended:
                    job.life = job.life.cancel(now)
                    self.settle()
                return Reply(body=self._told(job, job.life.stage(now)))
            case "DELETE", None:
                del self._jobs[name]
                return Reply(body={"id": name, "object": "response.deleted", "deleted": True})
        return invalid(405, f"Not allowed to {hit.method} {hit.path}.")

    def settle(self) -> None:
        """Bring every response to where it stands now: what is complete is paid for."""
        with self.desk.lock:
            now = self.desk.clock()
            for job in list(self._open.values()):
                stage = job.life.stage(now)
                if stage.ended:
                    del self._open[job.id]
                    job.ended_at = stage.reached[stage.status]
                    if stage.status == "completed":
                        self.desk.bills.add_call(job.payload, "background")

    def clear(self) -> None:
        """Forget every response."""
        with self.desk.lock:
            self._jobs.clear()
            self._open.clear()

    def _forgotten(self, job: _Job, now: float) -> bool:
        kept = math.inf if job.payload.get("store") is True else job.ended_at + _FORGOTTEN_AFTER
        return now >= kept or now >= job.life.created_at + job.life.script.vanishes_after

    def _told(self, job: _Job, stage: Stage) -> dict[str, Any]:
        unix = self.desk.unix
        fields: dict[str, Any] = {"id": job.id, "created_at": unix(job.life.created_at), "background": True}
        status = _STATUSES.get(stage.status, stage.status)
        if status == "completed":
            return {**job.answer, **fields, "completed_at": unix(stage.reached["completed"])}
        told = response(job.payload, status, **fields)
        if status == "failed":
            late = stage.status == "expired"
            message = "The response was not done in its window." if late else job.life.script.message
            told["error"] = {"code": "server_error", "message": message}
        return told
