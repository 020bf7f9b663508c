"""Tests that run a model do so on any device: `pytest --device`, and some on two of them each time."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from devices import Where, running_on


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """What is marked ``lab_too`` runs on the stand-in for a GPU as well, wherever no device was asked for."""
    if metafunc.definition.get_closest_marker("lab_too") and metafunc.config.getoption("--device") == "cpu":
        metafunc.parametrize("device", ["cpu", "lab"], indirect=True)


@pytest.fixture(autouse=True)
def device(request: pytest.FixtureRequest) -> Iterator[Where]:
    """Where the test runs its models."""
    where: Where = getattr(request, "param", request.config.getoption("--device"))
    about_cpus = request.node.get_closest_marker("cpu_only")
    if about_cpus and where != "cpu":
        pytest.skip(about_cpus.args[0])
    with running_on(where):
        yield where
