"""``orchestra limits``: what an account may use, read with an administrator's key, as settings to paste."""

from __future__ import annotations

import asyncio
import os
from fnmatch import fnmatchcase
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from orchestra.cli.limits_toml import as_plain, as_toml
from orchestra.errors import ConfigError, ConnectionFailed, InputError, ProviderError

if TYPE_CHECKING:
    from orchestra.config import Config, ProviderConfig
    from orchestra.dispatch.accounts import Account, WireRequest
    from orchestra.providers.rate_limits import LimitGroup, RateLimitApi
    from orchestra.wire import Wire, WireResponse

__all__ = ["limits"]

_CONNECT_TIMEOUT = 10.0
_READ_TIMEOUT = 60.0
_LONGEST_ANSWER = 16 << 20
_LONGEST_MESSAGE = 300
_MOST_PAGES = 1000


def limits(
    provider: Annotated[
        str,
        typer.Argument(
            metavar="PROVIDER", help="One of the settings, by its name; or `openai` or `anthropic` without any."
        ),
    ],
    project: Annotated[
        str | None, typer.Option("--project", metavar="ID", help="The project whose limits are meant, at OpenAI.")
    ] = None,
    workspace: Annotated[
        str | None,
        typer.Option("--workspace", metavar="ID", help="The limits that hold in a workspace, at Anthropic."),
    ] = None,
    model: Annotated[
        list[str] | None,
        typer.Option(
            "--model", metavar="PATTERN", help="Only models whose names match, as gpt-5*. May be given again."
        ),
    ] = None,
    key_env: Annotated[
        str | None,
        typer.Option(
            "--key-env",
            metavar="VARIABLE",
            help="The environment variable with the administrator's key. "
            "Default: OPENAI_ADMIN_KEY or ANTHROPIC_ADMIN_KEY.",
        ),
    ] = None,
    config: Annotated[
        Path | None,
        typer.Option("--config", help="The settings with the provider. Default: orchestra.toml, if there is one."),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="As one JSON object.")] = False,
) -> None:
    """Say what an account may use, as the provider tells an administrator: settings that can be pasted.

    What the settings cannot say is a comment. The key goes to the provider's own address, and nowhere else.
    """
    from orchestra.cli.settings import find_settings

    settings, _ = find_settings(config)
    account, api = _open(settings, provider, key_env)
    scope = _scope(provider, api, {"project": project, "workspace": workspace})
    groups = asyncio.run(_read(settings, account, api, scope, key_env or api.key_variable))
    groups = [group for group in groups if _is_wanted(group, model)]
    if as_json:
        import json

        typer.echo(json.dumps(as_plain(provider, groups), indent=2))
        return
    from datetime import UTC, datetime

    from orchestra.wire.base import host_of

    today = datetime.now(UTC).date()
    typer.echo(as_toml(provider, groups, f"Limits as {host_of(account.place)} told them on {today}"), nl=False)


def _open(settings: Config, name: str, key_env: str | None) -> tuple[Account, RateLimitApi]:
    """Return the account with its administrator's key, and what reads its limits."""
    from orchestra.dispatch.accounts import Account
    from orchestra.providers.rate_limits import rate_limits_of_kind

    config = _configured(settings, name)
    api = rate_limits_of_kind(config.kind)
    if api is None:
        raise InputError(
            f"{name}: the kind {config.kind!r} tells nobody its limits; these do: {', '.join(_able())}. "
            "What is not set is learned from the answers"
        )
    variable = key_env or api.key_variable
    if not os.environ.get(variable, "").strip():
        raise ConfigError(
            f"{name}: the environment variable {variable} is not set: put an administrator's key there, or name "
            "another variable with --key-env"
        )
    return Account(name, config.model_copy(update={"api_key": f"env:{variable}"})), api


