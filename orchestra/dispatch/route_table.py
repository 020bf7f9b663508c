"""Which routes serve a call."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol
from urllib.parse import urlsplit

from orchestra.call import ORIGIN, Call, Outcome
from orchestra.config import LOCAL, Config
from orchestra.config.section import closest
from orchestra.dispatch.accounts import Account
from orchestra.errors import ConfigError, InputError, UnknownModelError
from orchestra.providers import Endpoint, endpoint_at

__all__ = ["LocalAnswerer", "RouteTable", "Target"]


_NEAR = 0.75
"""How alike (difflib's ratio) a model's name must be to one of ``[models]`` to be taken for a slip."""


class LocalAnswerer(Protocol):
    """A route that answers in this process."""

    async def send(self, call: Call, tell: Callable[..., None] | None = None) -> Outcome:
        """Answer a call, and ``tell`` of its way through a queue of its own, in the kinds of `EventKind`."""
        ...

    async def aclose(self) -> None: ...

    def snapshot(self) -> Mapping[str, Any]: ...


@dataclass(frozen=True, slots=True)
class Target:
    """One route of one call: an account, a path below its base URL and a model; or one who answers here.

    What is not ``metered`` is forwarded as it is, for that model where it names one.
    """

    name: str
    account: Account | None = None
    path: str = ""
    model: str | None = None
    local: LocalAnswerer | None = None
    metered: bool = True


class RouteTable:
    """Finds the routes of calls by the settings."""

    def __init__(self, config: Config, local: Mapping[str, LocalAnswerer]) -> None:
        self._models = {name: model.routes for name, model in config.models.items()}
        self._unknown_models = config.traffic.unknown_models
        self._accounts = {name: Account(name, provider) for name, provider in config.providers.items()}
        self._local = local

    def targets(self, call: Call) -> list[Target]:
        """Return the routes of a call, in order of preference; none where nobody here serves its host.

        The model may name an entry of ``[models]``; or it is written ``local/name``; or the URL is one of a
        configured provider; or the model is written ``provider/model``.

        Raises UnknownModelError, or InputError where there is no model, for a call of our own making; and
        UnknownModelError for a ``local/name`` that is not here, wherever it points: it is meant for no other host;
        and for whatever else the settings let pass to no host that they do not name.
        """
        model = call.model
        if model in self._models:
            return [self._named(route, call) for route in self._models[model]]
        if model is not None and model.startswith(f"{LOCAL}/"):
            if not self._is_local(model):
                raise self._unknown(model)
            return [self._named(model, call)]
        pointed_at = self._by_url(call)
        if pointed_at is not None:
            return [pointed_at]
        if model is not None and model.partition("/")[0] in self._accounts:
            return [self._named(model, call)]
        if call.url.startswith(ORIGIN):
            raise self._unknown(model)
        if call.method == "POST" and model is not None and not self._lets_pass(model):
            raise self._stray(model, call)
        return []

    def account(self, name: str) -> Account | None:
        """Return the configured provider of that name."""
        return self._accounts.get(name)

    def near_miss(self, model: str | None) -> str | None:
        """Return the entry of ``[models]`` that ``model`` is probably a slip for, if there is one."""
        close = closest(model or "", self._models, at_least=_NEAR)
        return close[0] if close else None

    def check(self, model: str) -> None:
        """Raise UnknownModelError where no route answers to ``model``, ConfigError where one lacks its key."""
        routes = self._models.get(model, (model,))
        for route in routes:
            head, _, rest = route.partition("/")
            if not self._is_local(route):
                if head not in self._accounts or not rest:
                    raise self._unknown(model)
                self._accounts[head].check()

    def _is_local(self, model: str) -> bool:
        head, _, name = model.partition("/")
        return head == LOCAL and name in self._local

    def _named(self, route: str, call: Call) -> Target:
        head, _, rest = route.partition("/")
        if head == LOCAL:
            if rest not in self._local:
                raise ConfigError(f"route {route!r}: this Orchestra has no local model {rest!r}")
            return Target(route, local=self._local[rest])
        account = self._accounts[head]
        path = account.path_for(call.url)
        return Target(route, account, path, rest, metered=_is_metered(account, path, call))

    def _by_url(self, call: Call) -> Target | None:
        found = [(one, path) for one in self._accounts.values() if (path := one.path_of(call.url)) is not None]
        if not found:
            return None
        # One host may speak several wires: whoever knows the endpoint is meant, and of those the most specific.
        account, path = max(found, key=lambda pair: (pair[0].speaks(pair[1]), pair[0].depth))
        model = account.provider.model_in(path) or call.model
        metered = model is not None and _is_metered(account, path, call)
        return Target(f"{account.name}/{model or '-'}", account, path, model, metered=metered)

    def _lets_pass(self, model: str) -> bool:
        """Return whether a prompt for a model that is none of ours may go to a host that is none of ours."""
        if self._unknown_models == "auto":
            only_local = bool(self._models) and not self._accounts
            return not only_local and self.near_miss(model) is None
        return self._unknown_models == "pass"

    def _stray(self, model: str, call: Call) -> UnknownModelError:
        near, host = self.near_miss(model), urlsplit(call.url).hostname
        hint = f" (did you mean {near!r}?)" if near else ""
        return UnknownModelError(
            f"model {model!r} is not one of [models]{hint}, and {host} is no provider's host: nothing was sent. "
            'To let such calls pass through unmetered, set traffic.unknown_models = "pass"',
            param="model",
        )

    def _unknown(self, model: str | None) -> InputError:
        if model is None:
            return InputError("the request names no model", param="model")
        known = [*self._models, *(f"{LOCAL}/{name}" for name in self._local)]
        close = closest(model, known)
        hint = f" (did you mean {close[0]!r}?)" if close else ""
        there = ", ".join(sorted(known)) or "none"
        return UnknownModelError(
            f"no route answers to the model {model!r}{hint}. Configured: {there}; or write PROVIDER/MODEL with a "
            f"section [providers.PROVIDER]",
            param="model",
        )


def _is_metered(account: Account, path: str, call: Call) -> bool:
    if call.method != "POST" or call.payload is None:
        return False
    return account.provider.meters(path) or endpoint_at(urlsplit(call.url).path) is not Endpoint.OTHER
