"""The settings of an account at a provider: where it is, what it may use, and what that costs."""

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal, Self
from urllib.parse import urlsplit

from pydantic import Field, ValidationInfo, field_validator, model_validator

from orchestra.config.batch import BatchConfig
from orchestra.config.section import Price, Rate, Section, anchored, closest
from orchestra.errors import ConfigError
from orchestra.kinds import KINDS

__all__ = ["LimitsConfig", "PriceConfig", "ProviderConfig", "ServiceTiersConfig"]


class LimitsConfig(Section):
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
    requests_per_minute: Rate | None = None
    tokens_per_minute: Rate | None = None
    input_tokens_per_minute: Rate | None = None
    output_tokens_per_minute: Rate | None = None
    requests_per_day: Rate | None = None
    tokens_per_day: Rate | None = None
    input_tokens_per_day: Rate | None = None
    output_tokens_per_day: Rate | None = None
    usd_per_day: Rate | None = None
    max_concurrency: Annotated[int, Field(ge=1, strict=True)] | None = None
    enqueued_batch_tokens: Annotated[int, Field(ge=1, strict=True)] | None = None
    window: Literal["refill", "fixed"] = "refill"
    burst_seconds: Rate = 60.0

    @model_validator(mode="after")
    def _one_way_to_count(self) -> Self:
        if self.window == "fixed" and "burst_seconds" in self.model_fields_set:
            raise ValueError('burst_seconds means nothing with window = "fixed": leave out one of the two')
        return self


class PriceConfig(Section):
    """What a million tokens cost in USD, for all models whose name matches one of ``models``; the first counts.

    ``cached_input`` is for input that the provider had cached; by default it costs as other input does. ``tiers``
    gives the factor by which all of that changes in a service tier, by the name that answers give it, in a
    ``batch``, or in the ``background 8h`` or ``2h``. A tier without one is charged in full where it is known to
    cost no more; what costs more has no price without one. A batch without one is as cheap as the provider
    documents, and so is the background; servers of one's own, and an ``openai-compatible``, document nothing, so
    there it costs the full price.
    """

    models: tuple[str, ...] = ("*",)
    input: Price
    cached_input: Price | None = None
    output: Price
    tiers: Mapping[str, Price] = Field(default_factory=dict)


class ServiceTiersConfig(Section):
    """The service tier that calls of each class ask for, in the provider's own words; None asks for none.

    A call that names a tier itself keeps it. Tiers have prices of their own: see ``tiers`` of `PriceConfig`.

    Where the tier has no room, bulk asks for it once more, if its deadline is a quarter of an hour away or more;
    after that, and at once for a person, the call goes in the provider's default tier. So do calls for a model
    that turns out not to have the tier.
    """

    interactive: str | None = None
    bulk: str | None = None


class ProviderConfig(Section):
    """An account at a provider.

    ``base_url`` is what the official SDK would take, by default the kind's own address.

    ``api_key`` is ``env:NAME``, ``file:PATH`` or a literal, and never shown; absent, the caller's own
    authorization header is used, and only towards the host that the caller pointed its SDK at. A relative path
    counts from the folder of the settings.

    ``priority`` tells the server each call's class in the field ``priority``. A server that does not run with it
    refuses the field: vLLM needs ``--scheduling-policy priority``, SGLang ``--enable-priority-scheduling``.
    """

    kind: str
    base_url: Annotated[str, Field(validate_default=True)] = ""
    api_key: str | None = Field(default=None, repr=False, min_length=1)
    limits: tuple[LimitsConfig, ...] = ()
    prices: tuple[PriceConfig, ...] = ()
    batch: BatchConfig = Field(default_factory=BatchConfig)
    priority: Annotated[bool, Field(strict=True)] = False
    service_tiers: ServiceTiersConfig = Field(default_factory=ServiceTiersConfig)

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
            near = closest(value, KINDS) if isinstance(value, str) else []
            hint = f" (did you mean {near[0]!r}?)" if near else ""
            raise ValueError(f"must be one of {', '.join(KINDS)}{hint}")
        return value

    @field_validator("api_key")
    @classmethod
    def _counts_from_the_settings(cls, value: str | None, info: ValidationInfo) -> str | None:
        scheme, _, path = (value or "").partition(":")
        return f"file:{anchored(path, info)}" if scheme == "file" and path else value

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

    @field_validator("batch")
    @classmethod
    def _are_there(cls, value: BatchConfig, info: ValidationInfo) -> BatchConfig:
        if (kind := info.data.get("kind")) is None:
            return value
        if value.enabled and KINDS[kind].batches is None:
            able = ", ".join(name for name, one in KINDS.items() if one.batches is not None)
            raise ValueError(f"enabled = true: the kind {kind!r} has no batches; these have: {able}")
        if value.background and not KINDS[kind].background:
            able = ", ".join(name for name, one in KINDS.items() if one.background)
            raise ValueError(f"background = true: the kind {kind!r} has no such responses; these have: {able}")
        return value

    @field_validator("service_tiers")
    @classmethod
    def _are_documented(cls, value: ServiceTiersConfig, info: ValidationInfo) -> ServiceTiersConfig:
        if (kind := info.data.get("kind")) is None:
            return value
        for traffic, tier in value.model_dump(exclude_none=True).items():
            if not KINDS[kind].tiers:
                able = ", ".join(name for name, one in KINDS.items() if one.tiers)
                raise ValueError(f"the kind {kind!r} has no service tiers; these have: {able}")
            if tier not in KINDS[kind].tiers:
                raise ValueError(
                    f"{traffic} = {tier!r} is no tier of the kind {kind!r}; it has: {', '.join(KINDS[kind].tiers)}"
                )
        return value

    @field_validator("prices")
    @classmethod
    def _are_of_tiers(cls, value: tuple[PriceConfig, ...], info: ValidationInfo) -> tuple[PriceConfig, ...]:
        if (kind := info.data.get("kind")) is None:
            return value
        background = (f"background {window}" for window in KINDS[kind].background)
        billed = (*KINDS[kind].billed_tiers, "batch", *background)
        for tier in [tier for price in value for tier in price.tiers]:
            if tier not in billed:
                raise ValueError(
                    f"tiers: {tier!r} is no tier of the kind {kind!r}; these are billed: {', '.join(billed)}"
                )
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
                key = Path(rest).read_text(encoding="utf-8").strip()
            except (OSError, UnicodeDecodeError) as error:
                raise ConfigError(f'api_key = "file:{rest}": cannot be read ({type(error).__name__})') from None
            if not key:
                raise ConfigError(f'api_key = "file:{rest}": the file is empty')
            return key
        return self.api_key