def _configured(settings: Config, name: str) -> ProviderConfig:
    from orchestra.config import ProviderConfig
    from orchestra.config.section import nearest

    if (config := settings.providers.get(name)) is not None:
        return config
    if name in _able():
        return ProviderConfig(kind=name)
    raise InputError(f"there is no provider {name!r}{nearest(name, {*settings.providers, *_able()})}")


def _able() -> list[str]:
    from orchestra.kinds import KINDS

    return [name for name, kind in KINDS.items() if kind.rate_limits is not None]


def _scope(name: str, api: RateLimitApi, given: dict[str, str | None]) -> str | None:
    """Return the project or the workspace that is meant."""
    wrong = [option for option, value in given.items() if value is not None and option != api.scope]
    if wrong:
        raise InputError(f"{name} has no --{wrong[0]}: a part of its account is a --{api.scope}")
    scope = given[api.scope]
    if scope == "" or (scope is None and api.needs_scope):
        raise InputError(f"{name} has limits by {api.scope}: name one with --{api.scope} ID")
    return scope


def _is_wanted(group: LimitGroup, patterns: list[str] | None) -> bool:
    """Return whether a group has a model that is asked for. What is of no model is told in any case."""
    if not patterns or not group.models:
        return True
    return any(fnmatchcase(name, pattern) for name in group.models for pattern in patterns)


async def _read(
    settings: Config, account: Account, api: RateLimitApi, scope: str | None, variable: str
) -> list[LimitGroup]:
    """Read all pages. Raises ProviderError, and ConnectionFailed also for what is no list of limits."""
    from orchestra.providers import FormatError
    from orchestra.wire import HttpWire

    wire = HttpWire(settings.network.client)
    groups: list[LimitGroup] = []
    cursor: str | None = None
    seen: set[str | None] = set()
    try:
        while cursor not in seen and len(seen) < _MOST_PAGES:
            seen.add(cursor)
            body = await _get(wire, account, api.path(scope, cursor), scope, variable)
            page, cursor = api.read(body)
            groups += page
            if cursor is None:
                return groups
    except FormatError as error:
        raise ConnectionFailed(f"{account.name}: {error}", sent=True) from None
    finally:
        await wire.aclose()
    raise ConnectionFailed(f"{account.name}: its list of limits has no end", sent=True)


async def _get(wire: Wire, account: Account, path: str, scope: str | None, variable: str) -> bytes:
    request = account.own_request("GET", path)
    response = await wire.send(
        request.method,
        request.url,
        request.headers,
        request.body,
        connect_timeout=_CONNECT_TIMEOUT,
        read_timeout=_READ_TIMEOUT,
    )
    body = bytearray()
    try:
        async for piece in response.body:
            body += piece
            if len(body) > _LONGEST_ANSWER:
                raise ConnectionFailed(f"{account.name}: the answer is longer than any list of limits", sent=True)
    finally:
        await response.aclose()
    if response.status != 200:
        raise _refusal(account, request, response, bytes(body), scope, variable)
    return bytes(body)


def _refusal(
    account: Account, request: WireRequest, response: WireResponse, body: bytes, scope: str | None, variable: str
) -> ProviderError:
    from orchestra.batches.mask import Mask
    from orchestra.providers.faults import error_object

    status = response.status
    if status in (401, 403):
        told = (
            f"{account.name} refuses the key in {variable} ({status}): an administrator's key is needed, with the "
            "right to read limits. The keys that calls are made with are told nothing"
        )
        return ProviderError(told, status=status)
    mask = Mask(value for name, value in request.headers if (name, value) not in account.provider.defaults)
    message = error_object(body).get("message")
    said = f": {mask.text(message, _LONGEST_MESSAGE)}" if isinstance(message, str) and message else ""
    if status == 404 and scope is not None:
        return ProviderError(f"{account.name} knows no {scope!r} of this key's account (404){said}", status=status)
    return ProviderError(f"{account.name} answered {status} when asked for its limits{said}", status=status)
