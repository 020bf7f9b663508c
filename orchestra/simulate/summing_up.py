"""From what was counted to what is told: shares, costs, percentiles."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from orchestra.bench.results.quantiles import Quantiles
from orchestra.budget import cost, limits_for, price_for
from orchestra.call import Usage
from orchestra.config import LOCAL, Config, LimitsConfig, PriceConfig
from orchestra.jobs import Progress
from orchestra.policies.traffic import TrafficClass
from orchestra.simulate.findings import ClassFindings, Findings, JobFindings, OutletFindings, PoolFindings
from orchestra.simulate.outside import EVERYBODY, Outside
from orchestra.simulate.tally import ClassTally, RouteTally, Tally
from orchestra.simulate.tally import Usage as Used
from orchestra.simulate.traffic import Burst, Traffic
from orchestra.testing import Limits

__all__ = ["JobEnd", "sum_up"]

_HOUR = 3600.0
_PER_MINUTE = ("requests", "tokens", "input_tokens", "output_tokens")
_PER_DAY = (*_PER_MINUTE, "usd")


@dataclass(frozen=True, slots=True)
class JobEnd:
    """How a job stood when it ended, or when nobody waited any longer: then ``seconds`` is None."""

    progress: Progress
    seconds: float | None
    stopped: str | None
    expired: int = 0


def sum_up(
    config: Config,
    outside: Outside,
    traffic: Traffic,
    tally: Tally,
    *,
    unfinished: Mapping[TrafficClass, int],
    jobs: Mapping[str, JobEnd],
    busy: Mapping[str, float],
    seconds: float,
    is_interrupted: bool,
    cpu_seconds: float,
) -> Findings:
    """Return the findings of ``seconds`` that were simulated. ``busy`` are the seconds that engines were."""
    hourly = {name: config.local[name].dollars_per_hour or 0.0 for name in busy}
    return Findings(
        seconds=seconds,
        asked_seconds=traffic.seconds,
        starts_at=traffic.starts_at,
        is_interrupted=is_interrupted,
        classes={
            of.value: class_findings(one, unfinished.get(of, 0)) for of, one in tally.classes.items() if one.calls
        },
        outlets=[*_outlets(config, tally.routes, jobs)],
        jobs=[
            _job(burst, jobs[burst.name], traffic, is_interrupted) for burst in traffic.jobs if burst.name in jobs
        ],
        pools=[*_pools(config, outside, tally.routes, seconds)],
        engines={name: one / seconds if seconds else 0.0 for name, one in busy.items()},
        engine_usd=sum(hourly.values()) * seconds / _HOUR,
        about=traffic.about,
        cpu_seconds=cpu_seconds,
    )


def class_findings(tally: ClassTally, unfinished: int = 0) -> ClassFindings:
    """Return what was counted of a class, as it is told."""
    # what nobody waited for any longer ended by our own hand
    errors = tally.errors - Counter({"cancelled": unfinished})
    return ClassFindings(
        calls=tally.calls,
        answered=tally.answered,
        waits=Quantiles.of(tally.waits),
        longest_wait=max(tally.waits, default=0.0),
        totals=Quantiles.of(tally.totals),
        refusals=dict(tally.refusals),
        errors=dict(errors),
        attempts=dict(tally.attempts),
        unfinished=unfinished,
    )


def _job(burst: Burst, end: JobEnd, traffic: Traffic, is_interrupted: bool) -> JobFindings:
    progress = end.progress
    return JobFindings(
        name=burst.name,
        at=traffic.starts_at + burst.at,
        lines=len(burst.lines),
        done=progress.done,
        failed=progress.failed,
        expired=end.expired,
        batched=sum(one.lines - one.failed for one in progress.outlets if one.via not in ("sync", "local")),
        deadline=burst.deadline,
        seconds=end.seconds,
        usd=progress.usd,
        stopped=end.stopped,
        is_open=end.seconds is None and end.stopped is None and not is_interrupted,
    )


def _outlets(
    config: Config, routes: Mapping[str, RouteTally], jobs: Mapping[str, JobEnd]
) -> Iterator[OutletFindings]:
    for name, one in sorted(routes.items()):
        if not one.calls:  # all its attempts failed
            continue
        is_local = name.startswith(f"{LOCAL}/")
        usage = Usage(one.input_tokens, one.output_tokens, one.cached_tokens)
        price = _price(config, _stand_in(config, name) if is_local else name)
        yield OutletFindings(
            route=name,
            via="local" if is_local else "sync",
            calls=one.calls,
            input_tokens=one.input_tokens,
            output_tokens=one.output_tokens,
            usd=None if is_local or one.unpriced else one.usd,
            usd_sync=None if price is None else cost(price, usage),
        )
    yield from _batches(config, jobs)


def _batches(config: Config, jobs: Mapping[str, JobEnd]) -> Iterator[OutletFindings]:
    """Yield what batches answered: their lines are no calls, so the ledger's count is taken."""
    found: dict[tuple[str, str], list[float]] = defaultdict(lambda: [0.0] * 5)
    for end in jobs.values():
        for one in end.progress.outlets:
            if one.route is not None and one.via not in ("sync", "local"):
                told = (one.lines - one.failed, one.input_tokens, one.output_tokens, one.usd, one.unpriced)
                sums = found[one.route, one.via]
                sums[:] = [before + more for before, more in zip(sums, told, strict=True)]
    for (route, via), (lines, input_tokens, output_tokens, usd, unpriced) in sorted(found.items()):
        price = _price(config, route)
        usage = Usage(int(input_tokens), int(output_tokens))
        yield OutletFindings(
            route=route,
            via=via,
            calls=int(lines),
            input_tokens=usage.input_tokens,
            output_tokens=usage.output_tokens,
            usd=None if unpriced else usd,
            usd_sync=None if price is None else cost(price, usage),
        )


