"""The settings, as pydantic models: `orchestra.toml`, or a dict with the same keys.

Every key is checked before anything runs; an unknown one is an error that names the place and the nearest known
key.
"""

from __future__ import annotations

import difflib
import os
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator, model_validator

from orchestra.errors import ConfigError

__all__ = [
    "BudgetConfig",
    "BulkConfig",
    "Config",
    "LimitsConfig",
    "LocalConfig",
    "ModelConfig",
    "ProviderConfig",
    "TrafficConfig",
    "load_config",
    "parse_config",
]

DEFAULT_BASE_URLS = {"openai": "https://api.openai.com/v1"}
LOCAL = "local"

_Rate = Annotated[float, Field(gt=0, allow_inf_nan=False, strict=True)]
_Share = Annotated[float, Field(ge=0, le=0.9, allow_inf_nan=False, strict=True)]


class _Section(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class LimitsConfig(_Section):
    """One limit group: all models whose name matches one of ``models`` share it."""

    models: tuple[str, ...] = ("*",)
    requests_per_minute: _Rate | None = None
    tokens_per_minute: _Rate | None = None
    input_tokens_per_minute: _Rate | None = None
    output_tokens_per_minute: _Rate | None = None
    max_concurrency: Annotated[int, Field(ge=1, strict=True)] | None = None
    burst_seconds: _Rate = 60.0


class ProviderConfig(_Section):
    """An account at a provider.

    ``api_key`` is ``env:NAME``, ``file:PATH`` or a literal, and never shown; absent, the caller's own
    authorization header is used, and only towards the host that the caller pointed its SDK at.
    """

    kind: Literal["openai", "openai-compatible"]
    base_url: str = ""
    api_key: str | None = Field(default=None, repr=False, min_length=1)
    limits: tuple[LimitsConfig, ...] = ()

    @model_validator(mode="before")
    @classmethod
    def _default_base_url(cls, data: Any) -> Any:
        if isinstance(data, dict) and "base_url" not in data and data.get("kind") in DEFAULT_BASE_URLS:
            return {**data, "base_url": DEFAULT_BASE_URLS[data["kind"]]}
        return data

    @field_validator("base_url")
    @classmethod
    def _http_url(cls, value: str) -> str:
        if not value.startswith(("http://", "https://")):
            raise ValueError("must be the http(s) address that the official SDK would take as its base_url")
        return value.rstrip("/")

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

    routes: tuple[Annotated[str, Field(pattern=r"^[^/]+/.+$")], ...] = Field(min_length=1)


class LocalConfig(_Section):
    """A model that the in-process engine serves. ``weights`` is a known model's name or a .gguf file."""

    weights: str = Field(min_length=1)
    max_num_seqs: Annotated[int, Field(ge=1, strict=True)] | None = None
    kv_bytes: Annotated[int, Field(ge=1, strict=True)] | None = None
    threads: Annotated[int, Field(ge=1, strict=True)] | None = None


class TrafficConfig(_Section):
    """``interactive_reserve``: the share of each limit that bulk leaves alone; ``"auto"`` follows the demand.

    ``bulk_min_share``: the share of each limit that bulk is guaranteed even under endless interactive load.
    """

    interactive_reserve: Literal["auto"] | _Share = "auto"
    bulk_min_share: _Share = 0.0


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

    store: str = ".orchestra/jobs.db"


class Config(_Section):
    """All settings. Names of providers and of local models may not collide, nor contain a slash."""

    providers: Mapping[str, ProviderConfig] = Field(default_factory=dict)
    models: Mapping[str, ModelConfig] = Field(default_factory=dict)
    local: Mapping[str, LocalConfig] = Field(default_factory=dict)
    traffic: TrafficConfig = TrafficConfig()
    budget: BudgetConfig = BudgetConfig()
    bulk: BulkConfig = BulkConfig()

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
        data = tomllib.loads(file.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise ConfigError(f"{file}: no such file; `orchestra init` writes one to start from") from None
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{file}: cannot be read: {error}") from None
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(f"{file}: not valid TOML: {error}") from None
    return parse_config(data, source=str(file))


def parse_config(data: Mapping[str, Any], *, source: str = "config") -> Config:
    """Check a dict with the keys of `orchestra.toml`. Raises ConfigError with every fault found."""
    try:
        return Config.model_validate(dict(data))
    except ValidationError as error:
        faults = [_describe(fault) for fault in error.errors(include_url=False, include_input=False)]
        raise ConfigError(f"{source}: " + "; ".join(faults)) from None


def _describe(fault: Any) -> str:
    where = ".".join(str(part) for part in fault["loc"])
    if fault["type"] == "extra_forbidden":
        *parents, key = fault["loc"]
        return f"unknown key {where!r}" + _nearest(str(key), _known_keys(parents))
    message = str(fault["msg"]).removeprefix("Value error, ")
    return f"{where}: {message}" if where else message


def _known_keys(path: list[Any]) -> list[str]:
    """Return the keys that are allowed in the section at ``path``."""
    sections: dict[str, type[_Section]] = {
        "providers": ProviderConfig,
        "models": ModelConfig,
        "local": LocalConfig,
        "traffic": TrafficConfig,
        "budget": BudgetConfig,
        "bulk": BulkConfig,
    }
    section: type[_Section] = Config
    if path:
        section = sections.get(str(path[0]), Config)
        if "limits" in path:
            section = LimitsConfig
    return list(section.model_fields)


def _nearest(word: str, known: Any) -> str:
    options = list(known)
    close = difflib.get_close_matches(word, options, n=1)
    if close:
        return f"; did you mean {close[0]!r}?"
    return f"; known here: {', '.join(sorted(options))}" if options else ""
