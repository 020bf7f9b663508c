"""What the batch endpoints have in common that read a file and write files: OpenAI's, Mistral's, Together's."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from orchestra.testing.batch_life import BatchLife, Stage
from orchestra.testing.batch_lines import CheckedLines, LineRules, check_lines
from orchestra.testing.batches import Batch, BatchEndpoint, Outcome
from orchestra.testing.content import Content, joined
from orchestra.testing.encoding import quoted
from orchestra.testing.file_store import Generated
from orchestra.testing.roll import Roll

__all__ = ["MONTH", "FileBatches", "used"]

MONTH = 30 * 86400
_LATE = "This request could not be executed before the completion window expired."
_EXPIRED = f'null,"error":{{"code":"batch_expired","message":"{_LATE}"}}}}\n'


class FileBatches(BatchEndpoint):
    """Batches of files. What was answered ends up in one file, what failed or expired in another."""

    async def _made(
        self, name: str, account: str, content: Content, rules: LineRules, window: float, facts: dict[str, Any]
    ) -> Batch:
        """Return the batch of a file, which has failed already where its lines are wrong."""
        script = self.desk.next_script()
        checked = await check_lines(content, rules, script.named, self.desk)
        if not checked.problems and script.end == "failed":
            checked.refuse(script.code, script.message)
        if not checked.problems:
            self._check_queue(checked, account)
        rejected = bool(checked.problems)
        roll = Roll(content, _nothing) if rejected else checked.roll
        life = BatchLife(script, len(roll), self.desk.clock(), window, rejected)
        facts = {"model": checked.model, **facts}
        return Batch(name, account, rules.endpoint, life, roll, facts, checked.problems)

    def _check_queue(self, checked: CheckedLines, account: str) -> None:
        most = self.desk.limits.enqueued_tokens
        if most is None:
            return
        queued = [batch.tokens for batch in self._open_of(account) if batch.facts["model"] == checked.model]
        if sum(queued) + sum(checked.roll.prompts) > most:
            checked.refuse("token_limit_exceeded", f"Enqueued token limit reached for {checked.model}: {most}.")

    def _finish(self, batch: Batch, stage: Stage) -> None:
        if batch.problems:
            return
        for kind, kinds in (("output", ("answered",)), ("error", ("failed", "expired"))):
            if batch.script.empty_files or any(batch.counts[one] for one in kinds):
                batch.facts[kind] = self._result_file(batch, kind, kinds, stage.reached[stage.status])
        batch.facts["usage"] = self._usage(batch, stage)

    def _result_file(self, batch: Batch, kind: str, kinds: tuple[str, ...], now: float) -> str:
        file = self.desk.files.add(
            batch.account,
            f"{batch.id}_{kind}.jsonl",
            Generated(lambda: self._pieces(batch, kinds)),
            purpose="batch_output",
            now=now,
            hidden=batch.script.results_after,
            lifetime=batch.facts.get("lifetime", MONTH),
            reads=batch.reads,
        )
        return file.id

    def _pieces(self, batch: Batch, kinds: tuple[str, ...]) -> Iterator[bytes]:
        outcomes = enumerate(self._outcomes(batch, kinds))
        return joined(_result(outcome, f"{batch.id[-12:]}{number:06}") for number, outcome in outcomes)

    def _usage(self, batch: Batch, stage: Stage) -> tuple[int, int]:
        """Return the tokens of the prompts and answers of all lines that were answered well."""
        roll, until = batch.roll, stage.answered
        prompts, outputs = sum(roll.prompts[:until]), sum(roll.outputs[:until])
        for position in batch.missing | batch.replies.keys():
            if not 0 <= position < until:
                continue
            prompts, outputs = prompts - roll.prompts[position], outputs - roll.outputs[position]
            reply = batch.replies.get(position)
            if reply is None or position in batch.missing or reply.status >= 400:
                continue
            told = (roll.prompts[position], roll.outputs[position]) if reply.body is None else used(reply.body)
            prompts, outputs = prompts + told[0], outputs + told[1]
        return prompts, outputs

    def _file_of(self, batch: Batch, kind: str, stage: Stage) -> str | None:
        """Return the id of a file of results, where there is one, or what stands for one that there is not."""
        absent = batch.script.absent_id
        return batch.facts.get(kind, absent) if batch.ending is not None and stage.ended else absent


def _result(outcome: Outcome, name: str) -> str:
    """Return one line of results."""
    head = f'{{"id":"batch_req_{name}","custom_id":{quoted(outcome.custom_id)},"response":'
    if outcome.kind == "expired":
        return head + _EXPIRED
    told = f'{{"status_code":{outcome.status},"request_id":"req_{name}","body":{outcome.body}}}'
    return f'{head}{told},"error":null}}\n'


def used(body: Any) -> tuple[int, int]:
    """Return the tokens of the prompt and the answer that a body tells, in OpenAI's words."""
    usage = body.get("usage") if isinstance(body, Mapping) else None
    usage = usage if isinstance(usage, Mapping) else {}
    prompt = usage.get("prompt_tokens", usage.get("input_tokens", 0))
    return prompt, usage.get("completion_tokens", usage.get("output_tokens", 0))


def _nothing(raw: bytes) -> Any:
    raise IndexError("a batch that was refused has no lines")
