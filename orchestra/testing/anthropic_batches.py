"""``/v1/messages/batches`` of a `ScriptedProvider`, in Anthropic's form.

Source: platform.claude.com/docs, pages "Batch processing" and "Errors", and what they say of API versions. Not
documented, and so of our choice: the status of a cancellation that comes too late (400), and of results that are
read too early (404).
"""

from __future__ import annotations

import json
import re
import secrets
from collections.abc import Mapping
from typing import Any

from orchestra.testing.batch_life import BatchLife, Stage
from orchestra.testing.batch_script import BatchScript
from orchestra.testing.batches import Batch, BatchEndpoint, Outcome, taken
from orchestra.testing.content import Content, joined
from orchestra.testing.encoding import quoted
from orchestra.testing.inline_lines import inline_roll
from orchestra.testing.roll import Line
from orchestra.testing.script import Hit, Reply

__all__ = ["AnthropicBatches"]

_PATH = re.compile(r"/messages/batches(?:/([^/]+))?(?:/(cancel|results))?/?$")
_CUSTOM_ID = re.compile(r"[a-zA-Z0-9_-]{1,64}")
_KINDS = {"answered": "succeeded", "failed": "errored", "cancelled": "canceled", "expired": "expired"}
_NO_SAMPLING_SINCE = "2026-10-21"
_SAMPLING = ("temperature", "top_p", "top_k")
_NOT_IN_BATCHES = ("speed", "store", "previous_thread_event_id", "cache_hint", "context_hint")


class AnthropicBatches(BatchEndpoint):
    """Batches whose requests stand in the body that creates them."""

    @staticmethod
    def serves(path: str) -> bool:
        return _PATH.search(path) is not None

    async def answer(self, hit: Hit, body: Content, account: str) -> Reply:
        match = _PATH.search(hit.path)
        assert match is not None
        name, verb = match.groups()
        if name is None:
            if hit.method == "POST":
                return await self._create(hit, body, account)
            return self._page(hit, [self._object(batch) for batch in self._seen_by(account)])
        batch = self._find(name, account)
        if batch is None:
            return _refused(404, "not_found_error", f"No batch {name}.")
        match hit.method, verb:
            case "GET", None:
                return self._polled(batch, self._object(batch))
            case "GET", "results":
                return self._results(batch)
            case "POST", "cancel":
                if not self._cancelled(batch):
                    return _refused(400, "invalid_request_error", f"Batch {batch.id} has ended.")
                return Reply(body=self._object(batch))
            case "DELETE", None:
                return self._delete(batch)
        return _refused(405, "invalid_request_error", f"Not allowed to {hit.method} {hit.path}.")

    async def _create(self, hit: Hit, body: Content, account: str) -> Reply:
        limits = self.desk.limits
        if body.size > (limits.max_bytes or 256_000_000):
            return _refused(413, "request_too_large", "The batch has too many bytes.")
        try:
            requests = json.loads(body.read())["requests"]
        except (ValueError, TypeError, KeyError):
            return _refused(400, "invalid_request_error", "requests: Field required")
        problem = _problem(requests, limits.max_requests or 100_000)
        if problem is not None:
            return _refused(400, "invalid_request_error", problem)
        queued = sum(batch.life.total for batch in self._open_of(account))
        if limits.enqueued_requests is not None and queued + len(requests) > limits.enqueued_requests:
            message = f"More than {limits.enqueued_requests} requests would be in the queue of batches."
            return _refused(429, "rate_limit_error", message)
        wait = self._creation_wait(account)
        if wait:
            message, hint = "Too many batches were created.", {"retry-after": f"{wait:.0f}"}
            return _refused(429, "rate_limit_error", message, headers=hint)
        script = self.desk.next_script()
        version = hit.headers.get("anthropic-version", "")
        found = ((number, _wrong(request["params"], version)) for number, request in enumerate(requests))
        batch = Batch(
            id=f"msgbatch_{secrets.token_hex(12)}",
            account=account,
            endpoint="/v1/messages",
            roll=await inline_roll(requests, _line, script.named, self.desk),
            life=BatchLife(script, len(requests), self.desk.clock(), 86400.0),
            facts={},
            wrong={number: _refused(400, "invalid_request_error", wrong) for number, wrong in found if wrong},
        )
        return self._add(batch, self._object)

    def _results(self, batch: Batch) -> Reply:
        scripted = batch.reads.popleft() if batch.reads else None
        if not self._readable(batch):
            return taken(scripted, _refused(404, "not_found_error", f"Batch {batch.id} has no results yet."))
        reply = Reply(
            headers={"content-type": "application/x-jsonl"}, body=joined(map(_told, self._outcomes(batch, _KINDS)))
        )
        return taken(scripted, reply) if scripted is not None else self.desk.mishaps.results(reply)

    def _delete(self, batch: Batch) -> Reply:
        if batch.ending is None:
            return _refused(400, "invalid_request_error", f"Batch {batch.id} has not ended. Cancel it first.")
        del self._batches[batch.id]
        return Reply(body={"id": batch.id, "type": "message_batch_deleted"})

    @staticmethod
    def _failure(script: BatchScript) -> Any:
        return Reply.anthropic_error(500, "api_error", script.message).body

    def _readable(self, batch: Batch) -> bool:
        stage = self._stage(batch)
        seen_at = stage.reached[stage.status] + batch.script.results_after
        return batch.ending is not None and self.desk.clock() >= seen_at

    def _object(self, batch: Batch, stage: Stage | None = None) -> dict[str, Any]:
        stage = stage or self._stage(batch)
        ended = batch.ending is not None and stage.ended
        counts = {"processing": 0 if ended else batch.life.total}
        counts |= {name: batch.counts[kind] if ended else 0 for kind, name in _KINDS.items()}
        origin = batch.script.results_origin or self.desk.origin()
        status = "in_progress" if stage.status in ("validating", "finalizing") else stage.status
        return {
            "id": batch.id,
            "type": "message_batch",
            "processing_status": "ended" if ended else "canceling" if status == "cancelling" else status,
            "request_counts": counts if batch.script.counts else None,
            "created_at": self.desk.iso(batch.life.created_at),
            "expires_at": self.desk.iso(batch.life.expires_at),
            "ended_at": self.desk.iso(stage.reached[stage.status]) if ended else None,
            "cancel_initiated_at": self.desk.iso(stage.reached.get("cancelling")),
            "archived_at": None,
            "results_url": f"{origin}/v1/messages/batches/{batch.id}/results" if ended else None,
        }

    def _page(self, hit: Hit, objects: list[dict[str, Any]]) -> Reply:
        names = [one["id"] for one in objects]
        limit = self._page_size(hit.query.get("limit", "20"), 1000)
        if limit is None:
            return _refused(400, "invalid_request_error", "limit: Input should be from 1 to 1000")
        after, before = hit.query.get("after_id"), hit.query.get("before_id")
        start, stop = 0, len(names)
        if before in names:
            stop = names.index(before)
            start = max(0, stop - limit)
        elif after in names:
            start = names.index(after) + 1
        page = objects[start : min(stop, start + limit)]
        more = start > 0 if before in names else start + limit < len(names)
        ends = (
            {"first_id": page[0]["id"], "last_id": page[-1]["id"]} if page else {"first_id": None, "last_id": None}
        )
        return Reply(body={"data": page, "has_more": more, **ends})


