"""``:batchGenerateContent`` and ``/v1beta/batches`` of a `ScriptedProvider`, in Gemini's form: requests that stand
in the body, each with a key.

Source: ai.google.dev/gemini-api/docs, page "Batch API", and the API reference "Batch". A batch that expires yields
nothing, and nothing is paid. Not documented, and so of our choice: the same of one that is cancelled, and that a
cancellation which comes too late changes nothing.
"""

from __future__ import annotations

import json
import re
import secrets
from collections.abc import Mapping
from typing import Any

from orchestra.testing.batch_life import BatchLife, Stage
from orchestra.testing.batches import Batch, BatchEndpoint, Outcome, taken
from orchestra.testing.content import Content
from orchestra.testing.gemini_form import model_of, refused
from orchestra.testing.inline_lines import inline_roll
from orchestra.testing.openai_form import object_of
from orchestra.testing.roll import Line
from orchestra.testing.script import Hit, Reply

__all__ = ["GeminiBatches"]

_PATH = re.compile(r"/v1beta/batches(?:/([^/:]+))?(?::(cancel))?$|/models/[^/:]+:batchGenerateContent$")
_TYPE = "type.googleapis.com/google.ai.generativelanguage.v1main.GenerateContentBatch"
_WINDOW = 48 * 3600.0
_CODES = {"failed": 13, "expired": 4, "cancelled": 1}
_TOLD = ("answered", "failed")
_STATES = {
    "validating": "PENDING",
    "in_progress": "RUNNING",
    "finalizing": "RUNNING",
    "cancelling": "RUNNING",
    "completed": "SUCCEEDED",
}


