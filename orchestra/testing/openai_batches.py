"""``/v1/batches`` of a `ScriptedProvider`, in OpenAI's form.

Source: the "Batch" guide and the API reference of platform.openai.com/docs; the codes of refused input are those
that learn.microsoft.com documents for the same service. Not documented, and so of our choice: the status of a
cancellation that comes too late (409).
"""

from __future__ import annotations

import re
import secrets
from collections.abc import Mapping
from typing import Any

from orchestra.testing.batch_life import Stage
from orchestra.testing.batch_lines import LineRules
from orchestra.testing.batches import Batch
from orchestra.testing.content import Content
from orchestra.testing.file_batches import MONTH, FileBatches
from orchestra.testing.openai_form import invalid, object_of, page
from orchestra.testing.script import Hit, Reply

__all__ = ["OpenAIBatches"]

_PATH = re.compile(r"(?<!/messages)/batches(?:/([^/]+))?(?:/(cancel))?/?$")
_ELSEWHERE = re.compile(r"/(?:together|v1beta(?!/openai))/")
_TIMES = ("in_progress", "finalizing", "completed", "failed", "expired", "cancelling", "cancelled")


class OpenAIBatches(FileBatches):
    """Batches of uploaded files."""

    @staticmethod
    def serves(path: str) -> bool:
        return _PATH.search(path) is not None and _ELSEWHERE.search(path) is None

    async def answer(self, hit: Hit, body: Content, account: str) -> Reply:
        match = _PATH.search(hit.path)
        assert match is not None
        name, verb = match.groups()
        if name is None and hit.method == "POST":
            return await self._create(hit, body, account)
        if name is None and hit.method == "GET":
            return page([self._object(batch) for batch in self._seen_by(account)], hit.query, most=100)
        batch = self._find(name, account) if name is not None else None
        if name is not None and batch is None:
            return invalid(404, f"No batch found with id '{name}'.")
        match hit.method, verb, batch:
            case "GET", None, Batch():
                return self._polled(batch, self._object(batch))
            case "POST", "cancel", Batch():
                status = self._stage(batch).status
                if not self._cancelled(batch):
                    return invalid(409, f"Cannot cancel a batch with status '{status}'.")
                return Reply(body=self._object(batch))
        return invalid(405, f"Not allowed to {hit.method} {hit.path}.")

    async def _create(self, hit: Hit, body: Content, account: str) -> Reply:
        asked = object_of(body)
        if asked is None:
            return invalid(400, "We could not parse the JSON body of your request.")
        window = _seconds(asked.get("completion_window"), longer="/openai/" in hit.path)
        if window is None:
            return invalid(400, "completion_window must be '24h'.", param="completion_window")
        endpoint = asked.get("endpoint")
        if not isinstance(endpoint, str) or not self.desk.serves(endpoint):
            return invalid(400, f"There is no endpoint {endpoint!r} for batches.", param="endpoint")
        refusal = _refused_metadata(asked.get("metadata"))
        if refusal is not None:
            return refusal
        file = self.desk.files.find(asked.get("input_file_id"), account, self.desk.clock())
        if file is None or not isinstance(file.content, Content):
            return invalid(404, f"No such File object: {asked.get('input_file_id')}", param="input_file_id")
        if file.purpose != "batch":
            return invalid(400, "The input file's purpose must be 'batch'.", param="input_file_id")
        wait = self._creation_wait(account)
        if wait:
            hint = {"retry-after": f"{wait:.0f}"}
            message = "Too many batches were created in the last hour."
            return Reply.error(429, "rate_limit_exceeded", kind="requests", message=message, headers=hint)
        limits = self.desk.limits
        rules = LineRules(endpoint, limits.max_requests or 50_000, limits.max_bytes or 200_000_000)
        facts = {"asked": asked, "lifetime": (asked.get("output_expires_after") or {}).get("seconds", MONTH)}
        name = f"batch_{secrets.token_hex(12)}"
        return self._add(await self._made(name, account, file.content, rules, window, facts), self._object)

    def _object(self, batch: Batch, stage: Stage | None = None) -> dict[str, Any]:
        stage = stage or self._stage(batch)
        asked, unix = batch.facts["asked"], self.desk.unix
        problems = {"object": "list", "data": batch.problems} if stage.status == "failed" else None
        reached = {f"{status}_at": unix(stage.reached.get(status)) for status in _TIMES}
        head = {
            "id": batch.id,
            "object": "batch",
            "endpoint": batch.endpoint,
            "model": batch.facts["model"],
            "errors": problems,
            "input_file_id": asked["input_file_id"],
            "completion_window": asked["completion_window"],
            "status": stage.status,
            "output_file_id": self._file_of(batch, "output", stage),
            "error_file_id": self._file_of(batch, "error", stage),
            "created_at": unix(batch.life.created_at),
            "expires_at": unix(batch.life.expires_at),
        }
        counts = self._counts(batch, stage) if batch.script.counts else None
        usage = _batch_usage(batch.facts["usage"]) if stage.ended and "usage" in batch.facts else None
        return {**head, **reached, "request_counts": counts, "metadata": asked.get("metadata"), "usage": usage}

    def _counts(self, batch: Batch, stage: Stage) -> Mapping[str, int]:
        if stage.status == "validating" or batch.problems:
            return {"total": 0, "completed": 0, "failed": 0}
        if batch.ending is not None and stage.ended:
            told = batch.counts
            failed = told["failed"] + told["expired"]
            return {"total": batch.life.total, "completed": told["answered"], "failed": failed}
        failed = len(batch.failed_before(stage.answered))
        return {"total": batch.life.total, "completed": stage.answered - failed, "failed": failed}


def _batch_usage(used: tuple[int, int]) -> dict[str, Any]:
    return {
        "input_tokens": used[0],
        "input_tokens_details": {"cached_tokens": 0},
        "output_tokens": used[1],
        "output_tokens_details": {"reasoning_tokens": 0},
        "total_tokens": sum(used),
    }


def _seconds(window: object, *, longer: bool) -> float | None:
    """Return the seconds of a completion window: OpenAI takes 24 hours, and who serves its form, up to 7 days."""
    if window == "24h":
        return 86400.0
    match = re.fullmatch(r"(\d+)([hd])", window) if longer and isinstance(window, str) else None
    seconds = int(match[1]) * (3600 if match[2] == "h" else 86400) if match else 0
    return float(seconds) if 86400 <= seconds <= 7 * 86400 else None


def _refused_metadata(metadata: object) -> Reply | None:
    if metadata is None:
        return None
    if not isinstance(metadata, Mapping) or len(metadata) > 16:
        return invalid(400, "metadata must be an object of at most 16 pairs.", param="metadata")
    for key, value in metadata.items():
        if len(key) > 64 or not isinstance(value, str) or len(value) > 512:
            return invalid(400, "metadata has keys of at most 64, and strings of at most 512", param="metadata")
    return None
