"""Configured providers, and what a call becomes when it is sent to one."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any
from urllib.parse import urlsplit

from orchestra.budget import limits_for
from orchestra.call import Call, Headers
from orchestra.config import LimitsConfig, ProviderConfig
from orchestra.errors import ConfigError
from orchestra.providers import Endpoint, Provider, provider_of_kind

__all__ = ["Account", "WireRequest"]

_FOREIGN = frozenset({"accept", "content-type", "user-agent"})
"""What of a caller's headers may go to another host than it pointed at: nothing that could be a secret."""
_IDENTITY = frozenset({"authorization", "api-key", "x-api-key", "cookie", "openai-organization", "openai-project"})
"""Headers that say who the caller is. They give way where the account has a key of its own."""
_PORTS = {"http": 80, "https": 443}


@dataclass(frozen=True, slots=True)
class WireRequest:
    method: str
    url: str
    headers: Headers = field(repr=False)
    body: bytes = field(repr=False)


class Account:
    """One configured provider: its dialect, its address, its key, its limits."""

    def __init__(self, name: str, config: ProviderConfig) -> None:
        self.name = name
        self.provider: Provider = provider_of_kind(config.kind)
        self._config = config
        self._origin, self._path, _ = _split(config.base_url)

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

    @property
    def depth(self) -> int:
        """How specific the base URL is. Of several that cover a URL the deepest is meant."""
        return len(self._path)

    def limits(self, model: str) -> LimitsConfig | None:
        """Return the first limit group whose patterns match the model."""
        return limits_for(self._config.limits, model)

    def fingerprint(self, call: Call) -> str:
        """Return a name for the key that a call uses here, which does not reveal it."""
        key = self._key
        if key is None and self._pointed_at(call):
            key = next((value for name, value in call.headers if name == "authorization"), None)
        return hashlib.sha256(key.encode()).hexdigest()[:12] if key else "no-key"

    def request(self, call: Call, path: str, payload: Mapping[str, Any] | None) -> WireRequest:
        """Return the request that carries ``call`` to this account, at ``path`` below its base URL.

        ``payload`` replaces the body unless it is the caller's own. The caller's credentials and its query go only
        to the origin that it pointed at, and give way to the account's key even there.
        """
        query = ""
        headers = tuple(line for line in call.headers if line[0] in _FOREIGN)
        if self._pointed_at(call):
            query = _split(call.url)[2]
            hidden = _IDENTITY if self._key is not None else frozenset()
            headers = tuple(line for line in call.headers if line[0] not in hidden)
        if self._key is not None:
            headers += self.provider.credentials(self._key)
        body = call.body
        if payload is not None and payload is not call.payload:
            body = json.dumps(payload, separators=(",", ":")).encode()
        return WireRequest(call.method, f"{self._origin}{self._path}{path}{query}", headers, body)

    def _pointed_at(self, call: Call) -> bool:
        return _split(call.url)[0] == self._origin


def endpoint_path(url: str) -> str:
    """Return the path of ``url`` below whatever base URL its SDK was given, as well as it can be told."""
    path = _split(url)[1]
    known = sorted((one.value for one in Endpoint if one.value), key=len, reverse=True)
    for suffix in known:
        if path.endswith(suffix):
            return suffix
    _, version, rest = path.rpartition("/v1/")
    return f"/{rest}" if version else path


def _split(url: str) -> tuple[str, str, str]:
    """Return origin (lower-case, without a default port), path, and query with its question mark."""
    parts = urlsplit(url)
    port = "" if parts.port in (None, _PORTS.get(parts.scheme)) else f":{parts.port}"
    host = parts.hostname or ""
    host = f"[{host}]" if ":" in host else host
    return f"{parts.scheme}://{host}{port}", parts.path, f"?{parts.query}" if parts.query else ""
