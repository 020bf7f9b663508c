"""Configured providers, and what a call becomes when it is sent to one."""

from __future__ import annotations

import hashlib
import json
import logging
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from orchestra.budget import limits_for, price_for
from orchestra.call import Body, Call, Headers
from orchestra.config import BatchConfig, LimitsConfig, PriceConfig, ProviderConfig
from orchestra.errors import ConfigError, InputError
from orchestra.kinds import KINDS
from orchestra.providers import Endpoint, Provider, endpoint_at, provider_of_kind

if TYPE_CHECKING:
    from orchestra.providers.batches import BatchForm

__all__ = ["NO_KEY", "Account", "WireRequest"]

NO_KEY = "no-key"
"""The fingerprint of a caller who shows no key."""

_FOREIGN = frozenset({"accept", "content-type", "user-agent", "anthropic-version", "anthropic-beta"})
"""What of a caller's headers may go to another host than it pointed at: nothing that could be a secret."""
_FOREIGN_QUERY = frozenset({"alt", "beta"})
"""What of a caller's query may go there: the form of the answer, and of the endpoint."""
_CREDENTIALS = frozenset({"authorization", "api-key", "x-api-key", "x-goog-api-key"})
_IDENTITY = _CREDENTIALS | {"cookie", "openai-organization", "openai-project", "x-goog-user-project"}
"""Headers that say who the caller is. They give way where the account has a key of its own."""
_IDENTITY_QUERY = frozenset({"key"})
"""The same in a query: Google takes a key there, too."""
_PRIORITISED = frozenset({Endpoint.CHAT, Endpoint.COMPLETIONS, Endpoint.RESPONSES})
_TIER_IN_TEXT = re.compile(rb"service[ _]?tier|\bflex\b", re.IGNORECASE)
"""What a server says that does not know the field, or refuses its value."""
_MANY = 1024
_PORTS = {"http": 80, "https": 443}

_log = logging.getLogger("orchestra.dispatch")
_ENCODER = json.JSONEncoder(separators=(",", ":"))  # `json.dumps` makes one each time


@dataclass(frozen=True, slots=True)
class WireRequest:
    method: str
    url: str
    headers: Headers = field(repr=False)
    body: Body = field(repr=False)


