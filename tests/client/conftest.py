"""An Orchestra whose engine is scripted."""

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

import orchestra

from .fake_engine import FakeEngine


@pytest.fixture
def engine(monkeypatch: pytest.MonkeyPatch) -> FakeEngine:
    """The engine that every local route opens."""
    fake = FakeEngine()
    monkeypatch.setattr("orchestra.localengine.LocalEngine.load", lambda weights, config: fake)
    return fake


@pytest.fixture
def settings(tmp_path: Path) -> dict[str, Any]:
    return {
        "models": {"fast": {"routes": ["local/small"]}},
        "local": {"small": {"weights": "small"}},
        "bulk": {"store": str(tmp_path / "jobs.db")},
    }


@pytest.fixture
async def orc(settings: dict[str, Any], engine: FakeEngine) -> AsyncIterator[orchestra.Orchestra]:
    async with orchestra.Orchestra.from_config(settings) as made:
        yield made
