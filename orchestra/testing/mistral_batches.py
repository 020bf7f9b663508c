"""``/v1/batch/jobs`` of a `ScriptedProvider`, in Mistral's form.

Source: docs.mistral.ai, page "Batch", and the types of mistralai's own client. Not documented, and so of our
choice: the status of a cancellation that comes too late (400), and that the requests which stand in the body of a
creation end up in files as well.
"""

from __future__ import annotations

import re
import uuid
from collections import Counter
from collections.abc import Mapping
from typing import Any

from orchestra.testing.batch_life import Stage
from orchestra.testing.batch_lines import LineRules
from orchestra.testing.batches import Batch
from orchestra.testing.content import Content
from orchestra.testing.file_batches import FileBatches
from orchestra.testing.inline_lines import jsonl
from orchestra.testing.openai_form import invalid, object_of
from orchestra.testing.script import Hit, Reply

__all__ = ["MistralBatches"]

_PATH = re.compile(r"/batch/jobs(?:/([^/]+))?(?:/(cancel))?/?$")
_STATUSES = {
    "validating": "QUEUED",
    "in_progress": "RUNNING",
    "finalizing": "RUNNING",
    "completed": "SUCCESS",
    "expired": "TIMEOUT_EXCEEDED",
    "cancelling": "CANCELLATION_REQUESTED",
}


class MistralBatches(FileBatches):
    """Batches of files, or of requests in the body; the job names the model."""

    @staticmethod
    def serves(path: str) -> bool:
        return _PATH.search(path) is not None

    async def answer(self, hit: Hit, body: Content, account: str) -> Reply:
        match = _PATH.search(hit.path)
        assert match is not None
        name, verb = match.groups()
        if name is None and hit.method == "POST":
            return await self._create(body, account)
        if name is None and hit.method == "GET":
            return self._page(hit, account)
        batch = self._find(name, account) if name is not None else None
        if name is not None and batch is None:
            return invalid(404, f"No job {name}.")
        match hit.method, verb, batch:
            case "GET", None, Batch():
                return self._polled(batch, self._object(batch))
            case "POST", "cancel", Batch():
                if not self._cancelled(batch):
                    return invalid(400, f"Job {name} has ended.")
                return Reply(body=self._object(batch))
            case "DELETE", None, Batch():
                del self._batches[batch.id]
                return Reply(body={"id": batch.id, "object": "batch", "deleted": True})
        return invalid(405, f"Not allowed to {hit.method} {hit.path}.")

    async def _create(self, body: Content, account: str) -> Reply:
        asked = object_of(body)
        if asked is None:
            return invalid(400, "The body is not a JSON object.")
        endpoint, hours, model = asked.get("endpoint"), asked.get("timeout_hours", 24), asked.get("model")
        if not isinstance(endpoint, str) or not self.desk.serves(endpoint):
            return invalid(422, f"There is no endpoint {endpoint!r} for batches.", param="endpoint")
        if not isinstance(hours, int) or not 1 <= hours <= 168:
            return invalid(422, "timeout_hours must be from 1 to 168.", param="timeout_hours")
        files, requests = asked.get("input_files") or [], asked.get("requests")
        if bool(files) == bool(requests) or len(files) > 1:
            return invalid(422, "One of input_files, of one id, and requests is needed.", param="input_files")
        if requests:
            content = jsonl(requests)
        else:
            file = self.desk.files.find(files[0], account, self.desk.clock())
            if file is None or not isinstance(file.content, Content):
                return invalid(404, f"No file {files[0]}.", param="input_files")
            content = file.content
        limits = self.desk.limits
        sizes = limits.max_requests or 1_000_000, limits.max_bytes or 512_000_000
        rules = LineRules(endpoint, *sizes, model if isinstance(model, str) else None, routed=False)
        facts = {"files": files, "metadata": asked.get("metadata")}
        batch = await self._made(str(uuid.uuid4()), account, content, rules, hours * 3600.0, facts)
        return self._add(batch, self._object)

    def _page(self, hit: Hit, account: str) -> Reply:
        told, size = hit.query.get("page", "0"), self._page_size(hit.query.get("page_size", "100"), 1000)
        if not told.isdecimal() or size is None:
            return invalid(422, "page must be from 0 on, and page_size from 1 to 1000.", param="page")
        jobs = [self._object(batch) for batch in self._seen_by(account)]
        wanted = hit.query.get("status")
        jobs = [job for job in jobs if wanted in (None, job["status"])]
        start = int(told) * size
        return Reply(body={"object": "list", "data": jobs[start : start + size], "total": len(jobs)})

    def _object(self, batch: Batch, stage: Stage | None = None) -> dict[str, Any]:
        stage = stage or self._stage(batch)
        unix, told = self.desk.unix, self._counts(batch, stage)
        return {
            "id": batch.id,
            "object": "batch",
            "input_files": batch.facts["files"],
            "endpoint": batch.endpoint,
            "model": batch.facts["model"],
            "agent_id": None,
            "errors": _errors(batch) if stage.status == "failed" else [],
            "status": _STATUSES.get(stage.status, stage.status.upper()),
            "created_at": unix(batch.life.created_at),
            "started_at": unix(stage.reached.get("in_progress")),
            "completed_at": unix(stage.reached[stage.status]) if stage.ended else None,
            "total_requests": len(batch.roll),
            "completed_requests": told["answered"] + told["failed"],
            "succeeded_requests": told["answered"],
            "failed_requests": told["failed"],
            "output_file": self._file_of(batch, "output", stage),
            "error_file": self._file_of(batch, "error", stage),
            "outputs": None,
            "metadata": batch.facts["metadata"],
        }

    def _counts(self, batch: Batch, stage: Stage) -> Mapping[str, int]:
        if batch.ending is not None and stage.ended:
            return batch.counts
        failed = len(batch.failed_before(stage.answered))
        return {"answered": stage.answered - failed, "failed": failed}


def _errors(batch: Batch) -> list[dict[str, Any]]:
    told = Counter(problem["message"] for problem in batch.problems)
    return [{"message": message, "count": count} for message, count in told.items()]