class Account:
    """One configured provider: its dialect, its address, its key, its limits."""

    def __init__(self, name: str, config: ProviderConfig) -> None:
        self.name = name
        self.provider: Provider = provider_of_kind(config.kind)
        self._config = config
        self._origin, path, _ = _split(config.base_url)
        self._path = _without_root(path, self.provider.root)
        self._limits = tuple(_with_window(group, self.provider) for group in config.limits)
        self.asks_for_usage = True
        """Whether streams are asked for their usage: until the provider turns out not to know the question."""
        self._refused: set[tuple[str, str]] = set()  # service tiers that models turned out not to have
        self._unpriced: set[str] = set()

    @cached_property
    def _key(self) -> str | None:
        try:
            return self._config.resolve_api_key()
        except ConfigError as error:
            raise ConfigError(f"providers.{self.name}: {error}") from None

    def check(self) -> None:
        """Raise ConfigError where the key is configured but cannot be had."""
        _ = self._key

    def path_of(self, url: str) -> str | None:
        """Return the part of ``url`` below this account's base URL, or None where it points elsewhere."""
        origin, path, _ = _split(url)
        if origin != self._origin or not path.startswith(self._path + "/"):
            return None
        return path[len(self._path) :]

    def path_for(self, url: str) -> str:
        """Return the path below this account's base URL of the endpoint that ``url`` names, wherever it points."""
        return self.path_of(url) or self.provider.path_below(_split(url)[1])

    def speaks(self, path: str) -> bool:
        """Return whether ``path`` is an endpoint of this provider's wire."""
        return self.provider.endpoint(path) is not Endpoint.OTHER

    @property
    def place(self) -> str:
        """Where it is: its base URL, whichever way that was written."""
        return self._origin + self._path

    @property
    def depth(self) -> int:
        """How specific the base URL is. Of several that cover a URL the deepest is meant."""
        return len(self._path)

    def limits(self, model: str) -> LimitsConfig | None:
        """Return the first limit group whose patterns match the model."""
        return limits_for(self._limits, model)

    def price(self, model: str) -> PriceConfig | None:
        """Return the first price whose patterns match the model."""
        return price_for(self._config.prices, model)

    @property
    def batch(self) -> BatchConfig:
        """How this account's batches are filled and looked at."""
        return self._config.batch

    @cached_property
    def batches(self) -> tuple[BatchForm, ...]:
        """How lines can be handed to it at a lower price, its batch endpoint first: what of that is to be used."""
        config = self._config.batch
        wanted = KINDS[self._config.kind].batches_by_default if config.enabled is None else config.enabled
        return tuple(
            form for form in self.batch_forms if wanted and (form.via == "batch" or config.background is not False)
        )

    @cached_property
    def batch_forms(self) -> tuple[BatchForm, ...]:
        """The same, to be used or not."""
        from orchestra.providers.batches import forms_of_kind  # few processes ask for it

        return forms_of_kind(self._config.kind)

    def credentials_of(self, call: Call) -> Headers:
        """Return the headers of a call by which its caller is known here, where the account has no key."""
        if self._key is not None or not self._pointed_at(call):
            return ()
        return tuple(line for line in call.headers if line[0] in _IDENTITY)

    def fingerprint(self, call: Call) -> str:
        """Return a name for the key that a call uses here, which does not reveal it."""
        if self._key is not None:
            return self._own_fingerprint
        key = None
        if self._pointed_at(call):
            shown = [value for name, value in call.headers if name in _CREDENTIALS]
            shown += [one for one in _parameters(call.url) if one.partition("=")[0] in _IDENTITY_QUERY]
            key = shown[0] if shown else None
        return _fingerprint(key) if key else NO_KEY

    @cached_property
    def _own_fingerprint(self) -> str:
        return _fingerprint(self._key) if self._key else NO_KEY

    def prepare(
        self, endpoint: Endpoint, call: Call, model: str, *, default_tier: bool = False
    ) -> Mapping[str, Any]:
        """Return the payload to send for a metered call: the caller's, or one that also says what we want said.

        ``default_tier`` leaves the service tier to the provider, where the call does not name one.
        """
        payload = call.payload or {}
        if self.asks_for_usage:
            payload = self.provider.prepare(endpoint, payload)
        priorities = self.provider.priorities if self._config.priority else None
        if priorities is not None and endpoint in _PRIORITISED and "priority" not in payload:
            payload = {**payload, "priority": priorities[call.traffic]}
        tier: str | None = getattr(self._config.service_tiers, call.traffic.value)
        if tier is None or default_tier or endpoint not in self.provider.tiered or (model, tier) in self._refused:
            return payload
        return payload if self.provider.names_tier(payload) else {**payload, self.provider.tier_field: tier}

    def withdraw(self, call: Call, payload: Mapping[str, Any], model: str, error: bytes) -> bool:
        """Stop saying what was said for us alone, and what a server refused with ``error``.

        ``payload`` is what `prepare` made of the call. Returns whether there is anything like that, so that the
        call is worth sending once more.
        """
        ours = payload.keys() - (call.payload or {}).keys()
        if "stream_options" in ours and b"stream_options" in error:
            self.asks_for_usage = False
            return True
        if self.provider.tier_field not in ours or not _TIER_IN_TEXT.search(error):
            return False
        route, tier = f"{self.name}/{model}", payload[self.provider.tier_field]
        if (model, tier) not in self._refused:
            if len(self._refused) >= _MANY:  # callers may name any number of models
                self._refused.clear()
            self._refused.add((model, tier))
            told = "%s has no service tier %r: its calls go in the provider's default one"
            _log.warning(told, route, tier, extra={"route": route})
        return True

    def note_price_of(self, tier: str) -> None:
        """Say once that answers come from a service tier whose price nobody knows."""
        if tier not in self._unpriced:
            self._unpriced.add(tier)
            _log.warning(
                "answers of %s come from its service tier %r, of which no price is known: they are counted at the "
                "price without; add tiers = { %s = FACTOR } to [[providers.%s.prices]]",
                self.name,
                tier,
                tier,
                self.name,
            )

    def payload_for(self, model: str, call: Call, path: str, payload: Mapping[str, Any]) -> Mapping[str, Any]:
        """Return ``payload`` as it asks for ``model``: as it is where the call, or its path, does so already."""
        if model in (call.model, self.provider.model_in(path)):
            return payload
        return self.provider.payload_for(payload, model)

    def request(self, call: Call, path: str, payload: Mapping[str, Any] | None) -> WireRequest:
        """Return the request that carries ``call`` to this account, at ``path`` below its base URL.

        ``payload`` replaces the body unless it is the caller's own. The caller's credentials, and most of its
        query, go only to the origin that it pointed at, and give way to the account's key even there.

        Raises InputError where the call is in a wire that this provider does not speak.
        """
        parameters = _parameters(call.url)
        if self._pointed_at(call):
            own = self._key is not None
            headers = tuple(line for line in call.headers if not (own and line[0] in _IDENTITY))
            parameters = [one for one in parameters if not (own and one.partition("=")[0] in _IDENTITY_QUERY)]
        else:
            self._check_wire(call, path)
            headers = tuple(line for line in call.headers if line[0] in _FOREIGN)
            parameters = [one for one in parameters if one.partition("=")[0] in _FOREIGN_QUERY]
        query = f"?{'&'.join(parameters)}" if parameters else ""
        told = {name for name, _ in headers}
        headers += tuple(line for line in self.provider.defaults if line[0] not in told)
        if self._key is not None:
            headers += self.provider.credentials(self._key)
        body = call.body
        if payload is not None and payload is not call.payload:
            body = _ENCODER.encode(payload).encode()
        return WireRequest(call.method, f"{self._origin}{self._path}{path}{query}", headers, body)

    def own_request(self, method: str, path: str, headers: Headers = (), body: Body = b"") -> WireRequest:
        """Return a request of our own making to this account, at ``path`` below its base URL, with its query.

        It goes to the account's origin with the account's key. Where there is none, ``headers`` may carry that of
        a caller who pointed there.
        """
        key = self._key
        lines = tuple(line for line in headers if key is None or line[0] not in _IDENTITY)
        told = {name for name, _ in lines}
        lines += tuple(line for line in self.provider.defaults if line[0] not in told)
        if key is not None:
            lines += self.provider.credentials(key)
        return WireRequest(method, f"{self._origin}{self._path}{path}", lines, body)

    def handed_on(self, call: Call, headers: Headers) -> Headers:
        """Return what of an answer's ``headers`` the caller is given.

        A cookie goes only to who pointed at this origin: it would be kept for another, and be sent there.
        """
        return headers if self._pointed_at(call) else tuple(line for line in headers if line[0] != "set-cookie")

    def _check_wire(self, call: Call, path: str) -> None:
        asked = endpoint_at(_split(call.url)[1])
        if asked is not Endpoint.OTHER and not self.speaks(path):
            raise InputError(
                f"the provider {self.name!r} (kind {self._config.kind!r}) has no endpoint {asked.value!r}: "
                "a route must speak the wire of the SDK that makes the call",
                param="model",
            )

    def _pointed_at(self, call: Call) -> bool:
        return _split(call.url)[0] == self._origin