def _price(config: Config, route: str | None) -> PriceConfig | None:
    name, _, model = (route or "").partition("/")
    return price_for(config.providers[name].prices, model) if name in config.providers else None


def _stand_in(config: Config, engine: str) -> str | None:
    """Return the first priced route of a provider that stands beside an engine in ``[models]``."""
    beside = (route for entry in config.models.values() if engine in entry.routes for route in entry.routes)
    return next((route for route in beside if _price(config, route) is not None), None)


def _pools(
    config: Config, outside: Outside, routes: Mapping[str, RouteTally], seconds: float
) -> Iterator[PoolFindings]:
    for name, provider in config.providers.items():
        allows = outside.allows.get(name, outside.allows.get(EVERYBODY))
        groups: list[LimitsConfig | Limits] = [*provider.limits] or ([allows] if allows is not None else [])
        for group in groups:
            hours: dict[int, Used] = defaultdict(Used)
            for route, tally in routes.items():
                head, _, model = route.partition("/")
                if head == name and (not provider.limits or limits_for(provider.limits, model) is group):
                    _add(hours, tally)
            if hours:
                patterns = getattr(group, "models", ("*",))
                pool = name if patterns == ("*",) else f"{name} {','.join(patterns)}"
                yield from _limits(pool, group, hours, seconds)


def _add(hours: dict[int, Used], tally: RouteTally) -> None:
    for hour, used in tally.hours.items():
        for metric in Used.__slots__:
            setattr(hours[hour], metric, getattr(hours[hour], metric) + getattr(used, metric))


def _limits(
    pool: str, group: LimitsConfig | Limits, hours: Mapping[int, Used], seconds: float
) -> Iterator[PoolFindings]:
    count = max(int(-(-seconds // _HOUR)), max(hours) + 1)
    per_hour = {f"{metric}_per_minute": (metric, 60.0) for metric in _PER_MINUTE}
    per_hour |= {f"{metric}_per_day": (metric, 1 / 24) for metric in _PER_DAY}
    per_hour["max_concurrency"] = ("concurrency", _HOUR)
    for limit, (metric, factor) in per_hour.items():
        allowed: float | None = getattr(group, limit, None)
        if allowed:
            used = [getattr(hours.get(hour, Used()), metric) for hour in range(count)]
            yield PoolFindings(
                pool=pool, limit=limit, allowed=allowed, hours=[one / (allowed * factor) for one in used]
            )
