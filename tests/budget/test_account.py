"""Accounts whose limits nobody told us, or that others use too, in virtual time.

600 requests and 90,000 tokens a minute, ten seconds of burst; a backlog of 2,000 bulk calls, and 1.5 interactive
calls a second. What a wait is beyond its service time includes the wire, and every try that was turned away.
"""

from __future__ import annotations

from dataclasses import replace

import pytest
from account_lab import ACCOUNT, SILENT, AccountLab
from budget_lab import per_minute

from orchestra.testing.limiter import Limits, Tenant

SEEDS = range(4)


def configured():
    return [per_minute("requests", 600, burst_seconds=10), per_minute("tokens", 90_000, burst_seconds=10)]


def busy(until=40.0, **fields):
    lab = AccountLab(**fields)
    lab.bulk(2000)
    lab.people(1.5, until - 2)
    lab.run(until)
    return lab


@pytest.mark.parametrize("late", [False, True], ids=["stamped on arrival", "stamped on leaving"])
@pytest.mark.parametrize("seed", SEEDS)
def test_limits_that_only_headers_tell(seed, late):
    lab = busy(seed=seed, stamped_late=late)
    report = lab.report(0, 38)
    assert report.refused <= 0.02
    assert report.wait(0.99) <= 0.5
    assert lab.report(10, 40).used >= 0.93


@pytest.mark.parametrize("known", [True, False], ids=["configured", "told"])
@pytest.mark.parametrize("service", [0.3, 5.0])
@pytest.mark.parametrize("seed", SEEDS)
def test_a_tenant_who_steadily_takes_two_fifths(seed, service, known):
    lab = busy(60.0, seed=seed, service=service, tenant=Tenant(0.4), buckets=configured() if known else ())
    report = lab.report(10, 50)
    assert report.refused <= 0.005
    assert report.wait(0.99) <= 0.1
    assert report.used >= 0.95
    assert lab.report(0, 50).refused <= (0.005 if service < 1 else 0.06), "a long answer tells what was long ago"


@pytest.mark.parametrize("known", [True, False], ids=["configured", "told"])
@pytest.mark.parametrize("seed", SEEDS)
def test_a_tenant_who_takes_four_fifths_now_and_then(seed, known):
    lab = busy(60.0, seed=seed, tenant=Tenant(0.8, 10, 10), buckets=configured() if known else ())
    report = lab.report(0, 58)
    assert report.refused <= 0.02
    assert report.wait(0.99) <= 1.5
    assert lab.report(10, 50).used >= 0.85


@pytest.mark.parametrize("seed", SEEDS)
def test_limits_that_halve_and_double(seed):
    lab = AccountLab(seed=seed)
    half = replace(ACCOUNT, requests_per_minute=300, tokens_per_minute=45_000)
    lab.change(20, half)
    lab.change(50, ACCOUNT)
    lab.bulk(2000)
    lab.people(1.5, 78)
    lab.run(80)
    for since, until, rate in ((20, 35, 5), (35, 50, 5), (50, 65, 10), (65, 80, 10)):
        report = lab.report(since, until, rate)
        assert report.refused <= 0.03
        assert report.used >= 0.9


@pytest.mark.parametrize("headers", ["none", "retry-after"])
@pytest.mark.parametrize("service", [0.3, 3.0])
@pytest.mark.parametrize("seed", SEEDS)
def test_a_provider_that_tells_nothing(seed, service, headers):
    lab = busy(120.0, seed=seed, service=service, limits=replace(SILENT, headers=headers))
    since = 10 if service < 1 else 30
    report = lab.report(since, 100)
    assert report.refused <= 0.05
    assert report.used >= 0.85


@pytest.mark.parametrize("seed", SEEDS)
def test_a_silent_limit_of_calls_at_once(seed):
    lab = busy(60.0, seed=seed, limits=Limits(max_concurrency=6, headers="none"))
    report = lab.report(10, 50, per_second=6 / 0.3)
    assert report.refused <= 0.05
    assert report.used >= 0.5


def test_a_provider_that_limits_nothing_is_soon_asked_as_fast_as_we_can():
    lab = busy(3.0, limits=Limits(headers="none"))
    assert not lab.report(0, 3).refused
    assert len(lab.sent) > 1000
