"""The settings, as pydantic models: `orchestra.toml`, or a dict with the same keys.

Every key is checked before anything runs; an unknown one is an error that names the place and the nearest known
key.
"""

from __future__ import annotations

import difflib
import os
import re
import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal
from urllib.parse import urlsplit

from pydantic import (
    AfterValidator,
    BaseModel,
    ConfigDict,
    Field,
    ValidationError,
    ValidationInfo,
    field_validator,
    model_validator,
)

from orchestra.errors import ConfigError
from orchestra.kinds import KINDS

__all__ = [
    "BudgetConfig",
    "BulkConfig",
    "Config",
    "LimitsConfig",
    "LocalConfig",
    "ModelConfig",
    "NetworkConfig",
    "ObserveConfig",
    "PriceConfig",
    "ProviderConfig",
    "TrafficConfig",
    "load_config",
    "parse_config",
]

LOCAL = "local"

_Rate = Annotated[float, Field(gt=0, allow_inf_nan=False, strict=True)]
_Price = Annotated[float, Field(ge=0, le=1e9, allow_inf_nan=False, strict=True)]
_Share = Annotated[float, Field(ge=0, le=0.9, allow_inf_nan=False, strict=True)]
_FileName = Annotated[str, Field(min_length=1), AfterValidator(lambda name: _without_nul(name))]


