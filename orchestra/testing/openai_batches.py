"""``/v1/files`` and ``/v1/batches`` of a `ScriptedProvider`, in OpenAI's form.

Source: the "Batch" guide and the API reference of platform.openai.com/docs; the codes of refused input are those
that learn.microsoft.com documents for the same service. Not documented, and so of our choice: the status of a
cancellation that comes too late (409).
"""

from __future__ import annotations

import json
import re
import secrets
from collections.abc import Iterable, Mapping, Sequence
from itertools import islice
from typing import Any

from orchestra.testing.batch_life import ENDS, BatchLife, Stage
from orchestra.testing.batches import Batch, BatchEndpoint, Desk, Outcome, taken
from orchestra.testing.file_store import FileStore, StoredFile, form_fields
from orchestra.testing.openai_lines import check_lines, lines_of
from orchestra.testing.script import Hit, Reply, count_tokens

__all__ = ["OpenAIBatches"]

_PATH = re.compile(r"(?<!/messages)/(files|batches)(?:/([^/]+))?(?:/(content|cancel))?/?$")
_MONTH = 30 * 86400
_compact = json.JSONEncoder(separators=(",", ":")).encode
_TIMES = ("in_progress", "finalizing", "completed", "failed", "expired", "cancelling", "cancelled")


