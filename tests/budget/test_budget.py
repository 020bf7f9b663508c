"""Which call draws on which pool."""

import asyncio
import json
import os

import pytest

from orchestra.budget import Budget, limits_for
from orchestra.call import Charge
from orchestra.config import LimitsConfig, TrafficConfig
from orchestra.policies.traffic import TrafficClass

SMALL = LimitsConfig(models=("gpt-*-mini", "o?-mini"), requests_per_minute=60.0)
REST = LimitsConfig(models=("*",), requests_per_minute=600.0)


@pytest.fixture
def now():
    return [0.0]


@pytest.fixture
def budget(now):
    return Budget(TrafficConfig(), clock=lambda: now[0], call_at=lambda when, ring: None)


def test_all_models_of_a_limit_group_share_one_pool(budget):
    pool = budget.pool("openai", "key", SMALL, "gpt-5-mini")
    assert budget.pool("openai", "key", SMALL, "o4-mini") is pool
    assert budget.pool("openai", "key", REST, "gpt-5") is not pool


def test_other_keys_and_providers_have_pools_of_their_own(budget):
    pool = budget.pool("openai", "key", SMALL, "gpt-5-mini")
    assert budget.pool("openai", "other key", SMALL, "gpt-5-mini") is not pool
    assert budget.pool("azure", "key", SMALL, "gpt-5-mini") is not pool


def test_a_model_without_limits_has_a_pool_of_its_own_that_counts(budget):
    pool = budget.pool("openai", "key", None, "new")
    assert budget.pool("openai", "key", None, "new") is pool
    assert budget.pool("openai", "key", None, "newer") is not pool
    assert budget.pool("openai", "key", SMALL, "new") is pool, "limits for other models are none"
    pool.acquire_sync(Charge(tokens=5.0), traffic=TrafficClass.BULK).keep()
    assert pool.snapshot()["spent"]["tokens"] == 5.0
    assert budget.pool("openai", "key", None, None) is not pool


def test_the_first_group_that_matches_counts():
    assert limits_for([SMALL, REST], "gpt-5-mini") is SMALL
    assert limits_for([SMALL, REST], "gpt-5") is REST
    assert limits_for([SMALL], "gpt-5") is None
    assert limits_for([SMALL], "GPT-5-MINI") is None, "names of models are case-sensitive"
    assert limits_for([SMALL, REST], None) is REST
    assert limits_for([], "gpt-5") is None


def test_changed_limits_reach_the_pool_that_is_there(budget):
    pool = budget.pool("openai", "key", SMALL, "gpt-5-mini")
    more = SMALL.model_copy(update={"requests_per_minute": 120.0})
    assert budget.pool("openai", "key", more, "gpt-5-mini") is pool
    assert pool.snapshot()["dimensions"]["requests"]["limit"] == 120.0


def test_the_traffic_settings_reach_the_pools():
    budget = Budget(TrafficConfig(interactive_reserve=0.4, max_waiting=0))
    pool = budget.pool("openai", "key", REST, "gpt-5")
    assert pool.snapshot()["dimensions"]["requests"]["interactive_reserve"] == 240.0
    lease = budget.pool("p", "k", LimitsConfig(max_concurrency=1), "m").acquire_sync(
        Charge(), traffic=TrafficClass.BULK
    )
    lease.keep()


def test_the_snapshot_names_the_accounts(budget):
    budget.pool("openai", "3f2a", SMALL, "gpt-5-mini")
    budget.pool("openai", "3f2a", None, "new")
    state = json.loads(json.dumps(budget.snapshot()))
    assert [(pool["provider"], pool["key"], pool["models"]) for pool in state] == [
        ("openai", "3f2a", ["gpt-*-mini", "o?-mini"]),
        ("openai", "3f2a", ["new"]),
    ]
    assert state[0]["dimensions"]["requests"]["limit"] == 60.0


def test_idle_accounts_are_forgotten_and_busy_ones_are_not(budget, now):
    held = budget.pool("openai", "busy", SMALL, "gpt-5-mini").acquire_sync(Charge(), traffic=TrafficClass.BULK)
    paused = budget.pool("openai", "paused", SMALL, "gpt-5-mini")
    paused.pause(1e9, "quota")
    for number in range(5000):
        now[0] += 10.0
        budget.pool("openai", f"tenant {number}", REST, "gpt-5")
    assert len(budget._pools) < 600
    assert len(budget._asked) == len(budget._pools)
    assert ("openai", "busy", SMALL.models, "online") in budget._pools
    assert budget.pool("openai", "paused", SMALL, "gpt-5-mini") is paused
    held.keep()


def test_it_works_without_settings():
    async def call():
        pool = Budget().pool("openai", "key", None, "gpt-5")
        (await pool.acquire(Charge(), traffic=TrafficClass.INTERACTIVE)).settle(Charge())

    asyncio.run(call())


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_a_forked_child_does_not_wait_for_its_parents_calls():
    budget = Budget()
    limits = LimitsConfig(max_concurrency=1)
    lease = budget.pool("p", "key", limits, "m").acquire_sync(Charge(), traffic=TrafficClass.BULK)
    child = os.fork()
    if child == 0:
        got = False
        try:
            pool = budget.pool("p", "key", limits, "m")
            pool.acquire_sync(Charge(), traffic=TrafficClass.BULK, queue_bound=1.0).refund()
            got = True
        finally:
            os._exit(0 if got else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    lease.refund()
