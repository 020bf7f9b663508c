"""A model of the settings, or an engine in this process, asked as an application would ask it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import TracebackType
from typing import Any, Self

from orchestra.bench.load.prompts import messages_of
from orchestra.bench.load.target import Answer, read_answer, without_secrets
from orchestra.bench.load.workload import Request
from orchestra.budget.prices import cost, price_for
from orchestra.call import Usage
from orchestra.client import Orchestra
from orchestra.config import LOCAL, Config
from orchestra.errors import ConfigError
from orchestra.policies.traffic import TrafficClass
from orchestra.tagging import bulk, interactive

__all__ = ["RouteTarget"]


class RouteTarget:
    """``model`` through an `Orchestra`: its routes, its budget, its retries and its two classes are measured, too.

    ``body`` are further fields of each request; ``length_field`` is the one that bounds the answer. Prices are
    those of the settings.
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

    @property
    def name(self) -> str:
        entry = self._config.models.get(self._model)
        return f"{self._model} ({', '.join(entry.routes)})" if entry else self._model

    async def ask(self, request: Request, came: Callable[[], None]) -> Answer:
        fields = {self._length_field: request.output_tokens, **self._body}
        with bulk() if request.traffic is TrafficClass.BULK else interactive():
            async with self._orchestra.stream(self._model, messages_of(request), **fields) as stream:
                answer = await read_answer(stream, came)
        return self._priced(answer)

    def _priced(self, answer: Answer) -> Answer:
        name, _, model = answer.route.partition("/")
        provider = self._config.providers.get(name)
        price = price_for(provider.prices, model) if name != LOCAL and provider is not None else None
        if price is None or not answer.told:
            return answer
        usage = Usage(answer.prompt_tokens, answer.output_tokens, answer.cached_tokens)
        return Answer(
            answer.prompt_tokens,
            answer.output_tokens,
            answer.cached_tokens,
            answer.told,
            answer.route,
            cost(price, usage),
        )

    def tell(self, error: Exception) -> str:
        return without_secrets(error, self._secrets())

    def _secrets(self) -> list[str]:
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
        await self._orchestra.__aenter__()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self._orchestra.aclose()