class OpenAIBatches(BatchEndpoint):
    """Files, and batches of them."""

    def __init__(self, desk: Desk) -> None:
        super().__init__(desk)
        self._files = FileStore()

    @staticmethod
    def serves(path: str) -> bool:
        return _PATH.search(path) is not None

    def answer(self, hit: Hit, account: str) -> Reply:
        match = _PATH.search(hit.path)
        assert match is not None
        noun, name, verb = match.groups()
        match noun, hit.method, name, verb:
            case "files", "POST", None, None:
                return self._upload(hit, account)
            case "files", "GET", None, None:
                files = self._files.seen_by(account, self.desk.clock())
                purpose = hit.query.get("purpose")
                told = [self._told(file) for file in files if purpose in (None, file.purpose)]
                return self._page(hit, told, most=10_000)
            case "files", "GET" | "DELETE", str(), None | "content":
                return self._file(hit.method, name, verb, account)
            case "batches", "POST", None, None:
                return self._create(hit, account)
            case "batches", "GET", None, None:
                return self._page(hit, [self._object(batch) for batch in self._seen_by(account)], most=100)
            case "batches", "GET", str(), None:
                return self._poll(name, account)
            case "batches", "POST", str(), "cancel":
                return self._cancel(name, account)
        return _refused(405, f"Not allowed to {hit.method} {hit.path}.")

    def _upload(self, hit: Hit, account: str) -> Reply:
        fields = form_fields(hit.headers.get("content-type", ""), hit.body)
        if "file" not in fields or "purpose" not in fields:
            missing = "file" if "file" not in fields else "purpose"
            return _refused(400, f"Missing required parameter: '{missing}'.", param=missing)
        lifetime = fields["expires_after[seconds]"].value if "expires_after[seconds]" in fields else b"%d" % _MONTH
        if not lifetime.isdigit():
            return _refused(400, "expires_after.seconds must be a number.", param="expires_after.seconds")
        file = self._files.add(
            account,
            fields["file"].filename or "upload",
            fields["file"].value,
            purpose=fields["purpose"].value.decode(),
            now=self.desk.clock(),
            hidden=self.desk.file_delay,
            lifetime=int(lifetime),
        )
        return Reply(body=self._told(file))

    def _file(self, method: str, name: str, verb: str | None, account: str) -> Reply:
        scripted = None
        for batch in self._batches.values():
            if verb == "content" and name in (batch.facts.get("output"), batch.facts.get("error")) and batch.reads:
                scripted = batch.reads.popleft()
        file = self._files.find(name, account, self.desk.clock())
        if file is None:
            return taken(scripted, _refused(404, f"No such File object: {name}", param="id"))
        if method == "DELETE":
            self._files.remove(name)
            return Reply(body={"id": name, "object": "file", "deleted": True})
        if verb is None:
            return Reply(body=self._told(file))
        content = Reply(headers={"content-type": "application/octet-stream"}, body=file.content.read())
        return taken(scripted, content)

    def _create(self, hit: Hit, account: str) -> Reply:
        try:
            asked = json.loads(hit.body)
        except ValueError:
            asked = None
        if not isinstance(asked, dict):
            return _refused(400, "We could not parse the JSON body of your request.")
        window = _seconds(asked.get("completion_window"), longer="/openai/" in hit.path)
        if window is None:
            return _refused(400, "completion_window must be '24h'.", param="completion_window")
        endpoint = asked.get("endpoint")
        if not isinstance(endpoint, str) or not endpoint.startswith("/"):
            return _refused(400, "endpoint must be the path of an endpoint.", param="endpoint")
        refusal = _refused_metadata(asked.get("metadata"))
        if refusal is not None:
            return refusal
        file = self._files.find(asked.get("input_file_id"), account, self.desk.clock())
        if file is None:
            message = f"No such File object: {asked.get('input_file_id')}"
            return _refused(404, message, param="input_file_id")
        if file.purpose != "batch":
            return _refused(400, "The input file's purpose must be 'batch'.", param="input_file_id")
        wait = self._creation_wait(account)
        if wait:
            hint = {"retry-after": f"{wait:.0f}"}
            message = "Too many batches were created in the last hour."
            return Reply.error(429, "rate_limit_exceeded", kind="requests", message=message, headers=hint)
        batch = self._made(asked, file, window, account)
        self._add(batch)
        return taken(batch.script.on_create, Reply(body=self._object(batch, batch.life.created)))

    def _made(self, asked: Mapping[str, Any], file: StoredFile, window: float, account: str) -> Batch:
        script, limits = self._next_script(), self.desk.limits
        endpoint = asked["endpoint"]
        checked = check_lines(
            file.content.read(), endpoint, limits.max_requests or 50_000, limits.max_bytes or 200_000_000
        )
        problems, tokens = checked.problems, 0
        if not problems and script.end == "failed":
            problems = [_problem(script.code, script.message)]
        if not problems and limits.enqueued_tokens is not None:
            tokens = sum(count_tokens(line.payload) for line in lines_of(file.content.read()))
            queued = [batch.tokens for batch in self._open(account) if batch.facts["model"] == checked.model]
            if sum(queued) + tokens > limits.enqueued_tokens:
                message = f"Enqueued token limit reached for {checked.model}: {limits.enqueued_tokens}."
                problems, tokens = [_problem("token_limit_exceeded", message)], 0
        rejected = bool(problems)
        life = BatchLife(script, 0 if rejected else checked.count, self.desk.clock(), window, rejected)
        facts = {"asked": dict(asked), "model": checked.model}
        name = f"batch_{secrets.token_hex(12)}"
        return Batch(name, account, endpoint, life, lambda: lines_of(file.content.read()), facts, tokens, problems)

    def _poll(self, name: str, account: str) -> Reply:
        batch = self._find(name, account)
        if batch is None:
            return _no_batch(name)
        scripted = batch.polls.popleft() if batch.polls else None
        return taken(scripted, Reply(body=self._object(batch)))

    def _cancel(self, name: str, account: str) -> Reply:
        batch = self._find(name, account)
        if batch is None:
            return _no_batch(name)
        now = self.desk.clock()
        status = batch.life.stage(now).status
        if status in ENDS:
            return _refused(409, f"Cannot cancel a batch with status '{status}'.")
        batch.life = batch.life.cancel(now)
        self.settle()
        return Reply(body=self._object(batch))

    def _finish(self, batch: Batch, stage: Stage, outcomes: Iterable[Outcome]) -> Mapping[str, int]:
        if batch.problems:
            return {"total": 0, "completed": 0, "failed": 0}
        output: list[bytes] = []
        errors: list[bytes] = []
        prompts, answers = 0, 0
        for number, outcome in enumerate(outcomes):
            if outcome.kind == "cancelled":
                continue
            good = outcome.kind == "answered" and outcome.status < 400
            (output if good else errors).append(_result(outcome, f"{batch.id[-12:]}{number:06}"))
            if good and isinstance(outcome.body, Mapping):
                prompt, answer = _usage(outcome.body)
                prompts, answers = prompts + prompt, answers + answer
        ended_at = stage.reached[stage.status]
        files = {
            kind: self._result_file(batch, kind, lines, ended_at)
            for kind, lines in (("output", output), ("error", errors))
            if lines or batch.script.empty_files
        }
        batch.facts = {**batch.facts, **files, "usage": (prompts, answers)}
        return {"total": batch.life.total, "completed": len(output), "failed": len(errors)}

    def _result_file(self, batch: Batch, kind: str, lines: Sequence[bytes], now: float) -> str:
        lifetime = (batch.facts["asked"].get("output_expires_after") or {}).get("seconds", _MONTH)
        file = self._files.add(
            batch.account,
            f"{batch.id}_{kind}.jsonl",
            b"".join(lines),
            purpose="batch_output",
            now=now,
            hidden=batch.script.results_after,
            lifetime=lifetime,
        )
        return file.id

    def _object(self, batch: Batch, stage: Stage | None = None) -> dict[str, Any]:
        stage = stage or batch.life.stage(self.desk.clock())
        asked, absent, ended = batch.facts["asked"], batch.script.absent_id, batch.settled and stage.ended
        problems = {"object": "list", "data": batch.problems} if stage.status == "failed" else None
        reached = {f"{status}_at": self._unix(stage.reached.get(status)) for status in _TIMES}
        head = {
            "id": batch.id,
            "object": "batch",
            "endpoint": batch.endpoint,
            "model": batch.facts["model"],
            "errors": problems,
            "input_file_id": asked["input_file_id"],
            "completion_window": asked["completion_window"],
            "status": stage.status,
            "output_file_id": batch.facts.get("output", absent) if ended else absent,
            "error_file_id": batch.facts.get("error", absent) if ended else absent,
            "created_at": self._unix(batch.life.created_at),
            "expires_at": self._unix(batch.life.expires_at),
        }
        counts = self._counts(batch, stage) if batch.script.counts else None
        usage = _batch_usage(batch.facts["usage"]) if ended and "usage" in batch.facts else None
        return {**head, **reached, "request_counts": counts, "metadata": asked.get("metadata"), "usage": usage}

    def _counts(self, batch: Batch, stage: Stage) -> Mapping[str, int]:
        if batch.settled and stage.ended:
            return batch.counts
        if stage.status == "validating" or batch.problems:
            return {"total": 0, "completed": 0, "failed": 0}
        failed = 0
        if batch.script.replies:
            first = enumerate(islice(batch.lines(), stage.answered))
            failed = sum(self._reply_to(batch, index, line).status >= 400 for index, line in first)
        return {"total": batch.life.total, "completed": stage.answered - failed, "failed": failed}

    def _told(self, file: StoredFile) -> dict[str, Any]:
        return {
            "id": file.id,
            "object": "file",
            "bytes": file.content.size,
            "created_at": self._unix(file.created_at),
            "expires_at": self._unix(file.expires_at),
            "filename": file.filename,
            "purpose": file.purpose,
            "status": "processed",
            "status_details": None,
        }

    def _page(self, hit: Hit, objects: list[dict[str, Any]], most: int) -> Reply:
        names = [one["id"] for one in objects]
        after, limit = hit.query.get("after"), self._page_size(hit, most)
        if limit is None:
            return _refused(400, f"limit must be from 1 to {most}.", param="limit")
        if after is not None and after not in names:
            return _refused(400, f"There is no {after} to go on after.", param="after")
        start = names.index(after) + 1 if after is not None else 0
        page = objects[start : start + limit]
        ends = (
            {"first_id": page[0]["id"], "last_id": page[-1]["id"]} if page else {"first_id": None, "last_id": None}
        )
        more = start + limit < len(objects)
        return Reply(body={"object": "list", "data": page, **ends, "has_more": more})

    def _unix(self, instant: float | None) -> int | None:
        return None if instant is None else int(self.desk.epoch + instant)


