"""What another process on this machine may ask a `ScriptedProvider`, and tell it, below ``/__orchestra/``.

- ``GET bills``: what was paid, and what of it twice; how many files and batches there were, and which faults.
- ``POST batches`` with an object of `BatchScript`'s numbers, words and flags: batches to come take another course.
  ``on_create`` may be an object with a `Reply`'s ``delay`` and ``drop``.
- ``POST background`` with the same: responses in the background to come do.
- ``POST faults`` with an object of `BatchFaults`' fields: what goes wrong from now on.
- ``POST reset``: files, batches and bills are forgotten.
- ``POST kill?seconds=1``: connections are dropped, and none is taken for so long.
"""

from __future__ import annotations

import asyncio
import ipaddress
import json
from collections.abc import Callable
from dataclasses import asdict, replace
from typing import TYPE_CHECKING, Any

from orchestra.testing.batch_script import BatchScript
from orchestra.testing.script import Hit, Reply

if TYPE_CHECKING:
    from orchestra.testing.provider import ScriptedProvider

__all__ = ["Control"]

_ROOT = "/__orchestra/"
_SOON = 0.05


class Control:
    """Answers who asks from the loopback interface; to others there is no such path."""

    def __init__(self, provider: ScriptedProvider) -> None:
        self._provider = provider
        self._killing: asyncio.Task[None] | None = None

    @staticmethod
    def serves(hit: Hit, peer: str | None) -> bool:
        try:
            return hit.path.startswith(_ROOT) and ipaddress.ip_address(peer or "").is_loopback
        except ValueError:
            return False

    def answer(self, hit: Hit) -> Reply:
        told: dict[tuple[str, str], Callable[[Hit], Any]] = {
            ("GET", "bills"): self._bills,
            ("POST", "batches"): self._batches,
            ("POST", "background"): self._background,
            ("POST", "faults"): self._faults,
            ("POST", "reset"): self._reset,
            ("POST", "kill"): self._kill,
        }
        done = told.get((hit.method, hit.path.removeprefix(_ROOT)))
        if done is None:
            return Reply.error(404, message=f"No {hit.method} {hit.path}.")
        try:
            return Reply(body=done(hit))
        except (TypeError, ValueError) as wrong:
            return Reply.error(400, message=str(wrong))

    def close(self) -> None:
        """Come back no more."""
        if self._killing is not None:
            self._killing.cancel()

    def _bills(self, hit: Hit) -> dict[str, Any]:
        provider = self._provider
        billed = provider.billed
        bill = billed.all
        twice = {key: asdict(bill) for key, bill in billed.requests_paid_twice().items()}
        return {
            **asdict(bill),
            "total": bill.total,
            "requests_paid_twice": twice,
            "ids_paid_twice": billed.ids_paid_twice(),
            **provider.counts(),
        }

    def _batches(self, hit: Hit) -> dict[str, Any]:
        self._provider.batch_default = _other(self._provider.batch_default, hit)
        return {}

    def _background(self, hit: Hit) -> dict[str, Any]:
        self._provider.background_default = _other(self._provider.background_default, hit)
        return {}

    def _faults(self, hit: Hit) -> dict[str, Any]:
        faults = replace(self._provider.batch_faults, **_object(hit))
        self._provider.batch_faults = faults
        return asdict(faults)

    def _reset(self, hit: Hit) -> dict[str, Any]:
        self._provider.forget()
        return {}

    def _kill(self, hit: Hit) -> dict[str, Any]:
        seconds = float(hit.query.get("seconds", "0"))
        if not 0 <= seconds < 3600:
            raise ValueError("seconds must be a number from 0 to below 3600")
        self._killing = asyncio.get_running_loop().create_task(self._gone(seconds))
        return {"seconds": seconds}

    async def _gone(self, seconds: float) -> None:
        await asyncio.sleep(_SOON)  # whoever asked is answered before
        await self._provider.kill()
        await asyncio.sleep(seconds)
        await self._provider.start()


def _other(script: BatchScript, hit: Hit) -> BatchScript:
    fields = _object(hit)
    if isinstance(told := fields.get("on_create"), dict) and told.keys() <= {"delay", "drop"}:
        fields["on_create"] = Reply(**told)
    strange = [name for name, value in fields.items() if isinstance(value, list | dict)]
    if strange:
        raise ValueError(f"{', '.join(strange)} cannot be set from outside")
    return replace(script, **fields)


def _object(hit: Hit) -> dict[str, Any]:
    told = json.loads(hit.body or b"{}")
    if not isinstance(told, dict):
        raise ValueError("the body must be a JSON object")
    return told
