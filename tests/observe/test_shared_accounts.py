"""What the file of a shared budget says, to whoever has no part in it."""

from __future__ import annotations

import sqlite3

import pytest

from orchestra.budget import Budget
from orchestra.budget.shared import StoreError
from orchestra.call import Charge
from orchestra.config import BudgetConfig, LimitsConfig
from orchestra.observe.shared_accounts import read_accounts
from orchestra.policies.traffic import TrafficClass


def test_where_there_is_no_file_there_are_no_accounts(tmp_path):
    assert read_accounts(tmp_path / "budget.db") == []
    assert not (tmp_path / "budget.db").exists()


async def test_each_account_tells_its_limits_its_use_and_its_holders(tmp_path):
    file = tmp_path / "budget.db"
    budget = Budget(backend=BudgetConfig(backend=f"sqlite:{file}"))
    limits = LimitsConfig(models=("gpt-*",), requests_per_minute=600.0, max_concurrency=4)
    pool = budget.pool("cloud", "abc123", limits, "gpt-5")
    lease = await pool.acquire(Charge(tokens=10.0), traffic=TrafficClass.INTERACTIVE)
    (account,) = read_accounts(file)
    assert (account["file"], account["provider"], account["key"]) == (str(file), "cloud", "abc123")
    assert account["models"] == ["gpt-*"]
    assert account["dimensions"]["requests"]["limit"] == 600
    assert account["dimensions"]["concurrency"]["used"] >= 1
    assert account["processes"] == len(account["holders"]) == 1
    (holder,) = account["holders"]
    assert holder["held"]["concurrency"] >= 1
    lease.settle(Charge(tokens=10.0))
    budget.close()
    (account,) = read_accounts(file)
    assert account["holders"] == []
    assert account["dimensions"]["concurrency"]["used"] == 0


def test_a_file_of_another_kind_is_an_error(tmp_path):
    text = tmp_path / "text.db"
    text.write_text("no database " * 100)
    other = tmp_path / "other.db"
    with sqlite3.connect(other) as db:
        db.execute("CREATE TABLE accounts (name, state)")
    db.close()
    for file in (text, other):
        with pytest.raises(StoreError, match=file.name):
            read_accounts(file)
