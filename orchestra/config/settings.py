"""The settings as a whole, and their sections beside those of the providers."""

import ipaddress
import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import AfterValidator, Field, ValidationInfo, field_validator, model_validator

from orchestra.config.account import ProviderConfig
from orchestra.config.section import FileName, Price, Rate, Section, Share, anchored, folder_of, nearest

__all__ = [
    "LOCAL",
    "BudgetConfig",
    "BulkConfig",
    "Config",
    "LocalConfig",
    "ModelConfig",
    "NetworkConfig",
    "ObserveConfig",
    "TrafficConfig",
]

LOCAL = "local"
_LABEL = r"[A-Za-z0-9_](?:[A-Za-z0-9_-]{0,61}[A-Za-z0-9_])?"
_HOST_NAME = re.compile(rf"{_LABEL}(?:\.{_LABEL})*")


class ModelConfig(Section):
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


class LocalConfig(Section):
    """A model that the in-process engine serves. ``weights`` is a known model's name, a .gguf file or a folder.

    A relative path counts from the folder of the settings; a word without a slash is a path where it is there.
    The others up to ``strict`` are those of the engine (`EngineConfig`), which chooses what is not set.
    ``dollars_per_hour`` is what its machine costs, from which jobs say what a million tokens do.
    """

    weights: FileName
    max_num_seqs: Annotated[int, Field(ge=1, strict=True)] | None = None
    kv_bytes: Annotated[int, Field(ge=1, strict=True)] | None = None
    threads: Annotated[int, Field(ge=1, le=1024, strict=True)] | None = None
    ttft_target_ms: Rate | None = None
    tpot_target_ms: Rate | None = None
    interactive_slots: Annotated[int, Field(ge=0, strict=True)] | None = None
    interactive_cache: Share | None = None
    prefix_cache: Annotated[bool, Field(strict=True)] | None = None
    device: Annotated[str, Field(pattern=r"^(auto|cpu|cuda(:[0-9]{1,2})?)$")] | None = None
    precision: Literal["auto", "float32", "int8", "bfloat16", "float16"] | None = None
    kv_dtype: Literal["auto", "float8"] | None = None
    strict: Annotated[bool, Field(strict=True)] | None = None
    dollars_per_hour: Price | None = None

    @field_validator("weights")
    @classmethod
    def _counts_from_the_settings(cls, value: str, info: ValidationInfo) -> str:
        path = anchored(value, info)
        if os.path.basename(value) != value or value.endswith(".gguf"):
            return path
        if folder_of(info) is None or not os.path.exists(path):
            return value
        from orchestra.localengine.weights.registry import KNOWN  # only here does a word mean two things

        return value if value in KNOWN else path

    @model_validator(mode="after")
    def _leaves_bulk_a_slot(self) -> Self:
        slots, kept = self.max_num_seqs, self.interactive_slots
        if slots is not None and kept is not None and kept >= slots:
            raise ValueError(f"interactive_slots must be below max_num_seqs, which is {slots}")
        return self


class TrafficConfig(Section):
    """``interactive_reserve``: the share of each limit that bulk leaves alone; ``"auto"`` follows the demand.

    ``bulk_min_share``: the share of each limit that bulk is guaranteed even under endless interactive load, and of
    the tokens that an engine in this process computes.

    ``max_waiting``: how many calls of a class may wait for a limit, or for an engine in this process (one at
    least); one more fails at once (QueueFull). Calls wait as long as they may, so a bound is for who would rather
    be told.

    ``hedge_share``: the share of interactive calls that may be sent a second time, where an answer is later than
    all but that share usually are; 0 is never. The first good answer counts, and both are charged.

    ``unknown_models``: what becomes of a call for a model that is none of yours, to a host that is none of your
    providers'. ``"pass"``: it goes there, unmetered. ``"refuse"``: it goes nowhere. ``"auto"`` refuses what is
    probably a slip for a model of yours, and everything where all models of yours are served in this process.
    """

    interactive_reserve: Literal["auto"] | float = "auto"
    bulk_min_share: Share = 0.0
    max_waiting: Annotated[int, Field(ge=0, strict=True)] | None = None
    hedge_share: Annotated[float, Field(ge=0, le=0.5, allow_inf_nan=False, strict=True)] = 0.0
    unknown_models: Literal["auto", "pass", "refuse"] = "auto"

    @field_validator("interactive_reserve", mode="before")
    @classmethod
    def _auto_or_share(cls, value: Any) -> Any:
        if value != "auto" and not (type(value) in (int, float) and 0 <= value <= 0.9):
            raise ValueError('must be "auto" or a share from 0 to 0.9')
        return value


