"""``/together/v1/batches`` of a `ScriptedProvider`, in Together's form.

Source: docs.together.ai, page "Batch", and the types of together's own client. Not documented, and so of our
choice: the status of a cancellation that comes too late (400), and that a batch tells of being cancelled only
afterwards.
"""

from __future__ import annotations

import re
import uuid
from typing import Any

from orchestra.testing.batch_life import Stage
from orchestra.testing.batch_lines import LineRules
from orchestra.testing.batches import Batch
from orchestra.testing.content import Content
from orchestra.testing.file_batches import FileBatches
from orchestra.testing.openai_form import invalid, object_of
from orchestra.testing.script import Hit, Reply

__all__ = ["TogetherBatches"]

_PATH = re.compile(r"/together/v1/batches(?:/([^/]+))?(?:/(cancel))?/?$")
_IN_PROGRESS = ("in_progress", "finalizing", "cancelling")


class TogetherBatches(FileBatches):
    """Batches of uploaded files, whose lines say neither method nor url."""

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
            return Reply(body=[self._object(batch) for batch in self._seen_by(account)])
        batch = self._find(name, account) if name is not None else None
        if name is not None and batch is None:
            return invalid(404, f"No batch {name}.")
        match hit.method, verb, batch:
            case "GET", None, Batch():
                return self._polled(batch, self._object(batch))
            case "POST", "cancel", Batch():
                if not self._cancelled(batch):
                    return invalid(400, f"Batch {name} has ended.")
                return Reply(body=self._object(batch))
        return invalid(405, f"Not allowed to {hit.method} {hit.path}.")

    async def _create(self, body: Content, account: str) -> Reply:
        asked = object_of(body)
        if asked is None:
            return invalid(400, "The body is not a JSON object.")
        endpoint = asked.get("endpoint")
        if not isinstance(endpoint, str) or not self.desk.serves(endpoint):
            return invalid(400, f"There is no endpoint {endpoint!r} for batches.", param="endpoint")
        file = self.desk.files.find(asked.get("input_file_id"), account, self.desk.clock())
        if file is None or not isinstance(file.content, Content):
            return invalid(404, f"No file {asked.get('input_file_id')}.", param="input_file_id")
        limits, model = self.desk.limits, asked.get("model_id")
        sizes = limits.max_requests or 50_000, limits.max_bytes or 100_000_000
        rules = LineRules(endpoint, *sizes, model if isinstance(model, str) else None, routed=False)
        facts = {"file": file.id, "size": file.content.size}
        batch = await self._made(str(uuid.uuid4()), account, file.content, rules, 86400.0, facts)
        return self._add(batch, lambda batch, stage: {"job": self._object(batch, stage), "warning": None})

    def _object(self, batch: Batch, stage: Stage | None = None) -> dict[str, Any]:
        stage = stage or self._stage(batch)
        facts, iso, total = batch.facts, self.desk.iso, len(batch.roll)
        progress = 100.0 if stage.status == "completed" else 100.0 * stage.answered / total if total else 0.0
        error = "; ".join(problem["message"] for problem in batch.problems)
        failed = {"error": error} if stage.status == "failed" else {}
        return {
            "id": batch.id,
            "user_id": batch.account,
            "input_file_id": facts["file"],
            "file_size_bytes": facts["size"],
            "status": "IN_PROGRESS" if stage.status in _IN_PROGRESS else stage.status.upper(),
            "progress": progress,
            "job_deadline": iso(batch.life.expires_at),
            "created_at": iso(batch.life.created_at),
            "completed_at": iso(stage.reached[stage.status]) if stage.ended else None,
            "endpoint": batch.endpoint,
            "model_id": facts["model"],
            "output_file_id": self._file_of(batch, "output", stage),
            "error_file_id": self._file_of(batch, "error", stage),
            **failed,
        }
