"""A model of the settings, or an engine in this process, asked as an application would ask it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextvars import ContextVar
from dataclasses import replace
from functools import cached_property
from types import TracebackType
from typing import Any, Self

from orchestra.bench.load.prompts import messages_of
from orchestra.bench.load.target import Answer, read_answer, without_secrets
from orchestra.bench.load.workload import Request
from orchestra.client import Orchestra
from orchestra.config import Config
from orchestra.errors import ConfigError
from orchestra.observe.events import Event
from orchestra.policies.traffic import TrafficClass
from orchestra.tagging import bulk, interactive

__all__ = ["RouteTarget"]

_settled: ContextVar[list[Event]] = ContextVar("settled")
"""What was told of the call that this task asks for: an answer and its events come in the same context."""


class RouteTarget:
    """``model`` through an `Orchestra`: its routes, its budget, its retries and its two classes are measured, too.

    ``body`` are further fields of each request; ``length_field`` is the one that bounds the answer. Calls cost
    what the `Orchestra` says: by the prices of the settings, in the tier of the answer.
    """

    def __init__(
        self,
        config: Config,
        model: str,
        *,
        body: Mapping[str, Any] | None = None,
        length_field: str = "max_tokens",
    ) -> None:
        self._config = config
        self._model = model
        self._body = dict(body or {})
        self._length_field = length_field
        self._orchestra = Orchestra(config)
        self._orchestra.events.subscribe(_note)

    @property
    def name(self) -> str:
        entry = self._config.models.get(self._model)
        return f"{self._model} ({', '.join(entry.routes)})" if entry else self._model

    async def ask(self, request: Request, came: Callable[[], None]) -> Answer:
        fields = {self._length_field: request.output_tokens, **self._body}
        told: list[Event] = []
        before = _settled.set(told)
        try:
            with bulk() if request.traffic is TrafficClass.BULK else interactive():
                async with self._orchestra.stream(self._model, messages_of(request), **fields) as stream:
                    answer = await read_answer(stream, came)
        finally:
            _settled.reset(before)
        return replace(answer, usd=told[-1].usd) if told and answer.told else answer

    def tell(self, error: Exception) -> str:
        return without_secrets(error, self._secrets)

    @cached_property
    def _secrets(self) -> list[str]:
        """The keys, read once: some lie in files, which would hold up the load."""
        found = []
        for provider in self._config.providers.values():
            try:
                key = provider.resolve_api_key()
            except ConfigError:
                continue  # a key that cannot be read is in no message either
            if key:
                found.append(key)
        return found

    async def __aenter__(self) -> Self:
        _ = self._secrets  # before the load
        await self._orchestra.__aenter__()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self._orchestra.aclose()


def _note(event: Event) -> None:
    told = _settled.get(None)
    if told is not None and event.kind == "settled":
        told.append(event)