class BudgetConfig(Section):
    """Who shares the budget.

    ``backend``: ``"memory"``, this process alone; or ``"sqlite:PATH"``, all processes of this machine that name
    the same file, which is made where it is missing. A relative path counts from the folder of the settings.
    """

    backend: str = "memory"

    @field_validator("backend")
    @classmethod
    def _known_backend(cls, value: str, info: ValidationInfo) -> str:
        scheme, _, path = value.partition(":")
        if value == "memory":
            return value
        if not (scheme == "sqlite" and path.strip()):
            raise ValueError(f'must be "memory" or "sqlite:PATH", not {value!r}')
        return f"sqlite:{anchored(path, info)}"

    @property
    def sqlite_path(self) -> Path | None:
        """The file that the processes share, or None where the budget is this process's own."""
        scheme, _, path = self.backend.partition(":")
        return Path(path) if scheme == "sqlite" else None


class BulkConfig(Section):
    """Durable bulk jobs.

    ``store`` is the SQLite file that holds them. A relative path, as the default is, counts from the folder of the
    settings, so that one file of settings is one ledger, from wherever it is used.
    """

    store: Annotated[FileName, Field(validate_default=True), AfterValidator(anchored)] = ".orchestra/jobs.db"


class NetworkConfig(Section):
    """How requests go out. ``client``: the library, ``"aiohttp"``, or ``"httpx2"``, which knows SOCKS proxies."""

    client: Literal["aiohttp", "httpx2"] = "aiohttp"


class ObserveConfig(Section):
    """What can be seen from outside. ``status``: whether ``orchestra status`` of the same user can look in."""

    status: Annotated[bool, Field(strict=True)] = True


class MetricsConfig(Section):
    """Who is told what calls, limits and engines do, in numbers.

    ``prometheus``: where to serve a page for Prometheus, as ``"HOST:PORT"``, or a port of 127.0.0.1; port 0 is any
    that is free, which the log tells. ``otel``: whether OpenTelemetry is told, spans as well, through the
    providers of the process.
    """

    prometheus: str | None = None
    otel: Annotated[bool, Field(strict=True)] = False

    @field_validator("prometheus", mode="before")
    @classmethod
    def _is_an_address(cls, value: Any) -> Any:
        if value is None:
            return None
        text = f"127.0.0.1:{value}" if type(value) is int else value
        if isinstance(text, str):
            host, port = _host_and_port(text)
            if _is_host(host) and re.fullmatch(r"[0-9]{1,5}", port) and int(port) < 65536:
                return text
        raise ValueError(f'must be a port, as 9464, or "HOST:PORT", not {value!r}')

    @property
    def is_on(self) -> bool:
        """Whether anybody is told."""
        return self.otel or self.prometheus is not None

    @property
    def address(self) -> tuple[str, int] | None:
        """Where the page is served, or None."""
        if self.prometheus is None:
            return None
        host, port = _host_and_port(self.prometheus)
        return host, int(port)


class Config(Section):
    """All settings. Names of providers and of local models may not collide, nor contain a slash."""

    providers: Mapping[str, ProviderConfig] = Field(default_factory=dict)
    models: Mapping[str, ModelConfig] = Field(default_factory=dict)
    local: Mapping[str, LocalConfig] = Field(default_factory=dict)
    traffic: TrafficConfig = Field(default_factory=TrafficConfig)
    budget: BudgetConfig = Field(default_factory=BudgetConfig)
    bulk: BulkConfig = Field({}, validate_default=True)  # its default counts from the folder, too
    network: NetworkConfig = Field(default_factory=NetworkConfig)
    observe: ObserveConfig = Field(default_factory=ObserveConfig)
    metrics: MetricsConfig = Field(default_factory=MetricsConfig)

    @model_validator(mode="after")
    def _routes_exist(self) -> Self:
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
                        + nearest(tail, self.local)
                    )
                if head != LOCAL and head not in self.providers:
                    raise ValueError(
                        f"models.{name}.routes: {route!r} needs a section [providers.{head}]"
                        + nearest(head, self.providers)
                    )
        return self


def _host_and_port(address: str) -> tuple[str, str]:
    """Return the parts of ``HOST:PORT``; the brackets around an IPv6 host are no part of it."""
    host, _, port = address.rpartition(":")
    return (host[1:-1] if host.startswith("[") and host.endswith("]") else host), port


def _is_host(text: str) -> bool:
    """Return whether ``text`` is an IP address, or could be the name of a host: no resolver takes the rest."""
    try:
        ipaddress.ip_address(text)
    except ValueError:
        return _HOST_NAME.fullmatch(text) is not None
    return True