def _fingerprint(key: str) -> str:
    return hashlib.sha256(key.encode()).hexdigest()[:12]


def _with_window(group: LimitsConfig, provider: Provider) -> LimitsConfig:
    """Return a limit group that counts as the provider does, unless the settings say how it counts."""
    if provider.window is None or group.model_fields_set & {"window", "burst_seconds"}:
        return group
    return group.model_copy(update={"window": provider.window})


def _without_root(path: str, root: str) -> str:
    """Return a base URL's path without the part of ``root`` at its end: it is written with it and without."""
    while root and not path.endswith(root):
        root = root.rpartition("/")[0]
    return path.removesuffix(root)


def _parameters(url: str) -> list[str]:
    """Return the parameters of a URL's query, as they are written."""
    return [one for one in urlsplit(url).query.split("&") if one]


@lru_cache(maxsize=256)
def _split(url: str) -> tuple[str, str, str]:
    """Return origin (lower-case, without a default port), path, and query with its question mark."""
    try:
        parts = urlsplit(url)
        port = "" if parts.port in (None, _PORTS.get(parts.scheme)) else f":{parts.port}"
    except ValueError:
        raise InputError("the request's address is none: its host or its port is malformed") from None
    host = parts.hostname or ""
    host = f"[{host}]" if ":" in host else host
    return f"{parts.scheme}://{host}{port}", parts.path, f"?{parts.query}" if parts.query else ""
