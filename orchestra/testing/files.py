"""``/v1/files`` of a `ScriptedProvider`, in the forms of OpenAI, Mistral and Together: they differ in what they
tell of a file. Whose form it is says the path: ``/mistral/v1``, ``/together/v1``, and OpenAI's everywhere else."""

from __future__ import annotations

import re
from typing import Any

from orchestra.testing.batches import Desk, taken
from orchestra.testing.content import Content
from orchestra.testing.file_batches import MONTH
from orchestra.testing.file_store import Generated, StoredFile
from orchestra.testing.form_data import form_fields
from orchestra.testing.openai_form import invalid, page
from orchestra.testing.script import Hit, Reply

__all__ = ["Files"]

_PATH = re.compile(r"/files(?:/([^/]+))?(?:/(content))?/?$")
_GEMINI = re.compile(r"/v1beta/(?!openai/)")


class Files:
    """Files that are uploaded for batches, and those that batches leave."""

    def __init__(self, desk: Desk) -> None:
        self.desk = desk

    @staticmethod
    def serves(path: str) -> bool:
        return _PATH.search(path) is not None and _GEMINI.search(path) is None

    def settle(self) -> None:
        """Nothing becomes of files."""

    async def answer(self, hit: Hit, body: Content, account: str) -> Reply:
        match = _PATH.search(hit.path)
        assert match is not None
        name, verb = match.groups()
        files, now = self.desk.files, self.desk.clock()
        if (
            hit.method == "POST"
            and verb is None
            and (name is None or (name, _root(hit)) == ("upload", "together"))
        ):
            return self._upload(hit, body, account)
        if hit.method == "GET" and name is None:
            purpose = hit.query.get("purpose")
            seen = [file for file in files.seen_by(account, now) if purpose in (None, file.purpose)]
            return page([self._told(file, hit) for file in seen], hit.query, most=10_000)
        if name is None or hit.method not in ("GET", "DELETE"):
            return invalid(405, f"Not allowed to {hit.method} {hit.path}.")
        file = files.find(name, account, now)
        if file is None:
            return invalid(404, f"No such File object: {name}", param="id")
        if hit.method == "DELETE":
            files.remove(name)
            return Reply(body={"id": name, "object": "file", "deleted": True})
        if verb is None:
            return Reply(body=self._told(file, hit))
        return self._content(file)

    def _content(self, file: StoredFile) -> Reply:
        usual = Reply(headers={"content-type": "application/octet-stream"}, body=file.content.pieces())
        if file.reads:
            return taken(file.reads.popleft(), usual)
        return self.desk.mishaps.results(usual) if isinstance(file.content, Generated) else usual

    def _upload(self, hit: Hit, body: Content, account: str) -> Reply:
        fields = form_fields(hit.headers.get("content-type", ""), body)
        if "file" not in fields or "purpose" not in fields:
            missing = "file" if "file" not in fields else "purpose"
            return invalid(400, f"Missing required parameter: '{missing}'.", param=missing)
        lifetime = fields["expires_after[seconds]"].value if "expires_after[seconds]" in fields else b"%d" % MONTH
        if not lifetime.isdigit():
            return invalid(400, "expires_after.seconds must be a number.", param="expires_after.seconds")
        with self.desk.lock:
            self.desk.files.uploads += 1
            file = self.desk.files.add(
                account,
                fields["file"].filename or "upload",
                fields["file"].content,
                purpose=fields["purpose"].value.decode(),
                now=self.desk.clock(),
                hidden=self.desk.file_delay,
                lifetime=int(lifetime),
            )
        return self.desk.mishaps.upload(Reply(body=self._told(file, hit)))

    def _told(self, file: StoredFile, hit: Hit) -> dict[str, Any]:
        told = {
            "id": file.id,
            "object": "file",
            "bytes": file.content.size,
            "created_at": self.desk.unix(file.created_at),
            "filename": file.filename,
            "purpose": file.purpose,
        }
        match _root(hit):
            case "together":
                return {**told, "type": "jsonl", "processed": True, "line_count": 0}
            case "mistral":
                return {**told, "sample_type": "batch_request", "source": "upload", "num_lines": None}
        expires_at = self.desk.unix(file.expires_at)
        return {**told, "expires_at": expires_at, "status": "processed", "status_details": None}


def _root(hit: Hit) -> str:
    return hit.path.split("/", 2)[1]