def _line(request: Mapping[str, Any]) -> Line:
    return Line(request["custom_id"], request["params"])


def _problem(requests: object, most: int) -> str | None:
    """Return what is wrong with the envelope."""
    if not isinstance(requests, list) or not requests:
        return "requests: List should have at least 1 item"
    if len(requests) > most:
        return f"requests: List should have at most {most} items"
    seen: set[str] = set()
    for index, request in enumerate(requests):
        name = request.get("custom_id") if isinstance(request, Mapping) else None
        if not isinstance(name, str) or not _CUSTOM_ID.fullmatch(name):
            return f"requests.{index}.custom_id: String should match pattern '^[a-zA-Z0-9_-]{{1,64}}$'"
        if name in seen:
            return f"requests.{index}.custom_id: {name} is not unique"
        if not isinstance(request.get("params"), Mapping):
            return f"requests.{index}.params: Field required"
        seen.add(name)
    return None


def _wrong(params: Mapping[str, Any], version: str) -> str | None:
    """Return what is wrong with the parameters of one message."""
    if params.get("stream"):
        return "stream: Batches do not stream"
    most = params.get("max_tokens")
    if not isinstance(most, int) or most < 1:
        return "max_tokens: Input should be greater than 0"
    if not isinstance(params.get("model"), str):
        return "model: Field required"
    if not params.get("messages"):
        return "messages: at least one message is required"
    banned = (*_NOT_IN_BATCHES, *(_SAMPLING if version >= _NO_SAMPLING_SINCE else ()))
    return next((f"{name}: Extra inputs are not permitted" for name in banned if name in params), None)


def _told(outcome: Outcome) -> str:
    """Return one line of results."""
    return f'{{"custom_id":{quoted(outcome.custom_id)},"result":{_result(outcome)}}}\n'


def _result(outcome: Outcome) -> str:
    kind = _KINDS[outcome.kind]
    if kind == "errored":
        return f'{{"type":"errored","error":{outcome.body}}}'
    return f'{{"type":"succeeded","message":{outcome.body}}}' if kind == "succeeded" else f'{{"type":"{kind}"}}'


def _refused(status: int, kind: str, message: str, *, headers: Mapping[str, str] | None = None) -> Reply:
    return Reply.anthropic_error(status, kind, message, headers=headers)