class GeminiBatches(BatchEndpoint):
    """Batches as long-running operations, which tell their results when they are done."""

    @staticmethod
    def serves(path: str) -> bool:
        return _PATH.search(path) is not None

    async def answer(self, hit: Hit, body: Content, account: str) -> Reply:
        match = _PATH.search(hit.path)
        assert match is not None
        name, verb = match.groups()
        model = model_of(hit.path)
        if model is not None and hit.method == "POST":
            return await self._create(body, model, account)
        if name is None and hit.method == "GET" and model is None:
            return self._page(hit, account)
        batch = self._find(name, account) if name is not None else None
        if name is not None and batch is None:
            return refused(404, f"There is no batches/{name}.")
        match hit.method, verb, batch:
            case "GET", None, Batch():
                return self._read(batch)
            case "POST", "cancel", Batch():
                self._cancelled(batch)
                return Reply(body={})
            case "DELETE", None, Batch():
                del self._batches[batch.id]
                return Reply(body={})
        return refused(405, f"Not allowed to {hit.method} {hit.path}.")

    async def _create(self, body: Content, model: str, account: str) -> Reply:
        limits = self.desk.limits
        if body.size > (limits.max_bytes or 20_000_000):
            return refused(400, "The request is too large; give a file instead.")
        asked = object_of(body)
        batch = asked.get("batch") if asked is not None else None
        source = batch.get("inputConfig", batch.get("input_config")) if isinstance(batch, Mapping) else None
        inner = source.get("requests") if isinstance(source, Mapping) else None
        requests = inner.get("requests") if isinstance(inner, Mapping) else None
        if not isinstance(batch, Mapping) or not isinstance(requests, list) or not requests:
            return refused(400, "batch.inputConfig.requests.requests must be a list of requests.")
        if not all(isinstance(one, Mapping) and isinstance(one.get("request"), Mapping) for one in requests):
            return refused(400, "Each request must be an object with a request.")
        if limits.max_requests is not None and len(requests) > limits.max_requests:
            return refused(400, f"A batch has at most {limits.max_requests} requests.")
        numbered = [{"number": number, **one} for number, one in enumerate(requests)]

        def line(request: Mapping[str, Any]) -> Line:
            return Line(_key(request), {"model": model, **request["request"]})

        script = self.desk.next_script()
        roll = await inline_roll(numbered, line, script.named, self.desk)
        most = limits.enqueued_tokens
        if most is not None and self._queued(model, account) + sum(roll.prompts) > most:
            return refused(429, f"More than {most} tokens would be in the queue of batches of {model}.")
        if self._creation_wait(account):
            return refused(429, "Too many batches were created.")
        made = Batch(
            id=secrets.token_hex(12),
            account=account,
            endpoint=f"/v1beta/models/{model}:generateContent",
            life=BatchLife(script, len(roll), self.desk.clock(), _WINDOW),
            roll=roll,
            facts={"model": model, "name": batch.get("displayName", batch.get("display_name"))},
        )
        return self._add(made, self._operation)

    def _queued(self, model: str, account: str) -> int:
        return sum(batch.tokens for batch in self._open_of(account) if batch.facts["model"] == model)

    def _end(self, batch: Batch, stage: Stage) -> None:
        done = stage.status == "completed"
        super()._end(batch, stage if done else Stage(stage.status, 0, stage.reached))

    def _read(self, batch: Batch) -> Reply:
        stage = self._stage(batch)
        readable = self.desk.clock() >= stage.reached[stage.status] + batch.script.results_after
        if stage.status != "completed" or not readable:
            return self._polled(batch, self._operation(batch))
        polled = self._polled(batch, self._operation(batch, results=True))
        if polled.status != 200:
            return polled
        return taken(batch.reads.popleft(), polled) if batch.reads else self.desk.mishaps.results(polled)

    def _page(self, hit: Hit, account: str) -> Reply:
        size = self._page_size(hit.query.get("pageSize", "50"), 1000)
        start = hit.query.get("pageToken") or "0"
        if size is None or not start.isdecimal():
            return refused(400, "pageSize must be from 1 to 1000, and pageToken one that was given.")
        first, batches = int(start), self._seen_by(account)
        told: dict[str, Any] = {"operations": [self._operation(one) for one in batches[first : first + size]]}
        if first + size < len(batches):
            told["nextPageToken"] = str(first + size)
        return Reply(body=told)

    def _operation(self, batch: Batch, stage: Stage | None = None, *, results: bool = False) -> dict[str, Any]:
        stage = stage or self._stage(batch)
        iso, name = self.desk.iso, f"batches/{batch.id}"
        metadata: dict[str, Any] = {
            "@type": _TYPE,
            "model": f"models/{batch.facts['model']}",
            "displayName": batch.facts["name"],
            "createTime": iso(batch.life.created_at),
            "updateTime": iso(stage.reached[stage.status]),
            "batchStats": self._stats(batch, stage),
            "state": f"BATCH_STATE_{_STATES.get(stage.status, stage.status.upper())}",
            "name": name,
        }
        told = {"name": name, "metadata": metadata}
        if not stage.ended or batch.ending is None:
            return told
        metadata["endTime"] = metadata["updateTime"]
        if stage.status != "completed":
            code = _CODES[stage.status]
            message = batch.script.message if stage.status == "failed" else f"The batch was {stage.status}."
            return {**told, "done": True, "error": {"code": code, "message": message}}
        if not results:
            return {**told, "done": True}
        output = {"inlinedResponses": {"inlinedResponses": list(map(_inlined, self._outcomes(batch, _TOLD)))}}
        metadata["output"] = output
        return {**told, "done": True, "response": output}

    def _stats(self, batch: Batch, stage: Stage) -> dict[str, str] | None:
        """Return the counts, which are strings, and left out where they are none."""
        if not batch.script.counts:
            return None
        total, ended = len(batch.roll), batch.ending is not None and stage.status == "completed"
        stats = {
            "requestCount": total,
            "successfulRequestCount": batch.counts["answered"] if ended else 0,
            "failedRequestCount": batch.counts["failed"] if ended else 0,
            "pendingRequestCount": 0 if ended else total,
        }
        return {name: str(count) for name, count in stats.items() if count}


def _key(request: Mapping[str, Any]) -> str:
    """Return the key of a request, or its number where it has none."""
    metadata = request.get("metadata")
    key = metadata.get("key") if isinstance(metadata, Mapping) else None
    return key if isinstance(key, str) else str(request["number"])


def _inlined(outcome: Outcome) -> dict[str, Any]:
    body = json.loads(outcome.body)
    told = {"response": body} if outcome.kind == "answered" else {"error": _error(outcome.status, body)}
    return {**told, "metadata": {"key": outcome.custom_id}}


def _error(status: int, body: Any) -> dict[str, Any]:
    error = body.get("error") if isinstance(body, Mapping) else None
    message = error.get("message") if isinstance(error, Mapping) else None
    return {"code": 3 if status < 500 else 13, "message": message or "scripted"}