class _Section(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class LimitsConfig(_Section):
    """One limit group: all models whose name matches one of ``models`` share it.

    ``window``: how the provider counts a minute. ``"refill"``: what is used comes back continuously, and at most
    ``burst_seconds`` of it can be saved up. ``"fixed"``: it counts in whole minutes, and nobody tells when they
    begin, so in no minute at all is more used than the limit. Left out, it is as the kind of provider is known to
    count: ``"fixed"`` at Azure, else ``"refill"``.

    A day is any 24 hours. What was used in it is known as long as the process lives; a budget that processes share
    (``[budget] backend = "sqlite:PATH"``) keeps it beyond that. ``usd_per_day`` is our own count and needs a price
    for every model (`PriceConfig`): without one nothing is sent. ``enqueued_batch_tokens`` bounds the input tokens
    of all batches that are open, and does not touch other calls.
    """

    models: tuple[str, ...] = ("*",)
    requests_per_minute: _Rate | None = None
    tokens_per_minute: _Rate | None = None
    input_tokens_per_minute: _Rate | None = None
    output_tokens_per_minute: _Rate | None = None
    requests_per_day: _Rate | None = None
    tokens_per_day: _Rate | None = None
    input_tokens_per_day: _Rate | None = None
    output_tokens_per_day: _Rate | None = None
    usd_per_day: _Rate | None = None
    max_concurrency: Annotated[int, Field(ge=1, strict=True)] | None = None
    enqueued_batch_tokens: Annotated[int, Field(ge=1, strict=True)] | None = None
    window: Literal["refill", "fixed"] = "refill"
    burst_seconds: _Rate = 60.0

    @model_validator(mode="after")
    def _one_way_to_count(self) -> LimitsConfig:
        if self.window == "fixed" and "burst_seconds" in self.model_fields_set:
            raise ValueError('burst_seconds means nothing with window = "fixed": leave out one of the two')
        return self


class PriceConfig(_Section):
    """What a million tokens cost in USD, for all models whose name matches one of ``models``; the first counts.

    ``cached_input`` is for input that the provider had cached; by default it costs as other input does.
    """

    models: tuple[str, ...] = ("*",)
    input: _Price
    cached_input: _Price | None = None
    output: _Price


class ProviderConfig(_Section):
    """An account at a provider.

    ``api_key`` is ``env:NAME``, ``file:PATH`` or a literal, and never shown; absent, the caller's own
    authorization header is used, and only towards the host that the caller pointed its SDK at.

    ``priority`` tells the server each call's class in the field ``priority``. A server that does not run with it
    refuses the field: vLLM needs ``--scheduling-policy priority``, SGLang ``--enable-priority-scheduling``.
    """

    kind: str
    base_url: Annotated[str, Field(validate_default=True)] = ""
    api_key: str | None = Field(default=None, repr=False, min_length=1)
    limits: tuple[LimitsConfig, ...] = ()
    prices: tuple[PriceConfig, ...] = ()
    priority: Annotated[bool, Field(strict=True)] = False

    @model_validator(mode="before")
    @classmethod
    def _default_base_url(cls, data: Any) -> Any:
        if isinstance(data, dict) and "base_url" not in data:
            default = next((kind.base_url for name, kind in KINDS.items() if name == data.get("kind")), None)
            return data if default is None else {**data, "base_url": default}
        return data

    @field_validator("kind", mode="before")
    @classmethod
    def _known_kind(cls, value: Any) -> Any:
        if value not in list(KINDS):
            near = _close(value, list(KINDS)) if isinstance(value, str) else []
            hint = f" (did you mean {near[0]!r}?)" if near else ""
            raise ValueError(f"must be one of {', '.join(KINDS)}{hint}")
        return value

    @field_validator("base_url")
    @classmethod
    def _http_url(cls, value: str, info: ValidationInfo) -> str:
        if not value and "kind" not in info.data:
            return value  # whether one is needed depends on the kind, which is at fault itself
        if not value:
            raise ValueError("is missing: it is the address that the official SDK would take as its base_url")
        if not value.startswith(("http://", "https://")):
            raise ValueError("must be the http(s) address that the official SDK would take as its base_url")
        try:
            parts = urlsplit(value)
            complete = bool(parts.hostname) and (parts.port is None or parts.port > 0)
        except ValueError:
            complete = False
        if not complete or any(sign.isspace() for sign in value):
            raise ValueError("is no address: it needs a host, and a port that is one where it has any")
        if parts.username is not None or parts.query or parts.fragment:
            raise ValueError(
                "may hold no user, query or fragment: they would not be sent. A key goes into api_key"
            )
        return value.rstrip("/")

    @field_validator("priority")
    @classmethod
    def _is_taken(cls, value: bool, info: ValidationInfo) -> bool:
        kind = info.data.get("kind")
        if value and kind is not None and not KINDS[kind].has_priority:
            able = ", ".join(name for name, one in KINDS.items() if one.has_priority)
            raise ValueError(f"the kind {kind!r} has no such field; these have: {able}")
        return value

    def resolve_api_key(self) -> str | None:
        """Return the key itself, or None where none is configured.

        Raises ConfigError where it refers to a variable that is not set or a file that cannot be read.
        """
        if self.api_key is None:
            return None
        scheme, _, rest = self.api_key.partition(":")
        if scheme == "env":
            key = os.environ.get(rest, "").strip()
            if not key:
                raise ConfigError(f'api_key = "env:{rest}": the environment variable {rest} is not set')
            return key
        if scheme == "file":
            try:
                key = Path(rest).expanduser().read_text(encoding="utf-8").strip()
            except (OSError, UnicodeDecodeError) as error:
                raise ConfigError(f'api_key = "file:{rest}": cannot be read ({type(error).__name__})') from None
            if not key:
                raise ConfigError(f'api_key = "file:{rest}": the file is empty')
            return key
        return self.api_key


class ModelConfig(_Section):
    """A model name of yours, and who serves it: ``provider/model`` or ``local/name``, in order of preference."""

    routes: tuple[str, ...]

    @field_validator("routes")
    @classmethod
    def _are_routes(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        if not value:
            raise ValueError("must name at least one route")
        for route in value:
            if not all(route.partition("/")):
                raise ValueError(f"{route!r} must be written 'provider/model' or 'local/name'")
        return value


class LocalConfig(_Section):
    """A model that the in-process engine serves. ``weights`` is a known model's name or a .gguf file."""

    weights: _FileName
    max_num_seqs: Annotated[int, Field(ge=1, strict=True)] | None = None
    kv_bytes: Annotated[int, Field(ge=1, strict=True)] | None = None
    threads: Annotated[int, Field(ge=1, le=1024, strict=True)] | None = None


class TrafficConfig(_Section):
    """``interactive_reserve``: the share of each limit that bulk leaves alone; ``"auto"`` follows the demand.

    ``bulk_min_share``: the share of each limit that bulk is guaranteed even under endless interactive load.

    ``max_waiting``: how many calls of a class may wait for a limit; one more fails at once (QueueFull). Calls wait
    as long as they may, so a bound is for who would rather be told.

    ``hedge_share``: the share of interactive calls that may be sent a second time, where an answer is later than
    all but that share usually are; 0 is never. The first good answer counts, and both are charged.
    """

    interactive_reserve: Literal["auto"] | float = "auto"
    bulk_min_share: _Share = 0.0
    max_waiting: Annotated[int, Field(ge=0, strict=True)] | None = None
    hedge_share: Annotated[float, Field(ge=0, le=0.5, allow_inf_nan=False, strict=True)] = 0.0

    @field_validator("interactive_reserve", mode="before")
    @classmethod
    def _auto_or_share(cls, value: Any) -> Any:
        if value != "auto" and not (type(value) in (int, float) and 0 <= value <= 0.9):
            raise ValueError('must be "auto" or a share from 0 to 0.9')
        return value


class BudgetConfig(_Section):
    """Who shares the budget.

    ``backend``: ``"memory"``, this process alone; or ``"sqlite:PATH"``, all processes of this machine that name
    the same file, which is made where it is missing. A relative path counts from the current folder.
    """

    backend: str = "memory"

    @field_validator("backend")
    @classmethod
    def _known_backend(cls, value: str) -> str:
        scheme, _, path = value.partition(":")
        if value != "memory" and not (scheme == "sqlite" and path.strip()):
            raise ValueError(f'must be "memory" or "sqlite:PATH", not {value!r}')
        return value

    @property
    def sqlite_path(self) -> Path | None:
        """The file that the processes share, or None where the budget is this process's own."""
        scheme, _, path = self.backend.partition(":")
        return Path(path).expanduser() if scheme == "sqlite" else None


class BulkConfig(_Section):
    """Durable bulk jobs. ``store`` is the SQLite file that holds them."""

    store: _FileName = ".orchestra/jobs.db"


class NetworkConfig(_Section):
    """How requests go out. ``client``: the library, ``"aiohttp"``, or ``"httpx2"``, which knows SOCKS proxies."""

    client: Literal["aiohttp", "httpx2"] = "aiohttp"


class ObserveConfig(_Section):
    """What can be seen from outside. ``status``: whether ``orchestra status`` of the same user can look in."""

    status: Annotated[bool, Field(strict=True)] = True


class Config(_Section):
    """All settings. Names of providers and of local models may not collide, nor contain a slash."""

    providers: Mapping[str, ProviderConfig] = Field(default_factory=dict)
    models: Mapping[str, ModelConfig] = Field(default_factory=dict)
    local: Mapping[str, LocalConfig] = Field(default_factory=dict)
    traffic: TrafficConfig = TrafficConfig()
    budget: BudgetConfig = BudgetConfig()
    bulk: BulkConfig = BulkConfig()
    network: NetworkConfig = NetworkConfig()
    observe: ObserveConfig = ObserveConfig()

    @model_validator(mode="after")
    def _routes_exist(self) -> Config:
        for name in (*self.providers, *self.local):
            if "/" in name:
                raise ValueError(f"the name {name!r} may not contain a slash")
        if LOCAL in self.providers:
            raise ValueError("a provider may not be called 'local': that name means the in-process engine")
        for name, model in self.models.items():
            for route in model.routes:
                head, _, tail = route.partition("/")
                if head == LOCAL and tail not in self.local:
                    raise ValueError(
                        f"models.{name}.routes: {route!r} needs a section [local.{tail}]"
                        + _nearest(tail, self.local)
                    )
                if head != LOCAL and head not in self.providers:
                    raise ValueError(
                        f"models.{name}.routes: {route!r} needs a section [providers.{head}]"
                        + _nearest(head, self.providers)
                    )
        return self


def load_config(path: str | os.PathLike[str]) -> Config:
    """Read a TOML file. Raises ConfigError naming the file, the place in it and the remedy."""
    file = Path(path)
    try:
        data = tomllib.loads(file.read_text(encoding="utf-8-sig"))
    except FileNotFoundError:
        raise ConfigError(f"{file}: no such file; `orchestra init` writes one to start from") from None
    except OSError as error:
        raise ConfigError(f"{file}: cannot be read ({error.strerror})") from None
    except UnicodeDecodeError:
        raise ConfigError(f"{file}: not UTF-8; save it as UTF-8") from None
    except RecursionError:
        raise ConfigError(f"{file}: nested too deeply to be settings") from None
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(f"{file}: not valid TOML: {error}") from None
    return parse_config(data, source=str(file))


def parse_config(data: Mapping[str, Any], *, source: str = "config") -> Config:
    """Check a dict with the keys of `orchestra.toml`. Raises ConfigError with every fault found."""
    try:
        return Config.model_validate(dict(data))
    except ValidationError as error:
        faults = _without_consequences(error.errors(include_url=False, include_input=False))
        raise ConfigError(f"{source}: " + "; ".join(map(_describe, faults))) from None


_WORDS = {
    "dict_type": "must be a section",
    "finite_number": "must be a finite number",
    "float_type": "must be a number",
    "int_type": "must be a whole number",
    "missing": "is missing",
    "model_type": "must be a section",
    "string_too_short": "must not be empty",
    "string_type": "must be a string",
    "tuple_type": "must be a list",
}
"""What pydantic's types of faults mean to someone who writes TOML."""


def _without_consequences(faults: Sequence[Any]) -> list[Any]:
    """Return the faults, misspelt keys first, without the keys that are missing because they were misspelt."""
    unknown = [fault for fault in faults if fault["type"] == "extra_forbidden"]
    meant = set()
    for fault in unknown:
        *parents, key = fault["loc"]
        meant |= {(*parents, close) for close in _close(str(key), _known_keys(parents))}
    rest = [
        fault
        for fault in faults
        if fault not in unknown and not (fault["type"] == "missing" and fault["loc"] in meant)
    ]
    return unknown + rest


def _place(path: Sequence[Any]) -> str:
    """Write a path as TOML would: `providers.acme.limits[0]`, and `models."gpt-5.1"`."""
    place = ""
    for part in path:
        if isinstance(part, int):
            place += f"[{part}]"
        elif part != "[key]":
            key = part if re.fullmatch(r"[A-Za-z0-9_-]+", part) else f'"{part}"'
            place += f".{key}" if place else key
    return place


def _describe(fault: Any) -> str:
    where = _place(fault["loc"])
    if fault["type"] == "extra_forbidden":
        *parents, key = fault["loc"]
        return f"unknown key {where!r}" + _nearest(str(key), _known_keys(parents))
    if fault["type"] in _WORDS:
        return f"{where}: {_WORDS[fault['type']]}"
    message = str(fault["msg"]).removeprefix("Value error, ").replace("Input should be", "must be")
    return f"{where}: {message}" if where else message


def _known_keys(path: Sequence[Any]) -> list[str]:
    """Return the keys that are allowed in the section at ``path``."""
    sections: dict[str, type[_Section]] = {
        "providers": ProviderConfig,
        "models": ModelConfig,
        "local": LocalConfig,
        "traffic": TrafficConfig,
        "budget": BudgetConfig,
        "bulk": BulkConfig,
        "observe": ObserveConfig,
    }
    section: type[_Section] = Config
    if path:
        section = sections.get(str(path[0]), Config)
        if "limits" in path:
            section = LimitsConfig
        elif "prices" in path:
            section = PriceConfig
    return list(section.model_fields)


def _without_nul(name: str) -> str:
    if "\0" in name:
        raise ValueError("must be the name of a file, without a zero byte")
    return name


def _close(word: str, known: Sequence[str]) -> list[str]:
    return difflib.get_close_matches(word, known, n=1)


def _nearest(word: str, known: Any) -> str:
    options = list(known)
    close = _close(word, options)
    if close:
        return f"; did you mean {close[0]!r}?"
    return f"; known here: {', '.join(sorted(options))}" if options else ""