def _result(outcome: Outcome, name: str) -> bytes:
    response, error = None, None
    if outcome.kind == "answered":
        response = {"status_code": outcome.status, "request_id": f"req_{name}", "body": outcome.body}
    else:
        message = "This request could not be executed before the completion window expired."
        error = {"code": "batch_expired", "message": message}
    told = {"id": f"batch_req_{name}", "custom_id": outcome.custom_id, "response": response, "error": error}
    return _compact(told).encode() + b"\n"


def _usage(body: Mapping[str, Any]) -> tuple[int, int]:
    usage = body.get("usage") or {}
    prompt = usage.get("prompt_tokens", usage.get("input_tokens", 0))
    return prompt, usage.get("completion_tokens", usage.get("output_tokens", 0))


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
        return _refused(400, "metadata must be an object of at most 16 pairs.", param="metadata")
    for key, value in metadata.items():
        if len(key) > 64 or not isinstance(value, str) or len(value) > 512:
            return _refused(400, "metadata has keys of at most 64, and strings of at most 512", param="metadata")
    return None


def _problem(code: str, message: str) -> dict[str, Any]:
    return {"code": code, "line": None, "message": message, "param": None}


def _no_batch(name: str) -> Reply:
    return _refused(404, f"No batch found with id '{name}'.")


def _refused(status: int, message: str, *, param: str | None = None) -> Reply:
    error = {"message": message, "type": "invalid_request_error", "param": param, "code": None}
    return Reply(status, body={"error": error})
