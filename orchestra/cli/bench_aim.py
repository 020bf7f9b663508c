"""What ``orchestra bench`` asks: a server, a model of the settings, or an engine in this process."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from orchestra.errors import InputError

if TYPE_CHECKING:
    from orchestra.bench.load.endpoint_target import EndpointTarget
    from orchestra.bench.load.route_target import RouteTarget

__all__ = ["Aim", "aim", "engine_settings"]


@dataclass(frozen=True, slots=True)
class Aim:
    """What is asked, not opened yet."""

    about: str
    open: Callable[[], AbstractAsyncContextManager[EndpointTarget | RouteTarget]]
    settings: dict[str, str]
    dollars_per_hour: float | None = None


def aim(
    url: str | None,
    model: str,
    config: Path | None,
    api_key_env: str | None,
    body: dict[str, Any],
    length_field: str,
) -> Aim:
    told = {"further fields": json.dumps(body)} if body else {}
    if url is not None:
        from orchestra.bench.load.endpoint_target import EndpointTarget

        if config is not None:
            raise InputError("--url asks a server as it is, without settings: leave out one of --url and --config")
        endpoint = EndpointTarget(url, model, api_key=_key(api_key_env), body=body, length_field=length_field)
        return Aim(endpoint.name, lambda: endpoint, told)
    if api_key_env is not None:
        raise InputError("--api-key-env is for --url; keys of other targets stand in orchestra.toml")

    from orchestra.bench.load.route_target import RouteTarget
    from orchestra.cli.settings import find_settings
    from orchestra.config import LOCAL

    settings, origin = find_settings(config)
    head, _, name = model.partition("/")
    known = model in settings.models or (head in settings.providers and bool(name))
    if not known and not (head == LOCAL and name in settings.local):
        settings, model = engine_settings(model, [*settings.models])
        origin = "an engine of its own in this process"
        body = {"ignore_eos": True, **body}  # answers as long as they are wanted
        told = {"further fields": json.dumps(body)}
    target = RouteTarget(settings, model, body=body, length_field=length_field)
    routes = settings.models[model].routes if model in settings.models else (model,)
    hourly = None
    if len(routes) == 1 and routes[0].startswith(f"{LOCAL}/"):
        hourly = settings.local[routes[0].partition("/")[2]].dollars_per_hour
    return Aim(f"{target.name}; {origin}", lambda: target, told, hourly)


def engine_settings(weights: str, models: list[str]) -> tuple[Any, str]:
    """Return settings with one engine for these weights, and its route. Raises InputError where there are none."""
    from orchestra.config import parse_config
    from orchestra.localengine.errors import ModelFileError
    from orchestra.localengine.weights.registry import resolve

    try:
        resolve(weights)
    except (ModelFileError, RuntimeError) as error:  # RuntimeError: of ~nobody
        known = f"the settings have {', '.join(models)}" if models else "the settings have no models"
        raise InputError(f"--model {weights}: {known}, and as an engine's weights: {error}") from None
    name = re.sub(r"[^\w.-]+", "-", Path(weights).name) or "engine"
    return parse_config({"local": {name: {"weights": weights}}}), f"local/{name}"


def _key(variable: str | None) -> str | None:
    if variable is None:
        return None
    key = os.environ.get(variable, "").strip()
    if not key:
        raise InputError(f"--api-key-env: the environment variable {variable} is not set")
    return key
